# SPDX-License-Identifier: Apache-2.0
"""One match: a peer and the forms of icms that it meets, with objects of one size, in turns.

Called by bench/bench_peers.py. play() starts a worker for each side, lets them take turns, and returns
rows for doc/benchmarks. Workers and their servers are gone when it returns.
"""
import json
import os
import pathlib
import select
import shutil
import subprocess
import time

import pod
from peers import icms_forms, peer, stats

BENCH = pathlib.Path(__file__).resolve().parent.parent
MODULES = [BENCH, BENCH.parent / "tools"]
DEPTHS = (1, 16)
ANSWER_SECONDS = 300
P99_SAMPLES = 100  # with fewer latencies there is no p99


class Failed(Exception):
    """A side cannot go on; the text names it and says why."""


class Player:
    """A worker process and its answers."""

    def __init__(self, name, python, setting, path=()):
        self.name = name
        self.folder = pathlib.Path(setting["folder"])
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*MODULES, *path])),
                       "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen(
            [str(python), "-m", "peers.worker", json.dumps(setting, default=str)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            preexec_fn=pod.die_with_parent)

    def ask(self, do, **more):
        """Sends a command and returns the answer; Failed when there is none in time."""
        try:
            self.process.stdin.write(json.dumps({"do": do, **more}) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it is gone: there will be no answer
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            said = f"ended with {self.process.wait(10)}" if ready else f"hangs ({ANSWER_SECONDS} s)"
            raise Failed(f"{self.name}: {said} at '{do}' {self._log()}")
        answer = json.loads(line)
        if "failed" in answer:
            raise Failed(f"{self.name}: {answer['failed']}")
        return answer

    def _log(self):
        try:
            return " ".join((self.folder / "worker.log").read_text(errors="replace")
                            .splitlines()[-3:])
        except OSError:
            return ""

    def end(self):
        """Ends the process, and with it its servers; its files go."""
        self.process.stdin.close()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        for _ in range(50):  # servers that die with the worker may still hold files for a moment
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                return
            time.sleep(0.1)


# ---- figures ------------------------------------------------------------------------------------

class Side:
    """All slices of one side in one row."""

    def __init__(self):
        self.slices = []

    def gb_per_s(self, i):
        one = self.slices[i]
        return one["good_bytes"] / one["seconds"] / 1e9 if one["seconds"] else 0.0

    def cpu_s_per_gb(self, i):
        one = self.slices[i]
        return one["cpu_seconds"] / one["good_bytes"] * 1e9 if one["good_bytes"] else 0.0

    def p50_us(self, i):
        return stats.quantile(self.slices[i]["latencies_us"], 0.5)

    def figures(self):
        every = range(len(self.slices))
        total = {name: sum(one[name] for one in self.slices)
                 for name in ("operations", "lost", "corrupt", "errors", "good_bytes",
                              "cpu_seconds")}
        latencies = [us for one in self.slices for us in one["latencies_us"]]
        return {
            "gb_per_s": round(stats.median([self.gb_per_s(i) for i in every])[0], 4),
            "cpu_s_per_gb": round(total["cpu_seconds"] / total["good_bytes"] * 1e9, 4)
            if total["good_bytes"] else 0.0,
            "p50_us": stats.quantile(latencies, 0.5), "samples": len(latencies),
            "p99_us": stats.quantile(latencies, 0.99) if len(latencies) >= P99_SAMPLES else 0,
            "operations": total["operations"], "lost": total["lost"], "corrupt": total["corrupt"],
            "errors": total["errors"],
            "first_error": next((one["first_error"] for one in self.slices if one["first_error"]),
                                ""),
            "slices_gb_per_s": [round(self.gb_per_s(i), 4) for i in every],
            "slices_cpu_s_per_gb": [round(self.cpu_s_per_gb(i), 4) for i in every],
        }


def paired(subject, other, what):
    """(median, low, high) of the ratios of neighbours; None when no pair has both."""
    ratios = []
    for i in range(len(subject.slices)):
        a, b = getattr(subject, what)(i), getattr(other, what)(i)
        if a > 0 and b > 0:
            ratios.append(a / b)
    return [round(x, 4) for x in stats.median(ratios)] if ratios else None


def row(op, size, depth, peer_name, sides):
    """One line of the results: sides is {name: Side}; ratios are icms over peer."""
    return {
        "op": op, "size_bytes": size, "depth": depth, "slices": len(sides[peer_name].slices),
        "sides": {name: one.figures() for name, one in sides.items()},
        "ratios": {name: {what: paired(one, sides[peer_name], what)
                          for what in ("gb_per_s", "cpu_s_per_gb", "p50_us")}
                   for name, one in sides.items() if name != peer_name},
    }


# ---- turns --------------------------------------------------------------------------------------

def in_turns(players, pair):
    """Who goes when in a round: all once, the one that goes first changes."""
    at = pair % len(players)
    return players[at:] + players[:at]


def play_puts(players, plan):
    """Every object is put once: half of them one by one, half in batches, in turns of slices."""
    sides = {depth: {one.name: Side() for one in players} for depth in DEPTHS}
    parts = plan.slices * len(DEPTHS)
    for part in range(parts):
        depth = DEPTHS[part % len(DEPTHS)]
        first, end = plan.count * part // parts, plan.count * (part + 1) // parts
        for one in in_turns(players, part // len(DEPTHS)):
            sides[depth][one.name].slices.append(
                one.ask("put", first=first, count=end - first, depth=depth))
    return [row("put", plan.size, depth, plan.peer, sides[depth]) for depth in DEPTHS]


def play_gets(players, plan):
    """A short slice of each side first, which does not count."""
    rows = []
    for depth in DEPTHS:
        sides = {one.name: Side() for one in players}
        for pair in range(plan.slices + 1):
            for one in in_turns(players, pair):
                answer = one.ask("get", depth=depth, seconds=plan.seconds / (1 if pair else 4))
                if pair:
                    sides[one.name].slices.append(answer)
        rows.append(row("get", plan.size, depth, plan.peer, sides))
    return rows


def audit(players, plan):
    """Every object that a side acknowledged, once more: what is lost, what is wrong."""
    answers = {one.name: one.ask("audit", depth=max(DEPTHS)) for one in players}
    return {"op": "audit", "size_bytes": plan.size, "depth": max(DEPTHS),
            "sides": {name: {key: answer[key] for key in
                             ("acknowledged", "lost", "corrupt", "errors", "first_error", "served")}
                      for name, answer in answers.items()}}


def play(plan):
    """plan: peer, size, count, slices, seconds (of a slice), run (folder), build, installed, python,
    icms_path. Returns ({program: version}, rows); Failed when a side cannot go on."""
    setting = {"size": plan.size, "count": plan.count, "depth_max": max(DEPTHS),
               "build": plan.build, "installed": plan.installed, "form": None, "peer": plan.peer}
    players, versions = [], {}
    try:
        for form in peer(plan.peer).AGAINST:
            assert form in icms_forms.FORMS
            players.append(Player(f"icms-{form}", plan.python_icms,
                                  {**setting, "form": form, "folder": plan.run / f"icms-{form}"},
                                  [plan.icms_path]))
        players.append(Player(plan.peer, plan.python,
                              {**setting, "folder": plan.run / plan.peer}))
        for one in players:
            versions.update(one.ask("start")["versions"])
        rows = play_puts(players, plan)
        for one in players:
            one.ask("reopen")
        rows += play_gets(players, plan)
        rows.append(audit(players, plan))
        for one in players:
            one.ask("stop")
    finally:
        for one in players:
            one.end()
    return versions, rows
