# SPDX-License-Identifier: Apache-2.0
"""Configurations as flat, sorted text, so that processes can compare them.

    fields = flatten(engine_config, harmless=("cache.memory_fraction", "*.log_level"))
    # {"model.hf_config.rope_theta": 500000.0, "model.dtype": "torch.bfloat16", ...}

Everything counts that is not listed as harmless: an option that a later version of an engine adds
makes other keys, and not wrong tokens, until somebody has found out that it is harmless.
"""
from __future__ import annotations

import dataclasses
import enum
import fnmatch
import json
import pathlib
import re
import types
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

#: What a key of a mapping cannot have in it without looking like more than one, or like a quoted one.
_PATH = re.compile(r'[].["]')
#: Of nested values; deeper ones are a cycle.
_DEPTH_MAX = 32

#: What a field of a flat configuration is.
Scalar = None | bool | int | float | str


class NoCanonicalForm(ValueError):
    """A field cannot be compared between processes; says which."""


def flatten(config: Any, *, harmless: Iterable[str] = ()) -> dict[str, Scalar]:
    """All fields of a configuration: {"a.b[0].c": value}, the same in all processes that have the
    same configuration.

    Goes into dataclasses, mappings, sequences, sets, namespaces, what has `to_dict()` (as Hugging
    Face's configurations) or the fields of pydantic and msgspec. harmless has patterns for paths:
    "a.b" is that field and all inside it, "*" is any text. NoCanonicalForm for a field that says
    nothing but its address in memory, and is not harmless.
    """
    patterns = re.compile("|".join(fnmatch.translate(pattern) for pattern in harmless) or r"(?!)")
    found: dict[str, Scalar] = {}
    for path, value in _walk("", config, patterns, 0):
        if path in found:
            raise NoCanonicalForm(f"the field {path} of the configuration is there twice")
        found[path] = value
    return dict(sorted(found.items()))


def dumps(fields: Any) -> str:
    """The one text of fields, or of anything that JSON has: sorted, ASCII, without spaces."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def _walk(path: str, value: Any, harmless: re.Pattern[str],
          depth: int) -> Iterator[tuple[str, Scalar]]:
    if path and harmless.fullmatch(path):
        return
    if depth > _DEPTH_MAX:
        raise NoCanonicalForm(f"the field {path} of the configuration is nested too deeply")
    is_one, scalar = _scalar(value)
    if is_one:
        yield path, scalar
        return
    inner, empty = _inner(path, value)
    is_empty = True  # but for what is harmless
    for name, item in inner:
        for field in _walk(name, item, harmless, depth + 1):
            is_empty = False
            yield field
    if is_empty and path:
        yield path, empty


def _scalar(value: Any) -> tuple[bool, Scalar]:
    """(True, its form) of what has no fields."""
    if isinstance(value, enum.Enum):
        return True, value.name
    if value is None or type(value) in (bool, int, float, str):
        return True, value
    if isinstance(value, (bool, int, float, str)):  # of a class made from one
        return True, next(kind(value) for kind in (int, float, str) if isinstance(value, kind))
    if isinstance(value, (bytes, bytearray)):
        return True, f"hex {bytes(value).hex()}"
    if isinstance(value, (pathlib.PurePath, uuid.UUID)):
        return True, str(value)
    if isinstance(value, re.Pattern):
        return True, str(value.pattern)
    kind = type(value)
    if kind.__module__.partition(".")[0] == "torch" and kind.__name__ in ("dtype", "device", "Size",
                                                                        "layout"):
        return True, str(value)
    if kind.__module__ == "numpy" and callable(getattr(value, "item", None)) and not getattr(
            value, "shape", ()):
        return _scalar(value.item())
    name = getattr(value, "__qualname__", None)
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) and name and \
            "<" not in name:
        return True, f"{value.__module__}.{name}"
    return False, None


def _inner(path: str, value: Any) -> tuple[Iterable[tuple[str, Any]], str]:
    """(path, value) of all inside, and what stands for none."""
    if dataclasses.is_dataclass(value):
        return [(_join(path, field.name), getattr(value, field.name, None))
                for field in dataclasses.fields(value)], "{}"
    if isinstance(value, Mapping):
        return [(_join(path, _key(path, key)), item) for key, item in value.items()], "{}"
    if isinstance(value, (list, tuple)):
        return [(f"{path}[{i}]", item) for i, item in enumerate(value)], "[]"
    if isinstance(value, (set, frozenset)):
        items = sorted(dumps(flatten({"": item})) for item in value)  # which has no order
        return [(f"{path}[{i}]", item) for i, item in enumerate(items)], "[]"
    if callable(getattr(value, "to_dict", None)) and not isinstance(value, type):
        return _inner(path, value.to_dict())
    for fields in ("__pydantic_fields__", "model_fields", "__struct_fields__"):
        names = getattr(type(value), fields, None)
        if names is not None:
            return [(_join(path, name), getattr(value, name, None)) for name in names], "{}"
    if type(value).__name__ in ("Namespace", "SimpleNamespace"):
        return [(_join(path, name), item) for name, item in vars(value).items()], "{}"
    raise NoCanonicalForm(f"the field {path or 'at the top'} of the configuration, of type "
                          f"{type(value).__module__}.{type(value).__qualname__}, cannot be compared "
                          "between processes")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _key(path: str, key: Any) -> str:
    is_one, scalar = _scalar(key)
    if not is_one:
        raise NoCanonicalForm(f"a key of {path or 'the configuration'}, of type "
                              f"{type(key).__qualname__}, cannot be compared between processes")
    text = scalar if isinstance(scalar, str) else dumps(scalar)
    # A key that looks like a path is quoted: {"a.b": 1} is not {"a": {"b": 1}}.
    return dumps(text) if _PATH.search(text) else text
