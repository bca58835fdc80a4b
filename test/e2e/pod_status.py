#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""icms pod status, from the pod map alone.

Goal: with the map's http every enclosure shows its drives and every agent of the pod its epoch, each once; an agent
with an older map, or without one, is marked, and the exit status is 1. Who does not answer, answers for another
enclosure or answers nonsense is named, within a bound, however many they are. The token of --token reaches who has
proven a certificate, or a loopback address, and nobody else; wrong tokens, authorities and files have their own
errors. A drained enclosure is removed without --yes when its target says that it was not read for 10 minutes, and not
otherwise; nor is it set to out, after which nothing more would be asked.
Method: two targets, one with TLS, a token and certificates of clients on an address that is not loopback, in a
network namespace of this test, and agents with maps of their own; sockets of this test that are silent, remember
what comes, or lie.

usage: pod_status.py BUILD_ROOT
"""
import contextlib
import http.server
import json
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from http_ports import ADDRESS, certificates  # noqa: E402
from judge import expect, own_network, wait_until  # noqa: E402

BUILD = pathlib.Path(sys.argv[1]).resolve()
VOLUME = {"name": "kv", "value_max": "64KiB"}
PATIENT = ["--deadline", "50s"]  # where the answer has to come, on a machine that is busy


def icms(*words):
    return subprocess.run([BUILD / "cmd/icms", *[str(word) for word in words]], capture_output=True, text=True,
                          timeout=60, check=False)


class Scene:
    def __init__(self, folder, p):
        self.folder, self.p = folder, p
        certificates(folder)
        for name in ("token", "token2"):
            assert icms("key", "gen", "--type", "token", folder / name).returncode == 0
        self.token = (folder / "token").read_text().strip()
        keys = {"token": folder / "token", "certificate": folder / "server.crt", "key": folder / "server.key",
                "client_ca": folder / "ca.crt"}
        self.targets = [p.add_target(f"e{i}", 2, "64MiB", [VOLUME], segment="1MiB", memory="16MiB",
                                     **({"http_address": ADDRESS, "http": keys} if i == 0 else {})) for i in range(2)]
        self.http = [f"https://{ADDRESS}:{self.targets[0].http_port}", f"http://127.0.0.1:{self.targets[1].http_port}"]
        self.file = folder / "pod.yaml"
        self.proof = ["--token", folder / "token", "--ca", folder / "ca.crt"]
        self.agents = {}
        self.targets[1].wait_ready()
        for name in ("a", "b"):
            self.write(folder / f"{name}-pod.yaml", 1)
            self.agents[name] = p.add_agent(name, [], [VOLUME], pod=folder / f"{name}-pod.yaml", memory="1MiB")
        self.write(self.file, 1)
        for agent in self.agents.values():
            agent.wait_ready()

    def write(self, path, epoch, urls=None):
        text = f"name: pod0\nepoch: {epoch}\nenclosures:\n"
        for target, url in zip(self.targets, urls or self.http):
            text += f"  - name: {target.name}\n    address: 127.0.0.1:{target.port}\n    nqn: {target.nqn}\n"
            text += f"    http: {url}\n" if url else ""
        beside = path.with_suffix(".new")
        beside.write_text(text + "...\n")
        beside.rename(path)

    def status(self, *words, file=None, proof=None, agent="a"):
        return icms("pod", "status", "--file", file or self.file, "--open", f"unix:{self.agents[agent].socket}",
                    *(self.proof if proof is None else proof), *words)

    def told(self, *words, **keys):
        """(exit status, JSON)"""
        done = self.status("--json", *words, **keys)
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    def nqn(self, name):
        return json.loads(icms("status", "--json", "--open", f"unix:{self.agents[name].socket}").stdout)["host_nqn"]

    def agent(self, told, name):
        found = [agent for agent in told["agents"] if agent["nqn"] == self.nqn(name)]
        assert len(found) == 1, (name, told["agents"])
        return found[0]


def whole(s):
    """Everything, without a word of where."""
    wait_until("both agents told both targets epoch 1", lambda: [
        [(told["enclosure"], told.get("epoch")) for told in s.agent(s.told(*PATIENT)[1], name)["told"]]
        for name in ("a", "b")] == [[("e0", 1), ("e1", 1)]] * 2, 60, lambda: s.status(*PATIENT))
    status, told = s.told(*PATIENT)
    expect("the pod is well", status == 0 and told["differences"] == [] and told["asked"] == [], (status, told))
    expect("each enclosure with its drives", [[d["state"] for d in e["target"]["drives"]] for e in told["enclosures"]] ==
           [["in service"] * 2] * 2 and [e["target"]["nqn"] for e in told["enclosures"]] ==
           [t.nqn for t in s.targets] and [e["http"] for e in told["enclosures"]] == s.http, told)
    expect("each agent once, its own name where it was asked", len(told["agents"]) == 2 and
           [agent["map"] for agent in told["agents"]] == ["current"] * 2 and s.agent(told, "a")["name"] == "a" and
           s.agent(told, "a")["epoch"] == 1 and "name" not in s.agent(told, "b"), told["agents"])
    expect("how it is proven, and since when", all(
        one["proven"] == "none" and one["controllers"] >= 1 and one["connections"] >= 4 and one["connected_seconds"] >= 0
        for agent in told["agents"] for one in agent["told"]), told["agents"])
    text = s.status(*PATIENT).stdout
    expect("and as a table", all(str(drive) in text for target in s.targets for drive in target.drives) and
           any(line.split()[:2] == ["1", "current"] and line.split()[-3:-1] == ["none", "a"] and "2 of 2" in line
               for line in text.splitlines()) and
           any(line.split()[:3] == ["1", "current", "-"] and line.split()[-1] == s.nqn("b")
               for line in text.splitlines()), text)
    status, told = s.told(*PATIENT, f"http://127.0.0.1:{s.agents['b'].http_port}", s.targets[1].config_path)
    b = s.agent(told, "b")
    expect("what is named besides", status == 0 and [one["name"] for one in told["asked"]] == ["b", "e1"] and
           told["asked"][1]["enclosure"] == "e1" and b["name"] == "b" and b["epoch"] == 1 and
           [one["enclosure"] for one in b["told"]] == ["e0", "e1"] and b["links"] == [] and
           [[link["state"] for link in e["links"]] for e in told["asked"][0]["enclosures"]] == [["up"]] * 2, told)
    s.write(s.folder / "wrong.yaml", 1, [f"http://127.0.0.1:{pod.free_port()}", s.http[1]])
    status, told = s.told(*PATIENT, s.targets[0].config_path, file=s.folder / "wrong.yaml")
    expect("an enclosure that is named besides, and whose http is wrong", status == 1 and
           told["enclosures"][0]["error"].startswith("e0: cannot ask") and
           len(told["enclosures"][0]["target"]["drives"]) == 2 and
           [one["enclosure"] for one in s.agent(told, "b")["told"]] == ["e1", "e0"], told)
    one = icms("status", "--target", s.http[0], *s.proof)
    expect("icms status of a target by its URL", one.returncode == 0 and "VOLUME" in one.stdout and
           any(line.split()[0] == "none" and line.split()[-1] == s.nqn("b") and line.split()[-2] == "1"
               for line in one.stdout.splitlines() if s.nqn("b") in line), one)


def older(s):
    """One agent has the map of before, one has none."""
    for path in (s.file, s.folder / "a-pod.yaml"):
        s.write(path, 2)
    wait_until("one agent has the new epoch everywhere", lambda: s.agent(s.told(*PATIENT)[1], "a")["map"] == "current",
               60, lambda: s.status(*PATIENT))
    status, told = s.told(*PATIENT)
    expect("the other one is marked", status == 1 and told["differences"] == [] and
           s.agent(told, "b")["map"] == "older" and [one["epoch"] for one in s.agent(told, "b")["told"]] == [1, 1], told)
    done = s.status(*PATIENT)
    expect("and named", done.returncode == 1 and f"{s.nqn('b')}: the file has epoch 2, and it told epoch 1 to e0, "
           "epoch 1 to e1: see whether its server has the file" in done.stdout, done.stdout)
    expect("quietly, too", s.status("-q", *PATIENT).returncode == 1)
    s.write(s.folder / "older.yaml", 1)
    status, told = s.told(*PATIENT, file=s.folder / "older.yaml", agent="b")
    expect("a file that is older than what an agent has", status == 1 and s.agent(told, "a")["map"] == "newer", told)
    s.write(s.folder / "b-pod.yaml", 2)
    wait_until("it follows", lambda: s.status(*PATIENT).returncode == 0, 60, lambda: s.status(*PATIENT))
    lone = s.p.add_agent("lone", s.targets, [VOLUME], memory="1MiB")
    lone.wait_ready()
    wait_until("an agent without a map is marked", lambda: [
        agent["map"] for agent in s.told(*PATIENT)[1]["agents"]].count("none") == 1, 60, lambda: s.status(*PATIENT))
    expect("and makes it fail", s.status(*PATIENT).returncode == 1)
    assert lone.stop() == 0
    wait_until("until it is gone", lambda: s.status(*PATIENT).returncode == 0, 60, lambda: s.status(*PATIENT))


class Answers:
    """Answers all with the same bytes; None: it is elsewhere."""

    def __init__(self):
        outer = self
        self.answer, self.elsewhere = None, ""

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200 if outer.answer is not None else 302)
                self.send_header("Location", outer.elsewhere)
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(outer.answer or b"")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def end(self):
        self.server.shutdown()


class Witness:
    """Takes connections and remembers what comes; answers nothing."""

    def __init__(self, address):
        self.socket = socket.create_server((address, 0))
        self.url = f"http://{address}:{self.socket.getsockname()[1]}"
        self.came, self.kept = [], []
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                peer = self.socket.accept()[0]
                self.kept.append(peer)
                self.came.append(peer.recv(65536))


def proofs(s):
    """What is proven to whom."""
    cases = [("no token", ["--ca", s.folder / "ca.crt"], "it needs a token: add --token"),
             ("a wrong token", ["--token", s.folder / "token2", "--ca", s.folder / "ca.crt"],
              "another token than that of --token"),
             ("another authority", ["--token", s.folder / "token", "--ca", s.folder / "foreign.crt"], "--ca"),
             ("the authorities of the machine", ["--token", s.folder / "token"], "--ca"),
             ("a certificate of another authority", ["--ca", s.folder / "ca.crt", "--cert", s.folder / "stranger.crt",
                                                     "--key", s.folder / "stranger.key"], "it needs another certificate")]
    for what, proof, word in cases:
        status, told = s.told(*PATIENT, proof=proof)
        expect(f"{what}: named, the rest is shown", status == 1 and word in told["enclosures"][0]["error"] and
               told["enclosures"][0]["error"].startswith("e0: ") and "target" not in told["enclosures"][0] and
               len(told["enclosures"][1]["target"]["drives"]) == 2, told)
        one = icms("status", "--target", s.http[0], *proof)
        expect(f"{what}: of one target", one.returncode in (1, 2) and word in one.stderr and one.stdout == "", one)
    client = ["--ca", s.folder / "ca.crt", "--cert", s.folder / "client.crt", "--key", s.folder / "client.key"]
    expect("the certificate of a client", s.status(*PATIENT, proof=client).returncode == 0)
    over = [*client[:2], "--cert", s.folder / "expired.crt", "--key", s.folder / "expired.key"]
    for done in (s.status(*PATIENT, proof=over), icms("status", "--target", s.http[0], *over)):
        expect("the certificate of a client whose time is over", done.returncode in (1, 2) and
               "it needs another certificate" in done.stdout + done.stderr, done)
    expired(s)
    expect("of one target, too", icms("status", "--target", s.http[0], *client).returncode == 0)
    witness, loopback = Witness(ADDRESS), Witness("127.0.0.1")
    s.write(s.folder / "clear.yaml", 2, [witness.url, loopback.url])
    status, told = s.told("--deadline", "1s", file=s.folder / "clear.yaml")
    expect("no token without TLS to another address", status == 1 and witness.came == [] and
           "in clear text to another machine" in told["enclosures"][0]["error"], (told, witness.came))
    expect("on loopback it is sent", len(loopback.came) == 1 and s.token.encode() in loopback.came[0] and
           "timed out" in told["enclosures"][1]["error"].lower(), (told, loopback.came))
    for url in (witness.url, witness.url.replace("http", "HTTP", 1), witness.url.replace("//", "///"),
                f"http://localhost:{witness.url.rpartition(':')[2]}"):
        one = icms("status", "--target", url, *s.proof)
        expect(f"nor of one target ({url})", one.returncode == 2 and witness.came == [] and "clear text" in one.stderr,
               (one, witness.came))
    s.told("--deadline", "1s", file=s.folder / "clear.yaml", proof=[])
    wait_until("without --token it is asked", lambda: len(witness.came) == 1)
    expect("and nothing is proven", b"Authorization" not in witness.came[0], witness.came)
    (s.folder / "open").write_text(s.token)
    (s.folder / "open").chmod(0o644)
    (s.folder / "key").write_bytes((s.folder / "client.key").read_bytes())
    (s.folder / "key").chmod(0o644)
    for what, words, says in (
            ("a token that others may read", ["--token", s.folder / "open"], "0644"),
            ("no token file", ["--token", s.folder / "nothing"], "nothing"),
            ("no authorities", ["--ca", s.folder / "nothing"], "cannot read --ca"),
            ("a certificate without its key", ["--cert", s.folder / "client.crt"], "given together"),
            ("a key that others may read", ["--cert", s.folder / "client.crt", "--key", s.folder / "key"], "0644")):
        for done in (s.status(proof=words), icms("status", "--target", s.http[0], *words)):
            expect(what, done.returncode == 2 and says in done.stderr and done.stdout == "", done)
    for what, words in (("--token of a file", ["status", "--target", s.targets[0].config_path, *s.proof[:2]]),
                        ("--token of an agent", ["status", *s.proof[:2]]),
                        ("--token of a list", ["pod", "volume", "list", "--file", s.file, *s.proof[:2]]),
                        ("--token of a reload", ["pod", "reload", "--file", s.file, *s.proof[:2]]),
                        ("--http of a state", ["pod", "drain", "e0", "--file", s.file, "--http", "http://a:1"])):
        done = icms(*words)
        expect(what, done.returncode == 2 and (" for " in done.stderr or "takes no" in done.stderr), done)
    status, told = s.told(*PATIENT, proof=["--ca", s.folder / "server.key", "--token", s.folder / "token"])
    expect("authorities that are none", status == 1 and "--ca" in told["enclosures"][0]["error"], told)


def added(s):
    """icms pod add proves itself to the http port of the target that it asks who it is."""
    file, target = s.folder / "added.yaml", s.targets[0]
    file.write_text(f"name: pod0\nepoch: 1\nenclosures:\n- name: e1\n  address: 127.0.0.1:{s.targets[1].port}\n"
                    f"  nqn: {s.targets[1].nqn}\n...\n")
    words = ["pod", "add", "e0", "--file", file, "--address", f"127.0.0.1:{target.port}", "--nqn", target.nqn, "--http",
             s.http[0], *PATIENT]
    done = icms(*words)
    expect("a target that wants a token cannot be asked without", done.returncode == 1 and
           "cannot find its target: cannot ask https://" in done.stderr and "epoch: 1" in file.read_text(), done)
    done = icms(*words, *s.proof)
    expect("with it the enclosure is added", done.returncode == 0 and "epoch: 2" in file.read_text(), done)


def expired(s):
    """A server whose certificate is of yesterday gets no token, and both sides say why."""
    right = [(s.folder / f"server.{end}").read_bytes() for end in ("crt", "key")]

    def serve(certificate, key):
        (s.folder / "server.key").write_bytes(key)
        (s.folder / "server.crt").write_bytes(certificate)
        s.targets[0].signal(signal.SIGHUP)

    serve(*((s.folder / f"over.{end}").read_bytes() for end in ("crt", "key")))
    wait_until("a server whose time is over", lambda: "has expired; " in
               s.told(*PATIENT)[1]["enclosures"][0].get("error", ""), 60, lambda: s.told(*PATIENT))
    status, told = s.told(*PATIENT)
    one = icms("status", "--target", s.http[0], *s.proof)
    expect("is named, and what to do", status == 1 and "target" not in told["enclosures"][0] and all(
        "replace it where its time is over" in text for text in (told["enclosures"][0]["error"], one.stderr)), (told, one))
    log = s.targets[0].log_path.read_text()
    expect("and by the target", "not valid at this time" in log and "server.crt" in log, s.targets[0].log_tail())
    serve(*right)
    wait_until("with another one it is asked", lambda: s.status(*PATIENT).returncode == 0, 60,
               lambda: s.status(*PATIENT))


def silent(s):
    """Nobody holds it up, however many do not answer."""
    witnesses = [Witness("127.0.0.1") for _ in range(40)]
    text = s.file.read_text().removesuffix("...\n")
    file = s.folder / "silent.yaml"
    for i, witness in enumerate(witnesses):
        text += f"  - name: s{i}\n    address: 127.0.0.1:{i + 1}\n    http: {witness.url}\n"
    file.write_text(text + "...\n")
    status, told = s.told(file=file)  # ends within a minute: one after the other they would take 80 s
    expect("silent ones are named", status == 1 and all(
        e["error"].startswith(f"{e['name']}: cannot ask") for e in told["enclosures"][2:]) and
        all(len(w.came) == 1 for w in witnesses), told)


def hostile(s):
    """What answers is not believed."""
    answers = {"nqn": {"drives": [], "nqn": "nqn.2026-01.io.icms:\x1b[2Jother", "ready": True},
               "agent": {"name": "x", "enclosures": [], "epoch": 2, "host_nqn": "y"},
               "ours": {"drives": [], "nqn": s.targets[0].nqn, "ready": True, "epoch": 2, "pod": "pod0", "map_refused": ""},
               "foreign": {"drives": [], "nqn": s.targets[0].nqn, "ready": True, "epoch": 2, "pod": "pod7\x1b[2J"},
               "refused": {"drives": [], "nqn": s.targets[0].nqn, "ready": True, "epoch": 2, "pod": "pod0",
                           "map_refused": "p.yaml: \x1b[2J raise it"},
               "links": {"name": "x", "epoch": 2, "host_nqn": "y", "ready": True, "pod": "pod0", "enclosures": [
                   {"name": "\x1b[2Jodd", "state": "excluded", "address": "a:0", "links": [
                       5, None, {"address": "\x1b[2Ja:1", "state": 7, "last_error": ["x"]}, {"address": "a:2", "state": "up"}] +
                    [{"address": "b" * 200, "state": "slow", "last_error": "c" * 1200}] * 20},
                   7, None, {"name": "well", "state": "up", "links": []},
                   {"name": "old", "state": "connecting", "address": "a:3", "last_error": "late", "last_error_age_seconds": 3},
                   {"name": "dull", "state": "excluded", "address": "a:4", "links": [{"address": "a:5", "state": "up"}]}] * 40},
               "agents own": {"name": "x", "enclosures": [], "epoch": 2, "host_nqn": "y", "ready": True, "pod": "pod7"},
               "odd": {"drives": [{"path": "\x1b[2J\x9bx", "state": 7}, 5, None] + [{}] * 1000, "nqn": s.targets[0].nqn,
                       "ready": True, "epoch": -3, "controllers_more": 7, "hosts": [
                           {"nqn": "nqn.\x1b[2Jodd", "epoch": 1 << 62, "epoch_max": "7", "proven": [], "controllers": "x"},
                           {"nqn": 5, "epoch": 2.5}, 7, None, []] + [{"nqn": f"n{i}", "epoch": 2} for i in range(5000)]}}

    raw = {"list": b"[1]", "deep": b"[" * 100000, "large": b"x" * (9 << 20), "nothing": b""}
    server = Answers()

    def answer(what):
        server.answer = json.dumps(answers[what]).encode() if what in answers else raw.get(what)

    file = s.folder / "hostile.yaml"
    server.elsewhere = f"{s.http[1]}/status"
    s.write(file, 2, [server.url, None])
    for what, word in (("nqn", "leads to another target, with the NQN nqn.2026-01.io.icms:?[2Jother"),
                       ("agent", "leads to no target"), ("list", "its answer is no status"),
                       ("deep", "its answer is no status"), ("large", "more than"), ("nothing", "its answer is no status"),
                       ("moved", "HTTP status 302")):
        answer(what)
        done = s.status(*PATIENT, file=file)
        expect(f"answer {what}", done.returncode == 1 and f"\ne0: " in done.stdout and word in done.stdout and
               "\x1b" not in done.stdout, done)
    answer("ours")
    done = s.status(*PATIENT, file=file)
    expect("a target with the map of the file", done.returncode == 0, done)
    for what, words in (("foreign", "\ne0: it uses the map of pod pod7?[2J, the file is that of pod pod0"),
                        ("refused", "\ne0: it does not use the map of its file: p.yaml: ?[2J raise it")):
        answer(what)
        done = s.status(*PATIENT, file=file)
        expect(f"its epoch alone says nothing ({what})", done.returncode == 1 and words in done.stdout and
               "\x1b" not in done.stdout, done)
    answer("agents own")
    status, told = s.told(*PATIENT, server.url)
    expect("an agent of another pod", status == 1 and [a["map"] for a in told["agents"] if a["nqn"] == "y"] == ["other"],
           told)
    answer("links")
    status, told = s.told(*PATIENT, server.url)
    links = [link for agent in told["agents"] if agent["nqn"] == "y" for link in agent["links"]]
    expect("odd links", [link.get("address", "")[:6] for link in links[:7]] ==
           ["?[2Ja:", *["b" * 6] * 4, "a:3", "a:4"] and len(links) <= 64 * 8, links[:9])
    done = s.status(*PATIENT, server.url)
    expect("as lines", "\x1b" not in done.stdout and "c" * 1000 not in done.stdout and "b" * 100 not in done.stdout and
           "?[2Jodd: link ?[2Ja:1 is -; last error: -\n" in done.stdout and
           " old: link a:3 is connecting; last error: 3 s ago: late\n" in done.stdout and
           " dull: link a:4 is excluded; last error: -\n" in done.stdout and "well: link" not in done.stdout, done)
    answer("odd")
    done = s.status(*PATIENT, file=file)
    expect("an odd answer", done.returncode == 1 and "\x1b" not in done.stdout and "\x9b" not in done.stdout and
           "?[2J" in done.stdout and "e0: and 7 controllers of other hosts" in done.stdout and
           "e0: its target has epoch -3" in done.stdout and len(done.stdout.splitlines()) < 1200, done)
    told = s.told(*PATIENT, file=file)[1]
    expect("is cut", len(told["enclosures"][0]["target"]["drives"]) == 32 and len(told["agents"]) <= 1025 and
           [a["map"] for a in told["agents"] if a["nqn"].startswith("nqn.?[2J")] == ["newer"] and
           "target" not in told["enclosures"][1] and "error" not in told["enclosures"][1], told)
    server.end()


def removed(s):
    """When the target of a drained enclosure was last read decides whether it leaves without --yes."""
    def remove(file, *words, proof=(), word="remove"):
        return icms("pod", word, "e0", "--dry-run", "--file", file, *proof, *words)

    def drains(path, urls):
        s.write(path, 2, urls)
        path.write_text(path.read_text().replace(f"    nqn: {s.targets[0].nqn}\n",
                                                 f"    nqn: {s.targets[0].nqn}\n    state: draining\n"))
        return path

    for name in map(str, range(16)):
        put = subprocess.run([BUILD / "cmd/icms", "put", "--open", f"unix:{s.agents['a'].socket}", "--on-flash", name],
                             input=b"x" * 5000, capture_output=True, timeout=60, check=False)
        assert put.returncode == 0, put
    told = s.told(*PATIENT)[1]
    expect("nobody has read anything", [e["target"]["last_load_age_seconds"] for e in told["enclosures"]] == [None] * 2 and
           all(e["target"]["uptime_seconds"] > 0 for e in told["enclosures"]), told)
    real = drains(s.folder / "drains.yaml", s.http)
    done = remove(real, *PATIENT, proof=s.proof)
    expect("one that was not read since a start a moment ago stays", done.returncode == 1 and
           "last read: not since its start" in done.stderr and "add --yes" in done.stderr, done)
    for name in map(str, range(16)):
        got = icms("get", "--open", f"unix:{s.agents['b'].socket}", name)
        assert got.returncode == 0, got
    told = s.told(*PATIENT)[1]
    expect("both targets were read", all(0 <= e["target"]["last_load_age_seconds"] < e["target"]["uptime_seconds"]
                                for e in told["enclosures"]), told)
    done = s.status(*PATIENT, file=real)
    expect("which is shown of all, and said of one that drains", "LAST READ" in done.stdout and
           "\ne0: draining, last read: " in done.stdout and "\ne1: draining" not in done.stdout, done.stdout)
    one = icms("status", "--target", s.http[0], *s.proof)
    expect("icms status of a target says it", "last read: " in one.stdout and " ago\n" in one.stdout and
           "LAST READ" in one.stdout, one)
    done = remove(real, *PATIENT, proof=s.proof, word="out")
    expect("one that was just read is not set to out, either", done.returncode == 1 and "last read: " in done.stderr and
           "misses while it is out" in done.stderr, done)
    done = remove(real, *PATIENT, proof=s.proof)
    expect("one that was just read stays", done.returncode == 1 and "last read: " in done.stderr and
           " ago: blocks that no other enclosure has become misses" in done.stderr, done)
    done = remove(real, *PATIENT, proof=s.proof[2:])
    expect("one that needs a token, too", done.returncode == 1 and "when it was read is not known" in done.stderr and "it needs a token" in done.stderr, done)
    done = remove(real, *PATIENT, "--yes", "--json", proof=s.proof)
    expect("with --yes it goes, and when it was read is said", done.returncode == 0 and
           json.loads(done.stdout)["note"].startswith("last read: "), done)
    done = remove(real, *PATIENT, "--yes", proof=s.proof[2:])
    expect("or why that is not known", done.returncode == 0 and "it needs a token" in done.stdout, done)
    witness = Witness("127.0.0.1")
    done = remove(drains(s.folder / "hangs.yaml", [witness.url, None]), "--deadline", "1s")
    expect("one that does not answer", done.returncode == 1 and "timed out" in done.stderr.lower(), done)
    out = s.folder / "out.yaml"
    out.write_text((s.folder / "hangs.yaml").read_text().replace("state: draining", "state: out"))
    done = remove(out)
    expect("one that is out is not asked, and lost", done.returncode == 1 and "last read" not in done.stderr and
           "it is out" in done.stderr and "lost for the pod; add --yes" in done.stderr, done)
    done = remove(out, "--json", "--yes")
    expect("with --yes it goes, and is not asked", done.returncode == 0 and "note" not in json.loads(done.stdout), done)
    done = remove(drains(s.folder / "none.yaml", [None, None]))
    expect("one without http", done.returncode == 1 and "the map has no http of it" in done.stderr, done)
    server = Answers()
    file = drains(s.folder / "told.yaml", [server.url, None])
    for status, words, keys in (
            (1, "last read: 9 min ago", {"last_load_age_seconds": 599.9, "uptime_seconds": 86400}),
            (0, "last read: 10 min ago", {"last_load_age_seconds": 600.0, "uptime_seconds": 86400}),
            (1, "last read: not since its start 9 min ago", {"last_load_age_seconds": None, "uptime_seconds": 599.9}),
            (0, "last read: not since its start 2 h ago", {"last_load_age_seconds": None, "uptime_seconds": 7200}),
            (1, "an older version", {}), (1, "an older version", {"last_load_age_seconds": "900", "uptime_seconds": 900}),
            (1, "an older version", {"last_load_age_seconds": None, "uptime_seconds": True}),
            *((1, "an older version", {"last_load_age_seconds": lie, "uptime_seconds": 86400})
              for lie in (-1e300, -1, 1e12, 1e300, 2**63 - 1, [900], {"n": 900})),
            (1, "an older version", {"last_load_age_seconds": None, "uptime_seconds": 1e300}),
            (1, "leads to another target", {"last_load_age_seconds": 900, "nqn": "nqn.2026-01.io.icms:\x1b[2J"})):
        server.answer = json.dumps({"drives": [], "nqn": s.targets[0].nqn, "ready": True, **keys}).encode()
        for word in ("remove", "out"):
            done = remove(file, *PATIENT, word=word)
            expect(f"{word}: {keys}: {words}", done.returncode == status and words in done.stdout + done.stderr and
                   "\x1b" not in done.stdout + done.stderr, done)
        shown = s.status(*PATIENT, file=file)
        expect("is shown", "\x1b" not in shown.stdout and (
            words == "leads to another target" or f"\ne0: draining, last read: " in shown.stdout), shown)
    for share, drives, words in ((0.94, 0, "13.2 TiB on its drives in service: correct capacity"), (0.951, 0, None), (1.049, 0, None),
                                 (1.06, 0, "14.8 TiB on its drives"), (0, 2, "0 B on its drives in service; 2 of 2 drives")):
        server.answer = json.dumps({
            "drives": [{"state": "out of service"}] * drives, "nqn": s.targets[0].nqn, "ready": True,
            "capacity_bytes": int(share * (14 << 40))}).encode()
        sized = s.folder / "sized.yaml"
        sized.write_text(file.read_text().replace("    address:", "    capacity: 14TiB\n    address:"))
        shown = s.status(*PATIENT, file=sized)
        expect(f"{share} of the capacity of the map", ("\ne0: capacity 14.0 TiB in the map, and " in shown.stdout) ==
               (words is not None) and (words or "") in shown.stdout, shown)
    server.end()


def older_file(s):
    """A change of a file that is older than the map which a target uses: every daemon would refuse it."""
    server, file = Answers(), s.folder / "older.yaml"
    file.unlink(missing_ok=True)
    changes = (["weight", "e0", "2"], ["volume", "create", "new", "value_max=64KiB"], ["drain", "e1"], ["reload", "--yes"],
               ["weight", "e0", "2", "--dry-run"], ["remove", "e0", "--yes"])
    for refuses, keys in ((True, {"pod": "pod0", "epoch": 6}), (True, {"pod": "pod0", "epoch": 2**32 - 1}),
                          (False, {"pod": "pod0", "epoch": 5}), (False, {"pod": "pod1", "epoch": 6}), (False, {}),
                          *((False, {"pod": "pod0", "epoch": lie}) for lie in (-1, 0, 2**32, 2**63 - 1, "6", [6], None, 6.5))):
        server.answer = json.dumps({"drives": [], "nqn": s.targets[0].nqn, "ready": True, **keys}).encode()
        for words in changes if refuses else changes[:1]:
            s.write(file, 5, [server.url, None])
            before = file.read_text()
            done = icms("pod", *words, "--file", file, "--open", f"unix:{s.agents['a'].socket}", "--deadline", "5s")
            if refuses:
                expect(f"{words}: {keys}: refused", done.returncode == 1 and file.read_text() == before and
                       f"has epoch 5, and the target of e0 uses epoch {keys['epoch']} of pod pod0" in done.stderr, done)
            else:
                expect(f"{words}: {keys}: written", done.returncode == 0 and "epoch: 6\n" in file.read_text(), done)
    server.end()


def away(s):
    """Without the agent of this machine, and without a target."""
    done = icms("pod", "status", "--file", s.file, "--open", "unix:/nonexistent/sock", *s.proof, *PATIENT, "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    expect("without an agent the rest is shown", done.returncode == 2 and lines[0]["error"] == "NOT_FOUND" and
           lines[1]["agent"] is None and len(lines[1]["agents"]) == 2 and
           lines[1]["differences"] == ["the agent of this machine does not answer"] and
           len(lines[1]["enclosures"][0]["target"]["drives"]) == 2, done)
    done = icms("pod", "status", "--file", s.file, "--open", "unix:/nonexistent/sock", *s.proof, *PATIENT)
    expect("as tables, too", done.returncode == 2 and str(s.targets[0].drives[0]) in done.stdout and
           s.nqn("b") in done.stdout, done)
    s.targets[1].kill()
    status, told = s.told(*PATIENT)
    expect("a target that is gone is named, the other one is shown", status == 1 and
           told["enclosures"][1]["error"].startswith("e1: cannot ask http://127.0.0.1:") and
           len(told["enclosures"][0]["target"]["drives"]) == 2 and
           [one["enclosure"] for one in s.agent(told, "b")["told"]] == ["e0"], told)
    done = s.status(*PATIENT)
    expect("in a sentence", done.returncode == 1 and "\ne1: cannot ask http://127.0.0.1:" in done.stdout and
           "1 of 1" in done.stdout, done)
    where = f"http://127.0.0.1:{s.agents['b'].http_port}"

    def not_up():
        b = s.agent(s.told(*PATIENT, where)[1], "b")
        return b["enclosures_up"], [(link["enclosure"], link["address"]) for link in b["links"]]

    wait_until("another agent tells which of its links is not up", lambda: not_up() ==
               (1, [("e1", f"127.0.0.1:{s.targets[1].port}")]), 60, lambda: s.told(*PATIENT, where))
    lines = s.status(*PATIENT, where).stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.endswith(f" b ({s.nqn('b')})"))
    expect("in a line below it", "1 of 2" in lines[at] and
           lines[at + 1].strip().startswith(f"e1: link 127.0.0.1:{s.targets[1].port} is ") and
           "; last error: " in lines[at + 1] and " ago: " in lines[at + 1], lines)


def main():
    with tempfile.TemporaryDirectory(prefix="icms-") as folder, pod.Pod(BUILD, folder) as p:
        s = Scene(pathlib.Path(folder), p)
        whole(s)
        older(s)
        proofs(s)
        added(s)
        silent(s)
        hostile(s)
        removed(s)
        older_file(s)
        away(s)
        for agent in s.agents.values():
            expect("an agent ends as asked", agent.stop(30) == 0)
            expect("the token is in no log", s.token not in agent.log_path.read_text())


if __name__ == "__main__":
    own_network(ADDRESS)
    main()
