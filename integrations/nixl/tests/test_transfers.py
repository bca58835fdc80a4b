# SPDX-License-Identifier: Apache-2.0
"""Transfers through NIXL: what is stored comes back, from the enclosure, and all else is an error.

Every test runs with both names of the plugin.
"""
import threading
import time

import numpy
from nixl_cu12._bindings import nixlInvalidParamError, nixlNotSupportedError

import support
from support import BACKENDS, BLOCK_BYTES, FAILED, Side, blocks, keys


class Transfers(support.TestCase):
    """With one backend; the classes below say which."""

    backend = None

    def sides(self, **more):
        return Side(self.backend, 0, **more), Side(self.backend, 1, **more)

    def store(self, side, names, values):
        side.memory(values)
        self.assertEqual(side.run("WRITE", values, side.objects(names)), "DONE")

    def missed(self):
        """How a READ of what is not there ends."""
        return "nixlNotFoundError" if self.backend == "ICMS" else FAILED

    def test_what_one_server_stores_another_loads_over_the_network(self):
        writer, reader = self.sides()
        agent, target = self.tier.agents[1], self.tier.target
        names, values, room = keys(16), blocks(16, 1), blocks(16)
        loaded = self.metric(agent, "icms_agent_enclosure_load_bytes_total")
        hits = self.metric(agent, "icms_agent_hits_total", 'tier="pod"')
        sent = self.metric(target, "icms_target_bytes_total", 'dir="out"')
        self.assertEqual(reader.query(names), [False] * 16)
        self.store(writer, names, values)
        self.assertEqual(reader.query(names + keys(1)), [True] * 16 + [False])
        reader.memory(room)
        self.assertEqual(reader.run("READ", room, reader.objects(names)), "DONE")
        self.assertTrue(numpy.array_equal(values, room))
        self.assertEqual(self.metric(agent, "icms_agent_hits_total", 'tier="pod"') - hits, 16)
        self.assertGreaterEqual(
            self.metric(agent, "icms_agent_enclosure_load_bytes_total") - loaded, values.nbytes)
        self.assertGreaterEqual(
            self.metric(target, "icms_target_bytes_total", 'dir="out"') - sent, values.nbytes)

    def test_memory_that_was_registered_once_serves_many_transfers(self):
        writer, _ = self.sides()
        names, values, room = keys(8), blocks(8, 2), blocks(8)
        self.store(writer, names, values)
        writer.memory(room)
        devices = writer.objects(names)
        handle = writer.transfer("READ", room, devices)
        for _ in range(5):
            room[:] = 0
            self.assertEqual(writer.wait(handle, writer.agent.transfer(handle)), "DONE")
            self.assertTrue(numpy.array_equal(values, room))
        writer.agent.release_xfer_handle(handle)

    def test_prepared_lists_serve_many_transfers(self):
        """As LMCache does: a pool of pages and one of objects, and transfers by their numbers."""
        side = Side(self.backend, 0)
        names, room = keys(12), blocks(12, 13)
        pages = [(room.ctypes.data + i * BLOCK_BYTES, BLOCK_BYTES) for i in range(12)]
        side.agent.register_memory([(*page, 3, "") for page in pages], "DRAM")
        side.agent.register_memory(
            [(0, BLOCK_BYTES, i, name) for i, name in enumerate(names)], "OBJ")
        memory = side.agent.prep_xfer_dlist("", [(*page, 3) for page in pages], "DRAM")
        objects = side.agent.prep_xfer_dlist(
            side.name, [(0, BLOCK_BYTES, i) for i in range(12)], "OBJ")

        def move(operation, from_pages, to_objects):
            handle = side.agent.make_prepped_xfer(operation, memory, from_pages, objects,
                                                  to_objects)
            self.assertEqual(side.wait(handle, side.agent.transfer(handle)), "DONE")
            side.agent.release_xfer_handle(handle)

        values = room.copy()
        move("WRITE", [0, 1, 2, 3, 4, 5], [11, 9, 7, 5, 3, 1])
        move("WRITE", [6, 7, 8, 9, 10, 11], [0, 2, 4, 6, 8, 10])
        room[:] = 0
        move("READ", [5, 4, 3, 2, 1, 0], [11, 9, 7, 5, 3, 1])
        move("READ", [11, 10, 6, 7, 8, 9], [0, 2, 4, 6, 8, 10])
        for page, value in enumerate((5, 4, 3, 2, 1, 0, 8, 9, 10, 11, 7, 6)):
            self.assertTrue(numpy.array_equal(room[page], values[value]), page)
        for handle in (memory, objects):
            side.agent.release_dlist_handle(handle)

    def test_a_hole_is_an_error_and_the_rest_arrives(self):
        writer, reader = self.sides()
        names, values, room = keys(4), blocks(4, 3), blocks(4)
        self.store(writer, names[:2], values[:2])
        self.store(writer, names[3:], values[3:])
        reader.memory(room)
        self.assertEqual(reader.run("READ", room, reader.objects(names)), self.missed())
        for number in (0, 1, 3):
            self.assertTrue(numpy.array_equal(values[number], room[number]), number)

    def test_a_hole_may_read_as_zeros(self):
        writer, reader = self.sides(ignore_read_not_found="true")
        names, values, room = keys(3), blocks(3, 4), blocks(3, 5)
        self.store(writer, names[1:2], values[1:2])
        reader.memory(room)
        self.assertEqual(reader.run("READ", room, reader.objects(names)), "DONE")
        self.assertTrue(numpy.array_equal(values[1], room[1]))
        self.assertFalse(room[0].any() or room[2].any())

    def test_a_value_of_another_size_is_an_error(self):
        writer, reader = self.sides()
        names, values = keys(1), blocks(1, 6)
        self.store(writer, names, values)
        room = blocks(1, nbytes=BLOCK_BYTES - 1)
        reader.memory(room)
        devices = reader.objects(names, room.nbytes)
        with self.told("bytes, which is not what was asked"):
            self.assertEqual(reader.run("READ", room, devices, room.nbytes), "nixlMismatchError")
        half = blocks(1, 7, nbytes=BLOCK_BYTES // 2)
        writer.memory(half)
        short = keys(1)
        self.assertEqual(writer.run("WRITE", half, writer.objects(short, half.nbytes),
                                    half.nbytes), "DONE")
        room = blocks(1)
        reader.memory(room)
        self.assertEqual(reader.run("READ", room, reader.objects(short)), "nixlMismatchError")

    def test_what_no_value_can_be_is_refused_before_the_post(self):
        side = Side(self.backend, 0)
        large = blocks(1, 8, nbytes=BLOCK_BYTES + 1)
        side.memory(large)
        devices = side.objects(keys(1), large.nbytes)
        with self.told(f"a value has 1 to {BLOCK_BYTES}"), \
                self.assertRaises(nixlInvalidParamError):
            side.transfer("WRITE", large, devices, large.nbytes)
        with self.told("objects are stored and loaded whole"), \
                self.assertRaises(nixlInvalidParamError):
            side.transfer("WRITE", large, devices, 16, offset=16)

    def test_other_kinds_of_memory_are_refused(self):
        side = Side(self.backend, 0)
        with self.assertRaises(Exception):
            side.agent.register_memory([(0, 4096, 0, "")], "FILE", backends=[self.backend])
        self.assertEqual(sorted(side.agent.get_backend_mem_types(self.backend)),
                         ["DRAM_SEG", "OBJ_SEG", "VRAM_SEG"])
        array = blocks(1)
        side.memory(array)
        memory = side.agent.get_xfer_descs([(array.ctypes.data, 16, 0)], "DRAM")
        with self.told("from DRAM to DRAM"), self.assertRaises(nixlNotSupportedError):
            side.agent.initialize_xfer("WRITE", memory, memory, side.name,
                                       backends=[self.backend])

    def test_queries_of_more_objects_than_a_batch_has(self):
        side = Side(self.backend, 0)
        names, values = keys(5000), blocks(3, 9)
        self.store(side, [names[0], names[4500], names[4999]], values)
        found = side.query(names)
        self.assertEqual([i for i, there in enumerate(found) if there], [0, 4500, 4999])

    def test_threads_share_a_backend(self):
        writer, reader = self.sides(num_tasks="8")
        wrong = []

        def work(number):
            for turn in range(4):
                names, values, room = keys(3), blocks(3, 100 * number + turn), blocks(3)
                with lock:
                    writer.memory(values)
                    reader.memory(room)
                    stored, loaded = writer.objects(names), reader.objects(names)
                if writer.run("WRITE", values, stored) != "DONE" or \
                        reader.run("READ", room, loaded) != "DONE" or \
                        not numpy.array_equal(values, room):
                    wrong.append((number, turn))

        lock = threading.Lock()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_the_poster_is_not_held_up(self):
        """The enclosure stands still; a post and a look return all the same."""
        writer, reader = self.sides()
        names, values, room = keys(8), blocks(8, 10), blocks(8)
        self.store(writer, names, values)
        reader.memory(room)
        handle = reader.transfer("READ", room, reader.objects(names))
        with support.stopped(self.tier.target):
            state = reader.agent.transfer(handle)
            self.assertEqual(state, "PROC")
            self.assertEqual(reader.agent.check_xfer_state(handle), "PROC")
        self.assertEqual(reader.wait(handle, state), "DONE")
        self.assertTrue(numpy.array_equal(values, room))

    def test_a_stopped_enclosure_ends_by_the_deadline(self):
        writer, reader = self.sides()
        names, room = keys(4), blocks(4)
        self.store(writer, names, blocks(4, 11))
        reader.memory(room)
        devices = reader.objects(names)
        with support.stopped(self.tier.target):
            self.assertEqual(reader.run("READ", room, devices), FAILED)
        self.recover(reader, room, devices)

    def recover(self, side, room, devices):
        """Reads until the agent asks the enclosure again."""
        give_up = time.monotonic() + 20
        while side.run("READ", room, devices) != "DONE":
            self.assertLess(time.monotonic(), give_up)
            time.sleep(0.05)

    def test_memory_is_left_alone_once_a_transfer_was_released(self):
        writer, reader = self.sides()
        names, values, room = keys(8), blocks(8, 12), blocks(8)
        self.store(writer, names, values)
        reader.memory(room)
        devices = reader.objects(names)
        with support.stopped(self.tier.target):
            handle = reader.transfer("READ", room, devices)
            self.assertEqual(reader.agent.transfer(handle), "PROC")
            reader.agent.release_xfer_handle(handle)
            room[:] = 77
        time.sleep(0.3)
        self.assertTrue((room == 77).all())
        self.recover(reader, room, devices)
        self.assertTrue(numpy.array_equal(values, room))


def load_tests(loader, standard, pattern):
    """The class above once for each backend, and not without one."""
    suite = loader.suiteClass()
    for backend in BACKENDS:
        kind = type(backend, (Transfers,), {"backend": backend, "__module__": __name__,
                                            "__qualname__": backend})
        suite.addTests(loader.loadTestsFromTestCase(kind))
    return suite
