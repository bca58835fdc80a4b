#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""meson-results.py FILE: prints Meson's test log, one line a test: ok, not ok or skip, and its name, with the first
cases in it that failed; at the end one line with the tests that took longest.

meson-results.py --failed FILE: prints the last lines of what each failed test said.

FILE is the .json that `meson test` leaves in meson-logs: one JSON object a line.
"""
import json
import re
import sys

WORDS = {"OK": "ok", "EXPECTEDFAIL": "ok", "SKIP": "skip"}

LONGEST = 8
CASES = 4
LAST_LINES = 20
CASE_FAILED = re.compile(r"^(?:FAIL|ERROR): (.+)|^\[  FAILED  \] (?!\d)(.+)", re.MULTILINE)  # unittest, cmocka


def told_by(test):
    return f"{test.get('stdout') or ''}\n{test.get('stderr') or ''}"


def note_of(test):
    if test["result"] in ("OK", "EXPECTEDFAIL"):
        return ""
    cases = list(dict.fromkeys(a or b for a, b in CASE_FAILED.findall(told_by(test))))
    return f" ({', '.join([test['result'].lower(), *cases[:CASES]])})"


def results(tests):
    for test in tests:
        print(f"{WORDS.get(test['result'], 'not ok')} {test['name']}{note_of(test)}")
    longest = sorted(((test["duration"], test["name"]) for test in tests), reverse=True)[:LONGEST]
    print("longest " + ", ".join(f"{name} {seconds:.0f} s" for seconds, name in longest))


def failed(tests):
    for test in tests:
        if test["result"] not in WORDS:
            print(f"--- {test['name']}")
            told = told_by(test).partition("Shadow bytes around")[0]  # AddressSanitizer has said where by then
            print("\n".join(told.rstrip().splitlines()[-LAST_LINES:]))


with open(sys.argv[-1], encoding="utf-8", errors="replace") as log:
    read = [json.loads(line) for line in log]
(failed if sys.argv[1] == "--failed" else results)(read)
