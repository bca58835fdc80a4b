# SPDX-License-Identifier: Apache-2.0
"""What faults.py breaks: a pod of real daemons, an engine that asks it, and what the engine notices."""
import os
import shutil
import sys
import threading
import time
import types

import pod
import probe
import proxy
import secure

VOLUME = {"name": "kv", "value_max": "64KiB", "memory_max": "1MiB"}
ENCLOSURES = 4
COUNT, BYTES = 240, 60000
DEADLINE_MS, HUNG_S = 500, 5
FAULT_S = float(os.environ.get("FAULT_SECONDS", "4"))
BACK_S = 60
SERVER = "server"


class Engine:
    """A client in a thread of its own, which asks batch after batch."""

    def __init__(self, build, where):
        self.probe = probe.Probe(build, where, COUNT, BYTES)
        self.batches, self.mends, self.is_over = [], False, False
        self.probe.ask("put")
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.is_over:
            answer = self.probe.ask(f"get {DEADLINE_MS}", DEADLINE_MS / 1000 + HUNG_S)
            self.batches.append((time.monotonic(), answer))
            if self.mends and answer["ok"] < COUNT:
                self.probe.ask("mend 2000", 2 + HUNG_S)

    def end(self):
        self.is_over = True
        self.thread.join()
        self.probe.end()

    def since(self, begin, end):
        """Batches that were asked for and answered in between."""
        return [a for at, a in list(self.batches) if begin <= at - a["seconds"] and at <= end]


class Writer:
    """A client that stores the same blocks again and again until it is stopped or killed."""

    def __init__(self, build, where):
        self.probe = probe.Probe(build, where, COUNT, BYTES)
        self.is_over = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.is_over and self.probe.ask("put", 20 + HUNG_S) is not None:
            time.sleep(0.05)

    def end(self):
        self.is_over = True
        self.thread.join()
        self.probe.end()


class Scene:
    """Four enclosures behind proxies, and for each measurement an agent and an engine of its own; with everything
    turned on that tells tenants apart (tools/secure.py), or without."""

    def __init__(self, build, folder, p, is_secure):
        self.build, self.folder, self.p = build, folder, p
        self.targets, self.names = [], 0
        self.volume, self.keys = VOLUME, None
        if is_secure:
            self.volume, self.keys = {**VOLUME, "encrypted": "true"}, secure.Keys(build, folder)
            self.keys.volume(VOLUME["name"])
        asked = self.keys.target([SERVER]) if is_secure else {}
        for i in range(ENCLOSURES):
            self.targets.append(p.add_target(f"enclosure{i}", 1, "64MiB", [self.volume], segment="4MiB",
                                             memory="32MiB", faults=self.drive_faults(i), **asked))
        for target in self.targets:
            target.wait_ready()
        self.links = [proxy.Proxy(target.port) for target in self.targets]
        self.doors = [types.SimpleNamespace(name=target.name, nqn=target.nqn, port=link.port)
                      for target, link in zip(self.targets, self.links)]
        self.agent = self.engine = None

    def flag(self, i, what):
        """While this file is there the drive of the enclosure has the fault."""
        return self.folder / f"drive{i}.{what}"

    def drive_faults(self, i):
        return (f"loop.read:{self.flag(i, 'slow')}:slow=20000,loop.write:{self.flag(i, 'slow')}:slow=20000,"
                f"loop.read_done:{self.flag(i, 'read')}:fail,loop.write_done:{self.flag(i, 'write')}:fail,"
                f"target.memory:{self.flag(i, 'memory')}:fail")

    def begin(self):
        self.names += 1
        proofs = self.keys.agent(SERVER) if self.keys else {}
        self.agent = self.p.add_agent(f"server{self.names}", self.doors, [self.volume], **proofs)
        self.agent.wait_ready()
        if self.keys:
            secure.wait_proven(self.agent)
        self.engine = Engine(self.build, f"unix:{self.agent.socket}")

    def end(self):
        self.engine.end()
        if self.agent.process.poll() is None:
            self.agent.stop(30)

    def writer(self):
        return Writer(self.build, f"unix:{self.agent.socket}")

    def restart(self, i):
        self.targets[i].process.wait()
        self.targets[i].start()

    def start_empty(self, i):
        """The enclosure starts with a drive that was never written."""
        self.targets[i].kill()
        self.targets[i].drives[0].unlink()
        self.targets[i].start()

    def start_foreign(self, i):
        """The enclosure starts with a drive of an enclosure of another pod."""
        volume = dict(VOLUME, name=f"other{self.names}")
        stranger = self.p.add_target(f"stranger{self.names}", 1, "64MiB", [volume], segment="4MiB", memory="32MiB")
        stranger.wait_ready()
        stranger.stop(30)
        self.targets[i].kill()
        shutil.copyfile(stranger.drives[0], self.targets[i].drives[0])
        self.targets[i].start()
        time.sleep(FAULT_S)  # it begins only now

    def swap(self, i, j):
        """Two enclosures start with the drive of the other."""
        a, b = self.targets[i].drives[0], self.targets[j].drives[0]
        other = a.with_suffix(".other")
        for one in (i, j):
            self.targets[one].kill()
        a.rename(other)
        b.rename(a)
        other.rename(b)
        for one in (i, j):
            self.targets[one].start()

    def passed_over(self, which):
        """Whether the agent asks none of these enclosures now."""
        try:
            seen = self.agent.metrics()
        except pod.PodError:
            return False
        return all(seen[f'icms_agent_enclosure_state{{enclosure="{self.targets[i].name}"}}'] == 0 for i in which)

    def whole_since(self, moment):
        """When a batch of hits alone was answered that was asked for after this moment; None: none."""
        for at, answer in list(self.engine.batches):
            if at - answer["seconds"] > moment and answer["ok"] == COUNT:
                return at
        return None

    def wait_whole(self, moment, what):
        while (at := self.whole_since(moment)) is None:
            if time.monotonic() > moment + BACK_S:
                last = self.engine.batches[-1:] or ["no batch"]
                sys.exit(f"{what}: not all blocks are hits after {BACK_S} s: {last}\n{self.agent.log_tail()}\n"
                         f"{self.targets[0].log_tail()}")
            time.sleep(0.01)
        return at
