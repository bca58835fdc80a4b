#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TLS with real daemons, and OpenSSL's command line as the foreign peer.

Goal: a pod whose enclosure requires TLS works as one without does; nobody gets in who does not prove
a key, and what strangers do harms nobody; an agent with a key never goes on without TLS; wrong keys
and files have their own errors at the start.
Method: an enclosure and agents on loopback; keys derived here from the text of the specification;
`openssl s_client` with right and wrong keys, and plain sockets, which speak NVMe/TCP bytes.

usage: tls.py BUILD_ROOT
"""
import base64
import contextlib
import hashlib
import hmac
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402

HOST = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555"
OTHER = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-4333-8444-555555555555"
VOLUME = {"name": "kv"}
IC_REQ = struct.pack("<BBBBI", 0, 0, 128, 0, 128).ljust(128, b"\0")


def expand_label(prk, label, context, size):
    label = b"tls13 " + label
    info = struct.pack(">H", size) + bytes([len(label)]) + label + bytes([len(context)]) + context
    return hmac.new(prk, info + b"\1", "sha256").digest()[:size]


def tls_psk(text, host, subsystem):
    """(identity, PSK in hex) of a key of hash 01, as the specification derives them."""
    key = base64.b64decode(text.split(":")[2])[:-4]
    extract = lambda data: hmac.new(bytes(32), data, "sha256").digest()  # noqa: E731
    retained = expand_label(extract(key), b"HostNQN", host.encode(), len(key))
    seed = f"{host} {subsystem} NVMe-over-Fabrics".encode()
    digest = base64.b64encode(hmac.new(retained, seed, hashlib.sha256).digest()).decode()
    psk = expand_label(extract(retained), b"nvme-tls-psk", f"01 {digest}".encode(), 32)
    return f"NVMe1R01 {host} {subsystem} {digest}", psk.hex()


class Client:
    """openssl s_client; its stdin and stdout are the inside of the connection."""

    def __init__(self, target, *options):
        self.process = subprocess.Popen(
            ["openssl", "s_client", "-quiet", "-connect", f"127.0.0.1:{target.port}", *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def send(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def receive(self, count):
        return self.process.stdout.read(count)

    def end(self):
        self.process.kill()
        return self.process.communicate(timeout=30)[1].decode(errors="replace")

    def refused(self):
        """Nothing comes, and it ends by itself; returns what it says."""
        out, said = self.process.communicate(timeout=30)
        assert out == b"" and self.process.returncode != 0, (out, said)
        return said.decode(errors="replace")


def psk_options(identity, psk, suite="TLS_AES_128_GCM_SHA256"):
    return ["-tls1_3", "-ciphersuites", suite, "-psk_identity", identity, "-psk", psk]


def connect_capsule(hostnqn, subnqn):
    sqe = struct.pack("<BBH", 0x7f, 0x40, 1) + b"\1" + bytes(19)
    sqe += bytes(8) + struct.pack("<I", 1024) + bytes(3) + b"\1"
    sqe += struct.pack("<HHHBBI", 0, 0, 31, 0, 0, 0)
    data = (b"\x11" * 16 + struct.pack("<H", 0xffff)).ljust(256, b"\0")
    data += subnqn.encode().ljust(256, b"\0") + hostnqn.encode().ljust(256, b"\0")
    data = data.ljust(1024, b"\0")
    return struct.pack("<BBBBI", 4, 0, 72, 72, 72 + 1024) + sqe.ljust(64, b"\0") + data


def nvme_connect(target, options, hostnqn, subnqn):
    """Status field of a Connect through s_client."""
    client = Client(target, *options)
    client.send(IC_REQ)
    answer = client.receive(128)
    assert answer[:1] == b"\1" and len(answer) == 128, (answer, client.end())
    client.send(connect_capsule(hostnqn, subnqn))
    cqe = client.receive(24)[8:]
    client.end()
    return struct.unpack("<H", cqe[14:16])[0] >> 1 & 0x7ff


def judge_openssl(target, key):
    """OpenSSL gets in with the right key alone, and only as the host that the key names."""
    identity, psk = tls_psk(key, HOST, target.nqn)
    right = psk_options(identity, psk)
    assert nvme_connect(target, right, HOST, target.nqn) == 0
    assert nvme_connect(target, right, OTHER, target.nqn) == 0x182, "another host's name"
    assert nvme_connect(target, right, HOST, "nqn.2026-01.io.icms:other") == 0x182
    wrong = f"{int(psk, 16) ^ 1:064x}"
    Client(target, *psk_options(identity, wrong)).refused()
    unknown = tls_psk(key, OTHER, target.nqn)
    Client(target, *psk_options(*unknown)).refused()
    Client(target, *psk_options("nobody", psk)).refused()
    for empty in ("00", "00" * 32):  # OpenSSL takes none of no bytes
        Client(target, *psk_options(identity, empty)).refused()
    for suite in ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_CCM_SHA256"):
        Client(target, *psk_options(identity, psk, suite)).refused()
    Client(target, "-tls1_3").refused()
    Client(target, "-tls1_2").refused()
    Client(target, "-tls1_2", "-psk_identity", identity, "-psk", psk).refused()
    print("ok openssl s_client")


def closed_without_a_word(target, data):
    """What the target says before it closes, after these bytes."""
    with socket.create_connection(("127.0.0.1", target.port), timeout=30) as peer:
        peer.sendall(data)
        said = b""
        try:
            while chunk := peer.recv(4096):
                said += chunk
        except ConnectionResetError:
            pass
        return said


def strangers(target):
    assert closed_without_a_word(target, IC_REQ) == b"", "plain NVMe/TCP"
    closed_without_a_word(target, b"\x16\x03\x01\x00\x05" + os.urandom(5))
    closed_without_a_word(target, b"\x16\x03\x01\xff\xff" + os.urandom(64))
    assert closed_without_a_word(target, os.urandom(512).replace(b"\x16", b"\0", 1)) in (b"",)
    print("ok strangers are refused")


def hello_of(target, key):
    """A ClientHello with the proof of the right key, as OpenSSL sends it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        aside = type("Aside", (), {"port": listener.getsockname()[1]})
        client = Client(aside, *psk_options(*tls_psk(key, HOST, target.nqn)))
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(30)
            hello = peer.recv(5, socket.MSG_WAITALL)
            hello += peer.recv(struct.unpack(">H", hello[3:])[0], socket.MSG_WAITALL)
        client.end()
    return hello


def held_open(target, run, key):
    """600 half handshakes at a time, more than half of the connections: others go on. Some have not
    begun; some, which somebody recorded, wait for the Finished of who has the key."""
    hello = hello_of(target, key)
    deadline = time.monotonic() + 60
    while True:  # a busy machine may not answer it within header_timeout
        with socket.create_connection(("127.0.0.1", target.port), timeout=30) as peer:
            peer.sendall(hello)
            with contextlib.suppress(ConnectionResetError):
                if peer.recv(1) == b"\x16":
                    break
        assert time.monotonic() < deadline, "a recorded proof is answered by a handshake"
    half = [socket.create_connection(("127.0.0.1", target.port), timeout=30) for _ in range(600)]
    for number, peer in enumerate(half):
        peer.sendall(hello if number % 2 else hello[:1 + number // 2 % 6])
    run("get during a flood", "get", "key-0")
    deadline = time.monotonic() + 60
    while True:
        metrics = target.metrics()
        ended = (metrics['icms_target_tls_handshakes_total{result="evicted"}'],
                 metrics['icms_target_tls_handshakes_total{result="timeout"}'])
        if ended[0] > 0 and sum(ended) >= 600:
            break
        assert time.monotonic() < deadline, ended
        time.sleep(0.1)
    for peer in half:
        peer.close()
    print(f"ok a flood of half handshakes: evicted, timed out {ended}")


def agent_fails(p, target, words, name, **extra):
    """An agent that does not get in, says why, and does not fall back."""
    plain = target.metrics()["icms_target_nvmf_controllers"]
    agent = p.add_agent(name, [target], [VOLUME], host_nqn=HOST, **extra)
    deadline = time.monotonic() + 30
    while True:
        status, text = agent.get("/status")
        said = json.loads(text)["enclosures"][0]["last_error"] if status == 200 else ""
        if words in said:
            break
        assert time.monotonic() < deadline, (said, agent.log_tail())
        time.sleep(0.1)
    assert target.metrics()["icms_target_nvmf_controllers"] == plain
    agent.kill()
    print(f"ok {name}: {said}")


def check_config(build, folder, target, psk, words):
    config = target.config_path.read_text().replace("psks: [", f"psks: [{psk}, ", 1)
    path = folder / "wrong.yaml"
    path.write_text(config)
    result = subprocess.run([build / "cmd/icms-target", "--config", path, "--check-config"],
                            capture_output=True, text=True, timeout=60)
    assert result.returncode != 0 and words in result.stderr, (words, result.stderr)
    assert "NVMeTLSkey-1:0" not in result.stderr.replace("NVMeTLSkey-1:HH", ""), result.stderr


def bad_files(build, folder, target, key):
    (folder / "empty.psk").write_text("\n")
    (folder / "open.psk").write_text(key)
    (folder / "hash.psk").write_text(key.replace("-1:01:", "-1:02:"))
    (folder / "cut.psk").write_text(key[:-9] + key[-5:])
    for name in ("empty", "hash", "cut"):
        (folder / f"{name}.psk").chmod(0o600)
    (folder / "open.psk").chmod(0o644)
    check_config(build, folder, target, folder / "missing.psk", "missing.psk")
    check_config(build, folder, target, folder / "empty.psk", "empty.psk")
    check_config(build, folder, target, folder / "open.psk", "0600")
    check_config(build, folder, target, folder / "hash.psk", "hash")
    check_config(build, folder, target, folder / "cut.psk", "cut.psk")
    print("ok bad key files are refused at the start")


def volumes_apart(p, folder):
    """A volume that requires TLS is there for the same host with TLS, and not without."""
    volumes = [VOLUME, {"name": "apart"}]
    target = p.add_target("enclosure2", 1, "512MiB", [VOLUME, {"name": "apart", "require": "tls"}],
                          hosts=f"[{{nqn: '{HOST}', psks: [{folder}/new.psk]}}]")
    target.wait_ready()
    for name, lacks, extra in (("with", [], {"psk": f"{folder}/new.psk"}),
                               ("without", ["apart"], {})):
        agent = p.add_agent(f"{name}-tls", [target], volumes, host_nqn=HOST, **extra)
        agent.wait_ready()
        said = json.loads(agent.get("/status")[1])["enclosures"][0]
        assert said["lacks"] == lacks and (said["tls"] == "none") == (not extra), said
        agent.stop()
    print("ok a volume that requires TLS")


def tls_connections(target):
    """How many are up, when those that were closed a moment ago are gone."""
    seen = []
    deadline = time.monotonic() + 60
    while len(seen) < 10 or len(set(seen[-10:])) > 1:
        assert time.monotonic() < deadline, seen
        seen.append(tuple(json.loads(target.get("/status")[1])["tls_connections"].items()))
        time.sleep(0.1)
    return seen[-1]


def rotated(folder, target, agent, icms):
    """SIGHUP reads keys again: what proved a former key ends, and it begins nothing any more."""
    former = (folder / "new.psk").read_text().strip()
    right = psk_options(*tls_psk(former, HOST, target.nqn))
    there = tls_connections(target)
    before = json.loads(agent.get("/status")[1])["enclosures"][0]["exclusions"]
    result = icms("key", "gen", "--type", "tls", folder / "next.psk")
    assert result.returncode == 0, result.stderr
    key = (folder / "next.psk").read_text().strip()

    def said(daemon, words, count=1):
        deadline = time.monotonic() + 60
        while daemon.log_path.read_text().count(words) < count:
            assert time.monotonic() < deadline, (words, daemon.log_tail())
            time.sleep(0.1)

    (folder / "new.psk").write_text("NVMeTLSkey-1:01:")
    target.signal(signal.SIGHUP)
    said(target, "keys stay as they were: cannot use the TLS key")
    assert nvme_connect(target, right, HOST, target.nqn) == 0, "the key of before"
    (folder / "new.psk").write_text(key)
    for daemon, words in ((target, f"host {HOST}: keys replaced"),
                          (agent, "enclosure enclosure0: keys replaced")):
        daemon.signal(signal.SIGHUP)
        said(daemon, words)
    Client(target, *right).refused()
    assert nvme_connect(target, psk_options(*tls_psk(key, HOST, target.nqn)), HOST, target.nqn) == 0
    said(target, "its TLS key was replaced")
    deadline = time.monotonic() + 60
    while icms("get", "--open", f"unix:{agent.socket}", "--volume", "kv", "key-1").returncode != 0:
        assert time.monotonic() < deadline, agent.log_tail()
        time.sleep(0.1)
    assert tls_connections(target) == there
    assert json.loads(agent.get("/status")[1])["enclosures"][0]["exclusions"] > before
    print("ok a key that is replaced ends what it proved, and the new one is used")


def main(build, folder):
    def icms(*words, **more):
        return subprocess.run([build / "cmd/icms", *words], capture_output=True, timeout=60, **more)

    for name in ("old", "new", "other"):
        result = icms("key", "gen", "--type", "tls", folder / f"{name}.psk")
        assert result.returncode == 0, result.stderr
    key = (folder / "new.psk").read_text().strip()
    hosts = (f"[{{nqn: '{HOST}', psks: [{folder}/old.psk, {folder}/new.psk]}}]")
    with pod.Pod(build, folder) as p:
        target = p.add_target("enclosure0", 1, "512MiB", [VOLUME], require="tls", hosts=hosts,
                              header_timeout="2s")
        target.wait_ready()
        agent = p.add_agent("server-a", [target], [VOLUME], host_nqn=HOST, require="tls",
                            psk=f"{folder}/new.psk", connect_timeout="5s")
        agent.wait_ready()

        def run(what, verb, *words, **more):
            result = icms(verb, "--open", f"unix:{agent.socket}", "--volume", "kv", *words, **more)
            assert result.returncode == 0, (what, result.stderr, agent.log_tail())
            return result.stdout

        for number in range(4):
            run("put", "put", f"key-{number}", input=os.urandom(300000 + number))
        result = subprocess.run([build / "test/e2e/client_contract", f"unix:{agent.socket}"],
                                capture_output=True, text=True, timeout=200)
        assert result.returncode == 0, result.stdout + result.stderr
        how = json.loads(agent.get("/status")[1])["enclosures"][0]["tls"]
        assert json.loads(agent.get("/status")[1])["enclosures"][0]["auth"] == "none"
        there = json.loads(target.get("/status")[1])["tls_connections"]
        assert how in ("kernel", "mixed", "openssl") and there[how] >= 2, (how, there)
        print(f"ok a pod with TLS: records by {how}, {there}")
        judge_openssl(target, key)
        strangers(target)
        agent_fails(p, target, "TLS handshake failed", "wrong-key", psk=f"{folder}/other.psk")
        agent_fails(p, target, "connection lost", "no-key")
        held_open(target, run, key)
        rotated(folder, target, agent, icms)
        bad_files(build, folder, target, key)
        target.kill()
        target.start()
        target.wait_ready()
        deadline = time.monotonic() + 60
        while icms("get", "--open", f"unix:{agent.socket}", "--volume", "kv",
                   "key-1").returncode != 0:
            assert time.monotonic() < deadline, agent.log_tail()
            time.sleep(0.2)
        assert json.loads(agent.get("/status")[1])["enclosures"][0]["tls"] == how
        print("ok killed and restarted")
        volumes_apart(p, folder)
        plain = p.add_target("enclosure1", 1, "512MiB", [VOLUME])
        plain.wait_ready()
        agent_fails(p, plain, "it does not speak TLS", "downgrade", psk=f"{folder}/new.psk")
        assert agent.stop() == 0 and target.stop() == 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="icms-tls-") as scratch:
        main(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(scratch))
