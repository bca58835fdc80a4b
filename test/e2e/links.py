#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An enclosure with two addresses, of which one fails under load.

Goal: whatever happens to one of its links, no get misses, none takes until its deadline and the enclosure is
never excluded; the link is named in the log, in the status and in metrics, and carries commands again when it is
well; an address may leave and come back while it is used; a second process of one identity is not.
Method: real daemons on loopback, with a TCP proxy for each address of the first of two enclosures: a black hole,
an end of all connections and 300 ms, in turn; then epochs of the pod map with one address less, and one more.

usage: links.py BUILD_ROOT
"""
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import Probe, expect, wait_until  # noqa: E402
import proxy  # noqa: E402

BUILD = pathlib.Path(sys.argv[1])
VOLUME = {"name": "kv", "value_max": "64KiB", "memory_max": "1MiB"}
COUNT, BYTES = 240, 60000
DEADLINE_MS = 20000


class Load(threading.Thread):
    """Gets all blocks again and again by agent_probe, and remembers each batch."""

    def __init__(self, where):
        super().__init__(daemon=True)
        self.probe = Probe(BUILD, where, COUNT, BYTES)
        expect("all are stored", self.probe.ask("put")["ok"] == COUNT, "")
        self.batches, self.over = [], False
        self.start()

    def run(self):
        while not self.over:
            self.batches.append(self.probe.ask(f"get {DEADLINE_MS}"))

    def judge(self, what, seconds):
        """Of the batches since the last call; a few more, so that none is forgotten."""
        end = len(self.batches) + 3
        wait_until(f"{what}: batches end", lambda: len(self.batches) >= end)
        batches, self.batches = self.batches, []
        worst = max(b["seconds"] for b in batches)
        expect(f"{what}: no miss, no wrong byte in {len(batches)} batches",
               all(b["ok"] == COUNT and b["wrong"] == 0 for b in batches), [b for b in batches if b["ok"] != COUNT])
        expect(f"{what}: nobody waits long", worst < seconds, worst)
        print(f"ok {what}: {len(batches)} batches of {COUNT}, no miss, the longest took {worst:.3f} s")


class Scene:
    def __init__(self, folder, p):
        self.file = pathlib.Path(folder) / "pod.yaml"
        self.targets = [p.add_target(f"e{i}", 1, "64MiB", [VOLUME], segment="4MiB", memory="32MiB") for i in range(2)]
        for target in self.targets:
            target.wait_ready()
        self.links = [proxy.Proxy(self.targets[0].port) for _ in range(2)]
        self.write(1, self.links)
        self.agent = p.add_agent("server-a", [], [VOLUME], pod=self.file)
        self.agent.wait_ready()
        self.load = Load(f"unix:{self.agent.socket}")

    def write(self, epoch, links):
        addresses = ", ".join(f"127.0.0.1:{link.port}" for link in links)
        lists = (addresses if len(links) == 1 else f"[{addresses}]", f"127.0.0.1:{self.targets[1].port}")
        text = f"name: pod0\nepoch: {epoch}\nenclosures:\n" + "".join(
            f"  - name: {target.name}\n    address: {list}\n    nqn: {target.nqn}\n"
            for target, list in zip(self.targets, lists)) + "...\n"
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.rename(self.file)

    def value(self, link, what):
        return self.agent.metrics().get(f'icms_agent_link_{what}{{enclosure="e0",address="127.0.0.1:{link.port}"}}')

    def enclosure(self, what):
        return self.agent.metrics()[f'icms_agent_enclosure_{what}{{enclosure="e0"}}']

    def shown(self):
        return subprocess.run([BUILD / "cmd/icms", "pod", "status", "--file", self.file, "--open",
                               f"unix:{self.agent.socket}"], capture_output=True, text=True, check=False).stdout

    def link_fails(self, what, link, begin, end, state, word, seconds):
        """One link fails, and is well again."""
        wait_until(f"{what}: both carry commands", lambda: self.moves(self.links[0]) and self.moves(self.links[1]))
        begin()
        wait_until(f"{what}: passed over", lambda: self.value(link, "state") == 0)
        wait_until(f"{what}: said in the log", lambda: f"enclosure e0: link 127.0.0.1:{link.port} {word}" in
                 self.agent.log_tail())
        expect(f"{what}: said in the status", f'"state":"{state}"' in self.agent.get("/status")[1], "")
        shown = self.shown()
        expect(f"{what}: shown", any(f"127.0.0.1:{link.port}" in line and state in line
                                     for line in shown.splitlines()), shown)
        self.load.judge(what, seconds)
        end()
        wait_until(f"{what}: used again", lambda: self.value(link, "state") == 1)
        wait_until(f"{what}: carries commands again", lambda: self.moves(link))
        self.load.judge(f"{what}, mended", seconds)
        expect(f"{what}: the enclosure was never away", self.enclosure("exclusions_total") == 0,
               self.agent.log_tail())

    def moves(self, link):
        before = self.value(link, "commands_total")
        time.sleep(0.3)
        return self.value(link, "commands_total") > before

    def addresses_change(self):
        for epoch, links in ((2, self.links[:1]), (3, self.links), (4, self.links[1:]), (5, self.links)):
            self.write(epoch, links)
            wait_until(f"epoch {epoch} is in use", lambda: self.agent.metrics()["icms_agent_epoch"] == epoch)
            for link in self.links:
                if link in links:
                    wait_until("its addresses are used", lambda: self.value(link, "state") == 1)
                else:
                    expect("one that left is not", self.value(link, "state") is None, "")
        self.load.judge("addresses come and go", DEADLINE_MS / 2000)
        expect("an epoch excludes nobody", self.enclosure("exclusions_total") == 0, self.agent.log_tail())

    def link_state(self, place):
        enclosure = next(e for e in json.loads(self.agent.get("/status")[1])["enclosures"] if e["name"] == "e0")
        return next((link["state"] for link in enclosure["links"] if link["address"] == f"127.0.0.1:{place.port}"), None)

    def copied(self, p):
        """A second icms-target with the UUID and NQN of the first one, behind one list of addresses."""
        own, copy = self.targets[0], p.make_target("copy0", 1, "64MiB", [VOLUME], segment="4MiB", memory="32MiB")
        config = copy.config_path.read_text().replace("name: copy0", f"name: {own.name}", 1)
        copy.config_path.write_text(config.replace(copy.nqn, own.nqn))
        copy.start()
        copy.wait_ready()
        self.write(6, [self.links[0], copy])
        wait_until("copied: misdirected", lambda: self.link_state(copy) == "misdirected")
        wait_until("copied: said in the log", lambda: f"another process with this UUID answers at 127.0.0.1:{copy.port} "
                   f"than at 127.0.0.1:{self.links[0].port}" in self.agent.log_path.read_text())
        self.load.judge("copied", DEADLINE_MS / 2000)
        expect("copied: it is never used", self.value(copy, "commands_total") == 0 and self.link_state(copy) == "misdirected",
               self.agent.get("/status")[1])
        own.kill()
        wait_until("copied: alone it is the enclosure", lambda: self.link_state(copy) == "up")
        own.start()
        own.wait_ready()
        wait_until("copied: then the other one is misdirected", lambda: self.link_state(self.links[0]) == "misdirected")
        copy.kill()
        wait_until("copied: and used when that ends", lambda: self.link_state(self.links[0]) == "up")
        self.write(7, self.links)
        wait_until("copied: both links are used", lambda: all(self.value(link, "state") == 1 for link in self.links))

    def all_fail(self):
        """Both links: the log names both, and the status has each error once, with its age."""
        before = len(self.agent.log_path.read_text())
        for link in self.links:
            link.down()
        wait_until("both fail: said in the log", lambda: "enclosure e0: marked down: none of its 2 addresses is left" in
                   self.agent.log_path.read_text()[before:])
        said = self.agent.log_path.read_text()[before:]
        for link in self.links:
            expect("both fail: each with its reason", f"enclosure e0: link 127.0.0.1:{link.port} is down: " in said, said)
        expect("both fail: no other address is named as used", "using its other addresses" not in
               said[said.index("is down: "):], said)
        shown = self.shown()
        lines = [line for line in shown.splitlines() if line.startswith("e0 ")]
        expect("both fail: three lines", len(lines) == 3, shown)
        expect("both fail: the enclosure's line repeats no error of a link", lines[0].endswith(" -"), shown)
        expect("both fail: errors have an age", all(" s ago: " in line for line in lines[1:]), shown)
        self.none_answers()
        for link in self.links:
            link.up()
        self.write(9, self.links)
        wait_until("both recover", lambda: all(self.value(link, "state") == 1 for link in self.links))
        wait_until("both recover: said in the log", lambda: "enclosure e0: recovered" in
                   self.agent.log_path.read_text()[before:])


    def none_answers(self):
        """While the enclosure is down it gets an address where nobody answers, which is no recovery."""
        before = len(self.agent.log_path.read_text())
        with socket.create_server(("127.0.0.1", 0)) as silent:
            self.write(8, [types.SimpleNamespace(port=silent.getsockname()[1])])
            wait_until("another address is used", lambda: self.agent.metrics()["icms_agent_epoch"] == 8)
            time.sleep(2)
        expect("an address where nobody answers is no recovery", "recovered" not in
               self.agent.log_path.read_text()[before:], self.agent.log_tail())


def main():
    with tempfile.TemporaryDirectory(prefix="icms-") as folder, pod.Pod(BUILD, folder) as p:
        scene = Scene(folder, p)
        links = scene.links
        scene.link_fails("black hole", links[0], lambda: setattr(links[0], "is_cut", True),
                         lambda: setattr(links[0], "is_cut", False), "excluded", "marked down", DEADLINE_MS / 2000)
        expect("commands went on by the other link", scene.enclosure("failovers_total") > 0, "")
        scene.link_fails("killed", links[1], links[1].down, links[1].up, "excluded", "marked down",
                         DEADLINE_MS / 2000)
        scene.link_fails("300 ms", links[0], lambda: setattr(links[0], "delay_s", 0.15),
                         lambda: setattr(links[0], "delay_s", 0.0), "slow", "slow", DEADLINE_MS / 2000)
        scene.addresses_change()
        scene.copied(p)
        scene.all_fail()


if __name__ == "__main__":
    main()
