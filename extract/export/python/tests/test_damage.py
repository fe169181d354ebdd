"""Damage is reported, never read as values; newer files are told apart from it."""

import json
import os
import random
import struct
import zlib

import numpy as np
import pytest
from conftest import CODECS, LAYERS, expected, state_values

from eaglebatch import CorruptError, Dataset, EaglebatchError, NewerError
from eaglebatch.generation import file_hash

MUTATIONS = int(os.environ.get("EAGLEBATCH_MUTATIONS", "480"))  # a file


def read_all(path, want, dtype):
    """Reads everything; values that are given out must be right."""
    ds = Dataset(path, split=None)
    assert len(ds) == len(want)
    for s, w in zip(ds, want):
        assert s.ids.tolist() == w["ids"] and s.mask.tolist() == w["mask"]
        assert (s.metadata["dataset"], s.metadata["index"]) == (w["dataset"], w["index"])
        for k in LAYERS:
            assert np.array_equal(s.states(k), w["states"][k])
            assert s.quantization_error(k) == w.get("errors", {}).get(k)


def wanted(case, dtype):
    out = expected(case, 1, None)
    if dtype.startswith("from-"):  # what the sound file gives; test_fp8.py holds that to what was given
        for w, s in zip(out, Dataset(case / "generations" / "000001", split=None)):
            w["states"] = {k: s.states(k) for k in LAYERS}
            w["errors"] = {k: s.quantization_error(k) for k in LAYERS}
        return out
    for w in out:
        w["states"] = {k: state_values(dtype, w["seed"], w["rows"], k) for k in LAYERS}
    return out


@pytest.mark.parametrize("codec,dtype", [(c, "bf16") for c in CODECS] + [("lz4-planes", "fp32"), ("dense", "fp16"), ("fp8", "from-bf16")])
def test_mutations(copy, data, codec, dtype):
    """Bits flipped, bytes overwritten, files cut and extended: an error, or the right values."""
    g = copy(f"{codec}-{dtype}") / "000001"
    want = wanted(data / f"{codec}-{dtype}", dtype)
    read_all(g, want, dtype)
    Dataset(g).verify()
    rng = random.Random(codec + dtype)
    for name in ("blob-000000.ebb", "index.ebi", "MANIFEST.json"):
        path = g / name
        sound = path.read_bytes()
        refused = 0
        for _ in range(MUTATIONS):
            bad = bytearray(sound)
            kind = rng.random()
            if kind < 0.7:
                bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
            elif kind < 0.8:
                at = rng.randrange(len(bad))
                for i in range(at, min(len(bad), at + rng.randrange(1, 600))):
                    bad[i] = rng.randrange(256)
            elif kind < 0.9:
                del bad[rng.randrange(len(bad)):]
            elif kind < 0.95:
                bad += bytes(rng.randrange(1, 100))
            else:
                at = rng.randrange(len(bad))
                del bad[at:at + rng.randrange(1, 20)]
            path.write_bytes(bad)
            try:
                read_all(g, want, dtype)
            except EaglebatchError as e:
                assert str(e)
                refused += 1
            else:
                if bad != sound and file_hash(path):
                    with pytest.raises(EaglebatchError):
                        Dataset(g).verify()
        path.write_bytes(sound)
        # What only verify refuses: bits of lz4 that do not change the result.
        assert refused > 0.95 * MUTATIONS, f"{name}: {refused} of {MUTATIONS}"
    read_all(g, want, dtype)


@pytest.mark.parametrize("codec", CODECS)
def test_damage_under_right_checksums(copy, data, codec):
    """Chunks whose bytes are replaced, with the footer's checksums intact: the decoders meet garbage."""
    from eaglebatch.blob import Blob
    g = copy(f"{codec}-bf16") / "000001"
    path = g / "blob-000001.ebb"
    b = Blob(path)
    sound = path.read_bytes()
    rng = np.random.default_rng(3)
    for i in range(2, len(b.chunks)):
        lo, hi = int(b._starts[i]), int(b._starts[i + 1])
        for what in (bytes(hi - lo), b"\xff" * (hi - lo), rng.bytes(hi - lo)):
            path.write_bytes(sound[:lo] + what + sound[hi:])
            k = LAYERS[(i - 2) % 3]
            with pytest.raises(CorruptError) as e:
                Dataset(g, split=None)[0].read(LAYERS)
                Dataset(g, split=None)[4].read([k])
            assert e.value.path == str(path)
            assert e.value.offset is not None


def reseal_header(data, patch):
    """Patches the 32 bytes of a header and makes its checksum right again."""
    h = bytearray(data)
    for at, value in patch.items():
        struct.pack_into("<I", h, at, value)
    size, = struct.unpack_from("<I", h, 16)
    struct.pack_into("<I", h, 28, zlib.crc32(h[32:32 + size], zlib.crc32(h[:28])))
    return bytes(h)


@pytest.mark.parametrize("name", ["blob-000000.ebb", "index.ebi"])
@pytest.mark.parametrize("patch", [{8: 2}, {12: 1}])
def test_newer_header(copy, name, patch):
    path = copy("lz4-bf16") / "000001" / name
    path.write_bytes(reseal_header(path.read_bytes(), patch))
    with pytest.raises(NewerError, match="newer"):
        for s in Dataset(path.parent, split=None):
            s.read()


def test_reserved_header_bytes(copy):
    path = copy("lz4-bf16") / "000001" / "index.ebi"
    path.write_bytes(reseal_header(path.read_bytes(), {20: 1}))
    with pytest.raises(CorruptError, match="reserved"):
        Dataset(path.parent)


def test_newer_codec(copy):
    from eaglebatch.blob import Blob
    path = copy("lz4-bf16") / "000001" / "blob-000000.ebb"
    b = Blob(path)
    data = bytearray(path.read_bytes())
    trailer = len(data) - 64
    offset, length = struct.unpack_from("<QQ", data, trailer)
    data[offset + 64 * len(b.entries) + 2 * 24 + 20] = 9
    struct.pack_into("<I", data, trailer + 48, zlib.crc32(data[offset:offset + length]))
    struct.pack_into("<I", data, trailer + 52, zlib.crc32(data[trailer:trailer + 52]))
    path.write_bytes(data)
    with pytest.raises(NewerError, match="codec 9"):
        Dataset(path.parent, split=None)[1].read()


def test_newer_manifest(copy):
    import hashlib
    path = copy("lz4-bf16") / "000001" / "MANIFEST.json"
    body = path.read_bytes().rpartition(b',\n  "checksum": "')[0].replace(b'"format": 1', b'"format": 7')
    path.write_bytes(body + b',\n  "checksum": "' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n')
    with pytest.raises(NewerError, match="7"):
        Dataset(path.parent)


def test_missing_and_foreign_files(copy, data):
    g = copy("lz4-bf16") / "000001"
    os.remove(g / "blob-000001.ebb")
    with pytest.raises(CorruptError, match="missing"):
        Dataset(g)
    other = data / "lz4-planes-bf16" / "generations" / "000001" / "blob-000000.ebb"
    (g / "blob-000001.ebb").write_bytes(other.read_bytes())
    with pytest.raises(CorruptError):
        Dataset(g, split=None)[0]
    with pytest.raises(FileNotFoundError):
        Dataset(g / "nothing")
    with pytest.raises(EaglebatchError, match="not a generation"):
        Dataset(g.parent)


def test_error_names_the_place(copy):
    g = copy("raw-bf16") / "000001"
    path = g / "blob-000001.ebb"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptError) as e:
        Dataset(g)[0].read()
    assert e.value.path == str(path) and 0 < e.value.offset <= len(data) // 2
    assert json.dumps(str(e.value)) and "checksum" in str(e.value)


def test_verify(copy, monkeypatch):
    """Each file, the older generations, and blobs that are there while others are to come."""
    g = copy("older")
    for name in ("000004/index.ebi", "000004/target_head.safetensors", "000003/blob-000002.ebb", "000003/target_head.safetensors"):
        path = g / name
        sound = path.read_bytes()
        path.write_bytes(sound[:len(sound) // 2] + bytes([sound[len(sound) // 2] ^ 1]) + sound[len(sound) // 2 + 1:])
        if file_hash(path) or not name.endswith("safetensors"):
            with pytest.raises(CorruptError):
                Dataset(g / "000004").verify()
        path.write_bytes(sound)
    Dataset(g / "000004").verify()
    monkeypatch.setattr("eaglebatch.generation.file_hash", lambda path: None)
    Dataset(g / "000004").verify()
    g = copy("building") / "000001"
    Dataset(g, partial=True).verify()
    path = g / "blob-000002.ebb"
    sound = path.read_bytes()
    path.write_bytes(sound[:400] + bytes([sound[400] ^ 1]) + sound[401:])
    with pytest.raises(CorruptError):
        Dataset(g, partial=True).verify()
