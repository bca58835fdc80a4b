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
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]
import readme  # noqa: E402
from engines import forked  # noqa: E402
import ahead  # noqa: E402
import identities  # noqa: E402
import parallel  # noqa: E402
from server import Server  # noqa: E402
from lab import (BLOCK, BLOCK_BYTES, Engine, HERE, KINDS, Lab, MODELS, PROMPT, VOLUME,  # noqa: E402
                 connector, counted, environment, on_flash, over_network, prompt, same, status, tier,
                 total, wait_stored)


def case_shared(lab, kind, model="tiny"):
    """Cold, warm in the process, warm in another process behind another agent."""
    configure, loaded = KINDS[kind]
    blocks = PROMPT // BLOCK
    what, block_bytes = MODELS[model]
    volume = {**VOLUME, "value_max": "8MiB"}
    with lab.pod(f"{kind}-{model}", agents=2, volumes=[volume]) as p:
        first = Engine(lab, configure(p.agents[0], weights="files"), model, kind).ready()
        cold = first.ask(what)
        reference = lab.reference(what, model)
        same(cold, reference, "cold")
        assert cold["cached"] == 0, cold
        wait_stored(p.agents[0], 0, blocks, block_bytes)
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
        # A hint may have brought some into that agent's memory before; over the network each came once.
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

    VOLUME = {**VOLUME, "memory_max": "64MiB", "run_blocks": 2, "quota": "64MiB"}

    def __init__(self, lab, p, kind):
        self.lab, self.p = lab, p
        configure, self.loaded = KINDS[kind]
        self.a = Engine(lab, configure(p.agents[0]), log=f"{kind}-a").ready()
        self.b = Engine(lab, configure(p.agents[1], load_ms=3000, weights="files"),
                        log=f"{kind}-b").ready()
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
        # The engine finds that, or its agent does, which loads what the request in the queue hints at: then the
        # damaged blocks are gone when the engine looks for them.
        misses = counted(faults.last, "vllm:kv_offload_icms_load_misses", "reason=checksum")
        found = sum(total(agent, "icms_agent_checksum_errors_total") for agent in p.agents)
        assert misses + found > 0, faults.last["metrics"]
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
        assert engine.log().count("no agent: ") == 1, engine.log()[-2000:]
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
        assert engine.log().count("no agent: ") == 1
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
        remove_memory(before)  # of engines that did not get to their end
        right = Engine(lab, configure(p.agents[0]), log=f"{kind}-right").ready()
        same(right.ask(prompt(0)), lab.reference(prompt(0)), "the first engine")
        wait_stored(p.agents[0], 0, PROMPT // BLOCK, BLOCK_BYTES)
        other = Engine(lab, configure(p.agents[0]), log=f"{kind}-seed", PYTHONHASHSEED="1").ready()
        give_up = time.monotonic() + 60
        while "set PYTHONHASHSEED and --prefix-caching-hash-algo alike" not in other.log():
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
    assert [line["kv_connector"] for line in lines] == ["IcmsOffloadingConnector", "IcmsConnector"]
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


def remove_memory(before):
    """Removes what engines have left that are gone, or will be in a moment, as operators do."""
    time.sleep(2)
    for path in shared_memory() - before:
        os.unlink(path)


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


def probe_readiness(server):
    """The line of doc/engines.md is true of an idle server, and false with a limit that it exceeds."""
    lines = (ROOT / "doc/engines.md").read_text().splitlines()
    line = next(line for line in lines if "/^vllm:kv_cache_usage_perc/" in line).strip()
    line = line.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    for limit, code in (("0.95", 0), ("0", 1)):
        done = subprocess.run(["bash", "-c", line.replace("0.95", limit)], check=False)
        assert done.returncode == code, (line, limit, done.returncode)


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
            loaded = servers[1].metric("vllm:kv_offload_icms_loaded_bytes_total")  # from the pod, or brought by its hint
            assert loaded == blocks * BLOCK_BYTES, loaded
            read = servers[1].metric("vllm:kv_offload_tiering_read_bytes_total", "IcmsTier")
            assert read == blocks * BLOCK_BYTES, read
            over_network(p.agents[1], blocks * BLOCK_BYTES)
            assert servers[1].metric("vllm:kv_offload_icms_up") == 1
            probe_readiness(servers[1])
            meet_faults(lab, p, servers)
        finally:
            for server in servers:
                server.end()
    remove_memory(before)


def case_interrupted(lab):
    """Servers that are interrupted, terminated and killed, at work and while they start, end, and
    leave no shared memory of ours behind. vLLM's own for IcmsTier may stay, and hinders no other."""
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
            remove_memory(before)
            for server, number in ((servers[1], signal.SIGINT), (servers[2], signal.SIGTERM)):
                server.wait_ready()
                work = threading.Thread(target=server.ask_unheard, args=(prompt(9),))
                work.start()
                time.sleep(0.5)
                server.end(number)
                work.join()
                if server is servers[1]:
                    remove_memory(before)
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
        for name, case in {**identities.CASES, **parallel.CASES, **ahead.CASES_OF_BOTH}.items():
            found[f"{kind}-{name}"] = lambda lab, kind=kind, case=case: case(lab, kind)
    for name, case in ahead.CASES.items():
        found[f"tier-{name}"] = lambda lab, case=case: case(lab, "tier")
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
