#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""icms-metrics(7) lists what running daemons serve, and nothing else.

metrics.py BUILD: starts an icms-target and, where it is built, an icms-agent on loopback, has their
/metrics read by tools/metrics-check, and compares the families and their kinds with the page, whose
section for a daemon is headed ".Ss NAME". Prints what to write. Skipped (77) without a daemon.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402

VOLUME = {"name": "kv", "value_max": "256KiB", "memory_max": "16MiB"}


def page_families():
    """{section: {name: kind}} of the page."""
    sections, current = {}, None
    for line in (ROOT / "man/icms-metrics.7").read_text().splitlines():
        heading = re.match(r"\.S[sh] (.*)", line)
        item = re.match(r"\.It Ic (\S+) Pq (\w+)", line)
        if heading:
            current = sections.setdefault(heading.group(1), {})
        elif item:
            current[item.group(1)] = item.group(2)
    return sections


def names_wrong(page):
    """A name means one thing: a daemon's own names begin with its name, the others are in Both."""
    wrong = []
    for section in ("icms-target", "icms-agent"):
        prefix = section.replace("-", "_") + "_"
        wrong += [f"{section}: {name} does not begin with {prefix}" for name in page[section]
                  if not name.startswith(prefix) and name != "kv_cache_usage_perc"]
    both = set(page["icms-target"]) & set(page["icms-agent"])
    return wrong + [f"{name} is a metric of two daemons" for name in sorted(both)]


def compare(daemon, section, page, wrong):
    status, text = daemon.get("/metrics")
    if status != 200:
        wrong.append(f"{section}: /metrics answers {status}")
        return
    read = subprocess.run([ROOT / "tools/metrics-check"], input=text, text=True,
                          capture_output=True, check=False)
    wrong += [f"{section}: {line}" for line in read.stderr.splitlines()]
    served = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M))
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.M))
    known = page.get(section, {}) | page.get("Both", {})
    for name, kind in served.items():
        if known.get(name) != kind:
            wrong.append(f"{section}: the page lacks\n.It Ic {name} Pq {kind}\n{helps[name]}")
    for name in known:
        if name not in served:
            wrong.append(f"{section}: the page has {name}, which is not served")


def main():
    build = pathlib.Path(sys.argv[1])
    page = page_families()
    wrong = names_wrong(page)
    if not (build / "cmd/icms-target").exists():
        print("icms-target is not built")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder, pod.Pod(build, folder) as p:
        target = p.add_target("e0", drives=1, drive_size="64MiB", segment="1MiB",
                              memory="16MiB", volumes=[VOLUME])
        target.wait_ready()
        compare(target, "icms-target", page, wrong)
        if (build / "cmd/icms-agent").exists():
            agent = p.add_agent("a0", [target], [VOLUME],
                                events=[{"volume": "kv", "endpoint": f"ipc://{folder}/events"}])
            agent.wait_ready()
            compare(agent, "icms-agent", page, wrong)
    for line in wrong:
        print(line)
    sys.exit(1 if wrong else 0)


main()
