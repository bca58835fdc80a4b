# SPDX-License-Identifier: Apache-2.0
"""Which part of a prefix is loaded, from what loads and steps take.

Goal: no prompt is there later than with all of its prefix loaded, or computed, as far as was known; and
what was not known costs a bounded time.
Method: the class of the product with made-up times, against every other choice; and whole prompts on a model
of a path, whose clock is the product's.
"""
import random
import unittest
import unittest.mock

import vllm_stand_ins as stand_ins

stand_ins.install()
from icms.vllm import choice  # noqa: E402
from icms.vllm.choice import FLOOR_SECONDS, SLACK, TRIAL_SECONDS, Choice, Phases  # noqa: E402
from icms.vllm.choice import Prefill, Trials, choose, decide  # noqa: E402

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
            chosen = choose(loads, TOKENS, compute)

            def there_after(i):
                rest = (len(loads) - i) * TOKENS
                return (loads[i - 1] if i else 0) + (compute.seconds(rest) if rest else 0)

            self.assertLessEqual(there_after(chosen.load),
                                 min(map(there_after, range(len(loads) + 1))) + 1e-9)

    def test_paths_of_all_kinds(self):
        block = 1 << 20
        for rate, expected in ((1e6, 0), (10e6, 8), (10e9, 8)):  # a block is computed in 0.5 s
            loads = [0.001 + (i + 1) * block / rate for i in range(8)]
            self.assertEqual(choose(loads, TOKENS, prefill(0.5)).load, expected, rate)

    def test_without_steps_all_is_loaded(self):
        self.assertEqual(choose([1e6] * 3, TOKENS, Prefill()), Choice(3))
        self.assertEqual(choose([], TOKENS, prefill(1.0)), Choice(0))
        self.assertEqual(Choice(3).phases(3, 2, 5.0).begin(), (6, 5.0))

    def test_a_question_has_a_part_of_the_time_that_the_prompt_takes(self):
        self.assertEqual(choice.patience(TOKENS, Prefill(), 5.0), 5.0)
        self.assertEqual(choice.patience(TOKENS, prefill(0.1), 5.0), FLOOR_SECONDS)
        self.assertAlmostEqual(choice.patience(100 * TOKENS, prefill(0.5), 60.0), 50 * SLACK)
        self.assertEqual(choice.patience(100 * TOKENS, prefill(500.0), 5.0), 5.0)

    def test_an_operator_may_want_all_of_it(self):
        self.assertTrue(choice.compares(choice.FASTER))
        self.assertFalse(choice.compares(choice.ALWAYS))
        with self.assertRaisesRegex(ValueError, '"faster" or "always", not \'never\''):
            choice.compares("never")

    def test_nothing_is_taken_from_what_is_not_known_on(self):
        self.assertEqual(choose([None] * 4, TOKENS, prefill(10.0)).load, 0)
        self.assertEqual(choose([0.0, 0.0, None, 0.0], TOKENS, prefill(10.0)), (2, (0.0, 0.0), 20.0))
        self.assertEqual(choose([1.0, None], TOKENS, prefill(0.1)).load, 0)


class Loads(unittest.TestCase):
    """Phases of a load."""

    def phases(self, load=0.002, compute=0.02, names=100, limit=60.0):
        return self.phases_of([(i + 1) * load for i in range(names)], compute, limit)

    def phases_of(self, loads, compute, limit=60.0):
        self.made = Phases(len(loads), limit, loads, compute)
        return self.made.begin()

    def assertPhase(self, phase, names, seconds):
        self.assertEqual(phase.names, names)
        self.assertAlmostEqual(phase.seconds, seconds)

    def test_the_first_blocks_are_asked_for_before_the_others(self):
        self.assertPhase(self.phases(), 5, 5 * 0.002 + 2 * SLACK)
        self.assertPhase(self.made.after(5, 0.01), 95, 95 * 0.002 + 95 * 0.02 * SLACK)
        self.assertIsNone(self.made.after(95, 0.1))
        self.assertEqual(self.phases(names=1).names, 1)
        self.assertPhase(self.phases(load=0.09, names=40, compute=0.1), 2, 0.18 + 4 * SLACK)
        self.assertPhase(self.phases(load=0.15, names=40, compute=0.1), 1, 0.15 + 4 * SLACK)
        self.assertPhase(self.phases(load=0.0, compute=0.0), 100, FLOOR_SECONDS)

    def test_what_is_expected_within_the_slack_is_asked_for_at_once(self):
        self.assertPhase(self.phases(load=0.02 * SLACK), 100, 2 * 2 * SLACK)
        self.assertPhase(self.phases(load=0.0), 100, 2 * SLACK)
        self.assertPhase(self.made.after(10, 0.1), 90, 90 * 0.01 + 90 * 0.02 * SLACK)
        self.phases(load=0.0)
        self.assertIsNone(self.made.after(0, 0.1))

    def test_one_of_few_blocks_has_the_time_to_compute_it(self):
        self.assertPhase(self.phases(names=8, load=0.2, compute=1.0), 1, 0.2 + 1.0)
        self.assertPhase(self.made.after(1, 0.8), 7, 7 * 0.8 + 1.0)

    def test_what_is_slower_than_expected_and_faster_than_computing_goes_on(self):
        self.phases()
        self.assertPhase(self.made.after(2, 0.02), 98, 98 * 0.01 + 98 * 0.02 * SLACK)
        self.assertPhase(self.made.after(49, 0.9), 49, 0.9 + 49 * 0.02 * SLACK)
        self.assertIsNone(self.made.after(1, 1.0))

    def test_first_blocks_that_come_in_time_decide_nothing(self):
        self.phases(load=0.019, names=20)
        self.assertPhase(self.made.after(1, 0.04), 19, 19 * 0.02 + FLOOR_SECONDS)  # its latency

    def test_what_is_slower_than_computing_ends(self):
        self.phases()
        self.assertIsNone(self.made.after(0, 0.1))
        self.phases()
        self.assertIsNone(self.made.after(3, 0.1))

    def test_the_limit_is_that_of_all_phases(self):
        self.assertEqual(self.phases(limit=0.01).seconds, 0.01)
        found = Phases(64, 5.0, [0.2 * i for i in range(1, 65)], 0.3)
        self.assertEqual(found.begin().names, 3)
        phase = found.after(3, 0.6)
        self.assertEqual((phase.names, round(phase.seconds, 9)), (20, 4.4))  # of 61: nothing is asked for that cannot come
        self.phases(limit=0.5)
        self.assertAlmostEqual(self.made.after(2, 0.02).seconds, 0.48)
        self.assertIsNone(self.made.after(10, 0.48))

    def test_without_a_comparison_there_is_one_phase(self):
        self.assertEqual(self.phases(compute=None), (100, 60.0))
        self.assertIsNone(self.made.after(99, 1.0))

    def test_a_part_of_a_choice_has_a_part_of_its_time(self):
        found = Choice(10, tuple(0.4 * i for i in range(1, 11)), 20.0).phases(5, 2, 60.0)
        self.assertPhase(found.begin(), 1, 0.4 + 1.0)
        whole = Choice(2, (0.1, 0.2), 20.0).phases(10, 1, 60.0)  # more than the choice was made of
        self.assertPhase(whole.begin(), 10, 10 * 0.1 + 10.0)

    def test_what_is_ahead_of_the_first_block_is_awaited(self):
        ahead = [0.4 + 0.005 * i for i in range(1, 33)]
        self.assertPhase(self.phases_of(ahead, 0.1), 1, 0.405 + 3.2 * SLACK)
        self.assertPhase(self.made.after(1, 0.405), 31, 31 * 0.005 + 3.1 * SLACK)
        self.phases_of(ahead, 0.1)
        self.assertPhase(self.made.after(1, 0.5), 31, 31 * 0.005 / 0.405 * 0.5 + 3.1 * SLACK)
        self.phases_of(ahead, 0.1)
        self.assertIsNone(self.made.after(0, 0.6))

    def test_blocks_of_a_slow_server_are_awaited_where_they_stand(self):
        last = [0.0] * 24 + [0.09 * i for i in range(1, 9)]
        self.assertPhase(self.phases_of(last, 0.1), 1, 3.2 * SLACK)
        self.assertPhase(self.made.after(1, 0.001), 31, 0.72 + 3.1 * SLACK)
        first = [0.09 * min(i, 8) for i in range(1, 33)]
        self.assertPhase(self.phases_of(first, 0.1), 1, 0.09 + 3.2 * SLACK)
        self.assertPhase(self.made.after(1, 0.09), 31, 7 * 0.09 + 3.1 * SLACK)


class Path:
    """A path that brings a block in so many seconds, one after the other, the agent's memory, and a clock."""

    def __init__(self, test):
        self.now, self.pace, self.tried, self.near = 100.0, 0.0, [], set()
        self.ahead = 0.0  # seconds that the path brings others' blocks before
        patch = unittest.mock.patch.object(choice.time, "monotonic", lambda: self.now)
        patch.start()
        test.addCleanup(patch.stop)
        self.trials = Trials()

    def bring(self, blocks, seconds):
        came = []
        for block in blocks:
            took = 0.0 if block in self.near else self.ahead + self.pace
            if took > seconds + 1e-9:
                self.now += seconds
                self.ahead = max(self.ahead - seconds, 0.0)
                break
            self.ahead = 0.0
            self.now += took
            seconds -= took
            came.append(block)
        return came

    def fetch(self, first, blocks, seconds, deadline):
        assert deadline >= seconds
        self.tried.append((first, blocks))
        begin = self.now
        came = self.bring(range(first, first + blocks), seconds)
        self.near.update(came)
        whole = len(came) == blocks
        return len(came), self.now - begin if whole else len(came) * self.pace

    def prompt(self, estimates, compute, real=1.0):
        """Seconds until all of it is there, and how many blocks were loaded. real: what computing takes, as a part of
        what the last steps took."""
        begin, blocks = self.now, len(estimates)
        self.near = {i for i, seconds in enumerate(estimates) if seconds == 0}
        until = begin + choice.patience(blocks * TOKENS, compute, 60.0)
        chosen = decide(lambda: estimates, self.fetch, TOKENS, compute, self.trials, until)
        came = 0
        if chosen.load:
            phases = chosen.phases(chosen.load, 1, 60.0)
            phase = phases.begin()
            while phase is not None:
                before, last = self.now, came + phase.names
                brought = len(self.bring(range(came, last), phase.seconds))
                came += brought
                phase = phases.after(brought, self.now - before)
        if came < blocks:
            self.now += real * compute.seconds((blocks - came) * TOKENS)
        return self.now - begin, came


class Prompts(unittest.TestCase):
    def setUp(self):
        self.path = Path(self)

    def test_none_takes_longer_than_loading_and_computing(self):
        block = 128 << 10
        for blocks in (8, 32, 1000):
            for real in (1e6, 10e6, 500e6):
                for known in (1e6, 10e6, 500e6, None):
                    with self.subTest(blocks=blocks, real=real, known=known):
                        self.path.pace = block / real
                        estimates = [known and (i + 1) * block / known for i in range(blocks)]
                        self.path.now += 1000
                        seconds, came = self.path.prompt(estimates, prefill(0.032))
                        best = blocks * min(self.path.pace, 0.032)
                        # A block takes longer than the slack of so few: the agent measures it meanwhile.
                        if (blocks, real) == (8, 10e6) and known in (1e6, None):
                            best = blocks * 0.032
                        floor = 0.032 if blocks == 8 else 0.0  # and it may be late
                        self.assertLessEqual(seconds, 1.1 * best + 0.005 + floor)
                        if real > 4e6 and blocks > 8:
                            self.assertEqual(came, blocks)
                        self.assertTrue(came == blocks or came < blocks * 2 * SLACK)

    def test_a_path_that_is_as_slow_as_known_costs_the_slack(self):
        self.path.pace = 0.5
        for _ in range(3):
            seconds, _ = self.path.prompt([(i + 1) / 2 for i in range(32)], prefill(0.1))
            self.assertAlmostEqual(seconds, 3.2 * (1 + SLACK))
        self.assertEqual(self.path.tried, [(0, 2)] * 3)  # and were due each time

    def test_what_is_behind_others_is_loaded(self):
        for ahead in (0.2, 0.4, 1.0):
            with self.subTest(ahead=ahead):
                self.path.pace, self.path.ahead = 0.005, ahead
                estimates = [ahead + 0.005 * (i + 1) for i in range(32)]
                seconds, came = self.path.prompt(estimates, prefill(0.1))
                self.assertEqual(came, 32)
                self.assertLessEqual(seconds, 1.01 * estimates[-1])

    def test_a_path_that_is_repaired_is_tried_by_the_next_prompt(self):
        estimates = [(i + 1) / 2 for i in range(32)]
        for real in (0.6, 1.0, 1.4):  # steps take longer in one second than in the next
            with self.subTest(real=real):
                self.path.pace, self.path.tried = 0.5, []
                self.path.now += 1000
                for _ in range(3):
                    self.path.prompt(estimates, prefill(0.1), real)
                self.path.pace = 0.01
                self.assertEqual(self.path.prompt(estimates, prefill(0.1), real)[1], 32)

    def test_trials_take_no_more_than_a_part_of_the_time_and_of_the_path(self):
        for pace, tried, took in ((0.005, 2, TRIAL_SECONDS), (20.0, 1, TRIAL_SECONDS)):
            self.path.pace, self.path.tried = pace, []
            self.path.now += 1000
            begin, estimates = self.path.now, [pace * (i + 1) for i in range(8)]
            while self.path.now - begin < 100:  # short prompts, back to back
                self.path.prompt(estimates, prefill(0.003))
            self.assertEqual(set(self.path.tried), {(0, tried)})
            self.assertLessEqual(len(self.path.tried) * took, 100 * SLACK + 2 * took)
            self.assertLessEqual(len(self.path.tried) * tried * pace, 50 + 2 * pace)
            self.assertGreaterEqual(len(self.path.tried), 3)

    def test_a_trial_that_took_longer_than_meant_is_not_made_each_time(self):
        def slow(first, blocks, seconds, deadline):
            self.path.tried.append((first, blocks))
            self.path.now += 0.4  # of 0.05 that it was given: others have the cores
            return 0, 0.0

        begin = self.path.now
        while self.path.now - begin < 100:
            found = decide(lambda: [None] * 10, slow, TOKENS, prefill(0.1), self.path.trials, self.path.now + 1000)
            self.path.now += prefill(0.1).seconds(10 * TOKENS)
            self.assertEqual(found.load, 0)
        self.assertLessEqual(len(self.path.tried) * 0.4, 100 * SLACK + 2 * 0.4)

    def test_the_first_of_a_trial_may_be_late(self):
        def fetch(first, blocks, seconds, deadline):
            self.assertEqual((blocks, seconds), (2, 32 * 0.1 * SLACK))
            self.path.now += seconds
            return 1, last

        for last, load in ((0.09, 32), (0.11, 1)):  # beside 0.1 of computing a block
            found = decide(lambda: [None] * 32, fetch, TOKENS, prefill(0.1), Trials(), self.path.now + 1000)
            self.assertEqual(found.load, load)

    def test_a_path_that_is_expected_to_be_dead_is_tried_again(self):
        estimates = [3600.0 * (i + 1) for i in range(32)]
        self.path.pace = 3600.0
        self.path.prompt(estimates, prefill(0.1))
        self.path.pace = 0.01
        self.path.now += choice.TRIAL_PAUSE_SECONDS
        self.assertEqual(self.path.prompt(estimates, prefill(0.1))[1], 32)

    def test_one_trial_at_a_time(self):
        trials = Trials()
        self.assertTrue(trials.begin())
        self.assertFalse(trials.begin())
        trials.end(1.0)
        self.assertFalse(trials.begin())
        self.path.now += 1.0
        self.assertTrue(trials.begin())

    def test_none_while_something_of_the_last_one_is_outstanding(self):
        late = [False]
        trials = Trials(lambda: late[0])
        self.assertTrue(trials.begin())
        late[0] = True
        trials.end(1.0)
        self.path.now += 2.0
        self.assertFalse(trials.begin())
        late[0] = False
        self.assertTrue(trials.begin())

    def test_what_was_tried_in_vain_and_came_is_loaded(self):
        self.path.pace = 0.09
        seconds, came = self.path.prompt([0.0] * 2 + [None] * 98, prefill(0.03))
        self.assertEqual(self.path.tried, [(2, 4)])
        self.assertEqual(came, 3)  # with those that were known to be there
        self.assertLess(seconds, 3.0 * 1.1 + 0.09)

    def test_a_trial_that_fails_leaves_the_choice(self):
        def broken(*_):
            raise RuntimeError("a mistake")

        with self.assertRaises(RuntimeError):
            decide(lambda: [None], broken, TOKENS, prefill(1.0), self.path.trials, 1000.0)
        self.path.now += 10
        self.assertTrue(self.path.trials.begin())

    def test_what_takes_no_time_to_compute_is_not_tried(self):
        self.path.pace = 0.01
        seconds, _ = self.path.prompt([1.0] * 8, prefill(TRIAL_SECONDS / 9))
        self.assertEqual(self.path.tried, [])
        self.assertLess(seconds, TRIAL_SECONDS)

    def test_nothing_is_tried_without_time_or_need(self):
        self.path.pace = 0.001
        found = decide(lambda: [None], self.path.fetch, TOKENS, prefill(1.0), self.path.trials, self.path.now)
        self.assertEqual(found.load, 0)
        for estimates, steps in (([0.0], prefill(1.0)), ([None], Prefill()), ([], prefill(1.0))):
            found = decide(lambda: estimates, self.path.fetch, TOKENS, steps, self.path.trials, 1000.0)
            self.assertEqual(found.load, len(estimates))
        self.assertEqual(self.path.tried, [])


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

    def test_steps_that_compute_nothing_end_too(self):
        for empty in range(1, 4):  # before a prefill, as while a question is unanswered
            for _ in range(empty):
                self.prefill.step_begun([])
            self.prefill.step_begun([1000])
            for _ in range(empty):
                self.now += 0.001
                self.prefill.step_ended()
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
