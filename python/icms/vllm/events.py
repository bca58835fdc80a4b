# SPDX-License-Identifier: Apache-2.0
"""What IcmsTier tells vLLM of chunks in the pod, so that vLLM's own publisher tells routers.

vLLM turns an event of a tier into BlockStored or BlockRemoved with the engine's own hashes of the
blocks, and publishes it with sequence numbers and replay (--kv-events-config). The medium is STORAGE,
the locality REMOTE, the owner "icms".

An event is what this engine has learnt last: it stored a chunk, or was told that the pod has it; or
it was told that the pod does not have it, or could not load it. The pod tells nobody what it evicts,
so a chunk may be gone before an engine learns it. Used on the scheduler's thread alone.
"""
from __future__ import annotations

from collections.abc import Iterable

from vllm.v1.kv_offload.base import Locality, Medium, OffloadingEvent

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
