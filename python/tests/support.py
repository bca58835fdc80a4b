# SPDX-License-Identifier: Apache-2.0
"""What the tests share: a pod on loopback, tiers to run on, and values that tell each other apart.

The pod is started once a process, by the first test that asks, and killed at its end. ICMS_BUILD
names the build folder with the daemons. With ICMS_PYTHON_SECURE everything is turned on (tools/secure.py): its
volume kv is encrypted, clients find the keys as they do without a test, in ICMS_KEYS, and agent and
enclosure prove themselves to each other, over TLS.
"""
import atexit
import contextlib
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["ICMS_BUILD"])
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
import secure  # noqa: E402

import icms  # noqa: E402

VALUE_BYTES = 64 << 10
VOLUME = {"name": "kv", "value_max": "64KiB", "memory_max": "8MiB"}
RAW = {"name": "raw", "value_max": "64KiB", "memory_max": "8MiB", "sealed": "false"}


#: Seconds that a loaded machine may take for anything that is not a wait. Only a call that hangs, or
#: that waits for a deadline of DISTANT_MS, takes longer.
GRACE_S = 20
DISTANT_MS = 200000


#: Everything is turned on for every pod that does not choose its volumes.
SECURE = "ICMS_PYTHON_SECURE" in os.environ


def secure_keys():
    """Keys in a folder of their own, and in ICMS_KEYS the list that every client of this process finds."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="icms-python-keys-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    keys = secure.Keys(BUILD, folder)
    keys.volume("kv")
    return keys


class Tier:
    """One enclosure and one agent, which start() of each makes anew; more keys are the agent's."""

    def __init__(self, volumes=(VOLUME, RAW), **more):
        asked, proofs = {}, {}
        if SECURE and volumes == (VOLUME, RAW):
            volumes = ({**VOLUME, "encrypted": "true"}, RAW)
            if not _keys:
                _keys.append(secure_keys())
            asked, proofs = _keys[0].target(["server-a"]), _keys[0].agent("server-a")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="icms-python-"))
        self.pod = pod.Pod(BUILD, self.folder)
        self.target = self.pod.add_target("enclosure0", 1, "128MiB", volumes, segment="8MiB",
                                          memory="32MiB", **asked)
        self.target.wait_ready()
        self.agent = self.pod.add_agent("server-a", [self.target], volumes,
                                        load_deadline=f"{GRACE_S}s", store_deadline=f"{GRACE_S}s", **proofs,
                                        **more)
        self.agent.wait_ready()
        if proofs:
            secure.wait_proven(self.agent)
        self.where = f"unix:{self.agent.socket}"
        atexit.register(self.end)

    def end(self):
        self.pod.__exit__()
        shutil.rmtree(self.folder, ignore_errors=True)


class EncryptedTier(Tier):
    """A tier of its own whose volume kv is encrypted, with a list of its keys, one in which its key has
    another id, and one with another key."""

    def __init__(self, test):
        if SECURE:
            test.skipTest("keys are everywhere in this run")
        super().__init__(({**VOLUME, "encrypted": "true"}, {**VOLUME, "name": "plain"}))
        test.addCleanup(self.end)
        self.lists = {}
        for name, number, key in (("keys", 1, "a"), ("other_id", 2, "a"), ("other_key", 1, "b")):
            path = self.folder / f"key-{key}"
            if not path.exists():
                subprocess.run([BUILD / "cmd/icms", "key", "gen", "--type", "volume", path], check=True,
                               stdout=subprocess.DEVNULL)
            self.lists[name] = str(self.folder / name)
            pathlib.Path(self.lists[name]).write_text(
                f"volumes:\n- name: kv\n  keys:\n  - {{id: {number}, file: {path}}}\n")

    def check_ciphertext(self, test, values):
        """All that was stored is on the drives, and none of these values is. The agent is another one
        afterwards, and knows nothing."""
        shown = value("not encrypted")
        with icms.Client(self.where, keys="") as client:
            client.volume("plain").put("shown", shown, on_flash=True)
        self.agent.stop()
        self.target.stop()
        content = b"".join(path.read_bytes() for path in self.target.drives)
        test.assertIn(shown[:64], content)  # the search would find it
        for one in values:
            for at in range(0, len(one) - 64, 4096):
                test.assertNotIn(bytes(one[at:at + 64]), content)
        for daemon in (self.target, self.agent):
            daemon.start()
            daemon.wait_ready()


_keys, _tier = [], []


def tier():
    """The pod of this process."""
    if not _tier:
        _tier.append(Tier())
    return _tier[0]


def value(number, nbytes=VALUE_BYTES):
    """Bytes that no other number has."""
    return random.Random(number).randbytes(nbytes)


def wait_for(condition, seconds=GRACE_S):
    """Asks again and again until the condition holds; an AssertionError when it never does."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.005)


@contextlib.contextmanager
def puts_that_replace():
    """A list that gets the keys of each put of this process that replaces what is there."""
    seen = []

    def spy(put):
        def spied(volume, keys, *arguments, if_absent=False, **words):
            if not if_absent:
                seen.append(keys)
            return put(volume, keys, *arguments, if_absent=if_absent, **words)
        return spied

    with unittest.mock.patch.multiple(icms.Volume, put=spy(icms.Volume.put),
                                      start_put=spy(icms.Volume.start_put)):
        yield seen


def twin(key):
    """The key of another block with the same 16 bytes on the wire."""
    return key[:-1] + bytes([key[-1] ^ 1])


@contextlib.contextmanager
def gets_of_twins():
    """Whatever this process gets meanwhile, it asks for the twins of the keys."""
    call, start = icms.Volume._call, icms.Volume._start

    def asked(op, keys):
        return [twin(key) for key in keys] if op == icms._icms.GET else keys

    def calls(volume, op, keys, *arguments):
        return call(volume, op, asked(op, keys), *arguments)

    def starts(volume, op, keys, *arguments, **words):
        return start(volume, op, asked(op, keys), *arguments, **words)

    with unittest.mock.patch.multiple(icms.Volume, _call=calls, _start=starts):
        yield


def keys(count, name=None):
    """Keys that no other call has made."""
    base = random.randbytes(8) if name is None else name
    return [base + number.to_bytes(8, "big") for number in range(count)]


class TestCase(unittest.TestCase):
    """A client and its volume kv for each test, on the pod."""

    def setUp(self):
        self.tier = tier()
        self.client = icms.Client(self.tier.where)
        self.addCleanup(self.client.close)
        self.volume = self.client.volume("kv")

    def put(self, count, nbytes=VALUE_BYTES):
        """Puts blocks on flash; their keys and values."""
        names = keys(count)
        values = [value(name, nbytes) for name in names]
        results = self.volume.put(names, values, on_flash=True)
        self.assertTrue(results.ok, list(results))
        return names, values

    def metric(self, prefix, of=None):
        """The sum of a daemon's (the agent's) metrics whose names, with labels, begin so."""
        found = [number for name, number in (of or self.tier.agent).metrics().items()
                 if name.startswith(prefix)]
        self.assertTrue(found, f"no metric {prefix}")
        return sum(found)
