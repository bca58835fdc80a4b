#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Drives that come and go under a target that is used.

Goal: a drive is added, drained, removed and replaced by `icms drive` and SIGHUP without a missed block and
without a failed command; what cannot be applied is refused as a whole, with file and line. A drive that holds blocks,
or of which that is not known, is not removed without --yes.
Method: a real enclosure and an agent on loopback; blocks that do not fit into the agent's memory are loaded
and stored all the time. The target is killed while a drive drains. A server of this test answers for a target.

usage: target_drives.py BUILD_ROOT
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from pod_status import Answers  # noqa: E402

BUILD = pathlib.Path(sys.argv[1])
VOLUME = {"name": "kv", "value_max": "64KiB"}
BLOCKS = {f"block{n}": f"{n} ".encode() * 8000 for n in range(120)}  # 3 MB, of which 1 MiB fits
TIMEOUT = 30


def expect(what, truth, seen=None):
    if not truth:
        sys.exit(f"not ok {what}: {seen}")
    print(f"ok {what}", flush=True)


def icms(agent, word, *words, data=None):
    return subprocess.run([BUILD / "cmd/icms", word, "--open", f"unix:{agent.socket}", "--volume", "kv", *words],
                          input=data, capture_output=True, timeout=60, check=False)


def put_all(agent):
    for name, value in BLOCKS.items():
        put = icms(agent, "put", "--on-flash", name, data=value)
        if put.returncode != 0:
            sys.exit(f"not ok stored {name}: {put}")


class Load(threading.Thread):
    """Loads one block after the other, stores new ones, and remembers what did not succeed."""

    def __init__(self, agent):
        super().__init__(daemon=True)
        self.agent, self.over, self.wrong, self.loaded = agent, False, [], 0

    def run(self):
        while not self.over:
            for name, value in BLOCKS.items():
                if self.over:
                    break
                got = icms(self.agent, "get", name)
                self.loaded += 1
                if got.returncode != 0 or got.stdout != value:
                    self.wrong.append((name, got.returncode, got.stderr))
                if self.loaded % 10 == 0:
                    put = icms(self.agent, "put", "--on-flash", f"new{self.loaded}", data=b"x" * 9000)
                    if put.returncode != 0:
                        self.wrong.append(("put", put.returncode, put.stderr))

    def end(self, what):
        """After every block was asked for at least once."""
        while self.loaded < len(BLOCKS) and not self.wrong:
            time.sleep(0.05)
        self.over = True
        self.join()
        expect(f"{what}: {self.loaded} loads and their stores succeeded", not self.wrong and self.loaded > 0,
               self.wrong[:3])


class Scene:
    def __init__(self, p, target, folder):
        self.p, self.target, self.folder = p, target, pathlib.Path(folder)
        self.file = pathlib.Path(target.config_path)

    def log(self):
        return self.target.log_path.read_text()

    def hang_up(self, wanted):
        before = len(self.log())
        self.target.signal(signal.SIGHUP)
        end = time.monotonic() + TIMEOUT
        while wanted not in (said := self.log()[before:]):
            if time.monotonic() > end:
                sys.exit(f"not ok '{wanted}' was not said: {said}")
            time.sleep(0.02)
        return said

    def drives(self):
        """By the ends of their paths, as /status shows them."""
        return {pathlib.Path(drive["path"]).name: drive
                for drive in json.loads(self.target.get("/status")[1])["drives"]}

    def drive(self, *words, status=0):
        got = subprocess.run([BUILD / "cmd/icms", "drive", *words, "--file", self.file, "--json"],
                             capture_output=True, text=True, timeout=60, check=False)
        if got.returncode != status:
            sys.exit(f"not ok icms drive {words}: {got}")
        return json.loads(got.stdout) if got.stdout.startswith("{") else got.stdout + got.stderr

    def path(self, name):
        return str(self.folder / name)

    def drained(self, name):
        end = time.monotonic() + TIMEOUT
        while (left := self.drives()[name]["blocks"]) > 0:
            if time.monotonic() > end:
                sys.exit(f"not ok {name} becomes empty: {self.drives()[name]}")
            time.sleep(0.05)
        expect(f"{name} becomes empty", left == 0)


def comes(scene, agent):
    load = Load(agent)
    load.start()
    said = scene.drive("add", scene.path("new0"), "size=64MiB", "format_empty=true")
    expect("icms drive add writes", said["written"] and len(said["changes"]) == 1, said)
    said = scene.hang_up("configuration read: 1 volumes, 4 drives")
    expect("a drive that comes is logged", "new0]: was not listed, is listed" in said, said)
    put_all(agent)
    load.end("a drive comes")
    expect("it is not said to be out of service", "out of service" not in scene.log(), scene.log())
    drives = scene.drives()
    expect("/status has it, with blocks", drives["new0"]["state"] == "in service" and drives["new0"]["blocks"] > 5,
           drives)


def goes(scene, agent, name):
    load = Load(agent)
    load.start()
    said = scene.drive("remove", scene.path(name), status=1)
    expect("one that holds blocks asks", "--yes" in str(said), said)
    scene.drive("drain", scene.path(name))
    text, held = scene.file.read_text(), scene.drives()[name]["blocks"]
    for words in (("remove",), ("remove", "--dry-run"), ("replace", scene.path("other"), "--format")):
        said = scene.drive(words[0], scene.path(name), *words[1:], status=1)
        expect(f"one that drains by the file alone is asked for: {words}", held > 0 and "it still holds " in str(said) and
               "does not drain it yet: send SIGHUP" in str(said) and "--yes" in str(said) and
               scene.file.read_text() == text and not (scene.folder / "other").exists(), said)
    said = scene.drive("remove", scene.path(name), "--yes", "--dry-run")
    expect("with --yes it would go", said["changes"] and not said["written"], said)
    scene.hang_up("configuration read")
    expect("it drains", scene.drives()[name]["state"] == "draining", scene.drives())
    scene.drained(name)
    scene.drive("remove", scene.path(name))
    scene.hang_up("configuration read")
    load.end(f"{name} drains and goes")
    expect("/status lacks it", name not in scene.drives(), scene.drives())
    end = time.monotonic() + TIMEOUT
    while scene.path(name) in subprocess.run(["ls", "-l", f"/proc/{scene.target.pid}/fd"], capture_output=True,
                                             text=True, check=False).stdout:
        if time.monotonic() > end:
            sys.exit(f"not ok {name} is closed")
        time.sleep(0.05)
    expect(f"{name} is closed", True)


def replaced(scene, agent):
    name = "enclosure0-drive1"
    load = Load(agent)
    load.start()
    scene.drive("drain", scene.path(name))
    scene.hang_up("configuration read")
    scene.drained(name)
    said = scene.drive("replace", scene.path(name), scene.path("mew1"), status=1)
    expect("a mistyped path makes no file", "no such file" in str(said) and not (scene.folder / "mew1").exists(), said)
    scene.drive("replace", scene.path(name), scene.path("new1"), "--format")
    scene.hang_up("configuration read")
    load.end("a drive is replaced")
    drives = scene.drives()
    expect("the new one is there", "new1" in drives and name not in drives, drives)


def refused(scene):
    text, before = scene.file.read_text(), scene.drives()
    used = scene.path("enclosure0-drive0")  # it was removed, and has a list of drives
    said = scene.drive("add", used, status=1)
    expect("icms drive does not add a used drive", "holds blocks" in str(said) and "--format" in str(said), said)
    other = scene.folder / "other-name"
    other.symlink_to(scene.path("new0"))
    said = scene.drive("add", str(other), "--format", status=1)
    expect("nor one that the file has under another name", "new0, which the file has" in str(said), said)
    expect("and changes nothing", scene.file.read_text() == text and scene.drives() == before, scene.drives())
    scene.file.write_text(text.replace("drives:\n", f"drives:\n  - path: {used}\n"))
    said = scene.hang_up("configuration refused")
    expect("a used drive is refused", "holds blocks of an enclosure" in said and f"{scene.file}:" in said, said)
    scene.file.write_text(text)
    (scene.folder / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n" * 1000)
    (scene.folder / "blank").write_bytes(bytes(64 << 20))
    for name, why in (("missing", "no such file"), ("passwd", "--format to erase"), ("blank", "is empty")):
        said = scene.drive("add", scene.path(name), "size=64MiB", status=1)
        expect(f"icms drive does not add what is {name}", why in str(said) and scene.file.read_text() == text, said)
    other = scene.p.add_target("other", 1, "64MiB", [VOLUME], segment="1MiB", memory="16MiB")
    other.wait_ready()
    said = scene.drive("add", str(other.drives[0]), status=1)
    expect("nor the drive of another target that runs", "holds blocks" in str(said), said)
    expect("which ends as asked", other.stop(30) == 0)
    os.mkfifo(scene.path("pipe"))
    (scene.folder / "loose").symlink_to("nowhere")
    for name, why in (("pipe", "neither a file nor"), ("nofolder/drive", "folder is missing"), ("loose", "link to nothing")):
        said = scene.drive("add", scene.path(name), "size=64MiB", "format_empty=true", status=1)
        expect(f"nor what is {name}", why in str(said) and scene.file.read_text() == text, said)
    scene.file.write_text(text.replace("drives:\n", f"drives:\n  - path: {scene.path('pipe')}\n    size: 64MiB\n"))
    said = scene.hang_up("configuration refused")
    expect("a pipe is refused, and nobody waits for it", "neither a file nor a block device" in said, said)
    scene.file.write_text(text.replace("drives:\n", f"drives:\n  - path: {scene.path('missing')}\n    size: 64MiB\n"))
    said = scene.hang_up("configuration refused")
    expect("a missing file is refused", "format_empty" in said, said)
    scene.file.write_text(text.replace("segment: 1MiB", "segment: 2MiB"))
    scene.hang_up("configuration refused")
    scene.file.write_text(text)
    expect("nothing is changed", scene.drives().keys() == before.keys(), scene.drives())
    said = scene.drive("add", scene.path("new0"), status=1)
    expect("a drive that is listed is refused", "already" in str(said), said)
    scene.drive("add", scene.path("enclosure0-drive0"), "--format")
    scene.hang_up("configuration read")
    expect("with --format it is taken", "enclosure0-drive0" in scene.drives(), scene.drives())


def asked(scene):
    """What a target says of a drive that leaves decides; who says nothing of use decides nothing."""
    server, file, path = Answers(), scene.folder / "asked.yaml", str(scene.folder / "leaves")
    listen, nqn = server.url.removeprefix("http://"), "nqn.2026-01.io.icms:asked"
    text = (f"name: asked\nnqn: {nqn}\nhttp:\n  listen: {listen}\ndrives:\n  - path: {path}\n    state: draining\n"
            "  - path: /stays\nvolumes:\n  - name: kv\n")

    def remove(*words):
        file.write_text(text)
        return subprocess.run([BUILD / "cmd/icms", "drive", "remove", path, "--file", file, *words],
                              capture_output=True, text=True, timeout=60, check=False)

    def told(drive, **keys):
        return {"nqn": nqn, "drives": [{"path": "/stays", "state": "in service", "blocks": 7}] + drive, **keys}

    def drive(state, blocks):
        return [{"path": path, "state": state, "blocks": blocks}]

    for what, answer, said in (
            ("an empty one", told(drive("draining", 0)), None),
            ("one out of service", told(drive("out of service", 9)), None),
            ("one that the target does not have", told([]), None),
            ("one with a block", told(drive("draining", 1)), "holds 1 blocks; wait until it holds none (`icms status --target"),
            ("one that stays full", told(drive("draining, others full", 4)), "holds 4 blocks, and the others are full: add a"),
            ("one that takes blocks", told(drive("in service", 0)), "holds 0 blocks, and its target does not drain it yet"),
            ("an odd state", told(drive(5, 0)), "does not drain it yet"),
            ("an odd number", told(drive("draining", -3)), "holds -3 blocks"),
            *(("no number", told(drive("draining", odd)), "does not say it") for odd in ("0", None, 0.0, [0], {})),
            ("no number at all", told([{"path": path, "state": "draining"}]), "does not say it"),
            ("no drives", {"nqn": nqn}, "does not say it"),
            ("another target", told(drive("draining", 0), nqn="nqn.2026-01.io.icms:\x1b[2J"), "another one answers at"),
            ("an agent", {"name": "x", "host_nqn": nqn, "drives": []}, "another one answers at"),
            ("no status", [1], "its answer is no status")):
        server.answer = json.dumps(answer).encode()
        done = remove()
        expect(f"{what}: {'goes' if said is None else 'stays'}", done.returncode == (0 if said is None else 1) and
               (said or "") in done.stderr and "\x1b" not in done.stderr and (file.read_text() == text) == (said is not None) and
               (said is None or "--yes to lose them" in done.stderr), (done, file.read_text()))
    expect("in JSON, too", json.loads(remove("--json").stdout.splitlines()[-1])["error"] == "INVALID")
    server.end()
    text = text.replace(listen, f"127.0.0.1:{pod.free_port()}")
    done = remove()
    expect("nobody answers: it stays", done.returncode == 1 and "cannot be asked how many blocks it holds: cannot ask" in
           done.stderr and "--yes to lose them" in done.stderr and file.read_text() == text, done)
    done = remove("--yes")
    expect("with --yes nobody is asked", done.returncode == 0 and path not in file.read_text(), done)
    text = re.sub(r"  listen: .*", "  listen: none", text)
    done = remove()
    expect("no http port: it stays", done.returncode == 1 and "has no http.listen" in done.stderr, done)
    for words, status, said in ((("--cert", file), 2, "given together"), (("--token", file), 2, "unknown option"),
                                (("--cert", scene.folder / "nothing", "--key", file), 2, "cannot read --cert")):
        done = remove(*words)
        expect(f"{words[0]}", done.returncode == status and said in done.stderr and file.read_text() == text, done)
    done = subprocess.run([BUILD / "cmd/icms", "drive", "drain", "/stays", "--file", file, "--cert", file, "--key", file],
                          capture_output=True, text=True, timeout=60, check=False)
    expect("--cert is for who asks", done.returncode == 2 and "--cert and --key are for" in done.stderr, done)


def worn(scene, agent):
    """Of a drive that is worn another part goes to the others; what it has is found."""
    put_all(agent)
    path = scene.folder / "smart.json"
    text = scene.file.read_text()
    path.write_text('{"nvme_smart_health_information_log": {"percentage_used": 12}}')
    scene.file.write_text(text.replace("new1\n", f"new1\n    health: {path}\n"))
    said = scene.hang_up("configuration read")
    expect("a health file is taken while it runs", "new1].health: was" in said, said)
    path.write_text('{"nvme_smart_health_information_log": {"percentage_used": 104}}')
    load = Load(agent)
    load.start()
    end = time.monotonic() + TIMEOUT
    while scene.drives()["new1"]["part_percent"] != 25:
        if time.monotonic() > end:
            sys.exit(f"not ok the part of a worn drive falls: {scene.drives()['new1']}")
        time.sleep(0.1)
    expect("it is logged", "takes 25 % of its share of new blocks: 104 % of its rated writes" in scene.log(), scene.log())
    expect("/metrics has it", any("drive_part" in name and value == 0.25
                                  for name, value in scene.target.metrics().items()))
    load.end("a drive is worn")
    scene.file.write_text(text)
    scene.hang_up("configuration read")


def killed(scene, agent):
    put_all(agent)
    scene.drive("drain", scene.path("enclosure0-drive2"))
    scene.hang_up("configuration read")
    scene.target.kill()
    scene.target.start()
    scene.target.wait_ready()
    end = time.monotonic() + TIMEOUT
    while icms(agent, "get", "block0").returncode != 0:
        if time.monotonic() > end:
            sys.exit("not ok the agent comes back")
    load = Load(agent)
    load.start()
    scene.drained("enclosure0-drive2")
    load.end("it drains on after it was killed")
    missed = [name for name, value in BLOCKS.items() if icms(agent, "get", name).stdout != value]
    expect("all blocks are there", not missed, missed)


def main():
    with tempfile.TemporaryDirectory(prefix="icms-") as folder:
        with pod.Pod(BUILD, folder) as p:
            target = p.add_target("enclosure0", 3, "64MiB", [VOLUME], segment="1MiB", memory="16MiB", loops=2)
            target.wait_ready()
            agent = p.add_agent("server-a", [target], [VOLUME], memory="1MiB")
            agent.wait_ready()
            scene = Scene(p, target, folder)
            put_all(agent)
            comes(scene, agent)
            goes(scene, agent, "enclosure0-drive0")
            replaced(scene, agent)
            refused(scene)
            asked(scene)
            worn(scene, agent)
            killed(scene, agent)


main()
