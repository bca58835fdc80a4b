#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A drive of the server's own under memory, beside the pod, and its faults.

Goal: what memory evicts comes from the drive, also after a restart; without the pod the server goes on
with what it has there; without the drive (it fails, is foreign, an enclosure's, in use, or cannot be
made) it goes on with the pod, at no block, and says so once; a removed block and those of another
generation never come from it; exclusive runs are there and not in the pod, also after starts that failed.
Method: real daemons on loopback, an agent whose memory holds a tenth of the blocks, fault points.

usage: tiers.py BUILD_ROOT
"""
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import Probe, expect, wait_until  # noqa: E402

VOLUME = {"name": "kv", "value_max": "64KiB", "memory_max": "2MiB", "generation": 0}
COUNT, BYTES = 240, 60000


def own(path, size="64MiB", **keys):
    """The keys of an agent's own drive."""
    keys = {"path": path, "size": size, "segment": "1MiB", **keys}
    return {"local": "{" + ", ".join(f"{key}: {value}" for key, value in keys.items()) + "}"}


def tiers(agent):
    return json.loads(agent.get("/status")[1])["tiers"]


def filled(p, name, targets, **keys):
    """An agent with a probe that has read all blocks a few times: evictions are written when there is time."""
    agent = p.add_agent(name, targets, [VOLUME], silence="500ms", **keys)
    agent.wait_ready()
    probe = Probe(p.build, f"unix:{agent.socket}", COUNT, BYTES)
    for _ in range(6):
        seen = probe.ask("get 20000")
        if seen["ok"] != COUNT:
            break
    expect(f"{name}: all blocks are read", seen["ok"] == COUNT, seen)
    return agent, probe


def told_once(agent, words):
    lines = [line for line in agent.log_path.read_text().splitlines() if words in line]
    expect(f"{agent.name}: said once: {words}", len(lines) == 1, agent.log_tail())


def hits_and_restart(p, target, folder):
    agent, probe = filled(p, "hits", [target], **own(folder / "hits"))
    seen = probe.ask("get 20000")
    expect("most blocks come from the drive", seen["ok"] == COUNT and seen["local"] > COUNT / 2, seen)
    local = tiers(agent)["local"]
    expect("the status says so", local["state"] == "up" and local["promoted"] >= seen["local"] and
           local["demoted"] > COUNT / 2 and local["blocks"] == local["demoted"], local)
    shown = subprocess.run([p.build / "cmd/icms", "status", "--open", f"unix:{agent.socket}"],
                           capture_output=True, text=True, timeout=30)
    expect("and icms status", "\nlocal  up" in shown.stdout and "of what memory evicted" in shown.stdout,
           shown.stdout)
    expect("which says what memory evicts for", re.search(r"\ndram: evicted: for space [1-9]\d*; of those read once "
           r"at most 0; of large ones 0; for another volume 0\n", shown.stdout), shown.stdout)
    target.stand_still()
    probe.ask("get 3000")
    away = probe.ask("get 3000")
    target.signal(signal.SIGCONT)
    expect("without the pod the drive answers", away["local"] > COUNT / 2 and away["pod"] == 0 and
           away["seconds"] < 3, away)
    target.wait_ready()
    agent.wait_ready()
    agent.stop()
    agent.start()
    agent.wait_ready()
    again = Probe(p.build, f"unix:{agent.socket}", COUNT, BYTES)
    seen = again.ask("get 20000")
    expect("after a restart it has them", seen["ok"] == COUNT and seen["local"] > COUNT / 2, seen)
    return agent


def command(p, agent):
    def icms(*words, value=None):
        return subprocess.run([p.build / "cmd/icms", words[0], "--open", f"unix:{agent.socket}", *words[1:]],
                              input=value, capture_output=True, text=True, timeout=30)
    return icms


def prestaged(p, first, agent):
    """Blocks that are on the drive before anybody on this server has read them: from a shell, over HTTP."""
    names = [f"session {i}" for i in range(24)]
    for name in names:
        expect("put", command(p, first)("put", "--on-flash", name, value=name * 1000).returncode == 0)
    icms = command(p, agent)
    before = tiers(agent)["local"]["prestaged"]
    refused = command(p, first)("prestage", "--tier", "local", *names)
    expect("without a drive it is said", refused.returncode != 0 and "no drive of its own" in refused.stderr, refused)
    typo = icms("prestage", "--tier", "flash", *names)
    expect("and what a tier is", typo.returncode == 2 and "dram or local" in typo.stderr, typo)
    taken = icms("prestage", "--tier", "local", "--deadline", "120s", *names[:12])
    expect("hints for the drive are taken", taken.stdout == "12 of 12 taken\n", taken)
    body = json.dumps({"volume": "kv", "names": names[12:], "tier": "local", "deadline_ms": 120000})
    request = urllib.request.Request(f"http://127.0.0.1:{agent.http_port}/v1/prestage", data=body.encode(),
                                     headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        expect("also over HTTP", answer.status == 202, answer.status)
    wait_until("blocks come to the drive", lambda: tiers(agent)["local"]["prestaged"] - before == 24,
               seen=lambda: tiers(agent)["local"])
    Probe(p.build, f"unix:{agent.socket}", COUNT, BYTES).ask("get 20000")
    sources = [json.loads(icms("get", "--json", "--output", "/dev/null", name).stdout)["source"] for name in names]
    expect("and are read there", sources.count("local") >= 20, sources)
    hints = json.loads(agent.get("/status")[1])["volumes"][0]["prestage"]
    wait_until("in time", lambda: json.loads(agent.get("/status")[1])["volumes"][0]["prestage"]["in_time"] == 24,
               seen=lambda: hints)
    expect("status says so", "brought for hints: 24" in icms("status").stdout, icms("status").stdout)


def removed(p, agent):
    """Blocks that icms stores and loads by name."""
    icms = command(p, agent)
    expect("put", icms("put", "--on-flash", "one", value="first").returncode == 0)
    icms("get", "one")
    probe = Probe(p.build, f"unix:{agent.socket}", COUNT, BYTES)
    probe.ask("get 20000")
    got = icms("get", "one")
    expect("evicted and found", got.stdout == "first", got)
    expect("removed", icms("rm", "one").returncode == 0)
    shown = icms("status").stdout
    expect("status counts what the drive deleted", re.search(r"\nlocal: deleted for puts and removes: [1-9]\d*\n", shown), shown)
    probe.ask("get 20000")
    got = icms("get", "one")
    expect("a removed block does not come back", got.returncode == 1 and got.stdout == "", got)


def failed(p, target, folder):
    agent, probe = filled(p, "fails", [target], faults="store.write:30:fail+", **own(folder / "fails"))
    # A busy agent writes few of the blocks that it evicts, and the 30th write fails.
    wait_until("a drive that fails is not used",
               lambda: probe.ask("get 20000") and tiers(agent)["local"]["state"] == "down",
               seen=lambda: tiers(agent)["local"])
    seen = probe.ask("get 20000")
    expect("nothing is lost with it", seen["ok"] == COUNT and seen["local"] == 0, seen)
    wait_until("logged", lambda: "not used until the next start" in agent.log_path.read_text())
    told_once(agent, "not used until the next start")
    agent.stop()


def not_opened(p, target, folder, name, path, words, **keys):
    before = path.read_bytes()[:65536] if path.exists() else None
    agent, probe = filled(p, name, [target], **own(path, **keys))
    expect(f"{name}: the pod has all", probe.ask("get 20000")["local"] == 0)
    local = tiers(agent)["local"]
    expect(f"{name}: down, with the reason", local["state"] == "down" and words in local["why"], local)
    told_once(agent, "not used until the next start")
    expect(f"{name}: nothing was changed", before is None or path.read_bytes()[:65536] == before)
    agent.stop()


def generations(p, target, folder, agent):
    for daemon in (target, agent):
        daemon.stop()
        path = pathlib.Path(daemon.config_path)
        path.write_text(path.read_text().replace("generation: 0", "generation: 1"))
        daemon.start()
        daemon.wait_ready()
    seen = Probe(p.build, f"unix:{agent.socket}", COUNT, BYTES).ask("get 20000")
    expect("of another generation nothing comes", seen["ok"] == 0, seen)


def exclusive(p, folder):
    target = p.add_target("enclosure1", 1, "64MiB", [VOLUME], segment="1MiB", memory="16MiB")
    target.wait_ready()
    agent = p.add_agent("exclusive", [target], [VOLUME], **own(folder / "exclusive", exclusive="50%"))
    agent.wait_ready()
    probe = Probe(p.build, f"unix:{agent.socket}", COUNT, BYTES)
    expect("all are stored", probe.ask("put")["ok"] == COUNT)
    blocks = sum(value for name, value in target.metrics().items()
                 if name.startswith("icms_target_blocks{"))
    local = tiers(agent)["local"]
    expect("each at one place", blocks + local["stored"] == COUNT and COUNT / 4 < blocks < 3 * COUNT / 4,
           (blocks, local))
    seen = probe.ask("get 20000")
    expect("all are found", seen["ok"] == COUNT and seen["local"] > COUNT / 8 and seen["pod"] > COUNT / 8,
           seen)
    agent.stop()
    for family, address in ((socket.AF_UNIX, str(agent.socket)), (socket.AF_INET, ("127.0.0.1", agent.http_port))):
        with socket.socket(family) as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(address)
            taken.listen()
            agent.start()
            expect("a start fails where another program listens", agent.process.wait(timeout=60) == 1, agent.log_tail())
    agent.socket.unlink(missing_ok=True)
    agent.start()
    agent.wait_ready()
    seen = Probe(p.build, f"unix:{agent.socket}", COUNT, BYTES).ask("get 20000")
    expect("and costs no block", seen["ok"] == COUNT and seen["local"] > COUNT / 8, (seen, agent.log_tail()))
    agent.kill()
    agent.start()
    agent.wait_ready()
    seen = Probe(p.build, f"unix:{agent.socket}", COUNT, BYTES).ask("get 20000")
    expect("after kill -9 what the pod has is found", blocks <= seen["ok"] < COUNT and seen["local"] == 0, seen)
    told_once(agent, "formatted, it holds no blocks now")


def main():
    build = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="icms-") as text, pod.Pod(build, text) as p:
        folder = pathlib.Path(text)
        spare = p.add_target("spare", 1, "64MiB", [VOLUME], segment="1MiB", memory="16MiB")
        target = p.add_target("enclosure0", 1, "128MiB", [VOLUME], segment="1MiB", memory="16MiB")
        target.wait_ready()
        spare.wait_ready()
        first = p.add_agent("first", [target], [VOLUME])
        first.wait_ready()
        expect("all are stored", Probe(build, f"unix:{first.socket}", COUNT, BYTES).ask("put")["ok"] == COUNT)
        agent = hits_and_restart(p, target, folder)
        prestaged(p, first, agent)
        first.stop()
        removed(p, agent)
        not_opened(p, target, folder, "in-use", folder / "hits", "use")
        failed(p, target, folder)
        (folder / "foreign").write_text("a thesis\n" * 100000)
        not_opened(p, target, folder, "foreign", folder / "foreign", "foreign")
        not_opened(p, target, folder, "too-large", folder / "too-large", "too-large", size="512TiB")
        spare.stop()
        not_opened(p, target, folder, "enclosures", spare.drives[0], "is a drive of an enclosure")
        generations(p, target, folder, agent)
        exclusive(p, folder)


main()
