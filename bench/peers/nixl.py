# SPDX-License-Identifier: Apache-2.0
"""NIXL's POSIX plugin: memory to a local file and back, in the process of the caller.

NIXL moves bytes and keeps no index: which object lies where in the file is this driver's dictionary,
so a peer that had to find its objects would do more. Descriptor lists are prepared once, a transfer is
made of their indices. It can only be asked whether a transfer is over: Peer asks without a pause,
Sleep pauses 50 us between two questions.
"""
import os
import time

from peers import side, virtual

PAUSE_SECONDS = 50e-6


class Peer(side.Side):
    INSTALL = virtual.packages("nixl-cu12", "numpy", dependencies=False)
    TITLE = "NIXL POSIX plugin with libaio, one local file, O_DIRECT, polled without a pause"
    CLASS = "local disk"
    AGAINST = ("local", "pod", "unix")
    ACKNOWLEDGED = "on the drive"
    PAUSES = False

    def start(self, pool):
        from nixl_cu12 import nixl_agent, nixl_agent_config
        slots = pool.nbytes // self.size
        self.base, self.places = side.address(pool), {}
        self.fd = os.open(self.folder / "objects", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        os.posix_fallocate(self.fd, 0, self.size * self.setting.count)
        self.agent = agent = nixl_agent("bench", nixl_agent_config(backends=[]))
        agent.create_backend("POSIX", {"use_aio": "true"})
        agent.register_memory([(self.base, pool.nbytes, 0, "")], "DRAM")
        agent.register_memory([(0, self.size * self.setting.count, self.fd, "")], "FILE")
        self.memory = agent.prep_xfer_dlist("NIXL_INIT_AGENT", agent.get_xfer_descs(
            [(self.base + i * self.size, self.size, 0) for i in range(slots)], "DRAM"))
        self.file = agent.prep_xfer_dlist("bench", agent.get_xfer_descs(
            [(i * self.size, self.size, self.fd) for i in range(self.setting.count)], "FILE"))

    def _move(self, operation, memory, places):
        slots = [(side.address(view) - self.base) // self.size for view in memory]
        transfer = self.agent.make_prepped_xfer(operation, self.memory, slots, self.file, places)
        state = self.agent.transfer(transfer)
        while state == "PROC":
            if self.PAUSES:
                time.sleep(PAUSE_SECONDS)
            state = self.agent.check_xfer_state(transfer)
        self.agent.release_xfer_handle(transfer)
        return [side.OK if state == "DONE" else str(state)] * len(memory)

    def put(self, keys, memory):
        for key in keys:
            self.places.setdefault(key, len(self.places))
        return self._move("WRITE", memory, [self.places[key] for key in keys])

    def get(self, keys, memory):
        return self._move("READ", memory, [self.places[key] for key in keys])

    def stop(self):
        os.close(self.fd)

    @staticmethod
    def versions(installed):
        return {"nixl-cu12": virtual.version(installed, "nixl-cu12")}


class Sleep(Peer):
    TITLE = "NIXL POSIX plugin with libaio, one local file, O_DIRECT, polled each 50 us"
    PAUSES = True
