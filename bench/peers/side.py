# SPDX-License-Identifier: Apache-2.0
"""What takes part in a match: the interface that icms and every peer has, and what drivers share.

A Side lives in a process of its own (worker.py), which is the client; servers are its children.
Life cycle: Side() -> start() -> put()... -> settle() -> reopen() -> get()... -> stop().
"""
import ctypes
import os
import pathlib
import socket
import subprocess
import time

import pod

OK = "ok"
MISS = "miss"


class SideError(Exception):
    """A side does not work; the text says what was tried and what happened."""


class Side:
    """The interface. What is raised by a call ends the match; what goes wrong with one object is
    its status."""

    #: One sentence for the document: which form of the peer, with which settings.
    TITLE = ""
    #: What is compared with what: RAM local, RAM over TCP, local disk, networked SSD.
    CLASS = ""
    #: The forms of icms that it meets, of icms.FORMS.
    AGAINST = ()
    #: What the side itself checks of what it returns.
    CHECKS = "nothing"
    #: Where a put is when it is acknowledged.
    ACKNOWLEDGED = ""
    #: Whether reads may be served by the page cache of the kernel: it is dropped before each slice.
    PAGE_CACHE = False

    def __init__(self, setting):
        """setting: size (bytes of an object), count (objects in all), depth_max, folder (an empty
        one, for files of the run), installed (the folder of its installer), build (Meson's)."""
        self.setting = setting
        self.size = setting.size
        self.folder = setting.folder

    def start(self, pool):
        """Starts servers and connects. pool is the memory that all put() and get() use: page
        aligned, touched, and there until the process ends."""
        raise NotImplementedError

    def put(self, keys, memory):
        """Stores one object for each key (16 bytes) from the memoryviews; returns their statuses:
        OK, or what went wrong. All are asked for at once, and waited for."""
        raise NotImplementedError

    def get(self, keys, memory):
        """Loads objects into the memoryviews; returns OK, MISS, or what went wrong for each."""
        raise NotImplementedError

    def settle(self):
        """Waits until what was put and acknowledged is where it stays; its processor time counts
        for the puts."""

    def reopen(self):
        """After all puts and before the first get: gives up what a client keeps for itself, so that
        gets are served from where the class says."""

    def served(self):
        """{where: gets served there} since reopen(), if the side knows."""
        return {}

    def stop(self):
        """Ends what start() started. May be called whatever happened before."""

    @staticmethod
    def versions(installed):
        """{program: version} of what the installer left."""
        raise NotImplementedError


# ---- for drivers --------------------------------------------------------------------------------

def address(memory):
    """Where a memoryview lies."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Server:
    """A program that runs in the background with a log."""

    def __init__(self, command, log, environment=None):
        self.name = pathlib.Path(command[0]).name
        self.log = pathlib.Path(log)
        with open(self.log, "ab") as file:
            self.process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                env={**os.environ, **(environment or {})}, cwd=self.log.parent,
                preexec_fn=pod.die_with_parent)

    def tail(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-5:])

    def wait_port(self, port, seconds=30):
        """Waits until it listens; SideError, with the end of its log, when it does not."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise SideError(f"{self.name} ended with {self.process.returncode}: {self.tail()}")
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise SideError(f"{self.name} does not listen on port {port}: {self.tail()}")

    def stop(self, seconds=5):
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Lines:
    """A blocking connection of a protocol of lines and payloads."""

    def __init__(self, port, ahead=64):
        """ahead: what is read of a line at a time, which may be the begin of a payload."""
        self.ahead_bytes = ahead
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ahead = b""

    def send(self, parts):
        """Sends bytes and memoryviews without joining them."""
        parts = [memoryview(part) for part in parts]
        while parts:
            n = self.socket.sendmsg(parts[:64])
            while parts and n >= parts[0].nbytes:
                n -= parts.pop(0).nbytes
            if n:
                parts[0] = parts[0][n:]

    def line(self):
        """The next line without its end."""
        while b"\r\n" not in self._ahead:
            more = self.socket.recv(self.ahead_bytes)
            if not more:
                raise SideError("the server closed the connection")
            self._ahead += more
        line, _, self._ahead = self._ahead.partition(b"\r\n")
        return line

    def payload(self, view, end=2):
        """Fills a memoryview, and drops so many bytes behind it: an end of line."""
        ahead, self._ahead = self._ahead[:view.nbytes + end], self._ahead[view.nbytes + end:]
        end = bytearray(end)
        parts = [view, memoryview(end)]
        for i, part in enumerate(parts):
            n = min(len(ahead), part.nbytes)
            part[:n] = ahead[:n]
            parts[i], ahead = part[n:], ahead[n:]
        while parts := [part for part in parts if part.nbytes]:
            n = self.socket.recvmsg_into(parts, 0, socket.MSG_WAITALL)[0]
            if n == 0:
                raise SideError("the server closed the connection")
            for i, part in enumerate(parts):
                parts[i], n = part[n:], n - min(n, part.nbytes)

    def close(self):
        self.socket.close()
