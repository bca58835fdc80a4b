#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real vLLM engines on a pod: IcmsTier and IcmsConnector.

Goal: an engine that takes blocks from the pod says exactly what it says without, it really takes
them over NVMe/TCP, and whatever happens to the pod meanwhile it lives and says the same.
Method: engines are processes (engine.py) in float32; tokens and sums of log-probabilities are
compared. Blocks come back through another agent, so its memory cannot have had them; the agents'
counts of bytes loaded from enclosures say that they came over the network.

usage: run.py --build BUILD --venv VENV [NAME of a case ...]
Prints "ok NAME", "not ok NAME" or "skip NAME" for each case.
"""
import argparse
import contextlib
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import icms_wheel  # noqa: E402
import pod  # noqa: E402
import readme  # noqa: E402
from engines import forked  # noqa: E402

VOLUME = {"name": "kv", "value_max": "4MiB", "arena": "256MiB"}
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

    def __init__(self, lab, config, model="tiny", log="engine", **more):
        order = {"model": str(lab.model(model)), "config": config, "environment": more}
        self.peer = lab.nest().fork(order, lab.folder / f"{log}-{len(lab.engines)}")
        lab.engines.append(self)

    def ready(self):
        hello = self.peer.wait().hello
        assert hello["policy"] in (None, "fail"), hello
        time.sleep(1)  # the link learns the seed of hashes right after the start
        return self

    def start(self, prompt, tokens=ANSWER):
        self.peer.tell(prompt=prompt, tokens=tokens, limit=PROMPT)

    def hear(self):
        return self.peer.hear()

    def ask(self, prompt, tokens=ANSWER):
        self.start(prompt, tokens)
        return self.hear()

    def reset(self):
        assert self.peer.ask(reset=True)["reset"]

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
        folder = self.build / "engines/models" / name
        if not (folder / "model.safetensors").exists():
            subprocess.run([str(self.python), str(HERE / "models.py"), name, str(folder)],
                           check=True)
        return folder

    def reference(self, what, model="tiny"):
        """What an engine without a tier says to a prompt."""
        key = model, str(what)
        if key not in self.references:
            if model not in self.bare:
                self.bare[model] = Engine(self, {}, model, "reference").ready()
            self.references[key] = self.bare[model].ask(what)
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
    """The configuration of vLLM's OffloadingConnector with IcmsTier."""
    where = agent if isinstance(agent, str) else f"unix:{agent.socket}"
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": "CpuTieringSpec", "spec_module_path": "cpu_spec",
                "cpu_bytes_to_use": 256 << 20,
                "secondary_tiers": [{"type": "IcmsTier", "module_path": "icms.vllm.tier",
                                     **{"where": where, "volume": "kv", **extra}}]}}


def connector(agent, **extra):
    """The configuration of IcmsConnector."""
    where = agent if isinstance(agent, str) else f"unix:{agent.socket}"
    return {"kv_connector": "IcmsConnector", "kv_connector_module_path": "icms.vllm.connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {**{"where": where, "volume": "kv"}, **extra}}


def status(agent):
    """What an agent says of itself."""
    code, text = agent.get("/status")
    assert code == 200, text
    return json.loads(text)


def over_network(agent, nbytes):
    """Asserts how many bytes this agent has loaded from enclosures: these, and the statement of
    other engines' scheme, which has under 4 KiB."""
    loaded = sum(enclosure["load_bytes"] for enclosure in status(agent)["enclosures"])
    assert 0 < loaded - nbytes < 4096, f"{loaded} bytes instead of {nbytes}"


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


def case_shared(lab, kind, model="tiny"):
    """Cold, warm in the process, warm in another process behind another agent."""
    configure, loaded = KINDS[kind]
    blocks = PROMPT // BLOCK
    what, block_bytes = MODELS[model]
    volume = {**VOLUME, "value_max": "8MiB"}
    with lab.pod(f"{kind}-{model}", agents=2, volumes=[volume]) as p:
        first = Engine(lab, configure(p.agents[0]), model, kind).ready()
        cold = first.ask(what)
        reference = lab.reference(what, model)
        same(cold, reference, "cold")
        assert cold["cached"] == 0, cold
        wait_stored(p.agents[0], 0, blocks, block_bytes)
        hinted = sum(total(target, "icms_target_drive_positions_total") for target in p.targets)
        assert hinted >= blocks, hinted
        first.reset()
        warm = first.ask(what)
        same(warm, reference, "warm in the process")
        assert warm["cached"] == blocks * BLOCK, warm
        assert counted(warm, loaded, "source=dram") == blocks * block_bytes, warm
        second = Engine(lab, configure(p.agents[1]), model, kind).ready()
        other = second.ask(what)
        same(other, reference, "warm in another process")
        assert other["cached"] == blocks * BLOCK, other
        assert other["logprobs"] == warm["logprobs"], (other["logprobs"], warm["logprobs"])
        assert counted(other, loaded, "source=pod") == blocks * block_bytes, other
        assert counted(other, loaded) == blocks * block_bytes, other
        over_network(p.agents[1], blocks * block_bytes)
        first.end()
        second.end()
        print(f"# {kind}, {model}: cold {cold['seconds']} s, warm {warm['seconds']} s, in another "
              f"process {other['seconds']} s, {blocks * block_bytes} bytes over NVMe/TCP, "
              f"{ascii(other['text'])[:80]}")


class Faults:
    """Two enclosures, an engine A that stores, and an engine B whose warm loads meet the faults.

    Each fault has a prompt of its own, which A has stored just before, and B never saw.
    """

    VOLUME = {**VOLUME, "arena": "64MiB", "run_blocks": 2, "quota": "64MiB"}

    def __init__(self, lab, p, kind):
        self.lab, self.p = lab, p
        configure, self.loaded = KINDS[kind]
        self.a = Engine(lab, configure(p.agents[0]), log=f"{kind}-a").ready()
        self.b = Engine(lab, configure(p.agents[1], load_ms=3000), log=f"{kind}-b").ready()
        self.next = 0

    def store(self):
        """A stores a prompt; returns its number."""
        number = self.next
        self.next += 1
        before = on_flash(self.p.agents[0])
        same(self.a.ask(prompt(number)), self.lab.reference(prompt(number)), f"A, prompt {number}")
        wait_stored(self.p.agents[0], before, PROMPT // BLOCK, BLOCK_BYTES)
        return number

    def load(self, what, fault=None, least=0, most=PROMPT // BLOCK):
        """B answers; fault is called while its load is under way. How many blocks it loaded."""
        number = self.store() if not isinstance(what, int) else what
        before = self.got()
        self.b.start(prompt(number))
        if fault:
            time.sleep(0.5)
            fault()
        answer = self.b.hear()
        same(answer, self.lab.reference(prompt(number)), f"B, {what}")
        blocks = (counted(answer, self.loaded) - before) // BLOCK_BYTES
        print(f"# {what}: {blocks} of {PROMPT // BLOCK} blocks loaded, {answer['cached']} tokens "
              f"matched, {answer['seconds']} s", flush=True)
        assert least <= blocks <= most, f"{what}: {blocks} blocks"
        assert answer["cached"] <= blocks * BLOCK
        self.last = answer
        return blocks

    def got(self):
        """What B has counted so far: asked with a prompt of less than a block."""
        return counted(self.b.ask([7] * 50, tokens=1), self.loaded)

    def wait_down(self):
        """Waits until engine B has noticed that its agent, or the volume, is gone."""
        give_up = time.monotonic() + 60
        while counted(self.b.ask([7] * 50, tokens=1), "vllm:kv_offload_icms_up"):
            assert time.monotonic() < give_up, self.b.log()[-2000:]
            time.sleep(0.1)

    def wait_up(self):
        """Waits until both agents have both enclosures again, and engine B its agent."""
        give_up = time.monotonic() + 60
        for agent in self.p.agents:
            while [e["state"] for e in status(agent)["enclosures"]] != ["up"] * 2:
                assert time.monotonic() < give_up, status(agent)
                time.sleep(0.1)
        while not counted(self.b.ask([7] * 50, tokens=1), "vllm:kv_offload_icms_up"):
            assert time.monotonic() < give_up, self.b.log()[-2000:]
            time.sleep(0.1)


def flip_bytes(target):
    """Flips a byte in each 4 KiB of the enclosure's drives, but for what describes the drive."""
    for path in target.drives:
        with open(path, "r+b") as drive:
            size = drive.seek(0, os.SEEK_END)
            for at in range(1 << 20, size, 4096):
                drive.seek(at + 2000)
                byte = drive.read(1)
                drive.seek(at + 2000)
                drive.write(bytes([byte[0] ^ 0xff]))
            drive.flush()
            os.fsync(drive.fileno())


@contextlib.contextmanager
def other_version(path):
    """Listens where an agent would and says that it speaks another version."""
    path.unlink(missing_ok=True)
    over = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(0.1)

        def serve():
            while not over.is_set():
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    hello = connection.recv(4096)
                    connection.sendall(hello[:8] + struct.pack("<IIII256s", 99, 0, 0, 0, b""))
                    connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        over.set()
        thread.join()
    path.unlink(missing_ok=True)


def case_partly(faults, p):
    """Some blocks of a prompt are lost, and those before them are used."""
    everything = PROMPT // BLOCK
    for _ in range(12):  # where the first one lies is a matter of chance: one of two enclosures
        number = faults.store()
        p.targets[1].signal(signal.SIGSTOP)
        blocks = faults.load(number)
        p.targets[1].signal(signal.SIGCONT)
        faults.wait_up()
        if 0 < blocks < everything and faults.last["cached"] > 0:
            return
    raise AssertionError("no prompt of 12 lay on both enclosures")


def case_faults(lab, kind):
    """Whatever happens to the pod during a warm load, the engine lives and says the same."""
    everything = PROMPT // BLOCK
    with lab.pod(f"{kind}-faults", targets=2, agents=2, volumes=[Faults.VOLUME]) as p:
        faults = Faults(lab, p, kind)
        agent = p.agents[1]
        faults.load("nothing happens", least=everything)

        number = faults.store()
        p.targets[1].signal(signal.SIGSTOP)
        faults.load(number)
        p.targets[1].signal(signal.SIGCONT)
        faults.wait_up()
        case_partly(faults, p)
        faults.wait_up()
        faults.load("an enclosure goes on", least=everything)

        number = faults.store()
        p.targets[0].signal(signal.SIGSTOP)
        faults.load(number, p.targets[0].kill)
        p.targets[0].start()
        p.targets[0].wait_ready()
        faults.wait_up()
        faults.load("an enclosure is back", least=everything)

        number = faults.store()
        agent.signal(signal.SIGSTOP)
        faults.load(number, most=0)
        agent.signal(signal.SIGCONT)
        faults.load("the agent goes on", least=everything)

        number = faults.store()
        agent.signal(signal.SIGSTOP)
        faults.load(number, agent.kill, most=0)
        faults.load("no agent", most=0)
        with other_version(agent.socket):
            faults.load("an agent of another version", most=0)
        agent.start()
        agent.wait_ready()
        faults.wait_up()
        faults.load("the agent is back", least=everything)

        config = agent.config_path.read_text()
        agent.kill()
        agent.config_path.write_text(config.replace("name: kv", "name: other"))
        agent.start()
        agent.wait_ready()
        faults.load("the volume is missing", most=0)
        faults.wait_down()
        agent.kill()
        agent.config_path.write_text(config)
        agent.start()
        agent.wait_ready()
        faults.wait_up()
        faults.load("the volume is back", least=everything)

        # By now more was stored than the volume may have; the first prompt is gone by its quota.
        assert sum(evicted(target) for target in p.targets) > 0
        agent.kill()
        faults.wait_down()
        agent.start()
        agent.wait_ready()
        faults.wait_up()
        faults.b.reset()
        faults.load(0, most=everything - 1)

        number = faults.store()
        for target in p.targets:
            flip_bytes(target)
        faults.load(number, most=0)
        misses = "vllm:kv_offload_icms_load_misses"
        assert counted(faults.last, misses, "reason=checksum") > 0, faults.last["metrics"]
        faults.a.end()
        faults.b.end()


def evicted(target):
    """Blocks that an enclosure has evicted."""
    return total(target, "icms_target_evictions_total")


def case_late(lab, kind):
    """An engine starts without its tier, says so once, and uses it when it comes."""
    configure, loaded = KINDS[kind]
    everything = PROMPT // BLOCK
    reference = lab.reference(prompt(0))
    with lab.pod(f"{kind}-late", agents=2) as p:
        first, late = p.agents
        late.kill()
        late.socket.unlink(missing_ok=True)
        engine = Engine(lab, configure(late), log=f"{kind}-late").ready()
        same(engine.ask(prompt(0)), reference, "without a tier")
        assert engine.log().count("no tier at") == 1, engine.log()[-2000:]
        other = Engine(lab, configure(first), log=kind).ready()
        same(other.ask(prompt(1)), lab.reference(prompt(1)), "another engine")
        wait_stored(first, 0, everything, BLOCK_BYTES)
        late.start()
        late.wait_ready()
        give_up = time.monotonic() + 60
        while not counted(engine.ask([7] * 50, tokens=1), "vllm:kv_offload_icms_up"):
            assert time.monotonic() < give_up, engine.log()[-2000:]
        answer = engine.ask(prompt(1))
        same(answer, lab.reference(prompt(1)), "with the tier that came")
        assert answer["cached"] == everything * BLOCK, answer
        assert counted(answer, loaded) == everything * BLOCK_BYTES, answer
        over_network(late, everything * BLOCK_BYTES)
        assert engine.log().count("no tier at") == 1
        engine.end()
        other.end()


def case_wrong(lab, kind):
    """What can never work is told when the engine starts, and nothing of it is ever used."""
    configure, loaded = KINDS[kind]
    before = shared_memory()
    small = {**VOLUME, "name": "small", "value_max": "64KiB"}
    with lab.pod(f"{kind}-wrong", volumes=[VOLUME, small]) as p:
        for wrong, says in (({"volume": "nothing"}, "the volume nothing of"),
                            ({"volume": "small"}, "raise its value_max"),
                            ({"where": "carrier pigeon:"}, "carrier pigeon:")):
            engine = Engine(lab, configure(p.agents[0], **wrong), log=f"{kind}-wrong")
            with contextlib.suppress(forked.Failed):
                engine.ready()
                raise RuntimeError(f"an engine started with {wrong}")
            assert says in engine.log(), engine.log()[-2000:]
        wait_no_memory(before)
        right = Engine(lab, configure(p.agents[0]), log=f"{kind}-right").ready()
        same(right.ask(prompt(0)), lab.reference(prompt(0)), "the first engine")
        wait_stored(p.agents[0], 0, PROMPT // BLOCK, BLOCK_BYTES)
        other = Engine(lab, configure(p.agents[0]), log=f"{kind}-seed", PYTHONHASHSEED="1").ready()
        give_up = time.monotonic() + 60
        while "would never share a block" not in other.log():
            assert time.monotonic() < give_up, other.log()[-2000:]
            time.sleep(0.1)
        answer = other.ask(prompt(0))
        same(answer, lab.reference(prompt(0)), "another seed")
        assert answer["cached"] == 0 and counted(answer, loaded) == 0, answer
        right.end()
        other.end()


def case_readme(lab):
    """The lines of our READMEs, with this pod's address and the tests' copy for CPUs."""
    lines = readme.objects("--kv-transfer-config", "README.md", "python/README.md")
    assert [line["kv_connector"] for line in lines] == ["OffloadingConnector", "IcmsConnector"]
    for line in lines:
        extra = line["kv_connector_extra_config"]
        with lab.pod("readme") as p:
            for options in [extra, *extra.get("secondary_tiers", ())]:
                if "where" in options:
                    assert options["where"] == "unix:", options
                    options["where"] = f"unix:{p.agents[0].socket}"
            if "spec_name" in extra:
                extra |= {"spec_name": "CpuTieringSpec", "spec_module_path": "cpu_spec",
                          "cpu_bytes_to_use": 256 << 20}
            engine = Engine(lab, line, log="readme").ready()
            same(engine.ask(prompt(0)), lab.reference(prompt(0)), line)
            wait_stored(p.agents[0], 0, PROMPT // BLOCK, BLOCK_BYTES)
            engine.end()


class Server:
    """vllm serve: an HTTP server and its engine, in processes of their own."""

    def __init__(self, lab, config):
        self.port = pod.free_port()
        self.log_path = lab.folder / f"serve-{self.port}.log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [str(lab.python), "-m", "vllm.entrypoints.cli.main", "serve",
                 str(lab.model("tiny")), "--host", "127.0.0.1", "--port", str(self.port),
                 "--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "4096",
                 "--enforce-eager", "--kv-transfer-config", json.dumps(config)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(lab),
                start_new_session=True)

    def wait_ready(self):
        give_up = time.monotonic() + forked.SECONDS
        while True:
            assert self.process.poll() is None and time.monotonic() < give_up, self.log()[-3000:]
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                time.sleep(1)
                return
            time.sleep(0.5)

    def ask(self, tokens):
        body = json.dumps({"model": "tiny", "prompt": tokens, "max_tokens": ANSWER, "logprobs": 1,
                           "temperature": 0, "ignore_eos": True,
                           "return_token_ids": True}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", body,
                                         {"Content-Type": "application/json"})
        begin = time.monotonic()
        with urllib.request.urlopen(request, timeout=forked.SECONDS) as answer:
            choice = json.load(answer)["choices"][0]
        return {"tokens": choice["token_ids"], "finish": choice["finish_reason"],
                "logprobs": sum(choice["logprobs"]["token_logprobs"]),
                "seconds": round(time.monotonic() - begin, 3)}

    def ask_unheard(self, tokens):
        """A request that nobody may answer."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.ask(tokens)

    def metric(self, *words):
        """The sum of the samples that have all of these words."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines
                   if not line.startswith("#") and all(word in line for word in words))

    def log(self):
        return self.log_path.read_text(errors="replace")

    def end(self, number=signal.SIGKILL):
        """A signal for all of its processes at once, as from a terminal or a service manager; again,
        for vLLM then waits for its clients, and at last SIGKILL.

        What ends in good order leaves no shared memory of any kind. When Python's cleaner of names is
        killed with the others, those of vLLM's own queues stay, with a tier or without.
        """
        names = self.shared_names()
        for number in (number, number, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=30)
                break
        if number == signal.SIGKILL:
            for path in names:
                if path.name.startswith(("psm_", "sem.mp-")):
                    path.unlink(missing_ok=True)
        else:
            give_up = time.monotonic() + 60
            while left := [path.name for path in names if path.exists()]:
                assert time.monotonic() < give_up, left
                time.sleep(0.1)

    def shared_names(self):
        """What its processes have mapped that has a name."""
        found = set()
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getpgid(int(process.name)) == self.process.pid:
                    found |= {pathlib.Path(line.split()[-1]) for line
                              in (process / "maps").read_text().splitlines()
                              if line.split()[-1].startswith("/dev/shm/")}
        return found


def shared_memory():
    """Names of vLLM's memory that no living process has mapped."""
    found = {str(path) for path in pathlib.Path("/dev/shm").glob("vllm_offload*")}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found -= {line.split()[-1] for line in (process / "maps").read_text().splitlines()
                      if "/dev/shm/" in line}
    return found


def wait_no_memory(before):
    """Asserts that no shared memory stays that was not there before."""
    give_up = time.monotonic() + 30
    while shared_memory() - before:
        assert time.monotonic() < give_up, shared_memory() - before
        time.sleep(0.1)


def meet_faults(lab, p, servers):
    """What the first server stores, the second does not get: its agent dies, and is away."""
    agent = p.agents[1]
    for number, fault in ((1, agent.kill), (2, None)):
        before = on_flash(p.agents[0])
        same(servers[0].ask(prompt(number)), lab.reference(prompt(number)), "the first server")
        wait_stored(p.agents[0], before, PROMPT // BLOCK, BLOCK_BYTES)
        if fault:
            agent.stand_still()
            timer = threading.Timer(0.3, fault)
            timer.start()
        same(servers[1].ask(prompt(number)), lab.reference(prompt(number)), "without an agent")
        if fault:
            timer.join()
    assert servers[1].metric("vllm:kv_offload_icms_up") == 0
    agent.start()
    agent.wait_ready()
    give_up = time.monotonic() + 60
    while servers[1].metric("vllm:kv_offload_icms_up") != 1:
        assert time.monotonic() < give_up, servers[1].log()[-2000:]
        servers[1].ask([7] * 50)
    before = on_flash(p.agents[0])
    same(servers[0].ask(prompt(3)), lab.reference(prompt(3)), "the first server")
    wait_stored(p.agents[0], before, PROMPT // BLOCK, BLOCK_BYTES)
    same(servers[1].ask(prompt(3)), lab.reference(prompt(3)), "with its agent again")
    over_network(agent, PROMPT // BLOCK * BLOCK_BYTES)


def case_serve(lab):
    """Two servers share the pod, and meet faults with vLLM's defaults."""
    blocks = PROMPT // BLOCK
    reference = lab.reference(prompt(0))
    before = shared_memory()
    servers = []
    with lab.pod("serve", agents=2) as p:
        try:
            servers += [Server(lab, tier(agent)) for agent in p.agents]
            for server in servers:
                server.wait_ready()
            for server in servers:
                answer = server.ask(prompt(0))
                same(answer, reference, "a server")
                if server is servers[0]:
                    wait_stored(p.agents[0], 0, blocks, BLOCK_BYTES)
                print(f"# serve: {answer['seconds']} s")
            loaded = servers[1].metric("vllm:kv_offload_icms_loaded_bytes_total", 'source="pod"')
            assert loaded == blocks * BLOCK_BYTES, loaded
            read = servers[1].metric("vllm:kv_offload_tiering_read_bytes_total", "IcmsTier")
            assert read == blocks * BLOCK_BYTES, read
            over_network(p.agents[1], blocks * BLOCK_BYTES)
            assert servers[1].metric("vllm:kv_offload_icms_up") == 1
            meet_faults(lab, p, servers)
        finally:
            for server in servers:
                server.end()
    wait_no_memory(before)


def case_interrupted(lab):
    """Servers that are interrupted, terminated and killed, at work, idle and while they start, leave
    no shared memory behind."""
    before = shared_memory()
    servers = []
    with lab.pod("interrupted") as p:
        try:
            servers += [Server(lab, configure(p.agents[0]))
                        for configure in (tier, tier, connector)]
            give_up = time.monotonic() + forked.SECONDS
            while "Created TieringOffloadingManager" not in servers[0].log():
                assert time.monotonic() < give_up and servers[0].process.poll() is None, \
                    servers[0].log()[-3000:]
                time.sleep(0.05)
            servers[0].end(signal.SIGKILL)
            wait_no_memory(before)
            for server, number in ((servers[1], signal.SIGINT), (servers[2], signal.SIGTERM)):
                server.wait_ready()
                work = threading.Thread(target=server.ask_unheard, args=(prompt(9),))
                work.start()
                time.sleep(0.5)
                server.end(number)
                work.join()
                wait_no_memory(before)
        finally:
            for server in servers:
                server.end()


def case_arrays(lab):
    """Arrays of NumPy and PyTorch, in place."""
    with lab.pod("arrays") as p:
        done = subprocess.run(
            [str(lab.python), str(HERE / "arrays.py"), f"unix:{p.agents[0].socket}"],
            env=environment(lab), capture_output=True, text=True, timeout=forked.SECONDS, check=False)
        assert done.returncode == 0 and "arrays are whole" in done.stdout, done.stdout + done.stderr


def cases():
    """{name: function of the lab}"""
    found = {}
    for kind in KINDS:
        found[f"{kind}-shared"] = lambda lab, kind=kind: case_shared(lab, kind)
    for kind in KINDS:
        found[f"{kind}-faults"] = lambda lab, kind=kind: case_faults(lab, kind)
    for kind in KINDS:
        found[f"{kind}-late"] = lambda lab, kind=kind: case_late(lab, kind)
        found[f"{kind}-wrong"] = lambda lab, kind=kind: case_wrong(lab, kind)
    found["readme"] = case_readme
    found["serve"] = case_serve
    found["interrupted"] = case_interrupted
    found["arrays"] = case_arrays
    for kind in KINDS:
        found[f"{kind}-real-model"] = lambda lab, kind=kind: case_shared(lab, kind, "smol")
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--venv", default="build/engines/vllm")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    lab = Lab(arguments)
    good = True
    for name, run in cases().items():
        if arguments.names and name not in arguments.names:
            continue
        begin = time.monotonic()
        try:
            run(lab)
            print(f"ok {name}", flush=True)
        except Exception:  # whatever it is, the other cases run
            good = False
            traceback.print_exc(file=sys.stdout)
            print(f"not ok {name}", flush=True)
        finally:
            for engine in set(lab.engines).difference(lab.bare.values()):
                engine.kill()
            print(f"# {name}: {time.monotonic() - begin:.0f} s", flush=True)
    lab.end()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
