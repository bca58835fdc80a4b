#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a GPU gains when a prefix is loaded instead of computed: `make bench-prefill`. Needs PyTorch and a GPU.

A decoder of Llama's form computes a prefix of 2k to 128k tokens on the GPU (the cold way), and its KV cache goes from
there into a real pod. Then another process, with the same weights, loads the prefix into its own GPU memory (the warm
way): from its agent's memory, from a pod through an agent that does not have it, and from a drive of its own
(`dir:`). Both go on with the same question and answer it. The KV cache, the scores of the first token and all
tokens have to be identical.

Weights: those of a folder (--model: config.json and model.safetensors, as transformers writes them), or random ones
of a --shape, which compute as long as real ones and have a KV cache as large. One block is --block-tokens of one
layer. Rows: time to first token of each way, with the question computed after the whole load, and beside it, layer by
layer, while later layers arrive; GB/s of the load alone; joules of the GPU where it counts them and what was measured
took a second.

--device cpu runs the same in host memory, to try it out: its figures say nothing.
"""
import argparse
import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import icms_wheel  # noqa: E402
import pod  # noqa: E402

DEADLINE_MS = 120000
CHUNK = 8192  # tokens that are computed at once
BATCH_BYTES = 32 << 20  # that a thread asks for at once
REPEAT_S = 1.5  # what takes less is repeated for its energy
POD_MEMORY = 2 << 30  # of the agent that reads from the pod
WAYS = ("memory", "pod", "drive")


class Shape(NamedTuple):
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    theta: float
    epsilon: float


SHAPES = {"llama-3-8b": Shape(32, 4096, 32, 8, 128, 14336, 128256, 500000.0, 1e-5),
          "tiny": Shape(4, 128, 4, 2, 32, 256, 512, 10000.0, 1e-5)}


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--site", type=pathlib.Path, help="folder of the Python package icms; default: made from the tree")
    parser.add_argument("--model", type=pathlib.Path, help="folder of a model of Llama's form")
    parser.add_argument("--shape", choices=SHAPES, default="llama-3-8b", help="of random weights (%(default)s)")
    parser.add_argument("--text", type=pathlib.Path, default=ROOT / "ARCHITECTURE.md",
                        help="the prefix, over and over, where the model has a tokenizer.json (%(default)s)")
    parser.add_argument("--question", default="\n\nIn one sentence, the text above describes")
    parser.add_argument("--tokens", default="2048,8192,32768,131072", help="of prefixes (%(default)s)")
    parser.add_argument("--answer", type=int, default=16, help="tokens (%(default)s)")
    parser.add_argument("--block-tokens", type=int, default=512)
    parser.add_argument("--ways", default=",".join(WAYS), help="%(default)s")
    parser.add_argument("--threads", type=int, default=4, help="that load and store (%(default)s)")
    parser.add_argument("--loops", type=int, default=4, help="reactors of each daemon (%(default)s)")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("/var/tmp"), help="for the drive")
    parser.add_argument("--pod-dir", type=pathlib.Path, help="for the drives of the pod; default: as --dir")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=pathlib.Path, help="where the rows go, too")
    parser.add_argument("--order", type=pathlib.Path, help=argparse.SUPPRESS)  # of a process of this program
    return parser.parse_args()


# ---- the model -------------------------------------------------------------------------------------


def shape_of(given):
    if given.model is None:
        return SHAPES[given.shape]
    config = json.loads((given.model / "config.json").read_text())
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return Shape(config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"],
                 config["num_key_value_heads"], head_dim, config["intermediate_size"], config["vocab_size"],
                 config["rope_theta"], config["rms_norm_eps"])


class Weights:
    """Tensors by the names that transformers gives them: read, or random, the same in each process."""

    def __init__(self, given, torch):
        self.torch, self.device, self.file = torch, given.device, None
        self.random = torch.Generator(device=given.device).manual_seed(1)
        if given.model is not None:
            from safetensors.torch import load_file
            self.file = load_file(given.model / "model.safetensors", device=given.device)

    def matrix(self, name, *shape):
        if self.file is None:
            return self.torch.randn(*shape, dtype=self.torch.bfloat16, device=self.device, generator=self.random) * 0.02
        return self.file[f"model.{name}.weight"].to(self.torch.bfloat16).reshape(shape)

    def ones(self, name, count):
        if self.file is None:
            return self.torch.ones(count, dtype=self.torch.bfloat16, device=self.device)
        return self.matrix(name, count)

    def head(self, embedding):
        if self.file is None or "lm_head.weight" not in self.file:
            return embedding
        return self.file["lm_head.weight"].to(self.torch.bfloat16)


class Decoder:
    """Its cache is [layer][token][K, V][head][dimension], so a block of tokens of a layer is one piece of memory."""

    def __init__(self, given, torch, shape, capacity):
        self.torch, self.shape = torch, shape
        weights, wide, narrow = Weights(given, torch), shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.embedding = weights.matrix("embed_tokens", shape.vocab, shape.hidden)
        self.layers = []
        for i in range(shape.layers):
            at = f"layers.{i}"
            qkv = [weights.matrix(f"{at}.self_attn.{name}_proj", rows, shape.hidden)
                   for name, rows in (("q", wide), ("k", narrow), ("v", narrow))]
            gate_up = [weights.matrix(f"{at}.mlp.{name}_proj", shape.inner, shape.hidden) for name in ("gate", "up")]
            self.layers.append((weights.ones(f"{at}.input_layernorm", shape.hidden), torch.cat(qkv),
                                weights.matrix(f"{at}.self_attn.o_proj", shape.hidden, wide),
                                weights.ones(f"{at}.post_attention_layernorm", shape.hidden), torch.cat(gate_up),
                                weights.matrix(f"{at}.mlp.down_proj", shape.hidden, shape.inner)))
        self.norm = weights.ones("norm", shape.hidden)
        self.head = weights.head(self.embedding)
        self.cache = torch.zeros(shape.layers, capacity, 2, shape.kv_heads, shape.head_dim, dtype=torch.bfloat16,
                                 device=given.device)
        steps = torch.arange(0, shape.head_dim, 2, device=given.device, dtype=torch.float32) / shape.head_dim
        turns = torch.outer(torch.arange(capacity, device=given.device, dtype=torch.float32), shape.theta ** -steps)
        self.cos, self.sin = (f(torch.cat((turns, turns), 1)).to(torch.bfloat16)[:, None] for f in (torch.cos, torch.sin))

    def _normal(self, x, weight):
        return self.torch.nn.functional.rms_norm(x, (self.shape.hidden,), weight, self.shape.epsilon)

    def _rotate(self, x, start):
        cos, sin = self.cos[start:start + len(x)], self.sin[start:start + len(x)]
        first, second = x.chunk(2, -1)
        return x * cos + self.torch.cat((-second, first), -1) * sin

    def forward(self, tokens, start, wait=lambda layer: None):
        """Scores of the token behind these, which stand at start; wait is called before a layer reads its cache."""
        from torch.nn.attention.bias import causal_lower_right

        functional, shape, count = self.torch.nn.functional, self.shape, len(tokens)
        x = self.embedding[tokens]
        for i, (before, qkv, out, behind, gate_up, down) in enumerate(self.layers):
            parts = (self._normal(x, before) @ qkv.T).view(count, -1, shape.head_dim)
            q, k, v = parts.split((shape.heads, shape.kv_heads, shape.kv_heads), 1)
            self.cache[i, start:start + count, 0] = self._rotate(k, start)
            self.cache[i, start:start + count, 1] = v
            wait(i)
            whole = self.cache[i, :start + count].permute(1, 2, 0, 3)[:, None]  # [K, V][1][head][token][dimension]
            seen = functional.scaled_dot_product_attention(
                self._rotate(q, start).transpose(0, 1)[None], whole[0], whole[1], enable_gqa=True,
                attn_mask=causal_lower_right(count, start + count))
            x = x + seen[0].transpose(0, 1).reshape(count, -1) @ out.T
            gate, up = (self._normal(x, behind) @ gate_up.T).chunk(2, -1)
            x = x + (functional.silu(gate) * up) @ down.T
        return self._normal(x[-1:], self.norm)[0] @ self.head.T


# ---- what both processes do ------------------------------------------------------------------------


class Energy:
    """Joules of the GPU since it began; None: it does not count them."""

    def __init__(self, device):
        self._nvml = None
        with contextlib.suppress(Exception):  # no package, no driver, a GPU that does not count
            import pynvml
            pynvml.nvmlInit()
            self._gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu)
            self._nvml = pynvml if device != "cpu" else None

    def joules(self):
        return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu) / 1000 if self._nvml else None


class Bench:
    """The model, its prompt, and how long what takes."""

    def __init__(self, given):
        import torch

        self.given, self.torch, self.shape = given, torch, shape_of(given)
        self.lengths = [int(count) for count in given.tokens.split(",")]
        self.longest = max(self.lengths)
        self.text = None
        self.prefix, self.question = self.prompt()
        capacity = self.longest + len(self.question) + given.answer
        self.model = Decoder(given, torch, self.shape, -(-capacity // given.block_tokens) * given.block_tokens)
        self.energy = Energy(given.device)
        self.block_bytes = given.block_tokens * 4 * self.shape.kv_heads * self.shape.head_dim
        # Blocks of the cache, as their bytes: of the device's memory, not copies.
        self.rooms = [list(layer.view(torch.uint8).view(-1, self.block_bytes)) for layer in self.model.cache]

    def prompt(self):
        torch, device = self.torch, self.given.device
        tokenizer = self.given.model and self.given.model / "tokenizer.json"
        if not tokenizer or not tokenizer.exists():
            random = torch.Generator().manual_seed(2)
            tokens = torch.randint(0, self.shape.vocab, (self.longest + 64,), generator=random)
            return tokens[:self.longest].to(device), tokens[self.longest:].to(device)
        from tokenizers import Tokenizer

        self.text = Tokenizer.from_file(str(tokenizer))
        ids = self.text.encode(self.given.text.read_text()).ids
        ids *= -(-self.longest // len(ids))
        return (torch.tensor(ids[:self.longest], device=device),
                torch.tensor(self.text.encode(self.given.question).ids, device=device))

    def finish(self):
        if self.given.device != "cpu":
            self.torch.cuda.synchronize()

    def compute(self, begin, end):
        for at in range(begin, end, CHUNK):
            self.model.forward(self.prefix[at:min(at + CHUNK, end)], at)

    def first_token(self, length, wait=lambda layer: None):
        """Of the answer to the question behind so much of the prefix: its scores and it."""
        scores = self.model.forward(self.question, length, wait)
        return scores, int(scores.argmax())  # which waits for the GPU

    def answer(self, length, scores, token):
        """All tokens, and what has to be the same in both ways."""
        tokens, at = [token], length + len(self.question)
        while len(tokens) < self.given.answer:
            behind = self.torch.tensor(tokens[-1:], device=self.given.device)
            tokens.append(int(self.model.forward(behind, at).argmax()))
            at += 1
        kept = [int(layer[:length].reshape(-1).view(self.torch.int64).sum()) for layer in self.model.cache]
        return {"tokens": tokens, "scores": hashlib.sha256(scores.float().cpu().numpy().tobytes()).hexdigest(),
                "cache": hashlib.sha256(str(kept).encode()).hexdigest(),
                **({"text": self.text.decode(tokens)} if self.text else {})}

    def joules_of(self, work):
        """Joules of the GPU that it takes once, of a second or more of it."""
        if self.energy.joules() is None:
            return None
        self.finish()
        begin, joules, times = time.monotonic(), self.energy.joules(), 0
        while time.monotonic() - begin < REPEAT_S:
            work()
            self.finish()
            times += 1
        return (self.energy.joules() - joules) / times


class Store:
    """The volume of one client, and the blocks of the cache in it: threads load and store whole layers."""

    def __init__(self, bench, where, directory_bytes=0):
        import icms

        given, shape, begin = bench.given, bench.shape, time.monotonic()
        self.bench, self.is_host = bench, given.device == "cpu"
        self.batch = max(1, min(icms.BATCH_MAX, BATCH_BYTES // bench.block_bytes))
        self.client = icms.Client(where, buffer_bytes=256 << 20, directory_bytes=directory_bytes,
                                  value_bytes_max=bench.block_bytes if directory_bytes else 0)
        self.volume = self.client.volume("kv")
        self.registered = None if self.is_host else self.client.register(bench.model.cache)
        self.opening_s = time.monotonic() - begin
        tokens = bench.prefix.cpu().to(bench.torch.int32).numpy().reshape(-1, given.block_tokens)
        self.keys = [self.volume.chain(icms.Layout(model=str(given.model or given.shape), dtype="bf16",
                                                   layout=f"layer {i}", block_tokens=given.block_tokens))
                     .keys([row.tobytes() for row in tokens]) for i in range(shape.layers)]
        self.threads = concurrent.futures.ThreadPoolExecutor(given.threads)
        self.streams = [None if self.is_host else bench.torch.cuda.Stream() for _ in range(shape.layers)]

    def close(self):
        self.threads.shutdown()
        if self.registered is not None:
            self.registered.unregister()
        self.client.close()

    def _blocks(self, call, layer, blocks, **more):
        for at in range(blocks.start, blocks.stop, self.batch):
            part = slice(at, min(at + self.batch, blocks.stop))
            results = call(self.keys[layer][part], self.bench.rooms[layer][part], deadline_ms=DEADLINE_MS, **more)
            if not results.ok:
                raise RuntimeError(f"layer {layer}, blocks from {at} on: {results}")

    def put(self, blocks):
        self.bench.finish()
        list(self.threads.map(lambda layer: self._blocks(self.volume.put, layer, slice(0, blocks), on_flash=True),
                              range(self.bench.shape.layers)))

    def begin_get(self, blocks, begin=0):
        """For each layer what says that its blocks are with the driver."""
        return [self.threads.submit(self._blocks, self.volume.get, layer, slice(begin, blocks),
                                    stream=self.streams[layer]) for layer in range(self.bench.shape.layers)]

    def wait(self, futures, layer):
        futures[layer].result()
        if not self.is_host:
            self.bench.torch.cuda.current_stream().wait_stream(self.streams[layer])

    def get(self, blocks, begin=0):
        for future in self.begin_get(blocks, begin):
            future.result()
        self.bench.finish()


# ---- the two processes -----------------------------------------------------------------------------


def cold(bench, order):
    """Computes, answers and stores."""
    given, rows, seconds, at = bench.given, {}, 0.0, 0
    bench.compute(0, min(bench.longest, 2 * CHUNK))  # libraries of the GPU begin
    bench.first_token(min(bench.lengths))
    bench.model.cache.zero_()
    for length in sorted(bench.lengths):
        bench.finish()
        begin = time.monotonic()
        bench.compute(at, length)
        bench.finish()
        middle = time.monotonic()
        scores, token = bench.first_token(length)
        end = time.monotonic()
        seconds, at = seconds + middle - begin, length
        rows[length] = {"cold_s": seconds + end - middle, "question_s": end - middle,
                        **bench.answer(length, scores, token)}
    blocks, stored = bench.longest // given.block_tokens, {}
    for way, where in order["store"].items():
        store = Store(bench, where, order["drive_bytes"] if way == "drive" else 0)
        begin = time.monotonic()
        store.put(blocks)
        stored[way] = {"store_s": time.monotonic() - begin, "opening_s": store.opening_s}
        store.close()
    for length in bench.lengths:  # at last: the cache differs by how much is computed at once
        rows[length]["cold_joules"] = bench.joules_of(lambda length=length: (bench.compute(0, length),
                                                                            bench.first_token(length)))
    return {"rows": rows, "stored": stored}


def warm(bench, order):
    """Loads and answers."""
    given, all_rows = bench.given, {}
    bench.first_token(min(bench.lengths))  # libraries of the GPU begin
    for way, where in order["load"].items():
        store, rows = Store(bench, where), {}
        is_memory = way == "memory"
        for length in sorted(bench.lengths, reverse=not is_memory):
            rows[length] = warm_row(bench, store, length, is_memory)
        all_rows[way] = {"opening_s": store.opening_s, "rows": rows, "devices": store.client.status().get("devices")}
        store.close()
    return {"ways": all_rows, "wanted": given.ways}


def warm_row(bench, store, length, is_memory):
    blocks, row = length // bench.given.block_tokens, {}

    def forget():
        """Blocks of the prefix leave what memory there is on the way: others are loaded."""
        if not is_memory and length < bench.longest:
            whole = bench.longest // bench.given.block_tokens
            few = -(-2 * POD_MEMORY // bench.block_bytes // bench.shape.layers)
            store.get(whole, max(blocks, whole - few))

    def loaded(by_layer):
        futures = store.begin_get(blocks)
        if not by_layer:
            for layer in range(bench.shape.layers):
                store.wait(futures, layer)
            bench.finish()
        middle = time.monotonic()
        scores, token = bench.first_token(length, lambda layer: store.wait(futures, layer))
        return middle, scores, token

    for name, by_layer in (("first", False), ("again", False), ("by_layer", True)):
        forget()
        bench.model.cache.zero_()
        bench.finish()
        begin = time.monotonic()
        middle, scores, token = loaded(by_layer)
        row[f"{name}_s"] = time.monotonic() - begin
        if not by_layer:
            row[f"{name}_load_s"] = middle - begin
        row[name] = bench.answer(length, scores, token)
    row["joules"] = bench.joules_of(lambda: loaded(False)) if is_memory else None
    return row


# ---- the pod, and what is said ---------------------------------------------------------------------


def process(given, what, order, folder):
    """This program once more, as one of the two processes; what it found."""
    path = pathlib.Path(folder) / f"{what}.json"
    path.write_text(json.dumps({"what": what, **order}))
    result = subprocess.run([sys.executable, *sys.argv, "--order", str(path)], check=False)
    if result.returncode != 0:
        sys.exit(f"the process that {'computes' if what == 'cold' else 'loads'} failed")
    return json.loads(path.read_text())


def run(given):
    shape = shape_of(given)
    token_bytes = shape.layers * 4 * shape.kv_heads * shape.head_dim
    longest = max(int(count) for count in given.tokens.split(","))
    kv, ways = longest * token_bytes, given.ways.split(",")
    gib = -(-kv * 5 // 4 // (1 << 30)) + 1
    block = given.block_tokens * token_bytes // shape.layers
    volume = {"name": "kv", "value_max": f"{block}B"}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="icms-", dir=given.dir))
        drives = stack.enter_context(tempfile.TemporaryDirectory(prefix="icms-", dir=given.pod_dir or given.dir))
        p, store, load = stack.enter_context(pod.Pod(given.build, drives)), {}, {}
        if "memory" in ways or "pod" in ways:
            target = p.add_target("enclosure0", 4, f"{gib * 256}MiB", [volume], loops=given.loops, memory="1GiB")
            target.wait_ready()
            same = {"loops": given.loops, "load_deadline": "60s", "store_deadline": "60s", "client_memory": "1GiB"}
            has = p.add_agent("has", [target], [volume], memory=f"{gib}GiB", prefault="true", **same)
            reads = p.add_agent("reads", [target], [volume], memory=f"{POD_MEMORY >> 20}MiB", prefault="true", **same)
            for agent in (has, reads):
                agent.wait_ready(300)
            store["memory"] = load["memory"] = f"unix:{has.socket}"
            load["pod"] = f"unix:{reads.socket}"
        if "drive" in ways:
            store["drive"] = load["drive"] = f"dir:{folder}/drive"
        load = {way: load[way] for way in ways}
        first = process(given, "cold", {"store": store, "drive_bytes": gib << 30}, folder)
        second = process(given, "warm", {"load": load}, folder)
    return rows_of(given, token_bytes, first, second)


def rows_of(given, token_bytes, first, second):
    rows = []
    for way, found in second["ways"].items():
        for text, row in found["rows"].items():
            cold_row, length = first["rows"][text], int(text)
            same = all(row[name][what] == cold_row[what] for name in ("first", "again", "by_layer")
                       for what in ("tokens", "scores", "cache"))
            rows.append({"way": way, "tokens": length, "kv_bytes": length * token_bytes, "identical": same,
                         "cold_s": cold_row["cold_s"], "cold_joules": cold_row["cold_joules"],
                         "joules": row["joules"], "load_gb_per_s": length * token_bytes / row["first_load_s"] / 1e9,
                         "again_gb_per_s": length * token_bytes / row["again_load_s"] / 1e9,
                         **{f"{name}_s": row[f"{name}_s"] for name in ("first", "again", "by_layer")},
                         "answer": cold_row.get("text")})
    return {"rows": rows, "stored": first["stored"],
            "opened": {way: found["opening_s"] for way, found in second["ways"].items()},
            "devices": {way: found["devices"] for way, found in second["ways"].items()}}


def show(result):
    print("way        tokens   GB of KV  cold s  warm s   again  by layer  GB/s  again  joules cold   warm  identical")
    for row in result["rows"]:
        joules = [f"{row[name]:8.1f}" if row[name] is not None else "       -" for name in ("cold_joules", "joules")]
        print(f"{row['way']:8} {row['tokens']:8} {row['kv_bytes'] / 1e9:10.3f} {row['cold_s']:7.3f} {row['first_s']:7.3f} "
              f"{row['again_s']:7.3f} {row['by_layer_s']:9.3f} {row['load_gb_per_s']:5.1f} {row['again_gb_per_s']:6.1f} "
              f"    {joules[0]} {joules[1]}  {'yes' if row['identical'] else 'NO'}")
    answers = {row["tokens"]: row["answer"] for row in result["rows"] if row["answer"]}
    for tokens, answer in sorted(answers.items()):
        print(f"answer behind {tokens} tokens: {answer!r}")
    print(json.dumps({name: result[name] for name in ("stored", "opened", "devices")}))


def main():
    given = options()
    given.build = given.build.resolve()
    if any(int(count) % given.block_tokens for count in given.tokens.split(",")):
        sys.exit(f"--tokens {given.tokens}: a prefix is a number of whole blocks of {given.block_tokens} tokens")
    if given.order is not None:
        order = json.loads(given.order.read_text())
        bench = Bench(given)
        with bench.torch.inference_mode():
            found = (cold if order["what"] == "cold" else warm)(bench, order)
        given.order.write_text(json.dumps(found))
        return
    if given.site is None:
        given.site = icms_wheel.make(icms_wheel.interpreter(), given.build, given.build / "bench-prefill-wheel")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(given.site), os.environ.get("PYTHONPATH"))))
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    result = run(given)
    show(result)
    if given.json:
        given.json.write_text(json.dumps({"options": {name: str(value) for name, value in vars(given).items()},
                                          **result}, indent=1) + "\n")
    if not all(row["identical"] for row in result["rows"]):
        sys.exit("what was loaded is not what was computed")


main()
