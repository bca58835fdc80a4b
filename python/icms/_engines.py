# SPDX-License-Identifier: Apache-2.0
"""What adapters of engines share: an open tier, log lines that do not repeat, options, values cut into
parts."""
from __future__ import annotations

import collections
import dataclasses
import importlib.metadata
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

from .client import Client, Volume
from .statements import Watch

#: Seconds between two log lines of failures that say the same.
_REPEAT_SECONDS = 10.0
#: Parts begin at multiples of it in the memory of an engine, which is aligned so as a rule.
_PART_ALIGN = 4096
#: Names of variables that Kubernetes gives every pod for a service, such as one called "vllm".
_SERVICE = re.compile(
    r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")

O = TypeVar("O")


def environment(variables: Mapping[str, str], prefixes: str | tuple[str, ...]) -> dict[str, str]:
    """The variables of an engine, by the prefixes of their names; not the addresses of services."""
    return {name: value for name, value in variables.items()
            if name.startswith(prefixes) and not _SERVICE.fullmatch(name)}


def sayer(log: logging.Logger) -> Callable[[str], None]:
    """Takes what libicms says, for `icms.Client`."""
    return lambda line: log.warning("icms: %s", line)


class Sayer:
    """Warns of what goes on and on once in a while. Any thread."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}  # when it was said last, by what

    def warn(self, what: str, text: str) -> None:
        """Logs text, unless something of the same kind was said a moment ago."""
        now = time.monotonic()
        with self._lock:
            if now - self._said.get(what, -_REPEAT_SECONDS) < _REPEAT_SECONDS:
                return
            self._said[what] = now
        self._log.warning("icms: %s", text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TierOptions:
    """Options of every adapter: where blocks are, and how long calls may take."""

    #: The volume.
    volume: str
    #: Where the tier is, see `icms.Client`.
    where: str = "unix:"
    #: Path of the list of keys of encrypted volumes, see icms-keys.yaml(5); "": that of $ICMS_KEYS.
    keys: str = ""
    #: Who may share.
    tenant: str = ""
    #: How long a batch may take to load or look up, and to store or delete; 0: the agent's
    #: defaults.
    load_ms: int = 0
    store_ms: int = 0


class Tier:
    """A client and a volume: an engine starts and serves without an agent that is not there, and uses
    it when it comes. What no agent mends is raised.

    Life cycle: Tier -> close.
    """

    def __init__(self, options: TierOptions, log: logging.Logger) -> None:
        self.client = Client(options.where, keys=options.keys or None,
                             load_deadline_ms=options.load_ms, store_deadline_ms=options.store_ms,
                             agent_optional=True, log=sayer(log))
        try:
            self.volume: Volume = self.client.volume(options.volume)
        except BaseException:
            self.client.close()
            raise
        self._watch: Watch | None = None
        self._over = False  # close() was called
        self._changed = threading.Event()  # by watch() or close()
        self._thread: threading.Thread | None = None

    def watch(self, watch: Watch | None) -> None:
        """From now on compares with other processes what watch has, on a thread; None: nothing."""
        self._watch = watch
        self._changed.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="icms-watch", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Waits for calls of the tier that are outstanding, which their deadlines bound, and closes
        it. Again: does nothing."""
        self._over = True
        self._changed.set()
        if self._thread is not None:
            self._thread.join()
        self.client.close()

    def _run(self) -> None:
        while True:
            self._changed.clear()
            if self._over:
                return  # close() set both before the event was cleared
            watch = self._watch
            if watch is not None and watch.is_due:
                watch.look()
            self._changed.wait(watch.wait_seconds if watch is not None else None)


@dataclasses.dataclass
class Reasons:
    """Counters of every adapter: why blocks did not move."""

    #: Why blocks did not come, by name of icms.Miss; and were not stored, of icms.Status.
    misses: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    refusals: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    #: Calls that failed as a whole, by name of the exception.
    failures: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def snapshot(self) -> Self:
        """A copy that later counts do not change."""
        return dataclasses.replace(self, misses=self.misses.copy(), refusals=self.refusals.copy(),
                                   failures=self.failures.copy())


def options(kind: type[O], given: Any, where: str) -> O:
    """The options of a frozen dataclass from what a user wrote; ValueError says what is wrong.

    where names the place for the text.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    listed = ", ".join(fields)
    if not isinstance(given, dict):
        raise ValueError(f"{where} is an object with options of icms: {listed}")
    for name, value in given.items():
        if name not in fields:
            raise ValueError(f"{where} has no option {name!r}; there are {listed}")
        wanted = {"bool": bool, "int": int}.get(str(fields[name].type), str)
        if type(value) is not wanted:
            raise ValueError(f"{where}: {name} is of type {wanted.__name__}, not {value!r}")
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and name not in given:
            raise ValueError(f"{where} needs the option {name!r}; there are {listed}")
    return kind(**given)


def version_of(package: str) -> str:
    """The version of a package that is installed; "" when it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def cut(nbytes: int, nbytes_max: int) -> list[tuple[int, int]]:
    """(offset, size) of the parts in which a value goes into a volume whose largest is nbytes_max.

    One when it fits.
    """
    if nbytes <= nbytes_max:
        return [(0, nbytes)]
    each = -(-nbytes // -(-nbytes // nbytes_max))
    if nbytes_max >= _PART_ALIGN:
        each = min(-(-each // _PART_ALIGN) * _PART_ALIGN, nbytes_max // _PART_ALIGN * _PART_ALIGN)
    return [(offset, min(each, nbytes - offset)) for offset in range(0, nbytes, each)]
