#!/usr/bin/env python3
"""Reads a shuffled epoch through a DataLoader with a cold cache, beside SpecForge's own reader on its own files.

  python3 bench/epoch.py GENERATION [--samples 200] [--workers 1] [--rounds 3] [--scratch DIR]

Writes the same samples as SpecForge's .ckpt files to the scratch folder, on the same disk. Each reader yields
SpecForge's training items; before each round the pages of its files are dropped from the cache. Needs torch, and
specforge (`pip install --no-deps specforge==0.2.0` is enough); without specforge its files are read as it reads them,
by torch.load with mmap, and the output says so.
"""

import argparse
import os
import pathlib
import random
import sys
import tempfile
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from eaglebatch import Dataset  # noqa: E402
from eaglebatch.adapters import SpecForge  # noqa: E402


def same(x):
    return x


try:
    from specforge.algorithms.eagle3.data import normalize_offline_sample
    from specforge.runtime.data_plane.feature_store import load_feature_file
    THEIRS = "SpecForge"
except ImportError:
    THEIRS = "like SpecForge"

    def load_feature_file(path):
        return torch.load(path, weights_only=False, mmap=True)

    def normalize_offline_sample(raw, n):
        mask = raw["loss_mask"][:n].clone()[None]
        mask[:, -1:] = 0
        return {"input_ids": raw["input_ids"][:n][None], "loss_mask": mask, "attention_mask": torch.ones_like(mask),
                "hidden_state": raw["aux_hidden_state"][:, :n], "target": raw["hidden_state"][:, :n]}


class Theirs(torch.utils.data.Dataset):
    """SpecForge's files through SpecForge's functions."""

    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        return normalize_offline_sample(load_feature_file(self.files[i]), 1 << 30)


def drop(paths):
    for p in paths:
        fd = os.open(p, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def epoch(dataset, order, workers, paths):
    drop(paths)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, sampler=order, num_workers=workers)
    begin, total = time.perf_counter(), 0
    for item in loader:
        # Every byte is read once, as when it is copied to a device, and faster than the readers deliver it.
        total += int(item["hidden_state"].view(torch.int64).sum()) + int(item["target"].view(torch.int64).sum())
    return time.perf_counter() - begin, total


def compare(generation, samples, workers, rounds, scratch=None):
    """Prints both; returns how many times as fast eaglebatch is."""
    torch.set_num_threads(1)
    ds = Dataset(generation, synthetic=True)
    ours = SpecForge(ds, norm=same)  # neither norms: SpecForge's files hold what they hold
    n = min(samples, len(ds))
    with tempfile.TemporaryDirectory(dir=scratch or os.path.dirname(ds.path)) as tmp:
        files, size = [], 0
        for i in range(n):
            item = ours[i]
            files.append(os.path.join(tmp, f"data_{i}.ckpt"))
            torch.save({"input_ids": item["input_ids"][0], "loss_mask": item["loss_mask"][0],
                        "hidden_state": item["target"], "aux_hidden_state": item["hidden_state"]}, files[-1])
            size += item["target"].nbytes + item["hidden_state"].nbytes
        blobs = [os.path.join(ds.path, f) for f in os.listdir(ds.path) if f.endswith((".ebb", ".ebi"))]
        order = list(range(n))
        random.Random(1).shuffle(order)
        best = {}
        for _ in range(rounds):
            for name, d, paths in (("eaglebatch", ours, blobs), (THEIRS, Theirs(files), files)):
                seconds, check = epoch(d, order, workers, paths)
                best[name] = min(best.get(name, (1e9, 0)), (seconds, check))
        assert best["eaglebatch"][1] == best[THEIRS][1], "the readers gave different values"
        disk = {"eaglebatch": sum(map(os.path.getsize, blobs)), THEIRS: sum(map(os.path.getsize, files))}
        print(f"{n} samples, {size / 1e6:.0f} MB of states, {workers} workers")
        for name, (s, _) in best.items():
            print(f"{name:14} {n / s:8.1f} samples/s {size / s / 1e6:8.0f} MB/s of states, {disk[name] / 1e6:.0f} MB on disk")
        ratio = best[THEIRS][0] / best["eaglebatch"][0]
        print(f"eaglebatch / {THEIRS}: {ratio:.2f}")
    return ratio


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("generation")
    ap.add_argument("--samples", type=int, default=200)
    ap.add_argument("--workers", type=int, default=1)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--scratch")
    a = ap.parse_args()
    compare(a.generation, a.samples, a.workers, a.rounds, a.scratch)


if __name__ == "__main__":
    main()
