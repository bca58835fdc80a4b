# SPDX-License-Identifier: Apache-2.0
"""What adapters of engines share: a tier that may come later, log lines that do not repeat, options,
values cut into parts."""
from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from . import _tables
from .client import Client, Volume
from .errors import Error
from .keys import SchemeError

#: Seconds between two log lines that say the same.
_REPEAT_SECONDS = 10.0
#: Between two attempts to open a tier that is not there.
_RETRY_SECONDS = 1.0
#: What waiting does not mend.
WRONG = (_tables.InvalidError, _tables.ConfigError, _tables.NoVolumeError, _tables.AuthError,
         _tables.ForeignError, _tables.UnsupportedError, _tables.ValueSizeError, SchemeError,
         TypeError, ValueError)
#: Parts begin at multiples of it in the memory of an engine, which is aligned so as a rule.
_PART_ALIGN = 4096

O = TypeVar("O")


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


class Opener:
    """A client and a volume, opened as soon as they can be: an engine starts and serves without a
    tier that is not there, and uses it when it comes.

    opened(client, volume) is called once, by the constructor or on a thread, which then ends. What
    cannot get better by waiting, there too, is raised by the constructor, and logged by the thread.
    Life cycle: Opener -> opened, some time -> close.
    """

    def __init__(self, where: str, volume: str, *, load_ms: int, store_ms: int,
                 opened: Callable[[Client, Volume], None], log: logging.Logger) -> None:
        self._where = where
        self._name = volume
        self._deadlines = {"load_deadline_ms": load_ms, "store_deadline_ms": store_ms}
        self._opened = opened
        self._log = log
        self._client: Client | None = None
        self._over = threading.Event()  # close() was called
        self._thread: threading.Thread | None = None
        try:
            self._open()
        except WRONG:
            raise
        except (Error, OSError) as error:
            log.warning("icms: no tier at %s, volume %s (%s); serving without it, and using it when "
                        "it comes", where, volume, error)
            self._thread = threading.Thread(target=self._run, name="icms-open", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Waits for calls of the tier that are under way, which their deadlines bound, and closes
        it. Again: does nothing."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._client is not None:
            self._client.close()

    def _open(self) -> None:
        client = Client(self._where, **self._deadlines)
        try:
            self._opened(client, client.volume(self._name))
        except BaseException:
            client.close()
            raise
        self._client = client

    def _run(self) -> None:
        while not self._over.wait(_RETRY_SECONDS):
            try:
                self._open()
                return
            except WRONG as error:
                self._log.error("icms: the volume %s of %s is not used: %s", self._name, self._where,
                                error)
                return
            except (Error, OSError):
                pass  # not yet


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
