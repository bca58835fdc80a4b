# SPDX-License-Identifier: Apache-2.0
"""Until when requests of an engine wait for their turn.

Goal: what is said is what those before a request take, whatever comes, is computed and ends in which order;
and it is said again while a request waits, and never when its turn has come.
Method: the class of the product with a made-up rate and clock, against a list.
"""
import random
import unittest
import unittest.mock

import vllm_stand_ins as stand_ins

stand_ins.install()
from icms.vllm import waiting as module  # noqa: E402
from icms.vllm.choice import Prefill  # noqa: E402
from icms.vllm.waiting import WAIT_MAX, Waiting  # noqa: E402


def at_rate(tokens_per_s):
    prefill = Prefill()
    prefill.add(tokens_per_s, 1.0)
    return prefill


class Turns(unittest.TestCase):
    def setUp(self):
        self.now, self.said = 1000.0, []
        patch = unittest.mock.patch.object(module.time, "monotonic", lambda: self.now)
        patch.start()
        self.addCleanup(patch.stop)

    def add(self, waiting, name, tokens, patience=5.0):
        self.said.clear()
        waiting.add(name, tokens, lambda left: self.said.append((name, round(left(), 6))), patience)
        self.assertEqual([one for one, _ in self.said], [name])
        return self.said[0][1]

    def test_a_request_waits_for_what_is_left_of_those_before_it(self):
        dice, waiting, left = random.Random(3), Waiting(at_rate(100)), {}
        for _ in range(3000):
            step = {name: dice.randrange(2, 300) for name in left if dice.random() < 0.3}
            if dice.random() < 0.2 and left:
                step[dice.choice(list(left))] = 1  # it decodes
            waiting.stepped({**step, "unknown": 7})
            for name, tokens in step.items():
                left[name] = 0 if tokens == 1 else left[name] - tokens
                if left[name] <= 0:
                    del left[name]
            if left and dice.random() < 0.2:
                gone = dice.choice(list(left))
                waiting.ended(gone)
                del left[gone]
            name, tokens = str(dice.randrange(40)), dice.randrange(1, 500)
            left.pop(name, None)  # a request that is queued again goes to the end
            self.assertAlmostEqual(self.add(waiting, name, tokens), min(sum(left.values()) / 100, WAIT_MAX) + 5)
            left[name] = tokens
        for name in [*left, *left, "unknown"]:
            waiting.ended(name)
        self.assertEqual(self.add(waiting, "last", 1), 5)

    def test_a_hint_is_said_again_while_its_request_waits(self):
        waiting = Waiting(at_rate(100))
        self.add(waiting, "a", 1000)
        self.assertEqual(self.add(waiting, "b", 1000), 15)
        self.add(waiting, "c", 1000)
        waiting.stepped({"a": 200})
        self.said.clear()
        for seconds, step, said in ((2, {"a": 1}, []),        # a decodes, and nothing is due
                                    (5.4, {}, []),
                                    (0.2, {}, [("b", 5.0)]),  # half of 15 s
                                    (2.4, {}, []),
                                    (0.2, {}, [("b", 5.0)]),
                                    (2.3, {}, [("c", 15.0)]),
                                    (0.3, {"b": 1000}, []),   # its turn has come
                                    (7.3, {"a": 1}, [("c", 5.0)])):
            self.now += seconds
            waiting.stepped(step)
            self.assertEqual(self.said, said, self.now)
            self.said.clear()
        waiting.ended("c")
        self.now += 100
        waiting.stepped({"a": 1})
        self.assertEqual(self.said, [])

    def test_one_hint_of_a_request_is_outstanding_and_has_the_last_time(self):
        waiting, said = Waiting(at_rate(100)), {"a": [], "b": []}
        for name, lefts in said.items():
            waiting.add(name, 1000, lefts.append, 5.0)
        for _ in range(20):  # the thread that gives hints is busy
            self.now += 4.0
            waiting.stepped({"another": 1})
        self.assertEqual([len(lefts) for lefts in said.values()], [1, 1])
        waits = [lefts[0]() for lefts in said.values()]
        self.assertTrue(2.5 < waits[0] <= 5.0 and 7.5 < waits[1] <= 15.0, waits)
        self.now += 8.0
        waiting.stepped({"another": 1})
        self.assertEqual([len(lefts) for lefts in said.values()], [2, 2])

    def test_a_hint_that_is_of_no_use_any_more_is_not_given(self):
        waiting, lefts = Waiting(at_rate(100)), {}

        def add(name):
            waiting.add(name, 1000, lambda left: lefts.__setitem__(name, left), 5.0)

        for name in ("its turn", "computed", "ended", "old"):
            add(name)
        waiting.stepped({"its turn": 10, "computed": 1000})
        waiting.ended("ended")
        for name in ("its turn", "computed", "ended"):
            self.assertEqual(lefts[name](), 0.0, name)
        add("ended")  # another one with its name
        self.assertGreater(lefts["ended"](), 5.0)
        self.now += 17.4  # half of 35 s is over a little later
        self.assertAlmostEqual(lefts["old"](), 17.6)
        self.now += 0.1
        self.assertEqual(lefts["old"](), 0.0)

    def test_the_hint_of_another_tier_is_given_too(self):
        waiting, lefts = Waiting(at_rate(100)), []
        for _ in range(2):
            waiting.add("a", 1000, lefts.append, 5.0)
        self.assertEqual([left() for left in lefts], [5.0, 5.0])

    def test_nothing_is_said_of_others_before_a_step_was_measured(self):
        waiting = Waiting(Prefill())
        self.assertEqual([self.add(waiting, "a", 1000), self.add(waiting, "b", 1000)], [5.0, 5.0])

    def test_what_is_far_away_is_not_known(self):
        waiting = Waiting(at_rate(1))
        self.add(waiting, "a", 10**9)
        self.assertEqual(self.add(waiting, "b", 1), WAIT_MAX + 5)


if __name__ == "__main__":
    unittest.main()
