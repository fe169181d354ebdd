"""Reading sound generations."""

import fcntl
import os
import pickle
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import CODECS, DTYPES, HERE, LAYERS, check_sample, expected

import eaglebatch.blob
from eaglebatch import CorruptError, Dataset, EaglebatchError, LeaseError, SyntheticError


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(data, codec, dtype):
    case = data / f"{codec}-{dtype}"
    for split in ("train", "eval", None):
        ds = Dataset(case / "generations" / "000001", split=split)
        want = expected(case, 1, split)
        assert len(ds) == len(want) > 1
        assert ds.lengths.tolist() == [w["rows"] for w in want]
        for s, w in zip(ds, want):
            check_sample(s, w, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_codec_in_use(data, dtype):
    """The cases do exercise the codecs that they are named after."""
    for number, codec in enumerate(CODECS):
        b = eaglebatch.blob.Blob(data / f"{codec}-{dtype}" / "generations" / "000001" / "blob-000001.ebb")
        used = set(b.chunks["codec"][2:].tolist())
        assert number in used or codec == "lz4", f"{codec} {dtype}: {used}"


@pytest.mark.parametrize("with_xxhash", [True, False])
def test_either_checksum(data, monkeypatch, with_xxhash):
    if with_xxhash:
        monkeypatch.setattr(eaglebatch.blob, "xxh64_intdigest", pytest.importorskip("xxhash").xxh64_intdigest)
    else:
        monkeypatch.setattr(eaglebatch.blob, "xxh64_intdigest", None)
    case = data / "lz4-planes-bf16"
    for s, w in zip(Dataset(case / "generations" / "000001"), expected(case, 1, "train")):
        check_sample(s, w, "bf16")


def test_workspace_path_takes_the_newest(data):
    ds = Dataset(data / "older")
    assert ds.path.endswith("000004")


def test_older_generation(data):
    case = data / "older"
    ds = Dataset(case / "generations" / "000004")
    for s, w in zip(ds, expected(case, 4, "train")):
        check_sample(s, w, "bf16")
        assert s.metadata["generation"] == 3


def test_older_generation_replaced(copy):
    g = copy("older")
    m = (g / "000003" / "MANIFEST.json").read_bytes()
    assert b'"name": "test"' in m
    shutil.copy(g / "000004" / "MANIFEST.json", g / "000003" / "MANIFEST.json")
    with pytest.raises(CorruptError):
        Dataset(g / "000004")[0].states(2)


def test_older_generation_missing(copy):
    g = copy("older")
    shutil.rmtree(g / "000003")
    with pytest.raises(CorruptError, match="missing"):
        Dataset(g / "000004")[0]


def test_layers_in_any_order(data):
    ds = Dataset(data / "lz4-planes-bf16" / "generations" / "000001")
    a = ds[1].read([8, 2])
    s = ds[1]
    assert np.array_equal(a[0], s.read([8])[0]) and np.array_equal(a[1], s.read([2])[0])
    wide = np.zeros((len(s), 3 * 40), np.uint16)
    s.read(outs=[wide[:, 40 * k:40 * k + 40] for k in range(3)])
    assert np.array_equal(wide, np.concatenate(ds[1].read(), 1))
    with pytest.raises(KeyError, match="not captured"):
        s.states(3)


def test_arrays_to_fill(data):
    """Any rows of the right kind are filled, and nothing beside them; others are refused before anything is written."""
    ds = Dataset(data / "lz4-planes-bf16" / "generations" / "000001")
    s, right = ds[1], ds[1].read([2])[0]
    n = len(s)
    upside = np.full((n, 40), 7, np.uint16)
    s.read([2], outs=[upside[::-1]])
    assert np.array_equal(upside[::-1], right)
    every = np.full((2 * n, 40), 7, np.uint16)
    s.read([2], outs=[every[::2]])
    assert np.array_equal(every[::2], right) and (every[1::2] == 7).all()
    apart = np.full((n, 80), 7, np.uint16)
    s.read([2], outs=[apart[:, ::2]])
    assert np.array_equal(apart[:, ::2], right) and (apart[:, 1::2] == 7).all()
    fixed = np.full((n, 40), 7, np.uint16)
    fixed.flags.writeable = False
    for bad in (np.zeros((n, 39), np.uint16), np.zeros((n, 41), np.uint16), np.zeros((n, 40), np.uint32), np.zeros(n, np.uint16),
                np.zeros((n + 1, 40), np.uint16), fixed):
        before = bad.copy()
        with pytest.raises(ValueError, match="states go into arrays"):
            s.read([2], outs=[bad])
        assert np.array_equal(bad, before)


def test_selected_rows(data):
    case = data / "selected"
    ds = Dataset(case / "generations" / "000001")
    full = cut = 0
    for s, w in zip(ds, expected(case, 1, "train")):
        mask = np.array(w["mask"])
        end = np.flatnonzero(mask)[-1] + 2 if mask.any() else len(mask)
        keep = np.arange(len(mask)) < end
        near = mask | np.append(mask[1:], 0) | np.insert(mask[:-1], 0, 0)
        from conftest import state_values
        for k in LAYERS:
            stored = keep & (near > 0) if k == 8 and mask.any() else keep
            right = np.where(s.stored(k)[:, None], state_values("bf16", w["seed"], w["rows"], k), 0)
            assert np.array_equal(s.states(k), right)
            if mask.any():
                assert s.stored(k).tolist() == stored.tolist()
            full, cut = full + stored.sum(), cut + (~stored).sum()
    assert full > 100 and cut > 100


def test_synthetic_needs_a_flag(data):
    with pytest.raises(SyntheticError):
        Dataset(data / "synthetic")
    assert len(Dataset(data / "synthetic", synthetic=True)) > 0


def test_building(data):
    case = data / "building"
    g = case / "generations" / "000001"
    with pytest.raises(EaglebatchError, match="partial"):
        Dataset(g)
    # The first position is in blob 1, which is still to come.
    assert len(Dataset(g, partial=True)) == 0


def test_building_goes_on(copy, data):
    g = copy("building") / "000001"
    # Blob 1 of a sealed generation has the same bytes, since neither holds time nor place.
    shutil.copy(data / "lz4-planes-bf16" / "generations" / "000001" / "blob-000001.ebb", g)
    os.rename(g / "blob-000002.ebb", g / "later")
    ds = Dataset(g, partial=True)
    rows = expected(data / "building", 1, None)
    # One entry is quarantined and does not count; the last two positions are in blob 2.
    want = [r for r in rows if r["seed"] not in (3, 6, 7)]
    assert len(ds) == len(want) and len(rows) == len(want) + 3
    for s, w in zip(ds, want):
        check_sample(s, w, "bf16")
    assert ds.lengths.tolist() == [w["rows"] for w in want]
    os.rename(g / "later", g / "blob-000002.ebb")
    assert len(Dataset(g, partial=True, split=None)) == len(rows) - 1


def test_lease(copy):
    g = copy("lz4-bf16") / "000001"
    ds = Dataset(g)
    with open(g / "LEASE") as f:
        with pytest.raises(BlockingIOError):
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        del ds
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(LeaseError):
            Dataset(g)
    assert len(Dataset(g)) > 0
    os.remove(g / "LEASE")  # a copy
    assert len(Dataset(g)) > 0


def test_lease_follows_fork(copy):
    g = copy("lz4-bf16") / "000001"
    ds = Dataset(g)
    go, done = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(go[0], 1)
        try:
            ok = ds[0].states(2).shape[0] > 0
        except BaseException:
            ok = False
        os._exit(0 if ok else 1)
    del ds
    with open(g / "LEASE") as f:
        with pytest.raises(BlockingIOError):
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(go[1], b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for fd in go + done:
        os.close(fd)


def test_pickle(data):
    case = data / "lz4-planes-bf16"
    ds = pickle.loads(pickle.dumps(Dataset(case / "generations" / "000001", split="eval")))
    want = expected(case, 1, "eval")
    assert len(ds) == len(want)
    for s, w in zip(ds, want):
        check_sample(pickle.loads(pickle.dumps(s)), w, "bf16")


def test_threads(data, monkeypatch):
    """Many threads on few open blobs."""
    monkeypatch.setattr("eaglebatch.generation.OPEN_BLOBS", 1)
    case = data / "lz4-planes-bf16"
    ds, want, wrong = Dataset(case / "generations" / "000001", split=None), expected(case, 1, None), []

    def work(seed):
        try:
            for i in np.random.default_rng(seed).integers(0, len(ds), 60):
                check_sample(ds[i], want[i], "bf16")
        except BaseException as e:
            wrong.append(e)

    ts = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    assert wrong == []


def test_positions(data):
    ds = Dataset(data / "raw-bf16")
    assert ds[-1].ids.tolist() == ds[len(ds) - 1].ids.tolist()
    with pytest.raises(IndexError):
        ds[len(ds)]
    with pytest.raises(EaglebatchError, match="no split"):
        Dataset(data / "raw-bf16", split="test")
    assert ds[0].metadata["tokens"] == len(ds[0]) == ds.lengths[0]


def test_numpy_and_lz4_suffice(data):
    """Nothing else is imported, torch and xxhash included."""
    code = ("import sys; sys.modules['xxhash'] = sys.modules['torch'] = None\n"
            "from eaglebatch import Dataset\n"
            f"print(Dataset({str(data / 'lz4-planes-bf16')!r})[0].states(2).shape[1])\n")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE.parent)
    assert out.stdout.strip() == "40", out.stderr
