#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""icms.lmcache under LMCache's own code.

Goal: what LMCache stores through the plugin comes back byte for byte, and vLLM with LMCache says after
a restart of everything but the enclosures exactly what it said before, from blocks that came over
NVMe/TCP.
Method: LMCache's own bench stores, loads and compares. Then LMCache's server and vLLM, in float32,
answer a prompt; server, engine and agent are killed, others take their place, and the new agent's
count of bytes loaded from enclosures says that nothing else had them. Values are larger than the
volume's, so each is cut.

usage: run.py --build BUILD --venv VENV [NAME of a case ...]
Prints "ok NAME" or "not ok NAME" for each case.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]
import icms_wheel  # noqa: E402
import pod  # noqa: E402
import readme  # noqa: E402
from engines import forked  # noqa: E402

VOLUME = {"name": "kv", "value_max": "512KiB", "memory_max": "64MiB"}
CHUNK = 128                               # tokens, a block of vLLM
CHUNK_BYTES = 8 * 2 * 4 * 64 * 4 * CHUNK  # of the tiny model: layers, K and V, heads, floats
PROMPT = 1100                             # tokens: 8 whole chunks
CHUNKS = PROMPT // CHUNK
ANSWER = 16


class Lab:
    """What the cases share."""

    def __init__(self, arguments):
        self.build = pathlib.Path(arguments.build).resolve()
        self.folder = self.build / "engines/lmcache-run"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.bin = pathlib.Path(arguments.venv).resolve() / "bin"
        self.site = icms_wheel.make(icms_wheel.interpreter(), self.build,
                                    self.folder / "icms-wheel")
        self.count = 0
        self.nest = None

    def environment(self):
        """No network, and one thread that does not spin, so that other work delays it and nothing
        else."""
        return {**os.environ, "PYTHONPATH": str(self.site), "LMCACHE_DISABLE_BANNER": "1",
                "LMCACHE_TRACK_USAGE": "false", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1",
                "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONHASHSEED": "0",
                "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

    def model(self):
        folder = self.build / "engines/models/tiny"
        if not (folder / "model.safetensors").exists():
            subprocess.run([str(self.bin / "python"), str(HERE.parent / "vllm/models.py"), "tiny",
                            str(folder)], check=True)
        return folder

    def engine(self, config):
        """A vLLM engine: its Peer."""
        if self.nest is None:
            self.nest = forked.Nest(self.bin / "python", HERE.parent / "vllm/engine.py",
                                    self.folder / "engines.log", self.environment())
        order = {"model": str(self.model()), "config": config, "environment": {}, "options": {}}
        return self.nest.fork(order, self.folder / f"engine-{self.number()}").wait()

    def end(self):
        """Waits for engines, which were killed, so that their processor time is counted."""
        if self.nest:
            self.nest.close()

    def number(self):
        self.count += 1
        return self.count

    @contextlib.contextmanager
    def pod(self):
        """Two enclosures; agents come and go."""
        folder = self.folder / f"pod-{self.number()}"
        with pod.Pod(self.build, folder) as p:
            p.targets = [p.add_target(f"enclosure{i}", 1, "512MiB", [VOLUME], segment="16MiB",
                                      memory="64MiB") for i in range(2)]
            for target in p.targets:
                target.wait_ready()
            yield p
        shutil.rmtree(folder, ignore_errors=True)

    def agent(self, p):
        """One that has nothing in its memory."""
        agent = p.add_agent(f"server-{self.number()}", p.targets, [VOLUME])
        agent.wait_ready()
        return agent


def plugin(agent, **params):
    """LMCache's --l2-adapter: what our READMEs say, and where this pod is."""
    adapter, = readme.objects("--l2-adapter", "README.md", "python/README.md")
    adapter["adapter_params"] |= {"where": f"unix:{agent.socket}", "weights": "tiny",
                                  "layout": "tiny float32", **params}
    return json.dumps(adapter)


class Server:
    """LMCache's server, with 1 GiB of memory of its own."""

    def __init__(self, lab, agent, **params):
        self.port, self.http_port = pod.free_port(), pod.free_port()
        self.log_path = lab.folder / f"lmcache-{lab.number()}.log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [str(lab.bin / "lmcache"), "server", "--host", "127.0.0.1", "--port",
                 str(self.port), "--http-host", "127.0.0.1", "--http-port", str(self.http_port),
                 "--disable-observability", "--l1-size-gb", "1", "--chunk-size", str(CHUNK),
                 "--eviction-policy", "LRU", "--supported-transfer-mode", "engine_driven",
                 "--l2-adapter", plugin(agent, **params)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=lab.environment(),
                preexec_fn=pod.die_with_parent, start_new_session=True)

    def wait_ready(self):
        give_up = time.monotonic() + forked.SECONDS
        while not self.answers():
            assert self.process.poll() is None and time.monotonic() < give_up, self.log()[-3000:]
            time.sleep(0.5)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def answers(self):
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{self.http_port}/healthcheck"
            urllib.request.urlopen(url, timeout=5).close()
            with socket.create_connection(("127.0.0.1", self.port), timeout=5):
                return True
        return False

    def connector(self):
        """The configuration of vLLM."""
        return {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": self.port,
                    "lmcache.mp.mq_timeout": forked.SECONDS}}

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def moved(agent, direction):
    """Bytes between this agent and enclosures."""
    return agent.metrics()[f'icms_agent_bytes_total{{dir="{direction}",tier="pod"}}']


def answer(lab, p, prompt, stored_chunks=0):
    """What a new engine says to a prompt through a new server and a new agent; and what the agent
    loaded from enclosures. Waits until so many chunks are stored; then all are killed."""
    agent = lab.agent(p)
    server = Server(lab, agent)
    engine = None
    try:
        server.wait_ready()
        engine = lab.engine(server.connector())
        said = engine.ask(prompt=prompt, tokens=ANSWER)
        give_up = time.monotonic() + 120
        while moved(agent, "store") < stored_chunks * CHUNK_BYTES:
            assert time.monotonic() < give_up, f"{moved(agent, 'store')} bytes are stored"
            time.sleep(0.1)
        return said, moved(agent, "load")
    finally:
        if engine:
            engine.kill()
        server.kill()
        agent.kill()


def case_bench(lab):
    """LMCache's own bench stores, looks up, loads, and compares what came."""
    keys, rounds, kib = 16, 4, 1200
    with lab.pod() as p:
        agent = lab.agent(p)
        done = subprocess.run(
            [str(lab.bin / "lmcache"), "bench", "l2", "--l2-adapter", plugin(agent), "--num-keys",
             str(keys), "--data-size-kb", str(kib), "--rounds", str(rounds - 1), "--in-flight", "2",
             "--lookup-max-hit-rate", "0.5", "--no-skip-verify"], env=lab.environment(), capture_output=True, text=True,
            check=False, timeout=forked.SECONDS)
        said = done.stdout + done.stderr
        assert done.returncode == 0 and "data verified OK" in said, said[-5000:]
        for line in ("Total success:", "Rounds timed out:"):
            print("#", " ".join(" ".join(found.split()) for found in said.splitlines()
                                if found.startswith(line)))
        assert said.count(f"Total success: {2 * keys * (rounds - 1):>49}") == 2, said[-5000:]
        nbytes = 2 * rounds * keys * kib << 10
        assert moved(agent, "store") >= nbytes, (moved(agent, "store"), nbytes)
        assert moved(agent, "load") > 0


def case_restart(lab):
    """vLLM says the same after a restart of everything but the enclosures, from their blocks."""
    prompt = [4 + random.randrange(250) for _ in range(PROMPT)]
    alone = lab.engine({})
    reference = alone.ask(prompt=prompt, tokens=ANSWER)
    alone.kill()
    with lab.pod() as p:
        cold, loaded = answer(lab, p, prompt, CHUNKS)
        assert cold["cached"] == 0 and loaded < 4096, (cold, loaded)
        assert cold["tokens"] == reference["tokens"], (cold, reference)
        warm, loaded = answer(lab, p, prompt)
        assert warm["tokens"] == reference["tokens"], (warm, reference)
        assert warm["cached"] == CHUNKS * CHUNK, warm
        # What is beside the chunks are statements of identities, which have under 4 KiB, and what came of
        # the first chunks when the agent asked for as much as those had.
        assert 0 <= loaded - CHUNKS * CHUNK_BYTES < 32 << 10, loaded
        print(f"# cold {cold['seconds']} s, warm {warm['seconds']} s, {loaded:.0f} bytes over "
              "NVMe/TCP")
        p.targets[1].kill()
        less, loaded = answer(lab, p, prompt)
        assert less["tokens"] == reference["tokens"], (less, reference)
        assert less["cached"] < CHUNKS * CHUNK, less
        assert less["cached"] // CHUNK * CHUNK_BYTES <= loaded, (less, loaded)
        print(f"# with an enclosure of two lost: {less['cached']} of {PROMPT} tokens")


def case_late(lab):
    """A server starts without its agent, says so once, stores in it when it comes, and goes on when
    it dies."""
    prompts = [[4 + random.randrange(250) for _ in range(PROMPT)] for _ in range(3)]
    alone = lab.engine({})
    references = [alone.ask(prompt=prompt, tokens=ANSWER)["tokens"] for prompt in prompts]
    alone.kill()
    with lab.pod() as p:
        agent = lab.agent(p)
        agent.kill()
        server = Server(lab, agent)
        engine = None
        try:
            server.wait_ready()
            engine = lab.engine(server.connector())
            assert engine.ask(prompt=prompts[0], tokens=ANSWER)["tokens"] == references[0]
            assert server.log().count("no agent: ") == 1, server.log()[-3000:]
            agent.start()
            agent.wait_ready()
            give_up = time.monotonic() + 60
            while not agent.metrics()["icms_agent_clients"]:
                assert time.monotonic() < give_up, server.log()[-3000:]
                time.sleep(0.1)
            assert engine.ask(prompt=prompts[1], tokens=ANSWER)["tokens"] == references[1]
            while moved(agent, "store") < CHUNKS * CHUNK_BYTES:
                assert time.monotonic() < give_up, server.log()[-3000:]
                time.sleep(0.1)
            assert server.log().count("no agent: ") == 1
            agent.kill()
            assert engine.ask(prompt=prompts[2], tokens=ANSWER)["tokens"] == references[2]
        finally:
            if engine:
                engine.kill()
            server.kill()
            agent.kill()
        warm, loaded = answer(lab, p, prompts[1])
        assert warm["tokens"] == references[1], (warm, references)
        assert warm["cached"] == CHUNKS * CHUNK and loaded >= CHUNKS * CHUNK_BYTES, (warm, loaded)


def case_wrong(lab):
    """What can never work is told when a server starts; why another one does not share, later."""
    with lab.pod() as p:
        agent = lab.agent(p)
        first = Server(lab, agent)
        try:
            first.wait_ready()
            for params, says in (({"volume": "nothing"}, "nothing"), ({"wher": "unix:"}, "wher"),
                                 ({"where": "carrier pigeon:"}, "carrier pigeon:"),
                                 ({"weights": ""}, "the option 'weights' is empty"),
                                 ({"weights": "/no/such/model"}, "not on this machine")):
                other = Server(lab, agent, **params)
                try:
                    other.process.wait(timeout=forked.SECONDS)
                    assert other.process.returncode != 0 and says in other.log(), \
                        other.log()[-3000:]
                finally:
                    other.kill()
            other = Server(lab, agent, layout="tiny bfloat16")
            try:
                other.wait_ready()
                give_up = time.monotonic() + 60
                while "set the option layout alike on all servers" not in other.log():
                    assert time.monotonic() < give_up, other.log()[-3000:]
                    time.sleep(0.1)
            finally:
                other.kill()
        finally:
            first.kill()


CASES = {"bench": case_bench, "restart": case_restart, "late": case_late, "wrong": case_wrong}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--venv", default="build/engines/lmcache")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    lab = Lab(arguments)
    good = True
    for name, case in CASES.items():
        if arguments.names and name not in arguments.names:
            continue
        try:
            case(lab)
            print(f"ok {name}", flush=True)
        except Exception:  # whatever it is, the other cases run
            good = False
            traceback.print_exc(file=sys.stdout)
            print(f"not ok {name}", flush=True)
    lab.end()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
