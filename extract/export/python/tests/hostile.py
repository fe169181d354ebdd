"""Damaged chunks for both decoders: accel.c must refuse what numpy refuses, and give its bytes otherwise.

  python hostile.py DATA LIBRARY CHANGES

DATA: the folder of cases. Prints how many were tried and refused. As a program, so that it can run under sanitizers.
"""

import pathlib
import random
import sys

import lz4.block
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from eaglebatch import CorruptError, accel  # noqa: E402
from eaglebatch.blob import Blob  # noqa: E402
from eaglebatch.codecs import CODECS, LAYOUT  # noqa: E402


def decoded(codec, enc, size, dtype, engine):
    """The bytes, or why there are none."""
    accel.current = engine
    out = np.full(size, 0xA5, np.uint8)
    try:
        CODECS[codec](enc, out, dtype)
    except CorruptError as e:
        return e.what
    return out.tobytes()


def whole(codec, enc, size, dtype, want, engine):
    """Whether Accel.chunks takes the chunk, whose bytes numpy says are want, to rows side by side and to rows apart."""
    width, _, _, shift = LAYOUT[dtype]
    src, rows = np.array(np.frombuffer(enc, np.uint8)), 4 if size % 16 == 0 else 1
    row, sure = size // rows, isinstance(want, bytes)
    took = set()
    for stride in (row, row + 40):
        out = np.full(rows * stride, 0xA5, np.uint8)
        digest = engine.xxh64(np.frombuffer(want, np.uint8)) if sure else 1
        took.add(engine.chunks([accel.address(src), len(src), accel.address(out), rows, row, stride, digest, codec], width, shift))
        if took == {1}:
            out = out.reshape(rows, stride)
            assert sure and out[:, :row].tobytes() == want and (out[:, row:] == 0xA5).all()
    assert len(took) == 1
    return took == {1}


def change(enc, rng):
    """enc with some damage, half of it in its first bytes, where the structure is."""
    b, kind = bytearray(enc), rng.random()
    at = rng.randrange(min(len(b), 64) if rng.random() < 0.5 else len(b))
    if kind < 0.5:
        b[at] ^= 1 << rng.randrange(8)
    elif kind < 0.7:
        b[at:at + 4] = rng.choice([0, 1, 0xFF, 0xFFFFFFFF, len(enc), len(enc) // 2]).to_bytes(4, "little")
    elif kind < 0.8:
        b[at:at + rng.randrange(1, 40)] = rng.randbytes(rng.randrange(40))
    elif kind < 0.9:
        del b[rng.randrange(len(b)):]
    else:
        b += rng.randbytes(rng.randrange(1, 20))
    return bytes(b)


def chunks(data):
    """(codec, bytes, raw size, dtype) of chunks of states of every codec and dtype."""
    for case in sorted(data.glob("*-*")):
        path = case / "generations" / "000001" / "blob-000000.ebb"
        codec, _, dtype = case.name.rpartition("-")
        if codec in ("lz4-planes", "dense") and path.exists() and "from" not in case.name:
            b = Blob(path)
            for i in range(len(b.chunks)):
                c = b.chunks[i]
                if c["codec"] in (2, 3):
                    yield int(c["codec"]), bytes(b.file.read(int(b._starts[i]), int(c["enc"]))), int(c["raw"]), dtype


def compare(data, engine, changes):
    """Tries each chunk as it is and with so many changes: (tried, refused)."""
    rng, tried, refused = random.Random(11), 0, 0
    for codec, enc, size, dtype in chunks(data):
        for k in range(changes + 1):
            bad = change(enc, rng) if k else enc
            want, got = (decoded(codec, bad, size, dtype, x) for x in (None, engine))
            assert want == got, f"codec {codec}, {dtype}, change {k}: {want[:80]!r}, accel.c says {got[:80]!r}"
            assert whole(codec, bad, size, dtype, want, engine) or k, "a sound chunk is left to numpy"
            tried, refused = tried + 1, refused + isinstance(want, str)
    return tried, refused


def compare_lz4(engine, count):
    """Blocks of all kinds of repetition beside liblz4, sound and damaged: (tried, refused)."""
    rng, tried, refused = random.Random(12), 0, 0
    for i in range(count):
        raw = b"".join(rng.randbytes(rng.randrange(1, 30)) * rng.choice([1, 1, 2, 3, 40, 700]) for _ in range(rng.randrange(1, 9)))
        enc = lz4.block.compress(raw, store_size=False, mode=rng.choice(["default", "high_compression"]))
        for k in range(10):
            bad, size = (change(enc, rng), len(raw) + rng.choice([0, 0, 0, -1, 1])) if k else (enc, len(raw))
            if not bad or not size:
                continue
            want = decoded(1, bad, size, "fp8", None)
            assert whole(1, bad, size, "fp8", want, engine) or k, f"sound block {i} is refused"
            tried, refused = tried + 1, refused + isinstance(want, str)
    return tried, refused


if __name__ == "__main__":
    print("begun", file=sys.stderr, flush=True)  # all that is needed has been loaded
    compare_lz4(accel.Accel(sys.argv[2]), 20 * int(sys.argv[3]))
    print(*compare(pathlib.Path(sys.argv[1]), accel.Accel(sys.argv[2]), int(sys.argv[3])))
