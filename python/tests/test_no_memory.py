# SPDX-License-Identifier: Apache-2.0
"""Every allocation of Python's that fails gives an exception, and loses nothing.

Method: each call again and again, with its first, second, third, ... allocation failing, until one
goes through. No memory may stay held afterwards, no request may be lost.
"""
import _testcapi
import unittest

import icms
from support import TestCase, keys

ATTEMPTS = 250


class NoMemory(TestCase):
    def attempts(self, call):
        """How many attempts failed before one went through."""
        failed, lost = 0, None
        for number in range(ATTEMPTS):
            _testcapi.set_nomemory(number, number + 1)
            try:
                call()
            except (MemoryError, icms.NoMemoryError):
                failed += 1
            except SystemError as error:  # CPython loses exceptions of Python frames now and then
                lost = error
            finally:
                _testcapi.remove_mem_hooks()
            self.assertNotIn("icms._icms", str(lost))
        return failed

    def test_calls(self):
        names, values = self.put(4, 1024)
        rooms = [bytearray(1024) for _ in names]
        volume, client, layout = self.volume, self.client, icms.Layout(model="m")
        array = memoryview(bytearray(4096)).cast("B", (4, 1024))

        def wrong(call, *arguments):
            try:
                call(*arguments)
            except (ValueError, TypeError, BufferError, icms.Error):
                pass

        def polled():
            volume.start_get(names, rooms)
            while client.poll() is None:
                pass

        calls = {
            "put": lambda: volume.put(names, values), "get": lambda: volume.get(names, rooms),
            "rows": lambda: volume.get(names, array), "match": lambda: volume.match(names),
            "match_estimate": lambda: volume.match_estimate(names),
            "request": lambda: volume.start_get(names, rooms).result(), "polled": polled,
            "lease": lambda: bytes(volume.lease(names[0]).view),
            "buffer": lambda: client.buffer(64).release(), "status": client._handle.status,
            "volume": lambda: client.volume("kv"), "miss": lambda: wrong(volume.lease, b"nobody"),
            "chain": lambda: volume.chain(layout).copy().next(b"x"), "key": lambda: icms.key("k"),
            "client": lambda: icms.Client(self.tier.where).close(),
            "wrong key": lambda: wrong(volume.exists, [b""]),
            "wrong memory": lambda: wrong(volume.get, names, [7] * 4),
        }
        failed = 0
        for name, call in calls.items():
            with self.subTest(name):
                attempts = self.attempts(call)
                self.assertLess(attempts, ATTEMPTS)
                failed += attempts
            for request in client.polled():
                self.assertTrue(request.result().ok)
        self.assertGreater(failed, len(calls))
        for room in rooms:
            room.append(1)  # nothing holds it
        self.assertEqual(volume.match(names), 4)
        self.assertFalse(volume.exists(keys(1)).ok)


if __name__ == "__main__":
    unittest.main()
