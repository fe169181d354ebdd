"""States that were quantized on the way to disk: close to what was given, by the error that is reported."""

import pickle

import numpy as np
import pytest
from conftest import LAYERS, expected, state_values

from eaglebatch import CorruptError, Dataset
from eaglebatch.blob import Meta
from eaglebatch.dataset import E4M3, as_numpy


def row_errors(given, got):
    given, got = given.astype(np.float64), got.astype(np.float64)
    return np.sqrt(((given - got) ** 2).sum(1) / (given ** 2).sum(1))


@pytest.mark.parametrize("source", ["bf16", "fp32"])
def test_errors_are_those_reported(data, source):
    case = data / f"fp8-from-{source}"
    ds = Dataset(case / "generations" / "000001", split=None)
    assert ds.meta.dtype == "fp8" and ds.meta.source_dtype == source
    entries = {k: {} for k in LAYERS}
    for s, w in zip(ds, expected(case, 1, None)):
        for k in LAYERS:
            got = s.states(k)
            assert got.dtype == np.float32 and got.shape == (w["rows"], 40)
            given = state_values(source, w["seed"], w["rows"], k)
            e = row_errors(given, got)
            assert 0 < e.max() < 1 / 16
            assert (np.abs(given - got) <= np.abs(given).clip(np.abs(given).max(1, keepdims=True) / 28672) / 16 * 1.001).all()
            mean, most = s.quantization_error(k)
            assert e.max() <= most * (1 + 1e-5)
            if len(s) == int(s._blob.entries["rows"][s._entry]):  # errors are of the whole entry
                assert abs(mean - e.mean()) < 1e-5 * mean and abs(most - e.max()) < 1e-5 * most
                entries[k][w["seed"]] = e
    assert sorted(ds.quantization) == LAYERS
    for k in LAYERS:
        e = np.concatenate(list(entries[k].values()))
        q = ds.quantization[k]
        assert q["rows"] == len(e)
        assert abs(q["mean_error"] - e.mean()) < 1e-5 * e.mean() and abs(q["max_error"] - e.max()) < 1e-5 * e.max()


def test_a_pickled_sample_keeps_its_errors(data):
    s = Dataset(data / "fp8-from-bf16")[0]
    t = pickle.loads(pickle.dumps(s))
    assert t.quantization_error(5) == s.quantization_error(5) is not None
    assert np.array_equal(t.states(5), s.states(5))


def test_exact_states_have_none(data):
    ds = Dataset(data / "lz4-planes-bf16")
    assert ds[0].quantization_error(2) is None and ds.quantization == {}


def test_the_largest_numbers_stay_finite():
    scale = np.float32(np.finfo(np.float32).max / 448)
    scale = np.nextafter(scale, np.float32(np.inf))
    row = np.concatenate([scale[None].view(np.uint8), np.array([0x7E, 0xFE, 0x01], np.uint8)])[None]
    got = as_numpy(row, "fp8")
    assert np.isfinite(got).all() and got[0, 0] == -got[0, 1] == np.finfo(np.float32).max
    assert E4M3[0x7E] == 448 and E4M3[0x01] == 2.0**-9


@pytest.mark.parametrize("dtype,source", [("bf16", "fp32"), ("fp8", "fp8"), ("fp8", "int4")])
def test_impossible_sources(dtype, source):
    with pytest.raises(CorruptError):
        Meta("x", {"layers": [1], "hidden_size": 4, "dtype": dtype, "source_dtype": source, "generation": 1,
                   "chunk_bytes": 64, "datasets": ["a"]})
