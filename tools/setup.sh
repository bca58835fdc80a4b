#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/setup.sh FOLDER [OPTION...]: `meson setup FOLDER OPTION...`, with the library directory of
# this system.
#
# Debian's loader and pkg-config search PREFIX/lib/MULTIARCH, and the compiler knows MULTIARCH.
# Meson asks dpkg-architecture (package dpkg-dev) instead, and falls back to PREFIX/lib64 without
# it, which nothing searches. Where the compiler has no multiarch name, Meson's choice stands, as
# does a --libdir among the options.
#
# Prints what is left out and why; everything else only when it fails. FOLDER/setup.log has it all.
set -euo pipefail

folder=${1:?usage: tools/setup.sh FOLDER [OPTION...]}
shift
cd "$(dirname "$0")/.."

multiarch=$(${CC:-cc} -print-multiarch 2> /dev/null) || multiarch=
mkdir -p "$folder"
if ! meson setup ${multiarch:+--libdir "lib/$multiarch"} "$@" "$folder" > "$folder/setup.log" 2>&1
then
    cat "$folder/setup.log" >&2
    exit 1
fi
sed -n 's/^Message: \(left out: \)/\1/p' "$folder/setup.log"
