# SPDX-License-Identifier: Apache-2.0
"""Clients, volumes, requests, leases: the public face of `icms._icms`.

Life cycle: Client -> Volume -> calls, requests, leases; Client.close() last. A client that nobody
closes is closed with its last reference, or when the interpreter ends.
"""
from __future__ import annotations

import atexit
import dataclasses
import enum
import json
import mmap
import operator
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, overload
import uuid as uuids

from . import _icms, errors
from ._tables import Miss, Status

atexit.register(_icms.close_all)

#: The key of a block: bytes from a Chain, a Scheme or `key`, or a name: 1 to 16 bytes, or a str.
Key = str | bytes | bytearray | memoryview
#: Anything with the buffer protocol, or a tensor with __dlpack__; in memory of a GPU that was registered
#: (`Client.register`) also with __cuda_array_interface__. In batches a tuple or list of them, 1 to 256: the
#: pieces in which a block lies, one behind the other, as many for each block; see `Volume.get`.
Memory = Any
#: The memory of a batch: a sequence of Memory, or one array whose first dimension is the block.
Memories = Any

#: A stream of a GPU: a number, or what PyTorch, CuPy and others call one. None: none.
Stream = Any

#: The types of `Key`: one of these is one key, a sequence of them is a batch.
_ONE_KEY = (str, bytes, bytearray, memoryview)


class Source(enum.IntEnum):
    """Where a block came from."""

    NONE = 0
    DRAM = 1
    LOCAL = 2
    POD = 3


def version() -> str:
    """The version of the library inside, "0.1.0"."""
    return _icms.version()


def key(name: str | bytes) -> bytes:
    """A key from a name of any length, which is hashed: KEY_BYTES of run and SHA-256.

    A str is taken as UTF-8. ValueError when it is empty.
    """
    return _icms.key_from_name(name.encode() if isinstance(name, str) else name)


@dataclasses.dataclass(frozen=True)
class Layout:
    """What makes two KV blocks interchangeable besides their tokens.

    Everything is hashed into every key of a chain, so a difference in any field is a different
    block. A C program gets the same keys when its icms_layout has the same values; mind that it has
    to set `ranks` to 1 where there is no parallelism.
    """

    #: Who may share.
    tenant: str = ""
    #: "SmolLM2-135M-Instruct"
    model: str = ""
    #: Fingerprint of the weights.
    weights: bytes = b""
    #: Of the cache: "f16", "fp8_e4m3".
    dtype: str = ""
    #: Order of the bytes inside a block, engine and version.
    layout: str = ""
    #: Tokens a block.
    block_tokens: int = 0
    #: Tensor, pipeline, context, expert rank ...
    rank: tuple[int, int, int, int] = (0, 0, 0, 0)
    #: ... of how many.
    ranks: tuple[int, int, int, int] = (1, 1, 1, 1)


class Estimate(NamedTuple):
    """What it takes to have a block and all before it, asked for now with one get."""

    #: Expected seconds until the last of them is there; None when nothing was loaded lately from
    #: where one of them is.
    seconds: float | None
    #: Of the last loads from there nine of ten were within `seconds` and this, either way.
    error: float | None
    #: What they have together, about, as they are stored.
    nbytes: int
    #: Where this block is.
    source: Source


class Chain:
    """The keys of consecutive blocks, each made of all before it. From `Volume.chain`."""

    __slots__ = ("_chain",)

    def __init__(self, chain: _icms.Chain) -> None:
        self._chain = chain

    def next(self, content: Memory) -> bytes:
        """Appends one block and returns its key: KEY_BYTES, 4 of its run and 32 of SHA-256.

        content is what determines the block, as bytes in C order: its token ids, image hashes,
        adapter ids. Equal contents give equal keys in every process and on every machine.
        """
        return self._chain.next(content)

    def keys(self, contents: Iterable[Memory]) -> list[bytes]:
        """`next` for each."""
        return [self._chain.next(content) for content in contents]

    def copy(self) -> Chain:
        """A chain that goes on from here on its own: a branch."""
        return Chain(self._chain.copy())

    @property
    def blocks(self) -> int:
        """Blocks so far."""
        return self._chain.blocks

    @property
    def state(self) -> bytes:
        """The hash of everything so far, 32 bytes: equal where all next keys will be."""
        return self._chain.state()


class Block(NamedTuple):
    """What a call came to for one block."""

    #: OK, MISS, or what is wrong with this block.
    status: Status
    #: Why it is not available, with MISS; else NONE.
    reason: Miss
    #: Where it came from, with OK of a get; else NONE.
    source: Source
    #: Size of the value in bytes, of a get also when the memory was too small for it.
    nbytes: int


class Results(Sequence[Block]):
    """What a call came to, block by block, in the order of its keys.

    A get leaves the memory of a block whose status is not OK in any state.
    """

    __slots__ = ("_statuses", "_reasons", "_sources", "_sizes")

    def __init__(self, statuses: bytes, reasons: bytes, sources: bytes, sizes: bytes) -> None:
        self._statuses = statuses
        self._reasons = reasons
        self._sources = sources
        self._sizes = sizes

    def __len__(self) -> int:
        return len(self._statuses)

    @overload
    def __getitem__(self, index: int) -> Block: ...

    @overload
    def __getitem__(self, index: slice) -> list[Block]: ...

    def __getitem__(self, index: int | slice) -> Block | list[Block]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        status = self._statuses[index]
        at = index if index >= 0 else index + len(self)
        return Block(Status(status), Miss(self._reasons[at]), Source(self._sources[at]),
                     struct.unpack_from("=Q", self._sizes, 8 * at)[0])

    @property
    def ok(self) -> bool:
        """True when every block is OK."""
        return self.hits == len(self)

    @property
    def hits(self) -> int:
        """How many blocks are OK."""
        return self._statuses.count(0)

    @property
    def prefix(self) -> int:
        """How many blocks from the first on are OK: what an engine can use of a chain."""
        return len(self) - len(self._statuses.lstrip(b"\0"))

    @property
    def mask(self) -> list[bool]:
        """True for each block that is OK."""
        return [status == 0 for status in self._statuses]

    def reasons(self) -> dict[Miss, int]:
        """How many misses there are of each reason."""
        found = [Miss(reason) for reason, status in zip(self._reasons, self._statuses)
                 if status == Status.MISS]
        return {reason: found.count(reason) for reason in sorted(set(found))}

    def __repr__(self) -> str:
        return f"<Results: {self.hits} of {len(self)} OK>"


_NONE = Results(b"", b"", b"", b"")


def _results(raw: tuple[int, bytes, bytes, bytes, bytes]) -> Results:
    """Results of what the C layer returned; raises when the call failed as a whole."""
    if raw[0] not in (Status.OK, Status.MISS) or (raw[0] and not raw[1]):
        raise errors.error_of(raw[0])
    return Results(*raw[1:])


class Request:
    """A call that is under way. From `Volume.start_get` and its like.

    It is over when `done` is True: found by `Client.poll`, or waited for. Until then it is held by
    its client, and so is the memory it moves. One thread at a time waits for it.
    """

    __slots__ = ("_request", "_over", "tag")

    def __init__(self, tag: Any) -> None:
        self._request: _icms.Request | None = None
        self._over: Any = None  # called by Client.poll instead of returning it
        #: What was given to start_...; for the caller alone.
        self.tag = tag

    @property
    def done(self) -> bool:
        """True when it is over and `result` has something."""
        return self._request is not None and self._request.done

    def wait(self, timeout_ms: int = -1) -> bool:
        """Waits until it is over, which its deadline bounds; False when timeout_ms passed first."""
        return self._started().wait(timeout_ms)

    def cancel(self) -> None:
        """Asks for an early end: blocks that are not done get CANCELED. Over soon, not at once."""
        self._started().cancel()

    def result(self) -> Results:
        """Waits if it is not over, and returns what the call without start_ would have.

        A flush has no blocks in its results. Raises Error when it failed as a whole.
        """
        request = self._started()
        request.wait(-1)
        return _results(request.result())

    def _started(self) -> _icms.Request:
        if self._request is None:
            raise errors.error_of(Status.BUSY, "the request is still being started")
        return self._request


class _Region:
    """Shared memory; a context manager that gives a view and takes it back."""

    __slots__ = ("_region", "_view")

    def __init__(self, region: _icms.Region) -> None:
        self._region = region
        self._view: memoryview | None = None

    @property
    def view(self) -> memoryview:
        """The memory as a memoryview of bytes, shape (nbytes,). BufferError once it is released."""
        if self._view is None:
            self._view = memoryview(self._region)
        return self._view

    @property
    def nbytes(self) -> int:
        """Bytes of the memory."""
        return self._region.nbytes

    @property
    def released(self) -> bool:
        """True when it was given back, or will be with its last view."""
        return self._region.released

    def release(self) -> None:
        """Gives the memory back to the tier; `view` becomes invalid.

        BufferError when other views of it exist (slices, arrays made from it): they stay valid, no
        new ones can be had, and the memory goes back with the last of them.
        """
        view, self._view = self._view, None
        try:
            if view is not None:
                view.release()
        except BufferError:
            pass  # an array was made from it: the region counts that one and says so
        view = None
        self._region.release()

    def __enter__(self) -> memoryview:
        return self.view

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            self.release()
        except BufferError:
            if kind is None:  # else the exception's frames hold the views; they go with it
                raise


class Lease(_Region):
    """A block in the agent's memory, readable in place. From `Volume.lease`.

        with volume.lease(key) as view: ...

    It was verified when the lease was taken and does not change. A client has at most LEASES_MAX at
    a time: give them back soon. No view ever outlives the memory it shows: see `release`. A child of
    fork() does not have that memory: it must not read views that its parent made.
    """

    __slots__ = ()


class Buffer(_Region):
    """Memory shared with the agent, to put from without a copy in this process. From
    `Client.buffer`.

    A put of the whole view, or of its beginning, reads it in place; 64 bytes behind the value are
    overwritten then. Leave it unchanged until the put is over.
    """

    __slots__ = ()


class Registered:
    """Memory of a GPU that its client knows. From `Client.register`.

    A context manager that unregisters it. It holds the memory.
    """

    __slots__ = ("_memory",)

    def __init__(self, memory: _icms.Memory) -> None:
        self._memory = memory

    @property
    def nbytes(self) -> int:
        """Bytes of the memory."""
        return self._memory.nbytes

    def unregister(self) -> None:
        """Forgets the memory, which no request uses. Again: does nothing.

        BusyError while copies of calls that ended at their deadline are with the driver: until it
        succeeds they may still write there.
        """
        self._memory.unregister()

    def __enter__(self) -> Registered:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.unregister()


class Volume:
    """Blocks of one tenant, model and layout. From `Client.volume`.

        volume.put("greeting", b"hello")    # True
        volume.get("greeting")              # b"hello"; None when it is not available
        volume.put(keys, values)            # a batch: Results
        volume.get(keys, memory)            # a batch, into the caller's memory: Results

    A key is bytes of 1 to 16, taken as they are, or a str of any length, of which `icms.key` makes
    one: "greeting" and b"greeting" are the same key.

    put, get, exists and remove take one key, or a batch. With one key they return what is asked
    for, and raise Error when it cannot be said. A batch is a sequence of 1 to BATCH_MAX keys; memory
    is a sequence as long with the memory of each block, or one array of shape (len(keys), ...) that
    is C-contiguous: block i is array[i]. More is refused with ValueError, since a batch has one
    deadline; none at all is answered without a call. A batch returns `Results`, and raises Error
    only when the call failed as a whole (PeerDownError, ClosedError, ForkedError, ...). Wrong
    arguments raise TypeError, ValueError or BufferError.
    """

    __slots__ = ("client", "_volume", "name")

    def __init__(self, client: Client, volume: _icms.Volume) -> None:
        #: The client it was opened from.
        self.client = client
        self._volume = volume
        self.name = volume.info()[0]

    @property
    def uuid(self) -> uuids.UUID:
        """Changes when the volume is reset. All zeros: it is not known yet, see `Client`."""
        return uuids.UUID(bytes=self._volume.info()[1])

    @property
    def value_bytes_max(self) -> int:
        """Largest value that can be put; 0: the volume is not known yet."""
        return self._volume.info()[2]

    @property
    def run_blocks(self) -> int:
        """Blocks of a chain that are placed together."""
        return self._volume.info()[3]

    @property
    def sealed(self) -> bool:
        """True when values carry a trailer that is checked at each get."""
        return self._volume.info()[4]

    @property
    def state(self) -> Status:
        """What a call would end with now, as far as that is known without asking the agent: OK, and
        then the volume is known; PEER_DOWN, NO_VOLUME, NO_KEY, VERSION, ...: no call can do anything
        now. NO_VOLUME also while no enclosure has the volume, as far as the agent knows."""
        return Status(self._volume.state())

    def __repr__(self) -> str:
        return f"<icms.Volume {self.name} of {self.client.where}>"

    # ---- keys

    def chain(self, layout: Layout) -> Chain:
        """Begins a chain of blocks of this layout. PeerDownError while the volume is not known yet."""
        return Chain(self._volume.chain(
            layout.tenant, layout.model, layout.weights, layout.dtype, layout.layout,
            layout.block_tokens, layout.rank, layout.ranks))

    # ---- calls that wait

    @overload
    def put(self, keys: Key, memory: Memory, *, deadline_ms: int = 0, on_flash: bool = False,
            if_absent: bool = False, once: bool = False, stream: Stream = None) -> bool: ...

    @overload
    def put(self, keys: Sequence[Key], memory: Memories, *, deadline_ms: int = 0,
            on_flash: bool = False, if_absent: bool = False, once: bool = False,
            stream: Stream = None) -> Results: ...

    def put(self, keys: Key | Sequence[Key], memory: Memories, *, deadline_ms: int = 0,
            on_flash: bool = False, if_absent: bool = False, once: bool = False,
            stream: Stream = None) -> bool | Results:
        """Stores one block, or a batch. Memory is read, 1 to value_bytes_max bytes each.

        One key: True when the block is stored. False when it is not: it exists already, with
        if_absent, or the tier cannot take it now; a later call may succeed. Error when no call can,
        as with a value that is too large.

        A batch: OK says that the agent has a checked copy; with on_flash, that the drive has
        answered for it. With if_absent a block that is there is EXISTS and stays, else it is
        replaced. VALUE_SIZE, QUOTA, LIMIT, DEADLINE, PEER_DOWN, ... for the block.

        once: the blocks are read once at most (documents that are asked about once, a scan): the
        agent's memory evicts them before all others; icms_put(3) has the rules.

        stream: memory of a GPU is read behind what is on this stream now; see `Client.register`.
        The memory of a block may be a tuple or list of pieces; see `get`.
        """
        flags = _put_flags(on_flash, if_absent, once)
        if isinstance(keys, _ONE_KEY):
            return _stored(self._call(_icms.PUT, (keys,), (memory,), deadline_ms, flags,
                                      _stream(stream)))
        return self._call(_icms.PUT, keys, memory, deadline_ms, flags, _stream(stream))

    @overload
    def get(self, keys: Key, *, deadline_ms: int = 0, prestage: bool = False,
            once: bool = False) -> bytes | None: ...

    @overload
    def get(self, keys: Sequence[Key], memory: Memories, *, deadline_ms: int = 0,
            prestage: bool = False, once: bool = False, stream: Stream = None) -> Results: ...

    def get(self, keys: Key | Sequence[Key], memory: Memories | None = None, *,
            deadline_ms: int = 0, prestage: bool = False, once: bool = False,
            stream: Stream = None) -> bytes | None | Results:
        """Loads one block, or a batch into memory.

        One key: the value, None when it is not available, whatever the reason. The value is copied;
        `lease` and a batch do not copy it.

        A batch: memory is written, with room for the value of each block or more. `nbytes` is the
        size of the value; VALUE_SIZE when it has no room. prestage says that an engine will ask
        soon, and does not delay those that wait. once says that the blocks are not read again: they
        take no memory of the agent from others, and stay what they are if they are there. stream:
        into memory of a GPU, behind what is on this stream now and before what is put there after the
        call; see `Client.register`.

        The memory of a block may be a tuple or list of pieces, as many for each block of the batch: a
        value lies in them one behind the other. It is verified as a whole before a GPU has any of it.
        The pieces of a block are all on the host, or all in registered memory of one GPU, else
        INVALID; in an encrypted volume host memory is one piece, else UNSUPPORTED.
        """
        flags = _get_flags(prestage, once)
        if isinstance(keys, _ONE_KEY):
            space = self._space(memory)
            return _value(self._call(_icms.GET, (keys,), (space,), deadline_ms, flags), space)
        return self._call(_icms.GET, keys, _given(memory), deadline_ms, flags, _stream(stream))

    def prefetch(self, keys: Sequence[Key], *, deadline_ms: int = 0,
                 prestage: bool = True) -> Results:
        """Brings blocks into the agent's memory, so that a get soon is a hit there."""
        return self._call(_icms.GET, keys, None, deadline_ms, _get_flags(prestage))

    @overload
    def exists(self, keys: Key, *,  # type: ignore[overload-overlap]
               deadline_ms: int = 0) -> bool: ...

    @overload
    def exists(self, keys: Sequence[Key], *, deadline_ms: int = 0) -> Results: ...

    def exists(self, keys: Key | Sequence[Key], *, deadline_ms: int = 0) -> bool | Results:
        """Whether a block is available at this moment; no value moves. A batch: OK for each."""
        if isinstance(keys, _ONE_KEY):
            return _found(self._call(_icms.EXISTS, (keys,), None, deadline_ms, 0))
        return self._call(_icms.EXISTS, keys, None, deadline_ms, 0)

    def trace(self, key: Key) -> dict[str, Any]:
        """The last requests of a key that the agent remembers, the last one first."""
        trace: dict[str, Any] = json.loads(self._volume.trace(key))
        return trace

    def match(self, keys: Sequence[Key], *, deadline_ms: int = 0) -> int:
        """How many blocks from the first up to the first hole are there: the usable prefix.

        Of any number of keys: there is no BATCH_MAX here.
        """
        return self._volume.match(keys, deadline_ms) if _some(keys) else 0

    def match_estimate(self, keys: Sequence[Key], *, deadline_ms: int = 0) -> list[Estimate]:
        """`match`, and what it takes to load the prefix: an entry for each block that it has.

        See `Estimate`; icms_match_estimate(3) says what estimates are made of. The agent is always
        asked.
        """
        if not _some(keys):
            return []
        return [Estimate(load_us / 1e6 if load_us >= 0 else None,
                         error_us / 1e6 if load_us >= 0 else None, nbytes, Source(source))
                for load_us, error_us, nbytes, source
                in self._volume.match_estimate(keys, deadline_ms)]

    def prestage(self, keys: Sequence[Key], *, deadline_ms: int = 1000, priority: int = 0,
                 timeout_ms: int = 0, tier: str = "dram", pin_seconds: int = 0,
                 once: bool = False) -> int:
        """Hints that blocks will be asked for within deadline_ms; how many hints the agent took.

        The agent brings the blocks into its memory (tier "dram"), or to its own drive beside the pod
        ("local"; Error without one), in time, behind all loads, or drops the hints; it
        does so after this call, which waits for the agent's answer alone, for timeout_ms at most. Of
        any number of keys. Of the hints of one user the higher priority (0 to 3) goes first, then the
        earlier deadline. With pin_seconds the blocks stay there for so long, however often they are
        read, within pin_max of the volume; `prestage_cancel` lets them go. With once they are kept until
        they are read, and are the first to go after that; not with pin_seconds, nor to the drive.
        `Client.status` tells what became of them: volumes[].prestage.
        """
        if tier not in _TIERS:
            raise ValueError(f"tier {tier!r}: it is \"dram\" or \"local\"")
        if not _some(keys):
            return 0
        return self._volume.prestage(keys, deadline_ms, priority, timeout_ms, _TIERS.index(tier),
                                     pin_seconds, once)

    def prestage_cancel(self, keys: Sequence[Key]) -> int:
        """Takes hints back, one for each key and tier; of how many keys there were any."""
        return self._volume.prestage_cancel(keys) if _some(keys) else 0

    @overload
    def remove(self, keys: Key, *,  # type: ignore[overload-overlap]
               deadline_ms: int = 0) -> bool: ...

    @overload
    def remove(self, keys: Sequence[Key], *, deadline_ms: int = 0) -> Results: ...

    def remove(self, keys: Key | Sequence[Key], *, deadline_ms: int = 0) -> bool | Results:
        """Frees a block here and in the pod: False when there was none. A batch: MISS where none was.

        Best effort where an enclosure cannot be reached. Another server may serve the block from its
        memory until it evicts it; what must be gone for everybody is a new generation of the volume.
        """
        if isinstance(keys, _ONE_KEY):
            return _found(self._call(_icms.REMOVE, (keys,), None, deadline_ms, 0))
        return self._call(_icms.REMOVE, keys, None, deadline_ms, 0)

    def flush(self, *, deadline_ms: int = 0) -> None:
        """Waits until everything this client put here is on flash and safe against power loss.

        IoError, once, when some of it did not get there.
        """
        self._volume.flush(deadline_ms)

    def lease(self, key: Key, *, deadline_ms: int = 0) -> Lease:
        """Brings a block into the agent's memory if need be and makes it readable in place.

        MissError, with its `reason`, when it is not available; LimitError when LEASES_MAX are out.
        """
        return Lease(self._volume.lease(key, deadline_ms))

    # ---- requests

    def start_put(self, keys: Sequence[Key], memory: Memories, *, deadline_ms: int = 0,
                  on_flash: bool = False, if_absent: bool = False, once: bool = False,
                  tag: Any = None, stream: Stream = None) -> Request:
        """`put` as a request: returns at once. Memory stays unchanged until it is over.

        LimitError when too many requests of the client are under way, here and in its sisters.
        """
        return self._start(_icms.PUT, keys, memory, deadline_ms, _put_flags(on_flash, if_absent, once),
                           tag, stream=_stream(stream))

    def start_get(self, keys: Sequence[Key], memory: Memories, *, deadline_ms: int = 0,
                  prestage: bool = False, once: bool = False, tag: Any = None,
                  stream: Stream = None) -> Request:
        """`get` as a request. Memory belongs to it until it is over."""
        return self._start(_icms.GET, keys, memory, deadline_ms, _get_flags(prestage, once), tag,
                           stream=_stream(stream))

    def start_prefetch(self, keys: Sequence[Key], *, deadline_ms: int = 0, prestage: bool = True,
                       tag: Any = None) -> Request:
        """`prefetch` as a request."""
        return self._start(_icms.GET, keys, None, deadline_ms, _get_flags(prestage), tag)

    def start_exists(self, keys: Sequence[Key], *, deadline_ms: int = 0,
                     tag: Any = None) -> Request:
        """`exists` as a request; `Results.prefix` is what `match` returns."""
        return self._start(_icms.EXISTS, keys, None, deadline_ms, 0, tag)

    def start_remove(self, keys: Sequence[Key], *, deadline_ms: int = 0,
                     tag: Any = None) -> Request:
        """`remove` as a request."""
        return self._start(_icms.REMOVE, keys, None, deadline_ms, 0, tag)

    def start_flush(self, *, deadline_ms: int = 0, tag: Any = None) -> Request:
        """`flush` as a request."""
        return self._start(_icms.FLUSH, (), None, deadline_ms, 0, tag)

    def _space(self, memory: Memories | None) -> mmap.mmap:
        """Memory for the largest value, of which only the pages that are written take any."""
        if memory is not None:
            raise TypeError("get of one key returns the value; to load into memory, use "
                            "get([key], [memory])")
        return mmap.mmap(-1, max(self.value_bytes_max, 1))  # 0 while the volume is not known

    def _call(self, op: int, keys: Sequence[Key], memory: Memories | None,
              deadline_ms: int, flags: int, stream: int = 0) -> Results:
        if not _some(keys) and (memory is None or not _some(memory)):
            return _NONE
        return _results(self._volume.call(op, keys, _rows(memory), deadline_ms, flags, stream))

    def _start(self, op: int, keys: Sequence[Key], memory: Memories | None,
               deadline_ms: int, flags: int, tag: Any, over: Any = None,
               stream: int = 0) -> Request:
        request = Request(tag)
        request._over = over
        request._request = self._volume.start(op, keys, _rows(memory), deadline_ms, flags, stream,
                                              request)
        return request


def _given(memory: Memories | None) -> Memories:
    if memory is None:
        raise TypeError("get of a batch loads into memory: get(keys, memory)")
    return memory


def _found(results: Results) -> bool:
    """OK is True, MISS is False; raises what is neither."""
    status = results[0].status
    if status not in (Status.OK, Status.MISS):
        raise errors.error_of(status, reason=results[0].reason)
    return status == Status.OK


def _stored(results: Results) -> bool:
    status = results[0].status
    if status == Status.EXISTS or (status != Status.OK and errors.may_retry(status)):
        return False
    return _found(results)


def _value(results: Results, space: mmap.mmap) -> bytes | None:
    return space[:results[0].nbytes] if _found(results) else None


def _some(sequence: Any) -> bool:
    """False for an empty list or tuple; all else is looked at by the C layer."""
    return not isinstance(sequence, (list, tuple)) or bool(sequence)


def _rows(memory: Any) -> Any:
    """The blocks of a tensor that has no buffer protocol, as PyTorch's: its rows share its memory.
    All else as it is."""
    if hasattr(memory, "__dlpack__") or hasattr(memory, "__cuda_array_interface__"):
        try:
            memoryview(memory)
        except (TypeError, BufferError, ValueError):
            return list(memory)
    return memory


def _stream(stream: Stream) -> int:
    """The number that the driver knows a stream by; 0: none was named."""
    if stream is None:
        return 0
    if hasattr(stream, "__cuda_stream__"):
        stream = stream.__cuda_stream__()[1]
    for name in ("cuda_stream", "ptr"):  # PyTorch, CuPy
        stream = getattr(stream, name, stream)
    number = operator.index(stream)
    if number < 0:
        raise ValueError(f"{stream} is no stream")
    return number or 1  # the default stream is 0 to the runtime, and 1 where 0 is none


def _put_flags(on_flash: bool, if_absent: bool, once: bool) -> int:
    return ((_icms.ON_FLASH if on_flash else 0) | (_icms.IF_ABSENT if if_absent else 0)
            | (_icms.ONCE if once else 0))


# Of hints, by enum icms_tier.
_TIERS = ("dram", "local")


def _get_flags(prestage: bool, once: bool = False) -> int:
    return (_icms.PRESTAGE if prestage else 0) | (_icms.ONCE if once else 0)


class Client:
    """A tier.

    where is "unix:/run/icms/agent.sock", an icms-agent of this machine ("unix:" alone: $ICMS_SOCKET
    or the default socket); "pod:/etc/icms/agent.yaml", the agent inside this process; or
    "dir:/var/cache/kv", one process and one directory, made when it is missing.

    load_deadline_ms and store_deadline_ms are for calls without one (0: the agent's); buffer_bytes
    is shared memory for stores (0: the agent's default); directory_bytes and value_bytes_max are of
    a new "dir:" (0: 1 GiB and 8 MiB); keys is the path of the list of keys of encrypted volumes,
    icms-keys.yaml(5) (None: $ICMS_KEYS; "": none).

    With agent_optional a client of "unix:" is made and its volumes are opened also while there is no
    agent. It attaches by itself when one comes; until then calls raise PeerDownError, and a volume's
    uuid and value_bytes_max are zero. log gets lines that say when the agent is gone, or not there yet,
    when there is one again, and a few others (icms_open(3)), on any thread; None: standard error. What
    is not UTF-8 in a line is replaced. The client is not closed and none of its memory unregistered inside
    log: BusyError. A client whose log holds it is closed by `close` or the end of the interpreter alone.

    Raises PeerDownError, RefusedError, NotFoundError, LockedError (with the holder's pid),
    ConfigError, InvalidError, ... whose text says what to do.
    """

    __slots__ = ("where", "_handle", "_bridges", "_parked", "__weakref__")

    def __init__(self, where: str = "unix:", *, load_deadline_ms: int = 0,
                 store_deadline_ms: int = 0, buffer_bytes: int = 0, directory_bytes: int = 0,
                 value_bytes_max: int = 0, keys: str | None = None, agent_optional: bool = False,
                 log: Callable[[str], object] | None = None) -> None:
        #: What it was opened on.
        self.where = where
        self._handle = _icms.open(where, load_deadline_ms, store_deadline_ms, buffer_bytes,
                                  directory_bytes, value_bytes_max, keys, agent_optional, log)
        self._bridges: dict[Any, Any] = {}  # of icms.aio: by event loop
        self._parked: list[Request] = []  # over, found by icms.aio, not its own

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            self.close()
        except BufferError:
            if kind is None:  # else the exception's frames hold the views; it closes with them
                raise

    def close(self) -> None:
        """Waits for calls and requests under way, which their deadlines bound, and gives back all.

        Requests keep their results; leases and buffers are given back. BufferError, and nothing
        done, while views of leases or buffers exist. pod: and dir: wait up to 10 s for accepted
        stores to reach the flash. Again: does nothing.
        """
        self._handle.close()
        for bridge in list(self._bridges.values()):
            bridge.over(None)

    @property
    def closed(self) -> bool:
        """True when it takes no calls."""
        return self._handle.closed

    def volume(self, name: str) -> Volume:
        """Opens a volume. NoVolumeError when there is none that this host may use; a dir: makes
        it."""
        return Volume(self, self._handle.volume(name))

    def buffer(self, nbytes: int) -> Buffer:
        """Takes memory shared with the agent. NoMemoryError when buffer_bytes are used up."""
        return Buffer(self._handle.buffer(nbytes))

    def register(self, memory: Memory) -> Registered:
        """Makes memory of a GPU known, so that blocks in it can be put and got.

        memory is a tensor or an array (__dlpack__, __cuda_array_interface__; on Gaudi a tensor of
        PyTorch, whose device has the type "hpu"), C-contiguous: the whole cache, of which later
        calls name parts. It is held until it is unregistered.

        Order. Without `stream` a call takes it that nothing uses the memory; when it is over, so is
        the copy. With `stream` (a number, or a stream of PyTorch or CuPy) copies begin behind what is
        on the stream when the call is made; a get is over as soon as its copies are with the driver,
        and what is put on the stream afterwards runs behind them. A producer that names a stream in
        __cuda_array_interface__ has it taken where the call names none.

        UnsupportedError: no driver here, or one that is too old; InvalidError: no memory of a GPU, or
        it overlaps what is registered. Blocks in memory that is not registered get NOT_REGISTERED.
        """
        return Registered(self._handle.register(memory))

    def status(self) -> dict[str, Any]:
        """The tier: enclosures and their state, volumes, hits, misses by reason, bytes."""
        status: dict[str, Any] = json.loads(self._handle.status())
        return status

    def trace(self) -> dict[str, Any]:
        """The slowest requests of the last one to two minutes, with the time in each state.

        As `icms trace` shows them; gets that found their block in mapped memory asked no agent, and are
        not among them. `Volume.trace` has those of a key.
        """
        trace: dict[str, Any] = json.loads(self._handle.trace())
        return trace

    def fileno(self) -> int:
        """A descriptor that is readable when `poll` may have something: for select and the like.

        Poll it, never read it; it goes with the client.
        """
        return self._handle.event_fd()

    def poll(self) -> Request | None:
        """A request that is over, each once, or None. Never blocks.

        Not those that were waited for, nor those that belong to `icms.aio`.
        """
        if self._parked:
            return self._parked.pop(0)
        return self._poll()

    def polled(self) -> Iterator[Request]:
        """All requests that are over now."""
        while (request := self.poll()) is not None:
            yield request

    def _poll(self) -> Request | None:
        while True:
            request: Request | None = self._handle.poll()
            if request is None or request._over is None:
                return request
            request._over(request)

    def __repr__(self) -> str:
        return f"<icms.Client {self.where}{', closed' if self.closed else ''}>"
