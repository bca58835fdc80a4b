#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two targets and an agent that follow one pod map.

Goal: with `icms pod volume` alone a volume is created, reset, changed and deleted at both targets and at the
agent, without a restart and without a failed load of another volume; a map that is wrong, older, cut or without
most of its volumes is refused by all, with file and line, and changes nothing, and an older one at the start, too; a link that is swapped, as a
ConfigMap is, works; all say which epoch they use.
Method: real daemons on loopback with one file; blocks that do not fit into the agent's memory are loaded all the
time; the targets' own files stay as they are.

usage: pod_targets.py BUILD_ROOT
"""
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import Load, expect, wait_until  # noqa: E402

BUILD = pathlib.Path(sys.argv[1])
BLOCKS = {f"block{n}": f"{n} ".encode() * 8000 for n in range(96)}  # 2.3 MB, of which 1 MiB fits
HOST = "nqn.2026-01.io.icms:server-a"
NOBODY = "nqn.2026-01.io.icms:nobody"
SERVED = ("kv", "other", "later")


def run(*words, data=None):
    return subprocess.run([BUILD / "cmd/icms", *words], input=data, capture_output=True, timeout=60, check=False)


def unshrunk(text):
    """A map without shrink_epoch."""
    return "".join(line for line in text.splitlines(True) if not line.startswith("shrink_epoch: "))


def confirmed(text):
    """A map in which things may leave and quotas be lower."""
    text = unshrunk(text)
    epoch = text.split("epoch: ")[1].split("\n")[0]
    return text.replace(f"epoch: {epoch}\n", f"epoch: {epoch}\nshrink_epoch: {epoch}\n", 1)


class Scene:
    def __init__(self, folder, p):
        self.folder = pathlib.Path(folder)
        self.file = self.folder / "pod.yaml"
        self.targets = [p.make_target(f"e{n}", 1, "64MiB", [], segment="1MiB", memory="16MiB", pod=self.file,
                                      audit=f"{folder}/audit{n}.log") for n in range(2)]
        lines = [f"  - name: {t.name} # row {n}\n    address: 127.0.0.1:{t.port}\n    nqn: {t.nqn}\n"
                 for n, t in enumerate(self.targets)]
        self.file.write_text("# ours\nname: pod0\nepoch: 1\nenclosures:\n" + "".join(lines) +
                             "tenants:\n  - name: team # all of us\n    weight: 2\nvolumes:\n"
                             "  - name: kv\n    value_max: 64KiB\n  - name: other # chat\n    value_max: 64KiB\n"
                             "    tenant: team\n...\n")
        self.agent = p.make_agent("server-a", [], [{"name": v, "value_max": "64KiB"} for v in SERVED], pod=self.file, memory="1MiB",
                                  host_nqn=HOST)
        self.daemons = [*self.targets, self.agent]
        for daemon in self.daemons:
            daemon.start()
            daemon.wait_ready()
        self.tier = ["--open", f"unix:{self.agent.socket}"]

    def icms(self, word, volume, *words, data=None):
        return run(word, *self.tier, "--volume", volume, *words, data=data)

    def get(self, volume, name="block"):
        return self.icms("get", volume, name)

    def put(self, volume, value, name="block"):
        return self.icms("put", volume, "--on-flash", name, data=value)

    def status(self, daemon):
        return json.loads(daemon.get("/status")[1])

    def volumes(self, target):
        """By name, as /status shows them."""
        return {volume["name"]: volume for volume in self.status(target)["volumes"]}

    def epochs(self):
        return [self.status(daemon)["epoch"] for daemon in self.daemons]

    def logs(self):
        return "\n".join(daemon.log_tail() for daemon in self.daemons)

    def until(self, what, truth):
        wait_until(what, truth, 60, self.logs)

    def volume(self, *words):
        """icms pod volume, and waits until all use what it wrote."""
        answer = run("pod", "volume", *words, "--file", self.file, "--json")
        expect(f"icms pod volume {' '.join(words)}", answer.returncode == 0, answer)
        epoch = json.loads(answer.stdout)["epoch"]
        self.until(f"all three use epoch {epoch}", lambda: self.epochs() == [epoch] * 3)
        return epoch

    def pod_status(self):
        where = [f"http://127.0.0.1:{target.http_port}" for target in self.targets]
        answer = run("pod", "status", *where, "--file", self.file, *self.tier, "--json")
        return answer.returncode, json.loads(answer.stdout).get("asked")

    def text(self):
        return self.file.read_text()

    def replace(self, text):
        """As an editor does: the file is never half there."""
        beside = self.folder / "pod.yaml.new"
        beside.write_text(text)
        beside.rename(self.file)

    def raised(self, text=None, by=1):
        """The text with a higher epoch."""
        text = text or self.text()
        epoch = int(text.split("epoch: ")[1].split("\n")[0])
        return text.replace(f"epoch: {epoch}\n", f"epoch: {epoch + by}\n", 1)


def shown(s):
    for target in s.targets:
        status = s.status(target)
        expect(f"/status of {target.name} has the pod", (status["pod"], status["epoch"], status["map_refused"]) ==
               ("pod0", 1, ""), status)
        metrics = target.metrics()
        expect("/metrics, too", metrics["icms_target_epoch"] == 1 and metrics["icms_target_map_refused"] == 0,
               metrics)
        answer = run("status", "--target", f"http://127.0.0.1:{target.http_port}")
        expect("icms status shows it", b"pod pod0, epoch 1\n" in answer.stdout, answer)
        expect("volumes are the map's", set(s.volumes(target)) == {"kv", "other"}, s.volumes(target))
    status, asked = s.pod_status()
    expect("icms pod status has their epochs", status == 0 and [one["epoch"] for one in asked] == [1, 1],
           (status, asked))
    expect("tenants are the map's", {"team": 2, "kv": 1}.items() <=
           {t["name"]: t["weight"] for t in s.status(s.targets[0])["tenants"]}.items(),
           s.status(s.targets[0])["tenants"])


def changes(s):
    expect("the map lacks it", s.get("later").returncode != 0)
    s.volume("create", "later", "value_max=64KiB", "quota=16MiB", "tenant=team")
    for target in s.targets:
        later = s.volumes(target)["later"]
        expect(f"{target.name} has it", later["quota_bytes"] == 16 << 20 and later["nsid"] == 3, later)
    s.until("it is served", lambda: s.put("later", b"new").returncode == 0)
    expect("and found", s.get("later").stdout == b"new", s.get("later"))
    s.volume("set", "later", "quota=32MiB", f"hosts=[{HOST}]", "--yes")
    for target in s.targets:
        expect("the quota is another one", s.volumes(target)["later"]["quota_bytes"] == 32 << 20)
    s.until("its host finds it", lambda: s.get("later").stdout == b"new")
    s.volume("set", "later", f"hosts=[{NOBODY}]", "--yes")
    s.until("another host does not, after what it holds is gone",
            lambda: s.put("later", b"x" * 4096, "more").returncode != 0)
    listed = json.loads(run("pod", "volume", "list", "--file", s.file, "--json").stdout)["volumes"][2]
    expect("icms pod volume list shows all", (listed["quota"], listed["hosts"], listed["tenant"], listed["require"]) ==
           (32 << 20, [NOBODY], "team", "none"), listed)
    expect("stored", s.put("other", b"first").returncode == 0)
    s.volume("reset", "other", "--yes")
    for target in s.targets:
        expect("a reset begins the next generation", s.volumes(target)["other"]["generation"] == 1)
    expect("the block of before is not found", s.get("other").returncode != 0, s.get("other"))
    s.until("it takes blocks", lambda: s.put("other", b"second").returncode == 0)
    expect("and gives them", s.get("other").stdout == b"second", s.get("other"))
    s.volume("delete", "later", "--yes")
    for n, target in enumerate(s.targets):
        expect("it is gone", set(s.volumes(target)) == {"kv", "other"}, s.volumes(target))
        events = [json.loads(line) for line in (s.folder / f"audit{n}.log").read_text().splitlines()]
        events = [e["result"].split(":")[0] for e in events if e.get("volume") == "later"]
        expect("the audit log has all of it", events == ["created", "changed", "changed", "deleted"], events)
    text = s.text()
    expect("comments stay", all(word in text for word in ("# ours", "# row 1", "# all of us", "# chat")), text)


def refused(s, what, text, words, by_all=True):
    """All log it, once, and go on as before."""
    before = [s.volumes(target) for target in s.targets]
    epochs, right, starts = s.epochs(), s.text(), [len(d.log_path.read_text()) for d in s.daemons]
    who = list(zip(s.daemons if by_all else s.targets, starts))
    s.replace(text)
    s.until(f"{what} is refused by all that it concerns",
            lambda: all(words in d.log_path.read_text()[at:] for d, at in who))
    s.until("targets show it", lambda: all(words in s.status(t)["map_refused"] for t in s.targets))
    for target, at in list(zip(s.targets, starts)):
        expect("it is said once", target.log_path.read_text()[at:].count("pod map refused") == 1,
               target.log_path.read_text()[at:])
        expect("/metrics shows it", target.metrics()["icms_target_map_refused"] == 1)
        expect("icms status does", b"pod map refused: " in run(
            "status", "--target", f"http://127.0.0.1:{target.http_port}").stdout)
    now = [s.volumes(target) for target in s.targets]
    expect(f"after {what} nothing is changed", all(
        was.keys() == is_.keys() and all(was[name]["nsid"] == is_[name]["nsid"] and
                                         was[name]["quota_bytes"] == is_[name]["quota_bytes"] for name in was)
        for was, is_ in zip(before, now)), now)
    expect("the epochs are those of before", s.epochs()[:2] == epochs[:2], s.epochs())
    status, asked = s.pod_status()
    expect("icms pod status is not content", status == 1 and
           (asked is None or [one["epoch"] for one in asked] == epochs[:2]), (status, asked))
    if not by_all:
        return right
    s.replace(right)
    s.until("the right one is in use still", lambda: all(s.status(t)["map_refused"] == "" for t in s.targets))
    return right


def unraised(s):
    """A change by hand that agents do not use, and no new epoch: nothing says that all is well."""
    right, where = s.text(), [f"http://127.0.0.1:{d.http_port}" for d in s.daemons]
    pods = ["--file", s.file, *s.tier]
    answer = run("pod", "reload", *pods)
    expect("before, all is well", answer.returncode == 0 and b"is in use" in answer.stdout and
           run("pod", "status", *where, *pods).returncode == 0, answer)
    s.replace(right.replace("  - name: kv\n", f"  - name: kv\n    hosts: [{HOST}]\n"))
    answer = run("pod", "reload", "--deadline", "20s", *pods)  # at once: the agent may not have seen it
    expect("icms pod reload fails", answer.returncode == 1 and b"raise it" in answer.stderr and
           b"is in use" not in answer.stdout, answer)
    s.until("all refuse it", lambda: all("raise it" in s.status(d)["map_refused"] for d in s.daemons))
    for asked in ([], where[:2], where):
        answer = run("pod", "status", *asked, *pods)
        expect(f"icms pod status fails, too ({len(asked)} asked)", answer.returncode == 1 and
               b"the agent does not use the map of its file: " in answer.stdout and b"raise it" in answer.stdout and
               b"a later map" not in answer.stdout and (not asked or
               b"\ne1: it does not use the map of its file: " in answer.stdout), answer)
        expect("quietly, too", run("pod", "status", "-q", *asked, *pods).returncode == 1)
    s.replace(right)
    answer = run("pod", "reload", "--deadline", "60s", *pods)
    expect("the map of before is in use again", answer.returncode == 0, answer)
    s.until("at all", lambda: run("pod", "status", *where, *pods).returncode == 0)


def refusals(s):
    lines = s.text().splitlines()
    at = lines.index("  - name: kv") + 1
    new = s.raised()
    refused(s, "a typo", new.replace("value_max", "value_mxa", 1), f"{s.file}:{at + 1}: a volume of the pod has no key")
    refused(s, "another volume of its name",
            new.replace("  - name: kv\n", "  - name: kv\n    uuid: 70000000-0000-4000-8000-000000000007\n"),
            "volume kv has another uuid under the same generation")
    refused(s, "an unknown tenant", new.replace("tenant: team", "tenant: taem"), "there is no tenant 'taem'")
    refused(s, "a map that is cut", new[:-4], "the last line is not `...`")
    refused(s, "a map without volumes", new[:new.index("tenants:")] + "...\n", "lists no")
    unraised(s)
    refused(s, "a change under the same epoch", s.text().replace("weight: 2", "weight: 3"), "raise it")
    refused(s, "an older map", unshrunk(s.raised(by=-1)), "is lower than")
    refused(s, "a map that may shrink in an epoch that is to come", s.raised(by=-1), "shrink_epoch: ")
    refused(s, "another pod's map", new.replace("name: pod0", "name: pod1"), "it is the map of the pod 'pod1'")
    refused(s, "a former generation", new.replace("generation: 1", "generation: 0"), "of volume other is lower than 1")
    refused(s, "a map of other volumes", new.replace("name: kv", "name: v1").replace("name: other", "name: v2"),
            "lacks 2 of 2 volumes")
    refused(s, "a map of other enclosures", new.replace("name: e", "name: f").replace("icms:e", "icms:f"),
            "lacks 2 of 2 enclosures")
    # an agent has no drives: it takes the epoch
    beyond = new.replace("  - name: kv\n", "  - name: kv\n    quota: 1TiB\n")
    refused(s, "a quota where there was none", beyond.replace("1TiB", "32MiB"),
            "lowers the quota of volume kv, none -> 32MiB")
    right = refused(s, "a quota beyond the drives", confirmed(beyond), f"{s.file}:{at + 1}: quota", by_all=False)
    s.until("the agent took it", lambda: s.epochs()[2] == s.epochs()[0] + 1)
    s.replace(s.raised(right, by=2))
    s.until("the next epoch is used by all", lambda: len(set(s.epochs())) == 1)
    right = refused(s, "values that no buffer holds", s.raised().replace("64KiB", "512KiB", 1),
                    "buffers were made for", by_all=False)
    s.replace(s.raised(right, by=2))
    s.until("and the one after it", lambda: s.epochs() == [s.status(s.agent)["epoch"]] * 3 and
            all(s.status(t)["map_refused"] == "" for t in s.targets))
    status, asked = s.pod_status()
    expect("and icms pod status is content", status == 0, asked)


def missed(s):
    """Several changes in a row that take something away, each confirmed: who sees the last one alone takes it."""
    for n in range(6):
        s.volume("create", f"some{n}", "value_max=64KiB", "quota=2MiB")
    right, beside = s.text(), s.folder / "beside.yaml"
    beside.write_text(right)
    for n in range(6):
        answer = run("pod", "volume", "delete", f"some{n}", "--yes", "--file", beside)
        expect(f"deleted some{n}", answer.returncode == 0, answer)
    answer = run("pod", "volume", "set", "kv", "tenant=team", "--file", beside)
    expect("a change that takes nothing away", answer.returncode == 0, answer)
    cut = unshrunk(beside.read_text())
    refused(s, "the same map by hand", cut, "lacks 6 of 8 volumes")
    s.replace(beside.read_text())
    s.until("it is taken by all", lambda: [s.status(d)["epoch"] for d in s.daemons] ==
            [int(beside.read_text().split("epoch: ")[1].split("\n")[0])] * 3)
    for target in s.targets:
        expect("those are gone", set(s.volumes(target)) == {"kv", "other"}, s.volumes(target))
    s.volume("set", "kv", "tenant=")


def storm(s):
    """Very many epochs, with maps that are wrong or being written, and SIGHUP meanwhile."""
    pick = random.Random(27)
    right = unshrunk(s.text())
    for turn in range(120):
        new = s.raised(right, by=turn + 1)
        more = "".join(pod.volume_lines({"name": f"v{n}", "value_max": "64KiB", "quota": f"{pick.randrange(1, 9)}MiB"}) +
                       "\n" for n in range(4) if pick.random() < 0.5)
        new = confirmed(new.replace("...\n", more + "...\n"))
        if turn % 5 == 0:
            new = new[:pick.randrange(len(new))]
        if turn % 7 == 0:
            s.file.write_text(new)  # in place: it may be read halfway
        else:
            s.replace(new)
        if turn % 3 == 0:
            for daemon in s.daemons:
                daemon.signal(signal.SIGHUP)
        time.sleep(pick.random() / 20)
    last = s.raised(right, by=200)
    s.replace(confirmed(last))
    s.until("after a storm the last map counts", lambda: len(set(s.epochs())) == 1 and
            f"epoch: {s.epochs()[0]}\n" in last and all(set(s.volumes(t)) == {"kv", "other"} for t in s.targets))
    s.replace(s.raised(right, by=201))
    s.until("and the next one", lambda: f"epoch: {s.epochs()[0]}\n" in s.text() and len(set(s.epochs())) == 1)


def together(s):
    """A target's own file and the map, with one SIGHUP: both or neither."""
    e0 = s.targets[0]
    own, right = pathlib.Path(e0.config_path), s.text()
    config = own.read_text()
    drives = [config.replace("drives:", f"drives:\n  - path: {s.folder}/more{n}\n    size: 64MiB\n    format_empty: true")
              for n in range(2)]

    def hang_up(text, map_text, words):
        at = len(e0.log_path.read_text())
        own.write_text(text)
        s.replace(map_text)
        e0.signal(signal.SIGHUP)
        s.until(f"SIGHUP: {words}", lambda: words in e0.log_path.read_text()[at:])
        return e0.log_path.read_text()[at:]

    said = hang_up(drives[0], s.raised().replace("tenant: team", "tenant: taem"), "configuration refused")
    expect("it names the map", f"{s.file}:" in said and "no tenant 'taem'" in said, said)
    expect("the drive did not come, either", len(s.status(e0)["drives"]) == 1, s.status(e0)["drives"])
    at = len(e0.log_path.read_text())
    s.until("the watch of the map sees it, too", lambda: "no tenant 'taem'" in s.status(e0)["map_refused"])
    time.sleep(1)
    expect("the reason was said, and is not said again", "no tenant 'taem'" not in e0.log_path.read_text()[at:],
           e0.log_path.read_text()[at:])
    own.write_text(config)
    s.replace(right)
    s.until("the map of before is found", lambda: s.status(e0)["map_refused"] == "")
    s.replace(s.raised(right).replace("tenant: team", "tenant: taem"))
    s.until("the same mistake later is said", lambda: "pod map refused" in e0.log_path.read_text()[at:])
    hang_up(drives[0], s.raised(right).replace("weight: 2", "weight: 3"), "configuration read: 2 volumes, 2 drives")
    s.until("both are in use", lambda: len(s.status(e0)["drives"]) == 2 and
            s.status(e0)["epoch"] == s.epochs()[1] == s.epochs()[2])
    said = hang_up(config.replace(f"pod: {s.file}", "volumes:\n  - name: kv\n    value_max: 64KiB\n"), s.text(), "configuration refused")
    expect("volumes of its own need a restart", "pod is none (default), and" in said, said)
    own.write_text(drives[0])


def config_map(s):
    """A folder whose files are links to a folder that is a link, which is swapped. A typo in a quota evicts nothing."""
    lower = s.raised().replace("value_max: 64KiB", "value_max: 64KiB\n    quota: 8MiB", 1)
    for name, text in (("a", s.text()), ("b", lower), ("c", confirmed(lower))):
        (s.folder / name).mkdir()
        (s.folder / name / "pod.yaml").write_text(text)
    (s.folder / "data").symlink_to("a")
    (s.folder / "link").symlink_to("data/pod.yaml")
    (s.folder / "link").rename(s.file)

    def swap(name):
        (s.folder / "data.new").symlink_to(name)
        (s.folder / "data.new").rename(s.folder / "data")

    before = s.epochs()
    swap("b")
    s.until("a lower quota that nobody confirmed is refused by all", lambda: all(
        "lowers the quota of volume kv, none -> 8MiB" in s.status(d)["map_refused"] for d in s.daemons))
    expect("and changes nothing", s.epochs() == before and
           all(s.volumes(t)["kv"]["quota_bytes"] != 8 << 20 for t in s.targets), s.epochs())
    swap("c")
    s.until("a link that is swapped is a new epoch", lambda: all(
        s.volumes(t)["kv"]["quota_bytes"] == 8 << 20 for t in s.targets) and len(set(s.epochs())) == 1)


def restarts(s):
    text = s.text()
    e0 = s.targets[0]
    expect("a target ends well", e0.stop() == 0, e0.log_tail())
    e0.start()
    e0.wait_ready()
    s.until("after a restart its blocks are there", lambda: s.get("other").stdout == b"second")
    e0.stop()
    s.replace(text.replace("    generation: 1\n", ""))
    started = subprocess.run([BUILD / "cmd/icms-target", "--config", e0.config_path], capture_output=True, text=True,
                             timeout=60, check=False)
    expect("a map of before a reset is refused at the start", started.returncode != 0 and
           "generation 0 is older than 1" in started.stderr, started)
    s.replace(text)
    e0.start()
    e0.wait_ready()


def goes_back(s):
    """A start with a map that is older than the one that the drives had."""
    e0, right = s.targets[0], s.text()
    had = int(right.split("epoch: ")[1].split("\n")[0])
    older = unshrunk(s.raised(by=-1))
    line = older[:older.index("\nepoch: ") + 1].count("\n") + 1
    e0.stop()
    s.replace(older)
    for words in ((), ("--check-config",)):
        answer = subprocess.run([BUILD / "cmd/icms-target", "--config", e0.config_path, *words], capture_output=True,
                                text=True, timeout=60, check=False)
        expect(f"an older map is refused at the start {words}", answer.returncode == 2 and
               f"{s.file}:{line}: epoch {had - 1} of pod pod0 is lower than {had}, which the drives" in answer.stderr and
               f"set its `epoch` to {had + 1} or more" in answer.stderr, answer)
    answer = subprocess.run([BUILD / "cmd/icms-target", "--config", e0.config_path, "--check-config", "--format", "all"],
                            capture_output=True, text=True, timeout=60, check=False)
    expect("not where the drives are erased", answer.returncode == 0, answer)
    s.replace(right)
    e0.start()
    e0.wait_ready()
    s.replace(unshrunk(s.raised(right)))  # as it is told to those who mean the older one
    s.until("a higher epoch is taken", lambda: s.epochs() == [had + 1] * 3)


def agent_goes_back(s):
    """An agent that starts with an older map than targets use: it works, and says so."""
    agent, right, where = s.agent, s.text(), ["--file", s.file, *s.tier]
    had = int(right.split("epoch: ")[1].split("\n")[0])
    agent.stop()
    at = len(agent.log_path.read_text())
    s.replace(unshrunk(s.raised(by=-1)))
    agent.start()
    agent.wait_ready()
    text = f"epoch of the pod map: {had - 1} here, {had} there"
    s.until("its status says so", lambda: [e["settings_differ"] for e in s.status(agent)["enclosures"]] == [[text]] * 2)
    answer = run("status", "--open", f"unix:{agent.socket}")
    expect("icms status shows it, and that it is ready", answer.returncode == 0 and
           f"settings differ: {text}".encode() in answer.stdout, answer)
    expect("/metrics, too", agent.metrics()['icms_agent_enclosure_settings_differ{enclosure="e0"}'] == 1, agent.metrics())
    answer = run("pod", "status", *where)
    expect("icms pod status fails", answer.returncode == 1 and f"the agent uses epoch {had - 1}, the target of e0 epoch {had}: "
           "the map of this machine is old".encode() in answer.stdout, answer)
    said = f"epoch {had - 1} is in use here, and a later one at 2 of 2 enclosures, such as {had} at e"
    s.until("it is logged", lambda: said in agent.log_path.read_text()[at:])
    expect("its blocks are hits", s.get("other").stdout == b"second", s.get("other"))
    s.replace(right)
    s.until("the newer map is taken", lambda: s.epochs() == [had] * 3)
    s.until("and nothing differs", lambda: [e["settings_differ"] for e in s.status(agent)["enclosures"]] == [[]] * 2)
    expect("it was logged once", agent.log_path.read_text()[at:].count("a later one at") == 1, agent.log_tail())


def lacking(s):
    """A target that starts with a map which lacks a volume that its drives have blocks of."""
    e0, e1 = s.targets
    for n in range(16):  # both have some
        expect("stored", s.put("other", b"%d" % n, f"many{n}").returncode == 0)
    right = s.text()
    less = s.raised()
    less = less[:less.index("  - name: other")] + "...\n"
    refused(s, "a volume that is left out by a slip", less, "lacks 1 of 2 volumes, other, whose blocks would be lost")
    e1.stop()
    s.replace(confirmed(less))
    s.until("the others use it", lambda: [s.status(d)["epoch"] for d in (e0, s.agent)] == [s.status(e0)["epoch"]] * 2 and
            set(s.volumes(e0)) == {"kv"})
    e1.start()
    e1.wait_ready()
    expect("it starts with what there is", set(s.volumes(e1)) == {"kv"}, s.volumes(e1))
    s.replace(s.raised(right, by=2))
    s.until("the volume comes back at the one that ran", lambda: set(s.volumes(e0)) == {"kv", "other"})
    s.until("the other one says that it has to be restarted", lambda: "has blocks of it from before the start; restart" in
            s.status(e1)["map_refused"])
    e1.stop()
    e1.start()
    e1.wait_ready()
    expect("then it uses the map", s.epochs() == [s.status(e0)["epoch"]] * 3 and s.status(e1)["map_refused"] == "",
           s.epochs())
    for n in range(16):
        s.until(f"block {n} is there", lambda n=n: s.get("other", f"many{n}").stdout == b"%d" % n)


def checked(s, config, map_text=None):
    (s.folder / "checked.yaml").write_text(config)
    if map_text is not None:
        (s.folder / "checked-pod.yaml").write_text(map_text)
    return subprocess.run([BUILD / "cmd/icms-target", "--check-config", "--config", s.folder / "checked.yaml"],
                          capture_output=True, text=True, timeout=60, check=False)


def foreign(s):
    """A start with another pod's map, which has neither the enclosure nor what its drives hold."""
    e1 = s.targets[1]
    e1.stop()
    right, own = s.text(), pathlib.Path(e1.config_path)
    config, there = own.read_text(), s.folder / "foreign.yaml"
    foreign_map = ("name: pod7\nepoch: 9\nenclosures:\n  - name: f0\n    address: 127.0.0.1:1\n"
                   "volumes:\n  - name: theirs\n    value_max: 64KiB\n...\n")

    def started(map_text, *words):
        there.write_text(map_text)
        with_map = s.folder / "with-map.yaml"
        with_map.write_text(config.replace(str(s.file), str(there)))
        return subprocess.run([BUILD / "cmd/icms-target", "--config", with_map, *words], capture_output=True, text=True,
                              timeout=60, check=False)

    for words in ((), ("--check-config",)):
        answer = started(foreign_map, *words)
        expect(f"a foreign map is refused at the start {words}", answer.returncode not in (0, -9) and
               "the map of pod pod7, epoch 9, has neither this enclosure, 'e1', nor any of the " in answer.stderr and
               "icms pod add e1" in answer.stderr, answer)
    added = foreign_map.replace("volumes:", f"  - name: e1\n    address: 127.0.0.1:{e1.port}\n    nqn: {e1.nqn}\nvolumes:")
    for what, text, words in (("the enclosure in it", added, ()),
                              ("a volume of the drives in it", foreign_map.replace("name: theirs", "name: kv"), ()),
                              ("drives that are erased", foreign_map, ("--format", "all"))):
        answer = started(text, "--check-config", *words)
        expect(f"a map with {what} is taken", answer.returncode == 0, answer)
    empty = config.replace("path: ", "path: " + str(s.folder / "fresh") + " # ", 1)
    (s.folder / "checked.yaml").write_text(empty.replace(str(s.file), str(there)))
    there.write_text(foreign_map)
    answer = subprocess.run([BUILD / "cmd/icms-target", "--check-config", "--config", s.folder / "checked.yaml"],
                            capture_output=True, text=True, timeout=60, check=False)
    expect("a target with empty drives may start before it is added", answer.returncode == 0 and
           "icms pod add e1" in answer.stderr, answer)
    s.replace(right)
    e1.start()
    e1.wait_ready()
    for n in range(16):
        s.until(f"block {n} is there still", lambda n=n: s.get("other", f"many{n}").stdout == b"%d" % n)


def commands(s):
    e0 = s.targets[0]
    config = pathlib.Path(e0.config_path).read_text().replace(str(s.file), str(s.folder / "checked-pod.yaml"))
    answer = checked(s, config, s.text())
    expect("--check-config: right", answer.returncode == 0 and "warn" not in answer.stderr, answer)
    answer = checked(s, config, s.text().replace(e0.nqn, "nqn.2026-01.io.icms:x"))
    expect("--check-config: another NQN is refused", answer.returncode != 0 and "checked-pod.yaml:" in answer.stderr and
           "nqn: " in answer.stderr, answer)
    answer = checked(s, config.replace("name: e0", "name: e5", 1).replace(e0.nqn, "nqn.2026-01.io.icms:e5"))
    expect("--check-config: one that the map lacks is a warning", answer.returncode == 0 and
           "icms pod add e5" in answer.stderr, answer)
    answer = checked(s, config + "volumes:\n  - name: kv\n")
    expect("--check-config: volumes are the map's alone", answer.returncode != 0 and
           "volumes: with pod they are those of the pod map" in answer.stderr, answer)
    (s.folder / "checked-pod.yaml").unlink()
    answer = checked(s, config)
    expect("--check-config: no map", answer.returncode != 0 and "checked-pod.yaml" in answer.stderr, answer)
    answer = run("volume", "create", "x", "--file", e0.config_path)
    expect("icms volume says where", answer.returncode == 1 and b"icms pod volume" in answer.stderr, answer)
    answer = run("volume", "list", "--file", e0.config_path)
    expect("icms volume list, too", answer.returncode == 1 and b"icms pod volume list" in answer.stderr, answer)
    answer = run("config", "check", e0.config_path, s.file)
    expect("icms config check knows both", answer.returncode == 0 and b"(icms-target)" in answer.stdout and
           b"(pod map)" in answer.stdout, answer)
    (s.folder / "checked-pod.yaml").write_text(s.text().replace("quota: 8MiB", "quota: 9MiB"))
    answer = run("config", "diff", s.file, s.folder / "checked-pod.yaml")
    expect("icms config diff, too", b"volumes[kv].quota: 8MiB -> 9MiB" in answer.stdout, answer)


def main():
    with tempfile.TemporaryDirectory(prefix="icms-") as folder:
        with pod.Pod(BUILD, folder) as p:
            s = Scene(folder, p)
            pids = [daemon.pid for daemon in s.daemons]
            for name, value in BLOCKS.items():
                put = s.put("kv", value, name)
                expect(f"stored {name}", put.returncode == 0, put) if put.returncode else None
            load = Load(lambda name: s.get("kv", name), BLOCKS)
            load.start()
            shown(s)
            changes(s)
            refusals(s)
            missed(s)
            storm(s)
            together(s)
            config_map(s)
            wait_until("there were some loads", lambda: load.loaded > 50)
            wrong = load.end()
            expect(f"{load.loaded} loads meanwhile were hits", not wrong, wrong[:3])
            expect("no daemon was restarted", pids == [daemon.pid for daemon in s.daemons])
            restarts(s)
            goes_back(s)
            agent_goes_back(s)
            lacking(s)
            foreign(s)
            commands(s)


main()
