# SPDX-License-Identifier: Apache-2.0
"""icms as a side: the forms in which it meets peers, through its Python package.

pod    an agent inside the client, an icms-target with a drive file behind loopback TCP
unix   the same target behind an icms-agent, the client attached to it by shared memory
ram    as unix, with an agent whose memory holds everything: gets are hits there. What is put goes to
       flash all the same, behind the acknowledgement
local  an agent inside the client with a drive file of its own: no network

Drives are read and written with O_DIRECT. The agents of pod, unix and local have memory for a few
objects only, and forget them before the first get: so gets come from flash, which is checked by the
source that icms names for each.
"""
import time

import pod
from peers import side

FORMS = ("pod", "unix", "ram", "local")
TITLES = {
    "pod": "icms, agent in the client, flash behind NVMe/TCP over loopback, O_DIRECT",
    "unix": "icms, agent daemon, flash behind NVMe/TCP over loopback, O_DIRECT",
    "ram": "icms, agent daemon, everything in its memory, which it takes at the start (prefault)",
    "local": "icms, agent in the client, a local drive file, O_DIRECT",
}
CLASSES = {"pod": "networked SSD", "unix": "networked SSD", "ram": "RAM local",
           "local": "local disk"}
DEADLINE_MS = 20000
SLOTS = 32  # objects that an agent has memory for, when it shall not keep them: two batches
UP_SECONDS = 15


class Form(side.Side):
    """One of FORMS: setting.form says which."""

    CHECKS = "CRC32C of the record on flash and of the whole object, end to end"

    def __init__(self, setting):
        super().__init__(setting)
        self.form = setting.form
        self.client = self.target = self.agent = None
        self.wrong_source = self.from_where = 0

    # ---- configuration

    def _volume(self):
        return {"name": "kv", "value_max": f"{self.size}B"}

    def _memory(self):
        """For values under way: twice those of a batch, and something for all else."""
        return 2 * self.setting.depth_max * (self.size + 8192) + (32 << 20)

    def _drive(self):
        """Room for everything twice, so that nothing is evicted."""
        return (2 * self.size * self.setting.count + (1 << 30)) >> 20 << 20

    def _configure_agent(self):
        slots = self.setting.count + SLOTS if self.form == "ram" else SLOTS
        targets, extra = [], {"memory": f"{slots * (self.size + 8192)}B",
                              "client_memory": f"{max(self._memory(), 64 << 20)}B",
                              "store_backlog": f"{max(self._memory(), 256 << 20)}B",
                              "prefault": "true"}
        if self.target is None:
            extra["local"] = f"\n  path: {self.folder}/local-drive\n  size: {self._drive()}B"
        else:
            targets = [self.target]
        self.agent = pod.Agent(self.setting.build, self.folder, "agent", targets, [self._volume()],
                               extra)

    # ---- life

    def start(self, pool):
        if self.form != "local":
            self.target = pod.Target(self.setting.build, self.folder, "enclosure0", 1,
                                     f"{self._drive()}B", [self._volume()], "127.0.0.1",
                                     {"memory": f"{max(self._memory(), 64 << 20)}B"})
            self.target.start()
            self.target.wait_ready(60)
        self._configure_agent()
        self._open()

    def _open(self):
        import icms  # only in the worker, which has it on its path
        self.icms = icms
        where = f"pod:{self.agent.config_path}"
        if self.form in ("unix", "ram"):
            self.agent.start()
            self.agent.wait_ready()
            where = f"unix:{self.agent.socket}"
        self.client = icms.Client(where, load_deadline_ms=DEADLINE_MS, store_deadline_ms=DEADLINE_MS,
                                  buffer_bytes=self._memory())
        self.volume = self.client.volume("kv")
        until = time.monotonic() + UP_SECONDS
        while any(one["state"] != "up" for one in self.client.status().get("enclosures", [])):
            if time.monotonic() > until:
                raise side.SideError(f"the agent does not reach the target: {self.client.status()}")
            time.sleep(0.01)
        self.sources = dict.fromkeys(icms.Source, 0)

    def _close(self):
        if self.client is not None:
            self.client.close()
            self.client = None
        if self.form in ("unix", "ram") and self.agent is not None and self.agent.process:
            self.agent.stop(30)

    def put(self, keys, memory):
        return self._statuses(self.volume.put(keys, memory, on_flash=self.form != "ram"))

    def get(self, keys, memory):
        results = self.volume.get(keys, memory)
        for block in results:
            self.sources[block.source] += 1
        return self._statuses(results)

    def _statuses(self, results):
        if results.ok:
            return [side.OK] * len(results)
        return [side.OK if block.status == self.icms.Status.OK else
                side.MISS if block.status == self.icms.Status.MISS and
                block.reason == self.icms.Miss.ABSENT else
                f"{block.status.name} {block.reason.name}" for block in results]

    def settle(self):
        self.volume.flush(deadline_ms=DEADLINE_MS)

    def reopen(self):
        """Memory of the agent is kept by ram alone."""
        if self.form == "ram":
            self.sources = dict.fromkeys(self.icms.Source, 0)
        else:
            self._close()
            self._open()

    def served(self):
        return {source.name.lower(): count for source, count in self.sources.items() if count}

    def stop(self):
        self._close()
        if self.target is not None:
            self.target.stop(30)

    @staticmethod
    def versions(installed):
        import icms
        return {"icms": icms.version()}
