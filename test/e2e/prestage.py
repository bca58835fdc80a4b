#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hints that blocks will be asked for soon, with real daemons: from a shell, over HTTP, in a process; who has a prefix.

Goal: a hinted block is in the agent's memory before it is asked for, by whatever way the hint came;
hints of blocks that do not exist, of too many blocks and without a proof harm nothing and are
counted; a stopped enclosure costs hints and no more.
Method: one target, one agent with little memory and a token, the command, and Python's HTTP client.

usage: prestage.py BUILD_ROOT
"""
import base64
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import expect, wait_until  # noqa: E402

TOKEN = "0123456789abcdef0123456789abcdef"
BYTES = 60000
FILLERS = 200  # more than the agent's memory holds
VOLUMES = [{"name": "kv", "value_max": "64KiB", "memory_max": "8MiB"}]


class Shell:
    """The command, at an agent."""

    def __init__(self, build, agent, folder):
        self.program, self.agent, self.value = build / "cmd/icms", agent, folder / "value"
        self.value.write_bytes(os.urandom(BYTES))

    def run(self, *words, stdin=None, where=None):
        where = where or f"unix:{self.agent.socket}"
        return subprocess.run([self.program, *words, "--open", where], input=stdin, capture_output=True,
                              timeout=60, check=False)

    def put(self, name):
        result = self.run("put", "--on-flash", name, self.value)
        assert result.returncode == 0, result.stderr

    def get(self, name):
        result = self.run("get", "--json", "--output", "/dev/null", name)
        return json.loads(result.stdout) if result.stdout else {}

    def hints(self):
        result = self.run("status", "--json")
        return json.loads(result.stdout)["volumes"][0]["prestage"]


def post(agent, body, token=TOKEN, kind="application/json", path="/v1/prestage"):
    """(status, answer)"""
    headers = {"Content-Type": kind, **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(f"http://127.0.0.1:{agent.http_port}{path}",
                                     data=body if isinstance(body, bytes) else json.dumps(body).encode(),
                                     headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def from_a_shell(shell):
    names = [f"shell {i}" for i in range(8)]
    for name in names + [f"filler {i}" for i in range(FILLERS)]:
        shell.put(name)
    expect("a block is not in memory any more", shell.get(names[0]).get("source") != "dram",
           shell.get(names[0]))
    result = shell.run("prestage", "--deadline", "30s", "--json", *names[1:], "no such block")
    expect("the agent takes hints", json.loads(result.stdout) == {"taken": 8, "of": 8}, result)
    wait_until("blocks arrive", lambda: shell.hints()["waiting"] >= 7, seen=shell.hints)
    expect("of one that does not exist it is told", shell.hints()["absent"] == 1, shell.hints())
    sources = [shell.get(name).get("source") for name in names[1:]]
    expect("they come from memory", sources == ["dram"] * 7, sources)
    wait_until("in time", lambda: shell.hints()["in_time"] == 7, seen=shell.hints)
    expect("nothing was wasted", shell.hints()["unused_bytes"] == 0, shell.hints())
    text = shell.run("status").stdout.decode()
    expect("status says so to people", "hints: in time 7, late 0" in text, text)


def over_http(shell, agent):
    status, _ = post(agent, {"volume": "kv", "names": ["x"]}, token=None)
    expect("without a proof no hint is taken", status == 401, status)
    status, _ = post(agent, {"volume": "kv", "names": ["x"]}, kind="text/plain")
    expect("nor one that a page of a browser could send", status == 415, status)
    status, _ = post(agent, b"x" * (300 << 10))
    expect("nor a body that is too large", status == 413, status)
    for body, word in (({"volume": "kv", "keys": ["0"]}, "entry 0"), ({"volume": "no", "names": ["x"]}, "no volume"),
                       ({"model": "m", "tokens": [1]}, "not one of this agent's models"), (b"{", "not JSON")):
        status, answer = post(agent, body)
        expect(f"what is wrong is said: {word}", status in (400, 404) and word in str(answer), answer)
    before = shell.hints()
    status, answer = post(agent, {"volume": "kv", "names": [f"filler {i}" for i in range(5)],
                                  "deadline_ms": 30000})
    expect("a gateway gives hints", (status, answer) == (202, {"hints": 5}), answer)
    wait_until("and they are served", lambda: shell.hints()["waiting"] - before["waiting"] == 5,
               seen=shell.hints)
    expect("a block comes from memory", shell.get("filler 0").get("source") == "dram")


def who_has_a_prefix(shell, agent):
    """A router asks how much of a prefix the server's memory has."""
    def ask(names, **more):
        return post(agent, {"volume": "kv", "names": names}, path="/v1/match", **more)

    status, _ = ask(["x"], token=None)
    expect("without a proof nobody learns what an agent has", status == 401, status)
    names = [f"prefix {i}" for i in range(12)]
    for name in names:
        shell.put(name)
    status, answer = ask(names)
    expect("blocks that were just put are in memory",
           (status, answer) == (200, {"of": 12, "dram": 12, "local": 12}), answer)
    said = json.loads(shell.run("match", "--name", "--estimate", "--json", *names, "no such block").stdout)
    expect("the command says the same", said["first"] == {"dram": 12, "local": 12}, said)
    status, answer = ask(names[:5] + ["no such block"] + names[5:])
    expect("a prefix ends at its first hole", answer == {"of": 13, "dram": 5, "local": 5}, answer)
    for i in range(FILLERS):
        shell.get(f"filler {i}")
    status, answer = ask(names)
    expect("what memory evicted is not there", (answer["of"], answer["dram"]) == (12, 0), answer)
    matched = json.loads(shell.run("match", "--estimate", "--json", *names).stdout)
    expect("though the pod has it", matched["matched"] == 12 and matched["first"]["dram"] == 0, matched)
    ids = base64.b64encode(struct.pack("<1000000i", *range(1000000))).decode()
    chain = {"state": "00" * 32, "run_blocks": 8, "block_tokens": 16}
    none = {"dram": 0, "local": 0, "block_tokens": 16}
    status, answer = post(agent, {"volume": "kv", "chain": chain, "tokens": ids}, path="/v1/match")
    expect("a million token ids fit", (status, answer) == (200, {"of": 62500, **none}), answer)
    status, answer = post(agent, {"model": "org/model", "tokens": list(range(80))}, path="/v1/match")
    expect("a model stands for volume and chain", (status, answer) == (200, {"of": 5, **none}), answer)
    status, answer = post(agent, {"model": "org/model", "tokens": [1]}, path="/v1/match")
    expect("a prompt shorter than a block has none", (status, answer) == (200, {"of": 0, **none}), answer)
    status, answer = post(agent, {"model": "org/model", "tokens": [1]})
    expect("and no hints", (status, answer) == (202, {"hints": 0}), answer)
    status, answer = post(agent, {"model": "hashed", "hashes": ["00ff"]})
    expect("for hints, too", (status, answer) == (202, {"hints": 1}), answer)
    for body, word in ((b"[]", "JSON object"), ({"volume": "no", "names": ["x"]}, "no volume"),
                       ({"volume": "kv", "names": ["x"], "tier": "dram"}, "unknown member")):
        status, answer = post(agent, body, path="/v1/match")
        expect(f"what is wrong is said: {word}", status in (400, 404) and word in str(answer), answer)


def pins(shell, agent):
    """Blocks that stay, within a part of the memory, however they were pinned and for whom."""
    def pinned():
        result = json.loads(shell.run("status", "--json").stdout)
        return result["volumes"][0]["prestage"]

    before = pinned()
    names = [f"filler {i}" for i in range(6)]
    result = shell.run("prestage", "--pin", "10min", "--json", *names[:3])
    expect("a shell pins", json.loads(result.stdout) == {"pinned": 3, "of": 3}, result)
    status, answer = post(agent, {"volume": "kv", "names": names[3:], "pin_seconds": 600})
    expect("so does a gateway", (status, answer) == (202, {"hints": 3}), answer)
    wait_until("they are pinned", lambda: pinned()["pins"] == 6 and pinned()["pinned_bytes"] > 6 * BYTES,
               seen=pinned)
    for i in range(20, FILLERS):
        shell.get(f"filler {i}")
    sources = [shell.get(name).get("source") for name in names + names]
    expect("they come from memory, again and again", sources == ["dram"] * 12, sources)
    text = shell.run("status").stdout.decode()
    expect("status says so to people", "pins: 6, " in text, text)
    users = json.loads(shell.run("status", "--json").stdout)["users"]
    expect("and whose they are", users[0]["pinned_bytes"] == pinned()["pinned_bytes"], users)
    status, answer = post(agent, {"volume": "kv", "names": names[3:], "cancel": True})
    expect("what a gateway pinned it takes back", (status, answer) == (202, {"hints": 3}), answer)
    wait_until("the others stay", lambda: pinned()["pins"] == 3, seen=pinned)
    lines = "\n".join(f"filler {i}" for i in range(FILLERS)).encode()
    result = shell.run("prestage", "--pin", "1440min", stdin=lines)
    expect("more than its part nobody pins", result.returncode == 1 and b"pin_max" in result.stdout, result)
    wait_until("of the memory", lambda: pinned()["pins_refused"] > before["pins_refused"] and
               pinned()["pinned_bytes"] <= 2 << 20, seen=pinned)
    expect("and loads go on", "source" in shell.get("filler 150"))
    metrics = agent_metrics(agent)
    expect("metrics count them", metrics['icms_agent_user_pinned_memory_bytes{user="owner",volume="kv"}'] > 0 and
           metrics['icms_agent_pins{volume="kv"}'] > 0, metrics)
    shell.run("prestage", "--cancel", "--json", stdin=lines)
    expect("they are taken back", pinned()["pins"] == pinned()["pinned_bytes"] == 0, pinned())
    for words in (("--pin", "0s"), ("--pin", "1441min"), ("--pin", "1min", "--cancel")):
        result = shell.run("prestage", *words, "filler 1")
        expect(f"{words} is a mistake", result.returncode == 2 and b"--pin" in result.stderr, result)
    for words in (("--once", "--pin", "1min"), ("--once", "--tier", "local"), ("--once", "--cancel")):
        result = shell.run("prestage", *words, "filler 1")
        expect(f"{words} is a mistake", result.returncode == 2 and b"--once" in result.stderr and
               b"kept in the agent's memory, until they are read" in result.stderr, result)


def floods(shell, agent):
    for _ in range(4):
        status, answer = post(agent, {"volume": "kv", "deadline_ms": 60000,
                                      "names": [f"flood {i}" for i in range(16000)]})
        expect("a flood comes", status == 202, answer)
    wait_until("and is refused", lambda: shell.hints()["refused_full"] > 0, seen=shell.hints)
    begin = time.monotonic()
    for i in range(100, 110):
        expect(f"a load of filler {i} is served", "source" in shell.get(f"filler {i}"))
    expect("meanwhile", time.monotonic() - begin < 20, time.monotonic() - begin)
    lines = "\n".join(f"flood {i}" for i in range(4000)).encode()
    result = shell.run("prestage", "--cancel", "--json", stdin=lines)
    expect("hints are taken back", json.loads(result.stdout)["of"] == 4000, result.stdout)
    wait_until("none is left", lambda: shell.hints()["queued"] == 0, seen=shell.hints)
    metrics = agent_metrics(agent)
    expect("metrics count them", metrics['icms_agent_prestage_hints_total{result="in_time",volume="kv"}'] >= 7 and
           metrics['icms_agent_prestage_hints_total{result="refused_full",volume="kv"}'] > 0)


def agent_metrics(agent):
    request = urllib.request.Request(f"http://127.0.0.1:{agent.http_port}/metrics",
                                     headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[:1] != "#"}


def faults(shell, target):
    before = shell.hints()
    target.stand_still()
    result = shell.run("prestage", "--deadline", "1s", "--json", *[f"filler {i}" for i in range(150, 190)])
    expect("an enclosure that stands still does not matter to who hints", result.returncode == 0, result)
    wait_until("its hints end", lambda: shell.hints()["taken"] - before["taken"] == 40 and
               shell.hints()["queued"] + shell.hints()["loading"] == 0, seen=shell.hints)
    target.signal(18)  # SIGCONT
    wait_until("and it goes on", lambda: "source" in shell.get("filler 150"))


def in_a_process(shell, agent, folder):
    """pod: has the agent in the process of the command: hints end with it, and are taken all the same."""
    lines = [line for line in agent.config_path.read_text().splitlines()
             if not line.startswith(("socket:", "http:", "  listen:", "  token:", "  open:"))]
    (folder / "own.yaml").write_text("\n".join(lines) + "\n")
    result = shell.run("prestage", "--json", "filler 1", "filler 2", where=f"pod:{folder}/own.yaml")
    expect("an agent in the process takes hints", json.loads(result.stdout) == {"taken": 2, "of": 2}, result)


def main():
    build = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="icms-", dir="/var/tmp") as name, pod.Pod(build, name) as p:
        folder = pathlib.Path(name)
        (folder / "token").write_text(TOKEN + "\n")
        (folder / "token").chmod(0o600)
        target = p.add_target("enclosure0", 1, "128MiB", VOLUMES, segment="8MiB", memory="32MiB")
        target.wait_ready()
        agent = p.add_agent("server-0", [target], VOLUMES, models=[
            {"name": "org/model", "volume": "kv", "state": "00" * 32, "block_tokens": 16, "of": "tokens"},
            {"name": "hashed", "volume": "kv", "state": "11" * 32, "block_tokens": 16, "of": "hashes",
             "suffix": "00000000"}],
                            http={"token": folder / "token", "open": "metrics"})
        agent.wait_ready()
        shell = Shell(build, agent, folder)
        from_a_shell(shell)
        over_http(shell, agent)
        who_has_a_prefix(shell, agent)
        pins(shell, agent)
        floods(shell, agent)
        faults(shell, target)
        in_a_process(shell, agent, folder)


main()
