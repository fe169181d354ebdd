#!/usr/bin/env python3
"""In one run: how fast each codec decodes, and a shuffled epoch with a cold cache beside SpecForge's own reader on its
own files of the same samples.

  python3 bench/run.py [--eaglebatch BINARY] [--hidden 4096] [--samples 100] [--tokens 512] [--workers 1] [--scratch DIR]
  python3 bench/run.py --generation DIR                     # states that are there already

Without --generation it has the synthetic engine make bf16 states of four layers, whose values have the statistics of
real ones, once a codec: about 0.13 MB a token in all, and as much again as .ckpt files. --scratch says on which disk.

Needs Python 3.9 or newer with numpy, lz4 and torch (CPU is enough); `pip install --no-deps specforge==0.2.0` for
SpecForge's reader itself (see epoch.py); xxhash is used where it is installed, as in training; Go, or --eaglebatch.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[3]
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent))
CODECS = ("lz4-planes", "dense", "lz4", "raw")


def build(to):
    subprocess.run(["go", "build", "-o", str(to), "."], cwd=ROOT, check=True)
    return to


def make(binary, folder, a):
    """The generations, by codec, of the same samples."""
    rng = random.Random(1)
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": a.hidden, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 4 * a.hidden, "vocab_size": 32000,
        "max_position_embeddings": 1 << 17}))
    with open(folder / "samples.jsonl", "w") as f:
        for _ in range(a.samples):
            n = rng.randrange(max(1, a.tokens // 4), 2 * a.tokens - a.tokens // 4)
            f.write(json.dumps({"input_ids": [rng.randrange(32000) for _ in range(n)],
                                "loss_mask": [int(t > n // 8) for t in range(n)]}) + "\n")
    out = {}
    for codec in CODECS:
        d = folder / codec
        d.mkdir()
        (d / "eaglebatch.yaml").write_text(
            f"datasets: [{{name: bench, path: {folder / 'samples.jsonl'}}}]\nmodel: {model}\n"
            f"plan: {{layers: [2, 16, 29, 32], reserve: 0}}\nextract: {{backend: synthetic, codec: {codec}}}\n")
        subprocess.run([str(binary), "run", "-q", "-c", str(d / "eaglebatch.yaml")], check=True, stdout=subprocess.DEVNULL)
        out[codec] = d / "work" / "generations" / "000002"
    return out


def measure(generations, a):
    import decode
    import epoch
    from eaglebatch import accel
    print("decoding, MB of raw bytes a second of one core:", flush=True)
    for gen in generations.values():
        decode.report([sorted(gen.glob("*.ebb"))[0]])
    built = accel.current
    for name, gen in generations.items():
        if name in ("lz4", "raw"):
            continue
        for engine in [None] + [built] * (built is not None):
            accel.current = engine  # workers are forked
            print(f"\nshuffled epoch, cold cache, {name}, {'accelerator' if engine else 'numpy alone'}:", flush=True)
            epoch.compare(str(gen), a.samples, a.workers, a.rounds, a.scratch)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--eaglebatch", type=pathlib.Path, help="the binary; by default it is built")
    ap.add_argument("--generation", type=pathlib.Path, help="a generation to read instead of making some")
    ap.add_argument("--hidden", type=int, default=4096)
    ap.add_argument("--samples", type=int, default=100)
    ap.add_argument("--tokens", type=int, default=512, help="mean length of a sample")
    ap.add_argument("--workers", type=int, default=1)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--scratch", help="folder for what is made")
    a = ap.parse_args()
    if a.generation:
        measure({"states as they are": a.generation}, a)
        return
    with tempfile.TemporaryDirectory(dir=a.scratch) as tmp:
        folder = pathlib.Path(os.path.realpath(tmp))
        measure(make((a.eaglebatch or build(folder / "eaglebatch")).resolve(), folder, a), a)


if __name__ == "__main__":
    main()
