# SPDX-License-Identifier: Apache-2.0
"""Events of chunks for routers, and where they come from: without vLLM and without daemons.

Goal: what a router is told is what the agent has, in the order of the agent's events and each once, also
when batches are lost, the engine or the agent is started again, or nobody answers.
Method: the classes of the product; sockets of the test, which publish and replay as those of an agent do.
"""
import hashlib
import logging
import pathlib
import tempfile
import threading
import types
import unittest
import unittest.mock

import vllm_stand_ins as stand_ins
import zmq_stand_ins
from support import GRACE_S, wait_for

stand_ins.install()
zmq_stand_ins.install()
import msgspec  # noqa: E402
import zmq  # noqa: E402
from icms.client import Source  # noqa: E402
from icms.keys import event_hash  # noqa: E402
from icms.vllm.events import Events, Feed, Near  # noqa: E402
from icms.vllm.movers import Counts  # noqa: E402

logger = logging.getLogger("events")
END = (1 << 64) - 1  # the number after a replay


class Agent:
    """The sockets of an agent's events. Batch number n, made at start + n, has an event of block start + n;
    number 0 clears."""

    def __init__(self, test):
        folder = tempfile.TemporaryDirectory(prefix="icms-events-")
        test.addCleanup(folder.cleanup)
        self.endpoint = f"ipc://{pathlib.Path(folder.name) / 'events'}"
        self.replay = f"{self.endpoint}-replay"
        self.pub, self.router = (self.listen(test, *one) for one in (
            (zmq.XPUB, self.endpoint), (zmq.ROUTER, self.replay)))
        self.start = 1000

    @staticmethod
    def listen(test, kind, endpoint):
        socket = zmq.Context.instance().socket(kind)
        test.addCleanup(socket.close)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(endpoint)
        return socket

    def batch(self, number):
        event = {"type": "AllBlocksCleared"} if number == 0 else {
            "type": "BlockStored", "medium": "CPU", "block_hashes": [self.start + number]}
        return [number.to_bytes(8, "big"), msgspec.msgpack.encode([float(self.start + number), [event], 0])]

    def wait_subscribed(self):
        assert self.pub.poll(GRACE_S * 1000)
        assert self.pub.recv_multipart() == [b"\1"]

    def publish(self, *numbers):
        for number in numbers:
            self.pub.send_multipart([b"kv@a@kv", *self.batch(number)])

    def asked(self):
        """(who asks for a replay, from which number on)"""
        assert self.router.poll(GRACE_S * 1000)
        peer, empty, number = self.router.recv_multipart()
        assert empty == b""
        return peer, int.from_bytes(number, "big")

    def answer(self, peer, *numbers, is_whole=True):
        for number in numbers:
            self.router.send_multipart([peer, b"", b"kv@a@kv", *self.batch(number)])
        if is_whole:
            self.router.send_multipart([peer, b"", b"", END.to_bytes(8, "big"), b""])


class Heard:
    """Takes what a feed has in the place of a Near: block numbers, 0 for "cleared", None for "missed"."""

    def __init__(self):
        self.blocks = []

    def heard(self, event):
        self.blocks.append(event and event.get("block_hashes", [0])[0])


class Feeds(unittest.TestCase):
    """From an agent's sockets to the scheduler's thread."""

    def setUp(self):
        self.agent = Agent(self)
        self.to = Heard()

    def feed(self, replay=True):
        self.counts = Counts()
        self.of = Feed(self.agent.endpoint, self.agent.replay if replay else "", self.counts, logger)
        self.addCleanup(self.of.close)
        self.agent.wait_subscribed()

    def expect(self, *blocks):
        """This is all that was heard since the last time."""
        def is_there():
            self.of.take(self.to)
            return len(self.to.blocks) >= len(blocks)

        wait_for(is_there)
        found, self.to.blocks = self.to.blocks, []
        self.assertEqual(found, list(blocks))

    def followed(self):
        """A feed that has heard batches 0 to 3."""
        self.feed()
        peer, number = self.agent.asked()
        self.assertEqual(number, 0)
        self.agent.answer(peer, 0, 1, 2, 3)
        self.expect(0, 1001, 1002, 1003)

    def test_who_subscribes_late_hears_what_was_before_and_nothing_twice(self):
        self.feed()
        peer, number = self.agent.asked()
        self.assertEqual(number, 0)
        self.agent.publish(2, 3)  # meanwhile
        self.agent.answer(peer, 0, 1, 2, 3)
        self.agent.publish(4)
        self.expect(0, 1001, 1002, 1003, 1004)

    def test_what_was_published_behind_a_replay_is_heard_behind_it(self):
        self.feed()
        peer, _ = self.agent.asked()
        self.agent.publish(1, 2, 3)
        self.agent.answer(peer, 0, 1)
        self.expect(0, 1001, 1002, 1003)

    def test_what_is_not_kept_any_more_was_missed(self):
        self.feed()
        peer, _ = self.agent.asked()
        self.agent.answer(peer, 5, 6)
        self.expect(None, 1005, 1006)

    def test_a_gap_is_filled(self):
        self.followed()
        self.agent.publish(4, 7, 8)
        peer, number = self.agent.asked()
        self.assertEqual(number, 4)
        self.agent.answer(peer, 4, 5, 6, 7, 8)
        self.agent.publish(9)
        self.expect(1004, 1005, 1006, 1007, 1008, 1009)

    def test_a_gap_that_is_too_old_is_told(self):
        self.followed()
        self.agent.publish(20)
        peer, number = self.agent.asked()
        self.assertEqual(number, 3)
        self.agent.answer(peer, 19, 20)
        self.agent.publish(21)
        self.expect(None, 1019, 1020, 1021)

    def test_a_number_that_no_batch_has_is_told(self):
        self.followed()
        self.agent.publish(5)
        self.agent.answer(self.agent.asked()[0], 3, 5, 6, 8)
        self.expect(None, 1005, 1006, None, 1008)

    def test_an_agent_that_was_restarted_is_heard_from_its_beginning(self):
        self.followed()
        self.agent.start = 2000
        self.agent.publish(1)
        peer, number = self.agent.asked()
        self.assertEqual(number, 0)
        self.agent.answer(peer, 0, 1, 2)
        self.expect(0, 2001, 2002)

    def test_an_agent_that_was_restarted_and_has_published_more_is_recognized(self):
        self.followed()
        self.agent.start = 2000
        self.agent.publish(9)
        peer, number = self.agent.asked()
        self.assertEqual(number, 3)
        self.agent.answer(peer, *range(3, 10))
        self.expect(None, *range(2003, 2010))

    def test_a_silent_replay_is_given_up_and_told_once(self):
        now = [0.0]
        clock = types.SimpleNamespace(monotonic=lambda: now[0])
        with unittest.mock.patch("icms.vllm.events.time", clock), self.assertLogs(logger) as said:
            self.feed()
            self.agent.asked()
            self.agent.publish(5)
            now[0] += Feed.REPLAY_SECONDS
            self.agent.asked()
            now[0] += Feed.REPLAY_SECONDS
            self.expect(None, 1005)
            self.agent.publish(6, 8, 10)
            peer, number = self.agent.asked()
            self.assertEqual(number, 6)
            self.agent.answer(peer, 6, 7, is_whole=False)
            self.expect(1006, 1007)
            now[0] += Feed.REPLAY_SECONDS
            self.expect(1008)
            self.agent.answer(self.agent.asked()[0], 8, 9, 10)
            self.expect(1009, 1010)
        self.assertEqual(len(said.output), 1, said.output)
        self.assertIn(f"cannot read from {self.agent.replay} what the agent has published", said.output[0])

    def test_a_feed_ends_while_it_waits_for_a_replay(self):
        with unittest.mock.patch.object(Feed, "REPLAY_SECONDS", 10 * GRACE_S):
            self.feed()
            self.agent.asked()
            self.of.close()
        self.assertFalse(self.of._thread.is_alive())
        self.assertTrue(self.of._socket.closed)
        self.assertNotIn("icms-events", [thread.name for thread in threading.enumerate()])
        self.expect(None)

    def test_without_a_replay_what_was_before_and_a_gap_were_missed(self):
        self.feed(replay=False)
        self.agent.publish(4, 5, 7)
        self.expect(None, 1004, 1005, None, 1007)
        self.agent.start = 2000
        self.agent.publish(1)
        self.expect(None, 2001)
        self.assertFalse(self.agent.router.poll(0))

    def test_what_found_no_space_is_asked_for_when_there_is_some(self):
        seen, is_full = [], Feed._is_full

        def noted(feed):
            seen.append(is_full(feed))
            return seen[-1]

        with unittest.mock.patch.multiple(Feed, WAITING_MAX=3, _is_full=noted):
            self.feed()
            self.agent.answer(self.agent.asked()[0], *range(10))
            wait_for(lambda: seen.count(True) == 1)
            self.agent.publish(10)
            wait_for(lambda: seen.count(True) == 2)
            self.expect(0, 1001, 1002, 1003)
            self.agent.publish(11)
            peer, number = self.agent.asked()
            self.assertEqual(number, 3)
            self.agent.answer(peer, 3, 4, 5)
            self.expect(1004, 1005, None, 1011)

    def no_batches(self):
        """Frames behind the topic that are none, as batch number 4."""
        stored, four = {"type": "BlockStored", "medium": "CPU"}, (4).to_bytes(8, "big")
        fine = msgspec.msgpack.encode([2000.0, [], 0])
        payloads = (b"\xc1", *map(msgspec.msgpack.encode, (
            1, [1.0], [1.0, 5, 0], [1.0, ["x"], 0], [1.0, [{}], 0], [1.0, [stored], 0], ["x", [], 0],
            [1.0, [{**stored, "block_hashes": 5}], 0],
            [1.0, [{**stored, "block_hashes": [5]}, {**stored, "block_hashes": [[5]]}], 0])))
        return [[four, payload] for payload in payloads] + [[four[:3], fine], [four + four, fine]]

    def test_what_is_no_batch_is_skipped_and_was_missed(self):
        wrong = [*self.no_batches(), [], [b""], [b"", b""]]
        self.feed(replay=False)
        self.agent.publish(3)
        self.expect(None, 1003)
        with self.assertLogs(logger) as said:
            for frames in wrong:
                self.agent.pub.send_multipart([b"kv@a@kv", *frames])
            self.agent.publish(5)
            self.expect(None, 1005)
        self.assertEqual(len(said.output), 1, said.output)
        self.assertIn("a batch of the agent's events cannot be read", said.output[0])
        self.assertEqual(self.counts.take(), {("skipped_events", "malformed"): len(wrong)})
        self.of.loaded(b"name" * 9, Source.DRAM)
        self.expect(event_hash(b"name" * 9))

    def test_a_batch_that_cannot_be_read_is_asked_for_again_once(self):
        for frames in self.no_batches():
            with self.subTest(frames):
                self.setUp()
                self.followed()
                with self.assertLogs(logger) as said:
                    self.agent.pub.send_multipart([b"kv@a@kv", *frames])
                    self.agent.publish(5)
                    peer, number = self.agent.asked()
                    self.assertEqual(number, 3)
                    self.agent.answer(peer, 3, is_whole=False)
                    self.agent.router.send_multipart([peer, b"", b"kv@a@kv", *frames])
                    self.agent.answer(peer, 5)
                    self.agent.publish(6)
                    self.expect(None, 1005, 1006)
                self.assertEqual(len(said.output), 1, said.output)
                self.assertEqual(self.counts.take(), {("skipped_events", "malformed"): 2})
                self.assertFalse(self.agent.router.poll(0))

    def test_what_is_whole_in_the_replay_was_not_missed(self):
        self.followed()
        with self.assertLogs(logger):
            self.agent.pub.send_multipart([b"kv@a@kv", (4).to_bytes(8, "big"), b"cut"])
            self.agent.publish(5)
            self.agent.answer(self.agent.asked()[0], 3, 4, 5)
            self.expect(1004, 1005)

    def test_an_event_of_another_kind_is_left_out(self):
        self.followed()
        payload = msgspec.msgpack.encode([2000.0, [
            {"type": "BlockMoved"}, {"type": "BlockStored", "medium": "CPU", "block_hashes": [7], "more": 1}], 0])
        self.agent.pub.send_multipart([b"kv@a@kv", (4).to_bytes(8, "big"), payload])
        self.expect(7)

    def test_of_a_large_batch_a_part_is_taken_at_a_time(self):
        self.followed()
        event = {"type": "BlockStored", "medium": "CPU", "block_hashes": list(range(1000))}
        near, found = Near(), []
        for number in range(1000):
            near.know(number.to_bytes(16, "big"), number.to_bytes(16, "big"))
        self.agent.pub.send_multipart([b"kv@a@kv", (4).to_bytes(8, "big"),
                                       msgspec.msgpack.encode([2000.0, [event], 0])])
        wait_for(lambda: self.of._waiting.qsize() == -(-1000 // Feed.HASHES_MAX))
        with unittest.mock.patch.object(Feed, "TAKE_MAX", 2):
            self.of.take(near)
            found += near.take()
            self.assertEqual(len(found), 2 * Feed.HASHES_MAX)
        self.of.take(near)
        found += near.take()
        self.assertEqual([int.from_bytes(key, "big") for event in found for key in event.keys],
                         list(range(1000)))

    def test_what_a_load_found_in_the_agents_tiers_is_near(self):
        self.feed(replay=False)
        near, names = Near(), [bytes([i]) * 36 for i in range(4)]
        for name, source in zip(names, (Source.DRAM, Source.LOCAL, Source.POD, Source.NONE)):
            near.know(name[:32], name)
            self.of.loaded(name, source)
        self.of.take(near)
        self.assertEqual([event.keys for event in near.take()], [[name[:32]] for name in names[:2]])
        for name, medium in zip(names, ("CPU", "STORAGE")):
            near.heard({"type": "BlockRemoved", "medium": medium, "block_hashes": [event_hash(name)]})
        self.assertEqual([(event.keys, event.removed) for event in near.take()],
                         [([name[:32]], True) for name in names[:2]])


class Nearby(unittest.TestCase):
    """What routers learn of chunks in the agent's own tiers."""

    NAMES = [bytes([i]) * 36 for i in range(4)]
    KEYS = [bytes([i]) * 32 + b"\0\0\0\0" for i in range(4)]

    def said(self, near):
        events = near.take()
        for event in events:
            self.assertEqual((event.locality.value, event.medium.value, event.ownership),
                             ("LOCAL", "STORAGE", None))
            self.assertNotEqual(event.removed, event.removal_expected)
        return [(event.removed, *event.keys) for event in events]

    @staticmethod
    def event(kind, medium, *names):
        return {"type": kind, "medium": medium, "block_hashes": [event_hash(name) for name in names]}

    def test_a_chunk_is_followed_through_the_tiers(self):
        near, (one, two, *_), (key, other, *_) = Near(), self.NAMES, self.KEYS
        near.know(key, one)
        near.heard(self.event("BlockStored", "CPU", one, two))
        self.assertEqual(self.said(near), [(False, key)])  # nobody knows the other one's name yet
        near.know(other, two)
        near.know(other, two)
        self.assertEqual(self.said(near), [(False, other)])
        near.heard(self.event("BlockStored", "STORAGE", one))
        near.heard(self.event("BlockStored", "CPU", one))  # again
        near.heard(self.event("BlockRemoved", "CPU", one))
        near.heard(self.event("BlockRemoved", "CPU", one))
        self.assertEqual(self.said(near), [])  # it moved, and is near as before
        near.heard(self.event("BlockRemoved", "STORAGE", one))
        near.heard(self.event("BlockRemoved", "STORAGE", one))
        self.assertEqual(self.said(near), [(True, key)])

    def test_what_was_missed_and_what_was_cleared_left(self):
        for last in (None, {"type": "AllBlocksCleared"}):
            near, (one, *_), (key, *_) = Near(), self.NAMES, self.KEYS
            near.know(key, one)
            near.heard(self.event("BlockStored", "CPU", one))
            near.heard(self.event("BlockStored", "STORAGE", one))
            near.heard(last)
            near.heard(self.event("BlockRemoved", "CPU", one))
            self.assertEqual(self.said(near), [(False, key), (True, key)])

    def test_names_of_before_are_not_told(self):
        near, (one, *_), (key, other, *_) = Near(), self.NAMES, self.KEYS
        near.know(key, one)
        near.heard(self.event("BlockStored", "CPU", one))
        near.forget()
        near.heard(self.event("BlockRemoved", "CPU", one))
        self.assertEqual(self.said(near), [(False, key), (True, key)])
        near.know(other, one)
        self.assertEqual(self.said(near), [])

    def test_what_is_remembered_is_bounded(self):
        near, there = Near(keys_max=100), set()
        for i in range(1000):
            name = hashlib.sha256(bytes([i & 255, i >> 8])).digest() + b"more"
            near.know(name[:32] + b"\0\0\0\0", name)
            near.heard(self.event("BlockStored", "CPU", name))
        for removed, key in self.said(near):
            (there.remove if removed else there.add)(key)
        self.assertTrue(90 < len(there) <= 100)


class Remembered(unittest.TestCase):
    """What is known of chunks in the pod."""

    def test_what_is_remembered_is_bounded(self):
        events = Events(keys_max=1000)
        keys = [bytes([i & 255, i >> 8]) for i in range(2500)]
        for at in range(0, 2500, 100):
            events.stored(keys[at:at + 100])
        there = set()
        for event in events.take():
            (there.difference_update if event.removed else there.update)(event.keys)
        self.assertEqual(there, set(keys[1500:]))
        events.stored(keys)  # in one event more than are remembered
        events.clear()
        for event in events.take():
            (there.difference_update if event.removed else there.update)(event.keys)
        self.assertEqual(there, set())
        events.removed(keys)
        self.assertEqual(events.take(), [])


if __name__ == "__main__":
    unittest.main()
