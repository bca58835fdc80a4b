#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The icms program on a terminal while nobody answers.

Goal: what takes longer than a second says so, in a line that is gone at the end; what is quick, and
what is no terminal, gets no such line.
Method: an enclosure that is stopped: opening pod: waits for it to connect, a match through an agent
for its answer.

usage: cli_progress.py BUILD_ROOT
"""
import os
import pathlib
import pty
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402

BUILD = pathlib.Path(sys.argv[1])
VOLUME = {"name": "kv", "memory_max": "16MiB", "value_max": "64KiB"}
BAD = 0


def expect(what, right, seen):
    global BAD
    print(f"{'ok' if right else 'not ok'} {what}")
    if not right:
        print(f"  {seen}")
        BAD += 1


def on_terminal(*arguments):
    """Runs icms with a terminal for standard error; what it wrote there, and to standard output."""
    own, its = pty.openpty()
    process = subprocess.Popen([BUILD / "cmd/icms", *arguments], stdout=subprocess.PIPE, stderr=its)
    os.close(its)
    text = b""
    while True:
        try:
            piece = os.read(own, 4096)
        except OSError:
            break
        if not piece:
            break
        text += piece
    os.close(own)
    out = process.communicate(timeout=60)[0]
    return text, out


def main():
    with tempfile.TemporaryDirectory(prefix="icms-") as folder, pod.Pod(BUILD, folder) as p:
        target = p.add_target("enclosure", 1, "64MiB", [VOLUME], segment="4MiB", memory="16MiB")
        target.wait_ready()
        # it is patient: a stopped enclosure is neither excluded nor given up
        agent = p.add_agent("agent", [target], [VOLUME], silence="60s", connect_timeout="20s",
                            keep_alive="60s")
        agent.wait_ready()
        unix, own = f"unix:{agent.socket}", f"pod:{agent.config_path}"
        text, out = on_terminal("match", "-o", unix, "a", "b")
        expect("a quick match says nothing but its answer", (text, out) == (b"", b"0 of 2\n"),
               (text, out))
        target.signal(signal.SIGSTOP)
        text, out = on_terminal("match", "-o", unix, "-d", "2500ms", "a", "b")
        expect("a slow match shows that it goes on", b"\rmatching ... 1 s" in text, text)
        expect("and the line is gone at the end", text.endswith(b"\r\x1b[K"), text)
        expect("its answer is the same", out == b"0 of 2\n", out)
        text, out = on_terminal("match", "-o", unix, "-d", "2500ms", "--json", "a")
        expect("with --json there is no such line", text == b"", text)
        text, out = on_terminal("exists", "-o", own, "-d", "1ms", "a")
        expect("opening a pod shows that it goes on", b"\ropening ... 1 s" in text, text)
        target.signal(signal.SIGCONT)
    sys.exit(1 if BAD else 0)


main()
