#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Load or compute, on paths of several bandwidths to a real pod: `make bench-choice`.

The engine is a model: it computes tokens at a rate. All else is real: prefixes are stored in an
enclosure through one agent, and loaded through another whose path to the enclosure a proxy throttles, by
the threads of the adapters for vLLM (icms.vllm.movers). On each path prompts are served in turns in three
ways: all of the prefix is loaded, all of it is computed, and what the adapters do by icms.vllm.choice.
Every prompt has a prefix of its own, which the agent does not have in its memory.

A path begins without a warning, as when a link degrades or is repaired. Its first --learn prompts are
served by the choice alone, which has to find out by itself, and are shown by themselves; --rounds of
each way follow. Rows: time to first token of each way, and that of the choice as a part of
the faster of the two others, medians; what was loaded of a prefix; how far the time of these loads was
from what was expected, nine of ten of them; and the same of single blocks, as the agent sees them
(`icms status`).

Bars: on paths of 1 MB/s, 10 MB/s and at full bandwidth the choice takes at most 1.1 times as long as the
faster of the two others, as a median, and in each of the first prompts, where the faster one takes more than 0.1 s;
else each of the first prompts takes at most 5 ms longer than that. Nine of ten prefixes take what was said within
30 %. Exit status 1 if one is missed.
"""
import argparse
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
import icms_wheel  # noqa: E402
import pod  # noqa: E402
import proxy  # noqa: E402

WAYS = ("load", "compute", "choice")
LIMIT_S = 60.0  # deadline of loads
CHOICE_MOST, ERROR_MOST = 1.1, 0.3
SHORT_S, SHORT_MOST_S = 0.1, 0.005  # where the faster way takes less, the first prompts may take so much longer


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--paths", default="0,1000000,10000000,0,1000000",
                        help="bytes a second of the path to the enclosure, one after the other; 0: not throttled "
                             "(%(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="prompts of each way on a throttled path (%(default)s)")
    parser.add_argument("--full-rounds", type=int, default=20, help="on the others (%(default)s)")
    parser.add_argument("--learn", type=int, default=6, help="prompts before them (%(default)s)")
    parser.add_argument("--blocks", type=int, default=32, help="of a prefix (%(default)s)")
    parser.add_argument("--block-kib", type=int, default=128, help="of KV (%(default)s)")
    parser.add_argument("--block-tokens", type=int, default=64)
    parser.add_argument("--prefill", type=float, default=2000, help="tokens a second (%(default)s)")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("/var/tmp"), help="for drive files")
    parser.add_argument("--json", type=pathlib.Path, help="where the rows go, too")
    return parser.parse_args()


class Engine:
    """The model: serves one prompt at a time."""

    def __init__(self, volume, prefill, given):
        from icms.vllm.movers import Counts, Movers

        self.volume, self.prefill, self.given = volume, prefill, given
        self.movers = Movers(2, Counts(), logging)
        self.errors = []  # of prefixes that were loaded whole: of what was expected
        self.rooms = [bytearray(given.block_kib << 10) for _ in range(given.blocks)]

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

    def serve(self, names, way):
        """Seconds until all of the prefix is there, and how many of its blocks were loaded."""
        begin, ready = time.monotonic(), 0
        if way != "compute":
            ready = self.load(names, way == "choice")
        if ready < len(names):
            self.compute(len(names) - ready)
        return time.monotonic() - begin, ready

    def load(self, names, compares):
        """As the adapters do: how many blocks were loaded. compares: what their option load says."""
        from icms.vllm.choice import Choice, Prefill, patience

        prefill, tokens = self.prefill if compares else Prefill(), self.given.block_tokens
        until = time.monotonic() + patience(len(names) * tokens, prefill, LIMIT_S)
        there = self.wait(lambda done: self.movers.exists(self.volume, names, until, done))
        there = names[:leading(there)]
        choice = Choice(len(there))
        if there and compares:
            choice = self.wait(lambda done: self.movers.choose(self.volume, there, 1, tokens, prefill, LIMIT_S, done))
        if choice.load == 0:
            return 0
        start, loaded = time.monotonic(), choice.load
        good = self.wait(lambda done: self.movers.load(self.volume, there[:loaded], self.rooms[:loaded],
                                                       choice.phases(loaded, 1, LIMIT_S), done))
        if choice.computing is not None and choice.seconds > 0 and all(good):
            self.errors.append(abs(time.monotonic() - start - choice.seconds) / choice.seconds)
        return leading(good)


def leading(answers):
    return next((i for i, answer in enumerate(answers) if not answer), len(answers))


def one_path(engine, agent, link, bytes_per_s, number, given):
    link.bytes_per_s = bytes_per_s
    rounds = given.rounds if bytes_per_s else given.full_rounds
    first = [engine.serve(names_of(number, i, "learn", given), "choice") for i in range(given.learn)]
    rows = {way: [] for way in WAYS}
    engine.errors = []
    for i in range(rounds):
        for way in WAYS if i % 2 == 0 else WAYS[::-1]:
            if way == "compute" and i >= given.rounds:
                continue  # it takes the same on all paths
            rows[way].append(engine.serve(names_of(number, i, way, given), way))
    means = {way: statistics.median(seconds for seconds, _ in rows[way]) for way in WAYS}
    best = min(means["load"], means["compute"])
    errors = engine.errors
    return {"bytes_per_s": bytes_per_s, "estimate": estimate_of(agent),
            **{f"{way}_s": means[way] for way in WAYS}, "choice_of_best": means["choice"] / best,
            "loaded": [ready for _, ready in rows["choice"]],
            "prefixes": len(errors), "prefix_error_p90": nine_of_ten(errors),
            "load_spread_p90": nine_of_ten([abs(seconds - means["load"]) / means["load"] for seconds, _ in rows["load"]]),
            "first_of_best": [seconds / best for seconds, _ in first],
            "first_too_late": sum(seconds > best * CHOICE_MOST + (SHORT_MOST_S if best < SHORT_S else 0)
                                  for seconds, _ in first),
            "first_loaded": [ready for _, ready in first]}


def nine_of_ten(errors):
    return sorted(errors)[(len(errors) * 9 - 1) // 10] if errors else None


def estimate_of(agent):
    return json.loads(agent.get("/status")[1])["enclosures"][0]["estimate"]


def names_of(path, number, way, given):
    return [f"path {path} prompt {number} {way} block {i}" for i in range(given.blocks)]


def run(given):
    import icms  # of the wheel
    from icms.vllm.choice import Prefill

    paths = [int(path) for path in given.paths.split(",")]
    block = given.block_kib << 10
    prefix = given.blocks * block
    drive = max(256, 2 * len(paths) * (max(given.rounds, given.full_rounds) * 3 + given.learn) * prefix >> 20)
    memory = max(32, 2 * prefix >> 20)
    volume = {"name": "kv", "value_max": "1MiB", "memory_max": f"{memory}MiB"}
    print(f"prefixes of {prefix / 1e6:.1f} MB; computed in "
          f"{given.blocks * given.block_tokens / given.prefill:.2f} s", flush=True)
    with tempfile.TemporaryDirectory(prefix="icms-", dir=given.dir) as name, pod.Pod(given.build, name) as p:
        target = p.add_target("enclosure0", 1, f"{drive}MiB", [volume], segment="16MiB", memory="64MiB")
        target.wait_ready()
        link = proxy.Proxy(target.port)
        door = types.SimpleNamespace(name=target.name, nqn=target.nqn, port=link.port)
        agents = [p.add_agent("stores", [target], [volume]), p.add_agent("loads", [door], [volume], silence="5s")]
        for agent in agents:
            agent.wait_ready()
        with icms.Client(f"unix:{agents[0].socket}") as client:
            value = os.urandom(block)
            for path, bytes_per_s in enumerate(paths):
                rounds = given.rounds if bytes_per_s else given.full_rounds
                for way, count in (("load", rounds), ("compute", given.rounds), ("choice", rounds),
                                   ("learn", given.learn)):
                    for i in range(count):
                        names = names_of(path, i, way, given)
                        assert client.volume("kv").put(names, [value] * len(names), on_flash=True,
                                                       deadline_ms=60000).ok
        with icms.Client(f"unix:{agents[1].socket}") as client:
            prefill = Prefill()
            engine = Engine(client.volume("kv"), prefill, given)
            engine.compute(given.blocks)  # what an engine has done before it has a prefix
            rows = []
            for number, path in enumerate(paths):
                rows.append(one_path(engine, agents[1], link, path, number, given))
                show(rows[-1])
    return rows


def show(row):
    path = f"{row['bytes_per_s'] / 1e6:g} MB/s" if row["bytes_per_s"] else "full"
    print(f"{path:>8} load {row['load_s']:7.3f} s, compute {row['compute_s']:7.3f} s, choice "
          f"{row['choice_s']:7.3f} s: {row['choice_of_best']:5.2f} of the faster; loaded {sorted(set(row['loaded']))}")
    first = ", ".join(f"{ratio:.2f} ({ready})" for ratio, ready in zip(row["first_of_best"], row["first_loaded"]))
    print(f"{'':8} before that, of the faster: {first}")
    estimate = row["estimate"]
    if row["prefixes"]:
        print(f"{'':8} of {row['prefixes']} prefixes nine of ten within {100 * row['prefix_error_p90']:.0f} % of what was "
              f"expected; without any estimate {100 * row['load_spread_p90']:.0f} % around their own median")
    print(f"{'':8} expects {estimate['bytes_per_second'] / 1e6:.2f} MB/s; nine of ten of the last loads within "
          f"{100 * estimate['error']:.0f} %", flush=True)


def main():
    given = options()
    given.build = given.build.resolve()
    if "ICMS_BENCH_SITE" not in os.environ:
        python = icms_wheel.interpreter()
        site = icms_wheel.make(python, given.build, given.build / "bench-choice-wheel")
        os.execve(python, [python, *sys.argv], {**os.environ, "PYTHONPATH": str(site), "ICMS_BENCH_SITE": str(site)})
    rows = run(given)
    worst = max(row["choice_of_best"] for row in rows)
    print(f"at most {worst:.2f} times as long as the faster of loading and computing")
    if given.json:
        given.json.write_text(json.dumps({"options": {name: str(value) for name, value in vars(given).items()},
                                          "rows": rows}, indent=1) + "\n")
    late = sum(row["first_too_late"] for row in rows)
    print(f"{late} of the {given.learn * len(rows)} first prompts too late")
    off = max((row["prefix_error_p90"] for row in rows if row["prefixes"]), default=0)
    if worst > CHOICE_MOST or late or off > ERROR_MOST:
        sys.exit("bars are missed")


main()
