#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The HTTP ports of real daemons where other machines reach them.

Goal: without a proof nothing but the status of probes is told, on either daemon; a token, or a
certificate of the right authority for a client, opens every page; /metrics can be open alone; a
daemon whose HTTP port leaves loopback does not start without a proof; wrong files have their own
errors; the token is in no log; what is refused is counted, and is in the audit log.
Method: both daemons on an address that is not loopback, in a network namespace of this test;
certificates made with openssl; clients are Python's.

usage: http_ports.py BUILD_ROOT
"""
import json
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import own_network  # noqa: E402

ADDRESS = "192.0.2.1"  # of documentation (RFC 5737); here of the namespace alone
PAGES = ["/metrics", "/status", "/trace", "/none"]


def run(*words):
    result = subprocess.run([str(word) for word in words], capture_output=True, timeout=60, check=False)
    assert result.returncode == 0, (words, result.stderr)


def certificates(folder):
    """ca and foreign, authorities; server, client, of ca, and expired and over, a client's and a server's of
    yesterday; stranger, a client of foreign."""
    for name in ("ca", "foreign"):
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-subj", f"/CN={name}", "-days", "2", "-keyout", folder / f"{name}.key", "-out",
            folder / f"{name}.crt")
    for name, authority, usage, days in (("server", "ca", "serverAuth", 2), ("client", "ca", "clientAuth", 2),
                                         ("expired", "ca", "clientAuth", -1), ("over", "ca", "serverAuth", -1),
                                         ("stranger", "foreign", "clientAuth", 2)):
        run("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
            f"/CN={name}", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.csr")
        (folder / "extensions").write_text(f"subjectAltName=IP:{ADDRESS}\nextendedKeyUsage={usage}\n")
        run("openssl", "x509", "-req", "-in", folder / f"{name}.csr", "-CA", folder / f"{authority}.crt",
            "-CAkey", folder / f"{authority}.key", "-days", days, "-extfile", folder / "extensions",
            "-out", folder / f"{name}.crt")
        (folder / f"{name}.key").chmod(0o600)


class Reader:
    """Who asks a daemon: with a token, a certificate, or nothing."""

    def __init__(self, folder, tls=True, token=None, certificate=None):
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.context = ssl.create_default_context(cafile=folder / "ca.crt") if tls else None
        if certificate:
            self.context.load_cert_chain(folder / f"{certificate}.crt", folder / f"{certificate}.key")

    def get(self, port, path):
        """(status, text); (0, reason) when no answer came."""
        scheme = "https" if self.context else "http"
        request = urllib.request.Request(f"{scheme}://{ADDRESS}:{port}{path}", headers=self.headers)
        try:
            with urllib.request.urlopen(request, timeout=20, context=self.context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")
        except OSError as error:
            return 0, str(error)


def wait_ready(daemon, reader):
    deadline = time.monotonic() + 60
    while reader.get(daemon.http_port, "/readyz")[0] != 200:
        assert time.monotonic() < deadline and daemon.process.poll() is None, daemon.log_tail()
        time.sleep(0.05)


def judge(daemon, reader, proven, metrics_open=False):
    """What the reader gets of each page."""
    for page in PAGES:
        status, text = reader.get(daemon.http_port, page)
        want = (404 if page == "/none" or (page == "/trace" and isinstance(daemon, pod.Agent)) else 200) \
            if proven or (metrics_open and page == "/metrics") else 401
        assert status == want, (page, status, want, text)
        if want == 401:
            assert "icms_" not in text and "{" not in text, text
    for page, word in (("/healthz", "ok"), ("/readyz", "ready")):
        status, text = reader.get(daemon.http_port, page)
        assert status == 200 and (proven or text == f"{word}\n"), (page, status, text)


def refused_at_start(build, folder, daemon, change, *says):
    """The daemon's configuration with this change is refused by the check and by the start."""
    path = folder / "refused.yaml"
    path.write_text(change(daemon.config_path.read_text()))
    for words in (["--check-config"], []):
        result = subprocess.run([daemon.program, "--config", path, *words], capture_output=True,
                                timeout=60, check=False)
        said = result.stderr.decode()
        assert result.returncode in (1, 2) and all(word in said for word in says), said


def replaced(build, folder, daemon, right):
    """After SIGHUP another certificate is served, and another token counts, with the port open."""
    def served():
        context = ssl.create_default_context(cafile=folder / "ca.crt")
        with socket.create_connection((ADDRESS, daemon.http_port), timeout=20) as peer, \
                context.wrap_socket(peer, server_hostname=ADDRESS) as tls:
            return tls.getpeercert()["serialNumber"]

    before = served()
    (folder / "server.crt").write_text("nothing")
    daemon.signal(signal.SIGHUP)
    daemon.wait_log("keys stay as they were")
    assert served() == before and right.get(daemon.http_port, "/status")[0] == 200
    certificates(folder)
    (folder / "token").unlink()
    run(build / "cmd/icms", "key", "gen", "--type", "token", folder / "token")
    other = Reader(folder, token=(folder / "token").read_text().strip())
    daemon.signal(signal.SIGHUP)
    daemon.wait_until("the other token counts", lambda: other.get(daemon.http_port, "/status")[0] == 200)
    assert served() != before
    right.context = other.context
    assert right.get(daemon.http_port, "/status")[0] == 401
    print(f"ok {daemon.name}: SIGHUP replaces certificate, authorities and token")
    right.headers = other.headers


def held_handshakes(daemon, reader):
    """More half handshakes than there are connections keep nobody out."""
    held = [socket.create_connection((ADDRESS, daemon.http_port), timeout=20) for _ in range(48)]
    for number, peer in enumerate(held):
        peer.sendall(b"\x16\x03\x01\x02\x00\x01"[:number % 7])
    for _ in range(3):
        assert reader.get(daemon.http_port, "/status")[0] == 200
    for peer in held:
        peer.close()
    print("ok half handshakes keep nobody out")


def shown(build, folder, target):
    """`icms status --target` proves itself with what the target's file names, to this target alone."""
    def icms(where):
        result = subprocess.run([build / "cmd/icms", "status", "--target", where], capture_output=True,
                                timeout=60, check=False)
        return result.returncode, result.stdout.decode() + result.stderr.decode()

    status, said = icms(target.config_path)
    assert status == 0 and said.startswith("enclosure0: ready\n") and "VOLUME" in said, said
    text = target.config_path.read_text()
    other = folder / "other.yaml"
    cases = [("a certificate of the same authority", ("server.crt", "client.crt"), "it has another key"),
             ("no token", (f"  token: {folder}/token\n", ""), "the certificate of a client"),
             ("no certificate", ("server.crt", "ca.key"), "no certificate"),
             ("another token", (f"{folder}/token", f"{folder}/token2"), "another token"),
             ("no http port", (f"{ADDRESS}:{target.http_port}", '""'), "no http.listen")]
    run(build / "cmd/icms", "key", "gen", "--type", "token", folder / "token2")
    for what, (before, after), why in cases:
        assert before in text, (what, text)
        other.write_text(text.replace(before, after))
        status, said = icms(other)
        assert status != 0 and why in said and "VOLUME" not in said, (what, status, said)
    status, said = icms(f"https://{ADDRESS}:{target.http_port}")
    assert status == 2 and "certificate" in said, said
    status, said = icms(f"http://{ADDRESS}:{target.http_port}")
    assert status != 0 and "VOLUME" not in said, said
    print("ok icms status asks the target of a file, and no other")


def main(build, folder):
    certificates(folder)
    run(build / "cmd/icms", "key", "gen", "--type", "token", folder / "token")
    token = (folder / "token").read_text().strip()
    plain = Reader(folder, tls=False)
    nobody, right = Reader(folder), Reader(folder, token=token)
    wrong = Reader(folder, token=token[:-1] + ("0" if token[-1] != "0" else "1"))
    client = Reader(folder, certificate="client")
    keys = {"token": folder / "token", "certificate": folder / "server.crt", "key": folder / "server.key",
            "client_ca": folder / "ca.crt"}
    with pod.Pod(build, folder) as p:
        target = p.make_target("enclosure0", 1, "512MiB", [{"name": "kv"}], http_address=ADDRESS,
                               http=keys, audit=folder / "audit")
        agent = p.make_agent("server-a", [target], [{"name": "kv"}], http_address=ADDRESS,
                             http={**keys, "open": "metrics"})
        for daemon, is_open in ((target, False), (agent, True)):
            daemon.start()
            wait_ready(daemon, right)
            for reader in (nobody, wrong, Reader(folder, certificate="stranger"),
                           Reader(folder, certificate="server"), Reader(folder, certificate="expired")):
                judge(daemon, reader, False, is_open)
            judge(daemon, right, True, is_open)
            judge(daemon, client, True, is_open)
            assert plain.get(daemon.http_port, "/status")[0] == 0, "plain HTTP on a port with TLS"
            count = right.get(daemon.http_port, "/metrics")[1].split("\nicms_http_refused_total ")[1]
            assert float(count.split()[0]) == (15 if is_open else 20), count.split()[0]
            print(f"ok {daemon.name}: a token or a certificate, nothing else")
        old = ssl.create_default_context(cafile=folder / "ca.crt")
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        tls12 = Reader(folder, token=token)
        tls12.context = old
        assert tls12.get(target.http_port, "/status")[0] == 0, "TLS 1.2"
        shown(build, folder, target)
        held_handshakes(target, right)
        lines = [json.loads(line) for line in (folder / "audit").read_text().splitlines()]
        lines = [line for line in lines if line["event"] == "http"]
        assert len(lines) == 1 and lines[0]["peer"] == ADDRESS, lines
        replaced(build, folder, target, right)
        for daemon in (target, agent):
            assert daemon.stop() == 0
            assert token not in daemon.log_path.read_text()
        token = (folder / "token").read_text().strip()
        clear = p.make_target("enclosure1", 1, "512MiB", [{"name": "kv"}], http_address=ADDRESS,
                              http={"token": folder / "token"})
        clear.start()
        bearer = Reader(folder, tls=False, token=token)
        wait_ready(clear, bearer)
        judge(clear, plain, False)
        judge(clear, bearer, True)
        for where, word in ((clear.config_path, "enclosure1: ready"),
                            (f"http://{ADDRESS}:{clear.http_port}", "it needs a token")):
            said = subprocess.run([build / "cmd/icms", "status", "--target", where], capture_output=True,
                                  timeout=60, check=False)
            assert word in (said.stdout + said.stderr).decode(), said
        assert "clear text" in clear.log_path.read_text()
        assert clear.stop() == 0
        print("ok a token without TLS, with a warning")
        (folder / "open").write_text(token + "0")
        (folder / "open").chmod(0o644)
        for daemon in (target, agent):
            def line(key, value=None, daemon=daemon):
                def change(text):
                    lines = [now for now in text.splitlines() if not now.startswith(f"  {key}: ")]
                    return "\n".join(lines).replace("http:", f"http:\n  {key}: {value}" if value else
                                                    "http:") + "\n"
                return change
            refused_at_start(build, folder, daemon, lambda text: "\n".join(
                now for now in text.splitlines() if not now.startswith(
                    ("  token", "  client_ca", "  certificate", "  key", "  open"))),
                "http.listen", "open: all")
            refused_at_start(build, folder, daemon, line("token", folder / "open"), "0644", "chmod 600")
            refused_at_start(build, folder, daemon, line("token", folder / "nothing"), "nothing")
            refused_at_start(build, folder, daemon, line("key", folder / "client.key"), "http.key",
                             "client.key")
            refused_at_start(build, folder, daemon, line("certificate", folder / "client.csr"),
                             "client.csr")
            refused_at_start(build, folder, daemon, line("client_ca", folder / "client.csr"),
                             "http.client_ca")
            refused_at_start(build, folder, daemon, line("key"), "together")
        print("ok wrong configurations are refused at the start")


if __name__ == "__main__":
    own_network(ADDRESS)
    with tempfile.TemporaryDirectory(prefix="icms-http-") as scratch:
        main(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(scratch))
