# SPDX-License-Identifier: Apache-2.0
"""icms: a pod-level cache of KV blocks on shared flash, from Python.

    client = icms.Client("unix:/run/icms/agent.sock")
    volume = client.volume("kv")
    volume.put("greeting", b"hello")
    volume.get("greeting")  # b"hello"; None when it is not available

    chain = volume.chain(icms.Layout(model="tiny", dtype="f16", block_tokens=256))
    keys = [chain.next(tokens) for tokens in blocks]
    volume.put(keys, values)
    results = volume.get(keys, rooms)

A block is an immutable value under a key in a volume. Whatever was stored may be
forgotten at any time; what is returned is exactly what was stored. A block that is not available is
a result with a reason, never an exception, and it comes by the deadline.

Memory is anything with the buffer protocol (bytearray, memoryview, mmap, array, NumPy arrays) or
`__dlpack__` on the host (tensors); it must be C-contiguous, and writable where blocks are loaded
into it. It is never copied on its way to the library, and it is held until the library is done.

Everything may be used from any thread; calls that wait let other threads run. A client belongs to
the process that opened it: after fork() the child gets `ForkedError`. Deadlines and timeouts are in
milliseconds, sizes in bytes; a deadline of 0 is the client's default.
"""
from importlib import import_module as _import_module
from types import ModuleType
from typing import TYPE_CHECKING

from . import _tables
from ._icms import BATCH_MAX, KEY_BYTES, LEASES_MAX
from ._tables import *  # noqa: F403  the exceptions, one a status
from ._tables import Miss, Status
from .client import (Block, Buffer, Chain, Client, Estimate, Key, Layout, Lease, Registered, Request,
                     Results, Source, Volume, key, version)
from .errors import Error

if TYPE_CHECKING:
    from . import (aio as aio, canonical as canonical, fingerprint as fingerprint, keys as keys,
                   statements as statements)

__version__ = version()
__all__ = ["BATCH_MAX", "Block", "Buffer", "Chain", "Client", "Error", "Estimate", "KEY_BYTES", "Key",
           "LEASES_MAX", "Layout", "Lease", "Miss", "Registered", "Request", "Results", "Source", "Status",
           "Volume", "key", "version",
           *(kind.__name__ for kind in _tables.CLASSES.values())]


def __getattr__(name: str) -> ModuleType:
    """`icms.aio`, `icms.keys` and their like are imported when they are first used: asyncio takes its
    time."""
    if name in ("aio", "canonical", "fingerprint", "keys", "statements"):
        return _import_module(f"icms.{name}")
    raise AttributeError(f"module 'icms' has no attribute {name!r}")
