# SPDX-License-Identifier: Apache-2.0
"""Errors and misses in Python are those of the C library that is inside."""
import unittest

import icms
from icms import _icms, _tables


class Tables(unittest.TestCase):
    def test_errors_are_those_of_the_library(self):
        errors, _ = _icms.tables()
        self.assertEqual([(name, number) for name, number, _, _ in errors],
                         [(status.name, status.value) for status in icms.Status])
        for name, number, text, retry in errors[1:]:
            kind = _tables.CLASSES[number]
            self.assertEqual((kind.status.name, kind.text, kind.retry), (name, text, bool(retry)))
            self.assertIs(getattr(icms, kind.__name__), kind)
        self.assertLess(errors[-1][1], 256, "results have one byte a status")

    def test_misses_are_those_of_the_library(self):
        _, misses = _icms.tables()
        self.assertEqual([(name, number) for name, number, _ in misses],
                         [(miss.name, miss.value) for miss in icms.Miss])

    def test_version_is_that_of_the_package(self):
        self.assertEqual(icms.__version__, icms.version())
        self.assertRegex(icms.version(), r"^\d+\.\d+\.\d+$")

    def test_importing_needs_no_engine(self):
        import sys
        self.assertFalse({"numpy", "torch"} & set(sys.modules))
