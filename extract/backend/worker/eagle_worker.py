#!/usr/bin/env python3
"""The worker that ships with eaglebatch: hidden states from Hugging Face transformers.

eaglebatch starts it; by hand it does nothing. It speaks the frames of extract/backend/worker/PROTOCOL.md on the socket that
EAGLEBATCH_WORKER_FD names. It needs Python 3.9 or later, torch and transformers (4.45 or later); accelerate for --device auto.

States are taken with hooks at the layers asked for, from the base model alone: neither the other layers' states nor logits are
kept. Samples are padded on the right and attended causally, so that padding changes no row that counts, and it is cut off.

  eaglebatch.yaml:   extract: {backend: worker, command: [/venv/bin/python, "{script}", --batch-tokens, "16384"]}
"""

import argparse
import ctypes
import importlib
import json
import os
import queue
import socket
import struct
import sys
import threading
import traceback
import zlib

MAGIC = b"EHS1"
START, HELLO, REQ, RESP, ERR, PING, PONG, LOG, BYE = range(1, 10)
HEADER = struct.Struct("<4sBBHIIQ")
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class Setup(Exception):
    """Why the worker cannot do what it is asked to."""


class Refused(Exception):
    """Why one sample has no states."""

    def __init__(self, code, message, retryable=False):
        super().__init__(message)
        self.code, self.retryable = code, retryable


class Wire:
    """Frames on the socket: one thread reads and answers PING, any thread writes."""

    def __init__(self, sock):
        self.sock = sock
        self.lock = threading.Lock()
        self.inbox = queue.Queue()  # (type, seq, meta, body); None at the end

    def send(self, kind, seq=0, meta=None, body=b""):
        text = b"" if meta is None else json.dumps(meta, separators=(",", ":")).encode()
        with self.lock:
            self.sock.sendall(HEADER.pack(MAGIC, kind, 0, 0, len(text), seq, len(body)) + text)
            if len(body):
                self.sock.sendall(body)

    def fail(self, seq, code, message, retryable=False):
        self.send(ERR, seq, {"code": code, "retryable": retryable, "message": str(message)[:4000]})

    def read_exactly(self, n):
        data = bytearray(n)
        view, got = memoryview(data), 0
        while got < n:
            k = self.sock.recv_into(view[got:])
            if k == 0:
                raise EOFError
            got += k
        return bytes(data)

    def read(self):
        """The reader thread."""
        try:
            while True:
                magic, kind, flags, _, n_meta, seq, n_body = HEADER.unpack(self.read_exactly(HEADER.size))
                if magic != MAGIC or flags & ~1:
                    raise ValueError("the host is out of step")
                text, body = self.read_exactly(n_meta), self.read_exactly(n_body)
                if flags & 1 and struct.unpack("<I", self.read_exactly(4))[0] != zlib.crc32(body):
                    raise ValueError("the checksum of a body does not match")
                if kind == PING:
                    self.send(PONG, seq)
                else:
                    self.inbox.put((kind, seq, json.loads(text) if text else {}, body))
        except (EOFError, OSError):
            pass
        except Exception:
            traceback.print_exc()
        self.inbox.put(None)


def need(name, why):
    try:
        return importlib.import_module(name)
    except Exception as e:
        raise Setup(f"{why} needs the Python package {name}, which {sys.executable} cannot import ({e}): "
                    f"{sys.executable} -m pip install {name}, or name another Python in extract.command") from e


class Model:
    """The target model's decoder, with hooks."""

    def __init__(self, start, args):
        self.torch = torch = need("torch", "the worker")
        self.transformers = transformers = need("transformers", "the worker")
        transformers.logging.set_verbosity_error()
        if args.threads:
            torch.set_num_threads(args.threads)
        if start["dtype"] not in DTYPES:
            raise Setup(f"dtype {start['dtype']!r}: this worker gives {', '.join(DTYPES)}")
        self.dtype = getattr(torch, DTYPES[start["dtype"]])
        self.layers = list(start["layers"])
        self.device = self.choose_device(start)
        self.whole = self.load(start["model"], args)
        self.whole.eval()
        self.find_decoder()
        self.kept = {}
        self.hook()
        if args.batch_tokens:
            self.batch_tokens = args.batch_tokens
        else:
            self.batch_tokens = 2048 if str(self.input_device()).startswith("cpu") else 16384

    def choose_device(self, start):
        torch, name = self.torch, start.get("device") or ""
        if name == "":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        if name == "auto":
            need("accelerate", "device: auto")
        if name.startswith("cuda") and not torch.cuda.is_available():
            raise Setup(f"device {name}: torch {torch.__version__} sees no CUDA GPU here: set extract.device: cpu, or install a torch built for the driver")
        if name == "cuda" and start.get("workers", 1) > 1:
            name = f"cuda:{start.get('worker', 0) % torch.cuda.device_count()}"
        return name

    def load(self, path, args):
        """Loads the language model, also out of a wrapper that nests its configuration."""
        torch, tf = self.torch, self.transformers
        dtype_key = "dtype" if int(tf.__version__.split(".")[0]) >= 5 else "torch_dtype"
        options = {dtype_key: self.dtype, "trust_remote_code": args.trust_remote_code, "low_cpu_mem_usage": True}
        if self.device == "auto":
            options["device_map"] = "auto"
        elif self.device != "cpu":
            options["device_map"] = {"": self.device}
        if args.attn:
            options["attn_implementation"] = args.attn
        raw = {}
        if os.path.isfile(os.path.join(path, "config.json")):
            with open(os.path.join(path, "config.json")) as f:
                raw = json.load(f)
        if path.endswith(".gguf"):
            options["gguf_file"] = os.path.basename(path)
            path = os.path.dirname(path) or "."
        try:
            if "text_config" in raw:
                return self.load_nested(path, raw, options)
            return tf.AutoModelForCausalLM.from_pretrained(path, **options)
        except (ImportError, OSError, ValueError, KeyError) as e:
            raise Setup(f"transformers {tf.__version__} cannot load {path}: {e}") from e

    def load_nested(self, path, raw, options):
        """Loads the model that text_config describes; its weights lie under language_model. Vision towers are not loaded."""
        tf = self.transformers
        text = {k: v for k, v in raw["text_config"].items() if k != "auto_map"}
        kind = {"kimi_k2": "deepseek_v3"}.get(text.get("model_type"), text.get("model_type"))
        if "quantization_config" in raw and "quantization_config" not in text:
            text["quantization_config"] = raw["quantization_config"]
        text.pop("model_type", None)
        config = tf.AutoConfig.for_model(kind, **text)
        cls = tf.AutoModelForCausalLM._model_mapping[type(config)]
        model, info = cls.from_pretrained(path, config=config, key_mapping={r"^language_model\.": ""}, output_loading_info=True, **options)
        missing = [k for k in info["missing_keys"] if "rotary" not in k]
        if missing:
            raise ValueError(f"{len(missing)} weights of {kind} are not under language_model.: {sorted(missing)[:3]} …")
        return model

    def find_decoder(self):
        """Finds the decoder's layers: the list of as many modules as the configuration names."""
        config = self.whole.config
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        self.n = int(config.num_hidden_layers)
        self.hidden = int(config.hidden_size)
        self.vocab = int(getattr(config, "vocab_size", 0) or 0)
        self.max_tokens = int(getattr(config, "max_position_embeddings", 0) or 0)
        for name, module in self.whole.named_modules():
            last = name.rsplit(".", 1)[-1]
            if isinstance(module, self.torch.nn.ModuleList) and len(module) == self.n and last in ("layers", "h", "blocks"):
                self.blocks = module
                self.base = self.whole.get_submodule(name.rsplit(".", 1)[0]) if "." in name else self.whole
                break
        else:
            raise Setup(f"{type(self.whole).__name__}: no list of {self.n} decoder layers found in it")
        bad = [k for k in self.layers if k < 0 or k > self.n]
        if bad:
            raise Setup(f"layers {bad}: the model has {self.n}, ids go from 0 (embeddings) to {self.n}")

    def hook(self):
        def before(k):
            def fn(module, args, kwargs):
                self.kept[k] = (args[0] if args else kwargs["hidden_states"]).detach()
            return fn

        def after(k):
            def fn(module, args, out):
                self.kept[k] = (out[0] if isinstance(out, tuple) else out).detach()
            return fn

        for k in self.layers:
            if k == 0:
                self.blocks[0].register_forward_pre_hook(before(0), with_kwargs=True)
            else:
                self.blocks[k - 1].register_forward_hook(after(k))

    def input_device(self):
        return self.base.get_input_embeddings().weight.device if hasattr(self.base, "get_input_embeddings") else next(self.base.parameters()).device

    def hello(self):
        return {
            "proto": 1, "engine": "hf", "engine_version": self.transformers.__version__, "model": type(self.whole).__name__,
            "hidden_size": self.hidden, "num_layers": self.n, "vocab_size": self.vocab, "layers": self.layers,
            "dtype": next(k for k, v in DTYPES.items() if getattr(self.torch, v) == self.dtype),
            "last_prenorm": True, "max_tokens": self.max_tokens, "max_inflight": 32, "deterministic": False,
        }

    def check(self, ids):
        if not ids:
            raise Refused("internal", "a sample without tokens")
        if self.max_tokens and len(ids) > self.max_tokens:
            raise Refused("too_long", f"{len(ids)} tokens: the model takes {self.max_tokens}")
        if self.vocab and max(ids) >= self.vocab:
            raise Refused("bad_token", f"token {max(ids)} lies outside the vocabulary of {self.vocab}")

    def forward(self, samples):
        """Computes samples (lists of ids); yields for each its ids as computed and its states [T, L, H] on the CPU."""
        torch = self.torch
        width = max(map(len, samples))
        ids = torch.zeros((len(samples), width), dtype=torch.long)
        mask = torch.zeros((len(samples), width), dtype=torch.long)
        for i, s in enumerate(samples):
            ids[i, : len(s)] = torch.tensor(s)
            mask[i, : len(s)] = 1
        device = self.input_device()
        padded = any(len(s) != width for s in samples)
        self.kept.clear()
        with torch.inference_mode():
            self.base(input_ids=ids.to(device), attention_mask=mask.to(device) if padded else None, use_cache=False)
        kept = [self.kept[k] for k in self.layers]
        self.kept.clear()
        for i, s in enumerate(samples):
            rows = torch.stack([x[i, : len(s)].to("cpu", self.dtype) for x in kept], dim=1)
            yield ids[i, : len(s)].tolist(), rows


class Worker:
    def __init__(self, wire, model, max_body):
        self.wire, self.model = wire, model
        self.row_bytes = len(model.layers) * model.hidden * model.torch.empty(0, dtype=model.dtype).element_size()
        self.rows = max(1, max_body // self.row_bytes)  # of one frame

    def answer(self, seq, ids, states):
        memory = (ctypes.c_char * (states.numel() * states.element_size())).from_address(states.data_ptr())
        view = memoryview(memory).cast("B")
        meta = {"dtype": self.model.hello()["dtype"], "tokens_crc32": zlib.crc32(struct.pack(f"<{len(ids)}I", *ids))}
        for first in range(0, len(ids), self.rows):
            n = min(self.rows, len(ids) - first)
            meta.update(first=first, shape=[n, states.shape[1], states.shape[2]])
            self.wire.send(RESP, seq, meta, view[first * self.row_bytes : (first + n) * self.row_bytes])
            meta.pop("tokens_crc32", None)

    def run(self, batch):
        """Answers a batch of (seq, ids); one that does not fit into memory is run sample by sample."""
        oom = getattr(self.model.torch, "OutOfMemoryError", MemoryError)
        try:
            for (seq, _), (ids, states) in zip(list(batch), self.model.forward([s for _, s in batch])):
                self.answer(seq, ids, states.contiguous())
                batch = batch[1:]
        except (oom, MemoryError) as e:
            message = str(e).split("\n")[0]
        except OSError:
            raise
        except Exception as e:
            traceback.print_exc()
            if len(batch) == 1:
                return self.wire.fail(batch[0][0], "internal", f"{type(e).__name__}: {e}", retryable=True)
            message = None
        else:
            return
        if self.model.torch.cuda.is_available():
            self.model.torch.cuda.empty_cache()
        if len(batch) == 1:
            return self.wire.fail(batch[0][0], "oom", message)
        for one in batch:
            self.run([one])

    def take(self, block):
        """Takes what has arrived; waits for the first if block. Returns requests and whether the end was seen."""
        got = []
        while True:
            try:
                frame = self.wire.inbox.get(block and not got)
            except queue.Empty:
                return got, False
            if frame is None:
                return got, True
            kind, seq, _, body = frame
            if kind != REQ:
                raise ValueError(f"a frame of type {kind} from the host")
            ids = list(struct.unpack(f"<{len(body) // 4}I", body))
            try:
                self.model.check(ids)
                got.append((seq, ids))
            except Refused as e:
                self.wire.fail(seq, e.code, e, e.retryable)

    def serve(self):
        waiting, over = [], False
        while waiting or not over:
            if not over:
                more, over = self.take(block=not waiting)
                waiting += more
            # Of what waits, the oldest and those nearest in length to it: little padding, and nobody waits for long.
            if not waiting:
                continue
            first = waiting[0]
            batch, width = [], 0
            for r in sorted(waiting, key=lambda r: abs(len(r[1]) - len(first[1]))):
                width = max(width, len(r[1]))
                if batch and width * (len(batch) + 1) > self.model.batch_tokens:
                    break
                batch.append(r)
            chosen = {seq for seq, _ in batch}
            waiting = [r for r in waiting if r[0] not in chosen]
            self.run(batch)
        self.wire.send(BYE)


def main():
    p = argparse.ArgumentParser(description="eaglebatch's transformers worker; eaglebatch starts it")
    p.add_argument("--batch-tokens", type=int, default=0, help="padded tokens of one forward pass (2048 on a CPU, 16384 on a GPU)")
    p.add_argument("--attn", default="", help="attention implementation: eager, sdpa, flash_attention_2 …")
    p.add_argument("--threads", type=int, default=0, help="torch threads")
    p.add_argument("--trust-remote-code", action="store_true", help="run Python that comes with the model")
    args = p.parse_args()
    if "EAGLEBATCH_WORKER_FD" not in os.environ:
        p.error("EAGLEBATCH_WORKER_FD is not set: eaglebatch starts this program, see extract.backend: worker")
    sock = socket.socket(fileno=int(os.environ["EAGLEBATCH_WORKER_FD"]))
    sock.set_inheritable(False)
    wire = Wire(sock)
    threading.Thread(target=wire.read, daemon=True).start()
    frame = wire.inbox.get()
    if frame is None:
        return 0
    try:
        kind, _, start, _ = frame
        if kind != START or start.get("proto") != 1:
            raise Setup(f"the host speaks protocol {start.get('proto')}, this worker 1")
        model = Model(start, args)
        worker = Worker(wire, model, start["max_body"])
        wire.send(HELLO, 0, model.hello())
    except Setup as e:
        wire.fail(0, "setup", e)
        return 1
    except OSError:
        return 1
    except Exception as e:
        traceback.print_exc()
        wire.fail(0, "setup", f"{type(e).__name__}: {e}")
        return 1
    try:
        worker.serve()
    except OSError:
        return 1  # the host is gone
    return 0


if __name__ == "__main__":
    sys.exit(main())
