#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The icms program.

Goal: every subcommand does what its help says, with the exit statuses and messages it says.
Method: icms dev --json runs a target and an agent; the other subcommands talk to them; then Ctrl-C.

usage: cli.py BUILD_ROOT
"""
import base64
import fcntl
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402

BUILD = pathlib.Path(sys.argv[1])
ICMS = BUILD / "cmd/icms"
BAD = 0


def icms(*arguments, data=None, env=None):
    return subprocess.run([ICMS, *arguments], input=data, capture_output=True, timeout=60,
                          env={**os.environ, **(env or {})}, check=False)


def expect(what, result, status, out=None, err=None):
    """Checks an exit status, the whole standard output, and words on standard error."""
    global BAD
    right = result.returncode == status and (out is None or result.stdout == out) and \
        (err is None or all(word in result.stderr for word in err))
    print(f"{'ok' if right else 'not ok'} {what}")
    if not right:
        print(f"  {result}")
        BAD += 1


def usage():
    expect("no command", icms(), 2, b"", [b"usage: icms COMMAND"])
    expect("help", icms("help"), 0, err=[])
    expect("version", icms("version"), 0)
    expect("unknown command", icms("frobnicate"), 2, b"", [b"unknown command 'frobnicate'; see"])
    expect("command with a typo", icms("gte"), 2, b"", [b"did you mean 'get'?"])
    expect("help of a command with a typo", icms("help", "stats"), 2, b"", [b"'status'?"])
    expect("unknown option", icms("put", "--frobnicate", "a"), 2, b"",
           [b"unknown option '--frobnicate'", b"icms put --help"])
    expect("no key", icms("get"), 2, b"", [b"key"])
    expect("empty key", icms("get", ""), 2, b"", [b"1 to 16 bytes"])
    expect("long key", icms("get", "x" * 17), 2, b"", [b"--name"])
    expect("bad hex", icms("get", "0xabc"), 2, b"", [b"hex"])
    expect("bad deadline", icms("get", "--deadline", "soon", "a"), 2, b"", [b"500ms"])
    expect("no tier", icms("get", "--open", "unix:/nonexistent/sock", "a"), 2, b"",
           [b"cannot connect to the agent at /nonexistent/sock", b"icms-agent", b"icms dev"])
    expect("no agent behind a file", icms("get", "--open", f"unix:{__file__}", "a"), 2, b"",
           [b"cannot connect to the agent at", b"connection refused", b"start icms-agent"])
    expect("no file of a pod", icms("get", "--open", "pod:/nonexistent/agent.yaml", "a"), 2, b"",
           [b"cannot read /nonexistent/agent.yaml: No such file", b"pod:"])
    expect("not a tier", icms("get", "--open", "what", "a"), 2, b"", [b"unix:SOCKET"])
    result = icms("get", "--json", "--open", "unix:/nonexistent/sock", "a", "/dev/null")
    expect("errors are JSON, too", result, 2)
    assert json.loads(result.stdout)["error"] == "NOT_FOUND", result
    for command in ["dev", "put", "get", "exists", "match", "rm", "status", "trace", "key", "pod", "config"]:
        expect(f"{command} --help", icms(command, "--help"), 0, err=[])


def keys(folder):
    """A secret goes into a new file that only its owner can read, and nowhere else."""
    for kind, name, size, start in [("dhchap", "none", 32, "DHHC-1:00:"),
                                    ("dhchap", "sha256", 32, "DHHC-1:01:"),
                                    ("dhchap", "sha384", 48, "DHHC-1:02:"),
                                    ("dhchap", "sha512", 64, "DHHC-1:03:"),
                                    ("tls", "none", 32, "NVMeTLSkey-1:00:"),
                                    ("tls", "sha256", 32, "NVMeTLSkey-1:01:"),
                                    ("tls", "sha384", 48, "NVMeTLSkey-1:02:")]:
        file = folder / f"{kind}-{name}"
        result = icms("key", "gen", "--type", kind, "--hash", name, file)
        expect(f"key gen {kind} {name}", result, 0, f"{file}: new {kind} key, {name}\n".encode())
        text = file.read_text()
        assert text.startswith(start) and text.endswith(":\n"), text
        raw = base64.b64decode(text[len(start):-2], validate=True)
        assert len(raw) == size + 4, text
        assert int.from_bytes(raw[size:], "little") == zlib.crc32(raw[:size]), text
        assert file.stat().st_mode & 0o7777 == 0o600, oct(file.stat().st_mode)
    assert (folder / "dhchap-none").read_text()[10:] != (folder / "dhchap-sha256").read_text()[10:]
    if shutil.which("nvme"):
        for name in ["none", "sha256", "sha384", "sha512"]:
            text = (folder / f"dhchap-{name}").read_text().strip()
            subprocess.run(["nvme", "check-dhchap-key", "--key", text], check=True,
                           capture_output=True)
    file = folder / "dhchap-sha256"
    before = file.read_text()
    expect("key gen over a file", icms("key", "gen", file), 1, b"", [b"it exists", str(file).encode()])
    assert file.read_text() == before
    expect("key gen nowhere", icms("key", "gen", folder / "no/key"), 1, b"",
           [b"No such file or directory"])
    expect("key gen without a file", icms("key", "gen"), 2, b"", [b"'gen' and the name"])
    expect("key without gen", icms("key", "show", file), 2, b"", [b"'gen' and the name"])
    expect("key gen of a token", icms("key", "gen", "--type", "token", folder / "token"), 0)
    assert re.fullmatch("[0-9a-f]{64}\n", (folder / "token").read_text())
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    expect("key gen of another type", icms("key", "gen", "--type", "rsa", folder / "k"), 2, b"",
           [b"dhchap, tls, volume or token"])
    expect("key gen with another hash", icms("key", "gen", "--hash", "md5", folder / "k"), 2, b"",
           [b"sha512"])
    expect("key gen with a hash that TLS has not", icms("key", "gen", "--type", "tls", "--hash",
           "sha512", folder / "k"), 2, b"", [b"sha384"])
    assert not (folder / "k").exists()
    result = icms("key", "gen", "--json", folder / "j")
    assert json.loads(result.stdout) == {"file": str(folder / "j"), "type": "dhchap",
                                         "hash": "sha256"}, result


MAP = """# row 7
name: pod0
epoch: 4
enclosures:
  - name: e0  # rack 1
    address: 192.0.2.10:4420
  - name: e1
    address: e1.example.com:4420
...
"""


def operators(folder):
    """Of changes at the same time each is made, or says that it was not."""
    file, results = folder / "operators.yaml", []
    file.write_text(MAP)

    def work(who):
        for n in range(6):
            results.append(icms("pod", "volume", "create", f"v{who}-{n}", "value_max=4KiB", "--file", file))

    threads = [threading.Thread(target=work, args=(who,)) for who in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = sum(result.returncode == 0 for result in results)
    said = [result.stderr for result in results if result.returncode != 0]
    text = file.read_text()
    print(f"ok operators: {done} of {len(results)} changes were made")
    assert done >= 6 and f"epoch: {4 + done}\n" in text and text.count("- name: v") == done, (done, text)
    assert all(b"try again" in words for words in said), said
    assert not list(folder.glob("operators.yaml.*"))


def pod_map(folder):
    """icms pod changes the file of a map, and nothing else of it."""
    file = folder / "pod.yaml"
    file.write_text(MAP)

    def change(*words):
        return icms("pod", *words, "--file", file)

    expect("pod without a word", icms("pod"), 2, b"", [b"'status', 'add'"])
    expect("pod with another word", icms("pod", "frob", "e0"), 2, b"", [b"'settle'"])
    expect("drain without a name", change("drain"), 2, b"", [b"name of one enclosure"])
    expect("reload with a name", change("reload", "e0"), 2, b"", [b"no name"])
    expect("add without an address", change("add", "e2"), 2, b"", [b"--address"])
    expect("drain with an address", change("drain", "e0", "--address", "b:1"), 2, b"", [b"are for add"])
    expect("status with --yes", change("status", "--yes"), 2, b"", [b"changes and reload"])
    expect("settle with --yes", change("settle", "e0", "--yes"), 0,
           f"{file}: enclosure e0: it is up already; nothing was changed\n".encode())
    expect("status with --dry-run", change("status", "--dry-run"), 2, b"", [b"for changes"])
    for what, words, err in (
            ("a typo", ("drain", "e9"), b"did you mean e"),
            ("a name that is taken", ("add", "e1", "--address", "b:1"), b"has it already"),
            ("an address that is taken", ("add", "e2", "--address", "192.0.2.10:4420"), b"'e0' has it already"),
            ("a wrong address", ("add", "e2", "--address", "192.0.2.10"), b"not an address and port"),
            ("a weight of 0", ("add", "e2", "--address", "b:1", "--weight", "0"), b"more than 0"),
            ("a weight that is no number", ("add", "e2", "--address", "b:1", "--weight", "nan"), b"not a number"),
            ("one that is not drained", ("remove", "e0"), b"--yes"),
            ("one that is unknown", ("remove", "mars"), b"none of this name")):
        expect(f"pod refuses {what}", change(*words), 1, b"", [err])
        assert file.read_text() == MAP, words
    expect("one that is up already", change("undrain", "e0"), 0,
           f"{file}: enclosure e0: it is up already; nothing was changed\n".encode())
    result = change("drain", "e0", "--dry-run", "--json")
    expect("a dry run", result, 0)
    told = json.loads(result.stdout)
    assert told["written"] is False and told["epoch"] == 5 and told["former_epoch"] == 4, told
    assert [(e["name"], e["state"], e["share"]) for e in told["enclosures"]] == \
        [("e0", "draining", 0.0), ("e1", "up", 1.0)], told
    assert file.read_text() == MAP
    expect("drain", change("drain", "e0", "-q"), 0, b"")
    drained = MAP.replace("epoch: 4", "epoch: 5").replace("# rack 1\n", "# rack 1\n    state: draining\n")
    assert file.read_text() == drained, file.read_text()
    expect("drain of the last one", change("drain", "e1"), 1, b"", [b"no other one is up"])
    expect("remove of the last one that is up", change("remove", "e1", "--yes"), 1, b"", [b"no other one is up"])
    with open(file) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        expect("somebody else edits", change("undrain", "e0"), 1, err=[b"try again", b"nothing was changed"])
    assert file.read_text() == drained, file.read_text()
    expect("remove without --yes", change("remove", "e0"), 1, b"", [b"no other enclosure has", b"add --yes"])
    assert file.read_text() == drained, file.read_text()
    expect("remove", change("remove", "e0", "--yes"), 0)
    assert file.read_text() == "# row 7\nname: pod0\nepoch: 6\nshrink_epoch: 6\nenclosures:\n  - name: e1\n" \
        "    address: e1.example.com:4420\n...\n", file.read_text()
    expect("remove of the last one", change("remove", "e1", "--yes"), 1, b"", [b"the last one"])
    expect("no file", icms("pod", "drain", "e0", "--file", folder / "none"), 1, b"", [b"No such file"])
    expect("no map", icms("pod", "drain", "e0", "--file", __file__), 1, b"", [b"cli.py:"])
    os.mkfifo(folder / "fifo")
    expect("a FIFO", icms("pod", "drain", "e0", "--file", folder / "fifo"), 1, b"", [b"not a regular file"])
    result = icms("pod", "status", "--file", file, "--open", "unix:/nonexistent/sock", "--json")
    expect("status without an agent", result, 2)
    assert json.loads(result.stdout)["error"] == "NOT_FOUND", result


VOLUMES = """tenants: [{name: chat}]
volumes:
  - name: kv
  - name: wide
    generation: 12
    quota: 20TiB
    value_max: 65537
    run_blocks: 16
    encrypted: true
    require: chap+tls
    tenant: chat
    hosts: [nqn.2014-08.org.nvmexpress:uuid:6f9c2f7a-5d0a-4f0e-9d53-3c8a4b8f5e11, nqn.2026-01.io.icms:b]
  - name: raw
    sealed: false
    hosts: [%s]
...
""" % ", ".join(f"nqn.2026-01.io.icms:{n}" for n in range(5))


def volumes_of_map(folder):
    """What targets do with a volume is in its text form, too, as wide as a terminal."""
    file = folder / "listed.yaml"
    file.write_text(MAP.replace("...\n", VOLUMES))
    result = icms("pod", "volume", "list", "--file", file)
    expect("volumes of a map", result, 0, b"""\
VOLUME               GENERATION    QUOTA VALUE MAX  RUN KIND      REQUIRE  HOSTS
kv                            0     none      8MiB    8 sealed    none       any
wide                         12    20TiB    65537B   16 encrypted chap+tls     2
  tenant chat
  host nqn.2014-08.org.nvmexpress:uuid:6f9c2f7a-5d0a-4f0e-9d53-3c8a4b8f5e11
  host nqn.2026-01.io.icms:b
raw                           0     none      8MiB    8 raw       none         5
""")
    assert all(len(line) <= 80 for line in result.stdout.splitlines()), result.stdout
    result = icms("pod", "volume", "list", "--file", file, "--json")
    expect("and as JSON", result, 0)
    assert len(json.loads(result.stdout)["volumes"][2]["hosts"]) == 5, result.stdout


def config(folder):
    """icms config finds out what a file is, asks its daemon, and compares two of them."""
    (folder / "map.yaml").write_text(MAP)
    (folder / "other.yaml").write_text(MAP.replace("epoch: 4", "epoch: 5  # raised").replace("...", "    weight: 1\n..."))
    target = folder / "target.yaml"
    target.write_text(f"name: e0\nsegment: 1MiB\ndrives: [{{path: {folder}/drive, size: 64MiB, format_empty: true}}]\n"
                      "volumes: [{name: kv, value_max: 512KiB}]\n")
    agent = ROOT / "deploy/agent.yaml"
    expect("check", icms("config", "check", folder / "map.yaml", target, agent), 0,
           f"{folder}/map.yaml: right (pod map)\n{target}: right (icms-target)\n{agent}: right (icms-agent)\n"
           .encode())
    right = target.read_text()
    target.write_text("memory: 15TiB\n" + right)
    result = icms("config", "check", target)
    expect("what is right, and not on this machine", result, 0)
    head, *lines = result.stdout.decode().splitlines()
    assert head == f"{target}: right (icms-target), but:" and \
        len(lines) == 1 and lines[0].startswith("  on this machine: cannot run icms-target with 157286"), result
    told = json.loads(icms("config", "check", "--json", target).stdout)
    assert told["right"] is True and told["warnings"] == [line[2:] for line in lines], told
    expect("quietly", icms("config", "check", "-q", target), 0, b"")
    target.write_text(right.replace(", format_empty: true", ""))
    result = icms("config", "check", target)
    expect("a drive that is missing", result, 0)
    assert b"right (icms-target), but:\n  on this machine: drive0: not formatted: " in result.stdout, result
    target.write_text(right)
    told = json.loads(icms("config", "check", "--json", target).stdout)
    assert told == {"file": str(target), "kind": "icms-target", "right": True, "warnings": []}, told
    target.write_text(right.replace("64MiB", "4MiB"))
    expect("what only the daemon finds", icms("config", "check", "-q", target, agent), 1, b"",
           [str(target).encode() + b": drive0: ", b"too small"])
    own = folder / "agent.yaml"
    for local, status, words in (("path: /dev/null, size: 1GiB", 1, "/dev/null is a character device"),
                                 (f"path: {folder}, size: 1GiB", 1, f"{folder} is a directory"),
                                 ("path: /x, size: 4MiB", 1, f"{own}:1: local.size: 4MiB is too small"),
                                 ("path: /x, size: 128", 1, f"{own}:1: local.size: 128B is too small"),
                                 (f"path: {folder}/none/x, size: 1GiB", 0, "but:\n  on this machine: local.path: cannot find"),
                                 (f"path: {folder}/none, size: 1GiB", 0, "right (icms-agent)\n")):
        own.write_text(f"local: {{{local}}}\nvolumes: [{{name: kv}}]\n")
        result = icms("config", "check", own)
        expect(f"an own drive, {local}", result, status)
        assert words.encode() in result.stdout + result.stderr and b"chmod" not in result.stdout + result.stderr, result
    (folder / "wrong.yaml").write_text(MAP.replace("...", "    wieght: 2\n..."))
    result = icms("config", "check", "--json", folder / "wrong.yaml")
    expect("a wrong file", result, 1)
    told = json.loads(result.stdout)
    assert told["right"] is False and f"{folder}/wrong.yaml:9: " in told["why"], told
    expect("diff", icms("config", "diff", folder / "map.yaml", folder / "other.yaml"), 1, b"epoch: 4 -> 5\n")
    expect("diff of one", icms("config", "diff", agent, agent), 0, b"")
    expect("diff of two kinds", icms("config", "diff", agent, folder / "map.yaml"), 2, b"", [b"another kind"])
    expect("diff of one file", icms("config", "diff", agent), 2, b"", [b"two files"])
    expect("config without a word", icms("config"), 2, b"", [b"'check' or 'diff'"])


def volume_of_both(folder):
    """icms volume with --pod plans the target's file and the map, and writes both or none."""
    target, pod_map = folder / "both-target.yaml", folder / "both-pod.yaml"
    target.write_text(f"name: e0\nrequire: none\ndrives:\n  - path: {folder}/drive\n    size: 1GiB\n"
                      "volumes:\n  - name: kv\n    value_max: 64KiB\n")
    pod_map.write_text("name: pod0\nepoch: 4\nenclosures:\n  - name: e0\n    address: 10.0.0.1:4420\n"
                       "volumes:\n  - name: kv\n    value_max: 64KiB\n...\n")

    def both(*words):
        before = (target.read_text(), pod_map.read_text())
        result = icms("volume", *words, "--file", target, "--pod", pod_map)
        return result, before != (target.read_text(), pod_map.read_text())

    result, changed = both("reset", "kv", "--yes", "--dry-run")
    expect("a plan for both", result, 0)
    assert not changed and b"generation: 0 (default) -> 1" in result.stdout and \
        b"epoch 4 -> 5: volume kv generation 0 -> 1" in result.stdout, result
    result, changed = both("reset", "kv", "--yes", "--json")
    told = json.loads(result.stdout)
    assert changed and told["written"] and told["pod"]["written"] and told["pod"]["epoch"] == 5, told
    assert "generation: 1" in target.read_text() and "generation: 1" in pod_map.read_text()
    expect("a new volume", both("create", "new", "value_max=128KiB", "quota=16MiB", "run_blocks=32")[0], 0)
    assert "quota: 16MiB" in target.read_text() and "run_blocks" not in target.read_text(), target.read_text()
    assert "run_blocks: 32" in pod_map.read_text() and "quota" not in pod_map.read_text(), pod_map.read_text()
    for value in ("quota=32MiB", "run_blocks=16"):  # of one of the two alone
        before = [target.read_text(), pod_map.read_text()]
        expect(f"set {value}", both("set", "new", value)[0], 0)
        now = [target.read_text(), pod_map.read_text()]
        assert [a == b for a, b in zip(before, now)] == [value[0] != "q", value[0] == "q"], now
    result, changed = both("set", "new", "value_max=64KiB")
    expect("a smaller value_max without --yes", result, 1, b"", [b"cannot be loaded after a restart", b"--yes"])
    assert not changed
    expect("of the map alone, too", icms("pod", "volume", "set", "new", "value_max=64KiB", "--file", pod_map), 1, b"",
           [b"cannot be loaded after a restart", b"--yes"])
    expect("with --yes", both("set", "new", "value_max=64KiB", "--yes")[0], 0)
    assert "128KiB" not in target.read_text() + pod_map.read_text()
    expect("of the map with --yes", icms("pod", "volume", "set", "new", "value_max=32KiB", "--yes", "--file", pod_map), 0)
    result, changed = both("delete", "new")
    expect("a delete without --yes", result, 1, b"", [b"--yes"])
    assert not changed
    expect("delete", both("delete", "new", "--yes")[0], 0)
    assert "new" not in target.read_text() + pod_map.read_text()
    expect("one of them alone", icms("volume", "reset", "kv", "--yes", "-q", "--file", target), 0, b"")
    result, changed = both("reset", "kv", "--yes")
    expect("other generations", result, 1, None, [b"generation 2 in", b"and 1 in", b"nothing was changed"])
    assert not changed
    result = icms("volume", "create", "more", "--file", target, "--pod", folder / "missing.yaml")
    expect("no map", result, 1, None, [b"missing.yaml"])
    assert "more" not in target.read_text()
    expect("list of both", icms("volume", "list", "--file", target, "--pod", pod_map), 2, b"", [b"--pod is for changes"])
    expect("erase of both", icms("volume", "erase", "--volume", "kv", "--pod", pod_map), 2, b"", [b"--pod"])


TRACE = pathlib.Path(__file__).parent.parent / "replay/mooncake.jsonl"


def replay(folder):
    """A trace through the store itself: what it says and what it refuses."""
    few = ["replay", "--capacity", "40%", "--loops", "1", "--block", "3968", "--segment", "256KiB"]
    result = icms(*few, "--json", "--payload", folder, TRACE)
    expect("replay with payloads", result, 0)
    index, store = (json.loads(line) for line in result.stdout.splitlines())
    assert (index["policy"], store["policy"]) == ("default", "store"), result
    assert abs(store["token_hit_ratio"] / index["token_hit_ratio"] - 1) < 0.05, result
    assert index["compared_bytes"] == 0 < store["compared_bytes"], result
    assert store["write_amplification"] > 1, result
    assert not list(folder.glob("icms-replay*")), "the drive is still there"
    result = icms(*few, "--policy", "store", "--payload", folder, TRACE)
    expect("replay as a table", result, 0)
    assert result.stdout.splitlines()[-1].split()[3] == b"store", result
    (folder / "icms-replay.drive").write_text("mine")
    expect("replay over a file", icms(*few, "--policy", "store", "--payload", folder, TRACE), 1,
           err=[b"icms-replay.drive", b"already"])
    assert (folder / "icms-replay.drive").read_text() == "mine"
    expect("replay without space", icms(*few, "--space", "1MiB", "--payload", folder, TRACE), 1, b"",
           [b"--space", b"capacity 40%"])
    expect("replay nowhere", icms(*few, "--policy", "store", "--payload", folder / "gone", TRACE), 1,
           err=[b"gone", b"make the directory"])
    expect("replay in a file", icms(*few, "--policy", "store", "--payload", TRACE, TRACE), 1,
           err=[b"not a directory"])
    expect("replay store without payload", icms(*few, "--policy", "store", TRACE), 2, b"",
           [b"--payload"])
    expect("replay payload without store", icms(*few, "--policy", "lru", "--payload", folder, TRACE),
           2, b"", [b"--policy"])


def blocks(env, folder):
    expect("put", icms("put", "greeting", data=b"hello\n", env=env), 0,
           b"greeting: stored, 6 bytes\n")
    expect("get", icms("get", "greeting", env=env), 0, b"hello\n")
    value = os.urandom(3 << 20)
    (folder / "value").write_bytes(value)
    expect("put a file on flash", icms("put", "--on-flash", "-q", "0x00ff", folder / "value",
                                       env=env), 0, b"")
    expect("get it in hex", icms("get", "--hex", "00ff", "--output", folder / "back", env=env), 0)
    assert (folder / "back").read_bytes() == value
    name = "a name that is much longer than sixteen bytes"
    expect("put a name", icms("put", "--name", name, data=b"n", env=env), 0)
    expect("get a name", icms("get", "--name", name, env=env), 0, b"n")
    expect("if absent", icms("put", "--if-absent", "greeting", data=b"x", env=env), 1, b"",
           [b"already"])
    expect("left as it was", icms("get", "greeting", env=env), 0, b"hello\n")
    expect("miss", icms("get", "nobody", env=env), 1, b"", [b"nobody", b"absent"])
    result = icms("get", "--json", "nobody", "/dev/null", env=env)
    expect("miss as JSON", result, 1)
    assert json.loads(result.stdout) == {"key": "nobody", "status": "MISS", "reason": "absent"}
    result = icms("get", "--json", "greeting", "/dev/null", env=env)
    assert json.loads(result.stdout)["bytes"] == 6, result
    expect("exists", icms("exists", "greeting", "nobody", env=env), 1,
           b"greeting: found\nnobody: missing (absent)\n")
    expect("exists, all", icms("exists", "greeting", env=env), 0)
    expect("match", icms("match", "greeting", "0x00ff", "nobody", "greeting", env=env), 1,
           b"2 of 4\n")
    expect("match from standard input", icms("match", "--json", data=b"greeting\n0x00ff\n",
                                             env=env), 0, b'{"matched":2,"of":2}\n')
    result = icms("match", "--estimate", "greeting", "nobody", env=env)
    expect("match with an estimate", result, 1)
    assert result.stdout.startswith(b"1 of 2: ") and b" bytes" in result.stdout, result
    estimate = json.loads(icms("match", "--estimate", "--json", "greeting", "0x00ff", env=env).stdout)
    assert set(estimate) == {"matched", "of", "bytes", "load_seconds", "error_seconds", "blocks", "first"}, estimate
    assert estimate["matched"] == sum(estimate["blocks"].values()) == 2 and estimate["bytes"] > 0, estimate
    assert estimate["first"]["dram"] <= estimate["first"]["local"] <= 2, estimate
    result = icms("match", "--estimate", "--json", "nobody", env=env)
    expect("an estimate of nothing", result, 1)
    assert json.loads(result.stdout)["matched"] == json.loads(result.stdout)["bytes"] == 0, result
    expect("rm", icms("rm", "greeting", "nobody", env=env), 1,
           b"greeting: removed\nnobody: missing (absent)\n")
    expect("gone", icms("get", "greeting", env=env), 1)
    expect("empty value", icms("put", "a", data=b"", env=env), 1, b"", [b"empty"])
    expect("value too large", icms("put", "a", data=bytes((8 << 20) + 1), env=env), 1, b"",
           [b"8388608"])
    expect("file that is not there", icms("put", "a", folder / "nothing", env=env), 1, b"",
           [b"nothing"])
    expect("unknown volume", icms("get", "--volume", "nope", "a", env=env), 2, b"",
           [b"nope", b"kv"])


def status(env):
    result = icms("status", "--json", env=env)
    expect("status as JSON", result, 0)
    told = json.loads(result.stdout)
    assert told["volumes"][0]["name"] == "kv" and told["enclosures"][0]["name"] == "dev", told
    assert told["ready"] is True and told["host_nqn"].startswith("nqn."), told
    # Gets and matches of other processes, which are gone, are counted.
    before = told["volumes"][0]
    for _ in range(3):
        expect("put", icms("put", "counted", data=b"x", env=env), 0)
        expect("get", icms("get", "counted", env=env), 0)
    expect("match", icms("match", "counted", "0xee", env=env), 1)
    after = json.loads(icms("status", "--json", env=env).stdout)["volumes"][0]
    assert after["hits"]["dram"] - before["hits"]["dram"] == 3, (before, after)
    assert after["keys_found"] - before["keys_found"] == 1, (before, after)
    assert after["keys_missed"] - before["keys_missed"] == 1, (before, after)
    result = icms("status", env=env)
    expect("status", result, 0)
    assert b"ENCLOSURE" in result.stdout and b"VOLUME" in result.stdout, result
    assert f"host NQN: {told['host_nqn']}".encode() in result.stdout, result
    head, row = [line.split() for line in result.stdout.splitlines()[-9:] if line.startswith((b"VOLUME", b"kv"))][:2]
    assert head[1:3] == [b"ENCRYPTED", b"GENERATION"] and row[1:3] == [b"no", b"0"], result
    assert b": ready" in result.stdout and b" ago: " not in result.stdout, result


def target_status(env):
    """What a target knows, by the URL of its HTTP port."""
    url = f"http://{env['TARGET']}"
    result = icms("status", "--target", url, "--json")
    expect("status of a target as JSON", result, 0)
    told = json.loads(result.stdout)
    with urllib.request.urlopen(f"{url}/status", timeout=10) as answer:
        page = json.load(answer)
    assert told.keys() == page.keys() and told["nqn"] == page["nqn"] and told["name"] == "dev", told
    assert told["volumes"][0]["generation"] == 0 and told["volumes"][0]["require"] == "none", told
    result = icms("status", "--target", f"{url}/")
    expect("status of a target", result, 0)
    lines = [line.split() for line in result.stdout.decode().splitlines()]
    assert lines[0] == ["dev:", "ready"] and lines[1] == ["subsystem", "NQN:", told["nqn"]], lines
    for first in (["PORTAL", "CONNECTIONS"], ["PROVEN", "CONTROLLERS", "CONNECTIONS", "SINCE", "EPOCH",
                                                          "HOST"], ["none", "1"], ["DRIVE", "STATE"], ["TENANT", "WEIGHT"],
                  ["VOLUME", "ENCRYPTED", "GENERATION", "REQUIRE"], ["kv", "no", "0", "none"],
                  [told["drives"][0]["path"], "in", "service"], [told["portals"][0]["address"]]):
        assert any(line[:len(first)] == first for line in lines), (first, lines)
    expect("status of a target that is none", icms("status", "--target", f"http://{env['AGENT']}"), 1, b"",
           [b"not the status of a target"])
    result = icms("status", "--json", "--target", "http://127.0.0.1:1")
    expect("status of a target that does not run", result, 2)
    assert json.loads(result.stdout)["error"] == "PEER_DOWN", result
    expect("no URL of a target", icms("status", "--target", "ftp://a"), 2, b"", [b"write http://"])
    expect("a password in a URL", icms("status", "--target", "http://a:b@c"), 2, b"", [b"write http://"])
    expect("no file of a target", icms("status", "--target", "/nonexistent/t.yaml"), 2, b"",
           [b"cannot read /nonexistent/t.yaml: no such file", b"/etc/icms/target.yaml"])
    expect("target and agent", icms("status", "--target", url, "--open", "unix:/a"), 2, b"",
           [b"--open and --target"])
    expect("target of put", icms("put", "--target", url, "a"), 2, b"", [b"unknown option"])


def hostile_target():
    """What answers as a target may say anything: it is bounded, and nothing of it reaches a terminal."""
    answers = {"/odd": b'{"drives":[{"path":"\\u001b[2J\\u009bx","used_bytes":1e308,"why":7},5,null,[]],"name":[],'
                       b'"volumes":{"a":1},"tenants":"t","portals":[[[1]]],"ready":true}',
               "/list": b"[1]", "/half": b'{"drives":[', "/deep": b"[" * 100000, "/nothing": b"",
               "/large": b"x" * (9 << 20)}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            answer = answers.get(self.path.removesuffix("/status"))
            if answer is None:
                self.send_response(302)
                self.send_header("Location", "/odd/status")
                self.end_headers()
                return
            self.send_response(200)
            self.end_headers()
            try:
                self.wfile.write(answer)
            except OSError:
                pass

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    result = icms("status", "--target", f"{url}/odd")
    expect("odd answer", result, 0)
    assert b"\x1b" not in result.stdout and b"\xc2\x9b" not in result.stdout, result
    assert b"?[2J??x" in result.stdout, result
    for path in ("/list", "/half", "/deep", "/nothing"):
        expect(f"answer {path}", icms("status", "--target", url + path), 1, b"", [b"not the status"])
    expect("large answer", icms("status", "--target", f"{url}/large"), 1, b"", [b"more than"])
    expect("another place", icms("status", "--target", f"{url}/moved"), 1, b"", [b"HTTP status 302"])
    server.shutdown()


def trace(env):
    """The requests of a key that an agent and an enclosure tell of, with the time in each state."""
    expect("put", icms("put", "--on-flash", "traced", data=b"x" * 5000, env=env), 0)
    result = icms("trace", "--json", "traced", env=env)
    expect("trace as JSON", result, 0)
    told = json.loads(result.stdout)["requests"]
    assert len(told) == 1 and told[0]["op"] == "put" and told[0]["bytes"] == 5000, told
    assert told[0]["status"] == "OK" and told[0]["enclosure"] == "dev", told
    assert [s["state"] for s in told[0]["states"]] == ["new", "pod", "answer"], told
    assert sum(s["us"] for s in told[0]["states"]) == told[0]["us"] > 0, told
    result = icms("trace", "traced", env=env)
    expect("trace", result, 0)
    assert b"STATES" in result.stdout and b"(dev)" in result.stdout, result
    assert told[0]["key"].encode() in result.stdout, result
    expect("trace of a key as it is shown", icms("trace", "0x" + told[0]["key"], env=env), 0)
    expect("trace of a key that nobody asked for", icms("trace", "untouched", env=env), 1,
           b"no request of this key is remembered: gets that find their block in mapped memory ask "
           b"no agent\n")
    result = icms("trace", "--json", env=env)
    expect("the slowest", result, 0)
    slowest = [request["us"] for request in json.loads(result.stdout)["requests"]]
    assert len(slowest) > 1 and slowest == sorted(slowest, reverse=True), slowest
    expect("two keys", icms("trace", "a", "b", env=env), 2, b"", [b"'b'"])
    page = f"http://{env['TARGET']}/trace"
    with urllib.request.urlopen(f"{page}?key={told[0]['key']}", timeout=10) as answer:
        command = json.load(answer)["requests"][0]
    assert command["op"] == "store" and command["drive"].endswith("drive"), command
    assert "write" in [s["state"] for s in command["states"]], command
    with urllib.request.urlopen(page, timeout=10) as answer:
        assert all(len(r["key"]) <= 8 for r in json.load(answer)["requests"]), page


def dev(folder):
    process = subprocess.Popen([ICMS, "dev", "--json", "--size", "256MiB", "--dir", folder / "d"],
                               stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        if not line:
            sys.exit(f"not ok icms dev ended with {process.wait()}")
        told = json.loads(line)
        env = {"ICMS_SOCKET": told["socket"], "TARGET": f"127.0.0.1:{told['target_http']}",
               "AGENT": f"127.0.0.1:{told['agent_http']}"}
        expect("a port that the target picks", icms("status", "--target", folder / "d/target.yaml"), 2, b"",
               [b"port 0"])
        blocks(env, folder)
        status(env)
        target_status(env)
        hostile_target()
        trace(env)
    finally:
        process.send_signal(signal.SIGINT)
        ended = process.wait(timeout=30)
    expect("dev ends cleanly", subprocess.CompletedProcess("icms dev", ended), 0)
    expect("nobody listens any more", icms("get", "a", env=env), 2)


def readiness(folder):
    """The exit status says whether the agent is ready; an error that is over has its age."""
    volume = {"name": "kv", "value_max": "64KiB", "memory_max": "1MiB"}
    with pod.Pod(BUILD, folder) as p:
        target = p.add_target("e0", 1, "64MiB", [volume], segment="1MiB", memory="16MiB")
        target.wait_ready()
        agent = p.add_agent("server-a", [target], [volume])
        agent.wait_ready()
        env = {"ICMS_SOCKET": str(agent.socket)}
        expect("status of a ready agent", icms("status", env=env), 0)
        target.kill()
        wait_until("the agent is not ready", lambda: agent.get("/readyz")[0] == 503)
        result = icms("status", env=env)
        expect("status of an agent that is not ready", result, 1)
        assert b"not ready: " in result.stdout and b" s ago: " in result.stdout, result
        result = icms("status", "--json", env=env)
        expect("the same as JSON", result, 1)
        told = json.loads(result.stdout)
        assert told["ready"] is False and told["enclosures"][0]["last_error_age_seconds"] < 60, told
        target.start()
        wait_until("the agent is ready again", lambda: agent.get("/readyz")[0] == 200)
        result = icms("status", env=env)
        expect("status after an outage", result, 0)
        assert b" ago: " in result.stdout, result


def sizes(folder):
    """An agent that has seen small blocks only asks with little room, and again with what a large
    one needs."""
    volume = {"name": "kv", "value_max": "1MiB", "memory_max": "4MiB"}
    with pod.Pod(BUILD, folder) as p:
        target = p.add_target("e0", 1, "64MiB", [volume], segment="4MiB", memory="16MiB")
        target.wait_ready()
        agent = p.add_agent("server-a", [target], [volume])
        agent.wait_ready()
        env = {"ICMS_SOCKET": str(agent.socket)}
        values = {"small": b"s" * 100, "large": bytes(range(256)) * 4096, "middle": b"m" * 5001}
        for name, value in values.items():
            expect(f"put of {len(value)} bytes", icms("put", name, data=value, env=env), 0)
        agent.stop()
        agent.start()
        agent.wait_ready()
        for name, value in values.items():
            expect(f"get of {len(value)} bytes", icms("get", name, env=env), 0, value)


def drain(folder):
    """An agent that is told to end waits for accepted blocks to be on flash."""
    volume = {"name": "kv", "value_max": "64KiB", "memory_max": "1MiB"}
    with pod.Pod(BUILD, folder) as p:
        target = p.add_target("e0", 1, "64MiB", [volume], segment="1MiB", memory="16MiB")
        target.wait_ready()
        agent = p.add_agent("server-a", [target], [volume], silence="20s", keep_alive="30s")
        agent.wait_ready()
        env = {"ICMS_SOCKET": str(agent.socket)}
        target.stand_still()
        expect("put is accepted", icms("put", "late", data=b"value", env=env), 0)
        agent.signal(signal.SIGTERM)
        wait_until("the agent drains", lambda: agent.get("/readyz") == (503, "draining\n"))
        assert agent.process.poll() is None, "it ended before the block was stored"
        target.signal(signal.SIGCONT)
        ended = agent.process.wait(timeout=30)
        expect("the agent ends as asked", subprocess.CompletedProcess("icms-agent", ended), 0)
        agent.start()
        agent.wait_ready()
        expect("the block is on flash", icms("get", "late", env=env), 0, b"value")


def wait_until(what, condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def main():
    with tempfile.TemporaryDirectory(prefix="icms-") as folder:
        usage()
        keys(pathlib.Path(folder))
        operators(pathlib.Path(folder))
        pod_map(pathlib.Path(folder))
        volumes_of_map(pathlib.Path(folder))
        config(pathlib.Path(folder))
        volume_of_both(pathlib.Path(folder))
        dev(pathlib.Path(folder))
        readiness(pathlib.Path(folder) / "pod")
        drain(pathlib.Path(folder) / "drain")
        sizes(pathlib.Path(folder) / "sizes")
    with tempfile.TemporaryDirectory(prefix="icms-", dir="/var/tmp") as folder: # O_DIRECT
        replay(pathlib.Path(folder))
    sys.exit(1 if BAD else 0)


main()
