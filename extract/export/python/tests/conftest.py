"""The tests read generations that Go wrote: python_test.go beside this folder says what is in them.

Each runs with numpy alone and with accel.c, which is compiled here where there is a C compiler.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from eaglebatch import accel  # noqa: E402

CODECS = ("raw", "lz4", "lz4-planes", "dense")
DTYPES = ("bf16", "fp16", "fp32", "fp8")
LAYERS, HIDDEN = [2, 5, 8], 40


def compile_accel(out, *flags):
    """Builds accel.c; skips where nothing can."""
    cc = os.environ.get("CC") or shutil.which("cc")
    if cc is None:
        pytest.skip("there is no cc to build accel.c")
    cmd = [*cc.split(), "-std=c11", "-Wall", "-Wextra", "-fPIC", "-shared", *flags, str(HERE.parent / "eaglebatch" / "accel.c"), "-o", str(out)]
    r = subprocess.run(cmd, capture_output=True, text=True)
    assert r.returncode == 0, f"{cmd}: {r.stderr}"
    return str(out)


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The accelerator as pip builds it."""
    return compile_accel(tmp_path_factory.mktemp("accel") / "accel.so", "-O3")


@pytest.fixture(params=["numpy", "accel"], autouse=True)
def engine(request, monkeypatch):
    """What decodes, in this process and in those that it starts."""
    path = request.getfixturevalue("library") if request.param == "accel" else "0"
    monkeypatch.setenv("EAGLEBATCH_ACCEL", path)
    monkeypatch.setattr(accel, "current", accel.find())
    return request.param


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The directory of all cases."""
    if "EAGLEBATCH_TESTDATA" in os.environ:
        return pathlib.Path(os.environ["EAGLEBATCH_TESTDATA"])
    if shutil.which("go") is None:
        pytest.skip("there is no go to write the test data, and EAGLEBATCH_TESTDATA is not set")
    out = tmp_path_factory.mktemp("data")
    subprocess.run(["go", "test", "-count=1", "-run", "TestWriteGenerations", "."], cwd=HERE.parent, check=True,
                   env={**os.environ, "EAGLEBATCH_WRITE_TESTDATA": str(out)})
    return out


@pytest.fixture
def copy(data, tmp_path):
    """Copies a case to where a test may damage it; returns its folder of generations."""
    def make(case):
        shutil.copytree(data / case, tmp_path / case)
        return tmp_path / case / "generations"
    return make


def expected(folder, generation, split):
    rows = json.loads((folder / f"expected-{generation:06d}.json").read_text())
    return [r for r in rows if split is None or r["split"] == split]


def random_bits(seed, rows, layer):
    """What appendValue in python_test.go makes values from: uint32 [rows, HIDDEN]."""
    t = np.arange(rows, dtype=np.uint32)[:, None]
    col = np.arange(HIDDEN, dtype=np.uint32)[None]
    u = np.uint32
    with np.errstate(over="ignore"):
        h = u(seed * 2654435761 % 2**32) + t * u(40503) + u(layer * 9973 * 65537 % 2**32) + col * u(69069 * 257)
        h = h + u(12345)
        h = h ^ (h >> u(15))
        h = h * u(0x85EBCA6B)
        h = h ^ (h >> u(13))
        h = h * u(0xC2B2AE35)
        return h ^ (h >> u(16))


def state_values(dtype, seed, rows, layer):
    """The states of a sample as as_numpy gives them."""
    h = random_bits(seed, rows, layer)
    sign, mantissa = h & 1, h >> 1 & 0x7FFFFF
    near = h >> 24 & 7 & (h >> 28)
    if dtype == "bf16":
        return (sign << 31 | (120 + near) << 23 | (mantissa & 0x7F) << 16).astype(np.uint32).view(np.float32)
    if dtype == "fp16":
        return (sign << 15 | (10 + near) << 10 | mantissa & 0x3FF).astype(np.uint16).view(np.float16)
    if dtype == "fp32":
        if seed % 2:
            mantissa = mantissa & 0x7F0000
        return (sign << 31 | (120 + near) << 23 | mantissa).astype(np.uint32).view(np.float32)
    value = (1 + (mantissa & 7) / 8.0) * 2.0 ** (4.0 + near - 7)
    return (np.where(sign, -value, value) * 1.5).astype(np.float32)


def check_sample(s, want, dtype, layers=LAYERS):
    assert s.metadata["dataset"] == want["dataset"] and s.metadata["index"] == want["index"]
    assert s.metadata["window"] == want["window"]
    assert s.ids.tolist() == want["ids"] and s.ids.dtype == np.int64
    assert s.mask.tolist() == want["mask"]
    assert len(s) == want["rows"]
    for k in layers:
        got = s.states(k)
        right = state_values(dtype, want["seed"], want["rows"], k)
        assert got.dtype == right.dtype and got.shape == right.shape
        assert np.array_equal(got, right), f"layer {k}"
