#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The comparison with peers finds what a peer does wrong, and a whole run leaves its document.

Goal: objects that a peer loses, changes, does not write or refuses are counted, each for what it is; a
peer that dies or cannot be installed is a line with the reason; a run writes rows and document with what
icms lost, and leaves nothing behind. No speed is judged.
Method: the peer bench/peers/fake.py, honest and with faults on purpose; 32 objects of 64 KiB. The driver
of MinIO plays with a small S3 server of the test's own, which drops idle connections as MinIO does.

usage: bench_peers.py BUILD_ROOT
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import types
from math import comb

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]
import bench_peers  # noqa: E402
from judge import expect  # noqa: E402
from peers import minio, report, side, stats, worker  # noqa: E402

COUNT = 32

# Keeps what is put, whoever asks; a connection on which nothing comes is dropped after a moment, or
# after what the environment says, if that is longer.
FAKE_MINIO = """#!/usr/bin/env python3
import http.server, os, sys
objects, host = {}, sys.argv[sys.argv.index("--address") + 1].split(":")

class Door(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 0.2 if "MINIO_IDLE_TIMEOUT" not in os.environ or \\
        "MINIO_READ_HEADER_TIMEOUT" not in os.environ else 60

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        signed = self.headers.get("Authorization", "").startswith("AWS4-HMAC-SHA256 Credential=")
        if self.path.count("/") == 1 and not signed:
            return self.answer(403)
        objects[self.path] = body
        self.answer(200)

    def do_GET(self):
        body = objects.get(self.path)
        self.answer(404, b"NoSuchKey") if body is None else self.answer(200, body)

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer((host[0], int(host[1])), Door).serve_forever()
"""


def played(faults):
    """(puts, gets, audit) of the fake peer with these faults, in this process."""
    os.environ["FAULTS"] = faults
    one = worker.Worker(types.SimpleNamespace(
        peer="fake", form=None, size=64 << 10, count=COUNT, depth_max=16, folder=None,
        installed=None, build=None))
    one.start({})
    puts = one.put({"first": 0, "count": COUNT, "depth": 1})
    gets = one.get({"depth": 16, "seconds": 0.0001})
    return puts, gets, one.audit({"depth": 16})


def faults_are_found():
    fifth, seventh = COUNT // 5, COUNT // 7
    for faults, errors, lost, corrupt in (("", 0, 0, 0), ("lose", 0, fifth, 0),
                                          ("flip", 0, 0, seventh), ("refuse", COUNT // 4, 0, 0),
                                          ("lose,flip", 0, fifth, seventh)):
        puts, gets, audit = played(faults)
        expect(f"'{faults}': refused puts", puts["errors"] == errors, puts)
        expect(f"'{faults}': what was acknowledged", audit["acknowledged"] == COUNT - errors, audit)
        expect(f"'{faults}': lost and corrupt",
               (audit["lost"], audit["corrupt"]) == (lost, corrupt), audit)
        expect(f"'{faults}': good bytes", audit["good_bytes"] ==
               (COUNT - errors - lost - corrupt) * 65536, audit)
        expect(f"'{faults}': gets", gets["operations"] >= 16 and
               bool(gets["lost"] + gets["corrupt"]) <= bool(lost + corrupt), gets)
    _, _, audit = played("silent")
    expect("memory that was not written is found", audit["corrupt"] >= COUNT // 3, audit)
    print("ok faults are found")


def run(build, folder, faults, name):
    """A whole run of the program; its status, rows and document."""
    results = pathlib.Path(folder, name, "benchmarks")
    results.mkdir(parents=True)
    ran = subprocess.run(
        [sys.executable, ROOT / "bench/bench_peers.py", "--build", build, "--results", results,
         "--dir", folder, "--sizes", "64KiB", "--space", "2MiB", "--slices", "2", "--slice", "20ms",
         "fake"], env={**os.environ, "FAULTS": faults}, capture_output=True, text=True, timeout=300)
    lines = (results / "peers-fake.jsonl").read_text().splitlines() if any(results.iterdir()) else []
    expect(f"{name}: rows are left", lines, ran.stdout + ran.stderr)
    expect(f"{name}: nothing is left", not any(pathlib.Path(folder, "peers-run").iterdir()),
           list(pathlib.Path(folder, "peers-run").iterdir()))
    return (ran.returncode, [json.loads(line) for line in lines],
            (results.parent / "peers.md").read_text())


def whole_runs(build):
    with tempfile.TemporaryDirectory(prefix="icms-peers-", dir=build) as folder:
        status, (head, *rows), text = run(build, folder, "lose", "whole")
        expect("the run is whole", status == 0 and head["versions"]["fake"], (status, rows))
        expect("its rows", [row["op"] for row in rows] == ["put", "put", "get", "get", "audit"],
               rows)
        for row in rows[:-1]:
            low, high = row["ratios"]["icms-local"]["gb_per_s"][1:]
            expect("ratios", 0 < low <= row["ratios"]["icms-local"]["gb_per_s"][0] <= high, row)
            expect("icms is right", not any(row["sides"]["icms-local"][name]
                                            for name in ("lost", "corrupt", "errors")), row)
        audit = rows[-1]["sides"]
        expect("the audit", audit["icms-local"]["lost"] == 0 and audit["fake"]["lost"] > 0, audit)
        expect("icms names its sources", sum(audit["icms-local"]["served"].values()) > 0, audit)
        expect("the document", "## Where icms loses" in text and "## fake" in text and
               f"| fake | {COUNT} | {audit['fake']['lost']} |" in text, text)
        status, rows, text = run(build, folder, "die", "dead")
        expect("a dead peer is told", status == 1 and rows[-1]["op"] == "failed" and
               "ended with 3" in rows[-1]["why"] and "**64 KiB failed**" in text, (status, rows))
    print("ok whole runs")


def no_installation():
    def refuse(folder):
        raise OSError("there is no such package")
    with tempfile.TemporaryDirectory() as folder:
        why = bench_peers.install(types.SimpleNamespace(INSTALL=refuse), pathlib.Path(folder, "x"))
    expect("why it is not installed", why == "there is no such package", why)
    print("ok no installation")


def losses_are_told():
    """The section of losses is made of the numbers, whatever they are."""
    def side(**more):
        return {"gb_per_s": 1, "cpu_s_per_gb": 1, "p50_us": 1, "p99_us": 1, "lost": 0, "corrupt": 0,
                "errors": 0, **more}
    row = {"op": "get", "size_bytes": 1 << 20, "depth": 1, "slices": 6,
           "sides": {"icms-pod": side(p99_us=9, lost=2), "peer": side()},
           "ratios": {"icms-pod": {"gb_per_s": [0.8, 0.7, 0.9], "cpu_s_per_gb": [1.1, 0.9, 1.2],
                                   "p50_us": [0.5, 0.4, 0.6]}}}
    found = {(measure, sure) for _, measure, _, sure in report.losses("peer", row)}
    expect("losses", found == {("GB/s", True), ("CPU s/GB", False), ("p99", False), ("lost", True)},
           found)
    cause = report.Causes("# Causes\n\n## peer get * pod GB/s\nIt is so.\n")
    expect("a cause", cause("peer get 1 MiB depth 1 pod", "GB/s") == "[1]" and
           cause("peer get 1 MiB depth 1 pod", "p50") == "not known yet", cause.used)
    print("ok losses are told")


def minio_waits_for_its_turn(build):
    """The driver of MinIO: a bucket is made, objects come back whole after a pause, others are missing."""
    with tempfile.TemporaryDirectory(prefix="icms-peers-", dir=build) as folder:
        installed = pathlib.Path(folder, "installed")
        (installed / "bin").mkdir(parents=True)
        (installed / "bin/minio").write_text(FAKE_MINIO)
        (installed / "bin/minio").chmod(0o755)
        peer = minio.Peer(types.SimpleNamespace(size=100000, count=4, depth_max=4, build=build,
                                                folder=pathlib.Path(folder), installed=installed))
        keys = [bytes([i]) * 16 for i in range(5)]
        values = [os.urandom(100000) for _ in range(4)]
        memory = [memoryview(bytearray(100000)) for _ in range(4)]
        peer.start(None)
        try:
            said = peer.put(keys[:4], [memoryview(value) for value in values])
            expect("puts", said == [side.OK] * 4, said)
            time.sleep(0.5)
            said = peer.get(keys[:3] + keys[4:], memory)
            expect("gets", said == [side.OK] * 3 + [side.MISS], said)
            expect("bytes", [bytes(one) for one in memory[:3]] == values[:3], "others")
        finally:
            peer.stop()
    print("ok minio waits for its turn")


def intervals():
    for n in range(1, 60):
        k = stats.outside(n)
        expect(f"interval of {n}", sum(comb(n, i) for i in range(k)) / 2 ** n <= 0.025 and
               (k == n // 2 or sum(comb(n, i) for i in range(k + 1)) / 2 ** n > 0.025), k)
    expect("a median", stats.median([5, 1, 3, 2, 4, 9, 8, 7, 6, 10]) == (5.5, 2, 9),
           stats.median(range(1, 11)))
    print("ok intervals")


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    intervals()
    losses_are_told()
    faults_are_found()
    no_installation()
    minio_waits_for_its_turn(build)
    whole_runs(build)


if __name__ == "__main__":
    main()
