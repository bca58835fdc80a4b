#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the eviction of drives against LRU and FIFO, on mixtures and on traces.

bars.py ICMS [--seeds N,...] [--only NAME,...] [FORMAT:TRACE ...]

Each mixture of mixtures.py, with each seed, and each trace goes through `icms replay` at parts of its
footprint. A table is printed. What falls below a bar is an error:

    tokens hit    7 blocks a segment: at least 0.95 of LRU, which holds single blocks
                  31 and 127 blocks: at least 0.90 of FIFO with such segments
    bytes written at most 1.05 of those admitted

A mixture has a bar of its own where the one above is not reached: see KNOWN.
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

import mixtures

SEGMENTS = {7: "16MiB", 31: "64MiB", 127: "256MiB"}  # blocks of 2 MiB, and what holds so many
PARTS = ("2%", "5%", "10%", "20%", "50%")
LRU_LEAST, FIFO_LEAST, WRITTEN_MOST = 0.95, 0.90, 1.05

#: Mixtures that do not reach 0.95 of LRU at every size, and what they have to reach. Sessions of agents
#: grow by a block or two at a time, so a segment has blocks of several, which end at different times.
KNOWN = {"agents": 0.945}

Row = collections.namedtuple("Row", "name blocks part lru of_lru of_fifo written")


def replay(icms, trace, form, part, segment):
    """Results by policy; None where the drive would have too few segments."""
    answer = subprocess.run(
        [icms, "replay", "--json", "--format", form, "--loops", "2", "--capacity", part, "--segment",
         segment, "--policy", "fifo,lru,default", trace], capture_output=True, text=True)
    if answer.returncode != 0:
        if "segments; 32 are needed" in answer.stdout + answer.stderr:
            return None
        sys.exit(f"bars.py: {trace}: {answer.stdout}{answer.stderr}")
    return {line["policy"]: line for line in map(json.loads, answer.stdout.splitlines())}


def rows(icms, name, trace, form):
    for blocks, segment in SEGMENTS.items():
        for part in PARTS:
            found = replay(icms, trace, form, part, segment)
            if found is None:
                continue
            lru, fifo, ours = (found[policy]["token_hit_ratio"]
                               for policy in ("lru", "fifo", "default"))
            yield Row(name, blocks, part, lru, ours / lru if lru else 1,
                      ours / fifo if fifo else 1, found["default"]["write_amplification"])


def broken(row):
    """The bars that a row breaks, in words."""
    least = KNOWN.get(row.name.split()[0], LRU_LEAST)
    if row.blocks == 7 and row.of_lru < least:
        yield f"{row.of_lru:.3f} of LRU's tokens, at least {least} is asked for"
    if row.blocks > 7 and row.of_fifo < FIFO_LEAST:
        yield f"{row.of_fifo:.3f} of FIFO's tokens, at least {FIFO_LEAST} is asked for"
    if row.written > WRITTEN_MOST:
        yield f"{row.written:.3f} bytes written for each admitted, at most {WRITTEN_MOST} may be"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("icms")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--only", default=",".join([*mixtures.MIXTURES, "drawn"]))
    parser.add_argument("traces", nargs="*", metavar="FORMAT:TRACE")
    options = parser.parse_args()
    wrong = count = 0
    print(f"{'trace':24} blocks  part    LRU  of LRU  of FIFO  written")
    with tempfile.TemporaryDirectory(prefix="icms-bars-") as folder:
        inputs = [(pathlib.Path(trace).name, trace, form)
                  for form, trace in (one.split(":", 1) for one in options.traces)]
        for name in filter(None, [] if inputs else options.only.split(",")):
            for seed in map(int, options.seeds.split(",")):
                path = pathlib.Path(folder) / f"{name}-{seed}"
                path.write_text("".join(f"{line}\n" for line in mixtures.lines(name, seed)))
                inputs.append((f"{name} {seed}", str(path), "mooncake"))
        for name, trace, form in inputs:
            for row in rows(options.icms, name, trace, form):
                count += 1
                print(f"{row.name:24} {row.blocks:6} {row.part:>5} {row.lru:6.3f} {row.of_lru:7.3f} "
                      f"{row.of_fifo:8.3f} {row.written:8.3f}", flush=True)
                for what in broken(row):
                    wrong += 1
                    print(f"    below a bar: {what}")
    if count == 0:
        sys.exit("bars.py: nothing was replayed: every drive would have too few segments")
    sys.exit(f"bars.py: {wrong} of {count} rows are below a bar" if wrong else 0)


if __name__ == "__main__":
    main()
