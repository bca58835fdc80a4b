# SPDX-License-Identifier: Apache-2.0
"""Virtual environments for peers that are Python packages: FOLDER/venv, whose interpreter runs the
worker. Uses pip as the system has it configured."""
import subprocess
import sys


def packages(*names, dependencies=True):
    """The installer of a peer: a function that makes FOLDER/venv with these packages; without
    dependencies, all that is needed has to be named."""
    def install(folder):
        run([sys.executable, "-m", "venv", folder / "venv"])
        run([folder / "venv/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check",
             "install", *([] if dependencies else ["--no-deps"]), *names])
    return install


def run(command):
    """Runs an installer's command; the error has what it said."""
    subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True)


def version(installed, name):
    """The version of a package in FOLDER/venv."""
    said = subprocess.run(
        [installed / "venv/bin/python", "-c",
         f"import importlib.metadata as m; print(m.version({name!r}))"],
        check=True, capture_output=True, text=True)
    return said.stdout.strip()
