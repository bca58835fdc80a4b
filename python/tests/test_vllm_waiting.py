# SPDX-License-Identifier: Apache-2.0
"""Until when requests of an engine wait for their turn.

Goal: what is said is what those before a request take, whatever comes, begins and ends in which order.
Method: the class of the product with a made-up rate, against a list.
"""
import random
import unittest

import vllm_stand_ins as stand_ins

stand_ins.install()
from icms.vllm.choice import Prefill  # noqa: E402
from icms.vllm.waiting import WAIT_MAX, Waiting  # noqa: E402


def at_rate(tokens_per_s):
    prefill = Prefill()
    prefill.add(tokens_per_s, 1.0)
    return prefill


class Turns(unittest.TestCase):
    def test_a_request_waits_for_those_before_it(self):
        dice, waiting, queue = random.Random(3), Waiting(at_rate(100)), {}
        for number in range(2000):
            if queue and dice.random() < 0.5:
                gone = dice.choice(list(queue))
                waiting.begun(gone)
                del queue[gone]
            name, tokens = str(dice.randrange(40)), dice.randrange(1, 500)
            queue.pop(name, None)  # a request that is queued again goes to the end
            expected = sum(queue.values()) / 100
            self.assertAlmostEqual(waiting.add(name, tokens), min(expected, WAIT_MAX))
            queue[name] = tokens
        for name in [*queue, *queue, "unknown"]:
            waiting.begun(name)
        self.assertEqual(waiting.add("last", 1), 0.0)

    def test_nothing_is_said_before_a_step_was_measured(self):
        waiting = Waiting(Prefill())
        self.assertEqual([waiting.add("a", 1000), waiting.add("b", 1000)], [0.0, 0.0])

    def test_what_is_far_away_is_not_known(self):
        waiting = Waiting(at_rate(1))
        waiting.add("a", 10**9)
        self.assertEqual(waiting.add("b", 1), WAIT_MAX)


if __name__ == "__main__":
    unittest.main()
