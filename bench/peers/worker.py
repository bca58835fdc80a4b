# SPDX-License-Identifier: Apache-2.0
"""The process of one side: the client of the workload, with the side's servers as its children.

    python3 -m peers.worker SETTING     SETTING: JSON, see main()

Reads commands as lines of JSON from its standard input and answers each with one line, on what was its
standard output; what libraries print goes to a log. Any error is an answer {"failed": why}, after
which the side is stopped and the process ends. When the input ends, it ends too.

What is timed: the calls of put() and get(), in windows of as many objects as the pool has room for.
Making objects, spoiling memory and comparing every byte happen between windows.
"""
import json
import mmap
import os
import pathlib
import random
import sys
import time
import traceback
import types

from peers import cpu, icms_forms, peer, side, values

POOL_BYTES = 256 << 20
LATENCIES_MAX = 20000  # of one slice


class Tally:
    """What the windows of one slice came to."""

    def __init__(self):
        self.seconds = self.cpu_seconds = 0.0
        self.operations = 0  # objects asked for
        self.good_bytes = 0  # of objects that were what they should be
        self.lost = self.corrupt = self.errors = 0
        self.first_error = ""
        self.latencies_us = []

    def count(self, status, same, size):
        self.operations += 1
        if status == side.MISS:
            self.lost += 1
        elif status != side.OK:
            self.errors += 1
            self.first_error = self.first_error or str(status)[:200]
        elif not same:
            self.corrupt += 1
        else:
            self.good_bytes += size

    def answer(self):
        self.latencies_us = [round(one, 1) for one in self.latencies_us[:LATENCIES_MAX]]
        return self.__dict__


class Worker:
    """One side and what it has stored."""

    def __init__(self, setting):
        self.setting = setting
        self.values = values.Values(setting.size)
        slots = min(setting.count, max(POOL_BYTES // setting.size, setting.depth_max))
        memory = mmap.mmap(-1, slots * setting.size)
        for page in range(0, len(memory), mmap.PAGESIZE):
            memory[page] = 1
        self.pool = memoryview(memory)
        self.slots = [self.pool[i * setting.size:(i + 1) * setting.size] for i in range(slots)]
        self.side = (icms_forms.Form if setting.form else peer(setting.peer))(setting)
        self.order = []  # of the next gets
        self.random = random.Random(1)
        self.stored = set()  # objects whose put was acknowledged

    # ---- commands

    def start(self, _command):
        self.side.start(self.pool)
        return {"versions": self.side.versions(self.setting.installed)}

    def put(self, command):
        """Puts the objects first ... first + count - 1, depth at a time."""
        tally = Tally()
        numbers = list(range(command["first"], command["first"] + command["count"]))
        for at in range(0, len(numbers), len(self.slots)):
            some = numbers[at:at + len(self.slots)]
            for number, slot in zip(some, self.slots):
                self.values.make(number, slot)
            statuses = self._window(tally, self.side.put, some, command["depth"], self.side.settle)
            for number, status in zip(some, statuses):
                tally.count(status, True, self.setting.size)
                if status == side.OK:
                    self.stored.add(number)
        return tally.answer()

    def reopen(self, _command):
        self.side.reopen()
        return {}

    def get(self, command):
        """Gets in random order, depth at a time, for so many seconds of timed windows."""
        tally = Tally()
        self._drop_pages()
        until = time.monotonic() + 20 * command["seconds"] + 60
        while tally.seconds < command["seconds"] and time.monotonic() < until:
            self._get(tally, self._next(command["depth"]), command["depth"],
                      command["seconds"] - tally.seconds)
        return tally.answer()

    def audit(self, command):
        """Gets every object once whose put was acknowledged."""
        tally = Tally()
        self._drop_pages()
        numbers = sorted(self.stored)
        for at in range(0, len(numbers), len(self.slots)):
            self._get(tally, numbers[at:at + len(self.slots)], command["depth"], None)
        return {**tally.answer(), "latencies_us": [], "acknowledged": len(numbers),
                "served": self.side.served()}

    def stop(self, _command):
        self.side.stop()
        return {}

    # ---- how

    def _next(self, depth):
        """The next objects in an order that comes to each once before it begins again. No object is
        in them twice; fewer than a batch at the end of the order are left out."""
        if len(self.order) < depth:
            self.order = sorted(self.stored)
            if not self.order:
                raise side.SideError("no object was stored: nothing to get")
            self.random.shuffle(self.order)
        some, self.order = self.order[:len(self.slots)], self.order[len(self.slots):]
        return some

    def _get(self, tally, numbers, depth, seconds):
        """A window of gets, which ends early when its seconds are over; then every byte is looked
        at. What was not asked for goes back to the front of the order."""
        for slot in self.slots[:len(numbers)]:
            self.values.spoil(slot)
        statuses = self._window(tally, self.side.get, numbers, depth, None, seconds)
        for number, slot, status in zip(numbers, self.slots, statuses):
            tally.count(status, status == side.OK and self.values.same(number, slot),
                        self.setting.size)
        self.order = numbers[len(statuses):] + self.order

    def _window(self, tally, call, numbers, depth, settle, seconds=None):
        """Calls with depth objects at a time; the statuses of those that were asked for."""
        keys = [values.key(number) for number in numbers]
        statuses = []
        pids = cpu.tree(os.getpid())
        cpu_begin, begin = cpu.seconds(pids), time.perf_counter()
        end = begin
        while len(statuses) < len(keys) and (seconds is None or end - begin < seconds):
            at = len(statuses)
            last = end
            statuses += call(keys[at:at + depth], self.slots[at:min(at + depth, len(keys))])
            end = time.perf_counter()
            tally.latencies_us.append((end - last) * 1e6)
        tally.seconds += end - begin
        if settle is not None:
            settle()
        tally.cpu_seconds += cpu.seconds(pids) - cpu_begin
        return statuses

    def _drop_pages(self):
        """Takes the side's files out of the page cache."""
        if not self.side.PAGE_CACHE:
            return
        for path in self.setting.folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                fd = os.open(path, os.O_RDONLY)
                os.fdatasync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)


def serve(worker, commands, answers):
    """Answers commands until there are no more or one failed."""
    for line in commands:
        command = json.loads(line)
        try:
            answer = getattr(worker, command["do"])(command)
        except Exception as error:  # whatever a foreign library raises is this side's failure
            traceback.print_exc()
            answer = {"failed": f"{command['do']}: {type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if "failed" in answer:
            return


def main():
    """SETTING has size, count, depth_max, folder, installed, build, and peer or form."""
    said = json.loads(sys.argv[1])
    for name in ("folder", "installed", "build"):
        said[name] = pathlib.Path(said[name])
    answers = os.fdopen(os.dup(1), "w")
    log = os.open(said["folder"] / "worker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    serve(Worker(types.SimpleNamespace(**said)), sys.stdin, answers)
    sys.stdout.flush()
    os._exit(0)  # foreign libraries may have threads that do not end


if __name__ == "__main__":
    main()
