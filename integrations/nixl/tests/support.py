# SPDX-License-Identifier: Apache-2.0
"""What the tests share: a pod on loopback with two agents, NIXL agents on either, and their memory.

What is stored through server-a is loaded through server-b, whose agent has never seen it: so it has
come over NVMe/TCP, which the tests assert from the metrics. The pod is started once a process.
"""
import atexit
import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import numpy
from nixl_cu12 import _bindings, nixl_agent, nixl_agent_config

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ["ICMS_BUILD"])
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
import readme  # noqa: E402,F401

BLOCK_BYTES = 256 << 10
VOLUME = {"name": "kv", "value_max": "256KiB", "memory_max": "16MiB"}
SECRET = {"name": "secret", "value_max": "256KiB", "memory_max": "16MiB", "encrypted": "true"}
SECRET_NGUID = "d" * 32
NGUID = "000102030405060708090a0b0c0d0e0f"
UUID = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
BACKENDS = ("ICMS", "DOCA_MEMOS")
NIXL_ERRORS = tuple(kind for name, kind in vars(_bindings).items()
                    if name.startswith("nixl") and name.endswith("Error"))
FAILED = "nixlBackendError"


class Tier:
    """One enclosure, two agents, and the table of devices that lead to them."""

    def __init__(self):
        volume = {**VOLUME, "uuid": UUID}
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="icms-nixl-"))
        self.pod = pod.Pod(BUILD, self.folder)
        self.target = self.pod.add_target("enclosure0", 1, "512MiB", [volume, SECRET], segment="8MiB",
                                          memory="64MiB")
        self.target.wait_ready()
        self.agents = [self.pod.add_agent(name, [self.target], [volume, SECRET])
                       for name in ("server-a", "server-b")]
        self.keys = self.folder / "keys.yaml"
        subprocess.run([BUILD / "cmd/icms", "key", "gen", "--type", "volume", self.folder / "key"],
                       check=True, stdout=subprocess.DEVNULL)
        self.keys.write_text("volumes:\n  - name: secret\n    keys:\n"
                             f"      - {{id: 1, file: {self.folder}/key}}\n")
        lines = ["devices:"]
        for number, agent in enumerate(self.agents):
            agent.wait_ready()
            lines += [f"  - device_name: /dev/nvme{number}n1",
                      f"    connection: unix:{agent.socket}",
                      f"    keys: {self.keys}", "    load_deadline: 1s", "    store_deadline: 2s", "    volumes:",
                      "      - nguid: 00000000000000000000000000000000", "        volume: kv",
                      f"      - nguid: {NGUID}", "        volume: kv", f"        uuid: {UUID}",
                      f"      - nguid: {SECRET_NGUID}", "        volume: secret",
                      "      - nguid: ffffffffffffffffffffffffffffffff", "        volume: kv",
                      "        uuid: 00000000-0000-4000-8000-000000000001",
                      "      - nguid: eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee", "        volume: nosuch"]
        table = self.folder / "nixl.yaml"
        table.write_text("\n".join(lines) + "\n")
        os.environ["ICMS_NIXL_CONFIG"] = str(table)
        atexit.register(self.end)

    def end(self):
        self.pod.__exit__()
        shutil.rmtree(self.folder, ignore_errors=True)

    def params(self, backend, server, **more):
        """Parameters of a backend that reaches a server."""
        if backend == "ICMS":
            return {"connection": f"unix:{self.agents[server].socket}", "volume": "kv",
                    "deadline_ms": "1000", "store_deadline_ms": "2000", **more}
        return {"device_name": f"/dev/nvme{server}n1", "query_mem_mode": "actual", **more}


_tier = []


def tier():
    """The pod of this process."""
    if not _tier:
        _tier.append(Tier())
    return _tier[0]


def agent_of(name):
    """A NIXL agent without backends."""
    return nixl_agent(name, nixl_agent_config(backends=[]))


class Side:
    """A NIXL agent with one backend and its transfers, as an application has them."""

    def __init__(self, backend, server, **more):
        self.backend = backend
        self.name = f"{backend}-{server}-{random.randbytes(4).hex()}"
        self.agent = agent_of(self.name)
        self.agent.create_backend(backend, tier().params(backend, server, **more))
        self.device = 0

    def memory(self, array):
        """Registers an array of blocks."""
        self.agent.register_memory([(array.ctypes.data, array.nbytes, 0, "")], "DRAM",
                                   backends=[self.backend])

    def objects(self, keys, nbytes=BLOCK_BYTES):
        """Registers objects; their device numbers."""
        devices = range(self.device, self.device + len(keys))
        self.device += len(keys)
        self.agent.register_memory(
            [(0, nbytes, device, key) for device, key in zip(devices, keys)], "OBJ",
            backends=[self.backend])
        return devices

    def transfer(self, operation, array, devices, nbytes=BLOCK_BYTES, offset=0):
        """A transfer of the array's first blocks to or from the objects; not posted yet."""
        memory = self.agent.get_xfer_descs(
            [(array.ctypes.data + i * nbytes, nbytes, 0) for i in range(len(devices))], "DRAM")
        objects = self.agent.get_xfer_descs([(offset, nbytes, device) for device in devices], "OBJ")
        return self.agent.initialize_xfer(operation, memory, objects, self.name,
                                          backends=[self.backend])

    def wait(self, handle, state, seconds=20):
        """Polls until it is over: "DONE", or the name of NIXL's error."""
        give_up = time.monotonic() + seconds
        while state == "PROC":
            assert time.monotonic() < give_up, "a transfer does not end"
            time.sleep(0.0002)
            try:
                state = self.agent.check_xfer_state(handle)
            except NIXL_ERRORS as error:
                return type(error).__name__
        return state

    def run(self, operation, array, devices, nbytes=BLOCK_BYTES):
        """Posts, waits and releases: how it ended."""
        handle = self.transfer(operation, array, devices, nbytes)
        state = self.wait(handle, self.agent.transfer(handle))
        self.agent.release_xfer_handle(handle)
        return state

    def query(self, keys):
        """Which keys are there."""
        found = self.agent.query_memory([(0, 0, 0, key) for key in keys], self.backend, "OBJ")
        return [answer is not None for answer in found]


def keys(count):
    """Names that no other call has made: 32 hex digits, as CMX has them."""
    base = random.randbytes(8).hex()
    return [f"{base}{number:016x}" for number in range(count)]


def blocks(count, seed=None, nbytes=BLOCK_BYTES):
    """Blocks of random bytes; all zeros without a seed."""
    if seed is None:
        return numpy.zeros((count, nbytes), dtype=numpy.uint8)
    return numpy.random.default_rng(seed).integers(0, 256, (count, nbytes), dtype=numpy.uint8)


@contextlib.contextmanager
def stopped(daemon):
    """The daemon stands still inside."""
    daemon.stand_still()
    try:
        yield
    finally:
        daemon.signal(signal.SIGCONT)


class TestCase(unittest.TestCase):
    """The pod, and sums over its metrics."""

    def setUp(self):
        self.tier = tier()

    def metric(self, daemon, name, *labels):
        """The sum of a daemon's metric over what has these labels."""
        found = [number for key, number in daemon.metrics().items()
                 if key.partition("{")[0] == name and all(label in key for label in labels)]
        self.assertTrue(found, f"no metric {name} {labels}")
        return sum(found)

    @contextlib.contextmanager
    def told(self, *words):
        """What is written to standard error inside has these words."""
        sys.stderr.flush()
        with tempfile.TemporaryFile() as file:
            kept = os.dup(2)
            os.dup2(file.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(kept, 2)
                os.close(kept)
            file.seek(0)
            text = file.read().decode(errors="replace")
        for word in words:
            self.assertIn(word, text)
