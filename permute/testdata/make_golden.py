#!/usr/bin/env python3
"""Writes golden.json beside this script: orders that numpy makes.

Run: python3 make_golden.py   (needs numpy)
"""
import hashlib
import json
import pathlib

import numpy as np

SEEDS = [0, 1, 42, 4294967295, 4294967296, 1234567890123, 2**63, 2**64 - 1]
SIZES = [1, 2, 3, 12, 1000, 65536, 65537, 1000003]

golden = []
for seed in SEEDS:
    for n in SIZES:
        order = np.random.default_rng(seed).permutation(n).astype("<u4")
        golden.append({
            "seed": str(seed),
            "n": n,
            "first": order[:12].tolist(),
            "sha256": hashlib.sha256(order.tobytes()).hexdigest(),
        })


def feistel(n, seed, count):
    """The feistel algorithm again, from its description and not from the Go code."""
    m64 = 2**64 - 1

    def mix(x):
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & m64
        x = (x ^ x >> 27) * 0x94D049BB133111EB & m64
        return x ^ x >> 31

    keys = [mix(seed + i * 0x9E3779B97F4A7C15 & m64) for i in range(1, 7)]
    half = (max(2, (n - 1).bit_length()) + 1) // 2
    out = []
    for i in range(count):
        while True:
            left, right = i >> half, i & (1 << half) - 1
            for k in keys:
                left, right = right, left ^ mix(right + k & m64) & (1 << half) - 1
            i = left << half | right
            if i < n:
                break
        out.append(i)
    return out


walks = [{"seed": str(s), "n": n, "first": feistel(n, s, 12)} for s in SEEDS for n in (65536, 100000, 4294967295)]
out = {"numpy": np.__version__, "orders": golden, "feistel": walks}
(pathlib.Path(__file__).parent / "golden.json").write_text(json.dumps(out, indent=1) + "\n")
