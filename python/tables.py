#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tables.py [--check]: makes icms/_tables.py of the tables in include/icms/err.h.

With --check it writes nothing and fails when the file is not what it would write. Run it after a
change of the tables.
"""
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
HEADER = HERE.parent / "include/icms/err.h"
OUTPUT = HERE / "icms/_tables.py"
ROW = re.compile(r'XX\((\w+),\s*(\d+),\s*"([^"]*)"(?:,\s*([01]),\s*\w+)?\)')

HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""Errors and miss reasons. Made by python/tables.py from include/icms/err.h: do not edit."""
import enum

from .errors import Error


class Status(enum.IntEnum):
    """What a call or a block came to. See icms-errors(7)."""

'''


def rows(text, name):
    """The rows of one table as (name, number, text, retry)."""
    match = re.search(r"#define " + name + r"\(XX\)(.*?[^\\])\n", text, re.S)
    return [(row[1], int(row[2]), row[3], row[4] == "1") for row in ROW.finditer(match.group(1))]


def class_name(name):
    return "".join(word.capitalize() for word in name.split("_")) + "Error"


def source(text):
    errors, misses = rows(text, "ICMS_ERR_MAP"), rows(text, "ICMS_MISS_MAP")
    lines = [f"    {name} = {number}\n" for name, number, _, _ in errors]
    lines += ["\n\nclass Miss(enum.IntEnum):\n",
              '    """Why a block is not available; NONE is no miss. See icms-errors(7)."""\n\n']
    lines += [f"    {name} = {number}\n" for name, number, _, _ in misses]
    for name, _, words, retry in errors[1:]:
        lines += [f"\n\nclass {class_name(name)}(Error):\n",
                  f'    """{words[0].upper()}{words[1:]}."""\n\n',
                  f"    status = Status.{name}\n",
                  f'    text = "{words}"\n',
                  f"    retry = {retry}\n"]
    lines += ["\n\n#: The exception of each status but OK.\nCLASSES: dict[int, type[Error]] = {\n"]
    lines += [f"    {number}: {class_name(name)},\n" for name, number, _, _ in errors[1:]]
    return HEAD + "".join(lines) + "}\n"


def main():
    made = source(HEADER.read_text(encoding="utf-8"))
    if sys.argv[1:] == ["--check"]:
        if OUTPUT.read_text(encoding="utf-8") != made:
            sys.exit(f"{OUTPUT} is not made of {HEADER}: run python/tables.py")
    else:
        OUTPUT.write_text(made, encoding="utf-8")


main()
