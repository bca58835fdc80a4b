#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/check.sh [deep]: all tests, stage by stage, and one line with the sum at the end.
#
# A test of suite check runs once in the short form, under sanitizers; those of suite gcc (a half of the
# simulated seeds, what compares throughputs or installs packages) without. Deep runs all without.
#
# tools/stages.sh says how stages count. Engines have a run of their own, tools/check-engines.sh.
#
# Exit status 0 says that everything passed and nothing was skipped.
set -uo pipefail
cd "$(dirname "$0")/.."
. tools/stages.sh

# A test that meets undefined behaviour fails, in the daemons that it starts, too.
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

if [ "${1:-}" = deep ]; then
    stage_meson "thread sanitizer" build-tsan unit -Db_sanitize=thread -Db_lundef=false
    stage_meson "long campaigns" build "check deep"
    CC=clang CXX=clang++ stage_meson "fuzzing" build-fuzz "fuzz fuzz-deep" -Dfuzz=true \
        -Db_sanitize=address,undefined -Db_lundef=false
    stage_lines "authentication of the Linux kernel" python3 test/interop/auth.py --build build --all \
        --seconds 3600
    stage_lines "TLS of the Linux kernel" python3 test/interop/tls.py --build build --all
    stage_lines "multipathing of the Linux kernel" python3 test/interop/multipath.py --build build --deep
else
    stage_lint "format" tools/format-check.sh
    stage_meson "gcc" build "unit gcc"
    CC=clang CXX=clang++ stage_meson "clang with address and undefined sanitizers" build-asan \
        "unit check -gcc" -Db_sanitize=address,undefined -Db_lundef=false
    # The target under sanitizers: it is the guest that takes the time.
    stage_lines "interop with the Linux kernel" python3 test/interop/run.py --build build-asan
    stage_lines "TLS records by the kernel" python3 test/interop/ktls.py --build build
    stage_lines "authentication of the Linux kernel" python3 test/interop/auth.py --build build
    stage_lines "TLS of the Linux kernel" python3 test/interop/tls.py --build build
    stage_lines "multipathing of the Linux kernel" python3 test/interop/multipath.py --build build-asan
    stage_lines "demo" demo/run.sh build --short
    stage_lines "demo with everything secured" demo/run.sh build --short --secure
fi

stages_end
