#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs-check.py: fails when a document names a function or a path that does not exist.

Looks at every Markdown file and manual page in the repository. A name written as `name()` in
Markdown must stand in a C, Python or shell file with a parenthesis behind it; a word in backquotes
with a slash in it that begins with a folder of the repository must exist (a name with * must match
something; build/ is what a build makes and is free). Manual pages must pass mandoc without a
warning or error.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = re.compile(r"`([^`\n]+)`")
FUNCTION = re.compile(r"\b([a-z_][a-z0-9_]{2,})\(\)")
DEFINED = re.compile(r"\b([A-Za-z_][A-Za-z0-9_]*)\s*\(")


def tracked(*patterns):
    out = subprocess.run(["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, check=True,
                         capture_output=True, text=True).stdout
    return [ROOT / name for name in out.split("\0") if name]


def defined_names():
    names = set()
    for path in tracked("*.c", "*.h", "*.py", "*.sh", "tools/guest/init"):
        names.update(DEFINED.findall(path.read_text(errors="replace")))
        names.update(re.findall(r"^\s*def (\w+)", path.read_text(errors="replace"), re.MULTILINE))
    return names


def check_path(text):
    """Returns True when the path in backquotes exists, or when the text is no path of ours."""
    path = text.rstrip("/").split("#")[0]
    path = re.sub(r":\d+$", "", path)
    if not re.fullmatch(r"[\w.*/{},+-]+", path) or "/" not in path or "{" in path:
        return True
    top = path.split("/")[0]
    if top in ("", "build") or not (ROOT / top).is_dir():
        return True
    return any(ROOT.glob(path))


def check_markdown(path, names):
    where = path.relative_to(ROOT)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for code in CODE.findall(line):
            for word in code.split():
                if not check_path(word):
                    yield f"{where}:{number}: no such path: {word}"
            for name in FUNCTION.findall(code):
                if name not in names:
                    yield f"{where}:{number}: no such function: {name}()"


def check_manual(path):
    result = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", str(path)],
                            capture_output=True, text=True, check=False)
    for line in result.stdout.splitlines() + result.stderr.splitlines():
        yield line.replace(str(ROOT) + "/", "")


def main():
    names = defined_names()
    documents = tracked("*.md")
    manuals = tracked("man/*.[0-9]")
    problems = []
    for path in documents:
        problems += check_markdown(path, names)
    for path in manuals:
        problems += check_manual(path)
    for problem in problems:
        print(problem)
    print(f"{len(documents)} documents and {len(manuals)} manual pages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
