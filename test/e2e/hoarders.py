#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hosts that take what they can get from an enclosure and give nothing.

Goal: slow readers, writers whose data does not come, hundreds of connections and List storms of one
tenant cost another one at most a tenth of its loads and stores.
Method: a real target whose drive is slow (the fault loop.write), an agent whose client offers more
stores than the drive takes and loads meanwhile, and hosts of another tenant that are made here, PDU by
PDU. What is compared are operations in runs of the same length, in turns alone and beside the hoarders.
On a machine with other work the parts scatter, so `make check` asks for half; --deep asks for the bar,
0.9, of the median of several pairs.

usage: hoarders.py BUILD_ROOT [--deep]
"""
import pathlib
import socket
import statistics
import struct
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "test/security")]
import nvme  # noqa: E402
import pod  # noqa: E402
from judge import Client, expect  # noqa: E402

BYTES = 16000
RATE = 3000  # blocks a second that the client offers, several times what the drive takes
WRITE_MS = 20
SECONDS = 4
VALUE = 256 << 10  # of a hoarder
VOLUMES = [{"name": "polite", "value_max": "16KiB", "memory_max": "1MiB"},
           {"name": "greedy", "value_max": "256KiB", "memory_max": "1MiB"}]
GREEDY = 2  # its namespace
READERS, WRITERS, LISTERS, IDLE, DEPTH = 16, 16, 4, 440, 30


class Hoarders:
    """Hosts of the greedy tenant; a context manager that ends them."""

    def __init__(self, target):
        self.target = target
        self.queues = []
        self.over = threading.Event()
        self.threads = []
        self.lists = 0

    def host(self, number):
        name = f"nqn.2026-01.io.icms:greedy-{number}"
        admin = nvme.Queue(self.target.port, name, self.target.nqn)
        admin.enable()
        self.queues.append(admin)
        stream = socket.socket()
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # it is soon full
        stream.settimeout(60)
        stream.connect(("127.0.0.1", self.target.port))
        io = nvme.Queue(self.target.port, name, self.target.nqn, qid=1, cntlid=admin.cntlid,
                        stream=stream)
        self.queues.append(io)
        return io

    @staticmethod
    def send(queue, entry):
        queue.stream.sendall(struct.pack("<BBBBI", 4, 0, 72, 0, 72) + entry)

    def reader(self, number):
        """Asks for more than sockets hold, and takes nothing."""
        io = self.host(number)
        for cid in range(DEPTH):
            self.send(io, nvme.sqe(nvme.RETRIEVE, cid, GREEDY, VALUE, key=b"greedy", cdw10=VALUE))

    def writer(self, number):
        """Has stores to send, and sends no data of them."""
        io = self.host(number)
        for cid in range(DEPTH):
            self.send(io, nvme.sqe(nvme.STORE, cid, GREEDY, VALUE, key=b"%d.%d" % (number, cid),
                                   cdw10=VALUE))

    def lister(self, number):
        io = self.host(number)
        while not self.over.is_set():
            io.command(nvme.LIST, GREEDY, b"\0", VALUE, cdw10=VALUE)
            self.lists += 1

    def idle(self):
        """Connections that say nothing, until the enclosure takes no more."""
        for _ in range(IDLE):
            try:
                stream = socket.create_connection(("127.0.0.1", self.target.port), timeout=2)
            except OSError:
                return
            self.queues.append(type("Idle", (), {"stream": stream}))

    def __enter__(self):
        for number in range(READERS):
            self.reader(number)
        for number in range(WRITERS):
            self.writer(100 + number)
        for number in range(LISTERS):
            thread = threading.Thread(target=self.lister, args=(200 + number,), daemon=True)
            self.threads.append(thread)
            thread.start()
        self.idle()
        return self

    def __exit__(self, *exception):
        self.over.set()
        for thread in self.threads:
            thread.join()
        for queue in self.queues:
            queue.stream.close()


def main():
    build = pathlib.Path(sys.argv[1])
    deep = "--deep" in sys.argv
    parts = {"acked": [], "loads": []}
    with tempfile.TemporaryDirectory(prefix="icms-", dir="/var/tmp") as folder, \
            pod.Pod(build, folder) as p:
        target = p.add_target("enclosure0", 1, "128MiB", VOLUMES, segment="1MiB", memory="32MiB",
                              queue_entries_max="256",
                              faults=f"loop.write:1:slow={WRITE_MS * 1000}")
        target.wait_ready()
        agent = p.add_agent("server-0", [target], VOLUMES[:1], store_backlog="8MiB",
                            client_memory="16MiB", memory="4MiB", silence="60s", keep_alive="60s")
        agent.wait_ready()
        seed = Hoarders(target)
        io = seed.host(999)
        status, _ = io.command(nvme.ICMS_STORE, GREEDY, b"greedy", data=bytes(VALUE), cdw10=VALUE)
        expect("a block for readers", status == 0, status)
        client = Client(build / "test/e2e/overload_client", agent, "polite", 1, BYTES)
        storm = f"storm {SECONDS} {RATE}"
        client.ask(storm)  # blocks to load
        for _ in range(7 if deep else 1):
            alone = client.ask(storm)
            with Hoarders(target) as hoarders:
                beside = client.ask(storm)
                parked = target.metrics()["icms_target_buffers_parked"]
            for what, ratios in parts.items():
                ratios.append(beside[what] / alone[what])
            print(f"   alone {alone['acked']} stores {alone['loads']} loads, beside "
                  f"{beside['acked']} and {beside['loads']}, {hoarders.lists} Lists, "
                  f"{len(hoarders.queues)} connections")
            expect("no load fails", beside["load_other"] + beside["wrong"] == 0, beside)
            expect("hoarders list, and wait for memory", hoarders.lists > 0 and parked > 100,
                   (hoarders.lists, parked))
        for what, ratios in parts.items():
            part = statistics.median(ratios)
            expect(f"{what} beside hoarders, as a part of alone: {part:.2f}",
                   part >= (0.9 if deep else 0.5), ratios)
        seed.__exit__()
        client.end()


main()
