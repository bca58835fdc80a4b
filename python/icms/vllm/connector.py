# SPDX-License-Identifier: Apache-2.0
"""icms as a KV connector of vLLM by itself. Imported and made by vLLM, from

    --kv-transfer-config '{"kv_connector": "IcmsConnector", "kv_role": "kv_both",
      "kv_connector_module_path": "icms.vllm.connector",
      "kv_connector_extra_config": {"where": "unix:", "volume": "kv"}}'

The scheduler's process speaks to the tier for all ranks, and answers a request's question for
matching tokens with "ask again" until their blocks lie, verified, in memory that it shares with the
workers; then loading is a copy, which cannot fail. So vLLM's policy for failed loads, which ends
requests, never comes to pass. Workers copy between that memory and the KV cache, and know no tier: on a
GPU beside the model (`beside`), else at once.

Where IcmsTier fits, it fits better: it keeps a part of the blocks in the host's memory, knows models
with several kinds of KV cache, and its copies run beside the model. This one needs less memory and
serves tensor parallelism within one machine.

Life cycle of a block that is stored: full -> a slot -> copied from wait_for_save on -> all ranks said
that it is over -> put -> slot free. Of one that is loaded: see `matching`, then a slot's copy from
start_load_kv on -> all ranks said so -> slot free. Where a step writes to blocks that a step before it
stores, it says so (`Step.behind`), and they are stored first: vLLM's runners call handle_preemptions before
they write to anything, and start_load_kv of a step that loads nothing only behind the model.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole, KVConnectorWorkerMetadata,
    SupportsHMA)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (KVConnectorPromMetrics,
                                                                  KVConnectorStats)
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import AttentionSpec, group_kernel_blocks
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from ..keys import Scheme
from . import configuration, metrics
from .beside import Beside
from .choice import FASTER, Prefill, compares
from .identity import Engine, Facts, Identity, Options, Shape
from .link import Link, WrongTier
from .matching import Match, Names
from .movers import Counts, Movers, soon
from .staging import Staging, attach
from .waiting import computes_all

logger = init_logger("vllm.icms.connector")


@dataclasses.dataclass
class Step(KVConnectorMetadata):
    """What the workers copy in one step of the engine."""

    number: int = 0
    handle: tuple[int, int, int] = (0, 0, 0)  # of the memory between the processes
    slot_bytes: int = 0
    loads: list[tuple[int, list[int]]] = dataclasses.field(default_factory=list)  # block, slots
    stores: list[tuple[int, list[int]]] = dataclasses.field(default_factory=list)  # by rank
    behind: bool = False  # it writes to blocks that earlier steps may be storing


@dataclasses.dataclass
class Copied(KVConnectorWorkerMetadata):
    """The steps that workers have done: {number: how many workers}"""

    steps: dict[int, int]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, Copied)
        for number, workers in other.steps.items():
            self.steps[number] = self.steps.get(number, 0) + workers
        return self


class IcmsStats(KVConnectorStats):
    """What was counted since last time: {"counter label": number}; a gauge has no label."""

    data: dict[str, float]

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for key, number in other.data.items():
            self.data[key] = number if key == metrics.UP else self.data.get(key, 0) + number
        return self

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not self.data


class IcmsPromMetrics(KVConnectorPromMetrics):
    """Shows IcmsStats on /metrics."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._shown = {what: self._counter_cls(name=name, documentation=text,
                                               labelnames=[*labelnames, label])
                       for what, (name, label, text) in metrics.COUNTERS.items()}
        self._up = self._gauge_cls(name=metrics.UP, documentation=metrics.UP_TEXT,
                                   labelnames=labelnames)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        engine = self.per_engine_labelvalues[engine_idx]
        for key, number in transfer_stats_data.items():
            what, _, label = key.partition(" ")
            if key == metrics.UP:
                self._up.labels(*engine).set(number)
            else:
                self._shown[what].labels(*engine, label).inc(number)


class _Request:
    """What the scheduler's half knows of a request of the engine."""

    __slots__ = ("request", "names", "match", "first", "blocks", "stored", "loads")

    def __init__(self, request: Any) -> None:
        self.request = request
        self.names: Names | None = None  # None as long as there is no tier
        self.match: Match | None = None
        self.first = 0  # the block from which on the engine asked last
        self.blocks: list[int] = []  # of the engine's KV cache
        self.stored = 0  # blocks that are stored, or were loaded, or are somebody else's
        self.loads: list[tuple[int, list[int]]] = []  # for the step that is being made


class _Puts(NamedTuple):
    """Blocks of one request that are on their way to the tier."""

    names: Names
    hashes: list[bytes]  # the engine's, from its first block on
    first: int  # of the blocks that are stored
    slots: list[list[int]]  # by block, by rank
    renewals: int  # of the key space, up to when they were computed


class _Scheduler:
    """The half in the scheduler's process."""

    def __init__(self, engine: Engine, kv_cache_config: Any, options: dict[str, Any]) -> None:
        config = engine.config
        self._block_tokens, self._block_bytes = _shape(config, kv_cache_config)
        known = {"where": "unix:", "volume": None, "keys": "", "tenant": "", "weights": "",
                 "variant": "", "adapters": "", "load_ms": 5000, "store_ms": 10000, "load_threads": 2,
                 "host_bytes": 1 << 30, "prestage_ms": 5000, "load": FASTER, "by_layer": False}
        unknown = set(options) - set(known)
        if unknown or not options.get("volume"):
            raise WrongTier(f"icms: kv_connector_extra_config takes {', '.join(known)}, and volume "
                            f"has to be there; it has {', '.join(options) or 'nothing'}")
        said = {**known, **options}
        parallel = config.parallel_config
        self._ranks = parallel.tensor_parallel_size
        self._load_ms, self._store_ms = said["load_ms"], said["store_ms"]
        self._prestage_ms = said["prestage_ms"]
        slots = said["host_bytes"] // self._block_bytes
        if slots < self._ranks:
            raise WrongTier(f"icms: host_bytes of {said['host_bytes']} has no room for a block of "
                            f"{self._block_bytes} bytes a rank: make it larger")
        self._requests: dict[str, _Request] = {}
        self._steps: dict[int, tuple[list[int], list[_Puts], int]] = {}
        self._storing: dict[int, set[int]] = {}  # blocks, by the step that stores them
        self._number = 0
        self._up_told: bool | None = None
        self._prefill = engine.prefill if compares(said["load"]) else Prefill()
        self._waiting = engine.waiting
        self._identity = Identity(
            engine, Options(said["tenant"], said["weights"], said["variant"], said["adapters"]),
            Shape(_dtype(config), f"block {config.cache_config.kv_cache_layout} {self._block_bytes}",
                  self._block_tokens, (self._ranks, 1, 1, 1), True, self._block_tokens),
            is_idle=lambda: not self._requests, forget=self._forget)
        self._link = Link(said["where"], said["volume"], self._identity,
                          keys=said["keys"], need_bytes=self._block_bytes, log=logger)
        self._staging = Staging(self._block_bytes, slots)
        self._movers = Movers(said["load_threads"], Counts(), logger)

    def close(self) -> None:
        self._movers.close()
        self._link.close()
        self._staging.close()

    def _forget(self) -> None:
        """Blocks of before are not those of from now on: matches are dropped here, and blocks of steps
        that are outstanding in `_put`."""
        for state in self._requests.values():
            if state.match is not None:
                state.match.drop()
                state.match = None
            state.names = None

    # ---- matching

    def queued(self, request: Any) -> None:
        """The engine has a request that waits for its turn: its blocks will be asked for."""
        schemes = self._link.schemes
        count = min((request.num_tokens - 1) // self._block_tokens, len(request.block_hashes))
        if self._prestage_ms == 0 or count == 0 or not schemes or computes_all(request):
            return
        state = self._requests.setdefault(request.request_id, _Request(request))
        names = state.names = state.names or Names(schemes)
        hashes = [bytes(name) for name in request.block_hashes[:count]]
        volume = schemes[0].volume
        self._waiting.add(request.request_id, request.num_tokens, lambda left: self._movers.prestage(
            volume, lambda: [key for keys in names.of(hashes, 0) for key in keys], left),
            self._prestage_ms / 1000)

    def matched(self, request: Any, computed: int) -> int | None:
        """How many tokens after those computed can be loaded; None: ask again."""
        state = self._requests.setdefault(request.request_id, _Request(request))
        first = state.first = computed // self._block_tokens
        last = (request.num_tokens - 1) // self._block_tokens  # one token has to be computed
        last = min(last, len(request.block_hashes))
        schemes = self._link.schemes  # once: it comes and goes on a thread of its own
        if first >= last or not schemes or computes_all(request):
            return 0
        if state.match is not None and state.match.first > first:
            state.match.drop()  # what the engine had itself is gone meanwhile
            state.match = None
        if state.match is None:
            if state.names is None:
                state.names = Names(schemes)
            state.match = Match(self._movers, self._staging, schemes, state.names,
                                [bytes(name) for name in request.block_hashes[:last]], first,
                                self._load_ms, self._block_tokens, self._prefill)
        if not state.match.over:
            return None
        ready = state.match.first + state.match.ready - first
        found: int = max(0, min(ready, last - first)) * self._block_tokens
        return found

    def allocated(self, request: Any, blocks: Any, tokens: int) -> None:
        """The engine has made room for the tokens that it takes from here."""
        state = self._requests.setdefault(request.request_id, _Request(request))
        state.blocks = []  # they come with the step
        match, state.match = state.match, None
        if match is None:
            return
        count = tokens // self._block_tokens
        if count == 0:
            match.drop()
            return
        # What the engine has itself by now, of what the match brought, is spare.
        ids = list(blocks.get_block_ids()[0])[state.first:state.first + count]
        taken = match.take(state.first - match.first + count)
        spare, used = taken[:-count], taken[-count:]
        self._staging.give(slot for slots in spare for slot in slots)
        state.loads = list(zip(ids, used, strict=True))
        state.stored = state.first + count

    # ---- steps

    def step(self, output: Any) -> Step:
        """What the workers have to copy in the step that output describes."""
        self._number += 1
        step = Step(self._number, self._staging.handle, self._block_bytes)
        puts: list[_Puts] = []
        schemes = self._link.schemes
        computed, fresh = self._take_blocks(output)
        step.behind = any(not fresh.isdisjoint(blocks) for blocks in self._storing.values())
        for request_id, tokens in output.num_scheduled_tokens.items():
            state = self._requests.get(request_id)
            if state is None:
                continue
            step.loads += state.loads
            state.loads = []
            full = min((computed[request_id] + tokens) // self._block_tokens,
                       len(state.request.block_hashes), len(state.blocks))
            if schemes:
                self._add_stores(step, puts, state, full, schemes)
            state.stored = max(state.stored, full)
        if step.loads or step.stores:
            loading = [slot for _, slots in step.loads for slot in slots]
            self._steps[step.number] = (loading, puts, self._ranks)
            self._storing[step.number] = {block for block, _ in step.stores}
        return step

    def _take_blocks(self, output: Any) -> tuple[dict[str, int], set[int]]:
        """Notes the blocks of each request; returns how many tokens it has computed before, and the
        blocks that may be written to from this step on and were not before."""
        computed, fresh = {}, set()
        for new in output.scheduled_new_reqs:
            computed[new.req_id] = new.num_computed_tokens
            fresh.update(new.block_ids[0])
            if new.req_id in self._requests:
                state = self._requests[new.req_id]
                state.blocks = list(new.block_ids[0])
                state.stored = max(state.stored, new.num_computed_tokens // self._block_tokens)
        cached = output.scheduled_cached_reqs
        for i, request_id in enumerate(cached.req_ids):
            computed[request_id] = cached.num_computed_tokens[i]
            blocks = cached.new_block_ids[i]
            fresh.update(blocks[0] if blocks is not None else ())
            if blocks is None or request_id not in self._requests:
                continue
            state = self._requests[request_id]
            if request_id in cached.resumed_req_ids:
                state.blocks = []
            state.blocks += blocks[0]
        return computed, fresh

    def _add_stores(self, step: Step, puts: list[_Puts], state: _Request, full: int,
                    schemes: Sequence[Scheme]) -> None:
        """Blocks that are full after this step, as far as there are slots for them."""
        if full <= state.stored:
            return
        if state.names is None:
            state.names = Names(schemes)
        taken = self._staging.take(full - state.stored, self._ranks)
        if len(taken) < full - state.stored:
            missing = full - state.stored - len(taken)
            self._movers.counts.add("store_misses", "no_host_memory", missing * self._ranks)
        blocks = list(zip(state.blocks[state.stored:full], taken))
        step.stores += blocks
        puts.append(_Puts(state.names, list(state.request.block_hashes[:full]), state.stored, taken,
                          self._identity.space.number))

    def copied(self, done: Copied) -> None:
        """Workers have done steps."""
        for number, workers in done.steps.items():
            if number not in self._steps:
                continue  # nobody waits for it
            loading, puts, missing = self._steps[number]
            if missing > workers:
                self._steps[number] = (loading, puts, missing - workers)
                continue
            del self._steps[number]
            del self._storing[number]
            self._staging.give(loading)
            if puts:
                self._put(puts)

    def _put(self, puts: list[_Puts]) -> None:
        slots = [slot for put in puts for by_rank in put.slots for slot in by_rank]
        schemes = self._link.schemes
        if not schemes or puts[0].renewals != self._identity.space.number:
            self._staging.give(slots)
            return

        def names() -> Sequence[bytes]:
            return [key for put in puts
                    for by_rank in put.names.of(put.hashes, put.first)[:len(put.slots)]
                    for key in by_rank]

        self._movers.store(schemes[0].volume, names,
                           [self._staging.room(slot) for slot in slots],
                           soon(self._store_ms), lambda good: self._staging.give(slots))

    def finished(self, request: Any) -> None:
        self._waiting.ended(request.request_id)
        state = self._requests.pop(request.request_id, None)
        if state is None:
            return
        if state.match is not None:
            state.match.drop()
        self._staging.give(slot for _, slots in state.loads for slot in slots)

    @property
    def copying(self) -> bool:
        """True while workers have steps that they have not reported."""
        return bool(self._steps)

    def stats(self) -> IcmsStats | None:
        data: dict[str, int] = {f"{what} {label}": number for (what, label), number
                                in self._movers.counts.take().items()}
        up = self._link.up
        if self._up_told != up:
            self._up_told = up
            data[metrics.UP] = int(up)
        return IcmsStats(data=data) if data else None


class _Worker:
    """The half in a worker: copies blocks between the KV cache and the memory of the host."""

    def __init__(self, kv_cache_config: Any, rank: int, by_layer: bool) -> None:
        self._config = kv_cache_config
        self._rank = rank
        self._by_layer = by_layer
        self._pages: list[torch.Tensor] = []  # (block, byte) of each layer
        self._layers: dict[str, int] = {}  # name of a layer: its page
        self._beside: Beside | None = None  # once there is something to copy, on a GPU
        self._host: torch.Tensor | None = None  # (slot, byte)
        self._step = 0  # that has begun, and is not saved: the runner may ask what is copied before that
        self._copied: set[int] = set()

    def register(self, caches: dict[str, torch.Tensor]) -> None:
        group = self._config.kv_cache_groups[0]
        blocks = self._config.num_blocks
        seen: dict[tuple[int, int], int] = {}
        for name in group.layer_names:
            spec = getattr(group.kv_cache_spec, "kv_cache_specs", {}).get(name,
                                                                          group.kv_cache_spec)
            cache = group_kernel_blocks(caches[name], blocks)
            stride = cache.stride(0) * cache.element_size()
            where = (cache.data_ptr(), stride)
            self._layers[name] = seen.setdefault(where, len(self._pages))
            if self._layers[name] != len(self._pages):
                continue  # layers that share their KV cache
            page = torch.tensor([], dtype=torch.uint8, device=cache.device)
            self._pages.append(page.set_(
                cache.untyped_storage(), cache.storage_offset() * cache.element_size(),
                (blocks, spec.page_size_bytes), (stride, 1)))

    def copy(self, step: Step, blocks_slots: list[tuple[int, list[int]]], load: bool) -> None:
        """Copies at once, or on a GPU begins to."""
        pairs = [(block, by_rank[self._rank]) for block, by_rank in blocks_slots]
        if pairs and self._beside is None and self._pages[0].device.type == "cuda":
            self._beside = Beside(self._pages, self._map(step), self._by_layer, logger)
        self._step = step.number if load else 0
        if self._beside is not None and load:
            self._beside.load(step.number, pairs)
        elif self._beside is not None:
            self._beside.store(step.number, pairs)
        elif pairs:
            self._copy_now(self._map(step), pairs, load)
            self._copied.add(step.number)

    def wait_for_stores(self) -> None:
        """The engine is about to write to blocks that may be stored still."""
        if self._beside is not None:
            self._beside.wait_for_stores()

    def wait_for_layer(self, name: str) -> None:
        """The layer is about to be computed."""
        if self._beside is not None and name in self._layers:
            self._beside.wait_for_layer(self._layers[name])

    def take_copied(self) -> dict[int, int]:
        """{step: 1} of those that have been copied since."""
        if self._beside is not None:
            self._copied |= self._beside.done(self._step)
        copied = self._copied - {self._step}
        self._copied -= copied
        return dict.fromkeys(copied, 1)

    def close(self) -> None:
        """Lets go of the memory of the host."""
        beside, self._beside, self._host = self._beside, None, None
        if beside is not None:
            beside.close()

    def _copy_now(self, host: torch.Tensor, pairs: list[tuple[int, int]], load: bool) -> None:
        """When it returns, blocks and slots may be used for something else."""
        copy = _copy_rows if self._pages[0].device.type == "cpu" else _copy_gathered
        at = 0
        for page in self._pages:
            copy(page, host[:, at:at + page.shape[1]], pairs, load)
            at += page.shape[1]

    def _map(self, step: Step) -> torch.Tensor:
        if self._host is None:
            mine = sum(page.shape[1] for page in self._pages)
            if mine != step.slot_bytes:
                raise RuntimeError(f"icms: a block has {mine} bytes in this worker and "
                                   f"{step.slot_bytes} in the scheduler: this model needs "
                                   "OffloadingConnector with IcmsTier")
            memory = attach(step.handle)
            self._host = torch.frombuffer(memory, dtype=torch.uint8)[
                :len(memory) // mine * mine].view(-1, mine)
        return self._host


def _copy_rows(page: torch.Tensor, host: torch.Tensor, pairs: list[tuple[int, int]],
               load: bool) -> None:
    """Between (block, byte) and (slot, byte) of one memory: nothing is put in between."""
    for block, slot in pairs:
        if load:
            page[block].copy_(host[slot])
        else:
            host[slot].copy_(page[block])


def _copy_gathered(page: torch.Tensor, host: torch.Tensor, pairs: list[tuple[int, int]],
                   load: bool) -> None:
    """The same between a device and the host, in one transfer."""
    blocks = torch.tensor([block for block, _ in pairs]).to(page.device)
    slots = torch.tensor([slot for _, slot in pairs])
    if load:
        page.index_copy_(0, blocks, host.index_select(0, slots).to(page.device))
    else:
        host.index_copy_(0, slots, page.index_select(0, blocks).cpu())


class IcmsConnector(KVConnectorBase_V1, SupportsHMA):
    """See the file's head. Options: where, volume, keys, tenant, weights, variant, adapters, load_ms,
    store_ms, prestage_ms, load_threads, load as of IcmsTier; host_bytes, the memory between scheduler and workers, bounds
    how much moves at a time (default 1 GiB, taken as it is used; on a GPU each worker pins it); by_layer,
    on a GPU: the first layer is computed while others are loaded, and vLLM then uses no full CUDA graphs
    (default false: the step begins when all its blocks are loaded)."""

    _cache_hit_source = CacheHitSource.DISK

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        options = dict(self._kv_transfer_config.kv_connector_extra_config)
        self._config = vllm_config
        self._cache_config = kv_cache_config
        self._facts: Facts | None = None
        self._engine: Engine | None = None
        self._scheduler: _Scheduler | None = None
        self._worker: _Worker | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._engine = Engine(vllm_config, kv_cache_config)
            self._scheduler = _Scheduler(self._engine, kv_cache_config, options)
        else:
            self._worker = _Worker(kv_cache_config, vllm_config.parallel_config.rank %
                                   vllm_config.parallel_config.tensor_parallel_size,
                                   options.get("by_layer", False))

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return bool(extra_config.get("by_layer", False))  # a full graph waits for no layer

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # what is not stored is computed again

    def shutdown(self) -> None:
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            scheduler.close()
        if self._engine is not None:
            self._engine.close()
        if self._worker is not None:
            self._worker.close()

    # ---- the scheduler's half

    def on_new_request(self, request: Any) -> None:
        assert self._scheduler is not None
        self._scheduler.queued(request)

    def get_num_new_matched_tokens(self, request: Any,
                                   num_computed_tokens: int) -> tuple[int | None, bool]:
        assert self._scheduler is not None
        return self._scheduler.matched(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self._scheduler is not None
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        assert self._scheduler is not None and self._engine is not None
        self._engine.stepped(scheduler_output.num_scheduled_tokens)
        return self._scheduler.step(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        assert self._scheduler is not None
        done = connector_output.kv_connector_worker_meta
        if isinstance(done, Copied):
            self._scheduler.copied(done)

    def request_finished(self, request: Any,
                         block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        self._scheduler.finished(request)
        return False, None

    def request_finished_all_groups(
            self, request: Any,
            block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, [])

    def has_pending_push_work(self) -> bool:
        return self._scheduler is not None and self._scheduler.copying

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        if self._engine is not None:
            self._engine.learn(metadata)

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        if self._engine is not None:
            self._engine.pool = gpu_block_pool

    def reset_cache(self) -> bool | None:
        if self._engine is not None:
            self._engine.reset()
        return True

    # ---- the worker's half

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        assert self._worker is not None
        self._worker.register(kv_caches)
        self._facts = Facts(configuration.of_worker(self._config, self._cache_config, kv_caches))

    def get_handshake_metadata(self) -> Facts | None:
        return self._facts.of(self) if self._facts else None

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert self._worker is not None and isinstance(kv_connector_metadata, Step)
        if kv_connector_metadata.behind:
            self._worker.wait_for_stores()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        step = self._get_connector_metadata()
        assert self._worker is not None and isinstance(step, Step)
        self._worker.copy(step, step.loads, load=True)

    def wait_for_layer_load(self, layer_name: str) -> None:
        assert self._worker is not None
        self._worker.wait_for_layer(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any,
                      **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        step = self._get_connector_metadata()
        assert self._worker is not None and isinstance(step, Step)
        self._worker.copy(step, step.stores, load=False)

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        assert self._worker is not None
        copied = self._worker.take_copied()
        return Copied(copied) if copied else None

    # ---- metrics

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """In the scheduler's process called once for each step that has ended."""
        if self._scheduler is None:
            return None
        assert self._engine is not None
        self._engine.prefill.step_ended()
        return self._scheduler.stats()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats:
        return IcmsStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: list[str],
                           per_engine_labelvalues: Any) -> KVConnectorPromMetrics:
        return IcmsPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


def _dtype(config: Any) -> str:
    said = config.cache_config.cache_dtype
    return str(config.model_config.dtype if said == "auto" else said).removeprefix("torch.")


def _shape(config: Any, kv_cache_config: Any) -> tuple[int, int]:
    """(tokens of a block, its bytes a rank); WrongTier for a model that this connector cannot do."""
    parallel = config.parallel_config
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1 or not isinstance(groups[0].kv_cache_spec, AttentionSpec):
        raise WrongTier("icms: this model has several kinds of KV cache: IcmsConnector moves one; "
                        "use OffloadingConnector with IcmsTier")
    if parallel.world_size != parallel.tensor_parallel_size or parallel.nnodes_within_dp != 1 or \
            parallel.decode_context_parallel_size != 1:
        raise WrongTier("icms: IcmsConnector serves tensor parallelism within one machine; for "
                        "other kinds use OffloadingConnector with IcmsTier")
    spec = groups[0].kv_cache_spec
    return spec.block_size, spec.page_size_bytes * len(groups[0].layer_names)
