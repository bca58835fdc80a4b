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
left one of the two would have left the other for a router. `Feed` reads the agent's socket.

All but Feed's thread is used on the scheduler's thread alone.
"""
from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from vllm.v1.kv_offload.base import Locality, Medium, OffloadingEvent

from ..keys import event_hash

OWNER = "icms"
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


class Feed:
    """Events of the agent as its socket has them, read by a thread; what finds no space is missed, and
    so is what a gap in the sequence stands for."""

    WAITING_MAX = 1 << 16
    LOOK_MS = 200

    def __init__(self, endpoint: str, log: Any) -> None:
        import zmq  # vLLM needs both for its own events

        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, self.LOOK_MS)
        self._socket.connect(endpoint)
        self._again = zmq.Again
        self._log = log
        self._waiting: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="icms-events", daemon=True)
        self._thread.start()

    def take(self, near: Near) -> None:
        while not self._waiting.empty():
            near.heard(self._waiting.get())

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        import msgspec

        last: int | None = None
        missed = False
        while not self._closing.is_set():
            try:
                _, number, payload = self._socket.recv_multipart()
                events = msgspec.msgpack.decode(payload)[1]
            except self._again:
                continue
            except Exception as error:  # whatever is published there
                self._log.warning("icms: cannot read the events of the agent: %s", error)
                break
            seq = int.from_bytes(number, "big")
            missed |= last is not None and seq != last + 1
            last = seq
            if self._waiting.qsize() > self.WAITING_MAX:
                missed = True
                continue
            if missed:
                self._waiting.put(None)
                missed = False
            for event in events:
                self._waiting.put(event)
        self._waiting.put(None)
        self._socket.close()
