# SPDX-License-Identifier: Apache-2.0
"""Threads that talk to the tier, so that the engine's scheduler never waits. Used by `tier` and
`connector`.

Loads, stores and questions have threads of their own: a store that waits for its deadline delays no
load. A thread waits inside the library, with the interpreter's lock released. Whatever a call comes
to, it becomes an answer: a hit, or a miss with a reason, by its deadline.
"""
from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .._tables import Miss, Status
from ..client import Results, Source, Volume
from ..errors import Error
from .link import left_ms

#: Keys of blocks, or what makes them, which is then done on the thread.
Names = Sequence[bytes] | Callable[[], Sequence[bytes]]

#: Blocks of one call at least, when a load is divided among threads.
_PIECE_BLOCKS = 8
#: Milliseconds that a hint may take of the thread that asks.
_HINT_MS = 100
#: Blocks of one call at most: what comes after them waits, and sees how much time is left.
_CALL_BLOCKS = 1024


class Counts:
    """What happened, for metrics. Any thread adds; `take` empties it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = collections.Counter()

    def add(self, what: str, label: str, number: int = 1) -> None:
        with self._lock:
            self._counts[what, label] += number

    def take(self) -> dict[tuple[str, str], int]:
        """{(what, label): how many since the last call}"""
        with self._lock:
            counts, self._counts = self._counts, collections.Counter()
            return counts


class Movers:
    """The threads of one engine."""

    def __init__(self, load_threads: int, counts: Counts, log: Any) -> None:
        self._load_threads = load_threads
        self.counts = counts
        self._log = log
        self._loads = ThreadPoolExecutor(load_threads, "icms-load")
        self._stores = ThreadPoolExecutor(1, "icms-store")
        self._asks = ThreadPoolExecutor(1, "icms-ask")
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._under_way = 0

    def wait_idle(self) -> None:
        """Waits until all that was begun is over, which deadlines bound."""
        with self._idle:
            self._idle.wait_for(lambda: self._under_way == 0)

    def close(self) -> None:
        """Drops what has not begun and waits for the rest, which deadlines bound."""
        for pool in (self._loads, self._stores, self._asks):
            pool.shutdown(wait=True, cancel_futures=True)

    # ---- what can be asked for; `done` is called on one of the threads, exactly once

    def exists(self, volume: Volume, names: Names, deadline: float,
               done: Callable[[list[bool]], None]) -> None:
        """done gets whether each block is there; False for what is not known by the deadline."""
        self._begin(self._asks, self._exists, volume, names, deadline, done)

    def estimate(self, volume: Volume, names: Sequence[bytes], deadline: float,
                 done: Callable[[list[float | None]], None]) -> None:
        """done gets the expected seconds to load each block with all before it; None where that is not
        known, or not by the deadline, or where a block is not there any more."""
        def run(volume: Volume, names: Sequence[bytes], deadline: float) -> list[float | None]:
            loads: list[float | None] = [None] * len(names)
            try:
                for i, one in enumerate(volume.match_estimate(
                        names, deadline_ms=max(1, left_ms(deadline)))):
                    loads[i] = one.seconds
            except Error:
                pass  # the loads will say
            return loads

        self._begin(self._asks, run, volume, names, deadline, done)

    def load(self, volume: Volume, names: Sequence[bytes], rooms: Sequence[Any], deadline: float,
             done: Callable[[list[bool]], None], once: bool = False,
             came: Callable[[bytes, Source], None] | None = None) -> None:
        """Fills each room exactly; done gets for which of them that succeeded, in order. once: nobody
        reads them again. came is told before, on the threads, where each of those was."""
        pieces = min(self._load_threads, max(1, len(names) // _PIECE_BLOCKS))
        per_piece = -(-len(names) // pieces)
        loaded = [False] * len(names)
        left = [pieces]

        def piece_done(first: int, found: list[bool]) -> None:
            with self._lock:
                loaded[first:first + len(found)] = found
                left[0] -= 1
                over = left[0] == 0
            if over:
                done(loaded)

        for i in range(pieces):
            first, last = i * per_piece, (i + 1) * per_piece
            self._begin(self._loads, self._load, volume, names[first:last], rooms[first:last],
                        deadline, once, came, lambda found, first=first: piece_done(first, found))

    def store(self, volume: Volume, names: Names, rooms: Sequence[Any],
              deadline: float, done: Callable[[list[bool]], None], once: bool = False) -> None:
        """Stores what is not there; done gets which blocks the tier has now. once: they are read
        once at most."""
        self._begin(self._stores, self._store, volume, names, rooms, deadline, once, done)

    def prestage(self, volume: Volume, names: Names, deadline_ms: int, once: bool = False) -> None:
        """Hints that the blocks will be asked for within deadline_ms; once: and never again. Nobody
        waits for it. A hint ends when its block is read, or a second after its deadline: it is not taken
        back, because the agent could not tell it from hints and pins of others of the same user."""
        self._begin(self._asks, self._prestage, volume, names, deadline_ms, once, _nothing)

    # ---- on the threads

    def _begin(self, pool: ThreadPoolExecutor, work: Callable[..., list[Any]], volume: Volume,
               names: Names, *rest: Any) -> None:
        *arguments, done = rest
        with self._lock:
            self._under_way += 1

        def run() -> None:
            answers: list[Any] = []
            try:
                made = names() if callable(names) else names
                answers = [False] * len(made)
                answers = work(volume, made, *arguments)
            except Exception:  # a mistake of this package: the engine recomputes, and people read
                self._log.exception("icms: moving blocks failed in a way that it must not")
            finally:
                done(answers)
                with self._idle:
                    self._under_way -= 1
                    self._idle.notify_all()

        pool.submit(run)

    def _exists(self, volume: Volume, names: Sequence[bytes], deadline: float) -> list[bool]:
        return self._calls("lookup", len(names), deadline, lambda part, ms: _good(
            volume.exists(names[part], deadline_ms=ms)))

    def _prestage(self, volume: Volume, names: Sequence[bytes], deadline_ms: int,
                  once: bool) -> list[bool]:
        taken = 0
        try:
            taken = volume.prestage(names, deadline_ms=deadline_ms, timeout_ms=_HINT_MS, once=once)
        except Error:
            pass  # the engine will see it when it asks for the blocks
        self.counts.add("hints", "taken", taken)
        self.counts.add("hints", "refused", len(names) - taken)
        return []

    def _load(self, volume: Volume, names: Sequence[bytes], rooms: Sequence[Any],
              deadline: float, once: bool,
              came: Callable[[bytes, Source], None] | None) -> list[bool]:
        def get(part: slice, ms: int) -> list[str]:
            results = volume.get(names[part], rooms[part], deadline_ms=ms, once=once)
            whys = _good(results)
            for i, (result, room) in enumerate(zip(results, rooms[part])):
                if not whys[i] and result.nbytes != memoryview(room).nbytes:
                    whys[i] = "size"  # a value of another layout: its beginning is in the room
                elif not whys[i]:
                    source = Source(result.source)
                    self.counts.add("loaded_bytes", source.name.lower(), result.nbytes)
                    if came is not None:
                        came(names[part.start + i], source)
            return whys

        return self._calls("load", len(names), deadline, get)

    def _store(self, volume: Volume, names: Sequence[bytes], rooms: Sequence[Any],
               deadline: float, once: bool) -> list[bool]:
        def put(part: slice, ms: int) -> list[str]:
            results = volume.put(names[part], rooms[part], if_absent=True, deadline_ms=ms,
                                 once=once)
            self.counts.add("stored_bytes", "accepted", sum(
                memoryview(room).nbytes for result, room in zip(results, rooms[part])
                if result.status == Status.OK))
            return _good(results)

        return self._calls("store", len(names), deadline, put)

    def _calls(self, what: str, number: int, deadline: float,
               call: Callable[[slice, int], list[str]]) -> list[bool]:
        """Calls with a part of the blocks and the milliseconds that are left, part by part.

        call returns for each why it failed, "" where it did not.
        """
        whys: list[str] = []
        for first in range(0, number, _CALL_BLOCKS):
            part = slice(first, min(first + _CALL_BLOCKS, number))
            ms = left_ms(deadline)
            try:
                whys += call(part, ms) if ms else ["deadline"] * (part.stop - first)
            except Error as error:
                whys += [error.status.name.lower()] * (part.stop - first)
        for why in filter(None, whys):
            self.counts.add(f"{what}_misses", why)
        return [not why for why in whys]


def _nothing(_: list[bool]) -> None:
    """Nobody waits."""


def _good(results: Results) -> list[str]:
    """For each block why it is not there, "" where it is."""
    return ["" if result.status in (Status.OK, Status.EXISTS) else
            _why(result.status, result.reason) for result in results]


def _why(status: Status, reason: Miss) -> str:
    return (reason.name if status == Status.MISS and reason else status.name).lower()


#: An answer of the library may come so much after its deadline; who asked on a thread waits longer,
#: for it says what did succeed.
GRACE_MS = 300


def soon(milliseconds: int) -> float:
    """The time of time.monotonic() that is so far away."""
    return time.monotonic() + milliseconds / 1000
