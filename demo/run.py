#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo: a real model's KV cache goes from one server to another through a pod of flash.

Starts two enclosures (icms-target, two drives each) and two GPU servers (an icms-agent and an
engine process each) on loopback. Server A computes a long prompt and stores its KV; server B loads
it and must say exactly what an engine without a tier says. Then blocks are removed and a fresh server fills
the holes, and a fresh server B loads once more while an enclosure is killed under it: both must still
say the same. A third server has a drive of its own: blocks come from the pod, from memory and from that
drive, and a session is brought into memory while its user thinks.

With --secure everything is turned on: each server has keys of its own, and proves itself and has the
enclosures prove themselves with DH-HMAC-CHAP, connections are TLS, and the volume is encrypted by the
engines.

Prints a table and writes the figures to demo.json in the build folder. Exits with 0 only when every
answer was identical, blocks were reused and came from where they were, and the kill left both hits and
misses that say enclosure_down.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
import secure  # noqa: E402

BLOCK_TOKENS = 256
VOLUME = {"name": "chat", "value_max": "8MiB", "run_blocks": 1, "memory_max": "128MiB"}
PROMPTS = ["flash-handbook.txt", "the-tide-clerk.txt"]
SHORT_TOKENS = 2100  # eight blocks, four runs: the fewest that leave something to lose
KILL_AFTER = 3       # blocks that server B has received when the enclosure dies
SERVERS = ["server-a", "server-b", "server-b2", "server-c", "server-d", "prober"]
THINK_SECONDS = 2    # a user, before the prompt is sent, whatever has come by then
ENGINE_SECONDS = 600 # an engine that takes longer than this hangs


class Demo:
    """What all steps share."""

    def __init__(self, arguments):
        self.begin = time.monotonic()
        self.build = pathlib.Path(arguments.build).resolve()
        self.folder = self.build / "demo"
        self.engine = self.build / "demo/engine"
        self.model = pathlib.Path(arguments.model)
        self.short = arguments.short
        self.secure = arguments.secure
        self.keys = secure.Keys(self.build, self.folder / "pod")
        self.volume = {**VOLUME, **({"encrypted": "true"} if self.secure else {})}
        self.rows = []
        self.checks = []

    def say(self, text):
        print(f"[{time.monotonic() - self.begin:5.1f} s] {text}", flush=True)

    def add_agent(self, p, name, targets, **more):
        """A server's agent, with its keys where the pod asks for them."""
        if self.secure:
            more.update(self.keys.agent(name))
        agent = p.add_agent(name, targets, [self.volume], **more)
        agent.wait_ready()
        return agent

    def check(self, name, good, detail=""):
        """One thing that must hold for the demo to succeed."""
        self.checks.append((name, bool(good), detail))

    def engine_command(self, mode, prompt, agent=None):
        command = [str(self.engine), "--mode", mode, "--model", str(self.model),
                   "--prompt", str(ROOT / "demo/prompts" / prompt)]
        if self.short:
            command += ["--tokens-max", str(SHORT_TOKENS)]
        if agent:
            command += ["--tier", f"unix:{agent.socket}", "--volume", VOLUME["name"]]
        return command

    def run_engine(self, mode, prompt, agent=None):
        """Runs one engine process to its end and returns what it printed."""
        result = subprocess.run(self.engine_command(mode, prompt, agent), capture_output=True, check=False,
                                stdin=subprocess.DEVNULL, timeout=ENGINE_SECONDS)
        return engine_result(mode, result.returncode, result.stdout, result.stderr)

    def run_thinking(self, prompt, agent, sends):
        """The same with a user who thinks first: sends() returns when the prompt is sent."""
        with subprocess.Popen([*self.engine_command("load", prompt, agent), "--think"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as engine:
            try:
                line = engine.stdout.readline()
                hints = json.loads(line)["hints"] if line else 0
                if line:
                    sends()
                output, errors = engine.communicate(b"\n", timeout=ENGINE_SECONDS)
            finally:
                if engine.poll() is None:
                    engine.kill()
        return hints, engine_result("load", engine.returncode, output, errors)


def engine_result(mode, code, output, errors):
    """What an engine printed last; PodError when it failed."""
    errors = errors.decode(errors="replace").strip()
    if code != 0:
        raise pod.PodError(f"the engine ({mode}) ended with {code}: {errors}")
    if errors:
        print(errors)
    return json.loads(output.decode(errors="replace").splitlines()[-1])


def same_answer(one, other):
    """Equal tokens, and equal logits to the last digit."""
    return one["tokens"] == other["tokens"] and one["logit_sum"] == other["logit_sum"]


def network_bytes(result):
    return bytes_from(result, "pod")


def bytes_from(result, source):
    return sum(b["bytes"] for b in result["block_results"] if b["source"] == source)


def misses_by_reason(result):
    reasons = {}
    for block in result["block_results"]:
        if block["status"] == "miss":
            reasons[block["reason"]] = reasons.get(block["reason"], 0) + 1
    return reasons


def add_row(demo, name, result, reference):
    """Adds a line of the table."""
    misses = ", ".join(f"{n} {reason}" for reason, n in misses_by_reason(result).items())
    moved = result["bytes"]
    blocks = {"none": "", "store": f"{len(stored(result))} stored",
              "load": f"{result['reused_blocks']} loaded",
              "serve": f"{result['reused_blocks']} loaded, {result['stored_blocks']} stored",
              }[result["mode"]]
    demo.rows.append([
        name,
        f"{result['ttft_s']:.2f} s",
        f"{result['reused_tokens']} of {result['prompt_tokens']}",
        blocks + (f", lost: {misses}" if misses else ""),
        f"{moved / 1e6:.1f} MB" if moved else "",
        f"{moved / 1e9 / result['move_s']:.2f}" if moved and result["move_s"] > 0 else "",
        "reference" if result is reference else "yes" if same_answer(result, reference) else "NO",
    ])


def stored(result):
    return [b for b in result["block_results"] if b["status"] == "stored"]


def print_table(demo):
    head = ["", "first token", "tokens reused", "blocks", "bytes", "GB/s", "identical"]
    rows = [head] + demo.rows
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    print()
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        print("  ".join(cells).rstrip())
    print()


def start_pod(demo, p):
    """Two enclosures and the agents of two servers."""
    if demo.secure:
        demo.keys.volume(VOLUME["name"])
    targets = [p.add_target(f"enclosure{i}", 2, "512MiB", [demo.volume], segment="32MiB",
                            **(demo.keys.target(SERVERS) if demo.secure else {})) for i in range(2)]
    for target in targets:
        target.wait_ready()
    agents = [demo.add_agent(p, name, targets) for name in ("server-a", "server-b")]
    if demo.secure:
        for agent in agents:
            secure.wait_proven(agent)
        demo.check("every server and enclosure proved itself, over TLS", True)
    return targets, agents


def share_prompt(demo, agents, prompt):
    """Reference, server A, server B for one prompt; returns the three results."""
    demo.say(f"{prompt}: an engine without a tier computes everything")
    cold = demo.run_engine("none", prompt)
    add_row(demo, f"{prompt}, no tier", cold, cold)
    demo.say(f"{prompt}: server A computes everything and stores {cold['blocks']} blocks")
    a = demo.run_engine("store", prompt, agents[0])
    add_row(demo, "  server A, stores", a, cold)
    demo.say(f"{prompt}: server B loads them over NVMe/TCP")
    b = demo.run_engine("load", prompt, agents[1])
    add_row(demo, "  server B, loads", b, cold)
    demo.check(f"{prompt}: server A stored every whole block", len(stored(a)) == cold["blocks"],
               f"{len(stored(a))} of {cold['blocks']}")
    demo.check(f"{prompt}: server A's answer is identical", same_answer(a, cold))
    demo.check(f"{prompt}: server B reused every block over the network",
               b["reused_blocks"] == cold["blocks"] and network_bytes(b) == b["bytes"] > 0,
               f"{b['reused_blocks']} of {cold['blocks']}, {misses_by_reason(b)}")
    demo.check(f"{prompt}: server B's answer is identical", same_answer(b, cold))
    return cold, a, b


def loaded_from(agent):
    """Returns {enclosure's name: bytes that the agent has loaded from it}."""
    status, text = agent.get("/status")
    if status != 200:
        raise pod.PodError(f"{agent.name} gives no status: {status} {text}")
    return {e["name"]: e["load_bytes"] for e in json.loads(text)["enclosures"]}


def hints_of(agent):
    """What became of hints at an agent."""
    return json.loads(agent.get("/status")[1])["volumes"][0]["prestage"]


def wait_for_hints(agent, count):
    """Until so many blocks wait to be asked for, or hints have ended otherwise."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        hints = hints_of(agent)
        if hints["waiting"] >= count or hints["queued"] + hints["loading"] + hints["waiting"] == 0:
            return
        time.sleep(0.05)


def restarted(agent):
    """With empty memory, and its drive as it was."""
    agent.stop()
    agent.start()
    agent.wait_ready()


def use_tiers(demo, p, targets, agent, prompt, cold, b, keys):
    """The same blocks from the pod (server B's load), from memory, and from a server's own drive, and of a
    session whose user thinks."""
    results = {"pod": b}
    demo.say(f"{prompt}: server B loads them from its memory")
    results["dram"] = demo.run_engine("load", prompt, agent)
    add_row(demo, "  server B, from memory", results["dram"], cold)
    path = demo.folder / "pod/server-d-drive"
    server = demo.add_agent(p, "server-d", targets, local=f"{{path: {path}, size: 512MiB, segment: 32MiB}}")
    demo.say(f"{prompt}: server D brings them to its own drive, restarts, and loads them from there")
    subprocess.run([str(demo.build / "cmd/icms"), "prestage", "--open", f"unix:{server.socket}", "--volume",
                    VOLUME["name"], "--hex", "--tier", "local", "--deadline", "60s", *keys], check=True,
                   stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    wait_for_hints(server, len(keys))
    restarted(server)
    results["local"] = demo.run_engine("load", prompt, server)
    add_row(demo, "  server D, from its drive", results["local"], cold)
    restarted(server)
    demo.say(f"{prompt}: the user of a session thinks; server D brings its blocks into memory meanwhile")

    hints, session = demo.run_thinking(prompt, server, lambda: time.sleep(THINK_SECONDS))
    add_row(demo, "  server D, user thought", session, cold)
    wait_for_hints(server, 1)
    ended = hints_of(server)
    server.stop()
    path.unlink()
    for source, result in results.items():
        demo.check(f"every block came from {source}", bytes_from(result, source) == result["bytes"] > 0 and
                   result["reused_blocks"] == cold["blocks"],
                   str([block["source"] for block in result["block_results"]]))
    demo.check("the blocks of a session were in memory before they were asked for",
               bytes_from(session, "dram") == session["bytes"] > 0 and
               hints == ended["in_time"] == cold["blocks"], f"{hints} hints, {ended}")
    demo.check("from each tier the answer is identical",
               all(same_answer(result, cold) for result in [*results.values(), session]))
    return ({source: {"first_token_s": result["ttft_s"], "bytes": bytes_from(result, source)}
             for source, result in results.items()},
            {"in_time": ended["in_time"], "late": ended["late"], "unused": ended["unused"],
             "first_token_s": session["ttft_s"]})


def owners(demo, p, targets, keys):
    """Finds out which enclosure each block lies on: fetches them one by one through an agent of
    their own and looks whose count of bytes grew."""
    agent = demo.add_agent(p, "prober", targets)
    found = []
    before = loaded_from(agent)
    for key in keys:
        subprocess.run([str(demo.build / "cmd/icms"), "get", "--open", f"unix:{agent.socket}",
                        "--volume", VOLUME["name"], "--hex", key],
                       check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        after = loaded_from(agent)
        found.append(next(name for name in after if after[name] > before[name]))
        before = after
    agent.stop()
    return found


def lose_blocks(demo, p, targets, agent, prompt, cold, keys):
    """Two blocks in the middle are gone; a fresh server loads the others, computes these in order of
    position, and stores them again."""
    holes = [keys[1], keys[4]]
    subprocess.run([str(demo.build / "cmd/icms"), "rm", "--open", f"unix:{agent.socket}", "--volume",
                    VOLUME["name"], "--hex", *holes], check=True, stdout=subprocess.DEVNULL,
                   stdin=subprocess.DEVNULL)
    agent = demo.add_agent(p, "server-c", targets)
    demo.say(f"{prompt}: two blocks are removed; a fresh server loads the others and fills the holes")
    result = demo.run_engine("serve", prompt, agent)
    add_row(demo, "  server C, two holes", result, cold)
    lost = [block["key"] for block in result["block_results"] if block["status"] == "miss"]
    demo.check("with holes every other block was loaded",
               lost == holes and result["reused_blocks"] == cold["blocks"] - 2,
               f"{result['reused_blocks']} of {cold['blocks']}, lost {lost}")
    demo.check("with holes these were computed and stored",
               result["holes_computed"] == result["stored_blocks"] == 2)
    demo.check("with holes the answer is identical", same_answer(result, cold))
    return {"identical": same_answer(result, cold), "hits": result["reused_blocks"],
            "ttft_s": result["ttft_s"]}


def lose_enclosure(demo, p, targets, prompt, cold, keys):
    """A fresh server B loads while the enclosure that owns most of what is left is killed."""
    lies_on = owners(demo, p, targets, keys)
    left = lies_on[KILL_AFTER:]
    victim = max(targets, key=lambda target: left.count(target.name))
    demo.check("both enclosures hold blocks", len(set(lies_on)) == len(targets), str(lies_on))
    # Not the agent: the fault point where an enclosure's answer arrives kills the enclosure.
    agent = demo.add_agent(p, "server-b2", targets,
                           faults=f"agent.answer:{KILL_AFTER}:kill={victim.pid}")
    demo.say(f"{prompt}: a fresh server B loads; {victim.name} is killed after "
             f"{KILL_AFTER} blocks")
    result = demo.run_engine("load", prompt, agent)
    add_row(demo, f"  server B, {victim.name} killed", result, cold)
    misses = misses_by_reason(result)
    demo.check("the enclosure was killed", victim.process.poll() is not None)
    demo.check("with the enclosure killed the answer is identical", same_answer(result, cold))
    demo.check("with the enclosure killed some blocks were hits", result["reused_blocks"] > 0)
    demo.check("with the enclosure killed some misses say enclosure_down",
               misses.get("enclosure_down", 0) > 0, str(misses))
    return {"victim": victim.name, "identical": same_answer(result, cold),
            "hits": result["reused_blocks"], "misses_by_reason": misses,
            "ttft_s": result["ttft_s"], "blocks": result["block_results"]}


def figures(cold, a, b):
    """The figures of one prompt, as in demo.json."""
    return {
        "cold_ttft_s": cold["ttft_s"],
        "warm_ttft_s": b["ttft_s"],
        "prompt_tokens": cold["prompt_tokens"],
        "reused_tokens": b["reused_tokens"],
        "blocks": b["reused_blocks"],
        "bytes_over_nvme_tcp": network_bytes(b),
        "store_s": a["move_s"],
        "load_s": b["move_s"],
        "identical": same_answer(a, cold) and same_answer(b, cold),
    }


def run(demo):
    """All steps; returns what goes into demo.json."""
    shutil.rmtree(demo.folder / "pod", ignore_errors=True)
    prompts = PROMPTS[:1] if demo.short else PROMPTS
    with pod.Pod(demo.build, demo.folder / "pod") as p:
        demo.say("starting two enclosures and the agents of two servers")
        targets, agents = start_pod(demo, p)
        results = {prompt: share_prompt(demo, agents, prompt) for prompt in prompts}
        first = prompts[0]
        cold, a, b = results[first]
        keys = [block["key"] for block in a["block_results"]]
        tiers, prestage = use_tiers(demo, p, targets, agents[1], first, cold, b, keys)
        holes = lose_blocks(demo, p, targets, agents[0], first, cold, keys)
        kill = lose_enclosure(demo, p, targets, first, cold, keys)
    for target in targets:
        for drive in target.drives:  # 2 GiB of files; configurations and logs stay
            drive.unlink()
    document = figures(*results[first])
    document["tiers"] = tiers
    document["prestage"] = prestage
    document["holes"] = holes
    document["kill"] = kill
    document["prompts"] = {prompt: figures(*results[prompt]) for prompt in prompts}
    return document


def print_kill(kill):
    """What became of each block while an enclosure died."""
    print(f"What server B got while {kill['victim']} was killed:")
    for i, block in enumerate(kill["blocks"]):
        what = "loaded" if block["status"] == "hit" else f"recomputed: {block['reason']}"
        print(f"  block {i:2}  tokens {i * BLOCK_TOKENS:4}-{(i + 1) * BLOCK_TOKENS - 1:4}  {what}")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build", help="where Meson built")
    parser.add_argument("--model", required=True, help="the model file, from tools/llama.sh")
    parser.add_argument("--short", action="store_true", help="one prompt, cut, for the tests")
    parser.add_argument("--secure", action="store_true",
                        help="with authentication, TLS and an encrypted volume")
    demo = Demo(parser.parse_args())
    try:
        document = run(demo)
    except (pod.PodError, OSError, subprocess.SubprocessError, ValueError) as error:
        print(f"not ok demo: {error}")
        return 1
    print_table(demo)
    print_kill(document["kill"])
    good = True
    for name, passed, detail in demo.checks:
        print(f"{'ok' if passed else 'not ok'} {name}" + ("" if passed else f" ({detail})"))
        good = good and passed
    speed = document["cold_ttft_s"] / document["warm_ttft_s"]
    print(f"\nThe first token came {speed:.1f} times sooner from the tier.")
    document["ok"] = good
    figures_path = demo.build / ("demo" + "-short" * demo.short + "-secure" * demo.secure + ".json")
    figures_path.write_text(json.dumps(document, indent=2) + "\n")
    print(f"All figures: {figures_path}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
