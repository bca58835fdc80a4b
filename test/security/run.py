#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every attack of this folder, one after the other; fails when one of them succeeds.

usage: run.py BUILD_ROOT
"""
import pathlib
import subprocess
import sys
import time

FOLDER = pathlib.Path(__file__).resolve().parent
ATTACKS = ["stranger.py", "middle.py", "local.py"]


def main(build):
    failed = []
    for attack in ATTACKS:
        began = time.monotonic()
        result = subprocess.run([sys.executable, FOLDER / attack, build], check=False, timeout=200)
        verdict = {0: "held", 77: "skipped"}.get(result.returncode, "FAILED")
        print(f"{attack}: {verdict}, {time.monotonic() - began:.1f} s", flush=True)
        if verdict == "FAILED":
            failed.append(attack)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
