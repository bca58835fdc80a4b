# SPDX-License-Identifier: Apache-2.0
"""Keys for engines that hash their blocks themselves, and a check that all processes agree.

An engine that names its blocks (by a hash of everything before them, or by text around one) needs
no second hash of the tokens. But its names say nothing of model, weights, data type or rank, and
two processes that differ in one of these must never share a block. A Scheme binds them in:

    scheme = Scheme(volume, Layout(model=..., weights=..., dtype=..., layout=..., block_tokens=16,
                                   rank=(tp_rank, 0, 0, 0), ranks=(tp_size, 1, 1, 1)),
                    hashes="sha256_cbor", probe=hash_of_known_tokens, chained=True)
    scheme.check()
    keys = scheme.keys(block_hashes)

In C the same keys come from icms_chain_next with the engine's name of a block as its content:
chained, from one chain for all blocks of a prompt; not chained, from a copy of the chain that was
just begun for each block.
"""
from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence

from ._icms import KEY_BYTES
from ._tables import Status
from .client import Chain, Layout, Volume, key as key_of_name

#: Room for the statement of a scheme: its text is far shorter.
_STATEMENT_BYTES = 16384


class SchemeError(Exception):
    """Another process uses this volume with something else. `differences` says with what."""

    def __init__(self, text: str, differences: dict[str, tuple[object, object]]) -> None:
        super().__init__(text)
        #: {what: (theirs, ours)}
        self.differences = differences


class Scheme:
    """How one process names its blocks. Immutable; any thread.

    chained says that `keys` is always called with all blocks of a prompt from the first one on. Then
    neighbours are placed together, which is what a prefix cache wants: an enclosure that is lost
    costs whole prompts and not a hole in each. Where blocks come one by one and in any order, it is
    False, and each block is placed by itself. All processes must say the same.

    hashes names the engine's hash function and its seed. probe is what that makes of something
    known, the same in all processes: it shows a seed that differs. Both are compared by `check`, and
    are not part of the keys.
    """

    __slots__ = ("volume", "layout", "hashes", "probe", "chained", "_begin", "fingerprint")

    def __init__(self, volume: Volume, layout: Layout, *, hashes: str, chained: bool,
                 probe: bytes = b"") -> None:
        self.volume = volume
        self.layout = layout
        self.hashes = hashes
        self.probe = bytes(memoryview(probe))
        self.chained = bool(chained)
        self._begin = volume.chain(layout)
        #: 64 hex digits, equal in processes that share blocks: to log, and to compare by eye.
        self.fingerprint = hashlib.sha256(
            json.dumps([self._begin.state.hex(), self._statement()],
                       sort_keys=True).encode()).hexdigest()

    def keys(self, names: Sequence[bytes | str]) -> list[bytes]:
        """The keys of blocks by the engine's names for them, bytes or text (taken as UTF-8).

        chained: names are those of a prompt's blocks, from the first one on. ValueError for an empty
        name.
        """
        if isinstance(names, (bytes, bytearray, memoryview, str)):
            raise TypeError("names is a sequence with one entry a block; for one block: [name]")
        if self.chained:
            chain = self._begin.copy()
            return [chain.next(_content(name)) for name in names]
        return [self._begin.copy().next(_content(name)) for name in names]

    def prompt(self) -> Prompt:
        """Begins a prompt whose blocks come bit by bit, from the first one on."""
        return Prompt(self._begin.copy(), self.chained)

    def check(self, *, replace: bool = False, deadline_ms: int = 0) -> bool:
        """Compares this scheme with what other processes said of theirs, in the volume itself.

        The first one leaves a statement there, under a key made of tenant and model. SchemeError
        when what is there says something else: these processes would never find each other's
        blocks. With replace the statement is overwritten instead, for a change that is meant.
        False when the tier cannot tell now; True when all agree so far. Ranks of the processes
        themselves are not compared. The tier may forget a statement as it may any block.
        """
        name = key_of_name(f"icms scheme v1 {self.layout.tenant}\0{self.layout.model}")
        ours = self._statement()
        text = json.dumps(ours, sort_keys=True).encode()
        for _ in range(2):
            if not replace:
                room = bytearray(_STATEMENT_BYTES)
                found = self.volume.get([name], [room], deadline_ms=deadline_ms)[0]
                if found.status == Status.OK:
                    self._compare(bytes(room[:found.nbytes]), ours)
                    return True
                if found.status != Status.MISS:
                    return False
            put = self.volume.put([name], [text], if_absent=not replace,
                                  deadline_ms=deadline_ms)[0]
            if put.status != Status.EXISTS:
                return put.status == Status.OK
        return False

    def _statement(self) -> dict[str, object]:
        """What has to be equal in all processes: everything but the rank."""
        said = dataclasses.asdict(self.layout)
        del said["rank"]
        said["weights"] = self.layout.weights.hex()
        said["ranks"] = list(self.layout.ranks)
        return {**said, "hashes": self.hashes, "probe": self.probe.hex(), "chained": self.chained}

    def _compare(self, text: bytes, ours: dict[str, object]) -> None:
        try:
            theirs = json.loads(text)
        except ValueError:
            theirs = None
        if not isinstance(theirs, dict):
            raise SchemeError("what this volume says of its scheme cannot be read: was a block put "
                              "under its key?", {})
        differences = {what: (theirs.get(what), ours.get(what))
                       for what in sorted(set(theirs) | set(ours))
                       if theirs.get(what) != ours.get(what)}
        if differences:
            said = "; ".join(f"{what}: {their!r} there, {our!r} here"
                             for what, (their, our) in differences.items())
            raise SchemeError(
                f"processes that use the volume {self.volume.name} for {self.layout.model!r} would "
                f"never share a block with this one: {said}. Make them equal; or, when the change "
                "is meant, give each a volume of its own or check(replace=True)", differences)


class Prompt:
    """The keys of one prompt that grows: those of `Scheme.keys`, without beginning anew each time.
    From `Scheme.prompt`; one thread at a time.
    """

    __slots__ = ("_chain", "_chained")

    def __init__(self, chain: Chain, chained: bool) -> None:
        self._chain = chain
        self._chained = chained

    def next(self, name: bytes | str) -> bytes:
        """The key of the next block."""
        return (self._chain if self._chained else self._chain.copy()).next(_content(name))

    def aside(self, name: bytes | str) -> bytes:
        """The key that this block would have as the next one; the prompt stays as it is."""
        return self._chain.copy().next(_content(name))


def part(key: bytes, name: bytes | str) -> bytes:
    """The key of one part of a block that is stored in parts, which have names.

    key is the block's, 16 bytes, from a Scheme or a Chain. Parts of a block are placed together, as
    are blocks of one run. In C: the key's first 8 bytes, then the first 8 of the SHA-256 of
    "icms part v1", a zero byte, the key, the name.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"the key of a block in parts has {KEY_BYTES} bytes, not {len(key)}")
    half = KEY_BYTES // 2
    return key[:half] + hashlib.sha256(b"icms part v1\0" + key + _content(name)).digest()[:half]


def _content(name: bytes | str) -> bytes:
    content = name.encode() if isinstance(name, str) else name
    if len(content) == 0:
        raise ValueError("the engine's name of a block has at least one byte")
    return content
