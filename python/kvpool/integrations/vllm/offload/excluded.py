"""The settings of vLLM that do not change the bytes of KV, each with its reason.

Every other setting is part of the name of stored KV, also one that only a later vLLM has: a change of it is a
cold start. ``identity`` reads these tables; docs/stored-names.md lists all settings of vLLM 0.32 and 0.33.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ENVIRONMENT", "FIELDS", "HF_CONFIG", "TEXT_ONLY"]

_BATCH: Final = "which requests run in a step: the KV of a token depends on the tokens before it alone"
_COUNT: Final = "how much memory the KV cache has, or how many blocks"
_COPIED: Final = "a copy of fields that are read elsewhere"
_DEPLOYED: Final = "an address, a port, a rank, a process or a time limit"
_OBSERVED: Final = "logs, metrics, profiles, events"
_NAMED: Final = "the weights are named by their content or commit"
_GRAPHS: Final = "which sizes of batches are captured or compiled ahead"
_LOADING: Final = "how files are read, and where to: not what is in them"
_OUTPUT: Final = "how output tokens are chosen, parsed or returned: KV is named by the tokens themselves"
_OTHER_CACHE: Final = "where KV or encoder output is kept or sent; chunk size and layout are in the name beside this"
_PROMPT: Final = "how prompts become tokens or media: KV is named by the tokens, and media by their digests"
_REPLICA: Final = "other replicas of the engine: each computes its own requests"
_SCRATCH: Final = "found out, counted or timed while the engine runs"

#: By class of vLLM: names of fields, separated by spaces, and the reason.
FIELDS: Final[dict[str, dict[str, str]]] = {
    "VllmConfig": {
        "instance_id weight_transfer_config shutdown_timeout watchdog_config": _DEPLOYED,
        "quant_config": "made from quantization, the model's configuration and its files, which are in the name",
        "kv_events_config observability_config logging_config profiler_config": _OBSERVED,
        "aux_output_config structured_outputs_config reasoning_config watermark_config": _OUTPUT,
        "ec_manager_config": _OTHER_CACHE,
        "offload_config": "where weights lie while the engine runs, not what they are",
    },
    "ModelConfig": {
        "revision": _NAMED,
        "model_weights": _NAMED,
        "seed": "seeds sampling; dummy weights have a seed of their own",
        "max_logprobs logprobs_mode return_sampling_mask use_fp64_gumbel logits_processors": _OUTPUT,
        "generation_config override_generation_config": _OUTPUT,
        "served_model_name": "a name in the API",
        "hf_token": "a credential",
        "allowed_local_media_path allowed_media_domains": "which media are refused",
        "renderer_num_workers io_processor_plugin": _PROMPT,
        "enable_sleep_mode sleep_preserve_parameter_names sleep_mode_backend sleep_mode_offload_cudagraph": _LOADING,
        "enable_nccl_comm_suspend enable_cumem_allocator": _LOADING,
        "pooler_config": _OUTPUT,
    },
    "MultiModalConfig": {
        "mm_processor_cache_gb mm_processor_cache_type mm_shm_cache_max_object_size_mb": _COUNT,
        "skip_mm_profiling mm_tensor_ipc mm_ipc_gpu_memory_gb": _DEPLOYED,
        "interleave_mm_strings": _PROMPT,
        "mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin": "what is written, not what is read",
    },
    "CacheConfig": {
        "gpu_memory_utilization num_gpu_blocks_override num_gpu_blocks num_cpu_blocks": _COUNT,
        "kv_cache_memory_bytes kv_cache_size_tokens kv_cache_max_concurrency simple_cpu_offload_num_blocks": _COUNT,
        "kv_offloading_size kv_offloading_backend": _OTHER_CACHE,
        "prefix_cache_retention_interval": "which blocks stay in the cache",
        "user_specified_block_size _block_size_resolved": "where block_size came from; block_size is in the name",
    },
    "ParallelConfig": {
        "data_parallel_size data_parallel_size_local data_parallel_rank data_parallel_rank_local": _REPLICA,
        "data_parallel_index data_parallel_backend data_parallel_external_lb data_parallel_hybrid_lb": _REPLICA,
        "dp_sync_interval elastic_ep_max_dp_size _api_process_count _api_process_rank": _REPLICA,
        "data_parallel_master_ip data_parallel_rpc_port data_parallel_master_port": _DEPLOYED,
        "_data_parallel_master_port_list _coord_store_port master_addr master_port node_rank nnodes": _DEPLOYED,
        "rank distributed_timeout_seconds cpu_distributed_timeout_seconds": _DEPLOYED,
        "ray_workers_use_nsight ray_runtime_env placement_group max_parallel_loading_workers": _DEPLOYED,
        "numa_bind numa_bind_nodes numa_bind_cpus assigned_physical_gpu_ids": _DEPLOYED,
        "distributed_executor_backend enable_fault_tolerance fault_tolerance_config": _DEPLOYED,
    },
    "EPLBConfig": {"log_balancedness log_balancedness_interval": _OBSERVED},
    "SchedulerConfig": {
        "max_num_batched_tokens max_num_scheduled_tokens max_num_seqs max_num_active_seqs": _BATCH,
        "long_prefill_token_threshold long_prefill_token_threshold_adaptive enable_chunked_prefill": _BATCH,
        "max_num_queued_reqs max_num_queued_tokens policy watermark prefill_schedule_interval": _BATCH,
        "scheduler_reserve_full_isl async_scheduling": _BATCH,
        "max_num_encoder_input_tokens encoder_cache_size": _BATCH,
        "stream_interval": _OUTPUT,
    },
    "LoadConfig": {
        "download_dir safetensors_load_strategy safetensors_prefetch_num_threads": _LOADING,
        "safetensors_prefetch_block_size use_tqdm_on_load pt_load_map_location device": _LOADING,
    },
    "LoRAConfig": {
        "max_loras max_cpu_loras specialize_active_lora": "how many adapters are in memory; their content is in the "
        "name of what they compute",
    },
    "CompilationConfig": {
        "debug_dump_path cache_dir compile_cache_save_format local_cache_dir": _LOADING,
        "compile_sizes compile_ranges_endpoints cudagraph_capture_sizes max_cudagraph_capture_size": _GRAPHS,
        "cudagraph_num_of_warmups cudagraph_copy_inputs cudagraph_specialize_lora": _GRAPHS,
        "encoder_cudagraph_token_budgets encoder_cudagraph_max_vision_items_per_batch": _GRAPHS,
        "encoder_cudagraph_max_frames_per_batch decoder_replay_cudagraph_capture_sizes": _GRAPHS,
        "traced_files compilation_time encoder_compilation_time enabled_custom_ops disabled_custom_ops": _SCRATCH,
        "static_forward_context static_all_moe_layers": _SCRATCH,
        "inductor_compile_config inductor_passes": "how kernels are generated from the same operations",
    },
    "PassConfig": {"rope_kvcache_fusion_max_token_num fi_allreduce_fusion_max_size_mb": _GRAPHS},
    "SpeculativeConfig": {
        "revision": _NAMED,
        "target_model_config target_parallel_config": _COPIED,
        "rejection_sample_method synthetic_acceptance_rates synthetic_acceptance_length": _OUTPUT,
    },
    "KVTransferConfig": {
        "kv_connector engine_id kv_buffer_device kv_role kv_port kv_connector_extra_config": _OTHER_CACHE,
        "kv_connector_module_path kv_load_failure_policy": _OTHER_CACHE,
    },
    "ECTransferConfig": {"engine_id ec_buffer_device ec_buffer_size ec_ip ec_port": _DEPLOYED},
}

#: Fields of ``ModelConfig`` that do not count for models that read text alone. Code of other models reads
#: them.
TEXT_ONLY: Final[dict[str, str]] = {
    "tokenizer tokenizer_mode tokenizer_revision skip_tokenizer_init": _PROMPT,
}

#: Keys of a configuration of transformers, at any depth.
HF_CONFIG: Final[dict[str, str]] = {
    "_name_or_path": "the folder that it was read from; the weights are named by their content or commit",
    "_commit_hash": _NAMED,
    "transformers_version": "the version that wrote the file; the one that runs is in the name",
}

#: Environment variables that begin with ``VLLM_``, as patterns.
ENVIRONMENT: Final[dict[str, str]] = {
    "VLLM_LOG* VLLM_CONFIGURE_LOGGING VLLM_DISABLE_LOG_LOGO VLLM_DEBUG_* VLLM_TRACE_FUNCTION": _OBSERVED,
    "VLLM_NO_USAGE_STATS VLLM_DO_NOT_TRACK VLLM_USAGE_* VLLM_NVTX_* VLLM_CUSTOM_SCOPES_FOR_PROFILING": _OBSERVED,
    "VLLM_GC_DEBUG VLLM_RINGBUFFER_WARNING_INTERVAL VLLM_PROCESS_NAME_PREFIX": _OBSERVED,
    "VLLM_PORT VLLM_HOST_IP VLLM_LOOPBACK_IP VLLM_DIST_IDENT VLLM_RPC_* VLLM_DP_* VLLM_*_TIMEOUT": _DEPLOYED,
    "VLLM_*_TIMEOUT_S VLLM_*_TIMEOUT_SECONDS VLLM_*_SIDE_CHANNEL_* VLLM_RAY_* VLLM_API_KEY": _DEPLOYED,
    "VLLM_WORKER_MULTIPROC_METHOD VLLM_ENABLE_V1_MULTIPROCESSING VLLM_SERVER_DEV_MODE": _DEPLOYED,
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE VLLM_KEEP_ALIVE_ON_ENGINE_DEATH VLLM_CPU_OMP_THREADS_BIND": _DEPLOYED,
    "VLLM_CPU_NUM_OF_RESERVED_CPU VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME VLLM_DISABLE_REQUEST_ID_*": _DEPLOYED,
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING VLLM_LORA_RESOLVER_* VLLM_ALLOW_INSECURE_SERIALIZATION": _DEPLOYED,
    "VLLM_CPU_KVCACHE_SPACE": _COUNT,
    "VLLM_CACHE_ROOT VLLM_CONFIG_ROOT VLLM_ASSETS_CACHE* VLLM_XLA_CACHE_PATH VLLM_MEDIA_CACHE*": _LOADING,
    "VLLM_BUILD_* VLLM_IMAGE_TAG VLLM_DOCKER_BUILD_CONTEXT VLLM_USE_PRECOMPILED*": "how vLLM was built; its version "
    "is in the name",
}
