#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every program for developers that takes options explains itself: --help prints its usage and ends
with 0. A program is found by its use of argparse."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("tools", "bench", "demo", "test", "integrations")


def programs():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in ("", ".py") and path != pathlib.Path(__file__) \
                    and "argparse.ArgumentParser(" in path.read_text(errors="replace"):
                yield path


def main():
    found, wrong = list(programs()), []
    for path in found:
        done = subprocess.run([sys.executable, str(path), "--help"], capture_output=True, text=True,
                              timeout=60, check=False)
        if done.returncode != 0 or not done.stdout.startswith("usage: "):
            said = (done.stderr or done.stdout).strip().splitlines()[-1:]
            wrong.append(f"{path.relative_to(ROOT)} --help: exit status {done.returncode}: "
                         f"{''.join(said)}")
    print("\n".join(wrong) or f"{len(found)} programs explain themselves")
    return 1 if wrong or not found else 0


if __name__ == "__main__":
    sys.exit(main())
