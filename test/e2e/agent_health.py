#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An enclosure that is killed, stopped or cut off, as the processes of a GPU server see it.

Goal: whatever happens to one of two enclosures, a batch of gets is over long before its deadline,
brings what the other one has, byte for byte, and misses the rest with reason enclosure_down; the agent
says which enclosure is out, probes it, and takes it back, with its blocks, when it answers again;
a client that is killed leaves nothing behind; a busy enclosure is not taken for a dead one.
Method: real daemons on the loopback of a network namespace of their own, in which nftables drops
the packets of one enclosure: SIGKILL, SIGSTOP and a black hole, in turn.

usage: agent_health.py BUILD_ROOT
"""
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import Probe, expect, wait_until  # noqa: E402

VOLUME = {"name": "kv", "value_max": "64KiB", "memory_max": "1MiB"}
COUNT, BYTES = 300, 60000
# The deadline of gets, and half of it: only gets that wait for their deadline take that long, on a
# loaded machine, too.
DEADLINE_MS, BEFORE_S = 40000, 20
INSIDE = "ICMS_HEALTH_INSIDE"


def nft(*words):
    subprocess.run(["nft", *words], check=True)


def cut(target):
    nft("add", "table", "inet", "hole")
    nft("add", "chain", "inet", "hole", "out",
        "{ type filter hook output priority 0; policy accept; }")
    for end in ("sport", "dport"):
        nft("add", "rule", "inet", "hole", "out", "tcp", end, str(target.port), "drop")


def mend():
    nft("delete", "table", "inet", "hole")


def revive(target):
    target.process.wait()
    target.start()
    target.wait_ready()


DEATHS = {
    "SIGKILL": (lambda target: target.signal(signal.SIGKILL), revive),
    "SIGSTOP": (lambda target: target.signal(signal.SIGSTOP),
                lambda target: target.signal(signal.SIGCONT)),
    "black hole": (cut, lambda target: mend()),
}


def up(agent, target):
    return agent.metrics()[f'icms_agent_enclosure_state{{enclosure="{target.name}"}}'] == 1


def scene(name, agent, target, probe):
    """One enclosure dies of this, and comes back."""
    die, back = DEATHS[name]
    whole = probe.ask(f"get {DEADLINE_MS}")
    expect(f"{name}: all blocks are there before", whole["ok"] == COUNT, whole)
    before = agent.metrics()
    exclusions = f'icms_agent_enclosure_exclusions_total{{enclosure="{target.name}"}}'
    die(target)
    hurt = probe.ask(f"get {DEADLINE_MS}")
    expect(f"{name}: over before its deadline", hurt["seconds"] < BEFORE_S, hurt)
    expect(f"{name}: nothing wrong", hurt["wrong"] == 0, hurt)
    expect(f"{name}: the other enclosure's blocks came", hurt["ok"] > COUNT / 5, hurt)
    expect(f"{name}: the rest is enclosure_down", hurt["ok"] + hurt["enclosure_down"] == COUNT,
           hurt)
    expect(f"{name}: some were lost", hurt["enclosure_down"] > COUNT / 5, hurt)
    again = probe.ask(f"get {DEADLINE_MS}")
    expect(f"{name}: then misses come at once", again["seconds"] < BEFORE_S, again)
    after = agent.metrics()
    expect(f"{name}: excluded once", after[exclusions] == before[exclusions] + 1, after[exclusions])
    expect(f"{name}: said in the status", '"state":"excluded"' in agent.get("/status")[1], "")
    expect(f"{name}: ready with the other one", agent.get("/readyz")[0] == 200, "")
    back(target)
    wait_until(f"{name}: taken back", lambda: up(agent, target), 60)
    whole = probe.ask(f"get {DEADLINE_MS}")
    expect(f"{name}: all blocks are there after", whole["ok"] == COUNT, whole)
    print(f"ok {name}: {hurt['seconds']:.3f} s, {hurt['ok']} came, {hurt['enclosure_down']} down")


def killed_client(build, agent, targets):
    """Its leases and requests go with it."""
    client = Probe(build, f"unix:{agent.socket}", COUNT, BYTES)
    client.ask("hang")
    wait_until("two clients", lambda: agent.metrics()["icms_agent_clients"] == 2, 60)
    expect("leases are held", agent.metrics()['icms_agent_arena_leased_slots{volume="kv"}'] >= 4, "")
    client.kill()
    wait_until("one client", lambda: agent.metrics()["icms_agent_clients"] == 1, 60)
    expect("no lease is left", agent.metrics()['icms_agent_arena_leased_slots{volume="kv"}'] == 0, "")
    expect("no request is left", agent.metrics()["icms_agent_requests_in_flight"] == 0, "")
    print("ok killed client")


def none_left(agent, targets, probe):
    """Without any enclosure it answers, and says that it is not ready."""
    for target in targets:
        target.signal(signal.SIGSTOP)
    wait_until("not ready", lambda: probe.ask("get 300")["seconds"] < BEFORE_S and
               agent.get("/readyz")[0] == 503, 60)
    expect("why", "enclosures" in agent.get("/readyz")[1], agent.get("/readyz"))
    for target in targets:
        target.signal(signal.SIGCONT)
    wait_until("ready again", lambda: agent.get("/readyz")[0] == 200, 60)
    print("ok no enclosure")


def no_descriptors(agent, target):
    """An enclosure that cannot be connected to for a reason of this machine is down for that, in the log, too."""
    target.signal(signal.SIGKILL)
    wait_until("down", lambda: not up(agent, target), 60)
    limits = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    revive(target)
    # The first probe may have found the port closed and said so: another reason is said 30 s later.
    wait_until("its own descriptors are named", lambda: any(
        "enclosure0: still down:" in line and "open files" in line
        for line in agent.log_path.read_text().splitlines()), 90)
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, limits)
    wait_until("connected again", lambda: up(agent, target), 60)
    print("ok no descriptors")


def ready_is_ready(p, targets):
    """An agent that says that it is ready lets clients in, also when an enclosure made it wait."""
    targets[0].signal(signal.SIGSTOP)
    agent = p.add_agent("server-b", targets, [VOLUME])
    agent.wait_ready()
    expect("its socket is there", agent.socket.exists(), agent.log_tail())
    targets[0].signal(signal.SIGCONT)
    expect("it ends as asked", agent.stop() == 0, agent.log_tail())
    print("ok ready is ready")


def inside(build):
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="icms-") as folder, pod.Pod(build, folder) as p:
        targets = [p.add_target(f"enclosure{i}", 1, "128MiB", [VOLUME], segment="4MiB",
                                memory="32MiB") for i in range(2)]
        for target in targets:
            target.wait_ready()
        agent = p.add_agent("server-a", targets, [VOLUME])
        agent.wait_ready()
        wait_until("both are up", lambda: all(up(agent, target) for target in targets), 60)
        probe = Probe(build, f"unix:{agent.socket}", COUNT, BYTES)
        stored = probe.ask("put")
        expect("all are stored", stored["ok"] == COUNT, stored)
        for name in DEATHS:
            scene(name, agent, targets[0], probe)
        killed_client(build, agent, targets)
        none_left(agent, targets, probe)
        no_descriptors(agent, targets[0])
        ready_is_ready(p, targets)
        agent.signal(signal.SIGTERM)
        expect("it ends as asked", agent.process.wait(timeout=30) == 0, agent.log_tail())


def main():
    if os.environ.get(INSIDE):
        inside(pathlib.Path(sys.argv[1]))
        return
    os.environ[INSIDE] = "1"
    # A network of its own: nothing outside is touched. Root makes one as it is (in a chroot it may
    # not make users); anybody else becomes root in a user namespace.
    for flags in (["--net"], ["--user", "--map-root-user", "--net"]):
        tried = subprocess.run(["unshare", *flags, "nft", "list", "ruleset"], capture_output=True,
                               check=False)
        if tried.returncode == 0:
            os.execvp("unshare", ["unshare", *flags, sys.executable, *sys.argv])
    print(f"skipped: no network namespace can be made here: {tried.stderr.decode().strip()}")
    sys.exit(77)


main()
