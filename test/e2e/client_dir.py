#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libicms in a directory.

Goal: the contract of icms.h holds without a daemon; a second process is told who holds the
directory; what was acknowledged survives SIGKILL of the process.
Method: client_contract and the icms program on dir:.

usage: client_dir.py BUILD_ROOT
"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from judge import expect


def icms(build, *arguments, **more):
    return subprocess.run([build / "cmd/icms", *arguments], capture_output=True, timeout=60, **more)


def main():
    build = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="icms-") as folder:
        where = f"dir:{folder}/kv"
        result = subprocess.run([build / "test/e2e/client_contract", where], capture_output=True,
                                text=True, timeout=120)
        expect("contract", result.returncode == 0, result.stdout + result.stderr)

        result = icms(build, "put", "--open", where, "--on-flash", "greeting", input=b"hello")
        expect("put", result.returncode == 0, result)
        small = f"dir:{folder}/small"
        result = icms(build, "put", "--open", small, "--on-flash", "greeting", input=b"hello")
        store = (pathlib.Path(folder) / "small/icms.store").stat()
        expect("a new cache takes space as it is written", result.returncode == 0 and
               store.st_size == 1 << 30 and store.st_blocks * 512 < 1 << 20, store)
        # A process that holds the directory: it waits for a value that does not come.
        holder = subprocess.Popen([build / "cmd/icms", "put", "--open", where, "late"],
                                  stdin=subprocess.PIPE)
        lock = pathlib.Path(folder) / "kv/icms.lock"
        deadline = time.monotonic() + 20
        while lock.read_text() != f"{holder.pid}\n" and time.monotonic() < deadline:
            time.sleep(0.02)
        result = icms(build, "get", "--open", where, "greeting")
        expect("the holder is named", result.returncode == 2 and
               f"process {holder.pid}".encode() in result.stderr, result)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        result = icms(build, "get", "--open", where, "greeting")
        expect("acknowledged blocks survive SIGKILL", result.stdout == b"hello", result)
        result = icms(build, "status", "--json", "--open", where)
        expect("status", result.returncode == 0 and b'"volumes"' in result.stdout, result)


main()
