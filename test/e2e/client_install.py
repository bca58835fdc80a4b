#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is installed can be used.

Goal: a program is compiled against the installed headers and libraries with pkg-config alone, in
both forms, as C and as C++, and runs.
Method: installs into a folder of its own, compiles examples/hello.c, runs it on a directory.

usage: client_install.py BUILD_ROOT
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def run(what, command, **more):
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False,
                            **more)
    if result.returncode != 0:
        sys.exit(f"not ok {what}: {result.stdout}{result.stderr}")
    print(f"ok {what}")
    return result.stdout


def main():
    build = pathlib.Path(sys.argv[1])
    sanitized = subprocess.run(["meson", "introspect", str(build), "--buildoptions"],
                               capture_output=True, text=True, check=True).stdout
    flags = ["-fsanitize=address,undefined"] if '"address,undefined"' in sanitized else []
    compiler = os.environ.get("CC", "clang" if flags else "cc")
    with tempfile.TemporaryDirectory(prefix="icms-") as name:
        folder = pathlib.Path(name)
        run("install", ["meson", "install", "-C", str(build), "--no-rebuild", "--destdir", name])
        found = list(folder.rglob("libicms.pc"))
        assert len(found) == 1, found
        libraries = found[0].parent.parent
        env = {**os.environ, "PKG_CONFIG_PATH": str(found[0].parent),
               "PKG_CONFIG_SYSROOT_DIR": name, "LD_LIBRARY_PATH": str(libraries)}
        hello = str(ROOT / "examples/hello.c")
        shared = run("pkg-config", ["pkg-config", "--cflags", "--libs", "libicms"], env=env).split()
        static = run("pkg-config --static", ["pkg-config", "--static", "--cflags", "--libs",
                                             "libicms"], env=env).split()
        static = [str(libraries / "libicms.a") if word == "-licms" else word for word in static]
        for what, words in [("shared", shared), ("static", static)]:
            program = str(folder / what)
            run(f"compile, {what}", [compiler, *flags, hello, "-o", program, *words])
            run(f"run, {what}", [program, f"dir:{name}/{what}-kv"], env=env)
        if shutil.which("clang++" if flags else "c++") is None:
            return  # C++ is not needed to build icms
        header = folder / "header.cc"
        header.write_text("#include <icms/icms.h>\nint main() { return icms_version()[0] == 0; }\n")
        run("compile as C++", ["clang++" if flags else "c++", *flags, str(header), "-o",
                               str(folder / "cxx"), *shared])
        run("run as C++", [str(folder / "cxx")], env=env)


main()
