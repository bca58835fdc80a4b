# SPDX-License-Identifier: Apache-2.0
"""Beginnings and ends: other connections, processes that end in the middle, daemons that die."""
import os
import subprocess
import sys
import textwrap
import time

import numpy

import support
from support import FAILED, Side, agent_of, blocks, keys, tier

PROLOGUE = """
import os, sys
import numpy
from nixl_cu12 import nixl_agent, nixl_agent_config
agent = nixl_agent("child", nixl_agent_config(backends=[]))
agent.create_backend("ICMS", dict(word.split("=", 1) for word in sys.argv[1:]))
memory = numpy.full((4, 4096), 7, dtype=numpy.uint8)
agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM", backends=["ICMS"])
agent.register_memory([(0, 4096, i, f"child-{i}") for i in range(4)], "OBJ", backends=["ICMS"])
local = agent.get_xfer_descs([(memory.ctypes.data + 4096 * i, 4096, 0) for i in range(4)], "DRAM")
remote = agent.get_xfer_descs([(0, 4096, i) for i in range(4)], "OBJ")
def begin(operation):
    handle = agent.initialize_xfer(operation, local, remote, "child", backends=["ICMS"])
    return handle, agent.transfer(handle)
def run(operation):
    handle, state = begin(operation)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    return state
"""


class Life(support.TestCase):
    def child(self, code, params, **environment):
        """Runs a program with NIXL and a backend; what it printed."""
        done = subprocess.run(
            [sys.executable, "-c", PROLOGUE + textwrap.dedent(code),
             *(f"{name}={value}" for name, value in params.items())],
            env={**os.environ, **environment}, capture_output=True, text=True, timeout=60,
            check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line for line in done.stdout.splitlines() if " NIXL " not in line]
        return " ".join(lines).split()

    def test_a_directory_serves_one_process_without_daemons(self):
        params = {"connection": f"dir:{tier().folder}/cache", "volume": "kv"}
        self.assertEqual(self.child("print(run('WRITE'))", params), ["DONE"])
        said = self.child("memory[:] = 0\nprint(run('READ'), bool((memory == 7).all()))", params)
        self.assertEqual(said, ["DONE", "True"])

    def test_a_pod_is_reached_without_an_agent(self):
        """The agent inside the process: blocks go from the socket to the application's memory."""
        params = {"connection": f"pod:{tier().agents[0].config_path}", "volume": "kv"}
        said = self.child("print(run('WRITE'))\nmemory[:] = 0\n"
                          "print(run('READ'), bool((memory == 7).all()))", params)
        self.assertEqual(said, ["DONE", "DONE", "True"])

    def test_a_process_may_end_with_transfers_under_way(self):
        params = tier().params("ICMS", 0)
        with support.stopped(tier().target):
            said = self.child("handle, state = begin('READ')\nprint(state)", params)
        self.assertEqual(said, ["PROC"])

    def test_a_child_of_fork_is_told(self):
        said = self.child("""
            import traceback
            assert run('WRITE') == 'DONE'
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                try:
                    print(run('WRITE'))
                except Exception as error:
                    print(type(error).__name__)
                sys.stdout.flush()
                os._exit(0)
            os.waitpid(pid, 0)
            print(run('READ'))
            """, tier().params("ICMS", 0))
        self.assertEqual(said, ["nixlNotAllowedError", "DONE"])

    def test_telemetry_reads_the_engine(self):
        """NIXL then takes events from the engine's own memory: so its layout is right."""
        folder = tier().folder / "telemetry"
        folder.mkdir()
        said = self.child("print(run('WRITE'), run('READ'))\ndel agent", tier().params("ICMS", 0),
                          NIXL_TELEMETRY_ENABLE="y", NIXL_TELEMETRY_DIR=str(folder),
                          NIXL_TELEMETRY_RUN_INTERVAL="1")
        self.assertEqual(said, ["DONE", "DONE"])

    def test_a_killed_enclosure_ends_by_the_deadline_and_comes_back(self):
        writer, reader = Side("ICMS", 0), Side("ICMS", 1)
        names, values, room = keys(8), blocks(8, 1), blocks(8)
        writer.memory(values)
        stored = writer.objects(names)
        self.assertEqual(writer.run("WRITE", values, stored), "DONE")
        reader.memory(room)
        devices = reader.objects(names)
        tier().target.kill()
        try:
            self.assertEqual(reader.run("READ", room, devices), FAILED)
            self.assertEqual(reader.query(names), [False] * 8)
            self.assertEqual(writer.run("WRITE", values, writer.objects(keys(8))), FAILED)
        finally:
            tier().target.start()
            tier().target.wait_ready()
        give_up = time.monotonic() + 20
        while reader.run("READ", room, devices) != "DONE":
            self.assertLess(time.monotonic(), give_up)
            time.sleep(0.05)
        self.assertTrue(numpy.array_equal(values, room))

    def test_a_killed_agent_is_an_error_and_its_successor_is_found(self):
        side, other = Side("ICMS", 0), Side("ICMS", 1)
        names, values, room = keys(2), blocks(2, 2), blocks(2)
        other.memory(values)
        self.assertEqual(other.run("WRITE", values, other.objects(names)), "DONE")
        side.memory(room)
        devices = side.objects(names)  # not in the memory of its agent: there it would be found
        agent = tier().agents[0]
        agent.kill()
        try:
            self.assertEqual(side.run("READ", room, devices), FAILED)
        finally:
            agent.start()
            agent.wait_ready()
        give_up = time.monotonic() + 20
        while side.run("READ", room, devices) != "DONE":
            self.assertLess(time.monotonic(), give_up)
            time.sleep(0.05)
        self.assertTrue(numpy.array_equal(values, room))

    def test_an_agent_that_comes_later_is_used(self):
        names, values, room = keys(2), blocks(2, 4), blocks(2)
        agent = tier().agents[0]
        for backend in support.BACKENDS:
            agent.kill()
            try:
                with self.told("no agent: "):
                    side = Side(backend, 0)
                side.memory(values)
                stored = side.objects(names)
                with self.told("WRITE: 2 of 2 blocks failed"):
                    self.assertEqual(side.run("WRITE", values, stored), FAILED)
            finally:
                agent.start()
                agent.wait_ready()
            give_up = time.monotonic() + 20
            while side.run("WRITE", values, stored) != "DONE":
                self.assertLess(time.monotonic(), give_up)
                time.sleep(0.05)
            other = Side(backend, 1)
            room[:] = 0
            other.memory(room)
            self.assertEqual(other.run("READ", room, other.objects(names)), "DONE")
            self.assertTrue(numpy.array_equal(values, room))

    def test_nothing_is_left_behind(self):
        """Agents and transfers come and go; descriptors and threads do not stay."""
        def counts():
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

        def once():
            side = Side("ICMS", 0)
            array = blocks(2, 3)
            side.memory(array)
            handle = side.transfer("WRITE", array, side.objects(keys(2)))
            side.agent.transfer(handle)
            side.agent.release_xfer_handle(handle)
            with self.assertRaises(Exception), self.told("volume is missing"):
                agent_of("wrong").create_backend("ICMS", {})

        once()
        before = counts()
        for _ in range(10):
            once()
        # Fewer when a thread of NIXL's own was about to end.
        self.assertTrue(all(now <= then for now, then in zip(counts(), before)), (counts(), before))
        self.assertEqual(self.metric(tier().agents[0], "icms_agent_requests_in_flight"), 0)
