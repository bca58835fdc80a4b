# SPDX-License-Identifier: Apache-2.0
"""Exceptions. One class a status of libicms; `_tables` has them, made from the C tables."""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._tables import Miss, Status


class Error(Exception):
    """A call failed as a whole. `str()` says what was tried, what happened and what to do.

    A block that is not available is no exception but a result (see `Results`), except for
    `Volume.lease`, which has nothing else to give.
    """

    status: Status
    #: The general sentence of the status.
    text: str
    #: True when the same call may succeed later.
    retry: bool
    #: Why a block is not available, where the error is about one block.
    reason: Miss


def error_of(status: int, why: str = "", reason: int = 0) -> Error:
    """The exception of a status, with a sentence for people."""
    from . import _tables

    kind = _tables.CLASSES[status]
    miss = _tables.Miss(reason)
    if not why:
        why = kind.text if miss is _tables.Miss.NONE else f"{kind.text}: {miss.name.lower()}"
    error = kind(why)
    error.reason = miss
    return error


def may_retry(status: int) -> bool:
    """True when a call with this status may succeed later."""
    from . import _tables

    return bool(_tables.CLASSES[status].retry)
