#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The plugins in a real NIXL, through its Python API.

Goal: what NIXL's users do works with both plugins, against real daemons, and with each NIXL that is
listed in versions.txt.
Method: the wheel nixl-cu12 and NumPy, which it imports, are installed into the build folder, without
PyTorch, of which older ones want no more than to know a tensor when they see one (stubs/torch.py).
The tests of this folder run with them, a process for each version, and print "ok NAME" or "not ok
NAME" a test.

usage: run.py BUILD_ROOT [--all] [--python PYTHON] [NAME of a test ...]
       --all: with all versions; without it with the first
       --python: of an environment that has PyTorch and what else a test needs (cmx_lmcache)
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
NUMPY = "numpy==2.2.6"  # the last that has wheels for Python 3.10 to 3.13
CAN_INSTALL = "import sys, pip; assert (3, 10) <= sys.version_info[:2] <= (3, 13)"


def versions():
    lines = (HERE / "versions.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def interpreter():
    """A Python that the wheels are made for and that can install them."""
    for path in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([path, "-c", CAN_INSTALL], capture_output=True,
                          check=False).returncode == 0:
            return path
    sys.exit("no Python from 3.10 to 3.13 with pip is here: install python3-pip "
             "(tools/deps.sh check)")


def install(python, version, folder):
    """Installs NIXL into a folder, once; whole, or not at all."""
    if folder.exists():
        return
    folder.parent.mkdir(exist_ok=True)
    half = folder.with_name(folder.name + ".half")
    shutil.rmtree(half, ignore_errors=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:",
                    "--disable-pip-version-check", "--root-user-action", "ignore",
                    "--target", str(half), f"nixl-cu12=={version}", f"nixl=={version}",
                    NUMPY],
                   check=True, timeout=300)
    half.rename(folder)


def run(python, build, version, stubs, names):
    """Runs the tests with one version; False when one failed."""
    site = build / f"engines/nixl-{version}"
    install(python, version, site)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [site, *stubs])),
           "PYTHONDONTWRITEBYTECODE": "1", "NIXL_PLUGIN_DIR": str(build / "integrations/nixl"),
           "LD_LIBRARY_PATH": str(build / "src/device"),  # its fake GPU, in the place of a driver
           "ICMS_BUILD": str(build), "NIXL_VERSION": version, "NIXL_SITE": str(site)}
    return subprocess.run([python, "-X", "faulthandler", "main.py", *names], cwd=HERE, env=env,
                          check=False).returncode == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--python")
    parser.add_argument("names", nargs="*")
    options = parser.parse_intermixed_args()
    build = options.build.resolve()
    if not (build / "integrations/nixl/libplugin_ICMS.so").exists():
        sys.exit(f"{build} was configured without a C++ compiler: install g++ and make it anew")
    # Tests run in another folder; a link is not followed, for it is what makes an environment.
    python = os.path.abspath(options.python) if options.python else interpreter()
    stubs = [] if options.python else [HERE / "stubs"]
    chosen = versions() if options.all else versions()[:1]
    passed = [run(python, build, version, stubs, options.names) for version in chosen]
    sys.exit(0 if all(passed) else 1)


main()
