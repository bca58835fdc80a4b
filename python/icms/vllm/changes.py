# SPDX-License-Identifier: Apache-2.0
"""Sees what is asked of a vLLM engine that may change its weights. Used by `identity`.

vLLM tells a connector of resets and of nothing else. New weights come through calls of its engine
core, in the scheduler's process, between two steps: `collective_rpc` (reload_weights, update_weights,
functions of the caller), `add_lora`, `sleep`. These methods are wrapped here, once a process; they do
what they did. A call counts as a change unless it is known to be harmless. It is told before it runs,
so what was computed before is stored under the old keys and nothing else is.

What does not come through the engine core is not seen: see "Weights that change at run time" in the
README.
"""
from __future__ import annotations

import functools
import weakref
from typing import Any

from .link import WrongTier

#: Calls of workers that change no weights.
_HARMLESS = frozenset((
    "check_health", "checkpoint_prepare", "compute_weight_checksums", "execute_dummy_batch",
    "get_model_inspection", "init_weight_transfer_engine", "list_loras", "profile", "remove_lora",
    "save_sharded_state", "save_tensorized_model", "shutdown_weight_transfer_engine",
    "synchronize_device", "update_max_model_len"))

_engines: weakref.WeakSet[Any] = weakref.WeakSet()


def watch(engine: Any) -> None:
    """From now on tells an `identity.Engine` of changes."""
    from vllm.v1.engine.core import EngineCore

    try:
        for name, wrapper in (("collective_rpc", _rpc), ("add_lora", _add_lora), ("sleep", _sleep),
                              ("reset_encoder_cache", _reset_encoder)):
            method = getattr(EngineCore, name)
            if not hasattr(method, "icms_wrapped"):
                wrapped = functools.wraps(method)(wrapper(method))
                wrapped.icms_wrapped = True  # type: ignore[attr-defined]
                setattr(EngineCore, name, wrapped)
    except AttributeError as error:
        raise WrongTier(f"icms: this vLLM does not show when weights change ({error}): use vLLM "
                        "0.32") from error
    _engines.add(engine)


def forget(engine: Any) -> None:
    """Tells it no more."""
    _engines.discard(engine)


def _rpc(original: Any) -> Any:
    def collective_rpc(self: Any, method: Any, timeout: Any = None, args: Any = (),
                       kwargs: Any = None) -> Any:
        if method in _HARMLESS:
            return original(self, method, timeout, args, kwargs)
        name = method if isinstance(method, str) else getattr(method, "__qualname__", repr(method))
        of_files = method == "reload_weights" and not args and not kwargs
        for engine in list(_engines):
            engine.changed(f"the call {name}", for_good=not of_files)
        result = original(self, method, timeout, args, kwargs)
        if of_files:
            for engine in list(_engines):
                engine.loaded_files()
        return result

    return collective_rpc


def _add_lora(original: Any) -> Any:
    def add_lora(self: Any, lora_request: Any) -> Any:
        for engine in list(_engines):
            engine.saw_adapter(lora_request)
        return original(self, lora_request)

    return add_lora


def _reset_encoder(original: Any) -> Any:
    def reset_encoder_cache(self: Any) -> Any:
        result = original(self)
        for engine in list(_engines):
            engine.forgot_encoded()
        return result

    return reset_encoder_cache


def _sleep(original: Any) -> Any:
    def sleep(self: Any, level: int = 1, mode: Any = "abort") -> Any:
        if level >= 2:
            for engine in list(_engines):
                engine.changed(f"sleep at level {level}", for_good=False)
        return original(self, level, mode)

    return sleep
