"""One blob (.ebb): header, footer index, chunks."""

import struct
import zlib

import numpy as np

from . import accel, parallel
from .codecs import CODECS, LAYOUT, scratch
from .errors import CorruptError, NewerError
from .files import File, number, read_header, text, texts, xxh64_intdigest

MAGIC = b"EBBLOB\r\n"
TRAILER = struct.Struct("<QQIII12sQII8s")
END = b"EBBEND\r\n"
ENTRY = np.dtype([("sample", "<u8"), ("dataset", "<u4"), ("rows", "<u4"), ("tokens", "V16"), ("content", "V16"),
                  ("first", "<u4"), ("chunks", "<u4"), ("flags", "<u4"), ("reason", "<u4")])
CHUNK = np.dtype([("xxh64", "<u8"), ("crc32", "<u4"), ("raw", "<u4"), ("enc", "<u4"), ("codec", "u1"),
                  ("reserved", "u1", 3)])
ABSENT, SELECTED, ERRORS = 1, 2, 4
MAX_CHUNK = 64 << 20
MAX_ROWS = 1 << 26
MAX_FOOTER = 256 << 20
BITS = {"bf16": "<u2", "fp16": "<u2", "fp32": "<u4", "fp8": "u1"}  # how a value is held before it is interpreted


AHEAD = 32 << 20  # bytes that the kernel is asked to read ahead


def neighbours(numbers):
    """The ranges of indexes of numbers, ascending, that follow one another without a gap."""
    cuts = [0] + [i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1] + 1] + [len(numbers)]
    return [range(a, b) for a, b in zip(cuts, cuts[1:])]


class Meta:
    """What the header says of all entries."""

    def __init__(self, path, j):
        layers = j.get("layers")
        if (not isinstance(layers, list) or not 1 <= len(layers) <= 1024
                or not all(type(k) is int and 0 <= k < 1 << 31 for k in layers)
                or any(a >= b for a, b in zip(layers, layers[1:]))):
            raise CorruptError(path, f"layers are {layers!r}, expected 1 to 1024 ascending numbers")
        self.layers = layers
        self.generation = number(path, j, "generation", 0, 0xFFFFFFFF)
        self.blob = number(path, j, "blob", 0, 0xFFFFFFFF, 0)
        self.hidden_size = number(path, j, "hidden_size", 1, 1 << 20)
        self.dtype = text(path, j, "dtype")
        if self.dtype not in BITS:
            raise CorruptError(path, f"dtype {self.dtype!r}")
        self.source_dtype = text(path, j, "source_dtype")
        if self.source_dtype not in ("", "bf16", "fp16", "fp32") or (self.source_dtype and self.dtype != "fp8"):
            raise CorruptError(path, f"dtype {self.dtype!r} made from {self.source_dtype!r}")
        self.row_values = self.hidden_size + (4 if self.dtype == "fp8" else 0)
        self.row_bytes = self.row_values * np.dtype(BITS[self.dtype]).itemsize
        # 0: not said, as the description of an index may have it; a blob must say.
        self.block_rows = max(1, number(path, j, "chunk_bytes", 0, MAX_CHUNK) // self.row_bytes)
        self.last_prenorm = j.get("last_prenorm") is True
        self.synthetic = j.get("synthetic") is True
        self.rows = text(path, j, "rows", "all")
        self.model = text(path, j, "model")
        self.tokenizer = text(path, j, "tokenizer")
        self.engine = text(path, j, "engine")
        self.datasets = texts(path, j, "datasets")


class Blob:
    """An open blob: its tables are checked as a whole at once, its chunks when they are read."""

    def __init__(self, path):
        f = self.file = File(path)
        header, begin = read_header(f, MAGIC)
        if header is None:
            raise CorruptError(f.path, "the header has no JSON", 16)
        self.meta = Meta(f.path, header)
        number(f.path, header, "chunk_bytes", 1, MAX_CHUNK)
        self._read_footer(begin)

    def _read_footer(self, begin):
        f = self.file
        at = f.size - TRAILER.size
        if at < begin:
            raise CorruptError(f.path, "the file is too short for a trailer", f.size)
        t = f.read(at, TRAILER.size)
        offset, length, entries, chunks, reasons, reserved, _, crc, own, magic = TRAILER.unpack(t)
        if magic != END:
            raise CorruptError(f.path, "there is no trailer: the file was cut, or something was appended", at + 56)
        if zlib.crc32(t[:52]) != own:
            raise CorruptError(f.path, "trailer checksum", at)
        if any(reserved):
            raise CorruptError(f.path, "reserved bytes of the trailer are not zero", at + 28)
        if (length != ENTRY.itemsize * entries + CHUNK.itemsize * chunks + reasons or length > MAX_FOOTER
                or offset < begin or offset + length != at):
            raise CorruptError(f.path, "the footer is not where the trailer says", at)
        b = f.read(offset, length)
        if zlib.crc32(b) != crc:
            raise CorruptError(f.path, "footer checksum", offset)
        self.entries = np.frombuffer(b, ENTRY, entries)
        self.chunks = np.frombuffer(b, CHUNK, chunks, ENTRY.itemsize * entries)
        self._check_tables(begin, offset, reasons)
        reason = self.entries["reason"].astype(np.int64)
        self._reason_ends = length - reasons + np.cumsum(reason)
        self._footer = b

    def _check_tables(self, begin, end, reasons):
        """Holds the tables to what the format promises, before any length from them is used."""
        m, e, c = self.meta, self.entries, self.chunks
        def need(ok, what):
            if not np.all(ok):
                raise CorruptError(self.file.path, what, end)
        absent, selected, errors = ((e["flags"] & bit) != 0 for bit in (ABSENT, SELECTED, ERRORS))
        need(e["flags"] <= 7, "unknown flags of an entry")
        need(~absent | (e["flags"] == ABSENT), "flags of an entry that exclude each other")
        need(~errors | (m.dtype == "fp8"), "errors of an entry that is not fp8")
        need(e["dataset"] < len(m.datasets), "dataset number of an entry")
        need((e["rows"] >= 1) & (e["rows"] <= MAX_ROWS), "rows of an entry")
        need(absent | (e["reason"] == 0), "a reason for an entry that is not absent")
        need(e["reason"].sum(dtype=np.int64) == reasons, "reasons that do not add up")
        L, R = len(m.layers), m.block_rows
        rows = e["rows"].astype(np.int64)
        want = np.where(absent, 0, 2 + np.where(selected, L, 0) + L * -(-rows // R) + errors)
        need(e["chunks"] == want, "chunks of an entry")
        need(e["first"] == np.cumsum(want) - want, "first chunk of an entry")
        need(want.sum() == len(c), "chunks that do not add up")
        need(c["reserved"] == 0, "reserved bytes of a chunk")
        if (c["codec"] >= len(CODECS)).any():
            raise NewerError(self.file.path, f"codec {c['codec'].max()}")

        raw, enc, codec = c["raw"].astype(np.int64), c["enc"].astype(np.int64), c["codec"]
        owner = np.repeat(np.arange(len(e)), want)
        k = np.arange(len(c)) - e["first"].astype(np.int64)[owner]
        n, maps = rows[owner], np.where(selected[owner], L, 0)
        block = (k - 2 - maps) // L
        full = np.clip(n - block * R, 0, R) * m.row_bytes
        is_error = errors[owner] & (k == want[owner] - 1)
        state, is_map = (k >= 2 + maps) & ~is_error, (k >= 2) & (k < 2 + maps)
        need(raw[k == 0] == 4 * n[k == 0], "length of ids")
        need(raw[k == 1] == -(-n[k == 1] // 8), "length of a mask")
        need(((raw == 0) | (raw == -(-n // 8)))[is_map], "length of a row map")
        part = selected[owner] & (raw % m.row_bytes == 0) & (raw <= full)
        need(((raw == full) | part)[state], "length of a block")
        need((codec[~state] <= 1), "codec of ids, mask or row map")
        need((raw == 8 * L)[is_error] & (codec == 0)[is_error], "length or codec of errors")
        need(np.where(codec == 0, enc == raw, enc + raw // 50 < raw), "encoded length of a chunk")
        need(raw[codec == 1] <= 255 * enc[codec == 1], "encoded length of an lz4 chunk")
        need(enc.sum() + begin == end, "encoded lengths that do not add up")
        self._starts = begin + np.concatenate(([0], np.cumsum(enc)))

    def reason(self, i):
        """Why entry i is absent; None if it is not."""
        if not self.entries["flags"][i] & ABSENT:
            return None
        end = int(self._reason_ends[i])
        return bytes(self._footer[end - int(self.entries["reason"][i]):end]).decode("utf-8", "replace")

    # Reading. Scratch belongs to the calling thread.

    def _decode(self, i, enc, out):
        """Decodes chunk i from enc, its bytes in the file, to out and checks it."""
        c = self.chunks[i]
        if len(out):
            try:
                CODECS[c["codec"]](enc, out, self.meta.dtype)
            except CorruptError as e:
                raise CorruptError(self.file.path, f"chunk {i}: {e.what}", int(self._starts[i])) from None
        if accel.current is not None:
            ok = accel.current.xxh64(out) == c["xxh64"]
        elif xxh64_intdigest is not None:
            ok = xxh64_intdigest(out) == c["xxh64"]
        else:
            ok = zlib.crc32(out) == c["crc32"]
        if not ok:
            raise CorruptError(self.file.path, f"chunk {i}: checksum", int(self._starts[i]))

    def _small(self, i):
        """The decoded bytes of chunk i."""
        out = np.empty(int(self.chunks["raw"][i]), np.uint8)
        self._decode(i, self.file.read(int(self._starts[i]), int(self.chunks["enc"][i])), out)
        return out

    def verify(self):
        """Decodes every chunk."""
        for i in range(len(self.chunks)):
            self._small(i)

    def _bits(self, i, n):
        b = np.unpackbits(self._small(i), bitorder="little")
        if b[n:].any():
            raise CorruptError(self.file.path, f"chunk {i}: bits after the last token", int(self._starts[i]))
        return b[:n]

    def ids(self, entry, rows):
        """The first token ids of an entry: int64 [rows]."""
        return self._small(int(self.entries["first"][entry])).view("<u4")[:rows].astype(np.int64)

    def mask(self, entry, rows):
        """The first mask values of an entry: uint8 [rows], 1 where a token is supervised."""
        return self._bits(int(self.entries["first"][entry]) + 1, int(self.entries["rows"][entry]))[:rows]

    def row_map(self, entry, layer):
        """Which rows layer (an index into meta.layers) has stored: uint8 [all rows], or None for all."""
        e = self.entries[entry]
        i = int(e["first"]) + 2 + layer
        if not e["flags"] & SELECTED or self.chunks["raw"][i] == 0:
            return None
        return self._bits(i, int(e["rows"]))

    def errors(self, entry):
        """(mean, greatest) relative error of the rows of each layer: float32 [layers, 2]; None where none is known."""
        e = self.entries[entry]
        if not e["flags"] & ERRORS:
            return None
        i = int(e["first"]) + int(e["chunks"]) - 1
        v = self._small(i).view("<f4").reshape(-1, 2)
        if not ((v >= 0) & (v <= 1)).all() or (v[:, 0].astype(np.float64) > v[:, 1] * (1 + 2.0**-20)).any():
            raise CorruptError(self.file.path, f"chunk {i}: impossible errors", int(self._starts[i]))
        return v

    def states(self, entry, layers, outs):
        """Reads the first rows of some layers (indexes) into arrays of BITS [rows, row_values].

        Rows that are not stored become zero.
        """
        want, most = np.dtype(BITS[self.meta.dtype]), int(self.entries["rows"][entry])
        for x in outs:
            if len(x) > most or x.shape != (len(outs[0]), self.meta.row_values) or x.dtype != want or not x.flags.writeable:
                raise ValueError(f"states go into arrays of {want} [rows, {self.meta.row_values}], all of as many rows, at most {most}, "
                                 f"and writeable, not {x.dtype} {list(x.shape)}, writeable: {x.flags.writeable}")
        self.blocks(entry, layers, len(outs[0]) if len(outs) else 0, lambda lo, hi: [x[lo:hi] for x in outs])

    def blocks(self, entry, layers, rows, into, done=None):
        """The same block by block: into(lo, hi) gives arrays for rows lo to hi of each layer, done(lo, hi) is told when
        they are filled. Several threads may be at it, each with a block of its own."""
        e, m = self.entries[entry], self.meta
        n, R, L = int(e["rows"]), m.block_rows, len(m.layers)
        selected = bool(e["flags"] & SELECTED)
        maps = [self.row_map(entry, l) if selected else None for l in layers]
        base = int(e["first"]) + 2 + (L if selected else 0)
        order = sorted(range(len(layers)), key=layers.__getitem__)
        runs = neighbours([layers[k] for k in order])
        blocks = -(-rows // R)
        end, asked = int(self._starts[base + blocks * L]), [0]

        def block(b):
            lo, hi = b * R, min(n, b * R + R)
            first = base + b * L
            # The kernel reads ahead while this block is decoded.
            if len(runs) == 1 and self._starts[first] + AHEAD // 2 > asked[0]:
                begin = max(asked[0], int(self._starts[first]))
                asked[0] = min(begin + AHEAD, end)
                self.file.will_need(begin, asked[0] - begin)
            dests = into(lo, min(hi, rows))
            for run in runs:
                some = [order[k] for k in run]
                at, stop = (int(self._starts[first + layers[k] + more]) for k, more in ((some[0], 0), (some[-1], 1)))
                # Chunks that lie together are read together.
                enc = scratch("enc", stop - at)
                self.file.read_into(at, memoryview(enc))
                mine = 0
                if accel.current is not None and all(maps[k] is None for k in some):
                    mine = self._accelerated(first + layers[some[0]], enc, hi - lo, [dests[k] for k in some])
                for k in some[mine:]:
                    i = first + layers[k]
                    src = enc[int(self._starts[i]) - at:int(self._starts[i + 1]) - at]
                    stored = range(lo, hi) if maps[k] is None else lo + np.flatnonzero(maps[k][lo:hi])
                    self._block(i, src, stored, maps[k] is None, lo, dests[k])
            if done is not None:
                done(lo, min(hi, rows))

        parallel.run(block, range(blocks))

    def _accelerated(self, i, enc, rows, dests):
        """Has the accelerator decode the chunks from i on, which lie in enc, for dests: how many of them it did."""
        m, jobs, at = self.meta, [], accel.address(enc)
        for (xxh64, _, raw, size, codec, _), dest in zip(self.chunks[i:i + len(dests)].tolist(), dests):
            # C gets rows that are whole and lie one after the other; numpy can do with any.
            if raw != rows * m.row_bytes or len(dest) != rows or dest.strides[1] != dest.itemsize or dest.strides[0] < m.row_bytes:
                break
            jobs += (at, size, accel.address(dest), rows, m.row_bytes, dest.strides[0], xxh64, codec)
            at += size
        width, _, _, shift = LAYOUT[m.dtype]
        return accel.current.chunks(jobs, width, shift)

    def _block(self, i, src, stored, whole, lo, dest):
        """Decodes chunk i, which has the stored rows, for dest, the rows from lo on."""
        m = self.meta
        if int(self.chunks["raw"][i]) != len(stored) * m.row_bytes:
            raise CorruptError(self.file.path, f"chunk {i}: other rows than its row map", int(self._starts[i]))
        if whole and len(stored) == len(dest) and dest.flags.c_contiguous:
            self._decode(i, src, dest.reshape(-1).view(np.uint8))
            return
        full = scratch("rows", len(stored) * m.row_bytes).view(dest.dtype).reshape(len(stored), m.row_values)
        self._decode(i, src, full.reshape(-1).view(np.uint8))
        if whole:
            dest[...] = full[:len(dest)]
        else:
            dest[...] = 0
            k = stored < lo + len(dest)
            dest[stored[k] - lo] = full[k]
