#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Linux kernel connects with TLS 1.3 and a pre-shared key to running enclosures.

Starts an icms-target for each combination that is asked for, boots the guest of tools/guest with
test/interop/tls.sh, and prints its cases, "ok NAME" or "not ok NAME". A combination is what the
enclosure requires, and knows of the host: see COMBINATIONS. The first two of them, or --all.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys

import common
import pod  # from tools

# name, require, files of the host
COMBINATIONS = [
    ("tls", "tls", {"psks": ["right"]}),
    ("chap-tls", "chap+tls", {"psks": ["right"], "secrets": ["secret"]}),
    ("tls-second-key", "tls", {"psks": ["old", "right"]}),
    ("mutual-tls", "chap+tls", {"psks": ["old", "right"], "secrets": ["secret"],
                                "controller_secret": "answer"}),
]


def host_of(keys, files):
    """The guest as an enclosure's configuration has it."""
    paths = {key: str(keys[names]) if isinstance(names, str) else [str(keys[n]) for n in names]
             for key, names in files.items()}
    return json.dumps([{"nqn": common.HOST, **paths}])


def tls_archive():
    """tlshd and a newer nvme-cli, for the guest."""
    cache = subprocess.run([common.ROOT / "tools/guest/build.sh", "tls"], check=True, text=True,
                           stdout=subprocess.PIPE).stdout.strip()
    return pathlib.Path(cache) / "tls.gz"


def check_audit(folder, count):
    """What each enclosure wrote down: no TLS, a wrong key, and passes."""
    wanted = {"it does not begin with TLS, which is required",
              "no key of this host has that identity", "passed"}
    good = True
    for i in range(count):
        lines = [json.loads(line) for line in (folder / f"audit{i}").read_text().splitlines()]
        results = {line["result"] for line in lines if line.get("method") == "tls"}
        fine = wanted <= results
        print(f"{'ok' if fine else 'not ok'} audit log {i} says what happened {sorted(results)}")
        good = good and fine
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build", help="where Meson built")
    parser.add_argument("--all", action="store_true", help="every combination")
    parser.add_argument("--seconds", type=int, default=600, help="limit for the guest")
    arguments = parser.parse_args()
    build = pathlib.Path(arguments.build).resolve()
    folder = build / "interop-tls"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    keys = {name: common.make_key(build, folder, name, "--type", "tls", "--hash", "sha256")
            for name in ("right", "wrong", "old")}
    keys.update({name: common.make_key(build, folder, name, "--hash", "sha256")
                 for name in ("secret", "answer")})
    chosen = COMBINATIONS if arguments.all else COMBINATIONS[:2]
    try:
        with pod.Pod(arguments.build, folder) as p:
            targets = [p.add_target(name, 1, "256MiB",
                                    [{"name": "kv", "sealed": "false", "value_max": "1MiB"}],
                                    advertise_host=common.ADDRESS, segment="16MiB", require=require,
                                    hosts=host_of(keys, files), audit=str(folder / f"audit{i}"),
                                    header_timeout="60s")  # the guest's processor is emulated
                       for i, (name, require, files) in enumerate(chosen)]
            for target in targets:
                target.wait_ready()
            lines = "\n".join(f"{t.name} {t.nqn} {t.port}" for t in targets)
            texts = {name: path.read_text().strip() for name, path in keys.items()}
            script = common.guest_script("tls.sh", hostnqn=common.HOST, hostid=common.HOST_ID,
                                         enclosures=lines, **texts)
            guest = common.run_guest(folder, script, arguments.seconds,
                                     options=["-a", tls_archive()])
            good = check_audit(folder, len(chosen))
            good = common.end_well(targets) and good
    except (pod.PodError, subprocess.CalledProcessError) as error:
        print(f"not ok interop tls: {error}")
        return 1
    return common.verdict(guest, good)


if __name__ == "__main__":
    sys.exit(main())
