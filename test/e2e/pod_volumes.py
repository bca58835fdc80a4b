#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Volumes of a pod map that change while an agent runs.

Goal: `icms pod volume reset` makes every block of the volume a miss at once, for a process that has it open,
too; a target that has the new generation later is found without a restart of the agent; other volumes keep
their blocks; a volume that is created is served, one that is deleted is not; what the agent's own file says
otherwise is refused with its line; routers who name a model get the keys of the map's run_blocks.
Method: an enclosure and an agent on loopback; the agent's process stays the same; the target is restarted with
another generation in its file.

usage: pod_volumes.py BUILD_ROOT
"""
import hashlib
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import expect, wait_until  # noqa: E402

BUILD = pathlib.Path(sys.argv[1])
VOLUMES = [{"name": name, "value_max": "64KiB", "generation": 0} for name in ("kv", "other", "later")]


def run(*words, data=None):
    return subprocess.run([BUILD / "cmd/icms", *words], input=data, capture_output=True, timeout=60, check=False)


class Scene:
    def __init__(self, folder, p):
        self.file = pathlib.Path(folder) / "pod.yaml"
        self.target = p.add_target("e0", 1, "64MiB", VOLUMES, segment="1MiB", memory="16MiB")
        self.target.wait_ready()
        self.file.write_text(f"name: pod0\nepoch: 1\nenclosures:\n  - name: e0\n    address: 127.0.0.1:"
                             f"{self.target.port}\n    nqn: {self.target.nqn}\nvolumes:\n  - name: kv\n"
                             f"    value_max: 64KiB\n  - name: other\n    value_max: 64KiB\n...\n")
        self.agent = p.add_agent("server-a", [], [{"name": v["name"], "value_max": "64KiB"} for v in VOLUMES],
                                 pod=self.file, memory="8MiB")
        self.agent.wait_ready()
        self.tier = ["--open", f"unix:{self.agent.socket}"]

    def pod(self, *words):
        return run("pod", *words, "--file", self.file, *(self.tier if words[0] in ("status", "reload") else []))

    def reload(self):
        answer = self.pod("reload")
        expect("the agent takes the epoch", answer.returncode == 0, answer)

    def put(self, volume, value):
        return run("put", *self.tier, "--volume", volume, "--on-flash", "block", data=value)

    def get(self, volume):
        return run("get", *self.tier, "--volume", volume, "block")

    def until(self, what, truth):
        wait_until(what, truth, 20, self.agent.log_path.read_text)


def reset(s):
    expect("stored", s.put("kv", b"first").returncode == 0 and s.put("other", b"stays").returncode == 0, "")
    answer = s.pod("volume", "reset", "kv")
    expect("a reset asks", answer.returncode == 1 and b"--yes" in answer.stderr, answer)
    answer = s.pod("volume", "reset", "kv", "--yes", "--dry-run")
    expect("a dry run", answer.returncode == 0 and b"volume kv generation 0 -> 1" in answer.stdout and
           "generation" not in s.file.read_text(), answer)
    answer = s.pod("volume", "reset", "kv", "--yes", "--json")
    told = json.loads(answer.stdout)
    expect("a reset is written", told["written"] and told["epoch"] == 2 and
           told["volumes"][0]["generation"] == 1, told)
    s.reload()
    expect("not found", s.get("kv").returncode != 0, s.get("kv"))
    expect("another volume keeps its blocks", s.get("other").stdout == b"stays", s.get("other"))
    status = json.loads(s.pod("status", "--json").stdout)
    expect("status shows the generation", status["volumes"][0]["generation"] == 1 and
           status["differences"] == [], status)
    expect("/metrics of the agent, too",
           s.agent.metrics()['icms_agent_volume_generation{volume="kv"}'] == 1, s.agent.metrics())
    path = pathlib.Path(s.target.config_path)
    s.target.stop()
    path.write_text(path.read_text().replace("generation: 0", "generation: 1", 1))
    s.target.start()
    s.target.wait_ready()
    s.until("the enclosure has the generation", lambda: s.put("kv", b"second").returncode == 0)
    expect("found in the new generation", s.get("kv").stdout == b"second", s.get("kv"))
    expect("the other one is on flash", s.get("other").stdout == b"stays", s.get("other"))


def create_and_delete(s):
    expect("the map lacks it", s.get("later").returncode != 0, "")
    answer = s.pod("volume", "create", "later", "value_max=64KiB")
    expect("created", answer.returncode == 0, answer)
    s.reload()
    s.until("it is served", lambda: s.put("later", b"new").returncode == 0)
    expect("and found", s.get("later").stdout == b"new", s.get("later"))
    answer = s.pod("volume", "delete", "later", "--yes", "--dry-run", "--json")
    told = json.loads(answer.stdout)
    expect("a deletion says the generation", told["generation"] == 0 and "generation=1" in told["note"], told)
    answer = s.pod("volume", "delete", "later", "--yes")
    expect("deleted", answer.returncode == 0 and b"has generation 0" in answer.stdout and
           b"(generation=1)" in answer.stdout, answer)
    s.reload()
    expect("not served", s.get("later").returncode != 0 and s.put("later", b"new").returncode != 0, "")
    answer = s.pod("volume", "create", "later", "value_max=64KiB", "generation=1")
    expect("created in another generation", answer.returncode == 0, answer)
    s.reload()
    expect("the block is not found again", s.get("later").returncode != 0, s.get("later"))
    expect("deleted again", s.pod("volume", "delete", "later", "--yes").returncode == 0, "")
    s.reload()
    answer = s.pod("volume", "set", "kv", "run_blocks=32")
    expect("set", answer.returncode == 0, answer)
    s.reload()
    s.until("an agent that runs says that it waits for a restart", lambda:
            "volume kv: its run_blocks is another one" in s.agent.log_path.read_text())
    expect("nothing changes", s.get("kv").stdout == b"second", s.get("kv"))
    answer = s.pod("volume", "list", "--json")
    expect("list", [v["name"] for v in json.loads(answer.stdout)["volumes"]] == ["kv", "other"], answer)


def refused(s):
    config = pathlib.Path(s.agent.config_path)
    text = config.read_text().replace("value_max: 64KiB", "value_max: 32KiB", 1)
    (config.parent / "wrong.yaml").write_text(text)
    answer = subprocess.run([BUILD / "cmd/icms-agent", "--check-config", "--config", config.parent / "wrong.yaml"],
                            capture_output=True, timeout=30, check=False)
    expect("another value_max is refused with its line", answer.returncode != 0 and
           b"wrong.yaml:" in answer.stderr and b"value_max" in answer.stderr, answer)


def keys(state, hashes, run_blocks):
    """Keys of an engine's hashes, as 72 digits, made as src/client/key.c says."""
    state, made = bytes.fromhex(state), []
    for block, content in enumerate(hashes):
        state = hashlib.sha256(b"".join(struct.pack("<Q", len(part)) + part for part in
                                        (b"icms block v1", state, bytes.fromhex(content)))).digest()
        if block & (block - 1) == 0 if block < run_blocks else block % run_blocks == 0:
            run = state[:4]
        made.append((run + state).hex())
    return made


def models(s):
    """Of a model whose volume has its run_blocks from the map, which is 32 by now and not the 8 of a file
    that says none."""
    state, hashes = "11" * 32, [f"{i:04x}" for i in range(40)]
    s.agent.stop()
    config = pathlib.Path(s.agent.config_path)
    config.write_text(f"{config.read_text()}models: [{{name: m, volume: kv, state: '{state}', block_tokens: 16, "
                      "of: hashes}]\n")
    s.agent.start()
    s.agent.wait_ready()
    for key in keys(state, hashes, 32):
        answer = run("put", *s.tier, "--volume", "kv", f"0x{key}", data=b"a block")
        expect("stored by its key", answer.returncode == 0, answer)
    status, text = s.agent.post("/v1/match", {"model": "m", "hashes": hashes})
    expect("a model's keys are those of the volume as it is served",
           status == 200 and json.loads(text) == {"of": 40, "dram": 40, "local": 40, "block_tokens": 16}, text)


def main():
    with tempfile.TemporaryDirectory(prefix="icms-") as folder:
        with pod.Pod(BUILD, folder) as p:
            s = Scene(folder, p)
            reset(s)
            create_and_delete(s)
            refused(s)
            models(s)


main()
