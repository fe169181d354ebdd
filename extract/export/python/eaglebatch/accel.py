"""The loops of codecs.py, compiled from accel.c, where pip found a C compiler. Nothing needs them: numpy gives the same bytes.

EAGLEBATCH_ACCEL=0 in the environment switches them off; a path there names another build of accel.c.
"""

import ctypes
import importlib.machinery
import os
import struct
import threading
import warnings

import numpy as np

VERSION = 3  # of the functions of accel.c

P1, P2, MAX = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 2**64 - 1  # of XXH64

_room = threading.local()


def address(a):
    return a.__array_interface__["data"][0]


def pack(parts):
    """Addresses and sizes of arrays of bytes, as accel.c takes them; None is 0 and 0."""
    flat = []
    for x in parts:
        flat += (0, 0) if x is None else (address(x), len(x))
    return struct.pack(f"={len(flat)}Q", *flat)


def space(name, n):
    """At least n bytes that belong to this thread and keep nothing from use to use."""
    a = getattr(_room, name, None)
    if a is None or len(a) < n:
        a = np.empty(n, np.uint8)
        setattr(_room, name, a)
    return a


class Accel:
    """A build of accel.c. What it refuses numpy is to try, which says what is wrong."""

    def __init__(self, path):
        lib = ctypes.CDLL(path)
        lib.eb_version.restype = ctypes.c_int
        if lib.eb_version() != VERSION:
            raise OSError(f"{path}: version {lib.eb_version()}, expected {VERSION}: build it again")
        u64, p, i = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int
        lib.eb_planes.argtypes, lib.eb_planes.restype = (p, u64, i, i, i, p), i
        lib.eb_dense.argtypes, lib.eb_dense.restype = (p, u64, i, i, p, p, u64), i
        lib.eb_xxh64.argtypes, lib.eb_xxh64.restype = (p, u64), u64
        lib.eb_xxh64_blocks.argtypes, lib.eb_xxh64_blocks.restype = (p, p, u64), None
        lib.eb_xxh64_end.argtypes, lib.eb_xxh64_end.restype = (p, u64, p, u64), u64
        lib.eb_chunks.argtypes, lib.eb_chunks.restype = (p, u64, i, i, p, u64), u64
        self.path, self._lib = path, lib

    def planes(self, out, width, shift, base, planes, low, tail):
        """Fills out, a contiguous uint8 array, from the parts of an lz4-planes chunk; False if it refuses."""
        return self._lib.eb_planes(address(out), len(out), width, shift, base, pack([*planes, low, tail])) == 0

    def dense(self, out, width, shift, planes, low, tail, tree):
        """The same for a dense chunk. tree: the bytes of its tree, from its first to the last of the chunk."""
        parts = pack([*planes, *[None] * (4 - shift), low, tail, np.frombuffer(tree, np.uint8) if len(tree) else None])
        room = space("top", 2 * (len(out) // width) + 32)
        return self._lib.eb_dense(address(out), len(out), width, shift, parts, address(room), len(room)) == 0

    def chunks(self, jobs, width, shift):
        """Decodes whole chunks and checks them: how many of them, from the first, it did; numpy is to look at the next.

        jobs: for each its address and size, address, rows, bytes of a row and of a stride of what it is decoded to, its
        XXH64 and its codec, one after the other.
        """
        if not jobs:
            return 0
        room = space("chunks", 4 * max(r * b for r, b in zip(jobs[3::8], jobs[4::8])) + 1024)
        return self._lib.eb_chunks(struct.pack(f"={len(jobs)}Q", *jobs), len(jobs) // 8, width, shift, address(room), len(room))

    def xxh64(self, data):
        """XXH64 with seed 0 of a contiguous uint8 array."""
        return self._lib.eb_xxh64(address(data), len(data))

    def xxh64_pieces(self, pieces):
        """The same of bytes that come in pieces, of which all but the last have a multiple of 32 bytes."""
        v = np.array([P1 + P2 & MAX, P2, 0, MAX + 1 - P1], np.uint64)
        total, rest = 0, b""
        for x in pieces:
            whole, rest = len(x) // 32 * 32, x[len(x) // 32 * 32:]
            self._lib.eb_xxh64_blocks(address(v), x, whole)
            total += len(x)
        return self._lib.eb_xxh64_end(address(v), total, rest, len(rest))


def find():
    """The build that is to be used, or None."""
    asked = os.environ.get("EAGLEBATCH_ACCEL", "")
    if asked == "0":
        return None
    if asked:
        return Accel(asked)
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_accel" + suffix)
        if os.path.exists(path):
            try:
                return Accel(path)
            except (OSError, AttributeError) as e:
                warnings.warn(f"eaglebatch reads with numpy alone: {e}", RuntimeWarning, stacklevel=2)
    return None


current = find()
