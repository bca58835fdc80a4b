#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The comparison of engines refuses loads that are not what they should be, and counts right.

Goal: a load with too few tokens, with bytes from somewhere else, or from memory where it should come
from the disk ends a match; so does an answer that differs; page caches are dropped for real; and of
made-up rows the tables say who is first, by how much, and what is missed. No speed is judged.
Method: bench/engines without engines. `make bench-engines` has them.

usage: bench_engines.py
"""
import os
import pathlib
import sys
import tempfile
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]
from engines import match, report, sides  # noqa: E402

from judge import expect

NBYTES = 4 << 20


def refused(what, call, *arguments):
    try:
        call(*arguments)
    except match.Failed:
        return
    sys.exit(f"not refused: {what}")


def check_loads():
    """What loaded() accepts, and each thing that it must not."""
    icms, fs = sides.Icms, sides.Fs
    good = {"cached": 128, "sources": {"pod": 7 + NBYTES}, "tier_s": 0.1, "tier_bytes": NBYTES,
            "disk_bytes": NBYTES, "load_cpu_s": 0.1, "loaded_s": 0.3, "asked_s": 0.1}

    def load(regime="cold", kind=icms, name="icms-agent", **changed):
        side = types.SimpleNamespace(name=name, KEEPS=kind.KEEPS)
        return match.loaded(side, regime, {**good, **changed}, {"pod": 7}, NBYTES, 128)

    found = load()
    expect("the time of a load", abs(found["load_s"] - 0.2) < 1e-9, found)
    load("warm", sources={"pod": 7, "dram": NBYTES}, disk_bytes=0)
    load("warm", fs, "fs", sources={})  # it has no memory of its own
    load("warm", sides.IcmsInside, "icms-inside")
    refused("half the tokens", lambda: load(cached=64))
    refused("a tier that loaded less", lambda: load(tier_bytes=NBYTES - 1))
    refused("icms loaded nothing", lambda: load(sources={"pod": 7}))
    refused("cold, from icms' memory", lambda: load(sources={"pod": 7, "dram": NBYTES}))
    refused("cold, from some cache", lambda: load(disk_bytes=NBYTES - 1))
    refused("cold fs, from some cache", lambda: load("cold", fs, "fs", disk_bytes=0))
    refused("warm, from the pod", lambda: load("warm", disk_bytes=0))
    refused("warm, from the disk", lambda: load(
        "warm", sources={"pod": 7, "dram": NBYTES}, disk_bytes=NBYTES))
    answer = {"tokens": [1, 2], "finish": "length"}
    match.same("a side", "warm", answer, dict(answer))
    refused("another token", lambda: match.same("a side", "warm", {**answer, "tokens": [1, 3]},
                                                answer))
    refused("an answer cut short", lambda: match.same("a side", "warm", {**answer, "finish": "abort"},
                                                      answer))


def cached(path):
    with open(path, "rb") as file:
        return match.cached(file)


def check_drop():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = pathlib.Path(folder) / "file"
        path.write_bytes(os.urandom(1 << 20))
        expect("a new file is cached", cached(path) == 1 << 20, cached(path))
        before = match.disk_read([os.getpid()])
        match.drop([path])
        expect("a dropped file is not", cached(path) == 0, cached(path))
        expect("looking brings nothing there", cached(path) == 0, cached(path))
        path.read_bytes()
        read = match.disk_read([os.getpid()]) - before
        expect("it was read from the disk", read >= 1 << 20, read)


def request(side, regime, number, seconds, **more):
    """A row as match.row makes it."""
    return {"phase": "reuse", "side": side, "round": number, "regime": regime, "ttft_s": seconds,
            "cpu_s": 0.1 + seconds, "far_cpu_s": 0.0, "load_cpu_s": seconds, "bytes": 10 ** 9, "load_s": seconds,
            "scheduling_ms": [1.0, 2.0], "idle_scheduling_ms": 0.5, "steps_ms": [5.0, 5.0], **more}


def check_report():
    rows = []
    for number in range(7):
        rows.append(request("none", "own", number, 0.0))
        for regime in report.REGIMES:
            rows.append(request("fs", regime, number, 0.5, idle_scheduling_ms=1.0))
            rows.append(request("lmcache", regime, number, 1.0))
            rows.append(request("icms-agent", regime, number, 0.25 + 0.01 * number))
            rows.append(request("icms-inside", regime, number, 0.75))
    values = report.reuse_values(rows, "fs", "cold")
    expect("processor time of a GB", abs(values["CPU"][3] - 0.5) < 1e-9, values)
    expect("GB/s", values["load"][0] == 2, values)
    expect("the longest step", values["step"][0] == 2, values)
    both = {side: report.reuse_values(rows, side, "cold")
            for side in ("fs", "lmcache", "icms-agent", "icms-inside")}
    peer, ratio, verdict = report.against(both, "icms-agent", "TTFT")
    expect("first", (peer, verdict) == ("fs", "first") and abs(ratio[0] - 0.56) < 1e-9, ratio)
    peer, ratio, verdict = report.against(both, "icms-inside", "load")
    expect("behind", (peer, verdict) == ("fs", "behind") and abs(ratio[0] - 0.67) < 0.01, ratio)
    asked = []
    lines, held, missed = report.reuse_lines(
        rows, ["none", "fs", "lmcache", "icms-agent", "icms-inside"],
        lambda row, what: asked.append((row["op"], row["variant"], what)) or " [1]")
    expect("verdicts of two regimes", (held, missed) == (10, 6), (held, missed))
    expect("reasons are asked for", ("cold", "icms-inside", "TTFT") in asked and
           ("warm", "icms-inside", "CPU") in asked and len(asked) == 6, asked)
    head = {"measured": "now", "commit": "none", "rounds": 7, "versions": {"vLLM": "0"}, "tokens": 2000,
            "bytes": 10 ** 9, "block_bytes": 4 << 20, "load_before": 0, "load_after": 0, "others": 0.5,
            "sides": {"none": "alone", "fs": "fs"},
            "machine": {"processor": "P", "cores": 2, "memory_gib": 1, "virtual": True,
                        "kernel": "k", "drive": "d"}}
    section, held, missed = report.section({"reuse": (head, rows)}, lambda row, what: " [1]")
    expect("a section", "make bench-engines MATCHES=reuse" in "\n".join(section), section)
    expect("no section without a match", report.section({}, None)[0] == [])
    expect("a table names every side", sum("| icms-agent |" in line for line in lines) == 4, lines)


def check_no_reuse():
    rows = []
    for number in range(5):
        for side, cpu, others, calls, step in (("none", 1.0, 0.1, 0.0, 0.0),
                                               ("icms-agent", 1.112, 0.104, 0.002, 0.5),
                                               ("icms-inside", 1.1, 0.2, 0.0, 3.5)):
            far = 0.1 if side == "icms-agent" else 0.0
            rows.append({"phase": "no reuse", "side": side, "round": number, "ttft_s": 0.1,
                         "cpu_s": cpu, "far_cpu_s": far, "scheduling_ms": [1.0, 1.0],
                         "engine_own_s": 0.9, "engine_others_s": others, "engine_calls_s": calls,
                         "calls_ms": [step if number != 1 else 9.0, 0.1], "idle_calls_ms": 0.2})
    found = report.no_reuse_values(rows, "icms-agent")
    # calls, what its other threads have more than vLLM's, and the agent: 0.002, 0.004 and 0.008 s
    expect("the tier's share", abs(found["tier"][0] - 0.014) < 1e-9, found)
    expect("the share of all", abs(found["all"][0] - 0.112) < 1e-9, found)
    expect("a step is longer", abs(found["step_ms"] - 0.5) < 1e-9, found)
    _, held, missed = report.no_reuse_lines(rows, ["none", "icms-agent", "icms-inside"],
                                            lambda row, what: " [1]")
    expect("goals without reuse", (held, missed) == (2, 2), (held, missed))


check_loads()
check_drop()
check_report()
check_no_reuse()
