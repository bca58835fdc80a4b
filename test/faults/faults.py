#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults of one enclosure of three, measured with real daemons.

Method: an agent reaches each enclosure through a TCP proxy. A client asks for the same blocks, more
than the agent's arena holds, in batches with a deadline, all the time. Each fault begins, lasts, and
is repaired, some times, with a new agent each time, because an agent leaves an enclosure that was slow
before alone for longer. What is measured:

exclusion_p99_ms  from the fault until the agent passes the enclosure over (excluded or slow)
late_ms_max       how much later than its deadline a batch ended, at worst
hung              batches that were not over 5 s after their deadline
wrong_bytes       bytes that were not those that were stored
misses            gets that missed, from the fault until the repair, by reason
hit_ratio         of gets: before the fault, from the fault to the repair, after it
first_hit_s       from the repair until all blocks are hits again, at worst

usage: faults.py BUILD_ROOT OUT.json [FAULT ...]
"""
import json
import math
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
import proxy  # noqa: E402

VOLUME = {"name": "kv", "value_max": "64KiB", "memory_max": "1MiB"}
COUNT, BYTES = 240, 60000
DEADLINE_MS, HUNG_S, FAULT_S = 500, 5, 4
TIMES = int(os.environ.get("FAULT_TIMES", "5"))


class Client:
    """agent_probe in a thread of its own, which asks batch after batch."""

    def __init__(self, build, where):
        self.process = subprocess.Popen([build / "test/e2e/agent_probe", where, "kv", str(COUNT),
                                         str(BYTES)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        self.batches, self.hung, self.is_ended = [], 0, False

    def ask(self, line, seconds):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        while not select.select([self.process.stdout], [], [], seconds)[0]:
            self.hung += 1
        return json.loads(self.process.stdout.readline())

    def run(self):
        while not self.is_ended:
            answer = self.ask(f"get {DEADLINE_MS}", DEADLINE_MS / 1000 + HUNG_S)
            self.batches.append((time.monotonic(), answer))

    def end(self, thread):
        self.is_ended = True
        thread.join()
        self.process.stdin.close()
        self.process.wait()

    def since(self, begin, end):
        """Batches that were asked for and answered in between."""
        return [a for at, a in list(self.batches) if begin <= at - a["seconds"] and at <= end]


def restart(target):
    target.process.wait()
    target.start()


def faults(target, link):
    """Name: how it begins, how it is repaired."""
    return {
        "SIGKILL": (lambda: target.signal(signal.SIGKILL), lambda: restart(target)),
        "SIGSTOP": (lambda: target.signal(signal.SIGSTOP), lambda: target.signal(signal.SIGCONT)),
        "black hole": (lambda: setattr(link, "is_cut", True), lambda: setattr(link, "is_cut", False)),
        "delay of 300 ms": (lambda: setattr(link, "delay_s", 0.15),
                            lambda: setattr(link, "delay_s", 0.0)),
        "delay of 500 ms": (lambda: setattr(link, "delay_s", 0.25),
                            lambda: setattr(link, "delay_s", 0.0)),
        "1 MB/s": (lambda: setattr(link, "bytes_per_s", 1000000),
                   lambda: setattr(link, "bytes_per_s", 0)),
    }


def passed_over(agent, target):
    seen = agent.metrics()
    label = f'{{enclosure="{target.name}"}}'
    return seen["icms_agent_enclosure_state" + label] == 0


def ratio(batches):
    asked = COUNT * len(batches)
    return round(sum(a["ok"] for a in batches) / asked, 4) if asked else None


def measure_once(agent, target, client, begin, repair, row):
    calm = time.monotonic()
    time.sleep(1)
    began = time.monotonic()
    begin()
    while not passed_over(agent, target) and time.monotonic() < began + FAULT_S:
        time.sleep(0.005)
    row["exclusion"].append((time.monotonic() - began) * 1000)
    time.sleep(max(0, began + FAULT_S - time.monotonic()))
    mended = time.monotonic()
    repair()
    while time.monotonic() < mended + 30:
        whole = [at for at, a in list(client.batches) if at - a["seconds"] > mended and
                 a["ok"] == COUNT]
        if whole:
            break
        time.sleep(0.01)
    else:
        sys.exit(f"{row['fault']}: not all blocks are hits 30 s after the repair: {agent.log_tail()}")
    row["first_hit"].append(whole[0] - mended)
    time.sleep(1)
    during = client.since(began, mended)
    for name, batches in (("before", client.since(calm, began)), ("during", during),
                          ("after", client.since(whole[0], time.monotonic()))):
        row[name] += batches
    for answer in client.since(calm, time.monotonic()):
        row["late_ms_max"] = max(row["late_ms_max"], answer["seconds"] * 1000 - DEADLINE_MS)
        row["wrong_bytes"] += answer["wrong"]


def misses(batches):
    known = ("seconds", "ok", "wrong", "dram", "pod")
    count = {}
    for answer in batches:
        for reason, number in answer.items():
            if reason not in known and number:
                count[reason] = count.get(reason, 0) + number
    return count


def measure(p, build, targets, doors, name, begin, repair):
    row = {"fault": name, "exclusion": [], "first_hit": [], "late_ms_max": 0.0, "wrong_bytes": 0,
           "before": [], "during": [], "after": []}
    hung = 0
    for turn in range(TIMES):
        agent = p.add_agent(f"{name.replace(' ', '-').replace('/', '-')}-{turn}", doors, [VOLUME])
        agent.wait_ready()
        client = Client(build, f"unix:{agent.socket}")
        client.ask("put", 60)
        thread = threading.Thread(target=client.run, daemon=True)
        thread.start()
        measure_once(agent, targets[0], client, begin, repair, row)
        client.end(thread)
        hung += client.hung
        agent.stop()
    exclusion = sorted(row["exclusion"])
    return {
        "fault": name,
        "exclusion_p99_ms": round(exclusion[math.ceil(0.99 * len(exclusion)) - 1]),
        "late_ms_max": round(row["late_ms_max"], 1),
        "hung": hung,
        "wrong_bytes": row["wrong_bytes"],
        "misses": misses(row["during"]),
        "hit_ratio": [ratio(row[when]) for when in ("before", "during", "after")],
        "first_hit_s": round(max(row["first_hit"]), 2),
    }


def main():
    build, out, wanted = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    rows = []
    with tempfile.TemporaryDirectory(prefix="icms-") as folder, pod.Pod(build, folder) as p:
        targets = [p.add_target(f"enclosure{i}", 1, "64MiB", [VOLUME], segment="4MiB",
                                memory="32MiB") for i in range(3)]
        for target in targets:
            target.wait_ready()
        links = [proxy.Proxy(target.port) for target in targets]
        doors = [types.SimpleNamespace(name=target.name, nqn=target.nqn, port=link.port)
                 for target, link in zip(targets, links)]
        for name, (begin, repair) in faults(targets[0], links[0]).items():
            if wanted and name not in wanted:
                continue
            rows.append(measure(p, build, targets, doors, name, begin, repair))
            print(json.dumps(rows[-1]), flush=True)
    out.write_text(json.dumps(rows, indent=1) + "\n")
    if any(row["hung"] or row["wrong_bytes"] for row in rows):
        sys.exit("an operation hung, or brought wrong bytes")


if __name__ == "__main__":
    main()
