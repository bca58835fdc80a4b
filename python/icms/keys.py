# SPDX-License-Identifier: Apache-2.0
"""Keys for engines that hash their blocks themselves.

An engine that names its blocks (by a hash of everything before them, or by text around one) needs
no second hash of the tokens. But its names say nothing of model, weights, configuration, hash seed or
rank, and two processes that differ in one of these must never share a block. A Scheme binds all of
them into the keys:

    scheme = Scheme(volume, Layout(weights=fingerprint.of_files(path), dtype=..., layout=...,
                                   block_tokens=16, rank=(tp_rank, 0, 0, 0), ranks=(tp_size, 1, 1, 1)),
                    hashes="sha256_cbor", probe=hash_of_known_tokens, chained=True,
                    config=canonical.flatten(engine_config), label="/models/llama")
    keys = scheme.keys(block_hashes)

Processes whose schemes differ have different keys, so they live beside each other in one volume and
never meet. Why one does not find another's blocks is explained by `icms.statements`.

In C the same keys come from icms_chain_next with the engine's name of a block as its content:
chained, from one chain for all blocks of a prompt; not chained, from a copy of the chain that was
just begun for each block. The chain begins with a layout whose text `layout` is that of the Layout, a
space, and 64 hex digits of the identity. With H and L as in src/client/key.c:

    identity = H( L("icms scheme v2") L(hashes) L(probe) L("chained" or "single") L(config) L(space) )
    config   = the JSON text of `config`, sorted, ASCII, without spaces; empty for an empty one
"""
from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Mapping, Sequence

from . import canonical
from ._icms import KEY_BYTES, RUN_BYTES
from .canonical import Scalar
from .client import Chain, Layout, Volume


def event_hash(key: bytes) -> int:
    """By which the events of an agent name a block (`events` in icms-agent.yaml(5)), of a key as
    `Scheme.keys` and `Chain.next` make it, or as it is on the wire (1 to 16 bytes)."""
    if len(key) == KEY_BYTES:  # on the wire it ends with bytes 4 to 15 of the digest
        key = key[RUN_BYTES + 8:RUN_BYTES + 16]
    return int.from_bytes(key[-8:], "big")


class Scheme:
    """How one process names its blocks. Any thread. A volume that is reset has another uuid, and then its
    blocks have other keys: those of a scheme that is made anew.

    chained says that `keys` is always called with all blocks of a prompt from the first one on. Then
    neighbours are placed together, which is what a prefix cache wants: an enclosure that is lost
    costs whole prompts and not a hole in each. Where blocks come one by one and in any order, it is
    False, and each block is placed by itself.

    hashes names the engine's hash function. probe is what that makes of something known, the same in
    all processes: it differs with another seed. config is everything else that changes the bytes of a
    block, from `canonical.flatten`. space is empty, or a text of bytes that only this engine has: a
    private key space. All of these are in the keys. label is what operators call the model; it is for
    messages and not in the keys.
    """

    __slots__ = ("volume", "layout", "hashes", "probe", "chained", "config", "space", "label",
                 "_bound", "_begin")

    def __init__(self, volume: Volume, layout: Layout, *, hashes: str, chained: bool,
                 probe: bytes = b"", config: Mapping[str, Scalar] | None = None, space: bytes = b"",
                 label: str = "") -> None:
        self.volume = volume
        self.layout = layout
        self.hashes = hashes
        self.probe = bytes(memoryview(probe))
        self.chained = bool(chained)
        self.config = dict(config or {})
        self.space = bytes(memoryview(space))
        self.label = label
        self._bound = dataclasses.replace(layout, layout=f"{layout.layout} {self._identity()}")
        self._begin = volume.uuid, volume.chain(self._bound)

    @property
    def fingerprint(self) -> str:
        """64 hex digits, equal in processes that share blocks, whatever their rank: to log, and to
        compare by eye."""
        return self.volume.chain(dataclasses.replace(self._bound, rank=(0, 0, 0, 0))).state.hex()

    def in_space(self, space: bytes) -> Scheme:
        """The same scheme in a private key space: no block of another space is found in it."""
        return Scheme(self.volume, self.layout, hashes=self.hashes, chained=self.chained,
                      probe=self.probe, config=self.config, space=space, label=self.label)

    def keys(self, names: Sequence[bytes | str]) -> list[bytes]:
        """The keys of blocks by the engine's names for them, bytes or text (taken as UTF-8).

        chained: names are those of a prompt's blocks, from the first one on. ValueError for an empty
        name.
        """
        if isinstance(names, (bytes, bytearray, memoryview, str)):
            raise TypeError("names is a sequence with one entry a block; for one block: [name]")
        chain = self._chain()
        if self.chained:
            return [chain.next(_content(name)) for name in names]
        return [chain.copy().next(_content(name)) for name in names]

    def prompt(self) -> Prompt:
        """Begins a prompt whose blocks come bit by bit, from the first one on."""
        return Prompt(self._chain(), self.chained)

    def begins(self) -> dict[str, object]:
        """Where the keys begin, for a router: the member `chain` of POST /v1/match and /v1/prestage of
        icms-agent, beside the names of a prompt's blocks in hex as `hashes`. Only of a chained scheme.
        """
        if not self.chained:
            raise ValueError("blocks of a scheme that is not chained have no beginning")
        return {"state": self._chain().state.hex(), "run_blocks": self.volume.run_blocks,
                "block_tokens": self.layout.block_tokens}

    def fields(self) -> dict[str, Scalar]:
        """What has to be equal in all processes that share: everything but rank, label and space."""
        layout = self.layout
        weights = layout.weights.hex()
        if layout.weights.startswith(b"text "):  # of fingerprint.of_option
            weights = layout.weights.decode(errors="backslashreplace")
        return {"tenant": layout.tenant, "model": layout.model, "weights": weights,
                "dtype": layout.dtype, "layout": layout.layout, "block_tokens": layout.block_tokens,
                "ranks": "x".join(map(str, layout.ranks)), "hashes": self.hashes,
                "probe": self.probe.hex(), "chained": self.chained,
                **{f"config.{name}": value for name, value in self.config.items()}}

    def _chain(self) -> Chain:
        """One without blocks, of the volume as it is now."""
        uuid, chain = self._begin
        if uuid != self.volume.uuid:
            self._begin = self.volume.uuid, self.volume.chain(self._bound)
            chain = self._begin[1]
        return chain.copy()

    def _identity(self) -> str:
        config = canonical.dumps(self.config) if self.config else ""
        digest = hashlib.sha256()
        for said in (b"icms scheme v2", self.hashes.encode(), self.probe,
                     b"chained" if self.chained else b"single", config.encode(), self.space):
            digest.update(struct.pack("<Q", len(said)) + said)
        return digest.hexdigest()


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

    key is the block's, from a Scheme or a Chain. Parts of a block are placed together, as are blocks
    of one run. In C: icms_key_from_digest with the key's run and the SHA-256 of "icms part v2", a zero
    byte, the key's run, its digest, the name.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"the key of a block in parts has {KEY_BYTES} bytes, not {len(key)}")
    return key[:RUN_BYTES] + hashlib.sha256(b"icms part v2\0" + key + _content(name)).digest()


def _content(name: bytes | str) -> bytes:
    content = name.encode() if isinstance(name, str) else name
    if len(content) == 0:
        raise ValueError("the engine's name of a block has at least one byte")
    return content
