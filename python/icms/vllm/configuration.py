# SPDX-License-Identifier: Apache-2.0
"""What of vLLM's configuration changes the KV of the same tokens. Used by `identity`.

Everything counts that is not known to be harmless: a later vLLM's option, or one that was forgotten
here, makes other keys, and not wrong tokens. What cannot be compared between servers, or is not in
vLLM's block hashes, is refused in words that say what to set.
"""
from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
from collections.abc import Mapping
from typing import Any

from .. import _engines, canonical, fingerprint
from ..canonical import Scalar
from .link import WrongTier

#: Of each configuration of vLLM, what changes no KV: addresses, sizes of memory and batches, what only
#: the front end, the sampler or the scheduler uses, and what the fingerprint of the files covers.
_HARMLESS_FIELDS = {
    "vllm_config": """kv_events_config ec_transfer_config ec_manager_config observability_config
        logging_config profiler_config structured_outputs_config reasoning_config watermark_config
        aux_output_config offload_config weight_transfer_config instance_id shutdown_timeout
        optimization_level performance_mode""",
    "*model_config": """model model_weights tokenizer tokenizer_mode tokenizer_revision seed
        hf_config_path allowed_local_media_path allowed_media_domains revision hf_token hf_overrides
        served_model_name config_format max_logprobs logprobs_mode return_sampling_mask
        use_fp64_gumbel enable_trace_replay skip_tokenizer_init enable_prompt_embeds
        generation_config override_generation_config enable_sleep_mode
        sleep_preserve_parameter_names sleep_mode_backend sleep_mode_offload_cudagraph
        enable_nccl_comm_suspend enable_cumem_allocator logits_processors io_processor_plugin
        renderer_num_workers spec_target_max_model_len enforce_eager pooler_config
        disable_cascade_attn *config._name_or_path *config.transformers_version
        multimodal_config.limit_per_prompt multimodal_config.mm_processor_cache_gb
        multimodal_config.mm_processor_cache_type multimodal_config.mm_shm_cache_max_object_size_mb
        multimodal_config.skip_mm_profiling multimodal_config.mm_ipc_gpu_memory_gb
        multimodal_config.mm_tensor_ipc multimodal_config.interleave_mm_strings""",
    "*cache_config": """gpu_memory_utilization kv_cache_memory_bytes num_gpu_blocks
        num_gpu_blocks_override num_cpu_blocks user_specified_block_size _block_size_resolved
        is_attention_free enable_prefix_caching prefix_caching_hash_algo
        prefix_cache_retention_interval effective_attention_block_size kv_cache_size_tokens
        kv_cache_max_concurrency hash_block_size cache_hit_alignment_tokens kv_offloading_size
        kv_offloading_backend""",
    "*parallel_config": """data_parallel_size data_parallel_size_local data_parallel_rank
        data_parallel_rank_local data_parallel_index data_parallel_master_ip data_parallel_rpc_port
        data_parallel_master_port data_parallel_backend data_parallel_external_lb
        data_parallel_hybrid_lb dp_sync_interval _data_parallel_master_port_list _coord_store_port
        max_parallel_loading_workers disable_custom_all_reduce enable_shm_tensor_arena
        ray_workers_use_nsight ray_runtime_env placement_group distributed_executor_backend
        master_addr master_port node_rank nnodes numa_bind numa_bind_nodes numa_bind_cpus
        assigned_physical_gpu_ids distributed_timeout_seconds cpu_distributed_timeout_seconds rank
        _api_process_count _api_process_rank enable_eplb eplb_config enable_fault_tolerance
        fault_tolerance_config disable_nccl_for_dp_synchronization enable_elastic_ep
        elastic_ep_max_dp_size enable_dbo ubatch_size dbo_decode_token_threshold
        dbo_prefill_token_threshold enable_batch_sharded_sampling enable_ep_weight_filter""",
    "*scheduler_config": """max_num_batched_tokens max_num_scheduled_tokens max_num_seqs
        max_num_active_seqs long_prefill_token_threshold long_prefill_token_threshold_adaptive
        max_num_queued_reqs max_num_queued_tokens enable_chunked_prefill
        max_num_encoder_input_tokens encoder_cache_size policy disable_chunked_mm_input
        scheduler_reserve_full_isl watermark prefill_schedule_interval async_scheduling
        stream_interval disable_hybrid_kv_cache_manager""",
    "*device_config": "device",
    "kernel_config": """enable_cutedsl_warmup enable_flashinfer_autotune enable_jit_warmup
        enable_rocm_segmented_attn_autotune""",
    "*load_config": """download_dir safetensors_load_strategy safetensors_prefetch_num_threads
        safetensors_prefetch_block_size device use_tqdm_on_load pt_load_map_location""",
    "lora_config": "max_loras max_cpu_loras max_lora_rank fully_sharded_loras specialize_active_lora",
    "speculative_config": """model revision target_model_config target_parallel_config
        num_speculative_tokens_per_batch_size suffix_decoding_* synthetic_acceptance_*
        rejection_sample_method draft_sample_method""",
    "compilation_config": """debug_dump_path cache_dir local_cache_dir compile_cache_save_format
        splitting_ops encoder_cudagraph_* decoder_replay_* cudagraph_* max_cudagraph_capture_size
        compile_sizes compile_ranges_endpoints inductor_compile_config inductor_passes
        use_inductor_graph_partition dynamic_shapes_config fast_moe_cold_start enabled_custom_ops
        disabled_custom_ops traced_files compilation_time encoder_compilation_time
        static_forward_context static_all_moe_layers""",
    "kv_transfer_config": """kv_connector kv_connector_module_path kv_connector_extra_config engine_id
        kv_role kv_rank kv_port kv_ip kv_buffer_device kv_buffer_size kv_parallel_size
        kv_load_failure_policy""",
}
#: Environment variables that count at all, and which of them change no KV.
_VARIABLES = ("VLLM_", "FLASHINFER_", "NVIDIA_TF32", "TORCH_ALLOW_TF32")
_HARMLESS_VARIABLES = """VLLM_LOG* VLLM_CONFIGURE_LOGGING VLLM_DISABLE_LOG* VLLM_DEBUG* VLLM_TRACE_*
    VLLM_*PORT VLLM_*_HOST VLLM_*_IP VLLM_*TIMEOUT* VLLM_*_ROOT VLLM_*CACHE_DIR VLLM_*CACHE_PATH
    VLLM_API_KEY VLLM_*USAGE* VLLM_DO_NOT_TRACK VLLM_RPC_* VLLM_CPU_KVCACHE_SPACE
    VLLM_CPU_OMP_THREADS_BIND VLLM_CPU_NUM_OF_RESERVED_CPU VLLM_CPU_CI_ENV
    VLLM_DIST_IDENT VLLM_ENABLE_V1_MULTIPROCESSING VLLM_WORKER_MULTIPROC_METHOD
    VLLM_SERVER_DEV_MODE VLLM_DP_*
    VLLM_RANDOMIZE_DP_DUMMY_INPUTS VLLM_RAY_* VLLM_MEDIA_* VLLM_MAX_* VLLM_ASSETS_*
    VLLM_KEEP_ALIVE_ON_ENGINE_DEATH VLLM_PROCESS_NAME_PREFIX VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME
    VLLM_ALLOW_RUNTIME_LORA_UPDATING VLLM_USE_MODELSCOPE VLLM_IMAGE_TAG VLLM_BUILD_* VLLM_SKIP_*
    VLLM_NCCL_SO_PATH VLLM_NCCL_INCLUDE_PATH VLLM_GC_DEBUG VLLM_NIXL_* VLLM_P2P_* VLLM_MOONCAKE_*
    VLLM_XGRAMMAR_* VLLM_TOOL_* VLLM_DISABLE_COMPILE_CACHE VLLM_USE_RUST_* VLLM_RUST_*
    VLLM_ENABLE_RESPONSES_API_STORE VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES VLLM_MQ_*
    VLLM_RINGBUFFER_WARNING_INTERVAL VLLM_DISABLE_REQUEST_ID_RANDOMIZATION
    FLASHINFER_*_DIR FLASHINFER_LOG* FLASHINFER_CUBIN*"""
#: Fields that name a file whose content counts.
_FILES = ("multimodal_config.mm_encoder_fp8_scale_path",)
#: Formats of weights that lie in the model's files, of which a fingerprint is taken.
_FORMATS_OF_FILES = ("auto", "hf", "safetensors", "fastsafetensors", "pt", "npcache", "gguf",
                     "mistral", "bitsandbytes", "dummy")


def fields(config: Any, kv_cache_config: Any) -> dict[str, Scalar]:
    """The fields of a VllmConfig that two servers must have in common, and the shape of its KV.

    WrongTier for one that cannot be compared.
    """
    import vllm

    said: dict[str, Any] = {"vllm": vllm.__version__,
            "transformers": _engines.version_of("transformers"),
            "kv": [_group(group) for group in kv_cache_config.kv_cache_groups],
            "environment": _engines.environment(os.environ, _VARIABLES)}
    try:
        said["vllm_config"] = _tree(config)
        found = canonical.flatten(said, harmless=_harmless())
    except canonical.NoCanonicalForm as error:
        raise WrongTier(f"icms: {error}: do not set it, or use no tier") from error
    for name, value in found.items():
        if name.endswith(_FILES) and value is not None:
            try:
                found[name] = fingerprint.of_files(str(value), weights=None).hex()
            except fingerprint.FilesError as error:
                raise WrongTier(f"icms: {error}") from error
    has_scaling = any(name.endswith(".rope_type") and value not in (None, "default")
                      for name, value in found.items())
    if not has_scaling:  # else the rotation may depend on it
        found = {name: value for name, value in found.items()
                 if not name.endswith("model_config.max_model_len")}
    return found


def refuse(config: Any, *, weights: str, adapters: str) -> None:
    """WrongTier for what changes KV, is not in vLLM's block hashes, and cannot be found out here."""
    if getattr(config, "lora_config", None) is not None and not adapters:
        raise WrongTier("icms: vLLM's block hashes have the names and paths of LoRA adapters and not "
                        'what is in them: set the option "adapters" to a text that names their '
                        "version, alike where the same adapters lie under the same paths")
    model = config.model_config
    if not config.cache_config.enable_prefix_caching:
        raise WrongTier("icms: prefix caching is off, by --no-enable-prefix-caching or because the KV "
                        "of this model depends on more than the tokens before it: switch it on, or "
                        "use no tier")
    load = config.load_config.load_format
    # Of a model with a name, the fingerprint is that of the files in the usual cache.
    is_elsewhere = getattr(config.load_config, "download_dir", None) or (
        os.environ.get("VLLM_USE_MODELSCOPE", "").lower() in ("1", "true"))
    elsewhere = getattr(model, "model_weights", "") or is_elsewhere and not all(
        os.path.exists(name) for name, _ in models(config))
    if weights in ("", "files") and (elsewhere or str(load) not in _FORMATS_OF_FILES):
        raise WrongTier("icms: the weights are not in the model's files or not in the usual cache "
                        f'(--load-format {load}): set the option "weights" to a text that names them')


def models(config: Any) -> list[tuple[str, str | None]]:
    """(path or name, revision) of the models whose weights make KV: the model, and its draft."""
    found = [config.model_config]
    speculative = getattr(config, "speculative_config", None)
    if speculative is not None and getattr(speculative, "draft_model_config", None) is not None:
        found.append(speculative.draft_model_config)
    listed = [(str(model.model), getattr(model, "revision", None)) for model in found]
    return list(dict.fromkeys(listed))


def machine() -> str:
    """What of this machine decides the order of bytes in a block: on a GPU its kind; on a CPU the
    instruction set, as vLLM packs blocks for it."""
    import torch
    from vllm.platforms import current_platform

    words = [current_platform.device_type]
    if current_platform.device_type == "cpu":
        words += [platform.machine(), torch.backends.cpu.get_cpu_capability(),
                  "amx" if torch.cpu._is_amx_tile_supported() else ""]
    else:
        words.append(str(current_platform.get_device_capability()))
    return " ".join(filter(None, [*words, f"torch {torch.__version__}"]))


def of_worker(config: Any, kv_cache_config: Any, caches: Mapping[str, Any]) -> str:
    """What only a worker knows: the machine, the attention back ends that were chosen, and how its KV
    lies in memory, with its scales. The same in workers whose blocks can be exchanged."""
    from vllm.v1.kv_cache_interface import group_kernel_blocks

    layers = getattr(config.compilation_config, "static_forward_context", {})
    seen: list[list[object]] = []
    for name, cache in sorted(caches.items()):
        layer = layers.get(name)
        if not hasattr(cache, "dtype"):
            seen.append([name, type(layer).__name__])  # several tensors: a state, not blocks
            continue
        backend = getattr(layer, "get_attn_backend", None)
        pages = group_kernel_blocks(cache, kv_cache_config.num_blocks)
        seen.append([name, backend().get_name() if backend else type(layer).__name__,
                     str(cache.dtype), list(pages.shape[1:]), list(pages.stride()[1:]),
                     getattr(layer, "_k_scale_float", None), getattr(layer, "_v_scale_float", None)])
    backends = sorted({str(one[1]) for one in seen})
    digest = hashlib.sha256(canonical.dumps(seen).encode()).hexdigest()
    return f"{machine()} {' '.join(backends)} {digest[:32]}"


def _tree(config: Any) -> dict[str, Any]:
    """The configuration by its fields, with names in the place of what vLLM made of them."""
    made = {name: getattr(config, name, None) for name in _names(config)}
    quantization = made.get("quant_config")
    if quantization is not None:  # of the model's files and options, which are in there
        made["quant_config"] = type(quantization).__qualname__
    load = made.get("load_config")
    if load is not None:
        parts = {name: getattr(load, name, None) for name in _names(load)}
        parts["model_loader_extra_config"] = _digest(parts.get("model_loader_extra_config"))
        made["load_config"] = parts
    made["additional_config"] = _digest(made.get("additional_config"))
    model = made.get("model_config")
    if model is not None:
        parts = {name: getattr(model, name, None) for name in _names(model)}
        if parts.get("hf_text_config") is parts.get("hf_config"):
            parts.pop("hf_text_config", None)
        made["model_config"] = parts
    return made


def _digest(value: Any) -> str:
    """Stands for what may have secrets in it: the fields of an identity are stated in the volume."""
    text = canonical.dumps(canonical.flatten({"additional_config": value or {}}))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _names(config: Any) -> list[str]:
    if dataclasses.is_dataclass(config):
        return [field.name for field in dataclasses.fields(config)]
    return list(vars(config))


def _group(group: Any) -> dict[str, Any]:
    names = canonical.dumps(list(group.layer_names))
    return {"spec": type(group.kv_cache_spec).__name__, "fields": group.kv_cache_spec,
            "layers": len(group.layer_names),
            "names": hashlib.sha256(names.encode()).hexdigest()[:16]}


def _harmless() -> list[str]:
    found = [f"environment.{name}" for name in _HARMLESS_VARIABLES.split()]
    for part, names in _HARMLESS_FIELDS.items():
        where = part if part == "vllm_config" else f"vllm_config.{part}"
        found += [f"{where}.{name}" for name in names.split()]
    return found
