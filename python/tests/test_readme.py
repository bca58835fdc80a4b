# SPDX-License-Identifier: Apache-2.0
"""The example of README.md does what it says."""
import contextlib
import io
import re
import textwrap
import unittest

from support import ROOT, tier


class Readme(unittest.TestCase):
    def test_the_example_runs(self):
        text = (ROOT / "python/README.md").read_text(encoding="utf-8")
        example = re.search(r"```python\n(.*?)```", text, re.S).group(1)
        example = example.replace('"unix:"', repr(tier().where))
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(example, "README.md", "exec"), {})
        lines = re.search(r"prints\n\n((?:    .*\n)+)", text).group(1)
        self.assertEqual(said.getvalue(), textwrap.dedent(lines))


if __name__ == "__main__":
    unittest.main()
