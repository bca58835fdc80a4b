#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A pod of four enclosures and six servers that grows, drains, upgrades, loses and repairs machines under load.

Each machine is a network namespace of its own on one bridge. On each server an engine's stand-in (agent_probe)
asks for the same blocks again and again, by a deadline, and stores those that it missed, as an engine that
computed them would. The script goes through its events, again and again until the time is over.

What has to hold all the time: no wrong byte, nothing that hangs; and while enclosures join, drain and leave as
`icms pod` has them, at most one block of a hundred is missed, late ones apart. With --bars, on a quiet machine, also: that
holds for each second and for late ones; each agent passes over what fails within a second and uses it within two when it is back, and no batch ends later than 20 ms
behind its deadline. Written at the end: living.json, a row for each event, and living.svg, hit ratio and time of
batches over time, marked with the events.

usage: living.py BUILD_ROOT [--minutes N] [--out FOLDER] [--bars]
       Without --minutes the script is played once, with short pauses: about a minute.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
import probe  # noqa: E402

ENCLOSURES, SERVERS = 4, 6
COUNT, BYTES = 128, 32768
DEADLINE_MS, HUNG_S = 500, 5
NETWORK = "10.77.0"
VOLUME = {"name": "kv", "value_max": "64KiB", "memory_max": "1MiB"}
BARS = {"exclusion_ms": 1000, "back_s": 2, "late_ms_max": 20}
HIT_RATIO_MIN = 0.99  # of any second, with --bars
PLANNED = ("grow", "settle", "drain", "remove")  # what an operator does with icms pod: costs no hit
CLONE_NEWNET = 0x40000000


def fail(text):
    sys.exit(f"not ok {text}")


def sh(*words):
    subprocess.run([str(word) for word in words], check=True, timeout=60, stdout=subprocess.DEVNULL)


def own_namespaces():
    """Starts this program again with a network and devices of its own; it needs no rights outside."""
    if os.environ.get("ICMS_LIVING_NETWORK") == "1":
        sh("ip", "link", "set", "lo", "up")
        sh("ip", "link", "add", "pod", "type", "bridge")
        sh("ip", "link", "set", "pod", "up")
        return
    if subprocess.run(["unshare", "-rn", "ip", "link", "add", "pod", "type", "bridge"], capture_output=True,
                      check=False).returncode != 0:
        print("skipped: no network namespaces here")
        sys.exit(77)
    os.environ["ICMS_LIVING_NETWORK"] = "1"
    os.execvp("unshare", ["unshare", "-rn", sys.executable, *sys.argv])


class Machine:
    """A network namespace with one address on the bridge; it lives as long as its process."""

    def __init__(self, name, host):
        self.name, self.address = name, f"{NETWORK}.{host}"
        self.holder = subprocess.Popen(["unshare", "-n", "sleep", "infinity"], preexec_fn=pod.die_with_parent)
        mine = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{self.holder.pid}/ns/net") == mine:
            time.sleep(0.005)
        sh("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", self.holder.pid)
        sh("ip", "link", "set", name, "master", "pod", "up")
        for words in (("link", "set", "lo", "up"), ("address", "add", f"{self.address}/24", "dev", "eth0"),
                      ("link", "set", "eth0", "up")):
            sh(*self.inside("ip", *words))

    def inside(self, *words):
        return ["nsenter", "-t", str(self.holder.pid), "-n", *words]

    def link(self, state):
        sh("ip", "link", "set", self.name, state)

    def call(self, function, *arguments):
        """Calls it on a thread that is in the machine's network."""
        answer = []

        def run():
            with open(f"/proc/{self.holder.pid}/ns/net", "rb") as space:
                if pod.LIBC.setns(space.fileno(), CLONE_NEWNET) == 0:
                    answer.append(function(*arguments))
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return answer[0] if answer else (0, "setns failed")


class Engine(threading.Thread):
    """Loads all blocks, batch after batch, and stores what it missed."""

    def __init__(self, agent):
        super().__init__(daemon=True)
        self.agent, self.batches, self.over = agent, [], False
        self.probe = probe.Probe(BUILD, f"unix:{agent.socket}", COUNT, BYTES)

    def run(self):
        while not self.over:
            answer = self.probe.ask(f"get {DEADLINE_MS}", DEADLINE_MS / 1000 + HUNG_S)
            self.batches.append((time.monotonic(), answer))
            if answer["ok"] < COUNT:
                self.probe.ask(f"mend {DEADLINE_MS}", DEADLINE_MS / 1000 + HUNG_S)
            time.sleep(0.05)


class Living:
    def __init__(self, folder, p):
        self.folder, self.p, self.file = pathlib.Path(folder), p, pathlib.Path(folder) / "pod.yaml"
        self.machines, self.events, self.enclosures, self.agents = {}, [], {}, []
        for i in range(ENCLOSURES):
            self.machines[f"e{i}"] = Machine(f"e{i}", 10 + i)
        for i in range(SERVERS):
            self.machines[f"g{i}"] = Machine(f"g{i}", 100 + i)
        names = [f"e{i}" for i in range(ENCLOSURES - 1)]
        self.file.write_text("name: living\nepoch: 1\nenclosures:\n" + "".join(
            f"  - name: {name}\n    address: {self.address(name)}\n    nqn: {self.nqn(name)}\n" for name in names) +
            "volumes:\n  - name: kv\n    value_max: 64KiB\n...\n")
        self.start(*names)
        for i in range(SERVERS):
            name = f"g{i}"
            agent = p.make_agent(name, [], [VOLUME], pod=self.file, memory="1MiB", require="none")
            self.agents.append(self.put_at(agent, self.machines[name]))
        for agent in self.agents:
            agent.start()
        self.each(self.agents, pod.Daemon.wait_ready)

    def address(self, name):
        return f"{self.machines[name].address}:4420"

    @staticmethod
    def nqn(name):
        return f"nqn.2026-01.io.icms:{name}"

    @staticmethod
    def put_at(daemon, machine):
        """The daemon runs in the network of the machine, and is asked for its state there."""
        wrapper = daemon.config_path.with_suffix(".sh")
        wrapper.write_text(f"#!/bin/sh\nexec {' '.join(machine.inside(str(daemon.program)))} \"$@\"\n")
        wrapper.chmod(0o755)
        daemon.program = wrapper
        get = daemon.get
        daemon.get = lambda path: machine.call(get, path)
        return daemon

    def enclosure(self, name):
        if name not in self.enclosures:
            machine = self.machines[name]
            target = self.p.make_target(name, 1, "64MiB", [], segment="1MiB", memory="32MiB", require="none",
                                        advertise_host=machine.address, listen=f"{machine.address}:4420",
                                        pod=self.file)
            self.enclosures[name] = self.put_at(target, machine)
        self.enclosures[name].start()
        self.enclosures[name].wait_ready()

    @staticmethod
    def each(things, what):
        """At once; not for starts: a daemon ends with the thread that started it."""
        threads = [threading.Thread(target=what, args=(thing,)) for thing in things]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def icms(self, *words):
        """From a server of the pod: an enclosure that is added is connected to."""
        done = subprocess.run(self.machines["g0"].inside(BUILD / "cmd/icms", *words), capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            fail(f"icms {' '.join(str(word) for word in words)}: {done.stdout}{done.stderr}")

    def pod(self, *words):
        """Changes the map, and waits until every agent uses it."""
        self.icms("pod", *words, "--file", self.file)
        self.each(self.agents, lambda agent: self.icms("pod", "reload", "--file", self.file, "--open",
                                                       f"unix:{agent.socket}", "--deadline", "30s"))

    def settle(self, name):
        """When nothing is found at the former owners any more, as icms-pod(1) has it; or else after a while."""
        found, give_up = -1, time.monotonic() + 30
        while (now := sum(agent.metrics()['icms_agent_former_found_total{volume="kv"}'] for agent in self.agents)) \
                != found and time.monotonic() < give_up:
            found = now
            time.sleep(1)
        self.pod("settle", name, "--yes")

    def crash(self, *names):
        for name in names:
            self.enclosures[name].kill()

    def start(self, *names):
        for name in names:
            self.enclosure(name)

    def agent_again(self, number):
        self.agents[number].kill()
        self.agents[number].start()
        self.agents[number].wait_ready()

    def seen(self, name, is_up, limit_s):
        """Waits until every agent uses the enclosure, or none does; False: longer than the limit."""
        give_up, state = time.monotonic() + limit_s, f'icms_agent_enclosure_state{{enclosure="{name}"}}'
        while any((agent.metrics()[state] == 1) != is_up for agent in self.agents):
            if time.monotonic() > give_up:
                return False
            time.sleep(0.005)
        return True

    def script(self):
        """Kind, what the picture says, what is done, which enclosures it takes or brings back; a pause comes after
        each."""
        def add(name):
            return lambda: (self.enclosure(name), self.pod("add", name, "--address", self.address(name), "--nqn",
                                                           self.nqn(name), "--deadline", "30s"))
        return [
            ("grow", "e3 joins", add("e3")),
            ("settle", "e3 is up", lambda: self.settle("e3")),
            ("drain", "e0 drains", lambda: self.pod("drain", "e0")),
            ("remove", "e0 leaves", lambda: (self.pod("remove", "e0", "--yes"), self.enclosures["e0"].stop())),
            ("upgrade", "e1 restarts", lambda: (self.enclosures["e1"].stop(), self.start("e1"))),
            ("grow", "e0 joins", add("e0")),
            ("settle", "e0 is up", lambda: self.settle("e0")),
            ("SIGKILL", "e2 is killed", lambda: self.crash("e2"), "e2"),
            ("repair", "e2 is back", lambda: self.start("e2"), "e2"),
            ("SIGSTOP", "e1 stands still", lambda: self.enclosures["e1"].signal(signal.SIGSTOP), "e1"),
            ("repair", "e1 goes on", lambda: self.enclosures["e1"].signal(signal.SIGCONT), "e1"),
            ("link", "link of e3 down", lambda: self.machines["e3"].link("down"), "e3"),
            ("repair", "link of e3 up", lambda: self.machines["e3"].link("up"), "e3"),
            ("agent", "agent g1 is killed", lambda: self.agent_again(1)),
            ("half", "e0 and e1 are killed", lambda: self.crash("e0", "e1"), "e0", "e1"),
            ("repair", "both are back", lambda: self.start("e0", "e1"), "e0", "e1"),
            ("reset", "the volume is reset", lambda: self.pod("volume", "reset", "kv", "--yes")),
            ("drain", "e3 drains", lambda: self.pod("drain", "e3")),
            ("remove", "e3 leaves", lambda: (self.pod("remove", "e3", "--yes"), self.enclosures["e3"].stop())),
        ]

    def play(self, until, pause_s):
        """Once, or until the time is over."""
        while True:
            for kind, text, what, *names in self.script():
                event = {"at": time.monotonic(), "kind": kind, "text": text}
                self.events.append(event)
                what()
                done = time.monotonic()
                if names:
                    is_seen = all([self.seen(name, kind == "repair", 30) for name in names])
                    since = done if kind == "repair" else event["at"]
                    event["took_s"] = round(time.monotonic() - since, 3) if is_seen else None
                time.sleep(max(0, done + pause_s - time.monotonic()))
                print(f"ok {text}", flush=True)
            if time.monotonic() >= until:
                return


def batches_of(engines, begin, end):
    """Those that ended in between."""
    return [answer for engine in engines for at, answer in list(engine.batches) if begin <= at < end]


def last_of(engines):
    """What the engines find at the end, one after the other and with time: each has stored what it missed before."""
    told = []
    for engine in engines:
        answer = engine.probe.ask(f"get {HUNG_S * 1000}", 2 * HUNG_S)
        if answer["ok"] < COUNT:
            engine.probe.ask(f"mend {HUNG_S * 1000}", 2 * HUNG_S)
            answer = engine.probe.ask(f"get {HUNG_S * 1000}", 2 * HUNG_S)
        told.append(answer)
    return told


def ratio(batches):
    return round(sum(a["ok"] for a in batches) / (COUNT * len(batches)), 4) if batches else None


def misses_of(batches):
    """How many blocks were missed, by reason."""
    misses = {}
    for answer in batches:
        for name, count in answer.items():
            if name not in ("seconds", "ok", "wrong", "dram", "local", "pod") and count > 0:
                misses[name] = misses.get(name, 0) + count
    return misses


def worst_second(batches):
    """The lowest hit ratio of a second, counted from the first one; whole seconds only. [(at, answer)]"""
    if not batches:
        return None
    first, last = min(at for at, _ in batches), max(at for at, _ in batches)
    seconds = {}
    for at, answer in batches:
        seconds.setdefault(int(at - first), []).append(answer)
    return min((ratio(of) for second, of in seconds.items() if second + 1 <= last - first), default=None)


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else 0.0


def rows(living, engines, end):
    """What clients saw from each event to the next."""
    told = []
    for event, after in zip(living.events, [*living.events[1:], {"at": end}]):
        timed = [(at, answer) for engine in engines for at, answer in list(engine.batches)
                 if event["at"] <= at < after["at"]]
        batches = [answer for _, answer in timed]
        late = max((a["seconds"] * 1000 - DEADLINE_MS for a in batches), default=0)
        told.append({"at_s": round(event["at"] - living.events[0]["at"], 2), "kind": event["kind"],
                     "text": event["text"], "batches": len(batches), "hit_ratio": ratio(batches),
                     "hit_ratio_min": worst_second(timed),
                     "p99_ms": round(quantile([a["seconds"] for a in batches], 0.99) * 1000, 1),
                     "late_ms_max": round(max(late, 0), 1), "wrong_bytes": sum(a["wrong"] for a in batches),
                     "misses": misses_of(batches)})
        if "took_s" in event:
            is_back, took_s = event["kind"] == "repair", event["took_s"]
            told[-1]["back_s" if is_back else "exclusion_ms"] = took_s if is_back or took_s is None else took_s * 1000
    return told


# ---- the picture --------------------------------------------------------------------------------

def polyline(points, color):
    return (f'<polyline fill="none" stroke="{color}" stroke-width="1.5" points="' +
            " ".join(f"{x:.1f},{y:.1f}" for x, y in points) + '"/>')


def picture(living, engines, begin, end):
    """Hit ratio above, the 99th percentile of batches below; a line for each event."""
    wide, left, right, heights = 1200, 60, 20, ((40, 200), (260, 200))
    span, bins = end - begin, max(60, min(400, int((end - begin) / 0.5)))

    def x_of(at):
        return left + (wide - left - right) * (at - begin) / span
    hit, slow = [], []
    for i in range(bins):
        batches = batches_of(engines, begin + span * i / bins, begin + span * (i + 1) / bins)
        if batches:
            x = x_of(begin + span * (i + 0.5) / bins)
            hit.append((x, ratio(batches)))
            slow.append((x, quantile([a["seconds"] for a in batches], 0.99) * 1000))
    top = max(DEADLINE_MS, max((ms for _, ms in slow), default=0))
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="640" font-family="sans-serif" '
             'font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for (y, high), title, low_text, high_text in ((heights[0], "blocks that are hits", "0 %", "100 %"),
                                                  (heights[1], "slowest of a hundred batches", "0 ms", f"{top:.0f} ms")):
        lines.append(f'<rect x="{left}" y="{y}" width="{wide - left - right}" height="{high}" fill="none" stroke="#999"/>'
                     f'<text x="{left}" y="{y - 8}">{title}</text>'
                     f'<text x="{left - 6}" y="{y + 10}" text-anchor="end">{high_text}</text>'
                     f'<text x="{left - 6}" y="{y + high}" text-anchor="end">{low_text}</text>')
    (y, high), (y2, high2) = heights
    at_deadline = y2 + high2 * (1 - DEADLINE_MS / top)
    lines.append(f'<line x1="{left}" x2="{wide - right}" y1="{at_deadline:.1f}" y2="{at_deadline:.1f}" stroke="#c33" '
                 f'stroke-dasharray="4"/><text x="{wide - right - 4}" y="{at_deadline + 14:.1f}" text-anchor="end" '
                 'fill="#c33">deadline</text>')
    lines.append(polyline([(x, y + high * (1 - r)) for x, r in hit], "#06c"))
    lines.append(polyline([(x, y2 + high2 * (1 - ms / top)) for x, ms in slow], "#06c"))
    for event in living.events:
        x, color = x_of(event["at"]), "#393" if event["kind"] in (*PLANNED, "repair") else "#c60"
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y2 + high2}" stroke="{color}" '
                     'stroke-width="0.7" stroke-dasharray="2 3"/>')
        if span < 600:
            lines.append(f'<text transform="translate({x + 4:.1f},{y2 + high2 + 8}) rotate(50)" fill="{color}">'
                         f'{event["text"]}</text>')
    lines.append(f'<text x="{left}" y="630">{COUNT} blocks of {BYTES >> 10} KiB a batch, {SERVERS} servers, '
                 f'{span:.0f} s</text></svg>')
    return "\n".join(lines) + "\n"


def judge(told, engines, last, bars):
    for row in told:
        for what, most in bars.items():
            if what in row and (row[what] is None or row[what] > most):
                fail(f"{row['text']}: {what} {row[what]}, at most {most}")
        if row["wrong_bytes"] > 0:
            fail(f"{row['text']}: {row['wrong_bytes']} wrong bytes")
        # A machine that is busy with other work is late, whatever the pod does.
        lost = sum(number for reason, number in row["misses"].items()
                   if bars or reason not in ("deadline", "shed"))
        if row["kind"] in PLANNED and lost > COUNT * row["batches"] / 100:
            fail(f"{row['text']}: {row['hit_ratio']} of the blocks were hits: {row['misses']}")
        if bars and row["kind"] in PLANNED and (row["hit_ratio_min"] or 1) < HIT_RATIO_MIN:
            fail(f"{row['text']}: in one second {row['hit_ratio_min']} of the blocks were hits: {row['misses']}")
    if any(engine.probe.hung for engine in engines):
        fail("a batch hung")
    if any(len(engine.batches) == 0 for engine in engines):
        fail("an engine never asked")
    if ratio(last) != 1.0:
        fail(f"at the end {ratio(last)} of the blocks are hits: {misses_of(last)}")
    if any(answer["wrong"] > 0 for answer in last):
        fail(f"at the end {sum(answer['wrong'] for answer in last)} wrong bytes")


def main():
    options = argparse.ArgumentParser()
    options.add_argument("build")
    options.add_argument("--minutes", type=float, default=0)
    options.add_argument("--out", default="")
    options.add_argument("--bars", action="store_true")
    arguments = options.parse_args()
    out = pathlib.Path(arguments.out or arguments.build)
    own_namespaces()
    with tempfile.TemporaryDirectory(prefix="icms-") as folder, pod.Pod(BUILD, folder) as p:
        living = Living(folder, p)
        engines = [Engine(agent) for agent in living.agents]
        engines[0].probe.ask("put")
        for engine in engines:
            engine.start()
        time.sleep(1)
        begin = time.monotonic()
        living.events.append({"at": begin, "kind": "start", "text": "all is well"})
        time.sleep(2)
        living.play(begin + arguments.minutes * 60, 2 if arguments.minutes == 0 else 10)
        end = time.monotonic()
        time.sleep(2)
        for engine in engines:
            engine.over = True
            engine.join()
        last = last_of(engines)
        told = rows(living, engines, end)
        (out / "living.json").write_text(json.dumps(told, indent=1) + "\n")
        (out / "living.svg").write_text(picture(living, engines, begin, end))
        for row in told:
            print(f"{row['at_s']:8.1f} s  {row['text']:22} {row['batches']:5} batches, hits {row['hit_ratio']}, "
                  f"p99 {row['p99_ms']:7.1f} ms, latest {row['late_ms_max']:6.1f} ms past the deadline"
                  + "".join(f", {what} {row[what]}" for what in ("exclusion_ms", "back_s") if what in row))
        judge(told, engines, last, BARS if arguments.bars else {})
    print(f"ok {len(told)} events, no wrong byte, nothing hung; {out}/living.json, {out}/living.svg")


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv[1]).resolve()
    main()
