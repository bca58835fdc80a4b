#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# demo/run.sh BUILD [--short] [--secure]: builds what the demo needs and runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: demo/run.sh BUILD [--short]}
shift

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "building (the first time takes some minutes: llama.cpp is compiled)"
if ! model=$(demo/build.sh "$build" 2> >(tee "$log" | grep --line-buffered '^llama.sh:' >&2)); then
    tail -30 "$log" >&2
    exit 2
fi
exec python3 demo/run.py --build "$build" --model "$model" "$@"
