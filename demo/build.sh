#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# demo/build.sh BUILD: compiles icms and the demo's engine into the folder BUILD, getting
# llama.cpp and the model first when they are not there. Prints the model file.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: demo/build.sh BUILD}

mapfile -t paths < <(tools/llama.sh)
[ ${#paths[@]} = 2 ] || exit 2
if [ -e "$build/build.ninja" ]; then
    meson configure "$build" -Dllama="${paths[0]}" >&2
else
    tools/setup.sh "$build" -Dllama="${paths[0]}" >&2
fi
ninja -C "$build" >&2
echo "${paths[1]}"
