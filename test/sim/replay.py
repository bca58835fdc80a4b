#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One seed is seen again, step by step.

Goal: what a failure prints as its replay shows every step of the same history. Method: a seed runs as in a campaign, and
as `make replay` runs it; both end with the same hash, and the second one names each event with its time.

usage: replay.py PROGRAM [OPTION ...]
"""
import re
import subprocess
import sys

SUM = re.compile(r"^seed 7 hash ([0-9a-f]{16}) .* (\d+) events ", re.M)


def run(*more):
    done = subprocess.run([*sys.argv[1:], "--seed", "7", *more], capture_output=True, text=True, timeout=100, check=False)
    summary = SUM.search(done.stdout)
    if done.returncode != 0 or summary is None:
        sys.exit(f"not ok {done.args}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return summary[1], int(summary[2]), done


plain, events, _ = run()
again, _, steps = run("--chatty", "--verbose")
if plain != again:
    sys.exit(f"not ok the replay has hash {again}, the run {plain}")
lines = len(steps.stderr.splitlines())
if lines < events / 4 or "weather: " not in steps.stdout:
    sys.exit(f"not ok {lines} steps of {events} events\n{steps.stdout[:500]}")
print(f"ok {lines} steps of {events} events are seen again")
