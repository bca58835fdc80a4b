# SPDX-License-Identifier: Apache-2.0
"""Requests: with a descriptor and poll(), waited for, cancelled, and from asyncio."""
import asyncio
import select
import threading
import unittest

import icms
import icms.aio
from support import TestCase, VALUE_BYTES, keys, value


class Requests(TestCase):
    def drain(self, count):
        """Polls until so many requests were found; they must come by their deadlines."""
        found = []
        while len(found) < count:
            ready, _, _ = select.select([self.client], [], [], 10)
            self.assertTrue(ready, f"{len(found)} of {count} came")
            found += self.client.polled()
        self.assertIsNone(self.client.poll())
        return found

    def test_the_descriptor_tells_when_requests_are_over(self):
        names, values = self.put(12)
        rooms = [bytearray(VALUE_BYTES) for _ in names]
        started = [self.volume.start_get([name], [room], tag=i)
                   for i, (name, room) in enumerate(zip(names, rooms))]
        started.append(self.volume.start_exists(names + keys(1), tag="exists"))
        started.append(self.volume.start_prefetch(names, tag="prefetch"))
        started.append(self.volume.start_flush(tag="flush"))
        found = self.drain(len(started))
        self.assertEqual({request.tag for request in found}, {*range(12), "exists", "prefetch",
                                                              "flush"})
        self.assertEqual({id(request) for request in found}, {id(request) for request in started})
        for request in found:
            self.assertTrue(request.done)
            self.assertEqual(request.result().ok, request.tag != "exists")
        self.assertEqual([bytes(room) for room in rooms], values)
        self.assertEqual(started[12].result().prefix, 12)

    def test_a_request_that_was_waited_for_is_not_polled(self):
        names = keys(4)
        requests = [self.volume.start_put([name], [value(name)], on_flash=True) for name in names]
        for request in requests:
            self.assertTrue(request.wait())
            self.assertTrue(request.wait(0))
            self.assertTrue(request.result().ok)
        self.assertIsNone(self.client.poll())
        self.assertTrue(self.volume.start_remove(names).result().ok)
        self.assertEqual(self.volume.match(names), 0)

    def test_poll_and_wait_of_many_threads_find_each_request_once(self):
        names, _ = self.put(8)
        started, polled, lock = [], [], threading.Lock()
        stop = threading.Event()

        def poller():
            while not stop.is_set() or self.client.poll() is not None:
                for request in self.client.polled():
                    with lock:
                        polled.append(request)

        def starter():
            for i in range(200):
                request = self.volume.start_get([names[i % 8]], [bytearray(VALUE_BYTES)], tag=i)
                with lock:
                    started.append(request)
                if i % 3 == 0:
                    request.wait()

        pollers = [threading.Thread(target=poller) for _ in range(2)]
        starters = [threading.Thread(target=starter) for _ in range(2)]
        for thread in pollers + starters:
            thread.start()
        for thread in starters:
            thread.join()
        for request in started:
            request.wait()
        stop.set()
        for thread in pollers:
            thread.join()
        self.assertEqual(len(started), 400)
        self.assertTrue(all(request.result().ok for request in started))
        self.assertEqual(len({id(request) for request in polled}), len(polled))
        # Those that were not waited for early have all been found by somebody.
        self.assertTrue(all(request.done for request in started))

    def test_too_many_requests_are_refused(self):
        requests = []
        with self.assertRaises(icms.LimitError):
            while len(requests) < 100000:
                requests.append(self.volume.start_exists(keys(1)))
        for request in requests:
            self.assertFalse(request.result().ok)
        self.assertFalse(self.volume.start_exists(keys(1)).result().ok)

    def test_a_request_that_was_dropped_goes_on_and_is_found(self):
        name = keys(1)
        self.volume.start_put(name, [value(3)], tag="dropped")
        found = self.drain(1)
        self.assertEqual(found[0].tag, "dropped")
        self.assertTrue(self.volume.exists(name).ok)

    def test_closing_ends_requests_and_keeps_their_results(self):
        client = icms.Client(self.tier.where)
        names, values = self.put(3)
        rooms = [bytearray(VALUE_BYTES) for _ in names]
        request = client.volume("kv").start_get(names, rooms)
        client.close()
        self.assertTrue(request.done)
        self.assertTrue(request.result().ok)
        self.assertEqual([bytes(room) for room in rooms], values)
        rooms[0].append(1)  # not held any more
        self.assertRaises(icms.ClosedError, client.poll)
        self.assertRaises(icms.ClosedError, client.fileno)
        request.cancel()


class Asyncio(TestCase):
    def setUp(self):
        super().setUp()
        self.aio = icms.aio.Volume(self.volume)

    def test_every_call_can_be_awaited(self):
        async def calls():
            names = keys(10)
            values = [value(name) for name in names]
            results = await self.aio.put(names, values, on_flash=True)
            self.assertTrue(results.ok)
            await self.aio.flush()
            self.assertEqual(await self.aio.match(names + keys(1)), 10)
            self.assertTrue((await self.aio.exists(names)).ok)
            self.assertTrue((await self.aio.prefetch(names)).ok)
            rooms = [bytearray(VALUE_BYTES) for _ in names]
            self.assertTrue((await self.aio.get(names, rooms)).ok)
            self.assertEqual([bytes(room) for room in rooms], values)
            self.assertTrue((await self.aio.put(names[:1], values[:1], if_absent=True))[0].status
                            is icms.Status.EXISTS)
            self.assertTrue((await self.aio.remove(names)).ok)
            self.assertEqual(await self.aio.match(names), 0)
            self.assertEqual(await self.aio.match([]), 0)
            with self.assertRaises(ValueError):
                await self.aio.get(names, [])

        asyncio.run(calls())

    def test_many_at_once_and_other_tasks_run_meanwhile(self):
        names, values = self.put(60)
        turns = 0

        async def one(i):
            room = bytearray(VALUE_BYTES)
            results = await self.aio.get([names[i % 60]], [room])
            self.assertTrue(results.ok)
            self.assertEqual(bytes(room), values[i % 60])

        async def other():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async def all_of_them():
            task = asyncio.create_task(other())
            await asyncio.gather(*(one(i) for i in range(600)))
            task.cancel()

        asyncio.run(all_of_them())
        self.assertGreater(turns, 1)
        self.assertEqual(self.client._bridges.popitem()[1].fd, -1)

    def test_loops_of_two_threads_and_poll_share_a_client(self):
        names, values = self.put(8)
        failures = []

        async def gets():
            for i in range(100):
                room = bytearray(VALUE_BYTES)
                if not (await self.aio.get([names[i % 8]], [room])).ok or room != values[i % 8]:
                    failures.append(i)

        threads = [threading.Thread(target=asyncio.run, args=(gets(),)) for _ in range(2)]
        raw = [self.volume.start_exists(names, tag=i) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            self.assertFalse(thread.is_alive())
        self.assertFalse(failures)
        found = []
        while len(found) < 20:
            select.select([self.client], [], [], 0.1)
            found += self.client.polled()
        self.assertEqual({request.tag for request in found}, set(range(20)))
        self.assertTrue(all(request.result().ok for request in raw))

    def test_closing_wakes_who_awaits(self):
        async def call():
            task = asyncio.create_task(self.aio.exists(keys(100)))
            await asyncio.sleep(0)
            self.client.close()
            self.assertEqual((await asyncio.wait_for(task, 10)).hits, 0)
            with self.assertRaises(icms.ClosedError):
                await self.aio.exists(keys(1))

        asyncio.run(call())


if __name__ == "__main__":
    unittest.main()
