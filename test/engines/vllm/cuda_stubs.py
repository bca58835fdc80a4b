#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stands in for the CUDA libraries that PyPI's PyTorch is linked against, on machines without a GPU.

PyTorch imports only when they load, and they have 2.7 GB. Each becomes a library of functions that
return 100, cudaErrorNoDevice; a CPU engine calls none of them.

usage: cuda_stubs.py VENV   after PyTorch was installed without its nvidia packages
"""
import collections
import pathlib
import re
import subprocess
import sys
import tempfile


def lines(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def missing(libraries):
    """Names of CUDA libraries that are needed and not there."""
    there = {library.name for library in libraries}
    return {found[1] for library in libraries for line in lines("readelf", "-d", library)
            if (found := re.search(r"NEEDED.*\[(lib(?:cu|nv|nccl|npp).*)\]", line))
            and found[1] not in there}


def wanted(library):
    """Yields (symbol, version or "", library that the version is of or "") of what is undefined."""
    owners, owner = {}, ""
    for line in lines("readelf", "-W", "-V", library):
        if found := re.search(r"File: (\S+)", line):
            owner = found[1]
        elif found := re.search(r"Name: (\S+)\s+Flags", line):
            owners[found[1]] = owner
    for line in lines("nm", "-D", "--undefined-only", library):
        symbol, _, version = line.split()[-1].partition("@")
        version = version.lstrip("@")
        yield symbol, version, owners.get(version, "")


def compile_stub(path, plain, versioned):
    """One library; versioned maps a version to its symbols."""
    symbols = sorted(set(plain).union(*versioned.values()))
    source = "".join(f"int {symbol}(void) {{ return "
                     f"{0 if symbol.startswith('__cuda') else 100}; }}\n" for symbol in symbols)
    script = "".join(f"{version} {{ global: {' '.join(f'{s};' for s in sorted(names))} }};\n"
                     for version, names in sorted(versioned.items()))
    with tempfile.TemporaryDirectory() as folder:
        source_path, script_path = pathlib.Path(folder, "s.c"), pathlib.Path(folder, "s.map")
        source_path.write_text(source)
        script_path.write_text(script)
        words = [f"-Wl,--version-script={script_path}"] if script and not plain else []
        subprocess.run(["gcc", "-w", "-O1", "-fno-builtin", "-shared", "-fPIC",
                        f"-Wl,-soname,{path.name}", str(source_path), "-o", str(path), *words],
                       check=True)


def main():
    folder = next(pathlib.Path(sys.argv[1]).glob("lib/python3*/site-packages/torch/lib"))
    libraries = [path for path in folder.glob("*.so*") if not path.is_symlink()]
    absent = sorted(missing(libraries))
    defined = {line.split()[-1].partition("@")[0] for library in libraries
               for line in lines("nm", "-D", "--defined-only", library)}
    versioned = collections.defaultdict(lambda: collections.defaultdict(set))
    plain = set()
    for library in libraries:
        for symbol, version, owner in wanted(library):
            if owner in absent:
                versioned[owner][version].add(symbol)
            elif not version and symbol not in defined and \
                    re.match(r"(cu|nv|nccl|npp|__cuda)", symbol):
                plain.add(symbol)
    # A symbol without a version may be of any library without versions: all of them get it.
    for name in absent:
        compile_stub(folder / name, () if versioned[name] else plain, versioned[name])


if __name__ == "__main__":
    main()
