#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every bench runs in short form and its rows say what they have to.

Goal: each name of `icms bench --list` runs to its end; each row is one JSON object with the fields
of icms-bench(1), no operation failed, every byte that icms returned was checked, ratios lie inside
their intervals; the directory is left empty, also after Ctrl-C, and no daemon is. No speed is judged.
Method: two slices of 50 ms, values of 128 KiB, little space. The one that is interrupted has its
daemons running by then.

usage: bench_smoke.py BUILD_ROOT [NAME ...]
"""
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from judge import expect

FIELDS = {"bench", "op", "variant", "size_bytes", "depth", "slices", "ops", "errors",
          "verified_bytes", "gb_per_s", "cpu_s_per_gb", "p50_us", "p99_us", "p999_us"}
#: The loader finds the fake GPU of src/device in the place of a driver.
ENV = {**os.environ, "LD_LIBRARY_PATH": str(pathlib.Path(sys.argv[1]).resolve() / "src/device")}
SHORT = ["--slices", "2", "--slice", "50ms", "--size", "128KiB", "--space", "1GiB"]


VARIANTS = {"crypt": {"", "own", "pod", "tls"}, "scale": {f"agents-{n}" for n in (8, 72, 288, 1152)} |
                     {f"enclosures-{n}" for n in (1, 9, 36)}, "cores": {"memory", "pod"}}
# cores has one step of its four, and a target and an agent of two reactors
MORE = {"cores": ["--reactors", "2"], "match": ["--reactors", "2"]}


def names(program):
    lines = subprocess.run([program, "bench", "--list"], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    return [line.split()[0] for line in lines]


def look_at(row, name):
    expect("all fields", FIELDS <= row.keys(), row)
    expect("its bench", row["bench"] == name, row)
    expect("no errors", row["errors"] == 0 and row["ops"] > 0, row)
    expect("numbers", all(math.isfinite(x) for x in row.values() if isinstance(x, float)), row)
    if row["size_bytes"] > 0 and row["op"] == "get" and name != "ceiling":  # no icms there
        expect("bytes checked", row["verified_bytes"] >= row["ops"] * row["size_bytes"], row)
    if "ratio" in row:
        expect("an interval", row["ratio_low"] <= row["ratio"] <= row["ratio_high"], row)
        expect("a ceiling", row["ceiling_gb_per_s"] > 0 and row["ceiling"], row)


def smoke(program, name, root):
    with tempfile.TemporaryDirectory(prefix="icms-smoke-", dir=root) as directory:
        run = subprocess.run([program, "bench", name, "--json", "--dir", directory, *SHORT,
                              *MORE.get(name, [])],
                             env=ENV, capture_output=True, text=True, timeout=300)
        expect(f"{name} ends well", run.returncode == 0, run.stdout + run.stderr)
        rows = [json.loads(line) for line in run.stdout.splitlines()]
        expect(f"{name} has rows", rows, run.stdout)
        for row in rows:
            look_at(row, name)
        if name in VARIANTS:
            expect("its variants", {row["variant"] for row in rows} == VARIANTS[name], rows)
        expect(f"{name} leaves nothing", os.listdir(directory) == [], os.listdir(directory))
    print(f"ok {name}: {len(rows)} rows")


def processes(text):
    """Those that have the text in their command line."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in entry.read_bytes().decode(errors="replace"):
                found.append(entry.parent.name)
        except OSError:
            pass
    return found


def small(program, root):
    """So few values that the agent's memory answers some loads: they are told apart."""
    with tempfile.TemporaryDirectory(prefix="icms-smoke-", dir=root) as directory:
        run = subprocess.run([program, "bench", "pod", "--json", "--dir", directory, "--slices", "2",
                              "--slice", "50ms", "--size", "4MiB", "--space", "512MiB", "--op",
                              "get", "--depth", "16", "--variant", "inprocess"],
                             capture_output=True, text=True, timeout=300)
        if run.returncode != 0:
            why = json.loads(run.stdout)["why"]
            expect("it says that memory answered", "came from memory" in why, why)
        else:
            row = json.loads(run.stdout)
            expect("loads from memory are no errors", row["errors"] == 0, row)
            expect("they are told", row["from_memory"] > 0, row)
    print("ok small")


def interrupted(program, root):
    with tempfile.TemporaryDirectory(prefix="icms-smoke-", dir=root) as directory:
        run = subprocess.Popen([program, "bench", "pod", "--dir", directory, "--slices", "1000",
                                "--size", "128KiB", "--space", "512MiB"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 60
        while len(processes(directory)) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        expect("a daemon runs", len(processes(directory)) >= 2, processes(directory))
        run.send_signal(signal.SIGINT)
        told = run.communicate(timeout=60)[1]
        expect("it says why it ended", run.returncode == 1 and "signal" in told, told)
        expect("no daemon is left", processes(directory) == [], processes(directory))
        expect("nothing is left", os.listdir(directory) == [], os.listdir(directory))
    print("ok interrupted")


def without_gpu(program, root):
    with tempfile.TemporaryDirectory(prefix="icms-smoke-", dir=root) as directory:
        env = {name: value for name, value in ENV.items() if name != "LD_LIBRARY_PATH"}
        run = subprocess.run([program, "bench", "gpu", "--dir", directory, *SHORT], env=env,
                             capture_output=True, text=True, timeout=60)
        if run.returncode != 0:  # else this machine has one
            expect("it says what is missing", "cannot use CUDA memory" in run.stderr, run)
        expect("nothing is left", os.listdir(directory) == [], os.listdir(directory))
    print("ok without a GPU")


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    program = build / "cmd/icms"
    for name in sys.argv[2:] or names(program):
        smoke(program, name, build)
    small(program, build)
    without_gpu(program, build)
    interrupted(program, build)


if __name__ == "__main__":
    main()
