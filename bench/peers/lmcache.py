# SPDX-License-Identifier: Apache-2.0
"""LMCache's storage layer below its memory: the L2 adapters, driven as its own storage manager and its
`lmcache bench l2` drive them: a store or load task of a batch of objects, an eventfd, the result.

Peer is fs_native (C++ threads, a file an object), Raw is raw_block (one file with slots and an index,
Rust), which needs a second package. Each batch is one task. A load does not look up first.
"""
import argparse
import json
import os
import select

from peers import side, virtual

RAW = "lmcache-rust-raw-block-io"
TIMEOUT_MS = 60000


def install(folder):
    """The second package has pre-releases only, and is for Raw alone."""
    virtual.packages("lmcache")(folder)
    virtual.run([folder / "venv/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check",
                 "install", "--pre", "--no-deps", RAW])


class Peer(side.Side):
    INSTALL = install
    TITLE = "LMCache L2 adapter fs_native, a file an object, 4 worker threads, O_DIRECT"
    CLASS = "local disk"
    AGAINST = ("local", "pod", "unix")
    ACKNOWLEDGED = "in a file, written with O_DIRECT"

    def config(self):
        return {"type": "fs_native", "base_path": str(self.folder / "objects"), "use_odirect": True}

    def start(self, pool):
        import torch
        from lmcache.v1.distributed.api import ObjectKey
        from lmcache.v1.distributed.internal_api import L1MemoryDesc
        from lmcache.v1.distributed.l2_adapters import create_l2_adapter
        from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
        from lmcache.v1 import memory_management as memory
        (self.folder / "objects").mkdir()
        self.object_key = ObjectKey
        self.base = side.address(pool)
        whole = torch.frombuffer(pool, dtype=torch.uint8)
        self.objects = [memory.TensorMemoryObj(
            raw_data=whole[at:at + self.size], parent_allocator=None,
            metadata=memory.MemoryObjMetadata(
                shape=torch.Size([self.size]), dtype=torch.uint8, address=at, phy_size=self.size,
                fmt=memory.MemoryFormat.KV_2LTD, ref_count=1))
            for at in range(0, pool.nbytes, self.size)]
        parsed = parse_args_to_l2_adapters_config(
            argparse.Namespace(l2_adapter=[json.dumps(self.config())]))
        self.adapter = create_l2_adapter(parsed.adapters[0], l1_memory_desc=L1MemoryDesc(
            ptr=self.base, size=pool.nbytes, align_bytes=4096))

    def _task(self, keys, memory):
        """The arguments of a task."""
        return ([self.object_key(chunk_hash=key, model_name="bench", kv_rank=0) for key in keys],
                [self.objects[(side.address(view) - self.base) // self.size] for view in memory])

    @staticmethod
    def _wait(descriptor):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(TIMEOUT_MS):
            raise side.SideError(f"no answer of the adapter within {TIMEOUT_MS} ms")
        try:
            os.eventfd_read(descriptor)
        except BlockingIOError:
            pass

    def put(self, keys, memory):
        task, done = self.adapter.submit_store_task(*self._task(keys, memory)), {}
        while task not in done:
            self._wait(self.adapter.get_store_event_fd())
            done = self.adapter.pop_completed_store_tasks()
        stored = done[task].is_successful()
        return [side.OK if stored else "the store task failed"] * len(keys)

    def get(self, keys, memory):
        task, found = self.adapter.submit_load_task(*self._task(keys, memory)), None
        while found is None:
            self._wait(self.adapter.get_load_event_fd())
            found = self.adapter.query_load_result(task)
        return [side.OK if found.test(i) else side.MISS for i in range(len(keys))]

    def stop(self):
        self.adapter.close()

    @staticmethod
    def versions(installed):
        return {name: virtual.version(installed, name) for name in ("lmcache", RAW)}


class Raw(Peer):
    TITLE = "LMCache L2 adapter raw_block, one file with slots, io_uring, O_DIRECT"

    def config(self):
        slot, index = self.size + 4096, 64 << 20
        path = self.folder / "objects" / "device"
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, index + slot * (self.setting.count + 8))
        return {"type": "raw_block", "device_path": str(path), "slot_bytes": slot,
                "meta_total_bytes": index, "use_odirect": True, "io_engine": "io_uring"}
