# SPDX-License-Identifier: Apache-2.0
"""What engines are started with: the environment of their processes, and their model."""
import os
import pathlib
import subprocess

TESTS = pathlib.Path(__file__).resolve().parent.parent.parent / "test/engines"


def model(build, name):
    """The folder of a model of test/engines/vllm/models.py, which is made where that was not done."""
    folder = build / "engines/models" / name
    if not (folder / "model.safetensors").exists():
        subprocess.run([str(build / "engines/vllm/bin/python"), str(TESTS / "vllm/models.py"), name, str(folder)],
                       check=True)
    return folder


def environment(site):
    """Of a process that has vLLM; site: where icms' package is."""
    return {
        **os.environ, "PYTHONPATH": f"{site}:{TESTS / 'vllm'}", "PYTHONHASHSEED": "0",
        "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1", "LMCACHE_DISABLE_BANNER": "1", "LMCACHE_TRACK_USAGE": "false",
        "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
