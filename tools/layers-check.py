#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""layers-check.py: fails when a module includes one that tools/layers.txt does not allow it.

A module is a folder of src/, or cmd. Its files may include "MODULE/..." of themselves and of the
modules on their line; the public headers <icms/...> or "icms/..." are free for all. A file ending
in _int.h is private to its module. The tests beside the code follow the same rule, but may also
use the simulation's header of loop, since they drive it.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def allowed_modules():
    """Returns {module: set of modules it may include} from layers.txt."""
    allowed = {}
    for line in (ROOT / "tools/layers.txt").read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            module, _, others = line.partition(":")
            allowed[module.strip()] = set(others.split())
    return allowed


def module_of(path):
    parts = path.relative_to(ROOT).parts
    return "cmd" if parts[0] == "cmd" else parts[1]


def check_file(path, allowed, modules):
    """Yields one sentence for each include in the file that is not allowed."""
    me = module_of(path)
    test = path.stem.endswith(("_test", "_fuzz"))
    for name in INCLUDE.findall(path.read_text()):
        other = name.split("/")[0]
        if "/" not in name or other == "icms":
            continue
        where = f"{path.relative_to(ROOT)}: includes {name}"
        if other not in modules:
            yield f"{where}, which is no module"
        elif other == me:
            continue
        elif name.endswith("_int.h"):
            yield f"{where}, which is private to {other}"
        elif other not in allowed[me] and other != "base" and not (test and name == "loop/sim.h"):
            yield f"{where}, but layers.txt does not let {me} use {other}"


def main():
    allowed = allowed_modules()
    modules = {p.name for p in (ROOT / "src").iterdir() if p.is_dir()}
    problems = [f"src/{m} is not in tools/layers.txt" for m in sorted(modules - set(allowed))]
    files = [p for d in ("src", "cmd") for p in sorted((ROOT / d).rglob("*.[ch]"))]
    for path in files:
        if module_of(path) in allowed:
            problems += check_file(path, allowed, modules)
    for problem in problems:
        print(problem)
    print(f"{len(files)} files, {len(problems)} includes against the layers")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
