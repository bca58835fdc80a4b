# SPDX-License-Identifier: Apache-2.0
"""Why processes do not find each other's blocks, in words that an operator can act on.

Processes whose `keys.Scheme` differ have different keys, so a hash seed that differs shows only as a
cache that never hits. Each process leaves a statement of its identity in the volume, reads those of
others, and logs how the one that is closest to its own differs:

    watch = Watch(scheme, {"probe": "set PYTHONHASHSEED to the same value on all servers"}, log)
    while not over.wait(1.0):
        if watch.is_due:
            watch.look()

A statement only ever explains. It changes no key, and a tier works as well without it. Whoever can
write into the volume can write anything in the place of statements: they are bounded, parsed, and
shown with their quotes.

There are 16 slots for each tenant and period of half an hour, at keys that all processes know. A
process reads those of this period and of the last one, and takes a free slot of this one unless its
identity is already stated. Blocks are immutable, so statements are not rewritten; they become old.
Clocks that differ by more than half an hour cost explanations and nothing else. With more than 16
identities, some are not stated.
"""
from __future__ import annotations

import fnmatch
import hashlib
import json
import logging
import re
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from . import canonical
from ._tables import Miss, Status
from .canonical import Scalar
from .client import key as key_of_name
from .errors import Error
from .keys import Scheme

#: Of statements, in slots of a period.
SLOTS = 16
PERIOD_SECONDS = 1800
#: Between two looks of a process at the statements of others, and so between two log lines.
LOOK_SECONDS = 600.0
#: A statement, compressed; and its text.
_STATEMENT_BYTES_MAX = 16 << 10
_TEXT_BYTES_MAX = 256 << 10
#: Of an explanation: differences that are told, and characters of each value.
_TOLD_MAX = 8
_SHOWN_MAX = 80
#: Names of fields whose texts others must not read.
_SECRET = re.compile(r"(?i)secret|password|credential|token|api_?key|_key$|auth")
#: What `explain` says of fields that all engines have.
_WORDS = {
    "weights": "the weights differ: use the same files on all servers",
    "model": "set the same model name on all servers",
    "block_tokens": "set the same block size on all servers",
    "ranks": "use the same parallel sizes on all servers",
    "probe": "the hash functions or their seeds differ",
    "hashes": "set the same hash function on all servers",
    "chained": "set the option chained alike on all servers",
    "dtype": "set the same data type of the KV cache on all servers",
}

#: {field: (theirs, ours)}; None where one has no such field.
Differences = dict[str, tuple[Scalar, Scalar]]


def exchange(scheme: Scheme, *, deadline_ms: int = 1000,
             now: Callable[[], float] = time.time) -> Differences | None:
    """States the identity of a scheme, and compares it with those of others.

    The differences to the closest statement about the same model or weights; {} when there is none;
    None when the tier does not answer. icms.Error when the call fails as a whole.
    """
    period = int(now()) // PERIOD_SECONDS
    names = [_slot(scheme, period - back, slot) for back in (0, 1) for slot in range(SLOTS)]
    nbytes = min(_STATEMENT_BYTES_MAX, scheme.volume.value_bytes_max)
    # First which are there: a load takes memory of the agent for a value as large as any.
    found = scheme.volume.exists(names, deadline_ms=deadline_ms)
    if not any(block.status == Status.OK or block.reason == Miss.ABSENT for block in found):
        return None
    stated = _read(scheme, [name for name, block in zip(names, found) if block.status == Status.OK],
                   nbytes, deadline_ms)
    if not any(stated[name]["identity"] == scheme.fingerprint
               for name in names[:SLOTS] if name in stated):
        free = [name for name, block in zip(names[:SLOTS], found) if block.reason == Miss.ABSENT]
        _put(scheme, free, nbytes, deadline_ms)
    return _closest(scheme, list(stated.values()))


def explain(differences: Differences, words: Mapping[str, str] | None = None) -> str:
    """Differences as text. words has what to do about a field, by name or pattern."""
    words = {**_WORDS, **(words or {})}
    told = []
    for name, (theirs, ours) in sorted(differences.items(), key=lambda one: not _say(one[0], words)):
        remedy = _say(name, words)
        told.append(f"{_shown(name)[1:-1]}: {_shown(theirs)} there, {_shown(ours)} here"
                    + (f" ({remedy})" if remedy else ""))
    more = len(told) - _TOLD_MAX
    return "; ".join(told[:_TOLD_MAX]) + (f"; and {more} more" if more > 0 else "")


class Watch:
    """Compares one scheme with the statements of others, and logs what differs: again while it lasts,
    and once when it is over. One thread; never raises."""

    def __init__(self, scheme: Scheme, words: Mapping[str, str], log: logging.Logger) -> None:
        self._scheme = scheme
        self._words = dict(words)
        self._log = log
        self._due = 0.0
        #: What differed at the last look that succeeded.
        self.differences: Differences = {}

    @property
    def is_due(self) -> bool:
        """True when it is time for a look."""
        return time.monotonic() >= self._due

    @property
    def wait_seconds(self) -> float:
        """Until it is due."""
        return max(0.0, self._due - time.monotonic())

    def look(self, *, deadline_ms: int = 1000) -> None:
        """Compares now."""
        self._due = time.monotonic() + LOOK_SECONDS
        scheme = self._scheme
        if scheme.space:
            return  # no other process can have its blocks
        try:
            found = exchange(scheme, deadline_ms=deadline_ms, now=time.time)
        except Error:
            found = None
        if found is None:
            self._due = time.monotonic() + LOOK_SECONDS / 10
            return
        about = f"icms: volume {scheme.volume.name}: model {scheme.label or scheme.layout.model}"
        if found:
            self._log.warning("%s: blocks of other processes are not used: %s",
                              about, explain(found, self._words))
        elif self.differences:
            self._log.info("%s: no other process differs any more", about)
        self.differences = found


def parse(data: bytes) -> dict[str, Any] | None:
    """A statement from what a slot has: {"identity": ..., "about": ..., "fields": {...}}; None for
    anything else, since a slot can have anything."""
    try:
        inflate = zlib.decompressobj()
        text = inflate.decompress(data, _TEXT_BYTES_MAX)
        said = json.loads(text) if inflate.eof else None
    except (zlib.error, ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or not isinstance(said.get("fields"), dict):
        return None
    if not all(isinstance(said.get(name), str) for name in ("identity", "about")):
        return None
    if not all(value is None or isinstance(value, (bool, int, float, str))
               for value in said["fields"].values()):
        return None
    return said


def _slot(scheme: Scheme, period: int, slot: int) -> bytes:
    return key_of_name(f"icms statement v2\0{scheme.layout.tenant}\0{period}\0{slot}")


def _read(scheme: Scheme, names: list[bytes], nbytes_max: int,
          deadline_ms: int) -> dict[bytes, dict[str, Any]]:
    """The statements that can be read, by the keys of their slots."""
    if not names:
        return {}
    rooms = [bytearray(nbytes_max) for _ in names]
    found = scheme.volume.get(names, rooms, deadline_ms=deadline_ms)
    read = {name: parse(bytes(room[:block.nbytes])) for name, room, block in zip(names, rooms, found)
            if block.status == Status.OK}
    return {name: one for name, one in read.items() if one is not None}


def _put(scheme: Scheme, free: list[bytes], nbytes_max: int, deadline_ms: int) -> None:
    """Leaves the statement in a slot; processes of one identity try them in one order."""
    value = _statement(scheme, nbytes_max)
    begin = int(scheme.fingerprint[:8], 16) % max(1, len(free))
    for name in free[begin:] + free[:begin] if value else []:
        put = scheme.volume.put([name], [value], if_absent=True, deadline_ms=deadline_ms)[0]
        if put.status != Status.EXISTS:
            return


def _public(fields: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The fields as others may read them: a digest of what may be a secret."""
    return {name: _digest(value) if isinstance(value, str) and _SECRET.search(name) else value
            for name, value in fields.items()}


def _digest(value: object) -> str:
    return hashlib.sha256(canonical.dumps(value).encode()).hexdigest()[:16]


def _statement(scheme: Scheme, nbytes_max: int) -> bytes:
    """As much of the fields as there is room for; b"" when there is none."""
    fields = _public(scheme.fields())
    for said in (fields, _grouped(fields)):
        text = canonical.dumps({"identity": scheme.fingerprint, "about": scheme.label,
                                "fields": said}).encode()
        value = zlib.compress(text)
        if len(text) <= _TEXT_BYTES_MAX and len(value) <= nbytes_max:
            return value
    return b""


def _grouped(fields: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The fields of each part of the configuration as one digest."""
    parts: dict[str, dict[str, Scalar]] = {}
    made: dict[str, Scalar] = {}
    for name, value in fields.items():
        if name.startswith("config."):
            parts.setdefault(".".join(name.split(".")[:2]).partition("[")[0], {})[name] = value
        else:
            made[name] = value
    for part, some in parts.items():
        made[f"{part}.*"] = _digest(some)
    return made


def _closest(scheme: Scheme, stated: list[dict[str, Any]]) -> Differences:
    ours = _public(scheme.fields())
    grouped = _grouped(ours)
    closest: Differences = {}
    for one in stated:
        theirs = one["fields"]
        is_same_model = (one["about"] == scheme.label != "" or
                         theirs.get("model") == ours["model"] and
                         (ours["model"] != "" or theirs.get("weights") == ours["weights"] != ""))
        if one["identity"] == scheme.fingerprint or not is_same_model:
            continue
        mine = ours
        if any(name.endswith(".*") for name in theirs) and len(grouped) < len(ours):
            mine = grouped
        differences = {name: (theirs.get(name), mine.get(name)) for name in {*theirs, *mine}
                       if theirs.get(name) != mine.get(name)}
        if differences and (not closest or len(differences) < len(closest)):
            closest = differences
    return closest


def _say(name: str, words: Mapping[str, str]) -> str:
    for pattern, text in words.items():
        if fnmatch.fnmatchcase(name, pattern):
            return text
    return ""


def _shown(value: object) -> str:
    """Any value in one short printable line: it may come from a stranger."""
    text = ascii(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
