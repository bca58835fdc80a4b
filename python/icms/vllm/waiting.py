# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for their turn, and until when. No vLLM in here. Used by `identity`, `tier` and `connector`.

The blocks of a request that is queued will be asked for when those before it are computed. A hint that
says so keeps them in the agent's memory until then, and those of the request that is next come first.

How long it takes is a guess: it is not known how much of the others' prompts is not computed because it is
there, nor for how long they decode. So the hint is said again when half of its time is over, for as long
as the request waits.

A hint is given on another thread, which an agent that hangs keeps busy. Each request has one outstanding at
most, whose time is the last one that was said. It is dropped when nobody asks for the blocks any more, or
its half is over.

Life of a request: add (its hint) -> [due: its hint again] -> stepped, its turn has come -> stepped, the
last of its prompt; or ended.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from .choice import Prefill

#: Seconds that are said at most: what is further away is not known.
WAIT_MAX = 300.0

#: Seconds from now until the blocks of a hint are asked for; 0: it is not given any more. Called once a hint.
Left = Callable[[], float]


def computes_all(request: Any) -> bool:
    """Whether the engine reads nothing of what is there for this request of vLLM's: one that asks for the log
    probabilities of its prompt, or says so. What it computes is stored all the same."""
    return bool(getattr(request, "skip_reading_prefix_cache", False))


class _Request:
    __slots__ = ("tokens", "say", "patience", "times", "is_outstanding")

    def __init__(self, tokens: int, say: Callable[[Left], None], patience: float) -> None:
        self.tokens = tokens  # that are not computed yet
        self.say: Callable[[Left], None] | None = say  # None: its turn has come, or it has ended
        self.patience = patience
        self.times = 0.0, 0.0  # when its hint is said again, and until when its blocks are asked for
        self.is_outstanding = False  # its hint was said, and is not given yet

    def left(self) -> float:
        """See Left. Any thread."""
        self.is_outstanding = False  # first: whoever sets times from here on says them
        (due, until), now = self.times, time.monotonic()
        return until - now if self.say is not None and now < due else 0.0


class Waiting:
    """One thread: the scheduler's."""

    def __init__(self, prefill: Prefill) -> None:
        self._prefill = prefill
        self._requests: dict[str, _Request] = {}  # in the order in which they came
        self._sum = 0  # of their tokens
        self._due = float("inf")  # when a hint is said again, at the earliest

    def add(self, request: str, tokens: int, say: Callable[[Left], None], patience: float) -> None:
        """A request of so many tokens is queued behind the others. say(left) gives its hint, on whichever
        thread: until when its blocks are asked for, patience seconds and what those before it take to
        compute, by the last steps of the engine; now, and again while it waits. Of several tiers the hint
        of the last one is said again."""
        self._take(request)
        added = self._requests[request] = _Request(tokens, say, patience)
        self._say(added, self._sum, time.monotonic())
        self._sum += tokens

    def stepped(self, scheduled: Mapping[str, int]) -> None:
        """A step of the engine computes so many tokens of each request."""
        for name, tokens in scheduled.items():
            request = self._requests.get(name)
            if request is None:
                continue
            request.say = None
            computed = min(tokens, request.tokens)
            if computed == request.tokens or tokens == 1:  # it decodes: some of the prompt was there
                self.ended(name)
            else:
                request.tokens -= computed
                self._sum -= computed
        if time.monotonic() >= self._due:
            self._say_again(time.monotonic())

    def ended(self, request: str) -> None:
        """It waits no more."""
        gone = self._take(request)
        if gone is not None:
            gone.say = None

    def _take(self, request: str) -> _Request | None:
        gone = self._requests.pop(request, None)
        if gone is not None:
            self._sum -= gone.tokens
        return gone

    def _say(self, request: _Request, before: int, now: float) -> None:
        wait = min((self._prefill.seconds(before) or 0.0) if before else 0.0, WAIT_MAX) + request.patience
        request.times = now + wait / 2, now + wait
        self._due = min(self._due, request.times[0])
        assert request.say is not None
        if not request.is_outstanding:
            request.is_outstanding = True
            request.say(request.left)

    def _say_again(self, now: float) -> None:
        before, self._due = 0, float("inf")
        for request in self._requests.values():
            if request.say is not None:
                if now >= request.times[0]:
                    self._say(request, before, now)
                self._due = min(self._due, request.times[0])
            before += request.tokens
