"""The worked example of store/FORMAT.md, read as it stands there."""

import pathlib
import re

import numpy as np
import pytest

from eaglebatch import CorruptError
from eaglebatch.blob import Blob
from eaglebatch.codecs import dense, lz4_planes
from eaglebatch.dataset import as_numpy
from eaglebatch.index import OWN_MASK, Index

FORMAT = pathlib.Path(__file__).parents[4] / "store" / "FORMAT.md"


def example(name, tmp_path):
    text = FORMAT.read_text().partition(f"<!-- example:{name}:begin -->")[2].partition("<!-- example")[0]
    data = bytearray()
    for line in re.findall(r"^([0-9a-f]{6})  ((?:[0-9a-f]{2} )*[0-9a-f]{2})?", text, re.M):
        assert int(line[0], 16) == len(data)
        data += bytes.fromhex(line[1])
    assert data
    path = tmp_path / name
    path.write_bytes(data)
    return path


def test_blob(tmp_path):
    b = Blob(example("blob", tmp_path))
    assert (b.meta.layers, b.meta.hidden_size, b.meta.block_rows) == ([1, 2], 2, 2)
    assert b.reason(0) is None and b.reason(1) == "too long"
    assert b.ids(0, 5).tolist() == [11, 12, 13, 0x27FFF, 15]
    assert b.mask(0, 5).tolist() == [0, 0, 0, 1, 0]
    assert b.row_map(0, 0) is None and b.row_map(0, 1).tolist() == [0, 0, 1, 1, 1]
    outs = [np.empty((5, 2), "<u2") for _ in range(2)]
    b.states(0, [0, 1], outs)
    value = [[[t + k / 2 + c / 4 for c in range(2)] for t in range(5)] for k in (1, 2)]
    value[1][0] = value[1][1] = [0, 0]
    assert [as_numpy(o, "bf16").tolist() for o in outs] == value


def test_fp8_row(tmp_path):
    row = np.frombuffer(example("fp8", tmp_path).read_bytes(), np.uint8)[None]
    got = as_numpy(row, "fp8")[0]
    assert got.tolist() == [3.5, -0.1015625, 0.0009765625, 0]
    given = np.array([3.5, -0.10009765625, 0.00099945068359375, 0])
    error = np.linalg.norm(given - got) / np.linalg.norm(given)
    assert f"relative error of {error:.5g}," in FORMAT.read_text()


def test_index(tmp_path):
    x = Index(example("index", tmp_path))
    assert (x.generation, x.entries, x.blobs, x.positions) == (7, 2, 1, 3)
    assert x.splits == {"train": range(0, 2), "eval": range(2, 3)}
    p = x.records(0, 3)
    assert p["rows"].tolist() == [5, 3, 4] and p["generation"].tolist() == [0, 5, 0]
    assert p["mask"].tolist() == [OWN_MASK, 0, OWN_MASK]
    assert x.mask(0, 3).tolist() == [0, 1, 1]


def test_chunks():
    want = np.array([1.0, 1.0, 1.0, 2.0] * 16, np.float32).view(np.uint32) >> 16
    out = np.empty(128, np.uint8)
    lz4_planes(bytes.fromhex("7f" + "00000000" "08000000" + "00000000" * 7 + "88" * 8), out, "bf16")
    assert np.array_equal(out.view("<u2"), want)
    out[:] = 0
    dense(bytes.fromhex("00000000" "00" + "88" * 8 + "017f0180"), out, "bf16")
    assert np.array_equal(out.view("<u2"), want)


@pytest.mark.parametrize("enc", [
    "", "00000000", "00000000" "0200", "00000000" "00" + "88" * 8 + "017f017f", "00000000" "00" + "88" * 8 + "017f",
    "00000000" "00" + "88" * 8 + "017f018000", "00000000" "03", "ffffffff" "017f"])
def test_bad_trees(enc):
    with pytest.raises(CorruptError):
        dense(bytes.fromhex(enc), np.empty(128, np.uint8), "bf16")


def test_deep_trees_are_refused():
    """A chain of nodes with no ones: more of them than any writer makes."""
    enc = bytes.fromhex("00000000") + (b"\0" + bytes(8)) * 40
    with pytest.raises(CorruptError, match="nodes"):
        dense(enc, np.empty(128, np.uint8), "bf16")
