# SPDX-License-Identifier: Apache-2.0
"""Misses come in time when an enclosure or the agent has stopped, and say why.

A pod of their own: what is stopped here must not slow other tests.
"""
import asyncio
import signal
import time
import unittest

import icms
import icms.aio
from support import DISTANT_MS, GRACE_S, Tier, VALUE_BYTES, keys, value


class Deadlines(unittest.TestCase):
    def setUp(self):
        self.tier = Tier()
        self.addCleanup(self.tier.end)
        self.client = icms.Client(self.tier.where, load_deadline_ms=300, store_deadline_ms=300)
        self.addCleanup(self.client.close)
        self.volume = self.client.volume("kv")
        self.names = keys(6)
        values = [value(name) for name in self.names]
        self.assertTrue(self.volume.put(self.names, values, on_flash=True, deadline_ms=1000 * GRACE_S).ok)
        # They leave the agent's memory.
        more = keys(140)
        self.assertTrue(self.volume.put(more, [value(1)] * 140, on_flash=True,
                                        deadline_ms=1000 * GRACE_S).ok)

    def resume(self, daemon):
        daemon.signal(signal.SIGCONT)
        give_up = time.monotonic() + GRACE_S
        rooms = [bytearray(VALUE_BYTES) for _ in self.names]
        while not (results := self.volume.get(self.names, rooms)).ok:
            self.assertLess(time.monotonic(), give_up, list(results))
            time.sleep(0.02)
        self.assertEqual([bytes(room) for room in rooms], [value(name) for name in self.names])

    def test_a_stopped_enclosure(self):
        rooms = [bytearray(VALUE_BYTES) for _ in self.names]
        self.tier.target.stand_still()
        begin = time.monotonic()
        results = self.volume.get(self.names, rooms)
        self.assertLess(time.monotonic() - begin, GRACE_S)
        self.assertEqual(results.hits, 0)
        self.assertLessEqual(set(results.reasons()),
                             {icms.Miss.DEADLINE, icms.Miss.ENCLOSURE_DOWN})
        with self.assertRaises(icms.MissError) as miss:
            self.volume.lease(self.names[0])
        self.assertIn(miss.exception.reason, {icms.Miss.DEADLINE, icms.Miss.ENCLOSURE_DOWN})
        put = self.volume.put(keys(1), [value(2)], on_flash=True)
        self.assertFalse(put.ok)
        self.resume(self.tier.target)

    def test_a_stopped_agent(self):
        self.tier.agent.stand_still()
        rooms = [bytearray(VALUE_BYTES) for _ in self.names]
        begin = time.monotonic()
        results = self.volume.get(self.names, rooms)
        waited = time.monotonic() - begin
        self.assertEqual(results.reasons(), {icms.Miss.DEADLINE: 6})
        self.assertGreater(waited, 0.29)
        self.assertLess(waited, GRACE_S)
        self.assertEqual(self.volume.put(keys(1), [value(2)])[0].status, icms.Status.DEADLINE)
        with self.assertRaises(icms.DeadlineError):
            self.volume.flush()

        async def awaited():
            volume = icms.aio.Volume(self.volume)
            results = await volume.get(self.names, rooms)
            self.assertEqual(results.reasons(), {icms.Miss.DEADLINE: 6})

        asyncio.run(awaited())
        self.resume(self.tier.agent)

    def test_a_request_that_is_cancelled_frees_its_memory(self):
        self.tier.target.stand_still()
        room = bytearray(VALUE_BYTES)
        request = self.volume.start_get(self.names[:1], [room], deadline_ms=DISTANT_MS)
        self.assertFalse(request.wait(50))
        self.assertFalse(request.done)
        self.assertRaises(BufferError, room.append, 1)
        self.assertRaises(icms.BusyError, request._request.result)
        begin = time.monotonic()
        request.cancel()
        self.assertTrue(request.wait(1000 * GRACE_S))
        self.assertLess(time.monotonic() - begin, GRACE_S)
        self.assertIn(request.result()[0].status, {icms.Status.CANCELED, icms.Status.MISS})
        room.append(1)

        async def cancelled():
            volume = icms.aio.Volume(self.volume)
            rooms = [bytearray(VALUE_BYTES)]
            task = asyncio.create_task(volume.get(self.names[1:2], rooms, deadline_ms=DISTANT_MS))
            await asyncio.sleep(0.05)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(volume.drain(), GRACE_S)
            rooms[0].append(1)

        asyncio.run(cancelled())
        self.resume(self.tier.target)

    def test_a_dead_agent_and_its_successor(self):
        self.tier.agent.kill()
        room = [bytearray(VALUE_BYTES)]
        with self.assertRaises(icms.PeerDownError) as down:
            self.volume.get(keys(1), room)
        self.assertTrue(down.exception.retry)
        with self.assertRaises(icms.PeerDownError):
            self.volume.start_get(keys(1), room).result()
        self.tier.agent.start()
        self.tier.agent.wait_ready()
        give_up = time.monotonic() + GRACE_S
        while True:
            try:
                results = self.volume.get(self.names[:1], room)
                if results.ok:
                    break
            except icms.PeerDownError:
                pass
            self.assertLess(time.monotonic(), give_up)
            time.sleep(0.05)
        self.assertEqual(bytes(room[0]), value(self.names[0]))


if __name__ == "__main__":
    unittest.main()
