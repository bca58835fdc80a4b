#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pod map in etcd.

Goal: what is pushed reaches the agents of each server, and nothing that happens to etcd concerns them: while it is
down, late, wiped, restored from an older day, or holds what is no map, or half of one, the file stays, loads go on, and
an agent that starts finds all; afterwards changes come again. Targets are registered while they answer.
Method: a real etcd on loopback, one real agent whose file icms-etcd follows, real targets; and TLS and users as
etcd has them.

usage: etcd.py BUILD_ROOT
"""
import base64
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import expect, wait_until  # noqa: E402

BUILD = pathlib.Path(sys.argv[1])
PREFIX = "/icms/pod0"
MAP = PREFIX + "/map"
VOLUME = {"name": "kv", "value_max": "64KiB"}


def b64(text):
    return base64.b64encode(text.encode()).decode()


class Etcd:
    def __init__(self, folder, name="etcd", more=(), scheme="http"):
        self.folder, self.name, self.more, self.scheme = folder, name, more, scheme
        self.port, self.peer = pod.free_port(), pod.free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            ["etcd", "--name", self.name, "--data-dir", self.folder / self.name,
             "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
             "--listen-peer-urls", f"http://127.0.0.1:{self.peer}",
             "--initial-advertise-peer-urls", f"http://127.0.0.1:{self.peer}",
             "--initial-cluster", f"{self.name}=http://127.0.0.1:{self.peer}", *self.more],
            stdout=subprocess.DEVNULL, stderr=open(self.folder / f"{self.name}.log", "ab"))

    def ask(self, path, token=None, **question):
        request = urllib.request.Request(self.url + path, json.dumps(question).encode(),
                                         {"Authorization": token} if token else {})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def put(self, key, text):
        return self.ask("/v3/kv/put", key=b64(key), value=b64(text))

    def keys(self, prefix):
        found = self.ask("/v3/kv/range", key=b64(prefix), range_end=b64(prefix + "~")).get("kvs", [])
        return {base64.b64decode(one["key"]).decode(): base64.b64decode(one["value"]).decode() for one in found}

    def kill(self):
        self.process.kill()
        self.process.wait()

    def signal(self, number):
        self.process.send_signal(number)


class Following:
    """icms-etcd follow or register."""

    def __init__(self, folder, *words, env=None):
        self.log_path = folder / f"icms-etcd-{len(list(folder.glob('icms-etcd-*')))}.log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([BUILD / "cmd/icms-etcd", *words], stdout=log, stderr=log, env=env)

    def said(self, words):
        return self.log_path.read_text().count(words)

    def end(self):
        self.process.terminate()
        expect("it ends when asked to", self.process.wait(timeout=30) == 0, self.log_path.read_text())


class Scene:
    def __init__(self, folder, p):
        self.folder, self.p = pathlib.Path(folder), p
        self.etcd = Etcd(self.folder)
        self.etcd.start()
        self.env = {**os.environ, "ETCDCTL_ENDPOINTS": self.etcd.url}
        self.targets = [self.target(0), self.target(1)]
        self.own = self.folder / "own.yaml"    # the operator's
        self.file = self.folder / "pod.yaml"   # of the server
        self.own.write_text(self.text(7))
        wait_until("etcd serves", lambda: self.run("push", self.own).returncode == 0)
        pulled = self.run("pull", self.file)
        expect("pull makes the file", pulled.returncode == 0 and self.file.read_text() == self.text(7), pulled)
        self.follow = Following(self.folder, "follow", "--prefix", PREFIX, self.file, env=self.env)
        self.agent = p.add_agent("server-a", [], [VOLUME], pod=self.file, memory="1MiB")
        self.agent.wait_ready()
        self.tier = ["--open", f"unix:{self.agent.socket}"]

    def target(self, number):
        target = self.p.add_target(f"e{number}", 1, "64MiB", [VOLUME], segment="1MiB", memory="16MiB")
        target.wait_ready()
        return target

    def text(self, epoch, count=1, name="pod0"):
        return f"name: {name}\nepoch: {epoch}\nenclosures:\n" + "".join(
            f"  - name: {target.name}\n    address: 127.0.0.1:{target.port}\n    nqn: {target.nqn}\n"
            for target in self.targets[:count]) + "...\n"

    def run(self, word, *more):
        return subprocess.run([BUILD / "cmd/icms-etcd", word, "--prefix", PREFIX, *more], env=self.env,
                              capture_output=True, text=True, timeout=60, check=False)

    def status(self):
        status = subprocess.run([BUILD / "cmd/icms", "status", *self.tier, "--json"], capture_output=True,
                                timeout=60, check=True)
        return json.loads(status.stdout)

    def epoch(self):
        return self.status()["epoch"]

    def enclosures(self):
        return [one["name"] for one in self.status()["enclosures"]]

    def restart(self):
        self.agent.kill()
        self.agent.start()
        self.agent.wait_ready()

    def blocks(self, what):
        """Blocks that are put come back."""
        for n in range(4):
            put = subprocess.run([BUILD / "cmd/icms", "put", *self.tier, f"{what}{n}"], input=b"x" * 5000,
                                 capture_output=True, timeout=60, check=False)
            got = subprocess.run([BUILD / "cmd/icms", "get", *self.tier, f"{what}{n}"], capture_output=True,
                                 timeout=60, check=False)
            expect(f"{what}: block {n}", got.stdout == b"x" * 5000, (put, got))

    def log(self):
        return self.follow.log_path.read_text()


def changes(scene):
    scene.own.write_text(scene.text(8))
    dry = scene.run("push", "--dry-run", scene.own)
    expect("a dry run says what would change", "epoch 7 -> 8" in dry.stdout and dry.returncode == 0, dry)
    expect("and changes nothing", "epoch: 7" in scene.etcd.keys(MAP)[MAP])
    added = subprocess.run([BUILD / "cmd/icms", "pod", "add", "e1", "--address", f"127.0.0.1:{scene.targets[1].port}",
                            "--nqn", scene.targets[1].nqn, "--deadline", "50s", "--file", scene.own], capture_output=True, check=False)
    expect("icms pod changes the operator's file", added.returncode == 0, added)
    pushed = scene.run("push", scene.own)
    expect("a later epoch is pushed", "epoch 7 -> 9: e1 added" in pushed.stdout, pushed)
    wait_until("the agent uses it", lambda: scene.epoch() == 9, seen=scene.log)
    again = scene.run("push", scene.own)
    expect("the same again is there already", "already" in again.stdout and again.returncode == 0, again)
    dry = scene.run("pod", "--", "drain", "e1", "--dry-run")
    expect("a dry run of icms pod changes nothing", dry.returncode == 0 and
           scene.etcd.keys(MAP)[MAP] == scene.own.read_text(), dry)
    wrong = scene.run("pod", "--", "drain", "e7")
    expect("what icms pod refuses is not put there", wrong.returncode == 1 and "e7" in wrong.stderr and
           scene.etcd.keys(MAP)[MAP] == scene.own.read_text(), wrong)
    for words in ((), ("--",), ("--yes", "--", "drain", "e1"), ("drain", "e1", "--bogus")):
        misused = scene.run("pod", *words)
        expect(f"pod {words} is a mistake", misused.returncode == 2, misused)
    for words, said in ((("reload",), "icms pod reload --file"), (("list", "--file", "/x"), "that of etcd"),
                        (("drain", "e1", "--file=/x"), "that of etcd")):
        refused = scene.run("pod", "--", *words)
        expect(f"pod {words} is refused", refused.returncode == 1 and said in refused.stderr, refused)
    drained = scene.run("pod", "--", "drain", "e1")
    expect("icms pod changes the map in etcd", "epoch 9 -> 10: e1 draining" in drained.stdout, drained)
    expect("and does not speak of a file", "pod.yaml" not in drained.stdout, drained)
    again = scene.run("pod", "--", "drain", "e1")
    expect("what is so already is said", again.returncode == 0 and "so already" in again.stdout and
           "epoch: 10" in scene.etcd.keys(MAP)[MAP], again)
    wait_until("the agent uses that", lambda: scene.epoch() == 10, seen=scene.log)
    slow = scene.folder / "slow"
    slow.mkdir()
    (slow / "icms").write_text("#!/bin/sh\nsleep 1\n")
    (slow / "icms").chmod(0o755)
    shutil.copy(BUILD / "cmd/icms-etcd", slow / "icms-etcd")
    (slow / "tmp").mkdir()
    ended = subprocess.Popen([slow / "icms-etcd", "pod", "--prefix", PREFIX, "--", "settle", "e1"],
                             env={**scene.env, "TMPDIR": str(slow / "tmp")})
    wait_until("it is under way", lambda: list((slow / "tmp").iterdir()))
    ended.terminate()
    expect("one that is ended", ended.wait(timeout=30) == -signal.SIGTERM)
    expect("leaves nothing behind", not list((slow / "tmp").iterdir()))
    late = scene.folder / "late"  # another operator is quicker
    late.mkdir()
    (late / "icms").write_text(f"#!/bin/sh\n{BUILD / 'cmd/icms'} \"$@\" && echo race >> {late}/done && "
                               f"{BUILD / 'cmd/icms-etcd'} pod --prefix {PREFIX} -- undrain e1\n")
    (late / "icms").chmod(0o755)
    shutil.copy(BUILD / "cmd/icms-etcd", late / "icms-etcd")
    raced = subprocess.run([late / "icms-etcd", "pod", "--prefix", PREFIX, "--", "volume", "create", "kv"],
                           env=scene.env, capture_output=True, text=True, timeout=60, check=False)
    expect("who is late changes nothing", raced.returncode == 1 and "epoch 10 -> 11" in raced.stdout and
           "volumes" not in scene.etcd.keys(MAP)[MAP], raced)
    settled = scene.run("pod", "--", "settle", "e1")
    expect("what is not read yet is asked about", settled.returncode == 1 and
           "icms_agent_former_found_total" in settled.stderr and "add --yes" in settled.stderr, settled)
    settled = scene.run("pod", "--", "settle", "e1", "--yes")
    expect("and tries again", "epoch 11 -> 12" in settled.stdout, settled)
    wait_until("the agent uses it", lambda: scene.epoch() == 12, seen=scene.log)
    scene.own.write_text(scene.etcd.keys(MAP)[MAP].replace("epoch: 12", "epoch: 13"))
    expect("files go on from there", scene.run("push", scene.own).returncode == 0)
    wait_until("the agent uses the file's", lambda: scene.epoch() == 13, seen=scene.log)
    in_json(scene)
    status = scene.run("status", scene.file)
    expect("status finds the file right", status.returncode == 0 and "the same" in status.stdout, status)
    scene.blocks("changed")
    for words, status, said in (
            (("weight", "e1", "4", "--dry-run"), 0, "e1 weight 1 -> 4, e1 former weight 1"),
            (("weight", "e1", "nan"), 1, "not a number"), (("weight", "e1", "4", "--", "-1"), 1, "takes"),
            (("out", "e1"), 1, "it is not drained"), (("out", "e1", "--yes", "--dry-run"), 0, "e1 out"),
            (("settle", "e1"), 0, "so already")):
        told = scene.run("pod", "--", *words)
        expect(f"pod {words}", told.returncode == status and said in told.stdout + told.stderr and
               "epoch: 13" in scene.etcd.keys(MAP)[MAP], told)


def in_json(scene):
    """Each answer is one object, and says "written" when etcd or the file has it, not before."""
    prefix, file, late = "/icms/json", scene.folder / "json.yaml", scene.folder / "late-json"
    key = f"{prefix}/map"

    def run(word, *words, program=BUILD / "cmd/icms-etcd"):
        return subprocess.run([program, word, "--prefix", prefix, *words], env=scene.env, capture_output=True, text=True,
                              timeout=60, check=False)

    def told(*words, status=0):
        done = run(*words)
        expect(f"one object: {words}", done.returncode == status and len(done.stdout.splitlines()) == 1, done)
        return json.loads(done.stdout)

    def said(what, answer, **values):
        expect(what, all(answer[name] == value for name, value in values.items()), answer)

    right = scene.text(13, 2)
    file.write_text(right)
    base = {"pod": "pod0", "epoch": 13, "former_epoch": 13, "changes": "", "written": False}
    said("a dry push of the first map", told("push", "--dry-run", "--json", file), key=key, former_epoch=None, written=False)
    expect("puts nothing there", not scene.etcd.keys(prefix))
    expect("a push of the first map", told("push", "--json", file) == {"key": key, **base, "former_epoch": None, "written": True})
    expect("a push of what is there", told("push", "--json", file) == {"key": key, **base})
    expect("a pull of what is there", told("pull", "--json", file) == {"file": str(file), **base})
    said("a pull without a file", told("pull", "--json", scene.folder / "new.yaml"), former_epoch=None, epoch=13, written=True)
    for words in (("--dry-run", "--json"), ("--dry", "--js")):
        answer = told("pod", "--", "weight", "e1", "4", *words)
        said(f"{words}: as icms pod says it", answer, epoch=14, former_epoch=13, written=False)
    expect("what is so already", told("pod", "--", "settle", "e1", "--json") == {"key": key, **base})
    answer = told("pod", "--", "drain", "e7", "--json", status=1)
    expect("what icms pod refuses", "e7" in answer["why"] and "written" not in answer, answer)
    expect("changes nothing", scene.etcd.keys(key)[key] == right)
    late.mkdir()  # another operator is quicker
    (late / "icms").write_text(f"#!/bin/sh\n{BUILD / 'cmd/icms'} \"$@\" && {BUILD / 'cmd/icms-etcd'} push --prefix "
                               f"{prefix} --json {late}/other.yaml > {late}/pushed\n")
    (late / "icms").chmod(0o755)
    shutil.copy(BUILD / "cmd/icms-etcd", late / "icms-etcd")
    (late / "other.yaml").write_text(right.replace("epoch: 13", "epoch: 14"))
    done = run("pod", "--", "weight", "e1", "4", "--json", program=late / "icms-etcd")
    expect("what etcd does not take is not written", done.returncode == 1 and done.stdout == "" and "icms-etcd: " in
           done.stderr, done)
    said("the other one is", json.loads((late / "pushed").read_text()), epoch=14, former_epoch=13, written=True)
    expect("a dry pull", told("pull", "--json", "--dry-run", file) == {"file": str(file), **base, "epoch": 14} and
           file.read_text() == right)
    expect("a pull", told("pull", "--json", file) == {"file": str(file), **base, "epoch": 14, "written": True} and
           file.read_text() == scene.etcd.keys(key)[key])
    expect("a change", told("pod", "--", "weight", "e1", "4", "--json") ==
           {"key": key, "pod": "pod0", "epoch": 15, "former_epoch": 14,
            "changes": "e1 weight 1 -> 4, e1 former weight 1", "written": True} and "epoch: 15" in scene.etcd.keys(key)[key])
    done = run("push", "--json", file)
    expect("what is refused is no answer", done.returncode == 1 and done.stdout == "" and "lower" in done.stderr, done)
    for word, *words in (("follow", file), ("pod", "--", "drain", "e1"), ("register", file)):
        done = run(word, "--json", *words)
        expect(f"--json before {word} is a mistake", done.returncode == 2 and "--json is for" in done.stderr, done)
    quiet = subprocess.run([BUILD / "cmd/icms", "pod", "weight", "e1", "4", "--file", file, "--json", "--quiet"],
                           capture_output=True, text=True, timeout=60, check=False)
    expect("icms pod is quiet in JSON, too", quiet.returncode == 0 and quiet.stdout == quiet.stderr == "" and
           "epoch: 15" in file.read_text(), quiet)


def refuses(scene):
    right = scene.file.read_text()
    for what, text, said in (("an earlier epoch", scene.text(8), "its epoch 8 is lower"),
                             ("another pod", scene.text(14, name="pod1"), "pod1"),
                             ("half of a map", scene.text(14, 2)[:-4], "the last line is not"),
                             ("no map", "a: [", "revision"),
                             ("nothing", "", "revision"),
                             ("bytes", "\x00\x01\x02", "revision"),
                             ("another map of the same epoch", scene.text(13, 1), "has its epoch, 13")):
        scene.etcd.put(MAP, text)
        wait_until(f"{what} in etcd is refused", lambda: scene.follow.said(said) >= 1, seen=scene.log)
        time.sleep(2.5)
        expect(f"{what}: the file stays", scene.file.read_text() == right)
    lines = [re.sub(r"^\S+ ", "", line) for line in scene.log().splitlines()]
    expect("each was said once", len(lines) == len(set(lines)), scene.log())
    expect("key and revision are named", scene.follow.said(f"etcd {MAP} revision ") >= 7, scene.log())
    refused = scene.run("push", scene.own)
    expect("push refuses what differs under the same epoch", refused.returncode == 1, refused)
    scene.etcd.put(MAP, "a: [")
    refused = scene.run("push", scene.own)
    expect("push asks when it cannot read what is there", refused.returncode == 1, refused)
    forced = scene.run("push", "--yes", scene.own)
    expect("and goes on with --yes", forced.returncode == 0 and scene.etcd.keys(MAP)[MAP] == right, forced)
    expect("the agent has its epoch", scene.epoch() == 13)
    mistyped = scene.run("push", "--prefix", "/icms/other", scene.folder / "nofile.yaml")
    expect("a file that is not there is not pushed", mistyped.returncode == 1 and "nofile.yaml" in mistyped.stderr and
           not scene.etcd.keys("/icms/other"), mistyped)
    broken = scene.folder / "broken.yaml"
    broken.write_text(scene.text(16).replace("...", ""))
    pulled = scene.run("pull", broken)
    expect("a file that is not right is left alone", pulled.returncode == 1 and "repair the file" in pulled.stderr and
           "epoch: 16" in broken.read_text(), pulled)
    (scene.folder / "link").symlink_to("nowhere")
    pulled = scene.run("pull", scene.folder / "link")
    expect("so is a link to nothing", pulled.returncode == 1 and "link to nothing" in pulled.stderr, pulled)
    slashed = scene.run("status", "--prefix", PREFIX + "/", scene.file)
    expect("a prefix may end with /", slashed.returncode == 0, slashed)
    scene.etcd.put("/icms/late/map", scene.text(4000000000))
    late = scene.run("status", "--prefix", "/icms/late", "--json", scene.file)
    expect("a high epoch is told as it is", json.loads(late.stdout)["epoch"] == 4000000000, late)
    named = scene.run("status", "--password-file", broken, scene.file)
    expect("a password needs a user", named.returncode == 2 and "--user" in named.stderr, named)
    scene.etcd.put(f"{PREFIX}/targets/bad", json.dumps({"name": "\x1b[2Jbad", "address": "a"}))
    scene.etcd.put(f"{PREFIX}/targets/e0", json.dumps({"name": "e1", "address": "192.0.2.1:1"}))
    shown = scene.run("status", scene.file)
    expect("what is not written by register is not shown", "bad" not in shown.stdout and
           "192.0.2.1" not in shown.stdout, shown)
    scene.etcd.ask("/v3/kv/deleterange", key=b64(f"{PREFIX}/targets/"), range_end=b64(f"{PREFIX}/targets/~"))


def survives(scene):
    right = scene.file.read_text()
    scene.etcd.signal(signal.SIGSTOP)
    wait_until("an etcd that is late is said", lambda: scene.follow.said("timed out") == 1, seen=scene.log)
    early = Following(scene.folder, "follow", "--prefix", PREFIX, scene.folder / "early.yaml", env=scene.env)
    time.sleep(0.7)
    early.process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    expect("SIGHUP ends nobody, also during the first question", early.process.poll() is None)
    early.end()
    scene.blocks("late")
    scene.etcd.signal(signal.SIGCONT)
    wait_until("and that it answers again", lambda: scene.follow.said("etcd answers") >= 1, seen=scene.log)
    answers = scene.follow.said("etcd answers")
    scene.etcd.kill()
    wait_until("an etcd that is down is said", lambda: "connections" in scene.log().splitlines()[-1], seen=scene.log)
    scene.blocks("down")
    scene.restart()
    expect("an agent that starts meanwhile has its map", scene.epoch() == 13)
    scene.etcd.start()
    wait_until("it comes back", lambda: scene.follow.said("etcd answers") > answers, seen=scene.log)
    scene.etcd.kill()
    shutil.rmtree(scene.folder / "etcd")
    scene.etcd.start()
    wait_until("an etcd that lost all is said", lambda: scene.follow.said(f"has no key {MAP}") == 1, seen=scene.log)
    expect("the file stays", scene.file.read_text() == right)
    scene.blocks("wiped")
    scene.own.write_text(scene.text(14, 2))
    expect("what is pushed then", scene.run("push", scene.own).returncode == 0)
    wait_until("is used", lambda: scene.epoch() == 14, seen=scene.log)


def shrinks(scene):
    """Half a map: an agent that runs would ask the enclosures, and one that starts could not."""
    right = scene.file.read_text()
    lacks, waits = "lacks 1 of 2 enclosures, e1, which was not drained", "icms-etcd, which asks no enclosure, waits"
    scene.own.write_text(scene.text(15))
    for words in ((), ("--yes",), ("--dry-run",)):
        refused = scene.run("push", scene.own, *words)
        expect(f"one of two that was not drained may not leave {words}", refused.returncode == 1 and
               lacks in refused.stderr and "write 'shrink_epoch: 15'" in refused.stderr and waits in refused.stderr and
               scene.etcd.keys(MAP)[MAP] == right, refused)
    scene.etcd.put(MAP, scene.text(15))  # by other means
    wait_until("it is not pulled, either", lambda: scene.follow.said(lacks) == 1, seen=scene.log)
    pulled = scene.run("pull", scene.file)
    expect("nor at a start", pulled.returncode == 1 and "write 'shrink_epoch: 15'" in pulled.stderr, pulled)
    scene.restart()
    expect("an agent that starts has both", scene.epoch() == 14 and scene.enclosures() == ["e0", "e1"],
           scene.enclosures())
    scene.targets[1].stop()
    time.sleep(2.5)
    expect("also while one does not answer", scene.epoch() == 14 and scene.file.read_text() == right, scene.log())
    expect("which is said once", scene.follow.said(lacks) == 1, scene.log())
    scene.targets[1].start()
    scene.targets[1].wait_ready()
    scene.etcd.put(MAP, scene.text(15, 2).replace("    nqn: " + scene.targets[1].nqn + "\n",
                                                  "    nqn: " + scene.targets[1].nqn + "\n    state: out\n"))
    wait_until("one that is out is missing, too", lambda: scene.follow.said("sets to out 1 of 2 enclosures, e1") == 1,
               seen=scene.log)
    expect("and the file stays", scene.file.read_text() == right)
    scene.etcd.put(MAP, scene.text(15))
    scene.own.write_text(scene.text(15).replace("epoch: 15\n", "epoch: 15\nshrink_epoch: 15\n"))
    pushed = scene.run("push", scene.own)
    expect("with the line it may leave", pushed.returncode == 0, pushed)
    wait_until("and does", lambda: scene.epoch() == 15 and scene.enclosures() == ["e0"], seen=scene.log)
    added = scene.run("pod", "--", "add", "e1", "--address", f"127.0.0.1:{scene.targets[1].port}", "--nqn",
                      scene.targets[1].nqn, "--deadline", "50s")
    expect("it comes back", added.returncode == 0, added)
    wait_until("and is used", lambda: scene.epoch() == 16, seen=scene.log)
    out = scene.run("pod", "--", "out", "e1", "--yes")
    expect("icms pod writes the line", out.returncode == 0 and "shrink_epoch: 17\n" in scene.etcd.keys(MAP)[MAP], out)
    wait_until("so that it is pulled", lambda: scene.epoch() == 17 and scene.enclosures() == ["e0"], seen=scene.log)
    removed = scene.run("pod", "--", "remove", "e1")
    expect("one that is out could come back", removed.returncode == 1 and "lost for the pod" in removed.stderr, removed)
    removed = scene.run("pod", "--", "remove", "e1", "--yes")
    expect("one that is out is removed with --yes", removed.returncode == 0, removed)
    wait_until("everywhere", lambda: scene.epoch() == 18, seen=scene.log)


def splits(scene):
    """An etcd of three members: one may die; when two are away nothing changes, and nothing hangs."""
    members = [Etcd(scene.folder, f"member{i}") for i in range(3)]
    whole = ",".join(f"{one.name}=http://127.0.0.1:{one.peer}" for one in members)
    for one in members:
        one.more = ("--initial-cluster", whole, "--initial-cluster-token", "three")
        one.start()
    env = {**os.environ, "ETCDCTL_ENDPOINTS": ",".join(one.url for one in members)}
    file, own = scene.folder / "three.yaml", scene.folder / "own-three.yaml"

    def push(epoch):
        own.write_text(scene.text(epoch))
        return subprocess.run([BUILD / "cmd/icms-etcd", "push", "--prefix", PREFIX, own], env=env, capture_output=True,
                              text=True, timeout=60, check=False)

    try:
        wait_until("three members serve", lambda: push(20).returncode == 0)
        follow = Following(scene.folder, "follow", "--prefix", PREFIX, file, env=env)
        wait_until("their map is written", lambda: file.exists() and file.read_text() == scene.text(20))
        members[0].kill()
        wait_until("two of three take a change", lambda: push(21).returncode == 0)
        wait_until("and it arrives", lambda: file.read_text() == scene.text(21), seen=follow.log_path.read_text)
        members[1].signal(signal.SIGSTOP)
        refused = push(22)
        expect("one of three takes none", refused.returncode == 1 and "etcd" in refused.stderr, refused)
        wait_until("which is said", lambda: follow.said("WARN") + follow.said("warn") >= 1, seen=follow.log_path.read_text)
        expect("the file stays", file.read_text() == scene.text(21))
        members[1].signal(signal.SIGCONT)
        wait_until("two again take it", lambda: push(23).returncode == 0)
        wait_until("and that arrives", lambda: file.read_text() == scene.text(23), seen=follow.log_path.read_text)
        follow.end()
    finally:
        for one in members:
            one.kill()


def registers(scene):
    target = scene.targets[1]
    key = f"{PREFIX}/targets/{target.name}"
    words = ["register", "--prefix", PREFIX, target.config_path]
    register = Following(scene.folder, *words, env=scene.env)
    wait_until("a target is registered", lambda: key in scene.etcd.keys(PREFIX + "/targets/"),
          seen=register.log_path.read_text)
    told = json.loads(scene.etcd.keys(key)[key])
    expect("with what an operator needs", told["address"] == f"127.0.0.1:{target.port}" and
           told["nqn"] == target.nqn, told)
    status = scene.run("status", scene.file)
    expect("status shows that the map lacks it", status.returncode == 1 and "not in the map" in status.stdout, status)
    expect("and that the one of the map is not registered",
           "enclosure e0: no target of this name is registered" in status.stdout and
           json.loads(scene.run("status", "--json", scene.file).stdout)["targets_missing"] == ["e0"], status)
    other = scene.folder / "other.yaml"
    other.write_text(re.sub(r"(?m)^advertise: .*$", "advertise: 127.0.0.1:1", target.config_path.read_text()))
    second = Following(scene.folder, "register", "--prefix", PREFIX, other, env=scene.env)
    wait_until("another one of its name is not", lambda: second.said("another target is registered as") == 1,
          seen=second.log_path.read_text)
    second.end()
    stranger = scene.folder / "stranger.yaml"  # it does not run, and its file has the ports of one that does
    stranger.write_text(re.sub(r"(?m)^name: .*$", "name: stranger", target.config_path.read_text()).replace(
        target.nqn, "nqn.2026-01.io.icms:stranger"))
    mistaken = Following(scene.folder, "register", "--prefix", PREFIX, stranger, env=scene.env)
    wait_until("one whose ports another one answers at is not", lambda: mistaken.said(
        f"target stranger: another one answers at 127.0.0.1:{target.http_port}, with the NQN {target.nqn}") == 1,
        seen=mistaken.log_path.read_text)
    expect("it is never registered", mistaken.said("registered as") == 0 and
           f"{PREFIX}/targets/stranger" not in scene.etcd.keys(PREFIX + "/targets/"), scene.etcd.keys(PREFIX))
    mistaken.end()
    everywhere = scene.folder / "everywhere.yaml"
    everywhere.write_text(re.sub(r"(?m)^advertise: .*$", f"advertise: 0.0.0.0:{target.port}",
                                 target.config_path.read_text()))
    third = scene.run("register", everywhere)
    expect("an address that no agent can use is refused", third.returncode == 1 and "advertise" in third.stderr, third)
    several = scene.folder / "several.yaml"
    links = ["192.0.2.1:4420", "198.51.100.1:4420"]
    text = re.sub(r"(?m)^listen: .*$", f"listen: [127.0.0.1:1, 127.0.0.1:{target.port}, 127.0.0.1:2]",
                  target.config_path.read_text())
    text = re.sub(r"(?m)^advertise: .*$", f"advertise: [{links[0]}, 0.0.0.0:3, {links[1]}]", text)
    several.write_text(re.sub(r"(?m)^name: .*$", "name: several", text))
    fourth = Following(scene.folder, "register", "--prefix", PREFIX, several, env=scene.env)
    wait_until("a target with several portals is registered while one of them answers",
          lambda: f"{PREFIX}/targets/several" in scene.etcd.keys(PREFIX + "/targets/"), seen=fourth.log_path.read_text)
    told = json.loads(scene.etcd.keys(key[:key.rindex("/")])[f"{PREFIX}/targets/several"])
    expect("with every address that agents can use", told["address"] == links, told)
    status = scene.run("status", scene.file)
    expect("status shows them", f"target several: {', '.join(links)}: not in the map" in status.stdout, status)
    fourth.end()
    target.process.send_signal(signal.SIGSTOP)
    wait_until("a target that stands still leaves", lambda: key not in scene.etcd.keys(PREFIX + "/targets/"),
          seen=register.log_path.read_text)
    target.process.send_signal(signal.SIGCONT)
    wait_until("and comes back", lambda: key in scene.etcd.keys(PREFIX + "/targets/"), seen=register.log_path.read_text)
    scene.etcd.ask("/v3/kv/deleterange", key=b64(key))
    wait_until("a key that was deleted comes back", lambda: key in scene.etcd.keys(PREFIX + "/targets/"))
    register.process.kill()
    register.process.wait()
    wait_until("the key of who is dead goes", lambda: key not in scene.etcd.keys(PREFIX + "/targets/"))
    register = Following(scene.folder, *words, env=scene.env)
    wait_until("a new one", lambda: key in scene.etcd.keys(PREFIX + "/targets/"))
    register.end()
    expect("who ends takes its key along", key not in scene.etcd.keys(PREFIX + "/targets/"))
    status = scene.run("status", scene.file)
    expect("where nobody registers, nobody is missing", status.returncode == 0 and "no target" not in status.stdout,
           status)
    first = Following(scene.folder, "register", "--prefix", PREFIX, scene.targets[0].config_path, env=scene.env)
    wait_until("the one of the map", lambda: f"{PREFIX}/targets/e0" in scene.etcd.keys(PREFIX + "/targets/"))
    status = scene.run("status", scene.file)
    expect("is all that the map wants", status.returncode == 0 and "target e0: " in status.stdout and
           "no target" not in status.stdout, status)
    add = scene.run("pod", "--", "add", "e1", "--address", f"127.0.0.1:{target.port}", "--nqn", target.nqn,
                    "--deadline", "50s")
    wait_until("another enclosure", lambda: add.returncode == 0 and scene.epoch() == 19, seen=scene.log)
    status = scene.run("status", scene.file)
    expect("is missing", status.returncode == 1 and "enclosure e1: no target" in status.stdout and
           "enclosure e0" not in status.stdout and "not in the map" not in status.stdout, status)
    out = scene.run("pod", "--", "out", "e1", "--yes")
    wait_until("one that is out", lambda: out.returncode == 0 and scene.epoch() == 20, seen=scene.log)
    status = scene.run("status", scene.file)
    expect("is not", status.returncode == 0, status)
    first.end()


def certificates(folder):
    def openssl(*words):
        subprocess.run(["openssl", *words], check=True, cwd=folder, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=ca", "-days", "2", "-keyout", "ca.key",
            "-out", "ca.crt")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=etcd", "-keyout", "etcd.key", "-out", "etcd.csr")
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", "etcd.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "san", "-out", "etcd.crt")


def proves(scene):
    """TLS and users."""
    folder = scene.folder
    certificates(folder)
    etcd = Etcd(folder, "secure", ["--cert-file", folder / "etcd.crt", "--key-file", folder / "etcd.key"], "https")
    etcd.start()
    words = ["--endpoints", etcd.url, "--cacert", folder / "ca.crt"]
    wait_until("etcd with TLS", lambda: scene.run("push", *words, scene.own).returncode == 0)
    stranger = scene.run("status", "--endpoints", etcd.url, scene.own)
    expect("one whose certificate nobody signed is not asked", stranger.returncode == 1 and
           "TLS failed" in stranger.stderr, stranger)
    context = __import__("ssl").create_default_context(cafile=folder / "ca.crt")

    def ask(path, **question):
        with urllib.request.urlopen(etcd.url + path, json.dumps(question).encode(), timeout=10,
                                    context=context) as answer:
            return json.load(answer)

    ask("/v3/auth/user/add", name="root", password="first")
    ask("/v3/auth/user/grant", user="root", role="root")
    ask("/v3/auth/enable")
    denied = scene.run("status", *words, scene.own)
    expect("etcd refuses who names no user", denied.returncode == 1 and "refuses who names no user" in denied.stderr,
           denied)
    secret = folder / "etcd.password"
    secret.write_text("first\n")
    refused = scene.run("status", *words, "--user", "root", "--password-file", secret, scene.own)
    expect("a password that others can read is refused", refused.returncode == 1 and "0600" in refused.stderr, refused)
    secret.chmod(0o600)
    right = scene.run("status", *words, "--user", "root", "--password-file", secret, scene.own)
    expect("the right one passes", right.returncode == 0, right)
    secret.write_text("wrong\n")
    wrong = scene.run("status", *words, "--user", "root", "--password-file", secret, scene.own)
    expect("a wrong one does not", wrong.returncode == 1 and "refuses root" in wrong.stderr and
           "wrong" not in wrong.stderr, wrong)
    clear = scene.run("status", "--endpoints", "http://192.0.2.1:2379", "--user", "root", "--password-file", secret)
    expect("no password in clear text to another machine", "https:// alone" in clear.stderr, clear)
    etcd.kill()


def main():
    with tempfile.TemporaryDirectory(prefix="icms-", dir="/var/tmp") as folder, pod.Pod(BUILD, folder) as p:
        scene = Scene(folder, p)
        try:
            changes(scene)
            refuses(scene)
            survives(scene)
            shrinks(scene)
            splits(scene)
            registers(scene)
            proves(scene)
            scene.follow.end()
        finally:
            scene.etcd.kill()


main()
