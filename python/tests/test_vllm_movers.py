# SPDX-License-Identifier: Apache-2.0
"""Loads phase by phase, and choices with a trial, on the threads of Movers.

Goal: what comes late is asked for again as long as that is faster than computing it; every block is told of
once, and counted once; nothing goes on behind a block that is not there.
Method: the class of the product on a volume that answers when the test says so.
"""
import logging
import queue
import threading
import time
import unittest
import unittest.mock

import vllm_stand_ins as stand_ins
from support import wait_for

stand_ins.install()
from icms._tables import Miss, Status  # noqa: E402
from icms.client import Estimate, Results, Source  # noqa: E402
from icms.errors import Error, error_of  # noqa: E402
from icms.vllm.choice import Choice, Phases, Prefill  # noqa: E402
from icms.vllm.metrics import error_label  # noqa: E402
from icms.vllm.movers import Counts, Movers, soon  # noqa: E402

BYTES = 8
HOUR = 3600.0  # no deadline of these tests passes by itself
OK, MISS = 0, 1
PEER_DOWN = int(Status.PEER_DOWN)
ABSENT, EVICTED, DEADLINE = int(Miss.ABSENT), int(Miss.EVICTED), int(Miss.DEADLINE)


def results(reasons, sizes=BYTES, source=Source.POD):
    """Of blocks that failed for these reasons, 0: that came."""
    return Results(bytes(MISS if why else OK for why in reasons), bytes(reasons),
                   bytes([source] * len(reasons)), b"".join(sizes.to_bytes(8, "little") for _ in reasons))


class Held:
    """A volume of which each get does what the test says next: how many come, and why the others do not."""

    def __init__(self):
        self.lock = threading.Lock()
        self.asked, self.script, self.loads, self.tried, self.holes = [], [], None, [], []
        self.source, self.reasons = Source.POD, [ABSENT] * 1000  # of get, of exists

    def get(self, names, rooms, deadline_ms, once):
        with self.lock:
            self.asked.append((list(names), deadline_ms))
            came, why = self.script.pop(0) if self.script else (len(names), ABSENT)
        if why == "broken":
            raise RuntimeError("a mistake")
        for name, room in zip(names[:came], rooms):
            room[:] = name.ljust(BYTES)
        return results([0] * came + [why] * (len(names) - came), source=self.source)

    def put(self, names, rooms, if_absent, deadline_ms, once):
        return results([0] * len(names))

    def exists(self, names, deadline_ms):
        self.holes.append(list(names))
        return results(self.reasons[:len(names)])

    def match_estimate(self, names, deadline_ms):
        if self.loads is None:
            raise error_of(PEER_DOWN, "the agent is away")
        if self.loads == "broken":
            raise RuntimeError("a mistake")
        return [Estimate(seconds, None, BYTES, Source.POD) for seconds in self.loads]

    def start_prefetch(self, names, deadline_ms, prestage):
        """The script says of each how it ends: with this reason, None: not before the test says so."""
        if not self.script:
            raise Error("too many requests")
        made = Waited(self.script.pop(0), results)
        self.tried.append((names, deadline_ms, prestage, made))
        return made


class Waited:
    """A request, and until it is over its end."""

    def __init__(self, why, made):
        self.why, self.over, self.waits = why, threading.Event(), 0
        self.made = made
        if why is not None:
            self.over.set()

    def wait(self, timeout_ms=-1):
        self.waits += 1
        return self.over.wait(None if timeout_ms < 0 else min(timeout_ms / 1000, 0.01))

    def result(self):
        if self.why == "down":  # of its one block
            raise error_of(PEER_DOWN, "the agent went away")
        return self.made([self.why])


def steady(names, load):
    """Phases of names that are expected one every so many seconds, and computed in 300."""
    return Phases(names, HOUR, [load * i for i in range(1, names + 1)], 300.0)


def names_of(count):
    return [b"%d" % i for i in range(count)]


class Works(unittest.TestCase):
    def setUp(self):
        self.volume, self.counts = Held(), Counts()

    def movers(self, threads=1):
        made = Movers(threads, self.counts, logging.getLogger("nobody"))
        self.addCleanup(made.close)
        return made

    def wait(self, begin):
        told, done = [], threading.Event()
        begin(lambda answer: (told.append(answer), done.set()))
        self.assertTrue(done.wait(60))
        wait_for(lambda: stand_ins.is_settled(self.made))
        self.assertEqual(len(told), 1)
        return told[0]

    def load(self, count, phases, threads=1):
        self.made = self.movers(threads)
        self.rooms = [bytearray(BYTES) for _ in range(count)]
        return self.wait(lambda done: self.made.load(self.volume, names_of(count), self.rooms, phases, done))

    def match(self, count, ranks, prefill, limit=HOUR, load_limit=HOUR):
        """The choice, and how many blocks are there."""
        self.made = self.movers()
        return self.wait(lambda done: self.made.match(self.volume, names_of(count), ranks, 16, prefill, limit, load_limit,
                                                      lambda *told: done(told)))

    def choose(self, count, ranks, prefill):
        return self.match(count, ranks, prefill)[0]


class Loads(Works):
    def test_what_is_late_is_asked_for_again(self):
        self.volume.script = [(1, DEADLINE), (5, DEADLINE), (2, DEADLINE)]  # of 1, of 7, of 2
        good = self.load(8, steady(8, 50.0))
        self.assertEqual(good, [True] * 8)
        self.assertEqual([names for names, _ in self.volume.asked],
                         [names_of(1), names_of(8)[1:], names_of(8)[6:]])
        self.assertLessEqual(self.volume.asked[0][1], 1000 * (50.0 + 300.0))
        for i, room in enumerate(self.rooms):
            self.assertEqual(room, (b"%d" % i).ljust(BYTES))
        self.assertEqual(self.counts.take(), {("loaded_bytes", "pod"): 8 * BYTES, ("expected_loads", "1"): 1})

    def test_how_far_a_load_was_from_what_was_expected_is_counted(self):
        for phases, count in ((steady(8, 1e-9), {("expected_loads", "more"): 1}),  # it takes longer than that
                              (steady(8, 0.0), {}), (Phases(8, HOUR), {})):  # nothing was expected
            self.assertEqual(self.load(8, phases), [True] * 8)
            self.assertEqual(self.counts.take(), {("loaded_bytes", "pod"): 8 * BYTES, **count})
        for took, label in ((9.0, "0.1"), (11.0, "0.1"), (8.9, "0.3"), (13.0, "0.3"), (0.0, "1"), (20.0, "1"),
                            (20.1, "more")):
            self.assertEqual(error_label(10.0, took), label)

    def test_memory_says_nothing_of_a_path_and_what_was_cut_short_is_late(self):
        self.volume.source = Source.DRAM
        self.assertEqual(self.load(8, steady(8, 1e-9)), [True] * 8)
        self.assertEqual(self.counts.take(), {("loaded_bytes", "dram"): 8 * BYTES})
        self.volume.source = Source.POD
        self.assertEqual(self.load(8, Phases(8, HOUR, [1e-9] * 8, 300.0, is_whole=False)), [True] * 8)
        self.assertEqual(self.counts.take(), {("loaded_bytes", "pod"): 8 * BYTES})
        self.volume.script = [(3, DEADLINE), (0, DEADLINE)]
        self.assertEqual(self.load(8, steady(8, 1e-9)), [True] * 3 + [False] * 5)
        self.assertEqual(self.counts.take(), {("loaded_bytes", "pod"): 3 * BYTES, ("load_misses", "deadline"): 5,
                                              ("expected_loads", "late"): 1})

    def test_who_waits_for_a_thread_loses_no_time(self):
        go_on, told = threading.Event(), queue.SimpleQueue()
        self.addCleanup(go_on.set)
        self.made = self.movers()
        held, get = [], self.volume.get

        def slow(*arguments, **options):
            held.append(1)
            go_on.wait(60)
            return get(*arguments, **options)

        self.volume.get = slow
        for _ in range(4):  # so many are under way at a time
            self.made.load(self.volume, names_of(1), [bytearray(BYTES)], Phases(1, HOUR), told.put)
        wait_for(lambda: len(held) == 4)
        for limit in (HOUR, 0.001):
            self.made.load(self.volume, names_of(8), [bytearray(BYTES) for _ in range(8)],
                           Phases(8, limit, [1e-3] * 8, 1.0), told.put)
        time.sleep(0.5)
        self.volume.script = [(8, 0)] * 6
        go_on.set()
        self.assertEqual(sorted(sum(told.get(timeout=60)) for _ in range(6)), [0, 1, 1, 1, 1, 8])  # none outlives its limit
        (left,) = [ms for names, ms in self.volume.asked if len(names) == 8]
        self.assertGreater(left, 600)  # milliseconds, of a second for which it may be late

    def test_what_is_slower_than_computing_is_counted_once(self):
        self.volume.script = [(0, DEADLINE)]
        self.assertEqual(self.load(8, steady(8, 50.0)), [False] * 8)
        self.assertEqual(len(self.volume.asked), 1)
        self.assertEqual(self.counts.take(), {("load_misses", "deadline"): 8, ("expected_loads", "late"): 1})

    def test_nothing_is_asked_for_behind_a_block_that_is_not_there(self):
        self.volume.script = [(1, 0), (3, ABSENT)]
        self.assertEqual(self.load(8, steady(8, 50.0)), [True] * 4 + [False] * 4)
        self.assertEqual(len(self.volume.asked), 2)
        self.assertEqual(self.counts.take(), {("loaded_bytes", "pod"): 4 * BYTES, ("load_misses", "absent"): 4})
        self.volume.script = [(0, ABSENT)]
        self.assertEqual(self.load(8, steady(8, 50.0)), [False] * 8)
        self.assertEqual(len(self.volume.asked), 3)
        self.assertEqual(self.counts.take(), {("load_misses", "absent"): 8})

    def test_all_at_once_without_a_comparison(self):
        self.assertEqual(self.load(8, Phases(8, HOUR)), [True] * 8)
        self.assertEqual([names for names, _ in self.volume.asked], [names_of(8)])

    def test_threads_share_a_phase(self):
        self.volume.script = [(2, DEADLINE), (16, DEADLINE), (10, DEADLINE)]
        good = self.load(40, steady(40, 20.0), threads=2)
        self.assertEqual(good, [True] * 40)
        asked = [names for names, _ in self.volume.asked]
        self.assertEqual(asked[0], names_of(2))
        self.assertEqual(sorted(asked[1] + asked[2]), sorted(names_of(40)[2:]))
        self.assertEqual(sum(map(len, asked)), 40 + 3 + 9)  # and what was late a second time

    def test_a_mistake_ends_a_load(self):
        self.volume.script = [(0, "broken")]
        with self.assertLogs("nobody", "ERROR"):
            self.assertEqual(self.load(8, steady(8, 50.0)), [False] * 8)
        self.assertEqual(len(self.volume.asked), 1)

    def test_the_end_between_two_phases(self):
        asked, go_on, told = threading.Event(), threading.Event(), []
        get = self.volume.get

        def slow(*arguments, **options):
            asked.set()
            go_on.wait(60)
            return get(*arguments, **options)

        self.volume.get, self.volume.script = slow, [(1, DEADLINE)]
        self.made = self.movers()
        self.made.load(self.volume, names_of(8), [bytearray(BYTES) for _ in range(8)],
                       steady(8, 50.0), told.append)
        self.assertTrue(asked.wait(60))
        self.made._loads.shutdown(wait=False)  # as close() does, which waits
        go_on.set()
        self.made.close()
        self.assertEqual(told, [[True] + [False] * 7])
        self.made.wait_idle()


class Ends(Works):
    """What was begun ends, once each."""

    def idle(self):
        """Whether wait_idle returns."""
        waits = threading.Thread(target=self.made.wait_idle, daemon=True)
        waits.start()
        waits.join(60)
        return not waits.is_alive()

    def test_a_mistake_of_who_is_told_is_logged_and_nobody_waits_for_it(self):
        self.made = self.movers()

        def broken(_):
            raise RuntimeError("a mistake")

        with self.assertLogs("nobody", "ERROR") as said:
            self.made.store(self.volume, names_of(2), [bytearray(BYTES)] * 2, soon(3600000), broken)
            self.made._stores.shutdown()
            self.assertTrue(self.idle())
            self.made.store(self.volume, names_of(2), [], soon(0), broken)  # after the end
            self.assertTrue(self.idle())
        self.assertEqual(len(said.output), 2)

    def test_without_a_thread_for_it_memory_is_left_alone(self):
        begun, go_on, told = threading.Event(), threading.Event(), []
        get = self.volume.get

        def slow(*arguments, **options):
            begun.set()
            go_on.wait(60)
            return get(*arguments, **options)

        self.volume.get, self.volume.script, self.made = slow, [(1, 0), (1, 0)], self.movers()
        self.addCleanup(go_on.set)
        rooms = [bytearray(BYTES) for _ in range(2)]
        self.made.load(self.volume, names_of(1), rooms[:1], Phases(1, HOUR), told.append)
        self.assertTrue(begun.wait(60))
        with unittest.mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            self.made.load(self.volume, names_of(1), rooms[1:], Phases(1, HOUR), told.append)
        self.assertEqual(told, [[False]])
        go_on.set()
        self.assertTrue(self.idle())
        self.made.close()  # what was queued has had its turn
        self.assertEqual((told, bytes(rooms[1])), ([[False], [True]], bytes(BYTES)))

    def test_what_moves_no_bytes_is_not_waited_for(self):
        go_on, calls, moved = threading.Event(), [], []

        def slow(name, count):
            calls.append(name)
            go_on.wait(60)
            return count

        self.volume.exists = lambda names, **_: results([0] * slow("exists", len(names)))
        self.volume.prestage = lambda names, **_: slow("prestage", len(names))
        self.volume.match_estimate = lambda names, **_: [None] * slow("match_estimate", 0)
        self.made = self.movers()
        self.addCleanup(go_on.set)
        self.made.exists(self.volume, names_of(1), soon(3600000), lambda _: None)
        self.made.match(self.volume, names_of(1), 1, 16, Prefill(), HOUR, HOUR, lambda *_: None)
        self.made.prestage(self.volume, names_of(1), lambda: HOUR)
        wait_for(lambda: len(calls) == 3)
        rooms = [bytearray(BYTES)] * 2
        self.made.load(self.volume, names_of(2), rooms, Phases(2, HOUR), moved.append)
        self.made.store(self.volume, names_of(2), rooms, soon(3600000), moved.append)
        self.assertTrue(self.idle())
        self.assertEqual(moved, [[True, True]] * 2)
        for move in ("put", "get"):
            begun, over = threading.Event(), threading.Event()

            def held(names, rooms, **_):
                begun.set()
                over.wait(60)
                return results([0] * len(names))

            setattr(self.volume, move, held)
            self.made.load(self.volume, names_of(2), rooms, Phases(2, HOUR), moved.append)
            self.made.store(self.volume, names_of(2), rooms, soon(3600000), moved.append)
            self.assertTrue(begun.wait(60))
            waits = threading.Thread(target=self.made.wait_idle)
            waits.start()
            waits.join(0.05)
            self.assertTrue(waits.is_alive())
            over.set()
            waits.join(60)
        self.assertFalse(waits.is_alive())
        self.assertEqual(len(moved), 6)

    def test_a_hint_says_what_time_is_left_when_it_is_given(self):
        given, go_on = [], threading.Event()

        def prestage(names, deadline_ms, timeout_ms, once):
            given.append((names, deadline_ms, once))
            go_on.wait(60)
            return len(names) - 1

        self.volume.prestage = prestage
        self.made, left = self.movers(), [9.0] * 4
        self.addCleanup(go_on.set)
        for i in range(4):
            self.made.prestage(self.volume, names_of(i + 2), lambda i=i: left[i], once=i == 1)
        wait_for(lambda: given)
        left[:] = [9.0, 2.5, 0.0, 0.0001]  # while the agent answers the first one
        go_on.set()
        wait_for(lambda: stand_ins.is_settled(self.made))
        self.assertEqual(given, [(names_of(2), 9000, False), (names_of(3), 2500, True), (names_of(5), 1, False)])
        self.assertEqual(self.counts.take(), {("hints", "taken"): 7, ("hints", "refused"): 3})

    def test_why_blocks_are_not_there_is_told_before_and_not_where_nobody_was_asked(self):
        def told_of(names):
            told = []
            self.made.exists(self.volume, names, soon(3600000), told.append, told.append)
            wait_for(lambda: stand_ins.is_settled(self.made))
            return told

        self.made = self.movers()
        self.volume.exists = lambda names, deadline_ms: results([0, ABSENT, EVICTED])
        self.assertEqual(told_of(names_of(3)), [["", "absent", "evicted"], [True, False, False]])
        for wrong, whys in ((error_of(PEER_DOWN, "the agent is away"), [["peer_down"] * 2]),
                            (RuntimeError("a mistake"), [])):
            self.volume.exists = unittest.mock.Mock(side_effect=wrong)
            self.assertEqual(told_of(names_of(2)), [*whys, [False] * 2])

    def test_what_has_not_begun_at_the_end_is_told_of(self):
        begun, go_on, told, hinted = threading.Event(), threading.Event(), [], []

        def slow(names, deadline_ms):
            begun.set()
            go_on.wait(60)
            return results([0] * len(names))

        def prestage(names, **_):
            hinted.append(names)
            slow(names, 0)
            return len(names)

        self.volume.exists, self.volume.prestage = slow, prestage
        self.made = self.movers()
        self.made.prestage(self.volume, names_of(1), lambda: HOUR)
        self.assertTrue(begun.wait(60))
        begun.clear()
        for names in (names_of(3), names_of(2), lambda: self.fail("a name is made that nobody asks for")):
            self.made.exists(self.volume, names, soon(3600000), told.append)
            self.assertTrue(begun.wait(60))
        self.made.prestage(self.volume, names_of(2), lambda: HOUR)
        closes = threading.Thread(target=self.made.close)
        closes.start()
        wait_for(lambda: self.made._is_closing)
        go_on.set()
        closes.join(60)
        self.made.exists(self.volume, names_of(1), soon(3600000), told.append)
        self.assertEqual(told, [[True] * 3, [False] * 2, [], [False]])
        self.assertEqual(hinted, [names_of(1)])
        self.assertFalse([one for one in threading.enumerate() if one.name.startswith("icms-hint")])
        self.assertTrue(self.idle())


class Choices(Works):
    def prefill(self):
        made = Prefill()
        made.add(16, 300.0)
        return made

    def test_ranks_are_one_block(self):
        self.volume.loads = [0.0, 1.0, 1.0, 2.0, 9000.0, 9001.0, 9002.0, 9003.0]
        self.volume.script = [0, DEADLINE]  # of two ranks
        chosen = self.choose(8, 2, self.prefill())
        self.assertEqual(chosen, Choice(2, (1.0, 2.0), 600.0))
        tried = self.volume.tried  # 9003 s are more than computing, so the first block alone
        self.assertEqual([names for names, *_ in tried], [[name] for name in names_of(8)[4:6]])
        self.assertEqual({(ms, prestage) for _, ms, prestage, _ in tried}, {(600000, False)})
        self.assertEqual(self.counts.take(), {("choices", "load"): 2, ("choices", "compute"): 2})

    def test_what_came_of_a_trial_is_loaded_with_the_rest(self):
        self.volume.loads, self.volume.script = [None] * 8, [0, 0]
        chosen = self.choose(8, 1, self.prefill())
        self.assertEqual((chosen.load, chosen.computing), (8, 2400.0))
        self.assertEqual([names[0] for names, *_ in self.volume.tried], names_of(2))

    def test_what_is_late_of_a_trial_may_come_until_its_deadline(self):
        self.volume.loads, self.volume.script = [None] * 8, [DEADLINE, None, 0, 0]
        self.made = self.movers()
        answers = queue.SimpleQueue()

        def choose():
            self.made.match(self.volume, names_of(8), 1, 16, self.prefill(), HOUR, HOUR, lambda choice, _: answers.put(choice))
            return answers.get(timeout=60)

        self.assertEqual(choose().load, 0)  # the first block missed at once, so there is only a short pause
        late = self.volume.tried[1][-1]
        self.addCleanup(late.over.set)
        time.sleep(0.1)
        for _ in range(10):  # it keeps no thread, and nothing else is tried meanwhile
            self.assertEqual(choose().load, 0)
        self.assertEqual(len(self.volume.tried), 2)
        late.over.set()
        wait_for(lambda: choose().load == 8)
        self.assertEqual(len(self.volume.tried), 4)
        self.assertEqual(self.made._late, [])  # the client has let go of it

    def test_requests_that_cannot_be_made_are_no_trial(self):
        self.volume.loads = [None] * 8
        self.assertEqual(self.choose(8, 1, self.prefill()).load, 0)

    def test_an_agent_that_goes_away_during_a_trial(self):
        self.volume.loads = [0.0] * 3 + [None] * 5
        self.volume.script = ["down", 0]
        with self.assertNoLogs("nobody", "ERROR"):
            self.assertEqual(self.match(8, 1, self.prefill()), (Choice(3, (0.0,) * 3, 900.0), 8))
        self.assertEqual(self.counts.take(), {("choices", "load"): 3, ("choices", "compute"): 5})

    def test_an_agent_that_is_away(self):
        self.volume.script = [DEADLINE]
        self.assertEqual(self.match(8, 1, self.prefill()), (Choice(0), 0))
        self.assertEqual(self.volume.tried, [])

    def test_an_engine_without_steps(self):
        self.volume.loads = [1.0] * 8
        self.assertEqual(self.choose(8, 1, Prefill()), Choice(8))

    def test_what_is_not_there_is_not_chosen(self):
        self.volume.loads = [0.0, 1.0, 1.0]  # of two ranks: the second block is not whole
        self.assertEqual(self.match(8, 2, self.prefill()), (Choice(1, (1.0,), 300.0), 1))
        self.assertEqual(self.volume.holes, [names_of(4)[2:]])  # why it is not there is asked of the first block alone
        self.assertEqual(self.counts.take(), {("choices", "load"): 1, ("choices", "compute"): 0,
                                              ("lookup_misses", "absent"): 3})
        self.volume.loads = []
        self.assertEqual(self.match(8, 1, self.prefill()), (Choice(0), 0))
        self.assertEqual(self.volume.tried, [])

    def test_what_takes_longer_than_a_load_may_is_computed(self):
        self.volume.loads = [1.0 * i for i in range(1, 9)]
        self.assertEqual(self.match(8, 1, self.prefill(), load_limit=3.5), (Choice(3, (1.0, 2.0, 3.0), 900.0), 8))
        self.assertEqual(self.counts.take(), {("choices", "load"): 3, ("choices", "compute"): 5})
        self.volume.loads, self.volume.script = [9000.0] * 8, [0, 0]
        self.assertGreater(self.match(8, 1, self.prefill())[0].load, 0)  # what was expected of it was wrong

    def test_what_is_there_and_was_not_known_in_time_is_counted(self):
        self.volume.reasons = [0] * 8  # nobody says what it takes
        self.assertEqual(self.match(8, 1, self.prefill()), (Choice(0), 0))
        self.assertEqual(self.counts.take()["lookup_misses", "deadline"], 8)
        self.volume.loads, self.volume.reasons = [1.0] * 3, [0, EVICTED]  # the part of the second rank is gone
        self.assertEqual(self.match(8, 2, self.prefill()), (Choice(1, (1.0,), 300.0), 1))
        self.assertEqual(self.counts.take()["lookup_misses", "evicted"], 3)

    def test_holes_hold_up_nothing_and_end_by_the_time_of_their_question(self):
        go_on, asked, told = threading.Event(), [], []

        def exists(names, deadline_ms):
            asked.append(deadline_ms)
            go_on.wait(60)
            return results([ABSENT] * len(names))

        self.made, self.volume.exists, self.volume.loads = self.movers(), exists, []
        self.addCleanup(go_on.set)
        for _ in range(10):
            self.made.match(self.volume, names_of(2), 1, 16, self.prefill(), 0.2, HOUR, lambda *one: told.append(one))
        wait_for(lambda: len(told) == 10 and asked)
        time.sleep(0.3)
        answers = queue.SimpleQueue()
        self.volume.exists = lambda names, deadline_ms: results([0] * len(names))
        self.made.exists(self.volume, names_of(1), soon(3600000), answers.put)
        self.assertEqual(answers.get(timeout=60), [True])
        go_on.set()
        wait_for(lambda: stand_ins.is_settled(self.made))
        self.assertEqual(len(asked), 1)
        self.assertEqual(self.counts.take()["lookup_misses", "deadline"], 18)

    def test_there_is_no_choice_without_room(self):
        for room, chosen in ((8, 8), (3, 3), (0, 0)):
            self.volume.loads, self.made = [1.0] * 8, self.movers()
            told = self.wait(lambda done: self.made.match(self.volume, names_of(8), 1, 16, self.prefill(), HOUR, HOUR,
                                                          lambda *told: done(told), lambda there: min(room, there)))
            self.assertEqual((told[0].load, told[1]), (chosen, 8))
            self.assertEqual(self.counts.take()["choices", "load"], chosen)
        self.assertEqual(self.volume.tried, [])

    def test_names_are_made_on_the_thread(self):
        self.volume.loads, self.made, threads = [1.0] * 8, self.movers(), []

        def names():
            threads.append(threading.current_thread())
            return names_of(8)

        told = self.wait(lambda done: self.made.match(self.volume, names, 1, 16, self.prefill(), HOUR, HOUR,
                                                      lambda *told: done(told)))
        self.assertEqual((told[0].load, told[1]), (8, 8))
        self.assertNotEqual(threads, [threading.current_thread()])

    def test_a_mistake_or_the_end_finds_nothing(self):
        self.volume.loads = "broken"
        with self.assertLogs("nobody", "ERROR"):
            self.assertEqual(self.match(8, 1, self.prefill()), (Choice(0), 0))
        for names in (names_of(8), lambda: names_of(8)):
            self.made = self.movers()
            self.made.close()
            told = []
            self.made.match(self.volume, names, 1, 16, self.prefill(), HOUR, HOUR, lambda *one: told.append(one))
            self.assertEqual(told, [(Choice(0), 0)])


if __name__ == "__main__":
    unittest.main()
