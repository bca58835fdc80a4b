# SPDX-License-Identifier: Apache-2.0
"""The same calls for asyncio.

    volume = icms.aio.Volume(client.volume("kv"))
    value = await volume.get("greeting")
    results = await volume.get(keys, memory)

While something is under way, the client's descriptor is watched by the running loop; no threads are
made. One client may serve several loops in several threads, and `Client.poll` besides. A call that
is cancelled asks the library to stop; its memory is free again when that has come about, which
`drain` waits for.
"""
from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, overload

from . import _icms, client as _client
from ._tables import ClosedError
from .client import Key, Memories, Memory, Request, Results, Stream


class _Bridge:
    """A client's requests of one loop. Used in that loop's thread, except for `over`."""

    def __init__(self, owner: _client.Client, loop: asyncio.AbstractEventLoop) -> None:
        self.client = owner
        self.loop = loop
        self.fd = -1  # while something is pending: ours, so that closing the client cannot free it
        self.pending: dict[Request, asyncio.Future[None]] = {}

    def add(self, request: Request, future: asyncio.Future[None]) -> None:
        if self.fd < 0:
            self.fd = os.dup(self.client.fileno())
            self.loop.add_reader(self.fd, self.ready)
        self.pending[request] = future

    def ready(self) -> None:
        """The descriptor is readable: some request is over, of this loop or not."""
        try:
            while (request := self.client._poll()) is not None:
                self.client._parked.append(request)
        except ClosedError:
            pass  # all its requests are over
        self.settle()

    def settle(self) -> None:
        for request in [request for request in self.pending if request.done]:
            future = self.pending.pop(request)
            if not future.done():
                future.set_result(None)
        if not self.pending and self.fd >= 0:
            self.loop.remove_reader(self.fd)
            self.forget()

    def over(self, request: Request | None) -> None:
        """Requests of this loop are over; called by whichever thread found that."""
        try:
            self.loop.call_soon_threadsafe(self.settle)
        except RuntimeError:
            pass  # the loop is closed: nobody waits

    def forget(self) -> None:
        """Closes the descriptor. Also for a loop that was closed with calls under way."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _bridge(owner: _client.Client) -> _Bridge:
    loop = asyncio.get_running_loop()
    bridge = owner._bridges.get(loop)
    if bridge is None:
        for old in [old for old in list(owner._bridges) if old.is_closed()]:
            owner._bridges.pop(old).forget()
        bridge = owner._bridges[loop] = _Bridge(owner, loop)
    return bridge


class Volume:
    """A volume whose calls are awaited; arguments, results and errors are those of `icms.Volume`.

    LimitError when too many requests of the client are under way: bound them with a semaphore.
    """

    __slots__ = ("volume",)

    def __init__(self, volume: _client.Volume) -> None:
        #: The volume inside, for what needs no waiting: chain, name, value_bytes_max, ...
        self.volume = volume

    @overload
    async def put(self, keys: Key, memory: Memory, *, deadline_ms: int = 0, on_flash: bool = False,
                  if_absent: bool = False, once: bool = False, stream: Stream = None) -> bool: ...

    @overload
    async def put(self, keys: Sequence[Key], memory: Memories, *, deadline_ms: int = 0,
                  on_flash: bool = False, if_absent: bool = False, once: bool = False,
                  stream: Stream = None) -> Results: ...

    async def put(self, keys: Key | Sequence[Key], memory: Memories, *, deadline_ms: int = 0,
                  on_flash: bool = False, if_absent: bool = False, once: bool = False,
                  stream: Stream = None) -> bool | Results:
        flags = _client._put_flags(on_flash, if_absent, once)
        if isinstance(keys, _client._ONE_KEY):
            return _client._stored(await self._call(_icms.PUT, (keys,), (memory,), deadline_ms,
                                                    flags, stream=stream))
        return await self._call(_icms.PUT, keys, memory, deadline_ms, flags, stream=stream)

    @overload
    async def get(self, keys: Key, *, deadline_ms: int = 0,
                  prestage: bool = False, once: bool = False) -> bytes | None: ...

    @overload
    async def get(self, keys: Sequence[Key], memory: Memories, *, deadline_ms: int = 0,
                  prestage: bool = False, once: bool = False, stream: Stream = None) -> Results: ...

    async def get(self, keys: Key | Sequence[Key], memory: Memories | None = None, *,
                  deadline_ms: int = 0, prestage: bool = False, once: bool = False,
                  stream: Stream = None) -> bytes | None | Results:
        flags = _client._get_flags(prestage, once)
        if isinstance(keys, _client._ONE_KEY):
            space = self.volume._space(memory)
            return _client._value(await self._call(_icms.GET, (keys,), (space,), deadline_ms,
                                                   flags), space)
        return await self._call(_icms.GET, keys, _client._given(memory), deadline_ms, flags,
                                stream=stream)

    async def prefetch(self, keys: Sequence[Key], *, deadline_ms: int = 0,
                       prestage: bool = True) -> Results:
        return await self._call(_icms.GET, keys, None, deadline_ms, _client._get_flags(prestage))

    @overload
    async def exists(self, keys: Key, *,  # type: ignore[overload-overlap]
                     deadline_ms: int = 0) -> bool: ...

    @overload
    async def exists(self, keys: Sequence[Key], *, deadline_ms: int = 0) -> Results: ...

    async def exists(self, keys: Key | Sequence[Key], *, deadline_ms: int = 0) -> bool | Results:
        if isinstance(keys, _client._ONE_KEY):
            return _client._found(await self._call(_icms.EXISTS, (keys,), None, deadline_ms, 0))
        return await self._call(_icms.EXISTS, keys, None, deadline_ms, 0)

    async def match(self, keys: Sequence[Key], *, deadline_ms: int = 0) -> int:
        return (await self._call(_icms.EXISTS, keys, None, deadline_ms, 0)).prefix

    async def match_estimate(self, keys: Sequence[Key], *,
                             deadline_ms: int = 0) -> list[_client.Estimate]:
        return await asyncio.to_thread(self.volume.match_estimate, keys, deadline_ms=deadline_ms)

    async def prestage(self, keys: Sequence[Key], *, deadline_ms: int = 1000, priority: int = 0,
                       timeout_ms: int = 0, tier: str = "dram", pin_seconds: int = 0,
                       once: bool = False) -> int:
        return await asyncio.to_thread(self.volume.prestage, keys, deadline_ms=deadline_ms,
                                       priority=priority, timeout_ms=timeout_ms, tier=tier,
                                       pin_seconds=pin_seconds, once=once)

    async def prestage_cancel(self, keys: Sequence[Key]) -> int:
        return await asyncio.to_thread(self.volume.prestage_cancel, keys)

    @overload
    async def remove(self, keys: Key, *,  # type: ignore[overload-overlap]
                     deadline_ms: int = 0) -> bool: ...

    @overload
    async def remove(self, keys: Sequence[Key], *, deadline_ms: int = 0) -> Results: ...

    async def remove(self, keys: Key | Sequence[Key], *, deadline_ms: int = 0) -> bool | Results:
        if isinstance(keys, _client._ONE_KEY):
            return _client._found(await self._call(_icms.REMOVE, (keys,), None, deadline_ms, 0))
        return await self._call(_icms.REMOVE, keys, None, deadline_ms, 0)

    async def flush(self, *, deadline_ms: int = 0) -> None:
        await self._call(_icms.FLUSH, (), None, deadline_ms, 0, True)

    async def drain(self) -> None:
        """Waits until nothing of this client and loop is under way, cancelled calls included."""
        pending = list(_bridge(self.volume.client).pending.values())
        if pending:
            await asyncio.wait(pending)

    async def _call(self, op: int, keys: Sequence[Key], memory: Memories | None,
                    deadline_ms: int, flags: int, flush: bool = False,
                    stream: Stream = None) -> Results:
        if not flush and not _client._some(keys) and (memory is None or
                                                      not _client._some(memory)):
            return _client._NONE
        bridge = _bridge(self.volume.client)
        future: asyncio.Future[Any] = bridge.loop.create_future()
        request = self.volume._start(op, keys, memory, deadline_ms, flags, None, bridge.over,
                                     _client._stream(stream))
        bridge.add(request, future)
        try:
            # The future is the bridge's: it also says when a cancelled request is over.
            await asyncio.shield(future)
        except asyncio.CancelledError:
            if not request.done:
                request.cancel()
            raise
        return request.result()
