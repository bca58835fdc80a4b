# SPDX-License-Identifier: Apache-2.0
"""Keys of engines' own names, and the check that processes agree on them."""
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import unittest

import icms
from icms.keys import Scheme, SchemeError, part
from support import TestCase, VALUE_BYTES, value

HASHES = [hashlib.sha256(b"block %d" % i).digest() for i in range(40)]


def derived(volume, layout, names, chained):
    """The keys as src/client/key.c says in words, with nothing of the library."""
    def hashed(*parts):
        return hashlib.sha256(b"".join(struct.pack("<Q", len(part)) + part
                                       for part in parts)).digest()

    def number(n):
        return struct.pack("<I", n)

    begin = hashed(b"icms chain v1", volume.uuid.bytes, layout.tenant.encode(),
                   layout.model.encode(), layout.weights, layout.dtype.encode(),
                   layout.layout.encode(), number(layout.block_tokens),
                   *map(number, layout.rank), *map(number, layout.ranks),
                   number(volume.run_blocks))
    state, run, made = begin, b"", []
    for i, name in enumerate(names):
        state = hashed(b"icms block v1", state if chained else begin, name)
        if not chained or i % volume.run_blocks == 0:
            run = state[:8]
        made.append(run + state[8:16])
    return made


class Schemes(TestCase):
    def layout(self, **changed):
        return icms.Layout(**{"tenant": "t", "model": f"m{random.random()}", "weights": b"\1\2",
                              "dtype": "f16", "layout": "engine 1", "block_tokens": 16,
                              "rank": (1, 0, 0, 0), "ranks": (2, 1, 1, 1), **changed})

    def test_keys_are_those_that_the_text_describes(self):
        layout = self.layout()
        for chained in (True, False):
            scheme = Scheme(self.volume, layout, hashes="sha256", chained=chained)
            self.assertEqual(scheme.keys(HASHES),
                             derived(self.volume, layout, HASHES, chained))
        self.assertGreater(len(HASHES), self.volume.run_blocks)

    def test_blocks_in_any_order_have_the_same_keys(self):
        scheme = Scheme(self.volume, self.layout(), hashes="text", chained=False)
        names = [f"engine/model@0100@0@{digest.hex()}" for digest in HASHES]
        made = dict(zip(names, scheme.keys(names)))
        mixed = random.sample(names, 20)
        self.assertEqual(scheme.keys(mixed), [made[name] for name in mixed])
        self.assertEqual(scheme.keys([name.encode() for name in names]), list(made.values()))
        self.assertEqual(len(set(made.values())), len(names))
        # Each is a run of its own.
        self.assertEqual(len({key[:8] for key in made.values()}), len(names))

    def test_a_prefix_has_the_keys_of_the_whole(self):
        scheme = Scheme(self.volume, self.layout(), hashes="sha256", chained=True)
        made = scheme.keys(HASHES)
        self.assertEqual(scheme.keys(HASHES[:7]), made[:7])
        self.assertNotEqual(scheme.keys(HASHES[1:]), made[1:])
        self.assertEqual(len({key[:8] for key in made}),
                         -(-len(made) // self.volume.run_blocks))

    def test_a_prompt_that_grows_has_the_keys_of_the_whole(self):
        for chained in (True, False):
            scheme = Scheme(self.volume, self.layout(), hashes="sha256", chained=chained)
            prompt = scheme.prompt()
            made = []
            for name in HASHES:
                aside = prompt.aside(name)
                made.append(prompt.next(name))
                self.assertEqual(aside, made[-1])
            self.assertEqual(made, scheme.keys(HASHES))

    def test_processes_find_each_others_blocks(self):
        layout = self.layout()
        scheme = Scheme(self.volume, layout, hashes="sha256", chained=True)
        self.assertTrue(scheme.check())
        values = [value(i) for i in range(6)]
        self.assertTrue(self.volume.put(scheme.keys(HASHES[:6]), values, on_flash=True).ok)
        text = """
import icms, hashlib, sys
from icms.keys import Scheme
volume = icms.Client(sys.argv[1]).volume("kv")
scheme = Scheme(volume, eval("icms." + sys.argv[2]), hashes="sha256", chained=True)
print(scheme.check(), scheme.fingerprint,
      volume.match(scheme.keys([hashlib.sha256(b"block %d" % i).digest() for i in range(8)])))
"""
        said = subprocess.run([sys.executable, "-c", text, self.tier.where, repr(layout)],
                              capture_output=True, text=True, timeout=60, check=False,
                              env={**os.environ, "PYTHONHASHSEED": "7"})
        self.assertEqual(said.stdout, f"True {scheme.fingerprint} 6\n", said.stderr)

    def test_every_difference_is_told(self):
        layout = self.layout()
        first = Scheme(self.volume, layout, hashes="sha256 seed 0", probe=b"p", chained=True)
        self.assertTrue(first.check())
        self.assertTrue(first.check())
        fingerprints = {first.fingerprint}
        same = dict(hashes="sha256 seed 0", probe=b"p", chained=True)
        changed = [({"weights": b"\3"}, {}), ({"dtype": "f32"}, {}), ({"layout": "engine 2"}, {}),
                   ({"block_tokens": 32}, {}), ({"ranks": (4, 1, 1, 1)}, {}),
                   ({}, {"hashes": "sha256 seed 1"}), ({}, {"probe": b"q"}),
                   ({}, {"chained": False})]
        for of_layout, of_scheme in changed:
            what, = {**of_layout, **of_scheme}
            other = Scheme(self.volume, self.layout(model=layout.model, **of_layout),
                           **{**same, **of_scheme})
            with self.subTest(what), self.assertRaisesRegex(SchemeError, f"kv.*{what}: ") as caught:
                other.check()
            self.assertEqual(set(caught.exception.differences), {what})
            fingerprints.add(other.fingerprint)
        self.assertEqual(len(fingerprints), len(changed) + 1)
        # Another rank of the same engine agrees, and has keys of its own.
        sister = Scheme(self.volume, self.layout(model=layout.model, rank=(0, 0, 0, 0)), **same)
        self.assertTrue(sister.check())
        self.assertFalse(set(sister.keys(HASHES)) & set(first.keys(HASHES)))
        # A change that is meant.
        other = Scheme(self.volume, self.layout(model=layout.model, dtype="f8"), **same)
        self.assertTrue(other.check(replace=True))
        self.assertTrue(other.check())
        self.assertRaises(SchemeError, first.check)

    def test_a_statement_that_is_none(self):
        layout = self.layout()
        scheme = Scheme(self.volume, layout, hashes="sha256", chained=True)
        name = icms.key(f"icms scheme v1 {layout.tenant}\0{layout.model}")
        for text in (b"\xff\0", b"[]", b"7", json.dumps({"dtype": ["f16"]}).encode()):
            self.assertTrue(self.volume.put([name], [text]).ok)
            self.assertRaises(SchemeError, scheme.check)
        self.assertTrue(self.volume.put([name], [bytes(VALUE_BYTES)]).ok)
        self.assertFalse(scheme.check())  # larger than any statement: the tier cannot tell
        self.assertTrue(scheme.check(replace=True))
        self.assertTrue(scheme.check())

    def test_parts_of_a_block(self):
        scheme = Scheme(self.volume, self.layout(), hashes="sha256", chained=False)
        keys = scheme.keys(HASHES[:3])
        parts = [part(key, name) for key in keys for name in ("k", b"v")]
        self.assertEqual(parts[0], keys[0][:8] + hashlib.sha256(
            b"icms part v1\0" + keys[0] + b"k").digest()[:8])
        self.assertEqual(len({*parts, *keys}), 9)
        self.assertEqual([one[:8] for one in parts], [key[:8] for key in keys for _ in range(2)])
        for key, name in ((keys[0][:15], "k"), (keys[0], "")):
            self.assertRaises(ValueError, part, key, name)

    def test_names_that_are_none(self):
        for chained in (True, False):
            scheme = Scheme(self.volume, self.layout(), hashes="x", chained=chained)
            self.assertEqual(scheme.keys([]), [])
            for wrong, kind in (([b""], ValueError), ([""], ValueError), ([7], TypeError),
                                (b"abc", TypeError), ("abc", TypeError), (None, TypeError)):
                with self.subTest(wrong):
                    self.assertRaises(kind, scheme.keys, wrong)


if __name__ == "__main__":
    unittest.main()
