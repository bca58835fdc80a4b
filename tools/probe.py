# SPDX-License-Identifier: Apache-2.0
"""A client of a pod that is told what to do (test/e2e/agent_probe.c), for tests, demos and measurements."""
import json
import select
import subprocess

import pod


class Probe:
    """A process with blocks of a volume: each line is answered by an object. hung counts how often an
    answer was not there in time, and is waited for all the same."""

    def __init__(self, build, where, count, value_bytes, volume="kv"):
        self.hung = 0
        self.process = subprocess.Popen(
            [build / "test/e2e/agent_probe", where, volume, str(count), str(value_bytes)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=pod.die_with_parent)

    def tell(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, seconds=60):
        """None: the process ended."""
        while not select.select([self.process.stdout], [], [], seconds)[0]:
            self.hung += 1
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def ask(self, line, seconds=60):
        self.tell(line)
        return self.answer(seconds)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.process.stdin.close()
        return self.process.wait(timeout=60)
