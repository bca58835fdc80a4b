# SPDX-License-Identifier: Apache-2.0
"""The tier as an engine sees it: there or not, right or wrong. Used by `tier` and `connector`.

An engine starts and serves without an agent that is not there, and uses it when it comes: the client
underneath attaches by itself, and says so. What no agent mends, and what is wrong with one that is
there (no such volume, blocks too large for it, unknown options), is raised to the engine while it
starts. Why blocks of other processes are not used is logged by `icms.statements`.

Life cycle: Link() -> [volume known -> identity known -> up <-> down] -> close(). When the identity is
renewed, there are no schemes until the thread has made new ones, so nothing is matched or stored
meanwhile.
"""
from __future__ import annotations

import contextlib
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from .. import _engines, keys
from .._tables import Status
from ..client import Client
from ..errors import Error
from ..fingerprint import FilesError
from ..statements import Watch

if TYPE_CHECKING:
    from .identity import Identity

#: Between two looks whether vLLM has said all that is in the keys.
_POLL_SECONDS = 0.02
#: Between two looks whether the volume is known, and whether a comparison is due.
LOOK_SECONDS = 1.0
#: Deadline of a comparison with what other processes said.
CHECK_MS = 1000
#: Between two attempts to take a fingerprint that failed.
_FILES_SECONDS = 60.0

#: Tokens of a block and of a hash that an entry of an agent's models takes (src/conf/conf.h).
_BLOCK_TOKENS_MAX = 65536
_HASH_TOKENS_MAX = 4096

#: What to do about fields that differ, see `icms.statements.explain`.
_WORDS = {
    "probe": "set PYTHONHASHSEED and --prefix-caching-hash-algo alike on all servers",
    "hashes": "set --prefix-caching-hash-algo alike on all servers",
    "block_tokens": "set --block-size alike on all servers",
    "ranks": "set --tensor-parallel-size and the other parallel sizes alike on all servers",
    "config.vllm": "use the same version of vLLM on all servers",
    "config.variant": "set the option variant alike on all servers",
    "config.adapters": "set the option adapters alike on all servers",
    "config.workers": "use the same kind of processor and --attention-backend on all servers",
    "config.environment.*": "set this environment variable alike on all servers",
    "config.vllm_config.cache_config.block_size": "set --block-size alike on all servers",
    "config.vllm_config.*.hf_config.*": "use the same config.json and --hf-overrides on all servers",
}


class WrongTier(ValueError):
    """The configuration names a tier that can never serve this engine; says what to change."""


class Link:
    """One volume, used as soon as it can be. need_bytes is the size of a block, keys the path of the
    list of keys of encrypted volumes; "": that of $ICMS_KEYS."""

    _schemes: tuple[int, tuple[keys.Scheme, ...]]  # of this number of the space

    def __init__(self, where: str, volume: str, identity: Identity, *, keys: str, need_bytes: int,
                 log: Any, suffix: str = "", unnamed: str = "") -> None:
        self._where = where
        self._name = volume
        self._identity = identity
        self._need_bytes = need_bytes
        self._log = log
        self._suffix = suffix  # in hex: what the names of blocks have behind the engine's hashes
        self._unnamed = unnamed  # why no entry of an agent's models stands for these blocks; "": one does
        self._entry_of: uuid.UUID | None = None  # the volume of the entry that was logged last; None: none was
        self._schemes = (-1, ())
        self._watch: Watch | None = None
        self._is_known = False  # the volume was found
        self._warned = False  # it takes no block
        self._over = False  # close() was called
        self._wake = threading.Event()  # by close() or a renewed identity
        with contextlib.ExitStack() as undo:
            try:
                self._client = undo.enter_context(
                    Client(where, keys=keys or None, agent_optional=True, log=_engines.sayer(log)))
                self._volume = self._client.volume(volume)
            except (Error, TypeError, ValueError) as error:
                raise WrongTier(
                    f"icms: the volume {volume} of {where} cannot be used: {error}") from error
            self._check_size()
            undo.pop_all()
        identity.wake = self._wake.set
        self._thread = threading.Thread(target=self._run, name="icms-link", daemon=True)
        self._thread.start()

    @property
    def schemes(self) -> tuple[keys.Scheme, ...]:
        """How blocks are named, one entry a rank; () while there is no tier to use."""
        number, schemes = self._schemes
        if number != self._identity.space.number or self._volume.state != Status.OK or not self._is_fit:
            return ()
        return schemes

    @property
    def _is_fit(self) -> bool:
        """It takes a block; another agent may have another value_max."""
        return self._need_bytes <= self._volume.value_bytes_max

    @property
    def up(self) -> bool:
        """True when blocks can be asked for, as far as is known."""
        return bool(self.schemes)

    def close(self) -> None:
        """Ends the thread and closes the client; outstanding calls end by their deadlines first."""
        self._over = True
        self._wake.set()
        self._thread.join()
        self._schemes = (-1, ())
        self._client.close()

    # ---- on the thread

    def _run(self) -> None:
        while not self._over:
            if not self._look_at_size():
                self._wait(LOOK_SECONDS)
                continue
            if self._schemes[0] != self._identity.space.number:
                self._wait(self._name_blocks())
                continue
            if self._entry_of is not None and self.up and self._entry_of != self._volume.uuid:
                self._say_entry(self._schemes[1])  # it was reset, and keys begin elsewhere
            if self._watch is not None and self._watch.is_due and self.up:
                self._watch.look(deadline_ms=CHECK_MS)
            self._wait(LOOK_SECONDS)

    def _wait(self, seconds: float) -> None:
        if self._wake.wait(seconds) and not self._over:
            self._wake.clear()

    def _check_size(self) -> None:
        """WrongTier: the volume is known, and does not take a block."""
        self._is_known = self._is_known or self._volume.state == Status.OK
        if self._is_known and not self._is_fit:
            raise WrongTier(
                f"icms: a block of this engine has {self._need_bytes} bytes, the volume {self._name} of "
                f"{self._where} takes {self._volume.value_bytes_max}: raise its value_max, or make fewer "
                "tokens a block")

    def _look_at_size(self) -> bool:
        """True when the volume is known and takes a block. Says once when it does not."""
        try:
            self._check_size()
        except WrongTier as error:  # it came later, or changed
            if not self._warned:
                self._log.error("%s; serving without it", error)
            self._warned = True
            return False
        self._warned = False
        return self._is_known

    def _name_blocks(self) -> float:
        """Makes the schemes of the identity as it is now, when vLLM has said all of it. Returns how
        many seconds to wait before the next attempt."""
        identity, space = self._identity, self._identity.space
        number, private = space.number, space.space
        config, probe = identity.fields(), identity.probe()
        if config is None or probe is None:
            return _POLL_SECONDS
        try:
            weights = identity.weights()
        except FilesError as error:
            self._log.error("icms: the tier is not used: %s", error)
            return _FILES_SECONDS
        if number != space.number:
            return 0.0  # it was renewed meanwhile
        schemes = tuple(keys.Scheme(self._volume, layout, hashes=identity.hashes, probe=probe,
                                    chained=True, config=config, space=private, label=identity.label)
                        for layout in identity.layouts(weights))
        self._log.info("icms: using volume %s of %s, %s scheme %s", self._name, self._where,
                       "private" if private else "shared", schemes[0].fingerprint[:16])
        self._say_entry(schemes)
        self._watch = Watch(schemes[0], _WORDS, self._log)
        self._schemes = number, schemes
        return 0.0

    def _say_entry(self, schemes: tuple[keys.Scheme, ...]) -> None:
        """What stands for these blocks in the configuration of agents, of the volume as it is now."""
        unnamed = self._unnamed
        if not unnamed and len(schemes) > 1:
            unnamed = f"each of {len(schemes)} ranks has keys of its own, and an entry stands for those of one"
        tokens = schemes[0].layout.block_tokens
        if not unnamed and tokens > _BLOCK_TOKENS_MAX:
            unnamed = f"blocks have {tokens} tokens, and those of an entry {_BLOCK_TOKENS_MAX} at most"
        if unnamed:
            self._log.info("icms: for routers, no entry of models in icms-agent.yaml: %s", unnamed)
            self._entry_of = None
            return
        self._entry_of = self._volume.uuid
        begin = schemes[0].begins()
        self._log.info("icms: for routers, an entry of models in icms-agent.yaml, but for its name: "
                       "{volume: %s, state: '%s', block_tokens: %s, of: hashes%s%s}", self._name,
                       begin["state"], begin["block_tokens"],
                       f", suffix: '{self._suffix}'" if self._suffix else "",
                       self._say_hashing(begin["block_tokens"]))

    def _say_hashing(self, block_tokens: object) -> str:
        """How hashes are made of tokens, in an entry of models; "" when that is not known, or not for agents."""
        hashing = self._identity.hashing()
        if hashing is None or hashing[2] > _HASH_TOKENS_MAX:
            return ""
        name, seed, tokens = hashing
        return f", hash: {name}, hash_seed: '{seed}'" + \
            (f", hash_tokens: {tokens}" if tokens != block_tokens else "")


def left_ms(deadline: float) -> int:
    """Milliseconds until a time of time.monotonic(), at least 1; 0 when it has passed."""
    left = deadline - time.monotonic()
    return max(1, int(left * 1000)) if left > 0 else 0
