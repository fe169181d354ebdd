#!/usr/bin/env python3
"""Prints how fast each codec decodes, in MB of raw bytes a second of one core, beside memcpy and plain lz4.

  python3 bench/decode.py BLOB.ebb...

Chunks come from real blobs, so that the states are real. The best of several rounds over up to 64 MB of chunks in
memory, in processor time, by numpy alone and by the accelerator where it was built, each with and without the check of
the values' checksum: crc32 for numpy (xxhash is not used here), xxh64 for the accelerator.
"""

import pathlib
import sys
import time
import zlib

import lz4.block
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from eaglebatch import accel  # noqa: E402
from eaglebatch.blob import Blob  # noqa: E402
from eaglebatch.codecs import CODECS  # noqa: E402

NAMES = ("raw", "lz4", "lz4-planes", "dense")


def best(work, rounds=7):
    out = 1e9
    for _ in range(rounds):
        t = time.thread_time()
        work()
        out = min(out, time.thread_time() - t)
    return out


def chunks(blob, limit=64 << 20):
    """(codec, encoded, raw length) of the blob's chunks of states."""
    total = 0
    for e in blob.entries:
        for i in range(int(e["first"]) + 2, int(e["first"]) + int(e["chunks"])):
            c = blob.chunks[i]
            if c["raw"] >= 4096 and total < limit:
                total += int(c["raw"])
                yield int(c["codec"]), bytes(blob.file.read(int(blob._starts[i]), int(c["enc"]))), int(c["raw"])


def rates(found, outs, dtype, engine):
    """MB/s of decoding, plain and with a checksum."""
    def decode(check):
        for (c, enc, _), out in zip(found, outs):
            CODECS[c](enc, out, dtype)
            if check:
                check(out)
    before, accel.current = accel.current, engine
    try:
        size = sum(n for _, _, n in found)
        return [size / best(lambda: decode(check)) / 1e6 for check in (None, engine.xxh64 if engine else zlib.crc32)]
    finally:
        accel.current = before


def report(paths):
    for path in paths:
        b = Blob(path)
        found = list(chunks(b))
        outs = [np.empty(n, np.uint8) for _, _, n in found]
        size = sum(n for _, _, n in found)
        codec = max({c for c, _, _ in found}, key=[c for c, _, _ in found].count)
        with_numpy = rates(found, outs, b.meta.dtype, None)
        others = [np.empty_like(o) for o in outs]
        copy = best(lambda: [np.copyto(o, x) for o, x in zip(others, outs)])
        packed = [lz4.block.compress(o, store_size=False) for o in outs]
        lz = best(lambda: [lz4.block.decompress(p, uncompressed_size=len(o)) for p, o in zip(packed, outs)])
        ratio = sum(len(e) for _, e, _ in found) / size
        fast = "the accelerator was not built"
        if accel.current is not None:
            fast = "accelerator {:.0f}, with xxh64 {:.0f}".format(*rates(found, outs, b.meta.dtype, accel.current))
        print(f"{path}: {size / 1e6:.0f} MB {b.meta.dtype} {NAMES[codec]}, ratio {ratio:.3f}: "
              "numpy {:.0f} MB/s, with crc32 {:.0f}; ".format(*with_numpy) +
              f"{fast}; memcpy {size / copy / 1e6:.0f}, lz4 {size / lz / 1e6:.0f}")


if __name__ == "__main__":
    report(sys.argv[1:])
