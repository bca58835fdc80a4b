#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""meson-results.py FILE: prints Meson's test log, one line a test: ok, not ok or skip, and its name, with the first
cases in it that failed; at the end one line with the tests that took longest.

FILE is the .json that `meson test` leaves in meson-logs: one JSON object a line.
"""
import json
import re
import sys

WORDS = {"OK": "ok", "EXPECTEDFAIL": "ok", "SKIP": "skip"}

LONGEST = 8
CASES = 4
CASE_FAILED = re.compile(r"^(?:FAIL|ERROR): (.+)|^\[  FAILED  \] (?!\d)(.+)", re.MULTILINE)  # unittest, cmocka


def note_of(test):
    if test["result"] in ("OK", "EXPECTEDFAIL"):
        return ""
    told = f"{test.get('stdout') or ''}\n{test.get('stderr') or ''}"
    cases = list(dict.fromkeys(a or b for a, b in CASE_FAILED.findall(told)))
    return f" ({', '.join([test['result'].lower(), *cases[:CASES]])})"


tests = []
with open(sys.argv[1], encoding="utf-8", errors="replace") as log:
    for line in log:
        test = json.loads(line)
        word = WORDS.get(test["result"], "not ok")
        print(f"{word} {test['name']}{note_of(test)}")
        tests.append((test["duration"], test["name"]))
print("longest " + ", ".join(f"{name} {seconds:.0f} s"
                             for seconds, name in sorted(tests, reverse=True)[:LONGEST]))
