"""Blocks of a sample decoded by several threads."""

import os
import threading

import numpy as np
import pytest
from conftest import LAYERS, check_sample, expected

from eaglebatch import CorruptError, Dataset, parallel


@pytest.fixture(params=[1, 2, 4])
def threads(request, monkeypatch):
    monkeypatch.setattr(parallel, "threads", lambda: request.param)
    return request.param


@pytest.mark.parametrize("case,dtype", [("lz4-planes-bf16", "bf16"), ("dense-fp16", "fp16"), ("lz4-planes-fp32", "fp32"),
                                        ("raw-fp8", "fp8")])
def test_same_values(data, threads, case, dtype):
    for s, w in zip(Dataset(data / case / "generations" / "000001", split=None), expected(data / case, 1, None)):
        check_sample(s, w, dtype)


def test_selected_rows(data, threads):
    ds = Dataset(data / "selected" / "generations" / "000001", split=None)
    whole = [[x.copy() for x in s.read()] for s in ds]
    for s, want in zip(ds, whole):
        assert all(np.array_equal(s.read([k])[0], want[LAYERS.index(k)]) for k in LAYERS)


def test_the_first_error_is_raised(copy, threads):
    g = copy("lz4-planes-bf16") / "000001"
    path = g / "blob-000001.ebb"
    data = bytearray(path.read_bytes())
    for at in range(len(data) // 4, len(data) // 2, 500):
        data[at] ^= 0x55
    path.write_bytes(data)
    for _ in range(5):
        with pytest.raises(CorruptError):
            Dataset(g)[0].read()


def test_run_does_everything_once():
    done, lock = [], threading.Lock()

    def work(x):
        with lock:
            done.append(x)

    parallel.run(work, range(500))
    assert sorted(done) == list(range(500))


def test_after_fork(data, monkeypatch):
    """A child has none of its parent's threads and makes its own."""
    monkeypatch.setattr(parallel, "threads", lambda: 3)
    case = data / "lz4-planes-bf16"
    ds, want = Dataset(case / "generations" / "000001", split=None), expected(case, 1, None)
    for s, w in zip(ds, want):
        check_sample(s, w, "bf16")
    pid = os.fork()
    if pid == 0:
        try:
            for s, w in zip(ds, want):
                check_sample(s, w, "bf16")
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_threads_fit_the_cores():
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert 1 <= parallel.threads() <= max(1, min(cores, parallel.MOST))
