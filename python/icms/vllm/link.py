# SPDX-License-Identifier: Apache-2.0
"""The tier as an engine sees it: there or not, right or wrong. Used by `tier` and `connector`.

A Link opens client and volume on a thread of its own, so that an engine starts and serves without a
tier that is not there, and uses it when it comes. What cannot get better by waiting (no such volume,
blocks too large for it, unknown options) is raised to the engine while it starts. Why blocks of other
processes are not used is logged by `icms.statements`.

Life cycle: Link() -> [volume open -> identity known -> up <-> down] -> close(). When the identity is
renewed, there are no schemes until the thread has made new ones, so nothing is matched or stored
meanwhile. The client underneath finds an agent that was restarted, in its calls; the link makes one a
second, so that an idle engine has found it before the next request comes, and a busy one does not ask
a dead agent for each.
"""
from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from .. import keys, _tables
from ..client import Client, Volume
from ..errors import Error
from ..fingerprint import FilesError
from ..statements import Watch

if TYPE_CHECKING:
    from .identity import Identity

#: How long an engine's start waits for the first attempt to open the tier.
START_SECONDS = 3.0
#: Between two attempts to open a tier that is not there.
RETRY_SECONDS = 1.0
#: Between two looks whether vLLM has said all that is in the keys.
_POLL_SECONDS = 0.02
#: Between two looks at an agent that was there.
LOOK_SECONDS = 1.0
#: Deadline of a look, and of a comparison with what other processes said.
CHECK_MS = 1000
#: Between two attempts to take a fingerprint that failed.
_FILES_SECONDS = 60.0

#: What waiting does not mend.
_WRONG = (_tables.InvalidError, _tables.ConfigError, _tables.NoVolumeError, _tables.AuthError,
          _tables.ForeignError, _tables.UnsupportedError, _tables.ValueSizeError,
          _tables.NoKeyError, _tables.PermissionError, TypeError, ValueError)

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
    """One volume, opened as soon as it can be. need_bytes is the size of a block, keys the path of the
    list of keys of encrypted volumes; "": that of $ICMS_KEYS."""

    _schemes: tuple[int, tuple[keys.Scheme, ...]]  # of this number of the space

    def __init__(self, where: str, volume: str, identity: Identity, *, keys: str, need_bytes: int,
                 log: Any, suffix: str = "") -> None:
        self._where = where
        self._keys = keys or None
        self._name = volume
        self._identity = identity
        self._need_bytes = need_bytes
        self._log = log
        self._suffix = suffix  # in hex: what the names of blocks have behind the engine's hashes
        self._client: Client | None = None
        self._volume: Volume | None = None
        self._schemes = (-1, ())
        self._watch: Watch | None = None
        self._lock = threading.Lock()  # of the next two
        self._starting = True  # the engine waits for the first attempt
        self._wrong: Exception | None = None  # why that was refused for good
        self._warned = False
        self._trouble = ""  # why nothing can be asked for, as far as the last look could tell
        self._over = False  # close() was called
        self._wake = threading.Event()  # by close() or a renewed identity
        self._tried = threading.Event()  # the first attempt is over
        identity.wake = self._wake.set
        self._thread = threading.Thread(target=self._run, name="icms-link", daemon=True)
        self._thread.start()
        self._tried.wait(START_SECONDS)
        with self._lock:
            self._starting = False
        if self._wrong is not None:
            self.close()
            raise WrongTier(str(self._wrong)) from self._wrong

    @property
    def schemes(self) -> tuple[keys.Scheme, ...]:
        """How blocks are named, one entry a rank; () while there is no tier to use."""
        number, schemes = self._schemes
        return schemes if number == self._identity.space.number and not self._trouble else ()

    @property
    def up(self) -> bool:
        """True when blocks can be asked for, as far as the last look could tell."""
        return bool(self.schemes)

    def close(self) -> None:
        """Ends the thread and closes the client; outstanding calls end by their deadlines first."""
        self._over = True
        self._wake.set()
        self._thread.join()
        self._schemes = (-1, ())
        if self._client is not None:
            self._client.close()
            self._client = None

    # ---- on the thread

    def _run(self) -> None:
        while not self._over and self._volume is None:
            self._open()
            self._tried.set()
            if self._volume is None:
                self._wait(RETRY_SECONDS)
        while not self._over:
            if self._schemes[0] != self._identity.space.number:
                self._wait(self._name_blocks())
                continue
            if self._watch is not None and self._watch.is_due and not self._trouble:
                self._watch.look(deadline_ms=CHECK_MS)
            self._wait(LOOK_SECONDS)
            if not self._over and self._schemes[0] == self._identity.space.number:
                self._look()

    def _wait(self, seconds: float) -> None:
        if self._wake.wait(seconds) and not self._over:
            self._wake.clear()

    def _open(self) -> None:
        try:
            if self._client is None:
                self._client = Client(self._where, keys=self._keys)
            volume = self._client.volume(self._name)
            if self._need_bytes > volume.value_bytes_max:
                raise WrongTier(
                    f"a block of this engine has {self._need_bytes} bytes, the volume "
                    f"{self._name} of {self._where} takes {volume.value_bytes_max}: raise its "
                    "value_max, or make fewer tokens a block")
            self._volume = volume
        except _WRONG as error:
            self._refuse(error)
        except (Error, OSError) as error:
            self._say_once(f"{error}")

    def _refuse(self, error: Exception) -> None:
        why = (str(error) if isinstance(error, WrongTier) else
               f"icms: the volume {self._name} of {self._where} cannot be used: {error}")
        with self._lock:
            if self._starting:
                self._wrong = WrongTier(why)
                self._over = True
                return
        self._say_once(why)

    def _say_once(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            self._log.warning("icms: no tier at %s, volume %s (%s); serving without it, and using "
                              "it when it comes", self._where, self._name, why)

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
        assert self._volume is not None
        schemes = tuple(keys.Scheme(self._volume, layout, hashes=identity.hashes, probe=probe,
                                    chained=True, config=config, space=private, label=identity.label)
                        for layout in identity.layouts(weights))
        self._log.info("icms: using volume %s of %s, %s scheme %s", self._name, self._where,
                       "private" if private else "shared", schemes[0].fingerprint[:16])
        if len(schemes) == 1:  # ranks have keys of their own, and a model one state
            begin = schemes[0].begins()
            self._log.info("icms: for routers, an entry of models in icms-agent.yaml, but for its name: "
                           "{volume: %s, state: '%s', block_tokens: %s, of: hashes%s}", self._name,
                           begin["state"], begin["block_tokens"],
                           f", suffix: '{self._suffix}'" if self._suffix else "")
        self._watch = Watch(schemes[0], _WORDS, self._log)
        self._schemes = number, schemes
        return 0.0

    def _look(self) -> None:
        """Whether the agent answers; it may say what it likes."""
        assert self._volume is not None
        try:  # a key that is nowhere: what lies in the agent's memory is found without the agent
            status = self._volume.exists([os.urandom(16)], deadline_ms=CHECK_MS)[0].status
        except Error as error:
            status = error.status
        trouble = {_tables.Status.PEER_DOWN: "does not answer",
                   _tables.Status.NO_VOLUME: f"lacks volume {self._name}"}.get(status, "")
        if trouble and trouble != self._trouble:
            self._log.warning("icms: the agent at %s %s; serving without it, and using it when it "
                              "comes back", self._where, trouble)
        elif not trouble and self._trouble:
            self._log.info("icms: the agent at %s is back", self._where)
        self._trouble = trouble


def left_ms(deadline: float) -> int:
    """Milliseconds until a time of time.monotonic(), at least 1; 0 when it has passed."""
    left = deadline - time.monotonic()
    return max(1, int(left * 1000)) if left > 0 else 0
