# SPDX-License-Identifier: Apache-2.0
"""memcached with extstore over loopback TCP: keys in memory, values in a file when memory runs short.

It gets memory for an eighth of what is stored, so that most reads come from the file. When puts come faster
than it writes to the file it evicts what it has acknowledged, with more memory too, only less. It reads and
writes through the page cache. An item must be smaller than a write buffer, and ext_page_size must
stand before ext_path, else it is ignored.
"""
import subprocess

import pod
from peers import debian, side


class Peer(side.Side):
    INSTALL = debian.unpack("memcached")
    TITLE = "memcached with extstore, memory for an eighth of the objects, text protocol over " \
            "loopback TCP, reads through the page cache"
    CLASS = "networked SSD"
    AGAINST = ("pod", "unix")
    CHECKS = "CRC32C of what comes from the file"
    ACKNOWLEDGED = "in the server's memory"
    PAGE_CACHE = True

    def start(self, pool):
        port = pod.free_port()
        memory = max(96, self.size * self.setting.count // 8 >> 20)
        space = max(1, (3 * self.size * self.setting.count >> 30) + 1)
        buffer = max(4, 4 * self.size >> 20)
        self.server = side.Server(
            [debian.program(self.setting.installed, "memcached"), "-p", port, "-U", "0",
             "-l", "127.0.0.1", "-u", "root", "-m", memory, "-I", f"{max(1, 2 * self.size >> 20)}m",
             "-o", f"ext_page_size=64,ext_wbuf_size={buffer},ext_threads=2,"
                   f"ext_path={self.folder}/extstore:{space}G"],
            self.folder / "memcached.log", debian.environment(self.setting.installed))
        self.server.wait_port(port)
        self.lines = side.Lines(port)

    def put(self, keys, memory):
        parts = []
        for key, view in zip(keys, memory):
            parts += [b"set %s 0 0 %d\r\n" % (key.hex().encode(), self.size), view, b"\r\n"]
        self.lines.send(parts)
        answers = [self.lines.line() for _ in keys]
        return [side.OK if answer == b"STORED" else answer.decode() for answer in answers]

    def get(self, keys, memory):
        names = [key.hex().encode() for key in keys]
        statuses = dict.fromkeys(names, side.MISS)
        rooms = dict(zip(names, memory))
        self.lines.send([b"get " + b" ".join(names) + b"\r\n"])
        while (line := self.lines.line()) != b"END":
            words = line.split(b" ")
            if words[0] != b"VALUE" or int(words[3]) != self.size:
                raise side.SideError(f"memcached answers {line[:80]!r} to a get")
            self.lines.payload(rooms[words[1]])
            statuses[words[1]] = side.OK
        return [statuses[name] for name in names]

    def _stats(self):
        self.lines.send([b"stats\r\n"])
        found = {}
        while (line := self.lines.line()) != b"END":
            _, name, value = line.decode().split(" ", 2)
            found[name] = value
        return found

    def settle(self):
        """Nothing to wait for: what is in memory moves to the file only when memory runs short."""

    def reopen(self):
        self._before = self._stats()

    def served(self):
        now = self._stats()
        hits, file = (int(now[name]) - int(self._before[name])
                      for name in ("get_hits", "get_extstore"))
        return {"file": file, "memory": hits - file}

    def stop(self):
        self.lines.close()
        self.server.stop()

    @staticmethod
    def versions(installed):
        said = subprocess.run([debian.program(installed, "memcached"), "--version"], check=True,
                              capture_output=True, text=True,
                              env=debian.environment(installed)).stdout
        return {"memcached": said.split()[-1]}
