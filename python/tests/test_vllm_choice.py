# SPDX-License-Identifier: Apache-2.0
"""Which part of a prefix is loaded, from what loads and steps take.

Goal: no prompt is there later than with all of its prefix loaded, or computed, as far as was known; and
what was not known costs a bounded time.
Method: the class of the product with made-up times, against every other choice.
"""
import random
import unittest
import unittest.mock

import vllm_stand_ins as stand_ins

stand_ins.install()
from icms.vllm import choice  # noqa: E402
from icms.vllm.choice import Prefill, choose  # noqa: E402

TOKENS = 16


def prefill(per_block):
    made = Prefill()
    for blocks in (1, 4, 16, 64):
        made.add(blocks * TOKENS, blocks * per_block)
    return made


class Choices(unittest.TestCase):
    def test_the_best_of_all_parts_is_taken(self):
        dice = random.Random(5)
        for _ in range(300):
            compute, loads, now = prefill(dice.choice([0.001, 0.01, 1.0])), [], 0.0
            for _ in range(dice.randrange(1, 40)):
                now += dice.choice([0.0, 0.0001, 0.005, 0.5, 3.0])
                loads.append(now)
            chosen = choose(loads, TOKENS, compute, 1000.0)

            def there_after(i):
                rest = (len(loads) - i) * TOKENS
                return (loads[i - 1] if i else 0) + (compute.seconds(rest) if rest else 0)

            self.assertLessEqual(there_after(chosen.load),
                                 min(map(there_after, range(len(loads) + 1))) + 1e-9)

    def test_paths_of_all_kinds(self):
        block = 1 << 20
        for rate, expected in ((1e6, 0), (10e6, 8), (10e9, 8)):  # a block is computed in 0.5 s
            loads = [0.001 + (i + 1) * block / rate for i in range(8)]
            self.assertEqual(choose(loads, TOKENS, prefill(0.5), 60.0).load, expected, rate)

    def test_without_steps_all_is_loaded(self):
        self.assertEqual(choose([1e6] * 3, TOKENS, Prefill(), 5.0), (3, 5.0))
        self.assertEqual(choose([], TOKENS, prefill(1.0), 5.0), (0, 5.0))

    def test_a_question_has_a_part_of_the_time_that_the_prompt_takes(self):
        self.assertEqual(choice.patience(TOKENS, Prefill(), 5.0), 5.0)
        self.assertEqual(choice.patience(TOKENS, prefill(0.5), 5.0), choice.FLOOR_SECONDS)
        self.assertAlmostEqual(choice.patience(100 * TOKENS, prefill(0.5), 60.0), 50 * choice.SLACK)
        self.assertEqual(choice.patience(100 * TOKENS, prefill(50.0), 5.0), 5.0)

    def test_an_operator_may_want_all_of_it(self):
        self.assertTrue(choice.compares(choice.FASTER))
        self.assertFalse(choice.compares(choice.ALWAYS))
        with self.assertRaisesRegex(ValueError, '"faster" or "always", not \'never\''):
            choice.compares("never")

    def test_what_is_not_known_is_tried_for_a_part_of_the_time(self):
        self.assertEqual(choose([None] * 4, TOKENS, prefill(10.0), 60.0), (4, 4.0))
        self.assertEqual(choose([1.0, None], TOKENS, prefill(0.1), 60.0),
                         (2, 1.0 + choice.FLOOR_SECONDS))
        self.assertEqual(choose([None] * 4, TOKENS, prefill(1000.0), 60.0), (4, 60.0))

    def test_a_load_has_its_time_and_a_part_of_what_it_saves(self):
        chosen = choose([1.0, 2.0], TOKENS, prefill(50.0), 60.0)
        self.assertEqual(chosen.load, 2)
        self.assertAlmostEqual(chosen.seconds, 2.0 + choice.SLACK * 100)
        self.assertEqual(choose([1.0, 2.0], TOKENS, prefill(50.0), 5.0).seconds, 5.0)


class Steps(unittest.TestCase):
    def setUp(self):
        self.prefill = Prefill()
        self.now = 100.0
        patch = unittest.mock.patch.object(choice.time, "monotonic", lambda: self.now)
        patch.start()
        self.addCleanup(patch.stop)

    def step(self, scheduled, seconds):
        self.prefill.step_begun(scheduled)
        self.now += seconds
        self.prefill.step_ended()

    def test_steps_of_prefill_are_measured(self):
        self.assertIsNone(self.prefill.seconds(1))
        self.step([1, 1, 1], 5.0)  # decoding says nothing of it
        self.step([], 5.0)
        self.assertIsNone(self.prefill.seconds(1))
        self.now += 60  # idle
        self.step([1, 500], 0.5)
        self.assertAlmostEqual(self.prefill.seconds(1002), 1.0)

    def test_small_steps_do_not_stand_for_large_ones(self):
        for _ in range(20):
            self.step([1000], 0.1)
        for _ in range(100):
            self.step([10], 0.05)
        self.assertAlmostEqual(self.prefill.seconds(4000), 0.4)
        self.assertAlmostEqual(self.prefill.seconds(10), 0.05)

    def test_an_engine_that_becomes_slower_is_noticed(self):
        for _ in range(100):
            self.step([1000], 0.1)
        for _ in range(40):
            self.step([1000], 1.0)
        self.assertGreater(self.prefill.seconds(1000), 0.8)

    def test_steps_that_begin_before_the_last_one_ended(self):
        self.prefill.step_begun([1000])
        for _ in range(10):
            self.prefill.step_begun([1000])  # scheduled ahead
            self.now += 0.1
            self.prefill.step_ended()
        self.assertAlmostEqual(self.prefill.seconds(1000), 0.1)

    def test_steps_without_an_end_are_forgotten(self):
        for _ in range(1000):
            self.prefill.step_begun([1000])
        self.prefill.step_ended()
        self.prefill.step_ended()
        for _ in range(20):
            self.prefill.step_ended()
        self.step([1000], 0.1)
        self.assertGreater(self.prefill.seconds(1000), 0)


if __name__ == "__main__":
    unittest.main()
