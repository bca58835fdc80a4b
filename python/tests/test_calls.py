# SPDX-License-Identifier: Apache-2.0
"""The calls that wait, on a pod of one enclosure and one agent."""
import hashlib
import struct
import unittest

import icms
from support import TestCase, VALUE_BYTES, keys, value, wait_for


class Calls(TestCase):
    def test_blocks_come_back_as_they_were(self):
        names, values = self.put(20)
        rooms = [bytearray(VALUE_BYTES) for _ in names]
        before = self.metric("icms_agent_hits_total")
        results = self.volume.get(names, rooms)
        self.assertTrue(results.ok, list(results))
        self.assertEqual([bytes(room) for room in rooms], values)
        self.assertEqual({block.nbytes for block in results}, {VALUE_BYTES})
        self.assertNotIn(icms.Source.NONE, {block.source for block in results})
        # Hits in the mapped arena need no agent and are counted all the same.
        self.assertEqual(self.metric("icms_agent_hits_total") - before, 20)

    def test_blocks_come_from_the_enclosure(self):
        names, values = self.put(8)
        self.put(140)  # more than the arena has slots
        before = self.metric("icms_agent_enclosure_load_bytes_total")
        rooms = [bytearray(VALUE_BYTES) for _ in names]
        results = self.volume.get(names, rooms)
        self.assertTrue(results.ok, list(results))
        self.assertEqual([bytes(room) for room in rooms], values)
        self.assertEqual({block.source for block in results}, {icms.Source.POD})
        self.assertGreaterEqual(self.metric("icms_agent_enclosure_load_bytes_total") - before,
                                8 * VALUE_BYTES)

    def test_holes_have_a_reason_and_their_own_place(self):
        names, values = self.put(9)
        absent = keys(3)
        asked = list(names)
        for place, name in zip((0, 4, 8), absent):
            asked[place] = name
        before = self.metric('icms_agent_misses_total{reason="absent"')
        rooms = [bytearray(VALUE_BYTES) for _ in asked]
        results = self.volume.get(asked, rooms)
        self.assertFalse(results.ok)
        self.assertEqual(results.mask, [i not in (0, 4, 8) for i in range(9)])
        self.assertEqual((results.hits, results.prefix), (6, 0))
        self.assertEqual(results.reasons(), {icms.Miss.ABSENT: 3})
        self.assertEqual(results[4][:3], (icms.Status.MISS, icms.Miss.ABSENT, icms.Source.NONE))
        self.assertEqual(results[-1], results[8])
        self.assertEqual(results[1:3], [results[1], results[2]])
        self.assertRaises(IndexError, lambda: results[9])
        self.assertRaises(IndexError, lambda: results[-10])
        for i in (1, 2, 3, 5, 6, 7):
            self.assertEqual(bytes(rooms[i]), values[i])
        self.assertEqual(self.metric('icms_agent_misses_total{reason="absent"') - before, 3)

    def test_match_ends_at_the_first_hole(self):
        names, _ = self.put(6)
        absent = keys(1)
        found = self.metric('icms_agent_keys_total{result="found"')
        self.assertEqual(self.volume.match(names), 6)
        self.assertEqual(self.metric('icms_agent_keys_total{result="found"') - found, 6)
        self.assertEqual(self.volume.match(names[:4] + absent + names[4:]), 4)
        self.assertEqual(self.volume.match(absent + names), 0)
        many = names[:1] * (2 * icms.BATCH_MAX + 3)
        self.assertEqual(self.volume.match(many), len(many))
        self.assertEqual(self.volume.match(many[:-2] + absent), len(many) - 2)
        self.assertEqual(self.volume.exists(names[:4] + absent + names[4:]).mask,
                         [True] * 4 + [False] + [True] * 2)

    def test_prefixes_are_estimated(self):
        names, _ = self.put(12)
        self.put(140)  # the agent's memory has none of them any more
        absent = keys(1)
        self.assertEqual(self.volume.match_estimate([]), [])
        self.assertEqual(self.volume.match_estimate(absent + names), [])
        self.volume.prefetch(names[:6])
        self.volume.get(names[:6], [bytearray(VALUE_BYTES) for _ in range(6)])
        found = self.volume.match_estimate(names + absent + names)
        self.assertEqual(len(found), 12)
        self.assertEqual([one.source for one in found],
                         [icms.Source.DRAM] * 6 + [icms.Source.POD] * 6)
        for one, later in zip(found, found[1:]):
            self.assertLess(one.nbytes, later.nbytes)
            self.assertLessEqual(one.seconds, later.seconds)
        self.assertGreaterEqual(found[-1].nbytes, 12 * VALUE_BYTES)
        self.assertLess(0, found[-1].seconds)
        self.assertLessEqual(0, found[-1].error)

    def test_prefetch_fills_the_agents_memory(self):
        names, values = self.put(4)
        self.put(140)
        results = self.volume.prefetch(names)
        self.assertTrue(results.ok, list(results))
        before = self.metric("icms_agent_enclosure_load_bytes_total")
        rooms = [bytearray(VALUE_BYTES) for _ in names]
        results = self.volume.get(names, rooms)
        self.assertEqual({block.source for block in results}, {icms.Source.DRAM})
        self.assertEqual([bytes(room) for room in rooms], values)
        self.assertEqual(self.metric("icms_agent_enclosure_load_bytes_total"), before)

    def test_hints_bring_blocks_before_they_are_asked_for(self):
        names, values = self.put(4)
        self.put(140)
        taken = self.metric('icms_agent_prestage_hints_total{result="in_time"')
        self.assertEqual(self.volume.prestage(names + keys(2), deadline_ms=20000), 6)
        wait_for(lambda: self.metric("icms_agent_prestage_waiting") >= 4)
        before = self.metric("icms_agent_enclosure_load_bytes_total")
        rooms = [bytearray(VALUE_BYTES) for _ in names]
        self.assertEqual({block.source for block in self.volume.get(names, rooms)}, {icms.Source.DRAM})
        self.assertEqual([bytes(room) for room in rooms], values)
        self.assertEqual(self.metric("icms_agent_enclosure_load_bytes_total"), before)
        wait_for(lambda: self.metric('icms_agent_prestage_hints_total{result="in_time"') - taken == 4)
        self.assertEqual(self.volume.prestage_cancel(names), 0)  # they are over
        self.assertEqual(self.volume.prestage([]), 0)
        self.assertEqual(self.volume.prestage(names, deadline_ms=0), 0)
        self.assertEqual(self.volume.prestage(names, priority=3), 4)
        self.assertEqual(self.volume.prestage_cancel(names + names), 4)
        self.assertEqual(self.volume.prestage(names, pin_seconds=60), 4)
        self.assertGreaterEqual(self.metric("icms_agent_pins"), 4)
        self.assertTrue(self.volume.get(names, rooms).ok)
        self.assertEqual(self.metric("icms_agent_pins"), 4)
        self.assertEqual(self.volume.prestage_cancel(names), 4)
        self.assertEqual(self.metric("icms_agent_pins"), 0)
        self.assertEqual(self.volume.prestage(names, once=True), 4)
        self.assertEqual(self.volume.prestage_cancel(names), 4)
        for wrong in ({"priority": 4}, {"deadline_ms": 600001}, {"pin_seconds": 86401},
                      {"once": True, "pin_seconds": 1}):
            with self.assertRaises(icms.Error):
                self.volume.prestage(names, **wrong)
        with self.assertRaises(ValueError):
            self.volume.prestage(names, tier="pod")
        with self.assertRaises(icms.Error) as caught:  # this agent has no drive
            self.volume.prestage(names, tier="local")
        self.assertEqual(caught.exception.status, icms.Status.UNSUPPORTED)

    def test_what_is_removed_is_gone(self):
        names, _ = self.put(3)
        self.assertTrue(self.volume.remove(names[:2]).ok)
        self.assertEqual(self.volume.exists(names).mask, [False, False, True])
        self.assertEqual(self.volume.remove(names[:1])[0].status, icms.Status.MISS)

    def test_put_if_absent_leaves_what_is_there(self):
        names, values = self.put(1)
        results = self.volume.put(names, [value(1)], if_absent=True)
        self.assertEqual(results[0].status, icms.Status.EXISTS)
        room = bytearray(VALUE_BYTES)
        self.assertTrue(self.volume.get(names, [room]).ok)
        self.assertEqual(bytes(room), values[0])

    def test_flush_waits_for_accepted_puts(self):
        names = keys(5)
        self.assertTrue(self.volume.put(names, [value(name) for name in names]).ok)
        self.volume.flush()
        before = self.metric("icms_agent_store_backlog_bytes")
        self.assertEqual(before, 0)
        self.assertEqual(self.volume.match(names), 5)

    def test_sizes_that_do_not_fit_are_told_block_by_block(self):
        names, values = self.put(3, 1000)
        rooms = [bytearray(1000), bytearray(999), bytearray(5000)]
        results = self.volume.get(names, rooms)
        self.assertEqual([block.status for block in results],
                         [icms.Status.OK, icms.Status.VALUE_SIZE, icms.Status.OK])
        self.assertEqual([block.nbytes for block in results], [1000, 1000, 1000])
        self.assertEqual(bytes(rooms[2][:1000]), values[2])
        results = self.volume.put(keys(3), [b"", bytes(VALUE_BYTES + 1), b"x"])
        self.assertEqual([block.status for block in results],
                         [icms.Status.VALUE_SIZE, icms.Status.VALUE_SIZE, icms.Status.OK])

    def test_empty_batches_ask_nobody(self):
        for results in (self.volume.put([], []), self.volume.get((), ()),
                        self.volume.exists([]), self.volume.remove([])):
            self.assertEqual((len(results), results.ok, results.prefix), (0, True, 0))
        self.assertEqual(self.volume.match([]), 0)

    def test_the_largest_batch(self):
        names = keys(icms.BATCH_MAX)
        self.assertEqual(self.volume.match(names), 0)
        self.assertEqual(self.volume.exists(names).hits, 0)
        with self.assertRaisesRegex(ValueError, "at most 4096 blocks, not 4097"):
            self.volume.exists(keys(icms.BATCH_MAX + 1))

    def test_volumes_and_status_say_what_there_is(self):
        self.assertEqual((self.volume.name, self.volume.value_bytes_max, self.volume.sealed),
                         ("kv", VALUE_BYTES, True))
        self.assertGreater(self.volume.run_blocks, 0)
        self.assertIn("volumes", self.client.status())

    def test_a_trace_tells_what_happened_to_a_key(self):
        self.assertFalse(self.volume.exists("traced"))
        told = self.volume.trace("traced")["requests"]
        self.assertEqual([(r["op"], r["status"], r["reason"]) for r in told],
                         [("exists", "MISS", "absent")])
        self.assertEqual(sum(s["us"] for s in told[0]["states"]), told[0]["us"])
        self.assertIn(told[0]["key"], [r["key"] for r in self.client.trace()["requests"]])
        self.assertEqual(self.volume.trace("never")["requests"], [])
        with self.assertRaisesRegex(ValueError, "not 17"):
            self.volume.trace(bytes(17))

    def test_volumes_have_names(self):
        with self.assertRaisesRegex(icms.NoVolumeError, "cannot open volume nope: .*kv"):
            self.client.volume("nope")
        with self.assertRaises(icms.InvalidError):
            self.client.volume("x" * 64)

    def test_opening_says_what_is_wrong(self):
        with self.assertRaisesRegex(icms.InvalidError, "unknown kind of tier; use unix:SOCKET"):
            icms.Client("http://x")
        with self.assertRaises(icms.Error) as caught:
            icms.Client(f"unix:{self.tier.folder}/nobody.sock")
        self.assertIn("nobody.sock", str(caught.exception))
        self.assertIsInstance(caught.exception.status, icms.Status)


class Keys(TestCase):
    LAYOUT = icms.Layout(tenant="t", model="m", weights=b"\1\2", dtype="f16", layout="l",
                         block_tokens=16, rank=(1, 0, 0, 0), ranks=(2, 1, 1, 1))

    def test_chains_share_runs_and_differ_by_everything_before(self):
        contents = [bytes([i]) * 64 for i in range(self.volume.run_blocks + 1)]
        names = self.volume.chain(self.LAYOUT).keys(contents)
        self.assertEqual({len(name) for name in names}, {icms.KEY_BYTES})
        self.assertEqual(len(set(names)), len(names))
        runs = [name[:4] for name in names]
        size = self.volume.run_blocks  # the run before the last one begins in the middle
        self.assertEqual(len(set(runs[size // 2:size])), 1)
        self.assertEqual(len(set(runs)), size.bit_length() + 1)
        chain = self.volume.chain(self.LAYOUT)
        self.assertEqual(chain.next(contents[0]), names[0])
        branch = chain.copy()
        self.assertEqual(chain.next(memoryview(contents[1])), names[1])
        self.assertNotEqual(branch.next(b"else"), names[1])
        self.assertEqual((chain.blocks, branch.blocks), (2, 2))

    def test_every_field_of_the_layout_is_in_the_key(self):
        import dataclasses
        other = {"tenant": "u", "model": "n", "weights": b"\1", "dtype": "f32", "layout": "k",
                 "block_tokens": 17, "rank": (0, 0, 0, 0), "ranks": (4, 1, 1, 1)}
        self.assertEqual(set(other), {field.name for field in dataclasses.fields(icms.Layout)})
        made = {self.volume.chain(dataclasses.replace(self.LAYOUT, **{name: new})).next(b"")
                for name, new in other.items()}
        made.add(self.volume.chain(self.LAYOUT).next(b""))
        self.assertEqual(len(made), len(other) + 1)

    def test_text_with_a_zero_byte_cannot_pass_for_shorter_text(self):
        with self.assertRaisesRegex(ValueError, "null"):
            self.volume.chain(icms.Layout(model="m\0n"))

    def test_a_key_with_another_digest_is_another_block(self):
        one = self.volume.chain(self.LAYOUT).next(b"one")
        for at in (*range(4), *range(16, 32)):  # what is not in the 16 bytes on the wire
            other = bytearray(one)
            other[4 + at] ^= 1
            other = bytes(other)
            self.assertTrue(self.volume.put(one, b"one"))
            self.assertIsNone(self.volume.get(other))
            results = self.volume.get([other], [bytearray(3)])
            self.assertEqual(results[0].status, icms.Status.MISS)
            self.assertEqual(results[0].reason, icms.Miss.COLLISION)
            with self.assertRaises(icms.MissError), self.volume.lease(other):
                pass
            self.assertTrue(self.volume.exists(other))  # by the 16 bytes, as is told
            self.assertEqual(self.volume.get(one), b"one")
            self.assertTrue(self.volume.put(other, b"other"))
            self.assertIsNone(self.volume.get(one))
            self.assertEqual(self.volume.get(other), b"other")

    def test_names_become_keys(self):
        self.assertEqual(icms.key("greeting"), icms.key(b"greeting"))
        self.assertEqual({len(icms.key("x" * n)) for n in (1, 16, 17)}, {icms.KEY_BYTES})
        self.assertNotEqual(icms.key("x" * 17), icms.key("x" * 18))
        digest = hashlib.sha256(struct.pack("<Q", 12) + b"icms name v1" +
                                struct.pack("<Q", 8) + b"greeting").digest()
        self.assertEqual(icms.key("greeting"), digest[:4] + digest)
        self.assertRaises(ValueError, icms.key, "")
        self.assertRaises(TypeError, icms.key, 7)


if __name__ == "__main__":
    unittest.main()
