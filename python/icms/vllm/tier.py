# SPDX-License-Identifier: Apache-2.0
"""icms as a secondary tier of vLLM's OffloadingConnector. Imported and made by vLLM, from

    --kv-transfer-config '{"kv_connector": "IcmsOffloadingConnector", "kv_role": "kv_both",
      "kv_connector_module_path": "icms.vllm.offloading",
      "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 10737418240, "secondary_tiers": [{"type": "IcmsTier",
          "module_path": "icms.vllm.tier", "where": "unix:", "volume": "kv"}]}}'

vLLM copies blocks between GPU and its own memory of the host; this tier moves them between that
memory and the pod, in place. A chunk of all ranks is one value. vLLM matches a token only once its
chunk is in its memory, so a load that fails costs a recomputation and never a request.

Every method runs on the scheduler's thread and returns at once; the work is done by `Movers`.

While a request waits for its turn the agent knows its chunks, and brings them nearer (`_queued`).

Of the chunks of a request that are there, those count that are faster to load than to compute
(`choice`); the others are a MISS.

A request whose `kv_transfer_params` have `"icms_once": true` is one whose prompt nobody sends again: what
it stores and loads goes first from the agent's memory, as `icms_put(3)` says of `once`.

With vLLM's KV events turned on routers learn which chunks the pod has (`events.py`).

Life cycle of a chunk that is asked for: lookup (RETRY) -> on_schedule_end: one question for all of
the step -> [a choice for each request that has some] -> lookup (HIT or MISS) -> submit_load ->
get_finished_jobs. A question without an answer by its deadline is a MISS; so is, for this request, a
chunk whose load failed, or for which vLLM had no room, for otherwise vLLM would ask for it forever. When
vLLM takes the blocks of a request away (preemption) all of its chunks are asked for again.
"""
from __future__ import annotations

import functools
import itertools
import queue
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (LookupResult, Medium, OffloadingCounterMetadata,
                                     OffloadingEvent, OffloadingGaugeMetadata, ReqContext,
                                     RequestOffloadingContext, ScheduleEndContext)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from ..keys import Prompt, Scheme
from .choice import FASTER, Choice, Phases, Prefill, compares, patience
from .events import Events, Feed, Near, check_endpoints
from .identity import Engine, Identity, Options, Shape
from .link import Link, WrongTier
from .metrics import COUNTERS, UP, UP_TEXT
from .movers import GRACE_MS, Counts, Movers, soon

logger = init_logger("vllm.icms.tier")

#: In kv_transfer_params of a request.
ONCE = "icms_once"


class _Question:
    """Whether one chunk is there, for one request."""

    __slots__ = ("key", "end", "until", "answer")

    def __init__(self, key: bytes, end: int, until: float) -> None:
        self.key = key  # vLLM's
        self.end = end  # where the chunk ends, in tokens
        self.until = until  # from then on it is a miss
        self.answer: bool | None = None


class _Request:
    """What the tier knows of a request of the engine; the scheduler's thread alone."""

    __slots__ = ("once", "questions", "names", "_chosen", "_prompts", "_ends", "_seen")

    def __init__(self, once: bool) -> None:
        self.once = once  # nobody else asks for its prompt
        self._chosen: dict[bytes, tuple[Choice, int]] = {}  # vLLM's key of a chunk to its choice, and its place there
        self.forget()

    def forget(self) -> None:
        """All that is known of its chunks."""
        self.questions: dict[bytes, _Question] = {}
        self.names: dict[bytes, bytes] = {}  # vLLM's key of a chunk to the tier's
        self._prompts: dict[int, Prompt] = {}  # by KV cache group
        self._ends: dict[int, int] = {}  # tokens of each prompt so far
        self._seen = 0  # entries of the context's positions that were looked at
        self._chosen.clear()

    def choose(self, keys: Sequence[bytes], choice: Choice) -> None:
        """These chunks are loaded."""
        self._chosen.update((key, (choice, i)) for i, key in enumerate(keys))

    def phases(self, keys: Sequence[bytes], limit: float) -> Phases:
        """Of a load of these chunks, which may be some of a choice: others have asked for those before them. Each is
        expected when its choice expects it."""
        chosen = [self._chosen[key] for key in keys if key in self._chosen]
        if len(chosen) < len(keys) or any(choice.computing is None for choice, _ in chosen):
            return Phases(len(keys), limit)
        loads = list(itertools.accumulate((choice.loads[i] for choice, i in chosen), max))
        compute = min((choice.computing or 0.0) / choice.load for choice, _ in chosen)
        is_whole = all(choice is chosen[0][0] and place == i for i, (choice, place) in enumerate(chosen))
        return Phases(len(keys), limit, loads, compute, is_whole)

    def name(self, key: bytes, context: ReqContext, scheme: Scheme,
             chunk_tokens: dict[int, int]) -> bytes | None:
        """The tier's key of a chunk; None for one that is not part of the request's prompt."""
        if key not in self.names:
            self._learn(context, scheme, chunk_tokens)
        return self.names.get(key)

    def _learn(self, context: ReqContext, scheme: Scheme, chunk_tokens: dict[int, int]) -> None:
        """Takes in the chunks that the scheduler has named since: a prompt's, first to last."""
        positions = _positions(context)
        for key, end in itertools.islice(positions.items(), self._seen, None):
            group = int.from_bytes(key[-4:], "big")
            tokens = chunk_tokens.get(group, 0)
            if tokens == 0:
                continue
            prompt = self._prompts.setdefault(group, scheme.prompt())
            before = self._ends.setdefault(group, 0)
            if end == before + tokens:
                self.names[key] = prompt.next(key)
                self._ends[group] = end
            elif before < end < before + tokens:
                self.names[key] = prompt.aside(key)  # a part of a chunk, at a prompt's end
        self._seen = len(positions)


#: Why a chunk is not in the pod: nobody has to be asked again.
_GONE = ("absent", "evicted")

#: A request, the tier's name of one of its chunks, and the question about it.
_Asked = tuple[_Request, bytes, _Question]


def _positions(context: ReqContext) -> dict[bytes, int]:
    """vLLM's key of each chunk of a request to where it ends, in tokens."""
    positions: dict[bytes, int] = context._offload_key_positions
    return positions


@functools.cache  # a client can send as many as it likes
def _once_is_wrong(kind: str) -> None:
    logger.warning("icms: kv_transfer_params of a request: %s is true or false, not of type %s; taken as "
                   "false", ONCE, kind)


def _once(context: ReqContext) -> bool:
    """Whether who sent the request says that nobody asks for its prompt again."""
    said = (context.kv_transfer_params or {}).get(ONCE, False)
    if not isinstance(said, bool):
        _once_is_wrong(type(said).__name__)
    return said is True


class IcmsTier(SecondaryTierManager):
    """See the file's head. Options beside where and volume:

    keys        path of the list of keys of encrypted volumes; "": that of $ICMS_KEYS
    tenant      who may share: bound into every key
    weights     "" takes a fingerprint of the model's files, and after a reset of vLLM's caches nothing
                is shared with other engines; "files" takes it again after a reset; any other text
                names the weights that the engine starts with
    variant     a text for what else changes the KV of the same tokens
    adapters    a text for the version of LoRA adapters; needed with --enable-lora
    lookup_ms   until when it has to be known which chunks there are; 0: load_ms
    load_ms, store_ms  deadlines
    prestage_ms  a request that is queued is begun within this, and what those before it take to compute: the
                agent is told which chunks it has, and brings those that the pod has into its memory meanwhile.
                Such a hint ends when its chunk is read, or a second after this. 0: it is told nothing
    load_threads  threads that load
    events      endpoint of the agent's events (icms-agent.yaml(5)), for routers: with vLLM's KV events; "": none
    events_replay  their replay, which tells what was published before the engine started, and what was missed
                later; "": none
    load        "faster": of what is there, what is faster to load than to compute; "always": all of it
    """

    medium = Medium.STORAGE

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, *,
                 where: str = "unix:", volume: str, keys: str = "", tenant: str = "",
                 weights: str = "", variant: str = "", adapters: str = "", lookup_ms: int = 0,
                 load_ms: int = 5000, store_ms: int = 10000, prestage_ms: int = 5000,
                 load_threads: int = 2, load: str = FASTER, events: str = "",
                 events_replay: str = "", backpressure_detector: Any = None) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        if not hasattr(ReqContext(req_id=""), "_offload_key_positions"):
            raise WrongTier("icms: this vLLM does not say in which order a request's chunks come; "
                            "IcmsTier was made for vLLM 0.32")
        check_endpoints(events, events_replay)
        config = offloading_spec.config
        self._chunk_tokens = {group.group_id: group.tokens_per_block * config.cache.blocks_per_chunk
                              for group in config.groups}
        engine = Engine.made_now()
        if engine is None:
            raise WrongTier('icms: vLLM tells tiers neither its configuration nor its resets: set '
                            '"kv_connector": "IcmsOffloadingConnector" and "kv_connector_module_path": '
                            '"icms.vllm.offloading"')
        self._deadlines_ms = (lookup_ms or load_ms, load_ms, store_ms)
        self._prefill = engine.prefill if compares(load) else Prefill()
        self._waiting = engine.waiting
        self._prestage_ms = prestage_ms
        # None: nobody would take them
        self._events = Events() if offloading_spec.kv_events_config.enable_kv_cache_events else None
        self._near = Near() if self._events is not None and events else None
        self._feed: Feed | None = None
        if events and self._near is None:
            logger.warning("icms: the option events is ignored: vLLM's KV events are off; set "
                           "enable_kv_cache_events in --kv-events-config, or remove the option")
        self._memory = primary_kv_view.cast("B")
        self._requests: dict[str, _Request] = {}
        self._up_told: bool | None = None  # what the metric said last
        self._forgotten = 0  # times that all that was known of chunks was forgotten
        self._asked: list[_Asked] = []  # in this step, not yet sent
        # HIT in this step, and not to be loaded yet; by request
        self._found: dict[tuple[str, bytes], _Question] = {}
        self._answers: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[tuple[TransferJob, JobResult, Collection[bytes], int]] = (
            queue.SimpleQueue())
        self._movers = Movers(load_threads, Counts(), logger)
        try:
            if self._near is not None:
                self._feed = Feed(events, events_replay, self._movers.counts, logger)
            identity = Identity(engine, Options(tenant, weights, variant, adapters),
                                _shape(config, self.block_size_bytes),
                                is_idle=lambda: not self._requests, forget=self._forget)
            self._link = Link(where, volume, identity, keys=keys,
                              need_bytes=self.block_size_bytes, log=logger, suffix=_suffix(config.groups[0]),
                              unnamed=_unnamed(config.groups))
            if prestage_ms > 0:
                engine.queued.append(self._queued)
        except Exception:
            if self._feed is not None:
                self._feed.close()
            self._movers.close()
            self._memory.release()
            raise

    # ---- questions

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        self._requests[req_context.req_id] = _Request(_once(req_context))
        return RequestOffloadingContext()

    def _queued(self, context: ReqContext) -> None:
        """A request waits for its turn: the agent learns which chunks it will ask for."""
        request = self._requests.get(context.req_id)
        schemes = self._link.schemes
        if request is None or not schemes:
            return
        names = [request.name(key, context, schemes[0], self._chunk_tokens)
                 for key in _positions(context)]
        for key, name in zip(_positions(context), names):
            self._know(key, name)
        hinted = [name for name in names if name is not None]
        if hinted:
            volume, once = schemes[0].volume, request.once
            self._waiting.add(context.req_id, max(_positions(context).values()),
                              lambda left: self._movers.prestage(volume, hinted, left, once),
                              self._prestage_ms / 1000)

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._requests.pop(req_context.req_id, None)
        self._waiting.ended(req_context.req_id)

    def lookup(self, key: bytes, req_context: ReqContext) -> LookupResult:
        self._take_answers()
        request = self._requests.get(req_context.req_id)
        schemes = self._link.schemes
        if request is None or not schemes:
            return LookupResult.MISS
        question = request.questions.get(key)
        if question is None:
            name = request.name(key, req_context, schemes[0], self._chunk_tokens)
            if name is None:
                return LookupResult.MISS
            question = request.questions[key] = _Question(
                key, _positions(req_context)[key], soon(2 * self._deadlines_ms[0] + GRACE_MS))  # a trial, too
            self._asked.append((request, name, question))
            self._know(key, name)
        if question.answer is None:
            if time.monotonic() < question.until:
                return LookupResult.RETRY
            question.answer = False  # for this request: that the chunk is not there nobody has said
        if not question.answer:
            return LookupResult.MISS
        self._found[req_context.req_id, key] = question
        return LookupResult.HIT

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """vLLM has called submit_load for what it loads of what it found in this step."""
        self._take_answers()
        for question in self._found.values():
            question.answer = False  # no room: asked for again, it would take that of the request's first chunks
        self._found.clear()
        for request_id in context.preempted_req_ids:
            if request_id in self._requests:
                self._requests[request_id].questions.clear()
        asked, self._asked = self._asked, []
        schemes = self._link.schemes
        if not schemes:
            _answer(asked, [False] * len(asked))  # nobody can be asked
        if not asked or not schemes:
            return
        volume = schemes[0].volume
        by_request: dict[int, list[_Asked]] = {}
        others: list[_Asked] = []
        for one in asked:
            by_request.setdefault(id(one[0]), []).append(one)
        for chunks in by_request.values():
            if self._compares(chunks):
                self._match(volume, chunks)
            else:
                others += chunks
        if others:
            self._ask(volume, others)

    def _compares(self, asked: list[_Asked]) -> bool:
        """Whether vLLM stops at the first of these chunks of one request that is not there, so that one question is
        enough. It asks for those of a sliding window from the last one on, and they may have holes."""
        ends = [question.end for _, _, question in asked]
        return self._chooses() and all(before < after for before, after in itertools.pairwise(ends))

    def _chooses(self) -> bool:
        return len(self._chunk_tokens) == 1 and self._prefill.seconds(1) is not None

    def _match(self, volume: Any, asked: list[_Asked]) -> None:
        """Of one request: what is there from the first chunk on, and what of it is loaded."""
        forgotten = self._forgotten

        def chosen(choice: Choice, there: int) -> None:
            self._answers.put(lambda: answer(choice, there))

        def answer(choice: Choice, there: int) -> None:
            self._take_choice(asked, choice, [i < there for i in range(len(asked))])
            self._tell(asked[:there], [""] * there, forgotten)

        def hole(why: str, at: int) -> None:
            if why in _GONE:
                self._answers.put(lambda: self._tell([asked[at]], [why], forgotten))

        self._choose(volume, asked, chosen, hole)

    def _choose(self, volume: Any, asked: list[_Asked], chosen: Callable[[Choice, int], None],
                hole: Callable[[str, int], None] = lambda why, at: None) -> None:
        (tokens,) = self._chunk_tokens.values()
        lookup, load, _ = (ms / 1000 for ms in self._deadlines_ms)
        self._movers.match(volume, [name for _, name, _ in asked], 1, tokens, self._prefill, lookup, load, chosen,
                           hole=hole)

    def _take_choice(self, asked: list[_Asked], choice: Choice, there: list[bool]) -> None:
        """Of one request, some of whose chunks are there: the first of these are loaded."""
        asked[0][0].choose([question.key for (_, _, question), one in zip(asked, there) if one][:choice.load], choice)
        left = itertools.count()
        _answer(asked, [one and next(left) < choice.load for one in there])

    def _ask(self, volume: Any, asked: list[_Asked]) -> None:
        """Of any requests: which chunks are there, and, of requests that may choose, what of them is loaded."""
        tokens = len(asked) * max(self._chunk_tokens.values())
        until = time.monotonic() + patience(tokens, self._prefill, self._deadlines_ms[0] / 1000)
        forgotten = self._forgotten

        def told(whys: list[str]) -> None:
            self._answers.put(lambda: self._tell(asked, whys, forgotten))

        def done(there: list[bool]) -> None:
            by_request: dict[int, list[int]] = {}
            for i, (request, _, _) in enumerate(asked):
                by_request.setdefault(id(request), []).append(i)
            for places in by_request.values():
                found([asked[i] for i in places], [there[i] for i in places])

        def found(chunks: list[_Asked], there: list[bool]) -> None:
            those = [chunk for chunk, one in zip(chunks, there) if one]
            if those and self._chooses():
                self._choose(volume, those, lambda choice, _: self._answers.put(
                    lambda: self._take_choice(chunks, choice, there)))
            else:
                self._answers.put(lambda: _answer(chunks, there))

        self._movers.exists(volume, [name for _, name, _ in asked], until, done, told)

    def _forget(self) -> None:
        """Chunks of before are not those of from now on. Jobs that are outstanding go on under the
        keys of before, and vLLM waits for them before it resets its memory."""
        self._asked = []
        self._found.clear()
        self._forgotten += 1
        for request in self._requests.values():
            request.forget()
        if self._events is not None:
            self._events.clear()
        if self._near is not None:
            self._near.forget()

    def _know(self, key: bytes, name: bytes | None) -> None:
        if self._near is not None and name is not None:
            self._near.know(key, name)

    def _tell(self, asked: list[_Asked], whys: list[str], forgotten: int) -> None:
        """Routers learn what the pod said, whatever is faster for this engine: why each is not there, "" where it
        is. Of what it did not answer they learn nothing."""
        if self._events is not None and forgotten == self._forgotten:
            keys = [question.key for _, _, question in asked]
            self._events.removed(key for key, why in zip(keys, whys) if why in _GONE)
            self._events.stored(key for key, why in zip(keys, whys) if not why)

    def _take_answers(self) -> None:
        while not self._answers.empty():
            self._answers.get()()

    # ---- jobs

    def submit_load(self, job_metadata: TransferJob) -> None:
        for key in job_metadata.keys:
            self._found.pop((job_metadata.req_context.req_id, key), None)
        self._submit(job_metadata, False)

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._submit(job_metadata, True)

    def _submit(self, job: TransferJob, is_store: bool) -> None:
        """Starts what can be moved; all else of the job counts as failed."""
        begin = time.monotonic()
        request = self._requests.get(job.req_context.req_id)
        schemes = self._link.schemes
        moved: list[tuple[bytes, bytes, memoryview]] = []
        if request is not None and schemes:
            for key, chunk in zip(job.keys, job.chunk_ids):
                name = request.name(key, job.req_context, schemes[0], self._chunk_tokens)
                if name is not None:
                    moved.append((key, name, self._room(int(chunk))))
                    self._know(key, name)
        if request is None or not moved:
            self._finished.put((job, JobResult(job.job_id, success=not job.keys), (),
                                self._forgotten))
            return

        keys, names, rooms = zip(*moved)
        forgotten = self._forgotten

        def done(good: list[bool]) -> None:
            fine = tuple(key for key, one in zip(keys, good) if one)
            result = JobResult(job.job_id, success=len(fine) == len(job.keys),
                               successful_keys=fine, transfer_time=time.monotonic() - begin,
                               transfer_bytes=len(fine) * self.block_size_bytes)
            self._finished.put((job, result, fine, forgotten))

        _, load_ms, store_ms = self._deadlines_ms
        if is_store:
            self._movers.store(schemes[0].volume, names, rooms, soon(store_ms), done, request.once)
        else:
            phases = request.phases(keys, load_ms / 1000)
            self._movers.load(schemes[0].volume, names, rooms, phases, done, request.once,
                              self._feed.loaded if self._feed is not None else None)

    def _room(self, chunk: int) -> memoryview:
        begin = chunk * self.block_size_bytes
        return self._memory[begin:begin + self.block_size_bytes]

    def get_finished_jobs(self) -> Iterable[JobResult]:
        while not self._finished.empty():
            job, result, fine, forgotten = self._finished.get()
            request = self._requests.get(job.req_context.req_id)
            if job.is_promotion and not result.success and request is not None:
                for key in set(job.keys).difference(fine):
                    if key in request.questions:
                        request.questions[key].answer = False
            if self._events is not None and forgotten == self._forgotten:
                self._events.stored(fine)
                if job.is_promotion:
                    self._events.removed(key for key in job.keys if key not in fine)
            yield result

    def take_events(self) -> Iterable[OffloadingEvent]:
        if self._near is None or self._feed is None:
            return self._events.take() if self._events is not None else ()
        self._feed.take(self._near)
        return [*(self._events.take() if self._events is not None else ()), *self._near.take()]

    def drain_jobs(self) -> None:
        self._movers.wait_idle()

    def shutdown(self) -> None:
        if self._feed is not None:
            self._feed.close()
        self._movers.close()
        self._link.close()
        self._memory.release()

    # ---- metrics

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        found = {name: OffloadingCounterMetadata(documentation=text, labelnames=(label,))
                 for name, label, text in COUNTERS.values()}
        return {**found, UP: OffloadingGaugeMetadata(documentation=UP_TEXT)}

    def get_stats(self) -> OffloadingConnectorStats:
        stats = OffloadingConnectorStats()
        for (what, label), number in self._movers.counts.take().items():
            stats.increase_counter(COUNTERS[what][0], number, (label,))
        up = self._link.up
        if self._up_told != up:
            self._up_told = up
            stats.set_gauge(UP, int(up))
        return stats


def _answer(asked: list[_Asked], there: list[bool]) -> None:
    for (_, _, question), one in zip(asked, there):
        if question.answer is None:
            question.answer = one


def _suffix(group: Any) -> str:
    """In hex: what vLLM has in keys of chunks of a KV cache group, behind the hash."""
    return int(group.group_id).to_bytes(4, "big").hex()


def _unnamed(groups: Sequence[Any]) -> str:
    """Why no entry of an agent's models stands for the chunks; "": one does."""
    return "" if len(groups) == 1 else (
        f"each of {len(groups)} KV cache groups has keys of its own, and an entry stands for those of one")


def _shape(config: Any, chunk_bytes: int) -> Shape:
    parallel = config.parallel
    groups = [(group.group_id, group.tokens_per_block, len(group.layer_names))
              for group in config.groups]
    layout = ["chunk", config.kv_cache_layout, chunk_bytes, config.cache.tokens_per_hash,
              config.cache.blocks_per_chunk, "replicated" if config.replicated_layout else "",
              "canonical" if config.canonical_layout else "", groups]
    return Shape(config.model.dtype, " ".join(map(str, layout)),
                 config.groups[0].tokens_per_block * config.cache.blocks_per_chunk,
                 (parallel.tp_size, parallel.pp_size, parallel.pcp_size * parallel.dcp_size, 1), False,
                 config.cache.tokens_per_hash)
