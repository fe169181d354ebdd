package config

// Sample is a configuration to start from. It names every key: those behind
// "# " in a section stand at their default.
const Sample = `# eaglebatch: every key there is. What is commented out stands at its default.
# Paths are relative to this file. Sizes: 512M, 4GiB, 1.5TB. Shares: 5%. Times: 30s, 24h.
work: ./work                     # the workspace; on a local filesystem
datasets:                        # merged in this order; plain, gzip, zstd or lz4; files, directories, globs
  - {name: A, path: data/A/tokenized_data.jsonl}
  # - {name: B, path: [data/B, "more/*.jsonl.zst"], weight: 0.5, eval: 200} # a seeded half of it; 200 samples set aside
model: ./models/target           # HF directory (config.json, *.safetensors) or a .gguf

merge:
  # dedup: content               # or none
  # max_rejects: 1%              # of a dataset's lines, or a number of them; more wait for a decision
  # min_loss_tokens: 1           # samples with fewer supervised tokens are rejected
  # vocab_size: 0                # 0: the model's

shuffle:
  seed: 42
  # algorithm: numpy             # the order of HF datasets.shuffle(seed); or feistel, for hundreds of millions

plan:
  max_tokens: 8192               # 0: no cap
  # overlong: truncate           # skip or split
  # max_tokens_per_dataset: 0    # training tokens taken of each dataset, the first in the order; 0: all
  # layers: auto                 # [2, n/2, n-3, n], or a list such as [2, 30, 58, 61]
  # dtype: bf16                  # fp16, fp32, or fp8, which loses precision
  # rows: all                    # last-supervised, cut-tail or last-supervised+cut-tail
  # drop: []                     # names of datasets to leave out
  # reserve: 5%                  # of the volume, kept free; or a size
  # blob_size: 0                 # raw bytes a blob; 0: chosen, 1GiB at most
  # proof: 200                   # samples sealed before a decision is asked for
  # tokens_per_second: 0         # to compute hours from; 0: what a probe or a sealed generation measured
  # gpus: 0                      # for GPU hours
  # gpu_hour_price: 0

gc:
  # adopt: []                    # directories to reclaim: [{name: old-10k, path: /data/hidden_states_10k}]
  # keep: 1                      # newest sealed generations that stay
  # min_age: 24h                 # in the trash, before files are unlinked

extract:
  backend: native                # vllm, sglang, worker or synthetic
  # memory: 4GiB                 # bound, mapped weights apart
  # threads: 0                   # 0: all cores
  # codec: lz4-planes            # raw, lz4 or dense
  # max_quarantined: 1%          # of the samples, or a number of them; more and nothing is sealed
  # min_top1: 0.1                # share of supervised rows that must rank the next token first; 0: no check
  # patience: 10m                # without any sample while engines fail; then the run stops (20)
  # stall: 0s                    # without an answer an engine is taken for dead; 0s: after ten minutes, an hour before its first
  # grace: 30s                   # for the open blobs, after an interrupt
  # compute: fp32                # native: or bf16
  # engine_dtype: bf16          # what the engine gives where plan.dtype is fp8
  # endpoints: []                # vllm, sglang: [http://a:8000, http://b:8000]
  # shared_dir: ""               # vllm: where the servers write states
  # api_key_env: ""              # vllm, sglang: the variable that holds the key
  # api_key_file: ""             # or the file
  # in_flight: 0                 # bytes of states in flight at an endpoint; 0: chosen
  # concurrency: 0               # samples in flight at an endpoint; 0: chosen
  # command: []                  # worker: program and arguments; empty: the shipped one
  # workers: 1
  # device: ""                   # worker: cpu, cuda, cuda:1
  # rate: 0                      # synthetic: tokens a second; 0: as fast as it can
  # faults: ""                   # synthetic: scripted faults, for rehearsals
`
