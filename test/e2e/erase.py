#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""icms volume erase: an encrypted volume that nobody can read any more.

Goal: without --yes nothing changes; with it the keys are gone from the disk, no block of the sample can
be read, with other keys or with a copy of the old ones, exists does not find the blocks once the daemons have
the new generation, and other volumes keep their keys. A wrong name, a key that two volumes have, a key of a
key management system, a pod that is down and a run that was cut short are answered in words.
Method: an enclosure and an agent on loopback, the icms program, and a look at the files.

usage: erase.py BUILD_ROOT
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
from judge import expect  # noqa: E402

COMMON = {"value_max": "1MiB", "memory_max": "8MiB", "encrypted": "true"}
VOLUMES = [{"name": "kv", "generation": "2 # of the first model", **COMMON}, {"name": "other", **COMMON},
           {"name": "kms", **COMMON}, {"name": "plain", "value_max": "1MiB", "memory_max": "8MiB"}]
BLOCKS = [f"block{i}" for i in range(3)]


def run(build, *arguments, value=None):
    return subprocess.run([build / "cmd/icms", *arguments], input=value, capture_output=True, text=True,
                          timeout=60)


class Scene:
    """A pod with three encrypted volumes, and their list of keys."""

    def __init__(self, build, folder, p):
        self.build, self.folder = build, pathlib.Path(folder)
        self.target = p.add_target("enclosure0", 1, "64MiB", VOLUMES, segment="4MiB", memory="32MiB")
        self.target.wait_ready()
        self.agent = p.add_agent("server-a", [self.target], VOLUMES)
        self.agent.wait_ready()
        self.tier = ["--open", f"unix:{self.agent.socket}"]
        self.list = self.folder / "keys.yaml"
        for name in ("kv-1", "kv-2", "other-1", "kek", "kek-2", "kms-plain"):
            made = run(build, "key", "gen", "--type", "volume", self.folder / name)
            assert made.returncode == 0, made
        for kek, wrapped in (("kek", "kms-1"), ("kek-2", "kms-1-again")):
            made = run(build, "key", "wrap", "--kek", self.folder / kek, self.folder / "kms-plain",
                       self.folder / wrapped)
            assert made.returncode == 0, made
        (self.folder / "kms-plain").unlink()
        self.entries = {
            "kv": f"  # what tenants of kv have\n  - name: kv\n    keys:\n      - id: 2\n"
                  f"        file: {folder}/kv-2\n      - {{id: 1, file: {folder}/kv-1}}\n",
            "other": f"  - name: other\n    keys:\n      - {{id: 1, file: {folder}/other-1}}\n",
            "kms": f"  - name: kms  # in the key management system\n    keys:\n      - id: 7\n"
                   f"        wrapped: {folder}/kms-1\n        key_command: /bin/cat {folder}/kek\n"}
        self.list.write_text("# the list\nvolumes:\n" + "".join(self.entries.values()))

    def erase(self, volume, *arguments, value=None, keys=None):
        return run(self.build, "volume", "erase", *self.tier, "--volume", volume, "--keys",
                   keys or self.list, *arguments, value=value)

    def call(self, command, volume, *arguments, keys=None, value=None):
        return run(self.build, command, *self.tier, "--volume", volume, "--keys", keys or self.list,
                   *arguments, value=value)

    def fill(self, volume):
        for block in BLOCKS:
            put = self.call("put", volume, "--on-flash", block, value=f"{volume} {block}" * 1000)
            assert put.returncode == 0, put

    def configs(self):
        return ["--config", self.agent.config_path, "--config", self.target.config_path]

    def restart(self):
        for daemon in (self.target, self.agent):
            daemon.stop()
        for daemon in (self.target, self.agent):
            daemon.start()
            daemon.wait_ready()


def refusals(s):
    before = s.list.read_text()
    wrong = s.erase("kvv", "--yes")
    expect("a wrong name names the right ones", wrong.returncode == 1 and "no such volume" in wrong.stderr and
           "known: " in wrong.stderr and "kms" in wrong.stderr, wrong)
    plain = s.erase("plain", "--yes")
    expect("a plain volume", plain.returncode == 1 and "not encrypted" in plain.stderr, plain)
    unnamed = run(s.build, "volume", "erase", *s.tier, "--keys", s.list, "--yes")
    expect("no volume is the default", unnamed.returncode == 2 and "--volume" in unnamed.stderr, unnamed)

    shared = s.folder / "shared.yaml"
    shared.write_text(before.replace(f"{s.folder}/other-1", f"{s.folder}/kv-1"))
    both = s.erase("kv", "--yes", keys=shared)
    expect("a key of two volumes", both.returncode == 1 and "also key 1 of volume other" in both.stderr, both)
    shutil.copy(s.folder / "kv-1", s.folder / "kv-1-copy")
    shared.write_text(before.replace(f"{s.folder}/other-1", f"{s.folder}/kv-1-copy"))
    both = s.erase("kv", "--yes", keys=shared)
    expect("also in two files", both.returncode == 1 and "also key 1 of volume other" in both.stderr, both)
    (s.folder / "kv-1-copy").unlink()

    plain_other = f"{{id: 1, file: {s.folder}/other-1}}"
    assert plain_other in before, before
    shared.write_text(before.replace(
        plain_other, f"{{id: 1, wrapped: {s.folder}/kms-1-again, kek_file: {s.folder}/kek-2}}"))
    both = s.erase("kms", "--yes", keys=shared)
    expect("also under two key-encryption keys", both.returncode == 1 and
           "key 7 of volume kms is also key 1 of volume other" in both.stderr and
           "nothing was changed" in both.stderr, both)
    shared.write_text(before.replace(
        plain_other, f"{{id: 1, wrapped: {s.folder}/kms-1-again, kek_file: {s.folder}/nowhere}}"))
    dry = s.erase("kms", "--json", keys=shared)
    expect("what could not be compared is said", dry.returncode == 0 and any(
        "key 1 of volume other is a key of volume kms" in line and "nowhere" in line
        for line in json.loads(dry.stdout)["left"]), dry)

    flow = s.folder / "flow.yaml"
    flow.write_text(f"volumes: [{{name: kv, keys: [{{id: 2, file: {s.folder}/kv-2}}]}}]\n")
    style = s.erase("kv", "--yes", keys=flow)
    expect("a list that cannot be changed by lines",
           style.returncode == 1 and f"{flow}:1" in style.stderr and "nothing was changed" in style.stderr,
           style)
    config = s.erase("kv", "--yes", "--config", s.list)
    expect("what is no configuration", config.returncode == 1 and "nothing was changed" in config.stderr,
           config)
    s.target.stop()
    down = s.erase("kv", "--yes", "--deadline", "300ms")
    expect("a pod that proves nothing", down.returncode != 0 and "nothing was changed" in down.stderr, down)
    s.target.start()
    s.target.wait_ready()
    s.agent.wait_ready()
    expect("nothing changed", s.list.read_text() == before and (s.folder / "kv-1").exists() and
           (s.folder / "kv-2").exists())
    got = s.call("get", "kv", BLOCKS[0])
    expect("and the volume is readable", got.stdout == f"kv {BLOCKS[0]}" * 1000, got.stderr)


def erased(s):
    kept = s.folder / "copies"
    kept.mkdir(mode=0o700)
    for name in ("kv-1", "kv-2"):
        shutil.copy(s.folder / name, kept / name)
    old_list = s.list.read_text()
    copies = s.folder / "copies.yaml"
    copies.write_text(old_list.replace(f"{s.folder}/kv-", f"{kept}/kv-"))
    config = pathlib.Path(s.agent.config_path).read_text()

    dry = s.erase("kv", *s.configs(), *BLOCKS)
    expect("a dry run", dry.returncode == 0 and "nothing was changed" in dry.stdout and
           "before: 4 of 4 blocks readable" in dry.stdout and
           "generation 2 would be raised to 3" in dry.stdout, dry)
    expect("changes nothing", s.list.read_text() == old_list and (s.folder / "kv-1").exists() and
           pathlib.Path(s.agent.config_path).read_text() == config)

    with open(s.folder / "kv-1", "rb") as open_file:  # what is in the file is seen after its name is gone
        key = (kept / "kv-1").read_bytes()
        answer = s.erase("kv", *s.configs(), "--yes", "--json", "-", value="\n".join(BLOCKS))
        expect("erased", answer.returncode == 0, answer)
        content = open_file.read()
        expect("the key's file was overwritten", len(content) == len(key) and content != key)
    said = json.loads(answer.stdout)
    expect("before: all readable", said["before"] == {"tried": 4, "readable": 4, "missed": {}, "failed": 0}, said)
    expect("after: none, and the values were tried", said["after"] == {
        "tried": 4, "readable": 0, "missed": {"checksum": 4}, "failed": 0}, said)
    expect("says what it did", said["erased"] and [key["id"] for key in said["keys"]] == [2, 1] and
           all(key["gone"] for key in said["keys"]) and
           all(config["generation"] == 3 for config in said["configurations"]), said)
    expect("and what is left", any("restart all" in line for line in said["left"]) and
           any("other machines" in line for line in said["left"]), said)
    expect("no key file is left", not (s.folder / "kv-1").exists() and not (s.folder / "kv-2").exists())
    expect("the list keeps the others and its comments", s.list.read_text() ==
           old_list.replace("".join(s.entries["kv"].splitlines(True)[1:]), ""), s.list.read_text())
    expect("the configuration keeps all but the generation",
           pathlib.Path(s.agent.config_path).read_text() ==
           config.replace("generation: 2 # of", "generation: 3 # of"))
    text = answer.stdout + answer.stderr
    expect("no key is said", key.decode().strip() not in text)

    got = s.call("get", "kv", BLOCKS[0])
    expect("the volume does not open", got.returncode == 2 and "keys" in got.stderr, got)
    got = s.call("get", "kv", BLOCKS[0], keys=copies)
    expect("a copy of the key still reads it, as said", got.stdout == f"kv {BLOCKS[0]}" * 1000, got.stderr)
    s.restart()
    for command in ("get", "exists"):
        got = s.call(command, "kv", BLOCKS[0], keys=copies)
        expect(f"{command} with a copy after the restart",
               got.returncode == 1 and "absent" in got.stdout + got.stderr, got)
    again = s.erase("kv", "--json", *BLOCKS)
    said = json.loads(again.stdout)
    expect("again: looks and changes nothing", again.returncode == 0 and not said["erased"] and
           said["after"]["missed"] == {"absent": 4}, again)
    got = s.call("get", "other", BLOCKS[0])
    expect("another volume is as it was", got.stdout == f"other {BLOCKS[0]}" * 1000, got)


def cut_short(s):
    """What a loss of power leaves: a key that has its other name, whole or overwritten. And a key that is not there,
    of which this program knows nothing."""
    key, entry = s.folder / "other-1", s.list.read_text()
    text, left = key.read_bytes(), s.folder / "other-1.erased"
    for state, content in (("whole", text), ("overwritten", os.urandom(len(text)))):
        s.list.write_text(entry)
        key.unlink(missing_ok=True)
        left.write_bytes(content)
        left.chmod(0o600)
        with open(left, "rb") as open_file:
            dry = s.erase("other", *BLOCKS)
            expect(f"a key that was left {state}: a dry run", dry.returncode == 0 and left.exists() and
                   "was being erased by a run that was cut short" in dry.stdout, dry)
            answer = s.erase("other", "--yes", *BLOCKS)
            seen = open_file.read()
        expect(f"a key that was left {state} is erased", answer.returncode == 0 and not left.exists() and
               seen not in (text, content) and "overwritten again" in answer.stdout and
               "0 of 4 blocks readable" in answer.stdout and "name: other" not in s.list.read_text() and
               "find out where" not in answer.stdout, answer)
    s.list.write_text(entry)
    key.write_bytes(text)
    key.chmod(0o600)
    got = s.call("get", "other", BLOCKS[0])
    expect("a copy of the key still reads", got.stdout == f"other {BLOCKS[0]}" * 1000, got.stderr)
    run(s.build, "key", "gen", "--type", "volume", s.folder / "other-2")
    s.list.write_text(s.list.read_text().replace("name: other\n    keys:\n", "name: other\n    keys:\n"
                      f"      - {{id: 2, file: {s.folder}/other-2}}\n"))
    assert "other-2" in s.list.read_text(), s.list.read_text()
    (s.folder / "other-1").unlink()
    answer = s.erase("other", "--yes", *BLOCKS)
    expect("a run that was cut short goes on, and says what it did not see", answer.returncode == 1 and
           "after, with other keys: 0 of 4 blocks readable" in answer.stdout and
           f"{s.folder}/other-1 is not there, so nothing overwrites it" in answer.stdout and
           f"find out where {s.folder}/other-1 is" in answer.stdout and
           f"{s.folder}/other-2 overwritten and removed" in answer.stdout and
           not (s.folder / "other-2").exists() and "name: other" not in s.list.read_text(), answer)
    answer = s.erase("v" * 3000)
    expect("a name that is too long", answer.returncode == 2 and "at most" in answer.stderr, answer)


def key_management_system(s):
    answer = s.erase("kms", "--yes", *BLOCKS)
    expect("a wrapped key", answer.returncode == 0 and not (s.folder / "kms-1").exists() and
           (s.folder / "kek").exists(), answer)
    expect("the operator deletes the key-encryption key",
           f"delete the key-encryption key of key 7 in the system behind /bin/cat {s.folder}/kek" in
           answer.stdout, answer.stdout)
    expect("and raises the generation", "raise the generation of volume kms by one" in answer.stdout,
           answer.stdout)
    expect("the list has no volume left", s.list.read_text().endswith("volumes: []\n"), s.list.read_text())


def directory(build, folder):
    run(build, "key", "gen", "--type", "volume", f"{folder}/dir-key")
    keys = pathlib.Path(folder, "dir.yaml")
    keys.write_text("volumes:\n- name: kv\n  keys:\n  - id: 1\n    file: dir-key\n")  # beside the list
    tier = ["--open", f"dir:{folder}/dir", "--keys", keys, "--volume", "kv"]
    put = run(build, "put", *tier, "block", value="of a directory")
    expect("a directory", put.returncode == 0, put)
    answer = run(build, "volume", "erase", *tier, "--yes", "block")
    expect("is erased", answer.returncode == 0 and "before: 2 of 2" in answer.stdout and
           "keys: 0 of 2" in answer.stdout, answer)


def main():
    build = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="icms-") as folder, pod.Pod(build, folder) as p:
        s = Scene(build, folder, p)
        for volume in ("kv", "other", "kms"):
            s.fill(volume)
        refusals(s)
        erased(s)
        cut_short(s)
        key_management_system(s)
        directory(build, folder)


main()
