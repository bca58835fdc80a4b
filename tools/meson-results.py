#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""meson-results.py FILE: prints Meson's test log, one line a test: ok, not ok or skip, and its name; at the
end one line with the tests that took longest.

FILE is the .json that `meson test` leaves in meson-logs: one JSON object a line.
"""
import json
import sys

WORDS = {"OK": "ok", "EXPECTEDFAIL": "ok", "SKIP": "skip"}

LONGEST = 8
tests = []
with open(sys.argv[1], encoding="utf-8", errors="replace") as log:
    for line in log:
        test = json.loads(line)
        word = WORDS.get(test["result"], "not ok")
        note = "" if word == "ok" else f" ({test['result'].lower()})"
        print(f"{word} {test['name']}{note}")
        tests.append((test["duration"], test["name"]))
print("longest " + ", ".join(f"{name} {seconds:.0f} s"
                             for seconds, name in sorted(tests, reverse=True)[:LONGEST]))
