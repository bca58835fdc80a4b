# SPDX-License-Identifier: Apache-2.0
"""Cases of what is there before it is asked for: hints of requests that wait, the choice between loading
and computing, and events for routers, of vLLM and of the agent."""
import json
import subprocess
import time
import types

import proxy
from lab import (BLOCK, BLOCK_BYTES, Engine, HERE, KINDS, PROMPT, VOLUME, counted, environment, on_flash,
                 prompt, same, status, wait_stored)

BLOCKS = PROMPT // BLOCK


def store(lab, p, engine, number):
    """An engine behind the first agent stores a prompt."""
    before = on_flash(p.agents[0])
    same(engine.ask(prompt(number)), lab.reference(prompt(number)), f"prompt {number}")
    wait_stored(p.agents[0], before, BLOCKS, BLOCK_BYTES)


def hints(agent):
    return status(agent)["volumes"][0]["prestage"]


def case_prestage(lab, kind):
    """While a request waits for its turn, its blocks come into the agent's memory."""
    configure, loaded = KINDS[kind]
    with lab.pod(f"{kind}-prestage", agents=2) as p:
        first = Engine(lab, configure(p.agents[0], weights="files"), log=f"{kind}-prestage-a").ready()
        for number in (0, 1):
            store(lab, p, first, number)
        second = Engine(lab, configure(p.agents[1], weights="files", prestage_ms=60000),
                        log=f"{kind}-prestage-b", options={"max_num_seqs": 1}).ready()
        # The first one keeps the engine busy, the other one is queued behind it.
        second.peer.tell(prompts=[prompt(7), prompt(1)], tokens=64)
        answer = second.hear()
        assert answer["answers"][1][:16] == lab.reference(prompt(1))["tokens"], answer["answers"]
        found = hints(p.agents[1])
        dram = counted(answer, loaded, "source=dram") // BLOCK_BYTES
        print(f"# {kind}: hints {found}, {dram} blocks from the agent's memory")
        assert found["taken"] >= BLOCKS, found
        assert found["in_time"] == BLOCKS and dram == BLOCKS, (found, answer["metrics"])
        assert counted(answer, loaded, "source=pod") == 0, answer["metrics"]
        first.end()
        second.end()


def case_estimate(lab, kind):
    """On a path that is slower than computing, blocks are computed; on a faster one they are loaded."""
    configure, loaded = KINDS[kind]
    with lab.pod(f"{kind}-estimate", agents=1) as p:
        target, link = p.targets[0], proxy.Proxy(p.targets[0].port)
        behind = types.SimpleNamespace(name=target.name, nqn=target.nqn, port=link.port)
        p.agents.append(p.add_agent("server-behind", [behind], [VOLUME], silence="5s"))
        p.agents[1].wait_ready()
        first = Engine(lab, configure(p.agents[0], weights="files"), log=f"{kind}-estimate-a").ready()
        second = Engine(lab, configure(p.agents[1], weights="files", load="faster", load_ms=60000),
                        log=f"{kind}-estimate-b").ready()
        for number in range(100, 103):  # so that it knows what its steps take
            same(second.ask(prompt(number)), lab.reference(prompt(number)), f"prompt {number}")

        def ask(number):
            """Blocks of a prompt of the first engine that the second one loads."""
            store(lab, p, first, number)
            answer = second.ask(prompt(number))
            same(answer, lab.reference(prompt(number)), f"prompt {number}")
            return answer["cached"] // BLOCK

        fast = next((i for i in range(10) if ask(i) == BLOCKS), None)
        assert fast is not None, "nothing was loaded on a path that is not throttled"
        link.bytes_per_s = 100_000  # a prompt takes 160 s
        slow = next((i for i in range(10, 20) if ask(i) == 0), None)
        assert slow is not None, "everything was loaded on a path of 100 kB/s"
        slower = [ask(i) for i in range(20, 23)]
        assert slower == [0, 0, 0], slower
        link.bytes_per_s = 0
        again = next((i for i in range(30, 50) if ask(i) == BLOCKS), None)
        assert again is not None, "a path that was repaired is not used"
        print(f"# {kind}: loads begin with prompt {fast}, end with {slow - 10}, begin again with {again - 30}")
        first.end()
        second.end()


class Router:
    """listen.py, and what it printed so far."""

    def __init__(self, lab, *arguments):
        self.path = lab.folder / f"events-{len(arguments)}-{time.monotonic_ns()}"
        with open(self.path, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen([str(lab.python), str(HERE / "listen.py"), *arguments],
                                            env=environment(lab), stdout=out, stderr=subprocess.STDOUT)
        self.wait(lambda events: "ready" in self.lines(), "a router")

    def lines(self):
        found = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            if line.startswith(('{"from"', '"ready"')):
                found.append(json.loads(line))
        return found

    def events(self, source=None):
        return [line for line in self.lines() if line != "ready" and source in (None, line["from"])]

    def wait(self, good, what, seconds=120):
        give_up = time.monotonic() + seconds
        while not good(self.events()):
            assert time.monotonic() < give_up, f"{what}: {self.path.read_text()[-3000:]}"
            time.sleep(0.1)

    def end(self):
        self.process.kill()
        self.process.wait()


def hashes(events, kind, medium):
    return [one for event in events for one in event.get("hashes", ())
            if event["type"] == kind and event["medium"] == medium]


def case_events(lab, kind):
    """A router hears of vLLM, with hashes and tokens, what the pod has, and of the agent what its memory
    has: what comes, what is evicted, and the same once more as a replay."""
    configure, _ = KINDS[kind]
    small = {**VOLUME, "memory_max": "40MiB"}  # two prompts, and a part of the next
    with lab.pod(f"{kind}-events", agents=0, volumes=[small]) as p:
        endpoint = {name: f"ipc://{p.folder}/{name}" for name in ("engine", "agent", "replay")}
        p.agents = [p.add_agent("server-0", p.targets, [small], events=(
            f"[{{volume: kv, endpoint: '{endpoint['agent']}', replay: '{endpoint['replay']}'}}]"))]
        p.agents[0].wait_ready()
        router = Router(lab, endpoint["engine"], endpoint["agent"])
        config = configure(p.agents[0], weights="files", events=endpoint["agent"])
        config["kv_connector_extra_config"]["self_describing_kv_events"] = True
        engine = Engine(lab, config, log=f"{kind}-events", options={"kv_events_config": {
            "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint["engine"]}}).ready()
        for number in range(4):
            store(lab, p, engine, number)
            engine.ask([7] * 50, tokens=1)  # a step more: events are taken there
        what = prompt(0)[:BLOCKS * BLOCK]

        def of_engine(events, locality):
            return [event for event in events if event["from"] == endpoint["engine"]
                    and event.get("ownership") == "icms" and event["locality"] == locality]

        def told(events):
            of = [event for event in events if event["from"] == endpoint["agent"]]
            near = of_engine(events, "LOCAL")
            return (len(hashes(of_engine(events, "REMOTE"), "BlockStored", "STORAGE")) == 4 * BLOCKS
                    and len(hashes(of, "BlockStored", "CPU")) >= 4 * BLOCKS
                    and len(hashes(of, "BlockRemoved", "CPU")) >= BLOCKS
                    and len(hashes(near, "BlockStored", "CPU")) >= 4 * BLOCKS
                    and len(hashes(near, "BlockRemoved", "CPU")) >= BLOCKS)

        for _ in range(20):  # vLLM asks for events in its steps
            engine.ask([7] * 50, tokens=1)
            if told(router.events()):
                break
            time.sleep(0.5)
        router.wait(told, "events")
        own = of_engine(router.events(), "REMOTE")
        assert {event["medium"] for event in own} == {"STORAGE"}, own[:3]
        tokens = [token for event in own[:BLOCKS] for token in event["tokens"]]
        assert sorted(tokens) == sorted(what), own[:BLOCKS]
        near = of_engine(router.events(), "LOCAL")
        assert set(hashes(near, "BlockStored", "CPU")) == set(hashes(own, "BlockStored", "STORAGE"))
        assert set(hashes(near, "BlockRemoved", "CPU")) <= set(hashes(near, "BlockStored", "CPU"))
        of = router.events(endpoint["agent"])
        assert all(event["ownership"] == "icms" and event["locality"] == "LOCAL" for event in of), of[:3]
        assert all(event["tokens"] == [] and event["block_size"] == 0 for event in of
                   if event["type"] == "BlockStored"), of[:3]
        there = {}
        for event in of:
            for one in event["hashes"]:
                there[one] = event["type"] == "BlockStored"
        assert len(there) >= 4 * BLOCKS and 0 < sum(there.values()) < len(there), there

        replay = Router(lab, "--replay", endpoint["replay"])
        assert replay.process.wait(60) == 0, replay.path.read_text()
        again = [{**event, "from": endpoint["agent"]} for event in replay.events()]
        assert again[0]["type"] == "AllBlocksCleared" and again[0]["seq"] == 0, again[0]
        assert again[-len(of):] == of, (len(again), len(of))
        lost = [value for name, value in p.agents[0].metrics().items() if "events_lost" in name]
        assert lost == [0], lost
        engine.reset()
        engine.ask([7] * 50, tokens=1)
        router.wait(lambda events: any(
            event["type"] == "BlockRemoved" and event["ownership"] == "icms"
            for event in events if event["from"] == endpoint["engine"]), "a reset")
        print(f"# {kind}: {len(own)} events of the pod and {len(near)} of the agent's memory by the engine, "
              f"{len(of)} of the agent's own, "
              f"{sum(there.values())} of {len(there)} blocks stay")
        engine.end()
        router.end()


#: Of IcmsTier alone: vLLM knows no events of other connectors, and IcmsConnector hints by itself.
CASES = {"prestage": case_prestage, "estimate": case_estimate, "events": case_events}
