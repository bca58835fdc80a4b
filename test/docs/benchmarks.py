#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rows of the benchmarks that did not measure what they should hold no goal.

benchmarks.py: the verdicts of bench/bench.py over made-up rows, and those that doc/benchmarks.md
shows of the rows in bench/results. Prints what is wrong.
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import bench  # noqa: E402

ROW = {"bench": "pod", "op": "get", "variant": "", "size_bytes": 1 << 20, "depth": 16, "errors": 0,
       "ratio": 0.99, "ratio_low": 0.98, "ratio_high": 1.0, "ratio_goal": 0.9, "cpu_s_per_gb": 1.0,
       "cpu_goal": 2.0, "p50_us": 10.0, "p50_goal_us": 20.0, "late": 1.0, "late_at_most": 2.0}


def verdicts(**changed):
    return {verdict for _, _, verdict in bench.goals({**ROW, **changed})}


def main():
    wrong = []
    for expected, changed in (({"holds"}, {}),
                              ({"not judged, 3 errors (BUSY)"}, {"errors": 3, "error": "BUSY"}),
                              ({"not judged, 5 loads from memory"}, {"from_memory": 5})):
        if verdicts(**changed) != expected:
            wrong.append(f"{changed}: {verdicts(**changed)} is not {expected}")
    shown = bench.DOCUMENT.read_text()
    for path in bench.RESULTS.glob("*.jsonl"):
        if path.stem.startswith(("peers-", "engines-")):
            continue
        for line in path.read_text().splitlines()[1:]:
            row = json.loads(line)
            if not bench.unjudged(row):
                continue
            name = bench.row_name(row)
            if any(found.startswith(f"| {name} |") and "**holds**" in found
                   for found in shown.splitlines()):
                wrong.append(f"{bench.DOCUMENT.name}: {name}: holds, {bench.unjudged(row)}")
    for text in wrong:
        print(text)
    sys.exit(1 if wrong else 0)


main()
