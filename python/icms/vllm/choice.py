# SPDX-License-Identifier: Apache-2.0
"""Load or compute: what the engine's own steps take, against what loads are expected to take. No vLLM
in here. Used by `matching`, `tier` and `connector`.

The part of a prefix that is loaded is the one with which the prompt is there first: the time to load
it, by the agent's estimate, and the time to compute the rest, by the last steps of this engine. Where
one of the two is not known, all that is there is loaded.

An estimate may be wrong. What is loaded has its expected time and SLACK of the time that it saves, or
FLOOR_SECONDS where that is more; what has not come by then is computed. So a wrong estimate costs time,
within that bound, and never more than the deadline of loads. The question what is there has as much
(`patience`): on a path that is full of what was asked for before it may take long.

An operator whose engines have more requests than time may want all that is there loaded, because that
leaves the engine to the others: the option `load`.

Where a block is computed although it is there, the agent is asked to bring that one block into its
memory when it has time (`Movers.prestage`). So it goes on measuring, and a path that was repaired is
used again.
"""
from __future__ import annotations

import collections
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

#: Values of the option `load`: what is faster to load than to compute, or all that is there.
FASTER, ALWAYS = "faster", "always"

#: Of the time that a load saves: how much later than expected it may come.
SLACK = 0.1
#: The same in seconds, at least: a busy machine pauses for so long.
FLOOR_SECONDS = 1.0
#: Until when a block is wanted that is loaded only to be measured.
PROBE_MS = 10000

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
        """A step is scheduled, with so many tokens of each request."""
        tokens = sum(scheduled)
        if tokens > 0:
            is_prefill = max(scheduled) > 1
            self._begun.append((time.monotonic(), tokens if is_prefill else 0))

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


class Choice(NamedTuple):
    """What becomes of a prefix."""

    #: Blocks that are loaded, from its first one on.
    load: int
    #: Seconds that this may take.
    seconds: float


def choose(loads: Sequence[float | None], block_tokens: int, prefill: Prefill,
           limit: float) -> Choice:
    """loads[i]: expected seconds to have the first i + 1 blocks, None: not known; limit: the deadline
    of loads in seconds."""
    whole = prefill.seconds(len(loads) * block_tokens)
    if not loads or whole is None:
        return Choice(len(loads), limit)
    best, best_seconds, known = 0, whole, 0.0
    for i, load in enumerate(loads, 1):
        if load is None:  # nothing was loaded from there lately: try
            return Choice(len(loads), _bounded(known, whole, limit))
        known = max(known, load)
        rest = (prefill.seconds((len(loads) - i) * block_tokens) or 0.0) if i < len(loads) else 0.0
        if load + rest <= best_seconds:
            best, best_seconds = i, load + rest
    if best == 0:
        return Choice(0, 0.0)
    load = loads[best - 1]
    assert load is not None
    return Choice(best, _bounded(load, prefill.seconds(best * block_tokens) or 0.0, limit))


def patience(tokens: int, prefill: Prefill, limit: float) -> float:
    """Seconds to wait for an answer what there is of a prompt of so many tokens."""
    whole = prefill.seconds(tokens)
    return limit if whole is None else _bounded(0.0, whole, limit)


def _bounded(expected: float, saved: float, limit: float) -> float:
    return min(limit, expected + max(SLACK * saved, FLOOR_SECONDS))
