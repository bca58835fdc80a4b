#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A volume that is reset by its generation.

Goal: after the generation of a volume was raised in all daemons no block of the former one is found,
what is stored then is found, and a generation that was left is refused.
Method: an enclosure and an agent on loopback, restarted with another generation in their files; the
icms program.

usage: generation.py BUILD_ROOT
"""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import expect  # noqa: E402

VOLUME = {"name": "kv", "value_max": "64KiB", "memory_max": "4MiB", "generation": 0}


def icms(build, agent, *arguments, value=None):
    return subprocess.run([build / "cmd/icms", arguments[0], "--open", f"unix:{agent.socket}",
                           *arguments[1:]], input=value, capture_output=True, text=True, timeout=30)


def rewrite(daemon, former, generation):
    path = pathlib.Path(daemon.config_path)
    text = path.read_text()
    assert f"generation: {former}" in text
    path.write_text(text.replace(f"generation: {former}", f"generation: {generation}"))


def reset(daemons, former, generation):
    for daemon in daemons:
        daemon.stop()
        rewrite(daemon, former, generation)
    for daemon in daemons:
        daemon.start()
        daemon.wait_ready()


def main():
    build = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="icms-") as folder:
        with pod.Pod(build, folder) as p:
            target = p.add_target("enclosure0", 2, "64MiB", [VOLUME], segment="1MiB",
                                  memory="16MiB")
            target.wait_ready()
            agent = p.add_agent("server-a", [target], [VOLUME])
            agent.wait_ready()
            put = icms(build, agent, "put", "--on-flash", "block", value="first")
            expect("stored in generation 0", put.returncode == 0, put)
            reset([target, agent], 0, 1)
            got = icms(build, agent, "get", "block")
            expect("not found in generation 1", got.returncode == 1 and got.stdout == "", got)
            put = icms(build, agent, "put", "--on-flash", "block", value="second")
            expect("stored in generation 1", put.returncode == 0, put)
            got = icms(build, agent, "get", "block")
            expect("found in generation 1", got.stdout == "second", got)
            reset([target, agent], 1, 2)
            got = icms(build, agent, "get", "block")
            expect("not found in generation 2", got.returncode == 1 and got.stdout == "", got)
            target.stop()
            rewrite(target, 2, 0)
            target.start()
            expect("a generation that was left is refused", target.process.wait(timeout=60) == 2, target.log_tail())
            expect("with what to do", "generation" in target.log_tail() and "kv" in target.log_tail(), target.log_tail())
            rewrite(target, 0, 3)
            target.start()
            target.wait_ready()
            agent.stop()
            rewrite(agent, 2, 3)
            agent.start()
            agent.wait_ready()
            got = icms(build, agent, "get", "block")
            expect("not found in generation 3", got.returncode == 1 and got.stdout == "", got)


main()
