"""The codecs of chunks: each fills out, a contiguous uint8 array of the raw size, from enc, a bytes-like.

All work is done by numpy on pieces that stay in a core's cache, so that Python's own speed does not matter.
"""

import struct
import threading

import lz4.block
import numpy as np

from .errors import CorruptError

PIECE = 1 << 16  # values joined at a time: few enough to stay in a core's cache
# dtype: bytes a value, bytes of the upper half below the top one, bytes of the lower half, mantissa bits in the top byte
LAYOUT = {"bf16": (2, 1, 0, 0), "fp16": (2, 1, 0, 3), "fp32": (4, 1, 2, 0), "fp8": (1, 0, 0, 4)}

_scratch = threading.local()


def scratch(name, n, dtype=np.uint8):
    """An array of n that belongs to this thread and keeps nothing from use to use."""
    a = getattr(_scratch, name, None)
    if a is None or len(a) < n:
        a = np.empty(max(n, 1 << 12), dtype)
        setattr(_scratch, name, a)
    return a[:n]


def bad(what):
    return CorruptError("", what)


def raw(enc, out, dtype):
    if len(enc) != len(out):
        raise bad("raw length")
    out[:] = np.frombuffer(enc, np.uint8)


def unlz4(enc, n):
    try:
        b = lz4.block.decompress(enc, uncompressed_size=n)
    except (lz4.block.LZ4BlockError, ValueError, MemoryError, OverflowError) as e:
        raise bad(f"lz4: {e}") from None
    if len(b) != n:
        raise bad(f"lz4: {len(b)} bytes, expected {n}")
    return np.frombuffer(b, np.uint8)


def lz4_block(enc, out, dtype):
    out[:] = unlz4(enc, len(out))


class Planes:
    """The segments of an lz4-planes chunk."""

    def __init__(self, enc, n, layout):
        width, low, tail, shift = layout
        count = 8 + low + tail // 2
        if len(enc) < 1 + 4 * count:
            raise bad("planes: header cut short")
        self.base = enc[0]
        if self.base & ~(0xFF << shift) & 0xFF:
            raise bad("planes: base is no exponent")
        sizes = struct.unpack_from(f"<{count}I", enc, 1)
        if sum(sizes) != len(enc) - 1 - 4 * count:
            raise bad("planes: segments do not add up")
        size, at, self.parts = -(-n // 8), 1 + 4 * count, []
        for i, m in enumerate(sizes):
            full = size if i < 8 else n if i == 8 else 2 * n
            if m > full:
                raise bad(f"planes: segment {i} too long")
            seg = enc[at:at + m]
            self.parts.append(None if m == 0 else np.frombuffer(seg, np.uint8) if m == full else unlz4(seg, full))
            at += m


def lz4_planes(enc, out, dtype):
    width, low, _, shift = layout = LAYOUT[dtype]
    n = len(out) // width
    if n * width != len(out):
        raise bad("planes: no whole number of values")
    p = Planes(memoryview(enc), n, layout)
    if width == 4:  # the lower halves as they are, the upper ones like 16-bit values
        halves = out.view("<u2").reshape(n, 2)
        halves[:, 0] = 0 if p.parts[9] is None else p.parts[9].view("<u2")
        values = halves[:, 1]
    else:
        values = out.view("<u2") if width == 2 else out
    for at in range(0, n, PIECE):
        o = values[at:at + PIECE]
        planes = [None if x is None else x[at // 8:(at + PIECE) // 8] for x in p.parts[:8]]
        top = unplane(planes, len(o), shift, p.base)
        if width == 1:
            unrotate8(o, top)
        else:
            join16(o, top, p.parts[8][at:at + PIECE] if low and p.parts[8] is not None else None)


def unplane(planes, n, shift, base):
    """The top bytes of n values from their eight bit planes.

    Planes with many ones are added up from the highest down, doubling in between; those with few are put in
    where the ones are. The lowest bit of the folded exponent says that all its bits are flipped.
    """
    size = -(-n // 8)
    acc = scratch("acc", 8 * size)
    exponent = 0xFF << shift & 0xFF
    sparse, flip, begun = [], None, False
    for b in (*range(7, shift, -1), *range(shift - 1, -1, -1)):
        if begun:
            np.add(acc, acc, out=acc)
        x = planes[b]
        if x is None:
            continue
        if np.count_nonzero(x) * 16 < size:
            sparse.append((1 << (b - 1 if b > shift else b), x))
        elif begun:
            np.bitwise_or(acc, np.unpackbits(x, bitorder="little"), out=acc)
        else:
            acc[:] = np.unpackbits(x, bitorder="little")
            begun = True
    if not begun:
        acc[:] = 0
    if planes[shift] is not None:
        flip = np.unpackbits(planes[shift], bitorder="little")
        np.negative(flip, out=flip)
        if shift:
            np.bitwise_and(flip, exponent, out=flip)
        np.bitwise_xor(acc, flip, out=acc)
    eights = acc.view("<u8")
    for bit, x in sparse:
        at = np.flatnonzero(x)
        eights[at] ^= SPREAD[x[at]] * np.uint64(bit)
    if base:
        np.add(acc, np.uint8(base), out=acc)
    return acc[:n]


# A byte's bits as the lowest bits of eight bytes.
SPREAD = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").view("<u8")[:, 0].copy()


def join16(out, top, low):
    """Puts 16-bit values together from their bytes, which were rotated left by one; out may have strides."""
    v, w, x = (scratch(name, len(out), np.uint16) for name in ("v", "w", "x"))
    np.copyto(v, top)
    if low is None:
        np.multiply(v, np.uint16(1 << 7), out=out)
        return
    np.multiply(v, np.uint16(1 << 7), out=v)
    np.copyto(w, low)
    np.multiply(w, np.uint16(1 << 15), out=x)
    np.bitwise_or(v, x, out=v)
    np.right_shift(w, 1, out=w)
    np.bitwise_or(v, w, out=out)


def unrotate8(out, top):
    np.right_shift(top, 1, out=out)
    np.bitwise_or(out, top << 7, out=out)


# By the number that a chunk record has.
CODECS = [raw, lz4_block, lz4_planes]
