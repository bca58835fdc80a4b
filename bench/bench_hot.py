#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A red-hot key, and a pod that is gone: `make bench-hot`.

Four enclosures and eight clients, each with an agent of its own whose memory holds few of the blocks. Rows:

spread   each client walks over blocks of its own: at any moment they ask all enclosures
hot      all clients walk over the same blocks at the same time: at any moment they ask one enclosure for one block
kept     all clients ask for one block, over and over: after the first time it is in the memory of their agents
gone     all enclosures are killed; the clients ask for blocks that no memory has

What is compared is the latency of a get, of all clients together by the worst of their p99. Bars: hot and kept within 1.5
times spread; gone: a median of 50 us, and gets that fail because the enclosures are gone. Where a row misses its bar, it is
named and the exit status is 1.

usage: bench_hot.py [--build DIR] [--rounds N] [--dir DIR] [--json FILE]
       bench_hot.py --check: whether rows are judged by these bars; nothing is measured
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
import probe  # noqa: E402

ENCLOSURES, CLIENTS, BLOCKS, BYTES, WALK = 4, 8, 1600, 60000, 200
VOLUME = {"name": "kv", "value_max": "64KiB", "memory_max": "1MiB"}

# What no row may exceed.
P99_OF_SPREAD_MAX, GONE_P50_US_MAX = 1.5, 50


def ask_all(clients, line):
    for client, words in zip(clients, line):
        client.tell(words)
    answers = [client.answer() for client in clients]
    wrong = sum(answer["wrong"] for answer in answers)
    if wrong:
        sys.exit(f"{wrong} wrong bytes: {answers}")
    return answers


def row(name, answers):
    return {"row": name, "p50_us": statistics.median(answer["p50_us"] for answer in answers),
            "p99_us": max(answer["p99_us"] for answer in answers), "hits": sum(answer["ok"] for answer in answers),
            "pod": sum(answer["pod"] for answer in answers),
            "enclosure_down": sum(answer["enclosure_down"] for answer in answers)}


def measure(given, folder, p):
    targets = [p.add_target(f"e{i}", 1, "256MiB", [VOLUME], segment="4MiB", memory="64MiB") for i in range(ENCLOSURES)]
    for target in targets:
        target.wait_ready()
    agents = [p.add_agent(f"server{i}", targets, [VOLUME]) for i in range(CLIENTS)]
    for agent in agents:
        agent.wait_ready()
    clients = [probe.Probe(given.build, f"unix:{agent.socket}", BLOCKS, BYTES) for agent in agents]
    if clients[0].ask("put")["ok"] != BLOCKS:
        sys.exit("the blocks were not stored")
    rows = []
    for number in range(given.rounds):
        at = number * WALK
        rows.append(row("spread", ask_all(clients, [f"walk {at + i * WALK} {WALK} 1" for i in range(CLIENTS)])))
        rows.append(row("hot", ask_all(clients, [f"walk {at + BLOCKS // 2} {WALK} 1"] * CLIENTS)))
        rows.append(row("kept", ask_all(clients, [f"walk {at} {WALK} 0"] * CLIENTS)))
    for target in targets:
        target.kill()
    time.sleep(2)
    rows.append(row("gone", ask_all(clients[:1], [f"walk {BLOCKS // 4} {WALK} 1"])))
    for client in clients:
        client.end()
    return rows


def summary(rows):
    """The median of the rounds of each row."""
    known = {}
    for one in rows:
        known.setdefault(one["row"], []).append(one)
    return [{key: value if key == "row" else statistics.median(one[key] for one in of) for key, value in of[0].items()}
            for of in known.values()]


def missed(rows):
    """What of the rows is not as it has to be."""
    wrong = [f"{one['row']}: p99 of {one['p99_us']:.0f} us, {one['p99_of_spread']:.2f} of spread, at most "
             f"{P99_OF_SPREAD_MAX}" for one in rows
             if one["row"] in ("hot", "kept") and one["p99_of_spread"] > P99_OF_SPREAD_MAX]
    for one in rows:
        if one["row"] == "gone" and one["enclosure_down"] == 0:
            wrong.append("gone: no get failed because the enclosures are gone")
        if one["row"] == "gone" and one["p50_us"] > GONE_P50_US_MAX:
            wrong.append(f"gone: a median of {one['p50_us']:.1f} us, at most {GONE_P50_US_MAX}")
    return wrong


def check():
    """A row at its bar passes, and one beyond it does not."""
    well = {"p50_us": 50, "p99_us": 900, "p99_of_spread": 1.5, "enclosure_down": 9}
    for row, change, fails in (("spread", {"p99_of_spread": 9}, False), ("hot", {}, False), ("kept", {}, False),
                               ("gone", {"p99_of_spread": 9}, False), ("hot", {"p99_of_spread": 1.51}, True),
                               ("kept", {"p99_of_spread": 1.51}, True), ("gone", {"p50_us": 50.1}, True),
                               ("gone", {"enclosure_down": 0}, True)):
        if bool(missed([{"row": row, **well, **change}])) != fails:
            sys.exit(f"{row} with {change} is not judged by its bar")


def main():
    if sys.argv[1:] == ["--check"]:
        check()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=5, help="of which the median counts (%(default)s)")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("/var/tmp"), help="for drive files")
    parser.add_argument("--json", type=pathlib.Path, help="where the rows go, too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="icms-", dir=given.dir) as folder, pod.Pod(given.build, folder) as p:
        rows = summary(measure(given, folder, p))
    spread = next(one for one in rows if one["row"] == "spread")
    for one in rows:
        one["p99_of_spread"] = one["p99_us"] / spread["p99_us"]
        print(f"{one['row']:7} p50 {one['p50_us']:8.1f} us  p99 {one['p99_us']:8.1f} us  {one['p99_of_spread']:5.2f} of "
              f"spread  {one['hits']:.0f} hits, {one['pod']:.0f} of the last ones from the pod", flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit("\n".join(missed(rows)) or 0)


if __name__ == "__main__":
    main()
