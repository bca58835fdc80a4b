# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of every kind give Python exceptions, and the client works as before.

Method: every public call with every value of a list of nasty ones in every place, and objects that
lie, raise and change things while they are asked. A crash would end the whole run.
"""
import itertools
import mmap
import threading
import unittest

import icms
from support import TestCase, VALUE_BYTES, keys


MAP_NORESERVE = 0x4000  # of Linux; the module mmap has it from 3.13 on


class Liar:
    """A sequence that says it is longer, or shorter, than it is."""

    def __init__(self, length, items):
        self.length, self.items = length, items

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.items[index]


class Endless:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return b"k%d" % index

    def __iter__(self):
        return itertools.repeat(b"key")


class Raises:
    def __len__(self):
        raise KeyError("length")

    def __getitem__(self, index):
        raise KeyError("item")

    def __index__(self):
        raise KeyError("index")

    def __dlpack__(self):
        raise KeyError("dlpack")


class BadCapsule:
    def __dlpack__(self):
        return object()


NASTY = [None, True, -1, 0, 1 << 32, 1 << 64, -(1 << 200), 1.5, float("nan"), "", "text", "\0",
         "\ud800", b"", b"x", b"x" * 17, bytearray(3), [], [None], [1], [b""], [[b"x"]], (b"x",),
         {}, {b"x": 1}, {b"x"}, object(), Raises(), BadCapsule(), Liar(5, [b"x"]),
         Liar(1 << 40, [b"x"]), Liar(-1, []), Endless(), lambda: None, type, memoryview(b"abc")[::2],
         [b"x"] * 5000, range(3), iter(()), Exception]


class Hostile(TestCase):
    def works(self):
        name = keys(1)
        self.assertTrue(self.volume.put(name, [b"value"]).ok)
        room = bytearray(5)
        self.assertTrue(self.volume.get(name, [room]).ok)
        self.assertEqual(room, b"value")

    def attempt(self, call, *arguments, **named):
        """Any result and any exception is right, a crash is not; says whether it raised."""
        try:
            call(*arguments, **named)
            return False
        except Exception:
            return True

    def test_every_call_with_every_nasty_value(self):
        volume, raised, made = self.volume, 0, 0
        name, room = keys(1), bytearray(16)
        for nasty in NASTY:
            calls = [(volume.exists, [nasty], {}), (volume.match, [nasty], {}), (volume.match_estimate, [nasty], {}),
                     (volume.remove, [nasty], {}), (volume.prefetch, [nasty], {}),
                     (volume.lease, [nasty], {}), (volume.put, [nasty, [b"x"]], {}),
                     (volume.put, [name, nasty], {}), (volume.put, [name, [nasty]], {}),
                     (volume.get, [nasty, [room]], {}), (volume.get, [name, nasty], {}),
                     (volume.get, [name, [nasty]], {}), (volume.start_get, [name, [nasty]], {}),
                     (volume.start_put, [nasty, nasty], {}), (volume.start_exists, [nasty], {}),
                     (volume.exists, [name], {"deadline_ms": nasty}),
                     (volume.flush, [], {"deadline_ms": nasty}),
                     (self.client.volume, [nasty], {}), (self.client.buffer, [nasty], {}),
                     (icms.key, [nasty], {}), (volume.chain(icms.Layout()).next, [nasty], {}),
                     (icms.Client, [nasty], {}),
                     (icms.Client, [self.tier.where], {"buffer_bytes": nasty}),
                     (icms.Client, [self.tier.where], {"load_deadline_ms": nasty})]
            calls += [(lambda field=field: volume.chain(icms.Layout(**{field: nasty})), [], {})
                      for field in ("tenant", "model", "weights", "dtype", "layout",
                                    "block_tokens", "rank", "ranks")]
            for call, arguments, named in calls:
                if nasty == "" and call is icms.Client and arguments == [""]:
                    continue
                raised += self.attempt(call, *arguments, **named)
                made += 1
        self.assertGreater(raised, made // 2)
        for request in self.client.polled():
            request.result()
        self.works()

    def test_the_private_layer_does_not_crash_either(self):
        from icms import _icms
        raw, name = self.volume._volume, keys(1)
        for nasty in NASTY:
            for op in (nasty, _icms.PUT, _icms.FLUSH, 7, 1 << 31):
                self.attempt(raw.call, op, name, None, 0, 0)
                self.attempt(raw.call, op, nasty, nasty, nasty, nasty)
                self.attempt(raw.call, op, name, [bytearray(3)], 0, 0xffffffff)
                self.attempt(raw.start, op, name, [bytearray(3)], 0, nasty, nasty)
                self.attempt(raw.start, op, nasty, None, 0, 0, nasty)
                self.attempt(raw.chain, nasty, nasty, nasty, nasty, nasty, op, (op,) * 4, nasty)
        while self.client._handle.poll() is not None:
            pass
        self.works()

    def test_numbers_say_their_range(self):
        for number in (-1, 1 << 32):
            with self.assertRaisesRegex(ValueError, "not from 0 to 4294967295"):
                self.volume.exists(keys(1), deadline_ms=number)
        with self.assertRaises(TypeError):
            self.volume.exists(keys(1), deadline_ms=0.5)
        with self.assertRaisesRegex(ValueError, "not from 0 to"):
            self.client.buffer(-1)

    def test_exceptions_of_arguments_come_through(self):
        for batch in (Raises(), Liar(2, [b"x"]), [Raises()]):
            with self.assertRaises((KeyError, IndexError, TypeError)):
                self.volume.exists(batch)
        with self.assertRaises(KeyError):
            self.volume.put(keys(1), [Raises()])
        self.assertLessEqual(self.volume.match(Endless()), 3)

    def test_arguments_that_close_the_client(self):
        class Closer:
            def __init__(self, client):
                self.client = client

            def __len__(self):
                return 1

            def __getitem__(self, index):
                self.client.close()
                return b"key"

        for call in ("exists", "match", "match_estimate", "remove", "prefetch", "start_exists"):
            client = icms.Client(self.tier.where)
            volume = client.volume("kv")
            with self.subTest(call), self.assertRaises(icms.ClosedError):
                getattr(volume, call)(Closer(client))

    def test_threads_that_change_the_arguments(self):
        """Lists that grow and shrink while calls read them."""
        names, rooms, stop = keys(8), [bytearray(64) for _ in range(8)], threading.Event()

        def shake():
            while not stop.is_set():
                names.append(names.pop(0))
                rooms.append(rooms.pop(0))
                names.clear()
                names.extend(keys(8))

        thread = threading.Thread(target=shake)
        thread.start()
        try:
            for _ in range(300):
                self.attempt(self.volume.get, names, rooms)
                self.attempt(self.volume.start_put, names, rooms)
                for request in self.client.polled():
                    request.result()
        finally:
            stop.set()
            thread.join()
        self.works()

    def test_huge_values_are_refused_by_the_tier(self):
        huge = mmap.mmap(-1, 1 << 33, flags=mmap.MAP_PRIVATE | MAP_NORESERVE)
        results = self.volume.put(keys(1), [huge])
        self.assertIn(results[0].status, {icms.Status.VALUE_SIZE, icms.Status.LIMIT})
        name = keys(1)
        self.assertTrue(self.volume.put(name, [bytes(VALUE_BYTES)], on_flash=True).ok)
        self.assertTrue(self.volume.get(name, [huge]).ok)


if __name__ == "__main__":
    unittest.main()
