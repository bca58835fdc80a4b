# SPDX-License-Identifier: Apache-2.0
"""What tests of IcmsTier have in the place of vLLM's engine: its manager, its memory, its keys."""
import hashlib
import random
import time
import types

import icms
import vllm_stand_ins as stand_ins
import zmq_stand_ins
from support import VALUE_BYTES, value, wait_for

stand_ins.install()
zmq_stand_ins.install()
from icms.vllm.tier import IcmsTier  # noqa: E402

CHUNKS = 12  # of the engine's memory
TOKENS = 16  # of a chunk
HIT, PENDING, MISS, RETRY = (stand_ins.LookupResult[name] for name in ("HIT", "HIT_PENDING", "MISS", "RETRY"))


def spec(model="m", groups=(0,), events=False, blocks=1):
    group = [types.SimpleNamespace(group_id=i, tokens_per_block=TOKENS, layer_names=("a", "b"))
             for i in groups]
    parallel = types.SimpleNamespace(tp_size=1, pp_size=1, pcp_size=1, dcp_size=1)
    told = types.SimpleNamespace(enable_kv_cache_events=events, self_describing_kv_events=events)
    return types.SimpleNamespace(kv_events_config=told, config=types.SimpleNamespace(
        groups=group, parallel=parallel, kv_cache_layout="LBHNC", replicated_layout=False,
        canonical_layout=False, cache=types.SimpleNamespace(blocks_per_chunk=blocks,
                                                            tokens_per_hash=TOKENS),
        model=types.SimpleNamespace(name=model, dtype="float32")))


def engine_of(model="m", **config):
    group = types.SimpleNamespace(layer_names=("a", "b"), kv_cache_spec=types.SimpleNamespace(
        block_size=TOKENS))
    return stand_ins.engine_of(stand_ins.vllm_config(model, **config),
                               types.SimpleNamespace(kv_cache_groups=[group]))


class Engine:
    """As much of vLLM's manager as the tier meets."""

    def __init__(self, test, where, chunk_bytes=VALUE_BYTES, model="m", config=None,
                 kv_events=False, groups=(0,), blocks=1, **options):
        self.memory = bytearray(CHUNKS * chunk_bytes)
        view = memoryview(self.memory).cast("B", (CHUNKS, chunk_bytes))
        self.chunk_bytes = chunk_bytes
        self.jobs = 0
        self.engine = engine_of(model, **config or {})
        with self.engine.making():
            self.tier = IcmsTier(spec(model, groups, kv_events, blocks), view, "1",
                                 **{"where": where, "volume": "kv", "weights": "w", **options})
        test.addCleanup(self.end)

    def end(self):
        if self.tier is not None:
            self.engine.close()
            self.tier.shutdown()
            self.tier = None

    def wait_up(self):
        wait_for(lambda: self.tier._link.up)
        return self

    def request(self, prompt, count=CHUNKS, params=None):
        context = stand_ins.ReqContext(f"{random.random()}", params)
        names = chunks(prompt, count)
        context._offload_key_positions.update(
            {name: (i + 1) * TOKENS for i, name in enumerate(names)})
        self.tier.on_new_request(context)
        return context, names

    def end_step(self, preempted=()):
        self.tier.on_schedule_end(stand_ins.ScheduleEndContext(preempted_req_ids=preempted))

    def lookup(self, context, names, seconds=20):
        """The last answers, and how many steps were RETRY. A step with hits has not ended then: vLLM first loads
        them, see `job`."""
        give_up = time.monotonic() + seconds
        steps = 0
        while True:
            found = [self.tier.lookup(name, context) for name in names]
            if HIT not in found:
                self.end_step()
            if RETRY not in found:
                return found, steps
            assert time.monotonic() < give_up, found
            steps += 1
            time.sleep(0.001)

    def job(self, context, names, chunk_ids, load):
        self.jobs += 1
        job = stand_ins.TransferJob(self.jobs, names, chunk_ids, load, context)
        (self.tier.submit_load if load else self.tier.submit_store)(job)
        self.end_step()
        return self.finished(self.jobs)

    def finished(self, number, seconds=20):
        give_up = time.monotonic() + seconds
        while True:
            for result in self.tier.get_finished_jobs():
                assert result.job_id == number
                return result
            assert time.monotonic() < give_up
            time.sleep(0.001)

    def chunk(self, i):
        return bytes(self.memory[i * self.chunk_bytes:(i + 1) * self.chunk_bytes])

    def fill(self, prompt, count=CHUNKS):
        for i in range(count):
            self.memory[i * self.chunk_bytes:(i + 1) * self.chunk_bytes] = value(
                f"{prompt} {i}", self.chunk_bytes)

    def near(self):
        """The keys of chunks that are said to be in the agent's tiers since the last time."""
        return {key for event in self.tier.take_events() if event.locality.value == "LOCAL" and not event.removed
                for key in event.keys}

    def events(self):
        """[(whether the chunks left, their keys)] since the last time."""
        return [(event.removed, list(event.keys)) for event in self.tier.take_events()]

    def counters(self):
        return self.tier.get_stats().counters


class Memory:
    """vLLM's memory of the host, less than the engine has, as TieringOffloadingManager uses it for one request."""

    def __init__(self, engine, context, names, rooms):
        self.engine, self.context, self.names = engine, context, names
        self.free = list(range(rooms))
        self.chunks = {}  # key to its place; the one that came first is evicted first
        self.loading = set()
        self.jobs = []  # the keys of each

    def step(self):
        """How many chunks are there from the first one on; None: vLLM asks again in its next step."""
        for result in self.engine.tier.get_finished_jobs():
            assert result.success
            self.loading.difference_update(result.successful_keys)
        found, loads = [], []
        for name in self.names:
            found.append(self.lookup(name, loads))
            if found[-1] == MISS:
                break
        if loads:
            self.jobs.append(loads)
            self.engine.tier.submit_load(stand_ins.TransferJob(
                len(self.jobs), loads, [self.chunks[name] for name in loads], True, self.context))
        self.engine.end_step()
        return found.count(HIT) if set(found) <= {HIT, MISS} else None

    def lookup(self, name, loads):
        if name in self.chunks:
            return PENDING if name in self.loading else HIT
        found = self.engine.tier.lookup(name, self.context)
        if found != HIT:
            return found
        if not self.free:
            evicted = next((one for one in self.chunks if one not in self.loading), None)
            if evicted is None:
                return MISS  # there is no room
            self.free.append(self.chunks.pop(evicted))
        self.chunks[name] = self.free.pop()
        self.loading.add(name)
        loads.append(name)
        return PENDING


def agent_hints(shared):
    """What became of hints of the volume kv."""
    with icms.Client(shared.where) as client:
        return next(volume["prestage"] for volume in client.status()["volumes"]
                    if volume["name"] == "kv")


def chunks(prompt, count=CHUNKS):
    """vLLM's keys: chained hashes and the number of the group."""
    made, state = [], prompt.encode()
    for _ in range(count):
        state = hashlib.sha256(state).digest()
        made.append(state + b"\0\0\0\0")
    return made
