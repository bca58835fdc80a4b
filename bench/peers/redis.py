# SPDX-License-Identifier: Apache-2.0
"""Redis over loopback TCP: everything in its memory, nothing saved. GETs and SETs are pipelined on
one connection; a batch is as many commands in flight. Redis works in one thread."""
import subprocess

import pod
from peers import debian, side


class Peer(side.Side):
    INSTALL = debian.unpack("redis-server", "redis-tools")
    TITLE = "Redis, one server, no AOF and no snapshots, RESP over loopback TCP"
    CLASS = "RAM over TCP"
    AGAINST = ("ram", "pod")
    ACKNOWLEDGED = "in the server's memory"

    def start(self, pool):
        port = pod.free_port()
        self.server = side.Server(
            [debian.program(self.setting.installed, "redis-server"), "--port", port, "--bind", "127.0.0.1",
             "--save", "", "--appendonly", "no", "--dir", self.folder], self.folder / "redis.log",
            debian.environment(self.setting.installed))
        self.server.wait_port(port)
        self.lines = side.Lines(port)

    def put(self, keys, memory):
        parts = []
        for key, view in zip(keys, memory):
            parts += [b"*3\r\n$3\r\nSET\r\n$32\r\n" + key.hex().encode() +
                      b"\r\n$%d\r\n" % self.size, view, b"\r\n"]
        self.lines.send(parts)
        answers = [self.lines.line() for _ in keys]
        return [side.OK if answer == b"+OK" else answer.decode() for answer in answers]

    def get(self, keys, memory):
        self.lines.send([b"".join(b"*2\r\n$3\r\nGET\r\n$32\r\n" + key.hex().encode() + b"\r\n"
                                  for key in keys)])
        return [self._answer(view) for view in memory]

    def _answer(self, view):
        line = self.lines.line()
        if line == b"$-1":
            return side.MISS
        if line != b"$%d" % self.size:
            raise side.SideError(f"redis answers {line[:80]!r} to a GET of {self.size} bytes")
        self.lines.payload(view)
        return side.OK

    def stop(self):
        self.lines.close()
        self.server.stop()

    @staticmethod
    def versions(installed):
        said = subprocess.run([debian.program(installed, "redis-server"), "--version"], check=True,
                              capture_output=True, text=True, env=debian.environment(installed)).stdout
        return {"redis": said.split("v=")[1].split()[0]}
