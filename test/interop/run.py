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
import sys
import time

import common
import pod  # from tools

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
    enclosures = {f"{key}_{i}": value for i, target in enumerate(targets)
                  for key, value in (("nqn", target.nqn), ("port", target.port))}
    return common.guest_script("guest.sh", address=common.ADDRESS, volumes=2, value_max=VALUE_MAX,
                               **enclosures)


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
                                    advertise_host=common.ADDRESS, segment="16MiB")
                       for i in range(2)]
            for target in targets:
                target.wait_ready()
            guest = common.run_guest(folder, guest_script(targets), arguments.seconds,
                                     lambda verb, number: obey(verb, targets[int(number)]))
            ended = common.end_well(targets)
    except pod.PodError as error:
        print(f"not ok interop: {error}")
        return 1
    return common.verdict(guest, ended)


if __name__ == "__main__":
    sys.exit(main())
