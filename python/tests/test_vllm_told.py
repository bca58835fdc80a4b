# SPDX-License-Identifier: Apache-2.0
"""What routers learn of chunks from IcmsTier: without vLLM.

Goal: they are told once what came and what left, also of the agent's own tiers and over restarts, nothing that nobody
answered; wrong options are told at once.
Method: as in test_vllm_tier.
"""
import logging
import random
import tempfile
import threading
import unittest
import unittest.mock

import icms
from support import Tier, tier, wait_for
from vllm_rig import CHUNKS, HIT, MISS, Engine
from icms.client import Results  # noqa: E402
from icms.vllm.events import Feed  # noqa: E402
from icms.vllm.link import WrongTier  # noqa: E402


class Told(unittest.TestCase):
    """What routers learn of chunks, by vLLM's own events."""

    def test_a_chunk_is_told_once_it_is_in_the_pod_and_when_it_left(self):
        shared, prompt = tier(), f"{random.random()}"
        one = Engine(self, shared.where, kv_events=True).wait_up()
        context, names = one.request(prompt)
        one.fill(prompt)
        self.assertEqual(one.lookup(context, names)[0], [MISS] * CHUNKS)
        self.assertEqual(one.events(), [])  # what was never told is not taken back
        self.assertTrue(one.job(context, names[:4], [0, 1, 2, 3], load=False).success)
        event, = one.tier.take_events()
        self.assertEqual((event.keys, event.removed, event.medium.value, event.locality.value,
                          event.ownership), (names[:4], False, "STORAGE", "REMOTE", "icms"))
        self.assertEqual(one.events(), [])  # taken
        again, _ = one.request(prompt)
        self.assertEqual(one.lookup(again, names)[0], [HIT] * 4 + [MISS] * (CHUNKS - 4))
        self.assertEqual(one.events(), [])  # nothing new
        other = Engine(self, shared.where, kv_events=True).wait_up()
        context, _ = other.request(prompt)
        other.lookup(context, names)
        self.assertEqual(other.events(), [(False, names[:4])])  # it did not store them, and found them
        with icms.Client(shared.where) as client:
            client.volume("kv").remove([one.tier._requests[again.req_id].names[names[1]]])
        last, _ = one.request(prompt)
        self.assertEqual(one.lookup(last, names[:3])[0], [HIT, MISS, HIT])
        self.assertEqual(one.events(), [(True, [names[1]])])

    def test_a_chunk_that_cannot_be_loaded_left(self):
        shared, prompt = tier(), f"{random.random()}"
        one = Engine(self, shared.where, kv_events=True).wait_up()
        context, names = one.request(prompt)
        one.fill(prompt)
        self.assertTrue(one.job(context, names[:3], [0, 1, 2], load=False).success)
        with icms.Client(shared.where) as client:
            client.volume("kv").remove([one.tier._requests[context.req_id].names[names[2]]])
        self.assertFalse(one.job(context, names[:3], [0, 1, 2], load=True).success)
        self.assertEqual(one.events(), [(False, names[:3]), (True, [names[2]])])

    def test_of_what_nobody_answered_nothing_is_told(self):
        shared, prompt = tier(), f"{random.random()}"
        one = Engine(self, shared.where, kv_events=True).wait_up()
        context, names = one.request(prompt)
        one.fill(prompt)
        self.assertTrue(one.job(context, names, list(range(CHUNKS)), load=False).success)
        self.assertEqual(one.events(), [(False, names)])

        def late(volume, keys, **_):
            return Results(bytes([icms.Status.MISS] * len(keys)), bytes([icms.Miss.DEADLINE] * len(keys)),
                           bytes(len(keys)), bytes(8 * len(keys)))

        for what in (icms.PeerDownError("away"), icms.BusyError("busy"), RuntimeError("a mistake"), late):
            context, _ = one.request(prompt)
            with self.subTest(what), unittest.mock.patch.object(
                    icms.Volume, "exists", autospec=True, side_effect=what):
                self.assertEqual(one.lookup(context, names)[0], [MISS] * CHUNKS)
                self.assertEqual(one.events(), [])
        context, _ = one.request(prompt)
        self.assertEqual(one.lookup(context, names)[0], [HIT] * CHUNKS)
        self.assertEqual(one.events(), [])

    def test_after_a_reset_nothing_that_was_told_holds(self):
        shared, prompt = tier(), f"{random.random()}"
        one = Engine(self, shared.where, kv_events=True).wait_up()
        context, names = one.request(prompt)
        one.fill(prompt)
        self.assertTrue(one.job(context, names[:2], [0, 1], load=False).success)
        one.tier._forget()
        self.assertEqual(one.events(), [(False, names[:2]), (True, names[:2])])

    def test_without_events_none_wait_for_anybody(self):
        shared, prompt = tier(), f"{random.random()}"
        one = Engine(self, shared.where).wait_up()
        context, names = one.request(prompt)
        one.fill(prompt)
        self.assertTrue(one.job(context, names, list(range(CHUNKS)), load=False).success)
        self.assertEqual(one.events(), [])


class NearTiers(unittest.TestCase):
    """What routers learn of what a real agent has itself."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="icms-events-")
        self.addCleanup(folder.cleanup)
        self.endpoint, self.replay = (f"ipc://{folder.name}/{name}" for name in ("events", "replay"))
        self.shared = Tier(events=f"[{{volume: kv, endpoint: '{self.endpoint}', replay: '{self.replay}'}}]")
        self.addCleanup(self.shared.end)
        self.prompt = f"{random.random()}"
        before = Engine(self, self.shared.where).wait_up()  # its chunks are published, and nobody listens
        context, names = before.request(self.prompt)
        before.fill(self.prompt)
        self.assertTrue(before.job(context, names, list(range(CHUNKS)), load=False).success)
        before.end()
        wait_for(lambda: self.shared.agent.metrics()['icms_agent_events_total{volume="kv"}'] >= CHUNKS)

    def late(self, **options):
        """(an engine that starts after that, the context and chunks of its request for them)"""
        engine = Engine(self, self.shared.where, kv_events=True, events=self.endpoint, **options).wait_up()
        context, names = engine.request(self.prompt)
        self.assertEqual(engine.lookup(context, names)[0], [HIT] * CHUNKS)
        return engine, context, names

    def wait_near(self, engine, names):
        near = set()
        wait_for(lambda: near.update(engine.near()) or near == set(names))

    def test_an_engine_learns_what_the_agent_had_before_it(self):
        self.wait_near(*self.late(events_replay=self.replay)[::2])

    def test_without_a_replay_it_learns_that_from_its_loads(self):
        engine, context, names = self.late()
        self.assertEqual(engine.near(), set())
        self.assertTrue(engine.job(context, names[:5], list(range(5)), load=True).success)
        self.wait_near(engine, names[:5])

    def test_after_a_restart_of_the_agent_nothing_of_before_is_near(self):
        engine, _, names = self.late(events_replay=self.replay, store_ms=2000)
        self.wait_near(engine, names)
        left = set()

        def store():  # a batch is published
            context, more = engine.request(f"{random.random()}", 1)
            engine.job(context, more, [0], load=False)
            left.update(key for event in engine.tier.take_events()
                        if event.locality.value == "LOCAL" and event.removed for key in event.keys)

        wait_for(lambda: store() or engine.tier._feed._next > 20)
        self.shared.agent.kill()
        self.shared.agent.start()
        self.shared.agent.wait_ready()
        wait_for(lambda: self.shared.agent.metrics()['icms_agent_event_subscribers{volume="kv"}'] > 0)
        self.assertFalse(left.intersection(names))
        wait_for(lambda: store() or left.issuperset(names))


class EventOptions(unittest.TestCase):
    """What operators write as events and events_replay."""

    def setUp(self):
        self.where = tier().where

    def refused(self, **options):
        with self.assertRaises(WrongTier) as refused:
            Engine(self, self.where, kv_events=True, **options)
        self.assertEqual([thread for thread in threading.enumerate() if thread.name == "icms-events"], [])
        return str(refused.exception)

    def test_what_can_be_no_endpoint_ends_the_start(self):
        for wrong in ("kv-events", "ipc://", "ipc://kv-events", "/run/icms/kv-events", "tcp://host", "tcp://host:",
                      "tcp://host:0", "tcp://host:65536", "http://host:80", "unix:/run/icms/agent.sock", None, 5,
                      ["ipc:///run/icms/kv-events"]):
            for option, others in (("events", {}), ("events_replay", {"events": "ipc:///run/a"})):
                with self.subTest(wrong=wrong, option=option):
                    said = self.refused(**{**others, option: wrong})
                    self.assertIn(f"the option {option} is ipc:// with an absolute path or tcp:// with a host "
                                  "and a port", said)
                    self.assertIn(f"not {wrong!r}", said)

    def test_what_zeromq_refuses_ends_the_start(self):
        for wrong in ("tcp://a host:5557", "ipc:///" + "long" * 40):
            for option, others in (("events", {}), ("events_replay", {"events": "ipc:///run/a"})):
                with self.subTest(wrong=wrong, option=option):
                    self.assertRegex(self.refused(**{**others, option: wrong}),
                                     f"cannot connect to '{wrong}', the option {option}: .+; set it")

    def test_one_endpoint_for_both_and_a_replay_alone_end_the_start(self):
        self.assertIn("without events", self.refused(events_replay="ipc:///run/a"))
        self.assertIn("both", self.refused(events="ipc:///run/a", events_replay="ipc:///run/a"))

    def test_a_tier_that_is_refused_later_leaves_no_thread_and_no_socket(self):
        made = []

        class Noted(Feed):
            def __init__(self, *arguments):
                super().__init__(*arguments)
                made.append(self)

        with unittest.mock.patch("icms.vllm.tier.Feed", Noted):
            self.assertIn("nothing", self.refused(events="ipc:///nowhere", events_replay="ipc:///nowhere-replay",
                                                  volume="nothing"))
        self.assertEqual([feed._socket.closed for feed in made], [True])

    def test_without_kv_events_of_vllm_they_are_ignored_and_the_log_says_so(self):
        with self.assertLogs("vllm.icms.tier", logging.WARNING) as said:
            engine = Engine(self, self.where, events="ipc:///run/a", events_replay="ipc:///run/b").wait_up()
            context, names = engine.request("a prompt")
            engine.lookup(context, names)
        about = [line for line in said.output if "the option events is ignored" in line]
        self.assertEqual(len(about), 1, said.output)
        self.assertIn("--kv-events-config", about[0])
        self.assertEqual(engine.events(), [])
        self.assertIsNone(engine.tier._feed)
