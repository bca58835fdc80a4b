# SPDX-License-Identifier: Apache-2.0
"""Rows of a match as tables and verdicts: the section *engines* of doc/benchmarks.md. Pure.

Called by bench/bench.py with the lines of bench/results/engines.jsonl and its notes, which put the
reasons of bench/results/reasons.md beside what is missed. A row there is named as
"engines cold icms-agent TTFT" or "engines no reuse icms-inside CPU".
"""
from peers.stats import median

#: What is measured of a load: name, unit, whether less is better, decimals.
MEASURES = {"TTFT": ("ms", True, 1), "load": ("GB/s", False, 2), "CPU": ("s/GB", True, 2),
            "step": ("ms", True, 2)}
REGIMES = {"cold": "cold: page cache dropped, nothing in any memory",
           "warm": "warm: in what the side keeps in DRAM"}
#: The forms of icms that the goals are about; others are shown.
FORMS = ("icms-agent", "icms-inside")
PEERS = ("fs", "fs-buffered", "lmcache")
CPU_SHARE_MOST = 0.02
STEP_MS_MOST = 1.0


def by_round(rows, **which):
    """{round: row} of those that have these values."""
    return {row["round"]: row for row in rows
            if all(row.get(key) == value for key, value in which.items())}


# ---- reuse ----------------------------------------------------------------------------------------

def reuse_values(rows, side, regime):
    """{measure: {round: value}} of one side in one regime."""
    found = by_round(rows, phase="reuse", side=side, regime=regime)
    return {
        "TTFT": {i: 1e3 * row["ttft_s"] for i, row in found.items()},
        "load": {i: row["bytes"] / 1e9 / row["load_s"] for i, row in found.items()},
        "CPU": {i: row["load_cpu_s"] / (row["bytes"] / 1e9) for i, row in found.items()
                if "load_cpu_s" in row},
        "step": {i: max(*row["scheduling_ms"], row["idle_scheduling_ms"]) for i, row in found.items()},
    }


def middle(values):
    return median(list(values.values()))


def text(values, decimals):
    """The median with its interval."""
    if not values:
        return "-"
    mid, low, high = middle(values)
    return f"{mid:.{decimals}f} ({low:.{decimals}f}-{high:.{decimals}f})"


def best_peer(values, measure):
    """The peer whose median is best."""
    less = MEASURES[measure][1]
    return (min if less else max)((side for side in PEERS if side in values),
                                  key=lambda side: middle(values[side][measure])[0])


def against(values, form, measure):
    """(the best peer, the ratio of form to it round by round, "first", "within noise" or "behind")."""
    peer = best_peer(values, measure)
    ours, theirs = values[form][measure], values[peer][measure]
    ratio = median([ours[i] / theirs[i] for i in ours if theirs.get(i)])
    less = MEASURES[measure][1]
    first = ratio[0] <= 1 if less else ratio[0] >= 1
    maybe = ratio[1] <= 1 if less else ratio[2] >= 1
    return peer, ratio, "first" if first else "behind, within noise" if maybe else "behind"


def reuse_lines(rows, sides, note):
    """Tables of both regimes; and how many goals hold and are missed."""
    lines, held, missed = [], 0, 0
    for regime, what in REGIMES.items():
        values = {side: reuse_values(rows, side, regime) for side in sides
                  if by_round(rows, phase="reuse", side=side, regime=regime)}
        if not any(side in values for side in PEERS):
            continue
        lines += ["", f"**{what[0].upper()}{what[1:]}**", "",
                  "| side | " + " | ".join(f"{name} {unit}" for name, (unit, _, _)
                                           in MEASURES.items()) + " |", "|---|---|---|---|---|"]
        lines += [f"| {side} | " + " | ".join(text(found[name], decimals) for name, (_, _, decimals)
                                              in MEASURES.items()) + " |"
                  for side, found in values.items()]
        lines += ["", "| | " + " | ".join(MEASURES) + " |", "|---|---|---|---|---|"]
        for form in (form for form in FORMS if form in values):
            cells = []
            for measure in MEASURES:
                if not values[form][measure]:
                    cells.append("not measured")
                    continue
                peer, ratio, verdict = against(values, form, measure)
                held, missed = held + (verdict == "first"), missed + (verdict != "first")
                why = "" if verdict == "first" else note(named(regime, form), measure)
                cells.append(f"{ratio[0]:.2f} ({ratio[1]:.2f}-{ratio[2]:.2f}) of {peer}: "
                             f"**{verdict}**{why}")
            lines.append(f"| {form} | " + " | ".join(cells) + " |")
    return lines, held, missed


def named(op, side):
    """A row as bench.row_name takes it."""
    return {"bench": "engines", "op": op, "variant": side, "size_bytes": 0, "depth": 0}


# ---- no reuse -------------------------------------------------------------------------------------

def lengthened(found):
    """The step that a tier lengthens most, in ms: the median over the rounds of what each step spends
    in it, for a single one says more about the machine. Steps without work are one more."""
    rows = list(found.values())
    count = min(len(row["calls_ms"]) for row in rows)
    return max([median([row["calls_ms"][k] for row in rows])[0] for k in range(count)] +
               [median([row["idle_calls_ms"] for row in rows])[0]])


def tier_cpu(row, alone):
    """Seconds that a tier works on the engine's machine: its calls in the scheduler's thread, the
    engine's other threads as far as vLLM alone does not have them, daemons but the enclosure."""
    engine = row["engine_own_s"] + row["engine_others_s"]
    return (row["engine_calls_s"] + max(0.0, row["engine_others_s"] - alone["engine_others_s"]) +
            max(0.0, row["cpu_s"] - row["far_cpu_s"] - engine))


def no_reuse_values(rows, side):
    """What a side costs where nothing is ever found, beside vLLM alone."""
    found = by_round(rows, phase="no reuse", side=side)
    alone = by_round(rows, phase="no reuse", side="none")
    return {
        "tier": median([tier_cpu(row, alone[i]) / alone[i]["cpu_s"] for i, row in found.items()]),
        "far": median([row["far_cpu_s"] / alone[i]["cpu_s"] for i, row in found.items()]),
        "all": median([row["cpu_s"] / alone[i]["cpu_s"] - 1 for i, row in found.items()]),
        "ttft_ms": median([1e3 * (row["ttft_s"] - alone[i]["ttft_s"])
                           for i, row in found.items()]),
        "step_ms": lengthened(found),
        "scheduling_ms": median([max(row["scheduling_ms"]) - max(alone[i]["scheduling_ms"])
                                 for i, row in found.items()])[0],
    }


def no_reuse_lines(rows, sides, note):
    present = [side for side in sides if by_round(rows, phase="no reuse", side=side)]
    if "none" not in present:
        return [], 0, 0
    lines = ["", "**Without reuse: shares of the processor time of vLLM alone, lengthening of steps**",
             "", "| side | the tier on the server | at the enclosure | all processes, less vLLM alone | "
             "most of a step spent in the tier ms | longest `schedule()` less vLLM alone's ms | "
             "TTFT less vLLM alone's ms | goals |", "|---|---|---|---|---|---|---|---|"]
    held = missed = 0
    for side in present:
        if side == "none":
            continue
        values = no_reuse_values(rows, side)
        goals = []
        for what, value, most in (("CPU", values["tier"][0], CPU_SHARE_MOST),
                                  ("step", values["step_ms"], STEP_MS_MOST)) if side in FORMS else ():
            good = value <= most
            held, missed = held + good, missed + (not good)
            shown = f"CPU <= {most:.0%}" if what == "CPU" else f"step <= {most:.0f} ms"
            goals.append(f"{shown}: **{'holds' if good else 'misses'}**"
                         f"{'' if good else note(named('no reuse', side), what)}")
        share = [f"{100 * mid:.2f} % ({100 * low:.2f}-{100 * high:.2f})" for mid, low, high in
                 (values["tier"], values["far"])]
        mid, low, high = (100 * one for one in values["all"])
        lines.append(f"| {side} | {share[0]} | {share[1]} | {mid:+.1f} % ({low:+.1f} to {high:+.1f}) | "
                     f"{values['step_ms']:.2f} | {values['scheduling_ms']:+.2f} | "
                     f"{values['ttft_ms'][0]:+.0f} | {'; '.join(goals) or '-'} |")
    return lines, held, missed


# ---- the section -----------------------------------------------------------------------------------

METHOD = """Real vLLM engines on the CPU, in float32 and one environment, that differ by `--kv-transfer-config`
alone; sides take turns, prompt by prompt, and every answer is that of vLLM alone. `bench/engines/README.md` says
what is asserted of each load and how each number is defined. *TTFT*: time to the first token. *load*: bytes of
blocks over the time from the scheduler's first question to the connector until the model begins to compute.
*CPU*: engine and all daemons of a side, the enclosure's too, until then, for a GB of blocks. *step*:
`schedule()` and `update_from_output()` of the longest step. Medians with their 95 % interval, which is the whole
range with fewer than six rounds; ratios are of neighbours in time, icms over the best peer. On one machine
everything between agent and enclosure, loopback and both ends of TCP, is in the account of icms' sides, and
nothing of the kind in that of others."""


def where_lines(head):
    machine = head["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
    return [f"Measured {head['measured']} at {head['commit']}, {head['rounds']} rounds, {versions}; a "
            f"prompt has {head['tokens']} tokens and {head['bytes'] / 1e6:.0f} MB of blocks of "
            f"{head['block_bytes'] / (1 << 20):.1f} MiB. Load of the machine {head['load_before']:.1f} "
            f"before, {head['load_after']:.1f} after; others used {head['others']:.0%} of its "
            "processors meanwhile.", "",
            f"Machine: {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
            f"{', virtual' if machine['virtual'] else ''}, Linux {machine['kernel']}, files on "
            f"{machine['drive']}."]


def section(matches, note):
    """matches: {"reuse": (head, rows), "no-reuse": ...}. Returns (lines, goals that hold, goals that
    are missed)."""
    lines, held, missed, titles = [], 0, 0, {}
    for name, lines_of in (("reuse", reuse_lines), ("no-reuse", no_reuse_lines)):
        if name not in matches:
            continue
        head, rows = matches[name]
        titles |= head["sides"]
        found, good, bad = lines_of(rows, head["sides"], note)
        lines += ["", f"### engines, {name}", "", *where_lines(head), "",
                  f"Again: `make bench-engines MATCHES={name}`; raw data: "
                  f"`bench/results/engines-{name}.jsonl`.", *found]
        held, missed = held + good, missed + bad
    if not lines:
        return [], 0, 0
    return (["\n## engines", "", METHOD, "", "Sides:", "",
             *(f"- **{name}**: {title}" for name, title in titles.items()), *lines], held, missed)
