# SPDX-License-Identifier: Apache-2.0
"""Memory of a GPU in transfers of NIXL's own agent, with a fake GPU whose memory the CPU cannot touch.

Goal: VRAM is stored and loaded through both names, from the enclosure, as DRAM is.
Method: libcuda.so.1 is the fake of src/device; what is stored from it by one server is loaded into it
by another.
"""
import random

from nixl_cu12._bindings import nixlBackendError, nixlNotSupportedError

import support
from support import BACKENDS, BLOCK_BYTES, FAILED, Side, blocks, keys

import fake_gpu  # of tools, where support looks as well

GPU = fake_gpu.Gpu()


class Vram:
    """Blocks in device memory, and what support.Side asks of an array."""

    def __init__(self, count, seed=None, device=0):
        self.count = count
        self.nbytes = count * BLOCK_BYTES
        self.address = GPU.alloc(GPU.context(device), self.nbytes)
        self.wanted = bytes(self.nbytes) if seed is None else random.Random(seed).randbytes(self.nbytes)
        GPU.store(self.address, self.wanted)

    def ranges(self):
        return [(self.address + i * BLOCK_BYTES, BLOCK_BYTES, 0) for i in range(self.count)]

    def content(self):
        return GPU.load(self.address, self.nbytes)


class Transfers(support.TestCase):
    """With one backend; the classes below say which."""

    backend = None

    def setUp(self):
        super().setUp()
        self.side = Side(self.backend, 0)

    def register(self, side, memory):
        return side.agent.register_memory([(memory.address, memory.nbytes, 0, "")], "VRAM",
                                          backends=[self.backend])

    def run_vram(self, side, operation, memory, devices):
        local = side.agent.get_xfer_descs(memory.ranges(), "VRAM")
        objects = side.agent.get_xfer_descs([(0, BLOCK_BYTES, device) for device in devices], "OBJ")
        handle = side.agent.initialize_xfer(operation, local, objects, side.name,
                                            backends=[self.backend])
        state = side.wait(handle, side.agent.transfer(handle))
        side.agent.release_xfer_handle(handle)
        return state

    def test_what_one_server_stores_from_a_gpu_another_loads_into_one(self):
        other, names = Side(self.backend, 1), keys(16)
        values, room = Vram(16, 1), Vram(16, device=1)
        hits = self.metric(self.tier.agents[1], "icms_agent_hits_total", 'tier="pod"')
        copies = GPU.counted("COPIES")
        self.register(self.side, values)
        self.assertEqual(self.run_vram(self.side, "WRITE", values, self.side.objects(names)), "DONE")
        registered = self.register(other, room)
        self.assertEqual(self.run_vram(other, "READ", room, other.objects(names)), "DONE")
        self.assertEqual(room.content(), values.wanted)
        self.assertEqual(
            self.metric(self.tier.agents[1], "icms_agent_hits_total", 'tier="pod"') - hits, 16)
        self.assertEqual(GPU.counted("COPIES") - copies, 32)
        other.agent.deregister_memory(registered, backends=[self.backend])

    def test_dram_and_vram_are_the_same_blocks(self):
        names, values, room = keys(4), blocks(4, 7), Vram(4)
        self.side.memory(values)
        devices = self.side.objects(names)
        self.assertEqual(self.side.run("WRITE", values, devices), "DONE")
        self.register(self.side, room)
        self.assertEqual(self.run_vram(self.side, "READ", room, devices), "DONE")
        self.assertEqual(room.content(), values.tobytes())

    def test_a_hole_is_an_error_and_the_rest_arrives(self):
        names, values, room = keys(3), Vram(2, 3), Vram(3)
        self.register(self.side, values)
        self.register(self.side, room)
        self.assertEqual(
            self.run_vram(self.side, "WRITE", values, self.side.objects(names[:2])), "DONE")
        self.assertIn(self.run_vram(self.side, "READ", room, self.side.objects(names)),
                      ("nixlNotFoundError", FAILED))
        self.assertEqual(room.content(), values.wanted + bytes(BLOCK_BYTES))

    def test_what_is_no_memory_of_a_gpu_is_refused(self):
        host = blocks(1)
        with self.told("is not CUDA memory"), self.assertRaises(nixlBackendError):
            self.side.agent.register_memory([(host.ctypes.data, host.nbytes, 0, "")], "VRAM",
                                            backends=[self.backend])
        GPU.put("INIT", 100)
        try:
            with self.told("NO_DEVICE"), \
                    self.assertRaises((nixlNotSupportedError, nixlBackendError)):
                self.register(self.side, Vram(1))
        finally:
            GPU.put("INIT", 0)
        zeros = Side(self.backend, 0, ignore_read_not_found="true")
        with self.told("ignore_read_not_found"), \
                self.assertRaises((nixlNotSupportedError, nixlBackendError)):
            self.register(zeros, Vram(1))

    def test_a_copy_that_fails_is_an_error_and_the_next_one_is_not(self):
        names, values = keys(1), Vram(1, 5)
        self.register(self.side, values)
        devices = self.side.objects(names)
        GPU.put("COPY", 1)
        try:
            with self.told("the device's driver reported an error"):
                self.assertEqual(self.run_vram(self.side, "WRITE", values, devices), FAILED)
        finally:
            GPU.put("COPY", 0)
        self.assertEqual(self.run_vram(self.side, "WRITE", values, devices), "DONE")


def load_tests(loader, standard, pattern):
    """The class above once for each backend, and not without one."""
    suite = loader.suiteClass()
    for backend in BACKENDS:
        kind = type(backend, (Transfers,), {"backend": backend, "__module__": __name__,
                                            "__qualname__": backend})
        suite.addTests(loader.loadTestsFromTestCase(kind))
    return suite
