#!/usr/bin/env python3
"""Reads a shuffled epoch through a DataLoader with a cold cache, beside SpecForge's own reader on its own files.

  python3 bench/epoch.py GENERATION [--samples 200] [--workers 1] [--rounds 3] [--scratch DIR]

Writes the same samples as SpecForge's .ckpt files to the scratch folder, on the same disk. Each reader yields
SpecForge's training items; before each round the pages of its files are dropped from the cache. Needs torch and
specforge.
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


class Theirs(torch.utils.data.Dataset):
    """SpecForge's files through SpecForge's functions."""

    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        from specforge.algorithms.eagle3.data import normalize_offline_sample
        from specforge.runtime.data_plane.feature_store import load_feature_file
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
        # As a trainer does: look at every value once.
        total += int(item["hidden_state"].view(torch.int16).sum()) + int(item["target"].view(torch.int16).sum())
    return time.perf_counter() - begin, total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("generation")
    ap.add_argument("--samples", type=int, default=200)
    ap.add_argument("--workers", type=int, default=1)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--scratch")
    a = ap.parse_args()
    torch.set_num_threads(1)
    ds = Dataset(a.generation, synthetic=True)
    ours = SpecForge(ds, norm=same)  # neither norms: SpecForge's files hold what they hold
    n = min(a.samples, len(ds))
    with tempfile.TemporaryDirectory(dir=a.scratch or os.path.dirname(ds.path)) as scratch:
        files, size = [], 0
        for i in range(n):
            item = ours[i]
            files.append(os.path.join(scratch, f"data_{i}.ckpt"))
            torch.save({"input_ids": item["input_ids"][0], "loss_mask": item["loss_mask"][0],
                        "hidden_state": item["target"], "aux_hidden_state": item["hidden_state"]}, files[-1])
            size += item["target"].nbytes + item["hidden_state"].nbytes
        blobs = [os.path.join(ds.path, f) for f in os.listdir(ds.path) if f.endswith((".ebb", ".ebi"))]
        order = list(range(n))
        random.Random(1).shuffle(order)
        best = {}
        for _ in range(a.rounds):
            for name, d, paths in (("eaglebatch", ours, blobs), ("SpecForge", Theirs(files), files)):
                seconds, check = epoch(d, order, a.workers, paths)
                best[name] = min(best.get(name, (1e9, 0)), (seconds, check))
        assert best["eaglebatch"][1] == best["SpecForge"][1], "the readers gave different values"
        disk = {"eaglebatch": sum(map(os.path.getsize, blobs)), "SpecForge": sum(map(os.path.getsize, files))}
        print(f"{n} samples, {size / 1e6:.0f} MB of states, {a.workers} workers")
        for name, (s, _) in best.items():
            print(f"{name:11} {n / s:8.1f} samples/s {size / s / 1e6:8.0f} MB/s of states, {disk[name] / 1e6:.0f} MB on disk")
        print(f"eaglebatch / SpecForge: {best['SpecForge'][0] / best['eaglebatch'][0]:.2f}")


if __name__ == "__main__":
    main()
