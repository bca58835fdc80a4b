# SPDX-License-Identifier: Apache-2.0
"""Just enough of SGLang for icms.sglang, with host pools whose memory tests can look at.

It says nothing of what SGLang does: that is for test/engines, with the real one.
"""
import ctypes
import dataclasses
import enum
import sys
import types


class Tensor(list):
    """Token positions."""

    def tolist(self):
        return list(self)


class Page:
    """A flat page, as SGLang hands it over without interface_v1."""

    def __init__(self, data):
        self.data = (ctypes.c_char * len(data)).from_buffer_copy(bytes(data))

    def is_contiguous(self):
        return True

    def contiguous(self):
        return self

    def data_ptr(self):
        return ctypes.addressof(self.data)

    def numel(self):
        return len(self.data) // 2

    def element_size(self):
        return 2


class PoolName(str, enum.Enum):
    KV = "kv"
    MAMBA = "mamba"
    SWA = "swa"

    def __str__(self):
        return self.value


class PoolHitPolicy(str, enum.Enum):
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"


@dataclasses.dataclass
class PoolTransfer:
    name: PoolName
    host_indices: Tensor = None
    keys: list = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES


@dataclasses.dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict
    restorable_prefix_pages: list = None


@dataclasses.dataclass
class ExtraInfo:
    prefix_keys: list = None


@dataclasses.dataclass
class StorageMetrics:
    prefetch_pgs: list = dataclasses.field(default_factory=list)
    backup_pgs: list = dataclasses.field(default_factory=list)
    prefetch_bandwidth: list = dataclasses.field(default_factory=list)
    backup_bandwidth: list = dataclasses.field(default_factory=list)


class HiCacheStorage:
    def register_mem_pool_host(self, pool):
        self.mem_pool_host = pool

    def register_mem_host_pool_v2(self, pool, name):
        pass


@dataclasses.dataclass
class Config:
    """HiCacheStorageConfig."""

    extra_config: dict
    model_name: str = "tiny"
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = True
    should_split_heads: bool = False
    dcp_size: int = 1


class Pool:
    """A host pool whose pages have a piece in each of its buffers."""

    dtype = "torch.bfloat16"
    layout = "page_first"

    def __init__(self, piece_bytes, pages=8, page_size=4, error=None):
        self.page_size = page_size
        self.error = error
        self.piece_bytes = piece_bytes
        self.buffers = [ctypes.create_string_buffer(nbytes * pages) for nbytes in piece_bytes]

    def get_page_buffer_meta(self, indices):
        if self.error:
            raise self.error
        if not self.buffers:
            return None
        pages = [index // self.page_size for index in indices.tolist()[::self.page_size]]
        places = [ctypes.addressof(buffer) + page * nbytes
                  for page in pages for buffer, nbytes in zip(self.buffers, self.piece_bytes)]
        return places, list(self.piece_bytes) * len(pages)

    def page(self, number):
        """The bytes of a page, piece after piece."""
        return b"".join(buffer.raw[number * nbytes:(number + 1) * nbytes]
                        for buffer, nbytes in zip(self.buffers, self.piece_bytes))

    def fill(self, number, data):
        """Writes a page."""
        for buffer, nbytes in zip(self.buffers, self.piece_bytes):
            ctypes.memmove(ctypes.addressof(buffer) + number * nbytes, data[:nbytes], nbytes)
            data = data[nbytes:]

    def at(self, *pages):
        """The token positions of pages."""
        return Tensor(page * self.page_size + token
                      for page in pages for token in range(self.page_size))


def install():
    """Puts the modules in place, before icms.sglang is imported."""
    torch = types.ModuleType("torch")
    torch.int64 = "int64"
    torch.zeros = lambda count, dtype: Tensor([0] * count)
    storage = types.ModuleType("sglang.srt.mem_cache.hicache_storage")
    for what in (HiCacheStorage, PoolHitPolicy, PoolName, PoolTransferResult):
        setattr(storage, what.__name__, what)
    metrics = types.ModuleType("sglang.srt.observability.metrics_collector")
    metrics.StorageMetrics = StorageMetrics
    for module in (torch, storage, metrics):
        name = module.__name__
        while "." in name:
            sys.modules.setdefault(name, types.ModuleType(name))
            name = name.rpartition(".")[0]
        sys.modules.setdefault(name, types.ModuleType(name))
        sys.modules[module.__name__] = module
