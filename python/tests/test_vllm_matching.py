# SPDX-License-Identifier: Apache-2.0
"""One match of the connector, step by step: which blocks are ready, and where its slots go.

Goal: a block is ready only when the bytes of all ranks and of all blocks before it arrived; a match
that nobody wants any more is never ready and gives every slot back.
Method: the class of the product with movers that answer when the test says so.
"""
import time
import types
import unittest

import vllm_stand_ins as stand_ins

stand_ins.install()
from icms.vllm.choice import Choice, Prefill  # noqa: E402
from icms.vllm.matching import Match, Names  # noqa: E402
from icms.vllm.movers import Counts  # noqa: E402
from icms.vllm.staging import Staging  # noqa: E402

SLOTS = 16
BLOCKS = 4
RANKS = 2


class HeldMovers:
    """Keeps what it was asked for; the test answers."""

    def __init__(self):
        self.counts = Counts()

    def exists(self, volume, names, deadline, done):
        self.found = done

    def match(self, volume, names, ranks, block_tokens, prefill, limit, load_limit, done, room):
        self.asked_for, self.chosen, self.room = (names(), ranks), done, room

    def load(self, volume, names, rooms, phases, done):
        self.names, self.loaded, self.phases = names, done, phases


def scheme_of(rank):
    return types.SimpleNamespace(volume=None, prompt=lambda: types.SimpleNamespace(
        next=lambda name: name + bytes([rank])))


class Matches(unittest.TestCase):
    def setUp(self, steps=False):
        self.movers = HeldMovers()
        self.staging = Staging(4096, SLOTS)
        self.addCleanup(self.staging.close)
        schemes = [scheme_of(rank) for rank in range(RANKS)]
        hashes = [bytes([block]) for block in range(BLOCKS)]
        prefill = Prefill()
        if steps:
            prefill.add(64, 6.4)
        self.match = Match(self.movers, self.staging, schemes, Names(schemes), hashes, 0, 60000, 16, prefill)

    def found(self):
        self.movers.found([True] * BLOCKS)
        self.assertEqual(self.staging.free, SLOTS - BLOCKS * RANKS)
        self.assertFalse(self.match.over)

    def test_a_block_is_ready_when_the_bytes_of_all_ranks_arrived(self):
        for missing in range(BLOCKS * RANKS + 1):
            with self.subTest(missing=missing):
                self.setUp()
                self.found()
                good = [True] * (BLOCKS * RANKS)
                if missing < len(good):
                    good[missing] = False
                self.movers.loaded(good)
                self.assertTrue(self.match.over)
                self.assertEqual(self.match.ready, missing // RANKS)
                self.assertEqual(len(self.match.slots), self.match.ready)
                self.assertEqual(self.staging.free, SLOTS - self.match.ready * RANKS)

    def test_a_match_that_was_dropped_is_never_ready(self):
        self.found()
        self.match.drop()
        self.assertEqual(self.staging.free, SLOTS - BLOCKS * RANKS)  # the tier writes there
        self.movers.loaded([True] * (BLOCKS * RANKS))
        self.assertTrue(self.match.over)
        self.assertEqual(self.match.ready, 0)
        self.assertEqual(self.staging.free, SLOTS)

    def test_what_is_taken_is_the_callers_and_the_rest_goes_back(self):
        self.found()
        self.movers.loaded([True] * (BLOCKS * RANKS))
        taken = self.match.take(1)
        self.assertEqual([len(ranks) for ranks in taken], [RANKS])
        self.assertEqual(self.match.ready, 0)
        self.assertEqual(self.staging.free, SLOTS - RANKS)

    def test_blocks_behind_a_hole_are_not_loaded(self):
        self.movers.found([True, False, True, True])
        self.assertEqual(self.movers.names, [b"\0\0", b"\0\1"])
        self.movers.loaded([True, True])
        self.assertEqual(self.match.ready, 1)

    def test_what_is_faster_to_compute_is_not_loaded(self):
        self.setUp(steps=True)
        self.assertEqual(self.movers.asked_for,
                         ([bytes([block, rank]) for block in range(BLOCKS) for rank in range(RANKS)], RANKS))
        self.assertEqual(self.staging.free, SLOTS)
        self.movers.chosen(Choice(2, (0.5, 1.0), 3.2), BLOCKS)
        self.assertEqual(self.movers.names, [b"\0\0", b"\0\1", b"\1\0", b"\1\1"])
        self.assertLess(self.movers.phases.begin().seconds, 1.4)  # and not a minute
        self.movers.loaded([True] * 4)
        self.assertEqual(self.match.ready, 2)
        self.assertEqual(self.staging.free, SLOTS - 2 * RANKS)

    def test_nothing_is_loaded_from_a_path_that_is_too_slow(self):
        self.setUp(steps=True)
        self.movers.chosen(Choice(0, (), 0.0), BLOCKS)
        self.assertTrue(self.match.over)
        self.assertEqual(self.match.ready, 0)
        self.assertEqual(self.staging.free, SLOTS)

    def test_a_match_that_was_dropped_meanwhile_loads_nothing(self):
        self.setUp(steps=True)
        self.match.drop()
        self.assertEqual(self.movers.room(BLOCKS), 0)
        self.movers.chosen(Choice(BLOCKS, BLOCKS * (0.0,), 6.4), BLOCKS)
        self.assertTrue(self.match.over)
        self.assertEqual(self.staging.free, SLOTS)

    def test_of_what_others_have_left_a_part_is_loaded(self):
        for free, blocks in ((5, 2), (2, 1), (1, 0), (0, 0)):
            with self.subTest(free=free):
                self.setUp(steps=True)
                others = self.staging.take(SLOTS - free, 1)  # while the choice is made
                self.assertEqual(self.staging.free, free)
                self.assertEqual(self.movers.room(BLOCKS), blocks)
                self.movers.counts.take()
                self.movers.chosen(Choice(BLOCKS, tuple(i / BLOCKS for i in range(1, BLOCKS + 1)), 6.4), BLOCKS)
                if blocks > 0:
                    self.assertEqual(self.movers.names,
                                     [bytes([block, rank]) for block in range(blocks) for rank in range(RANKS)])
                    self.assertEqual(self.movers.phases.begin().names, blocks * RANKS)
                    self.movers.loaded([True] * blocks * RANKS)
                self.assertTrue(self.match.over)
                self.assertEqual(self.match.ready, blocks)
                self.assertEqual(self.movers.counts.take(),
                                 {("load_misses", "no_host_memory"): (BLOCKS - blocks) * RANKS})
                self.match.drop()
                self.staging.give(slot for block in others for slot in block)
                self.assertEqual(self.staging.free, SLOTS)

    def test_what_has_no_room_is_counted(self):
        others = self.staging.take(SLOTS - 2 * RANKS, 1)
        self.movers.found([True] * BLOCKS)
        self.assertEqual(len(self.movers.names), 2 * RANKS)
        self.assertEqual(self.movers.counts.take(), {("load_misses", "no_host_memory"): (BLOCKS - 2) * RANKS})
        self.movers.loaded([True] * 2 * RANKS)
        self.assertEqual(self.match.ready, 2)
        self.match.drop()
        self.assertEqual(self.staging.free + len(others), SLOTS)


if __name__ == "__main__":
    unittest.main()
