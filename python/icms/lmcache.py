# SPDX-License-Identifier: Apache-2.0
"""icms as a second level of LMCache: a `native_plugin` of its server.

    lmcache server ... --l2-adapter '{"type": "native_plugin", "module_path": "icms.lmcache",
        "class_name": "IcmsConnector", "adapter_params": {"where": "unix:", "volume": "kv",
        "weights": "/models/llama", "layout": "vllm 0.32, bf16, FLASH_ATTN, tp 1"}}'

LMCache hands over batches of names and memory and is told through a descriptor when one is over.
Bytes go between the tier and LMCache's memory in place. Parameters are those of `Options`.

A server starts without an agent that is not there: until it comes every batch is one of chunks that
are not there, or not stored.

LMCache calls submit_... from its controllers' threads and drain_completions from one that polls the
descriptor. A batch is a generator that yields what the tier has to do and gets the answer;
drain_completions steps those whose answers have come. The one thread here compares this server's
identity with those of others; another one gives hints. What the tier refuses is a chunk that is not
there, or not stored; it is counted and logged.

A value larger than the volume's is cut into parts, beside each other, and a note under its own key
says that they are there; it is written when all of them are. Life cycle: IcmsConnector ->
submit_... and drain_completions -> close.
"""
from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import logging
import os
import select
import struct
import threading
import time
from collections.abc import Generator, Sequence
from typing import Any

from . import _engines, errors, fingerprint, keys as _keys
from ._icms import BATCH_MAX
from ._tables import CLASSES, LimitError, Miss, Status
from .client import Block, Layout, Request, Source
from .statements import Watch

log = logging.getLogger(__name__)

#: What stands under the key of a value that was cut: its size.
_NOTE = struct.Struct("<Q")

#: What to do about a field that differs, for `icms.statements`.
_WORDS = {"weights": "set the option weights alike on all servers",
          "layout": "set the option layout alike on all servers"}

#: What a batch asks of the tier: method of Volume, keys, memory.
_Ask = tuple[str, list[bytes], list[Any]]
#: A batch: asks, gets blocks, returns what is True for which of its names.
_Steps = Generator[_Ask, list[Block], list[bool]]

_LOST = Block(Status.MISS, Miss.NONE, Source.NONE, 0)  # of a call that failed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(_engines.TierOptions):
    """adapter_params of the plugin."""

    #: What names the weights of all models that this server caches, LoRA adapters included: a text that
    #: changes with them ("llama-3.1 rev 5"), or, for one model, the path of its files, which begins
    #: with "/", for a fingerprint of their content.
    weights: str
    #: What else decides the bytes of a chunk and LMCache's names do not say: data type of the KV cache
    #: and its scales, attention back end, tensor and pipeline sizes, options such as --hf-overrides,
    #: versions of engine and LMCache. All servers that share must say the same.
    layout: str
    #: Milliseconds within which LMCache loads chunks that it found: the agent is told, and brings them into
    #: its memory meanwhile; 0: it is told nothing.
    prestage_ms: int = 5000


#: Milliseconds that the agent has to answer a hint, and how many calls may wait for that.
_HINT_MS = 100
_HINT_CALLS = 16


@dataclasses.dataclass
class Counters(_engines.Reasons):
    """What went through one IcmsConnector. Copies from `IcmsConnector.counters`."""

    #: Chunks looked up, and how many were there.
    looked_up: int = 0
    found: int = 0
    #: Hints that the agent took, of blocks of chunks that were found.
    hinted: int = 0
    #: Chunks asked for, and how many came.
    wanted: int = 0
    loaded: int = 0
    bytes_loaded: int = 0
    #: Chunks handed over, and how many are stored, those that were there already included.
    offered: int = 0
    stored: int = 0
    bytes_stored: int = 0
    #: Chunks deleted.
    deleted: int = 0


@dataclasses.dataclass(eq=False)
class _Batch:
    """One call of LMCache that is not over."""

    number: int               # LMCache's future
    what: str                 # "load", ...: for the log
    count: int                # names
    steps: _Steps
    end: float                # when its deadline passes; 0: the tier's default for each step
    error: str = ""           # the first failure of a call
    answers: list[list[Block] | None] = dataclasses.field(default_factory=list)  # of this step
    waits: int = 0            # answers that are missing


@dataclasses.dataclass(eq=False)
class _Call:
    """A part of a step that fits one call of the tier."""

    batch: _Batch
    index: int                # of its answer
    method: str               # of Volume: "start_get", ...
    keys: list[bytes]
    memory: list[Any]         # empty: the method takes none


class IcmsConnector:
    """LMCache's native connector on a volume of icms."""

    def __init__(self, **params: Any) -> None:
        """Opens the tier, which may have no agent yet. ValueError and icms.Error say what is wrong and what
        to do."""
        self.options = _engines.options(Options, params, '"adapter_params"')
        self._weights = self._named_weights()
        self._sayer = _engines.Sayer(log)
        self._lock = threading.RLock()  # of all below
        self._counters = Counters()
        self._last = 0                                      # number of a batch
        self._calls: collections.deque[_Call] = collections.deque()  # not started yet
        self._under_way = 0                                 # started and not over
        self._starting = False                              # somebody is in _start
        self._done: list[tuple[int, bool, str, list[bool] | None]] = []
        self._closed = False
        self._cut_bytes = 0     # of the last value that moved, if it is cut into parts
        self._hints = 0         # calls of _hinter that are not over
        self._hinter = concurrent.futures.ThreadPoolExecutor(1, "icms-hints")
        self._is_open = False  # the tier has come; from then on there is
        self._scheme: _keys.Scheme
        # One descriptor for two: the tier's, and ours for what is over without it.
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._bell, select.EPOLLIN)
        try:
            self._tier = _engines.Tier(self.options, log)
        except BaseException:
            self._hinter.shutdown()
            self._epoll.close()
            os.close(self._bell)
            raise
        self.client, self.volume = self._tier.client, self._tier.volume
        self._epoll.register(self.client.fileno(), select.EPOLLIN)
        with self._lock:
            self._open()

    def _named_weights(self) -> bytes:
        """LMCache shows chunks by their names alone, so what they are of has to be told."""
        for name, of in (("weights", "the weights, or the path of their files"),
                         ("layout", "data type, attention back end, parallel sizes and versions")):
            if not getattr(self.options, name).strip():
                raise ValueError(f'"adapter_params": the option {name!r} is empty; set it to a text '
                                 f"that names {of}, the same in all servers that share")
        if self.options.weights.startswith("/"):
            return fingerprint.of_files(self.options.weights, log=log)
        return b"text " + self.options.weights.encode()

    def _open(self) -> Status:
        """OK when the tier can be used, as far as is known; from the first time on there is a scheme.
        With the lock."""
        state = self.volume.state
        if state == Status.OK and not self._is_open:
            self._scheme = _keys.Scheme(
                self.volume, Layout(tenant=self.options.tenant, model="lmcache", weights=self._weights,
                                    layout=f"lmcache {self.options.layout}"),
                hashes="lmcache object key", chained=False)
            log.info("icms: volume %s of %s, scheme %s", self.volume.name, self.client.where,
                     self._scheme.fingerprint)
            self._is_open = True
            self._tier.watch(Watch(self._scheme, _WORDS, log))
        return state

    # ---- LMCache's interface

    def event_fd(self) -> int:
        """Readable when drain_completions has something. To poll, never to read; goes with close."""
        return self._epoll.fileno()

    def submit_batch_get(self, keys: Sequence[str], bufs: Sequence[Any]) -> int:
        """Loads values into memory of exactly their sizes. Over with True for each that came."""
        return self._submit("load", self._get(list(keys), list(bufs)), len(keys),
                            self.options.load_ms)

    def submit_batch_set(self, keys: Sequence[str], bufs: Sequence[Any]) -> int:
        """Stores values. Over with True for each that the tier has taken or had. Values of a name
        are always the same, so what is there stays."""
        return self._submit("store", self._set(list(keys), list(bufs)), len(keys),
                            self.options.store_ms)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Looks up names. Over with True for each that is there at this moment."""
        return self._submit("look up", self._exists(list(keys)), len(keys),
                            self.options.load_ms)

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Frees values here and in the pod. Over with True for each that was there."""
        return self._submit("delete", self._delete(list(keys)), len(keys),
                            self.options.store_ms)

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool] | None]]:
        """What is over: (number that submit_... returned, True when it is for all its names, why
        not, which). Never blocks."""
        try:
            while (not self._closed
                   and (request := self.client.poll()) is not None):
                with self._lock:  # which whoever starts a request holds: it is whole
                    self._call_over(request)
        except errors.Error as error:
            self._sayer.warn("poll", f"the tier does not say what is over: {error}")
        with self._lock:
            done, self._done = self._done, []
            if not self._closed:
                try:
                    os.eventfd_read(self._bell)
                except BlockingIOError:
                    pass
        return done

    def close(self) -> None:
        """Waits for outstanding calls of the tier, which their deadlines bound, and closes
        it. Batches that are not over then never are."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._calls.clear()
        log.info("icms: closed after %s", self.counters)
        self._hinter.shutdown(cancel_futures=True)
        self._tier.close()
        self._epoll.close()
        os.close(self._bell)

    @property
    def counters(self) -> Counters:
        """A copy of what was counted since the beginning."""
        with self._lock:
            return self._counters.snapshot()

    # ---- what each batch does

    def _get(self, names: list[str], bufs: list[Any]) -> _Steps:
        memory = _bytes_of(names, bufs)
        parts = [self._parts(key, room) for key, room in zip(self._scheme.keys(names), memory)]
        blocks = yield ("start_get", [key for some in parts for key, _ in some],
                        [room for some in parts for _, room in some])
        came = []
        for some, room in zip(parts, memory):
            mine, blocks = blocks[:len(some)], blocks[len(some):]
            came.append(all(block.status == Status.OK and block.nbytes == len(part)
                            for block, (_, part) in zip(mine, some)))
            self._counters.misses.update(block.reason.name for block in mine
                                         if block.status == Status.MISS and block is not _LOST)
            self._counters.bytes_loaded += len(room) if came[-1] else 0
        self._counters.wanted += len(names)
        self._counters.loaded += sum(came)
        return came

    def _set(self, names: list[str], bufs: list[Any]) -> _Steps:
        values = _bytes_of(names, bufs)
        keys = self._scheme.keys(names)
        parts = [self._parts(key, value) for key, value in zip(keys, values)]
        blocks = yield ("start_put", [key for some in parts for key, _ in some],
                        [value for some in parts for _, value in some])
        took = []
        for some in parts:
            mine, blocks = blocks[:len(some)], blocks[len(some):]
            took.append(self._all_taken(mine))
        cut = [i for i, some in enumerate(parts) if took[i] and len(some) > 1]
        if cut:
            blocks = yield ("start_put", [keys[i] for i in cut],
                            [_NOTE.pack(len(values[i])) for i in cut])
            for i, block in zip(cut, blocks):
                took[i] = self._all_taken([block])
        self._counters.offered += len(names)
        self._counters.stored += sum(took)
        self._counters.bytes_stored += sum(len(value) for value, is_in in zip(values, took)
                                           if is_in)
        return took

    def _exists(self, names: list[str]) -> _Steps:
        keys = self._scheme.keys(names)
        blocks = yield ("start_exists", keys, [])
        found = [block.status == Status.OK for block in blocks]
        self._counters.looked_up += len(names)
        self._counters.found += sum(found)
        self._hint([key for key, is_in in zip(keys, found) if is_in])
        return found

    def _hint(self, keys: list[bytes]) -> None:
        """LMCache looks up chunks before it loads them: until then the agent brings them into its memory. In
        a thread of its own, since the one here does not wait. Of parts it is not known how large their
        chunk is: as the last one."""
        if not keys or not self.options.prestage_ms or self._closed or self._hints == _HINT_CALLS:
            return
        if self._cut_bytes:
            keys = [part for key in keys for part in self._part_keys(key, self._cut_bytes)]
        self._hints += 1
        self._hinter.submit(self._hint_now, keys)

    def _hint_now(self, keys: list[bytes]) -> None:
        taken = 0
        try:
            taken = self.volume.prestage(keys, deadline_ms=self.options.prestage_ms, timeout_ms=_HINT_MS)
        except errors.Error as error:
            self._sayer.warn("hint", f"the agent takes no hints: {error}")
        finally:
            with self._lock:
                self._hints -= 1
                self._counters.hinted += taken

    def _delete(self, names: list[str]) -> _Steps:
        keys = self._scheme.keys(names)
        notes = [bytearray(_NOTE.size) for _ in keys]
        blocks = yield ("start_get", keys, notes)
        gone = list(keys)
        for key, note, block in zip(keys, notes, blocks):
            if block.status == Status.OK and block.nbytes == _NOTE.size:
                nbytes = _NOTE.unpack(note)[0]
                if self.volume.value_bytes_max < nbytes < BATCH_MAX * self.volume.value_bytes_max:
                    gone += self._part_keys(key, nbytes)
        blocks = yield ("start_remove", gone, [])
        deleted = [block.status == Status.OK for block in blocks[:len(keys)]]
        self._counters.deleted += sum(deleted)
        return deleted

    def _part_keys(self, key: bytes, nbytes: int) -> list[bytes]:
        return _names_of(key, nbytes, len(_engines.cut(nbytes, self.volume.value_bytes_max)))

    def _parts(self, key: bytes, memory: memoryview) -> list[tuple[bytes, memoryview]]:
        """The blocks of a value."""
        cuts = _engines.cut(len(memory), self.volume.value_bytes_max)
        self._cut_bytes = len(memory) if len(cuts) > 1 else 0
        return [(part, memory[offset:offset + size]) for part, (offset, size)
                in zip(_names_of(key, len(memory), len(cuts)), cuts)]

    def _all_taken(self, blocks: list[Block]) -> bool:
        refused = collections.Counter(block.status.name for block in blocks
                                      if block.status not in (Status.OK, Status.EXISTS))
        if refused and _LOST not in blocks:
            self._counters.refusals += refused
            self._sayer.warn("refused", f"the volume {self.volume.name} did not take a chunk: "
                                        f"{dict(refused)}")
        return not refused

    # ---- from batch to calls of the tier, and back; with the lock

    def _submit(self, what: str, steps: _Steps, count: int, deadline_ms: int) -> int:
        with self._lock:
            self._last += 1
            batch = _Batch(self._last, what, count, steps,
                           time.monotonic() + deadline_ms / 1000 if deadline_ms else 0)
            state = Status.OK if self._is_open else self._open()
            if state != Status.OK:
                batch.error = f"there is no tier at {self.options.where} yet: {state.name}"
                self._counters.failures[CLASSES[state].__name__] += 1
                self._over(batch, None)
            else:
                self._step(batch, None)
            return batch.number

    def _step(self, batch: _Batch, blocks: list[Block] | None) -> None:
        """Goes on with a batch: its next ask is queued, or it is over."""
        try:
            method, keys, memory = batch.steps.send(blocks)  # type: ignore[arg-type]
        except StopIteration as over:
            self._over(batch, over.value)
            return
        except (TypeError, ValueError, BufferError) as error:  # of its arguments
            self._failed(batch, error)
            self._over(batch, None)
            return
        starts = range(0, len(keys), BATCH_MAX)
        batch.answers = [None] * len(starts)
        batch.waits = len(starts)
        self._calls.extend(_Call(batch, index, method, keys[at:at + BATCH_MAX],
                                 memory[at:at + BATCH_MAX]) for index, at in enumerate(starts))
        if not starts:
            self._step(batch, [])
        self._start()

    def _start(self) -> None:
        """Starts what is queued, as far as the tier takes it. Within itself: leaves it to itself."""
        if self._starting:
            return
        self._starting = True
        try:
            while self._calls and self._start_first():
                pass
        finally:
            self._starting = False

    def _start_first(self) -> bool:
        """False when it has to wait."""
        call = self._calls[0]
        left_ms = 0
        if call.batch.end:
            left_ms = max(1, int((call.batch.end - time.monotonic()) * 1000))
        try:
            self._start_call(call, left_ms)
        except (errors.Error, TypeError, ValueError, BufferError) as error:
            if isinstance(error, LimitError) and self._under_way:
                return False  # goes on when one of them is over
            self._calls.popleft()
            self._failed(call.batch, error)
            self._answer(call, [_LOST] * len(call.keys))
        else:
            self._calls.popleft()
            self._under_way += 1
        return True

    def _start_call(self, call: _Call, left_ms: int) -> None:
        start = getattr(self.volume, call.method)
        if call.method == "start_put":
            start(call.keys, call.memory, deadline_ms=left_ms, if_absent=True, tag=call)
        elif call.memory:
            start(call.keys, call.memory, deadline_ms=left_ms, tag=call)
        else:
            start(call.keys, deadline_ms=left_ms, tag=call)

    def _call_over(self, request: Request) -> None:
        call: _Call = request.tag
        self._under_way -= 1
        try:
            blocks = list(request.result())
        except errors.Error as error:
            self._failed(call.batch, error)
            blocks = [_LOST] * len(call.keys)
        self._answer(call, blocks)
        self._start()

    def _answer(self, call: _Call, blocks: list[Block]) -> None:
        batch = call.batch
        batch.answers[call.index] = blocks
        batch.waits -= 1
        if not batch.waits:
            self._step(batch, [block for some in batch.answers for block in some or []])

    def _failed(self, batch: _Batch, error: Exception) -> None:
        self._counters.failures[type(error).__name__] += 1
        batch.error = batch.error or str(error)
        self._sayer.warn(batch.what, f"cannot {batch.what} chunks in the volume "
                                     f"{self.volume.name}: {error}")

    def _over(self, batch: _Batch, which: list[bool] | None) -> None:
        which = which or [False] * batch.count
        is_good = not batch.error and (all(which) or batch.what == "look up")
        why = batch.error or ("" if is_good else f"{which.count(False)} of {batch.count} "
                              f"chunks: cannot {batch.what}")
        self._done.append((batch.number, is_good, why, which))
        if not self._closed:
            os.eventfd_write(self._bell, 1)


def _names_of(key: bytes, nbytes: int, count: int) -> list[bytes]:
    """The keys of the blocks of a value."""
    if count == 1:
        return [key]
    return [_keys.part(key, f"{i + 1}/{count} {nbytes}") for i in range(count)]


def _bytes_of(names: list[str], bufs: list[Any]) -> list[memoryview]:
    """Memory of LMCache as bytes."""
    if len(names) != len(bufs):
        raise ValueError(f"{len(names)} names and {len(bufs)} pieces of memory")
    return [memoryview(buf).cast("B") for buf in bufs]
