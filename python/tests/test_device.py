# SPDX-License-Identifier: Apache-2.0
"""Memory of a GPU: tensors and arrays that say where they lie, over a fake GPU.

Goal: what PyTorch and CuPy have in memory of a GPU is put and got in place, in the order of streams.
Method: libcuda.so.1 is the fake of src/device, whose memory ends a process that touches it with the
CPU. Objects of the test say __dlpack__ or __cuda_array_interface__ as those of the libraries do.
"""
import asyncio
import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import weakref

import icms
import icms.aio
from support import GRACE_S, SECURE, TestCase, VALUE_BYTES, keys, value, wait_for

import fake_gpu  # of tools, where support looks as well

GPU = fake_gpu.Gpu()
PyCapsule_New = ctypes.pythonapi.PyCapsule_New
PyCapsule_New.restype = ctypes.py_object
PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Array:
    """Rows of bytes on a GPU that name themselves as CuPy's and Numba's do."""

    def __init__(self, address, shape, **more):
        self.address = address
        self.shape = shape
        self.more = more

    @property
    def __cuda_array_interface__(self):
        return {"data": (self.address, False), "shape": self.shape, "typestr": "|u1", "version": 3,
                **self.more}

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, row):
        if not 0 <= row < self.shape[0]:
            raise IndexError(row)
        return type(self)(self.address + row * self.shape[1], self.shape[1:], **self.more)


class Tensor(Array):
    """The same with DLPack, as PyTorch's tensors have it. Remembers which streams it was told."""

    told = []
    device = 2

    class Managed(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                    ("device_id", ctypes.c_int32), ("dimensions", ctypes.c_int32),
                    ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                    ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                    ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64),
                    ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("as PyTorch's where they need a gradient")

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self, *, stream):
        self.told.append(stream)
        self.numbers = (ctypes.c_int64 * len(self.shape))(*self.shape)
        self.managed = self.Managed(
            self.address, self.device, 0, len(self.shape), 1, 8, 1,
            ctypes.cast(self.numbers, ctypes.POINTER(ctypes.c_int64)), None, 0)
        return PyCapsule_New(ctypes.addressof(self.managed), b"dltensor", None)


class Rocm(Tensor):
    """As PyTorch's tensors on ROCm: their default stream is 0."""

    told = []
    device = 10

    def __dlpack__(self, *, stream):
        assert stream not in (1, 2), f"unsupported stream on ROCm: {stream}"
        return super().__dlpack__(stream=stream)


class Hpu(Array):
    """As PyTorch names memory of Gaudi: without DLPack, though it has the method."""

    class device:
        type = "hpu"

    @property
    def nbytes(self):
        size = 1
        for dimension in self.shape:
            size *= dimension
        return size

    @property
    def __cuda_array_interface__(self):
        raise AttributeError("only of CUDA")

    def data_ptr(self):
        return self.address

    def is_contiguous(self):
        return not self.more.get("gaps")

    def __dlpack__(self, *, stream=None):
        raise ValueError("Unknown device type hpu for Dlpack")

    __dlpack_device__ = __dlpack__


class Stream:
    """As PyTorch names one."""

    def __init__(self, number):
        self.cuda_stream = number


class Device(TestCase):
    kinds = (Array, Tensor)

    def setUp(self):
        super().setUp()
        GPU.put("STUCK", 0)
        self.context = GPU.context(0)
        Tensor.told.clear()

    def memory(self, kind, blocks, nbytes=VALUE_BYTES, **more):
        return kind(GPU.alloc(self.context, blocks * nbytes), (blocks, nbytes), **more)

    def content(self, array):
        return GPU.load(array.address, array.shape[0] * array.shape[1])

    def test_blocks_go_from_a_gpu_and_into_one(self):
        for kind in self.kinds:
            names, source, room = keys(8), self.memory(kind, 8), self.memory(kind, 8)
            data = value(str(kind), 8 * VALUE_BYTES)
            GPU.store(source.address, data)
            with self.client.register(source) as registered, self.client.register(room):
                self.assertEqual(registered.nbytes, 8 * VALUE_BYTES)
                self.assertTrue(self.volume.put(names, source, on_flash=True).ok)
                host = [bytearray(VALUE_BYTES) for _ in names]
                self.assertTrue(self.volume.get(names, host).ok)
                self.assertEqual(b"".join(host), data)
                self.assertTrue(self.volume.get(names, list(room)).ok)  # a sequence of blocks
                self.assertEqual(self.content(room), data)
                self.assertTrue(self.volume.put(names[0], source[7]))
                self.assertEqual(self.volume.get(names[0]), data[-VALUE_BYTES:])

    def test_default_stream_of_rocm(self):
        gpu = fake_gpu.Gpu("libamdhip64.so.6")
        names, data = keys(4), value("rocm", 4 * VALUE_BYTES)
        source, room = (Rocm(gpu.alloc(gpu.context(0), 4 * VALUE_BYTES), (4, VALUE_BYTES)) for _ in range(2))
        gpu.store(source.address, data)
        with self.client.register(source), self.client.register(room):
            self.assertTrue(self.volume.put(names, source, stream=Stream(0), on_flash=True).ok)
            self.assertTrue(self.volume.get(names, room, stream=Stream(0)).ok)
            wait_for(lambda: gpu.load(room.address, 4 * VALUE_BYTES) == data)
            self.assertTrue(self.volume.get(names, room).ok)  # the copies before have ended
        self.assertEqual(set(Rocm.told), {-1, 0})

    def test_memory_of_gaudi(self):
        gpu = fake_gpu.Gpu("libSynapse.so.1")
        names, data = keys(4), value("gaudi", 4 * VALUE_BYTES)
        source, room = (Hpu(gpu.alloc(gpu.context(0), 4 * VALUE_BYTES), (4, VALUE_BYTES)) for _ in range(2))
        gpu.store(source.address, data)
        with self.assertRaisesRegex(BufferError, "C-contiguous"):
            self.client.register(Hpu(source.address, (4, VALUE_BYTES), gaps=True))
        with self.assertRaisesRegex(icms.InvalidError, "is not Gaudi memory"):
            self.client.register(Hpu(4096, (1, 4096)))
        with self.client.register(source) as registered, self.client.register(room):
            self.assertEqual(registered.nbytes, 4 * VALUE_BYTES)
            self.assertTrue(self.volume.put(names, source, on_flash=True).ok)
            host = [bytearray(VALUE_BYTES) for _ in names]
            self.assertTrue(self.volume.get(names, host).ok)
            self.assertEqual(b"".join(host), data)
            self.assertTrue(self.volume.get(names, list(room)).ok)
            self.assertEqual(gpu.load(room.address, 4 * VALUE_BYTES), data)
            self.assertEqual([device["device"] for device in self.client.status()["devices"]], ["Gaudi 0"])

    def test_blocks_in_pieces(self):
        """A value lies in the tensors of two layers, registered apart, and on the host in others."""
        names = keys(3)
        layers = [self.memory(kind, 3, VALUE_BYTES // 2) for kind in (Tensor, Array)]
        rooms = [self.memory(kind, 3, VALUE_BYTES // 2) for kind in (Array, Tensor)]
        half = VALUE_BYTES // 2
        data = [value(n, 3 * half) for n in (7, 8)]
        for layer, content in zip(layers, data):
            GPU.store(layer.address, content)
        expected = [b"".join(content[i * half:(i + 1) * half] for content in data) for i in range(3)]
        stream = GPU.stream_new(self.context)
        with contextlib.ExitStack() as stack:
            for memory in layers + rooms:
                stack.enter_context(self.client.register(memory))
            blocks = [tuple(layer[i] for layer in layers) for i in range(3)]
            self.assertTrue(self.volume.put(names, blocks, stream=stream).ok)
            host = [bytearray(VALUE_BYTES) for _ in names]
            self.assertTrue(self.volume.get(names, host).ok)
            self.assertTrue(host == expected)  # a difference of such lists takes minutes to print
            host = [[bytearray(1), bytearray(VALUE_BYTES - 1)] for _ in names]
            results = self.volume.get(names, host)
            if SECURE:
                self.assertEqual(results[0].status, icms.Status.UNSUPPORTED)
            else:
                self.assertTrue([b"".join(pieces) for pieces in host] == expected)
                self.assertTrue(self.volume.put("one key", [b"a", bytearray(b"bc")]))
                self.assertEqual(self.volume.get("one key"), b"abc")
            into = [[room[i] for room in rooms] for i in range(3)]
            self.assertTrue(self.volume.start_get(names, into).result().ok)
            for n, room in enumerate(rooms):
                self.assertEqual(self.content(room), data[n])
            # Memory of a GPU and of the host in one block: an error of the block.
            status = self.volume.put(names[:1], [[layers[0][0], b"x"]])[0].status
            self.assertEqual(status, icms.Status.INVALID)
            status = self.volume.put(names[:1], [[b"x", layers[0][0]]])[0].status
            self.assertEqual(status, icms.Status.INVALID)
        GPU.stream_free(stream)

    def test_pieces_that_make_no_sense_are_refused(self):
        class Shrinks(Array):
            """Empties the list that it stands in while it is asked."""

            @property
            def __cuda_array_interface__(self):
                pieces.clear()
                return super().__cuda_array_interface__

        put = self.volume.put
        for memory, words in (([[]], "1 to 256 pieces, not 0"), ([[b"x"] * 257], "not 257"),
                              ([[b"x"], [b"x", b"y"]], "block 1: its memory is 2 pieces"),
                              ([[b"x"], b"y"], "block 1: its memory is not in pieces"),
                              ([b"y", [b"x"]], "block 1: its memory is 1 pieces")):
            with self.assertRaisesRegex(ValueError, words):
                put(keys(len(memory)), memory)
        with self.assertRaisesRegex(BufferError, "block 1: .*empty"):
            put(keys(2), [[b"x"], [b""]])
        with self.assertRaisesRegex(BufferError, "block 0: .*writable"):
            self.volume.get(keys(1), [[bytearray(1), b"x"]])
        with self.assertRaises(TypeError):
            put(keys(1), [[b"x", 7]])
        with self.assertRaises(TypeError):
            put(keys(1), [[b"x", [b"y"]]])
        room = self.memory(Array, 1)
        pieces, names = [Shrinks(room.address, (8,)), Array(room.address + 8, (8,))], keys(1)
        with self.client.register(room):
            self.assertTrue(put(names, [pieces]).ok)
        self.assertEqual((pieces, len(self.volume.get(names[0]))), ([], 16))

    def test_requests_and_asyncio(self):
        names, source, room = keys(4), self.memory(Tensor, 4), self.memory(Tensor, 4)
        data = value(4, 4 * VALUE_BYTES)
        GPU.store(source.address, data)
        stream = GPU.stream_new(self.context)

        async def both():
            volume = icms.aio.Volume(self.volume)
            self.assertTrue((await volume.put(names, source, stream=stream)).ok)
            self.assertTrue((await volume.get(names, room)).ok)

        with self.client.register(source), self.client.register(room):
            asyncio.run(both())
            self.assertEqual(self.content(room), data)
            GPU.store(room.address, bytes(len(data)))
            request = self.volume.start_get(names, room, tag="layer 0")
            wait_for(lambda: self.client.poll() is request)
            self.assertTrue(request.result().ok)
            self.assertEqual(self.content(room), data)
        GPU.stream_free(stream)

    def test_copies_are_ordered_on_the_stream(self):
        names, room = keys(1), self.memory(Array, 1)
        data = value(5)
        self.assertTrue(self.volume.put(names, [data]).ok)
        stream = GPU.stream_new(self.context)
        with self.client.register(room):
            for name in (stream, Stream(stream)):
                GPU.stream_hold(stream, True)
                GPU.stream_write(stream, room.address, 1, VALUE_BYTES)
                self.assertTrue(self.volume.get(names, room, stream=name).ok)
                self.assertNotEqual(self.content(room)[16:], data[16:])  # over, and nothing ran
                GPU.stream_write(stream, room.address, 2, 16)
                GPU.stream_hold(stream, False)
                wait_for(lambda: GPU.stream_idle(stream))
                self.assertEqual(self.content(room), b"\2" * 16 + data[16:])
                GPU.store(room.address, bytes(VALUE_BYTES))
            # What a producer says is on a stream is waited for, too.
            GPU.stream_hold(stream, True)
            GPU.stream_write(stream, room.address, 7, VALUE_BYTES)
            said = Array(room.address, room.shape, stream=stream)
            request = self.volume.start_put(names, said)
            self.assertFalse(request.wait(50))
            GPU.stream_hold(stream, False)
            self.assertTrue(request.result().ok)
            self.assertEqual(self.volume.get(names[0]), b"\7" * VALUE_BYTES)
        GPU.stream_free(stream)

    def test_a_producer_is_told_the_stream(self):
        room = self.memory(Tensor, 1)
        stream = GPU.stream_new(self.context)
        with self.client.register(room):
            self.volume.put(keys(1), room)
            self.volume.put(keys(1), room, stream=stream)
        self.assertEqual(Tensor.told, [-1, -1, stream])
        GPU.stream_free(stream)

    def test_memory_that_is_not_registered_is_an_error_of_its_block(self):
        room = self.memory(Array, 2)
        half = Array(room.address, (1, VALUE_BYTES))
        with self.client.register(half):
            results = self.volume.put(keys(2), room)
            self.assertEqual([block.status for block in results],
                             [icms.Status.OK, icms.Status.NOT_REGISTERED])

    def test_what_cannot_be_registered_or_used_is_refused(self):
        room = self.memory(Array, 2)
        with self.assertRaisesRegex(TypeError, "needs no registration"):
            self.client.register(bytearray(8))
        with self.assertRaisesRegex(icms.InvalidError, "is not CUDA memory"):
            host = ctypes.create_string_buffer(64)
            self.client.register(Array(ctypes.addressof(host), (64,)))
        wrong = {"strides": (1, 2), "mask": room, "typestr": "|u0", "shape": (-1, 5),
                 "data": (room.address,), "stream": "x"}
        for name, what in wrong.items():
            with self.assertRaises((BufferError, TypeError, ValueError, IndexError), msg=name):
                self.client.register(Array(room.address, room.shape, **{name: what}))
        with self.assertRaisesRegex(BufferError, "read-only"):
            self.volume.get(keys(1), [Array(room.address, (64,), data=(room.address, True))])
        with self.assertRaisesRegex(BufferError, "several streams"):
            self.volume.put(keys(2), [Array(room.address, (64,), stream=1),
                                      Array(room.address, (64,), stream=5)])
        with self.assertRaises(TypeError):
            self.volume.put(keys(1), [b"x"], stream="x")
        with self.client.register(room), self.assertRaisesRegex(icms.InvalidError, "overlap"):
            self.client.register(room)
        GPU.put("INIT", 100)
        try:
            with self.assertRaisesRegex(icms.UnsupportedError, "NO_DEVICE"):
                self.client.register(room)
        finally:
            GPU.put("INIT", 0)

    def test_a_stuck_gpu_costs_the_deadline(self):
        room, names = self.memory(Array, 1), keys(1)
        self.assertTrue(self.volume.put(names, [value(9)]).ok)
        registered = self.client.register(room)
        GPU.put("STUCK", 1)
        begin = time.monotonic()
        results = self.volume.get(names, room, deadline_ms=200)
        self.assertLess(time.monotonic() - begin, GRACE_S)
        self.assertEqual(results[0].reason, icms.Miss.DEADLINE)
        with self.assertRaises(icms.BusyError):
            registered.unregister()
        GPU.put("STUCK", 0)

        def forgotten():
            try:
                registered.unregister()
            except icms.BusyError:
                return False
            return True

        wait_for(forgotten)
        registered.unregister()  # again

    def test_memory_that_a_gpu_uses_is_kept(self):
        room, names = self.memory(Array, 1), keys(1)
        self.assertTrue(self.volume.put(names, [value(9)]).ok)
        registered = self.client.register(room)
        GPU.put("STUCK", 1)
        self.assertEqual(
            self.volume.get(names, room, deadline_ms=200)[0].reason, icms.Miss.DEADLINE
        )
        owner = weakref.ref(room)
        del room, registered
        self.assertIsNotNone(owner())  # the driver has a copy to it
        GPU.put("STUCK", 0)

        def gone():
            self.client.register(self.memory(Array, 1)).unregister()
            return owner() is None

        wait_for(gone)

    def test_memory_that_goes_while_its_failed_driver_is_told_of(self):
        """A copier is inside `log` and needs the GIL, and whoever lets go of the memory waits for it."""
        child = subprocess.run([sys.executable, "-X", "faulthandler", "-c", """
import sys, threading
import icms
from test_device import Array, GPU, VALUE_BYTES, keys
inside, dropping, said = threading.Event(), threading.Event(), []
def log(line):
    said.append(line)
    inside.set()
    dropping.wait()
client = icms.Client(sys.argv[1], log=log)
volume, names = client.volume("kv"), keys(1)
assert volume.put(names, [b"1" * VALUE_BYTES])
room = Array(GPU.alloc(GPU.context(0), VALUE_BYTES), (1, VALUE_BYTES))
registered = client.register(room)
GPU.put("COPY", 999)
assert not volume.get(names, room, deadline_ms=200).ok
inside.wait()
sys.setswitchinterval(100)  # the GIL goes to others only where it is given up
dropping.set()
del registered
print("device memory" in said[0])
client.close()
""", self.tier.where], cwd=os.path.dirname(__file__), capture_output=True, text=True, timeout=3 * GRACE_S,
            check=False)
        self.assertEqual((child.returncode, child.stdout), (0, "True\n"), child.stderr)

    def test_memory_that_goes_inside_the_log_of_its_client(self):
        """The copier that is inside `log` is one that unregistering waits for."""
        refused, rooms = [], [self.memory(Array, 1), self.memory(Array, 1)]
        owner = weakref.ref(rooms[1])

        def log(line):
            try:
                registered[0].unregister()
            except icms.BusyError as error:
                refused.append(str(error))
            del registered[1], rooms[1]
            refused.append(owner() is None)

        with icms.Client(self.tier.where, log=log) as client:
            registered = [client.register(room) for room in rooms]
            GPU.put("COPY", 999)
            self.assertTrue(self.volume.put(names := keys(1), [value(1)]).ok)
            self.assertFalse(client.volume("kv").get(names, rooms[0], deadline_ms=200).ok)
            wait_for(lambda: len(refused) == 2)
            GPU.put("COPY", 0)
        self.assertEqual(refused, ["cannot unregister memory inside the log of its client: do it after log "
                                   "has returned, on another thread", False])
        self.assertIsNone(owner())  # the close has unregistered it

    def test_a_client_that_closes_forgets_all(self):
        client = icms.Client(self.tier.where)
        registered = client.register(self.memory(Array, 1))
        client.close()
        registered.unregister()
        for what in ("STREAMS", "EVENTS", "PINS", "RETAINED"):
            self.assertEqual(GPU.counted(what), 0, what)

    def test_an_agent_inside_the_process_receives_for_the_gpu(self):
        """Both kinds: values come from flash or the network into pinned memory."""
        folder = tempfile.mkdtemp(prefix="icms-python-")
        self.addCleanup(shutil.rmtree, folder)
        names, nbytes = keys(6), 1 << 20
        source, room = self.memory(Tensor, 6, nbytes), self.memory(Tensor, 6, nbytes)
        data = value(6, 6 * nbytes)
        GPU.store(source.address, data)
        with icms.Client(f"dir:{folder}/kv", value_bytes_max=nbytes, directory_bytes=256 << 20) as client:
            with client.register(source):
                self.assertTrue(client.volume("device").put(names, source, on_flash=True).ok)
        with icms.Client(f"dir:{folder}/kv") as client, client.register(room):
            results = client.volume("device").get(names, room)
            self.assertTrue(results.ok, list(results))
            self.assertIn(icms.Source.LOCAL, [block.source for block in results])
        self.assertEqual(self.content(room), data)
        names, source = self.put(4)
        with icms.Client(f"pod:{self.tier.agent.config_path}") as client, client.register(room):
            rows = [Tensor(room.address + i * VALUE_BYTES, (VALUE_BYTES,)) for i in range(4)]
            results = client.volume("kv").get(names, rows)
            self.assertTrue(results.ok, list(results))
            self.assertEqual({block.source for block in results}, {icms.Source.POD})
        self.assertEqual(self.content(room)[:4 * VALUE_BYTES], b"".join(source))

    def test_a_child_of_fork_is_told(self):
        room = self.memory(Array, 1)
        with self.client.register(room):
            child = os.fork()
            if child == 0:
                right = False
                try:
                    self.volume.get(keys(1), room)
                except icms.ForkedError:
                    client = icms.Client(self.tier.where)  # its own
                    try:
                        client.register(room)
                    except icms.UnsupportedError as error:
                        status = client.volume(self.volume.name).put(keys(1), room)[0].status
                        right = (status == icms.Status.NOT_REGISTERED
                                 and "forked from one that uses CUDA" in str(error))
                os._exit(0 if right else 1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)


if __name__ == "__main__":
    unittest.main()
