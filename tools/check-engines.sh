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

engines="nixl vllm sglang lmcache"

# Both plugins, in every NIXL of integrations/nixl/tests/versions.txt.
engine_nixl()
{
    stage_lines "nixl" integrations/nixl/tests/run.py build --all
}

# Real vLLM engines on a CPU: the tier and the connector of python/icms/vllm.
engine_vllm()
{
    stage_lines "vllm" test/engines/vllm/run.sh build
}

# Installs and runs what lies in test/engines.
engine_run()
{
    "test/engines/$1/install.sh" build && "test/engines/$1/run.py" --build build
}

# SGLang's factory and storage controller; its engine needs a GPU.
engine_sglang()
{
    stage_lines "sglang" engine_run sglang
}

# LMCache's bench, and its server with vLLM on the CPU.
engine_lmcache()
{
    stage_lines "lmcache" engine_run lmcache
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

stages_end
