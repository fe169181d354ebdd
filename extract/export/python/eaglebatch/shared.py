"""Tensors that a worker of a DataLoader makes where its parent will read them. Needs torch.

A worker hands a tensor to its parent in shared memory, to which torch copies it unless it lies there already. Writing to
new shared memory through its mapping costs a page fault for every 4 KiB; writing to its file costs about half as much.
"""

import errno
import os

import numpy as np
import torch

from .blob import BITS
from .codecs import scratch
from .errors import EaglebatchError

KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def storage(size):
    """(uint8 tensor [size], descriptor of its file), in shared memory in a worker of a DataLoader; elsewhere and where torch
    shares memory otherwise the descriptor is None."""
    share = getattr(torch.UntypedStorage, "_new_shared", None)
    if not share or not size or torch.utils.data.get_worker_info() is None:
        return torch.empty(size, dtype=torch.uint8), None
    s = share(size)
    flat = torch.empty(0, dtype=torch.uint8).set_(s)
    if not hasattr(s, "_share_fd_cpu_") or torch.multiprocessing.get_sharing_strategy() != "file_descriptor":
        return flat, None
    fd = s._share_fd_cpu_()[0]
    # What torch does here is not documented: only a file that is seen to be the tensor's is written to.
    return flat, fd if os.fstat(fd).st_size >= size and os.pwrite(fd, b"\x5a", 0) == 1 and flat[0] == 0x5A else None


class Rows:
    """A tensor [rows, values] of one of KINDS, filled some rows at a time by several threads."""

    def __init__(self, name, rows, values, dtype, shared=True):
        self._name, self._values, self._bits = name, values, np.dtype(BITS[dtype])
        size = rows * values * self._bits.itemsize
        self._flat, self._fd = storage(size) if shared else (torch.empty(size, dtype=torch.uint8), None)
        self.tensor = self._flat.view(KINDS[dtype]).reshape(rows, values)
        self._all = None if self._fd is not None else self._flat.numpy().view(self._bits).reshape(rows, values)

    def part(self, lo, hi):
        """The bits of rows lo to hi, to be filled before done is called."""
        if self._all is not None:
            return self._all[lo:hi]
        n = (hi - lo) * self._values * self._bits.itemsize
        return scratch(self._name, n).view(self._bits).reshape(hi - lo, self._values)

    def done(self, lo, hi):
        if self._all is not None:
            return
        view = memoryview(self.part(lo, hi).reshape(-1).view(np.uint8))
        at = lo * self._values * self._bits.itemsize
        while len(view):
            try:
                n = os.pwrite(self._fd, view, at)
            except OSError as e:
                if e.errno != errno.ENOSPC:
                    raise
                raise EaglebatchError("shared memory is full: make /dev/shm larger, or num_workers or prefetch_factor of the "
                                      "DataLoader smaller") from None
            at, view = at + n, view[n:]


def together(item):
    """An item whose whole numbers, a few bytes a token, share one piece of memory, if it is a worker's: each piece is sent
    on its own, which takes longer than to fill it."""
    small = {k: v for k, v in item.items() if isinstance(v, torch.Tensor) and v.dtype == torch.int64}
    if len(small) < 2 or torch.utils.data.get_worker_info() is None:
        return item
    flat, at = storage(8 * sum(v.numel() for v in small.values()))[0].view(torch.int64), 0
    for k, v in small.items():
        item[k] = flat[at:at + v.numel()].view(v.shape).copy_(v)
        at += v.numel()
    return item
