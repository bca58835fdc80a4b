#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long an enclosure takes to answer about volumes that a host may not use.

Three namespaces are asked for in turn, in random order, with each command: one that does not exist, one
of another host, one that asks for TLS. The table has the median of each and its quartiles, in
microseconds, and by how much the medians differ, in parts of the width between the quartiles. A stranger
learns something where that is far above 0. The same for Connect: of a host that nobody knows, and of
one that has a volume elsewhere in the file, which may use none without TLS; and where hosts authenticate,
of a host that nobody knows, one with a secret, and one that has to use TLS and does not.

usage: bench/strangers.py [--build DIR] [--samples N] [--json]
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "test/security")]
import nvme  # noqa: E402
import pod  # noqa: E402

MINE, OTHER, HIDDEN, NOBODY = (f"nqn.2026-01.org.example:{name}"
                               for name in ("mine", "other", "hidden", "nobody"))
KEY = b"0123456789abcdef"
NAMESPACES = {"absent": 4, "foreign": 2, "forbidden": 3}
COMMANDS = {
    "exist": lambda admin, queue, nsid: queue.command(nvme.EXIST, nsid, KEY),
    "retrieve": lambda admin, queue, nsid: queue.command(nvme.RETRIEVE, nsid, KEY, 4096, cdw10=4096),
    "store": lambda admin, queue, nsid: queue.command(nvme.STORE, nsid, KEY, data=b"v" * 4096, cdw10=4096),
    "list": lambda admin, queue, nsid: queue.command(nvme.LIST, nsid, b"", 4096, cdw10=4096),
    "delete": lambda admin, queue, nsid: queue.command(nvme.DELETE, nsid, KEY),
    "identify": lambda admin, queue, nsid: admin.identify(0x05, nsid, 1),
}


def refused_connect(target, host):
    try:
        nvme.Queue(target.port, host, target.nqn).close()
    except nvme.Refused:
        return
    raise AssertionError(f"{host} was let in")


def asked_to_authenticate(target, host):
    queue = nvme.Queue(target.port, host, target.nqn)
    assert queue.dw0 >> 16, f"{host} was let in"
    queue.close()


def measure(cases, samples):
    """Microseconds of each call, asked in random order; the first tenth is left out."""
    times = {name: [] for name in cases}
    names = list(cases)
    for number in range(samples + samples // 10):
        random.shuffle(names)
        for name in names:
            began = time.perf_counter_ns()
            cases[name]()
            if number >= samples // 10:
                times[name].append((time.perf_counter_ns() - began) / 1000)
    return times


def row(what, times):
    """Of one command: the medians and how far they are apart."""
    cases = {}
    for name, values in times.items():
        low, middle, high = statistics.quantiles(values, n=4)
        cases[name] = {"p25_us": round(low, 2), "p50_us": round(middle, 2), "p75_us": round(high, 2)}
    medians = [case["p50_us"] for case in cases.values()]
    width = statistics.median(case["p75_us"] - case["p25_us"] for case in cases.values())
    return {"command": what, "samples": len(values), "cases": cases,
            "apart": round((max(medians) - min(medians)) / width, 3)}


def bench(build, folder, samples):
    subprocess.run([build / "cmd/icms", "key", "gen", "--type", "tls", folder / "psk"], check=True,
                   capture_output=True)
    subprocess.run([build / "cmd/icms", "key", "gen", folder / "secret"], check=True, capture_output=True)
    volumes = [{"name": "own", "sealed": "false", "hosts": f"['{MINE}']"},
               {"name": "foreign", "sealed": "false", "hosts": f"['{OTHER}']"},
               {"name": "forbidden", "sealed": "false", "hosts": f"['{MINE}', '{HIDDEN}']", "require": "tls"}]
    with pod.Pod(build, folder) as p:
        target = p.add_target("enclosure0", 1, "512MiB", volumes,
                              hosts=f"[{{nqn: '{OTHER}', psks: [{folder}/psk], require: none}}]")
        target.wait_ready()
        admin = nvme.Queue(target.port, MINE, target.nqn).enable()
        queue = nvme.Queue(target.port, MINE, target.nqn, qid=1, cntlid=admin.cntlid)
        for what, command in COMMANDS.items():
            cases = {name: (lambda command=command, nsid=nsid: command(admin, queue, nsid))
                     for name, nsid in NAMESPACES.items()}
            yield row(what, measure(cases, samples))
        cases = {name: (lambda host=host: refused_connect(target, host))
                 for name, host in (("unknown host", NOBODY), ("known host", HIDDEN))}
        yield row("connect", measure(cases, max(samples // 10, 50)))
        target = p.add_target("enclosure1", 1, "512MiB", [{"name": "own", "sealed": "false"}], require="chap",
                              hosts=f"[{{nqn: '{MINE}', secrets: [{folder}/secret]}}, "
                                    f"{{nqn: '{OTHER}', psks: [{folder}/psk], require: tls}}]")
        target.wait_ready()
        cases = {name: (lambda host=host: asked_to_authenticate(target, host))
                 for name, host in (("unknown host", NOBODY), ("with a secret", MINE), ("with TLS", OTHER))}
        yield row("proof", measure(cases, max(samples // 10, 50)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=str(ROOT / "build"), help="default: build")
    parser.add_argument("--samples", type=int, default=5000, help="of each case; default: 5000")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="icms-strangers-") as scratch:
        for line in bench(pathlib.Path(words.build).resolve(), pathlib.Path(scratch), words.samples):
            if words.json:
                print(json.dumps(line), flush=True)
                continue
            cases = "   ".join(f"{name} {case['p50_us']:.1f} ({case['p25_us']:.1f} to {case['p75_us']:.1f})"
                               for name, case in line["cases"].items())
            print(f"{line['command']:<9} {cases}   apart {line['apart']}", flush=True)


if __name__ == "__main__":
    main()
