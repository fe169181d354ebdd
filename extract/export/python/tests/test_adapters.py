"""The adapters yield what the projects' own readers make of their own files of the same samples."""

import os

import numpy as np
import pytest
from conftest import HIDDEN, LAYERS, expected, state_values

from eaglebatch import CorruptError, Dataset, EaglebatchError

torch = pytest.importorskip("torch", reason="torch is not installed")
from eaglebatch.adapters import FinalNorm, ModelOptimizer, SpecForge, Speculators  # noqa: E402

CASE = "lz4-planes-bf16"


@pytest.fixture
def engine():
    """Once is enough: what decodes is tested elsewhere."""


def raw(want):
    """ids, mask, auxiliary and last states of a sample, from the formula."""
    s = [torch.from_numpy(state_values("bf16", want["seed"], want["rows"], k)).bfloat16() for k in LAYERS]
    return torch.tensor(want["ids"]), torch.tensor(want["mask"]), torch.cat(s[:-1], 1), s[-1]


def normed(x):
    """The final norm of the test data, written down once more."""
    w = torch.tensor([0.5 + i / 16 for i in range(HIDDEN)])
    y = x.double()
    return w.bfloat16() * (y / (y.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()).bfloat16()


def same(got, want):
    assert got.keys() == want.keys()
    for k in want:
        if isinstance(want[k], torch.Tensor):
            assert got[k].dtype == want[k].dtype and torch.equal(got[k], want[k]), k
        else:
            assert got[k] == want[k], k


@pytest.fixture
def samples(data):
    return Dataset(data / CASE / "generations" / "000001"), expected(data / CASE, 1, "train")


@pytest.mark.parametrize("max_len", [None, 20])
def test_specforge(samples, tmp_path, max_len):
    pytest.importorskip("specforge.runtime", reason="specforge is not installed")
    from specforge.algorithms.eagle3.data import normalize_offline_sample
    from specforge.runtime.data_plane.feature_store import LocalFeatureStore
    from specforge.runtime.data_plane.offline_reader import OfflineManifestReader
    ds, want = samples
    for i, w in enumerate(want):
        ids, mask, aux, last = raw(w)
        torch.save({"input_ids": ids, "loss_mask": mask, "hidden_state": normed(last)[None],
                    "aux_hidden_state": aux[None]}, tmp_path / f"data_{i}.ckpt")
    refs = OfflineManifestReader(str(tmp_path), run_id="t", strategy="eagle3", validate_files=True).read()
    store, ours = LocalFeatureStore("s"), SpecForge(ds, max_len)
    assert len(refs) == len(ours)
    for i, ref in enumerate(refs):
        same(ours[i], normalize_offline_sample(store.get(ref)[0], max_len or 4096))


def test_speculators(samples, tmp_path):
    pytest.importorskip("speculators.train.data", reason="speculators is not installed")
    import datasets
    from hs_connectors import FileTransfer
    from safetensors.torch import save_file
    from speculators.train.data import ArrowDataset, CollateFn
    ds, want = samples
    rows = [raw(w) for w in want]
    arrow = datasets.Dataset.from_dict({"input_ids": [r[0].tolist() for r in rows],
                                        "loss_mask": [r[1].tolist() for r in rows], "seq_len": [len(r[0]) for r in rows]})
    arrow.with_format("torch").save_to_disk(str(tmp_path / "prep"))
    (tmp_path / "hs").mkdir()
    for i, (ids, _, aux, last) in enumerate(rows):
        h = torch.cat([aux.reshape(len(ids), -1, HIDDEN), last[:, None]], 1)
        save_file({"hidden_states": h.contiguous(), "token_ids": ids}, str(tmp_path / "hs" / f"hs_{i}.safetensors"))
    theirs = ArrowDataset(max_len=512, datapath=str(tmp_path / "prep"), transfer=FileTransfer(tmp_path / "hs"),
                          on_missing="raise")
    ours = Speculators(ds)
    for i in range(len(ours)):
        same(ours[i], theirs[i])
    collate = CollateFn(512, HIDDEN, len(LAYERS) - 1)
    same(collate([ours[0], ours[1]]), collate([theirs[0], theirs[1]]))


@pytest.mark.parametrize("answer_only", [True, False])
@pytest.mark.parametrize("post_norm", [True, False])
def test_model_optimizer(samples, tmp_path, answer_only, post_norm):
    pytest.importorskip("modelopt.torch.speculative.eagle.utils", reason="nvidia-modelopt is not installed")
    from modelopt.torch.speculative.eagle.utils import EagleOfflineDataCollator, OfflineSupervisedDataset
    ds, want = samples
    files = []
    for i, w in enumerate(want):
        ids, mask, aux, last = raw(w)
        files.append(str(tmp_path / f"{i}.pt"))
        torch.save({"input_ids": ids, "loss_mask": mask, "hidden_states": normed(last) if post_norm else last,
                    "aux_hidden_states": aux, "hidden_states_prenorm": not post_norm}, files[-1])
    theirs = OfflineSupervisedDataset(files, answer_only_loss=answer_only)
    ours = ModelOptimizer(ds, answer_only_loss=answer_only, post_norm=post_norm)
    for i in range(len(ours)):
        same(ours[i], theirs[i])
    a, b = EagleOfflineDataCollator(64)([ours[0], ours[1]]), EagleOfflineDataCollator(64)([theirs[0], theirs[1]])
    same(a.pop("base_model_outputs"), b.pop("base_model_outputs"))
    same(a, b)


def test_final_norm_is_that_of_transformers(samples):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama", reason="transformers is not installed")
    ds, want = samples
    norm = FinalNorm.of(ds)
    theirs = llama.LlamaRMSNorm(HIDDEN, eps=1e-5)
    theirs.weight.data.copy_(norm.weight)
    last = raw(want[0])[3]
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(norm(last.to(dtype)), theirs.to(dtype)(last.to(dtype)))


def test_selected_rows_are_cut(data):
    """Rows after the last that is stored are left out; unstored rows of the last layer are zero and unsupervised."""
    want = expected(data / "selected", 1, "train")
    ds = Speculators(Dataset(data / "selected"))
    for item, w in zip(ds, want):
        ids, mask, aux, last = raw(w)
        n = len(item["input_ids"])
        assert n <= len(ids) and mask[n:].sum() == 0
        assert torch.equal(item["hidden_states"], aux[:n]) and torch.equal(item["loss_mask"], mask[:n])
        on = mask[:n] == 1
        assert torch.equal(item["verifier_last_hidden_states"][on], last[:n][on])


def test_missing_or_damaged_head(copy):
    g = copy(CASE) / "000001"
    path = g / "target_head.safetensors"
    data = path.read_bytes()
    pytest.importorskip("xxhash", reason="xxhash is not installed: only the size of target_head is checked")
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptError):
        SpecForge(Dataset(g))
    assert SpecForge(Dataset(g), norm=lambda x: x)[0]["target"].shape[0] == 1
    os.remove(path)
    with pytest.raises(CorruptError, match="missing"):
        Dataset(g)


def test_head_of_an_older_generation(data):
    """A new order has no head of its own."""
    ds = Dataset(data / "older" / "generations" / "000004")
    w = expected(data / "older", 4, "train")[0]
    assert torch.equal(SpecForge(ds)[0]["target"][0], normed(raw(w)[3]))


def test_generation_without_head(data):
    with pytest.raises(EaglebatchError, match="norm="):
        SpecForge(Dataset(data / "building" / "generations" / "000001", partial=True))


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("workers", [0, 2])
def test_dataloader(data, start, workers):
    if workers == 0 and start != "fork":
        return
    ds, want = Dataset(data / CASE), expected(data / CASE, 1, "train")
    ds[0].ids  # blobs are open before the workers come
    loader = torch.utils.data.DataLoader(
        Speculators(ds), batch_size=None, shuffle=False, num_workers=workers,
        multiprocessing_context=start if workers else None)
    for epoch in range(2):
        items = list(loader)
        assert len(items) == len(want)
        for item, w in zip(items, want):
            ids, mask, aux, last = raw(w)
            assert torch.equal(item["input_ids"], ids) and torch.equal(item["hidden_states"], aux)
            assert torch.equal(item["verifier_last_hidden_states"], last)


def items(dataset, workers, **more):
    return list(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers, **more))


def test_shared_memory_in_workers(data):
    """What a worker writes to the file of shared memory is what its parent finds there: samples of many blocks, selected rows,
    every adapter and way of sharing."""
    for case in (CASE, "lz4-planes-fp32", "dense-fp16", "selected", "lz4-fp8"):
        ds = Dataset(data / case)
        for adapter in (SpecForge, Speculators, ModelOptimizer):
            here = items(adapter(ds), 0)
            for strategy in torch.multiprocessing.get_all_sharing_strategies():
                before = torch.multiprocessing.get_sharing_strategy()
                torch.multiprocessing.set_sharing_strategy(strategy)
                try:
                    there = items(adapter(ds, max_len=None), 1, multiprocessing_context="fork")
                finally:
                    torch.multiprocessing.set_sharing_strategy(before)
                assert len(here) == len(there) > 0
                for a, b in zip(here, there):
                    assert list(a) == list(b)
                    for k in a:
                        assert torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype if torch.is_tensor(a[k]) else a[k] == b[k]


def test_full_shared_memory():
    from eaglebatch import shared
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        r = shared.Rows("test", 4, 8, "bf16")
        r._all, r._fd = None, fd
        r.part(0, 4)[...] = 1
        with pytest.raises(EaglebatchError, match="/dev/shm"):
            r.done(0, 4)
    finally:
        os.close(fd)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp8"])
def test_tensors(data, dtype):
    ds = Dataset(data / f"dense-{dtype}")
    for s, w in zip(ds, expected(data / f"dense-{dtype}", 1, "train")):
        x = s.tensor(5)
        assert x.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype, torch.float32)
        assert np.array_equal(x.float().numpy(), state_values(dtype, w["seed"], w["rows"], 5).astype(np.float32))
        assert Speculators(ds)[0]["hidden_states"].dtype == x.dtype
