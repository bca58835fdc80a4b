#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package, built as its users build it and run from the wheel.

Goal: `pip wheel` makes a wheel from the sources and a build folder, and the package in it keeps its
promises against real daemons.
Method: the tree is copied, so that nothing is written into it; the wheel is built there without a
network and unpacked; the tests of this folder run with it, and with nothing else installed.

usage: run.py BUILD_ROOT [NAME of a test ...]
"""
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
CAN_BUILD = """
import importlib.util, os, sys, sysconfig
assert sys.version_info >= (3, 11)
assert all(importlib.util.find_spec(name) for name in ("pip", "setuptools", "wheel"))
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
"""


def interpreter():
    """A Python from 3.11 on that can build extensions; Debian's, when it is not the one on PATH."""
    for path in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([path, "-c", CAN_BUILD], capture_output=True,
                          check=False).returncode == 0:
            return path
    sys.exit("no Python here can build extensions: install python3-dev, python3-pip, "
             "python3-setuptools and python3-wheel (tools/deps.sh check)")


def wheel(python, build, folder):
    """Builds the wheel below folder and returns the path where it is unpacked."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE.parent, folder / "source",
                    ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    env = {**os.environ, "PKG_CONFIG_PATH": str(build / "meson-uninstalled"), "CC": "gcc",
           "CFLAGS": "-Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wno-unused-parameter "
                     "-Wno-missing-field-initializers"}
    subprocess.run([python, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index",
                    "--disable-pip-version-check", "--quiet", "--wheel-dir", str(folder),
                    str(folder / "source")], env=env, check=True, timeout=120)
    wheels = list(folder.glob("icms-*-cp311-abi3-*.whl"))
    assert len(wheels) == 1, list(folder.iterdir())
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    python = interpreter()
    site = wheel(python, build, build / "python-wheel")
    env = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1",
           "PYTHONWARNINGS": "default", "ICMS_BUILD": str(build)}
    names = sys.argv[2:] or sorted(path.stem for path in HERE.glob("test_*.py"))
    sys.exit(subprocess.run([python, "-X", "faulthandler", "-m", "unittest", "-v", *names],
                            cwd=HERE, env=env, check=False).returncode)


main()
