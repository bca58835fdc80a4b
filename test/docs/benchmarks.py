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


def hints_tiers_and_choices():
    """Each bar of hints, tiers and choices, held and missed by the least that shows."""
    wrong = []
    head = {"measured": "", "commit": "", "load_before": 0, "load_after": 0,
            "machine": {"processor": "", "cores": 1, "memory_gib": 1, "virtual": False, "kernel": "", "drive": ""},
            "options": {"blocks": 1, "block_bytes": 1, "rounds": 1, "full_rounds": 1, "learn": 1, "requests": 1, "load": 0.8, "prefill": 1, "block_tokens": 1, "block_kib": 1, "memory": 1}}
    none = {"lead_s": None, "stall_ms_mean": 50.0, "others_ms_mean": 1.0}
    good = {"lead_s": 2.0, "stall_ms_mean": 10.0, "others_ms_mean": 1.04, "in_time": 0.95, "wasted": 0.1}
    sections = bench.SECTIONS
    for missed, row in ((0, good), (1, {**good, "in_time": 0.949}), (1, {**good, "stall_ms_mean": 10.1}),
                        (1, {**good, "wasted": 0.101}), (1, {**good, "others_ms_mean": 1.06}),
                        (3, {**good, "in_time": None, "stall_ms_mean": 50.0, "others_ms_mean": 2.0})):
        found = sections["prestage"](head, [none, row, none], lambda *_: "")[1:]
        if found != (4 - missed, missed):
            wrong.append(f"hints: {row}: {found}")
    good = {"trace": "t", "sizes": [1, 2, 3], "lru": 0.5, "none": 0.4, "inclusive": 0.4, "exclusive": 0.47}
    for missed, row in ((0, good), (1, {**good, "exclusive": 0.46}), (1, {**good, "none": 0.48}),
                        (2, {**good, "none": 0.48, "exclusive": 0.3})):
        found = sections["tiers"](head, [row], lambda *_: "")[1:]
        if found != (2 - missed, missed):
            wrong.append(f"tiers: {row}: {found}")
    good = {"bytes_per_s": 0, "estimate": None, "load_s": 1, "compute_s": 1, "choice_s": 1, "choice_of_best": 1.1,
            "choice_p90_of_best_p90": 1.1, "loaded": [1], "first_loaded": [1], "first_of_best": [1.0], "first_loads_of_best": [],
            "first_too_late": 0, "slowest_of_best": 1.0, "prefixes": 1, "prefix_error_p90": 0.3, "load_spread_p90": 0.1}
    for missed, change in ((0, {}), (1, {"choice_of_best": 1.11}), (1, {"choice_p90_of_best_p90": 1.11}),
                           (1, {"first_too_late": 1}), (1, {"prefix_error_p90": 0.31})):
        row = {**good, **change}
        found = sections["choice"](head, [row], lambda *_: "")[1:]
        if found != (4 - missed, missed):
            wrong.append(f"choice: {row}: {found}")
    return wrong


def main():
    wrong = []
    for expected, changed in (({"holds"}, {}),
                              ({"not judged, 3 errors (BUSY)"}, {"errors": 3, "error": "BUSY"}),
                              ({"not judged, 5 loads from memory"}, {"from_memory": 5})):
        if verdicts(**changed) != expected:
            wrong.append(f"{changed}: {verdicts(**changed)} is not {expected}")
    wrong += hints_tiers_and_choices()
    shown = bench.DOCUMENT.read_text()
    for path in bench.RESULTS.glob("*.jsonl"):
        if path.stem.startswith(("peers-", "engines-")) or path.stem in bench.SECTIONS:
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
