#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package, built as its users build it and run from the wheel.

Goal: `pip wheel` makes a wheel from the sources and a build folder, and the package in it keeps its
promises against real daemons, also with everything turned on: an encrypted volume, proofs and TLS.
Method: the tree is copied, so that nothing is written into it; the wheel is built there without a
network and unpacked; the tests of this folder run with it and with nothing else installed, each
file in a process of its own.

usage: run.py BUILD_ROOT [NAME of a test ...]
"""
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tools"))
import icms_wheel  # noqa: E402


# Those that put and get, and the adapters: all of it with everything turned on as well.
SECURE = ("test_calls", "test_deadlines", "test_device", "test_life", "test_lmcache", "test_requests", "test_sglang",
          "test_vllm_connector", "test_vllm_tier", "test_vllm_told")
FAILED_LINES = 80


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    python = icms_wheel.interpreter()
    site = icms_wheel.make(python, build, build / "python-wheel")
    env = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1",
           "PYTHONWARNINGS": "default", "ICMS_BUILD": str(build),
           "LD_LIBRARY_PATH": str(build / "src/device")}  # its fake GPU, in the place of a driver
    names = sys.argv[2:] or sorted(path.stem for path in HERE.glob("test_*.py"))
    # A process each: some put stand-ins for an engine where Python finds modules.
    runs = [(name, env) for name in names]
    runs += [(name, {**env, "ICMS_PYTHON_SECURE": "1"}) for name in names if name in SECURE]
    failed = {}
    for name, with_env in runs:
        lines = output_of([python, "-X", "faulthandler", "-m", "unittest", "-v", name], with_env)
        if lines is not None:
            failed.setdefault(name, []).extend(lines)
    for name, lines in failed.items():  # again, so that it is found at the end of a long log
        print(f"---- {name} failed:", *lines[-FAILED_LINES:], sep="\n")
    sys.exit(f"failed: {' '.join(failed)}" if failed else 0)


def output_of(command, env):
    """Runs it, and shows what it says at once; the lines of that if it fails, else None."""
    lines = []
    with subprocess.Popen(command, cwd=HERE, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace") as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    return lines if process.returncode != 0 else None


main()
