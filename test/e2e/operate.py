#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an operator is told: wrong sizes before and at the start, drives, errors, limits.

Goal: --check-config and the start agree; no drive is formatted unasked; what fails while daemons serve is in
the log with its place, and what is missing for a while comes back.
Method: the daemons in a temporary folder; flipped bytes, emptied files, prlimit(1) for space and descriptors.

usage: operate.py BUILD_ROOT
"""
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from judge import expect

MIB = 1 << 20


class Daemon:
    """A daemon with its log in a file."""

    def __init__(self, program, config, *options):
        self.log = config.with_suffix(".log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([program, "--config", config, *options], stdout=log,
                                            stderr=log)
        end = time.monotonic() + 60
        while " ready " not in self.text() and self.process.poll() is None:
            assert time.monotonic() < end, self.text()
            time.sleep(0.02)

    def text(self):
        return self.log.read_text()

    def word(self, name):
        """The value of NAME=VALUE in the line that says that it is ready."""
        line = next(line for line in self.text().splitlines() if " ready " in line)
        return next(word.split("=")[1] for word in line.split() if word.startswith(name + "="))

    def until(self, words):
        """Waits for words in the log."""
        end = time.monotonic() + 30
        while words not in self.text():
            if time.monotonic() > end:
                sys.exit(f"not ok '{words}' is not in the log:\n{self.text()}")
            time.sleep(0.05)

    def get(self, path):
        try:
            url = f"http://127.0.0.1:{self.word('http')}{path}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def limit(self, what, soft):
        """Sets a soft limit of the running daemon; None: as high as it may."""
        hard = resource.prlimit(self.process.pid, what)[1]
        resource.prlimit(self.process.pid, what, (hard if soft is None else soft, hard))

    def end(self):
        self.process.terminate()
        return self.process.wait(timeout=60)


class Machine:
    def __init__(self, build, folder):
        self.folder, self.icms = folder, build / "cmd/icms"
        self.programs = {"target": build / "cmd/icms-target", "agent": build / "cmd/icms-agent"}

    def write(self, kind, text):
        path = self.folder / f"{kind}.yaml"
        path.write_text(text)
        return path

    def target(self, drives=1, size="64MiB", more="", volume="value_max: 512KiB", drive=""):
        return self.write("target", f"""
name: e0
listen: 127.0.0.1:0
http: {{listen: 127.0.0.1:0}}
segment: 1MiB
{more}
drives:
""" + "".join(f"- {{path: {self.folder}/d{i}, size: {size}{drive}}}\n" for i in range(drives)) + f"""
volumes: [{{name: kv, {volume}}}]
""")

    def agent(self, address, more="memory: 2MiB", volumes="[{name: kv, value_max: 512KiB}]"):
        return self.write("agent", f"""
name: a
socket: {self.folder}/agent.sock
http: {{listen: none}}
enclosures: [{{name: e0, address: {address}}}]
{more}
volumes: {volumes}
""")

    def check(self, kind, config):
        return subprocess.run([self.programs[kind], "--check-config", "--config", config],
                              capture_output=True, text=True, timeout=60, check=False)

    def start(self, kind, config):
        """A start that has to fail."""
        return subprocess.run([self.programs[kind], "--config", config], capture_output=True,
                              text=True, timeout=60, check=False)

    def run(self, *words, data=None):
        return subprocess.run([self.icms, words[0], "-o", f"unix:{self.folder}/agent.sock", "-v", "kv",
                               *words[1:]], input=data, capture_output=True, timeout=60, check=False)


def sentence(result):
    """The last error or warning, without time, program and level."""
    line = [line for line in result.stderr.splitlines() if line][-1]
    return line.split(": ", 1)[1].removeprefix("on this machine: ")


def checks_agree(machine):
    """What is wrong in itself is an error of both; what is wrong here is the same sentence."""
    slabs = "[{name: a, memory_min: 9MiB}, {name: b, memory_min: 9MiB}, {name: c, value_max: 20MiB}]"
    for what, kind, config, here in (
            ("a drive that is too small", "target", lambda: machine.target(size="4MiB"), False),
            ("floors that slabs do not hold", "agent",
             lambda: machine.agent("127.0.0.1:1", "memory: 39MiB", slabs), False),
            ("a quota above the drives", "target",
             lambda: machine.target(volume="value_max: 512KiB, quota: 65MiB"), False),
            ("more memory than there is", "target",
             lambda: machine.target(more="memory: 15TiB"), True),
            ("more memory than there is", "agent",
             lambda: machine.agent("127.0.0.1:1", "memory: 15TiB"), True)):
        path = config()
        checked, started = machine.check(kind, path), machine.start(kind, path)
        expect(f"{what} ({kind}): the start fails", started.returncode in (1, 2), started)
        expect(f"{what} ({kind}): the check says so", checked.returncode == (0 if here else 2) and
               sentence(checked) == sentence(started), (checked, started))


def drives_know_better(machine):
    """What differs from what the drives have is said by both, and so is what the start refuses."""
    def target(volume, segment="1MiB", size="64MiB"):
        path = machine.target(volume="value_max: 512KiB" + volume, size=size)
        path.write_text(path.read_text().replace("segment: 1MiB", f"segment: {segment}"))
        return path

    for was, now in (("", ", sealed: false"), (", sealed: false", ""), (", generation: 3", ", generation: 2")):
        daemon = Daemon(machine.programs["target"], target(was), "--format", "all")
        expect(f"'{was}' is served", daemon.end() == 0, daemon.text())
        checked, started = machine.check("target", target(now)), machine.start("target", target(now))
        expect(f"'{now}' after '{was}': the start refuses, and the check says so", started.returncode == 2 and
               checked.returncode == 0 and sentence(checked) == sentence(started) and
               "on these drives" in sentence(started), (checked, started))
    checked = machine.check("target", target(", generation: 3"))
    expect("what the drives have needs no word", (checked.returncode, checked.stderr) == (0, ""), checked)
    for what, change in (("segment", {"segment": "2MiB"}), ("size", {"size": "65MiB"})):
        path = target(", generation: 3", **change)
        checked, daemon = machine.check("target", path), Daemon(machine.programs["target"], path)
        expect(f"a {what} that differs is said by both", checked.returncode == 0 and daemon.end() == 0 and
               f"although {what} says" in sentence(checked) and sentence(checked) in daemon.text(),
               (checked, daemon.text()))
    (machine.folder / "d0").unlink()


def formatting_is_asked_for(machine):
    config = machine.target(drives=4)
    drives = [machine.folder / f"d{i}" for i in range(4)]
    result = machine.start("target", config)
    expect("missing drives are not made", result.returncode == 1 and "--format drive0" in result.stderr
           and not any(drive.exists() for drive in drives), result)
    target = Daemon(machine.programs["target"], config, "--format", "all")
    expect("formatting is logged", all(f"drive {i} ({drives[i]}): formatted: --format" in target.text()
                                       for i in range(4)), target.text())
    expect("nothing is out", target.get("/readyz") == (200, "ready\n"), target.get("/readyz"))
    target.process.kill()
    target.process.wait()
    with open(drives[1], "r+b") as drive:
        drive.write(os.urandom(MIB))
    target = Daemon(machine.programs["target"], config)
    expect("a drive with a damaged beginning is out, and what to do is said",
           "--format drive1`" in target.text(), target.text())
    expect("ready without it", target.get("/readyz") ==
           (200, f"ready: 1 of 4 drives out of service: drive1 ({drives[1]})\n"), target.get("/readyz"))
    target.process.kill()
    target.process.wait()
    drives[0].rename(machine.folder / "away")
    drives[3].write_bytes(b"")
    target = Daemon(machine.programs["target"], config)
    expect("a missing drive is not made", not drives[0].exists() and "is missing" in target.text(),
           target.text())
    expect("an emptied drive is not formatted", drives[3].stat().st_size == 0 and
           "is empty" in target.text(), target.text())
    status, body = target.get("/readyz")
    expect("not ready with a fourth of the drives", status == 503 and
           body.startswith("3 of 4 drives out of service: drive0"), body)
    told = subprocess.run([machine.icms, "status", "--target", f"http://127.0.0.1:{target.word('http')}"],
                          capture_output=True, timeout=60, check=False)
    said = told.stdout.decode()
    expect("icms status shows the drives that are out, and why", told.returncode == 1 and
           f": not ready: {body}".strip() in said and said.count("out of service  ") == 3 and
           "is missing" in said and "is empty" in said, said)
    target.end()
    (machine.folder / "away").rename(drives[0])


def the_agents_own_drive_is_not_formatted_in_silence(machine):
    config = machine.write("agent", f"""
name: a
socket: {machine.folder}/agent.sock
http: {{listen: none}}
memory: 2MiB
local: {{path: {machine.folder}/own, size: 64MiB, segment: 1MiB}}
volumes: [{{name: kv, value_max: 512KiB}}]
""")
    words = f"drive ({machine.folder}/own): formatted: the file was missing"
    for first in (True, False):
        agent = Daemon(machine.programs["agent"], config)
        expect(f"an own drive is formatted once, with a line (first: {first})",
               (words in agent.text()) == first, agent.text())
        agent.end()


def errors_are_logged(machine):
    target = Daemon(machine.programs["target"],
                    machine.target(size="63MiB", drive=", format_empty: true"), "--format", "all")
    agent = Daemon(machine.programs["agent"], machine.agent(target.word("nvme")))
    for n in range(20):
        result = machine.run("put", f"key {n}", data=bytes([65 + n]) * 300000)
        expect(f"block {n} is stored", result.returncode == 0, result)
    drive = machine.folder / "d0"
    content = drive.read_bytes()
    with open(drive, "r+b") as file:
        for n in range(12):
            place = content.find(bytes([65 + n]) * 1000)
            if place >= 0:
                file.seek(place + 500)
                file.write(b"\0")
    missed = sum(machine.run("get", f"key {n}").returncode != 0 for n in range(12))
    expect("damaged blocks are misses", missed >= 6, missed)
    target.until(f"drive 0 ({drive}): damaged value: ")
    lines = [line for line in target.text().splitlines() if "damaged value" in line]
    expect("with volume, key and place", all(" volume=kv key=" in line and " offset=" in line
                                             for line in lines), lines)
    agent.until("enclosure e0: blocks did not match their checksum")
    target.limit(resource.RLIMIT_FSIZE, 4096)
    machine.run("put", "key 40", data=b"x" * 300000)
    target.until("no space in the file system")
    expect("a drive without space is in service, and said to be without",
           target.get("/readyz") == (200, f"ready: 1 of 1 drives without space: drive0 ({drive})\n"),
           target.get("/readyz"))
    target.limit(resource.RLIMIT_FSIZE, None)
    machine.run("put", "key 41", data=b"y" * 300000)
    target.until("there is space again")
    expect("it takes stores again", target.get("/readyz") == (200, "ready\n"), target.get("/readyz"))
    used = len(os.listdir(f"/proc/{agent.process.pid}/fd"))
    agent.limit(resource.RLIMIT_NOFILE, used + 2)
    result = machine.run("get", "key 41")
    expect("descriptors that are used up are called so", result.returncode != 0 and
           b"no file descriptor left" in result.stderr, result)
    agent.limit(resource.RLIMIT_NOFILE, None)
    result = machine.run("get", "key 41")
    expect("with descriptors clients come again", result.stdout == b"y" * 300000, result.stderr)
    expect("the daemons end as asked", agent.end() == 0 and target.end() == 0, target.text())


def main():
    with tempfile.TemporaryDirectory(prefix="icms-", dir="/var/tmp") as name:
        machine = Machine(pathlib.Path(sys.argv[1]), pathlib.Path(name))
        checks_agree(machine)
        drives_know_better(machine)
        formatting_is_asked_for(machine)
        the_agents_own_drive_is_not_formatted_in_silence(machine)
        errors_are_logged(machine)


if __name__ == "__main__":
    main()
