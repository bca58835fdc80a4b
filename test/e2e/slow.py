#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An enclosure behind a slow link, and agents that disagree.

Goal: of a client that only stores, an enclosure that is 300 ms away has fewer blocks, which the log
and icms status say, and no block is lost for it; one of three enclosures that is 300 ms away, or that
moves 250 kB/s, is passed over, named in the log, and used again when its link is well; a pod that is
300 ms away as a whole loses nobody; an agent whose run_blocks differ from another's is told so.
Method: real daemons on loopback, and a TCP proxy in front of each enclosure that delays or throttles
what it carries.

usage: slow.py BUILD_ROOT
"""
import pathlib
import subprocess
import sys
import tempfile
import time
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import Probe, expect, wait_until  # noqa: E402
import proxy  # noqa: E402

VOLUME = {"name": "kv", "value_max": "64KiB", "memory_max": "1MiB"}
COUNT, BYTES = 240, 60000


def slow(agent, what, name):
    return agent.metrics()[f'icms_agent_enclosure_{what}{{enclosure="{name}"}}']


def scene(name, agent, target, probe, begin, end):
    """The link of one enclosure is slow, and then well again."""
    whole = probe.ask("get 20000")
    expect(f"{name}: all blocks are there before", whole["ok"] == COUNT, whole)
    total = slow(agent, "slow_total", target.name)
    begin()
    began = time.monotonic()
    while slow(agent, "slow", target.name) == 0:
        hurt = probe.ask("get 20000")
        expect(f"{name}: passed over within 30 s", time.monotonic() < began + 30, hurt)
    over_s = time.monotonic() - began
    after = [probe.ask("get 20000") for _ in range(5)]
    expect(f"{name}: nobody waits for it any more", min(a["seconds"] for a in after) < 1, after)
    expect(f"{name}: the blocks of the others came", after[0]["ok"] > COUNT / 3, after[0])
    wait_until(f"{name}: said in the log", lambda: f"enclosure {target.name}: slow: " in agent.log_tail())
    expect(f"{name}: said in the status", '"state":"slow"' in agent.get("/status")[1], "")
    time.sleep(3)
    expect(f"{name}: it stays so", slow(agent, "slow", target.name) == 1, agent.log_tail())
    end()
    mended = time.monotonic()
    wait_until(f"{name}: used again", lambda: slow(agent, "slow", target.name) == 0)
    back_s = time.monotonic() - mended
    whole = probe.ask("get 20000")
    expect(f"{name}: all blocks are there after", whole["ok"] == COUNT, whole)
    expect(f"{name}: slow once", slow(agent, "slow_total", target.name) == total + 1,
           agent.log_tail())
    print(f"ok {name}: passed over after {over_s:.2f} s, then a batch of {COUNT} took "
          f"{min(a['seconds'] for a in after):.3f} s, used again after {back_s:.2f} s")


def stores_scene(build, agent, target, probe, link):
    """Nobody loads: its stores are late."""
    def stored():
        return [slow(agent, "store_bytes_total", f"enclosure{i}") for i in range(3)]

    def puts_until(what, is_so):
        until = time.monotonic() + 60
        while not is_so():
            expect(f"stores: {what} within 60 s", time.monotonic() < until, agent.log_tail())
            probe.ask("put")

    def has_few():
        before = stored()
        probe.ask("put")
        new = [b - a for a, b in zip(before, stored())]
        return new[int(target.name[-1])] < sum(new) / 6

    expect("stores: a whole share before", slow(agent, "share", target.name) == 1, agent.log_tail())
    link.delay_s = 0.15
    puts_until("its share is lowered", lambda: slow(agent, "share", target.name) < 1)
    puts_until("it has few of the blocks", has_few)
    puts_until("said in the log",
               lambda: f"enclosure {target.name}: late now and then: " in agent.log_tail())
    puts_until("said by icms status", lambda: b"late now and then: takes " in subprocess.run(
        [build / "cmd" / "icms", "status", "--open", f"unix:{agent.socket}"],
        stdout=subprocess.PIPE, check=True, timeout=60).stdout)
    expect("stores: it stays in use", slow(agent, "slow_total", target.name) == 0, agent.log_tail())
    link.delay_s = 0.0
    puts_until("its share is whole", lambda: slow(agent, "share", target.name) == 1)
    whole = probe.ask("get 20000")
    expect("stores: all blocks are there after", whole["ok"] == COUNT, whole)
    print("ok stores")


def main():
    build = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="icms-") as folder, pod.Pod(build, folder) as p:
        targets = [p.add_target(f"enclosure{i}", 1, "64MiB", [VOLUME], segment="4MiB",
                                memory="32MiB") for i in range(3)]
        for target in targets:
            target.wait_ready()
        proxies = [proxy.Proxy(target.port) for target in targets]
        doors = [types.SimpleNamespace(name=target.name, nqn=target.nqn, port=link.port)
                 for target, link in zip(targets, proxies)]
        agent = p.add_agent("server-a", doors, [VOLUME], silence="2s")
        agent.wait_ready()
        probe = Probe(build, f"unix:{agent.socket}", COUNT, BYTES)
        probe.ask("put")
        stores_scene(build, agent, targets[2], probe, proxies[2])
        scene("300 ms", agent, targets[0], probe,
              lambda: setattr(proxies[0], "delay_s", 0.15),
              lambda: setattr(proxies[0], "delay_s", 0.0))
        # A block alone takes 240 ms: late on a busy machine, too.
        scene("250 kB/s", agent, targets[1], probe,
              lambda: setattr(proxies[1], "bytes_per_s", 250000),
              lambda: setattr(proxies[1], "bytes_per_s", 0))
        before = agent.metrics()
        for link in proxies:
            link.delay_s = 0.15
        until = time.monotonic() + 6
        while time.monotonic() < until:
            probe.ask("get 20000")
        for target in targets:
            name = f'icms_agent_enclosure_slow_total{{enclosure="{target.name}"}}'
            expect("a pod that is far away loses nobody", agent.metrics()[name] == before[name],
                   agent.log_tail())
        print("ok 300 ms everywhere")
        for link in proxies:
            link.delay_s = 0.0
        other = p.add_agent("server-b", targets, [dict(VOLUME, run_blocks=32)])
        other.wait_ready()
        wait_until("the agent names the setting",
                 lambda: "volume kv: run_blocks is 32 here, and 8 at other hosts" in other.log_tail())
        wait_until("the target names the host",
                 lambda: "run_blocks of volume kv is 32, and 8 at other hosts" in targets[0].log_tail())
        expect("counted", slow(other, "settings_differ", targets[0].name) == 1, "")
        expect("the other one is right", slow(agent, "settings_differ", targets[0].name) == 0, "")
        print("ok settings that differ")


if __name__ == "__main__":
    main()
