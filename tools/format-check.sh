#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/format-check.sh: fails when a C or C++ file is not as clang-format would have it.
set -euo pipefail
cd "$(dirname "$0")/.."
count=$(git ls-files -- '*.c' '*.h' '*.cpp' '*.hpp' | wc -l)
git ls-files -z -- '*.c' '*.h' '*.cpp' '*.hpp' | xargs -0 clang-format --dry-run --Werror
echo "$count files are formatted"
