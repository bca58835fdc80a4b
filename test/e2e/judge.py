# SPDX-License-Identifier: Apache-2.0
"""What the tests of this folder share: expect(), and clients that offer stores."""
import json
import subprocess
import sys


def expect(what, truth, seen=""):
    """Says that it is so; else ends the test with what was seen."""
    if not truth:
        sys.exit(f"not ok {what}: {seen}")
    print(f"ok {what}", flush=True)


class Client:
    """A process of overload_client.c: lines tell it what to do, and it answers each with one of JSON."""

    def __init__(self, program, agent, volume, seed, value_bytes, **options):
        self.process = subprocess.Popen(
            [program, f"unix:{agent.socket}", volume, str(seed), str(value_bytes)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"a client ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, line):
        self.tell(line)
        return self.answer()

    def end(self):
        self.process.stdin.close()
        expect("a client ends", self.process.wait(timeout=60) == 0)
