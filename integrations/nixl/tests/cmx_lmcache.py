# SPDX-License-Identifier: Apache-2.0
"""LMCache as it is configured for CMX, on icms: its own NIXL storage, the backend DOCA_MEMOS.

Goal: what is configured for CMX runs unchanged; only the table says what the device stands for.
Method: two of LMCache's storage backends, on two servers, in an environment with LMCache. Chunks that
one puts are found and loaded through the other, from the enclosure.

run.py --python PYTHON-WITH-LMCACHE cmx_lmcache runs it.
"""
import asyncio
import sys
import threading
import time

import nixl_cu12
import torch

import support

# The package nixl looks for the wheel of PyTorch's CUDA; without a GPU one is as good as another.
sys.modules["nixl_cu13"] = nixl_cu12
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.nixl_storage_backend import NixlStorageBackend

SHAPE = (4, 2, 64, 2, 64)  # layers, K and V, tokens of a chunk, heads, elements: 128 KiB
CHUNKS = 8


def chunk_keys(first):
    return [CacheEngineKey("tiny", 1, 0, number, torch.float16)
            for number in range(first, first + CHUNKS)]


class Cmx(support.TestCase):
    def setUp(self):
        super().setUp()
        self.loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self.loop.run_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.loop.call_soon_threadsafe, self.loop.stop)

    def storage(self, server, pool_size):
        """LMCache's storage on a server; pool_size 0: names are made of chunks."""
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=SHAPE[2], local_cpu=False, max_local_cpu_size=0.05,
            save_unfull_chunk=False, nixl_buffer_device="cpu",
            extra_config={
                "enable_nixl_storage": True, "nixl_backend": "DOCA_MEMOS",
                "nixl_pool_size": pool_size,
                "nixl_backend_params": {"device_name": f"/dev/nvme{server}n1",
                                        "query_mem_mode": "actual"}})
        metadata = LMCacheMetadata("tiny", 1, 1, 0, 0, torch.float16, SHAPE, chunk_size=SHAPE[2])
        storage = NixlStorageBackend.CreateNixlStorageBackend(
            config, self.loop, metadata, LocalCPUBackend(config, metadata, "cpu"))
        self.addCleanup(storage.close)
        return storage

    def put(self, storage, keys, like):
        """Puts chunks of random elements; what they hold."""
        objects = storage.batched_allocate(like.meta_shape, like.meta_dtype, CHUNKS, like.meta_fmt)
        for number, item in enumerate(objects):
            generator = torch.Generator().manual_seed(keys[number].chunk_hash)
            item.tensor.copy_(torch.randn(item.tensor.shape, generator=generator))
        wanted = [item.tensor.clone() for item in objects]
        storage.batched_submit_put_task(keys, objects)
        return wanted

    def check_loaded(self, loaded, wanted):
        for item, tensor in zip(loaded, wanted):
            self.assertIsNotNone(item)
            self.assertTrue(torch.equal(item.tensor, tensor))
            item.ref_count_down()

    def test_chunks_of_one_server_are_found_and_loaded_by_another(self):
        writer, reader = self.storage(0, 0), self.storage(1, 0)
        keys = chunk_keys(1000)
        hits = self.metric(self.tier.agents[1], "icms_agent_hits_total", 'tier="pod"')
        self.assertEqual(reader.batched_contains(keys), 0)
        wanted = self.put(writer, keys, writer)
        give_up = time.monotonic() + 20
        while reader.batched_contains(keys) != CHUNKS:
            self.assertLess(time.monotonic(), give_up)
            time.sleep(0.02)
        self.check_loaded(reader.batched_get_blocking(keys), wanted)
        self.assertEqual(
            self.metric(self.tier.agents[1], "icms_agent_hits_total", 'tier="pod"') - hits, CHUNKS)
        self.assertEqual(reader.batched_get_blocking(chunk_keys(5000)[:1]), [None])

    def test_a_pool_of_names_serves_its_own_process(self):
        storage = self.storage(0, 32)
        keys = chunk_keys(2000)
        wanted = self.put(storage, keys, self.storage(1, 0))
        self.check_loaded(storage.batched_get_blocking(keys), wanted)
