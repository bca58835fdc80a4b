#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two volumes of an agent share its memory.

Goal: the volume that is used has the memory, an idle one keeps its floor, clients read the right bytes
where the memory changed hands, and the process never has more of it.
Method: an icms-agent with a drive of its own, and the icms program that stores and loads blocks.

usage: memory.py BUILD_ROOT
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from judge import expect

MIB = 1 << 20
MEMORY, FLOOR, BLOCKS, BYTES = 12 * MIB, 3 * MIB, 48, 400000
OTHER = 16 * 600 * 1024 + 4 * MIB  # the drive's buffers, tables, and what clients stage

CONFIG = f"""
name: node
socket: %(folder)s/agent.sock
http: {{listen: none}}
local: {{path: %(folder)s/drive, size: 256MiB, segment: 16MiB}}
memory: {MEMORY}
volumes:
- {{name: chat, value_max: 512KiB, memory_min: {FLOOR}}}
- {{name: batch, value_max: 512KiB}}
"""


class Machine:
    def __init__(self, build, folder):
        self.icms, self.socket = build / "cmd/icms", folder / "agent.sock"
        config = folder / "agent.yaml"
        config.write_text(CONFIG % {"folder": folder})
        self.agent = subprocess.Popen([build / "cmd/icms-agent", "--config", config],
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.agent.stdout:
            if "ready" in line:
                return
        sys.exit("not ok the agent did not start")

    def run(self, command, *arguments, data=None):
        result = subprocess.run([self.icms, command, "--open", f"unix:{self.socket}", *arguments],
                                input=data, capture_output=True, timeout=60, check=False)
        if result.returncode != 0:
            sys.exit(f"not ok icms {command} {arguments}: {result.stderr}")
        return result.stdout

    def memory(self):
        """What each volume has, by name; it is no more than there is, also for the kernel."""
        status = json.loads(self.run("status", "--json"))
        has = {volume["name"]: volume["arena_bytes"] for volume in status["volumes"]}
        rss = pathlib.Path(f"/proc/{self.agent.pid}/status").read_text().split("RssShmem:")[1]
        if sum(has.values()) > status["memory_bytes"] or status["memory_bytes"] > MEMORY:
            sys.exit(f"not ok the limit of the memory: {status}")
        if int(rss.split()[0]) << 10 > MEMORY + OTHER:
            sys.exit(f"not ok the agent has {rss.split()[0]} KiB of shared memory")
        return has


def value(volume, n):
    return f"{volume} {n} ".encode() * BYTES


def use(machine, volume):
    """Stores and loads blocks that are much more than the memory."""
    for n in range(BLOCKS):
        data = value(volume, n)[:BYTES + n]
        machine.run("put", "-v", volume, f"key {n}", data=data)
        if machine.run("get", "-v", volume, f"key {n}") != data:
            sys.exit(f"not ok block {n} of {volume} has other bytes")
    return machine.memory()


def main():
    build = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="icms-") as name:
        machine = Machine(build, pathlib.Path(name))
        try:
            has = use(machine, "chat")
            expect("the volume that is used has the memory", has["chat"] > MEMORY * 0.8, has)
            time.sleep(1.5)
            has = use(machine, "batch")
            expect("memory of an idle volume goes to the other", has["batch"] > MEMORY * 0.6, has)
            expect("the idle volume keeps its floor", FLOOR <= has["chat"] < FLOOR + MIB, has)
            for volume in ("chat", "batch"):
                for n in range(BLOCKS):
                    if machine.run("get", "-v", volume, f"key {n}") != value(volume, n)[:BYTES + n]:
                        sys.exit(f"not ok block {n} of {volume} has other bytes")
            machine.memory()
            print("ok all bytes are right")
        finally:
            machine.agent.terminate()
            machine.agent.wait()


if __name__ == "__main__":
    main()
