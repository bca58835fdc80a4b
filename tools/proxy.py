# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy whose link is slow, cut, or wrong, for tests and measurements.

       proxy.py PORT: one with a process of its own, as ProxyProcess starts it: writes its port, and takes bytes_per_s
       from lines of its input until that ends
"""
import queue
import socket
import struct
import subprocess
import sys
import threading
import time


class Proxy:
    """Carries connections to a port; delay_s one way, bytes_per_s (0: no limit) of each connection. While is_cut
    nothing comes through, without a word to anybody; is_cut_to and is_cut_from cut one way, to the port and from
    it. Of every flip_every bytes (0: of none) one is another."""

    def __init__(self, to_port):
        self.to_port, self.delay_s, self.bytes_per_s, self.flip_every = to_port, 0.0, 0, 0
        self.is_cut = self.is_cut_to = self.is_cut_from = False
        self.is_down, self.open, self.lost, self.carried = False, [], set(), 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            here = self.listener.accept()[0]
            if self.is_down:
                here.close()
                continue
            try:
                there = socket.create_connection(("127.0.0.1", self.to_port))
            except OSError:
                here.close()
                continue
            # All that may fail comes before the threads, which close what reset() or down() ends.
            here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.open.append((here, there))
            for a, b, way in ((here, there, "is_cut_to"), (there, here, "is_cut_from")):
                line = queue.Queue(maxsize=256)
                threading.Thread(target=self.take, args=(a, line), daemon=True).start()
                threading.Thread(target=self.give, args=(line, b, way, (here, there)), daemon=True).start()

    def down(self):
        """Ends all connections; each that comes ends at once, until up()."""
        self.is_down = True
        pairs, self.open = self.open, []
        for here, _ in pairs:
            try:
                here.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def up(self):
        self.is_down = False

    def reset(self):
        """Ends all connections with resets; new ones are carried."""
        pairs, self.open = self.open, []
        for sock in (sock for pair in pairs for sock in pair):
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.shutdown(socket.SHUT_RD)
            except OSError:
                pass

    def lose(self):
        """Of the connections that there are nothing comes through, until lost is cleared; new ones are carried."""
        self.lost.update(self.open)

    def take(self, source, line):
        while True:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            line.put((time.monotonic() + self.delay_s, data))
            if not data:
                return

    def flipped(self, data):
        """The data, with the bytes changed that are due."""
        first, self.carried = self.carried, self.carried + len(data)
        at = -(first + 1) % self.flip_every
        changed = bytearray(data)
        for place in range(at, len(data), self.flip_every):
            changed[place] ^= 0x10
        return bytes(changed)

    def give(self, line, sink, way, pair):
        while True:
            due, data = line.get()
            time.sleep(max(0.0, due - time.monotonic()))
            while self.is_cut or getattr(self, way) or pair in self.lost:
                time.sleep(0.01)
            if not data:
                self.end(sink)
                return
            if self.flip_every:
                data = self.flipped(data)
            while data:
                piece = data if self.bytes_per_s == 0 else data[:self.bytes_per_s // 50]
                data = data[len(piece):]
                if self.bytes_per_s != 0:
                    time.sleep(len(piece) / self.bytes_per_s)
                try:
                    sink.sendall(piece)
                except OSError:
                    data = b""

    @staticmethod
    def end(sink):
        try:
            if sink.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == bytes(8):
                sink.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        sink.close()


class ProxyProcess:
    """A proxy that shares no interpreter with what is measured: each of its threads takes that from the others for
    up to 5 ms."""

    def __init__(self, to_port):
        self.process = subprocess.Popen([sys.executable, __file__, str(to_port)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def limit(self, bytes_per_s):
        """When this returns, what the proxy sends next is limited."""
        self.process.stdin.write(f"{bytes_per_s}\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def main():
    proxy = Proxy(int(sys.argv[1]))
    print(proxy.port, flush=True)
    for line in sys.stdin:
        proxy.bytes_per_s = int(line)
        print(flush=True)


if __name__ == "__main__":
    main()
