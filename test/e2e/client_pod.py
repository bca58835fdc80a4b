#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libicms with real daemons.

Goal: the contract of icms.h holds through an agent and with the agent in the process; a client sees
a stopped, a dead and a restarted agent as icms.h says; an agent takes the memory of its arenas at the
start when it is told to.
Method: two enclosures and an agent on loopback; client_contract on unix: and pod:, client_faults; the
same with an agent of three reactors; the shared memory that the kernel counts for agents that nobody
used yet.

usage: client_pod.py BUILD_ROOT
"""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402

VOLUME = {"name": "kv", "memory_max": "128MiB"}


def run(what, command, **more):
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, **more)
    if result.returncode != 0:
        sys.exit(f"{what}: exit status {result.returncode}\n{result.stdout}{result.stderr}")
    print(f"ok {what}")


def faults(build, agent):
    """Lets client_faults stop and kill the agent, and starts another one when it asks for it."""
    client = subprocess.Popen([build / "test/e2e/client_faults", f"unix:{agent.socket}",
                               str(agent.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True)
    for line in client.stdout:
        print(line.strip())
        if line.strip() == "killed ok":
            agent.process.wait()
            agent.start()
            agent.wait_ready()
            client.stdin.write("go on\n")
            client.stdin.flush()
    if client.wait(timeout=60) != 0:
        sys.exit("client_faults failed")


def shared_mib(agent):
    status = pathlib.Path(f"/proc/{agent.pid}/status").read_text()
    return int(status.split("RssShmem:")[1].split()[0]) >> 10


def prefault(p, targets, agent):
    other = p.add_agent("server-b", targets, [VOLUME], prefault="true")
    other.wait_ready()
    if shared_mib(other) < 100 or shared_mib(agent) > 32:
        sys.exit(f"prefault: {shared_mib(other)} MiB of arena with it, {shared_mib(agent)} without")
    other.stop()
    print("ok prefault")


def main():
    build = pathlib.Path(sys.argv[1])
    contract = build / "test/e2e/client_contract"
    with tempfile.TemporaryDirectory(prefix="icms-") as folder:
        with pod.Pod(build, folder) as p:
            targets = [p.add_target(f"enclosure{i}", 2, "256MiB", [VOLUME], segment="16MiB",
                                    memory="64MiB") for i in range(2)]
            for target in targets:
                target.wait_ready()
            agent = p.add_agent("server-a", targets, [VOLUME])
            agent.wait_ready()
            prefault(p, targets, agent)
            run("unix", [contract, f"unix:{agent.socket}"])
            run("pod", [contract, f"pod:{agent.config_path}"])
            run("hello", [build / "examples/hello", f"unix:{agent.socket}"])
            faults(build, agent)
            agent.stop()
            reactors = p.add_agent("server-c", targets, [VOLUME], loops=3, silence="5s",
                                   connect_timeout="5s")
            reactors.wait_ready()
            run("unix, three reactors", [contract, f"unix:{reactors.socket}"])
            run("pod, three reactors", [contract, f"pod:{reactors.config_path}"])
            faults(build, reactors)


main()
