#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An agent's own drive beside a pod, read past the host into memory of a GPU (cuFile).

Goal: what client-gds says of the drive of a dir: holds for the own drive of an agent inside a process, and a
read that hangs costs time, not a miss.
Method: one enclosure on loopback; the cases of src/client/gds_test.c over fakes of the GPU and of cuFile.

usage: client_gds.py BUILD_ROOT GDS_TEST
"""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402

VOLUME = {"name": "kv", "value_max": "1MiB"}


def main():
    build, test = pathlib.Path(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory(prefix="icms-") as folder, pod.Pod(build, folder) as p:
        target = p.add_target("enclosure", 1, "1GiB", [VOLUME], segment="16MiB", memory="64MiB")
        target.wait_ready()
        result = subprocess.run([test, "pod", f"127.0.0.1:{target.port}", target.nqn], timeout=200, check=False)
    sys.exit(result.returncode)


if __name__ == "__main__":
    main()
