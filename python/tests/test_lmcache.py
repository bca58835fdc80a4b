# SPDX-License-Identifier: Apache-2.0
"""icms.lmcache keeps the promises of LMCache's native connectors."""
import os
import pathlib
import random
import select
import signal
import tempfile
import threading
import time
import unittest
import unittest.mock

import icms
from icms.lmcache import IcmsConnector
from support import EncryptedTier, GRACE_S, VALUE_BYTES, Tier, gets_of_twins, tier, value, wait_for


def names(count):
    return [f"org/model@00000100@0@{random.randbytes(32).hex()}" for _ in range(count)]


class Case(unittest.TestCase):
    def connector(self, where=None, **params):
        connector = IcmsConnector(where=where or tier().where, volume="kv",
                                  **{"tenant": self.id(), "weights": "w", "layout": "bf16",
                                     **params})
        self.addCleanup(connector.close)
        return connector

    def wait(self, connector, *numbers, seconds=20):
        """What became of these, as LMCache's thread learns it; in their order."""
        poller, over = select.poll(), {}
        poller.register(connector.event_fd(), select.POLLIN)
        give_up = time.monotonic() + seconds
        while set(over) != set(numbers):
            self.assertLess(time.monotonic(), give_up, f"{len(over)} of {len(numbers)} are over")
            if poller.poll(500):
                for number, *rest in connector.drain_completions():
                    self.assertIn(number, numbers)
                    self.assertNotIn(number, over)
                    over[number] = tuple(rest)
        return [over[number] for number in numbers]

    def get(self, connector, keys, sizes):
        """(ok, which, values)."""
        rooms = [bytearray(size) for size in sizes]
        (ok, _, which), = self.wait(connector, connector.submit_batch_get(
            keys, [memoryview(room) for room in rooms]))
        return ok, which, [bytes(room) for room in rooms]

    def put(self, connector, keys, values):
        (ok, error, which), = self.wait(connector, connector.submit_batch_set(
            keys, [memoryview(bytearray(one)) for one in values]))
        self.assertEqual((ok, error), (True, ""))
        self.assertEqual(which, [True] * len(keys))

    def exist(self, connector, keys):
        (ok, _, which), = self.wait(connector, connector.submit_batch_exists(keys))
        self.assertTrue(ok)
        return which


class Encrypted(Case):
    def test_drives_have_ciphertext_and_who_has_no_key_computes(self):
        shared = EncryptedTier(self)
        one = self.connector(shared.where, keys=shared.lists["keys"])
        stored, values = names(5), [value(i, 20000 + i) for i in range(5)]
        self.put(one, stored, values)
        one.close()
        shared.check_ciphertext(self, values)
        other = self.connector(shared.where, keys=shared.lists["keys"])
        self.assertEqual(self.get(other, stored, map(len, values)), (True, [True] * 5, values))
        for keys, reason in (("other_id", "NO_KEY"), ("other_key", "CHECKSUM")):
            with self.subTest(keys):
                other = self.connector(shared.where, keys=shared.lists[keys])
                self.assertEqual(self.get(other, stored, map(len, values))[1], [False] * 5)
                self.assertEqual(other.counters.misses, {reason: 5})
        with self.assertRaisesRegex(icms.NoKeyError, "it is encrypted, and no list of keys was given"):
            self.connector(shared.where)


class Batches(Case):
    def test_another_server_finds_what_one_has_stored(self):
        one, other = self.connector(), self.connector()
        keys, values = names(5), [value(i, 20000 + i) for i in range(5)]
        self.assertEqual(self.exist(one, keys), [False] * 5)
        self.put(one, keys, values)
        self.assertEqual(self.exist(other, keys), [True] * 5)
        self.assertEqual(self.get(other, keys, map(len, values)), (True, [True] * 5, values))
        said = other.counters
        self.assertEqual((said.looked_up, said.found, said.wanted, said.loaded, said.bytes_loaded),
                         (5, 5, 5, 5, 100010))
        self.assertEqual((one.counters.stored, one.counters.bytes_stored), (5, 100010))

    def test_a_lookup_gives_hints_of_what_is_there(self):
        one, other, silent = self.connector(), self.connector(), self.connector(prestage_ms=0)
        keys, values = names(5), [value(i, 20000 + i) for i in range(5)]
        self.put(one, keys, values)
        self.assertEqual(self.exist(other, names(2) + keys), [False] * 2 + [True] * 5)
        wait_for(lambda: other.counters.hinted == 5)
        cut = names(2)
        self.put(one, cut, [value(i, 2 * VALUE_BYTES + 7) for i in range(2)])
        self.assertEqual(self.exist(one, cut), [True] * 2)  # it has seen how large they are: 3 blocks each
        wait_for(lambda: one.counters.hinted == 6)
        self.assertEqual(self.exist(silent, keys), [True] * 5)
        self.assertEqual(self.exist(other, keys), [True] * 5)  # behind the silent one's
        wait_for(lambda: other.counters.hinted == 10)
        self.assertEqual(silent.counters.hinted, 0)

    def test_hints_do_not_wait_for_an_agent_that_stands_still(self):
        connector = self.connector()
        keys = names(1)
        self.put(connector, keys, [value(0, 3000)])
        asked, answers = threading.Event(), threading.Event()

        def prestage(*_, **__):
            asked.set()
            answers.wait(20)
            raise icms.PeerDownError("it stands still")
        with unittest.mock.patch.object(type(connector.volume), "prestage", prestage):
            for _ in range(30):  # more than may wait
                self.assertEqual(self.exist(connector, keys), [True])
            self.assertTrue(asked.wait(20))
            answers.set()
        self.assertEqual(connector.counters.hinted, 0)

    def test_some_of_a_batch(self):
        connector = self.connector()
        keys, values = names(4), [value(i, 3000) for i in range(4)]
        self.put(connector, keys[:1] + keys[2:3], [values[0], values[2]])
        self.assertEqual(self.exist(connector, keys), [True, False, True, False])
        ok, which, came = self.get(connector, keys, [3000] * 4)
        self.assertEqual((ok, which), (False, [True, False, True, False]))
        self.assertEqual((came[0], came[2]), (values[0], values[2]))
        self.assertEqual(connector.counters.misses, {"ABSENT": 2})
        # What is there stays, and that is no failure.
        self.put(connector, keys, [bytes(3000)] * 3 + [values[3]])
        self.assertEqual(self.get(connector, keys, [3000] * 4)[2],
                         [values[0], bytes(3000), values[2], values[3]])

    def test_memory_of_another_size_gets_nothing(self):
        connector = self.connector()
        keys = names(1)
        self.put(connector, keys, [value(1, 3000)])
        for size in (2999, 3001):
            self.assertEqual(self.get(connector, keys, [size])[:2], (False, [False]))

    def test_another_block_of_the_same_16_bytes_is_a_miss(self):
        one, other = self.connector(), self.connector()
        keys, values = names(3), [value(i, 3000) for i in range(3)]
        self.put(one, keys, values)
        with gets_of_twins():
            self.assertEqual(self.get(other, keys, [3000] * 3)[:2], (False, [False] * 3))
        self.assertEqual(other.counters.misses, {"COLLISION": 3})
        self.assertEqual(self.get(other, keys, [3000] * 3), (True, [True] * 3, values))

    def test_values_larger_than_a_block(self):
        one, other = self.connector(), self.connector()
        sizes = [3 * VALUE_BYTES + 17, VALUE_BYTES, VALUE_BYTES + 1, 5000]
        keys, values = names(4), [value(i, size) for i, size in enumerate(sizes)]
        self.put(one, keys, values)
        self.assertEqual(self.exist(other, keys), [True] * 4)
        self.assertEqual(self.get(other, keys, sizes), (True, [True] * 4, values))
        parts = other._part_keys(other._scheme.keys(keys)[0], sizes[0])
        self.assertEqual(len(parts), 4)
        self.assertEqual({part[:4] for part in parts}, {other._scheme.keys(keys)[0][:4]})
        # A part is lost: no value, until it is stored again.
        self.assertTrue(other.volume.remove([parts[2]]).ok)
        self.assertEqual(self.get(other, keys, sizes)[:2], (False, [False, True, True, True]))
        self.put(one, keys, values)
        self.assertEqual(self.get(other, keys, sizes), (True, [True] * 4, values))

    def test_a_value_is_cut_and_named_by_one_value_max(self):
        connector, key = self.connector(), b"k" * 36
        known = unittest.mock.PropertyMock(side_effect=[4096, 8192])  # another agent came meanwhile
        with unittest.mock.patch.object(type(connector.volume), "value_bytes_max", known):
            parts = connector._parts(key, memoryview(bytes(12000)))
        self.assertEqual([part for part, _ in parts],
                         [icms.keys.part(key, f"{i}/3 12000") for i in (1, 2, 3)])
        self.assertEqual([len(room) for _, room in parts], [4096, 4096, 3808])

    def test_deleted_values_are_gone_and_their_parts_too(self):
        connector = self.connector()
        keys, sizes = names(4), [3 * VALUE_BYTES, 4000, 8, 4000]
        values = [value(i, size) for i, size in enumerate(sizes)]
        self.put(connector, keys[:3], values[:3])
        (ok, _, which), = self.wait(connector, connector.submit_batch_delete(keys))
        self.assertEqual((ok, which), (False, [True, True, True, False]))
        self.assertEqual(self.exist(connector, keys), [False] * 4)
        self.assertEqual(self.get(connector, keys, sizes)[1], [False] * 4)
        parts = connector._part_keys(connector._scheme.keys(keys)[0], sizes[0])
        self.assertEqual(connector.volume.exists(parts).hits, 0)
        self.assertEqual(connector.counters.deleted, 3)

    def test_more_names_than_a_call_takes(self):
        connector = self.connector()
        keys, values = names(50), [value(i, 1000) for i in range(50)]
        with unittest.mock.patch("icms.lmcache.BATCH_MAX", 7):
            self.put(connector, keys, values)
            self.assertEqual(self.exist(connector, keys), [True] * 50)
            self.assertEqual(self.get(connector, keys, [1000] * 50), (True, [True] * 50, values))

    def test_more_batches_than_the_tier_takes_at_a_time(self):
        connector = self.connector(load_ms=60000)
        keys, values = names(3), [value(i, 3000) for i in range(3)]
        self.put(connector, keys, values)
        rooms = [[bytearray(3000) for _ in keys] for _ in range(1500)]
        numbers = [connector.submit_batch_get(keys, room) for room in rooms]
        self.assertTrue(connector._calls)  # some had to wait for others
        self.assertEqual({ok for ok, _, _ in self.wait(connector, *numbers, seconds=60)}, {True})
        self.assertEqual([[bytes(one) for one in room] for room in rooms], [values] * 1500)
        self.assertEqual(connector.counters.failures, {})

    def test_from_many_threads(self):
        connector = self.connector()
        keys, values = names(40), [value(i, 2000) for i in range(40)]
        numbers, rooms = [], {}

        def work(mine):
            for _ in range(20):
                numbers.append(connector.submit_batch_set(keys[mine], values[mine]))
                room = [bytearray(2000) for _ in keys[mine]]
                number = connector.submit_batch_exists(keys[mine])
                numbers.append(number)
                rooms[number] = room

        threads = [threading.Thread(target=work, args=(slice(at, at + 10),))
                   for at in range(0, 40, 10)]
        for thread in threads:
            thread.start()
        over = {}
        while any(thread.is_alive() for thread in threads) or len(over) < len(numbers):
            over.update((number, ok) for number, ok, _, _ in connector.drain_completions())
        self.assertEqual(sorted(over), sorted(numbers))
        self.assertEqual(set(over.values()), {True})
        self.assertEqual(len(set(numbers)), 160)
        self.assertEqual(self.get(connector, keys, [2000] * 40), (True, [True] * 40, values))

    def test_one_descriptor_and_one_thread(self):
        before = threading.active_count()
        connector = self.connector()
        poller = select.poll()
        poller.register(connector.event_fd(), select.POLLIN)
        # When the identities of others have come, the descriptor says so too, to no one.
        wait_for(lambda: connector.drain_completions() == [] == poller.poll(50))
        self.wait(connector, connector.submit_batch_exists(names(3)))
        self.wait(connector, connector.submit_batch_exists([]))  # over before it is submitted
        self.assertEqual(poller.poll(50), [])
        self.assertEqual(threading.active_count(), before + 1)


class Mistakes(Case):
    def test_memory_that_cannot_be_used_fails_its_batch_alone(self):
        connector = self.connector()
        keys = names(2)
        for method, bufs, text in (
                ("get", [bytes(100), bytes(100)], "not writable"), ("get", [bytearray(4)], "2 names and 1 piece"),
                ("set", [memoryview(bytearray(10))[::2]] * 2, "contiguous"),
                ("set", [7, 8], "bytes-like"), ("set", [b"", b""], "")):
            number = getattr(connector, f"submit_batch_{method}")(keys, bufs)
            (ok, error, which), = self.wait(connector, number)
            self.assertEqual((ok, which), (False, [False, False]), (method, bufs))
            self.assertIn(text, error)
        number = connector.submit_batch_exists([keys[0], ""])
        self.assertEqual(self.wait(connector, number)[0][0], False)
        self.put(connector, keys, [b"1", b"2"])

    def test_options(self):
        whole = {"volume": "kv", "weights": "w", "layout": "bf16", "where": tier().where}
        for params, text in (({}, "needs the option 'volume'"),
                             ({"volume": "kv"}, "needs the option 'weights'"),
                             ({"volume": "kv", "weights": "w"}, "needs the option 'layout'"),
                             ({**whole, "weights": " "}, "'weights' is empty; set it to a text"),
                             ({**whole, "layout": ""}, "'layout' is empty; set it to a text"),
                             ({**whole, "weights": "/no/such/model"}, "not on this machine"),
                             ({**whole, "root": "/"}, "no option 'root'; there are volume"),
                             ({**whole, "load_ms": "5"}, "of type int, not '5'")):
            with self.assertRaisesRegex(ValueError, text):
                IcmsConnector(**params)
        with self.assertRaises(icms.NoVolumeError):
            IcmsConnector(**{**whole, "volume": "nobody's"})

    def test_a_path_as_weights_is_its_content(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        keys, found = names(1), []
        patch = unittest.mock.patch.dict(os.environ, XDG_CACHE_HOME=f"{folder.name}/cache")
        patch.start()
        self.addCleanup(patch.stop)
        for name, data in (("a", b"1"), ("b", b"1"), ("c", b"2")):
            model = pathlib.Path(folder.name, name)
            model.mkdir()
            (model / "x.safetensors").write_bytes(data)
            connector = self.connector(weights=str(model))
            found += self.exist(connector, keys)
            self.put(connector, keys, [data])
        self.assertEqual(found, [False, True, False])

    def test_servers_that_differ_live_beside_each_other_and_are_told(self):
        keys = names(1)
        for weights, layout in (("1", "bf16"), ("2", "bf16"), ("1", "fp8")):
            one = self.connector(weights=weights, layout=layout)
            self.assertEqual(self.exist(one, keys), [False])
            self.put(one, keys, [f"{weights} {layout}".encode()])
        with self.assertLogs("icms.lmcache", "WARNING") as logged:
            one = self.connector(weights="3", layout="bf16")
            wait_for(lambda: any("weights: " in text for text in logged.output))
        for weights, layout in (("1", "bf16"), ("2", "bf16"), ("1", "fp8")):
            one = self.connector(weights=weights, layout=layout)
            self.assertEqual(self.get(one, keys, [5 + len(layout) - 3])[2],
                             [f"{weights} {layout}".encode()])


class Failures(Case):
    def test_a_stopped_agent_and_a_dead_one(self):
        mine = Tier()
        self.addCleanup(mine.end)
        connector = self.connector(where=mine.where, load_ms=200, store_ms=200)
        keys = names(3)
        mine.agent.stand_still()
        begin = time.monotonic()
        self.assertEqual(self.get(connector, keys, [100] * 3)[:2], (False, [False] * 3))
        with self.assertLogs("icms.lmcache", "WARNING") as logged:
            (ok, error, which), = self.wait(connector,
                                            connector.submit_batch_set(keys, [b"x"] * 3))
        self.assertEqual((ok, which), (False, [False] * 3))
        self.assertIn("3 of 3 chunks: cannot store", error)
        self.assertIn("did not take a chunk: {'DEADLINE': 1}", logged.output[0])
        self.assertLess(time.monotonic() - begin, GRACE_S)
        mine.agent.signal(signal.SIGCONT)
        with self.assertLogs("icms.lmcache", "WARNING") as logged:
            mine.agent.kill()
            wait_for(lambda: logged.output)
            for _ in range(3):
                number = connector.submit_batch_exists(keys)
                (ok, error, which), = self.wait(connector, number)
                self.assertEqual((ok, which), (False, [False] * 3))
                self.assertEqual(error, icms.PeerDownError.text)
        self.assertEqual(len(logged.output), 2, logged.output)
        self.assertIn("no agent: ", logged.output[0])
        self.assertEqual(connector.counters.failures, {"PeerDownError": 3})
        # Many at once: nothing is lost, nothing recurses.
        numbers = [connector.submit_batch_delete(keys) for _ in range(2000)]
        self.assertEqual({ok for ok, _, _ in self.wait(connector, *numbers)}, {False})

    def test_a_tier_that_comes_later_is_used(self):
        mine = Tier()
        self.addCleanup(mine.end)
        mine.agent.kill()
        with self.assertLogs("icms.lmcache", "WARNING") as logged:
            connector = self.connector(where=mine.where)
            keys = names(3)
            for method, *memory in (("exists",), ("set", [b"x"] * 3), ("delete",),
                                    ("get", [bytearray(4) for _ in keys])):
                number = getattr(connector, f"submit_batch_{method}")(keys, *memory)
                (ok, error, which), = self.wait(connector, number)
                self.assertEqual((ok, which), (False, [False] * 3))
                self.assertIn("there is no tier at unix:", error)
            wait_for(lambda: logged.output)
        self.assertEqual(len(logged.output), 1, logged.output)
        self.assertIn("no agent: ", logged.output[0])
        mine.agent.start()
        mine.agent.wait_ready()
        wait_for(lambda: self.wait(connector, connector.submit_batch_exists(keys))[0][0], 30)
        self.put(connector, keys, [b"1", b"22", b"333"])
        self.assertEqual(self.get(connector, keys, [1, 2, 3]),
                         (True, [True] * 3, [b"1", b"22", b"333"]))

    def test_close_before_the_tier_came(self):
        connector = self.connector(where="unix:/nowhere/at/all")
        connector.submit_batch_exists(names(1))
        connector.close()
        self.assertEqual([thread.name for thread in threading.enumerate()
                          if thread.name.startswith("icms")], [])

    def test_close_with_batches_under_way(self):
        mine = Tier()
        self.addCleanup(mine.end)
        connector = self.connector(where=mine.where, load_ms=300)
        mine.agent.stand_still()
        rooms = [bytearray(100) for _ in range(3)]
        connector.submit_batch_get(names(3), rooms)
        descriptor = connector.event_fd()
        connector.close()
        connector.close()
        rooms[0].append(1)  # nobody holds it
        with self.assertRaises(OSError):
            os.fstat(descriptor)
        connector.submit_batch_exists(names(1))  # of a thread that has not heard yet
        self.assertEqual([ok for _, ok, _, _ in connector.drain_completions()], [False])


if __name__ == "__main__":
    unittest.main()
