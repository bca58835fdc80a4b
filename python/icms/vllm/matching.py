# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's half of the connector knows of requests. No vLLM in here. Used by
`connector`, on the scheduler's thread unless it says otherwise.

Life cycle of a match: begin -> [match, or exists] -> [load into staging] -> over; then taken by the request's
allocation, or dropped. Slots of a match that nobody wants any more go back when the tier has let go
of them, not before.
"""
from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from ..keys import Scheme
from .choice import Choice, Prefill
from .movers import GRACE_MS, Movers, soon
from .staging import Staging


class Names:
    """The tier's keys of one request's blocks, for each rank; made once, as they come. Any thread."""

    def __init__(self, schemes: Sequence[Scheme]) -> None:
        self._lock = threading.Lock()
        self._prompts = [scheme.prompt() for scheme in schemes]
        self._made: list[list[bytes]] = [[] for _ in schemes]

    def of(self, hashes: Sequence[bytes], first: int) -> list[list[bytes]]:
        """By block, from first on, the key for each rank. hashes begins with the first block."""
        with self._lock:
            for prompt, made in zip(self._prompts, self._made):
                made += [prompt.next(name) for name in hashes[len(made):]]
            return [list(keys) for keys in zip(*(made[first:len(hashes)]
                                                 for made in self._made))]


class Match:
    """The blocks of one request from `first` on, brought into staging memory as far as they go.

    Of what is there the part is brought that is faster to load than to compute (`choice`).

    ready says how many blocks, once over is True. Until then the engine asks again. The question which
    blocks there are, the choice and the load have at most a deadline each; what is known and has come by
    then is used.
    """

    def __init__(self, movers: Movers, staging: Staging, schemes: Sequence[Scheme], names: Names,
                 hashes: Sequence[bytes], first: int, deadline_ms: int, block_tokens: int,
                 prefill: Prefill) -> None:
        self.first = first
        self._deadline_ms = deadline_ms
        self._give_up = soon(3 * deadline_ms + GRACE_MS)
        self.ready = 0
        self.slots: list[list[int]] = []  # by block, one a rank; of the ready blocks once over
        self._movers = movers
        self._staging = staging
        self._volume = schemes[0].volume
        self._ranks = len(schemes)
        self._names = names
        self._hashes = hashes
        self._lock = threading.Lock()
        self._over = False
        self._dropped = False
        if prefill.seconds(1) is None:
            movers.exists(self._volume, lambda: [keys[0] for keys in names.of(hashes, first)],
                          time.monotonic() + deadline_ms / 1000, self._found)
        else:
            movers.match(self._volume, lambda: [key for keys in names.of(hashes, first) for key in keys],
                         self._ranks, block_tokens, prefill, deadline_ms / 1000, deadline_ms / 1000, self._chosen, self._room)

    @property
    def over(self) -> bool:
        """True when `ready` and `slots` are final, or the time is up."""
        return self._over or time.monotonic() >= self._give_up

    def take(self, blocks: int) -> list[list[int]]:
        """The slots of the first blocks, for the caller to give back; drops the rest."""
        with self._lock:
            taken, self.slots = self.slots[:blocks], self.slots[blocks:]
            self.ready = 0
        self.drop()
        return taken

    def drop(self) -> None:
        """Nobody wants it any more."""
        with self._lock:
            self._dropped = True
            if self._over:
                self._give(0)

    # ---- on the threads of Movers

    def _found(self, there: list[bool]) -> None:
        blocks = _leading(there)
        self._chosen(Choice(self._room(blocks)), blocks)

    def _room(self, there: int) -> int:
        return 0 if self._dropped else self._as_many(there, self._staging.free // self._ranks)

    def _chosen(self, choice: Choice, there: int) -> None:
        """there: how many blocks there are."""
        ranks = self._ranks
        flat = [key for block in self._names.of(self._hashes, self.first)[:there] for key in block]
        wanted = 0 if self._dropped else choice.load
        self.slots = self._staging.take(wanted, ranks)  # others may have taken some since _room
        blocks = self._as_many(wanted, len(self.slots))
        if blocks == 0:
            with self._lock:
                self._over = True
            return
        self._movers.load(self._volume, flat[:blocks * ranks],
                          [self._staging.room(slot) for block in self.slots for slot in block],
                          choice.phases(blocks, ranks, self._deadline_ms / 1000), self._loaded)

    def _as_many(self, blocks: int, rooms: int) -> int:
        """How many blocks there is room for; the others are counted."""
        if rooms < blocks and not self._dropped:
            self._movers.counts.add("load_misses", "no_host_memory", (blocks - rooms) * self._ranks)
        return min(blocks, rooms)

    def _loaded(self, good: list[bool]) -> None:
        ranks = len(self.slots[0])
        with self._lock:
            ready = _leading([all(good[i * ranks:(i + 1) * ranks])
                              for i in range(len(self.slots))])
            self._give(ready)
            self.ready = 0 if self._dropped else ready
            self._over = True
            if self._dropped:
                self._give(0)

    def _give(self, kept: int) -> None:
        """Gives the slots of all but the first blocks back; the lock is held."""
        given, self.slots = self.slots[kept:], self.slots[:kept]
        self._staging.give(slot for block in given for slot in block)


def _leading(answers: Sequence[bool]) -> int:
    """How many are True before the first that is not."""
    for i, answer in enumerate(answers):
        if not answer:
            return i
    return len(answers)
