# SPDX-License-Identifier: Apache-2.0
"""Cases of what is there before it is asked for: hints of requests that wait, the choice between loading
and computing, events for routers, of vLLM and of the agent, and routers that ask and hint by a model's name."""
import json
import re
import subprocess
import time
import types
import urllib.request

import pod
import proxy
from lab import (BLOCK, BLOCK_BYTES, Engine, HERE, KINDS, PROMPT, VOLUME, counted, environment, on_flash,
                 over_network, prompt, same, status, wait_stored)

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
        # The first one keeps the engine busy, the other one is queued behind it. It has no whole block: vLLM looks
        # at the next one while it waits for an answer what there is of one, which then begins its loads at once.
        second.peer.tell(prompts=[prompt(7, BLOCK - 1), prompt(1)], tokens=64)
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

        loads, compared = [], []

        def ask(number):
            """Blocks of a prompt of the first engine that the second one loads."""
            store(lab, p, first, number)
            answer = second.ask(prompt(number))
            same(answer, lab.reference(prompt(number)), f"prompt {number}")
            loads.append(answer["cached"] // BLOCK)
            compared.append(counted(answer, "vllm:kv_offload_icms_expected_loads"))
            return loads[-1]

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
        ask(50)  # what vLLM shows may be that of the step before
        assert 0 < compared[-1] <= sum(load > 0 for load in loads), (compared, loads)
        print(f"# {kind}: loads begin with prompt {fast}, end with {slow - 10}, begin again with {again - 30}; "
              f"blocks loaded of {BLOCKS}: {loads}; loads compared with what was expected: {compared}")
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


class Dynamo:
    """Dynamo's own subscriber and index of KV events, which its router asks, as a server of its own."""

    WORKER = "7"

    def __init__(self, lab, endpoint):
        self.port = pod.free_port()
        self.path = lab.folder / "dynamo.log"
        with open(self.path, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen(
                [str(lab.build / "engines/dynamo/bin/python"), "-m", "dynamo.indexer",
                 "--port", str(self.port), "--block-size", str(BLOCK),
                 "--workers", f"{self.WORKER}={endpoint}"], stdout=out, stderr=subprocess.STDOUT)
        give_up = time.monotonic() + 60
        while "recv loop" not in self.path.read_text(encoding="utf-8"):
            assert time.monotonic() < give_up and self.process.poll() is None, self.path.read_text()
            time.sleep(0.1)

    def matched(self, tokens):
        """How many tokens of a prompt the worker has: on its GPU, with its memory, with what is near."""
        body = json.dumps({"token_ids": tokens, "model_name": "default"}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/query", body,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            of = json.load(answer)["instances"].get(self.WORKER, {})
        return tuple(of.get(tier, 0) for tier in ("gpu", "cpu", "disk"))

    def end(self):
        self.process.kill()
        self.process.wait()


def named(events):
    """The hash of each block by its tokens, of the events that have tokens."""
    return {tuple(event["tokens"][i * BLOCK:(i + 1) * BLOCK]): one
            for event in events if event.get("tokens") for i, one in enumerate(event["hashes"])}


def chain_of(tokens, blocks):
    """The hashes of a prompt's whole blocks, first to last; None where there is none."""
    return [blocks.get(tuple(tokens[i * BLOCK:(i + 1) * BLOCK])) for i in range(len(tokens) // BLOCK)]


def believed(events):
    """What a prefix has at most by these events of an engine: of each prompt 0 to 3 the tokens of GPU,
    of memory and of what is near, as Dynamo counts them: each tier goes on where the one before ends."""
    there, blocks = {"GPU": set(), "CPU": set(), "STORAGE": set()}, named(events)
    for event in events:
        if event["type"] == "AllBlocksCleared":
            there = {medium: set() for medium in there}
        elif event["locality"] != "REMOTE":
            medium = there[event["medium"]]
            change = medium.update if event["type"] == "BlockStored" else medium.difference_update
            change(event["hashes"])
    answer = []
    for number in range(4):
        count, reached = 0, []
        chain = chain_of(prompt(number), blocks)
        for medium in ("GPU", "CPU", "STORAGE"):
            while count < BLOCKS and chain[count] in there[medium]:
                count += 1
            reached.append(count * BLOCK)
        answer.append(tuple(reached))
    return answer


def hashes(events, kind, medium):
    return [one for event in events for one in event.get("hashes", ())
            if event["type"] == kind and event["medium"] == medium]


def case_events(lab, kind):
    """A router hears of vLLM, with hashes and tokens, what the pod has and what the agent's memory has: what
    comes and what is evicted; of the agent the latter, by its own hashes, and the same once more as a replay.
    Dynamo's index of routers says how much of each prompt the server has, and follows evictions and a reset."""
    configure, _ = KINDS[kind]
    small = {**VOLUME, "memory_max": "40MiB"}  # two prompts, and a part of the next
    with lab.pod(f"{kind}-events", agents=0, volumes=[small]) as p:
        endpoint = {name: f"ipc://{p.folder}/{name}" for name in ("engine", "agent", "replay")}
        p.agents = [p.add_agent("server-0", p.targets, [small], events=(
            f"[{{volume: kv, endpoint: '{endpoint['agent']}', replay: '{endpoint['replay']}'}}]"))]
        p.agents[0].wait_ready()
        router = Router(lab, endpoint["engine"], endpoint["agent"])
        dynamo = Dynamo(lab, endpoint["engine"])

        def start(log, **options):
            config = configure(p.agents[0], weights="files", events=endpoint["agent"], **options)
            config["kv_connector_extra_config"]["self_describing_kv_events"] = True
            config["kv_connector_extra_config"]["cpu_bytes_to_use"] = 12 * BLOCK_BYTES
            return Engine(lab, config, log=log, options={
                "num_gpu_blocks_override": 16, "max_model_len": 1536, "kv_events_config": {
                    "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint["engine"]}}).ready()

        engine = start(f"{kind}-events")
        for number in range(4):
            store(lab, p, engine, number)
            engine.ask([7] * 50, tokens=1)  # a step more: events are taken there
        what = prompt(0)[:BLOCKS * BLOCK]

        def of_engine(events, locality):
            return [event for event in events if event["from"] == endpoint["engine"]
                    and event.get("locality") == locality]

        def told(events):
            of = [event for event in events if event["from"] == endpoint["agent"]]
            near = of_engine(events, "LOCAL")
            return (len(hashes(of_engine(events, "REMOTE"), "BlockStored", "STORAGE")) == 4 * BLOCKS
                    and len(hashes(of, "BlockStored", "CPU")) >= 4 * BLOCKS
                    and len(hashes(of, "BlockRemoved", "CPU")) >= BLOCKS
                    and len(hashes(near, "BlockStored", "STORAGE")) >= 4 * BLOCKS
                    and len(hashes(near, "BlockRemoved", "STORAGE")) >= BLOCKS)

        for _ in range(20):  # vLLM asks for events in its steps
            engine.ask([7] * 50, tokens=1)
            if told(router.events()):
                break
            time.sleep(0.5)
        router.wait(told, "events")
        own = of_engine(router.events(), "REMOTE")
        assert {(event["medium"], event["ownership"]) for event in own} == {("STORAGE", "icms")}, own[:3]
        tokens = [token for event in own[:BLOCKS] for token in event["tokens"]]
        assert sorted(tokens) == sorted(what), own[:BLOCKS]
        near = of_engine(router.events(), "LOCAL")
        assert {(event["medium"], event["ownership"]) for event in near} == {("STORAGE", None)}, near[:3]
        assert set(hashes(near, "BlockStored", "STORAGE")) == set(hashes(own, "BlockStored", "STORAGE"))
        assert set(hashes(near, "BlockRemoved", "STORAGE")) <= set(hashes(near, "BlockStored", "STORAGE"))
        found = agreed(router, dynamo, endpoint["engine"])
        assert any(disk > cpu for _, cpu, disk in found), f"nothing is near alone: {found}"
        assert any(disk == 0 for *_, disk in found), f"nothing was evicted: {found}"
        of, count = follow_agent(router, endpoint["agent"]), len(own)
        replayed(lab, endpoint, of)
        lost = [value for name, value in p.agents[0].metrics().items() if "events_lost" in name]
        assert lost == [0], lost
        engine.reset()
        engine.ask([7] * 50, tokens=1)
        router.wait(lambda events: any(event["type"] == "BlockRemoved" and event["ownership"] == "icms"
                                       for event in of_engine(events, "REMOTE")), "a reset")
        after = agreed(router, dynamo, endpoint["engine"])
        assert after == [(0, 0, 0)] * 4, after
        print(f"# {kind}: {count} events of the pod and {len(near)} of the agent's memory by the engine, "
              f"{len(of)} of the agent's own; Dynamo has of four prompts in GPU, memory, near: {found}")
        engine.end()
        told_before = len(hashes(of_engine(router.events(), "LOCAL"), "BlockStored", "STORAGE"))
        engine = start(f"{kind}-events-late", events_replay=endpoint["replay"])  # the agent has blocks by now
        for _ in range(20):
            engine.ask(prompt(3), tokens=1)
            late = len(hashes(of_engine(router.events(), "LOCAL"), "BlockStored", "STORAGE")) - told_before
            if late > 0:
                break
            time.sleep(0.5)
        assert late > 0, "an engine that comes later says nothing of what the agent has"
        engine.end()
        router.end()
        dynamo.end()


def agreed(router, dynamo, source):
    """What Dynamo's index has of four prompts, once that is what the events say."""
    give_up = time.monotonic() + 30
    while True:
        expected = believed(router.events(source))
        found = [dynamo.matched(prompt(number)) for number in range(4)]
        if found == expected:
            return found
        assert time.monotonic() < give_up, f"Dynamo says {found}, the events {expected}"
        time.sleep(0.5)


def follow_agent(router, source):
    """The agent's own events, checked: no tokens, and some of its blocks left."""
    of = router.events(source)
    assert all(event["ownership"] == "icms" and event["locality"] == "LOCAL" for event in of), of[:3]
    assert all(event["tokens"] == [] and event["block_size"] == 0 for event in of
               if event["type"] == "BlockStored"), of[:3]
    there = {}
    for event in of:
        for one in event["hashes"]:
            there[one] = event["type"] == "BlockStored"
    assert len(there) >= 4 * BLOCKS and 0 < sum(there.values()) < len(there), there
    return of


def replayed(lab, endpoint, of):
    """The agent's replay ends with the same events."""
    replay = Router(lab, "--replay", endpoint["replay"])
    assert replay.process.wait(60) == 0, replay.path.read_text()
    again = [{**event, "from": endpoint["agent"]} for event in replay.events()]
    assert again[0]["type"] == "AllBlocksCleared" and again[0]["seq"] == 0, again[0]
    assert again[-len(of):] == of, (len(again), len(of))


ROUTED = "org/tiny"
UNHASHED = "org/unhashed"  # the same, but for how vLLM hashes
SEEDED = "org/seeded"  # with another seed
SEED = "hash_seed: '0"  # of the lab's engines


def entry(engine):
    """What the adapter of an engine says belongs under models in icms-agent.yaml, but for the name."""
    give_up = time.monotonic() + 60
    while True:
        found = re.findall(r"an entry of models in icms-agent\.yaml, but for its name: \{([^}]+)\}", engine.log())
        if found:
            return found[-1]
        assert time.monotonic() < give_up, engine.log()[-3000:]
        time.sleep(0.1)


def wait_link(engine, is_up):
    """Waits until an engine has noticed that its agent is gone, or is back."""
    give_up = time.monotonic() + 60
    while bool(counted(engine.ask([7] * 50, tokens=1), "vllm:kv_offload_icms_up")) != is_up:
        assert time.monotonic() < give_up, engine.log()[-2000:]
        time.sleep(0.1)


def copy_entry(agents, engine):
    """An operator copies what the engine's log says into the agents' files, and starts them again."""
    said = entry(engine)
    for agent in agents:
        agent.kill()
        with open(agent.config_path, "a", encoding="utf-8") as config:
            config.write(f"models: [{{name: {ROUTED}, {said}}}, {{name: {UNHASHED}, {said.partition(', hash: ')[0]}}}, "
                         f"{{name: {SEEDED}, {said.replace(SEED, SEED + '1')}}}]\n")
    wait_link(engine, False)
    for agent in agents:
        agent.start()
        agent.wait_ready()
    wait_link(engine, True)
    return said


def post(agent, path, what, **more):
    """(status, answer) of POST, of hashes or of another body."""
    body = {"hashes": what} if isinstance(what, list) else what
    code, text = agent.post(path, {"model": ROUTED, **body, **more})
    return code, json.loads(text)


def altered(sent, at):
    """The same hashes, but for one."""
    return [*sent[:at], f"{int(sent[at], 16) ^ 1:064x}", *sent[at + 1:]]


def refused(agent, sent, block_tokens):
    """What a router does wrong is said, and what is no hash of this model's blocks is in no agent."""
    for path in ("/v1/match", "/v1/prestage"):
        for body, says in (({"model": "org/other", "hashes": sent}, "not one of this agent's models"),
                           ({"hashes": [int(one, 16) % 2**64 for one in sent]}, "send each hash whole"),
                           ({"hashes": [f"0x{one}" for one in sent]}, "entry 0 is not 2 to 128 digits of hex"),
                           ({"hashes": [one[-16:] for one in sent]}, "entry 0 has 8 bytes, where"),
                           ({"hashes": [f"{one}00000000" for one in sent]}, "entry 0 has 36 bytes, where"),
                           ({"model": UNHASHED, "tokens": prompt(0)}, "are made of hashes: send those"),
                           ({"tokens": prompt(0), "hashes": sent}, "model: send tokens (an array or base64) or hashes")):
            code, answer = post(agent, path, body)
            assert code == 400 and says in answer["why"], (path, says, answer)
    short, none = {"tokens": prompt(0)[:block_tokens - 1]}, {"dram": 0, "local": 0, "block_tokens": block_tokens}
    assert post(agent, "/v1/match", short) == (200, {"of": 0, **none})
    assert post(agent, "/v1/prestage", short) == (202, {"hints": 0})
    for others in ({"model": UNHASHED, "hashes": [one[-16:] for one in sent]}, altered(sent, 0),
                   {"model": SEEDED, "tokens": prompt(0)}, {"tokens": prompt(1)}):
        assert post(agent, "/v1/match", others) == (200, {"of": len(sent), **none}), others


def case_models(lab, kind):
    """A router names a model by the entry that the adapter logs, and sends the hashes that vLLM publishes, or
    tokens alone: it learns how much of a prompt an agent has, and has the rest brought before an engine asks for it."""
    for chunk in (1, 2) if kind == "tier" else (1,):
        route(lab, kind, chunk)


def route(lab, kind, chunk):
    """chunk: so many of vLLM's blocks are one of the tier's, which has the hash of its last one."""
    configure, loaded = KINDS[kind]
    algorithm = "sha256" if chunk == 1 else "sha256_cbor"
    with lab.pod(f"{kind}-models", agents=2) as p:
        first, second = p.agents
        endpoint = f"ipc://{p.folder}/engine"
        router = Router(lab, endpoint)

        def start(agent, name, **options):
            config = configure(agent, weights="files", prestage_ms=0)
            if chunk > 1:
                config["kv_connector_extra_config"]["blocks_per_chunk"] = chunk
            return Engine(lab, config, log=f"{kind}-models-{name}",
                          options={"prefix_caching_hash_algo": algorithm, **options},
                          VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES="0").ready()

        engine = start(first, "a", kv_events_config={
            "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint})
        said = copy_entry(p.agents, engine)
        assert f", hash: {algorithm}, {SEED}'" in said and (f", hash_tokens: {BLOCK}" in said) == (chunk > 1), said
        store(lab, p, engine, 0)

        def published():
            return chain_of(prompt(0), named(event for event in router.events() if event.get("medium") == "GPU"))

        router.wait(lambda _: None not in published(), "hashes of a prompt")
        assert all(re.fullmatch("[0-9a-f]{64}", one) for one in published()), published()
        sent = published()[chunk - 1::chunk]
        count, less = len(sent), len(sent) - 2
        assert count == BLOCKS // chunk, sent

        def has(agent, some, dram):
            found = post(agent, "/v1/match", some)
            assert found == (200, {"of": count, "dram": dram, "local": dram,
                                   "block_tokens": chunk * BLOCK}), (agent.name, found, dram)

        tokens = prompt(0)
        begin = tokens[:less * chunk * BLOCK]  # and others behind it
        for some, dram in ((sent, count), ({"tokens": tokens}, count), (altered(sent, less), less),
                           ({"tokens": begin + prompt(1)[len(begin):]}, less)):
            has(first, some, dram)
        for some in (sent, {"tokens": tokens}):
            has(second, some, 0)
        tail = altered(sent, less)
        assert post(second, "/v1/prestage", tail, deadline_ms=600000) == (202, {"hints": count})
        wait_hints(second, waiting=less, absent=2)
        has(second, sent, less)
        assert post(second, "/v1/prestage", {"tokens": tokens}, deadline_ms=600000) == (202, {"hints": count})
        wait_hints(second, waiting=count, absent=2)
        for some in (sent, {"tokens": tokens}):
            has(second, some, count)
        over_network(second, BLOCKS * BLOCK_BYTES)
        refused(second, sent, chunk * BLOCK)
        other = start(second, "b")
        assert entry(other) == said, (entry(other), said)
        answer = other.ask(prompt(0))
        same(answer, lab.reference(prompt(0)), "an engine for which a router gave hints")
        assert counted(answer, loaded, "source=dram") == BLOCKS * BLOCK_BYTES, answer["metrics"]
        assert counted(answer, loaded, "source=pod") == 0, answer["metrics"]
        wait_hints(second, waiting=0, in_time=count, absent=2)
        in_time = second.metrics()['icms_agent_prestage_hints_total{result="in_time",volume="kv"}']
        assert in_time == count, second.metrics()
        print(f"# {kind}: {said}; hints of {less} hashes, and of tokens {hints(second)}")
        engine.end()
        other.end()
        router.end()


def wait_hints(agent, **counts):
    """Waits until an agent has counted so many hints."""
    give_up = time.monotonic() + 120
    while {name: hints(agent)[name] for name in counts} != counts:
        assert time.monotonic() < give_up, f"{hints(agent)} instead of {counts}"
        time.sleep(0.1)


#: Of IcmsTier alone: vLLM knows no events of other connectors, and IcmsConnector hints by itself.
CASES = {"prestage": case_prestage, "estimate": case_estimate, "events": case_events}
#: Of both: all that vLLM computes it publishes with its hashes.
CASES_OF_BOTH = {"models": case_models}
