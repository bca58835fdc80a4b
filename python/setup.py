# SPDX-License-Identifier: Apache-2.0
"""How the wheel is built: pip wheel python/

pkg-config says where libicms is, installed or in a build folder (PKG_CONFIG_PATH=
BUILD/meson-uninstalled). libicms.a goes into the extension, so a wheel needs no libicms.so and
cannot meet one of another version; the system's libraries under it (liburing, libcrypto, ...) stay
shared, as they are for libicms.so. The extension keeps to Python's stable ABI: one wheel serves
3.11 and all that come after it.
"""
import pathlib
import shutil
import subprocess
import sys

from setuptools import Extension, setup


def pkg_config(*words):
    program = shutil.which("pkg-config") or shutil.which("pkgconf")
    if program is None:
        sys.exit("setup.py: there is no pkg-config, which says where libicms is; install it")
    result = subprocess.run([program, *words, "libicms"], capture_output=True, text=True,
                            check=False)
    if result.returncode != 0:
        sys.exit(f"setup.py: pkg-config does not find libicms ({result.stderr.strip()}): install "
                 "icms, or set PKG_CONFIG_PATH to BUILD/meson-uninstalled of a build folder")
    return result.stdout.split()


def static_library(words):
    """The path of libicms.a among the folders that pkg-config names."""
    folders = [word[2:] for word in words if word.startswith("-L")]
    folders += pkg_config("--variable=libdir")
    for folder in folders:
        path = pathlib.Path(folder) / "libicms.a"
        if path.exists():
            return str(path)
    sys.exit(f"setup.py: no libicms.a in {', '.join(folders)}: build or install icms whole")


FLAGS = pkg_config("--static", "--cflags", "--libs")
LINK = [word for word in FLAGS if not word.startswith(("-I", "-licms"))]

setup(
    version=pkg_config("--modversion")[0],
    packages=["icms", "icms.vllm"],
    package_data={"icms": ["py.typed", "*.pyi"]},
    ext_modules=[Extension(
        "icms._icms",
        sorted(f"src/{name}.c" for name in
               ("module", "handle", "volume", "batch", "request", "region", "chain",
                "tensor")),
        depends=["src/module.h"],
        include_dirs=[word[2:] for word in FLAGS if word.startswith("-I")],
        define_macros=[("_GNU_SOURCE", None)],
        extra_compile_args=["-std=gnu17", "-fvisibility=hidden", "-fno-strict-aliasing"],
        extra_link_args=[static_library(FLAGS), *LINK, "-Wl,--exclude-libs,ALL"],
        py_limited_api=True)],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
