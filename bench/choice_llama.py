# SPDX-License-Identifier: Apache-2.0
"""The engine of `bench_choice.py --llama`: llama.cpp with a real model, through examples/llama/prefix_cache.h.

One process (demo/server.c) serves all prompts in turn, so its prefix cache learns as that of a server does. A prompt
begins with its number, so no two have a block in common. What a prompt loads has to give the answer that computing
gave when it was stored, and a way that loads everything must have loaded it from the enclosure.
"""
import contextlib
import json
import math
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402

TEXT = ROOT / "demo/prompts/flash-handbook.txt"
TOKEN_BYTES = 23040  # of KV of the model that tools/llama.sh gets: 30 layers, 3 heads of 64, keys and values in f16
STATE_BYTES = 4096  # of a block beside them, at most: positions and types
TOKENS_MOST = 7936  # of a prompt: what the context of demo/model.c holds beside an answer
BLOCK_TOKENS_LEAST = 8  # in fewer a prompt's number may not be in its first block
# Of a logit: tokens that are computed in other chunks may give another last digit, other prompts differ by 0.04 and more.
LOGIT_MOST = 0.01


def build(folder):
    """Compiles llama.cpp and the server where that was not done; the model's file."""
    done = subprocess.run([ROOT / "demo/build.sh", folder], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"cannot build llama.cpp into {folder}: demo/build.sh ended with {done.returncode}; it says why above")
    return pathlib.Path(done.stdout.strip())


def wrong(given):
    """What cannot be measured of these options; None: all can."""
    if given.block_tokens < BLOCK_TOKENS_LEAST:
        return f"--block-tokens {given.block_tokens}: at least {BLOCK_TOKENS_LEAST} with --llama"
    if given.blocks * given.block_tokens >= TOKENS_MOST:
        return f"--blocks times --block-tokens: less than {TOKENS_MOST} with --llama"
    return None


def block_bytes(tokens):
    return tokens * TOKEN_BYTES + STATE_BYTES


class Llama:
    """Serves one prompt at a time."""

    errors = ()  # prefix_cache.h does not tell what it expected

    def __init__(self, given, stores, loads, choices):
        self.blocks, self.tokens = given.blocks, given.blocks * given.block_tokens + 1
        words = TEXT.read_text().split()
        self.text = " ".join(words[i % len(words)] for i in range(self.tokens))  # a word has a token at least
        self.numbers, self.logits = {}, {}  # of each prompt
        self.process = subprocess.Popen(
            [given.build / "demo/server", "--model", given.llama_model, "--volume", "kv",
             "--stores", f"unix:{stores.socket}", "--loads", f"unix:{loads.socket}",
             "--choices", f"unix:{choices.socket}", "--block-tokens", str(given.block_tokens), "--tokens", str(self.tokens)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=pod.die_with_parent)

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(timeout=60)

    def ask(self, prompt, way):
        number = self.numbers.setdefault(prompt, len(self.numbers))
        with contextlib.suppress(BrokenPipeError):  # it has said why
            self.process.stdin.write(f"{way} {number:04d} {self.text}\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise pod.PodError(f"demo/server ended with {self.process.wait()}; it says why above")
        return json.loads(line)

    def store(self, prompt):
        answer = self.ask(prompt, "store")
        if answer["stored"] != self.blocks:
            raise pod.PodError(f"of {prompt} {answer['stored']} of {self.blocks} blocks were stored")
        self.logits[prompt] = answer["logit"]

    def stored(self):
        """All prompts were."""

    def serve(self, prompt, way):
        """Seconds to the first token, and how many of the blocks of the prompt were loaded."""
        answer = self.ask(prompt, way)
        if way == "load" and answer["from_pod"] != self.blocks:
            raise pod.PodError(f"of {prompt} {answer['from_pod']} of {self.blocks} blocks came from the enclosure")
        if not math.isclose(answer["logit"], self.logits.get(prompt, answer["logit"]), abs_tol=LOGIT_MOST):
            raise pod.PodError(f"{prompt}: the logit is {answer['logit']}; computed it was {self.logits[prompt]}")
        return answer["seconds"], answer["loaded"]
