#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Connections are marked for the network by what they carry.

Goal: with `dscp` and `priority` every connection of an agent and of a target has the marks of its class,
over IPv4 and IPv6; without them none has any. What cannot be a mark is refused.
Method: real daemons; what the kernel says of their sockets (`ss --tos`).

usage: marks.py BUILD_ROOT
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import expect  # noqa: E402

CLASSES = ("loads", "prestage", "stores", "control")
TARGET = {"dscp": (26, 18, 10, 48), "priority": (5, 3, 2, 6)}
AGENT = {"dscp": (46, 34, 8, 0), "priority": (4, 3, 1, 0)}
VOLUMES = [{"name": "kv", "value_max": "64KiB"}]


def keys(marks):
    """The marks as keys of a configuration."""
    return {name: dict(zip(CLASSES, values)) for name, values in marks.items()}


def pairs(marks):
    return sorted(zip(marks["dscp"], marks["priority"]))


def sockets(side, port):
    """(DSCP, priority) of each connection of one side ("sport": that of the target), sorted."""
    said = subprocess.run(["ss", "-tnHO", "--tos", side, "=", f":{port}"], check=True,
                          capture_output=True, text=True).stdout
    found = []
    for line in filter(lambda line: line.startswith("ESTAB"), said.splitlines()):
        mark = re.search(r"\b(?:tclass|tos):0x([0-9a-f]+)", line)
        priority = re.search(r"\bclass_id:0x([0-9a-f]+)", line)
        found.append((int(mark[1], 16) >> 2 if mark else 0, int(priority[1], 16) if priority else 0))
    return sorted(found)


def wait_for(side, port, wanted):
    """Sockets of a side, when they are as they have to be, or after ten seconds."""
    give_up = time.monotonic() + 10
    while (found := sockets(side, port)) != wanted and time.monotonic() < give_up:
        time.sleep(0.1)
    return found


def runs(p, name, host, target_marks, agent_marks):
    """A target at this address and an agent, with marks or without."""
    target = p.make_target(f"{name}-enclosure", 1, "512MiB", VOLUMES, **keys(target_marks))
    agent = p.make_agent(f"{name}-server", [target], VOLUMES, memory="16MiB", **keys(agent_marks))
    for daemon in (target, agent):
        config = daemon.config_path.read_text().replace(f"127.0.0.1:{target.port}",
                                                        f'"{host}:{target.port}"')
        daemon.config_path.write_text(config)
        daemon.start()
        daemon.wait_ready()
    for side, marks in (("sport", target_marks), ("dport", agent_marks)):
        wanted = pairs(marks) if marks else [(0, 0)] * 4
        found = wait_for(side, target.port, wanted)
        expect(f"{name}: marks of the {'target' if side == 'sport' else 'agent'}", found == wanted, found)
    agent.stop()
    target.stop()


def refused(p, key, value):
    target = p.make_target(f"wrong-{key}", 1, "512MiB", VOLUMES, **{key: value})
    answer = subprocess.run([target.program, "--check-config", "--config", str(target.config_path)],
                            capture_output=True, text=True)
    expect(f"{key}: {value} is refused", answer.returncode != 0 and "loads" in answer.stderr,
           answer.stderr)


def main():
    with tempfile.TemporaryDirectory(prefix="icms-marks-") as folder, pod.Pod(sys.argv[1], folder) as p:
        runs(p, "marked", "127.0.0.1", TARGET, AGENT)
        runs(p, "marked6", "[::1]", TARGET, AGENT)
        runs(p, "plain", "127.0.0.1", {}, {})
        refused(p, "dscp", {"loads": 64})
        refused(p, "priority", {"loads": 7})


main()
