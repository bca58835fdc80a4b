# SPDX-License-Identifier: Apache-2.0
"""What adapters of engines share: log lines that do not repeat, options, values cut into parts."""
from __future__ import annotations

import dataclasses
import logging
import threading
import time
from typing import Any, TypeVar

#: Seconds between two log lines that say the same.
_REPEAT_SECONDS = 10.0
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
