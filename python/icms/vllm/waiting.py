# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for their turn, and until when. No vLLM in here. Used by `identity`, `tier` and `connector`.

The blocks of a request that is queued will be asked for when those before it are computed. A hint that
says so keeps them in the agent's memory until then, and those of the request that is next come first.

How long it takes is a guess: it is not known how much of the others' prompts is not computed because it is
there, nor for how long they decode. So the hint is said again when half of its time is over, for as long
as the request waits.

Life of a request: add (its hint) -> [due: its hint again] -> stepped, its turn has come -> stepped, the
last of its prompt; or ended.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from .choice import Prefill

#: Seconds that are said at most: what is further away is not known.
WAIT_MAX = 300.0


class _Request:
    __slots__ = ("tokens", "say", "patience", "due")

    def __init__(self, tokens: int, say: Callable[[float], None], patience: float) -> None:
        self.tokens = tokens  # that are not computed yet
        self.say: Callable[[float], None] | None = say  # None: its turn has come
        self.patience = patience
        self.due = 0.0


class Waiting:
    """One thread: the scheduler's."""

    def __init__(self, prefill: Prefill) -> None:
        self._prefill = prefill
        self._requests: dict[str, _Request] = {}  # in the order in which they came
        self._sum = 0  # of their tokens
        self._due = float("inf")  # when a hint is said again, at the earliest

    def add(self, request: str, tokens: int, say: Callable[[float], None], patience: float) -> None:
        """A request of so many tokens is queued behind the others. say(seconds) gives its hint: until when
        its blocks are asked for, patience seconds and what those before it take to compute, by the last
        steps of the engine; now, and again while it waits."""
        self.ended(request)
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
        gone = self._requests.pop(request, None)
        if gone is not None:
            self._sum -= gone.tokens

    def _say(self, request: _Request, before: int, now: float) -> None:
        wait = min((self._prefill.seconds(before) or 0.0) if before else 0.0, WAIT_MAX) + request.patience
        request.due = now + wait / 2
        self._due = min(self._due, request.due)
        assert request.say is not None
        request.say(wait)

    def _say_again(self, now: float) -> None:
        before, self._due = 0, float("inf")
        for request in self._requests.values():
            if request.say is not None:
                if now >= request.due:
                    self._say(request, before, now)
                self._due = min(self._due, request.due)
            before += request.tokens
