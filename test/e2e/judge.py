# SPDX-License-Identifier: Apache-2.0
"""What the tests of this folder share."""
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tools"))
import probe  # noqa: E402


def expect(what, truth, seen=""):
    """Says that it is so; else ends the test with what was seen."""
    if not truth:
        sys.exit(f"not ok {what}: {seen}")
    print(f"ok {what}", flush=True)


def wait_until(what, condition, seconds=30, seen=lambda: ""):
    """Waits until it is so, and says it; else ends the test with what is seen then."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"not ok {what}: not within {seconds} s: {seen()}")
        time.sleep(0.05)
    print(f"ok {what}", flush=True)


def own_network(*addresses):
    """Starts this program again in a network of its own, whose loopback has these addresses, too."""
    if os.environ.get("ICMS_OWN_NETWORK") == "1":
        for words in (["link", "set", "lo", "up"], *(["address", "add", f"{a}/32", "dev", "lo"] for a in addresses)):
            subprocess.run(["ip", *words], check=True, timeout=60)
        return
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode != 0:
        print("skipped: no network namespaces here")
        sys.exit(77)
    os.environ["ICMS_OWN_NETWORK"] = "1"
    os.execvp("unshare", ["unshare", "-rn", sys.executable, *sys.argv])


class Load(threading.Thread):
    """Loads one block after the other, and remembers what was no hit."""

    def __init__(self, get, blocks):
        """get(name) runs `icms get`; blocks are values by name."""
        super().__init__(daemon=True)
        self.get, self.blocks, self.over, self.wrong, self.loaded = get, blocks, False, [], 0

    def run(self):
        while not self.over:
            for name, value in self.blocks.items():
                if self.over:
                    break
                got = self.get(name)
                self.loaded += 1
                if got.returncode != 0 or got.stdout != value:
                    self.wrong.append((name, got.returncode, got.stderr))

    def end(self):
        self.over = True
        self.join()
        return self.wrong


class Probe(probe.Probe):
    """The same, and a wrong byte ends the test."""

    def ask(self, line, seconds=60):
        told = super().ask(line, seconds)
        if told is None or told.get("wrong", 0) != 0:
            sys.exit(f"not ok no wrong byte after {line}: {told}, {self.process.poll()}")
        return told


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
