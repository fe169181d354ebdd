"""What `eaglebatch export` writes is read by the projects' own loaders, and is what the adapters yield."""

import json

import pytest

from eaglebatch import Dataset

torch = pytest.importorskip("torch", reason="torch is not installed")
from eaglebatch.adapters import ModelOptimizer, SpecForge, Speculators  # noqa: E402

CASES = [("lz4-planes-bf16", 1), ("dense-fp16", 1), ("lz4-fp8", 1), ("older", 4), ("selected", 1)]


@pytest.fixture
def engine():
    """Once is enough: what decodes is tested elsewhere."""


@pytest.fixture(params=CASES, ids=lambda c: c[0])
def case(request, data):
    name, generation = request.param
    return data / name, Dataset(data / name / "generations" / f"{generation:06d}")


def same(got, want, close=()):
    """close: keys whose values went through the final norm, the sum of whose squares may round otherwise."""
    for k, v in want.items():  # fp8: the adapters give float32, the files have bfloat16
        if isinstance(v, torch.Tensor) and v.dtype == torch.float32:
            want = {**want, k: v.bfloat16()}
    assert got.keys() == want.keys()
    for k in want:
        if not isinstance(want[k], torch.Tensor):
            assert got[k] == want[k], k
            continue
        assert got[k].dtype == want[k].dtype and got[k].shape == want[k].shape, k
        if k in close:
            step = 2 ** -7 if want[k].dtype == torch.bfloat16 else 2 ** -10
            assert torch.allclose(got[k].float(), want[k].float(), rtol=step, atol=1e-6), k
        else:
            assert torch.equal(got[k], want[k]), k


def files(folder, pattern, n):
    found = sorted(map(str, folder.rglob(pattern)))
    assert len(found) == n
    book = json.loads((folder / "export.json").read_text())
    assert book["done"] and book["samples"] == n
    listed = [json.loads(line) for line in (folder / "files.jsonl").read_text().splitlines()]
    assert sorted(str(folder / e["path"]) for e in listed) == sorted(found)
    return found


def test_torch_reads_specforge(case):
    folder, ds = case
    ours = SpecForge(ds)
    for i, path in enumerate(files(folder / "export-specforge", "*.ckpt", len(ds))):
        for kw in ({"weights_only": True}, {"weights_only": False, "mmap": True}):
            d = torch.load(path, **kw)
            assert set(d) == {"input_ids", "loss_mask", "hidden_state", "aux_hidden_state"}
            want = ours[i]
            mask = d["loss_mask"].clone()
            mask[-1] = 0
            same({"ids": d["input_ids"], "mask": mask, "aux": d["aux_hidden_state"], "last": d["hidden_state"]},
                 {"ids": want["input_ids"][0], "mask": want["loss_mask"][0], "aux": want["hidden_state"],
                  "last": want["target"]}, close={"last"})


def test_specforge(case):
    pytest.importorskip("specforge.runtime", reason="specforge is not installed")
    from specforge.algorithms.eagle3.data import normalize_offline_sample
    from specforge.runtime.data_plane.feature_store import LocalFeatureStore
    from specforge.runtime.data_plane.offline_reader import OfflineManifestReader
    folder, ds = case
    refs = OfflineManifestReader(str(folder / "export-specforge"), run_id="t", strategy="eagle3",
                                 validate_files=True).read()
    store, ours = LocalFeatureStore("s"), SpecForge(ds)
    assert len(refs) == len(ours)
    for i, ref in enumerate(refs):
        same(normalize_offline_sample(store.get(ref)[0], 4096), ours[i], close={"target"})


def test_safetensors_and_datasets_read_speculators(case):
    load_file = pytest.importorskip("safetensors.torch", reason="safetensors is not installed").load_file
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    folder, ds = case
    prep = datasets.load_from_disk(str(folder / "export-speculators" / "prep"))
    ours = Speculators(ds)
    files(folder / "export-speculators", "*.safetensors", len(ds))
    assert len(prep) == len(ours)
    for i in range(len(ours)):
        d = load_file(str(folder / "export-speculators" / "hidden_states" / f"hs_{i}.safetensors"))
        want, row = ours[i], prep[i]
        assert torch.equal(d["token_ids"], want["input_ids"]) and torch.equal(row["input_ids"], want["input_ids"])
        assert torch.equal(row["loss_mask"], want["loss_mask"]) and int(row["seq_len"]) == len(want["input_ids"])
        assert torch.equal(d["hidden_states"][:, :-1].flatten(1), want["hidden_states"])
        assert torch.equal(d["hidden_states"][:, -1], want["verifier_last_hidden_states"])


def test_speculators(case):
    pytest.importorskip("speculators.train.data", reason="speculators is not installed")
    from hs_connectors import FileTransfer
    from speculators.train.data import ArrowDataset
    folder, ds = case
    out = folder / "export-speculators"
    theirs = ArrowDataset(max_len=512, datapath=str(out / "prep"), transfer=FileTransfer(out / "hidden_states"),
                          on_missing="raise")
    ours = Speculators(ds)
    assert len(theirs) == len(ours)
    for i in range(len(ours)):
        same(theirs[i], ours[i])


def test_torch_reads_model_optimizer(case):
    folder, ds = case
    ours = ModelOptimizer(ds)
    for i, path in enumerate(files(folder / "export-modelopt", "*.pt", len(ds))):
        d, want, m = torch.load(path, weights_only=True, mmap=True), ours[i], ds[i].metadata
        same({"ids": d["input_ids"], "mask": d["loss_mask"], "aux": d["aux_hidden_states"], "last": d["hidden_states"]},
             {"ids": want["input_ids"], "mask": want["loss_mask"], "aux": want["aux_hidden_states"],
              "last": want["base_model_hidden_states"]}, close={"last"})
        name = f"{m['dataset']}/{m['index']}" + (f".{m['window']}" if m["window"] else "")
        assert d["hidden_states_prenorm"] is False and d["conversation_id"] == name


def test_model_optimizer(case):
    pytest.importorskip("modelopt.torch.speculative.eagle.utils", reason="nvidia-modelopt is not installed")
    from modelopt.torch.speculative.eagle.utils import OfflineSupervisedDataset
    folder, ds = case
    paths = files(folder / "export-modelopt", "*.pt", len(ds))
    theirs, ours = OfflineSupervisedDataset(paths, answer_only_loss=True), ModelOptimizer(ds)
    for i in range(len(ours)):
        same(theirs[i], ours[i], close={"base_model_hidden_states"})
