#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two tenants store more than an enclosure takes.

Goal: weights of the configuration decide what each gets, metrics and status tell it, and one alone gets
all of it. How exact the parts are is judged in the simulation (src/target/fair_test.c): here a loaded
machine lets one of the two fall behind.
Method: a real target whose drive is slow (the fault loop.write), an agent for each tenant, and clients
that offer stores at a rate and do not wait for answers. What is compared are the bytes that the target
counts for each tenant, and no times.

usage: fair.py BUILD_ROOT
"""
import json
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import Client, expect  # noqa: E402

BYTES = 16000
RATE = 3000  # blocks a second that a client offers, many times what the drive takes
WRITE_MS = 20
SECONDS = 4
NAMES = ("heavy", "light", "other")
VOLUMES = [{"name": name, "tenant": name, "value_max": "16KiB", "memory_max": "16MiB"}
           for name in NAMES]


def stored(target, tenant):
    return target.metrics()[f'icms_target_tenant_bytes_total{{tenant="{tenant}",class="store"}}']


def storm(target, clients):
    """Bytes of each tenant in the middle of a storm of these clients, when all of them have commands
    that wait."""
    for client in clients:
        client.tell(f"storm {SECONDS} {RATE}")
    time.sleep(1)
    before = {name: stored(target, name) for name in NAMES}
    time.sleep(SECONDS - 1.5)
    got = {name: stored(target, name) - before[name] for name in before}
    for client in clients:
        client.answer()
    return got


def main():
    build = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="icms-", dir="/var/tmp") as folder, \
            pod.Pod(build, folder) as p:
        target = p.add_target("enclosure0", 1, "64MiB", VOLUMES, segment="1MiB", memory="16MiB",
                              queue_entries_max="256",
                              tenants=[{"name": "heavy", "weight": 3}, {"name": "light"},
                                       {"name": "other"}],
                              faults=f"loop.write:1:slow={WRITE_MS * 1000}")
        target.wait_ready()
        agents = [p.add_agent(f"server-{i}", [target], VOLUMES, store_backlog="64MiB",
                              client_memory="16MiB", memory="64MiB", silence="60s",
                              keep_alive="60s", queue_entries="256") for i in range(3)]
        for agent in agents:
            agent.wait_ready()
        program = build / "test/e2e/overload_client"
        heavy, light, other = (Client(program, agents[i], NAMES[i], 1 + i, BYTES) for i in range(3))
        both = storm(target, [heavy, light])
        equal = storm(target, [light, other])
        alone = storm(target, [light])
        print(f"   3:1 {both}, 1:1 {equal}, one alone {alone}")
        status = json.loads(target.get("/status")[1])["tenants"]
        expect("status names the tenants", [t["name"] for t in status] == list(NAMES),
               status)
        expect("commands waited for their turn", all(t["store"]["waits"] > 0 for t in status),
               status)
        ratio = both["heavy"] / both["light"]
        expect("three times the weight gets two to four times the bytes", 2 <= ratio <= 4, ratio)
        expect("equal ones get half", 0.45 <= equal["light"] / sum(equal.values()) <= 0.55, equal)
        expect("one alone gets what the two got", alone["light"] >= 0.8 * sum(both.values()),
               (both, alone))
        for client in (heavy, light, other):
            client.end()


main()
