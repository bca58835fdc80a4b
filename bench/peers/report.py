# SPDX-License-Identifier: Apache-2.0
"""doc/peers.md from the rows of bench/results/peers-*.jsonl. Pure.

Called by bench/bench_peers.py. document() -> tables of each peer -> what icms loses, from the same
rows, with the causes of bench/results/peers-causes.md beside them.
"""
import fnmatch
import json

import bench
from peers import icms_forms

HEAD = """# icms beside other programs

Made by `make bench-peers` (`bench/bench_peers.py`) of `bench/results/peers-*.jsonl`; do not edit.

## Method
One machine, one workload for all: distinct objects that cannot be compressed. All are put once, half
of them one by one (depth 1), half in batches of 16 (depth 16); then they are got in random order, one
by one and in batches of 16. A batch is asked for at once and waited for; its latency is one sample, and
there is a p99 from 100 samples on.
At the end every object that a side had acknowledged is got once more: the audit.

- **In turns.** A peer meets the forms of icms that do comparable work. They alternate in slices, and who
  goes first changes. Each round gives one ratio; the table has the median of the ratios with its 95 %
  interval. Numbers of different peers were measured minutes apart: compare inside a row.
- **Verified.** Every byte of every object that a side returned is compared with what was put, for all
  sides alike, outside the timed windows. What was lost, wrong or refused is counted out of GB/s.
- **Processor time** is user and system time of client and servers together for a GB of good objects,
  inside the same windows; for puts also what a side still does with them when asked to settle. Work that
  the kernel does in threads of its own (writing back the page cache) is in nobody's account.
- **Memory.** All sides get and put from the same kind of memory, touched before. What a side takes for
  itself it touches when it likes: puts have no warm-up, so slices of puts hold that too, and in a virtual
  machine memory that its host has not given it yet is dear. *ram* takes its memory at the start (`prefault`),
  Redis and Mooncake when it fills, and the raw data has their slices of both kinds. Gets have one short slice
  first that does not count.
- **Clients** are Python for all sides. What an operation costs there (10 to 30 us) shows at 256 KiB.
- **Flash.** icms reads and writes with O_DIRECT. For peers that use the page cache it is dropped before
  each slice of gets; readahead is theirs. An acknowledged put is with icms on the drive, in form *ram* in
  the agent's memory; the table says where it is with a peer.
- Settings of a peer stand in its driver, a file of `bench/peers/`; versions, and how busy the machine was
  with other work, beside its table. A busy machine widens the intervals and lowers all GB/s; processor time
  moves least.

GB are 10^9 bytes. Ratios are icms over the peer: above 1 icms moves more, or needs more processor time, or
takes longer. The command under each table measures it again, and would falsify it.

Forms of icms:
"""


def size_text(size):
    return bench.size_text(size)


def number(value):
    return f"{value:.3g}" if value else "-"


def ratio_text(ratio):
    return f"{ratio[0]:.2f} ({ratio[1]:.2f}-{ratio[2]:.2f})" if ratio else "-"


def p99_text(figures):
    return f"{figures['p99_us']:.0f}" if figures["p99_us"] else "-"


def bad(figures):
    """What went wrong in a row, for its cell."""
    found = [f"{figures[name]} {name}" for name in ("lost", "corrupt", "errors") if figures[name]]
    return f" **{', '.join(found)}**" if found else ""


# ---- tables -------------------------------------------------------------------------------------

def table(peer, rows):
    lines = ["| | icms | GB/s: icms / peer | ratio (95 %) | CPU s/GB: icms / peer | ratio (95 %) | "
             "p50 us: icms / peer | p99 us: icms / peer |", "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        theirs = row["sides"][peer]
        for form, ratios in row["ratios"].items():
            ours = row["sides"][form]
            lines.append(
                f"| {row['op']} {size_text(row['size_bytes'])} depth {row['depth']} "
                f"| {form.removeprefix('icms-')} "
                f"| {number(ours['gb_per_s'])}{bad(ours)} / {number(theirs['gb_per_s'])}{bad(theirs)} "
                f"| {ratio_text(ratios['gb_per_s'])} "
                f"| {number(ours['cpu_s_per_gb'])} / {number(theirs['cpu_s_per_gb'])} "
                f"| {ratio_text(ratios['cpu_s_per_gb'])} "
                f"| {ours['p50_us']:.0f} / {theirs['p50_us']:.0f} "
                f"| {p99_text(ours)} / {p99_text(theirs)} |")
    return lines


def served_text(served):
    total = sum(served.values())
    return ", ".join(f"{100 * count / total:.0f} % {where}" for where, count in served.items()
                     if count) if total else "-"


def audit_table(audits):
    lines = ["", "| audit | side | acknowledged | lost | corrupt | errors | gets were served from |",
             "|---|---|---|---|---|---|---|"]
    for row in audits:
        for name, one in row["sides"].items():
            lines.append(f"| {size_text(row['size_bytes'])} | {name} | {one['acknowledged']} | "
                         f"{one['lost']} | {one['corrupt']} | {one['errors']} | "
                         f"{served_text(one['served'])} |")
    return lines


def first_errors(rows):
    """What sides said when something went wrong, each text once."""
    said = {}
    for row in rows:
        for name, one in row.get("sides", {}).items():
            if one["first_error"]:
                said.setdefault((name, one["first_error"]), row)
    return [f"- {name} at {row['op']} {size_text(row['size_bytes'])} depth {row['depth']}: "
            f"`{text}`" for (name, text), row in said.items()]


def section(head, rows):
    peer, where = head["peer"], head["machine"]
    lines = [f"\n## {peer}", "", f"{head['title']}. Class: {head['class']}. It checks "
             f"{head['checks']}; a put is acknowledged when it is {head['acknowledged']}.", "",
             f"Measured {head['measured']} at {head['commit']}: {head['slices']} slices of "
             f"{head['slice_s']:g} s, {size_text(head['space'])} of objects a side; load of the "
             f"machine {head['load_before']:.1f} before, {head['load_after']:.1f} after. "
             f"{where['processor']}, {where['cores']} cores, {where['memory_gib']} GiB"
             f"{', virtual' if where['virtual'] else ''}, Linux {where['kernel']}, files on "
             f"{where['drive']}. Versions: "
             f"{', '.join(f'{name} {one}' for name, one in sorted(head['versions'].items())) or '-'}.",
             ""]
    if "not_measured" in head:
        return lines + [f"**Not measured**: {head['not_measured']}"]
    measured = [row for row in rows if "ratios" in row]
    if measured:
        lines += table(peer, measured)
    audits = [row for row in rows if row["op"] == "audit"]
    if audits:
        lines += audit_table(audits)
    lines += [""] + first_errors(rows)
    lines += [f"- **{size_text(row['size_bytes'])} failed**: {row['why']}"
              for row in rows if row["op"] == "failed"]
    return lines + ["", f"Again: `make bench-peers PEERS={peer}`"]


# ---- losses -------------------------------------------------------------------------------------

#: name in the rows, how it reads, and whether more is better
MEASURES = (("gb_per_s", "GB/s", True), ("cpu_s_per_gb", "CPU s/GB", False),
            ("p50_us", "p50", False))
SLICES_SURE = 6  # fewer ratios cannot give an interval of 95 %


def losses(peer, row):
    """[(name of the row, measure, text, sure)] where icms is worse; sure when the whole interval
    is, and is of enough slices. p99 has no interval: it is never sure."""
    found = []
    for form, ratios in row["ratios"].items():
        name = (f"{peer} {row['op']} {size_text(row['size_bytes'])} depth {row['depth']} "
                f"{form.removeprefix('icms-')}")
        ours, theirs = row["sides"][form], row["sides"][peer]
        for key, text, more_is_better in MEASURES:
            if ratios[key] is None:
                continue
            ratio, low, high = ratios[key]
            if (ratio < 1) if more_is_better else (ratio > 1):
                sure = row["slices"] >= SLICES_SURE and \
                    (high < 1 if more_is_better else low > 1)
                found.append((name, text, f"{ratio:.2f} ({low:.2f}-{high:.2f})", sure))
        if ours["p99_us"] > theirs["p99_us"] > 0:
            found.append((name, "p99", f"{ours['p99_us']:.0f} / {theirs['p99_us']:.0f} us", False))
        for what in ("lost", "corrupt", "errors"):
            if ours[what] > theirs[what]:
                found.append((name, what, f"{ours[what]} / {theirs[what]}", True))
    return found


def causes_read(text):
    """[(pattern, cause)] of peers-causes.md: a heading is a row as the table of losses names it,
    with its measure or without, * stands for anything."""
    parts = text.split("\n## ")[1:]
    return [(part.partition("\n")[0].strip(), " ".join(part.partition("\n")[2].split()))
            for part in parts]


class Causes:
    """Numbers the causes in the order in which losses need them."""

    def __init__(self, text):
        self.known = causes_read(text)
        self.used = []

    def __call__(self, name, measure):
        for pattern, cause in self.known:
            if fnmatch.fnmatch(f"{name} {measure}", pattern) or fnmatch.fnmatch(name, pattern):
                if cause not in self.used:
                    self.used.append(cause)
                return f"[{self.used.index(cause) + 1}]"
        return "not known yet"


def loss_table(title, found, cause):
    """A line for each row: all measures it is worse in."""
    lines = [f"\n### {title}", ""]
    if not found:
        return lines + ["None."]
    rows = {}
    for name, measure, text, _ in found:
        rows.setdefault(name, []).append((measure, text))
    lines += ["| peer and row | icms is worse in | cause |", "|---|---|---|"]
    for name, measures in rows.items():
        reasons = list(dict.fromkeys(cause(name, measure) for measure, _ in measures))
        lines.append(f"| {name} | {'; '.join(f'{m} {t}' for m, t in measures)} | "
                     f"{', '.join(reasons)} |")
    return lines


def losses_section(matches, causes_text):
    cause = Causes(causes_text)
    found = [one for head, rows in matches for row in rows if "ratios" in row
             for one in losses(head["peer"], row)]
    sure, unsure = [one for one in found if one[3]], [one for one in found if not one[3]]
    compared = sum(3 * len(row["ratios"]) for _, rows in matches for row in rows if "ratios" in row)
    lines = ["\n## Where icms loses", "",
             f"Every row and measure in which icms was worse than the peer; {compared} ratios of GB/s, "
             "processor time and p50 were compared. Ratios are icms over the peer, with the 95 % "
             "interval."]
    lines += loss_table("The whole interval says so", sure, cause)
    lines += loss_table("Within noise, or p99, which has no interval", unsure, cause)
    lines += ["\n### Causes", ""]
    return lines + ([f"{i + 1}. {text}" for i, text in enumerate(cause.used)] or ["None written."])


def document(paths, causes_text):
    """The text of doc/peers.md. paths: the files of all peers, also of those without one."""
    matches = []
    missing = [path.stem.removeprefix("peers-") for path in paths if not path.exists()]
    for path in paths:
        if not path.exists():
            continue
        head, *rows = [json.loads(line) for line in path.read_text().splitlines()]
        matches.append((head, rows))
    lines = [f"- **{form}**: {icms_forms.TITLES[form]} ({icms_forms.CLASSES[form]})"
             for form in icms_forms.FORMS]
    if missing:
        lines += ["", f"**Not measured yet:** {', '.join(missing)}."]
    if matches:
        lines += losses_section(matches, causes_text)
    for head, rows in matches:
        lines += section(head, rows)
    return HEAD + "\n".join(lines).rstrip() + "\n"
