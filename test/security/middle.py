#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attack: a man in the middle, between an agent and an enclosure that require TLS.

Goal, of the attacker: to read a value that travels; to change one unnoticed; to send recorded bytes
again; to have the agent go on without TLS. Each has to fail, and the agent has to answer with right
bytes or a miss meanwhile.
Method: real daemons on loopback, and a proxy between them that records, flips bits, or answers itself.

usage: middle.py BUILD_ROOT
"""
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402

HOST = "nqn.2026-01.org.example:mine"
MARKER = b"a sentence that nobody else may read" * 8


class Proxy:
    """Forwards each connection; records both directions; flips one bit of every connection once as
    many bytes went by as flip says."""

    def __init__(self, port):
        self.to = port
        self.recorded = []  # (towards the target, from it) of each connection
        self.flip = None    # (direction, bytes)
        self.flipped = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.to), timeout=60)
            except OSError:
                return
            record = (bytearray(), bytearray())
            self.recorded.append(record)
            for direction, (source, sink) in enumerate(((near, far), (far, near))):
                threading.Thread(target=self.pump, args=(source, sink, record, direction),
                                 daemon=True).start()

    def pump(self, source, sink, record, direction):
        try:
            while data := source.recv(65536):
                before = len(record[direction])
                record[direction].extend(data)
                if self.flip and self.flip[0] == direction and before >= self.flip[1]:
                    at = len(data) // 2
                    data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
                    self.flipped += 1
                sink.sendall(data)
        except OSError:
            pass
        for peer in (source, sink):
            try:
                peer.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def run(build, agent, *words, value=None):
    return subprocess.run([build / "cmd/icms", words[0], "--open", f"unix:{agent.socket}", *words[1:]],
                          input=value, capture_output=True, timeout=60, check=False)


def reading(build, agent, proxy):
    value = MARKER + os.urandom(300000)
    result = run(build, agent, "put", "--on-flash", "key", value=value)
    assert result.returncode == 0, (result, agent.log_tail())
    agent.kill()  # its memory has the value; the next one asks the enclosure
    agent.start()
    agent.wait_ready()
    agent.wait_until("the value again", lambda: run(build, agent, "get", "key").stdout == value)
    seen = b"".join(bytes(side) for record in list(proxy.recorded) for side in record)
    assert len(seen) > 600000 and MARKER not in seen and MARKER[:36] not in seen
    assert b"NVMeTLSkey" not in seen
    print(f"ok {len(seen)} bytes were read, and none of the value")
    return value


def changing(build, agent, proxy, value):
    for direction in (0, 1):
        before = proxy.flipped
        proxy.flip = (direction, (1200, 4000)[direction])  # behind the handshake
        agent.kill()
        agent.start()
        agent.wait_until("a flipped bit", lambda: (run(build, agent, "get", "-d", "500ms", "key").stdout
                                                   in (b"", value)) and proxy.flipped > before)
        for _ in range(5):
            result = run(build, agent, "get", "-d", "500ms", "key")
            assert result.stdout in (b"", value), "a changed value was delivered"
        proxy.flip = None
        agent.wait_until("recovered", lambda: run(build, agent, "get", "key").stdout == value)
    print(f"ok {proxy.flipped} flipped bits: misses or right bytes")


def replaying(target, proxy):
    controllers = target.metrics()["icms_target_nvmf_controllers"]
    refused = target.metrics()['icms_target_tls_handshakes_total{result="refused"}']
    for record in [record for record in list(proxy.recorded) if len(record[0]) > 500][:8]:
        with socket.create_connection(("127.0.0.1", target.port), timeout=20) as again:
            try:
                again.sendall(record[0][:65536])
                while again.recv(65536):
                    pass
            except OSError:
                pass
    assert target.metrics()["icms_target_nvmf_controllers"] <= controllers
    assert target.metrics()['icms_target_tls_handshakes_total{result="refused"}'] > refused
    print("ok recorded connections, sent again, come to nothing")


def stripping(build, p, target, folder):
    """The man in the middle says plain NVMe/TCP where the agent says TLS."""
    listener = socket.create_server(("127.0.0.1", 0))
    heard = bytearray()

    def serve():
        while True:
            try:
                peer, _ = listener.accept()
                peer.settimeout(5)
                heard.extend(peer.recv(4096))
                peer.sendall(b"\1\0\x80\0\x80\0\0\0".ljust(128, b"\0"))
                heard.extend(peer.recv(4096))
                peer.close()
            except OSError:
                if listener.fileno() < 0:
                    return

    threading.Thread(target=serve, daemon=True).start()
    fake = type("Fake", (), {"name": target.name, "nqn": target.nqn,
                             "port": listener.getsockname()[1]})
    agent = p.add_agent("stripped", [fake], [{"name": "kv"}], host_nqn=HOST, psk=folder / "psk",
                        require="tls", probe="100ms")
    agent.wait_until("a connection", lambda: len(heard) > 0 and "marked down" in agent.log_path.read_text())
    result = run(build, agent, "put", "-d", "500ms", "key", value=MARKER)
    time.sleep(0.5)
    assert heard[:1] == b"\x16" and HOST.encode() + b"\0" not in heard and MARKER not in heard, heard[:64]
    assert agent.stop() == 0
    listener.close()
    print("ok no way back to plain connections", result.returncode)


def main(build, folder):
    subprocess.run([build / "cmd/icms", "key", "gen", "--type", "tls", folder / "psk"], check=True,
                   capture_output=True)
    with pod.Pod(build, folder) as p:
        hosts = f"[{{nqn: '{HOST}', psks: [{folder}/psk]}}]"
        target = p.add_target("enclosure0", 1, "512MiB", [{"name": "kv"}], hosts=hosts, require="tls",
                              audit=folder / "audit")
        target.wait_ready()
        proxy = Proxy(target.port)
        through = type("Through", (), {"name": target.name, "nqn": target.nqn, "port": proxy.port})
        agent = p.add_agent("server-a", [through], [{"name": "kv"}], host_nqn=HOST, psk=folder / "psk",
                            require="tls", probe="100ms", audit=folder / "audit-agent")
        agent.wait_ready()
        value = reading(build, agent, proxy)
        changing(build, agent, proxy, value)
        replaying(target, proxy)
        stripping(build, p, target, folder)
        time.sleep(1)
        audit, agent_audit = ((folder / name).read_text() for name in ("audit", "audit-agent"))
        assert '"method":"tls"' in audit.replace(" ", "") and '"passed"' in audit, audit
        assert '"result":"passed"' in agent_audit.replace(" ", ""), agent_audit
        assert MARKER.decode() not in audit + agent_audit
        assert agent.stop() == 0 and target.stop() == 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="icms-security-") as scratch:
        main(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(scratch))
