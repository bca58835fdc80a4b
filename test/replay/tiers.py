#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the tiers of a server (memory, own drive, pod) against one LRU of their summed size.

tiers.py ICMS [--seeds N,...] [--only NAME,...] [--results FOLDER] [FORMAT:TRACE ...]

Each mixture of mixtures.py (--only '': none), with each seed, and each trace (transcripts.py makes some) goes through `icms replay --tiers` with and
without an own drive, inclusive and exclusive. A table is printed, and kept as tiers.jsonl in a folder: that of
bench/results makes the section *tiers* of doc/benchmarks.md. What falls below a bar is an error:

    exclusive    at least 0.93 of the tokens that one LRU of all blocks hits, and no fewer than without
                 the drive, to a thousandth
    inclusive    at least 0.985 of the tokens that are hit without the drive: what the drive answers the
                 pod does not see, and evicts a little earlier
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import mixtures

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import bench  # noqa: E402

#: Memory, own drive and pod, in parts of the footprint.
SIZES = ((2, 10, 20), (1, 20, 10), (5, 20, 20), (2, 10, 50))
#: What a replay of too few blocks says.
TOO_SMALL = ("segments; 32 are needed", "is too small for a replay")
LRU_LEAST, EXCLUSIVE_LEAST, INCLUSIVE_LEAST = 0.93, 0.999, 0.985


def replay(icms, trace, form, sizes, *options):
    """The answer for all tiers; None where a tier would be too small."""
    answer = subprocess.run(
        [icms, "replay", "--json", "--format", form, "--loops", "2", "--tiers",
         ",".join(f"{size}%" for size in sizes), *options, trace], capture_output=True, text=True)
    if answer.returncode != 0:
        if any(too_small in answer.stdout + answer.stderr for too_small in TOO_SMALL):
            return None
        sys.exit(f"tiers.py: {trace}: {answer.stdout}{answer.stderr}")
    return json.loads(answer.stdout.splitlines()[-1])


def inputs_of(options, folder):
    inputs = []
    for name in filter(None, options.only.split(",")):
        for seed in map(int, options.seeds.split(",")):
            path = pathlib.Path(folder) / f"{name}-{seed}"
            path.write_text("".join(f"{line}\n" for line in mixtures.lines(name, seed)))
            inputs.append((f"{name} {seed}", str(path), "mooncake"))
    for one in options.traces:
        form, trace = one.split(":", 1)
        inputs.append((pathlib.Path(trace).name.split(".")[0].replace("_", " "), trace, form))
    return inputs


def keep(rows, load_before, folder):
    head = {**bench.conditions(ROOT), "load_before": load_before, "load_after": os.getloadavg()[0],
            "said": "Nothing here depends on the machine."}
    lines = [json.dumps(line) for line in (head, *rows)]
    (folder / "tiers.jsonl").write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("icms")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--only", default=",".join(mixtures.MIXTURES))
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("traces", nargs="*", metavar="FORMAT:TRACE")
    options = parser.parse_intermixed_args()
    wrong = count = 0
    rows, load_before = [], os.getloadavg()[0]
    print(f"{'trace':24} {'tiers':>9}    LRU  none/LRU  inclusive/LRU  exclusive/LRU")
    with tempfile.TemporaryDirectory(prefix="icms-tiers-") as folder:
        for name, trace, form in inputs_of(options, folder):
            for sizes in SIZES:
                none = replay(options.icms, trace, form, (sizes[0], 0, sizes[2]))
                inclusive = replay(options.icms, trace, form, sizes)
                exclusive = replay(options.icms, trace, form, sizes, "--exclusive")
                if none is None or inclusive is None or exclusive is None:
                    continue
                count += 1
                lru = exclusive["lru_token_hit_ratio"]
                if lru == 0:  # nothing is asked for twice
                    continue
                hits = [one["token_hit_ratio"] for one in (none, inclusive, exclusive)]
                rows.append({"trace": name, "sizes": sizes, "lru": lru,
                             "none": hits[0], "inclusive": hits[1], "exclusive": hits[2]})
                print(f"{name:24} {'+'.join(map(str, sizes)):>9} {lru:6.3f} {hits[0] / lru:9.3f} "
                      f"{hits[1] / lru:14.3f} {hits[2] / lru:14.3f}", flush=True)
                for what, is_broken in (
                        (f"exclusive: below {LRU_LEAST} of LRU", hits[2] < LRU_LEAST * lru),
                        ("exclusive: below what is hit without the drive", hits[2] < EXCLUSIVE_LEAST * hits[0]),
                        (f"inclusive: below {INCLUSIVE_LEAST} of what is hit without the drive",
                         hits[1] < INCLUSIVE_LEAST * hits[0])):
                    if is_broken:
                        wrong += 1
                        print(f"    below a bar: {what}")
    if options.results:
        keep(rows, load_before, options.results)
    if count == 0:
        sys.exit("tiers.py: nothing was replayed: every drive would have too few segments")
    sys.exit(f"tiers.py: {wrong} bars are broken in {count} rows" if wrong else 0)


if __name__ == "__main__":
    main()
