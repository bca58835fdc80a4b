#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attack: users of the agent's machine, at its socket, its memory and its files.

Goal, of the attacker: to use a volume of another user, or to tell it from one that does not exist; to
see it in status or traces; to find its values in memory that the agent hands out; to change a configuration
or a drive whose mode the operator got wrong; to read secrets and TLS keys from core dumps of the daemons.
Each has to fail.
Method: an agent with a drive of its own, and the icms program run by users without names; a pod whose
daemons are killed so that the kernel writes their core dumps, which are searched. Only root can be several
users; without it the test is skipped.

usage: local.py BUILD_ROOT
"""
import base64
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402

OWNER, OTHER, STRANGER = 62001, 62002, 62003
VOLUMES = [{"name": "theirs", "value_max": "64KiB", "memory_max": "1MiB", "users": f"[{OWNER}]"},
           {"name": "mine", "value_max": "64KiB", "memory_max": "1MiB", "users": f"[{OTHER}]"}]
MODELS = [{"name": "of-theirs", "volume": "theirs", "state": "00" * 32, "block_tokens": 2, "of": "tokens"}]
MARKER = b"a sentence that nobody else may read"


class Users:
    """The icms program, run by others than root, who cannot reach the build."""

    def __init__(self, build, folder, socket):
        self.program = folder / "icms"
        self.socket = socket
        shutil.copy(build / "cmd/icms", self.program)
        self.program.chmod(0o755)

    def run(self, user, *words, value=None):
        return subprocess.run([self.program, words[0], "--open", f"unix:{self.socket}", *words[1:]],
                              input=value, capture_output=True, timeout=60, check=False, cwd="/",
                              user=user, group=user, extra_groups=[])


def volumes_look_alike(users):
    result = users.run(OWNER, "put", "-v", "theirs", "key", value=MARKER)
    assert result.returncode == 0, result
    for words in (("get",), ("exists",), ("rm",), ("put", "--if-absent"), ("match",), ("trace",)):
        foreign, absent = (users.run(OTHER, words[0], "-v", volume, *words[1:], "key", value=b"x")
                           for volume in ("theirs", "nothing"))
        assert foreign.returncode == 2 and foreign.stdout == b"", (words, foreign)
        assert (foreign.returncode, foreign.stderr.replace(b"theirs", b"nothing")) == \
            (absent.returncode, absent.stderr), (words, foreign, absent)
    for words in (("status", "--json"), ("status",), ("trace", "--json"), ("trace",)):
        said = users.run(OTHER, *words)
        assert b"theirs" not in said.stdout + said.stderr, said
    assert users.run(OWNER, "get", "-v", "theirs", "key").stdout == MARKER
    print("ok a volume of others and one that does not exist answer alike, to every command")


def questions_look_alike(agent):
    """Without a proof hints and questions of routers are for volumes of everybody."""
    def told(page, volume, **rest):
        body = json.dumps({"volume": volume, "names": ["key"]} if not rest else rest).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{agent.http_port}{page}", body,
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    for page in ("/v1/prestage", "/v1/match"):
        status, said = told(page, "theirs")
        assert (status, said.replace(b"theirs", b"nothing")) == told(page, "nothing"), (page, status, said)
        assert status == 404, (page, status)
        for tokens in ([1, 2], []):
            status, said = told(page, None, model="of-theirs", tokens=tokens)
            assert (status, said.replace(b"of-theirs", b"of-nobody")) == \
                told(page, None, model="of-nobody", tokens=tokens), (page, status, said)
            assert status == 400 and b'"theirs"' not in said, (page, status, said)
    print("ok hints and questions over HTTP for a volume of others and for none are answered alike")


def files_of_everybody(build, folder):
    """A configuration or a drive that any user can write is not used."""
    here = folder / "files"
    here.mkdir()
    target, agent, pod_map, drive = (here / name for name in ("target.yaml", "agent.yaml", "pod.yaml", "drive"))
    target.write_text(f"name: e0\nlisten: 127.0.0.1:0\nhttp: {{listen: none}}\nsegment: 1MiB\n"
                      f"drives: [{{path: {drive}, size: 64MiB, format_empty: true}}]\n"
                      "volumes: [{name: kv, value_max: 64KiB}]\n")
    pod_map.write_text("name: pod0\nepoch: 1\nenclosures: [{name: e0, address: '127.0.0.1:1'}]\n...\n")
    agent.write_text(f"socket: {here}/s\nhttp: {{listen: none}}\nmemory: 16MiB\npod: {pod_map}\n"
                     "volumes: [{name: kv, value_max: 64KiB}]\n")
    drive.touch()
    for path in (target, agent, pod_map, drive):
        path.chmod(0o600)

    def starts(name, config, *words):
        return subprocess.run([build / "cmd" / name, "--config", config, *words], capture_output=True, text=True,
                              timeout=60, check=False)

    for name, config, path, mode in (("icms-target", target, target, 0o602),
                                     ("icms-target", target, drive, 0o602),
                                     ("icms-agent", agent, agent, 0o666),
                                     ("icms-agent", agent, pod_map, 0o646)):
        path.chmod(mode)
        for words in ([],) if path == drive else ([], ["--check-config"]):  # that opens no drive for writing
            result = starts(name, config, *words)
            assert result.returncode in (1, 2) and f"cannot use {path}: its mode is 0{mode:o}" in result.stderr and \
                "every user of this machine can change" in result.stderr and "chmod" in result.stderr, (path, result)
        path.chmod(0o600)
        result = starts(name, config, "--check-config")
        assert result.returncode == 0, result
    agent.write_text(agent.read_text() + f"local: {{path: {drive}, size: 64MiB, segment: 1MiB}}\n")
    for mode, warns in ((0o604, True), (0o640, False)):
        drive.chmod(mode)
        for name, config in (("icms-target", target), ("icms-agent", agent)):
            result = starts(name, config, "--check-config")
            assert result.returncode == 0, result
            assert ("every user of this machine can read what is stored" in result.stderr) == warns, (mode, result)
            assert (f"{drive}: its mode is 0{mode:o}" in result.stderr) == warns, (mode, result)
    print("ok configurations and drives that others can write are refused, and drives that others can read warned of")


def strangers(users, agent, folder):
    for _ in range(50):
        result = users.run(STRANGER, "get", "-v", "mine", "key")
        assert result.returncode == 2 and b"mine" not in result.stdout, result
    time.sleep(1.5)
    lines = [json.loads(line) for line in (folder / "audit").read_text().splitlines()]
    refused = [line for line in lines if line["event"] == "refusal"]
    assert len(refused) == 1 and refused[0]["user"] == str(STRANGER), lines
    assert agent.metrics()["icms_agent_clients_refused_total"] == 50
    print("ok a user without a volume is refused; 50 times are one line and a count")


def memory(users, build, agent):
    """What a client of another volume maps never has the value."""
    holder = subprocess.Popen([users.program, "put", "--open", f"unix:{users.socket}", "-v", "mine", "late"],
                              stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/", user=OTHER,
                              group=OTHER, extra_groups=[])
    deadline = time.monotonic() + 30
    # It maps what it was sent a moment after the agent has counted it.
    while (agent.metrics()["icms_agent_clients"] < 1 or
           not re.search(r" r\S\Ss ", pathlib.Path(f"/proc/{holder.pid}/maps").read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    found = shared = 0
    with open(f"/proc/{holder.pid}/maps", encoding="utf-8") as maps, \
            open(f"/proc/{holder.pid}/mem", "rb", buffering=0) as mem:
        for line in maps:
            span, mode = line.split()[:2]
            if mode[3] != "s" or mode[0] != "r":
                continue
            begin, end = (int(number, 16) for number in span.split("-"))
            shared += 1
            while begin < end:
                mem.seek(begin)
                found += MARKER in mem.read(min(1 << 20, end - begin))
                begin += 1 << 20
    holder.kill()
    holder.wait()
    assert shared > 0 and found == 0, (shared, found)
    print(f"ok {shared} mappings of another user's client have none of the value")


def core_dump(process, folder):
    """What the kernel writes of a process that aborts."""
    process.send_signal(signal.SIGABRT)
    process.wait(timeout=60)
    cores = [path for path in folder.iterdir() if path.name.startswith("core")]
    assert len(cores) == 1, (cores, process.returncode)
    content = cores[0].read_bytes()
    cores[0].unlink()
    return content


def client_core_dump(build, agent, folder, cores):
    """A client waits for the value that it is to put, with the keys of its volume."""
    subprocess.run([build / "cmd/icms", "key", "gen", "--type", "volume", folder / "volume"], check=True,
                   capture_output=True)
    (folder / "keys").write_text(f"volumes:\n  - name: vault\n    keys:\n      - {{id: 1, file: {folder}/volume}}\n")
    text = (folder / "volume").read_text().strip()
    key = bytes.fromhex(text)
    began = agent.metrics()["icms_agent_clients"]
    client = subprocess.Popen([build / "cmd/icms", "put", "--open", f"unix:{agent.socket}", "-v", "vault", "--keys",
                               folder / "keys", "key"], stdin=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while agent.metrics()["icms_agent_clients"] <= began:
        assert time.monotonic() < deadline and client.poll() is None, (client.returncode, agent.log_tail())
        time.sleep(0.1)
    client.stdin.write(b"v" * 300)
    client.stdin.flush()
    time.sleep(1)
    content = core_dump(client, cores)
    client.stdin.close()
    assert f"{folder}/keys".encode() in content, "it is no core dump of it"
    for part in (text.encode()[:20], key, key[:16], key[-16:]):
        assert part not in content, "a key of a volume"
    print(f"ok a core dump of a client ({len(content) >> 20} MiB) has no key of its volume")


def core_dumps(p, build, folder):
    """No file of a secret, a TLS key or a key of a volume, as text or as bytes, is in a core dump of who read it.
    Nor are those of daemons in what they tell."""
    pattern = pathlib.Path("/proc/sys/kernel/core_pattern").read_text().strip()
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if "/" in pattern or pattern.startswith("|") or hard != resource.RLIM_INFINITY:
        print(f"skip: core dumps go elsewhere here: core_pattern={pattern} limit={hard}")
        return
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    # The address sanitizer turns core dumps off.
    os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":disable_coredump=0"
    names = ("secret", "answer", "psk")
    for name in names:
        kind = ["--type", "tls"] if name == "psk" else []
        subprocess.run([build / "cmd/icms", "key", "gen", *kind, folder / name], check=True,
                       capture_output=True)
    nqn = "nqn.2026-01.org.example:kept"
    host = (f"[{{nqn: '{nqn}', secrets: [{folder}/secret], controller_secret: {folder}/answer, "
            f"psks: [{folder}/psk], require: chap+tls}}]")
    volume = {"name": "kv", "value_max": "64KiB", "memory_max": "1MiB"}
    volumes = [volume, {**volume, "name": "vault", "encrypted": "true"}]
    cores = folder / "cores"
    cores.mkdir()
    before = os.getcwd()
    os.chdir(cores)
    target = p.add_target("kept-target", 1, "64MiB", volumes, segment="4MiB", memory="32MiB", hosts=host,
                          require="chap+tls")
    target.wait_ready()
    agent = p.add_agent("kept-agent", [target], volumes, host_nqn=nqn, require="chap+tls",
                        secret=folder / "secret", controller_secret=folder / "answer", psk=folder / "psk",
                        connect_timeout="5s")
    agent.wait_ready()
    put = subprocess.run([build / "cmd/icms", "put", "--on-flash", "--open", f"unix:{agent.socket}", "-v", "kv",
                          "key"], input=b"value", capture_output=True, timeout=60)
    assert put.returncode == 0, (put, agent.log_tail())
    for daemon in (target, agent):  # once more, while the connections are there
        daemon.signal(signal.SIGHUP)
    time.sleep(1)
    client_core_dump(build, agent, folder, cores)
    for daemon in (agent, target):
        told = daemon.log_path.read_text() + daemon.get("/status")[1] + daemon.get("/metrics")[1] + \
            pathlib.Path(f"/proc/{daemon.pid}/cmdline").read_text() + \
            pathlib.Path(f"/proc/{daemon.pid}/environ").read_text()
        for name in names:
            assert (folder / name).read_text().strip().split(":")[2][:20] not in told, (daemon.name, name)
        content = core_dump(daemon.process, cores)
        assert nqn.encode() in content and f"{folder}/psk".encode() in content, "it is no core dump of it"
        for name in names:
            text = (folder / name).read_text().strip().split(":")[2]
            key = base64.b64decode(text)[:-4]
            assert text.encode()[:40] not in content, (daemon.name, name, "its text")
            assert key not in content, (daemon.name, name, "its bytes")
            assert key[:16] not in content and key[-16:] not in content, (daemon.name, name, "a part of it")
        print(f"ok a core dump of {daemon.name} ({len(content) >> 20} MiB) has no secret and no TLS key")
    os.chdir(before)


def main(build, folder):
    folder.chmod(0o755)
    with pod.Pod(build, folder) as p:
        agent = p.make_agent("node", [], VOLUMES, models=MODELS, socket_mode="0666", audit=folder / "audit",
                             local=f"{{path: {folder}/drive, size: 64MiB, segment: 1MiB}}")
        agent.start()
        agent.wait_ready()
        users = Users(build, folder, agent.socket)
        volumes_look_alike(users)
        questions_look_alike(agent)
        files_of_everybody(build, folder)
        strangers(users, agent, folder)
        memory(users, build, agent)
        assert agent.stop() == 0
        core_dumps(p, build, folder)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skip: only root can be several users")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="icms-security-") as scratch:
        main(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(scratch))
