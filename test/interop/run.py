#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The judge from outside: a Linux kernel and stock nvme-cli against two running enclosures.

Starts two icms-target on loopback, boots the guest of tools/guest with test/interop/guest.sh, and
does to the targets what the guest asks for: killing, restarting, stopping. Prints the guest's
cases, "ok NAME" or "not ok NAME". Exits with 0 only when the guest came to its end and every case
was ok.
"""
import argparse
import pathlib
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402

VALUE_MAX = 8 << 20
DOWN_S = 3  # how long a killed target stays away: the host tries to reconnect meanwhile

VOLUMES = [
    {"name": "interop", "value_max": "8MiB", "sealed": "false", "quota": "256MiB"},
    {"name": "second", "value_max": "1MiB", "sealed": "false", "quota": "64MiB"},
    {"name": "private", "value_max": "1MiB", "sealed": "false",
     "hosts": "[nqn.2026-01.io.icms:another-host]"},
]


def guest_script(targets):
    """The assignments that guest.sh wants, and guest.sh."""
    lines = [f"nqn_{i}={target.nqn} port_{i}={target.port}" for i, target in enumerate(targets)]
    lines += ["address=10.0.2.2", "volumes=2", f"value_max={VALUE_MAX}"]
    return "\n".join(lines) + "\n" + (ROOT / "test/interop/guest.sh").read_text()


HOST_LOST = "controller lost: no command within the keep-alive timeout"


def logged(wanted, target):
    """Whether the target's log has, or lacks, a line about a host that disappeared."""
    good = (HOST_LOST in target.log_path.read_text(errors="replace")) == wanted
    print(f"{'ok' if good else 'not ok'} {target.name} logs "
          f"{'the loss of its host' if wanted else 'no loss of a host that disconnected'}")
    if not good:
        print(target.log_tail())
    return good


def obey(verb, target):
    """Does to a target what the guest asks for; false when a case of its own failed."""
    if verb in ("lost", "unlost"):
        return logged(verb == "lost", target)
    if verb == "kill":
        target.kill()
        time.sleep(DOWN_S)
        target.start()
    elif verb == "stop":
        target.signal(signal.SIGSTOP)
    elif verb == "continue":
        target.signal(signal.SIGCONT)
    else:
        raise ValueError(f"the guest asks for {verb}")
    return True


def run_guest(folder, targets, seconds):
    """Boots the guest and returns (its exit status, how many cases were ok, and not ok)."""
    script = folder / "guest.sh"
    script.write_text(guest_script(targets))
    command = [ROOT / "tools/guest/run.sh", "-t", str(seconds), "-c", folder / "console", script]
    counts = {"ok": 0, "not": 0}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as guest:
        for line in guest.stdout:
            print(line, end="", flush=True)
            words = line.split()
            if words[:1] == ["driver"]:
                if not obey(words[1], targets[int(words[2])]):
                    counts["not"] += 1
            elif words and words[0] in counts:
                counts[words[0]] += 1
    return guest.returncode, counts["ok"], counts["not"]


def end_well(targets):
    """After all this the targets have to be alive, and to end with status 0 when asked to: under
    sanitizers that also says that nothing leaked."""
    good = True
    for target in targets:
        status = target.process.poll()
        alive = status is None
        if alive:
            status = target.stop(seconds=60)
        print(f"{'ok' if alive else 'not ok'} {target.name} is still running")
        print(f"{'ok' if status == 0 else 'not ok'} {target.name} ends when asked ({status})")
        if status != 0:
            print(target.log_tail())
        good = good and alive and status == 0
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build", help="where Meson built")
    parser.add_argument("--seconds", type=int, default=900, help="limit for the guest")
    arguments = parser.parse_args()

    folder = pathlib.Path(arguments.build).resolve() / "interop"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with pod.Pod(arguments.build, folder) as p:
            targets = [p.add_target(f"enclosure{i}", 2, "512MiB", VOLUMES,
                                    advertise_host="10.0.2.2", segment="16MiB")
                       for i in range(2)]
            for target in targets:
                target.wait_ready()
            status, passed, failed = run_guest(folder, targets, arguments.seconds)
            ended = end_well(targets)
    except pod.PodError as error:
        print(f"not ok interop: {error}")
        return 1
    print(f"guest: exit status {status}, {passed} ok, {failed} not ok")
    return 0 if status == 0 and passed > 0 and failed == 0 and ended else 1


if __name__ == "__main__":
    sys.exit(main())
