#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hints (icms_prestage) on a trace of conversations, against a real pod: `make bench-prestage`.

The engine is a model: one GPU that takes requests in order, prefills tokens at a rate, and waits before
that until the blocks of a prefix are in the agent's memory, from where it copies them by itself: its
stall. Rate and bytes a token are those of vLLM's model on the processor (*engines* in doc/benchmarks.md:
1,100 tokens in 1.39 s, 63 MB for 1,920). All else is real: blocks are stored in a pod of two
enclosures and loaded through an agent whose memory holds a part of them, by the Python package. The
arrivals of the trace are stretched until the GPU is busy for --load of the time. A gateway gives hints
--leads seconds before a request arrives, and the engine when it is queued, as IcmsTier does. For --wrong of the requests the gateway
gives another one, of a session that it takes for the one that resumes. Another
process loads blocks of another volume at a steady rate meanwhile, through an agent of its own: the others. So
they share the enclosures with the hints, and no agent puts them before those.

Each side runs the same requests with blocks of its own; "none" runs before and after each, and what is
compared is the mean of both. Rows: stall of requests with a prefix that was stored; what the processor
takes to copy the prefix out of the agent's memory when the GPU is done, which an engine without a GPU
waits for, too, and no hint saves; blocks of prefixes that were in the agent's memory when the engine
asked for them; bytes that were loaded for hints and not used; latency of the others.

Bars at 2 s: 95 % in time, stalls down 5 times, 10 % of bytes wasted, others 5 % slower; exit status 1 if one is
missed.
"""
import argparse
import gzip
import itertools
import json
import os
import pathlib
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "bench"))
import bench  # noqa: E402
import icms_wheel  # noqa: E402
import pod  # noqa: E402
import tiers_report  # noqa: E402

BLOCKS_MAX = 256  # of a prefix that is loaded
QUEUED_S = 5.0  # IcmsTier's prestage_ms: a request is begun within this and what those before it take


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--trace", type=pathlib.Path,
                        help="requests as Mooncake publishes them, a JSON object a line: timestamp, hash_ids; "
                             "default: conversations made from --seed")
    parser.add_argument("--from", type=int, default=0, dest="begin", metavar="N",
                        help="the first N requests of the trace were served before: what the others share with them "
                             "is stored (%(default)s)")
    parser.add_argument("--requests", type=int, default=160, help="so many of the trace (%(default)s)")
    parser.add_argument("--leads", default="0.5,1,2,5", help="seconds before the need (%(default)s)")
    parser.add_argument("--load", type=float, default=0.8, help="of the GPU's time (%(default)s)")
    parser.add_argument("--prefill", type=float, default=800, help="tokens a second (%(default)s)")
    parser.add_argument("--block-tokens", type=int, default=32)
    parser.add_argument("--block-kib", type=int, default=1024, help="of KV (%(default)s)")
    parser.add_argument("--memory", type=float, default=0.25,
                        help="of the agent: a part of all blocks of the trace (%(default)s)")
    parser.add_argument("--others", type=float, default=50, help="blocks a second (%(default)s)")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("/var/tmp"), help="for drive files")
    parser.add_argument("--wrong", type=float, default=0.05, metavar="SHARE",
                        help="of requests for which the gateway hints at another one's prefix, too (%(default)s)")
    parser.add_argument("--drive-ms", type=int, default=0,
                        help="each read of a drive takes so much longer (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=pathlib.Path, default=bench.RESULTS, help="folder for the rows")
    parser.add_argument("--said", default="", help="a sentence about the conditions, for the document")
    return parser.parse_args()


# ---- the trace

def conversations(given):
    """[(arrival, hash ids)], and how many of the first ids were stored long ago: sessions that resume,
    and go on, share all before their turn, and the first of all a system prompt."""
    chance = random.Random(given.seed)
    number, sessions = 4, []
    for _ in range(max(4, given.requests * 4 // 5)):
        blocks = chance.randint(12, 28)
        sessions.append([*range(4), *range(number, number + blocks)])
        number += blocks
    requests, history, now = [], number, 0.0
    for _ in range(given.requests):
        now += chance.expovariate(1)
        session = chance.choice(sessions)
        for _ in range(chance.randint(2, 6)):
            session.append(number)
            number += 1
        requests.append((now, list(session)))
    return requests, history


def trace(given):
    if given.trace is None:
        return conversations(given)
    opener = gzip.open if given.trace.suffix == ".gz" else open
    with opener(given.trace, "rt", encoding="utf-8") as lines:
        entries = [json.loads(line) for line in itertools.islice(lines, given.begin + given.requests)]
    before = {number for entry in entries[:given.begin] for number in entry["hash_ids"]}
    chosen = entries[given.begin:]
    if not chosen:
        sys.exit(f"{given.trace}: there are {len(entries)} requests, and none from {given.begin} on")
    # numbered anew: first what was stored before
    ids = dict.fromkeys(number for entry in chosen for number in entry["hash_ids"])
    history = [number for number in ids if number in before]
    names = {number: i for i, number in enumerate([*history, *(number for number in ids if number not in before)])}
    return [(entry["timestamp"] / 1000, [names[number] for number in entry["hash_ids"]]) for entry in chosen], len(history)


def stretched(requests, history, given):
    """Arrivals at which the GPU is busy for given.load of the time, if nothing has to be loaded."""
    seen, busy = set(range(history)), 0.0
    for _, ids in requests:
        busy += computed(ids, seen) * given.block_tokens / given.prefill
        seen.update(ids)
    first, last = requests[0][0], requests[-1][0]
    factor = busy / given.load / (last - first)
    return [((at - first) * factor, ids) for at, ids in requests], busy


def stored(ids, seen):
    """Blocks from the first one on that are stored."""
    for i, number in enumerate(ids):
        if number not in seen:
            return i
    return len(ids)


def computed(ids, seen):
    """Blocks that the GPU computes: at least the last one."""
    return len(ids) - min(stored(ids, seen), len(ids) - 1)


# ---- the engine

class Engine:
    """The model of one side."""

    def __init__(self, volume, side, history, given):
        import icms  # of the wheel
        from icms.vllm.choice import Prefill
        from icms.vllm.waiting import Waiting

        self.key = icms.key
        self.volume, self.side, self.history, self.given = volume, side, history, given
        self.seen, self.stalls, self.late, self.misses = set(range(history)), [], 0.0, 0
        self.asked = self.near = 0  # blocks of prefixes, and those that were in the agent's memory by then
        self.dram = icms.Source.DRAM
        self.copies = []  # what it takes to copy the same prefix out of the agent's memory
        self.busy = False
        prefill = Prefill()
        prefill.add(round(given.prefill), 1)
        self.waiting = Waiting(prefill)
        self.lock = threading.Lock()  # of waiting
        self.block = given.block_kib << 10
        memory = memoryview(bytearray(BLOCKS_MAX * self.block))
        self.rooms = [memory[i * self.block:(i + 1) * self.block] for i in range(BLOCKS_MAX)]
        self.value = os.urandom(self.block)

    def keys(self, ids):
        return [self.key(f"{'history' if number < self.history else self.side} {number}") for number in ids]

    def fill(self):
        """Stores the history, on flash."""
        for first in range(0, self.history, 64):
            keys = self.keys(range(first, min(first + 64, self.history)))
            assert self.volume.put(keys, [self.value] * len(keys), on_flash=True, deadline_ms=60000).ok

    def run(self, requests, lead):
        """Takes the requests in order, in real time."""
        begin = time.monotonic()
        waiting = queue.SimpleQueue()
        threading.Thread(target=self.arrive, args=(begin, requests, lead, waiting), daemon=True).start()
        for i, (arrival, _) in enumerate(requests):
            arrived = waiting.get()
            if arrived is None:
                raise RuntimeError("the thread of arrivals has ended early")
            ids, keys = arrived
            with self.lock:
                self.waiting.stepped({i: len(ids) * self.given.block_tokens})
            self.serve(ids, keys)
            self.late = max(self.late, time.monotonic() - begin - arrival)
        return time.monotonic() - begin

    def arrive(self, begin, requests, lead, waiting):
        try:
            self.arrivals(begin, requests, lead, waiting)
        finally:
            waiting.put(None)

    def arrivals(self, begin, requests, lead, waiting):
        """The gateway, lead before each arrival, and the engine's queue."""
        number = itertools.count()
        events = [(arrival, ids, True) for arrival, ids in requests]
        if lead is not None:
            chance = random.Random(self.given.seed)
            events += [(max(0, arrival - lead), ids, False) for arrival, ids in requests]
            events += [(max(0, arrival - lead), chance.choice(requests)[1], False) for arrival, _ in requests
                       if chance.random() < self.given.wrong]
        for at, ids, is_arrival in sorted(events, key=lambda one: one[0]):
            time.sleep(max(0, begin + at - time.monotonic()))
            known, keys = stored(ids, self.seen), self.keys(ids)
            is_hinted = lead is not None and known and not (is_arrival and waiting.empty() and not self.busy)

            def hint(seconds, keys=keys[:known], is_hinted=is_hinted):
                if is_hinted and seconds > 0:
                    self.volume.prestage(keys, deadline_ms=max(1, int(1000 * seconds)))

            if is_arrival:
                with self.lock:
                    self.waiting.add(next(number), len(ids) * self.given.block_tokens,
                                     lambda left, hint=hint: hint(left()), QUEUED_S)
            else:
                hint(lead)
            if is_arrival:
                waiting.put((ids, keys))

    def serve(self, ids, keys):
        self.busy = True
        known = min(stored(ids, self.seen), len(ids) - 1, BLOCKS_MAX)
        if known:
            start = time.monotonic()
            results = self.volume.prefetch(keys[:known], deadline_ms=10000, prestage=False)
            self.stalls.append(time.monotonic() - start)
            self.misses += known - results.hits
            self.asked += known
            self.near += sum(one.source == self.dram for one in results)
        work = time.monotonic() + (len(ids) - known) * self.given.block_tokens / self.given.prefill
        new = [key for number, key in zip(ids, keys) if number not in self.seen]
        if new:
            self.volume.put(new, [self.value] * len(new), if_absent=True, deadline_ms=10000)
        self.seen.update(ids)
        time.sleep(max(0, work - time.monotonic()))
        if known:
            start = time.monotonic()
            self.volume.get(keys[:known], self.rooms[:known], deadline_ms=10000)
            self.copies.append(time.monotonic() - start)
        self.busy = False


# ---- the others

OTHERS = """
import json, random, sys, time
import icms
where, rate, kib, count = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
volume = icms.Client(where).volume("others")
room, value = bytearray(kib << 10), bytes(kib << 10)
for i in range(count):
    volume.put(f"other {i}", value, on_flash=True)
print("ready", flush=True)
for line in sys.stdin:
    took, chance, due = [], random.Random(int(line.split()[1])), time.monotonic()
    end = due + float(line.split()[0])
    while due < end:
        time.sleep(max(0, due - time.monotonic()))
        start = max(due, time.monotonic() - 0.001)
        volume.get([f"other {chance.randrange(count)}"], [room], deadline_ms=10000)
        took.append(time.monotonic() - start)
        due += 1 / rate
    took.sort()
    print(json.dumps({"p50": took[len(took) // 2], "mean": sum(took) / len(took),
                      "p99": took[len(took) * 99 // 100]}), flush=True)
"""


# ---- all of it

def hints_of(client):
    return next(volume["prestage"] for volume in client.status()["volumes"] if volume["name"] == "kv")


def one_side(client, others, side, lead, requests, history, given):
    engine = Engine(client.volume("kv"), side, history, given)
    before = hints_of(client)
    others.stdin.write(f"{requests[-1][0]} {given.seed}\n")
    others.stdin.flush()
    seconds = engine.run(requests, lead)
    other = json.loads(others.stdout.readline())
    time.sleep(1.2 + (QUEUED_S if lead is not None else 0))  # what is unread by now is unused
    after = hints_of(client)
    delta = {name: after[name] - before[name] for name in after}
    stalls = sorted(engine.stalls)
    return {"side": side, "lead_s": lead, "seconds": seconds, "requests": len(requests),
            "queued_s_max": engine.late, "misses": engine.misses,
            "stall_ms_mean": 1000 * sum(stalls) / len(stalls),
            "stall_ms_p50": 1000 * stalls[len(stalls) // 2],
            "stall_ms_p99": 1000 * stalls[len(stalls) * 99 // 100],
            "copy_ms_mean": 1000 * sum(engine.copies) / len(engine.copies),
            "in_time": engine.near / engine.asked if lead is not None else None,
            "hints": {name: delta[name] for name in delta if "bytes" not in name},
            "loaded_mib": delta["load_bytes"] / 2**20,
            "wasted": delta["unused_bytes"] / delta["load_bytes"] if delta["load_bytes"] else None,
            "others_ms_p50": 1000 * other["p50"], "others_ms_mean": 1000 * other["mean"],
            "others_ms_p99": 1000 * other["p99"]}


def run(given):
    import icms  # of the wheel

    requests, history = trace(given)
    requests, busy = stretched(requests, history, given)
    blocks = len({number for _, ids in requests for number in ids} | set(range(history)))
    block = given.block_kib << 10
    memory = max(int(blocks * block * given.memory), 32 << 20)
    count = 4 * max(64, (16 << 20) // block)
    print(f"{len(requests)} requests, {blocks} blocks of {given.block_kib} KiB, memory for "
          f"{memory // block}; GPU busy {busy:.1f} s of {requests[-1][0]:.1f} s", flush=True)
    most = f"{max(1, given.block_kib >> 9)}MiB"
    volumes = [{"name": "kv", "value_max": most, "memory_max": f"{memory >> 20}MiB"},
               {"name": "others", "value_max": most, "memory_max": "16MiB"}]
    leads = [None]
    for lead in given.leads.split(","):
        leads += [float(lead), None]
    stored_blocks = history + len(leads) * (blocks - history) + count
    drive = max(256, stored_blocks * block * 3 >> 21)
    faults = f"loop.read:1:slow={given.drive_ms * 1000}" if given.drive_ms else None
    with tempfile.TemporaryDirectory(prefix="icms-", dir=given.dir) as name, pod.Pod(given.build, name) as p:
        targets = [p.add_target(f"enclosure{i}", 1, f"{drive}MiB", volumes, segment="16MiB", memory="256MiB",
                                faults=faults) for i in range(2)]
        for target in targets:
            target.wait_ready()
        agents = [p.add_agent(f"server-{i}", targets, own, memory=f"{(memory >> 20) + 64}MiB") for i, own in enumerate((volumes[:1], volumes[1:]))]
        for agent in agents:
            agent.wait_ready()
        where, others_where = (f"unix:{agent.socket}" for agent in agents)
        with icms.Client(where) as client, subprocess.Popen(
                [sys.executable, "-c", OTHERS, others_where, str(given.others), str(given.block_kib), str(count)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as others:
            assert others.stdout.readline() == "ready\n"
            Engine(client.volume("kv"), "", history, given).fill()
            rows = []
            for i, lead in enumerate(leads):
                rows.append(one_side(client, others, f"side {i}", lead, requests, history, given))
                show(rows[-1])
            others.stdin.close()
    return rows


def show(row):
    ratio = lambda value: "    -" if value is None else f"{100 * value:4.1f}%"  # noqa: E731
    print(f"{'none' if row['lead_s'] is None else str(row['lead_s']) + ' s':>6}  stall ms mean "
          f"{row['stall_ms_mean']:7.2f} p50 {row['stall_ms_p50']:7.2f} p99 {row['stall_ms_p99']:7.2f} copy "
          f"{row['copy_ms_mean']:5.2f}  in time {ratio(row['in_time'])}  wasted {ratio(row['wasted'])} of {row['loaded_mib']:6.0f} MiB  others ms "
          f"p50 {row['others_ms_p50']:6.2f} mean {row['others_ms_mean']:6.2f} p99 {row['others_ms_p99']:6.2f}  "
          f"{ {name: n for name, n in row['hints'].items() if n} }", flush=True)


def compare(rows):
    """What the bars are about, of each lead beside the sides without hints around it."""
    for row in tiers_report.compared(rows)[1]:
        print(f"{row['lead_s']:>4} s: in time {100 * (row['in_time'] or 0):.1f} %, stalls down "
              f"{row['stalls_down']:.1f} times, wasted {100 * (row['wasted'] or 0):.1f} %, others slower by "
              f"{100 * row['others_slower']:.1f} %")


def main():
    given = options()
    given.build = given.build.resolve()
    if "ICMS_BENCH_SITE" not in os.environ:
        python = icms_wheel.interpreter()
        site = icms_wheel.make(python, given.build, given.build / "bench-prestage-wheel")
        os.execve(python, [python, *sys.argv], {**os.environ, "PYTHONPATH": str(site), "ICMS_BENCH_SITE": str(site)})
    head = {
        **bench.conditions(given.dir), "said": given.said,
        "options": {"trace": given.trace.name if given.trace else None, "from": given.begin,
                    **{name: getattr(given, name) for name in
                       ("requests", "load", "prefill", "block_tokens", "block_kib", "memory", "others", "wrong", "drive_ms", "seed")}},
    }
    rows = run(given)
    compare(rows)
    head["load_after"] = os.getloadavg()[0]
    lines = [json.dumps(line) for line in (head, *rows)]
    (given.results / f"prestage{'_trace' if given.trace else ''}.jsonl").write_text("\n".join(lines) + "\n")
    bench.report()
    if tiers_report.prestage_section(head, rows, lambda *_: "")[2] > 0:
        sys.exit("bars are missed")


main()
