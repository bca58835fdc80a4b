#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A target that reads its file again while it is used.

Goal: volumes come, go, change and are reset by SIGHUP, without a restart and without a failed command of
others; what cannot be applied is refused as a whole, with file and line.
Method: a real enclosure and an agent on loopback; blocks that do not fit into the agent's memory are loaded
all the time; the file is edited well, badly and by halves, with one SIGHUP or very many.

usage: target_reload.py BUILD_ROOT
"""
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import Load, expect, wait_until  # noqa: E402

BUILD = pathlib.Path(sys.argv[1])
VOLUME = {"name": "kv", "value_max": "64KiB", "generation": 0}
BLOCKS = {f"block{n}": f"{n} ".encode() * 8000 for n in range(96)}  # 2.3 MB, of which 1 MiB fits
TIMEOUT = 20


def icms(agent, word, *words, data=None):
    return subprocess.run([BUILD / "cmd/icms", word, "--open", f"unix:{agent.socket}", "--volume", "kv", *words],
                          input=data, capture_output=True, timeout=60, check=False)


class Scene:
    def __init__(self, target):
        self.target = target
        self.file = pathlib.Path(target.config_path)
        self.audit = self.file.parent / "audit.log"

    def log(self):
        return self.target.log_path.read_text()

    def hang_up(self, text, wanted):
        """Puts the text in the file, sends SIGHUP and waits for a line of the log."""
        before = len(self.log())
        if text is not None:
            self.file.write_text(text)
        self.target.signal(signal.SIGHUP)
        end = time.monotonic() + TIMEOUT
        while wanted not in (said := self.log()[before:]):
            if time.monotonic() > end:
                sys.exit(f"not ok '{wanted}' was not said: {said}")
            time.sleep(0.02)
        return said

    def volumes(self):
        """By name, as /status shows them."""
        return {volume["name"]: volume for volume in json.loads(self.target.get("/status")[1])["volumes"]}

    def refused(self, what, text, *words):
        before = self.volumes()
        said = self.hang_up(text, "configuration refused")
        expect(f"{what} is refused", all(word in said for word in words), said)
        now = self.volumes()
        expect(f"after {what} nothing is changed", before.keys() == now.keys() and
               all(before[name]["nsid"] == now[name]["nsid"] for name in now), now)

    def events(self):
        return [json.loads(line) for line in self.audit.read_text().splitlines()]


def other(name, **keys):
    return pod.volume_lines({"name": name, "value_max": "64KiB", **keys}) + "\n"


def changes(scene, text):
    said = scene.hang_up(text + other("other", quota="16MiB"), "configuration read: 2 volumes")
    expect("a volume that comes is logged", "volumes[other]: was not listed, is listed" in said, said)
    volumes = scene.volumes()
    expect("/status has it", volumes["other"]["generation"] == 0 and volumes["other"]["nsid"] == 2, volumes)
    expect("/metrics has it", any('volume="other"' in name for name in scene.target.metrics()))
    said = scene.hang_up(text + other("other", quota="32MiB", hosts="[nqn.2026-01.io.icms:nobody]"),
                         "configuration read")
    expect("a quota that changes is logged", "volumes[other].quota: was 16MiB, is 32MiB" in said, said)
    expect("/status has the quota", scene.volumes()["other"]["quota_bytes"] == 32 << 20)
    scene.hang_up(text + other("other", generation=1), "configuration read")
    volumes = scene.volumes()
    expect("/metrics shows the generation",
           scene.target.metrics()['icms_target_volume_generation{volume="other"}'] == 1)
    expect("a reset has another namespace", volumes["other"]["generation"] == 1 and
           volumes["other"]["nsid"] == 3, volumes)
    scene.hang_up(text, "configuration read: 1 volumes")
    expect("a volume that went has no numbers", not any('volume="other"' in name
                                                       for name in scene.target.metrics()))
    events = [event["result"].split(":")[0] for event in scene.events() if event.get("volume") == "other"]
    expect("the audit log has all of it", events == ["created", "changed", "reset", "deleted"], events)


def by_command(scene, text):
    """The same with icms volume."""
    def volume(*words):
        got = subprocess.run([BUILD / "cmd/icms", "volume", *words, "--file", scene.file, "--json"],
                             capture_output=True, text=True, timeout=60, check=False)
        return got.returncode, json.loads(got.stdout) if got.stdout.startswith("{") else got.stdout + got.stderr

    status, said = volume("create", "made", "value_max=64KiB", "quota=16MiB")
    expect("icms volume create writes", status == 0 and said["written"], said)
    scene.hang_up(None, "configuration read: 2 volumes")
    expect("what was created is served", scene.volumes()["made"]["quota_bytes"] == 16 << 20)
    status, said = volume("set", "made", "quota=8MiB")
    expect("a lower quota asks", status == 1 and "--yes" in str(said), said)
    volume("set", "made", "quota=8MiB", "--yes")
    status, said = volume("reset", "made", "--yes", "--dry-run")
    expect("a dry run writes nothing", status == 0 and not said["written"], said)
    status, said = volume("reset", "made", "--yes")
    expect("icms volume reset raises the generation", said["changes"] == [
        {"key": "volumes[made].generation", "was": "0 (default)", "is": "1"}], said)
    scene.hang_up(None, "configuration read: 2 volumes")
    made = scene.volumes()["made"]
    expect("what was reset is served", made["generation"] == 1 and made["quota_bytes"] == 8 << 20, made)
    expect("icms volume delete asks", volume("delete", "made")[0] == 1)
    status, said = volume("delete", "made", "--yes")
    expect("icms volume delete says the generation", status == 0 and said["generation"] == 1 and
           "generation=2" in said["note"], said)
    expect("icms volume list has the rest", [v["name"] for v in volume("list")[1]["volumes"]] == ["kv"])
    scene.hang_up(None, "configuration read: 1 volumes")
    expect("the file is what it was", scene.file.read_text() == text, scene.file.read_text())
    status, said = volume("create", "made", "value_max=64KiB", "generation=2")
    expect("icms volume create takes a generation", status == 0 and said["written"], said)
    expect("it says that any host may use it", "any host may use" in said["note"], said)
    status, said = volume("set", "made", "hosts=[nqn.2026-01.io.icms:nobody]")
    expect("fewer hosts ask", status == 1 and "may not any more" in str(said), said)
    status, said = volume("set", "made", "hosts=[nqn.2026-01.io.icms:nobody]", "--yes")
    expect("fewer hosts", status == 0 and "note" not in said, said)
    status, said = volume("set", "made", "hosts=")
    expect("any host asks", status == 1 and "--yes" in str(said), said)
    scene.hang_up(None, "configuration read: 2 volumes")
    expect("it is served", scene.volumes()["made"]["generation"] == 2, scene.volumes())
    expect("set takes none", volume("set", "made", "generation=3")[0] == 1)
    volume("delete", "made", "--yes")
    scene.hang_up(None, "configuration read: 1 volumes")


def refusals(scene, text):
    lines = text.splitlines()
    at = lines.index("volumes:") + 1
    scene.refused("a typo", text.replace("value_max", "value_mxa"), f"{scene.file}:{at + 2}:", "value_mxa")
    scene.refused("half a file", text[:len(text) // 2], str(scene.file))
    scene.refused("an empty file", "", str(scene.file))
    scene.refused("another drive", text.replace("size: 64MiB", "size: 65MiB", 1), ":", "restart")
    scene.refused("another address", text.replace("listen: 127.0.0.1:", "listen: 127.0.0.2:", 1), "listen",
                  "restart")
    scene.refused("a generation that goes back", text + other("other"), "other", "generation 0 is older than 1")
    scene.refused("a quota beyond the drives", text + other("third", quota="1TiB"),
                  f"{scene.file}:{len(lines) + 3}:", "quota")
    scene.refused("values that no buffer holds", text + other("third").replace("64KiB", "512KiB"),
                  f"{scene.file}:{len(lines) + 2}:", "buffers were made for")
    scene.refused("other values in one volume", text.replace("    value_max: 64KiB",
                                                             "    value_max: 64KiB\n    sealed: false"), "sealed")
    scene.refused("encrypted is another volume", text.replace("    value_max: 64KiB",
                                                              "    value_max: 64KiB\n    encrypted: true"),
                  "encrypted", "its blocks are not encrypted; raise `generation`")
    scene.refused("another UUID", text.replace("    value_max: 64KiB", "    value_max: 64KiB\n"
                                               "    uuid: 70000000-0000-4000-8000-000000000007"),
                  f"{scene.file}:", "it has another `uuid`, and its blocks would be evicted")
    scene.file.unlink()
    scene.refused("no file", None, "cannot read")
    scene.file.write_text(text)
    expect("refusals are in the audit log",
           sum(event["event"] == "configuration" for event in scene.events()) >= 8)


def storm(scene, text):
    """Very many signals, with files that are right, wrong and being written."""
    pick = random.Random(18)
    for turn in range(150):
        new = text + "".join(other(f"v{n}", quota=f"{pick.randrange(1, 9)}MiB")
                             for n in range(4) if pick.random() < 0.5)
        if turn % 5 == 0:
            new = new[:pick.randrange(len(new))]
        scene.file.write_text(new)
        for _ in range(pick.randrange(1, 4)):
            scene.target.signal(signal.SIGHUP)
            time.sleep(0.002)
    scene.file.write_text(text + other("last"))
    end = time.monotonic() + TIMEOUT
    while set(scene.volumes()) != {"kv", "last"}:
        expect("after a storm the last file counts", time.monotonic() < end, scene.volumes())
        scene.target.signal(signal.SIGHUP)
        time.sleep(0.1)
    expect("after a storm the last file counts", True)
    scene.hang_up(text, "configuration read: 1 volumes")


def reset(scene, agent, text):
    scene.hang_up(text.replace("generation: 0", "generation: 1"), "configuration read")
    end = time.monotonic() + TIMEOUT
    while True:
        got = icms(agent, "get", "block95")
        if got.returncode != 0:
            break
        expect("a block of before the reset is gone", time.monotonic() < end or got.stdout == BLOCKS["block95"])
        if time.monotonic() > end:
            break  # what the agent has in its memory it may still give
    found = [name for name in BLOCKS if icms(agent, "get", name).returncode == 0]
    expect("after a reset only what the agent holds is left", len(found) < len(BLOCKS) // 2, found)
    for daemon in (scene.target, agent):
        daemon.stop()
    path = pathlib.Path(agent.config_path)
    path.write_text(path.read_text().replace("generation: 0", "generation: 1"))
    for daemon in (scene.target, agent):
        daemon.start()
        daemon.wait_ready()
    found = [name for name in BLOCKS if icms(agent, "get", name).returncode == 0]
    expect("after a restart nothing of before is found", not found, found)
    put = icms(agent, "put", "--on-flash", "block0", data=b"new")
    expect("the volume takes blocks again", put.returncode == 0, put)
    scene.target.kill()
    now = scene.file.read_text()
    scene.file.write_text(now.replace("generation: 1", "generation: 0"))
    started = subprocess.run([BUILD / "cmd/icms-target", "--config", scene.file], capture_output=True, text=True,
                             timeout=60, check=False)
    expect("the file of before is refused at the start", started.returncode != 0 and
           "generation 0 is older than 1" in started.stderr, started)
    scene.file.write_text(now)
    scene.target.start()
    scene.target.wait_ready()


def main():
    with tempfile.TemporaryDirectory(prefix="icms-") as folder:
        with pod.Pod(BUILD, folder) as p:
            target = p.add_target("enclosure0", 2, "64MiB", [VOLUME], segment="1MiB", memory="16MiB",
                                  audit=f"{folder}/audit.log")
            target.wait_ready()
            agent = p.add_agent("server-a", [target], [VOLUME], memory="1MiB")
            agent.wait_ready()
            scene = Scene(target)
            for name, value in BLOCKS.items():
                put = icms(agent, "put", "--on-flash", name, data=value)
                expect(f"stored {name}", put.returncode == 0, put) if put.returncode else None
            text = scene.file.read_text()
            load = Load(lambda name: icms(agent, "get", name), BLOCKS)
            load.start()
            changes(scene, text)
            by_command(scene, text)
            refusals(scene, text)
            storm(scene, text)
            wait_until("there were some loads", lambda: load.loaded > 50)
            wrong = load.end()
            expect(f"{load.loaded} loads meanwhile were hits", not wrong, wrong[:3])
            reset(scene, agent, text)


main()
