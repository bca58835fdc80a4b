#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Values that another version of icms stored, between real daemons.

Goal: in a plain and in an encrypted volume such a value is a miss with reason version, stays where it
is, is not damage in any counter, and is told in the log of the agent once, not for each get; a put that
does not replace finds it, one that does replaces it. A version byte that was flipped is damage, and a
put that does not replace repairs it.
Method: an enclosure and an agent on loopback; an NVMe host that changes the trailer of what the icms
program put, with the checksum of the trailer and without.

usage: version.py BUILD_ROOT
"""
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "test/security")]
import nvme  # noqa: E402
import pod  # noqa: E402
from judge import expect  # noqa: E402

VOLUMES = [{"name": "kv", "value_max": "64KiB", "memory_max": "4MiB"},
           {"name": "vault", "value_max": "64KiB", "memory_max": "4MiB", "encrypted": "true"}]
TRAILER = 64
WAIT_S = 60


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82f63b78 * (crc & 1)
    return crc ^ 0xffffffff


class Host:
    """An NVMe host of one volume with one block."""

    def __init__(self, target, nsid):
        host = "nqn.2026-01.org.example:other-version"
        self.nsid = nsid
        self.admin = nvme.Queue(target.port, host, target.nqn).enable()
        self.io = nvme.Queue(target.port, host, target.nqn, qid=1, cntlid=self.admin.cntlid)

    def keys(self):
        status, data = self.io.command(nvme.LIST, self.nsid, length=4096, cdw10=4096)
        assert status == 0, hex(status)
        count, at, keys = struct.unpack_from("<I", data)[0], 4, []
        for _ in range(count):
            length = struct.unpack_from("<H", data, at)[0]
            keys.append(data[at + 2:at + 2 + length])
            at += (2 + length + 3) // 4 * 4
        return keys

    def read(self):
        status, data = self.io.command(nvme.RETRIEVE, self.nsid, self.keys()[0], 8192, cdw10=8192)
        assert status == 0, hex(status)
        return data

    def version_set(self, version, whole):
        """Changes the version of the block, and the trailer's checksum with it, or not."""
        stored = bytearray(self.read())
        stored[-TRAILER + 4] = version
        if whole:
            stored[-4:] = struct.pack("<I", crc32c(stored[-TRAILER:-4]))
        status, _ = self.io.command(nvme.STORE, self.nsid, self.keys()[0], data=bytes(stored),
                                    cdw10=len(stored))
        assert status == 0, hex(status)
        return bytes(stored)


def restart(agent):
    """What it has in memory is gone."""
    agent.stop()
    agent.start()
    agent.wait_ready()


def metric(daemon, name):
    return sum(value for key, value in daemon.metrics().items() if key.startswith(name))


def wait_metric(agent, volume, wanted):
    name = f'icms_agent_misses_total{{reason="version",volume="{volume}"}}'
    agent.wait_until(f"{name} is {wanted}", lambda: agent.metrics().get(name) == wanted)


def wait_line(agent, volume, wanted):
    """The lines about a volume in the log are as many, and no more."""
    line = f"volume {volume}: blocks are misses, since another version"
    agent.wait_log(line, wanted)
    count = agent.log_path.read_text().count(line)
    expect(f"{volume}: told once by each agent", count == wanted, count)


def main():
    build = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="icms-") as folder, pod.Pod(build, folder) as p:
        subprocess.run([build / "cmd/icms", "key", "gen", "--type", "volume", f"{folder}/key"],
                       check=True, stdout=subprocess.DEVNULL)
        pathlib.Path(folder, "keys").write_text(
            f"volumes:\n  - name: vault\n    keys:\n      - {{id: 1, file: {folder}/key}}\n")
        target = p.add_target("enclosure0", 2, "64MiB", VOLUMES, segment="1MiB", memory="16MiB")
        target.wait_ready()
        agent = p.add_agent("server-a", [target], VOLUMES)
        agent.wait_ready()

        def icms(volume, *arguments, value=None, where=f"unix:{agent.socket}"):
            return subprocess.run([build / "cmd/icms", arguments[0], "--open", where,
                                   "--volume", volume, "--keys",
                                   f"{folder}/keys", *arguments[1:]], input=value,
                                  capture_output=True, text=True, timeout=WAIT_S)

        for nsid, volume in enumerate(("kv", "vault"), 1):
            host = Host(target, nsid)
            put = icms(volume, "put", "--on-flash", "block", value="one of ours")
            expect(f"{volume}: stored", put.returncode == 0, put)
            stored = host.version_set(host.read()[-TRAILER + 4] + 1, True)
            restart(agent)
            for _ in range(3):
                got = icms(volume, "get", "block")
                expect(f"{volume}: a miss that says why", got.returncode == 1 and
                       got.stdout == "" and "(version)" in got.stderr, got)
                wait_line(agent, volume, 1)
            got = icms(volume, "get", "block", where=f"pod:{agent.config_path}")
            expect(f"{volume}: an agent inside a process says so, too", got.returncode == 1 and
                   got.stdout == "" and "(version)" in got.stderr, got)
            put = icms(volume, "put", "--on-flash", "--if-absent", "block", value="two")
            expect(f"{volume}: in the way of a put that does not replace", put.returncode != 0, put)
            restart(agent)
            got = icms(volume, "get", "block")
            expect(f"{volume}: still a miss", "(version)" in got.stderr, got)
            wait_metric(agent, volume, 1)
            expect(f"{volume}: it stayed as it was", host.read() == stored)
            expect(f"{volume}: and is not damage",
                   metric(agent, "icms_agent_checksum_errors") == 0 and
                   metric(target, "icms_target_drive_checksum_errors") == 0)
            wait_line(agent, volume, 2)
            put = icms(volume, "put", "--on-flash", "block", value="three")
            expect(f"{volume}: replaced", put.returncode == 0, put)
            restart(agent)
            got = icms(volume, "get", "block")
            expect(f"{volume}: read", got.stdout == "three", got)

            host.version_set(host.read()[-TRAILER + 4] + 1, False)
            restart(agent)
            got = icms(volume, "get", "block")
            expect(f"{volume}: a flipped byte is damage", "(checksum)" in got.stderr, got)
            put = icms(volume, "put", "--on-flash", "--if-absent", "block", value="four")
            expect(f"{volume}: which a put repairs", put.returncode == 0, put)
            got = icms(volume, "get", "block")
            expect(f"{volume}: read again", got.stdout == "four", got)


main()
