# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy whose link is slow or cut, for tests and measurements."""
import queue
import socket
import threading
import time


class Proxy:
    """Carries connections to a port; delay_s one way, bytes_per_s (0: no limit) of each connection,
    and while is_cut nothing, without a word to anybody."""

    def __init__(self, to_port):
        self.to_port, self.delay_s, self.bytes_per_s, self.is_cut = to_port, 0.0, 0, False
        self.is_down, self.open = False, []
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
            self.open.append(here)
            for a, b in ((here, there), (there, here)):
                a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                line = queue.Queue(maxsize=256)
                threading.Thread(target=self.take, args=(a, line), daemon=True).start()
                threading.Thread(target=self.give, args=(line, b), daemon=True).start()

    def down(self):
        """Ends all connections; each that comes ends at once, until up()."""
        self.is_down = True
        for sock in self.open:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.open = []

    def up(self):
        self.is_down = False

    def take(self, source, line):
        while True:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            line.put((time.monotonic() + self.delay_s, data))
            if not data:
                return

    def give(self, line, sink):
        while True:
            due, data = line.get()
            time.sleep(max(0.0, due - time.monotonic()))
            while self.is_cut:
                time.sleep(0.01)
            if not data:
                try:
                    sink.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                sink.close()
                return
            while data:
                piece = data if self.bytes_per_s == 0 else data[:self.bytes_per_s // 50]
                data = data[len(piece):]
                if self.bytes_per_s != 0:
                    time.sleep(len(piece) / self.bytes_per_s)
                try:
                    sink.sendall(piece)
                except OSError:
                    data = b""
