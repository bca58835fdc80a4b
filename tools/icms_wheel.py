# SPDX-License-Identifier: Apache-2.0
"""Makes the wheel of the Python package `icms` from the tree and a build folder, without a network.

Called by what needs the package as its users have it: python/tests/run.py, bench/bench_peers.py.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

PYTHON = pathlib.Path(__file__).resolve().parent.parent / "python"
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


def make(python, build, folder):
    """Builds the wheel below folder, which is made anew, and returns the path where it is unpacked.
    The tree is copied first, so that nothing is written into it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PYTHON, folder / "source",
                    ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    env = {**os.environ, "PKG_CONFIG_PATH": str(build / "meson-uninstalled"), "CC": "gcc",
           "CFLAGS": "-Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wno-unused-parameter "
                     "-Wno-missing-field-initializers"}
    subprocess.run([python, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index",
                    "--disable-pip-version-check", "--quiet", "--wheel-dir", str(folder),
                    str(folder / "source")], env=env, check=True, timeout=600)
    wheels = list(folder.glob("icms-*-cp311-abi3-*.whl"))
    assert len(wheels) == 1, list(folder.iterdir())
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(folder / "site")
    return folder / "site"
