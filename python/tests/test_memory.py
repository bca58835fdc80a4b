# SPDX-License-Identifier: Apache-2.0
"""Memory: what blocks are read from and loaded into, leases and shared buffers."""
import array
import ctypes
import gc
import mmap
import unittest

import icms
from support import TestCase, VALUE_BYTES, keys, value

PyCapsule_New = ctypes.pythonapi.PyCapsule_New
PyCapsule_New.restype = ctypes.py_object
PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Tensor:
    """A tensor of int16 that knows DLPack and nothing else, over a bytearray."""

    class Managed(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                    ("device_id", ctypes.c_int32), ("dimensions", ctypes.c_int32),
                    ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                    ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                    ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
                    ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

    def __init__(self, room, shape, strides=None, device=1, offset=0):
        self.room = room
        place = ctypes.addressof((ctypes.c_char * len(room)).from_buffer(room))
        numbers = ctypes.c_int64 * len(shape)
        self.keep = [numbers(*shape), numbers(*strides) if strides else None]
        self.managed = self.Managed(
            place, device, 0, len(shape), 0, 16, 1,
            ctypes.cast(self.keep[0], ctypes.POINTER(ctypes.c_int64)),
            ctypes.cast(self.keep[1], ctypes.POINTER(ctypes.c_int64)) if strides else None, offset)

    def __dlpack__(self):
        return PyCapsule_New(ctypes.addressof(self.managed), b"dltensor", None)


class Tensors:
    """A tensor of more dimensions that knows DLPack and its rows, as PyTorch's do."""

    def __init__(self, rows):
        self.rows = rows

    def __dlpack__(self):
        raise AssertionError("its rows are the blocks")

    def __iter__(self):
        return iter(self.rows)


class Blocks(TestCase):
    def test_every_kind_of_memory(self):
        data = value(1, 4096)
        area = mmap.mmap(-1, 8192)
        area[:4096] = data
        sources = [data, bytearray(data), memoryview(data), array.array("d", data),
                   memoryview(area)[:4096], (ctypes.c_uint32 * 1024).from_buffer_copy(data),
                   memoryview(data).cast("B", (64, 64)),
                   Tensor(bytearray(data), (2, 1024)),
                   Tensor(bytearray(b"ab" + data), (2048,), offset=2)]
        names = keys(len(sources))
        self.assertTrue(self.volume.put(names, sources).ok)
        rooms = [bytearray(4096), memoryview(bytearray(4096)), array.array("d", bytes(4096)),
                 area, memoryview(mmap.mmap(-1, 4096)), (ctypes.c_uint32 * 1024)(),
                 memoryview(bytearray(4096)).cast("B", (64, 64)),
                 Tensor(bytearray(4096), (2, 1024), (1024, 1)),
                 Tensor(bytearray(4096), (2, 1, 1024), (1024, 7, 1))]
        results = self.volume.get(names, rooms)
        self.assertTrue(results.ok, list(results))
        for room in rooms:
            self.assertEqual(bytes(memoryview(getattr(room, "room", room)).cast("B"))[:4096], data)

    def test_memory_that_cannot_be_used_is_named(self):
        flat = memoryview(bytearray(4096))
        good = bytearray(64)
        cases = [(bytes(64), BufferError, "block 1: bytes is not writable memory"),
                 (flat.toreadonly(), BufferError, "block 1: memoryview is not writable"),
                 (flat[::2], BufferError, "block 1: memoryview .* C-contiguous"),
                 (bytearray(), BufferError, "block 1: bytearray .* empty"),
                 ("text", TypeError, "block 1: str is not writable"),
                 (7, TypeError, "block 1: int is not writable"),
                 (None, TypeError, "block 1: NoneType is not writable"),
                 (Tensor(bytearray(64), (4, 4), (1, 4)), BufferError, "not C-contiguous"),
                 (Tensor(bytearray(64), (4,), device=7), BufferError, "on a device")]
        names = keys(2)
        for memory, kind, text in cases:
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                self.volume.get(names, [good, memory])
            good += b"x"  # nothing holds the first block's memory any more: it can grow
            del good[-1]
        with self.assertRaisesRegex(BufferError, "block 0: memoryview is not readable memory"):
            self.volume.put(names[:1], [flat[::2]])
        with self.assertRaisesRegex(ValueError, "2 keys and memory of 1 blocks"):
            self.volume.get(names, [good])
        with self.assertRaisesRegex(TypeError, "one entry a block.*of 1 dimensions"):
            self.volume.get(names[:1], good)

    def test_one_array_for_a_whole_batch(self):
        names, data = keys(4), value(9, 4096)
        self.assertTrue(self.volume.put(names, memoryview(data).cast("B", (4, 1024))).ok)
        room = bytearray(4096)
        results = self.volume.get(names, memoryview(room).cast("I", (4, 16, 16)))
        self.assertEqual((results.ok, {block.nbytes for block in results}), (True, {1024}))
        self.assertEqual(room, data)
        request = self.volume.start_get(names[::-1], memoryview(room).cast("B", (4, 1024)))
        self.assertTrue(request.result().ok)
        self.assertEqual(room[:1024], data[3072:])
        tensor = Tensors([Tensor(bytearray(1024), (512,)) for _ in names])
        self.assertTrue(self.volume.get(names, tensor).ok)
        self.assertEqual(b"".join(row.room for row in tensor), data)
        self.assertTrue(self.volume.start_put(names, tensor).result().ok)
        for wrong in (memoryview(room).cast("B", (8, 512)),
                      memoryview(room).cast("B", (2, 2048))):
            with self.assertRaisesRegex(ValueError, "4 keys and memory of [28] blocks"):
                self.volume.get(names, wrong)
        del wrong
        with self.assertRaisesRegex(BufferError, "not writable"):
            self.volume.get(names, memoryview(data).cast("B", (4, 1024)))
        room.append(1)

    def test_memory_is_held_until_a_request_is_over(self):
        names, values = self.put(1)
        room = bytearray(VALUE_BYTES)
        request = self.volume.start_get(names, [room])
        if not request.done:
            self.assertRaises(BufferError, room.append, 1)
        self.assertTrue(request.result().ok)
        self.assertEqual(bytes(room), values[0])
        room.append(1)

    def test_keys_that_are_none(self):
        for key, kind, text in [(b"", ValueError, "1 to 16 bytes or 36, not 0"),
                                (b"x" * 17, ValueError, "block 0: a key has 1 to 16 bytes or 36, not 17"),
                                ("", ValueError, "1 to 16 bytes or 36, not 0"), (1, TypeError, "a key is")]:
            with self.subTest(key), self.assertRaisesRegex(kind, text):
                self.volume.exists([key])
        for batch in (7, None, {b"a"}, iter([b"a"]), (b for b in [b"a"])):
            with self.subTest(batch), self.assertRaisesRegex(TypeError, "one entry a block"):
                self.volume.exists(batch)
        for key in (b"abc", "abc"):  # one key, where a batch belongs
            with self.subTest(key), self.assertRaisesRegex(TypeError, "one entry a block"):
                self.volume.start_exists(key)


class Leases(TestCase):
    def test_a_lease_shows_the_block_in_place(self):
        names, values = self.put(1)
        before = self.metric("icms_agent_arena_leased_slots")
        lease = self.volume.lease(names[0])
        with lease as view:
            self.assertEqual(bytes(view), values[0])
            self.assertTrue(view.readonly)
            self.assertEqual(lease.nbytes, VALUE_BYTES)
            self.assertEqual(self.metric("icms_agent_arena_leased_slots"), before + 1)
            with self.assertRaises(TypeError):
                view[0] = 1
        self.assertTrue(lease.released)
        self.assertRaises(ValueError, lambda: view[0])
        self.assertRaises(BufferError, lambda: lease.view)
        self.assertEqual(self.metric("icms_agent_arena_leased_slots"), before)
        lease.release()

    def test_no_view_outlives_its_lease(self):
        names, values = self.put(1)
        before = self.metric("icms_agent_arena_leased_slots")
        with self.assertRaisesRegex(BufferError, "1 views of this memory still exist"):
            with self.volume.lease(names[0]) as view:
                part = view[100:200]
        self.put(140)  # the arena is filled over and over
        self.assertEqual(bytes(part), values[0][100:200])
        self.assertEqual(self.metric("icms_agent_arena_leased_slots"), before + 1)
        del part
        self.assertEqual(self.metric("icms_agent_arena_leased_slots"), before)

    def test_arrays_made_from_a_view_keep_it_too(self):
        names, values = self.put(1)
        lease = self.volume.lease(names[0])
        numbers = memoryview(lease.view).cast("I")
        self.assertRaises(BufferError, lease.release)
        self.assertTrue(lease.released)
        self.assertRaises(BufferError, lambda: lease.view)
        self.assertEqual(numbers.tobytes(), values[0])
        numbers.release()
        lease.release()

    def test_an_exception_is_not_hidden_by_views_it_holds(self):
        names, _ = self.put(1)
        before = self.metric("icms_agent_arena_leased_slots")

        def reads():
            with self.volume.lease(names[0]) as view:
                part = view[1:]
                raise KeyError(len(part))

        with self.assertRaises(KeyError):
            reads()
        gc.collect()
        self.assertEqual(self.metric("icms_agent_arena_leased_slots"), before)

    def test_a_lease_that_is_dropped_goes_back(self):
        names, _ = self.put(1)
        before = self.metric("icms_agent_arena_leased_slots")
        for _ in range(3 * icms.LEASES_MAX):
            self.volume.lease(names[0])
        self.assertEqual(self.metric("icms_agent_arena_leased_slots"), before)

    def test_leases_have_a_limit_and_misses_a_reason(self):
        names, _ = self.put(1)
        held = [self.volume.lease(names[0]) for _ in range(icms.LEASES_MAX)]
        with self.assertRaises(icms.LimitError) as limit:
            self.volume.lease(names[0])
        self.assertTrue(limit.exception.retry)
        del held
        with self.assertRaises(icms.MissError) as miss:
            self.volume.lease(keys(1)[0])
        self.assertEqual((miss.exception.reason, str(miss.exception)),
                         (icms.Miss.ABSENT, "the block is not available: absent"))

    def test_a_client_does_not_close_under_a_view(self):
        client = icms.Client(self.tier.where)
        volume = client.volume("kv")
        names, values = self.put(1)
        lease = volume.lease(names[0])
        view = lease.view
        with self.assertRaisesRegex(BufferError, "1 views of its leases and buffers exist"):
            client.close()
        self.assertFalse(client.closed)
        self.assertEqual(bytes(view), values[0])
        view.release()
        client.close()  # the lease itself goes along
        self.assertTrue(lease.released)
        self.assertRaises(BufferError, lambda: memoryview(lease._region))
        lease.release()


class Buffers(TestCase):
    def test_puts_from_a_shared_buffer(self):
        name = keys(1)
        with self.client.buffer(VALUE_BYTES) as view:
            view[:] = value(5)
            self.assertTrue(self.volume.put(name, [view], on_flash=True).ok)
        room = bytearray(VALUE_BYTES)
        self.assertTrue(self.volume.get(name, [room]).ok)
        self.assertEqual(bytes(room), value(5))

    def test_a_buffer_under_way_is_not_given_back(self):
        buffer = self.client.buffer(VALUE_BYTES)
        buffer.view[:] = value(6)
        name = keys(1)
        request = self.volume.start_put(name, [buffer.view])
        try:
            buffer.release()
        except BufferError:
            pass  # the request was not over yet
        self.assertTrue(request.result().ok)
        room = bytearray(VALUE_BYTES)
        self.assertTrue(self.volume.get(name, [room]).ok)
        self.assertEqual(bytes(room), value(6))

    def test_buffers_have_a_limit(self):
        for size in (0, 1 << 40, (1 << 64) - 1):
            with self.subTest(size), self.assertRaises((icms.NoMemoryError, icms.InvalidError)):
                self.client.buffer(size)
        with self.assertRaises(icms.NoMemoryError):
            held = []
            while True:
                held.append(self.client.buffer(1 << 20))
        held.clear()
        self.client.buffer(1 << 20).release()


if __name__ == "__main__":
    unittest.main()
