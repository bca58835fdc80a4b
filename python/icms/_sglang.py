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

from . import canonical, fingerprint
from .canonical import Scalar

#: Fields of ServerArgs that do not change the bytes of a page, by SGLang's own groups of options:
#: addresses, limits of memory and of batches, schedules, logs, tokenizers, answers. A field that a
#: later SGLang adds counts until it is listed here.
_HARMLESS = """
model_path revision download_dir trust_remote_code model_checksum startup_weight_load_mode
weight_loader_disable_mmap weight_loader_prefetch_checkpoints weight_loader_prefetch_num_threads
weight_loader_drop_cache_after_load modelopt_checkpoint_save_path modelopt_export_path
engine_info_bootstrap_port delete_ckpt_after_loading

base_gpu_id gpu_id_step random_seed watchdog_timeout soft_watchdog_timeout sleep_on_idle use_ray
custom_sigquit_handler numa_node gc_threshold

disaggregation_* num_reserved_decode_tokens encoder_transfer_backend encoder_urls
encoder_bootstrap_port encoder_register_urls enable_pd_role_switch optimistic_prefill_attempts
enable_adaptive_dispatch_to_encoder

enable_memory_saver enable_weights_cpu_backup enable_draft_weights_cpu_backup
enable_custom_logit_processor enable_watermark watermark_* enable_return_* return_*
aux_hidden_state_capture sampling_mask_max_tokens disable_outlines_disk_cache sampling_backend
grammar_backend

cuda_graph_* disable_prefill_cuda_graph disable_decode_cuda_graph disable_cuda_graph
disable_cuda_graph_padding enable_profile_cuda_graph enable_cudagraph_gc debug_cuda_graph
enable_layerwise_nvtx_marker pre_warm_nccl expert_distribution_recorder_* expert_balancedness_report_mode
mooncake_ib_device cpu_offload_gb offload_*

max_loaded_loras max_loras_per_batch lora_eviction_policy enable_lora_overlap_loading
lora_drain_wait_threshold lora_strict_loading max_lora_chunk_size

radix_eviction_policy* _radix_eviction_policy_explicitly_set disable_radix_cache radix_cache_backend
enable_session_radix_cache enable_hierarchical_cache hicache_*

allowed_media_domains media_url_max_file_size_mb mm_processor_worker_num mm_io_worker_num
mm_preprocess_cache_size_mb limit_mm_data_per_request enable_prefix_mm_cache enable_mm_global_cache
mm_global_cache_backend mm_feature_transport enable_broadcast_mm_inputs_process

log_* uvicorn_* crash_dump_folder show_time_cost enable_metrics* smg_http_sidecar_port
enable_mfu_metrics load_snapshot_publish_interval tokenizer_metrics_* extra_metric_labels bucket_*
prompt_tokens_buckets generation_tokens_buckets gc_warning_threshold_secs decode_log_interval
enable_request_time_stats_logging kv_events_config load_publish_endpoint enable_forward_pass_metrics
forward_pass_metrics_* enable_trace trace_modules otlp_* export_metrics_* stat_loggers

nccl_port dist_timeout dist_init_addr gated_launch_port nnodes node_rank dp_size load_balance_method
pp_max_micro_batch_size pp_async_batch_depth enable_p2p_check
enable_dp_attention_local_control_broadcast

mem_fraction_static max_running_requests max_queued_requests max_total_tokens chunked_prefill_size
prefill_decode_interval* enable_dynamic_chunking max_prefill_tokens prefill_max_requests
schedule_policy enable_priority_scheduling disable_priority_preemption default_priority_value
abort_on_priority_when_disabled schedule_low_priority_values_first
priority_scheduling_preemption_threshold retraction_policy schedule_conservativeness
swa_full_tokens_ratio _swa_full_tokens_ratio_explicitly_set disable_overlap_schedule
num_continuous_decode_steps scheduler_recv_interval enable_mixed_chunk max_mamba_cache_size
mamba_full_memory_ratio enable_prefill_delayer prefill_delayer_* min_free_slots_delay

enable_response_store tokenizer_* detokenizer_worker_num skip_tokenizer_init host port
fastapi_root_path enable_http* http2_* enable_http_worker_reuseport smg_grpc_mode grpc_* sidecar
sidecar_args skip_server_warmup warmups ssl_* enable_ssl_refresh api_key admin_api_key
served_model_name chat_template trust_request_chat_template hf_chat_template_name completion_template
file_storage_path enable_cache_report return_input_ids return_output_ids reasoning_parser
default_chat_template_kwargs strip_thinking_cache enable_strict_thinking tool_call_parser tool_server
sampling_defaults asr_* preferred_sampling_params allow_auto_truncate stream_* batch_notify_size
incremental_streaming_output enable_streaming_session constrained_json_*
enable_dynamic_batch_tokenizer dynamic_batch_tokenizer_* enable_tokenizer_batch_encode
disable_tokenizer_batch_decode
""".split()
#: The same for variables of the environment that begin with SGLANG_.
_HARMLESS_ENVIRONMENT = ("*_PORT*", "*_HOST*", "*_IP", "*_IP_*", "*_DIR", "*_PATH", "*_TIMEOUT*",
                         "*_INTERVAL*", "*_LOG*", "*LOGGING*", "*_PROFILE*", "*_TRACE*", "*_TEST_*",
                         "*_IS_IN_CI*", "*_METRIC*", "*_WARMUP*", "*_CACHE_DIR*", "*_DEBUG*",
                         "*HICACHE*", "*_HEALTH*", "*_QUEUE*")
#: Fields that name files or models whose content counts: beside the path stands its fingerprint.
_FILES = ("quantization_param_path", "speculative_draft_model_path", "speculative_token_map",
          "uno_lora_path", "kt_weight_path", "decrypted_config_file", "decrypted_draft_config_file",
          "dllm_algorithm_config", "modelopt_checkpoint_restore_path", "pdmux_config_path")
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
                str(given), need_weights=False, log=log).hex()
    server.update(_adapters(args.get("lora_paths"), is_named, log))
    environment = canonical.flatten(
        {name: value for name, value in os.environ.items() if name.startswith("SGLANG_")},
        harmless=_HARMLESS_ENVIRONMENT)
    config = {**{f"server.{name}": value for name, value in server.items()},
              **{f"environment.{name}": value for name, value in environment.items()},
              "sglang": str(sglang.__version__)}
    return Identity(*found, config=config, path=path)


def _check_source(args: dict[str, Any]) -> None:
    load_format = args.get("load_format", "auto")
    source = next((name for name in _OTHER_SOURCES if args.get(name)), "")
    if load_format not in _FILE_FORMATS:
        source = f"load_format {load_format}"
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
    """Calls changed(path) when SGLang is about to change the weights of this process, with the path of
    the files that they come from, or None.

    SGLang tells no storage of it, so the methods through which all of its updates go are wrapped, in
    this process, once.
    """

    _changed: weakref.WeakSet[WeightsHook] = weakref.WeakSet()

    def __init__(self, changed: Callable[[str | None], None]) -> None:
        from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater

        self._callback = changed
        for name in ("begin_weight_update", "receive_weights_from_distributed",
                     "load_weights_from_distributed", "update_weights_from_tensor",
                     "update_weights_from_ipc", "update_weights_from_disk"):
            method = getattr(WeightUpdater, name, None)
            if method is None:
                raise ValueError("cannot tell when SGLang changes its weights: WeightUpdater has no "
                                 f"{name}; icms needs SGLang 0.5.23")
            if not hasattr(method, "icms"):
                setattr(WeightUpdater, name, self._wrapped(method, name))
        self._changed.add(self)

    def close(self) -> None:
        """From now on calls nothing."""
        self._changed.discard(self)

    @classmethod
    def _wrapped(cls, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(updater: Any, *arguments: Any, **words: Any) -> Any:
            path = None
            if name == "update_weights_from_disk":
                path = str(arguments[0] if arguments else words["model_path"])
            for hook in list(cls._changed):
                hook._callback(path)
            return method(updater, *arguments, **words)

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
