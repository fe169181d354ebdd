"""Checked access to bytes: positioned reads, the header that all files share, checksums."""

import json
import os
import struct
import zlib

from .errors import CorruptError, NewerError

try:  # ten times as fast as crc32, where it is installed
    from xxhash import xxh64, xxh64_intdigest
except ImportError:
    xxh64 = xxh64_intdigest = None

MAX_JSON = 16 << 20
HEADER = struct.Struct("<8sIII8sI")
VERSION = 1


class File:
    """A file that does not change, read at any place by any thread or forked process."""

    def __init__(self, path):
        self.path = str(path)
        self.fd = -1
        try:
            self.fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise CorruptError(self.path, "the file is missing") from None
        self.size = os.fstat(self.fd).st_size

    def __del__(self):
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def read_into(self, offset, view):
        """Fills view, a writable memoryview of bytes."""
        while len(view):
            n = os.preadv(self.fd, [view], offset)
            if n == 0:
                raise CorruptError(self.path, f"the file ends {len(view)} bytes too early", offset)
            offset += n
            view = view[n:]

    def will_need(self, offset, n):
        """Asks the system to read a range ahead, where it can."""
        if n > 0 and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.fd, offset, n, os.POSIX_FADV_WILLNEED)

    def read(self, offset, n):
        if offset < 0 or offset + n > self.size:
            raise CorruptError(self.path, f"{n} bytes wanted, the file has {self.size}", offset)
        b = bytearray(n)
        self.read_into(offset, memoryview(b))
        return b


def read_header(f, magic):
    """Checks the header and returns its JSON (None where there is none) and where what follows begins."""
    h = f.read(0, HEADER.size)
    got, version, features, size, reserved, crc = HEADER.unpack(h)
    if got != magic:
        raise CorruptError(f.path, f"begins with {bytes(got)!r} instead of {magic!r}", 0)
    if size > MAX_JSON or HEADER.size + size > f.size:
        raise CorruptError(f.path, f"a header of {size} bytes", 16)
    text = f.read(HEADER.size, size)
    if zlib.crc32(text, zlib.crc32(h[:28])) != crc:
        raise CorruptError(f.path, "header checksum", 28)
    if version != VERSION:
        raise NewerError(f.path, f"format version {version}, known is {VERSION}")
    if features:
        raise NewerError(f.path, f"features {features:#x}")
    if any(reserved):
        raise CorruptError(f.path, "reserved bytes of the header are not zero", 20)
    return (parse_json(f.path, text, HEADER.size) if size else None), HEADER.size + size


def parse_json(path, text, offset=None):
    try:
        value = json.loads(bytes(text))
    except (ValueError, RecursionError) as e:
        raise CorruptError(path, f"not JSON: {e}", offset) from None
    if not isinstance(value, dict):
        raise CorruptError(path, "not a JSON object", offset)
    return value


def number(path, obj, key, low, high, default=None):
    """An integer of obj within bounds."""
    v = obj.get(key, default)
    if type(v) is not int or not low <= v <= high:
        raise CorruptError(path, f"{key} is {v!r}, expected a whole number from {low} to {high}")
    return v


def real(path, obj, key):
    """A number of obj."""
    v = obj.get(key)
    if type(v) not in (int, float):
        raise CorruptError(path, f"{key} is {v!r}, expected a number")
    return v


def text(path, obj, key, default=""):
    v = obj.get(key, default)
    if not isinstance(v, str):
        raise CorruptError(path, f"{key} is {v!r}, expected text")
    return v


def texts(path, obj, key):
    v = obj.get(key)
    if v is None:
        return []
    if not isinstance(v, list) or not all(isinstance(x, str) for x in v):
        raise CorruptError(path, f"{key} is {v!r}, expected a list of texts")
    return v
