"""The codecs of chunks: each fills out, a contiguous uint8 array of the raw size, from enc, a bytes-like.

All work is done by numpy on pieces that stay in a core's cache, so that Python's own speed does not matter; or by accel.c
where that was built, which is several times as fast and gives the same bytes.
"""

import struct
import threading

import lz4.block
import numpy as np

from . import accel
from .errors import CorruptError

PIECE = 1 << 17  # values joined at a time: few enough to stay in a core's cache, many enough to hide Python's own time
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


def bits(packed, n):
    """The first n bits of a bit field, one a byte; those after them must be zero."""
    if n % 8 and packed[-1] >> (n % 8):
        raise bad("unused bits are not zero")
    return np.unpackbits(packed, count=n, bitorder="little")


def segments(enc, at, sizes):
    """Reads segments of known sizes whose encoded lengths begin at byte at of enc, an lz4 block, the bytes
    themselves or, for zeros, nothing: (list of uint8 arrays or None, where they end)."""
    end = at + 4 * len(sizes)
    if end > len(enc):
        raise bad("cut short")
    out = []
    for have, size in zip(struct.unpack_from(f"<{len(sizes)}I", enc, at), sizes):
        seg = enc[end:end + have]
        if have > size or len(seg) != have:
            raise bad("a segment is too long")
        out.append(None if have == 0 else np.frombuffer(seg, np.uint8) if have == size else unlz4(seg, size))
        end += have
    return out, end


def begin(out, dtype):
    """(values, plane bytes, sizes of the segments of low bytes and tails, layout) of a chunk."""
    width, low, tail, shift = LAYOUT[dtype]
    n = len(out) // width
    if n * width != len(out):
        raise bad("no whole number of values")
    return n, -(-n // 8), [n] * low + [2 * n] * (tail // 2), width, shift


def join(out, width, tail):
    """The halves of the values of out, an array to fill; the tails are put in place."""
    if width == 1:
        return out
    if width == 2:
        return out.view("<u2")
    halves = out.view("<u2").reshape(-1, 2)
    halves[:, 0] = 0 if tail is None else tail.view("<u2")
    return halves[:, 1]


def put(half, top, low):
    """Fills one piece of the halves from their top and low bytes."""
    if half.itemsize == 1:
        np.right_shift(top, 1, out=half)
        np.bitwise_or(half, top << 7, out=half)
    else:
        join16(half, top, low)


def lz4_planes(enc, out, dtype):
    n, size, more, width, shift = begin(out, dtype)
    enc = memoryview(enc)
    base = enc[0] if len(enc) else 0
    if base & ~(0xFF << shift) & 0xFF:
        raise bad("base is no exponent")
    parts, end = segments(enc, 1, [size] * 8 + more)
    if end != len(enc):
        raise bad("bytes are left over")
    if n % 8 and any(x is not None and x[-1] >> (n % 8) for x in parts[:8]):
        raise bad("unused bits are not zero")
    low, tail = (parts[8:] + [None, None])[:2]
    if accel.current is not None and accel.current.planes(out, width, shift, base, parts[:8], low, tail):
        return
    half = join(out, width, tail)
    for at in range(0, n, PIECE):
        h = half[at:at + PIECE]
        planes = [None if x is None else x[at // 8:(at + PIECE) // 8] for x in parts[:8]]
        put(h, unplane(planes, len(h), shift, base), None if low is None else low[at:at + PIECE])


def dense(enc, out, dtype):
    n, size, more, width, shift = begin(out, dtype)
    enc = memoryview(enc)
    parts, end = segments(enc, 0, [size] * shift + more)
    low, tail = (parts[shift:] + [None, None])[:2]
    if n % 8 and any(x is not None and x[-1] >> (n % 8) for x in parts[:shift]):
        raise bad("unused bits are not zero")
    if accel.current is not None and accel.current.dense(out, width, shift, parts[:shift], low, tail, enc[end:]):
        return
    tree = Tree(enc, end, 0xFF << shift & 0xFF)
    top = np.empty(n, np.uint8)
    tree.fill(top, True)
    if tree.at != len(enc):
        raise bad("bytes are left over")
    for b, x in enumerate(parts[:shift]):
        if x is not None:
            np.bitwise_or(top, bits(x, n) << b, out=top)
    half = join(out, width, tail)
    for at in range(0, n, PIECE):
        put(half[at:at + PIECE], top[at:at + PIECE], None if low is None else low[at:at + PIECE])


class Tree:
    """The symbols of a dense chunk, read from byte at of enc on."""

    NODE, LEAF, LITERALS = 0, 1, 2

    def __init__(self, enc, at, mask):
        self.enc, self.at, self.mask = enc, at, mask
        self.nodes, self.leaves, self.literals = 0, set(), False

    def take(self, n):
        b = self.enc[self.at:self.at + n]
        if len(b) != n:
            raise bad("the tree is cut short")
        self.at += n
        return b

    def leaf(self):
        """The symbol of the tree that comes next where that is a leaf; else None."""
        if self.at >= len(self.enc) or self.enc[self.at] != self.LEAF:
            return None
        self.at += 1
        symbol = self.take(1)[0]
        if symbol in self.leaves or symbol & ~self.mask or len(self.leaves) == 31:
            raise bad(f"leaf {symbol} of the tree")
        self.leaves.add(symbol)
        return symbol

    def side(self, n):
        """A subtree of n symbols: its only symbol, or an array."""
        symbol = self.leaf()
        if symbol is not None:
            return symbol
        out = np.empty(n, np.uint8)
        self.fill(out)
        return out

    def fill(self, out, top=False):
        """Fills out with the symbols of the tree that comes next."""
        symbol = self.leaf()
        if symbol is not None:
            out.fill(symbol)
            return
        kind = self.take(1)[0]
        if kind == self.NODE:
            if self.nodes == 31:
                raise bad("too many nodes")
            self.nodes += 1
            ones = bits(np.frombuffer(self.take(-(-len(out) // 8)), np.uint8), len(out))
            n = np.count_nonzero(ones)
            first = self.side(len(out) - n)
            self.merge(out, ones, first, self.side(n))
        elif kind == self.LITERALS and not self.literals and not top:
            self.literals = True
            out[:] = np.frombuffer(self.take(len(out)), np.uint8)
            if (out & (~self.mask & 0xFF)).any():
                raise bad("a literal outside the exponent")
        else:
            raise bad(f"kind {kind} in the tree")

    @staticmethod
    def merge(out, ones, first, second):
        """Puts first where ones are zero and second elsewhere; either is an array of those, or one symbol."""
        if isinstance(first, int) and isinstance(second, int):
            np.negative(ones, out=ones)
            np.bitwise_and(ones, first ^ second, out=ones)
            np.bitwise_xor(ones, first, out=out)
            return
        ones = ones.view(bool)  # whose places numpy finds the fastest
        if isinstance(first, int) or isinstance(second, int):  # the array is put into the symbol
            flip, symbol, rest = (False, first, second) if isinstance(first, int) else (True, second, first)
            out.fill(symbol)
            out[np.flatnonzero(~ones) if flip else np.flatnonzero(ones)] = rest
            return
        out[np.flatnonzero(~ones)] = first
        out[np.flatnonzero(ones)] = second


def unplane(planes, n, shift, base):
    """The top bytes of n values from their eight bit planes.

    Planes with many ones are added up from the highest down, doubling in between; those with few are put in
    where the ones are. The lowest bit of the folded exponent says that all its bits are flipped.
    """
    size = -(-n // 8)
    acc, sparse = None, []
    for b in (*range(7, shift, -1), *range(shift - 1, -1, -1)):
        if acc is not None:
            np.add(acc, acc, out=acc)
        x = planes[b]
        if x is None:
            continue
        if np.count_nonzero(x) * 16 < size:
            sparse.append((np.uint64(1 << (b - 1 if b > shift else b)), x))
        elif acc is None:
            acc = np.unpackbits(x, bitorder="little")
        else:
            np.bitwise_or(acc, np.unpackbits(x, bitorder="little"), out=acc)
    if acc is None:
        acc = np.zeros(8 * size, np.uint8)
    if planes[shift] is not None:
        flip = np.unpackbits(planes[shift], bitorder="little")
        np.negative(flip, out=flip)
        if shift:
            np.bitwise_and(flip, 0xFF << shift & 0xFF, out=flip)
        np.bitwise_xor(acc, flip, out=acc)
    if sparse:
        some = sparse[0][1]
        for _, x in sparse[1:]:
            some = some | x
        at = np.flatnonzero(some != 0)
        eights = acc.view("<u8")
        extra = np.zeros(len(at), np.uint64)
        for bit, x in sparse:
            extra ^= SPREAD[x[at]] * bit
        eights[at] ^= extra
    if base:
        np.add(acc, np.uint8(base), out=acc)
    return acc[:n]


# A byte's bits as the lowest bits of eight bytes.
SPREAD = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").view("<u8")[:, 0].copy()


def join16(out, top, low):
    """Puts 16-bit values together from their bytes, which were rotated left by one; out may have strides."""
    v, w = (scratch(name, len(out), np.uint16) for name in ("v", "w"))
    np.copyto(v, top)
    if low is None:
        np.multiply(v, np.uint16(1 << 7), out=out)
        return
    # Multiplying is vectorized where shifting to the left is not.
    np.multiply(v, np.uint16(1 << 8), out=v)
    np.bitwise_or(v, low, out=v)
    np.right_shift(v, 1, out=w)
    np.multiply(v, np.uint16(1 << 15), out=v)
    np.bitwise_or(v, w, out=out)


# By the number that a chunk record has.
CODECS = [raw, lz4_block, lz4_planes, dense]
