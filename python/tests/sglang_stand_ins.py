# SPDX-License-Identifier: Apache-2.0
"""Just enough of SGLang for icms.sglang, with host pools whose memory tests can look at.

It says nothing of what SGLang does: that is for test/engines, with the real one.
"""
import atexit
import ctypes
import dataclasses
import enum
import os
import pathlib
import shutil
import sys
import tempfile
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
    flat_bytes = 4000

    def __init__(self, piece_bytes, pages=8, page_size=4, error=None, **fields):
        self.__dict__.update(fields)
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

    def clear(self):
        """Of a flush."""

    def get_dummy_flat_data_page(self):
        return Page(bytes(self.flat_bytes))

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


class ServerArgs:
    """The arguments of the server of this process; tests change `fields`."""

    fields = {}

    def resolved_dict(self):
        return dict(self.fields)


class WeightUpdater:
    """What changes the weights of a process."""

    def begin_weight_update(self):
        pass

    def update_weights_from_disk(self, model_path, load_format, weight_name_filter=None,
                                 recapture_cuda_graph=False):
        return "fail" not in model_path, model_path

    def update_weights_from_tensor(self, named_tensors, load_format=None):
        return True, named_tensors

    load_weights_from_distributed = receive_weights_from_distributed = update_weights_from_tensor
    update_weights_from_ipc = update_weights_from_tensor


class Ranks:
    """A group of processes: the nonce that its first rank has made."""

    nonce = None

    @classmethod
    def broadcast(cls, values, src, group):
        assert (src, group) == (0, "cpu group")
        if cls.nonce is None:
            cls.nonce = values[0]
        values[0] = cls.nonce


def model(name, weights=b"weights"):
    """A folder with a model."""
    path = FOLDER / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(weights)
    return str(path)


FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="icms-sglang-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def install():
    """Puts the modules in place, before icms.sglang is imported."""
    os.environ["XDG_CACHE_HOME"] = str(FOLDER / "cache")
    ServerArgs.fields = {"model_path": model("llama"), "revision": None, "load_format": "auto",
                         "lora_paths": [], "quantization_param_path": None, "port": 30000,
                         "attention_backend": "flashinfer", "json_model_override_args": "{}"}
    torch = types.ModuleType("torch")
    torch.int64 = "int64"
    torch.zeros = lambda count, dtype: Tensor([0] * count)
    torch.distributed = types.SimpleNamespace(is_initialized=lambda: Ranks.nonce is not None,
                                              broadcast_object_list=Ranks.broadcast)
    storage = types.ModuleType("sglang.srt.mem_cache.hicache_storage")
    for what in (HiCacheStorage, PoolHitPolicy, PoolName, PoolTransferResult):
        setattr(storage, what.__name__, what)
    metrics = types.ModuleType("sglang.srt.observability.metrics_collector")
    metrics.StorageMetrics = StorageMetrics
    context = types.ModuleType("sglang.srt.runtime_context")
    context.get_server_args = ServerArgs
    context.get_parallel = lambda: types.SimpleNamespace(tp_group=types.SimpleNamespace(
        world_size=2, ranks=[0, 1], cpu_group="cpu group"))
    updater = types.ModuleType("sglang.srt.model_executor.model_runner_components.weight_updater")
    updater.WeightUpdater = WeightUpdater
    for module in (torch, storage, metrics, context, updater):
        name = module.__name__
        while "." in name:
            sys.modules.setdefault(name, types.ModuleType(name))
            name = name.rpartition(".")[0]
        sys.modules.setdefault(name, types.ModuleType(name))
        sys.modules[module.__name__] = module
    sys.modules["sglang"].__version__ = "0.5.23"
