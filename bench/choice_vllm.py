# SPDX-License-Identifier: Apache-2.0
"""The engines of `bench_choice.py --vllm`: vLLM on the processor, with IcmsTier as it is deployed.

Four engines answer one prompt at a time: one stores all prompts, then ends; one has the tier and loads all of a prefix that
is there (`load: always`), one chooses (`load: faster`), and one has no tier. A prompt begins with tokens of its own, so no
engine has it in its KV cache or in its memory of the host. Each answer has to be the one that was given when the
prompt was stored, and what vLLM says it did not compute is what was loaded.
"""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from engines import forked, match, setting, sides  # noqa: E402

MODEL = "wide"
BLOCK_TOKENS = match.BLOCK
TOKEN_BYTES = 8 * 2 * 8 * 64 * 4  # layers, keys and values, heads, their size, float32
BLOCKS_MOST = 16  # of a prompt in engines/engine.py
REST_TOKENS = 16  # of a prompt behind its blocks: the model computes a token at least
COMPUTED = 3  # prompts that each engine has answered before it is measured, as one that serves has


def install(build):
    """vLLM, once."""
    subprocess.run([str(setting.TESTS / "vllm/install.sh"), str(build)], check=True)
    return setting.model(build, MODEL)


def wrong(given):
    """What cannot be measured of these options; None: all can."""
    if given.block_tokens != BLOCK_TOKENS:
        return f"--block-tokens {given.block_tokens}: {BLOCK_TOKENS} with --vllm"
    if given.blocks > BLOCKS_MOST:
        return f"--blocks {given.blocks}: at most {BLOCKS_MOST} with --vllm"
    return None


def block_bytes(tokens):
    return tokens * TOKEN_BYTES


def config_of(agent, load, limit_ms):
    return sides.icms_offloading(f"unix:{agent.socket}", load, load_ms=limit_ms, lookup_ms=limit_ms, store_ms=limit_ms)


class Vllm:
    """Serves one prompt at a time."""

    errors = ()  # vLLM's metrics count loads that came when they were expected, and not by how much they did not

    def __init__(self, given, folder, agents, limit_s):
        stores, loads, choices = agents
        self.blocks, self.folder, self.model = given.blocks, pathlib.Path(folder), given.vllm_model
        self.limit_ms = int(limit_s * 1000)
        self.first_tokens = {}  # of each prompt, when it was stored
        self.engines, self.loaded = {}, {}  # by way; bytes that icms has loaded there so far
        self.nest = forked.Nest(given.build / "engines/vllm/bin/python", ROOT / "bench/engines/engine.py",
                                self.folder / "nest.log", setting.environment(given.site))
        try:
            self.start("store", config_of(stores, "always", self.limit_ms))
            self.later = {"load": config_of(loads, "always", self.limit_ms), "compute": {},
                          "choice": config_of(choices, "faster", self.limit_ms)}
        except BaseException:
            self.close()
            raise

    def start(self, way, config):
        if config:
            config = {**config, "engine_id": f"icms-choice-{way}-{self.folder.name}"}
        self.engines[way] = self.nest.fork({"model": str(self.model), "config": config, "buffered": False},
                                           self.folder / f"engine-{way}").wait()

    def stored(self):
        """All prompts were: what stored them ends, and the others begin."""
        self.engines["store"].ask(end=True)  # what it has accepted goes to the enclosure
        self.engines.pop("store").ends()
        for way, config in self.later.items():
            self.start(way, config)
            for i in range(COMPUTED):
                self.ask(f"computed by {way} {i}", way)

    def close(self):
        for engine in self.engines.values():
            engine.kill()
        self.nest.close()

    def ask(self, prompt, way):
        return self.engines[way].ask(ask=match.prompt(prompt, self.blocks * BLOCK_TOKENS + REST_TOKENS), answer=1)

    def store(self, prompt):
        self.first_tokens[prompt] = self.ask(prompt, "store")["tokens"]

    def serve(self, prompt, way):
        """Seconds to the first token, and how many of the blocks of the prompt were loaded."""
        answer = self.ask(prompt, way)
        before, self.loaded[way] = self.loaded.get(way, 0), sum(answer["sources"].values())
        ready = answer["cached"] // BLOCK_TOKENS
        if ready != {"load": self.blocks, "compute": 0}.get(way, ready):
            raise pod.PodError(f"of {prompt} {ready} of {self.blocks} blocks were loaded")
        if self.loaded[way] - before < ready * block_bytes(BLOCK_TOKENS):
            raise pod.PodError(f"of {prompt} some of {ready} blocks came from elsewhere than from icms")
        if answer["tokens"] != self.first_tokens.get(prompt, answer["tokens"]):
            raise pod.PodError(f"{prompt}: the answer is {answer['tokens']}; it was {self.first_tokens[prompt]}")
        return answer["ttft_s"], ready
