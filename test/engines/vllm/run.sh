#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD [NAME of a case ...]: installs vLLM into the build folder, once, and runs the cases.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${1:?usage: run.sh BUILD [NAME ...]}
shift

"$here/install.sh" "$build" >&2
exec "$here/run.py" --build "$build" --venv "$build/engines/vllm" "$@"
