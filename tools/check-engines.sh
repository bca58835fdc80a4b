#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/check-engines.sh [STAGE ...]: icms under the engines and layers that use it, each as its
# users install it and in every version of doc/engines.md; all stages, or those that are named.
#
# A stage is a function below: it installs what it needs into the build folder and runs a program
# that prints "ok NAME", "not ok NAME" or "skip NAME" a case. tools/stages.sh says how they count.
#
# Exit status 0 says that everything passed and nothing was skipped; 2 that there is no such stage.
set -uo pipefail
cd "$(dirname "$0")/.."
. tools/stages.sh

engines="python nixl llama vllm sglang lmcache cmx"

# The package that all others stand on, from its wheel.
engine_python()
{
    stage_lint "python" python/tests/run.py build
    stage_lines "python wheel" test/engines/python/run.sh build
}

# Both plugins, in every NIXL of integrations/nixl/tests/versions.txt.
engine_nixl()
{
    stage_lines "nixl" integrations/nixl/tests/run.py build --all
}

# llama.cpp with a real model on examples/llama, and what a pod does to it.
engine_llama()
{
    stage_lines "llama" demo/run.sh build --short
}

# Real vLLM engines on a CPU: the tier and the connector of python/icms/vllm.
engine_vllm()
{
    stage_lines "vllm" test/engines/vllm/run.sh build
}

# Installs and runs what lies in test/engines.
run_engine()
{
    "test/engines/$1/install.sh" build && "test/engines/$1/run.py" --build build
}

# SGLang's factory and storage controller; its engine needs a GPU.
engine_sglang()
{
    stage_lines "sglang" run_engine sglang
}

# LMCache's bench, and its server with vLLM on the CPU.
engine_lmcache()
{
    stage_lines "lmcache" run_engine lmcache
}

# LMCache's own NIXL storage as it is configured for CMX, on the plugin DOCA_MEMOS.
run_cmx()
{
    test/engines/lmcache/install.sh build &&
        integrations/nixl/tests/run.py build --python build/engines/lmcache/bin/python cmx_lmcache
}

engine_cmx()
{
    stage_lines "cmx" run_cmx
}

for engine in ${*:-$engines}; do
    case " $engines " in
    *" $engine "*) ;;
    *)
        echo "check-engines.sh: there is no stage '$engine'; stages are $engines" >&2
        exit 2
        ;;
    esac
done
for engine in ${*:-$engines}; do
    "engine_$engine"
done

say "disk: $(du -sm build/engines | cut -f1) MiB in build/engines"
stages_end
