# SPDX-License-Identifier: Apache-2.0
"""vLLM engines that are measured, each in a process of its own. Runs in the environment that has vLLM;
driven by `match.py` over a socket a line.

usage: engine.py
Forked by `nest.py` for each order {"model", "config", "buffered"}, an engine says {"ready": seconds,
"pid": n} and then answers
    {"ask": [token, ...], "answer": n, "daemons": [pid, ...]}  with tokens, times, steps, what the
                                        tier moved, and the processor time of all until it was there
    {"work": true}                      with the processor time of its threads, and of calls to a tier
    {"sources": true}                   with what icms has loaded so far, by source
    {"reset": true | false}             having forgotten its prefix cache; true: vLLM's memory of the
                                        host too
    {"end": true}                       having ended in good order

The engine is vLLM's own, in one process, and stepped as its server steps it: after a step without
work it sleeps for 1 ms. What is measured hangs on vLLM's own interfaces, the same on all sides:
Scheduler.schedule and update_from_output, and the connector's methods.
"""
import json
import os
import time

import nest

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
#: What a scheduler calls of a secondary tier, beside get_finished_jobs.
TIER_CALLS = ("lookup", "submit_load", "submit_store", "on_new_request", "on_request_finished",
              "on_schedule_end", "touch", "has_pending_work", "take_events", "get_stats")


class Clock:
    """What one request did, as its engine's methods saw it; times in seconds since it was sent."""

    def __init__(self, daemons=()):
        self.daemons = daemons  # the side's, whose processor time counts with the engine's
        self.work = self.worked()
        self.load_work = None  # processor time until all was loaded
        self.begin = time.monotonic()
        self.asked = None     # the scheduler asked the connector for the first time
        self.loaded = None    # all is in the KV cache: the model begins to compute
        self.first = None     # the first token came
        self.sync_load = False  # the step that begins to compute also loads
        self.scheduling = []  # of each step: schedule() and update_from_output() together
        self.calls = []       # of each step: the part of it that is spent in a secondary tier
        self.steps = []       # of each step: all of it
        self.tokens = []      # of each step: how many were computed
        self.jobs = {}        # load jobs of a secondary tier: when each was submitted
        self.tier_bytes = 0   # what they loaded
        self.tier_first = self.tier_last = None  # when the first was submitted, the last was over

    def now(self):
        return time.monotonic() - self.begin

    def worked(self):
        """Processor time of the engine and the daemons so far."""
        return time.process_time() + sum(time.clock_gettime((~pid << 3) | 2) for pid in self.daemons)

    def all_loaded(self):
        self.loaded = self.now()
        self.load_work = self.worked() - self.work


class Probe:
    """Hangs on the methods of one engine; `clock` is that of the request under way."""

    def __init__(self, llm):
        self.core = llm.llm_engine.engine_core.engine_core
        self.clock = Clock()
        self.executed = False
        self.calls_cpu = 0.0  # processor time of all calls to a secondary tier so far
        scheduler = self.core.scheduler
        self._wrap(scheduler, "schedule", self._schedule)
        self._wrap(scheduler, "update_from_output", self._update)
        self._wrap(self.core, "step_fn", self._step)
        connector = scheduler.connector
        if connector is None:
            return
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self._wrap(connector, "get_num_new_matched_tokens", self._ask)
        self._wrap(get_kv_transfer_group(), "start_load_kv", self._load)
        manager = getattr(getattr(connector, "connector_scheduler", None), "manager", None)
        for tier in getattr(manager, "secondary_tiers", ()):
            self.block_bytes = tier.block_size_bytes
            for name in TIER_CALLS:
                self._wrap(tier, name, self._call)
            self._wrap(tier, "submit_load", self._submit)
            self._wrap(tier, "get_finished_jobs", self._finished)

    @staticmethod
    def _wrap(owner, name, around):
        inner = getattr(owner, name)
        setattr(owner, name, lambda *args, **named: around(inner, *args, **named))

    def _call(self, inner, *args, **named):
        begin, work = time.monotonic(), time.thread_time()
        try:
            return inner(*args, **named)
        finally:
            self.calls_cpu += time.thread_time() - work
            if self.clock.calls:
                self.clock.calls[-1] += time.monotonic() - begin

    def _schedule(self, inner, *args, **named):
        clock = self.clock
        clock.calls.append(0.0)
        begin = time.monotonic()
        output = inner(*args, **named)
        clock.scheduling.append(time.monotonic() - begin)
        clock.tokens.append(output.total_num_scheduled_tokens)
        if clock.loaded is None and output.total_num_scheduled_tokens:
            clock.all_loaded()
            clock.sync_load = bool(getattr(output, "has_sync_kv_loads", False))
        return output

    def _update(self, inner, *args, **named):
        begin = time.monotonic()
        outputs = inner(*args, **named)
        self.clock.scheduling[-1] += time.monotonic() - begin
        return outputs

    def _step(self, inner):
        begin = time.monotonic()
        outputs, self.executed = inner()
        self.clock.steps.append(time.monotonic() - begin)
        return outputs, self.executed

    def _ask(self, inner, *args, **named):
        if self.clock.asked is None:
            self.clock.asked = self.clock.now()
        return inner(*args, **named)

    def _load(self, inner, *args, **named):
        inner(*args, **named)
        if self.clock.sync_load:
            self.clock.sync_load = False
            self.clock.all_loaded()

    def _submit(self, inner, job):
        clock = self.clock
        clock.jobs[job.job_id] = len(job.keys)
        if clock.tier_first is None:
            clock.tier_first = clock.now()
        return inner(job)

    def _finished(self, inner):
        for result in self._call(lambda: list(inner())):
            blocks = self.clock.jobs.pop(result.job_id, 0)  # 0: it was a store
            if blocks:
                good = blocks if result.success else len(result.successful_keys or ())
                self.clock.tier_bytes += good * self.block_bytes
                self.clock.tier_last = self.clock.now()
            yield result


def ask(llm, probe, number, job):
    """One request, to the last thing that the engine has to do for it."""
    from vllm import SamplingParams

    engine, clock = llm.llm_engine, Clock(job.get("daemons", ()))
    probe.clock = clock
    engine.add_request(str(number), {"prompt_token_ids": job["ask"]},
                       SamplingParams(temperature=0, max_tokens=job["answer"], ignore_eos=True))
    done = None
    while engine.has_unfinished_requests() or probe.core.scheduler.has_requests():
        for output in engine.step():
            if clock.first is None and output.outputs[0].token_ids:
                clock.first = clock.now()
            done = output if output.finished else done
        if not probe.executed and probe.core.scheduler.has_requests():
            time.sleep(0.001)  # as EngineCoreProc does
    said = done.outputs[0]
    return {"tokens": list(said.token_ids), "finish": said.finish_reason,
            "cached": done.num_cached_tokens, "seconds": clock.now(), "ttft_s": clock.first,
            "asked_s": clock.asked, "loaded_s": clock.loaded,
            "load_cpu_s": clock.load_work, "tier_bytes": clock.tier_bytes,
            "tier_s": clock.tier_last - clock.tier_first if clock.tier_last else None,
            "scheduling_s": [round(s, 6) for s in clock.scheduling],
            "steps_s": [round(s, 6) for s in clock.steps],
            "calls_s": [round(s, 6) for s in clock.calls], "step_tokens": clock.tokens,
            "sources": sources(llm)}


def sources(llm):
    """Bytes that icms loaded so far, by where they came from."""
    return {metric.labels["source"]: metric.value for metric in llm.get_metrics()
            if metric.name.startswith("vllm:kv_offload_icms_loaded_bytes")
            and hasattr(metric, "value")}


def engine(order, peer):
    """One engine, to its end."""
    from vllm import LLM
    from vllm.config import KVTransferConfig

    def say(**words):
        peer.write(json.dumps(words) + "\n")
        peer.flush()

    if order["buffered"]:
        buffered()
    config = order["config"]
    begin = time.monotonic()
    llm = LLM(model=order["model"], dtype="float32", max_model_len=2176, enforce_eager=True,
              max_num_batched_tokens=2176, max_num_seqs=4, block_size=128, seed=0,
              num_gpu_blocks_override=32, distributed_executor_backend="uni", disable_log_stats=False,
              **({"kv_transfer_config": KVTransferConfig(**config)} if config else {}))
    probe = Probe(llm)
    number = 0
    ask(llm, probe, "first", {"ask": [5] * 40, "answer": 1})
    say(ready=round(time.monotonic() - begin, 1), pid=os.getpid())
    for line in peer:
        job = json.loads(line)
        if job.get("end"):
            break
        if "work" in job:
            own = time.thread_time()
            say(own_s=own, others_s=time.process_time() - own, calls_s=probe.calls_cpu)
        elif "sources" in job:
            say(sources=sources(llm))
        elif "reset" in job:
            say(reset=bool(llm.reset_prefix_cache(reset_connector=job["reset"])))
        else:
            number += 1
            say(**ask(llm, probe, number, job))
    llm.llm_engine.engine_core.shutdown()
    say(bye=True)


def buffered():
    """Has vLLM's fs tier find that the folder takes no O_DIRECT, as in many a container."""
    from vllm.v1.kv_offload.tiering.fs import manager

    manager.probe_o_direct = lambda directory: False


if __name__ == "__main__":
    nest.serve(engine)
