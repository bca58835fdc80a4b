# SPDX-License-Identifier: Apache-2.0
"""Engines that a nest forks, seen from the program that asks them; `nest.py` is the other end.

    nest = Nest(python, program, log, environment)
    peer = nest.fork({"model": ..., ...}, folder / "engine-1")
    peer.tell(...)
    peer.hear()
"""
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess

import pod

SECONDS = 900  # an engine that says nothing for so long hangs, on a machine however busy


class Failed(Exception):
    """What was claimed is not so; the text says what."""


class Peer:
    """An engine: a JSON object a line, each way. The first thing it says is in hello."""

    def __init__(self, listener, log_path):
        self._listener, self._file, self.log_path, self.hello = listener, None, log_path, None

    def wait(self):
        """Waits until it is there and has said hello."""
        self._listener.settimeout(SECONDS)
        with self._listener:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                self._fail()
        connection.settimeout(SECONDS)
        self._file = connection.makefile("rw")
        self.hello = self.hear()
        return self

    def tell(self, **job):
        print(json.dumps(job), file=self._file, flush=True)

    def hear(self):
        """The next thing it says."""
        try:
            line = self._file.readline()
        except TimeoutError:
            line = ""
        return json.loads(line) if line else self._fail()

    def ask(self, **job):
        self.tell(**job)
        return self.hear()

    def log(self):
        return self.log_path.read_text(errors="replace")

    def ends(self):
        """It ends by itself, in good order: there is nothing left to kill."""
        self.hello = None

    def kill(self):
        """Kills it, when it is there; a second time does nothing. vLLM's memory of the host outlives an
        engine that is killed, by its name, which the log has."""
        self._listener.close()
        if self.hello:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.hello["pid"], signal.SIGKILL)
        self.hello = None
        for name in set(re.findall(r"/dev/shm/vllm_offload_[\w-]+\.mmap", self.log())):
            pathlib.Path(name).unlink(missing_ok=True)

    def _fail(self):
        raise Failed(f"{self.log_path}: the engine hangs or ended:\n{self.log()[-3000:]}")


class Nest:
    """The process that forks engines: program calls nest.serve(). python: of an environment that has
    vLLM; log: where what it says itself goes."""

    def __init__(self, python, program, log, environment):
        with open(log, "wb") as file:
            self._process = subprocess.Popen(
                [str(python), str(program)], stdin=subprocess.PIPE, text=True, stdout=file,
                stderr=file, env=environment, preexec_fn=pod.die_with_parent)

    def fork(self, order, path):
        """A Peer to wait for; its log and socket are path with .log and .sock."""
        log, name = pathlib.Path(f"{path}.log"), f"{path}.sock"
        log.touch()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(name)
        listener.listen()
        print(json.dumps({**order, "log": str(log), "socket": name}), file=self._process.stdin,
              flush=True)
        return Peer(listener, log)

    def close(self):
        """Waits for its engines, which have ended, so that their processor time is counted."""
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
