# SPDX-License-Identifier: Apache-2.0
"""What the cases of this folder share: a pod, engines on it, what they are asked and what they count."""
import contextlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]
import icms_wheel  # noqa: E402
import pod  # noqa: E402
from engines import forked  # noqa: E402

VOLUME = {"name": "kv", "value_max": "4MiB", "memory_max": "256MiB"}
BLOCK = 128
PROMPT = 1100  # tokens: 8 whole blocks
ANSWER = 16


def environment(lab, **more):
    """Of an engine: no network, 1 GiB of KV cache, and one thread that does not spin, so that other
    work on the machine delays it and nothing else."""
    return {**os.environ, "PYTHONPATH": f"{lab.site}:{HERE}", "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind", **more}


class Engine:
    """One engine process, forked by the lab's nest. The default is in force under which a load that
    fails ends its request: no load may fail."""

    def __init__(self, lab, config, model="tiny", log="engine", options=None, **more):
        """model is a name, or a folder; options are vLLM's, more are environment variables."""
        order = {"model": str(lab.model(model)), "config": config, "environment": more,
                 "options": options or {}}
        self.peer = lab.nest().fork(order, lab.folder / f"{log}-{len(lab.engines)}")
        lab.engines.append(self)

    def ready(self):
        hello = self.peer.wait().hello
        assert hello["policy"] in (None, "fail"), hello
        self._wait()
        return self

    @staticmethod
    def _wait():
        """Until its link has named its blocks, which it does on a thread, right after the engine's
        start, a reset or a change."""
        time.sleep(2)

    def start(self, prompt, tokens=ANSWER):
        self.peer.tell(prompt=prompt, tokens=tokens, limit=PROMPT)

    def hear(self):
        return self.peer.hear()

    def ask(self, prompt, tokens=ANSWER):
        self.start(prompt, tokens)
        return self.hear()

    def reset(self):
        assert self.peer.ask(reset=True)["reset"]
        self._wait()

    def call(self, name, **words):
        """Calls a method of its workers."""
        assert self.peer.ask(call=name, words=words)["called"]
        self._wait()

    def sleep(self, level):
        """Sleeps and wakes up."""
        assert self.peer.ask(sleep=level)["awake"]
        self._wait()

    def end(self):
        """Ends it in good order."""
        assert "bye" in self.peer.ask(end=True)
        self.peer.ends()

    def kill(self):
        self.peer.kill()

    def log(self):
        return self.peer.log()


class Lab:
    """What the cases share: models, the package, and what an engine without a tier says."""

    def __init__(self, arguments):
        self.build = pathlib.Path(arguments.build).resolve()
        self.folder = self.build / "engines/vllm-run"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.python = pathlib.Path(arguments.venv).resolve() / "bin/python"
        self.site = icms_wheel.make(icms_wheel.interpreter(), self.build,
                                    self.build / "engines/icms-wheel")
        self.engines = []
        self._nest = None
        self.references = {}
        self.bare = {}  # by model, an engine without a tier

    def nest(self):
        """What has vLLM imported and forks engines."""
        if self._nest is None:
            self._nest = forked.Nest(self.python, HERE / "engine.py", self.folder / "engines.log",
                                     environment(self, PYTHONHASHSEED="0"))
        return self._nest

    def end(self):
        """Kills all engines, and waits for them, so that their processor time is counted."""
        for engine in self.engines:
            engine.kill()
        if self._nest:
            self._nest.close()

    def model(self, name):
        if isinstance(name, pathlib.Path):
            return name
        folder = self.build / "engines/models" / name
        if not (folder / "model.safetensors").exists():
            subprocess.run([str(self.python), str(HERE / "models.py"), name, str(folder)],
                           check=True)
        return folder

    def change(self, path, what):
        """Changes the weights in a file, see models.py."""
        subprocess.run([str(self.python), str(HERE / "models.py"), what, str(path)], check=True)

    def reference(self, what, model="tiny", options=None, keep=True):
        """What an engine without a tier says to a prompt. keep: the engine stays for other prompts."""
        engine = model, str(options)
        key = *engine, str(what)
        if key not in self.references:
            if engine not in self.bare:
                self.bare[engine] = Engine(self, {}, model, "reference", options).ready()
            self.references[key] = self.bare[engine].ask(what)
            if not keep:
                self.bare.pop(engine).end()
        return self.references[key]

    @contextlib.contextmanager
    def pod(self, name, targets=1, agents=1, volumes=(VOLUME,), agent_volumes=None, **extra):
        """A pod, and nothing left of it afterwards."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        with pod.Pod(self.build, folder) as p:
            p.targets = [p.add_target(f"enclosure{i}", 1, "512MiB", list(volumes), segment="32MiB",
                                      **extra) for i in range(targets)]
            for target in p.targets:
                target.wait_ready()
            p.agents = [p.add_agent(f"server-{i}", p.targets, list(agent_volumes or volumes))
                        for i in range(agents)]
            for agent in p.agents:
                agent.wait_ready()
            yield p
        shutil.rmtree(folder, ignore_errors=True)


def prompt(number, tokens=PROMPT):
    """Token ids that no other prompt begins with."""
    generator = random.Random(number)
    return [4 + generator.randrange(250) for _ in range(tokens)]


def tier(agent, **extra):
    """The configuration of IcmsOffloadingConnector with IcmsTier."""
    where = agent if isinstance(agent, str) else f"unix:{agent.socket}"
    return {"kv_connector": "IcmsOffloadingConnector", "kv_role": "kv_both",
            "kv_connector_module_path": "icms.vllm.offloading",
            "kv_connector_extra_config": {
                "spec_name": "CpuTieringSpec", "spec_module_path": "cpu_spec",
                "cpu_bytes_to_use": 256 << 20,
                "secondary_tiers": [{"type": "IcmsTier", "module_path": "icms.vllm.tier",
                                     **{"where": where, "volume": "kv", "load": "always", **extra}}]}}


def connector(agent, **extra):
    """The configuration of IcmsConnector."""
    where = agent if isinstance(agent, str) else f"unix:{agent.socket}"
    return {"kv_connector": "IcmsConnector", "kv_connector_module_path": "icms.vllm.connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {**{"where": where, "volume": "kv", "load": "always"}, **extra}}


def status(agent):
    """What an agent says of itself."""
    code, text = agent.get("/status")
    assert code == 200, text
    return json.loads(text)


def over_network(agent, nbytes):
    """Asserts how many bytes this agent has loaded from enclosures: these, and the statements of
    other engines, which have under 64 KiB."""
    loaded = sum(enclosure["load_bytes"] for enclosure in status(agent)["enclosures"])
    assert 0 <= loaded - nbytes < 65536, f"{loaded} bytes instead of {nbytes}"


def same(answer, reference, what):
    assert answer["tokens"] == reference["tokens"], \
        f"{what}: {answer['tokens']} instead of {reference['tokens']}"
    assert len(answer["tokens"]) == ANSWER and answer["finish"] == "length", answer


def on_flash(agent):
    """Bytes that this agent has stored in enclosures."""
    return sum(enclosure["store_bytes"] for enclosure in status(agent)["enclosures"])


def wait_stored(agent, bytes_before, blocks, block_bytes, seconds=120):
    """Waits until the agent has written so many blocks to enclosures since then."""
    give_up = time.monotonic() + seconds
    while on_flash(agent) - bytes_before < blocks * block_bytes:
        assert time.monotonic() < give_up, \
            f"{on_flash(agent) - bytes_before} bytes on flash, not {blocks} of {block_bytes}"
        time.sleep(0.1)


def counted(answer, name, label=""):
    """The sum of vLLM's counters of this name whose labels contain label."""
    return sum(value for key, value in answer["metrics"].items()
               if key.startswith(name) and label in key)


def total(target, prefix):
    """The sum of an enclosure's metrics whose names, with labels, begin so."""
    return sum(value for name, value in target.metrics().items() if name.startswith(prefix))


LOADED = "vllm:kv_offload_icms_loaded_bytes"
KINDS = {"tier": (tier, LOADED), "connector": (connector, LOADED)}
BLOCK_BYTES = 8 * 2 * 4 * 64 * 4 * BLOCK  # of the tiny model: layers, K and V, heads, floats
#: By model: what it is asked, bytes of a block.
MODELS = {"tiny": (prompt(0), BLOCK_BYTES),
          "smol": ((ROOT / "demo/prompts/the-tide-clerk.txt").read_text(),
                   30 * 2 * 3 * 64 * 4 * BLOCK)}
