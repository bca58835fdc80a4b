# SPDX-License-Identifier: Apache-2.0
"""Just enough of vLLM's names to import icms.vllm where there is no vLLM, for tests of life cycles,
deadlines and threads. What vLLM really does is judged by test/engines/vllm, with a real one.
"""
import contextlib
import dataclasses
import enum
import hashlib
import logging
import random
import sys
import types
import typing
import unittest.mock


class LookupResult(enum.Enum):
    MISS = 1
    HIT = 2
    HIT_PENDING = 3
    RETRY = 4


class Medium(enum.Enum):
    CPU = "CPU"
    STORAGE = "STORAGE"


class Locality(enum.Enum):
    LOCAL = "LOCAL"
    REMOTE = "REMOTE"


@dataclasses.dataclass
class OffloadingEvent:
    keys: list
    medium: Medium
    removed: bool
    locality: Locality | None = None
    ownership: str | None = None
    removal_expected: bool = False


@dataclasses.dataclass
class ReqContext:
    req_id: str
    kv_transfer_params: dict | None = None
    _offload_key_positions: dict = dataclasses.field(default_factory=dict)


class ScheduleEndContext(typing.NamedTuple):
    new_req_ids: typing.Collection = ()
    preempted_req_ids: typing.Collection = ()


@dataclasses.dataclass
class TransferJob:
    job_id: int
    keys: list
    chunk_ids: list
    is_promotion: bool
    req_context: ReqContext


@dataclasses.dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: tuple | None = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


class SecondaryTierManager:
    def __init__(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None):
        self._offloading_spec = offloading_spec
        self.block_size_bytes = primary_kv_view.strides[0]


class Stats:
    def __init__(self):
        self.counters = {}
        self.gauges = {}

    def increase_counter(self, name, number, labels=()):
        self.counters[name, labels] = self.counters.get((name, labels), 0) + number

    def set_gauge(self, name, number, labels=()):
        self.gauges[name] = number


class Base:
    def __init__(self, **words):
        self.words = words


class HybridMemory:
    """SupportsHMA"""


@dataclasses.dataclass
class ConnectorStats:
    data: dict = dataclasses.field(default_factory=dict)


class Anything:
    def __init__(self, *arguments, **words):
        self.words = words


class Role(enum.Enum):
    SCHEDULER = 1
    WORKER = 2


class OffloadingConnector:
    """Makes a tier as vLLM's does: `tier` is called meanwhile. Notes what it is asked."""

    tier = None

    def __init__(self, vllm_config, role, kv_cache_config):
        self.asked = []
        self.made = self.tier() if self.tier else None
        self.connector_scheduler = types.SimpleNamespace(_req_status={})

    def on_new_request(self, request):
        """vLLM's names a request's chunks when it looks for them first, or when it is asked to."""
        context = ReqContext(request.request_id)

        def update_offload_keys():
            context._offload_key_positions.update(request.chunks)

        self.connector_scheduler._req_status[request.request_id] = types.SimpleNamespace(
            req_context=context, update_offload_keys=update_offload_keys)
        self.made.on_new_request(context)

    def build_connector_meta(self, output):
        self.asked.append("step")

    def get_kv_connector_stats(self):
        self.asked.append("stats")

    def bind_gpu_block_pool(self, pool):
        self.asked.append("pool")

    def register_kv_caches(self, caches):
        self.asked.append("caches")

    def reset_cache(self):
        self.asked.append("reset")
        return True

    def shutdown(self):
        self.asked.append("shutdown")


class EngineCore:
    """What vLLM's own is asked for, and by whom."""

    def __init__(self):
        self.asked = []

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        self.asked.append(method)
        return ["done"]

    def add_lora(self, lora_request):
        self.asked.append(lora_request.lora_name)
        return True

    def reset_encoder_cache(self):
        self.asked.append("encoder")

    def sleep(self, level=1, mode="abort"):
        self.asked.append(level)


def engine_of(config, kv_cache_config):
    """An icms.vllm.identity.Engine whose workers have said what they know."""
    from icms.vllm.identity import Engine, Facts

    engine = Engine(config, kv_cache_config)
    engine.learn({(0, 0): Facts("a machine")})
    return engine


def vllm_config(model="m", **more):
    """As much of a VllmConfig as counts; more replaces parts of it: model_config={"dtype": ...}"""
    parts = {
        "parallel_config": {"tensor_parallel_size": 1, "world_size": 1, "nnodes_within_dp": 1,
                            "decode_context_parallel_size": 1, "data_parallel_rpc_port": 1},
        "cache_config": {"kv_cache_layout": "X", "cache_dtype": "auto", "block_size": 16,
                         "prefix_caching_hash_algo": "sha256", "enable_prefix_caching": True,
                         "gpu_memory_utilization": 0.9},
        "model_config": {"model": model, "quantization": None, "dtype": "torch.float32",
                         "max_model_len": 4096, "hf_token": None, "multimodal_config": None,
                         "hf_config": {"rope_theta": 10000.0, "_name_or_path": model,
                                       "rope_parameters": {"rope_type": "default"}}},
        "scheduler_config": {"max_num_seqs": 4, "max_num_batched_tokens": 4096},
        "load_config": {"load_format": "auto", "download_dir": None},
        "lora_config": None, "speculative_config": None, "quant_config": None}
    for name, part in more.items():
        parts[name] = {**(parts.get(name) or {}), **part}
    return types.SimpleNamespace(**{
        name: types.SimpleNamespace(**part) if isinstance(part, dict) else part
        for name, part in parts.items()})


def is_settled(movers):
    """Whether all that was begun is over, questions, choices and hints too."""
    return not any(movers._outstanding.values())


class Flapping:
    """A link whose tier comes and goes between any two looks at it."""

    def __init__(self, link):
        self.link = link

    @property
    def schemes(self):
        return self.link.schemes if random.random() < 0.5 else ()

    @property
    def up(self):
        return bool(self.schemes)

    def close(self):
        self.link.close()


def hash_fn(name):
    """One of vLLM's functions that hash blocks."""
    return lambda what: hashlib.sha256(f"{name} {what}".encode()).digest()


@contextlib.contextmanager
def seeded(name, seed):
    """While vLLM's hashes begin with a seed, hashed with this function."""
    module = sys.modules["vllm.v1.core.kv_cache_utils"]
    with unittest.mock.patch.object(module, "NONE_HASH", hash_fn(name)(seed)), \
            unittest.mock.patch.object(module, "get_none_hash_seed", lambda: seed):
        yield


def install():
    """Puts the stand-ins where Python finds modules; refuses to hide a real vLLM."""
    def module(name, **names):
        made = types.ModuleType(name)
        made.__dict__.update(names)
        made.__path__ = []
        sys.modules[name] = made
        return made

    if getattr(sys.modules.get("vllm"), "__version__", "").endswith("stand-in"):
        return
    assert "vllm" not in sys.modules
    connectors = "vllm.distributed.kv_transfer.kv_connector.v1"
    module("vllm", __version__="0.32.0+stand-in")
    for name in ("vllm.distributed", "vllm.distributed.kv_transfer",
                 "vllm.distributed.kv_transfer.kv_connector", connectors,
                 f"{connectors}.offloading", "vllm.v1", "vllm.v1.core", "vllm.v1.kv_offload",
                 "vllm.v1.kv_offload.tiering", "vllm.v1.metrics", "vllm.v1.engine"):
        module(name)
    module("torch", Tensor=object)
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.utils")
    module("vllm.utils.hashing", get_hash_fn_by_name=hash_fn)
    module("vllm.v1.core.kv_cache_utils", NONE_HASH=b"seed" * 8, get_none_hash_seed=lambda: "vllm-none-hash")
    sys.modules["vllm.v1.core"].kv_cache_utils = sys.modules["vllm.v1.core.kv_cache_utils"]
    module(f"{connectors}.offloading.metrics", OffloadingConnectorStats=Stats)
    module("vllm.v1.kv_offload.base", LookupResult=LookupResult, Medium=Medium,
           Locality=Locality, OffloadingEvent=OffloadingEvent, ReqContext=ReqContext, RequestOffloadingContext=Anything,
           OffloadingCounterMetadata=Anything, OffloadingGaugeMetadata=Anything,
           ScheduleEndContext=ScheduleEndContext)
    module("vllm.v1.kv_offload.tiering.base", JobResult=JobResult, TransferJob=TransferJob,
           SecondaryTierManager=SecondaryTierManager)
    module(f"{connectors}.base", KVConnectorBase_V1=Base, KVConnectorMetadata=object,
           KVConnectorRole=Role, KVConnectorWorkerMetadata=object, SupportsHMA=HybridMemory,
           KVConnectorHandshakeMetadata=object)
    module(f"{connectors}.offloading_connector", OffloadingConnector=OffloadingConnector)
    module("vllm.v1.engine.core", EngineCore=EngineCore)
    module(f"{connectors}.metrics", KVConnectorPromMetrics=object,
           KVConnectorStats=ConnectorStats)
    module("vllm.v1.kv_cache_interface", AttentionSpec=types.SimpleNamespace,
           group_kernel_blocks=None)
    module("vllm.v1.metrics.cache_hit_source",
           CacheHitSource=types.SimpleNamespace(DISK="disk"))
