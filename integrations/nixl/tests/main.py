# SPDX-License-Identifier: Apache-2.0
"""main.py [NAME ...]: runs the tests of this folder in this process; "ok" or "not ok" a test."""
import os
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent


class Result(unittest.TextTestResult):
    """Says how each test ended on standard output, and what went wrong on standard error."""

    def startTest(self, test):
        super().startTest(test)
        self.bad_before = len(self.failures) + len(self.errors)

    def stopTest(self, test):
        super().stopTest(test)
        good = len(self.failures) + len(self.errors) == self.bad_before
        print(f"{'ok' if good else 'not ok'} nixl {os.environ['NIXL_VERSION']}: "
              f"{test.id().removeprefix('test_')}", flush=True)


def main():
    loader = unittest.defaultTestLoader
    names = sys.argv[1:] or sorted(path.stem for path in HERE.glob("test_*.py"))
    tests = loader.loadTestsFromNames(names)
    result = unittest.TextTestRunner(resultclass=Result, verbosity=0).run(tests)
    sys.exit(0 if result.wasSuccessful() and result.testsRun > 0 else 1)


main()
