"""The index of a generation (.ebi): which entry of which blob holds the states of a position."""

import collections
import os
import struct
import threading
import zlib

import numpy as np

from .blob import Meta
from .errors import CorruptError
from .files import MAX_JSON, File, number, parse_json, read_header, text, texts

MAGIC = b"EBINDX\r\n"
END = b"EBIEND\r\n"
TRAILER = struct.Struct("<QQQQII8sII8s")
BLOCK = 65536
ENTRY = np.dtype([("sample", "<u8"), ("dataset", "<u4"), ("rows", "<u4"), ("tokens", "V16"), ("content", "V16")])
POSITION = np.dtype([("generation", "<u4"), ("blob", "<u4"), ("entry", "<u4"), ("rows", "<u4"), ("dataset", "<u4"),
                     ("reserved", "<u4"), ("sample", "<u8"), ("mask", "<u8")])
OWN_MASK = 2**64 - 1


class Index:
    """An open index. Its tables stay on disk; a block of them is checked whenever it is read."""

    def __init__(self, path):
        f = self.file = File(path)
        read_header(f, MAGIC)
        at = f.size - TRAILER.size
        if at < 32:
            raise CorruptError(f.path, "the file is too short for a trailer", f.size)
        t = f.read(at, TRAILER.size)
        n, b, p, m, j, block, reserved, crc, own, magic = TRAILER.unpack(t)
        if magic != END:
            raise CorruptError(f.path, "there is no trailer: the file was cut, or something was appended", at + 56)
        if zlib.crc32(t[:52]) != own:
            raise CorruptError(f.path, "trailer checksum", at)
        if any(reserved) or block != BLOCK or j > MAX_JSON:
            raise CorruptError(f.path, "trailer fields", at)
        self.entries, self.blobs, self.positions = n, b, p
        self._entry_at = 32
        self._position_at = self._entry_at + ENTRY.itemsize * n
        self._table_at = self._position_at + POSITION.itemsize * p
        self._mask_at = self._table_at + 8 * (b + 1)
        self._data = self._mask_at + m
        blocks = -(-self._data // BLOCK)
        if self._data + j + 4 * blocks != at:
            raise CorruptError(f.path, "the sizes in the trailer do not add up to the size of the file", at)
        tail = f.read(self._data, j + 4 * blocks)
        if zlib.crc32(tail) != crc:
            raise CorruptError(f.path, "checksum of the description", self._data)
        self._crcs = np.frombuffer(tail, "<u4", blocks, j)
        self._fresh()
        self._read_meta(parse_json(f.path, tail[:j], self._data))
        table = np.frombuffer(self._bytes(self._table_at, 8 * (b + 1)), "<u8")
        if table[0] != 0 or table[-1] != n or (table[1:] < table[:-1]).any():
            raise CorruptError(f.path, "blob table", self._table_at)
        self._table = table

    def _read_meta(self, j):
        path = self.file.path
        self.generation = number(path, j, "generation", 0, 0xFFFFFFFF)
        self.datasets = texts(path, j, "datasets")
        if not isinstance(j.get("blob"), dict):
            raise CorruptError(path, f"blob is {j.get('blob')!r}", self._data)
        self.meta = Meta(path, j["blob"])
        self.splits, at = {}, 0
        for s in j.get("splits") or []:
            if not isinstance(s, dict) or number(path, s, "first", 0, 2**63) != at:
                raise CorruptError(path, f"split {s!r}", self._data)
            self.splits[text(path, s, "name")] = range(at, at + number(path, s, "count", 0, 2**63))
            at += s["count"]
        if self.splits and at != self.positions:
            raise CorruptError(path, f"splits of {at} positions, there are {self.positions}", self._data)

    def _fresh(self):
        self._cache, self._lock = collections.OrderedDict(), threading.Lock()
        self._pid = os.getpid()

    def _block(self, k):
        """Block k of the data, checked; the last few are kept."""
        if self._pid != os.getpid():  # a lock that another thread of the parent held stays locked for ever
            self._fresh()
        with self._lock:
            if k in self._cache:
                self._cache.move_to_end(k)
                return self._cache[k]
        b = self.file.read(k * BLOCK, min(BLOCK, self._data - k * BLOCK))
        if zlib.crc32(b) != self._crcs[k]:
            raise CorruptError(self.file.path, "block checksum", k * BLOCK)
        with self._lock:
            self._cache[k] = b
            while len(self._cache) > 64:
                self._cache.popitem(last=False)
        return b

    def _bytes(self, at, n):
        out = bytearray()
        while n > 0:
            lo = at % BLOCK
            part = self._block(at // BLOCK)[lo:lo + n]
            out += part
            at, n = at + len(part), n - len(part)
        return out

    def position(self, i):
        """Position i as a record of POSITION."""
        return self.records(i, i + 1)[0]

    def records(self, lo, hi):
        """Positions lo to hi."""
        at = self._position_at + POSITION.itemsize * lo
        p = np.frombuffer(self._bytes(at, POSITION.itemsize * (hi - lo)), POSITION)
        own = p[p["generation"] == 0]
        ok = (p["rows"] > 0) & (p["dataset"] < len(self.datasets)) & (p["reserved"] == 0)
        masked = p[p["mask"] != OWN_MASK]
        size = (masked["rows"].astype(np.uint64) + np.uint64(7)) // np.uint64(8)
        end = np.uint64(self._data - self._mask_at)
        ok_mask = (masked["mask"] <= end) & (size <= end - np.minimum(masked["mask"], end))
        if not ok.all() or not ok_mask.all() or (own["blob"] >= self.blobs).any() or (
                own["entry"] >= self._table[own["blob"] + 1] - self._table[own["blob"]]).any():
            raise CorruptError(self.file.path, "a position points outside the tables", at)
        return p

    def entry(self, blob, entry):
        """What the index says of an own entry: a record of ENTRY."""
        at = self._entry_at + ENTRY.itemsize * (int(self._table[blob]) + entry)
        return np.frombuffer(self._bytes(at, ENTRY.itemsize), ENTRY)[0]

    def mask(self, offset, rows):
        """The mask that a position has of its own: uint8 [rows]."""
        size = -(-rows // 8)
        b = np.unpackbits(np.frombuffer(self._bytes(self._mask_at + offset, size), np.uint8), bitorder="little")
        if b[rows:].any():
            raise CorruptError(self.file.path, "bits after the last token of a mask", self._mask_at + offset)
        return b[:rows]
