# SPDX-License-Identifier: Apache-2.0
"""What a document tells its reader to paste, for tests that do so."""
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent


def objects(option, *documents):
    """The JSON objects that stand behind an option, between single quotes, each once."""
    found = []
    for document in documents:
        lines = re.findall(rf"{option} '([^']*)'", (ROOT / document).read_text())
        assert lines, f"{document} has no {option}"
        found += [line for line in map(json.loads, lines) if line not in found]
    return found


def program(document):
    """The first program in Python."""
    return re.search(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)[1]
