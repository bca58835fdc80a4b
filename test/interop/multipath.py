#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Linux host with NVMe multipath follows a failed portal, and volumes that come and go.

Starts an icms-target with two portals, each behind a proxy, and boots the guest of tools/guest with
test/interop/multipath.sh. The guest asks for a portal to fail, fall silent or return, and for volumes
to be deleted, created and reset. Prints its cases, "ok NAME" or "not ok NAME". --deep: portals that fall
silent, with digests, and fail in turns.
"""
import argparse
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import common
import pod  # from tools
import proxy

VOLUMES = [{"name": "kv", "value_max": "1MiB", "sealed": "false", "quota": "64MiB"},
           {"name": "second", "value_max": "1MiB", "sealed": "false", "quota": "64MiB"}]


class Judge:
    """Does what the guest asks for."""

    def __init__(self, build, target, links):
        self.build, self.target, self.links = build, target, links

    def volume(self, *words):
        """icms volume, and the target reads its file again."""
        done = subprocess.run([self.build / "cmd/icms", "volume", *words, "--yes", "--file",
                               self.target.config_path], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"not ok icms volume {words}: {done.stdout}{done.stderr}")
        self.target.signal(signal.SIGHUP)
        return done.returncode == 0

    def counted(self, first, second):
        """Whether the target has as many connections through each portal."""
        metrics = self.target.metrics()
        got = [int(value) for name, value in metrics.items()
               if name.startswith("icms_target_portal_connections{")]
        good = got == [int(first), int(second)]
        print(f"{'ok' if good else 'not ok'} the target counts {first} and {second} connections "
              f"through its portals {got}")
        return good

    def losses(self, ports):
        """Whether the log names each portal through which a controller was lost."""
        log = self.target.log_path.read_text(errors="replace")
        good = all(re.search(rf"controller lost: .* portal=127\.0\.0\.1:{port} ", log) for port in ports)
        print(f"{'ok' if good else 'not ok'} the log names the portals of lost controllers")
        if not good:
            print(self.target.log_tail())
        return good

    def obey(self, verb, *words):
        if verb == "down":
            self.links[int(words[0])].down()
        elif verb == "up":
            self.links[int(words[0])].up()
        elif verb == "silent":
            self.links[int(words[0])].is_cut = True
        elif verb == "heard":
            self.links[int(words[0])].is_cut = False
        elif verb == "delete":
            return self.volume("delete", "second")
        elif verb == "create":
            return self.volume("create", "second", "value_max=1MiB", "sealed=false", "quota=64MiB")
        elif verb == "reset":
            return self.volume("reset", "second")
        elif verb == "counted":
            return self.counted(*words)
        else:
            raise ValueError(f"the guest asks for {verb}")
        return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build", help="where Meson built")
    parser.add_argument("--deep", action="store_true", help="more faults, with digests")
    parser.add_argument("--seconds", type=int, default=600, help="limit for the guest")
    arguments = parser.parse_args()
    build = pathlib.Path(arguments.build).resolve()
    folder = build / "interop-multipath"
    shutil.rmtree(folder, ignore_errors=True)
    ports = [pod.free_port() for _ in range(2)]
    links = [proxy.Proxy(port) for port in ports]
    try:
        with pod.Pod(arguments.build, folder) as p:
            target = p.add_target(
                "enclosure0", 1, "256MiB", VOLUMES, segment="16MiB",
                listen="[" + ", ".join(f"127.0.0.1:{port}" for port in ports) + "]",
                advertise="[" + ", ".join(f"{common.ADDRESS}:{link.port}" for link in links) + "]")
            target.wait_ready()
            script = common.guest_script("multipath.sh", hostnqn=common.HOST, hostid=common.HOST_ID,
                                         nqn=target.nqn, port_0=links[0].port, port_1=links[1].port,
                                         address=common.ADDRESS, deep=int(arguments.deep))
            judge = Judge(build, target, links)
            guest = common.run_guest(folder, script, arguments.seconds, judge.obey)
            good = judge.losses(ports)
            good = common.end_well([target]) and good
    except pod.PodError as error:
        print(f"not ok interop multipath: {error}")
        return 1
    return common.verdict(guest, good)


if __name__ == "__main__":
    sys.exit(main())
