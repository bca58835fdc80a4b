# SPDX-License-Identifier: Apache-2.0
"""What the checks in this folder share: the files of the tree, and how a check ends."""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Sources of tests beside the product's: tests and fuzzers, and what those share, with benches too;
# the simulated back end of the loop included.
TESTS = re.compile(r"(_test|_rig|_bed|_stress|_fuzz|_fake|_verify|_million|_test_\w+|/fake_\w+|/test_\w+|"
                   r"/fault_arm|/mem_transport|/loop/sim\w*)\.[ch]$")


def files():
    """Paths of all files of the project, relative to its root, sorted; no build outputs."""
    try:
        listed = subprocess.run(
            ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True, capture_output=True).stdout.decode().split("\0")
        found = [path for path in listed if path]
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive
        found = []
        for folder, folders, names in os.walk(ROOT):
            folders[:] = [f for f in folders if not f.startswith((".", "build"))]
            found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names]
    return sorted(path for path in set(found) if os.path.isfile(os.path.join(ROOT, path)))


def read(path):
    """The text of a file; None when it is not text."""
    with open(os.path.join(ROOT, path), "rb") as file:
        data = file.read()
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def sources(suffixes=(".c", ".h")):
    return [path for path in files() if path.endswith(suffixes)]


def end(name, wrong):
    """Prints what is wrong and exits with 1, or with 0."""
    for line in wrong:
        print(f"{name}: {line}", file=sys.stderr)
    sys.exit(1 if wrong else 0)
