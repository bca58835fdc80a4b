# SPDX-License-Identifier: Apache-2.0
"""Threads that talk to the tier, so that the engine's scheduler never waits. Used by `tier` and
`connector`.

Loads, stores, questions and choices have threads of their own: a store that waits for its deadline
delays no load, and a trial no question of others. A thread waits inside the library, with the interpreter's lock
released. Whatever a call comes to, it becomes an answer: a hit, or a miss with a reason, by its deadline.
"""
from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .._tables import Miss, Status
from ..client import Request, Results, Source, Volume
from ..errors import Error
from . import metrics
from .choice import Choice, Phases, Prefill, Trials, decide, patience
from .link import left_ms
from .waiting import Left

#: Keys of blocks, or what makes them, which is then done on the thread.
Names = Sequence[bytes] | Callable[[], Sequence[bytes]]

#: Blocks of one call at least, when a load is divided among threads.
_PIECE_BLOCKS = 8
#: Threads that ask and choose, one prompt each: one may wait for a trial, others for an enclosure that does not answer.
_CHOICE_THREADS = 8
#: Loads that are under way at a time, each on the threads of one: a short one stands behind no long one.
_LOADS = 4
#: Milliseconds that a hint may take of the thread that asks.
_HINT_MS = 100
#: Why a block is not there that did not come by its deadline.
_LATE = Miss.DEADLINE.name.lower()
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


class _Load:
    """A load, from its first phase to its last. Belongs to the threads of the phase that is outstanding."""

    __slots__ = ("volume", "names", "rooms", "phases", "done", "once", "came", "whys", "is_far", "latest", "begun",
                 "phase_begun", "phase_seconds")

    def __init__(self, volume: Volume, names: Sequence[bytes], rooms: Sequence[Any], phases: Phases,
                 done: Callable[[list[bool]], None], once: bool,
                 came: Callable[[bytes, Source], None] | None) -> None:
        self.volume, self.names, self.rooms, self.phases = volume, names, rooms, phases
        self.done, self.once, self.came = done, once, came
        self.whys: list[str | None] = [None] * len(names)  # why each is not there; "": it is; None: nobody asked for it
        self.is_far = False  # one came from beyond the agent's memory
        self.latest = time.monotonic() + phases.limit  # of all phases
        # On a thread: until then it stands behind others, which nobody expected. 0: nothing was asked for.
        self.begun = self.phase_begun = 0.0
        self.phase_seconds = 0.0

    def until(self) -> float:
        """The deadline of the phase, which begins now if it has not; a lock is held."""
        self.phase_begun = self.phase_begun or time.monotonic()
        self.begun = self.begun or self.phase_begun
        return min(self.phase_begun + self.phase_seconds, self.latest)

    def error(self) -> str:
        """Of a load that is over: how far its time was from what was expected. "": nothing was expected of it, what came was
        in memory, or it ended for another reason than the time."""
        expected = self.phases.expected
        if expected <= 0 or any(why not in ("", _LATE, None) for why in self.whys):
            return ""
        if any(why != "" for why in self.whys):
            return metrics.LATE
        return metrics.error_label(expected, time.monotonic() - self.begun) if self.is_far else ""

    def ended(self) -> list[str]:
        """Why each is not there, "" where it is; what nobody asked for is not there for the reason of the first one."""
        first = next((why for why in self.whys if why), _LATE)
        return [first if why is None else why for why in self.whys]


class Movers:
    """The threads of one engine."""

    def __init__(self, load_threads: int, counts: Counts, log: Any) -> None:
        self._load_threads = load_threads
        self.counts = counts
        self._log = log
        self._loads = ThreadPoolExecutor(_LOADS * load_threads, "icms-load")
        self._stores = ThreadPoolExecutor(1, "icms-store")
        self._asks = ThreadPoolExecutor(1, "icms-ask")
        self._hints = ThreadPoolExecutor(1, "icms-hint")  # no question stands behind them
        self._holes = ThreadPoolExecutor(1, "icms-hole")  # nor behind these
        self._choices = ThreadPoolExecutor(_CHOICE_THREADS, "icms-choose")
        self._trials = Trials(self._is_late)
        self._late: list[Request] = []  # of the last trial; belongs to who has the trial
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._outstanding = dict.fromkeys((self._loads, self._stores, self._asks, self._hints, self._holes,
                                           self._choices), 0)
        self._is_closing = False

    def wait_idle(self) -> None:
        """Waits until the loads and stores that were begun are over, which deadlines bound: then nothing reads or
        writes the engine's memory. Questions, choices and hints do not touch it, and go on."""
        with self._idle:
            self._idle.wait_for(lambda: not self._outstanding[self._loads] and not self._outstanding[self._stores])

    def close(self) -> None:
        """Waits for what has begun, which deadlines bound; what has not ends without an answer."""
        self._is_closing = True
        for pool in self._outstanding:
            pool.shutdown(wait=True)

    # ---- what can be asked for; `done` is called on one of the threads, exactly once

    def exists(self, volume: Volume, names: Names, deadline: float, done: Callable[[list[bool]], None],
               told: Callable[[list[str]], None] = lambda whys: None) -> None:
        """done gets whether each block is there; False for what is not known by the deadline. told gets, on a thread
        and before, why each is not there, "" where it is; it is not called where nobody was asked."""
        self._begin(self._asks, self._exists, volume, names, deadline, told, done)

    def match(self, volume: Volume, names: Names, ranks: int, block_tokens: int, prefill: Prefill,
              limit: float, load_limit: float, done: Callable[[Choice, int], None],
              room: Callable[[int], int] = lambda there: there,
              hole: Callable[[str, int], None] = lambda why, at: None) -> None:
        """done gets what becomes of the part of a prompt that is there, by `choice.decide`, and how many blocks that is,
        from the first one on. One question tells both. limit: seconds that this may take, from now; load_limit: that the
        load may, so what is expected to take longer is computed. names has for each block, in order, one a rank. room
        says for how many of so many blocks there is memory; no others are chosen.
        hole is told, on a thread, why the block behind them is not there, "" if it is now, and its number; nobody waits
        for that, and not where all are there. `exists` is for who does not compare, or asks for more than a beginning."""
        begun = time.monotonic()

        def work(_: Volume, made: Sequence[bytes]) -> list[tuple[Choice, int]]:
            blocks = len(made) // ranks
            until = begun + patience(blocks * block_tokens, prefill, limit)
            loads = self._estimate(volume, made, until)[ranks - 1::ranks]
            there = len(loads)
            if there < blocks:
                self._begin(self._holes, self._hole, volume, made[there * ranks:(there + 1) * ranks], blocks - there,
                            begun + limit, lambda whys: hole(whys[0] or "", there) if whys else None)
            loads = loads[:room(there)]
            choice = decide(lambda: loads, self._fetch_of(volume, made, ranks, limit), block_tokens, prefill,
                            self._trials, until, load_limit)
            self.counts.add("choices", "load", choice.load)
            self.counts.add("choices", "compute", len(loads) - choice.load)
            return [(choice, there)]

        self._begin(self._choices, work, volume, names,
                    lambda made: done(*(made[0] if made and made[0] else (Choice(0), 0))))

    def load(self, volume: Volume, names: Sequence[bytes], rooms: Sequence[Any], phases: Phases,
             done: Callable[[list[bool]], None], once: bool = False,
             came: Callable[[bytes, Source], None] | None = None) -> None:
        """Fills each room exactly, phase by phase; done gets for which of them that succeeded, in order.
        once: they are not read again. came is told before, on the threads, where each of those was."""
        self._phase(_Load(volume, names, rooms, phases, done, once, came), *phases.begin())

    def store(self, volume: Volume, names: Names, rooms: Sequence[Any],
              deadline: float, done: Callable[[list[bool]], None], once: bool = False) -> None:
        """Stores what is not there; done gets which blocks the tier has now. once: they are read
        once at most."""
        self._begin(self._stores, self._store, volume, names, rooms, deadline, once, done)

    def prestage(self, volume: Volume, names: Names, left: Left, once: bool = False) -> None:
        """Hints that the blocks will be asked for, within the seconds that left says on the thread; once: and
        never again. Nobody waits for it. A hint ends when its block is read, or a second after its deadline:
        it is not taken back, because the agent could not tell it from hints and pins of others of the same
        user."""
        self._begin(self._hints, self._prestage, volume, names, left, once, _nothing)

    # ---- on the threads

    def _begin(self, pool: ThreadPoolExecutor, work: Callable[..., list[Any]], volume: Volume,
               names: Names, *rest: Any) -> None:
        *arguments, done = rest
        with self._lock:
            self._outstanding[pool] += 1

        answered = threading.Lock()  # by whoever has it

        def run() -> None:
            if not answered.acquire(blocking=False):
                return
            if self._is_closing:
                dropped()
                return
            answers: list[Any] = []
            try:
                made = names() if callable(names) else names
                answers = [False] * len(made)
                answers = work(volume, made, *arguments)
            except Exception:  # a mistake of this package: the engine recomputes, and people read
                self._log.exception("icms: moving blocks failed in a way that it must not")
            finally:
                ended(answers)

        def ended(answers: list[Any]) -> None:
            try:
                done(answers)
            except Exception:  # a mistake of who asked: others do not wait for ever
                self._log.exception("icms: telling what became of blocks failed in a way that it must not")
            finally:
                with self._idle:
                    self._outstanding[pool] -= 1
                    self._idle.notify_all()

        def dropped() -> None:
            ended([] if callable(names) else [False] * len(names))

        try:
            pool.submit(run)
        except RuntimeError:  # closed meanwhile: what goes on ends here; or there is no thread for what is queued by now
            if answered.acquire(blocking=False):
                dropped()

    def _is_late(self) -> bool:
        """Whether something of the last trial may come still; the client lets go of what is over."""
        self._late = [one for one in self._late if not one.wait(0)]
        return bool(self._late)

    def _estimate(self, volume: Volume, names: Sequence[bytes], until: float) -> list[float | None]:
        """What it takes to load the names that are there, from the first one on."""
        ms = left_ms(until)
        try:
            return [one.seconds for one in volume.match_estimate(names, deadline_ms=ms)] if ms else []
        except Error:
            return []  # the question about the first one says why

    def _hole(self, volume: Volume, names: Sequence[bytes], blocks: int, until: float) -> list[str]:
        """Why one block, of which these are the names, is not there, for so many from it on. If it is there now, it was
        not known in time."""
        whys = _calls(len(names), until, lambda part, ms: _good(volume.exists(names[part], deadline_ms=ms)))
        why = next(filter(None, whys), "")
        self.counts.add("lookup_misses", why or _LATE, blocks)
        return [why]

    def _fetch_of(self, volume: Volume, names: Sequence[bytes], ranks: int,
                  limit: float) -> Callable[[int, int, float, float], tuple[int, float]]:
        """`fetch` of `choice.decide`."""
        def fetch(first: int, count: int, seconds: float, deadline: float) -> tuple[int, float]:
            begun = time.monotonic()
            end, last = begun + seconds, begun
            late, came = self._late, 0
            try:
                for i in range(first * ranks, (first + count) * ranks):
                    if time.monotonic() >= end:
                        break
                    late.append(volume.start_prefetch(
                        names[i:i + 1], deadline_ms=max(1, int(min(limit, deadline) * 1000)),
                        prestage=False))
            except Error:
                pass  # too many requests, or no agent: what was begun is tried
            try:
                while late and late[0].wait(left_ms(end)) and late[0].result().ok:
                    late.pop(0)
                    came += 1
                    if came % ranks == 0:
                        last = time.monotonic()
            except Error:
                pass  # no agent any more
            return came // ranks, last - begun

        return fetch

    def _exists(self, volume: Volume, names: Sequence[bytes], deadline: float,
                told: Callable[[list[str]], None]) -> list[bool]:
        whys = _calls(len(names), deadline, lambda part, ms: _good(
            volume.exists(names[part], deadline_ms=ms)))
        told(whys)
        return self._counted("lookup", whys)

    def _prestage(self, volume: Volume, names: Sequence[bytes], left: Left, once: bool) -> list[bool]:
        seconds, taken = left(), 0
        if seconds <= 0:
            return []
        try:
            taken = volume.prestage(names, deadline_ms=max(1, int(seconds * 1000)), timeout_ms=_HINT_MS,
                                    once=once)
        except Error:
            pass  # the engine will see it when it asks for the blocks
        self.counts.add("hints", "taken", taken)
        self.counts.add("hints", "refused", len(names) - taken)
        return []

    def _phase(self, load: _Load, count: int, seconds: float) -> None:
        """Asks for so many of those that have not come; then for the next phase, or the load is over."""
        asked = [i for i, why in enumerate(load.whys) if why != ""][:count]
        load.phase_begun, load.phase_seconds = 0.0, seconds
        pieces = min(self._load_threads, max(1, len(asked) // _PIECE_BLOCKS))
        per_piece = -(-len(asked) // pieces)
        left = [pieces]

        def piece_ended(_: list[Any]) -> None:
            with self._lock:
                left[0] -= 1
                over = left[0] == 0
            if over:
                now = time.monotonic()
                self._phase_ended(load, asked, now - (load.phase_begun or now))

        for first in range(0, pieces * per_piece, per_piece):
            places = asked[first:first + per_piece]
            for i in places:
                load.whys[i] = "internal"  # unless _load says otherwise
            self._begin(self._loads, self._load, load.volume, [load.names[i] for i in places],
                        load, places, piece_ended)

    def _phase_ended(self, load: _Load, asked: Sequence[int], seconds: float) -> None:
        phase = None
        if all(load.whys[i] in ("", _LATE) for i in asked):  # else the prefix ends there
            phase = load.phases.after(sum(not load.whys[i] for i in asked), seconds)
        if phase is not None:
            self._phase(load, *phase)
            return
        error = load.error()
        if error:
            self.counts.add("expected_loads", error)
        load.done(self._counted("load", load.ended()))

    def _load(self, volume: Volume, names: Sequence[bytes], load: _Load, places: Sequence[int]) -> list[bool]:
        rooms = [load.rooms[i] for i in places]
        with self._lock:
            deadline = load.until()

        def get(part: slice, ms: int) -> list[str]:
            results = volume.get(names[part], rooms[part], deadline_ms=ms, once=load.once)
            whys = _good(results)
            for i, (result, room) in enumerate(zip(results, rooms[part])):
                if not whys[i] and result.nbytes != memoryview(room).nbytes:
                    whys[i] = "size"  # a value of another layout: its beginning is in the room
                elif not whys[i]:
                    source = Source(result.source)
                    load.is_far |= source != Source.DRAM
                    self.counts.add("loaded_bytes", source.name.lower(), result.nbytes)
                    if load.came is not None:
                        load.came(names[part.start + i], source)
            return whys

        for i, why in zip(places, _calls(len(names), deadline, get)):
            load.whys[i] = why
        return []

    def _store(self, volume: Volume, names: Sequence[bytes], rooms: Sequence[Any],
               deadline: float, once: bool) -> list[bool]:
        def put(part: slice, ms: int) -> list[str]:
            results = volume.put(names[part], rooms[part], if_absent=True, deadline_ms=ms,
                                 once=once)
            self.counts.add("stored_bytes", "accepted", sum(
                memoryview(room).nbytes for result, room in zip(results, rooms[part])
                if result.status == Status.OK))
            return _good(results)

        return self._counted("store", _calls(len(names), deadline, put))

    def _counted(self, what: str, whys: Sequence[str]) -> list[bool]:
        """Which of them did not fail; the others are counted."""
        for why in filter(None, whys):
            self.counts.add(f"{what}_misses", why)
        return [not why for why in whys]


def _calls(number: int, deadline: float, call: Callable[[slice, int], list[str]]) -> list[str]:
    """Calls with a part of the blocks and the milliseconds that are left, part by part.

    call returns for each why it failed, "" where it did not; so does this.
    """
    whys: list[str] = []
    for first in range(0, number, _CALL_BLOCKS):
        part = slice(first, min(first + _CALL_BLOCKS, number))
        ms = left_ms(deadline)
        try:
            whys += call(part, ms) if ms else [_LATE] * (part.stop - first)
        except Error as error:
            whys += [error.status.name.lower()] * (part.stop - first)
    return whys


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
