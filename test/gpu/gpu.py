#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the fake GPU of the tests says about a driver, asked of a real one: `make check-gpu`. Needs PyTorch and a GPU.

Goal: values reach memory of a GPU and leave it in the order of streams, and what an engine does wrong is an answer,
never a wrong byte or the end of the process.
Method: PyTorch's tensors, a real pod of one enclosure and one agent, and a drive (`dir:`). Each case has blocks of its
own. What could take the process with it (fork, memory that was freed, a device that was reset) runs in a child.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import icms_wheel  # noqa: E402
import pod  # noqa: E402

BLOCK, COUNT = 1 << 20, 24
SLEEP_CYCLES = 400_000_000  # of the GPU: some tenths of a second
WHERE = os.environ.get("ICMS_GPU_WHERE", "").split()


class Case(unittest.TestCase):
    where = WHERE[0] if WHERE else ""

    def setUp(self):
        self.client = icms.Client(self.where)
        self.addCleanup(self.client.close)
        self.volume = self.client.volume("kv")
        self.keys = [icms.key(f"{self.id()} {self.where} {i}") for i in range(COUNT)]

    def tensor(self, fill=None, rows=COUNT, nbytes=BLOCK):
        if fill is not None:
            return torch.full((rows, nbytes), fill, dtype=torch.uint8, device="cuda")
        return torch.randint(0, 256, (rows, nbytes), dtype=torch.uint8, device="cuda")

    def registered(self, tensor):
        memory = self.client.register(tensor)
        self.addCleanup(memory.unregister)  # which BusyError ends if a copy were still with the driver
        torch.cuda.synchronize()
        return tensor

    def stored(self):
        source = self.registered(self.tensor())
        self.assertTrue(self.volume.put(self.keys, source, on_flash=True).ok)
        return source

    def test_there_and_back(self):
        source, target = self.stored(), self.registered(self.tensor(0))
        for _ in range(2):
            results = self.volume.get(self.keys, target)
            self.assertTrue(results.ok, results)
            self.assertTrue(torch.equal(source, target))
            target.zero_()
            torch.cuda.synchronize()

    def test_another_client_reads_it(self):
        source, target = self.stored(), self.registered(self.tensor(0))
        host = [bytearray(BLOCK) for _ in self.keys]
        self.assertTrue(self.volume.get(self.keys, host).ok)
        self.assertEqual(host[3], source[3].cpu().numpy().tobytes())
        self.assertTrue(self.volume.put(self.keys, [bytes(BLOCK)] * COUNT, on_flash=True).ok)
        self.assertTrue(self.volume.get(self.keys, target).ok)
        self.assertFalse(target.any())

    def test_odd_sizes_and_places(self):
        whole = self.registered(self.tensor())
        parts, rooms = [], []
        for i, (begin, nbytes) in enumerate([(1, 1), (3, 65535), (0, BLOCK), (511, 4097), (64, 131072)]):
            parts.append(whole[i, begin:begin + nbytes])
            rooms.append(whole[i + 8, begin:begin + nbytes])
        keys = self.keys[:len(parts)]
        self.assertTrue(self.volume.put(keys, parts, on_flash=True).ok)
        before = whole.clone()
        self.assertTrue(self.volume.get(keys, rooms).ok)
        for part, room in zip(parts, rooms):
            self.assertTrue(torch.equal(part, room))
        for i, room in enumerate(rooms):  # and nothing beside them was written
            begin = room.data_ptr() - whole[i + 8].data_ptr()
            self.assertTrue(torch.equal(whole[i + 8, :begin], before[i + 8, :begin]))
            self.assertTrue(torch.equal(whole[i + 8, begin + len(room):], before[i + 8, begin + len(room):]))

    def test_pieces(self):
        source, target = self.registered(self.tensor()), self.registered(self.tensor(0))
        cut = BLOCK // 4

        def pieces(tensor):
            return [tuple(row[at:at + cut] for at in range(0, BLOCK, cut)) for row in tensor]

        self.assertTrue(self.volume.put(self.keys, pieces(source), on_flash=True).ok)
        self.assertTrue(self.volume.get(self.keys, pieces(target)).ok)
        self.assertTrue(torch.equal(source, target))

    def test_a_put_waits_for_the_stream_that_makes_its_bytes(self):
        source, stream = self.registered(self.tensor(1)), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SLEEP_CYCLES)
            source.fill_(7)
        self.assertTrue(self.volume.put(self.keys, source, on_flash=True, stream=stream, deadline_ms=20000).ok)
        host = [bytearray(BLOCK) for _ in self.keys]
        self.assertTrue(self.volume.get(self.keys, host).ok)
        self.assertTrue(all(room == bytes([7]) * BLOCK for room in host))

    def test_a_get_waits_for_the_stream_and_the_stream_for_it(self):
        source, stream = self.stored(), torch.cuda.Stream()
        target = self.registered(self.tensor(0))
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SLEEP_CYCLES)
            target.fill_(9)  # before the copies, or it would be seen
            self.assertTrue(self.volume.get(self.keys, target, stream=stream, deadline_ms=20000).ok)
            copy = target.clone()  # behind them
        stream.synchronize()
        self.assertTrue(torch.equal(copy, source))

    def test_a_deadline_ends_a_put_whose_stream_is_busy(self):
        source, stream = self.stored(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(16):
                torch.cuda._sleep(SLEEP_CYCLES)
        begin = time.monotonic()
        results = self.volume.put(self.keys, source, stream=stream, deadline_ms=200)
        took = time.monotonic() - begin
        self.assertFalse(stream.query(), "the GPU was not busy for long enough")
        self.assertFalse(results.ok)
        self.assertLess(took, 1.0)
        stream.synchronize()
        target = self.registered(self.tensor(0))
        self.assertTrue(self.volume.get(self.keys, target).ok)
        self.assertTrue(torch.equal(target, source))

    def test_a_get_with_a_stream_does_not_wait_for_it(self):
        source, stream = self.stored(), torch.cuda.Stream()
        target = self.registered(self.tensor(0))
        with torch.cuda.stream(stream):
            for _ in range(16):
                torch.cuda._sleep(SLEEP_CYCLES)
        self.assertTrue(self.volume.get(self.keys, target, stream=stream, deadline_ms=1000).ok)
        self.assertFalse(stream.query(), "the GPU was not busy for long enough")
        stream.synchronize()
        self.assertTrue(torch.equal(target, source))

    def test_many_threads(self):
        import concurrent.futures

        source, target = self.stored(), self.registered(self.tensor(0))
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            for _ in range(8):
                done = list(threads.map(lambda i: self.volume.get(self.keys[i::8], [target[j] for j in range(i, COUNT, 8)]),
                                        range(8)))
                self.assertTrue(all(results.ok for results in done))
                self.assertTrue(torch.equal(source, target))
                target.zero_()
                torch.cuda.synchronize()

    def test_what_is_not_there_is_a_miss(self):
        target = self.registered(self.tensor(5))
        results = self.volume.get([icms.key(f"none {i}") for i in range(COUNT)], target)
        self.assertEqual(results.hits, 0)
        self.assertTrue(bool((target == 5).all()))

    def test_memory_that_is_not_registered(self):
        self.stored()
        target = self.tensor(5)
        torch.cuda.synchronize()
        results = self.volume.get(self.keys, target)
        self.assertTrue(all(result.status == icms.Status.NOT_REGISTERED for result in results), results)
        self.assertTrue(bool((target == 5).all()))

    def test_twice_and_across_ranges(self):
        whole = self.tensor(0)
        self.registered(whole[:8])
        with self.assertRaises(icms.InvalidError):
            self.client.register(whole[4:12])
        results = self.volume.get(self.keys[:1], [whole.reshape(-1)[8 * BLOCK - 4:9 * BLOCK - 4]])
        self.assertFalse(results.ok)

    def test_status_says_how_the_drive_is_read(self):
        self.stored()
        target = self.registered(self.tensor(0))
        self.assertTrue(self.volume.get(self.keys, target).ok)
        print(self.where.partition(":")[0], json.dumps(self.client.status().get("devices")), file=sys.stderr)

    def child(self, text):
        """Of Python; returns its exit status and what it said."""
        text = ("import icms, torch, os, sys, signal\n"
                f"client = icms.Client({self.where!r}); volume = client.volume('kv')\n"
                f"keys = [bytes.fromhex(k) for k in {[key.hex() for key in self.keys]!r}]\n" + text)
        result = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        return result.stdout

    def alone(self):
        """A child cannot have what this process has locked."""
        if self.where.startswith("dir:"):
            self.doCleanups()

    def test_memory_that_was_freed(self):
        self.stored()
        self.alone()
        said = self.child(f"""
whole = torch.zeros(({COUNT}, {BLOCK}), dtype=torch.uint8, device="cuda")
held = [client.register(whole)]
stride = {BLOCK}
class Old:
    def __init__(self, at): self.at = at
    @property
    def __cuda_array_interface__(self):
        return {{"data": (self.at, False), "shape": (stride,), "typestr": "|u1", "version": 3}}
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
pointer = ctypes.c_uint64()
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20)) == 0
class Own(Old):
    @property
    def __cuda_array_interface__(self):
        return {{"data": (self.at, False), "shape": (64 << 20,), "typestr": "|u1", "version": 3}}
held.append(client.register(Own(pointer.value)))
ok = volume.get(keys, [Old(pointer.value + i * stride) for i in range(len(keys))])
assert ok.ok, ok
assert cuda.cuMemFree_v2(pointer) == 0
gone = volume.get(keys, [Old(pointer.value + i * stride) for i in range(len(keys))])
assert not gone.ok and not gone.hits, gone
print(sorted({{result.status.name for result in gone}}))
again = volume.get(keys, whole)
assert again.ok, again
""")
        print("freed:", said.strip(), file=sys.stderr)

    def test_a_child_of_fork(self):
        self.stored()
        self.alone()
        self.child(f"""
whole = torch.zeros(({COUNT}, {BLOCK}), dtype=torch.uint8, device="cuda")
held = client.register(whole); assert volume.get(keys, whole).ok
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    try:
        volume.get(keys, [bytearray({BLOCK}) for _ in keys])
        os._exit(3)
    except icms.ForkedError:
        pass
    try:
        other = icms.Client({self.where!r}) if not {self.where!r}.startswith("dir:") else None
        if other is not None:
            assert other.volume("kv").get(keys, [bytearray({BLOCK}) for _ in keys]).ok
            try:
                other.register(whole)
                os._exit(4)
            except (icms.Error, RuntimeError) as error:  # PyTorch's own, if it refuses first
                print(error, flush=True)
    except BaseException as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(5)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert volume.get(keys, whole).ok
""")

    def test_expandable_segments(self):
        self.stored()
        self.alone()
        self.child(f"""
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
few = torch.zeros((4, {BLOCK}), dtype=torch.uint8, device="cuda")
whole = torch.zeros(({COUNT}, {BLOCK}), dtype=torch.uint8, device="cuda")
held = client.register(whole)
assert volume.get(keys, whole).ok
host = [bytearray({BLOCK}) for _ in keys]
assert volume.get(keys, host).ok
assert whole.cpu().numpy().tobytes() == b"".join(host)
""")


class Drive(Case):
    where = WHERE[1] if WHERE else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--site", type=pathlib.Path, help="folder of the Python package icms; default: made from the tree")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("/var/tmp"), help="for drives")
    given, build = parser.parse_args(), None
    build = given.build.resolve()
    site = given.site or icms_wheel.make(icms_wheel.interpreter(), build, build / "gpu-wheel")
    volume = {"name": "kv", "value_max": "4MiB"}
    with tempfile.TemporaryDirectory(prefix="icms-", dir=given.dir) as folder, pod.Pod(build, folder) as p:
        target = p.add_target("enclosure0", 2, "1GiB", [volume], segment="16MiB")
        target.wait_ready()
        agent = p.add_agent("server", [target], [volume], memory="512MiB")
        agent.wait_ready()
        sys.exit(subprocess.run([sys.executable, __file__], check=False, env={
            **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH")))),
            "ICMS_GPU_WHERE": f"unix:{agent.socket} dir:{folder}/drive"}).returncode)


if WHERE:
    import icms
    import torch

    unittest.main(verbosity=2)
else:
    main()
