#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Load or compute, on paths of several bandwidths to a real pod: `make bench-choice`.

The engine is a model: it computes tokens at a rate, and loads by the threads of the adapters for vLLM
(icms.vllm.movers). With --llama it is llama.cpp with a real model and the prefix cache of examples/llama
(choice_llama.py), with --vllm it is vLLM with IcmsTier (choice_vllm.py). All else is real: prefixes are
stored in an enclosure through one agent, and loaded through others whose paths to the enclosure a proxy throttles. On each path prompts are served in turns in three ways: all
of the prefix is loaded, all of it is computed, and what the adapter chooses (icms.vllm.choice, prefix_cache.c).
With --inside agents are in the engine's process (`pod:`), where values come into the engine's memory.
What is always loaded has an agent of its own: that of the choice learns nothing from it. Every prompt has a prefix
of its own, which no agent has in its memory.

The first path is a slow one: on it the memory of all processes, and their connections, are used for the first time. A
path begins without a warning, as when a link degrades or is repaired. Its first --learn prompts are
served by the choice, and are shown by themselves, beside how much longer than its median the faster way itself
takes at most; where loads are not throttled, each is followed by a prompt that loads all, because a time of
milliseconds is another when the machine is. --rounds of each way follow. Rows: time to first
token of each way, and that of the choice as a part of the faster of the two others, medians of rounds; what was loaded
of a prefix; how far the time of these loads was from what was expected, nine of ten of them, but for llama.cpp and
vLLM, which do not tell, and of loads from their own median; and the same as the agent sees it (`icms status`).

Bars: on paths of 1 MB/s, 10 MB/s and at full bandwidth the choice takes at most 1.1 times as long as the
faster of the two others, as a median, and so do nine of ten prompts each way. Each of the first prompts takes at most 1.1 times as long as the slowest
by the faster way, and 1.5 times where loads are not throttled, of which one may take twice as long as the next. Nine of ten prefixes take what was
said within 30 %. Exit status 1 if one is missed.

       bench_choice.py --check: whether rows are judged by these bars, and options; nothing is measured
"""
import argparse
import contextlib
import io
import json
import logging
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import bench  # noqa: E402
import choice_llama  # noqa: E402
import choice_report  # noqa: E402
import choice_vllm  # noqa: E402
import icms_wheel  # noqa: E402
import pod  # noqa: E402
import proxy  # noqa: E402
from engines import forked  # noqa: E402

WAYS = ("load", "compute", "choice")
LIMIT_S = 60.0  # deadline of loads
PATH_LEAST = 50  # bytes a second: the proxy sends 50 pieces a second
MODEL = {"block_kib": 128, "prefill": 2000}  # defaults for the model of an engine: real ones have their own
#: Real engines, by option: their modules.
ENGINES = {"llama": choice_llama, "vllm": choice_vllm}
#: Their defaults: eleven and eighteen minutes on two cores.
DEFAULTS = {
    "llama": {"paths": "0,1000000,10000000,0,10000000", "rounds": 15, "full_rounds": 40, "learn": 4, "block_tokens": 8},
    "vllm": {"paths": "0,10000000,0,1000000,0", "rounds": 3, "full_rounds": 12, "learn": 4, "blocks": 16,
             "block_tokens": choice_vllm.BLOCK_TOKENS},
}


def count_in(word):
    if not word.isdecimal() or int(word) == 0:
        raise argparse.ArgumentTypeError(f"{word} is no number of 1 or more")
    return int(word)


def paths_in(word):
    paths = [int(path) if path.isdecimal() else -1 for path in word.split(",")]
    if any(path != 0 and path < PATH_LEAST for path in paths):
        raise argparse.ArgumentTypeError(f"{word}: give bytes a second, at least {PATH_LEAST}, or 0, with commas between")
    return paths


def defaults_of(engine):
    return "defaults are then " + ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in DEFAULTS[engine].items())


def options(words):
    """What was asked for. Ends the program where that makes no sense."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    real = parser.add_mutually_exclusive_group()
    real.add_argument("--llama", action="store_true",
                      help="llama.cpp as the engine, which demo/build.sh builds into --build; " + defaults_of("llama"))
    real.add_argument("--vllm", action="store_true",
                      help="vLLM as the engine, which test/engines/vllm/install.sh installs into --build; "
                           + defaults_of("vllm"))
    parser.add_argument("--inside", action="store_true", help="agents are in the engine's process: without --llama and --vllm")
    parser.add_argument("--paths", type=paths_in, default="10000000,0,1000000,10000000,0,10000000,1000000,0",
                        help="bytes a second of the path to the enclosure, one after the other; 0: not throttled "
                             "(%(default)s)")
    parser.add_argument("--rounds", type=count_in, default=4, help="prompts of each way on a throttled path (%(default)s)")
    parser.add_argument("--full-rounds", type=count_in, default=120, help="on the others (%(default)s)")
    parser.add_argument("--learn", type=count_in, default=6, help="prompts before them (%(default)s)")
    parser.add_argument("--blocks", type=count_in, default=32, help="of a prefix (%(default)s)")
    parser.add_argument("--block-tokens", type=count_in, default=64)
    parser.add_argument("--block-kib", type=count_in, help=f"of KV: without --llama and --vllm ({MODEL['block_kib']})")
    parser.add_argument("--prefill", type=float, help=f"tokens a second: without --llama and --vllm ({MODEL['prefill']})")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("/var/tmp"), help="for drive files")
    parser.add_argument("--name", choices=sorted(choice_report.WHAT),
                        help="whose rows in --results are replaced, and with them a section of doc/benchmarks.md; default: none")
    parser.add_argument("--results", type=pathlib.Path, default=bench.RESULTS, help="folder for the rows")
    parser.add_argument("--said", default="", help="a sentence about the conditions, for the document")
    known = parser.parse_known_args(words)[0]
    given_engine = next((name for name in ENGINES if getattr(known, name)), None)
    parser.set_defaults(engine=given_engine, **DEFAULTS.get(given_engine, {}))
    given = parser.parse_args(words)
    if given.engine:
        wrong = f"--inside is for the model of an engine: leave it out, or --{given.engine}" if given.inside else \
            ENGINES[given.engine].wrong(given)
        for name in MODEL:
            if getattr(given, name) is not None:
                wrong = f"--{name.replace('_', '-')} is for the model of an engine: leave it out, or --{given.engine}"
        if wrong:
            parser.error(wrong)
        given.block_bytes = ENGINES[given.engine].block_bytes(given.block_tokens)
    else:
        for name, value in MODEL.items():
            setattr(given, name, value if getattr(given, name) is None else getattr(given, name))
        given.block_bytes = given.block_kib << 10
    return given


class Model:
    """The model of an engine: serves one prompt at a time."""

    def __init__(self, given, stores, loads, choices):
        import icms  # of the wheel
        from icms.vllm.choice import Prefill
        from icms.vllm.movers import Counts, Movers

        self.given = given
        self.clients = [icms.Client(f"pod:{agent.config_path}" if given.inside else f"unix:{agent.socket}")
                        for agent in (stores, loads, choices)]
        self.store_volume, *volumes = [client.volume("kv") for client in self.clients]
        self.volumes = dict(zip(("load", "choice"), volumes))
        self.value = os.urandom(given.block_bytes)
        self.prefill = Prefill()
        self.movers = Movers(2, Counts(), logging)
        self.errors = []  # of prefixes that were loaded whole: of what was expected
        self.rooms = [bytearray(given.block_bytes) for _ in range(given.blocks)]
        self.compute(given.blocks)  # what an engine has done before it has a prefix
        self.use_memory()

    def close(self):
        self.movers.close()
        for client in self.clients:
            client.close()

    def stored(self):
        """All prompts were."""

    def use_memory(self):
        """Memory of agents and of the engine is not new when the first prompt comes. It teaches nothing of paths."""
        for way, volume in self.volumes.items():
            for i in range(2):
                names = self.names(f"memory {i} {way}")
                assert volume.put(names, [self.value] * len(names), deadline_ms=60000).ok
                assert volume.get(names, self.rooms, deadline_ms=60000).ok

    def names(self, prompt):
        return [f"{prompt} block {i}" for i in range(self.given.blocks)]

    def store(self, prompt):
        names = self.names(prompt)
        assert self.store_volume.put(names, [self.value] * len(names), on_flash=True, deadline_ms=60000).ok

    def compute(self, blocks):
        tokens = blocks * self.given.block_tokens
        self.prefill.step_begun([tokens])
        time.sleep(tokens / self.given.prefill)
        self.prefill.step_ended()

    @staticmethod
    def wait(begin):
        """What the function gives to the last of its arguments, on a thread of Movers."""
        done, answers = threading.Event(), []
        begin(lambda answer: (answers.append(answer), done.set()))
        done.wait()
        return answers[0]

    def serve(self, prompt, way):
        """Seconds until all of the prefix is there, and how many of its blocks were loaded."""
        names = self.names(prompt)
        begin, ready = time.monotonic(), 0
        if way != "compute":
            ready = self.load(self.volumes[way], names, way == "choice")
        if ready < len(names):
            self.compute(len(names) - ready)
        return time.monotonic() - begin, ready

    def load(self, volume, names, compares):
        """As the adapters do: how many blocks were loaded. compares: what their option load says."""
        from icms.vllm.choice import Choice

        if compares:
            choice = self.wait(lambda done: self.movers.match(
                volume, names, 1, self.given.block_tokens, self.prefill, LIMIT_S, LIMIT_S, lambda made, _: done(made)))
        else:
            there = self.wait(lambda done: self.movers.exists(volume, names, time.monotonic() + LIMIT_S, done))
            choice = Choice(leading(there))
        if choice.load == 0:
            return 0
        start, loaded = time.monotonic(), choice.load
        good = self.wait(lambda done: self.movers.load(volume, names[:loaded], self.rooms[:loaded],
                                                       choice.phases(loaded, 1, LIMIT_S), done))
        if choice.computing is not None and choice.seconds > 0 and all(good):
            self.errors.append(abs(time.monotonic() - start - choice.seconds) / choice.seconds)
        return leading(good)


def leading(answers):
    return next((i for i, answer in enumerate(answers) if not answer), len(answers))


def rounds_of(bytes_per_s, given):
    return given.rounds if bytes_per_s else given.full_rounds


def learn_ways(bytes_per_s):
    """In which each of the first prompts of a path is served, one after the other."""
    return ("choice",) if bytes_per_s else ("choice", "load")


def prompts_of(path, way, count):
    return [f"path {path} prompt {i} {way}" for i in range(count)]


def store(engine, paths, given):
    """All that will be asked for."""
    for path, bytes_per_s in enumerate(paths):
        rounds = rounds_of(bytes_per_s, given)
        learns = [(f"learn {way}", given.learn) for way in learn_ways(bytes_per_s)]
        for way, count in (*learns, ("load", rounds), ("choice", rounds)):
            for prompt in prompts_of(path, way, count):
                engine.store(prompt)
    engine.stored()


def one_path(engine, agent, link, bytes_per_s, number, given):
    link.limit(bytes_per_s)
    rounds = rounds_of(bytes_per_s, given)
    learns = {way: [] for way in WAYS}
    for i in range(given.learn):
        for way in learn_ways(bytes_per_s):
            learns[way].append(engine.serve(prompts_of(number, f"learn {way}", given.learn)[i], way))
    first = learns["choice"]
    rows = {way: [] for way in WAYS}
    engine.errors = []
    for i in range(rounds):
        for way in WAYS if i % 2 == 0 else WAYS[::-1]:
            if way == "compute" and i >= given.rounds:
                continue  # it takes the same on all paths
            rows[way].append(engine.serve(prompts_of(number, way, rounds)[i], way))
    means = {way: statistics.median(seconds for seconds, _ in rows[way]) for way in WAYS}
    best = min(means["load"], means["compute"])
    faster = "load" if means["load"] == best else "compute"
    slowest = max(seconds for seconds, _ in learns[faster] + rows[faster])
    errors = engine.errors
    return {"bytes_per_s": bytes_per_s, "estimate": None if given.inside else estimate_of(agent),
            **{f"{way}_s": means[way] for way in WAYS}, "choice_of_best": statistics.median(
                choice[0] / other[0] for choice, other in zip(rows["choice"], rows[faster])),
            "choice_p90_of_best_p90": nine_of_ten(seconds for seconds, _ in rows["choice"]) / nine_of_ten(
                seconds for seconds, _ in rows[faster]),
            "loaded": [ready for _, ready in rows["choice"]],
            "prefixes": len(errors), "prefix_error_p90": nine_of_ten(errors),
            "load_spread_p90": nine_of_ten([abs(seconds - means["load"]) / means["load"] for seconds, _ in rows["load"]]),
            "slowest_of_best": slowest / best,
            "first_of_best": [seconds / best for seconds, _ in first],
            "first_loads_of_best": [seconds / best for seconds, _ in learns["load"]],
            "first_too_late": sum(choice_report.is_too_late(seconds, slowest, bytes_per_s) for seconds, _ in first),
            "first_loaded": [ready for _, ready in first]}


def nine_of_ten(numbers):
    """That which nine of ten do not exceed; None: there are none."""
    ordered = sorted(numbers)
    return ordered[(len(ordered) * 9 - 1) // 10] if ordered else None


def estimate_of(agent):
    return json.loads(agent.get("/status")[1])["enclosures"][0]["estimate"]


def engine_of(given, folder, agents):
    if given.llama:
        return choice_llama.Llama(given, *agents)
    if given.vllm:
        slowest = min((path for path in given.paths if path), default=0)
        prefix = given.blocks * given.block_bytes
        return choice_vllm.Vllm(given, folder, agents, max(LIMIT_S, 2 * prefix / slowest if slowest else 0))
    return Model(given, *agents)


def run(given):
    paths = given.paths
    prefix = given.blocks * given.block_bytes
    prompts = sum(2 * rounds_of(path, given) + len(learn_ways(path)) * given.learn for path in paths)
    segment = max(16, 1 << (8 * given.block_bytes >> 20).bit_length() - 1)  # MiB
    drive = max(256, 16 * segment, 2 * prompts * prefix >> 20)
    memory = max(32, 2 * prefix >> 20)  # Model.use_memory fills it
    volume = {"name": "kv", "value_max": f"{(given.block_bytes >> 20) + 1}MiB", "memory_max": f"{memory}MiB"}
    print(f"prefixes of {prefix / 1e6:.1f} MB, {given.blocks * given.block_tokens} tokens", flush=True)
    with (tempfile.TemporaryDirectory(prefix="icms-", dir=given.dir) as name, pod.Pod(given.build, name) as p,
          contextlib.ExitStack() as stack):
        target = p.add_target("enclosure0", 1, f"{drive}MiB", [volume], segment=f"{segment}MiB", memory=f"{4 * segment}MiB")
        target.wait_ready()
        link = stack.enter_context(contextlib.closing(proxy.ProxyProcess(target.port)))
        door = types.SimpleNamespace(name=target.name, nqn=target.nqn, port=link.port)
        agents = [p.make_agent("stores", [target], [volume]),
                  *(p.make_agent(agent, [door], [volume], silence="5s") for agent in ("loads", "choices"))]
        for agent in () if given.inside else agents:
            agent.start()
            agent.wait_ready()
        with contextlib.closing(engine_of(given, name, agents)) as engine:
            store(engine, paths, given)
            rows = []
            for number, path in enumerate(paths):
                rows.append(one_path(engine, agents[2], link, path, number, given))
                show(rows[-1])
            evicted = sum(value for name, value in target.metrics().items() if name.startswith("icms_target_evictions_total"))
            if evicted:  # what was not there was not chosen
                raise pod.PodError(f"the enclosure evicted {evicted:.0f} blocks: its drive of {drive} MiB is too small")
    return rows


def show(row):
    print(f"{choice_report.path_of(row):>8} load {row['load_s']:7.3f} s, compute {row['compute_s']:7.3f} s, choice "
          f"{row['choice_s']:7.3f} s: {row['choice_of_best']:5.2f} of the faster, nine of ten "
          f"{row['choice_p90_of_best_p90']:5.2f}; loaded {sorted(set(row['loaded']))}")
    first = ", ".join(f"{ratio:.2f} ({ready})" for ratio, ready in zip(row["first_of_best"], row["first_loaded"]))
    loads = choice_report.ratios(row["first_loads_of_best"])
    print(f"{'':8} before that, of the faster: {first};{f' loads beside them {loads};' if loads else ''} "
          f"the faster itself up to {row['slowest_of_best']:.2f}")
    estimate = row["estimate"]
    if row["prefixes"]:
        print(f"{'':8} of {row['prefixes']} prefixes nine of ten within {100 * row['prefix_error_p90']:.0f} % of what was "
              f"expected; without any estimate {100 * row['load_spread_p90']:.0f} % around their own median")
    if estimate:
        print(f"{'':8} expects {estimate['bytes_per_second'] / 1e6:.2f} MB/s; nine of ten of the last loads within "
              f"{100 * estimate['error']:.0f} %", flush=True)


def check():
    """A row at its bars passes, and one beyond one of them does not; no option is taken that has no effect."""
    well = {"bytes_per_s": 0, "choice_of_best": 1.1, "choice_p90_of_best_p90": 1.1, "first_too_late": 0, "prefixes": 3, "prefix_error_p90": 0.3}
    for change, fails in (({}, False), ({"choice_of_best": 1.11}, True), ({"choice_p90_of_best_p90": 1.11}, True), ({"first_too_late": 1}, True),
                          ({"prefix_error_p90": 0.31}, True), ({"prefixes": 0, "prefix_error_p90": None}, False)):
        if bool(choice_report.missed([well, {**well, **change}])) != fails:
            sys.exit(f"{change} is not judged by its bar")
    for seconds, bytes_per_s, late in ((1.09, 1, False), (1.11, 1, True), (1.49, 0, False), (1.51, 0, True)):
        if choice_report.is_too_late(seconds, 1.0, bytes_per_s) != late:
            sys.exit(f"a first prompt of {seconds} s beside 1 s is not judged by its bar")
    for words, good in ((["--llama"], True), (["--llama", "--block-tokens", "7"], False),
                        (["--llama", "--blocks", "992"], False), (["--llama", "--blocks", "991"], True),
                        (["--llama", "--inside"], False), (["--inside"], True), (["--llama", "--prefill", "9"], False),
                        (["--llama", "--block-kib", "9"], False), (["--vllm"], True), (["--vllm", "--llama"], False),
                        (["--vllm", "--blocks", "17"], False), (["--vllm", "--block-tokens", "64"], False),
                        (["--vllm", "--inside"], False), (["--vllm", "--prefill", "9"], False),
                        (["--prefill", "9", "--block-kib", "9"], True), (["--rounds", "0"], False),
                        (["--paths", "0,49"], False), (["--paths", "0,,1000"], False), (["--paths", "50"], True)):
        taken = False
        with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            taken = options(words) is not None
        if taken != good:
            sys.exit(f"{' '.join(words)} is {'taken' if taken else 'refused'}")


def main():
    if sys.argv[1:] == ["--check"]:
        check()
        return
    given = options(sys.argv[1:])
    given.build = given.build.resolve()
    if given.llama:
        given.llama_model = choice_llama.build(given.build)
    elif "ICMS_BENCH_SITE" not in os.environ:
        python = icms_wheel.interpreter()
        given.site = icms_wheel.make(python, given.build, given.build / "bench-choice-wheel")
        if not given.vllm:
            os.execve(python, [python, *sys.argv], {**os.environ, "PYTHONPATH": str(given.site), "ICMS_BENCH_SITE": str(given.site)})
        given.vllm_model = choice_vllm.install(given.build)
    head = {
        **bench.conditions(given.dir), "said": given.said,
        "options": {name: getattr(given, name) for name in ("blocks", "block_bytes", "rounds", "full_rounds", "learn")},
    }
    try:
        rows = run(given)
    except (pod.PodError, forked.Failed) as error:
        sys.exit(f"bench_choice.py: {error}")
    worst = max(row["choice_of_best"] for row in rows)
    print(f"at most {worst:.2f} times as long as the faster of loading and computing")
    if given.name:
        head["load_after"] = os.getloadavg()[0]
        lines = [json.dumps(line) for line in (head, *rows)]
        (given.results / f"{given.name}.jsonl").write_text("\n".join(lines) + "\n")
        bench.report()
    sys.exit("\n".join(choice_report.missed(rows)) or 0)


if __name__ == "__main__":
    main()
