# SPDX-License-Identifier: Apache-2.0
"""Mooncake Store over TCP: a master, a storage process that lends its memory, and a client without
memory of its own, whose buffers are registered. Batches use the batch calls.

Its offload to SSD is not here: after a restart of the storage process the master forgot all objects when
the old process' time was up, and without one its memory answers. Why is not known.
"""
import os

import pod
from peers import side, virtual

PACKAGE = "mooncake-transfer-engine-non-cuda"
OBJECT_NOT_FOUND = -704


class Peer(side.Side):
    INSTALL = virtual.packages(PACKAGE, "numpy")
    TITLE = "Mooncake Store, a storage process with memory, TCP over loopback, registered buffers"
    CLASS = "RAM over TCP"
    AGAINST = ("ram", "pod")
    ACKNOWLEDGED = "in the storage process' memory"

    def start(self, pool):
        self.master = pod.free_port()
        self.servers = [side.Server(
            [self.setting.installed / "venv/bin/mooncake_master", f"--rpc_port={self.master}",
             f"--metrics_port={pod.free_port()}", "--rpc_address=127.0.0.1", "--logtostderr"],
            self.folder / "master.log")]
        self.servers[0].wait_port(self.master)
        self._start_storage()
        self._connect(pool)

    def _start_storage(self):
        port = pod.free_port()
        memory = (3 * self.size * self.setting.count // 2 >> 30) + 1
        self.servers.append(side.Server(
            [self.setting.installed / "venv/bin/mooncake_client", "--host=127.0.0.1",
             f"--port={port}", f"--global_segment_size={memory} GB",
             f"--master_server_address=127.0.0.1:{self.master}", "--metadata_server=P2PHANDSHAKE",
             "--protocol=tcp", "--logtostderr"], self.folder / "storage.log"))
        self.servers[-1].wait_port(port, 60)

    def _connect(self, pool):
        os.environ.setdefault("GLOG_logtostderr", "1")
        from mooncake.store import MooncakeDistributedStore
        self.store = MooncakeDistributedStore()
        error = self.store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "",
                                 f"127.0.0.1:{self.master}")
        if error == 0:
            error = self.store.register_buffer(side.address(pool), pool.nbytes)
        if error != 0:
            raise side.SideError(f"mooncake does not set up: {error}; {self.servers[1].tail()}")

    def put(self, keys, memory):
        names, places = [key.hex() for key in keys], [side.address(view) for view in memory]
        if len(names) == 1:
            errors = [self.store.put_from(names[0], places[0], self.size)]
        else:
            errors = self.store.batch_put_from(names, places, [self.size] * len(names))
        return [side.OK if error == 0 else f"error {error}" for error in errors]

    def get(self, keys, memory):
        names, places = [key.hex() for key in keys], [side.address(view) for view in memory]
        if len(names) == 1:
            counts = [self.store.get_into(names[0], places[0], self.size)]
        else:
            counts = self.store.batch_get_into(names, places, [self.size] * len(names))
        return [side.OK if count == self.size else side.MISS if count == OBJECT_NOT_FOUND else
                f"{count} bytes" for count in counts]

    def stop(self):
        self.store.close()
        for server in reversed(self.servers):
            server.stop()

    @staticmethod
    def versions(installed):
        return {PACKAGE: virtual.version(installed, PACKAGE)}
