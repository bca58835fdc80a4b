#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Authentication with real daemons.

Goal: a pod whose enclosure requires DH-HMAC-CHAP, both ways, works as one without does; an agent with
a wrong secret gets misses, says once why, and goes on trying; a target that other machines would reach
does not start without secrets; wrong files have their own errors at the start; no secret appears in a
log, a metric or a status.
Method: an enclosure and agents on loopback; the Linux kernel is the foreign judge in test/interop.

usage: auth.py BUILD_ROOT
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402

HOST = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555"
VOLUME = {"name": "kv"}
SECRETS = ["old", "new", "wrong", "answer"]


def program(build, name, *words, **more):
    return subprocess.run([build / "cmd" / name, *words], capture_output=True, timeout=60,
                          check=False, **more)


def refused(build, folder, what, text, *says):
    path = folder / "refused.yaml"
    path.write_text(text)
    for words in (["--check-config"], []): # and it does not start
        result = program(build, "icms-target", "--config", path, *words)
        assert result.returncode in (1, 2), (what, result)
        assert all(word in result.stderr.decode() for word in says), (what, result.stderr)
    print(f"ok {what}")


def bad_files(build, folder):
    base = f"name: bad\ndrives: [{{path: {folder}/bad-drive, size: 512MiB, format_empty: true}}]\nvolumes: [{{name: kv}}]\n"
    (folder / "open").write_text((folder / "new").read_text())
    (folder / "open").chmod(0o640)
    (folder / "cut").write_text((folder / "new").read_text()[:40])
    (folder / "cut").chmod(0o600)
    (folder / "empty").touch(0o600)

    def host(name):
        return base + f"hosts: [{{nqn: '{HOST}', secrets: [{folder}/{name}]}}]\n"

    refused(build, folder, "readable for others", host("open"), "0640", "chmod 600")
    refused(build, folder, "cut", host("cut"), f"{folder}/cut", "does not end")
    refused(build, folder, "empty", host("empty"), f"{folder}/empty", "0 bytes")
    refused(build, folder, "missing", host("none"), f"{folder}/none", "icms key gen")
    refused(build, folder, "the same both ways", base +
            f"hosts: [{{nqn: '{HOST}', secrets: [{folder}/new], controller_secret: {folder}/copy}}]\n",
            "controller_secret")
    (folder / "copy-of-new").write_text((folder / "new").read_text())
    (folder / "copy-of-new").chmod(0o600)
    refused(build, folder, "a secret of one host that proves the enclosure to another", base +
            f"hosts: [{{nqn: '{HOST}', secrets: [{folder}/old], controller_secret: {folder}/copy-of-new}}, "
            f"{{nqn: nqn.2026-01.io.icms:other, secrets: [{folder}/new]}}]\n",
            "nqn.2026-01.io.icms:other", "could pass for it")
    refused(build, folder, "reached by others without secrets", "listen: 0.0.0.0:0\n" + base,
            "other machines reach 0.0.0.0:0", "require: none")
    nothing_proven(build, folder)


def nothing_proven(build, folder):
    """An agent does not take whoever answers at another machine's address for its enclosure, unless that is written."""
    path = folder / "far.yaml"
    text = f"socket: {folder}/far.sock\nmemory: 16MiB\nhttp: {{listen: none}}\n" \
        "enclosures: [{name: far, address: 192.0.2.1:4420}]\nvolumes: [{name: kv}]\n"
    path.write_text(text)
    for name, words in (("icms-agent", ["--config", path, "--check-config"]), ("icms-agent", ["--config", path]),
                        ("icms", ["config", "check", path]), ("icms", ["get", "--open", f"pod:{path}", "a"])):
        result = program(build, name, *words)
        said = result.stderr.decode()
        assert result.returncode in (1, 2) and "other machines can answer at 192.0.2.1:4420" in said and \
            "`require: none`" in said and f"{path}:4: " in said, (name, words, result)
    path.write_text(text + "require: none\n")
    result = program(build, "icms-agent", "--config", path, "--check-config")
    assert result.returncode == 0, result
    print("ok an agent asks another machine for a proof, unless it is written that it need not")


def wrong_secret(p, folder, target, build):
    """Misses, one line that says what to do, and probes that go on until the secret is right."""
    secret = folder / "changing"
    secret.write_text((folder / "wrong").read_text())
    secret.chmod(0o600)
    agent = p.add_agent("mistaken", [target], [VOLUME], host_nqn=HOST, require="chap", secret=secret,
                        connect_timeout="5s", probe="100ms", audit=folder / "audit-agent")
    agent.wait_until("it is refused", lambda: agent.get("/status")[0] == 200 and json.loads(
        agent.get("/status")[1])["enclosures"][0]["auths_refused"] >= 5)
    result = program(build, "icms", "get", "--open", f"unix:{agent.socket}", "key-1")
    assert result.returncode == 1, result
    log = agent.log_path.read_text()
    assert log.count("refused the secret of host") == 1, log
    assert "check `secret` here, and `hosts` there" in log, log
    lines = [json.loads(line) for line in (folder / "audit-agent").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["volume", "authentication"], lines
    assert lines[1]["peer"] == f"127.0.0.1:{target.port}", lines
    agent.stop()
    print("ok a wrong secret is a miss, and said once")
    return agent


def secret_set(path, text):
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o600)


def rotated(p, folder, target, agent, build):
    """SIGHUP reads the files again: connections that proved a secret that was replaced end, and the others stay.
    A file that is not right is logged, and the former secret passes on."""
    def enclosure(daemon):
        status, text = daemon.get("/status")
        return json.loads(text)["enclosures"][0] if status == 200 else {"auths": 0, "auths_refused": 0}

    def got(daemon):
        return program(build, "icms", "get", "--open", f"unix:{daemon.socket}", "key-1").returncode == 0

    def with_secret(name, secret):
        return p.add_agent(name, [target], [VOLUME], host_nqn=HOST, require="chap", secret=secret,
                           controller_secret=folder / "answer", connect_timeout="5s", probe="100ms")

    def tried(name, secret):
        daemon, said = with_secret(name, secret), {}
        daemon.wait_until("it authenticates, or not",
              lambda: said.update(enclosure(daemon)) or said["auths"] or said["auths_refused"])
        daemon.stop()
        return said["auths"] > 0

    former, count = (folder / "new").read_text(), enclosure(agent)["auths"]
    secret_set(folder / "former", former)
    steady = with_secret("steady", folder / "old")  # the other secret of the same host
    steady.wait_until("the other secret passes", lambda: got(steady))
    steadily = enclosure(steady)["auths"]
    secret_set(folder / "new", former[:40])
    target.signal(signal.SIGHUP)
    target.wait_log("keys stay as they were: cannot use secret file")
    assert "SIGHUP again" in target.log_path.read_text(), target.log_tail()
    assert tried("kept", folder / "former"), "the former secret passes while the file is not right"
    assert enclosure(agent)["auths"] == count and got(agent), "nobody lost a connection"

    result = program(build, "icms", "key", "gen", folder / "next")
    assert result.returncode == 0, result.stderr
    secret_set(folder / "new", (folder / "next").read_text())
    target.signal(signal.SIGHUP)
    target.wait_log(f"host {HOST}: keys replaced: new connections use them; those that proved replaced ones end")
    agent.wait_until("connections that proved the former secret end, and are not made again",
          lambda: enclosure(agent)["auths_refused"] > 0)
    assert enclosure(agent)["state"] != "up", "who knows the former secret alone gets nothing"
    target.wait_log("the secret that it proved was replaced")
    assert enclosure(steady)["auths"] == steadily and enclosure(steady)["exclusions"] == 0 and got(steady), \
        "connections that proved the other secret stay"
    assert not tried("late", folder / "former"), "the former secret passes no more"
    assert tried("early", folder / "next")
    agent.signal(signal.SIGHUP)
    agent.wait_log("enclosure enclosure0: keys replaced: new connections use them; connections that are up stay")
    agent.wait_until("with the new secret it is back", lambda: got(agent))
    target.signal(signal.SIGHUP)
    target.wait_log("SIGHUP: reading", 3)
    assert target.log_path.read_text().count("keys replaced") == 1, "nothing changed since"
    lines = [json.loads(line) for line in (folder / "audit").read_text().splitlines()]
    results = [line["result"] for line in lines if line["event"] == "keys"]
    assert len(results) == 2 and results[1] == "replaced" and results[0].startswith("cannot use"), results
    ended = [line for line in lines if line["event"] == "authentication" and "was replaced" in line["result"]]
    assert len(ended) == 1 and ended[0]["host"] == HOST and ended[0]["method"] == "chap", lines
    steady.stop()
    print("ok a secret that is replaced ends what it proved, and nothing else")


def main(build, folder):
    for name in SECRETS:
        result = program(build, "icms", "key", "gen", folder / name)
        assert result.returncode == 0, result.stderr
    (folder / "copy").write_text((folder / "new").read_text())
    (folder / "copy").chmod(0o600)
    hosts = (f"[{{nqn: '{HOST}', secrets: [{folder}/old, {folder}/new], "
             f"controller_secret: {folder}/answer}}]")
    with pod.Pod(build, folder) as p:
        target = p.add_target("enclosure0", 1, "512MiB", [VOLUME], require="chap", hosts=hosts,
                              audit=folder / "audit")
        target.wait_ready()
        agent = p.add_agent("server-a", [target], [VOLUME], host_nqn=HOST, require="chap",
                            secret=folder / "new", controller_secret=folder / "answer",
                            connect_timeout="5s")
        agent.wait_ready()
        for number in range(4):
            result = program(build, "icms", "put", "--on-flash", "--open", f"unix:{agent.socket}",
                             f"key-{number}", input=os.urandom(300000 + number))
            assert result.returncode == 0, (result, agent.log_tail())
        said = json.loads(agent.get("/status")[1])["enclosures"][0]
        assert said["auths"] >= 4 and said["auths_refused"] == 0, said
        assert said["auth"] == "chap-mutual" and said["tls"] == "none", said
        shown = program(build, "icms", "status", "--open", f"unix:{agent.socket}").stdout.decode()
        row = next(line for line in shown.splitlines() if line.startswith("enclosure0 "))
        assert row.split()[1:4] == ["up", "chap-mutual", "none"], shown
        assert target.metrics()['icms_target_auths_total{result="passed"}'] >= 4
        shown = program(build, "icms", "status", "--target", target.config_path).stdout.decode()
        rows = [line.split() for line in shown.splitlines()]
        assert any(row[0] == "chap" and row[-1] == HOST for row in rows if row), shown
        print("ok a pod that authenticates both ways")
        other = p.add_agent("stranger", [target], [VOLUME], probe="100ms")
        other.wait_log("it has no secret")
        hosts_served = json.loads(target.get("/status")[1])["hosts"]
        assert [host["nqn"] for host in hosts_served] == [HOST], hosts_served
        other.stop()
        print("ok a stranger is told what it lacks")
        mistaken = wrong_secret(p, folder, target, build)
        target.kill()
        target.start()
        target.wait_ready()
        agent.wait_until("it authenticated again",
                         lambda: json.loads(agent.get("/status")[1])["enclosures"][0]["auths"] >= 8)
        print("ok killed and restarted")
        told = b"".join([target.log_path.read_bytes(), agent.log_path.read_bytes(),
                         mistaken.log_path.read_bytes(), (folder / "audit").read_bytes(),
                         *(str(daemon.get(page)[1]).encode() for daemon in (target, agent)
                           for page in ("/status", "/metrics"))])
        for name in SECRETS:
            assert (folder / name).read_text()[10:30].encode() not in told, name
        lines = [json.loads(line) for line in (folder / "audit").read_text().splitlines()]
        results = {line["result"] for line in lines}
        assert all(line["peer"].startswith("127.0.0.1:") for line in lines
                   if line["event"] in ("authentication", "refusal")), lines
        assert "wrong secret; peer=127.0.0.1:" in target.log_path.read_text(), target.log_tail()
        assert {"passed, mutual", "wrong secret"} <= results, results
        print("ok no secret is told, and the audit log says what happened")
        bad_files(build, folder)
        rotated(p, folder, target, agent, build)
        assert agent.stop() == 0 and target.stop() == 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="icms-auth-") as scratch:
        main(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(scratch))
