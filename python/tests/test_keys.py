# SPDX-License-Identifier: Apache-2.0
"""Keys of engines' own names: all of an identity is in them."""
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import unittest

import icms
from icms.keys import Scheme, event_hash, part
from support import TestCase, value

HASHES = [hashlib.sha256(b"block %d" % i).digest() for i in range(40)]


def begins_run(block, run_blocks):
    """Whether a run begins with this block: they double up to run_blocks."""
    return block & (block - 1) == 0 if block < run_blocks else block % run_blocks == 0


def derived(volume, layout, names, *, hashes, chained, probe=b"", config=b"", space=b""):
    """The keys as src/client/key.c and icms.keys say in words, with nothing of the library."""
    def hashed(*parts):
        return hashlib.sha256(b"".join(struct.pack("<Q", len(part)) + part
                                       for part in parts)).digest()

    def number(n):
        return struct.pack("<I", n)

    identity = hashed(b"icms scheme v2", hashes.encode(), probe,
                      b"chained" if chained else b"single", config, space).hex()
    begin = hashed(b"icms chain v2", volume.uuid.bytes, layout.tenant.encode(),
                   layout.model.encode(), layout.weights, layout.dtype.encode(),
                   f"{layout.layout} {identity}".encode(), number(layout.block_tokens),
                   *map(number, layout.rank), *map(number, layout.ranks),
                   number(volume.run_blocks))
    state, run, made = begin, b"", []
    for i, name in enumerate(names):
        state = hashed(b"icms block v1", state if chained else begin, name)
        if not chained or begins_run(i, volume.run_blocks):
            run = state[:4]
        made.append(run + state)
    return made


class EventHash(unittest.TestCase):
    """By which an agent's events name a block: src/client/key.c says what is on the wire."""

    def test_it_is_the_end_of_the_key_on_the_wire(self):
        run, digest = b"RUN.", bytes(range(32))
        wire = run + digest[4:16]
        self.assertEqual(event_hash(run + digest), int.from_bytes(wire[-8:], "big"))
        self.assertEqual(event_hash(run + digest), event_hash(wire))
        self.assertEqual(event_hash(b"ab"), 0x6162)


class Schemes(TestCase):
    def layout(self, **changed):
        return icms.Layout(**{"tenant": "t", "model": f"m{random.random()}", "weights": b"\1\2",
                              "dtype": "f16", "layout": "engine 1", "block_tokens": 16,
                              "rank": (1, 0, 0, 0), "ranks": (2, 1, 1, 1), **changed})

    def test_keys_are_those_that_the_text_describes(self):
        layout = self.layout()
        for words in (dict(chained=True), dict(chained=False), dict(chained=True, probe=b"p"),
                      dict(chained=True, space=b"mine")):
            scheme = Scheme(self.volume, layout, hashes="sha256", **words)
            self.assertEqual(scheme.keys(HASHES),
                             derived(self.volume, layout, HASHES, hashes="sha256", **words))
        scheme = Scheme(self.volume, layout, hashes="h", chained=True,
                        config={"b.rope_theta": 1e4, "a": "\u00e9", "c": None})
        self.assertEqual(scheme.keys(HASHES), derived(
            self.volume, layout, HASHES, hashes="h", chained=True,
            config=b'{"a":"\\u00e9","b.rope_theta":10000.0,"c":null}'))
        self.assertGreater(len(HASHES), self.volume.run_blocks)

    def test_after_a_reset_keys_are_those_of_a_scheme_that_is_made_anew(self):
        class Volume:
            """What a scheme asks of a volume; another one after a reset."""
            now = self.volume
            uuid = property(lambda volume: volume.now.uuid)
            run_blocks = property(lambda volume: volume.now.run_blocks)

            def chain(self, layout):
                return self.now.chain(layout)

        layout, volume, other = self.layout(), Volume(), self.client.volume("raw")
        for chained in (True, False):
            volume.now = self.volume
            scheme = Scheme(volume, layout, hashes="sha256", chained=chained)
            before, prompt = scheme.keys(HASHES), scheme.prompt()
            volume.now = other
            anew = Scheme(other, layout, hashes="sha256", chained=chained)
            self.assertEqual(scheme.keys(HASHES), anew.keys(HASHES))
            self.assertFalse(set(before) & set(anew.keys(HASHES)))
            self.assertEqual(scheme.prompt().next(HASHES[0]), anew.keys(HASHES)[0])
            self.assertEqual(prompt.next(HASHES[0]), before[0])  # it was begun before
            self.assertEqual(scheme.fingerprint, anew.fingerprint)
            if chained:
                self.assertEqual(scheme.begins(), anew.begins())

    def test_blocks_in_any_order_have_the_same_keys(self):
        scheme = Scheme(self.volume, self.layout(), hashes="text", chained=False)
        names = [f"engine/model@0100@0@{digest.hex()}" for digest in HASHES]
        made = dict(zip(names, scheme.keys(names)))
        mixed = random.sample(names, 20)
        self.assertEqual(scheme.keys(mixed), [made[name] for name in mixed])
        self.assertEqual(scheme.keys([name.encode() for name in names]), list(made.values()))
        self.assertEqual(len(set(made.values())), len(names))
        # Each is a run of its own.
        self.assertEqual(len({key[:4] for key in made.values()}), len(names))

    def test_a_prefix_has_the_keys_of_the_whole(self):
        scheme = Scheme(self.volume, self.layout(), hashes="sha256", chained=True)
        made = scheme.keys(HASHES)
        self.assertEqual(scheme.keys(HASHES[:7]), made[:7])
        self.assertNotEqual(scheme.keys(HASHES[1:]), made[1:])
        self.assertEqual(len({key[:4] for key in made}),
                         sum(begins_run(i, self.volume.run_blocks) for i in range(len(made))))

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

    def test_a_router_finds_blocks_by_the_engines_hashes(self):
        scheme = Scheme(self.volume, self.layout(), hashes="sha256", chained=True)
        self.assertTrue(self.volume.put(scheme.keys(HASHES[:6]), [value(i) for i in range(6)]).ok)

        def match(chain):
            body = {"volume": "kv", "chain": chain, "hashes": [name.hex() for name in HASHES[:8]]}
            status, text = self.tier.agent.post("/v1/match", body)
            self.assertEqual(status, 200, text)
            return json.loads(text)

        self.assertEqual(match(scheme.begins()), {"of": 8, "dram": 6, "local": 6, "block_tokens": 16})
        other = Scheme(self.volume, self.layout(), hashes="sha256", chained=True).begins()
        self.assertEqual(match(other)["dram"], 0)  # another model has none of them
        with self.assertRaises(ValueError):
            Scheme(self.volume, self.layout(), hashes="sha256", chained=False).begins()

    def test_processes_find_each_others_blocks(self):
        layout = self.layout()
        scheme = Scheme(self.volume, layout, hashes="sha256", chained=True)
        values = [value(i) for i in range(6)]
        self.assertTrue(self.volume.put(scheme.keys(HASHES[:6]), values, on_flash=True).ok)
        text = """
import icms, hashlib, sys
from icms.keys import Scheme
volume = icms.Client(sys.argv[1]).volume("kv")
scheme = Scheme(volume, eval("icms." + sys.argv[2]), hashes="sha256", chained=True)
print(scheme.fingerprint,
      volume.match(scheme.keys([hashlib.sha256(b"block %d" % i).digest() for i in range(8)])))
"""
        said = subprocess.run([sys.executable, "-c", text, self.tier.where, repr(layout)],
                              capture_output=True, text=True, timeout=60, check=False,
                              env={**os.environ, "PYTHONHASHSEED": "7"})
        self.assertEqual(said.stdout, f"{scheme.fingerprint} 6\n", said.stderr)

    def test_every_difference_makes_other_keys(self):
        layout = self.layout()
        same = dict(hashes="sha256 seed 0", probe=b"p", chained=True, config={"a.b": 1})
        schemes = [Scheme(self.volume, layout, **same)]
        for of_layout, of_scheme in (
                ({"tenant": "u"}, {}), ({"model": "other"}, {}), ({"weights": b"\3"}, {}),
                ({"dtype": "f32"}, {}), ({"layout": "engine 2"}, {}), ({"block_tokens": 32}, {}),
                ({"ranks": (4, 1, 1, 1)}, {}), ({}, {"hashes": "sha256 seed 1"}),
                ({}, {"probe": b"q"}), ({}, {"chained": False}), ({}, {"config": {"a.b": 2}}),
                ({}, {"config": {"a.c": 1}}), ({}, {"config": {}}), ({}, {"space": b"mine"})):
            changed = self.layout(**{"model": layout.model, **of_layout})
            schemes.append(Scheme(self.volume, changed, **{**same, **of_scheme}))
        keys = [key for scheme in schemes for key in scheme.keys(HASHES)]
        self.assertEqual(len(set(keys)), len(keys))
        self.assertEqual(len({scheme.fingerprint for scheme in schemes}), len(schemes))
        # Each finds its own blocks, whatever the others have put into the volume.
        for i, scheme in enumerate(schemes):
            self.assertTrue(self.volume.put(scheme.keys(HASHES[:2]), [b"%d" % i] * 2,
                                            if_absent=True).ok)
        for i, scheme in enumerate(schemes):
            rooms = [bytearray(8) for _ in range(3)]
            results = self.volume.get(scheme.keys(HASHES[:3]), rooms)
            self.assertEqual(results.mask, [True, True, False])
            self.assertEqual(rooms[1][:results[1].nbytes], b"%d" % i)

    def test_what_is_no_part_of_the_identity(self):
        layout = self.layout()
        same = dict(hashes="h", chained=True)
        scheme = Scheme(self.volume, layout, label="/a/llama", config={"a": 1, "b": 2}, **same)
        other = Scheme(self.volume, layout, label="/b/llama", config={"b": 2, "a": 1}, **same)
        self.assertEqual(other.keys(HASHES), scheme.keys(HASHES))
        # Another rank of the same engine shares its fingerprint, and has keys of its own.
        sister = Scheme(self.volume, self.layout(model=layout.model, rank=(0, 0, 0, 0)),
                        config={"a": 1, "b": 2}, **same)
        self.assertEqual(sister.fingerprint, scheme.fingerprint)
        self.assertFalse(set(sister.keys(HASHES)) & set(scheme.keys(HASHES)))

    def test_a_private_space(self):
        scheme = Scheme(self.volume, self.layout(), hashes="h", probe=b"p", chained=True,
                        config={"a": 1}, label="l")
        private = scheme.in_space(b"mine")
        self.assertEqual((private.probe, private.config, private.label), (b"p", {"a": 1}, "l"))
        self.assertFalse(set(private.keys(HASHES)) & set(scheme.keys(HASHES)))
        self.assertFalse(set(private.keys(HASHES)) & set(scheme.in_space(b"other").keys(HASHES)))
        self.assertEqual(private.in_space(b"").keys(HASHES), scheme.keys(HASHES))

    def test_parts_of_a_block(self):
        scheme = Scheme(self.volume, self.layout(), hashes="sha256", chained=False)
        keys = scheme.keys(HASHES[:3])
        parts = [part(key, name) for key in keys for name in ("k", b"v")]
        self.assertEqual(parts[0], keys[0][:4] + hashlib.sha256(
            b"icms part v2\0" + keys[0] + b"k").digest())
        self.assertEqual(len({*parts, *keys}), 9)
        self.assertEqual([one[:4] for one in parts], [key[:4] for key in keys for _ in range(2)])
        for key, name in ((keys[0][:35], "k"), (keys[0], "")):
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
