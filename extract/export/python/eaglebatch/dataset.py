"""A generation as a map-style dataset: its samples in the order of training."""

import os

import numpy as np

from .blob import ABSENT, BITS
from .errors import CorruptError, EaglebatchError, SyntheticError
from .generation import Generation, find
from .index import OWN_MASK


class Dataset:
    """The samples of a generation, by position in the shuffled order.

    path: a generation's directory, or a workspace, whose newest sealed generation is taken.
    split: "train", "eval" or another name; None for all positions.
    partial: read a generation that is still being extracted: the positions before the first that is still to come.
    lease: keep gc from deleting what is read. False only where the file system has no locks.
    synthetic: accept made-up states.

    Safe for threads, for fork and for pickling, and so for torch's DataLoader with any number of workers.
    """

    def __init__(self, path, split="train", partial=False, lease=True, synthetic=False):
        self._args = (os.path.realpath(find(path)), split, partial, lease, synthetic)
        g = self._generation = Generation(self._args[0], lease, partial)
        self.meta = g.index.meta
        if self.meta.synthetic and not synthetic:
            raise SyntheticError(f"{g.path}: the states are made up: pass synthetic=True to rehearse with them")
        splits = g.index.splits
        if split is None or (split == "train" and not splits):
            self._range = range(g.index.positions)
        elif split in splits:
            self._range = splits[split]
        else:
            raise EaglebatchError(f"{g.path}: no split {split!r}, there are {sorted(splits)}")
        self._readable = None if g.sealed else self._committed()

    def _committed(self):
        """The positions that a generation being built can serve: what is quarantined does not count."""
        g, out, there = self._generation, [], {}
        r = self._range
        for lo in range(r.start, r.stop, 4096):
            for i, p in enumerate(g.index.records(lo, min(lo + 4096, r.stop)), lo):
                if p["generation"] == 0:
                    no = int(p["blob"])
                    if no not in there:
                        there[no] = g.blob(no).entries["flags"] & ABSENT if os.path.exists(g.blob_path(no)) else None
                    if there[no] is None:
                        return np.array(out, np.int64)
                    if int(p["entry"]) < len(there[no]) and there[no][p["entry"]]:
                        continue
                out.append(i)
        return np.array(out, np.int64)

    def __reduce__(self):
        return Dataset, self._args

    def __len__(self):
        return len(self._range if self._readable is None else self._readable)

    def __getitem__(self, i):
        n = len(self)
        if not -n <= i < n:
            raise IndexError(f"position {i} of {n}")
        i = int(i) % n
        return Sample(self, i, self._range[i] if self._readable is None else int(self._readable[i]))

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    @property
    def layers(self):
        """Ids of the layers: k is the residual stream after k layers."""
        return list(self.meta.layers)

    @property
    def hidden_size(self):
        return self.meta.hidden_size

    @property
    def path(self):
        return self._generation.path

    def check_file(self, name):
        """The path of a file beside the blobs, such as target_head.safetensors; None if there is none.

        It is hashed where xxhash is installed or the accelerator was built; its size was checked in any case.
        """
        return self._generation.check_file(name)

    def verify(self):
        """Checks all bytes of this generation, and of older ones that it points to; raises at the first that is wrong.

        Every chunk is decoded. Each file is hashed too, where xxhash is installed or the accelerator was built: that also finds
        a changed byte that changes no value. `eaglebatch check --full` says all that is wrong, and goes on where it was stopped.
        """
        self._generation.verify()

    @property
    def quantization(self):
        """What fp8 cost in the blobs of this generation itself, by layer: {layer: {"rows", "mean_error", "max_error"}}, in
        relative errors of rows; empty where nothing was lost, or the generation is still being extracted."""
        return self._generation.quantization

    @property
    def lengths(self):
        """The tokens of each sample: int64 [len(self)]."""
        r, parts = self._range, []
        for lo in range(r.start, r.stop, 4096):
            parts.append(self._generation.index.records(lo, min(lo + 4096, r.stop))["rows"].astype(np.int64))
        rows = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return rows if self._readable is None else rows[self._readable - r.start]


class Sample:
    """One sample. Ids, mask and states are read and checked when they are asked for.

    Row t of the states belongs to token t; nothing is shifted. A pickled sample takes all that it has along.
    """

    def __init__(self, dataset, position, row):
        g = dataset._generation
        p = g.index.position(row)
        self.position = position
        self.layers = dataset.layers
        self.dtype, self.hidden_size = dataset.meta.dtype, dataset.meta.hidden_size
        self._blob, self._entry = g.locate(p)
        if self._blob.entries["flags"][self._entry] & ABSENT:
            raise CorruptError(self._blob.file.path, f"entry {self._entry} was quarantined, the index points to it")
        self._rows = int(p["rows"])
        self._own_mask = None
        if int(p["mask"]) != OWN_MASK:
            self._own_mask = g.index.mask(int(p["mask"]), self._rows)
        self.metadata = {
            "dataset": g.index.datasets[p["dataset"]], "index": int(p["sample"]) & (1 << 40) - 1,
            "window": int(p["sample"]) >> 40, "position": position,
            "generation": int(p["generation"]) or g.number, "blob": int(p["blob"]),
            "entry": int(p["entry"]), "tokens": self._rows, "last_prenorm": dataset.meta.last_prenorm,
            "model": dataset.meta.model, "engine": self._blob.meta.engine}
        self._ids = self._mask = None
        self._bits, self._maps, self._errors = {}, {}, False

    def __len__(self):
        return self._rows

    @property
    def ids(self):
        """Token ids: int64 [tokens]."""
        if self._ids is None:
            self._ids = self._blob.ids(self._entry, self._rows)
        return self._ids

    @property
    def mask(self):
        """1 where a token is supervised: uint8 [tokens]."""
        if self._mask is None:
            self._mask = self._own_mask if self._own_mask is not None else self._blob.mask(self._entry, self._rows)
        return self._mask

    def stored(self, layer):
        """Which rows of a layer were kept: bool [tokens]. Others read as zeros."""
        i = self._index(layer)
        if i not in self._maps:
            m = self._blob.row_map(self._entry, i)
            self._maps[i] = np.ones(self._rows, bool) if m is None else m[:self._rows].astype(bool)
        return self._maps[i]

    def quantization_error(self, layer):
        """(mean, greatest) relative error of a layer's rows against what the engine gave, over the whole stored sample;
        None where nothing was lost or it is not known."""
        i = self._index(layer)
        if self._errors is False:
            self._errors = self._blob.errors(self._entry)
        return None if self._errors is None else (float(self._errors[i, 0]), float(self._errors[i, 1]))

    def _index(self, layer):
        try:
            return self.layers.index(layer)
        except ValueError:
            raise KeyError(f"layer {layer} was not captured, these were: {self.layers}") from None

    def read(self, layers=None, outs=None):
        """Reads several layers at once, which is faster than one by one: a list of arrays [tokens, hidden].

        They hold bits: uint16 for bf16 and fp16, uint32 for fp32, and for fp8 uint8 with the four bytes of the
        row's scale in front. outs: arrays of that kind to fill instead, views with strides included.
        """
        want = [self._index(k) for k in (self.layers if layers is None else layers)]
        if outs is not None:
            self._blob.states(self._entry, want, outs)
            return outs
        new = [i for i in dict.fromkeys(want) if i not in self._bits]
        if new:
            m = self._blob.meta
            outs = [np.empty((self._rows, m.row_values), BITS[m.dtype]) for _ in new]
            self._blob.states(self._entry, new, outs)
            self._bits.update(zip(new, outs))
        return [self._bits[i] for i in want]

    def read_blocks(self, rows, into, done):
        """Reads the first rows of all layers, some rows at a time and by several threads: into(lo, hi) gives arrays for rows
        lo to hi, one a layer, and done(lo, hi) is called by the same thread when they are filled."""
        self._blob.blocks(self._entry, range(len(self.layers)), rows, into, done)

    def states(self, layer):
        """One layer's states: [tokens, hidden], float32 (exactly what is stored), or float16 for fp16.

        What is stored as fp8 has lost precision: quantization_error says how much."""
        return as_numpy(self.read([layer])[0], self.dtype)

    def tensor(self, layer):
        """One layer's states as a torch tensor: bfloat16, float16 or float32 as stored; float32 for fp8."""
        return as_torch(self.read([layer])[0], self.dtype)

    def __getstate__(self):
        if self._blob is not None:
            self.ids, self.mask, self.read(), [self.stored(k) for k in self.layers], self.quantization_error(self.layers[0])
        return {**self.__dict__, "_blob": None}


def _e4m3():
    """float8 e4m3fn, by its byte."""
    b = np.arange(256)
    exponent, mantissa = b >> 3 & 15, b & 7
    v = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    v[(b & 127) == 127] = np.nan
    return np.where(b & 128, -v, v).astype(np.float32)


E4M3 = _e4m3()
LARGEST = np.finfo(np.float32).max


def as_numpy(bits, dtype):
    """Bits as read to values."""
    if dtype == "bf16":
        out = np.empty(bits.shape, np.uint32)
        np.left_shift(bits, np.uint32(16), out=out, dtype=np.uint32)
        return out.view(np.float32)
    if dtype == "fp8":
        scale = bits[:, :4].copy().view("<f4")
        out = np.take(E4M3, bits[:, 4:])
        with np.errstate(over="ignore"):
            np.multiply(out, scale, out=out)
        if len(scale) and scale.max() > 2.0**118:  # rounding may take the largest numbers over the edge
            np.clip(out, -LARGEST, LARGEST, out=out)
        return out
    return bits.view("<f2" if dtype == "fp16" else "<f4")


def as_torch(bits, dtype):
    import torch
    if dtype == "fp8":
        return torch.from_numpy(as_numpy(bits, dtype))
    if dtype == "fp32":
        return torch.from_numpy(bits.view(np.float32))
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16 if dtype == "bf16" else torch.float16)
