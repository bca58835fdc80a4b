# SPDX-License-Identifier: Apache-2.0
"""icms as storage of SGLang's HiCache, through its dynamic loader.

    --enable-hierarchical-cache --hicache-mem-layout page_first
    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{
        "backend_name": "icms", "module_path": "icms.sglang", "class_name": "HiCacheIcms",
        "interface_v1": 1, "hicache_storage_pass_prefix_keys": true,
        "icms": {"where": "unix:", "volume": "kv", "chained": true}}'

Bytes go between the tier and the memory of SGLang's host pools without a copy here (`interface_v1`).
The buffers that make a page, K and V or one a layer, are a block each, or more where a buffer is
larger than the volume's values; those of a page lie in the same enclosure. Options are those of `Options`.

SGLang makes one object in each of its processes and calls it from the threads that it has for
prefetch and backup: HiCacheIcms() -> register_mem_pool_host -> register_mem_host_pool_v2 of each
further pool -> batch calls of any thread -> close. Nothing of the tier that fails there is raised:
it is a page that is not there, or not stored, it is counted and logged. So is a tier that is not there
yet; what can never work is raised while SGLang starts.

Key spaces. Pages are shared with all servers of the same identity (see `_sglang`) until SGLang changes
its weights, is flushed, or is told to clear its storage. Then this engine has a private key space:
nothing older is found, and what is stored from then on is found by this engine alone. With the option
`weights: "files"` a flush alone changes nothing, and one after weights were loaded from files takes the
fingerprint of those:

    shared --weights change, clear, flush--> private
    shared --weights change, clear--> private --flush--> shared      with "files"
"""
from __future__ import annotations

import collections
import copy
import ctypes
import dataclasses
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import (HiCacheStorage, PoolHitPolicy, PoolName,
                                                  PoolTransferResult)

from . import _engines, _sglang, errors, fingerprint, keys as _keys
from ._icms import BATCH_MAX
from ._tables import CLASSES, Status
from .client import Layout, Results
from .statements import Watch

log = logging.getLogger(__name__)

#: Calls that are remembered until SGLang asks for its metrics.
_METRICS_MAX = 1024
#: Attributes of host pools that decide what is where in a page.
_POOL_FIELDS = ("layout", "storage_format_tag", "layer_num", "start_layer", "end_layer", "head_num",
                "head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim", "kv_cache_dim",
                "index_head_dim", "quant_block_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(_engines.TierOptions):
    """The object "icms" in the extra configuration."""

    #: "": a fingerprint of the model's files, until SGLang changes weights or is flushed; then a
    #: private key space. "files": a flush keeps or takes the fingerprint of the files that weights were
    #: loaded from last, so that servers that sleep, or load weights from files, share again. It is right
    #: where nothing but SGLang's own functions changes weights. Any other text names all weights,
    #: adapters and other files, and has to change with them.
    weights: str = ""
    #: True when the extra configuration also has "hicache_storage_pass_prefix_keys": true. Then
    #: consecutive pages of a prompt are placed together, and an enclosure that is lost costs whole
    #: runs of a few prompts. False: pages are placed one by one, and it costs a hole in every prompt
    #: of more pages than there are enclosures. All servers must say the same.
    chained: bool = False
    #: Milliseconds within which SGLang loads pages that it found: the agent is told, and brings them into
    #: its memory meanwhile; 0: it is told nothing.
    prestage_ms: int = 5000


#: Milliseconds that the agent has to answer a hint.
_HINT_MS = 100


@dataclasses.dataclass
class Counters(_engines.Reasons):
    """What went through one HiCacheIcms. Copies from `HiCacheIcms.counters`."""

    #: Pages asked for, and how many came.
    pages_wanted: int = 0
    pages_loaded: int = 0
    bytes_loaded: int = 0
    #: Pages handed over, and how many are stored, those that were there already included.
    pages_offered: int = 0
    pages_stored: int = 0
    bytes_stored: int = 0


class _Pool:
    """A host pool of SGLang and the memory of its pages."""

    scheme: _keys.Scheme  # from open on, as all but name, pool, page_size and page_bytes
    pieces: int

    def __init__(self, name: str, pool: Any) -> None:
        self.name = name
        self.pool = pool
        self.page_size = getattr(pool, "page_size", 1) or 1
        try:
            meta = pool.get_page_buffer_meta(torch.zeros(self.page_size, dtype=torch.int64))
        except (AssertionError, NotImplementedError, ValueError) as error:
            raise ValueError(
                f"the host pool {name!r} cannot say where its pages lie ({error}), so nothing could "
                "be loaded into it in place: start SGLang with --hicache-mem-layout page_first or "
                "page_first_direct") from error
        #: Bytes of each buffer of a page; none where the pool has no memory of its own.
        self._buffers = tuple(int(size) for size in meta[1]) if meta else ()
        self.page_bytes = sum(self._buffers)

    def open(self, scheme: _keys.Scheme) -> None:
        """The volume is there, and with it the size of blocks."""
        value_bytes_max = scheme.volume.value_bytes_max
        self.scheme = scheme
        #: What is a block: a buffer, or a part of one that is larger than the volume's values.
        self._cuts = [(buffer, offset, size) for buffer, nbytes in enumerate(self._buffers)
                      for offset, size in _engines.cut(nbytes, value_bytes_max)]
        self.pieces = len(self._cuts)
        self._types = [ctypes.c_char * size for _, _, size in self._cuts]
        kind = getattr(self.pool, "dtype", "")
        self._parts = [f"{self.name} {kind} {i + 1}/{self.pieces} {size}"
                       for i, (_, _, size) in enumerate(self._cuts)]
        log.info("icms: a page of the pool %s is %d blocks, %d bytes in all", self.name, self.pieces,
                 self.page_bytes)

    def opened(self, scheme: _keys.Scheme) -> _Pool:
        """The same pool with another scheme, or other sizes: calls that have begun use the one before."""
        pool = copy.copy(self)
        pool.open(scheme)
        return pool

    def keys(self, page_keys: Sequence[bytes]) -> list[bytes]:
        """The keys of all pieces, page by page. A piece of another size has another key."""
        return [_keys.part(key, part) for key in page_keys for part in self._parts]

    def memory(self, host_indices: Any, pages: int) -> list[Any]:
        """The memory of all pieces, page by page. ValueError when it is not that of pages pages."""
        if host_indices is None or len(host_indices) != pages * self.page_size:
            raise ValueError(f"{pages} keys for the pool {self.name!r} and "
                             f"{0 if host_indices is None else len(host_indices)} tokens, with "
                             f"pages of {self.page_size}")
        if not self.pieces:
            return []
        places, sizes = self.pool.get_page_buffer_meta(host_indices)
        if tuple(sizes) != self._buffers * pages:
            raise ValueError(f"the pages of the pool {self.name!r} have changed their shape")
        each = len(self._buffers)
        return [kind.from_address(places[page * each + buffer] + offset) for page in range(pages)
                for (buffer, offset, _), kind in zip(self._cuts, self._types)]


@dataclasses.dataclass
class _Part:
    """One pool's share of a call."""

    pool: _Pool
    keys: list[bytes]     # of pieces
    memory: list[Any]     # of pieces
    pages: int


class HiCacheIcms(HiCacheStorage):
    """SGLang's HiCacheStorage on a volume of icms."""

    def __init__(self, storage_config: Any, kwargs: dict[str, Any] | None = None) -> None:
        """Opens the tier, now or when it comes. ValueError and icms.Error say what is wrong and what
        to do."""
        extra = storage_config.extra_config or {}
        self.options = _engines.options(Options, extra.get("icms"),
                                        '"icms" in the extra configuration of HiCache')
        self._config = storage_config
        self._in_place = bool(extra.get("interface_v1", 0))
        if self.options.chained and not self._in_place:
            raise ValueError('"chained" needs "interface_v1": 1, because SGLang\'s other interface '
                             "does not say which pages come before")
        if getattr(storage_config, "should_split_heads", False):
            raise ValueError('"tp_lcm_size" is not supported by icms: servers share pages when '
                             "their TP sizes are equal; leave it out")
        if getattr(storage_config, "dcp_size", 1) > 1:
            raise ValueError("decode context parallelism is not supported by icms")
        self._nonce = _sglang.common_nonce()  # before anything that can fail in one rank alone
        self._identity = _sglang.identity(self.options.weights, log)
        self._sayer = _engines.Sayer(log)
        self._lock = threading.Lock()  # of the three below
        self._counters = Counters()
        self._loads: collections.deque[tuple[int, float]] = collections.deque(maxlen=_METRICS_MAX)
        self._stores: collections.deque[tuple[int, float]] = collections.deque(maxlen=_METRICS_MAX)
        self._closed = False
        self._setup = threading.RLock()  # of what follows, until close
        self._pools: dict[str, _Pool] = {}
        self._main: Any = None  # the pool of KV pages
        self._page_bytes = 0    # of it, as one tensor
        self._is_known = True   # the weights are those of _identity
        self._source: str | None = None  # else the files that they were loaded from, if any
        self._spaces = 0        # private key spaces so far
        self._space = b""       # the one that is used; empty: shared
        self._is_used = False   # there are schemes
        self._value_bytes_max = 0  # for which pages are cut
        self._scheme: _keys.Scheme
        self._sharded: _keys.Scheme
        self._flush_hook: _sglang.FlushHook | None = None
        self._weights_hook = _sglang.WeightsHook(self._weights_change, self._weights_loaded)
        try:
            self._tier = _engines.Tier(self.options, log)
        except BaseException:
            self._weights_hook.close()
            raise
        self.client, self.volume = self._tier.client, self._tier.volume

    # ---- pools

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Called first: the pool of KV pages."""
        super().register_mem_pool_host(mem_pool_host)
        with self._setup:
            if self._in_place:
                self._pools[str(PoolName.KV)] = _Pool(str(PoolName.KV), mem_pool_host)
            else:
                page = mem_pool_host.get_dummy_flat_data_page()
                self._page_bytes = page.numel() * page.element_size()
            self._main = mem_pool_host
            if self._flush_hook is not None:
                self._flush_hook.close()
            self._flush_hook = _sglang.FlushHook(mem_pool_host, self._flushed)
            if self._is_used or self.volume.state == Status.OK:
                self._use()

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Called for each further pool of a hybrid model, and again for that of KV pages."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = str(host_pool_name)
        with self._setup:
            if self._main is None:
                raise ValueError("SGLang has not registered the pool of KV pages")
            pool = _Pool(name, host_pool)
            if self._is_used:
                pool.open(self._scheme_of(name))
            self._pools[name] = pool

    def _use(self) -> None:
        """Tier and pool of KV pages are there; maybe with other names or sizes than before."""
        value_bytes_max = self.volume.value_bytes_max
        self._scheme = self._make_scheme(self._main, self._config.is_mla_model)
        self._sharded = self._make_scheme(self._main, False)
        self._pools = {name: pool.opened(self._scheme_of(name)) for name, pool in self._pools.items()}
        self._is_used, self._value_bytes_max = True, value_bytes_max
        log.info("icms: volume %s of %s, scheme %s", self.volume.name, self.client.where,
                 self._scheme.fingerprint)
        self._tier.watch(None if any(self._scheme.layout.rank) or self._space else
                         Watch(self._scheme, _sglang.WORDS, log))

    def _scheme_of(self, name: str) -> _keys.Scheme:
        """State of Mamba layers is cut by tensor rank where KV of MLA is the same in all of them."""
        return self._sharded if name == str(PoolName.MAMBA) else self._scheme

    def _is_fit(self) -> bool:
        """There are schemes, and pages are cut for the volume as it is: another agent may have another
        value_max."""
        return self._is_used and self.volume.value_bytes_max == self._value_bytes_max

    def _absent(self) -> bool:
        """True while there is no tier to use; counted."""
        if self._is_fit():
            return False
        if self._main is None:
            raise ValueError("SGLang has not registered the pool of KV pages")
        state = self.volume.state
        if state == Status.OK:
            with self._setup:
                if not self._is_fit():
                    self._use()
            return False
        with self._lock:
            self._counters.failures[CLASSES[state].__name__] += 1
        return True

    def _make_scheme(self, pool: Any, replicated: bool) -> _keys.Scheme:
        config = self._config
        tensor = (0, 1) if replicated else (config.tp_rank, config.tp_size)
        pipeline = (config.pp_rank, config.pp_size)
        context = (config.attn_cp_rank, config.attn_cp_size)
        shape = {f"pool.{name}": value for name in _POOL_FIELDS
                 if isinstance(value := getattr(pool, name, None), (int, str))}
        layout = Layout(tenant=self.options.tenant, model=self._identity.model,
                        weights=self._identity.weights, dtype=str(getattr(pool, "dtype", "")),
                        layout=("sglang in place" if self._in_place else
                                f"sglang copied {self._page_bytes}"),
                        block_tokens=pool.page_size,
                        rank=(tensor[0], pipeline[0], context[0], 0),
                        ranks=(tensor[1], pipeline[1], context[1], 1))
        return _keys.Scheme(self.volume, layout, hashes="sglang page hash",
                            chained=self.options.chained, space=self._space,
                            config={**self._identity.config, **shape}, label=self._identity.path)

    # ---- key spaces

    def clear(self) -> None:
        """Begins a private key space: nothing that is stored now is found by this engine any more.
        Blocks in the volume stay, since other servers use them."""
        self._begin_space("its storage was cleared")

    def _weights_change(self) -> None:
        """SGLang is about to change its weights."""
        with self._setup:
            self._is_known, self._source = False, None
            self._begin_space("its weights change")

    def _weights_loaded(self, path: str) -> None:
        """They are those of the files at path now; there may still be KV of older ones."""
        self._source = path

    def _flushed(self) -> None:
        """SGLang has emptied its host pool: what it stores from now on was computed since."""
        with self._setup:
            if self.options.weights != fingerprint.FILES:
                self._begin_space("it was flushed")
            elif self._is_known:
                self._share(self._identity)
            elif self._source is not None:
                threading.Thread(target=self._share_loaded, args=(self._source, self._spaces),
                                 name="icms-fingerprint", daemon=True).start()

    def _share_loaded(self, path: str, spaces: int) -> None:
        """Takes the fingerprint of weights that were loaded; on a thread, since it can take long."""
        try:
            identity = _sglang.loaded(self._identity, path, log)
        except ValueError as error:
            log.error("icms: volume %s: still a private key space: %s", self.options.volume, error)
            return
        with self._setup:
            if spaces == self._spaces and not self._closed:  # else weights have changed since
                self._is_known = True
                self._share(identity)

    def _share(self, identity: _sglang.Identity) -> None:
        self._identity = identity
        if self._space:
            self._space = b""
            self._rename()
            log.info("icms: volume %s: shared key space again", self.options.volume)

    def _begin_space(self, why: str) -> None:
        with self._setup:
            if self._closed:
                return
            self._spaces += 1
            self._space = hashlib.sha256(self._nonce + b"%d" % self._spaces).digest()
            self._rename()
        self._sayer.warn("space", f"volume {self.options.volume}: private key space: this engine "
                                  f"shares no pages with others from now on, because {why}")

    def _rename(self) -> None:
        """Names pages by what holds now; calls that have begun go on with their names."""
        if self._is_used:
            self._use()

    # ---- pages in place: interface v1, and v2 for models with several pools

    def batch_get_v1(self, keys: list[str], host_indices: Any,
                     extra_info: Any = None) -> list[bool]:
        """Loads pages into the host pool; True for each that came whole."""
        return self._move(False, [(PoolName.KV, keys, host_indices)], extra_info)[0]

    def batch_set_v1(self, keys: list[str], host_indices: Any,
                     extra_info: Any = None) -> list[bool]:
        """Stores pages of the host pool; True for each that the tier has taken or had."""
        return self._move(True, [(PoolName.KV, keys, host_indices)], extra_info)[0]

    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        """The same for pages of several pools, with one deadline."""
        return self._move_v2(False, transfers, extra_info)

    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        """The same for pages of several pools, with one deadline."""
        return self._move_v2(True, transfers, extra_info)

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many pages from the first up to the first hole are there."""
        if not keys:
            return 0
        if not self._in_place:
            if self._absent():
                return 0
            return _prefix(self._exist(self._page_keys(self._scheme, keys, extra_info)))
        return _prefix(self._pages_exist([PoolName.KV], keys, extra_info)[0])

    def batch_exists_v2(self, keys: list[str], pool_transfers: list[Any] | None = None,
                        extra_info: Any = None) -> Any:
        """Which prefixes can be restored: those where each pool has what its policy needs."""
        transfers = pool_transfers or []
        for transfer in transfers:
            if transfer.hit_policy not in (PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES):
                raise ValueError(f"icms does not know the hit policy {transfer.hit_policy} of the "
                                 f"pool {transfer.name}")
        pools = [PoolName.KV, *(transfer.name for transfer in transfers)]
        there = self._pages_exist(pools, keys, extra_info)
        kv_pages = _prefix(there[0])
        hits = {PoolName.KV: kv_pages} if kv_pages else {}
        restorable = list(range(1, kv_pages + 1))
        for transfer, found in zip(transfers, there[1:]):
            usable = _usable_prefixes(transfer, found[:kv_pages])
            if usable:
                hits[transfer.name] = usable[-1]
            restorable = sorted(set(restorable) & set(usable))
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    # ---- pages as tensors: SGLang without interface_v1, which copies each page

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Loads a page into a tensor and returns it; None when it is not there."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None,
                  target_sizes: Any = None) -> list[Any]:
        """`get` for each."""
        if self._absent():
            return [None] * len(keys)
        memory = [self._memory_of(tensor) for tensor in target_locations]
        loaded = self._load(self._page_keys(self._scheme, keys, None), memory)
        whole = [nbytes == len(room) for nbytes, room in zip(loaded, memory)]
        self._count(False, whole, sum(loaded))
        return [tensor if came else None for tensor, came in zip(target_locations, whole)]

    def set(self, key: str, value: Any = None, target_location: Any = None,
            target_sizes: Any = None) -> bool:
        """Stores a page from a tensor."""
        return self.batch_set([key], [value])

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None,
                  target_sizes: Any = None) -> bool:
        """Stores pages; True when the tier has them all."""
        if self._absent():
            return False
        values = [value.contiguous() for value in values]  # stay until the store is over
        memory = [self._memory_of(value) for value in values]
        stored = self._store(self._page_keys(self._scheme, keys, None), memory)
        self._count(True, stored, sum(len(room) for room, took in zip(memory, stored) if took))
        return all(stored)

    def exists(self, key: str) -> bool:
        """True when the page is there."""
        return self.batch_exists([key]) == 1

    # ---- the rest

    def get_stats(self) -> Any:
        """What SGLang shows as its storage metrics, since it asked last; None when it shows none."""
        if not self._config.enable_storage_metrics:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        with self._lock:
            loads, stores = list(self._loads), list(self._stores)
            self._loads.clear()
            self._stores.clear()
        metrics = StorageMetrics()
        metrics.prefetch_pgs.extend(pages for pages, _ in loads)
        metrics.prefetch_bandwidth.extend(speed for _, speed in loads)
        metrics.backup_pgs.extend(pages for pages, _ in stores)
        metrics.backup_bandwidth.extend(speed for _, speed in stores)
        return metrics

    @property
    def counters(self) -> Counters:
        """A copy of what was counted since the beginning."""
        with self._lock:
            return self._counters.snapshot()

    def close(self) -> None:
        """Waits for outstanding calls, which their deadlines bound, and closes the tier."""
        if not self._closed:
            log.info("icms: closed after %s", self.counters)
        with self._setup:
            self._closed = True
        self._weights_hook.close()
        if self._flush_hook is not None:
            self._flush_hook.close()
        self._tier.close()

    # ---- private: pages

    def _pool(self, name: Any) -> _Pool:
        pool = self._pools.get(str(name))
        if pool is None:
            raise ValueError(f"SGLang has not registered the host pool {str(name)!r} with icms, "
                             f"which has {sorted(self._pools)}")
        return pool

    def _memory_of(self, tensor: Any) -> Any:
        """The memory of a page as a contiguous tensor of the host, which the caller keeps."""
        nbytes = tensor.numel() * tensor.element_size()
        if not tensor.is_contiguous() or nbytes != self._page_bytes:
            raise ValueError(f"cannot move a page of {nbytes} bytes: pages of this host pool are "
                             f"contiguous and have {self._page_bytes}")
        return (ctypes.c_char * nbytes).from_address(tensor.data_ptr())

    def _page_keys(self, scheme: _keys.Scheme, names: list[str], extra_info: Any) -> list[bytes]:
        if not scheme.chained:
            return scheme.keys(names)
        before = getattr(extra_info, "prefix_keys", None) or []
        return scheme.keys([*before, *names])[len(before):]

    def _prefix_unknown(self, extra_info: Any) -> bool:
        """True when SGLang was not told to say what comes before, though pages are chained."""
        if not self.options.chained or getattr(extra_info, "prefix_keys", None) is not None:
            return False
        self._sayer.warn("prefix", '"chained" needs "hicache_storage_pass_prefix_keys": true beside '
                            '"interface_v1" in the extra configuration; nothing is stored')
        return True

    def _move_v2(self, is_store: bool, transfers: list[Any],
                 extra_info: Any) -> dict[str, list[bool]]:
        wanted = [(transfer.name, transfer.keys or [], transfer.host_indices)
                  for transfer in transfers]
        moved = self._move(is_store, wanted, extra_info)
        return {transfer.name: result for transfer, result in zip(transfers, moved)}

    def _move(self, is_store: bool, wanted: list[tuple[Any, list[str], Any]],
              extra_info: Any) -> list[list[bool]]:
        """Moves pages of pools; a list with one entry a page for each."""
        if self._absent() or (is_store and self._prefix_unknown(extra_info)):
            return [[False] * len(names) for _, names, _ in wanted]
        parts = []
        for name, names, host_indices in wanted:
            pool = self._pool(name)
            memory = pool.memory(host_indices, len(names)) if names else []
            page_keys = self._page_keys(pool.scheme, names, extra_info) if memory else []
            parts.append(_Part(pool, pool.keys(page_keys), memory, len(names)))
        keys = [key for part in parts for key in part.keys]
        memory = [room for part in parts for room in part.memory]
        begin = time.monotonic()
        if is_store:
            came = self._store(keys, memory)
        else:
            came = [nbytes > 0 for nbytes in self._load(keys, memory)]
        moved = []
        for part in parts:
            mine, came = came[:len(part.keys)], came[len(part.keys):]
            pages = _all_of(mine, part.pool.pieces, part.pages)
            self._count(is_store, pages, sum(pages) * part.pool.page_bytes)
            moved.append(pages)
        nbytes = sum(sum(pages) * part.pool.page_bytes for part, pages in zip(parts, moved))
        speed = nbytes / 1e9 / max(time.monotonic() - begin, 1e-9)
        with self._lock:
            (self._stores if is_store else self._loads).append(
                (sum(sum(pages) for pages in moved), speed))
        return moved

    def _pages_exist(self, pool_names: list[Any], names: list[str],
                     extra_info: Any) -> list[list[bool]]:
        if self._absent():
            return [[False] * len(names) for _ in pool_names]
        pools = [self._pool(name) for name in pool_names]
        keys = [pool.keys(self._page_keys(pool.scheme, names, extra_info)) if pool.pieces else []
                for pool in pools]
        there = self._exist([key for some in keys for key in some])
        found = []
        for pool, some in zip(pools, keys):
            mine, there = there[:len(some)], there[len(some):]
            found.append(_all_of(mine, pool.pieces, len(names)))
        return found

    # ---- private: the tier

    def _load(self, keys: list[bytes], memory: list[Any]) -> list[int]:
        """Bytes that came of each; 0 where it is not there, or has another size than its memory."""
        def get(some: list[bytes], rooms: list[Any], left_ms: int) -> list[int]:
            results = self.volume.get(some, rooms, deadline_ms=left_ms)
            whole = [block.nbytes if block.status == Status.OK and block.nbytes == len(room) else 0
                     for block, room in zip(results, rooms)]
            if not all(whole):
                self._count_misses(results, whole)
            return whole

        return self._in_batches("load", get, keys, memory, self.options.load_ms, 0)

    def _store(self, keys: list[bytes], memory: list[Any]) -> list[bool]:
        """True for each that the tier has."""
        def put(some: list[bytes], values: list[Any], left_ms: int) -> list[bool]:
            results = self.volume.put(some, values, deadline_ms=left_ms, if_absent=True)
            took = [block.status in (Status.OK, Status.EXISTS) for block in results]
            if not all(took):
                self._count_refusals(results)
            return took

        return self._in_batches("store", put, keys, memory, self.options.store_ms, False)

    def _exist(self, keys: list[bytes]) -> list[bool]:
        def exists(some: list[bytes], _: list[Any], left_ms: int) -> list[bool]:
            return self.volume.exists(some, deadline_ms=left_ms).mask

        there = self._in_batches("look up", exists, keys, keys, self.options.load_ms, False)
        self._prestage(keys[:_prefix(there)])
        return there

    def _prestage(self, keys: list[bytes]) -> None:
        """SGLang asks which pages there are before it loads them, when its turn comes: until then the
        agent brings them into its memory."""
        if not self.options.prestage_ms or not keys:
            return
        try:
            self.volume.prestage(keys, deadline_ms=self.options.prestage_ms, timeout_ms=_HINT_MS)
        except errors.Error as error:  # they are there all the same
            self._failed("prestage", error)

    def _in_batches(self, what: str, call: Callable[..., list[Any]], keys: list[bytes],
                    memory: list[Any], deadline_ms: int, failed: Any) -> list[Any]:
        """The call in as many batches as it takes, under one deadline. What the tier refuses as a
        whole is `failed` for all that is left."""
        end = time.monotonic() + deadline_ms / 1000
        done: list[Any] = []
        try:
            while len(done) < len(keys):
                left_ms = max(1, int((end - time.monotonic()) * 1000)) if deadline_ms else 0
                at = slice(len(done), len(done) + BATCH_MAX)
                done += call(keys[at], memory[at], left_ms)
        except errors.Error as error:
            self._failed(what, error)
        return done + [failed] * (len(keys) - len(done))

    # ---- private: counting

    def _failed(self, what: str, error: errors.Error) -> None:
        with self._lock:
            self._counters.failures[type(error).__name__] += 1
        self._sayer.warn(what, f"cannot {what} pages in the volume {self.volume.name}: {error}")

    def _count(self, is_store: bool, pages: list[bool], nbytes: int) -> None:
        with self._lock:
            if is_store:
                self._counters.pages_offered += len(pages)
                self._counters.pages_stored += sum(pages)
                self._counters.bytes_stored += nbytes
            else:
                self._counters.pages_wanted += len(pages)
                self._counters.pages_loaded += sum(pages)
                self._counters.bytes_loaded += nbytes

    def _count_misses(self, results: Results, whole: list[int]) -> None:
        sizes = [block.nbytes for block, nbytes in zip(results, whole)
                 if not nbytes and block.status in (Status.OK, Status.VALUE_SIZE)]
        with self._lock:
            for reason, count in results.reasons().items():
                self._counters.misses[reason.name] += count
            if sizes:
                self._counters.misses["VALUE_SIZE"] += len(sizes)
        if sizes:
            self._sayer.warn("size", f"the volume {self.volume.name} has {len(sizes)} pieces of pages "
                                     f"with a wrong size, the first of {sizes[0]} bytes; not loaded")

    def _count_refusals(self, results: Results) -> None:
        refused = collections.Counter(block.status.name for block in results
                                      if block.status not in (Status.OK, Status.EXISTS))
        with self._lock:
            self._counters.refusals += refused
        self._sayer.warn("refused", f"the volume {self.volume.name} did not take "
                             f"{sum(refused.values())} of {len(results)} pieces: {dict(refused)}")


def _prefix(found: Sequence[bool]) -> int:
    """How many are True before the first that is not."""
    return found.index(False) if False in found else len(found)


def _all_of(pieces: list[bool], each: int, pages: int) -> list[bool]:
    """For each page whether all of its pieces are True; all pages when they have none."""
    return [all(pieces[i * each:(i + 1) * each]) for i in range(pages)]


def _usable_prefixes(transfer: Any, found: list[bool]) -> list[int]:
    """The lengths of prefixes that a further pool can restore, ascending."""
    if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
        return list(range(1, _prefix(found) + 1))
    tail = max(1, len(transfer.keys or []))
    return [length for length in range(1, len(found) + 1)
            if all(found[max(0, length - tail):length])]
