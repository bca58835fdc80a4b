#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the benches of `icms bench` and writes what they say into doc/benchmarks.md.

Each bench leaves its rows in bench/results/NAME.jsonl: first a line that says where and how it was
measured, then the rows as `icms bench --json` prints them. The document is made of all these files,
so a part can be measured again alone. bench/results/reasons.md is written by hand: why a goal is
missed; a heading there names rows as the document does, * stands for anything. The section on engines
comes from bench/bench_engines.py, that on hints from bench/bench_prestage.py, and that on tiers from
test/replay/tiers.py.

usage: bench.py [--slices N] [--slice TIME] [--space SIZE] [--dir DIRECTORY] [NAME ...]
       bench.py --report    only write the document
"""
import argparse
import datetime
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys

import choice_report
import engines.report
import tiers_report

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
SECTIONS = {**tiers_report.SECTIONS, **choice_report.SECTIONS}  # of other benches than those of `icms bench`
DOCUMENT = ROOT / "doc/benchmarks.md"
REASONS = RESULTS / "reasons.md"

HEAD = """# Benchmarks

Made by `make bench`, `make bench-prestage` and `make bench-engines` (`bench/bench.py`); do not edit. What cannot be read off
a number stands in `bench/results/reasons.md`.

## Method
Each row compares icms with a ceiling: the least code that does the same work (raw io_uring with
O_DIRECT, raw TCP, memcpy), in one run, on the same machine. The two take turns in slices; each pair
of neighbours gives one ratio of throughputs; the row has the median of the ratios with its 95 %
interval. Values are incompressible and differ, every byte that icms returned was checked, and a
failed operation would stand here as an error. GB are 10^9 bytes of values. CPU is user and system
time of all processes of a side for a GB. Latencies are of icms, from when an operation was due.
`bench/README.md` has the rules, icms-bench(1) the command.

*holds*: the number as measured keeps the goal. *misses*: it does not; the note says why. A ratio
that misses by less than its interval is marked *misses, within noise*. A row with errors, or with
loads that memory above the drive answered, is *not judged*: it holds no goal.

Each row is one claim; the command in its last column measures it again and would falsify it.
"""


def fail(text):
    sys.exit(f"bench.py: {text}")


# ---- the machine ------------------------------------------------------------------------------

def first_line(path, pattern=""):
    try:
        for line in pathlib.Path(path).read_text().splitlines():
            match = re.search(pattern, line)
            if match:
                return (match.group(1) if match.groups() else line).strip()
    except OSError:
        pass
    return ""


def said(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT,
                              check=False).stdout.strip()
    except OSError:
        return ""


def machine(directory):
    memory = int(first_line("/proc/meminfo", r"MemTotal:\s+(\d+)") or 0) / (1 << 20)
    device = said("df", "--output=source,fstype", directory).splitlines()[-1:]
    return {
        "processor": first_line("/proc/cpuinfo", r"model name\s*:\s*(.*)") or os.uname().machine,
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "kernel": os.uname().release,
        "virtual": "hypervisor" in first_line("/proc/cpuinfo", "flags"),
        "drive": " ".join(device[0].split()) if device else "",
    }


def commit():
    """That of the tree; results are of none, a bench before may have written them."""
    changed = said("git", "status", "--porcelain", "--", ".", ":!bench/results", ":!doc/benchmarks.md")
    return said("git", "describe", "--always") + ("-dirty" if changed else "")


def conditions(directory):
    """The head of results that are about to be measured: when, of what, on which machine, beside what load."""
    return {"measured": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "commit": commit(), "machine": machine(directory), "load_before": os.getloadavg()[0]}


# ---- running ----------------------------------------------------------------------------------

def known_benches(program):
    lines = subprocess.run([program, "bench", "--list"], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    return [line.split()[0] for line in lines]


def run_one(program, name, arguments):
    """One bench; its rows replace those of its last run when it ended well."""
    options = ["--slices", str(arguments.slices), "--slice", arguments.slice,
               "--space", arguments.space, "--dir", str(arguments.dir)]
    head = {**conditions(arguments.dir), "slices": arguments.slices, "slice": arguments.slice, "space": arguments.space}
    print(f"{name} ...", flush=True)
    run = subprocess.run([program, "bench", name, "--json", *options], stdout=subprocess.PIPE,
                         text=True, check=False)
    if run.returncode != 0:
        why = [json.loads(line).get("why") for line in run.stdout.splitlines()[-1:]]
        print(f"{name}: failed; its old rows stay{''.join(f': {text}' for text in why if text)}",
              file=sys.stderr)
        return False
    head["load_after"] = os.getloadavg()[0]
    (RESULTS / f"{name}.jsonl").write_text(json.dumps(head) + "\n" + run.stdout)
    return True


# ---- the document -----------------------------------------------------------------------------

def size_text(size):
    if not size:
        return "-"
    return f"{size >> 20} MiB" if size % (1 << 20) == 0 else f"{size >> 10} KiB"


def depth_text(row):
    if row["depth"]:
        return str(row["depth"])
    return f"{row['ops_per_s']:.0f}/s" if row.get("ops_per_s") else "-"


def row_name(row):
    """As reasons.md names it: "store get 1 MiB depth 16"."""
    parts = [row["bench"], row["op"], row["variant"]]
    if row["size_bytes"]:
        parts.append(size_text(row["size_bytes"]))
    parts.append(f"depth {row['depth']}" if row["depth"] else
                 "open loop" if row.get("ops_per_s") else "")
    return " ".join(part for part in parts if part)


def command(row):
    words = ["icms bench", row["bench"]]
    if row["size_bytes"]:
        words.append(f"--size {row['size_bytes'] >> 10}KiB")
    if row["depth"]:
        words.append(f"--depth {row['depth']}")
    if row["op"]:
        words.append(f"--op {row['op']}")
    if row["variant"]:
        words.append(f"--variant {row['variant']}")
    return " ".join(words)


def unjudged(row):
    """Why a row can hold no goal: it is not what was to be measured; "" when it is."""
    if row["errors"]:
        return f"not judged, {row['errors']} errors ({row.get('error', '?')})"
    if row.get("from_memory"):
        return f"not judged, {row['from_memory']} loads from memory"
    return ""


def goals(row):
    """[(what, "0.97 >= 0.95", verdict)]; the verdict is holds, misses, misses within noise, or that
    it is not judged."""
    found = goals_met(row)
    return [(what, goal, unjudged(row) or verdict) for what, goal, verdict in found]


def goals_met(row):
    """The same by the numbers alone."""
    found = []
    if row.get("ratio_goal"):
        verdict = "holds" if row["ratio"] >= row["ratio_goal"] else \
            "misses, within noise" if row["ratio_high"] >= row["ratio_goal"] else "misses"
        found.append(("ratio", f"ratio >= {row['ratio_goal']:.2f}", verdict))
    if row.get("cpu_goal"):
        verdict = "holds" if row["cpu_s_per_gb"] <= row["cpu_goal"] else "misses"
        found.append(("CPU", f"CPU <= {row['cpu_goal']:.3f}", verdict))
    if row.get("p50_goal_us"):
        verdict = "holds" if row["p50_us"] <= row["p50_goal_us"] else "misses"
        found.append(("p50", f"p50 <= {row['p50_goal_us']:.4g} us", verdict))
    for key, limit in row.items():
        if key.endswith("_at_most"):
            name = key[:-len("_at_most")]
            verdict = "holds" if row[name] <= limit else "misses"
            found.append((name, f"{name} {row[name]:.4g} <= {limit:.4g}", verdict))
    return found


STANDARD = {"bench", "op", "variant", "size_bytes", "depth", "slices", "ops", "errors", "error",
            "verified_bytes", "from_memory", "gb_per_s", "cpu_s_per_gb", "cpu_us_per_op", "p50_us", "p99_us",
            "p999_us",
            "ops_per_s", "ceiling", "ceiling_gb_per_s", "ratio", "ratio_low", "ratio_high",
            "ceiling_cpu_s_per_gb", "ceiling_p50_us", "ceiling_p99_us", "ceiling_p999_us",
            "ratio_goal", "cpu_goal", "p50_goal_us"}


def more(row):
    """Numbers that only this bench has, and that are no goal."""
    return ", ".join(f"{key} {value:.4g}" for key, value in row.items()
                     if key not in STANDARD and not key.endswith("_at_most") and
                     f"{key}_at_most" not in row)


def table_row(row, note):
    verdicts = goals(row)
    cells = [row_name(row)]
    if row["gb_per_s"]:
        cells.append(f"{row['gb_per_s']:.3f}")
    else:
        cells.append("-")
    if "ratio" in row:
        cells += [f"{row['ceiling_gb_per_s']:.3f}",
                  f"{row['ratio']:.3f} ({row['ratio_low']:.3f}-{row['ratio_high']:.3f})",
                  f"{row['cpu_s_per_gb']:.3f} / {row['ceiling_cpu_s_per_gb']:.3f}"]
    else:
        cells += ["-", "-", f"{row['cpu_s_per_gb']:.3f}" if row["cpu_s_per_gb"] else "-"]
    cells.append(f"{row['p50_us']:.0f} / {row['p99_us']:.0f} / {row['p999_us']:.0f}"
                 if row["p50_us"] else "-")
    text = "; ".join(f"{goal}: **{verdict}**{note(row, what) if 'misses' in verdict else ''}"
                     for what, goal, verdict in verdicts)
    cells.append(text or "-")
    cells.append(more(row) or "-")
    errors = f" **{row['errors']} errors ({row.get('error', '?')})**" if row["errors"] else ""
    cells.append(f"`{command(row)}`{errors}")
    return "| " + " | ".join(cells) + " |"


def reasons_read():
    """[(pattern, text)] of reasons.md."""
    if not REASONS.exists():
        return []
    parts = re.split(r"^## (.+)$", REASONS.read_text(), flags=re.M)[1:]
    return list(zip((p.strip() for p in parts[0::2]),
                    (" ".join(t.split()) for t in parts[1::2])))


class Notes:
    """Numbers the reasons in the order in which rows need them."""

    def __init__(self):
        self.reasons = reasons_read()
        self.used = []

    def __call__(self, row, what):
        name = f"{row_name(row)} {what}"
        for pattern, text in self.reasons:
            if fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(row_name(row), pattern):
                if (pattern, text) not in self.used:
                    self.used.append((pattern, text))
                return f" [{self.used.index((pattern, text)) + 1}]"
        return " [no reason known yet]"


def section(name, head, rows, note):
    where = head["machine"]
    lines = [f"\n## {name}", "",
             f"Measured {head['measured']} at {head['commit']}, {head['slices']} slices of "
             f"{head['slice']} a side and row, {head['space']} of files; load of the machine "
             f"{head['load_before']:.1f} before, {head['load_after']:.1f} after.", "",
             f"Machine: {where['processor']}, {where['cores']} cores, {where['memory_gib']} GiB"
             f"{', virtual' if where['virtual'] else ''}, Linux {where['kernel']}, drive files on "
             f"{where['drive']}.", "",
             "| row | GB/s | ceiling | ratio (95 %) | CPU s/GB: icms / ceiling | "
             "p50 / p99 / p99.9 us | goal | more | again |",
             "|---|---|---|---|---|---|---|---|---|"]
    return lines + [table_row(row, note) for row in rows]


def report():
    note = Notes()
    lines, matches = [], {}
    held = missed = 0
    for path in sorted(RESULTS.glob("*.jsonl")):
        head, *rows = [json.loads(line) for line in path.read_text().splitlines()]
        if path.stem.startswith("peers-"):  # bench/bench_peers.py makes a document of these
            continue
        if path.stem.startswith("engines-"):  # of bench/bench_engines.py
            matches[path.stem.removeprefix("engines-")] = (head, rows)
            continue
        if path.stem in SECTIONS:
            found, good, bad = SECTIONS[path.stem](head, rows, note)
            lines += found
            held, missed = held + good, missed + bad
            continue
        lines += section(path.stem, head, rows, note)
        for row in rows:
            for _, _, verdict in goals(row):
                held, missed = held + (verdict == "holds"), missed + (verdict != "holds")
    found, good, bad = engines.report.section(matches, note)
    lines += found
    held, missed = held + good, missed + bad
    lines.append("\n## Why goals are missed")
    lines += [""] + [f"{i + 1}. {text}" for i, (_, text) in enumerate(note.used)]
    for pattern, _ in note.reasons:
        if pattern not in [used for used, _ in note.used]:
            print(f"reasons.md: nothing is missed any more by '{pattern}'", file=sys.stderr)
    lines = [f"\n**{held} goals hold, {missed} are missed.**"] + lines
    DOCUMENT.write_text(HEAD + "\n".join(lines).rstrip() + "\n")
    print(f"{DOCUMENT.relative_to(ROOT)}: {held} goals hold, {missed} are missed")


def main():
    parser = argparse.ArgumentParser(usage=__doc__[__doc__.index("usage:") + 7:])
    parser.add_argument("--build", default=ROOT / "build", type=pathlib.Path)
    parser.add_argument("--slices", default=20, type=int)
    parser.add_argument("--slice", default="1s")
    parser.add_argument("--space", default="20GiB")
    parser.add_argument("--dir", default=None, type=pathlib.Path)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()

    RESULTS.mkdir(exist_ok=True)
    program = arguments.build / "cmd/icms"
    arguments.dir = (arguments.dir or arguments.build).resolve()
    failed = []
    if not arguments.report:
        known = known_benches(program)
        # Most machines have no GPU: that bench is run where it is asked for.
        names = arguments.names or [name for name in known if name != "gpu"]
        for name in names:
            if name not in known:
                fail(f"there is no bench '{name}'; there are {' '.join(known)}")
        failed = [name for name in names if not run_one(program, name, arguments)]
    report()
    if failed:
        fail(f"failed: {' '.join(failed)}")


if __name__ == "__main__":
    main()
