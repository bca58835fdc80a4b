# SPDX-License-Identifier: Apache-2.0
"""The process that forks vLLM engines: importing vLLM costs as much as starting one. Runs in the
environment that has vLLM; `forked.py` is its other end.

An order is a line on standard input, {"log": path, "socket": path, ...}: an engine is forked whose
output goes to the log, and which is called with the order and its end of the socket.
"""
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1


def hide_llvmlite():
    """vLLM looks for kernels through vars() of every module that is loaded; one that LMCache brings
    with it has an attribute __dict__ that is none, which ends vLLM. It is hidden here."""
    try:
        import llvmlite.binding.ffi
    except ImportError:
        return
    library = type(llvmlite.binding.ffi.lib)
    attribute = library.__getattr__

    def hidden(self, name):
        if name == "__dict__":
            raise AttributeError(name)
        return attribute(self, name)

    library.__getattr__ = hidden


def _reap(options):
    """Takes in engines that have ended, and with them the processor time that they took; without
    options waits until all have."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def serve(engine):
    """Forks engine(order, peer) for each order, until standard input ends and all engines have."""
    hide_llvmlite()
    import vllm.entrypoints.llm  # noqa: F401  for all engines at once
    import vllm.v1.engine.core  # noqa: F401
    import vllm.v1.worker.cpu_worker  # noqa: F401

    signal.signal(signal.SIGCHLD, lambda *_: _reap(os.WNOHANG))
    for line in sys.stdin:
        order = json.loads(line)
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            log = os.open(order["log"], os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(order["socket"])
                engine(order, connection.makefile("rw"))
            sys.exit(0)
    _reap(0)
