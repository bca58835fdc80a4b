#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is installed can be used.

Goal: a program is compiled against the installed headers and libraries with pkg-config alone, in
both forms, as C and as C++, and runs. The library directory is one that the system searches, also
without dpkg-architecture; what is left out of a build is said.
Method: installs into a folder of its own, compiles examples/hello.c, runs it on a directory.
Configures with programs in front of PATH that fail, as if they were not installed.

usage: client_install.py BUILD_ROOT
"""
import json
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


def fakes(folder, **programs):
    """A PATH on which these programs are shell scripts; None: it fails as if it were not there."""
    folder.mkdir()
    for name, text in programs.items():
        path = folder / name.replace("_", "-").replace("plus", "+")
        path.write_text(f"#!/bin/sh\n{text or 'exit 127'}\n")
        path.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def check(what, right, why):
    if not right:
        sys.exit(f"not ok {what}: {why}")
    print(f"ok {what}")


def library_directory(folder):
    """The system's compiler says where libraries belong, when dpkg-architecture is not there."""
    plain = {**fakes(folder / "bare", dpkg_architecture=None, cplusplus=None, gplusplus=None,
                     clangplusplus=None), "CC": "gcc"}
    multiarch = run("multiarch", ["gcc", "-print-multiarch"]).strip()
    said = run("setup without dpkg-architecture and g++",
               [str(ROOT / "tools/setup.sh"), str(folder / "setup"), "--prefix", "/usr/local"],
               env=plain)
    check("what is left out is said", "left out: NIXL plugins: no C++ compiler" in said, said)
    options = json.loads(run("introspect", ["meson", "introspect", str(folder / "setup"),
                                            "--buildoptions"]))
    libdir = next(option["value"] for option in options if option["name"] == "libdir")
    if multiarch:
        check("libdir", libdir == f"lib/{multiarch}", libdir)
        searched = run("pkg-config's directories",
                       ["pkg-config", "--variable", "pc_path", "pkg-config"]).strip()
        check("pkg-config searches it", f"/usr/local/{libdir}/pkgconfig" in searched.split(":"),
              searched)


def prefix_of_installation(folder):
    """`make install PREFIX=...` is obeyed in a folder that was set up with another prefix."""
    make = ["make", "--no-print-directory", "-n", "-C", str(ROOT), f"BUILD={folder / 'setup'}"]
    told = run("make install elsewhere", [*make, "PREFIX=/opt/icms", "install"])
    check("it is configured", f"meson configure --prefix /opt/icms {folder / 'setup'}" in told, told)
    told = run("make install", [*make, "install"], env={name: value for name, value in
                                                       os.environ.items() if name != "PREFIX"})
    check("nothing is configured", "meson configure" not in told, told)


def after_installation(folder):
    """tools/installed.sh: refreshes the loader's cache, says what does not search the directory."""
    installed = [str(ROOT / "tools/installed.sh"), "/opt/icms/lib"]
    log = folder / "ldconfig.log"
    cache = f"echo \"$@\" >> {log}\n[ \"$*\" != -p ] || echo ' libicms.so => '$FOUND/libicms.so"
    env = {**fakes(folder / "root", ldconfig=cache, id="echo 0",
                   pkg_config="[ -n \"$FOUND\" ] && echo $FOUND"), "FOUND": ""}
    env.pop("DESTDIR", None)
    said = run("a directory that nothing searches", installed, env=env)
    check("the loader's and pkg-config's remedy", "LD_LIBRARY_PATH=/opt/icms/lib" in said and
          "PKG_CONFIG_PATH=/opt/icms/lib/pkgconfig" in said, said)
    check("root refreshes the cache first", log.read_text() == "\n-p\n", log.read_text())
    said = run("another libicms", installed, env={**env, "FOUND": "/usr/lib"})
    check("it is named", "finds another libicms first, in /usr/lib" in said, said)
    said = run("a directory that is searched", installed, env={**env, "FOUND": "/opt/icms/lib"})
    check("nothing to say", said == "", said)
    log.unlink()
    run("a package", installed, env={**env, "DESTDIR": str(folder)})
    check("a package leaves the cache alone", not log.exists(), "ldconfig was run")


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
        library_directory(folder)
        prefix_of_installation(folder)
        after_installation(folder)
        if shutil.which("clang++" if flags else "c++") is None:
            return  # C++ is not needed to build icms
        header = folder / "header.cc"
        header.write_text("#include <icms/icms.h>\nint main() { return icms_version()[0] == 0; }\n")
        run("compile as C++", ["clang++" if flags else "c++", *flags, str(header), "-o",
                               str(folder / "cxx"), *shared])
        run("run as C++", [str(folder / "cxx")], env=env)


main()
