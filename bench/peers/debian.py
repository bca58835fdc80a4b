# SPDX-License-Identifier: Apache-2.0
"""Debian's packages, unpacked into a folder: nothing is installed, no service is started, and no root
is needed. For drivers of programs that Debian has."""
import pathlib
import re
import subprocess

from peers import side


def missing(packages):
    """These packages and what they need, less what this system has installed."""
    said = subprocess.run(["apt-get", "--simulate", "--no-install-recommends", "install",
                           "--reinstall", *packages], capture_output=True, text=True, check=False)
    names = re.findall(r"^Inst (\S+)", said.stdout, re.M)
    if said.returncode != 0 or not names:
        raise side.SideError(f"apt-get knows no way to install {' '.join(packages)} "
                             f"(apt-get update?): {said.stderr.strip()}")
    return names


def unpack(*packages):
    """The installer of a peer: a function that unpacks these packages into a folder."""
    def install(folder):
        archives = folder / "archives"
        archives.mkdir(parents=True)
        subprocess.run(["apt-get", "--quiet=2", "download", *missing(packages)], cwd=archives,
                       check=True, stderr=subprocess.DEVNULL)
        for archive in archives.glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", archive, folder], check=True)
    return install


def program(installed, name):
    return installed / "usr/bin" / name


def environment(installed):
    """Where unpacked programs find unpacked libraries."""
    folders = {str(path.parent) for path in pathlib.Path(installed, "usr/lib").rglob("*.so*")}
    return {"LD_LIBRARY_PATH": ":".join(sorted(folders))}
