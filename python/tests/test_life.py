# SPDX-License-Identifier: Apache-2.0
"""Life times: threads, fork(), closing, the end of the interpreter, processes that are killed."""
import gc
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import weakref

import icms
from support import GRACE_S, TestCase, Tier, VALUE_BYTES, keys, value, wait_for


def program(text, *arguments, **more):
    """Runs a Python program that begins by importing icms."""
    return subprocess.Popen([sys.executable, "-X", "faulthandler", "-c", "import icms, os, sys\n" +
                             text, *map(str, arguments)], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, **more)


def mapped_files(pid):
    """Paths of the files that a process has mapped, memory without a name left out."""
    with open(f"/proc/{pid}/maps") as maps:
        return {line.split(maxsplit=5)[5].rstrip() for line in maps if len(line.split()) > 5}


def descriptors(pid="self"):
    """What a process has open, without what passes by: {kind: count}."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            kind = os.readlink(f"/proc/{pid}/fd/{name}").split(":")[0].split("/")[-1]
        except OSError:
            continue
        found[kind] = found.get(kind, 0) + 1
    return found


class Threads(TestCase):
    def test_calls_of_many_threads(self):
        names, values = self.put(16)
        failures = []

        def work(seed):
            room = [bytearray(VALUE_BYTES) for _ in range(4)]
            for i in range(60):
                at = (seed * 7 + i) % 12
                if not self.volume.get(names[at:at + 4], room).ok:
                    failures.append("miss")
                elif [bytes(r) for r in room] != values[at:at + 4]:
                    failures.append("wrong")
                with self.volume.lease(names[at]) as view:
                    if view[5] != values[at][5]:
                        failures.append("lease")

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertFalse(failures)

    def test_a_call_that_waits_lets_others_run(self):
        self.tier.agent.stand_still()
        try:
            passed = []
            call = threading.Thread(target=lambda: passed.append(
                self.volume.exists(keys(1), deadline_ms=500)))
            call.start()
            turns = 0
            while call.is_alive():
                turns += 1
                time.sleep(0.001)
        finally:
            self.tier.agent.signal(signal.SIGCONT)
        self.assertGreater(turns, 10)
        self.assertFalse(passed[0].ok)

    def test_close_waits_for_calls_of_other_threads(self):
        client = icms.Client(self.tier.where)
        volume = client.volume("kv")
        ended = []

        def work():
            while True:
                try:
                    volume.get(keys(4), [bytearray(64)] * 4)
                except icms.ClosedError:
                    ended.append(1)
                    return

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        client.close()
        for thread in threads:
            thread.join(10)
        self.assertEqual(len(ended), 6)
        for call in (lambda: volume.match(keys(1)), lambda: client.volume("kv"), client.status,
                     lambda: client.buffer(1), lambda: volume.lease(keys(1)[0]), volume.flush,
                     lambda: volume.start_exists(keys(1)), lambda: volume.chain(icms.Layout())):
            self.assertRaises(icms.ClosedError, call)
        client.close()
        self.assertIn("closed", repr(client))


class Agents(unittest.TestCase):
    @staticmethod
    def status(volume):
        """What a call comes to that only an agent can answer."""
        try:
            return volume.exists(keys(1))[0].status
        except icms.Error as error:
            return error.status

    def test_a_volume_that_an_agent_lacked_is_there_again_with_the_next(self):
        tier = Tier()
        self.addCleanup(tier.end)
        client = icms.Client(tier.where)
        self.addCleanup(client.close)
        volume = client.volume("kv")
        name = keys(1)
        self.assertTrue(volume.put(name, [value(1)], on_flash=True).ok)
        config = tier.agent.config_path.read_text()
        for lacks, expected in ((True, icms.Status.NO_VOLUME), (False, icms.Status.MISS)):
            tier.agent.kill()
            tier.agent.config_path.write_text(config.replace("name: kv", "name: other")
                                              if lacks else config)
            tier.agent.start()
            tier.agent.wait_ready()
            give_up = time.monotonic() + 20
            while (status := self.status(volume)) != expected:
                self.assertLess(time.monotonic(), give_up, status)
                time.sleep(0.02)
        self.assertTrue(volume.exists(name).ok)


    def test_a_name_of_a_volume_that_becomes_known_meanwhile_is_no_key(self):
        tier = Tier()
        self.addCleanup(tier.end)
        tier.agent.kill()
        client = icms.Client(tier.where, agent_optional=True)
        self.addCleanup(client.close)
        volume = client.volume("kv")

        class Names(list):
            def __getitem__(self, index):
                if index == 1:
                    tier.agent.start()
                    wait_for(lambda: volume.state == icms.Status.OK)
                return super().__getitem__(index)

        self.assertRaises(icms.PeerDownError, volume.exists, Names(["one", "two"]))
        self.assertRaises(icms.PeerDownError, volume.lease, "one")
        tier.agent.start()
        wait_for(lambda: volume.state == icms.Status.OK)
        self.assertEqual(self.status(volume), icms.Status.MISS)


class Logs(unittest.TestCase):
    """`log` runs on threads that a close waits for."""

    def said(self, text):
        """What a program of `where` says whose agent is killed once it asks."""
        tier = Tier()
        self.addCleanup(tier.end)
        child = program(text, tier.where, stdin=subprocess.PIPE)
        self.addCleanup(child.stdin.close)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        self.assertEqual(child.stdout.readline(), "ready\n")
        tier.agent.kill()
        said, _ = child.communicate(timeout=3 * GRACE_S)
        self.assertEqual(child.returncode, 0, said)
        return said

    def test_a_client_is_not_closed_inside_its_log(self):
        self.assertEqual(self.said("""
import threading
refused = threading.Event()
def log(line):
    try:
        client.close()
    except icms.BusyError as error:
        print(error, flush=True)
        refused.set()
client = icms.Client(sys.argv[1], log=log)
print("ready", flush=True)
refused.wait()
print(client.closed)
client.close()
print(client.closed)
"""), "cannot close the client inside its log, which close() waits for: close it after log has returned, "
            "on another thread\nFalse\nTrue\n")

    def test_a_client_that_is_dropped_inside_its_log_is_closed_after_it(self):
        self.assertEqual(self.said("""
import time, weakref
def log(line):
    clients.clear()
    os.fstat(descriptor)
    print("dropped, not closed", gone() is None, flush=True)
clients = [icms.Client(sys.argv[1], log=log)]
gone, descriptor = weakref.ref(clients[0]), clients[0].fileno()
print("ready", flush=True)
while len(os.listdir("/proc/self/task")) > 1:
    time.sleep(0.01)
print("closed")
"""), "dropped, not closed True\nclosed\n")

    def test_a_client_that_was_closed_lets_its_log_go(self):
        class Program:
            def __init__(self):
                self.client = icms.Client("unix:/no/where", agent_optional=True, log=self.log)

            def log(self, line):
                pass

        one = Program()
        one.client.close()
        gone = weakref.ref(one)
        del one
        self.assertIsNone(gone())

    def test_a_line_that_is_not_utf8_is_told(self):
        said = []
        with unittest.mock.patch.dict(os.environb, {b"ICMS_SOCKET": b"/no/wh\xffre"}):
            with icms.Client("unix:", agent_optional=True, log=said.append):
                wait_for(lambda: said)
            with self.assertRaisesRegex(icms.NotFoundError, "/no/wh\ufffdre"):
                icms.Client("unix:")
        self.assertIn("unix:/no/wh\ufffdre: no agent: ", said[0])


class Objects(TestCase):
    def test_nothing_stays_behind(self):
        """Descriptors, shared memory and objects of clients that were closed, or dropped."""
        def use(close):
            client = icms.Client(self.tier.where)
            volume = client.volume("kv")
            names = keys(2)
            volume.put(names, [value(1)] * 2)
            with volume.lease(names[0]), client.buffer(4096):
                pass
            volume.start_get(names, [bytearray(VALUE_BYTES)] * 2).result()
            volume.start_exists(names)
            if close:
                client.close()
            else:
                while client.poll() is None:
                    pass
            return weakref.ref(client)

        use(True)
        gc.collect()
        before, maps = descriptors(), pathlib.Path("/proc/self/maps").read_text().count("icms")
        for i in range(10):
            self.assertIsNone(use(i % 2 == 0)())
        gc.collect()
        self.assertEqual(descriptors(), before)
        self.assertEqual(pathlib.Path("/proc/self/maps").read_text().count("icms"), maps)

    def test_memory_and_keys_are_let_go(self):
        names, _ = self.put(1)
        room = bytearray(VALUE_BYTES)
        counts = [sys.getrefcount(thing) for thing in (names[0], room, self.volume._volume)]
        for _ in range(100):
            self.volume.get(names, [room])
            self.volume.start_get(names, [room]).result()
            self.volume.match(names)
            self.volume.lease(names[0]).release()
            for wrong in (lambda: self.volume.get(names * 2, [room, b""]),
                          lambda: self.volume.start_get(names * 2, [room, 7]),
                          lambda: self.volume.put(names + [7], [room, room])):
                self.assertRaises((BufferError, TypeError), wrong)
        self.assertEqual([sys.getrefcount(thing) for thing in (names[0], room,
                                                               self.volume._volume)], counts)

    def test_types_cannot_be_made_by_hand(self):
        from icms import _icms
        for thing in (self.client._handle, self.volume._volume, self.volume.lease(self.put(1)[0][0])
                      ._region, self.volume.chain(icms.Layout())._chain):
            self.assertRaises(TypeError, type(thing))
        self.assertRaises(TypeError, _icms.open)


class Processes(TestCase):
    def test_a_child_of_fork_is_told_so(self):
        names, values = self.put(2)
        lease = self.volume.lease(names[0])
        request = self.volume.start_exists(names)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for call in (lambda: self.volume.match(names), self.client.status,
                             self.client.poll, self.client.fileno, lambda: self.client.volume("kv"),
                             lambda: self.volume.get(names, [bytearray(VALUE_BYTES)] * 2),
                             lambda: self.client.buffer(64), self.volume.flush,
                             lambda: self.volume.lease(names[1]), lambda: request.wait(0)):
                    try:
                        call()
                        os._exit(2)
                    except icms.ForkedError:
                        pass
                try:
                    memoryview(lease._region)
                    os._exit(3)
                except BufferError:
                    pass
                lease.release()
                self.client.close()
                with icms.Client(self.tier.where) as own:
                    room = bytearray(VALUE_BYTES)
                    if own.volume("kv").get(names[:1], [room]).ok and room == values[0]:
                        code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)
        self.assertEqual(bytes(lease.view), values[0])  # the parent's is as it was
        self.assertEqual(self.volume.match(names), 2)
        self.assertTrue(request.result().ok)

    def test_the_interpreter_ends_with_everything_open(self):
        child = program("""
client = icms.Client(sys.argv[1])
volume = client.volume("kv")
keys = [os.urandom(16) for _ in range(8)]
volume.put(keys, [bytes(65536)] * 8)
lease = volume.lease(keys[0])
view = lease.view
other = icms.Client(sys.argv[1])
requests = [other.volume("kv").start_get(keys, [bytearray(65536) for _ in keys])
            for _ in range(4)]
import threading

def work():
    try:
        while True:
            volume.match(keys)
    except icms.ClosedError:
        pass

threading.Thread(target=work, daemon=True).start()
print("end")
""", self.tier.where)
        said, _ = child.communicate(timeout=30)
        self.assertEqual((child.returncode, said), (0, "end\n"))

    def test_what_a_directory_accepted_is_there_after_the_interpreter_ended(self):
        with tempfile.TemporaryDirectory(prefix="icms-python-") as folder:
            where = f"dir:{folder}/kv"
            child = program("""
client = icms.Client(sys.argv[1], directory_bytes=128 << 20, value_bytes_max=65536)
volume = client.volume("kv")
print(volume.put([b"a", b"b"], [b"x" * 65536, b"y" * 65536]).ok)
""", where)
            said, _ = child.communicate(timeout=30)
            self.assertEqual((child.returncode, said), (0, "True\n"))
            with icms.Client(where) as client:
                room = bytearray(65536)
                self.assertTrue(client.volume("kv").get([b"b"], [room]).ok)
                self.assertEqual(bytes(room), b"y" * 65536)
                with self.assertRaisesRegex(icms.LockedError, str(os.getpid())):
                    said = program("""
try:
    icms.Client(sys.argv[1])
except icms.LockedError as error:
    print(error)
""", where).communicate(timeout=30)[0]
                    raise icms.LockedError(said)

    def test_a_killed_process_leaves_nothing(self):
        def leased():
            return self.metric("icms_agent_arena_leased_slots")

        self.assertTrue(self.volume.match(self.put(2)[0]))
        self.client.close()
        wait_for(lambda: self.metric("icms_agent_clients") == 0, 10)
        before, named = leased(), set()
        opened = descriptors(self.tier.agent.pid)
        for _ in range(3):
            child = program("""
client = icms.Client(sys.argv[1])
volume = client.volume("kv")
keys = [os.urandom(16) for _ in range(8)]
assert volume.put(keys, [bytes(65536)] * 8).ok
leases = [volume.lease(key) for key in keys]
buffer = client.buffer(65536)
requests = [volume.start_get(keys, [bytearray(65536) for _ in keys]) for _ in range(4)]
print("ready", flush=True)
sys.stdin.read()
""", self.tier.where, stdin=subprocess.PIPE)
            self.assertEqual(child.stdout.readline(), "ready\n")
            self.assertEqual(self.metric("icms_agent_clients"), 1)
            named |= mapped_files(child.pid)
            child.kill()
            child.communicate()
            wait_for(lambda: self.metric("icms_agent_clients") == 0 and leased() == before, 10)
        wait_for(lambda: descriptors(self.tier.agent.pid).get("anon_inode", 0) <=
                 opened.get("anon_inode", 0), 10)
        self.assertEqual([name for name in named
                          if name.startswith("/dev/shm/") and os.path.exists(name)], [])


if __name__ == "__main__":
    unittest.main()
