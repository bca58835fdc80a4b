#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Linux kernel authenticates at running enclosures, with DH-HMAC-CHAP, and they at it.

Starts an icms-target for each hash and group that is asked for, boots the guest of tools/guest with
test/interop/auth.sh, and prints its cases, "ok NAME" or "not ok NAME". Two combinations; --all: each
of 3 hashes with each of 6 groups.
"""
import argparse
import json
import pathlib
import shutil
import sys

import common
import pod  # from tools

HASHES = ["sha256", "sha384", "sha512"]
GROUPS = ["null", "ffdhe2048", "ffdhe3072", "ffdhe4096", "ffdhe6144", "ffdhe8192"]
FEW = [("sha256", "null"), ("sha512", "ffdhe3072")]


def check_audit(folder, targets):
    """What the first enclosure wrote down: a wrong secret, none in time or refused, and passes."""
    lines = [json.loads(line) for line in (folder / "audit0").read_text().splitlines()]
    lines = [line for line in lines if line["event"] not in ("volume", "host")]
    results = {line["result"] for line in lines}
    good = {"passed", "passed, mutual", "wrong secret"} <= results and \
        all(line["host"] == common.HOST and line["event"] == "authentication" for line in lines)
    print(f"{'ok' if good else 'not ok'} the audit log says what happened {sorted(results)}")
    metrics = targets[0].metrics()
    failed = metrics['icms_target_auths_total{result="failed"}']
    good = good and failed >= 2
    print(f"{'ok' if failed >= 2 else 'not ok'} failures are counted ({failed})")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build", help="where Meson built")
    parser.add_argument("--all", action="store_true", help="every hash and group")
    parser.add_argument("--seconds", type=int, default=900, help="limit for the guest")
    arguments = parser.parse_args()
    build = pathlib.Path(arguments.build).resolve()
    folder = build / "interop-auth"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    keys = {name: common.make_key(build, folder, name, "--hash", key_hash) for name, key_hash in
            [("right", "sha256"), ("old", "none"), ("wrong", "sha256"), ("answer", "sha512")]}
    pairs = [(h, g) for h in HASHES for g in GROUPS] if arguments.all else FEW
    host = json.dumps([{"nqn": common.HOST, "secrets": [str(keys["old"]), str(keys["right"])],
                        "controller_secret": str(keys["answer"])}])
    try:
        with pod.Pod(arguments.build, folder) as p:
            targets = [p.add_target(f"{h}-{g}", 1, "256MiB", [{"name": "kv", "sealed": "false",
                                                              "value_max": "1MiB"}],
                                    advertise_host=common.ADDRESS, segment="16MiB", require="chap",
                                    hosts=host, chap_hashes=f"[{h}]", chap_groups=f"['{g}']",
                                    audit=str(folder / f"audit{i}"),
                                    header_timeout="60s")  # the guest's processor is emulated
                       for i, (h, g) in enumerate(pairs)]
            for target in targets:
                target.wait_ready()
            lines = "\n".join(f"{t.name} {t.nqn} {t.port}" for t in targets)
            texts = {name: keys[name].read_text().strip() for name in ("right", "wrong", "answer")}
            script = common.guest_script("auth.sh", hostnqn=common.HOST, hostid=common.HOST_ID,
                                         enclosures=lines, **texts)
            guest = common.run_guest(folder, script, arguments.seconds)
            good = check_audit(folder, targets)
            good = common.end_well(targets) and good
    except pod.PodError as error:
        print(f"not ok interop auth: {error}")
        return 1
    return common.verdict(guest, good)


if __name__ == "__main__":
    sys.exit(main())
