# SPDX-License-Identifier: Apache-2.0
"""Hints and tiers as tables and verdicts: the sections *prestage* and *tiers* of doc/benchmarks.md. Pure.

Called by bench/bench.py with the lines of bench/results/prestage.jsonl, prestage_trace.jsonl
(bench/bench_prestage.py) and bench/results/tiers.jsonl (test/replay/tiers.py), and with its notes, which put the reasons of
bench/results/reasons.md beside what is missed. A row there is named as "prestage 2 s in time" or "tiers
conversations 1 2+10+20 exclusive".
"""

PRESTAGE = """Conversations against a real pod: two enclosures, an agent whose memory holds a part of the
blocks, the Python package. The engine is a model: one GPU that takes requests in order, prefills at a given rate, and waits
before that until the blocks of a prefix are in the agent's memory, from where it copies them by itself: its *stall*. Rate and
bytes a token are those of vLLM's model on the processor here (*engines*). A gateway gives hints so long before a request arrives, the
engine when it queues it. Sides run the same requests one after the other; *none*, without hints, runs before and after
each, and is the mean of both. *copy*: what the processor takes to copy the same prefix out of the agent's memory, which an
engine without a GPU waits for, too, and no hint saves: *with copy* is by how much its stalls are less. *late, dropped*: blocks of single
hints that came late, or could not come in time; a hint is said again while its request waits. *in time*: blocks of prefixes that were in memory when the engine asked for them.
*wasted*: bytes of blocks that were brought for hints and not used, of those that were brought. *others*: mean latency of
another process that loads blocks of another volume at a steady rate. Goals are for 2 s."""

TIERS = """`icms replay --tiers`: traces through memory, own drive and pod with the code of agent and store, values without
bytes. Sizes are parts of the distinct blocks of a trace. Numbers are tokens that are hit, over those that one LRU of the
summed size hits; *none*: without the drive. A drive that is inclusive has copies of what the pod has. The mixture of
scans is left out: nothing in it is asked for twice."""

#: Of hints 2 s before the need: name, key, in percent or times, at least or at most, bound.
GOALS = (("in time", "in_time", 100, "%", ">=", 95), ("stalls down", "stalls_down", 1, "x", ">=", 5),
         ("wasted", "wasted", 100, "%", "<=", 10), ("others slower", "others_slower", 100, "%", "<=", 5))
GOAL_LEAD = 2.0
LRU_LEAST, NONE_LEAST = 0.93, 0.999


def where_lines(head):
    where = head["machine"]
    return [f"Measured {head['measured']} at {head['commit']}; load of the machine {head['load_before']:.1f} before, "
            f"{head['load_after']:.1f} after. {head.get('said', '')}".rstrip(), "",
            f"Machine: {where['processor']}, {where['cores']} cores, {where['memory_gib']} GiB"
            f"{', virtual' if where['virtual'] else ''}, Linux {where['kernel']}, drive files on {where['drive']}."]


def named(bench, op, variant=""):
    return {"bench": bench, "op": op, "variant": variant, "size_bytes": 0, "depth": 0}


def held_to(name, value, is_good, goal, note, row):
    """(text, holds)."""
    return f"{name} {goal}: **{'holds' if is_good else 'misses'}**{'' if is_good else note(row, name)}", is_good


def compared(rows):
    """(means of all sides without hints, rows with hints beside the mean of the two around each)."""
    keys = ("stall_ms_mean", "others_ms_mean", "copy_ms_mean")
    mean_of = lambda of: {key: sum(row.get(key, 0) for row in of) / len(of) for key in keys}  # noqa: E731
    none = [i for i, row in enumerate(rows) if row["lead_s"] is None]
    found = []
    for i, row in enumerate(rows):
        if row["lead_s"] is not None:
            around = mean_of([rows[max(j for j in none if j < i)], rows[min(j for j in none if j > i)]])
            found.append({**row, "stalls_down": around["stall_ms_mean"] / row["stall_ms_mean"],
                          "with_copy_down": (around["stall_ms_mean"] + around["copy_ms_mean"]) /
                          (row["stall_ms_mean"] + row.get("copy_ms_mean", 0)),
                          "others_slower": row["others_ms_mean"] / around["others_ms_mean"] - 1})
    return mean_of([rows[i] for i in none]), found


def requests_line(given):
    wrong = f"; {float(given['wrong']):.0%} of them with a hint of another session" if given.get("wrong") else ""
    if not given.get("trace"):
        return f"{given['requests']} requests of conversations that were made up{wrong}"
    return (f"{given['requests']} requests of {given['trace']}, from number {given['from']} on, whose blocks of 512 tokens are "
            f"blocks here: what the requests before them had is stored{wrong}")


def prestage_section(head, rows, note):
    """(lines, goals that hold, goals that are missed)."""
    mean, sides = compared(rows)
    given = head["options"]
    name = "prestage trace" if given.get("trace") else "prestage"
    again = "make bench-prestage" + (f" PRESTAGE='--trace {given['trace']} --from {given['from']} --requests "
                                     f"{given['requests']}'" if given.get("trace") else "")
    without = [row["others_ms_mean"] for row in rows if row["lead_s"] is None]
    lines = [f"\n## {name}", "", "As above." if given.get("trace") else PRESTAGE, "", *where_lines(head), "",
             f"{requests_line(given)}; GPU busy for {float(given['load']):.0%} of the time, {given['prefill']} tokens "
             f"a second, blocks of {given['block_tokens']} tokens and {given['block_kib']} KiB, memory for "
             f"{float(given['memory']):.0%} of them. Without hints the mean stall is {mean['stall_ms_mean']:.1f} ms, the "
             f"others' latency {mean['others_ms_mean']:.2f} ms, from {min(without):.2f} to {max(without):.2f} of one side.", "",
             f"Again: `{again}`; raw data: `bench/results/{name.replace(' ', '_')}.jsonl`.", "",
             "| hints before the need | in time | late, dropped | mean stall ms | copy ms | stalls down | with copy | wasted | "
             "others slower | goals |", "|---|---|---|---|---|---|---|---|---|---|"]
    held = missed = 0
    for row in sides:
        found = []
        if row["lead_s"] == GOAL_LEAD:
            for name, key, factor, unit, way, bound in GOALS:
                value = factor * (row[key] or 0)
                is_good = value >= bound if way == ">=" else value <= bound
                text, _ = held_to(name, value, is_good, f"{way} {bound}{unit}", note,
                                  named(name, f"{row['lead_s']:g} s"))
                found.append(text)
                held, missed = held + is_good, missed + (not is_good)
        copies = f"{row['copy_ms_mean']:.1f}" if "copy_ms_mean" in row else "-"
        hints = row.get("hints", {})
        lines.append(f"| {row['lead_s']:g} s | {100 * (row['in_time'] or 0):.1f}% | {hints.get('late', 0)}, "
                     f"{hints.get('dropped', 0)} of {hints.get('taken', 0) - hints.get('joined', 0)} | {row['stall_ms_mean']:.1f} | "
                     f"{copies} | {row['stalls_down']:.1f}x | {row['with_copy_down']:.1f}x | {100 * (row['wasted'] or 0):.1f}% | "
                     f"{100 * row['others_slower']:.1f}% | {'; '.join(found) or '-'} |")
    return lines, held, missed


def tiers_section(head, rows, note):
    """(lines, goals that hold, goals that are missed)."""
    lines = ["\n## tiers", "", TIERS, "", *where_lines(head), "",
             "Again: `test/replay/tiers.py build/cmd/icms [FORMAT:TRACE ...]`, with traces that `test/replay/transcripts.py` makes; raw data: `bench/results/tiers.jsonl`.", "",
             "| trace | memory + drive + pod, % | LRU hits | none | inclusive | exclusive | goals of exclusive |",
             "|---|---|---|---|---|---|---|"]
    held = missed = 0
    for row in rows:
        sizes, lru = "+".join(map(str, row["sizes"])), row["lru"]
        of = named("tiers", row["trace"], f"{sizes} exclusive")
        found = []
        for name, is_good, goal in (("LRU", row["exclusive"] >= LRU_LEAST * lru, f">= {LRU_LEAST}"),
                                    ("none", row["exclusive"] >= NONE_LEAST * row["none"], "at least")):
            text, _ = held_to(name, row["exclusive"], is_good, goal, note, of)
            found.append(text)
            held, missed = held + is_good, missed + (not is_good)
        lines.append(f"| {row['trace']} | {sizes} | {row['lru']:.3f} | {row['none'] / lru:.3f} | "
                     f"{row['inclusive'] / lru:.3f} | {row['exclusive'] / lru:.3f} | {'; '.join(found)} |")
    return lines, held, missed


SECTIONS = {"prestage": prestage_section, "prestage_trace": prestage_section, "tiers": tiers_section}
