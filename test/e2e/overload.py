#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ten times the stores that an enclosure takes.

Goal: what is too much is shed and counted, loads are hits or misses by their deadline meanwhile, the
daemons take no more memory than before, and no block whose store was acknowledged on flash is gone
without an eviction that was counted, nor has wrong bytes.
Method: a real target whose drive is slow (the fault loop.write), a real agent, four client
processes that offer stores at a rate and do not wait for answers; then an agent with an empty
memory, through which every acknowledged block is asked for. Then the same stores into a pod of three
such enclosures, which are compared with each other, so that one could look slow.

usage: overload.py BUILD_ROOT [--as-shipped]
       --as-shipped: agents have the product's silence and keep_alive, for a machine that does nothing else.
"""
import os
import pathlib
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import Client, expect  # noqa: E402

BYTES = 16000
CLIENTS = 4
# Each write to the drive takes this long, and a segment has some that wait for each other: so it takes
# about 100 blocks a second, fewer on a loaded machine. So many are offered.
WRITE_MS = 100
RATE = 3200
# Rounds of so many seconds, until the drive was written over by half; more of them only where it takes
# ten times as long.
SECONDS, ROUNDS_MAX = 4, 20
WRITTEN = 1.5
AS_SHIPPED = "--as-shipped" in sys.argv[2:]
VOLUME = {"name": "kv", "value_max": "16KiB", "memory_max": "4MiB"}
# The product's deadline, and what a loaded machine may take beyond it. Only a load that is never
# answered takes longer.
LOAD_DEADLINE, SLACK = 2.0, 20.0
MIB = 1 << 20
# What the agent may take and takes when it is used; else memory is taken at start, but for a little.
ARENA, STAGING, SPARE = 4 * MIB, 4 * MIB, 4 * MIB


def total_of(answers):
    """The sum of answers, and the longest of their longest loads."""
    total = {name: (max if name == "load_max" else sum)(answer[name] for answer in answers)
             for name in answers[0] if name != "misses"}
    total["misses"] = {reason: sum(answer["misses"][reason] for answer in answers)
                       for reason in answers[0]["misses"]}
    return total


def together(clients, line):
    """All clients do this at once; the sum of what they say."""
    for client in clients:
        client.tell(line)
    return total_of([client.answer() for client in clients])


class Memory:
    """The most that daemons had in memory, while it looks."""

    def __init__(self, daemons):
        self.daemons, self.most = daemons, {daemon.name: 0 for daemon in daemons}
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def look(self):
        for daemon in self.daemons:
            held = daemon.metrics()["process_resident_memory_bytes"]
            self.most[daemon.name] = max(self.most[daemon.name], held)

    def run(self):
        while not self.over.wait(0.2):
            self.look()

    def __enter__(self):
        self.look()
        self.thread.start()
        return self

    def __exit__(self, *exception):
        self.over.set()
        self.thread.join()


def storm(target, agent, clients, idle):
    """Returns how many blocks were acknowledged, and how many too late, which may be there."""
    enough = WRITTEN * target.metrics()["icms_target_capacity_bytes"] / BYTES
    rounds = []
    passed_over = [f'icms_agent_enclosure_{what}_total{{enclosure="{target.name}"}}' for what in ("exclusions", "slow")]
    before = [agent.metrics()[name] for name in passed_over]
    with Memory([target, agent]) as memory:
        while sum(told["acked"] for told in rounds) < enough and len(rounds) < ROUNDS_MAX:
            rounds.append(together(clients, f"storm {SECONDS} {RATE / CLIENTS}"))
    told = total_of(rounds)
    counted = agent.metrics()["icms_agent_sheds_total"], target.metrics()["icms_target_sheds_total"]
    print(f"   {told}, sheds of agent and target {counted}")
    expect("stores are acknowledged all the time",
           all(told["acked"] > 0 for told in rounds) and told["acked"] >= enough, rounds)
    expect("ten times as many are offered", told["offered"] >= 10 * told["acked"], told)
    expect("each one that is shed is counted", max(counted) <= told["shed"] <= sum(counted),
           counted)
    expect("nobody is excluded for being busy", [agent.metrics()[name] for name in passed_over] == before, before)
    ended = ("acked", "shed", "store_deadline")
    expect("nothing else happens to stores", sum(told[name] for name in ended) == told["offered"],
           told)
    expect("loads end by their deadline", told["load_max"] < LOAD_DEADLINE + SLACK, told)
    expect("loads are hits, or misses for what was evicted or took too long",
           told["load_other"] == 0 and told["hits"] > told["loads"] / 4 and
           told["hits"] + sum(told["misses"][name] for name in ("absent", "evicted", "deadline")) ==
           told["loads"], told)
    expect("with the right bytes", told["wrong"] == 0, told)
    for daemon, limit in ((target, 0), (agent, ARENA + CLIENTS * STAGING)):
        grown = memory.most[daemon.name] - idle.most[daemon.name]
        expect(f"{daemon.name} takes no more memory than it may", grown < limit + SPARE,
               f"{grown} bytes more")
    return told["acked"], told["store_deadline"]


def settle(target, agent, clients, acked, late):
    """What was acknowledged is there, or an eviction."""
    expect("the agent ends", agent.stop(30) == 0, agent.log_tail())
    agent.start()
    agent.wait_ready()
    # The target may still make segments ready for what does not come any more.
    before = target.metrics()['icms_target_evictions_total{volume="kv"}']
    told = together(clients, "check")
    evictions = target.metrics()['icms_target_evictions_total{volume="kv"}']
    missing = sum(told["misses"].values())
    print(f"   {told}, evictions {before:.0f}, then {evictions:.0f}")
    expect("each acknowledged block is asked for", told["loads"] == acked, acked)
    expect("it is a hit or a miss", told["hits"] + missing == acked and told["load_other"] == 0,
           told)
    expect("hits have the right bytes", told["wrong"] == 0, told)
    expect("something was evicted", evictions > 0)
    expect("what is missing was evicted, and counted",
           missing <= evictions and before <= missing + late, told)
    capacity = target.metrics()["icms_target_capacity_bytes"]
    expect("the drive is full of what was acknowledged", told["hits"] * BYTES > capacity / 2, told)


def patience(silence):
    """Of an agent: a machine that stands still for a while is not an enclosure that is down."""
    return {} if AS_SHIPPED else {"silence": silence, "keep_alive": "60s"}


def pod_storm(build, p):
    """Three enclosures, one of them slower than the others: none is passed over for what it is asked to store."""
    targets = [p.add_target(f"pod{i}", 1, "32MiB", [VOLUME], segment="512KiB", memory="4MiB", connections_max="16",
                            faults=f"loop.write:1:slow={(WRITE_MS << (i == 0)) * 1000}") for i in range(3)]
    for target in targets:
        target.wait_ready()
    agent = p.add_agent("server-b", targets, [VOLUME], store_backlog="2MiB", client_memory="4MiB", **patience("5s"))
    agent.wait_ready()
    clients = [Client(build / "test/e2e/overload_client", agent, "kv", 1 + i, BYTES) for i in range(CLIENTS)]
    told = together(clients, f"storm {SECONDS} {3 * RATE / CLIENTS}")
    print(f"   {told}")
    for client in clients:
        client.end()
    expect("a pod: much more is offered than it takes", told["offered"] >= 5 * told["acked"] > 0, told)
    seen = {f"{target.name} {what}": agent.metrics()[f'icms_agent_enclosure_{what}_total{{enclosure="{target.name}"}}']
            for target in targets for what in ("exclusions", "slow")}
    expect("a pod: nobody is passed over for being busy", not any(seen.values()), f"{seen} {agent.log_tail()}")


def main():
    build = pathlib.Path(sys.argv[1])
    # With sanitizers, freed memory (of pages of metrics) comes back soon: it is no growth.
    os.environ["ASAN_OPTIONS"] = ":".join(
        filter(None, (os.environ.get("ASAN_OPTIONS"), "quarantine_size_mb=1")))
    with tempfile.TemporaryDirectory(prefix="icms-", dir="/var/tmp") as folder, \
            pod.Pod(build, folder) as p:
        target = p.add_target("enclosure0", 1, "8MiB", [VOLUME], segment="512KiB", memory="4MiB",
                              connections_max="16",
                              faults=f"loop.write:1:slow={WRITE_MS * 1000}")
        target.wait_ready()
        agent = p.add_agent("server-a", [target], [VOLUME], store_backlog="2MiB",
                            client_memory="4MiB", **patience("60s"))
        agent.wait_ready()
        with Memory([target, agent]) as idle:
            pass
        clients = [Client(build / "test/e2e/overload_client", agent, "kv", 1 + i, BYTES)
                   for i in range(CLIENTS)]
        settle(target, agent, clients, *storm(target, agent, clients, idle))
        for client in clients:
            client.end()
        pod_storm(build, p)


main()
