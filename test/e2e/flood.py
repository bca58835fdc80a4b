#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A neighbour that stores as fast as it can, and more than the enclosure holds.

Goal: another tenant's loads are the hits that they were, and their p99 is at most twice that of alone.
Method: a real target whose drive writes slowly (the fault loop.write) and reads as fast as it does, an agent
of a tenant that loads more than its memory holds, one block after the other, and one of a tenant that offers
several times the stores that the drive takes. Loads alone and beside the flood, in turns. How exact the parts
are is judged in the simulation (sim-flood, src/target/fair_test.c): on a machine with other work p99 scatters,
so `make check` asks for ten times; --deep asks for the bar of the median of several pairs.

usage: flood.py BUILD_ROOT [--deep]
"""
import pathlib
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import Client, Probe, expect  # noqa: E402

BYTES = 16000
BLOCKS = 400    # that are loaded: six times the memory of their volume
LOADS = 2000    # of which p99 is taken
RATE = 3000     # blocks a second that the flood offers, several times what the drive takes
WRITE_MS = 5
SECONDS = 20    # of a flood, longer than LOADS take
WRITTEN = 1.5   # times what the drive holds, before the last loads
VOLUMES = [{"name": "loads", "tenant": "loads", "value_max": "16KiB", "memory_max": "1MiB"},
           {"name": "stores", "tenant": "stores", "value_max": "16KiB", "memory_max": "16MiB"}]


def walk(probe):
    told = probe.ask(f"walk 0 {LOADS} 1", 300)
    expect("each block is a hit, most of them of the pod",
           told["ok"] == BLOCKS and told["pod"] > BLOCKS / 2, told)
    return told["p99_us"]


def stored(target):
    return target.metrics()['icms_target_tenant_bytes_total{tenant="stores",class="store"}']


def pair(target, probe, client):
    """p99 alone, beside a flood, and how much that stored."""
    alone, before = walk(probe), stored(target)
    client.tell(f"storm {SECONDS} {RATE}")
    while stored(target) == before:
        time.sleep(0.02)
    beside, now = walk(probe), stored(target)
    client.answer()
    return alone, beside, now - before, stored(target) - before


def main():
    build, deep = pathlib.Path(sys.argv[1]), "--deep" in sys.argv
    with tempfile.TemporaryDirectory(prefix="icms-", dir="/var/tmp") as folder, \
            pod.Pod(build, folder) as p:
        target = p.add_target("enclosure0", 1, "64MiB", VOLUMES, segment="1MiB", memory="16MiB",
                              tenants=[{"name": "loads"}, {"name": "stores"}],
                              faults=f"loop.write:1:slow={WRITE_MS * 1000}")
        target.wait_ready()
        loader, flooder = (p.add_agent(name, [target], VOLUMES, store_backlog="64MiB", client_memory="16MiB",
                                       memory="64MiB", silence="60s", keep_alive="60s")
                           for name in ("server-a", "server-b"))
        for agent in (loader, flooder):
            agent.wait_ready()
        probe = Probe(build, f"unix:{loader.socket}", BLOCKS, BYTES, "loads")
        expect("the blocks are stored", probe.ask("put", 300)["ok"] == BLOCKS)
        client = Client(build / "test/e2e/overload_client", flooder, "stores", 1, BYTES)
        ratios, all_stored = [], 0
        while len(ratios) < (5 if deep else 1) or all_stored < WRITTEN * target.metrics()["icms_target_capacity_bytes"]:
            alone, beside, meanwhile, more = pair(target, probe, client)
            ratios.append(beside / alone)
            all_stored += more
            print(f"   p99 {alone:.0f} us alone, {beside:.0f} us beside {meanwhile / 1e6:.0f} MB of stores", flush=True)
        walk(probe)
        part = statistics.median(ratios)
        expect(f"p99 beside a flood, as a part of alone: {part:.2f}", part <= (2 if deep else 10), ratios)
        probe.end()
        client.end()


main()
