# SPDX-License-Identifier: Apache-2.0
"""Host memory between the tier and the engine's workers. Used by `connector`.

One memory of equal slots, a block of one rank each, made by the scheduler's process and mapped by
the workers. It has no name in any file system, so nothing of it is left when its processes are
gone, however they ended.
"""
from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterable


class Staging:
    """The scheduler's side: owns the memory and hands out slots. Any thread."""

    def __init__(self, slot_bytes: int, slots: int) -> None:
        self.slot_bytes = slot_bytes
        self._fd = os.memfd_create("icms-vllm", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, slot_bytes * slots)
        self._map = mmap.mmap(self._fd, slot_bytes * slots)
        self._view = memoryview(self._map)
        self._lock = threading.Lock()
        self._free = list(range(slots))

    @property
    def handle(self) -> tuple[int, int, int]:
        """What a worker of this machine needs for `attach`."""
        return os.getpid(), self._fd, len(self._map)

    @property
    def free(self) -> int:
        """How many slots are free at this moment."""
        return len(self._free)

    def take(self, blocks: int, ranks: int) -> list[list[int]]:
        """Slots for the first of so many blocks, as far as there are any: by block, one a rank."""
        with self._lock:
            blocks = min(blocks, len(self._free) // ranks)
            return [[self._free.pop() for _ in range(ranks)] for _ in range(blocks)]

    def give(self, slots: Iterable[int]) -> None:
        """Gives slots back that nobody writes or reads any more."""
        with self._lock:
            self._free.extend(slots)

    def room(self, slot: int) -> memoryview:
        """The memory of one slot."""
        return self._view[slot * self.slot_bytes:(slot + 1) * self.slot_bytes]

    def close(self) -> None:
        """After all who use it have ended; views that are still out keep the memory alive."""
        self._view.release()
        try:
            self._map.close()
        except BufferError:
            pass  # it goes with the last view
        os.close(self._fd)


def attach(handle: tuple[int, int, int]) -> mmap.mmap:
    """The worker's side: maps the memory of the scheduler's process."""
    pid, fd, nbytes = handle
    path = f"/proc/{pid}/fd/{fd}"
    try:
        mine = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise RuntimeError(f"icms: this worker cannot map the memory of its scheduler at {path} "
                           f"({error}): both have to run in one container") from error
    try:
        return mmap.mmap(mine, nbytes)
    finally:
        os.close(mine)
