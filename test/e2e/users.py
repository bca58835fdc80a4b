#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Users of one machine share an agent.

Goal: a process gets the volumes of its user and its groups; to others such a volume does not exist,
and one user cannot take all places.
Method: an icms-agent with a drive of its own, and the icms program run by several users, who need
not have names. Only root can do that; without it the test is skipped.

usage: users.py BUILD_ROOT
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from judge import expect

OWNER, MEMBER, OTHER = 61001, 61002, 61003
GROUP = 61010

CONFIG = f"""
name: node
socket: %(folder)s/run/agent.sock
socket_mode: 0666
user_clients_max: 2
http: {{listen: none}}
local: {{path: %(folder)s/drive, size: 64MiB, segment: 1MiB}}
volumes:
- {{name: open, value_max: 64KiB, memory_max: 1MiB}}
- {{name: theirs, value_max: 64KiB, memory_max: 1MiB, users: [{OWNER}], groups: [{GROUP}]}}
"""


class Machine:
    def __init__(self, build, folder):
        self.folder = folder
        self.icms = folder / "icms"
        shutil.copy(build / "cmd/icms", self.icms)
        self.icms.chmod(0o755)
        config = folder / "agent.yaml"
        config.write_text(CONFIG % {"folder": folder})
        self.agent = subprocess.Popen([build / "cmd/icms-agent", "--config", config],
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.agent.stdout:
            if "ready" in line:
                return
        sys.exit("not ok the agent did not start")

    def command(self, arguments):
        return [self.icms, arguments[0], "--open", f"unix:{self.folder}/run/agent.sock",
                *arguments[1:]]

    def run(self, user, groups, *arguments, data=None):
        return subprocess.run(self.command(arguments), input=data, capture_output=True, timeout=60,
                              user=user, group=user, extra_groups=groups, check=False, cwd="/")

    def hold(self, user):
        """A client that stays attached: it waits for a value that does not come."""
        return subprocess.Popen(self.command(["put", "-v", "open", "late"]), user=user, group=user,
                                extra_groups=[], stdin=subprocess.PIPE, cwd="/",
                                stderr=subprocess.DEVNULL)


def clients(machine):
    return json.loads(machine.run(0, [], "status", "--json").stdout)["clients"]


def volumes(machine):
    result = machine.run(OWNER, [], "put", "-v", "theirs", "key", data=b"value")
    expect("a user of the list stores", result.returncode == 0, result)
    result = machine.run(MEMBER, [GROUP], "get", "-v", "theirs", "key")
    expect("a member of the group loads", result.stdout == b"value", result)
    result = machine.run(0, [], "get", "-v", "theirs", "key")
    expect("root loads", result.stdout == b"value", result)
    forbidden = machine.run(OTHER, [], "get", "-v", "theirs", "key")
    absent = machine.run(OTHER, [], "get", "-v", "nothing", "key")
    expect("others are told that there is no such volume",
           forbidden.returncode == 2 and forbidden.stdout == b"" and
           forbidden.stderr.replace(b"theirs", b"nothing") == absent.stderr and
           b"this user may not use it" in absent.stderr and b"host" not in absent.stderr, (forbidden, absent))
    result = machine.run(OTHER, [], "status", "--json")
    expect("others do not see it in the status",
           b"open" in result.stdout and b"theirs" not in result.stdout, result)
    result = machine.run(OTHER, [], "put", "-v", "open", "key", data=b"value")
    expect("others use the volume without lists", result.returncode == 0, result)


def places(machine):
    holders = [machine.hold(OTHER) for _ in range(2)]
    while clients(machine) < 2:
        pass
    result = machine.run(OTHER, [], "exists", "-v", "open", "key")
    expect("a user has its places",
           result.returncode == 2 and b"user_clients_max" in result.stderr, result)
    result = machine.run(MEMBER, [], "exists", "-v", "open", "key")
    expect("others have theirs", result.returncode == 0, result)
    for holder in holders:
        holder.kill()
        holder.wait()


def main():
    if os.geteuid() != 0:
        print("skip: only root can be several users")
        sys.exit(77)
    build = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="icms-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        machine = Machine(build, folder)
        try:
            volumes(machine)
            places(machine)
        finally:
            machine.agent.terminate()
            machine.agent.wait()


main()
