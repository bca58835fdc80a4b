# SPDX-License-Identifier: Apache-2.0
"""Load or compute: what the engine's own steps take, against what loads are expected to take. No vLLM
in here. Used by `movers`, `matching`, `tier` and `connector`, and by bench/bench_choice.py.

The part of a prefix that is loaded is the one with which the prompt is there first: the time to load
it, by the agent's estimate, and the time to compute the rest, by the last steps of this engine. While
nothing is known of the engine, all that is there is loaded.

An estimate may be wrong: a path degrades or is repaired without a warning. Every wait for the tier has
SLACK of the time that computing takes, or FLOOR_SECONDS where that is more, beyond what is expected:

- the question what is there, and what that takes (`patience`);
- a load, phase by phase (`Phases`), with the time to compute one block at least. What is expected within
  that time is asked for at once. Of more the first phase asks for the blocks that would be computed in that
  time, and all others wait for them: a path that became much slower costs no more than that, and is not
  filled with what is not awaited. When a phase is late, its pace
  decides: if the rest comes sooner at this pace than it is computed, it is asked for with a deadline that
  is made of this pace;
- a trial (`decide`), where computing is expected to be faster, or nothing is known of the path: the first
  blocks that would be computed are brought into the agent's memory. If their pace is faster than
  computing, the rest is loaded, so a path that was repaired is used at once. What is late may come while the
  engine computes: from it the agent learns how slow the path is.

Deadlines travel to the target, which does not send what is not awaited any more. So they also keep a
slow path free for what is asked for next. `Trials` bounds what trials take of an engine's time and of a path.

An operator whose engines have more requests than time may want all that is there loaded, because that
leaves the engine to the others: the option `load`.
"""
from __future__ import annotations

import collections
import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

#: Values of the option `load`: what is faster to load than to compute, or all that is there.
FASTER, ALWAYS = "faster", "always"

#: Of the time that computing takes: how much longer than expected the tier may take.
SLACK = 0.05
#: The same in seconds, at least. The interpreter hands its lock over every 5 ms
#: (sys.getswitchinterval), and a question takes its thread there and back: with less, a scheduler that
#: computes in Python makes every short wait a late one.
FLOOR_SECONDS = 0.025
#: Seconds of a trial, at least, where there is one: what takes less to compute is not tried. It is awaited in
#: the library, without the interpreter.
TRIAL_SECONDS = 0.005
#: Blocks of a trial, at least: one alone would teach the agent no rate, only its latency.
TRIAL_BLOCKS = 2
#: Seconds without a trial for what a path is expected to take, at most: what is expected may be wrong.
TRIAL_PAUSE_SECONDS = 60.0

#: Steps that are averaged, of each size.
_MEMORY = 8
#: Steps of an engine that are outstanding at most; what is older has no end.
_OUTSTANDING = 8


class Prefill:
    """How long this engine takes to compute tokens, by its last steps. Any thread.

    A step has a cost of its own, so a small one takes longer a token. Steps are averaged by the power of
    two of their size, and tokens take as long as in steps of the nearest size.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sizes: dict[int, list[float]] = {}  # by bits: steps, tokens, seconds
        self._begun: collections.deque[tuple[float, int]] = collections.deque(maxlen=_OUTSTANDING)
        self._ended = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """A step computed so many tokens."""
        if tokens <= 0 or seconds <= 0:
            return
        with self._lock:
            size = self._sizes.setdefault(tokens.bit_length(), [0, 0, 0])
            if size[0] >= _MEMORY:
                size[:] = [number / 2 for number in size]
            for i, number in enumerate((1, tokens, seconds)):
                size[i] += number

    def seconds(self, tokens: int) -> float | None:
        """What it takes to compute so many; None: nobody knows."""
        with self._lock:
            if not self._sizes:
                return None
            nearest = min(self._sizes, key=lambda bits: abs(bits - tokens.bit_length()))
            _, whole, took = self._sizes[nearest]
        return took / whole * tokens

    # ---- steps of a scheduler, which may begin one before the last one has ended

    def step_begun(self, scheduled: Sequence[int]) -> None:
        """A step is scheduled, with so many tokens of each request, or with none; `step_ended` follows."""
        is_prefill = max(scheduled, default=0) > 1
        self._begun.append((time.monotonic(), sum(scheduled) if is_prefill else 0))

    def step_ended(self) -> None:
        """The oldest step that is outstanding has ended."""
        now = time.monotonic()
        if self._begun:
            begun, tokens = self._begun.popleft()
            self.add(tokens, now - max(begun, self._ended))
        self._ended = now


def compares(load: str) -> bool:
    """Whether the option asks for a comparison; ValueError: it has another value."""
    if load not in (FASTER, ALWAYS):
        raise ValueError(f'icms: the option load is "{FASTER}" or "{ALWAYS}", not {load!r}')
    return load == FASTER


def slack(computing: float) -> float:
    """Seconds that the tier may take beyond what is expected, where computing takes so many."""
    return max(SLACK * computing, FLOOR_SECONDS)


def patience(tokens: int, prefill: Prefill, limit: float) -> float:
    """Seconds to wait for an answer what there is of a prompt of so many tokens; limit: at most."""
    whole = prefill.seconds(tokens)
    return limit if whole is None else min(limit, slack(whole))


class Phase(NamedTuple):
    """What is asked for at once."""

    #: Of the names that have not come, from the first of them on.
    names: int
    #: Until when, from now.
    seconds: float


class Phases:
    """The phases of one load. One thread at a time.

    Life cycle: begin -> [after -> Phase] -> after -> None: it is over, and what has not come is computed.

    limit: seconds that are left for all of it.
    """

    def __init__(self, names: int, limit: float, loads: Sequence[float] = (),
                 compute: float | None = None, is_whole: bool = True) -> None:
        """limit: seconds for all of it; loads[i]: expected seconds to have the first i + 1 names, as many as are known;
        compute: seconds that a name takes to compute, None: not known, so the whole limit is its deadline; is_whole:
        names are the first ones of what the estimate was asked for, so its times are theirs alone."""
        self._names, self._left, self.limit = names, names, limit
        self._loads, self._compute, self._is_whole = loads, compute, is_whole
        self._asked = 0  # names of the phase that is outstanding

    @property
    def expected(self) -> float:
        """Seconds that all of it was expected to take; 0: nothing was expected of it alone."""
        return self._expected(self._names) if self._compute is not None and self._is_whole else 0.0

    def begin(self) -> Phase:
        """The first phase, once."""
        if self._compute is None:
            return self._ask(self._left, self.limit)
        share, whole = self._slack(self._compute), self._expected(self._left)
        slower = max(self._compute, whole / self._left)
        names = self._left if whole <= share else max(1, int(share / slower))
        return self._ask(names, self._expected(names) + share)

    def after(self, came: int, seconds: float) -> Phase | None:
        """The next phase; came: how many names the last one brought in so many seconds."""
        self._left -= came
        self.limit -= seconds
        if self._left == 0 or self.limit <= 0 or self._compute is None:
            return None
        if came == 0:
            return None
        pace = seconds / came
        if came == self._asked:  # in time: what they took beyond the pace of the others may have been expected, or latency
            pace = min(self._pace(came, seconds), self._compute)
        if pace > self._compute:
            return None
        return self._ask(self._left, self._left * pace + self._slack(self._compute))

    def _expected(self, names: int) -> float:
        """Seconds to have the first so many."""
        known = min(names, len(self._loads))
        return self._loads[known - 1] / known * names if known else 0.0

    def _pace(self, came: int, seconds: float) -> float:
        """Seconds a name of what is left, at least what was expected of it: by what the last ones took, as much longer
        as these took longer than expected at most."""
        last = self._expected(self._names - self._left)
        rest = (self._expected(self._names) - last) / self._left
        expected = last - self._expected(self._names - self._left - came)
        pace = seconds / came
        return max(rest, min(pace, rest * seconds / expected) if expected > 0 else pace)

    def _slack(self, compute: float) -> float:
        """Not less than a name takes to compute, else one of few could not show that it is faster."""
        return max(slack(self._left * compute), compute)

    def _ask(self, names: int, seconds: float) -> Phase:
        """Of more than come within the limit, those that do."""
        if seconds > self.limit:
            names, seconds = max(1, int(names * self.limit / seconds)), self.limit
        self._asked = names
        return Phase(names, seconds)


class Choice(NamedTuple):
    """What becomes of a prefix."""

    #: Blocks that are loaded, from its first one on.
    load: int
    #: Expected seconds to have the first one, the first two, and so on; empty: not known.
    loads: tuple[float, ...] = ()
    #: Seconds that computing them would take; None: not known.
    computing: float | None = None

    @property
    def seconds(self) -> float:
        """That they are expected to take."""
        return self.loads[-1] if self.loads else 0.0

    def phases(self, blocks: int, ranks: int, limit: float) -> Phases:
        """Of a load of so many of the blocks, which have a name for each rank; limit: seconds for all."""
        if self.computing is None:
            return Phases(blocks * ranks, limit)
        return Phases(blocks * ranks, limit, [load for load in self.loads for _ in range(ranks)],
                      self.computing / (self.load * ranks))


def choose(loads: Sequence[float | None], block_tokens: int, prefill: Prefill, limit: float = math.inf) -> Choice:
    """The part with which the prompt is there first. loads[i]: expected seconds to have the first i + 1
    blocks, None: not known; nothing from there on is taken, nor what takes longer than the limit, in seconds."""
    def computing(blocks: int) -> float:
        return (prefill.seconds(blocks * block_tokens) or 0.0) if blocks else 0.0

    if not loads or prefill.seconds(1) is None:
        return Choice(len(loads))
    best, best_seconds = 0, computing(len(loads))
    known: list[float] = []
    for i, load in enumerate(loads, 1):
        if load is None or load > limit:
            break
        known.append(max(load, known[-1] if known else 0.0))
        whole = known[-1] + computing(len(loads) - i)
        if whole <= best_seconds:
            best, best_seconds = i, whole
    return Choice(best, tuple(known[:best]), computing(best))


class Trials:
    """When blocks are tried that are expected to be slow. Any thread.

    One trial at a time, and none while something of the last one is outstanding. After one in vain there
    is none until trials take no more than half of what the path can bring, else a question behind them would be
    late, or for TRIAL_PAUSE_SECONDS. One takes SLACK of the time of its prompt. Where it takes more, because
    TRIAL_SECONDS is more, or twice as much, because this process waits for a core, there is none until that is SLACK
    of the time.
    """

    def __init__(self, is_late: Callable[[], bool] = lambda: False) -> None:
        """is_late: whether something is outstanding of the last trial, which has ended. Not called during one."""
        self._lock = threading.Lock()
        self._is_late = is_late
        self._is_outstanding = False
        self._next = 0.0  # not before

    def begin(self) -> bool:
        """Whether one may begin now; then `end` follows, once."""
        with self._lock:
            if self._is_outstanding or time.monotonic() < self._next or self._is_late():
                return False
            self._is_outstanding = True
            return True

    def end(self, pause: float) -> None:
        """It has ended; seconds from now until the next one."""
        with self._lock:
            self._is_outstanding = False
            self._next = time.monotonic() + pause


def decide(estimate: Callable[[], Sequence[float | None]],
           fetch: Callable[[int, int, float, float], tuple[int, float]], block_tokens: int, prefill: Prefill,
           trials: Trials, until: float, limit: float = math.inf) -> Choice:
    """`choose`, with a trial where that says to compute. Waits, until this time of time.monotonic().

    estimate returns the loads of `choose`; fetch(first, blocks, seconds, deadline) brings blocks into the agent's
    memory, and returns how many came within these seconds, from the first of them on, and when the last of these came.
    The others may come until the deadline, in seconds, too.
    """
    loads = estimate()
    choice = choose(loads, block_tokens, prefill, limit)
    rest = len(loads) - choice.load
    computing = prefill.seconds(rest * block_tokens)
    begun = time.monotonic()
    if rest == 0 or computing is None or computing < TRIAL_SECONDS:
        return choice
    seconds = min(max(SLACK * computing, TRIAL_SECONDS), until - begun)
    if seconds <= 0 or not trials.begin():
        return choice
    most = max(TRIAL_BLOCKS, int(seconds / computing * rest))  # more would be late where computing is faster
    blocks, expected = _tried(loads[choice.load:][:most], choice.seconds, computing)
    came, last = 0, 0.0
    try:
        came, last = fetch(choice.load, blocks, seconds, max(seconds, computing))
    finally:
        took = time.monotonic() - begun
        left = rest - came
        loading = _pace(came, last, blocks, took) * left if came else computing
        is_faster = came > 0 and (left == 0 or loading < computing / rest * left)
        is_long = max(seconds, took / 2) > SLACK * computing
        pause = max(took / SLACK if is_long else 0.0, min(2 * expected, TRIAL_PAUSE_SECONDS))
        trials.end(0.0 if is_faster else max(pause - took, 0.0))
    known = choice.loads + came * (choice.seconds,)
    if is_faster:
        paced = (choice.seconds + loading * i / left for i in range(1, left + 1))
        known += tuple(itertools.takewhile(lambda seconds: seconds <= limit, paced))
    return Choice(len(known), known, prefill.seconds(len(known) * block_tokens) if known else 0.0)


def _pace(came: int, last: float, tried: int, took: float) -> float:
    """Seconds a block, of which so many came, the last after so many seconds. Not until the wait ended: a path that is
    faster than computing would look up to twice as slow. The next one, which has not come, bounds it, too."""
    return max(last / came, took / (came + 1) if came < tried else 0.0)


def _tried(loads: Sequence[float | None], before: float, computing: float) -> tuple[int, float]:
    """How many of these blocks are tried, and how long they are expected to take: not longer than
    computing does, but for the first one."""
    blocks, expected = 0, 0.0
    for load in loads:
        seconds = 0.0 if load is None else load - before
        if blocks > 0 and seconds > computing:
            break
        blocks, expected = blocks + 1, max(expected, seconds)
    return blocks, expected
