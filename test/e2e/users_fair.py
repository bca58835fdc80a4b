#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Users of one machine store through one agent, more than the enclosure takes.

Goal: a user that floods stores does not get those of another one shed; two that flood get the same;
volumes get what their weights say; and `icms status` tells who waited for whom.
Method: a real target whose drive is slow (the fault loop.write), one agent, and clients of several
users, who need not have names, that offer stores at a rate and do not wait for answers. Only root can
do that; without it the test is skipped. How exact the parts are is judged in the simulation
(src/agent/access_test.c).

usage: users_fair.py BUILD_ROOT
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import Client, expect  # noqa: E402

FIRST, SECOND = 61001, 61002
BYTES = 16000
FLOOD = 3000  # blocks a second, several times what the drive takes
CALM = 60     # a small part of what it takes
WRITE_MS = 20
SECONDS = 4
# One tenant: the enclosure does not divide what the agent sends.
VOLUMES = [{"name": name, "tenant": "all", "value_max": "16KiB", "memory_max": "16MiB", "weight": weight}
           for name, weight in (("heavy", 3), ("light", 1))]


def client_of(folder, agent, user, volume, seed):
    """A client as a user, which reaches nothing but the folder."""
    return Client(folder / "overload_client", agent, volume, seed, BYTES, user=user, group=user,
                  extra_groups=[], cwd="/", env={**os.environ, "LD_LIBRARY_PATH": str(folder)})


def storm(*clients):
    """What each got that offered so many blocks a second."""
    for client, rate in clients:
        client.tell(f"storm {SECONDS} {rate}")
    return [client.answer() for client, _ in clients]


def status(build, agent, user):
    result = subprocess.run([build / "cmd/icms", "status", "--open", f"unix:{agent.socket}", "--json"],
                            capture_output=True, timeout=60, check=False)
    users = json.loads(result.stdout)["users"]
    return {(line["user"], line["volume"]): line for line in users if line["user"] == str(user)}


def main():
    if os.geteuid() != 0:
        print("skip: only root can be several users")
        sys.exit(77)
    build = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="icms-", dir="/var/tmp") as name, pod.Pod(build, name) as p:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        for path in (build / "test/e2e/overload_client", build / "src/client/libicms.so.0"):
            shutil.copy(path, folder / path.name)
            (folder / path.name).chmod(0o755)
        target = p.add_target("enclosure0", 1, "64MiB", VOLUMES, segment="1MiB", memory="16MiB",
                              tenants=[{"name": "all"}],
                              faults=f"loop.write:1:slow={WRITE_MS * 1000}")
        target.wait_ready()
        agent = p.add_agent("server-0", [target], VOLUMES, socket_mode="0666", store_backlog="2MiB",
                            client_memory="16MiB", memory="64MiB", silence="60s", keep_alive="60s")
        agent.wait_ready()
        first, second, heavy = (client_of(folder, agent, *who) for who in
                                ((FIRST, "light", 1), (SECOND, "light", 2), (SECOND, "heavy", 3)))
        flood, calm = storm((first, FLOOD), (second, CALM))
        print(f"   flood {flood['acked']} of {flood['offered']}, calm {calm['acked']} of {calm['offered']}")
        expect("a flood is shed", flood["shed"] > flood["offered"] / 10, flood)
        expect("what another user stores meanwhile is not", calm["acked"] >= 0.9 * calm["offered"], calm)
        equal = [result["acked"] for result in storm((first, FLOOD), (second, FLOOD))]
        expect("two users that flood get the same", 0.4 <= equal[0] / sum(equal) <= 0.6, equal)
        weighted = [result["acked"] for result in storm((heavy, FLOOD), (first, FLOOD))]
        expect("a volume of three times the weight gets two to four times as much",
               2 <= weighted[0] / weighted[1] <= 4, weighted)
        lines = status(build, agent, FIRST)
        line = lines[(str(FIRST), "light")]
        expect("status tells what a user did", line["sheds"] > 0 and line["store_bytes"] > 0 and
               line["weight"] == 1 and line["clients"] == 1, line)
        expect("and metrics do", agent.metrics()[
            f'icms_agent_user_sheds_total{{user="{FIRST}",volume="light"}}'] >= line["sheds"], line)
        for client in (first, second, heavy):
            client.end()


main()
