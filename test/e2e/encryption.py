#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An encrypted volume, from the key to the drive.

Goal: neither the drive nor the memory of an agent or a target ever has a byte of plain text, of what
was put through the agent and through one inside the process; a volume that is encrypted at one end
alone is not used, in words; a block that was put before encryption was turned on is not found, nor in
the way of a store that wants it to be absent; other keys, no keys and keys of a plain volume are
refused in words.
Method: an enclosure and an agent on loopback, the icms program, and a look into /proc/PID/mem and the
drive for a marker. What the search finds of a plain block shows that it would have found it.

usage: encryption.py BUILD_ROOT
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import expect  # noqa: E402

PLAIN = {"name": "kv", "value_max": "1MiB", "memory_max": "8MiB", "encrypted": "false"}
MARKER = b"a sentence that nobody else may read"


def run(build, *arguments, value=None):
    return subprocess.run([build / "cmd/icms", *arguments], input=value, capture_output=True,
                          timeout=60)


def memory_has(pid, marker):
    """Whether any readable memory of a process holds it. The search itself reads page by page and
    keeps nothing."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, \
            open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            begin, end, mode = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", line).groups()
            if mode[0] != "r" or "[v" in line:
                continue
            if int(end, 16) - int(begin, 16) > 1 << 36:
                continue  # the shadow of a sanitizer: terabytes, and no data
            at, tail = int(begin, 16), b""
            while at < int(end, 16):
                try:
                    memory.seek(at)
                    piece = memory.read(min(1 << 20, int(end, 16) - at))
                except OSError:
                    break
                if not piece:
                    break
                if marker in tail + piece:
                    return True
                tail = piece[-len(marker):]
                at += len(piece)
    return False


def drive_has(path, marker):
    tail = b""
    with open(path, "rb") as drive:
        while piece := drive.read(1 << 20):
            if marker in tail + piece:
                return True
            tail = piece[-len(marker):]
    return False


def blocks_of(target):
    return sum(volume["blocks"] for volume in json.loads(target.get("/status")[1])["volumes"])


def encrypt(daemons):
    for daemon in daemons:
        daemon.stop()
        path = pathlib.Path(daemon.config_path)
        text = path.read_text()
        assert "encrypted: false" in text
        path.write_text(text.replace("encrypted: false", "encrypted: true"))
    for daemon in daemons:
        daemon.start()
        daemon.wait_ready()


def keys_make(build, folder):
    """Lists: with a plain key, a wrapped key, another key of that id, and that key with another id."""
    for name in ("kek", "one", "two"):
        made = run(build, "key", "gen", "--type", "volume", f"{folder}/{name}")
        expect(f"key {name}", made.returncode == 0 and not made.stderr, made)
    key = pathlib.Path(folder, "one").read_text().strip()
    expect("a key is not printed", key not in made.stdout.decode(), made)
    wrapped = run(build, "key", "wrap", "--kek", f"{folder}/kek", f"{folder}/one",
                  f"{folder}/wrapped")
    expect("wrapped", wrapped.returncode == 0, wrapped)
    entries = {"keys": f"file: {folder}/one",
               "wrapped-keys": f"wrapped: {folder}/wrapped\n        kek_file: {folder}/kek",
               "command-keys": f"wrapped: {folder}/wrapped\n"
                               f"        key_command: /bin/cat {folder}/kek",
               "other-keys": f"file: {folder}/two"}
    entries["later-keys"] = entries["keys"]
    for name, entry in entries.items():
        key_id = 7 if name == "later-keys" else 1
        pathlib.Path(folder, name).write_text(
            f"volumes:\n  - name: kv\n    keys:\n      - id: {key_id}\n        {entry}\n")
    return {name: f"{folder}/{name}" for name in entries}


def main():
    build = pathlib.Path(sys.argv[1])
    value = MARKER * 20000
    with tempfile.TemporaryDirectory(prefix="icms-") as folder, pod.Pod(build, folder) as p:
        keys = keys_make(build, folder)
        target = p.add_target("enclosure0", 2, "64MiB", [PLAIN], segment="4MiB", memory="32MiB")
        target.wait_ready()
        agent = p.add_agent("server-a", [target], [PLAIN])
        agent.wait_ready()
        tier = ["--open", f"unix:{agent.socket}"]
        drives = target.drives

        put = run(build, "put", *tier, "--on-flash", "block", value=MARKER.replace(b"s", b"S") * 10)
        expect("a plain block", put.returncode == 0, put)
        plain = MARKER.replace(b"s", b"S")
        expect("the search finds it in the agent", memory_has(agent.pid, plain))
        expect("and on a drive", any(drive_has(path, plain) for path in drives))
        refused = run(build, "put", *tier, "--keys", keys["keys"], "block", value=value)
        expect("keys of a plain volume are refused",
               refused.returncode != 0 and b"not encrypted" in refused.stderr, refused)

        sealer = p.add_agent("server-b", [target], [{**PLAIN, "encrypted": "true"}])
        blocks = blocks_of(target)
        deadline = time.monotonic() + 60
        while "of another generation or encrypted" not in sealer.log_path.read_text():
            assert time.monotonic() < deadline, sealer.log_tail()
            time.sleep(0.2)
        for words in (["put", "--on-flash", "block"], ["get", "block"]):
            refused = run(build, words[0], "--open", f"unix:{sealer.socket}", "--keys", keys["keys"],
                          *words[1:], value=value)
            expect(f"encrypted here and not there: {words[0]}", refused.returncode == 2 and
                   not refused.stdout and b"`encrypted`" in refused.stderr, refused)
        expect("and nothing is there", not any(drive_has(path, MARKER) for path in drives) and
               blocks_of(target) == blocks == 1)
        sealer.stop()

        encrypt([target])
        deadline = time.monotonic() + 60
        while b"`encrypted`" not in refused.stderr or \
                "of another generation or encrypted" not in agent.log_path.read_text():
            assert time.monotonic() < deadline, (refused, agent.log_tail())
            time.sleep(0.2)
            refused = run(build, "put", *tier, "--on-flash", "block", value=value)
        expect("encrypted there and not here is said", refused.returncode == 2, refused)
        expect("and nothing is put there", not any(drive_has(path, MARKER) for path in drives))
        encrypt([agent])
        refused = run(build, "put", *tier, "block", value=value)
        expect("no keys are refused", refused.returncode != 0 and b"keys" in refused.stderr, refused)
        got = run(build, "get", *tier, "--keys", keys["keys"], "block")
        expect("a block from before is not found", got.returncode == 1 and not got.stdout, got)
        put = run(build, "put", *tier, "--keys", keys["keys"], "--on-flash", "--if-absent", "block",
                  value=value)
        expect("and not in the way", put.returncode == 0, put)
        for name in ("keys", "wrapped-keys", "command-keys"):
            got = run(build, "get", *tier, "--keys", keys[name], "block")
            expect(f"read with {name}", got.stdout == value, got.stderr)
        got = run(build, "get", *tier, "--keys", keys["other-keys"], "block")
        expect("not with another key",
               got.returncode == 1 and not got.stdout and b"checksum" in got.stderr, got.stderr)
        got = run(build, "get", *tier, "--keys", keys["later-keys"], "block")
        expect("nor with its key under another id",
               got.returncode == 1 and not got.stdout and b"(no_key)" in got.stderr, got.stderr)
        pathlib.Path(folder, "one").chmod(0o640)
        for words, stdin in ((["get", "block"], None), (["put", "block"], value)):
            refused = run(build, words[0], *tier, "--keys", keys["keys"], *words[1:], value=stdin)
            expect(f"a key that others may read: {words[0]}", refused.returncode == 2 and
                   not refused.stdout and b"0640" in refused.stderr, refused)
        pathlib.Path(folder, "one").chmod(0o600)
        inside = ["--open", f"pod:{agent.config_path}"]
        got = run(build, "get", *inside, "--keys", keys["keys"], "block")
        expect("read by an agent inside a process", got.stdout == value, got.stderr)
        put = run(build, "put", *inside, "--keys", keys["keys"], "--on-flash", "second", value=value)
        expect("and put by it", put.returncode == 0, put)
        got = run(build, "get", *tier, "--keys", keys["keys"], "second")
        expect("read through the agent", got.stdout == value, got.stderr)

        for name, daemon in (("agent", agent), ("target", target)):
            expect(f"no plain text in the {name}", not memory_has(daemon.pid, MARKER))
        expect("none on a drive", not any(drive_has(path, MARKER) for path in drives))


main()
