#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TLS records by the kernel (kTLS), in the guest whose kernel has them.

Boots the guest of tools/guest with programs of this build: the contracts of connections, without and
with TLS (net_test, net_tls_test), and a target, an agent and icms with TLS between them. Prints
"ok NAME" or "not ok NAME" for each case of test/interop/ktls.sh. The guest is emulated: this shows
that it works, not what it costs.

With --cost it prints instead what loads of 2 MB take of the guest's processor, in instructions a byte of
target and agent together: without TLS, with OpenSSL's records, with the kernel's (test/interop/ktls_cost.sh).
Instructions are no time: AES and polynomials are one each, as on hardware, but not as quick as others.
"""
import argparse
import pathlib
import shutil
import subprocess
import sys

import common

PROGRAMS = ["src/net/net_test", "src/net/net_tls_test", "cmd/icms-target", "cmd/icms-agent",
            "cmd/icms"]


def archive(build, folder):
    """A RAM disk's archive of the programs, under /t, and of the libraries that they load."""
    root = folder / "root"
    (root / "t").mkdir(parents=True)
    for program in PROGRAMS:
        shutil.copy(build / program, root / "t")
        listed = subprocess.run(["ldd", build / program], capture_output=True, text=True,
                                check=True).stdout
        for line in listed.splitlines():
            path = next((word for word in line.split() if word.startswith("/")), None)
            if path is not None and not (root / path[1:]).exists():
                (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, root / path[1:])
    names = subprocess.run(["find", "."], cwd=root, capture_output=True, check=True).stdout
    packed = subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=names,
                            capture_output=True, check=True).stdout
    path = folder / "programs.gz"
    path.write_bytes(subprocess.run(["gzip", "-1"], input=packed, capture_output=True,
                                    check=True).stdout)
    shutil.rmtree(root)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build", help="where Meson built")
    parser.add_argument("--seconds", type=int, default=600, help="limit for the guest")
    parser.add_argument("--cost", action="store_true", help="count instructions instead")
    arguments = parser.parse_args()

    build = pathlib.Path(arguments.build).resolve()
    folder = build / "interop-ktls"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    script, clock = ("ktls_cost.sh", ["-i"]) if arguments.cost else ("ktls.sh", [])
    guest = common.run_guest(folder, common.guest_script("ktls_pod.sh", script), arguments.seconds,
                             options=["-m", "1024", *clock, "-a", archive(build, folder)])
    return common.verdict(guest, guest[1] >= (3 if arguments.cost else 5))


if __name__ == "__main__":
    sys.exit(main())
