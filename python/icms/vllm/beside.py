# SPDX-License-Identifier: Apache-2.0
"""Copies between a worker's KV cache on a GPU and the memory of the host, beside the model. Used by
`connector`.

Two streams of its own, one a direction, so that stores delay no load. Nothing here waits on the CPU:
order is made by events.

    load   behind what the model's stream has, a layer after the other, an event behind each; the model
           waits for all of them at once (`load`), or for each before its layer (`wait_for_layer`)
    store  behind the model's step; the next step goes on meanwhile, unless it writes to blocks that
           are being stored: then it waits for them first (`wait_for_stores`)
    over   when its events have happened (`done`); until then its slots belong to it
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Beside:
    """The copies of one worker. pages: (block, byte) of each layer; host: (slot, byte), the bytes of a
    slot being those of a block's layers, one behind the other."""

    def __init__(self, pages: Sequence[torch.Tensor], host: torch.Tensor, by_layer: bool,
                 log: Any) -> None:
        self._device = pages[0].device
        self._rooms = []
        at = 0
        for page in pages:
            self._rooms.append((page, host[:, at:at + page.shape[1]]))
            at += page.shape[1]
        self._by_layer = by_layer
        self._loads = torch.cuda.Stream(self._device)
        self._stores = torch.cuda.Stream(self._device)
        self._arrivals: dict[int, Any] = {}  # layer: the event behind what is loaded for it
        self._stored: Any = None  # the event behind the last store
        self._under_way: list[tuple[int, Any]] = []  # (step, the event behind its copies)
        self._pinned: int | None = host.data_ptr()
        code = int(torch.cuda.cudart().cudaHostRegister(self._pinned, host.numel(), 0))
        if code != 0:
            self._pinned = None
            log.warning("icms: cannot pin %d MiB of host memory (CUDA error %d): copies between the "
                        "GPU and the host hold up the engine; raise the limit of locked memory, or "
                        "make host_bytes smaller", host.numel() >> 20, code)

    def wait_for_stores(self) -> None:
        """What the model does from now on is behind all stores that have begun."""
        if self._stored is not None:
            torch.cuda.current_stream(self._device).wait_event(self._stored)

    def load(self, number: int, pairs: Sequence[tuple[int, int]]) -> None:
        """Begins to load blocks from slots for a step."""
        if not pairs:
            return
        self._loads.wait_stream(torch.cuda.current_stream(self._device))
        event = None
        with torch.cuda.stream(self._loads):
            for layer, (page, room) in enumerate(self._rooms):
                for block, slot in pairs:
                    page[block].copy_(room[slot], non_blocking=True)
                event = self._arrivals[layer] = torch.cuda.Event()
                event.record(self._loads)
        self._under_way.append((number, event))
        if not self._by_layer:
            self._wait_for_all()

    def wait_for_layer(self, layer: int) -> None:
        """What the model does from now on is behind what is loaded for the layer."""
        event = self._arrivals.pop(layer, None)
        if event is not None:
            torch.cuda.current_stream(self._device).wait_event(event)

    def store(self, number: int, pairs: Sequence[tuple[int, int]]) -> None:
        """The model's step has been begun: begins to store blocks to slots behind it."""
        self._wait_for_all()  # of layers that nobody asked for
        if not pairs:
            return
        self._stores.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stores):
            for page, room in self._rooms:
                for block, slot in pairs:
                    room[slot].copy_(page[block], non_blocking=True)
            self._stored = torch.cuda.Event()
            self._stored.record(self._stores)
        self._under_way.append((number, self._stored))

    def done(self, begun: int = 0) -> set[int]:
        """The steps whose copies have all ended since the last call. begun: of this one more copies come."""
        left = [(number, event) for number, event in self._under_way
                if number == begun or not event.query()]
        ended = {number for number, _ in self._under_way} - {number for number, _ in left}
        self._under_way = left
        return ended

    def close(self) -> None:
        """Waits for its copies, and lets go of the memory of the host: while the driver believes in a
        pin, what is mapped at that address next is copied from the old pages."""
        pinned, self._pinned = self._pinned, None
        try:
            for _, event in self._under_way:
                event.synchronize()
        except RuntimeError:
            return  # the context is lost, and its pins with it
        self._under_way.clear()
        if pinned is not None:
            torch.cuda.cudart().cudaHostUnregister(pinned)

    def _wait_for_all(self) -> None:
        for layer in list(self._arrivals):
            self.wait_for_layer(layer)
