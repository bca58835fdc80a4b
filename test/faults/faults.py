#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults of a pod of four enclosures, measured with real daemons.

Method: an agent reaches each enclosure through a TCP proxy. An engine asks for the same blocks, more than the
agent's memory holds, in batches with a deadline, all the time, and stores none while a fault lasts. Each fault begins,
lasts, and is repaired, some times, in a pod of its own, with a new agent each time, because an agent leaves an enclosure
that was slow before alone for longer. Where a fault loses blocks for good the engine stores them again after the repair. What is
measured:

exclusion_p50_ms  from the fault until the agent passes over all enclosures that have it (excluded or slow), the median;
                  null where a fault is none of an enclosure, or none that has to be passed over
exclusion_p99_ms  the same, the 99th percentile
late_ms_max       how much later than its deadline a batch ended, at worst
hung              batches that were not over 5 s after their deadline
wrong_bytes       bytes that were not those that were stored
misses            gets that missed, from the fault until the repair, by reason
hit_ratio         of gets: before the fault, from the fault to the repair, after it
first_hit_s       from the repair until all blocks are hits again, at worst

usage: faults.py [--secure] [--bars] [--other OTHER_ROOT] BUILD_ROOT OUT.json [FAULT ...]; FAULT_TIMES, default 5,
                 FAULT_SECONDS, default 4
       faults.py --check: whether doc/faults.md has these faults, and the simulation what it says

With --other, the build root of another version of icms, there is one more fault: half the enclosures, and then the
agent, are of that version, and their drives are written by it.

With --bars a row that misses one of BARS is a failure; without, hung operations and wrong bytes alone are. With
--secure agent and enclosures prove themselves to each other, connections are TLS, and the engine encrypts.
"""
import json
import math
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "test/e2e")]
import judge  # noqa: E402
import pod  # noqa: E402
import probe  # noqa: E402
from scene import BYTES, COUNT, DEADLINE_MS, ENCLOSURES, FAULT_S, Scene  # noqa: E402

# What no row may exceed on a quiet machine.
BARS = {"exclusion_p99_ms": 1000, "late_ms_max": 20, "first_hit_s": 2}

TIMES = int(os.environ.get("FAULT_TIMES", "5"))


class Fault:
    """of: the enclosures that have it; passed: they are to be passed over; loses: blocks are gone for good; lasts:
    for so many seconds; clocks: of all programs jump when it begins and when it ends."""

    def __init__(self, begin, repair, of=(0,), passed=True, loses=False, lasts=FAULT_S, clocks=False):
        self.begin, self.repair, self.of = begin, repair, of
        self.passed, self.loses, self.lasts, self.clocks = passed, loses, lasts, clocks


def link_fault(which, name, value, idle, **keys):
    """A property of the links of some enclosures."""
    def set_all(to):
        return lambda s: [setattr(s.links[i], name, to) for i in which]
    return Fault(set_all(value), set_all(idle), of=which, **keys)


def drive_fault(what):
    """A drive that fails goes out of service until the enclosure is started again."""
    def repair(s):
        s.flag(0, what).unlink()
        if what != "slow":
            s.targets[0].kill()
            s.targets[0].start()
    return Fault(lambda s: s.flag(0, what).touch(), repair, passed=False)


def flag_fault(what, **keys):
    """One that lasts while a file is there."""
    return Fault(lambda s: s.flag(0, what).touch(), lambda s: s.flag(0, what).unlink(), passed=False, **keys)


def signal_fault(which, number, back, **keys):
    return Fault(lambda s: [s.targets[i].signal(number) for i in which], lambda s: [back(s, i) for i in which],
                 of=which, **keys)


def go_on(s, i):
    s.targets[i].signal(signal.SIGCONT)


def nft(*words):
    subprocess.run(["nft", *words], check=True, timeout=60)


def lose(s, *which):
    """Packets, both ways, between the agent's link and an enclosure."""
    nft("add", "table", "inet", "loss")
    nft("add", "chain", "inet", "loss", "out", "{ type filter hook output priority 0; policy accept; }")
    for end in ("sport", "dport"):
        nft("add", "rule", "inet", "loss", "out", "tcp", end, str(s.targets[0].port), *which, "drop")


def lose_nothing(s):
    nft("delete", "table", "inet", "loss")


class Storm:
    """Resets of all connections to an enclosure, twenty times a second."""

    def begin(self, s):
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(s.links[0],))
        self.thread.start()

    def run(self, link):
        while not self.over.wait(0.05):
            link.reset()

    def repair(self, s):
        self.over.set()
        self.thread.join()


class Writing:
    """Another fault while a second client stores."""

    def __init__(self, fault):
        self.fault = fault

    def begin(self, s):
        self.writer = s.writer()
        time.sleep(0.2)
        self.fault.begin(s)

    def repair(self, s):
        self.fault.repair(s)
        self.writer.end()


def writing(fault):
    both = Writing(fault)
    return Fault(both.begin, both.repair, fault.of, fault.passed, fault.loses, fault.lasts)


def flip_flash(s):
    """A byte in each 16 KiB of a drive, but for what it begins with."""
    numbers = random.Random(1)
    with open(s.targets[0].drives[0], "r+b", buffering=0) as drive:
        size = drive.seek(0, os.SEEK_END)
        for at in range(1 << 20, size, 16 << 10):
            place = at + numbers.randrange(16 << 10)
            byte = os.pread(drive.fileno(), 1, place)
            if byte not in (b"", b"\0"):
                os.pwrite(drive.fileno(), bytes([byte[0] ^ 4]), place)
        os.fsync(drive.fileno())


def copy_drive(s):
    """An enclosure starts with a copy of another one's drive."""
    s.targets[0].kill()
    shutil.copyfile(s.targets[1].drives[0], s.targets[0].drives[0])
    s.targets[0].start()


def kill_fillers(s):
    """Engines that hold leases and have loads under way are killed."""
    for _ in range(3):
        other = probe.Probe(s.build, f"unix:{s.agent.socket}", COUNT, BYTES)
        other.ask("hang")
        other.kill()


def descriptors(s, spare):
    """The enclosure may open no file, or many, and its connections are reset."""
    target = s.targets[0]
    used = len(list(pathlib.Path(f"/proc/{target.pid}/fd").iterdir()))
    hard = resource.prlimit(target.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(target.pid, resource.RLIMIT_NOFILE, (min(used + spare, hard), hard))


def no_descriptors(s):
    s.links[0].reset()
    time.sleep(0.05)
    descriptors(s, -4)
    s.links[0].reset()


def space(s, limit):
    """How long a file may be that the enclosure writes: its drives have no space behind that."""
    resource.prlimit(s.targets[0].pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def limits(s, what):
    """Daemons get no more memory than they have (RLIMIT_AS), or may lock none, and connections are reset."""
    for daemon in (s.targets[0], s.agent):
        pages = int(pathlib.Path(f"/proc/{daemon.pid}/statm").read_text().split()[0])
        resource.prlimit(daemon.pid, what, (pages * resource.getpagesize() if what == resource.RLIMIT_AS else 0,
                                            resource.prlimit(daemon.pid, what)[1]))
    s.links[0].reset()


def no_limits(s, what):
    for daemon in (s.targets[0], s.agent):
        hard = resource.prlimit(daemon.pid, what)[1]
        resource.prlimit(daemon.pid, what, (hard, hard))


def limit_fault(what):
    return Fault(lambda s: limits(s, what), lambda s: no_limits(s, what), passed=False)


def jump(s, program=""):
    """Daemons and engines, or those of one program, have clocks that are an hour ahead while the file is there."""
    for daemon in (*s.targets, s.agent):
        if "clock_jump" not in pathlib.Path(f"/proc/{daemon.pid}/maps").read_text():
            sys.exit(f"{daemon.name} has no clocks that jump")
    pathlib.Path(os.environ["ICMS_CLOCK_JUMP"] + program).touch()


def clock_fault(of, program=""):
    return Fault(lambda s: jump(s, program), lambda s: pathlib.Path(os.environ["ICMS_CLOCK_JUMP"] + program).unlink(),
                 of=of, passed=False, clocks=True)


ALL, RACK = tuple(range(ENCLOSURES)), (0, 1)


def faults():
    storm = Storm()
    return {
        "SIGKILL": signal_fault((0,), signal.SIGKILL, Scene.restart),
        "SIGSTOP": signal_fault((0,), signal.SIGSTOP, go_on),
        "SIGSTOP, long": signal_fault((0,), signal.SIGSTOP, go_on, lasts=max(FAULT_S, 7.5 * FAULT_S)),
        "restart": Fault(lambda s: (s.targets[0].stop(30), s.targets[0].start()), lambda s: None, passed=False),
        "restart without its drive": Fault(lambda s: s.start_empty(0), lambda s: None, passed=False, loses=True),
        "restart with drives swapped": Fault(lambda s: s.swap(0, 1), lambda s: s.swap(0, 1), of=RACK, passed=False,
                                             loses=True),
        "restart with a copied drive": Fault(copy_drive, lambda s: s.start_empty(0), passed=False, loses=True),
        "restart with another pod's drive": Fault(lambda s: s.start_foreign(0), lambda s: s.start_empty(0), passed=False,
                                                  loses=True),
        "black hole": link_fault((0,), "is_cut", True, False),
        "black hole to it": link_fault((0,), "is_cut_to", True, False),
        "black hole from it": link_fault((0,), "is_cut_from", True, False),
        "delay of 300 ms": link_fault((0,), "delay_s", 0.15, 0.0),
        "delay of 500 ms": link_fault((0,), "delay_s", 0.25, 0.0),
        "1 MB/s": link_fault((0,), "bytes_per_s", 1000000, 0),
        "1 % of packets lost": Fault(lambda s: lose(s, "numgen", "random", "mod", "100", "<", "1"), lose_nothing,
                                     passed=False),
        # more than an Ethernet frame: connections come up, and loads get nothing
        "large packets lost": Fault(lambda s: lose(s, "meta", "length", ">", "1500"), lose_nothing),
        "resets": Fault(storm.begin, storm.repair),
        "half-open": Fault(lambda s: s.links[0].lose(), lambda s: s.links[0].lost.clear(), passed=False),
        # a record that came damaged twice is deleted, so that a put repairs it
        "flipped bits on the wire": link_fault((0,), "flip_every", 1000003, 0, passed=False, loses=True),
        "drive 100 times slower": drive_fault("slow"),
        "reads fail": drive_fault("read"),
        "writes fail": writing(drive_fault("write")),
        "drive pulled": Fault(lambda s: os.truncate(s.targets[0].drives[0], 0), lambda s: s.start_empty(0),
                              passed=False, loses=True),
        "flipped bits in memory": flag_fault("memory", loses=True),
        "flipped bits on flash": Fault(flip_flash, lambda s: None, passed=False, loses=True),
        "killed while storing": writing(signal_fault((0,), signal.SIGKILL, Scene.restart)),
        "no space": writing(Fault(lambda s: space(s, 4096), lambda s: space(s, resource.RLIM_INFINITY), passed=False)),
        "clocks jump": clock_fault(ALL),
        "clocks of enclosures jump": clock_fault(ALL, ".icms-target-faults"),
        "clock of the agent jumps": clock_fault((), ".icms-agent"),
        "agent killed": Fault(lambda s: s.agent.kill(), lambda s: s.agent.start(), of=(), passed=False),
        "engines killed": Fault(kill_fillers, lambda s: None, of=(), passed=False),
        "no descriptors": Fault(no_descriptors, lambda s: descriptors(s, 1 << 20)),
        "no memory": limit_fault(resource.RLIMIT_AS),
        "no locked memory": limit_fault(resource.RLIMIT_MEMLOCK),
        "half the pod": signal_fault(RACK, signal.SIGKILL, Scene.restart),
        "all stopped": signal_fault(ALL, signal.SIGSTOP, go_on),
        "all cut off": link_fault(ALL, "is_cut", True, False),
    }


def mixed(other):
    """Half the enclosures, then the agent instead, are of another version; nobody reads the drives of another one."""
    def version(daemon, root):
        daemon.program = root / "cmd" / pathlib.Path(daemon.program).name

    def begin(s):
        for target in [s.targets[i] for i in RACK]:
            target.kill()
            target.drives[0].unlink()
            version(target, other)
            target.start()

    def repair(s):
        s.agent.kill()
        version(s.agent, other)
        s.agent.start()

    return {"versions mixed": Fault(begin, repair, of=RACK, passed=False, loses=True)}


def ratio(batches):
    asked = COUNT * len(batches)
    return round(sum(a["ok"] for a in batches) / asked, 4) if asked else None


def measure_once(s, name, fault, row):
    engine, calm = s.engine, time.monotonic()
    time.sleep(min(1, FAULT_S / 4))
    began = time.monotonic()
    fault.begin(s)
    if fault.passed:
        while not s.passed_over(fault.of) and time.monotonic() < began + fault.lasts:
            time.sleep(0.005)
        row["exclusion"].append((time.monotonic() - began) * 1000)
    time.sleep(max(0, began + fault.lasts - time.monotonic()))
    mended = time.monotonic()
    fault.repair(s)
    engine.mends = fault.loses
    whole = s.wait_whole(mended, name)
    row["first_hit"].append(whole - mended)
    time.sleep(min(1, FAULT_S / 4))
    for when, batches in (("before", engine.since(calm, began)), ("during", engine.since(began, mended)),
                          ("after", engine.since(whole, time.monotonic()))):
        row[when] += batches
    for answer in engine.since(calm, time.monotonic()):
        row["late_ms_max"] = max(row["late_ms_max"], answer["seconds"] * 1000 - DEADLINE_MS)
        row["wrong_bytes"] += answer["wrong"]


def misses(batches):
    known = ("seconds", "ok", "wrong", "dram", "local", "pod")
    count = {}
    for answer in batches:
        for reason, number in answer.items():
            if reason not in known and number:
                count[reason] = count.get(reason, 0) + number
    return count


def exclusion(times_ms):
    """The percentiles of a row; of nothing None."""
    ranked = sorted(times_ms)
    return {f"exclusion_p{percent}_ms": round(ranked[math.ceil(percent / 100 * len(ranked)) - 1]) if ranked else None
            for percent in (50, 99)}


def measure(s, name, fault):
    row = {"exclusion": [], "first_hit": [], "late_ms_max": 0.0, "wrong_bytes": 0, "before": [], "during": [],
           "after": []}
    hung = 0
    for _ in range(TIMES):
        s.begin()
        measure_once(s, name, fault, row)
        s.end()
        hung += s.engine.probe.hung
    return {
        "fault": name,
        **exclusion(row["exclusion"]),
        "late_ms_max": round(row["late_ms_max"], 1),
        "hung": hung,
        "wrong_bytes": row["wrong_bytes"],
        "misses": misses(row["during"]),
        "hit_ratio": [ratio(row[when]) for when in ("before", "during", "after")],
        "first_hit_s": round(max(row["first_hit"]), 2),
    }


def missed(row, bars):
    """What of a row is not as it has to be."""
    limits = {"hung": 0, "wrong_bytes": 0, **(BARS if bars else {})}
    return [f"{row['fault']}: {what} {row[what]}, at most {most}" for what, most in limits.items()
            if row[what] is not None and row[what] > most]


def check_doc():
    """Each row is in both tables of the document, and what it calls a trouble is one of the simulation's."""
    text = (ROOT / "doc/faults.md").read_text()
    storm = "".join((ROOT / path).read_text() for path in ("test/sim/pod_storm.c", "src/loop/sim.h"))
    measured, simulated = text.split("## In the simulation")
    rows = {line.split("|")[1].strip() for line in measured.splitlines() if re.match(r"\| .* \| .* ms \|", line)}
    forms = {line.split("|")[1].strip(): line for line in simulated.splitlines() if line.count("|") == 4}
    wrong = [f"doc/faults.md: {name}: no row" for name in sorted(set(faults()) - rows)]
    wrong += [f"doc/faults.md: {name}: there is no such fault" for name in sorted(rows - set(faults()))]
    wrong += [f"doc/faults.md: {name}: not in the table of the simulation" for name in sorted(set(faults()) - set(forms))]
    wrong += [f"doc/faults.md: {name}: the simulation has no {word}" for name, line in forms.items()
              for word in re.findall(r"`([^`]+)`", line.split("|")[2]) if word not in storm]
    bad = {"fault": "x", "hung": 0, "wrong_bytes": 1, "exclusion_p99_ms": 1001, "late_ms_max": 20.1, "first_hit_s": 2.1}
    if len(missed(bad, False)) != 1 or len(missed(bad, True)) != 4 or \
            missed({**bad, "wrong_bytes": 0, "exclusion_p99_ms": None, "late_ms_max": 20, "first_hit_s": 2}, True):
        wrong += ["rows are not judged by their bars"]
    if exclusion([30, 900, 10, 20, 40]) != {"exclusion_p50_ms": 30, "exclusion_p99_ms": 900} or \
            exclusion([]) != {"exclusion_p50_ms": None, "exclusion_p99_ms": None}:
        wrong += ["the median or the 99th percentile of exclusions is wrong"]
    sys.exit("\n".join(wrong) or 0)


def main():
    if sys.argv[1:] == ["--check"]:
        check_doc()
    words = [word for word in sys.argv[1:] if word not in ("--secure", "--bars")]
    known = faults()
    if words[0] == "--other":
        known.update(mixed(pathlib.Path(words[1]).resolve()))
        del words[:2]
    build, out, wanted = pathlib.Path(words[0]), pathlib.Path(words[1]), words[2:]
    unknown = set(wanted) - set(known)
    if unknown:
        sys.exit(f"faults.py: there is no fault {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    judge.own_network()
    rows = []
    for name, fault in known.items():
        if wanted and name not in wanted:
            continue
        with tempfile.TemporaryDirectory(prefix="icms-") as folder, pod.Pod(build, folder) as p:
            if fault.clocks:
                os.environ.update(LD_PRELOAD=str(build / "test/faults/libclock_jump.so"),
                                  ICMS_CLOCK_JUMP=f"{folder}/clock")
            rows.append(measure(Scene(build, pathlib.Path(folder), p, "--secure" in sys.argv),
                                name, fault))
        for word in ("LD_PRELOAD", "ICMS_CLOCK_JUMP") if fault.clocks else ():
            del os.environ[word]
        print(json.dumps(rows[-1]), flush=True)
    out.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit("\n".join(words for row in rows for words in missed(row, "--bars" in sys.argv)) or 0)


if __name__ == "__main__":
    main()
