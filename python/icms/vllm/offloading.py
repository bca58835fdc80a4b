# SPDX-License-Identifier: Apache-2.0
"""vLLM's own OffloadingConnector for `tier.IcmsTier`. Imported and made by vLLM, see there.

It is that connector in all that it does. What it adds is what vLLM 0.32 tells no tier: the
configuration of the engine, what its workers know of their KV, what its steps take, and resets. A tier of another kind
beside IcmsTier notices nothing.
"""
from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from . import configuration
from .identity import Engine, Facts
from .waiting import computes_all


class IcmsOffloadingConnector(OffloadingConnector):
    """See the file's head. Takes the options of OffloadingConnector."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        self._config = vllm_config
        self._cache_config = kv_cache_config
        self._facts: Facts | None = None
        self._engine: Engine | None = None
        if role != KVConnectorRole.SCHEDULER:
            super().__init__(vllm_config, role, kv_cache_config)
            return
        self._engine = Engine(vllm_config, kv_cache_config)
        with self._engine.making():
            super().__init__(vllm_config, role, kv_cache_config)

    def shutdown(self) -> None:
        super().shutdown()
        if self._engine is not None:
            self._engine.close()

    # ---- the scheduler's half

    def on_new_request(self, request: Any) -> None:
        """Names the chunks of the prompt at once, which vLLM does when it first looks for them, so that
        tiers know them while the request waits for its turn. vLLM goes on from there. Not of a request that
        computes all: nobody looks for its chunks."""
        super().on_new_request(request)
        states = getattr(self.connector_scheduler, "_req_status", {})
        state = states.get(request.request_id)
        if self._engine is None or not self._engine.queued or state is None or computes_all(request):
            return
        state.update_offload_keys()
        for queued in self._engine.queued:
            queued(state.req_context)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        if self._engine is not None:
            self._engine.learn(metadata)

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        super().bind_gpu_block_pool(gpu_block_pool)
        if self._engine is not None:
            self._engine.pool = gpu_block_pool

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        if self._engine is not None:
            self._engine.stepped(scheduler_output.num_scheduled_tokens)
        return super().build_connector_meta(scheduler_output)

    def get_kv_connector_stats(self) -> Any:
        """In the scheduler's process called once for each step that has ended; update_connector_output is not, when
        one without tokens brought nothing."""
        if self._engine is not None:
            self._engine.prefill.step_ended()
        return super().get_kv_connector_stats()

    def reset_cache(self) -> bool | None:
        done: bool | None = super().reset_cache()  # ends all jobs first, under the keys of before
        if self._engine is not None:
            self._engine.reset()
        return done

    # ---- the worker's half

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        self._facts = Facts(configuration.of_worker(self._config, self._cache_config, kv_caches))

    def get_handshake_metadata(self) -> Facts | None:
        return self._facts.of(self) if self._facts else None
