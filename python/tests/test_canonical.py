# SPDX-License-Identifier: Apache-2.0
"""Configurations as flat text: all of it counts, in one order, and nothing that differs by chance."""
import argparse
import collections
import dataclasses
import enum
import os
import pathlib
import subprocess
import sys
import types
import unittest

from icms.canonical import NoCanonicalForm, dumps, flatten


class Kind(enum.Enum):
    A = object()


class Text(str, enum.Enum):
    A = "x"


@dataclasses.dataclass
class Inner:
    rope_theta: float = 1e4
    kinds: tuple = (Kind.A, Text.A)


@dataclasses.dataclass
class Outer:
    inner: Inner = dataclasses.field(default_factory=Inner)
    port: int = 1
    layers: dict = dataclasses.field(default_factory=lambda: {"b": 1, "a": [True, None], 3: ()})
    names: set = dataclasses.field(default_factory=lambda: {"y", "x", "z"})


class Hub:
    """As configurations of transformers."""

    def __init__(self, **words):
        self.words = words

    def to_dict(self):
        return self.words


class dtype:
    __module__ = "torch"

    def __repr__(self):
        return "torch.bfloat16"


class Flattened(unittest.TestCase):
    def test_what_comes_out(self):
        self.assertEqual(flatten(Outer()), {
            "inner.kinds[0]": "A", "inner.kinds[1]": "A", "inner.rope_theta": 10000.0,
            "layers.3": "[]", "layers.a[0]": True, "layers.a[1]": None, "layers.b": 1,
            "names[0]": '{"":"x"}', "names[1]": '{"":"y"}', "names[2]": '{"":"z"}', "port": 1})

    def test_values_of_many_kinds(self):
        given = {"hub": Hub(rope=Hub(theta=1)), "dtype": dtype(), "path": pathlib.Path("/a/b"),
                 "space": argparse.Namespace(a=1), "simple": types.SimpleNamespace(b=2),
                 "type": collections.OrderedDict, "function": os.path.join, "bytes": b"\1",
                 "ordered": collections.OrderedDict(b=1, a=2), "none": {}, "nan": float("nan")}
        self.assertEqual(dumps(flatten(given)), dumps({
            "hub.rope.theta": 1, "dtype": "torch.bfloat16", "path": "/a/b", "space.a": 1,
            "simple.b": 2, "type": "collections.OrderedDict", "function": "posixpath.join",
            "bytes": "hex 01", "ordered.b": 1, "ordered.a": 2, "none": "{}", "nan": float("nan")}))

    def test_every_field_counts_but_the_harmless(self):
        harmless = ("port", "*.log_level", "layers.a*")
        base = dumps(flatten(Outer(), harmless=harmless))
        self.assertEqual(dumps(flatten(Outer(port=7), harmless=harmless)), base)
        self.assertEqual(dumps(flatten(Outer(layers={"a": 5, 3: (), "b": 1}), harmless=harmless)),
                         base)
        self.assertNotEqual(dumps(flatten(Outer(inner=Inner(rope_theta=2e4)), harmless=harmless)),
                            base)
        self.assertNotEqual(dumps(flatten(Outer(names={"x"}), harmless=harmless)), base)
        self.assertNotEqual(dumps(flatten(Outer(layers={"c": 1}), harmless=harmless)), base)
        self.assertEqual(flatten({"engine": {"log_level": 3}}, harmless=harmless),
                         {"engine": "{}"})

    def test_what_is_nested_otherwise_is_another(self):
        given = ({"a.b": 1}, {"a": {"b": 1}}, {"a": [1]}, {"a[0]": 1}, {"a": {"[0]": 1}},
                 {"a": {"0": 1}}, {'"a.b"': 1}, {"a.b": {"c": 1}}, {"a": {"b.c": 1}},
                 {"a": {"b": {"c": 1}}})
        self.assertEqual(len({dumps(flatten(one)) for one in given}), len(given))

    def test_what_has_no_form_is_named(self):
        loop = []
        loop.append(loop)
        for value, says in ((object(), r"the field a\.b\[1\] .* of type builtins.object"),
                            (lambda: 1, r"a\.b\[1\]"), (loop, "nested too deeply"),
                            ({object(): 1}, "a key of"), ({1: 2, "1": 3}, r"a\.b\[1\]\.1 .* twice")):
            with self.assertRaisesRegex(NoCanonicalForm, says):
                flatten({"a": {"b": [1, value]}})
            self.assertEqual(flatten({"a": {"b": [1, value]}, "c": 1}, harmless=["a.b"]),
                             {"a": "{}", "c": 1})

    def test_another_process_says_the_same(self):
        text = ("import test_canonical as t; from icms.canonical import *; "
                "print(dumps(flatten(t.Outer())))")
        said = {subprocess.run([sys.executable, "-c", text], capture_output=True, text=True,
                               check=True, env={**os.environ, "PYTHONHASHSEED": seed}).stdout
                for seed in ("1", "2", "3")}
        self.assertEqual(said, {dumps(flatten(Outer())) + "\n"})


if __name__ == "__main__":
    unittest.main()
