# SPDX-License-Identifier: Apache-2.0
"""Load or compute as tables and verdicts: the sections *choice* of doc/benchmarks.md. Pure.

Called by bench/bench_choice.py, and by bench/bench.py with the lines of bench/results/choice*.jsonl and its notes, which put
the reasons of bench/results/reasons.md beside what is missed. A row there is named as "choice full path 1 median".
"""
from tiers_report import named, where_lines

CHOICE_MOST, ERROR_MOST = 1.1, 0.3
FULL_MOST = 1.5  # of a first prompt where loads are not throttled, beside the slowest of some twenty loads

TEXT = """Load or compute, on paths of several bandwidths to a real pod of one enclosure. The engine is a model that takes 1.02 s to compute a
prefix of 32 blocks, and loads by the threads of the adapters for vLLM; a proxy throttles the path. A path begins without a warning, as when a
link degrades or is repaired: its first prompts are served by the choice and shown by themselves. What is always loaded has an agent of its own,
from which that of the choice learns nothing, and where loads are not throttled one follows each first prompt: a time of milliseconds
is another when the machine is. *of the faster*: median of what the choice took as a
part of what the faster way took in the same round. *tail*: what nine of ten prompts take at most by the choice, as a part of
that by the faster way. *off*: how far nine of ten prefixes were from what was said of them before; *own*: how far
nine of ten of the loads by the first way were from their median; *exported*: the error that the agent tells at the end of the row
(`icms status`), which is of its last groups of loads. Bars:
median and tail are at most 1.1 of the faster way, a first prompt at most 1.1 of the slowest by the faster way, off at most 30 %. Where
loads are not throttled the bar of a first prompt is 1.5 of the slowest: a single one of milliseconds takes up to 1.8 of their median, whoever asks
for it."""

#: Of each section, by the stem of its results: title, what it says first, and how it is made again.
WHAT = {
    "choice": ("choice", TEXT, "make bench-choice"),
    "choice_large": ("choice, prefixes of 67 MB", "As above.", "make bench-choice"),
    "choice_inside": ("choice, agents inside", "As above, with agents in the engine's process (`pod:`).", "make bench-choice"),
    "choice_inside_large": ("choice, agents inside, prefixes of 67 MB", "As above.", "make bench-choice"),
    "choice_llama": ("choice, llama.cpp", "As above, by llama.cpp and `examples/llama` with SmolLM2-135M, which computes 256 "
                     "tokens in 32 blocks. Times are those to the first token of the answer, whose logit has to be that of the prompt "
                     "computed. It does not tell what it expected.", "make bench-choice LLAMA=1"),
    "choice_vllm": ("choice, vLLM", "As above, by vLLM on the processor with a model of eight layers in float32, 32 KiB of KV a token and random weights, and IcmsTier: "
                    "`load: always`, no tier at all, and `load: faster`. Times are those to the first token, which has to be that of the prompt "
                    "computed. It does not tell what it expected.", "make bench-choice VLLM=1"),
}


def is_too_late(seconds, slowest, bytes_per_s):
    """One of the first prompts of a path, where the faster way takes slowest at most."""
    return seconds > slowest * (CHOICE_MOST if bytes_per_s else FULL_MOST)


def path_of(row):
    return f"{row['bytes_per_s'] / 1e6:g} MB/s" if row["bytes_per_s"] else "full"


def bars(row):
    """[(name, whether it holds, what is missed)] of a row."""
    found = [("median", row["choice_of_best"] <= CHOICE_MOST,
              f"the choice takes {row['choice_of_best']:.2f} of the faster way, at most {CHOICE_MOST}"),
             ("first", row["first_too_late"] == 0, f"{row['first_too_late']} of the first prompts too late")]
    tail = row.get("choice_p90_of_best_p90")  # rows of before do not have it
    if tail is not None:
        found.insert(1, ("tail", tail <= CHOICE_MOST,
                         f"nine of ten take {tail:.2f} of nine of ten by the faster way, at most {CHOICE_MOST}"))
    if row["prefixes"]:
        found.append(("off", row["prefix_error_p90"] <= ERROR_MOST,
                      f"prefixes take what was said within {100 * row['prefix_error_p90']:.0f} %, "
                      f"at most {100 * ERROR_MOST:.0f}"))
    return found


def missed(rows):
    """A line for each bar that is missed."""
    return [f"path {number}, {path_of(row)}: {text}" for number, row in enumerate(rows)
            for _, holds, text in bars(row) if not holds]


def ratios(numbers):
    return ", ".join(f"{number:.2f}" for number in numbers)


def section_of(stem):
    title, text, again = WHAT[stem]

    def section(head, rows, note):
        """(lines, goals that hold, goals that are missed)."""
        given = head["options"]
        lines = [f"\n## {title}", "", text, "", *where_lines(head), "",
                 f"Prefixes of {given['blocks'] * given['block_bytes'] / 1e6:.1f} MB; {given['rounds']} prompts of each way on throttled "
                 f"paths and {given['full_rounds']} on the others, after {given['learn']} first ones.", "",
                 f"Again: `{again}`; raw data: `bench/results/{stem}.jsonl`.", "",
                 "| path | all loaded | all computed | choice | of the faster | tail | blocks loaded | first prompts, of the faster | loads "
                 "beside them | the faster itself, at most | off | own | exported | goals |",
                 "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
        held = missing = 0
        for number, row in enumerate(rows):
            found = [(name, holds, "" if holds else note(named(stem, f"{path_of(row)} path {number}"), name))
                     for name, holds, _ in bars(row)]
            held += sum(holds for _, holds, _ in found)
            missing += sum(not holds for _, holds, _ in found)
            goals = "; ".join(f"{name}: **{'holds' if holds else 'misses'}**{why}" for name, holds, why in found)
            blocks = "-".join(str(end) for end in sorted({min(row["loaded"] + row["first_loaded"]),
                                                         max(row["loaded"] + row["first_loaded"])}))
            off = f"{100 * row['prefix_error_p90']:.0f} %" if row["prefixes"] else "-"
            tail = f"{row['choice_p90_of_best_p90']:.2f}" if "choice_p90_of_best_p90" in row else "-"
            exported = f"{100 * row['estimate']['error']:.0f} %" if row["estimate"] else "-"
            own = f"{100 * row['load_spread_p90']:.0f} %"
            lines.append(f"| {path_of(row)} | {row['load_s']:.3f} s | {row['compute_s']:.3f} s | {row['choice_s']:.3f} s | "
                         f"{row['choice_of_best']:.2f} | {tail} | {blocks} | {ratios(row['first_of_best'])} | "
                         f"{ratios(row['first_loads_of_best']) or '-'} | {row['slowest_of_best']:.2f} | {off} | {own} | "
                         f"{exported} | {goals} |")
        return lines, held, missing

    return section


SECTIONS = {stem: section_of(stem) for stem in WHAT}
