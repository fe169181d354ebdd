"""The compiled loops beside numpy's: the same bytes, the same refusals, nothing outside the buffers."""

import importlib.machinery
import os
import struct
import subprocess
import sys

import hostile
import numpy as np
import pytest
from conftest import HERE, compile_accel

from eaglebatch import accel, codecs

CHANGES = int(os.environ.get("EAGLEBATCH_CHANGES", "40"))  # a chunk


@pytest.fixture
def engine():
    """These tests choose for themselves."""


@pytest.fixture(params=["fast", "portable"])
def build(request, tmp_path_factory, library):
    if request.param == "fast":
        return accel.Accel(library)
    return accel.Accel(compile_accel(tmp_path_factory.mktemp("portable") / "accel.so", "-O2", "-DEB_PORTABLE"))


def test_hostile_chunks(data, build):
    tried, refused = hostile.compare(data, build, CHANGES)
    assert tried > 2000 and tried / 10 < refused < tried


def test_lz4(build):
    tried, refused = hostile.compare_lz4(build, 20 * CHANGES)
    assert tried > 2000 and tried / 10 < refused < tried


@pytest.mark.parametrize("flags", [(), ("-DEB_PORTABLE",)])
def test_sanitized(data, tmp_path, flags):
    """AddressSanitizer and UndefinedBehaviorSanitizer end the program at the first access outside a buffer."""
    try:
        lib = compile_accel(tmp_path / "accel.so", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", *flags)
    except AssertionError as e:
        pytest.skip(f"the compiler has no sanitizers: {e}")
    cc = (os.environ.get("CC") or "cc").split()[0]
    runtime = subprocess.run([cc, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(runtime):
        pytest.skip("the runtime of AddressSanitizer is not there as libasan.so")
    env = {**os.environ, "LD_PRELOAD": os.path.realpath(runtime), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc",
           "OPENBLAS_NUM_THREADS": "1"}
    cmd = [sys.executable, str(HERE / "hostile.py"), str(data), lib, str(max(4, CHANGES // 10))]
    for _ in range(3):  # some kernels lay memory out as some sanitizers do not expect it, now and then: they fail or hang then
        try:
            r = subprocess.run(cmd, env=env, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired as e:
            pytest.skip(f"Python does not get ahead under AddressSanitizer here: {(e.stderr or b'')[-300:]}")
        if "begun" in r.stderr:
            break
    else:
        pytest.skip(f"Python does not start under AddressSanitizer here: {r.stderr[-300:]}")
    assert r.returncode == 0, r.stderr[-4000:]
    tried, refused = map(int, r.stdout.split())
    assert tried > 500 and tried / 10 < refused < tried


SIZES = [*range(1, 70), 127, 128, 129, 4095, 4096, 4097, 8192 + 5, 40961]


@pytest.mark.parametrize("dtype", codecs.LAYOUT)
def test_sizes_of_planes(build, dtype):
    """Every combination of plane, low byte and tail, at sizes around those that the loops work with."""
    width, low, tail, shift = codecs.LAYOUT[dtype]
    rng = np.random.default_rng(5)
    for n in SIZES:
        size, parts = -(-n // 8), []
        for _ in range(8):
            x = rng.integers(0, 256, size, np.uint8)
            x[-1] &= 0xFF >> (-n % 8)
            parts.append(x if rng.random() < 0.7 else None)
        more = [rng.integers(0, 256, k, np.uint8) for k in [n] * low + [2 * n] * (tail // 2)]
        base = int(rng.integers(0, 256)) & 0xFF << shift & 0xFF
        flat = [b"" if x is None else x.tobytes() for x in parts + more]
        enc = bytes([base]) + struct.pack(f"<{len(flat)}I", *map(len, flat)) + b"".join(flat)
        want, got = (hostile.decoded(2, enc, n * width, dtype, x) for x in (None, build))
        assert isinstance(want, bytes) and want == got, n


def grow(rng, symbols, m, free):
    """A random tree of m symbols of the set, each leaf used once."""
    if free and rng.random() < 0.1:
        return b"\x02" + rng.choice(symbols, m).astype(np.uint8).tobytes(), False
    if len(symbols) == 1:
        return b"\x01" + bytes(symbols.tolist()), free
    bits = (rng.random(m) < rng.random()).astype(np.uint8)
    cut = int(rng.integers(1, len(symbols)))
    out, ones = b"\0" + np.packbits(bits, bitorder="little").tobytes(), int(bits.sum())
    for some, count in ((symbols[:cut], m - ones), (symbols[cut:], ones)):
        part, free = grow(rng, some, count, free)
        out += part
    return out, free


@pytest.mark.parametrize("dtype", codecs.LAYOUT)
def test_trees(build, dtype):
    """Trees of any shape, with empty sides and literals."""
    width, low, tail, shift = codecs.LAYOUT[dtype]
    rng = np.random.default_rng(6)
    for n in SIZES:
        symbols = rng.permutation(np.arange(0, 256, 1 << shift))[:int(rng.integers(2, min(31, 256 >> shift) + 1))]
        parts = [rng.integers(0, 256, -(-n // 8), np.uint8) for _ in range(shift)]
        for x in parts:
            x[-1] &= 0xFF >> (-n % 8)
        parts += [rng.integers(0, 256, k, np.uint8) for k in [n] * low + [2 * n] * (tail // 2)]
        bits = np.packbits(rng.integers(0, 2, n, np.uint8), bitorder="little")
        tree = b"\0" + bits.tobytes()
        ones, free = int(np.unpackbits(bits).sum()), True
        for some, count in ((symbols[:1], n - ones), (symbols[1:], ones)):
            part, free = grow(rng, some, count, free)
            tree += part
        enc = struct.pack(f"<{len(parts)}I", *map(len, parts)) + b"".join(x.tobytes() for x in parts) + tree
        want, got = (hostile.decoded(3, enc, n * width, dtype, x) for x in (None, build))
        assert isinstance(want, bytes) and want == got, n


def test_xxh64(build):
    """The test vectors of the algorithm's authors are for other data: these were computed by Go's xxhash."""
    data = (np.arange(1000) * 7 % 251).astype(np.uint8)
    assert build.xxh64(data[:0]) == build.xxh64_pieces([]) == 0xEF46DB3751D8E999
    whole = data.tobytes()
    for cut in (32, 64, 320, 992):
        assert build.xxh64_pieces([whole[at:at + cut] for at in range(0, 1000, cut)]) == build.xxh64(data)
    xxhash = pytest.importorskip("xxhash")
    for n in (*range(100), 255, 256, 1000):
        assert build.xxh64(data[:n]) == xxhash.xxh64_intdigest(data[:n].tobytes()), n


def test_refuses_what_does_not_fit(library):
    """Sizes that contradict each other, which codecs.py lets no file cause."""
    a, out = accel.Accel(library), np.zeros(64, np.uint8)
    planes, low, tree = [np.zeros(4, np.uint8)] * 8, np.zeros(32, np.uint8), b"\x01\x07"
    assert a.planes(out, 2, 0, 0, planes, low, None) and a.dense(out, 2, 0, [], low, None, tree)
    for bad in ((out[:62], 2, 0, 0, planes, low, None), (out[1:63], 2, 0, 0, planes, low[:31], None), (out, 2, 1, 0, planes, low, None),
                (out, 3, 0, 0, planes, low, None), (out, 2, 0, 0, planes, low[:31], None), (out, 2, 0, 0, planes, low, low),
                (out, 2, 0, 0, [low] + planes[1:], low, None)):
        assert not a.planes(*bad)
    for bad in ((out, 2, 0, [], low[:9], None, tree), (out, 2, 0, [], low, None, b""), (out, 2, 0, [], low, None, b"\x01"),
                (out, 2, 0, [], low, None, tree + b"\0"), (out, 2, 3, [low] * 3, low, None, tree), (out, 4, 0, [], low, None, tree)):
        assert not a.dense(*bad)


def test_switch(library, tmp_path):
    """EAGLEBATCH_ACCEL names a build or says that there is to be none."""
    def loaded(value, **more):
        code = "from eaglebatch import accel; print(accel.current and accel.current.path)"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE.parent,
                              env={**os.environ, "EAGLEBATCH_ACCEL": value, **more})
    assert loaded(library).stdout.strip() == library
    assert loaded("0").stdout.strip() == "None"
    missing = loaded(str(tmp_path / "nothing.so"))
    assert missing.returncode != 0 and "nothing.so" in missing.stderr


@pytest.mark.parametrize("compiler", [None, "false"])
def test_setup(tmp_path, library, compiler):
    """pip builds it where it can, and installs the package without it where it cannot."""
    pytest.importorskip("setuptools")
    env = {**os.environ, "CC": compiler or os.environ.get("CC") or "cc"}
    for name in ("setup.py", "pyproject.toml", "README.md", "eaglebatch"):
        (tmp_path / name).symlink_to(HERE.parent / name)
    cmd = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "lib", "--build-temp", "temp"]
    r = subprocess.run(cmd, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    built = list(tmp_path.glob("lib/eaglebatch/_accel*"))
    assert len(built) == (compiler is None), r.stderr
    for path in built:
        assert path.name in ["_accel" + s for s in importlib.machinery.EXTENSION_SUFFIXES]
        accel.Accel(str(path))
