# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for their turn, and until when. No vLLM in here. Used by `identity`, `tier` and `connector`.

The chunks of a request that is queued will be asked for when those before it are computed. A hint that
says so keeps them in the agent's memory until then, and those of the request that is next come first.
"""
from __future__ import annotations

from .choice import Prefill

#: Seconds that are said at most: what is further away is not known.
WAIT_MAX = 300.0


class Waiting:
    """One thread: the scheduler's."""

    def __init__(self, prefill: Prefill) -> None:
        self._prefill = prefill
        self._tokens: dict[str, int] = {}
        self._sum = 0

    def add(self, request: str, tokens: int) -> float:
        """A request of so many tokens is queued behind the others: seconds that these take to compute,
        by the last steps of the engine, WAIT_MAX at most; 0 while nothing is known of them."""
        self.begun(request)
        before = self._prefill.seconds(self._sum) or 0.0 if self._sum else 0.0
        self._tokens[request] = tokens
        self._sum += tokens
        return min(before, WAIT_MAX)

    def begun(self, request: str) -> None:
        """It waits no more: its turn has come, or it ended."""
        self._sum -= self._tokens.pop(request, 0)
