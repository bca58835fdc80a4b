# SPDX-License-Identifier: Apache-2.0
"""The copy between an engine's KV cache and vLLM's memory of the host, for engines on a CPU.

vLLM's TieringOffloadingSpec has one for GPUs only. CpuTieringSpec replaces that worker by memcpy;
the manager, the memory, the tiers and all of the scheduler's side are vLLM's own, as on a GPU.
Named in kv_connector_extra_config by "spec_name" and "spec_module_path".
"""
import time

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CopyingWorker(OffloadingWorker):
    """Copies at once, in the calling thread."""

    def __init__(self, kv_caches, blocks_per_chunk, region):
        self.region = region
        self.blocks_per_chunk = blocks_per_chunk
        self.finished = []
        self.engine = []  # one tensor (block, byte) a layer
        self.host = []  # one tensor (chunk, byte) a layer
        for cache in kv_caches.tensors:
            page = cache.page_size_bytes
            self.engine.append(cache.tensor.view(torch.int8).view(-1, page))
            self.host.append(region.create_next_worker_view(page * blocks_per_chunk))
        self.groups = kv_caches.group_data_refs

    def pairs(self, gpu, cpu):
        """Yields the layer, a block's bytes in the engine and in the host, for all of a job."""
        block_at = chunk_at = 0
        for group, (blocks, first) in enumerate(zip(gpu.group_sizes, gpu.block_indices)):
            skipped = first % self.blocks_per_chunk
            for i in range(blocks):
                chunk = int(cpu.block_ids[chunk_at + (skipped + i) // self.blocks_per_chunk])
                within = (skipped + i) % self.blocks_per_chunk
                block = int(gpu.block_ids[block_at + i])
                for ref in self.groups[group]:
                    engine = self.engine[ref.tensor_idx]
                    begin = within * engine.shape[1]
                    yield (engine[block, :ref.page_size_bytes],
                           self.host[ref.tensor_idx][chunk, begin:begin + ref.page_size_bytes])
            block_at += blocks
            chunk_at += -(-(skipped + blocks) // self.blocks_per_chunk) if blocks else 0

    def done(self, job_id, moved, begin):
        self.finished.append(TransferResult(job_id=job_id, success=True, transfer_size=moved,
                                            transfer_time=time.perf_counter() - begin))
        return True

    def submit_store(self, job_id, src_spec, dst_spec):
        begin, moved = time.perf_counter(), 0
        for engine, host in self.pairs(src_spec, dst_spec):
            host.copy_(engine)
            moved += host.numel()
        return self.done(job_id, moved, begin)

    def submit_load(self, job_id, src_spec, dst_spec):
        begin, moved = time.perf_counter(), 0
        for engine, host in self.pairs(dst_spec, src_spec):
            engine.copy_(host)
            moved += host.numel()
        return self.done(job_id, moved, begin)

    def get_finished(self):
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids):
        return

    def shutdown(self):
        self.engine = self.host = []
        self.region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if not self._worker:
            region = SharedOffloadRegion(
                engine_id=self._engine_id, num_chunks=self.num_chunks,
                rank=self.config.parallel.rank, kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker)
            self._worker = CopyingWorker(kv_caches, self.blocks_per_chunk, region)
        return self._worker
