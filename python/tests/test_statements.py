# SPDX-License-Identifier: Apache-2.0
"""Why processes do not share is explained, and nothing depends on it."""
import json
import logging
import random
import unittest
import unittest.mock
import zlib

import icms
from icms import statements
from icms.keys import Scheme
from icms.statements import SLOTS, Watch, exchange, explain, parse
from support import TestCase, Tier

BASE = dict(hashes="sha256", probe=b"p", chained=True, label="/models/llama",
            config={"model.rope_theta": 10000.0, "kernel": "flash"})
WORDS = {"probe": "set PYTHONHASHSEED alike on all servers"}


class Case(TestCase):
    def setUp(self):
        super().setUp()
        self.now = 1_700_000_000.0

    def scheme(self, layout=None, volume=None, **changed):
        return Scheme(volume or self.volume, icms.Layout(**{
            "tenant": self.id(), "weights": b"\1\2", "dtype": "f16", "layout": "engine 1",
            "block_tokens": 16, "ranks": (2, 1, 1, 1), **(layout or {})}), **{**BASE, **changed})

    def exchange(self, scheme):
        return exchange(scheme, now=lambda: self.now)

    def slots(self, back=0):
        period = int(self.now) // statements.PERIOD_SECONDS - back
        return [statements._slot(self.scheme(), period, slot) for slot in range(SLOTS)]

    def stated(self):
        rooms = [bytearray(1 << 14) for _ in range(SLOTS)]
        found = self.volume.get(self.slots(), rooms)
        return [parse(bytes(room[:block.nbytes])) for block, room in zip(found, rooms)
                if block.status == icms.Status.OK]


class Exchanges(Case):
    def test_every_difference_is_told(self):
        for of_layout, of_scheme, expected in (
                ({"dtype": "f32"}, {}, {"dtype": ("f16", "f32")}),
                ({"weights": b"\3"}, {}, {"weights": ("0102", "03")}),
                ({"layout": "engine 2"}, {}, {"layout": ("engine 1", "engine 2")}),
                ({"block_tokens": 32}, {}, {"block_tokens": (16, 32)}),
                ({"ranks": (4, 1, 1, 1)}, {}, {"ranks": ("2x1x1x1", "4x1x1x1")}),
                ({}, {"hashes": "xx"}, {"hashes": ("sha256", "xx")}),
                ({}, {"probe": b"q"}, {"probe": ("70", "71")}),
                ({}, {"chained": False}, {"chained": (True, False)}),
                ({}, {"config": {"model.rope_theta": 500000.0, "new": 1}},
                 {"config.model.rope_theta": (10000.0, 500000.0), "config.kernel": ("flash", None),
                  "config.new": (None, 1)})):
            tenant = {"tenant": f"{random.random()}"}
            with self.subTest(expected):
                self.assertEqual(self.exchange(self.scheme(tenant)), {})
                self.assertEqual(self.exchange(self.scheme({**tenant, **of_layout}, **of_scheme)),
                                 expected)

    def test_the_closest_one_is_told_and_other_models_are_not(self):
        self.exchange(self.scheme(probe=b"q", hashes="xx"))
        self.exchange(self.scheme(probe=b"r"))
        self.exchange(self.scheme({"weights": b"other"}, label="/models/qwen", probe=b"s"))
        self.assertEqual(self.exchange(self.scheme()), {"probe": ("72", "70")})
        self.assertEqual(self.exchange(self.scheme({"weights": b"more"}, label="/models/more")), {})
        self.assertEqual(self.exchange(self.scheme({"tenant": f"{random.random()}"})), {})

    def test_ranks_and_labels_are_one_identity(self):
        self.exchange(self.scheme())
        self.assertEqual(self.exchange(self.scheme({"rank": (1, 0, 0, 0)})), {})
        self.assertEqual(self.exchange(self.scheme(label="/other/folder")), {})
        self.assertEqual(len(self.stated()), 1)

    def test_statements_become_old(self):
        self.exchange(self.scheme())
        other = self.scheme(probe=b"q")
        self.assertTrue(self.exchange(other))
        self.now += statements.PERIOD_SECONDS
        self.assertTrue(self.exchange(other))  # of the last period
        self.now += statements.PERIOD_SECONDS
        self.assertEqual(self.exchange(other), {})
        self.assertEqual(len(self.stated()), 1)
        self.assertTrue(self.exchange(self.scheme()))

    def test_more_identities_than_slots(self):
        for i in range(SLOTS + 4):
            self.exchange(self.scheme(probe=b"%d" % i))
        self.assertEqual(len({one["identity"] for one in self.stated()}), SLOTS)
        self.assertEqual(set(self.exchange(self.scheme(probe=b"one more"))), {"probe"})

    def test_two_that_take_a_slot_at_the_same_time(self):
        one, other, put = self.scheme(), self.scheme(probe=b"q"), icms.Volume.put

        def first_the_other(volume, *arguments, **words):
            with unittest.mock.patch.object(icms.Volume, "put", put):
                self.exchange(other)
                self.volume.put(self.slots()[:SLOTS - 1], [b"taken"] * (SLOTS - 1), if_absent=True)
            return put(volume, *arguments, **words)

        with unittest.mock.patch.object(icms.Volume, "put", first_the_other):
            self.exchange(one)
        self.assertIn(other.fingerprint, [said["identity"] for said in self.stated() if said])

    def test_large_configurations_are_told_part_by_part(self):
        large = {f"model.layers[{i}]": random.random() for i in range(3000)}
        config = {**large, "kernel.kind": "flash", "kernel.size": 1}
        self.exchange(self.scheme(config=config))
        one, = self.stated()
        self.assertEqual(one["fields"]["dtype"], "f16")
        self.assertEqual(set(self.exchange(self.scheme(config={**config, "kernel.size": 2}))),
                         {"config.kernel.*"})
        self.assertEqual(set(self.exchange(self.scheme({"dtype": "f8"}, config=config))), {"dtype"})

    def test_secrets_are_not_stated(self):
        secrets = {"loader.hf_token": "hunter1", "env.S3_API_KEY": "hunter2", "x.password": "hunter3",
                   "auth": "hunter4", "url_key": "hunter5"}
        self.exchange(self.scheme(config={**secrets, "block_tokens": 5}))
        one, = self.stated()
        self.assertNotIn("hunter", str(one))
        self.assertEqual(one["fields"]["config.block_tokens"], 5)
        self.assertEqual(self.exchange(self.scheme(config={**secrets, "block_tokens": 5})), {})
        found = self.exchange(self.scheme(config={**secrets, "auth": "x", "block_tokens": 5}))
        self.assertEqual(set(found), {"config.auth"})
        self.assertNotIn("hunter", str(found))

    def test_a_volume_for_small_blocks_has_no_statements(self):
        scheme = self.scheme()
        with unittest.mock.patch.object(type(scheme.volume), "value_bytes_max", 64):
            self.assertEqual(self.exchange(scheme), {})
        self.assertEqual(self.stated(), [])

    def test_whatever_is_in_the_slots(self):
        good = {"identity": "x", "about": BASE["label"], "fields": {"probe": "q" * 500}}
        texts = [b"\xff\0", b"[]", b"7", b"{}", b"[" * 100000, b"9" * 5000,
                 json.dumps({**good, "fields": []}).encode(),
                 json.dumps({**good, "fields": {"a": {"b": 1}}}).encode(),
                 json.dumps({**good, "identity": 5}).encode(),
                 json.dumps({**good, "about": None}).encode(),
                 json.dumps({**good, "fields": {"a": "1" * (10 << 20)}}).encode()]
        values = [zlib.compress(text) for text in texts]
        for data in (*values, values[0][:-3], b"", bytes(50000), *texts[:3]):
            self.assertIsNone(parse(data), data[:30])
        hostile = {**good, "fields": {"a\n\x1b[2J": "\x1b[31m\nERROR root" * 50, "weights": "0102"}}
        values.append(zlib.compress(json.dumps(hostile).encode()))
        values.append(zlib.compress(json.dumps({**good, "identity": self.scheme().fingerprint,
                                                "about": "a liar"}).encode()))
        values = [value if len(value) <= self.volume.value_bytes_max else value[:1000]
                  for value in values]
        values += [bytes(60000)] * (SLOTS - len(values))
        self.assertTrue(self.volume.put(self.slots(), values).ok)
        told = explain(self.exchange(self.scheme(probe=b"q")))
        self.assertTrue(told.isprintable(), told)
        self.assertLess(len(told), 2500)

    def test_a_tier_that_does_not_answer(self):
        mine = Tier()
        self.addCleanup(mine.end)
        with icms.Client(mine.where) as client:
            scheme = self.scheme(volume=client.volume("kv"))
            mine.target.kill()
            self.assertIsNone(exchange(scheme, deadline_ms=300))
            mine.agent.kill()
            with self.assertRaises(icms.Error):
                exchange(scheme, deadline_ms=300)
            watch = Watch(scheme, {}, logging.getLogger("test"))
            with self.assertNoLogs("test"):
                watch.look(deadline_ms=300)


class Explained(unittest.TestCase):
    def test_words(self):
        told = explain({"config.model.rope_theta": (10000.0, 5e5), "probe": ("aa", "bb"),
                        "config.parallel.size": (1, None)},
                       {**WORDS, "config.parallel.*": "set --tensor-parallel-size"})
        self.assertEqual(told, "probe: 'aa' there, 'bb' here (set PYTHONHASHSEED alike on all "
                               "servers); config.parallel.size: 1 there, None here (set "
                               "--tensor-parallel-size); config.model.rope_theta: 10000.0 there, "
                               "500000.0 here")

    def test_many_differences(self):
        told = explain({f"f{i}": (1, 2) for i in range(100)})
        self.assertTrue(told.endswith("; and 92 more"))


class Watches(Case):
    def test_differences_are_told_again_and_their_end_once(self):
        log = logging.getLogger("test")
        clock = unittest.mock.patch.object(statements.time, "time", lambda: self.now)
        clock.start()
        self.addCleanup(clock.stop)
        watch = Watch(self.scheme(probe=b"q"), WORDS, log)
        self.assertTrue(watch.is_due)
        with self.assertNoLogs("test"):
            watch.look()
        self.assertFalse(watch.is_due)
        self.assertGreater(watch.wait_seconds, 300)
        self.exchange(self.scheme())
        with self.assertLogs("test", "WARNING") as said:
            watch.look()
            watch.look()
        self.assertEqual(len(said.output), 2)
        for text in ("volume kv: model /models/llama", "set PYTHONHASHSEED alike on all servers"):
            self.assertIn(text, said.output[1])
        self.now += 3 * statements.PERIOD_SECONDS
        with self.assertLogs("test", "INFO") as said:
            watch.look()
            watch.look()
        self.assertEqual(len(said.output), 1)
        self.assertIn("no other process differs any more", said.output[0])

    def test_a_private_space_is_not_stated(self):
        watch = Watch(self.scheme().in_space(b"mine"), WORDS, logging.getLogger("test"))
        with unittest.mock.patch.object(icms.Volume, "get", side_effect=AssertionError), \
                unittest.mock.patch.object(icms.Volume, "put", side_effect=AssertionError):
            watch.look()


if __name__ == "__main__":
    unittest.main()
