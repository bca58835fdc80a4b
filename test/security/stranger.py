#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attack: a stranger, and a host that wants what is another's, at the data port of an enclosure.

Goal, of the attacker: to tell an absent volume, a foreign one and a forbidden one apart; to reach a
volume without proof; to become a queue of another host's controller; to learn which hosts are known;
to fill the logs. Each is tried with every command, and each has to fail.
Method: a real icms-target on loopback and the bytes of NVMe/TCP, without libicms.

usage: stranger.py BUILD_ROOT
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import nvme  # noqa: E402
import pod  # noqa: E402

MINE, OTHER, NOBODY = (f"nqn.2026-01.org.example:{name}" for name in ("mine", "other", "nobody"))
OWN, FOREIGN, FORBIDDEN, ABSENT = 1, 2, 3, 4  # NSIDs, in the order of the file
VOLUMES = [{"name": "own", "sealed": "false", "hosts": f"['{MINE}']"},
           {"name": "foreign", "sealed": "false", "hosts": f"['{OTHER}']"},
           {"name": "forbidden", "sealed": "false", "hosts": f"['{MINE}']", "require": "tls"}]


def connect(target, host, **more):
    return nvme.Queue(target.port, host, target.nqn, **more)


def refusal(target, host, **more):
    """(status, dw0) with which Connect is refused; it has to be."""
    try:
        connect(target, host, **more).close()
    except nvme.Refused as refused:
        return refused.answer
    raise AssertionError(f"{host} was let in")


def volumes_look_alike(target):
    other = connect(target, OTHER).enable()
    theirs = connect(target, OTHER, qid=1, cntlid=other.cntlid)
    status, _ = theirs.command(nvme.STORE, FOREIGN, b"0123456789abcdef", data=b"secret" * 40, cdw10=240)
    assert status == 0, hex(status)
    assert theirs.command(nvme.EXIST, 0, b"0123456789abcdef")[0] == nvme.NAMESPACE  # agents ask so: alive?
    admin = connect(target, MINE).enable()
    queue = connect(target, MINE, qid=1, cntlid=admin.cntlid)
    own = dict((name, status) for name, status, _ in nvme.every_command(queue, OWN))
    assert nvme.NAMESPACE not in own.values(), own
    for what in (nvme.every_command, nvme.every_page):
        on = admin if what is nvme.every_page else queue
        absent = what(on, ABSENT)
        assert what(on, FOREIGN) == absent, (what(on, FOREIGN), absent)
        assert what(on, FORBIDDEN) == absent, (what(on, FORBIDDEN), absent)
        assert all(status == nvme.NAMESPACE for name, status, _ in absent if name != "identify 0x0"), absent
        assert not any(data.strip(b"\0") for _, _, data in absent), absent
    for cns in (0x02, 0x07):
        status, page = admin.identify(cns, 0, 1 if cns == 0x07 else 0)
        found = [nsid for nsid in struct.unpack("<1024I", page) if nsid]
        assert status == 0 and found == [OWN], found
    status, page = admin.log(0x04, 4096)
    assert status == 0 and not page.strip(b"\0"), "changed namespaces"
    status, data = theirs.command(nvme.RETRIEVE, FOREIGN, b"0123456789abcdef", 4096, cdw10=4096)
    assert (status, data[:240]) == (0, b"secret" * 40), "the attacks changed what the other one has"
    print("ok absent, foreign and forbidden volumes answer alike, to every command")
    return admin, other


def queues_are_not_taken(target, admin, other):
    mine = connect(target, MINE, qid=2, cntlid=admin.cntlid)
    mine.close()
    for host, host_id in ((MINE, nvme.HOST_ID), (NOBODY, nvme.HOST_ID), (OTHER, b"\x22" * 16)):
        status, _ = refusal(target, host, qid=1, cntlid=other.cntlid, host_id=host_id)
        assert status == nvme.CONNECT_PARAM, hex(status)
    print("ok no queue of another host's controller")


def discovery_hides(target):
    def entries(host):
        queue = nvme.Queue(target.port, host, nvme.DISCOVERY).enable()
        status, page = queue.log(0x70, 4096)
        queue.close()
        assert status == 0
        return [page[1024 * i:1024 * (i + 1)] for i in range(1, 1 + struct.unpack_from("<Q", page, 8)[0])]

    shown = {host: any(target.nqn.encode() in entry for entry in entries(host))
             for host in (MINE, OTHER, NOBODY)}
    assert shown == {MINE: True, OTHER: True, NOBODY: False}, shown
    assert refusal(target, NOBODY) == refusal_elsewhere(target, NOBODY)
    print("ok discovery shows a host what it may use, and Connect says no more")


def refusal_elsewhere(target, host):
    """What Connect answers of a subsystem that does not exist."""
    try:
        nvme.Queue(target.port, host, "nqn.2026-01.org.example:nothing").close()
    except nvme.Refused as refused:
        return refused.answer
    raise AssertionError("a subsystem that does not exist")


def unauthenticated(target):
    """Nothing but authentication is served before authentication, whoever asks."""
    answers = {}
    for host in (MINE, OTHER, NOBODY):  # with a secret, with TLS alone, not known
        admin = connect(target, host)
        dw0 = admin.dw0 >> 16
        said = [status for _, status, _ in nvme.every_page(admin, OWN)]
        said += [admin.identify(cns)[0] for cns in (0x01, 0x02)] + [admin.log(0x02, 512)[0]]
        said += [admin.command(0x18)[0]]
        answers[host] = (dw0, said)
        assert set(said) == {nvme.AUTH_REQUIRED}, [hex(status) for status in said]
        status, dw0 = refusal(target, host, qid=1, cntlid=admin.cntlid)
        answers[host] += (status, dw0)
        admin.close()
    assert answers[MINE] == answers[NOBODY] and answers[OTHER] == answers[NOBODY], answers
    print("ok without authentication nothing is served, and hosts are not told apart")


def logs_are_bounded(target, folder):
    for number in range(300):
        try:
            connect(target, f"nqn.2026-01.org.example:flood{number}").close()
        except nvme.Refused:
            pass
    time.sleep(2)
    lines = [json.loads(line) for line in (folder / "audit").read_text().splitlines()]
    refused = [line for line in lines if line["event"] == "refusal"]
    named = [line for line in refused if line["host"] == MINE and "namespace" in line["result"]]
    assert len(named) == 1, "one line for a controller that names what it may not use"
    assert not [line for line in refused if line["host"] == OTHER], "who names nothing is not refused"
    flood = [line for line in refused if "flood" in line["host"]]
    assert 1 <= len(flood) <= 12, len(flood)
    assert target.log_path.read_text().count("flood") <= 12
    assert [line["volume"] for line in lines if line["event"] == "volume"] == \
        ["own", "foreign", "forbidden"], lines[:5]
    print(f"ok 300 refusals are {len(flood)} lines")


def main(build, folder):
    subprocess.run([build / "cmd/icms", "key", "gen", folder / "secret"], check=True, capture_output=True)
    subprocess.run([build / "cmd/icms", "key", "gen", "--type", "tls", folder / "psk"], check=True,
                   capture_output=True)
    with pod.Pod(build, folder) as p:
        hosts = f"[{{nqn: '{OTHER}', psks: [{folder}/psk], require: none}}]"
        target = p.add_target("enclosure0", 1, "512MiB", VOLUMES, hosts=hosts, audit=folder / "audit")
        target.wait_ready()
        admin, other = volumes_look_alike(target)
        queues_are_not_taken(target, admin, other)
        discovery_hides(target)
        logs_are_bounded(target, folder)
        assert target.stop() == 0
        hosts = (f"[{{nqn: '{MINE}', secrets: [{folder}/secret]}}, "
                 f"{{nqn: '{OTHER}', psks: [{folder}/psk], require: tls}}]")
        closed = p.add_target("enclosure1", 1, "512MiB", [{"name": "own"}], hosts=hosts, require="chap")
        closed.wait_ready()
        unauthenticated(closed)
        assert closed.stop() == 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="icms-security-") as scratch:
        main(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(scratch))
