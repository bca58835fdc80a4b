# SPDX-License-Identifier: Apache-2.0
"""What IcmsTier tells vLLM of chunks in the pod, so that vLLM's own publisher tells routers.

vLLM turns an event of a tier into BlockStored or BlockRemoved with the engine's own hashes of the
blocks, and publishes it with sequence numbers and replay (--kv-events-config). The medium is STORAGE,
the locality REMOTE, the owner "icms".

An event is what this engine has learnt last: it stored a chunk, or was told that the pod has it; or
it was told that the pod does not have it, or could not load it. The pod tells nobody what it evicts,
so a chunk may be gone before an engine learns it.

What the agent of this server has itself it publishes (`events` in icms-agent.yaml(5)), by hashes that no
router knows. `Near` turns these into vLLM's, for chunks whose names this engine has made: STORAGE and
LOCAL while the agent has them, in its memory or on its own drive. They have no owner, because Dynamo's
router ignores events of owners it does not know, and are not CPU, which is vLLM's own memory: a chunk that
left one of the two would have left the other for a router. `Feed` reads the agent's sockets.

All but Feed's thread and `Feed.loaded` is used on the scheduler's thread alone.
"""
from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from vllm.v1.kv_offload.base import Locality, Medium, OffloadingEvent

from ..client import Source
from ..keys import event_hash
from .link import WrongTier
from .movers import Counts

OWNER = "icms"
_ENDPOINT = re.compile(r"ipc:///.+|tcp://.+:([1-9]\d{0,4})")  # ZeroMQ checks the rest
KEYS_MAX = 1 << 18  # chunks that are known to be announced; of the oldest it is said that they left


class Events:
    """Chunks that were announced, and events that vLLM has not taken yet."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._announced: dict[bytes, None] = {}  # in the order of their events
        self._waiting: list[OffloadingEvent] = []

    def stored(self, keys: Iterable[bytes]) -> None:
        """The pod has these chunks. Those that were announced already are not announced again."""
        fresh = [key for key in dict.fromkeys(keys) if key not in self._announced]
        self._announced.update(dict.fromkeys(fresh))
        self._add(fresh, removed=False)
        if len(self._announced) > self._keys_max:
            over = len(self._announced) - self._keys_max
            self.removed([key for key, _ in zip(self._announced, range(over))])

    def removed(self, keys: Iterable[bytes]) -> None:
        """These cannot be had. What was not announced is not taken back."""
        self._add([key for key in dict.fromkeys(keys) if self._forget(key)], removed=True)

    def clear(self) -> None:
        """None of those that were announced will be found under its hash again."""
        self.removed(list(self._announced))

    def take(self) -> list[OffloadingEvent]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def _forget(self, key: bytes) -> bool:
        there = key in self._announced
        self._announced.pop(key, None)
        return there

    def _add(self, keys: list[bytes], *, removed: bool) -> None:
        if keys:
            self._waiting.append(OffloadingEvent(keys=keys, medium=Medium.STORAGE, removed=removed,
                                                 locality=Locality.REMOTE, ownership=OWNER))


class Near:
    """Chunks in the tiers of this server's agent."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._keys: dict[int, bytes] = {}  # vLLM's key by the agent's hash
        self._there: dict[int, set[str]] = {}  # where the agent has it, known to this engine or not
        self._waiting: list[OffloadingEvent] = []

    def know(self, key: bytes, name: bytes) -> None:
        """The tier's name of a chunk. What the agent has of it already is told now."""
        number = event_hash(name)
        if self._keys.get(number) == key:
            return
        if number not in self._keys and len(self._keys) >= self._keys_max:
            self._forget(next(iter(self._keys)))
        self._keys[number] = key
        if number in self._there:
            self._add(number, removed=False)

    def heard(self, event: Mapping[str, Any] | None) -> None:
        """An event of the agent; None: some were missed."""
        if event is None or event["type"] == "AllBlocksCleared":
            for number in self._there:
                self._add(number, removed=True)
            self._there.clear()
            return
        for number in event["block_hashes"]:
            if event["type"] == "BlockRemoved":
                self._left(number, event["medium"])
            else:
                self._came(number, event["medium"])
        while len(self._there) > self._keys_max:
            self._drop(next(iter(self._there)))

    def forget(self) -> None:
        """No chunk will be asked for by its name again."""
        for number in list(self._keys):
            self._forget(number)

    def take(self) -> list[OffloadingEvent]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def _came(self, number: int, medium: str) -> None:
        media = self._there.setdefault(number, set())
        if not media:
            self._add(number, removed=False)
        media.add(medium)

    def _left(self, number: int, medium: str) -> None:
        media = self._there.get(number, set())
        media.discard(medium)
        if number in self._there and not media:
            self._drop(number)

    def _drop(self, number: int) -> None:
        del self._there[number]
        self._add(number, removed=True)

    def _forget(self, number: int) -> None:
        if number in self._there:
            self._add(number, removed=True)
        del self._keys[number]

    def _add(self, number: int, *, removed: bool) -> None:
        key = self._keys.get(number)
        if key is not None:  # vLLM keeps the tokens of what will be removed
            self._waiting.append(OffloadingEvent(keys=[key], medium=Medium.STORAGE, removed=removed,
                                                 locality=Locality.LOCAL, removal_expected=not removed))


def check_endpoints(events: str, replay: str) -> None:
    """WrongTier where the options events and events_replay cannot be endpoints of an agent; "": not given."""
    for option, endpoint in (("events", events), ("events_replay", replay)):
        found = _ENDPOINT.fullmatch(endpoint) if isinstance(endpoint, str) else None
        if endpoint != "" and (found is None or int(found[1] or 0) > 65535):
            raise WrongTier(f"icms: the option {option} is ipc:// with an absolute path or tcp:// with a host "
                            f"and a port, as in events in icms-agent.yaml(5), not {endpoint!r}")
    if replay and not events:
        raise WrongTier("icms: the option events_replay is given without events: set events to the endpoint "
                        "and events_replay to the replay of the same entry in icms-agent.yaml(5)")
    if replay and replay == events:
        raise WrongTier(f"icms: the options events and events_replay are both {events!r}: set them to "
                        "endpoint and replay of the same entry of events in icms-agent.yaml(5)")


class _Batch(NamedTuple):
    """What the agent publishes at a time."""

    number: int
    #: When the agent made it.
    seconds: float
    events: list[Mapping[str, Any]]


def _event(kind: str, medium: str, hashes: list[int]) -> Mapping[str, Any]:
    return {"type": kind, "medium": medium, "block_hashes": hashes}


class Feed:
    """What the agent has, by its events, in their order and none twice. A thread reads them.

    Batches have numbers without gaps. What is missing (it was published before the subscription, ZeroMQ
    dropped it, it could not be read, or there was no space for it here) is asked for at the replay endpoint.
    What the agent has not kept, cannot be read there either, or nobody can be asked for, is missed: then all
    that was known is over.

    Life of a batch: published -> [_catch_up: those before it] -> _hear -> take. Those that come again,
    published and replayed, have an older time than the last one that was heard; those of an agent that was
    restarted have smaller numbers and a later time.
    """

    #: Events that wait to be taken, of so many blocks each at most; and how many are taken at a time.
    WAITING_MAX = 1 << 16
    HASHES_MAX = 16
    TAKE_MAX = 1024
    LOOK_MS = 200
    #: Until when a replay is over: the agent gives it up after as long.
    REPLAY_SECONDS = 5.0

    _MEDIA = {Source.DRAM: "CPU", Source.LOCAL: "STORAGE"}

    def __init__(self, endpoint: str, replay: str, counts: Counts, log: Any) -> None:
        """replay: "": nobody is asked. WrongTier: one of the two cannot be an endpoint."""
        import msgspec  # vLLM needs both for its own events
        import zmq

        self._zmq = zmq
        self._decode = msgspec.msgpack.decode
        self._replay = replay
        self._counts = counts
        self._log = log
        self._waiting: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        # Of the thread alone:
        self._next = 0  # the number of the batch that is heard next
        self._seconds = 0.0  # when the agent made the last one that was heard
        self._is_warned = False  # of a replay that did not come
        self._is_skipping = False  # it was said that there are batches which cannot be read
        if replay:  # so that a mistake in it ends the start, and not the thread
            self._connect(zmq.DEALER, "events_replay", replay).close()
        self._socket = self._connect(zmq.SUB, "events", endpoint)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._thread = threading.Thread(target=self._run, name="icms-events", daemon=True)
        self._thread.start()

    def take(self, near: Near) -> None:
        """Tells near what has come; of much a part, so that no step of the scheduler waits for it."""
        for _ in range(self.TAKE_MAX):
            if self._waiting.empty():
                return
            near.heard(self._waiting.get())

    def loaded(self, name: bytes, source: Source) -> None:
        """A load found the chunk there; any thread. So a chunk is known of which the agent told before
        anybody listened."""
        medium = self._MEDIA.get(source)
        if medium is not None and self._thread.is_alive() and not self._is_full():
            self._waiting.put(_event("BlockStored", medium, [event_hash(name)]))

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _is_full(self) -> bool:
        return self._waiting.qsize() > self.WAITING_MAX

    def _connect(self, kind: int, option: str, endpoint: str) -> Any:
        socket = self._zmq.Context.instance().socket(kind)
        socket.setsockopt(self._zmq.LINGER, 0)
        try:
            socket.connect(endpoint)
        except self._zmq.ZMQError as error:
            socket.close()
            raise WrongTier(f"icms: cannot connect to {endpoint!r}, the option {option}: {error}; set it "
                            "as it is in events in icms-agent.yaml(5)") from error
        return socket

    # ---- on the thread

    def _run(self) -> None:
        try:
            if self._replay:
                self._catch_up()
            while not self._closing.is_set():
                if self._socket.poll(self.LOOK_MS):
                    batch = self._read(self._socket.recv_multipart())
                    if batch is not None:
                        self._published(batch)
        except Exception as error:  # of ZeroMQ
            self._log.warning("icms: cannot read the events of the agent: %s", error)
        self._waiting.put(None)
        self._socket.close()

    def _read(self, frames: list[bytes]) -> _Batch | None:
        """The batch that a message is; None: it is none, and is skipped. Events of kinds that are not known
        here are left out."""
        try:
            *_, number, payload = frames
            seconds, events, *_ = self._decode(payload)
            if len(number) != 8:
                raise ValueError(f"its number has {len(number)} bytes, not 8")
            return _Batch(int.from_bytes(number, "big"), float(seconds),
                          [made for event in events for made in self._made(event)])
        except Exception as error:  # whatever is published there
            self._counts.add("skipped_events", "malformed")
            if not self._is_skipping:
                self._is_skipping = True
                self._log.warning("icms: a batch of the agent's events cannot be read: %s: %s; skipping such "
                                  "batches; check that the options events and events_replay are as in events "
                                  "in icms-agent.yaml(5)", type(error).__name__, error)
            return None

    def _made(self, event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """The events of `take` that one of a batch is. An exception: it is none."""
        kind = event["type"]
        if kind == "AllBlocksCleared":
            yield {"type": kind}
        elif kind in ("BlockStored", "BlockRemoved"):
            hashes = [int(one) for one in event["block_hashes"]]
            for i in range(0, len(hashes), self.HASHES_MAX):
                yield _event(kind, str(event["medium"]), hashes[i:i + self.HASHES_MAX])

    def _published(self, batch: _Batch) -> None:
        if self._is_full():
            return  # a gap is before the next one
        if self._replay and batch.number != self._next:
            if batch.number < self._next:
                if batch.seconds <= self._seconds:
                    return  # it came with a replay
                self._next = 0  # the agent is another process, which tells all from its beginning
            self._catch_up()
            if batch.number < self._next:
                return
        self._hear(batch)

    def _hear(self, batch: _Batch) -> None:
        if batch.number != self._next:
            self._waiting.put(None)
        for event in batch.events:
            self._waiting.put(event)
        self._next, self._seconds = batch.number + 1, batch.seconds

    def _catch_up(self) -> None:
        """Hears what the agent has kept of the batches from the next one on. The last one that was heard is
        asked for as well: where another batch has its number, the agent was restarted."""
        last = self._next - 1
        give_up = time.monotonic() + self.REPLAY_SECONDS
        socket = self._connect(self._zmq.DEALER, "events_replay", self._replay)
        try:
            socket.send_multipart([b"", max(last, 0).to_bytes(8, "big")])
            while not self._closing.is_set() and not self._is_full():
                if time.monotonic() >= give_up:
                    self._warn_once()
                    return
                if not socket.poll(self.LOOK_MS):
                    continue
                frames = socket.recv_multipart()  # as vLLM 0.32 has it: with a topic
                if not frames[-1]:
                    self._is_warned = False
                    return
                batch = self._read(frames)
                if batch is not None and (batch.number, batch.seconds) != (last, self._seconds):
                    self._hear(batch)
        finally:
            socket.close()

    def _warn_once(self) -> None:
        if not self._is_warned:
            self._is_warned = True
            self._log.warning("icms: cannot read from %s what the agent has published: no complete answer "
                              "within %g s; going on with what it publishes now; compare the option "
                              "events_replay with replay in icms-agent.yaml(5)", self._replay,
                              self.REPLAY_SECONDS)
