# SPDX-License-Identifier: Apache-2.0
"""../vllm/engine.py beside LMCache, driven by run.py.

vLLM looks for kernels through vars() of every module that is loaded; one that LMCache brings with it
has an attribute __dict__ that is none, which ends vLLM. It is hidden here.
"""
import pathlib
import runpy

import llvmlite.binding.ffi

library = type(llvmlite.binding.ffi.lib)
attribute = library.__getattr__


def hidden(self, name):
    if name == "__dict__":
        raise AttributeError(name)
    return attribute(self, name)


library.__getattr__ = hidden
runpy.run_path(str(pathlib.Path(__file__).resolve().parents[1] / "vllm/engine.py"),
               run_name="__main__")
