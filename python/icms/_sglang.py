# SPDX-License-Identifier: Apache-2.0
"""What an SGLang process is, and when its weights change: for `icms.sglang`.

SGLang's names of pages cover token ids, images (by hashes of their contents), adapters (by an id), extra
keys and cache salts. They say nothing of weights and configuration. All of the configuration counts
here that is not known to be harmless, and of files that it names the content.
"""
from __future__ import annotations

import dataclasses
import functools
import logging
import os
import weakref
from collections.abc import Callable
from typing import Any

from . import _engines, canonical, fingerprint
from .canonical import Scalar

#: Fields of ServerArgs that do not change the bytes of a page, by SGLang's own groups of options:
#: addresses, limits of memory and of batches, schedules, logs, tokenizers, answers. A field that a
#: later SGLang adds counts until it is listed here.
_HARMLESS = """
model_path revision download_dir model_checksum startup_weight_load_mode
weight_loader_disable_mmap weight_loader_prefetch_checkpoints weight_loader_prefetch_num_threads
weight_loader_drop_cache_after_load modelopt_checkpoint_save_path modelopt_export_path
engine_info_bootstrap_port delete_ckpt_after_loading weight_cache_socket weight_cache_timeout

base_gpu_id gpu_id_step random_seed watchdog_timeout soft_watchdog_timeout sleep_on_idle use_ray
custom_sigquit_handler numa_node gc_threshold

disaggregation_bootstrap_port disaggregation_decode_allocation_policy
disaggregation_decode_enable_offload_kvcache disaggregation_decode_enable_radix_cache
disaggregation_decode_extra_slots disaggregation_decode_host_receive_threshold
disaggregation_decode_polling_interval disaggregation_decode_retraction_backup
disaggregation_enable_kv_checksum disaggregation_ib_device disaggregation_mode
disaggregation_transfer_backend num_reserved_decode_tokens encoder_transfer_backend encoder_urls
encoder_bootstrap_port encoder_register_urls enable_pd_role_switch optimistic_prefill_attempts
enable_adaptive_dispatch_to_encoder decoupled_spec_bind_endpoint decoupled_spec_connect_endpoints
decoupled_spec_rank

enable_memory_saver enable_weights_cpu_backup enable_draft_weights_cpu_backup
enable_custom_logit_processor enable_watermark watermark_config watermark_context_window
watermark_default_enabled watermark_enforce_all watermark_key watermark_key_b
watermark_max_probability watermark_mixing_probability enable_return_aux_hidden_states
enable_return_hidden_states enable_return_indexer_topk enable_return_routed_experts
return_aux_hidden_state_layer_ids return_hidden_states_mode return_input_ids return_output_ids
aux_hidden_state_capture sampling_mask_max_tokens disable_outlines_disk_cache sampling_backend
grammar_backend

cuda_graph_backend_decode cuda_graph_backend_prefill cuda_graph_bs_decode cuda_graph_bs_prefill
cuda_graph_config cuda_graph_max_bs_decode cuda_graph_max_bs_prefill cuda_graph_max_seq_len_prefill
cuda_graph_prefill_max_context disable_prefill_cuda_graph disable_decode_cuda_graph
disable_cuda_graph disable_cuda_graph_padding enable_profile_cuda_graph enable_cudagraph_gc
debug_cuda_graph enable_layerwise_nvtx_marker pre_warm_nccl expert_distribution_recorder_buffer_size
expert_distribution_recorder_mode expert_balancedness_report_mode mooncake_ib_device cpu_offload_gb
offload_group_size offload_mode offload_num_in_group offload_prefetch_step torch_compile_max_bs
elastic_ep_scale_timeout kt_cpuinfer kt_threadpool_count

max_loaded_loras max_loras_per_batch lora_eviction_policy enable_lora_overlap_loading
lora_drain_wait_threshold lora_strict_loading max_lora_chunk_size

radix_eviction_policy radix_eviction_policy_config _radix_eviction_policy_explicitly_set
disable_radix_cache radix_cache_backend enable_session_radix_cache enable_hierarchical_cache
hicache_host_memory_fraction hicache_host_memory_mode hicache_io_backend hicache_mem_layout
hicache_ratio hicache_size hicache_storage_backend hicache_storage_backend_extra_config
hicache_storage_prefetch_policy hicache_storage_prefetch_retry_max_attempts
hicache_storage_prefetch_retry_poll_interval hicache_write_policy

allowed_media_domains media_url_max_file_size_mb mm_processor_worker_num mm_io_worker_num
mm_preprocess_cache_size_mb limit_mm_data_per_request enable_prefix_mm_cache enable_mm_global_cache
mm_global_cache_backend mm_feature_transport enable_broadcast_mm_inputs_process

log_level log_level_http log_requests log_requests_format log_requests_level log_requests_target
uvicorn_access_log_exclude_prefixes crash_dump_folder show_time_cost enable_metrics
enable_metrics_for_all_schedulers smg_http_sidecar_port enable_mfu_metrics
load_snapshot_publish_interval tokenizer_metrics_allowed_custom_labels
tokenizer_metrics_custom_labels_header extra_metric_labels bucket_e2e_request_latency
bucket_inter_token_latency bucket_time_to_first_token prompt_tokens_buckets
generation_tokens_buckets gc_warning_threshold_secs decode_log_interval
enable_request_time_stats_logging kv_events_config load_publish_endpoint enable_forward_pass_metrics
forward_pass_metrics_ipc_name forward_pass_metrics_worker_id enable_trace trace_modules
otlp_service_name otlp_traces_endpoint export_metrics_to_file export_metrics_to_file_dir
stat_loggers spec_trace_dir

nccl_port dist_timeout dist_init_addr gated_launch_port nnodes node_rank dp_size load_balance_method
pp_max_micro_batch_size pp_async_batch_depth enable_p2p_check
enable_dp_attention_local_control_broadcast

mem_fraction_static max_running_requests max_queued_requests max_total_tokens chunked_prefill_size
prefill_decode_interval prefill_decode_interval_min_bs enable_dynamic_chunking max_prefill_tokens
prefill_max_requests schedule_policy enable_priority_scheduling disable_priority_preemption
default_priority_value abort_on_priority_when_disabled schedule_low_priority_values_first
priority_scheduling_preemption_threshold retraction_policy schedule_conservativeness
swa_full_tokens_ratio _swa_full_tokens_ratio_explicitly_set disable_overlap_schedule
num_continuous_decode_steps scheduler_recv_interval enable_mixed_chunk max_mamba_cache_size
mamba_full_memory_ratio enable_prefill_delayer prefill_delayer_forward_passes_buckets
prefill_delayer_max_delay_ms prefill_delayer_max_delay_passes prefill_delayer_queue_min_ratio
prefill_delayer_token_usage_low_watermark prefill_delayer_wait_seconds_buckets min_free_slots_delay

enable_response_store tokenizer_backend tokenizer_metrics_allowed_custom_labels
tokenizer_metrics_custom_labels_header tokenizer_mode tokenizer_path tokenizer_worker_num
detokenizer_worker_num skip_tokenizer_init host port fastapi_root_path enable_http2
enable_http_worker_reuseport http2_initial_connection_window_size http2_max_concurrent_streams
smg_grpc_mode grpc_mode grpc_port grpc_response_timeout_secs grpc_worker_threads sidecar
sidecar_args skip_server_warmup warmups ssl_ca_certs ssl_certfile ssl_keyfile ssl_keyfile_password
enable_ssl_refresh api_key admin_api_key served_model_name chat_template trust_request_chat_template
hf_chat_template_name completion_template file_storage_path enable_cache_report return_input_ids
return_output_ids reasoning_parser default_chat_template_kwargs strip_thinking_cache
enable_strict_thinking tool_call_parser tool_server sampling_defaults asr_max_buffer_seconds
asr_max_concurrent_sessions preferred_sampling_params allow_auto_truncate stream_interval
stream_response_default_include_usage batch_notify_size incremental_streaming_output
enable_streaming_session constrained_json_disable_any_whitespace constrained_json_max_whitespace_cnt
constrained_json_whitespace_pattern enable_dynamic_batch_tokenizer
dynamic_batch_tokenizer_batch_size dynamic_batch_tokenizer_batch_timeout
enable_tokenizer_batch_encode disable_tokenizer_batch_decode
""".split()
#: The same for variables of the environment, which begin with SGLANG_.
_HARMLESS_ENVIRONMENT = """
BACKUP_PORT_BASE CACHE_DIR CACHE_HIT_RATE_WINDOW_SECONDS CUDA_COREDUMP CUDA_COREDUMP_DIR
CUTE_AOT_CACHE_DIR DATA_PARALLEL_BUDGET_INTERVAL DETECT_SLOW_RANK DG_CACHE_DIR
DIAG_BYPASS_HEALTH_GENERATE DISAGGREGATION_BOOTSTRAP_ENTRY_CLEANUP_INTERVAL
DISAGGREGATION_BOOTSTRAP_TIMEOUT DISAGGREGATION_ENGINE_INIT_TIMEOUT
DISAGGREGATION_HEARTBEAT_INTERVAL DISAGGREGATION_HEARTBEAT_MAX_FAILURE DISAGGREGATION_QUEUE_SIZE
DISAGGREGATION_THREAD_POOL_SIZE DISAGGREGATION_WAITING_TIMEOUT DISAGGREGATION_ZMQ_MAX_SOCKETS
DISAGGREGATION_ZMQ_SEND_TIMEOUT DISAGGREGATION_NIXL_BACKEND DISAGGREGATION_NIXL_BACKEND_PARAMS
EMPTY_CACHE_INTERVAL ENABLE_HEALTH_ENDPOINT_GENERATION ENABLE_METRICS_DEVICE_TIMER
ENABLE_METRICS_DP_ATTENTION ENABLE_NVTX_OPERATIONS ENABLE_NVTX_SCHEDULER
ENCODER_BOOTSTRAP_HEALTH_CHECK_INTERVAL ENCODER_BOOTSTRAP_HEALTH_CHECK_TIMEOUT
ENCODER_GRPC_TIMEOUT_SECS ENCODER_HTTP_TIMEOUT ENCODER_RECV_TIMEOUT ENCODER_REQ_TIMEOUT
ENCODER_SEND_TIMEOUT EXPERT_DISTRIBUTION_RECORDER_DIR FORCE_SHUTDOWN FORCE_STREAM_INTERVAL
GRAMMAR_POLL_INTERVAL GRPC_PORT GRPC_WORKER_THREADS HICACHE_FILE_BACKEND_STORAGE_DIR
HICACHE_HF3FS_CONFIG_PATH HICACHE_HOST_PARALLEL_ALLOC_THREADS HICACHE_HOST_REGISTER_CHUNK_GB
HICACHE_MOONCAKE_CONFIG_PATH HICACHE_NIXL_BACKEND_STORAGE_DIR HUGEPAGE_SIZE INIT_NEW_TOKEN_RATIO
IS_FIRST_RANK_ON_NODE IS_IN_CI IS_IN_CI_AMD JIT_CACHE_DIR JIT_CACHE_KEEP JIT_DEEPGEMM_FAST_WARMUP
JIT_DEEPGEMM_PRECOMPILE JIT_LOG_LEVEL JIT_LOG_RESOURCE_USAGE LOG_DECODE_GRAPH_KEY
LOG_EXPERT_LOCATION_METADATA LOG_FORWARD_ITERS LOG_GC LOG_LAZY_COMPACTION_STATS
LOG_LAZY_COMPACTION_STATS_INTERVAL_SEC LOG_MS LOG_PICKLE_IPC_OBJECTS LOG_REQUEST_EXCEEDED_MS
LOG_REQUEST_HEADERS LOG_SCHEDULER_STATUS_INTERVAL LOG_SCHEDULER_STATUS_TARGET
MAX_BATCH_REQS_PER_HTTP_REQ MAX_NEW_TOKENS_LIMIT MEM_PROFILE_MAX_ENTRIES MIN_NEW_TOKEN_RATIO_FACTOR
MOONCAKE_CUSTOM_MEM_POOL MORI_TRANSFER_TIMEOUT_MS NEW_TOKEN_RATIO_DECAY_STEPS NUMA_BIND_V2
ONE_VISIBLE_DEVICE_PER_PROCESS OTLP_EXPORTER_MAX_EXPORT_BATCH_SIZE
OTLP_EXPORTER_SCHEDULE_DELAY_MILLIS PORT PREFILL_DELAYER_MAX_DELAY_PASSES
PROFILE_BY_STAGE_DECODE_MIN_BS PROFILE_RECORD_SHAPES PROFILE_V2 PROFILE_WITH_STACK
RAY_BUNDLE_INDICES RECORD_STEP_TIME REQUEST_STATE_WAIT_TIMEOUT REQ_RUNNING_TIMEOUT
REQ_WAITING_TIMEOUT SET_CPU_AFFINITY SKIP_SGL_KERNEL_VERSION_CHECK TCP_STORE_PORT
TEST_HICACHE_BACKEND_RANDOM_DELAY TEST_HICACHE_BACKEND_RANDOM_FAILURE TEST_METRICS_FILE
TEST_REQUEST_TIME_STATS TIMEOUT_KEEP_ALIVE TORCH_PROFILER_DIR TRACE_ASYNC
TRACE_ASYNC_FLUSH_THRESHOLD USE_MESSAGE_QUEUE_BROADCASTER USE_MODELSCOPE
UVICORN_WORKER_HEALTHCHECK_TIMEOUT WARMUP_TIMEOUT WEIGHT_CACHE_SOCKET_TEMPLATE ZMQ_ALLOWED_PEERS
ZMQ_SOURCE_IP
""".split()
#: Fields that name files or models whose content counts: beside the path stands its fingerprint.
_FILES = ("quantization_param_path", "speculative_draft_model_path", "speculative_token_map",
          "uno_lora_path", "kt_weight_path", "decrypted_config_file", "decrypted_draft_config_file",
          "dllm_algorithm_config", "modelopt_checkpoint_restore_path", "pdmux_config_path")
#: Fields that name the revision of a model that another field names.
_REVISIONS = {"speculative_draft_model_path": "speculative_draft_model_revision"}
#: Values of --load-format that read the files of --model-path and nothing else.
_FILE_FORMATS = ("auto", "pt", "safetensors", "instanttensor", "npcache", "sharded_state",
                 "presharded", "gguf", "expert_pack", "bitsandbytes", "mistral", "layered",
                 "fastsafetensors")
#: Fields that say, when they are set, that weights come from elsewhere.
_OTHER_SOURCES = ("custom_weight_loader", "checkpoint_engine_wait_weights_before_ready",
                  "modelexpress_config", "rl_quant_profile")

#: What to do about a field that differs, for `icms.statements`.
WORDS = {
    "block_tokens": "set --page-size alike on all servers",
    "dtype": "set --kv-cache-dtype and --dtype alike on all servers",
    "ranks": "set --tp-size, --pp-size and --attn-cp-size alike on all servers",
    "config.server.attention_backend": "set --attention-backend alike on all servers",
    "config.server.lora.*": "the adapters of --lora-paths differ",
    "config.sglang": "run one version of SGLang on all servers",
    "config.pool.layout": "set --hicache-mem-layout alike on all servers",
    "config.environment.*": "set this variable alike on all servers",
    "config.server.json_model_override_args": "set --json-model-override-args alike on all servers",
    "config.server.*": "set this server argument alike on all servers",
}


@dataclasses.dataclass(frozen=True)
class Identity:
    """What of a server counts beside its host pools."""

    weights: bytes  # as the fields of a Layout
    model: str
    config: dict[str, Scalar]
    path: str       # of the model's files
    others: bytes   # fingerprint of those that have no weights; empty where weights are named


def identity(weights: str, log: logging.Logger) -> Identity:
    """Of this process. weights is the option of that name. ValueError says what to set."""
    import sglang
    from sglang.srt.runtime_context import get_server_args

    args = get_server_args().resolved_dict()
    path = str(args["model_path"])
    is_named = weights not in ("", fingerprint.FILES)
    if not is_named:
        _check_source(args)
    found = fingerprint.of_option(weights, path, revision=args.get("revision"), log=log)
    server = canonical.flatten(args, harmless=(*_HARMLESS, "lora_paths", *_FILES))
    for name in _FILES:
        given = args.get(name)
        if given is not None:
            server[name] = given if is_named else fingerprint.of_files(
                str(given), revision=args.get(_REVISIONS.get(name, "")), weights=None,
                log=log).hex()
    server.update(_adapters(args.get("lora_paths"), is_named, log))
    environment = canonical.flatten(
        {name.removeprefix("SGLANG_"): value
         for name, value in _engines.environment(os.environ, "SGLANG_").items()},
        harmless=_HARMLESS_ENVIRONMENT)
    config = {**{f"server.{name}": value for name, value in server.items()},
              **{f"environment.SGLANG_{name}": value for name, value in environment.items()},
              "sglang": str(sglang.__version__),
              "transformers": _engines.version_of("transformers")}
    others = b"" if is_named else fingerprint.of_files(path, revision=args.get("revision"),
                                                       weights=False)
    return Identity(*found, config=config, path=path, others=others)


def loaded(identity_before: Identity, path: str, log: logging.Logger) -> Identity:
    """The identity after weights were loaded from the files at path. FilesError when it is not known:
    SGLang goes on with the configuration that it started with, so the other files have to be those."""
    if fingerprint.of_files(path, weights=False) != identity_before.others:
        raise fingerprint.FilesError(f"the files of {path} beside the weights are not those that the "
                                     "server started with; restart it to share its pages")
    return dataclasses.replace(identity_before, weights=fingerprint.of_files(path, log=log),
                               path=path)


def _check_source(args: dict[str, Any]) -> None:
    load_format = args.get("load_format", "auto")
    source = next((name for name in _OTHER_SOURCES if args.get(name)), "")
    if load_format not in _FILE_FORMATS:
        source = f"load_format {load_format}"
    if args.get("weight_cache_mode") == "client":  # a daemon may keep weights of older files
        source = "weight_cache_mode client"
    # Of a model with a name, the fingerprint is that of the files in the usual cache.
    models = (args["model_path"], args.get("speculative_draft_model_path"))
    if args.get("download_dir") and not all(os.path.exists(one) for one in models if one):
        source = "download_dir"
    if source:
        raise ValueError(f"cannot take the fingerprint of the weights: {source} says that they do not "
                         "come from the files of the model; set the option \"weights\" to a text that "
                         "names them")


def _adapters(paths: Any, is_named: bool, log: logging.Logger) -> dict[str, Scalar]:
    """Adapters that SGLang loads when it starts have an id made of name and path: their content
    counts. Those that are loaded later have a random id."""
    made: dict[str, Scalar] = {}
    for given in paths or ():
        adapter = canonical.flatten(given)
        if not adapter.get("lora_id") or not adapter.get("lora_path"):
            raise ValueError(f"cannot tell which adapter {given!r} of --lora-paths is: icms needs "
                             "SGLang 0.5.23")
        made[f"lora.{adapter['lora_id']}"] = (
            f"{adapter.get('lora_name')} {adapter['lora_path']}" if is_named else
            fingerprint.of_files(str(adapter["lora_path"]), log=log).hex())
    return made


def common_nonce() -> bytes:
    """32 random bytes, the same in all tensor ranks of this engine. All of them call it together."""
    import torch
    from sglang.srt.runtime_context import get_parallel

    made = [os.urandom(32)]
    if torch.distributed.is_initialized():
        group = get_parallel().tp_group
        if group.world_size > 1:
            torch.distributed.broadcast_object_list(made, src=group.ranks[0], group=group.cpu_group)
    return made[0]


class WeightsHook:
    """Tells when SGLang changes the weights of this process: changed() before, and loaded(path) after
    all of them came from the files at path.

    SGLang tells no storage of it, so the methods through which all of its updates go are wrapped, in
    this process, once.
    """

    _hooks: weakref.WeakSet[WeightsHook] = weakref.WeakSet()

    def __init__(self, changed: Callable[[], None], loaded: Callable[[str], None]) -> None:
        from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater

        self._changed = changed
        self._loaded = loaded
        for name in ("begin_weight_update", "receive_weights_from_distributed",
                     "load_weights_from_distributed", "update_weights_from_tensor",
                     "update_weights_from_ipc", "update_weights_from_disk"):
            method = getattr(WeightUpdater, name, None)
            if method is None:
                raise ValueError("cannot tell when SGLang changes its weights: WeightUpdater has no "
                                 f"{name}; icms needs SGLang 0.5.23")
            if not hasattr(method, "icms"):
                setattr(WeightUpdater, name, self._wrapped(method, name))
        self._hooks.add(self)

    def close(self) -> None:
        """From now on calls nothing."""
        self._hooks.discard(self)

    @classmethod
    def _wrapped(cls, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(updater: Any, *arguments: Any, **words: Any) -> Any:
            for hook in list(cls._hooks):
                hook._changed()
            result = method(updater, *arguments, **words)
            if name == "update_weights_from_disk" and result[0] and \
                    not words.get("weight_name_filter") and len(arguments) < 3:
                for hook in list(cls._hooks):
                    hook._loaded(str(arguments[0] if arguments else words["model_path"]))
            return result

        call.icms = True  # type: ignore[attr-defined]
        return call


class FlushHook:
    """Calls flushed() after SGLang has emptied a host pool, which is what a flush does of all that a
    storage gets to see."""

    def __init__(self, pool: Any, flushed: Callable[[], None]) -> None:
        self._pool = pool
        clear = pool.clear

        @functools.wraps(clear)
        def call(*arguments: Any, **words: Any) -> Any:
            result = clear(*arguments, **words)
            flushed()
            return result

        self._call = pool.clear = call

    def close(self) -> None:
        """From now on calls nothing."""
        if self._pool.__dict__.get("clear") is self._call:
            del self._pool.clear
