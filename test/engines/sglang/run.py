#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs scenes.py with SGLang and with the wheel of icms made from the tree.

usage: run.py --build BUILD --venv VENV --site SITE [NAME of a case ...]
VENV has PyTorch, SITE has SGLang: see install.sh. Prints "ok NAME" or "not ok NAME" for each case.
"""
import argparse
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "tools"))
import icms_wheel  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--venv", default="build/engines/vllm")
    parser.add_argument("--site", default="build/engines/sglang")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    build = pathlib.Path(arguments.build).resolve()
    wheel = icms_wheel.make(icms_wheel.interpreter(), build, build / "engines/sglang-wheel")
    site = pathlib.Path(arguments.site).resolve()
    return subprocess.run(
        [str(pathlib.Path(arguments.venv).resolve() / "bin/python"), str(HERE / "scenes.py"),
         str(build), *arguments.names],
        env={**os.environ, "PYTHONPATH": f"{wheel}:{site}", "PYTHONWARNINGS": "ignore",
             "OMP_NUM_THREADS": "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
