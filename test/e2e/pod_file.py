#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A pod that changes while it is used: the pod map's file, and icms pod.

Goal: an agent takes each epoch of its map without a restart; a new enclosure, a drained one and its removal
cost no block; a map that is broken, older, another pod's, shrunken or no file at all changes nothing and is
logged once.
Method: real daemons on loopback, one enclosure under a DNS name; blocks that do not fit into the agent's memory
are loaded all the time, by `icms get`, while `icms pod` and an editor change the file.

usage: pod_file.py BUILD_ROOT
"""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import Load, expect, wait_until  # noqa: E402

BUILD = pathlib.Path(sys.argv[1])
VOLUME = {"name": "kv", "value_max": "64KiB"}
BLOCKS = {f"block{n}": f"{n} ".encode() * 8000 for n in range(96)}  # 2.3 MB, of which 1 MiB fits


def run(*words, data=None):
    return subprocess.run([BUILD / "cmd/icms", *words], input=data, capture_output=True, timeout=60, check=False)


class Scene:
    def __init__(self, folder, p):
        self.folder, self.p = pathlib.Path(folder), p
        self.file = self.folder / "pod.yaml"
        self.targets = [self.target(i) for i in range(3)]
        self.write(1, self.targets)
        self.agent = p.add_agent("server-a", [], [VOLUME], pod=self.file, memory="1MiB")
        self.agent.wait_ready()
        self.tier = ["--open", f"unix:{self.agent.socket}"]

    def target(self, number):
        target = self.p.add_target(f"e{number}", 1, "64MiB", [VOLUME], segment="1MiB", memory="16MiB")
        target.wait_ready()
        return target

    def address(self, target):
        """The last of the first three has a name: its addresses are tried one after the other."""
        return f"{'localhost' if target.name == 'e2' else '127.0.0.1'}:{target.port}"

    def text(self, epoch, targets, name="pod0", more=""):
        return f"# the pod of the test\nname: {name}\nepoch: {epoch}\n{more}enclosures:\n" + "".join(
            f"  - name: {target.name}  # in row {i}\n    address: {self.address(target)}\n    nqn: {target.nqn}\n"
            for i, target in enumerate(targets)) + "...\n"

    def write(self, *arguments, **keys):
        """As an editor does: a new file over the old one."""
        self.replace(self.text(*arguments, **keys))

    def replace(self, text):
        beside = self.folder / "pod.yaml~"
        beside.write_text(text)
        beside.rename(self.file)

    def pod(self, *words):
        return run("pod", *words, "--file", self.file,
                   *(self.tier if words[0] in ("status", "reload") else []))

    def epoch(self):
        return json.loads(run("status", *self.tier, "--json").stdout)["epoch"]

    def log(self, words):
        return self.agent.log_path.read_text().count(words)

    def until(self, what, truth):
        wait_until(what, truth, 60, lambda: f"{self.agent.log_path.read_text()}\n{self.pod('status').stdout.decode()}")

    def all_hits(self, what):
        """Loads all of them, twice: what was found at a former owner is with its owner the second time."""
        for _ in range(2):
            for name, value in BLOCKS.items():
                got = run("get", *self.tier, name)
                if got.returncode != 0 or got.stdout != value:
                    sys.exit(f"not ok {what}: {name}: {got.returncode} {got.stderr}\n"
                             f"{self.pod('status').stdout.decode()}")
        print(f"ok {what}", flush=True)


def fill(s):
    s.until("the map is in use, also the enclosure with a DNS name",
            lambda: s.pod("status").returncode == 0)
    for name, value in BLOCKS.items():
        put = run("put", *s.tier, "--on-flash", name, data=value)
        if put.returncode != 0:
            sys.exit(f"not ok put {name}: {put}")
    told = json.loads(s.pod("status", "--json").stdout)
    expect("status tells file and agent", told["pod"] == "pod0" and told["epoch"] == 1 and told["agent"] ==
           {"name": "server-a", "epoch": 1} and told["differences"] == [] and
           [e["health"] for e in told["enclosures"]] == ["up"] * 3 and
           [round(e["share"], 3) for e in told["enclosures"]] == [0.333] * 3, told)
    here = "--deadline", "50s", s.targets[0].config_path, f"http://127.0.0.1:{s.agent.http_port}"
    asked = json.loads(s.pod("status", "--json", *here).stdout)["asked"]
    expect("drives of a target and the epoch of an agent are asked for", [one["name"] for one in asked] == [
        "e0", "server-a"] and [drive["state"] for drive in asked[0]["drives"]] == ["in service"] and
        asked[1]["epoch"] == 1 and len(asked[1]["enclosures"]) == 3, asked)
    text = s.pod("status", *here).stdout.decode()
    expect("and shown", str(s.targets[0].drives[0]) in text and re.search(r" 1 current +yes +3 of 3 +1 of 1 +none +server-a ", text), text)
    nobody = s.pod("status", "--json", f"http://127.0.0.1:{pod.free_port()}")
    expect("one that does not answer is told", nobody.returncode == 1 and
           "cannot ask http://" in json.loads(nobody.stdout)["asked"][0]["error"], nobody)
    other = s.folder / "another.yaml"
    other.write_text(s.text(1, s.targets, name="pod9").replace(s.targets[0].nqn, s.targets[0].nqn + "x"))
    differences = json.loads(run("pod", "status", "--file", other, *s.tier, "--json").stdout)["differences"]
    expect("the file of another pod, in which an enclosure has another NQN", differences == [
        "the agent uses the map of pod pod0, the file is that of pod pod9",
        f"e0: its nqn is {s.targets[0].nqn} for the agent, {s.targets[0].nqn}x in the file"], differences)
    s.all_hits("all blocks are hits")


class Silent:
    """Somebody else at an address: it takes connections, and answers what it is told to."""

    def __init__(self, answer=b""):
        self.answer, self.taken = answer, []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                peer = self.socket.accept()[0]
            except OSError:
                return
            self.taken.append(peer)
            if self.answer:
                peer.sendall(self.answer)

    def close(self):
        self.socket.close()
        for peer in self.taken:
            peer.close()


def added_unseen(s, e3):
    """icms pod add looks who is there: what no agent could use is not added without --yes."""
    right, silent, garbage = s.file.read_text(), Silent(), Silent(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20)
    here, http, nobody = f"127.0.0.1:{e3.port}", f"http://127.0.0.1:{e3.http_port}", f"127.0.0.1:{pod.free_port()}"
    yours = ["--nqn", e3.nqn]

    def add(*words, name="e3"):
        return s.pod("add", name, *words)

    for what, words, name, said in (
            ("nobody", ["--address", nobody, *yours], "e3", "refused"),
            ("one address of two that leads to nobody", ["--address", f"{here},{nobody}", *yours], "e3", nobody),
            ("a name that leads to nobody", ["--address", nobody.replace("127.0.0.1", "localhost"), *yours], "e3", "refused"),
            ("a name that nobody has", ["--address", "nowhere.invalid:4420", *yours, "--deadline", "3s"], "e3",
             "nowhere.invalid"),
            ("somebody who says nothing", ["--address", f"127.0.0.1:{silent.port}", *yours, "--deadline", "300ms"], "e3",
             "did not answer in time"),
            ("another service", ["--address", f"127.0.0.1:{garbage.port}", *yours], "e3", "breaks the protocol"),
            ("another enclosure", ["--address", here], "e9", "has no subsystem"),
            ("an NQN with a typo", ["--address", here, "--nqn", e3.nqn + "x"], "e3", f"{e3.nqn}x"),
            ("another UUID", ["--address", here, "--uuid", "70000000-0000-4000-8000-000000000007"], "e3", "70000000-"),
            ("an http that nobody answers", ["--address", here, *yours, "--http", f"http://{nobody}"], "e3", "cannot ask http")):
        for more in ([], ["--dry-run"]):
            done = add(*words, *more, name=name)
            expect(f"{what} is not added ({more})", done.returncode == 1 and said.encode() in done.stderr and
                   f"enclosure {name}: cannot find its target: ".encode() in done.stderr and b"add --yes if" in done.stderr and
                   done.stdout == b"" and s.file.read_text() == right, done)
        done = add(*words, "--yes", "--dry-run", name=name)
        expect(f"{what} is added with --yes", done.returncode == 0 and b"epoch 1 -> 2" in done.stdout, done)
    for what, url, name, words, said in (
            ("another target", f"http://127.0.0.1:{s.targets[0].http_port}", "e3", yours, "leads to another target"),
            ("an agent", f"http://127.0.0.1:{s.agent.http_port}", "e3", yours, "leads to no target"),
            ("a target of another name", http, "e9", yours, "leads to the enclosure e3"),
            ("a target of another UUID", http, "e3", [*yours, "--uuid", "70000000-0000-4000-8000-000000000007"],
             "leads to a target with the UUID")):
        for more in ([], ["--dry-run"], ["--yes"]):
            done = add("--address", here, *words, "--http", url, "--deadline", "50s", *more, name=name)
            expect(f"{what} at --http is refused ({more})", done.returncode == 1 and said.encode() in done.stderr and
                   b"correct --http" in done.stderr and s.file.read_text() == right, done)
    done = add("--address", here, *yours, "--http", http, "--deadline", "50s", "--dry-run")
    expect("the right one is taken", done.returncode == 0 and b"epoch 1 -> 2" in done.stdout, done)
    json_answer = json.loads(e3.get("/status")[1])
    expect("its status tells its UUID", re.fullmatch("[0-9a-f-]{36}", json_answer["uuid"]) is not None, json_answer["uuid"])
    for peer in (silent, garbage):
        peer.close()


def grow_and_shrink(s):
    load = Load(lambda name: run("get", *s.tier, name), BLOCKS)
    load.start()
    e3 = s.target(3)
    added_unseen(s, e3)
    there = "--address", f"127.0.0.1:{e3.port}", "--nqn", e3.nqn, "--deadline", "50s"
    dry = s.pod("add", "e3", *there, "--dry-run")
    expect("a dry run", dry.returncode == 0 and b"epoch 1 -> 2: e3 added (joining)" in dry.stdout and
           b"e3: 25.0 % of new blocks, was 0.0 %" in dry.stdout and s.file.read_text() == s.text(1, s.targets), dry)
    add = s.pod("add", "e3", *there)
    expect("an enclosure is added", add.returncode == 0 and s.file.read_text() == s.text(2, s.targets).replace(
               "...", f"  - name: e3\n    address: 127.0.0.1:{e3.port}\n    nqn: {e3.nqn}\n    state: joining\n..."), add)
    reload = s.pod("reload")
    expect("the agent uses it", reload.returncode == 0 and b"server-a: epoch 2 is in use" in reload.stdout, reload)
    s.until("it is up", lambda: s.pod("status").returncode == 0)
    expect("which is logged", s.log("pod pod0: epoch 1 -> 2: e3 added (joining)") == 1)
    refused, text = s.pod("settle", "e3"), s.file.read_text()
    expect("what is not read yet is asked about", refused.returncode == 1 and b"add --yes" in refused.stderr and
           b"icms_agent_former_found_total" in refused.stderr and "state: joining" in text and
           b"e3: it is joining: settle it when" in s.pod("status").stdout, refused)
    s.all_hits("while it joins every block is a hit")
    for words, epoch in ((("settle", "e3", "--yes"), 3), (("drain", "e0"), 4)):
        if words[0] == "drain":
            s.all_hits("when it is settled every block is a hit")
        done = s.pod(*words)
        expect(" ".join(words), done.returncode == 0 and s.pod("reload").returncode == 0 and s.epoch() == epoch, done)
    s.all_hits("while one drains every block is a hit")
    refused = s.pod("remove", "e1")
    expect("one that is not drained stays", refused.returncode == 1 and b"not drained" in refused.stderr, refused)
    refused, text = s.pod("remove", "e0"), s.file.read_text()
    expect("what a drained one still has is asked for", refused.returncode == 1 and
           b"the map has no http of it" in refused.stderr and text == s.file.read_text(), refused)
    done = s.pod("remove", "e0", "--yes")
    expect("the drained one goes", done.returncode == 0 and s.pod("reload").returncode == 0, done)
    s.targets[0].stop()
    s.all_hits("without it every block is a hit")
    load.end()
    expect(f"{load.loaded} loads meanwhile were hits", load.loaded > 20 and load.wrong == [], load.wrong)
    s.targets = s.targets[1:] + [e3]
    told = s.pod("status")
    expect("file and agent agree", told.returncode == 0 and s.epoch() == 5, told)


def refused(s):
    """Each is logged once, with the reason, and nothing changes."""
    right = s.file.read_text()
    for what, text, words in (
            ("broken", "nonsense: [\n" + right, "this is not YAML"),
            ("with a typo", right.replace("enclosures:", "enclosure:"), "did you mean 'enclosures'?"),
            ("written halfway", right.replace("epoch: 5", "epoch: 6")[:right.index("  - name: e3")], "written halfway"),
            ("empty", "", "the file is empty"),
            ("older", s.text(4, s.targets), "epoch 4 is lower than 5"),
            ("of another pod", s.text(9, s.targets, name="pod1"), "the map of the pod 'pod1'"),
            ("different without a new epoch", right.replace("state: up", "state: joining"), "raise it"),
            ("shrunken", s.text(6, s.targets[:1]), "lacks 2 of 3 enclosures")):
        before = s.log(words)
        s.replace(text)
        s.until(f"a map that is {what} is refused", lambda: s.log(words) > before)
        time.sleep(1.2)
        expect("once, and nothing changes", s.log(words) == before + 1 and s.epoch() == 5,
               s.agent.log_path.read_text())
        expect("a metric says so", "\nicms_agent_map_refused 1\n" in s.agent.get("/metrics")[1])
        if what == "shrunken":
            waits = s.pod("reload", "--deadline", "300ms")
            expect("reload says that it is not used", waits.returncode == 1 and b"not epoch 6" in waits.stderr, waits)
        s.replace(right)
    for what, was, now, words in (
            ("weight", "  - name: e1", "  - weight: 1.0001\n    name: e1", b"e1: its weight is 1 for the agent, 1.0001 in the file"),
            ("address", s.address(s.targets[0]), "127.0.0.9:1", b"its address 127.0.0.9:1 is not one that the agent uses"),
            ("uuid", "  - name: e1", "  - uuid: 70000000-0000-4000-8000-000000000007\n    name: e1",
             b"70000000-0000-4000-8000-000000000007 in the file"),
            ("state", "state: up", "state: joining", b"e3: its state is up for the agent, joining in the file")):
        s.replace(right.replace(was, now))
        reload, status = s.pod("reload"), s.pod("status")
        expect(f"reload fails where the {what} is another one in the epoch in use", reload.returncode == 1 and
               b"uses epoch 5 with other contents" in reload.stderr and words in reload.stderr, reload)
        expect("status tells it", status.returncode == 1 and words in status.stdout, status)
        s.replace(right)
    expect("reload and status agree again", s.pod("reload").returncode == 0 and s.pod("status").returncode == 0)
    for what, make, words in (("no file", lambda: None, "No such file"), ("a folder", s.file.mkdir, "not a regular"),
                              ("a FIFO", lambda: os.mkfifo(s.file), "not a regular"),
                              ("a file of 100 MB", lambda: (s.file.touch(), os.truncate(s.file, 100 << 20)),
                               "larger than 1 MiB")):
        before = s.log(words)
        s.file.unlink()
        make()
        s.until(f"{what} is refused", lambda: s.log(words) > before)
        time.sleep(1.2)
        expect("once", s.log(words) == before + 1 and s.epoch() == 5, s.agent.log_path.read_text())
        if s.file.is_dir():
            s.file.rmdir()
        s.replace(right)
        time.sleep(1.2)  # it is found again, and there is nothing to say
    s.agent.signal(signal.SIGHUP)
    s.until("SIGHUP reads it again", lambda: s.log("the map was read again: epoch 5 is in use") == 1)
    s.all_hits("every block is a hit still")


def config_map(s):
    """A symbolic link that is swapped, as Kubernetes does."""
    for epoch in (6, 7):
        folder = s.folder / f"..data{epoch}"
        folder.mkdir()
        (folder / "pod.yaml").write_text(s.text(epoch, s.targets))
        link = s.folder / "..new"
        link.symlink_to(folder)
        link.rename(s.folder / "..data")
        if epoch == 6:
            s.file.unlink()
            s.file.symlink_to("..data/pod.yaml")
        s.until(f"a swapped link brings epoch {epoch}", lambda: s.epoch() == epoch)
    done = s.pod("drain", "e3")
    expect("the file behind the link is changed", done.returncode == 0 and s.file.is_symlink() and
           s.pod("reload").returncode == 0 and s.epoch() == 8, done)
    undrain = s.pod("undrain", "e3")
    expect("undrain", undrain.returncode == 0 and b"until it is settled" in undrain.stdout and
           "state: joining" in s.file.read_text() and s.pod("reload").returncode == 0, undrain)
    s.all_hits("what was undrained joins: every block is a hit")
    settle = s.pod("settle", "e3", "--yes")
    expect("and is settled", settle.returncode == 0 and s.pod("reload").returncode == 0 and s.epoch() == 10, settle)
    s.file.unlink()


def out(s):
    """One that is out stays in the file, and nobody uses it; it comes back with its blocks."""
    s.write(11, s.targets)
    s.until("three", lambda: s.epoch() == 11)
    refused = s.pod("out", "e3")
    expect("one that is not drained needs --yes", refused.returncode == 1 and b"not drained" in refused.stderr, refused)
    for words in (("drain", "e3"), ("out", "e3", "--yes")):
        if words[0] == "out":
            refused, text = s.pod("out", "e3"), s.file.read_text()
            expect("when a drained one was read is asked for, as by remove",
                   refused.returncode == 1 and b"the map has no http of it" in refused.stderr and
                   "state: draining" in text and s.pod("remove", "e3").returncode == 1 and
                   s.file.read_text() == text, refused)
        done = s.pod(*words)
        expect(" ".join(words), done.returncode == 0 and s.pod("reload").returncode == 0, done)
        s.all_hits("every block is a hit")
    refused = s.pod("remove", "e3")
    expect("it could come back, so it leaves the map with --yes alone", refused.returncode == 1 and
           b"lost for the pod; add --yes" in refused.stderr and "state: out" in s.file.read_text() and
           s.pod("remove", "e3", "--yes", "--dry-run").returncode == 0, refused)
    s.targets[2].stop()
    done = s.pod("status")
    told = json.loads(s.pod("status", "--json").stdout)
    expect("its target may be stopped", done.returncode == 0 and told["differences"] == [] and
           [(e["name"], e["state"], e["health"], round(e["share"], 2)) for e in told["enclosures"]] == [
               ("e1", "up", "up", 0.5), ("e2", "up", "up", 0.5), ("e3", "out", "", 0)], (done, told))
    agent = json.loads(run("status", *s.tier, "--json").stdout)
    expect("the agent does not know it", [e["name"] for e in agent["enclosures"]] == ["e1", "e2"], agent["enclosures"])
    s.targets[2].start()
    s.targets[2].wait_ready()
    for words in (("undrain", "e3"), ("settle", "e3", "--yes")):
        done = s.pod(*words)
        expect(" ".join(words), done.returncode == 0 and s.pod("reload").returncode == 0, done)
        s.until("all are up", lambda: s.pod("status").returncode == 0)
        s.all_hits("every block is a hit")
    expect("at epoch 15", s.epoch() == 15)
    done = s.pod("weight", "e3", "4", "--dry-run", "--json")
    expect("another weight, and its former one", done.returncode == 0 and [
        (e["weight"], e.get("former_weight")) for e in json.loads(done.stdout)["enclosures"]] == [
            (1, None), (1, None), (4, 1)], done)
    for words in (("weight", "e3", "4"), ("settle", "e3", "--yes")):
        done = s.pod(*words)
        expect(" ".join(words), done.returncode == 0 and s.pod("reload").returncode == 0, done)
        told = s.pod("status")
        expect("file and agent agree", told.returncode == 0 and
               (b"e3: its weight changes from 1 to 4" in told.stdout) == (words[0] == "weight"), told)
        s.all_hits("every block is a hit")
    for words in (("weight", "e3"), ("weight", "e3", "x"), ("weight", "e3", "4", "5"), ("settle", "e3", "4")):
        done = s.pod(*words)
        expect(f"{words}", done.returncode in (1, 2) and b"e3" not in done.stdout, done)
    expect("at epoch 17", s.epoch() == 17)


def shrink(s):
    """More than half leave: not before the operator says so, or none of them answers."""
    s.write(18, s.targets)
    s.until("three", lambda: s.epoch() == 18)
    s.write(19, s.targets[:1])
    s.until("one of three is not believed", lambda: s.log("epoch 19 lacks 2 of 3") == 1)
    confirmed = s.pod("reload", "--yes")
    expect("the operator says so", confirmed.returncode == 0 and s.epoch() == 20 and
           "shrink_epoch: 20\n" in s.file.read_text(), confirmed)
    s.write(21, s.targets)
    s.until("three again", lambda: s.epoch() == 21)
    s.write(22, s.targets[:1])
    s.until("one of three is not believed", lambda: s.log("epoch 22 lacks 2 of 3") == 1)
    for target in s.targets[1:]:
        target.kill()
    s.until("until none of the others answers", lambda: s.epoch() == 22)


def starts(s):
    """What the start says, and the agent inside a process."""
    config = s.folder / "other.yaml"
    other = s.folder / "other-pod.yaml"
    config.write_text(f"pod: {other}\nmemory: 1MiB\nhttp: {{listen: none}}\n"
                      f"socket: {s.folder}/other.sock\nvolumes: [{{name: kv, value_max: 64KiB}}]\n")
    for text, words in ((None, "No such file"), ("name: pod0\nepoch: 1\nenclosures: []\n", "pod.yaml:3: enclosures")):
        if text is not None:
            other.write_text(text)
        for more in ([], ["--check-config"]):
            start = subprocess.run([BUILD / "cmd/icms-agent", "--config", config, *more], capture_output=True,
                                   text=True, timeout=60, check=False)
            expect(f"a start without a right map ({more})", start.returncode == 2 and words in start.stderr, start)
    remote = s.text(20, s.targets[:1]).replace("127.0.0.1:", "192.0.2.1:")
    other.write_text(remote)
    for words in (["cmd/icms-agent", "--config", config], ["cmd/icms-agent", "--config", config, "--check-config"],
                  ["cmd/icms", "config", "check", config], ["cmd/icms", "get", "--open", f"pod:{config}", "a"]):
        start = subprocess.run([BUILD / words[0], *words[1:]], capture_output=True, text=True, timeout=60, check=False)
        expect(f"a map with another machine that proves nothing ({words[1]})", start.returncode in (1, 2) and
               "other machines can answer at 192.0.2.1:" in start.stderr and "`require: none`" in start.stderr, start)
    other.write_text(s.text(20, s.targets[:1]))
    later = s.folder / "later.yaml"
    later.write_text(s.text(21, s.targets[:1]))
    inside = subprocess.Popen([BUILD / "cmd/icms", "pod", "reload", "--file", later, "--open", f"pod:{config}",
                               "--deadline", "20s", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True)
    time.sleep(1.5)
    expect("an agent inside a process waits for its file", inside.poll() is None)
    other.write_text(s.text(19, s.targets[:1]))
    line = inside.stderr.readline()
    expect("it says what it does not use", line.startswith(f"icms: pod:{config}: ") and "epoch 19" in line, line)
    other.write_text(remote.replace("epoch: 20", "epoch: 21"))
    line = inside.stderr.readline()
    expect("nor another machine that proves nothing", "other machines can answer at 192.0.2.1:" in line, line)
    other.write_text(later.read_text())
    told, rest = inside.communicate(timeout=30)
    expect("and takes the new epoch", inside.returncode == 0 and json.loads(told)["epoch"] == 21, told)
    expect("of which it says nothing", rest == "", rest)


def main():
    with tempfile.TemporaryDirectory(prefix="icms-") as folder, pod.Pod(BUILD, folder) as p:
        scene = Scene(folder, p)
        fill(scene)
        grow_and_shrink(scene)
        refused(scene)
        config_map(scene)
        out(scene)
        shrink(scene)
        starts(scene)
        expect("the agent ends as asked", scene.agent.stop(30) == 0)


main()
