#!/usr/bin/env python3
"""Prints how fast each codec decodes, in MB of raw bytes a second of one core, beside memcpy and plain lz4.

  python3 bench/decode.py BLOB.ebb...

Chunks come from real blobs, so that the states are real. The best of several rounds over up to 64 MB of chunks in
memory, in processor time: by numpy alone with and without the check of the values' checksum (crc32; xxhash is not used
here), and by the accelerator, where it was built, which checks the xxh64 in any case.
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
from eaglebatch.codecs import CODECS, LAYOUT  # noqa: E402

NAMES = ("raw", "lz4", "lz4-planes", "dense")


def best(work, rounds=7):
    out = 1e9
    for _ in range(rounds):
        t = time.thread_time()
        work()
        out = min(out, time.thread_time() - t)
    return out


def chunks(blob, limit=64 << 20):
    """(codec, encoded, raw length, XXH64) of the blob's chunks of states."""
    total = 0
    for e in blob.entries:
        for i in range(int(e["first"]) + 2, int(e["first"]) + int(e["chunks"])):
            c = blob.chunks[i]
            if c["raw"] >= 4096 and total < limit:
                total += int(c["raw"])
                yield int(c["codec"]), bytes(blob.file.read(int(blob._starts[i]), int(c["enc"]))), int(c["raw"]), int(c["xxh64"])


def by_numpy(found, outs, dtype, check):
    """Seconds of decoding."""
    def decode():
        for (c, enc, _, _), out in zip(found, outs):
            CODECS[c](enc, out, dtype)
            if check:
                zlib.crc32(out)
    before, accel.current = accel.current, None
    try:
        return best(decode)
    finally:
        accel.current = before


def by_accelerator(found, outs, dtype):
    """The same, a chunk a call."""
    width, _, _, shift = LAYOUT[dtype]
    encs = [np.frombuffer(enc, np.uint8) for _, enc, _, _ in found]

    def decode():
        for (c, _, n, digest), enc, out in zip(found, encs, outs):
            job = (accel.address(enc), len(enc), accel.address(out), 1, n, n, digest, c)
            assert accel.current.chunks(job, width, shift) == 1
    return best(decode)


def report(paths):
    for path in paths:
        b = Blob(path)
        found = list(chunks(b))
        outs = [np.empty(n, np.uint8) for _, _, n, _ in found]
        size = sum(len(o) for o in outs)
        codec = max({f[0] for f in found}, key=[f[0] for f in found].count)
        with_numpy = [size / by_numpy(found, outs, b.meta.dtype, check) / 1e6 for check in (False, True)]
        others = [np.empty_like(o) for o in outs]
        copy = best(lambda: [np.copyto(o, x) for o, x in zip(others, outs)])
        packed = [lz4.block.compress(o, store_size=False) for o in outs]
        lz = best(lambda: [lz4.block.decompress(p, uncompressed_size=len(o)) for p, o in zip(packed, outs)])
        ratio = sum(len(f[1]) for f in found) / size
        fast = "the accelerator was not built"
        if accel.current is not None:
            fast = f"accelerator, with xxh64, {size / by_accelerator(found, outs, b.meta.dtype) / 1e6:.0f}"
        print(f"{path}: {size / 1e6:.0f} MB {b.meta.dtype} {NAMES[codec]}, ratio {ratio:.3f}: "
              "numpy {:.0f} MB/s, with crc32 {:.0f}; ".format(*with_numpy) +
              f"{fast}; memcpy {size / copy / 1e6:.0f}, lz4 {size / lz / 1e6:.0f}")


if __name__ == "__main__":
    report(sys.argv[1:])
