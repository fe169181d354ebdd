"""Datasets whose items are what the loaders of other projects yield, read where the states lie.

    ds = SpecForge(Dataset("work"), max_len=4096)
    loader = torch.utils.data.DataLoader(ds, num_workers=4, ...)

Of the captured layers the last is the target's last state and the others are the auxiliary ones, in ascending
order. Layer ids count layers that have run (see store/FORMAT.md): [2, n//2, n-3, n] is what these projects
take by default under their own numbering. All need torch.
"""

import json
import struct

import numpy as np

from .blob import BITS
from .dataset import as_torch
from .errors import CorruptError, EaglebatchError


class _Adapter:
    _norm = None

    def __init__(self, dataset, max_len=None):
        if len(dataset.layers) < 2:
            raise EaglebatchError(f"layers {dataset.layers}: at least one auxiliary layer and the last are needed")
        self.dataset, self.max_len = dataset, max_len

    def __len__(self):
        return len(self.dataset)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def _tensors(self, i):
        """ids, mask, auxiliary states side by side [N, (L-1) H], last state [N, H]."""
        import torch
        s = self.dataset[i]
        layers, h = s.layers, self.dataset.meta.row_values
        n = min(len(s), self.max_len or len(s))
        # Rows after the last that any layer kept serve nobody.
        kept = np.flatnonzero(np.logical_or.reduce([s.stored(k)[:n] for k in layers]))
        n = int(kept[-1]) + 1 if len(kept) else n
        if s.dtype == "fp8":
            parts = [np.empty((n, h), BITS[s.dtype]) for _ in layers]
            s.read(outs=parts)
            parts = [as_torch(x, s.dtype) for x in parts]
            aux, last = torch.cat(parts[:-1], 1), parts[-1]
        else:
            aux, last = self._read(s, n, h)
        ids = torch.from_numpy(s.ids[:n].copy())
        mask = torch.from_numpy(s.mask[:n].astype(np.int64))
        return ids, mask, aux, last

    def _read(self, s, n, h):
        from .shared import Rows
        more = len(s.layers) - 1
        aux = Rows("aux", n, more * h, s.dtype)
        last = Rows("last", n, h, s.dtype, shared=not isinstance(self._norm, FinalNorm))  # what is normed is another tensor

        def into(lo, hi):
            side = aux.part(lo, hi)
            return [side[:, k * h:(k + 1) * h] for k in range(more)] + [last.part(lo, hi)]

        def done(lo, hi):
            aux.done(lo, hi)
            last.done(lo, hi)

        s.read_blocks(n, into, done)
        return aux.tensor, last.tensor


class SpecForge(_Adapter):
    """What SpecForge's offline loader yields for EAGLE-3: input_ids, loss_mask, attention_mask [1, N], hidden_state
    [1, N, 3H] (auxiliary) and target [1, N, H], the last state after the final norm; the last mask place is 0.

    norm: a function that applies the target's final norm to [N, H]; by default that of target_head.safetensors.
    """

    def __init__(self, dataset, max_len=None, norm=None):
        super().__init__(dataset, max_len)
        self._norm = norm or (FinalNorm.of(dataset) if dataset.meta.last_prenorm else _same)

    def __getitem__(self, i):
        import torch
        ids, mask, aux, last = self._tensors(i)
        if len(mask):
            mask[-1] = 0
        return _together({
            "attention_mask": torch.ones_like(mask)[None], "loss_mask": mask[None], "target": self._norm(last)[None],
            "hidden_state": aux[None], "input_ids": ids[None]})


class Speculators(_Adapter):
    """What speculators' ArrowDataset yields: hidden_states [N, 3H], verifier_last_hidden_states [N, H] (before the
    final norm), input_ids, loss_mask, position_ids [N], lengths [1]."""

    def __init__(self, dataset, max_len=None):
        super().__init__(dataset, max_len)
        _needs_prenorm(dataset, "speculators")

    def __getitem__(self, i):
        import torch
        ids, mask, aux, last = self._tensors(i)
        return _together({
            "hidden_states": aux, "input_ids": ids, "verifier_last_hidden_states": last, "loss_mask": mask,
            "lengths": torch.tensor([len(ids)]), "position_ids": torch.arange(len(ids))})


class ModelOptimizer(_Adapter):
    """What Model-Optimizer's OfflineSupervisedDataset yields: input_ids, labels, loss_mask, attention_mask [N],
    base_model_hidden_states [N, H], aux_hidden_states [N, 3H], base_hidden_prenorm.

    answer_only_loss: the stored mask; else all ones, as there. post_norm: apply the final norm, for consumers that
    do not look at base_hidden_prenorm.
    """

    def __init__(self, dataset, max_len=None, answer_only_loss=True, post_norm=True, norm=None):
        super().__init__(dataset, max_len)
        self._answer_only = answer_only_loss
        self._prenorm = dataset.meta.last_prenorm and not post_norm
        apply = dataset.meta.last_prenorm and post_norm
        self._norm = (norm or FinalNorm.of(dataset)) if apply else _same

    def __getitem__(self, i):
        import torch
        ids, mask, aux, last = self._tensors(i)
        labels = torch.full_like(ids, -100)
        labels[:-1] = ids[1:]
        ones = torch.ones_like(ids)
        return _together({
            "input_ids": ids, "base_model_hidden_states": self._norm(last), "aux_hidden_states": aux,
            "attention_mask": ones, "loss_mask": mask if self._answer_only else ones.clone(), "labels": labels,
            "base_hidden_prenorm": self._prenorm})


def _together(item):
    from .shared import together
    return together(item)


def _same(x):
    return x


def _needs_prenorm(dataset, who):
    if not dataset.meta.last_prenorm:
        raise EaglebatchError(f"{dataset.path}: the last states are normed, {who} norms them again")


class FinalNorm:
    """The target's final RMS norm, computed as HF transformers does: in float32, result in the states' type."""

    def __init__(self, weight, eps):
        self.weight, self.eps = weight, eps

    def __call__(self, x):
        import torch
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight.to(x.dtype) * y.to(x.dtype)

    @classmethod
    def of(cls, dataset):
        """From target_head.safetensors of the generation, which is hashed where that can be done."""
        path = dataset.check_file("target_head.safetensors")
        if path is None:
            raise EaglebatchError(f"{dataset.path} has no target_head.safetensors: pass norm=, a function that applies "
                                  "the target's final norm")
        meta, weight = read_tensor(path, "model.norm.weight")
        if "rms_norm_eps" not in meta or meta.get("norm_adds_one", "false") != "false":
            raise EaglebatchError(f"{path}: the norm is not a plain RMS norm, or does not give rms_norm_eps: pass norm=")
        if weight.shape != (dataset.hidden_size,):
            raise CorruptError(path, f"a norm of shape {tuple(weight.shape)}, states have {dataset.hidden_size} values")
        return cls(weight, float(meta["rms_norm_eps"]))


def read_tensor(path, name):
    """(metadata, one tensor) of a safetensors file."""
    import torch
    kinds = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    with open(path, "rb") as f:
        try:
            n, = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(min(n, 100 << 20)))
            t = header[name]
            lo, hi = t["data_offsets"]
            f.seek(8 + n + lo)
            out = torch.frombuffer(bytearray(f.read(hi - lo)), dtype=kinds[t["dtype"]]).reshape(t["shape"])
        except (ValueError, KeyError, TypeError, struct.error, RuntimeError) as e:
            raise CorruptError(path, f"safetensors: {e!r}") from None
    return header.get("__metadata__") or {}, out
