#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# install.sh BUILD: SGLang's Python code, from PyPI, into BUILD/engines/sglang: 0.8 GB, most of it
# triton. What it imports beside that, PyTorch first, is in BUILD/engines/vllm, which is installed too.
# Again: does nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${1:?usage: install.sh BUILD}
version=0.5.23
site=$build/engines/sglang

"$here/../vllm/install.sh" "$build"
[ ! -e "$site/.icms-$version" ] || exit 0
rm -rf "$site"
# The engine and its kernels need a GPU; the code that drives storage does not.
"$build/engines/uv/bin/uv" pip install -q --python "$build/engines/vllm/bin/python" --no-deps \
    --target "$site" "sglang==$version" orjson==3.13.0 triton==3.7.1 torchvision==0.28.0 \
    gguf==0.19.0 ipython==9.18.1 traitlets==5.16.1
touch "$site/.icms-$version"
