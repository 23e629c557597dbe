"""Settings of SGLang 0.5.23 that the bytes of KV do not depend on, each with the reason.

``engine`` writes every other setting into the name of the stored pages. A setting that a later SGLang adds is not in
these tables, so it is part of the name by itself: a cold start, and never KV of another setting.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

__all__ = ["ENVIRONMENT", "MODEL_CONFIG", "SETTINGS"]


def _table(*rows: tuple[str, str]) -> MappingProxyType[str, str]:
    return MappingProxyType({name: reason for reason, names in rows for name in names.split()})


_TOKENS: Final = "chooses or reads tokens; a page is named by the tokens that it holds"
_RECORDS: Final = "reports what the server does"

#: Settings of the server: name and reason.
SETTINGS: Final = _table(
    (
        "where the server listens, and who may call it",
        """host port api_key admin_api_key ssl_ca_certs ssl_certfile ssl_keyfile ssl_keyfile_password
        enable_ssl_refresh fastapi_root_path grpc_mode smg_grpc_mode grpc_port grpc_response_timeout_secs
        grpc_worker_threads smg_http_sidecar_port enable_http2 http2_initial_connection_window_size
        http2_max_concurrent_streams enable_http_worker_reuseport sidecar sidecar_args file_storage_path
        engine_info_bootstrap_port nccl_port dist_init_addr dist_timeout gated_launch_port
        decoupled_spec_bind_endpoint decoupled_spec_connect_endpoints decoupled_spec_rank
        disaggregation_bootstrap_port encoder_bootstrap_port encoder_register_urls encoder_urls
        remote_instance_weight_loader_send_weights_group_ports""",
    ),
    (
        "a label in answers",
        "served_model_name return_input_ids return_output_ids enable_cache_report preferred_sampling_params",
    ),
    (
        _RECORDS,
        """bucket_e2e_request_latency bucket_inter_token_latency bucket_time_to_first_token crash_dump_folder
        debug_tensor_dump_layers debug_tensor_dump_output_folder decode_log_interval enable_forward_pass_metrics
        enable_metrics enable_metrics_for_all_schedulers enable_mfu_metrics enable_request_time_stats_logging
        enable_trace export_metrics_to_file export_metrics_to_file_dir extra_metric_labels
        forward_pass_metrics_ipc_name forward_pass_metrics_worker_id gc_warning_threshold_secs
        generation_tokens_buckets kv_events_config load_publish_endpoint load_snapshot_publish_interval log_level
        log_level_http log_requests log_requests_format log_requests_level log_requests_target msprobe_dump_config
        otlp_service_name otlp_traces_endpoint prompt_tokens_buckets show_time_cost stat_loggers
        tokenizer_metrics_allowed_custom_labels tokenizer_metrics_custom_labels_header trace_modules
        uvicorn_access_log_exclude_prefixes enable_layerwise_nvtx_marker enable_profile_cuda_graph spec_trace_dir
        expert_balancedness_report_mode expert_distribution_recorder_buffer_size
        expert_distribution_recorder_mode enable_return_routed_experts enable_return_indexer_topk
        enable_return_hidden_states return_hidden_states_mode""",
    ),
    (
        _TOKENS,
        """tokenizer_path tokenizer_mode tokenizer_backend tokenizer_worker_num detokenizer_worker_num
        skip_tokenizer_init enable_tokenizer_batch_encode disable_tokenizer_batch_decode
        enable_dynamic_batch_tokenizer dynamic_batch_tokenizer_batch_size dynamic_batch_tokenizer_batch_timeout
        chat_template completion_template hf_chat_template_name default_chat_template_kwargs
        trust_request_chat_template reasoning_parser tool_call_parser tool_server enable_strict_thinking
        enable_response_store allow_auto_truncate constrained_json_disable_any_whitespace
        constrained_json_max_whitespace_cnt constrained_json_whitespace_pattern disable_outlines_disk_cache
        grammar_backend sampling_backend sampling_defaults sampling_mask_max_tokens enable_custom_logit_processor
        random_seed mlx_enable_sampling enable_fp32_lm_head enable_watermark watermark_config
        watermark_context_window watermark_default_enabled watermark_enforce_all watermark_key watermark_key_b
        watermark_max_probability watermark_mixing_probability""",
    ),
    (
        "proposes or accepts draft tokens; KV is kept for accepted tokens only",
        """speculative_accept_threshold_acc speculative_accept_threshold_single speculative_ngram_capacity
        speculative_ngram_external_corpus_max_tokens speculative_ngram_external_corpus_path
        speculative_ngram_external_sam_budget speculative_ngram_match_type speculative_ngram_max_bfs_breadth
        speculative_ngram_max_trie_depth speculative_ngram_min_bfs_breadth speculative_use_block_verification
        speculative_use_rejection_sampling speculative_dspark_sps_table_path""",
    ),
    (
        "streams, stores or limits answers",
        """stream_interval stream_response_default_include_usage incremental_streaming_output batch_notify_size
        asr_max_buffer_seconds asr_max_concurrent_sessions enable_streaming_session warmups skip_server_warmup""",
    ),
    (
        "orders requests; the KV of a token does not depend on other requests",
        """schedule_policy schedule_conservativeness schedule_low_priority_values_first scheduler_recv_interval
        abort_on_priority_when_disabled default_priority_value disable_priority_preemption
        enable_priority_scheduling priority_scheduling_preemption_threshold retraction_policy max_queued_requests
        max_running_requests min_free_slots_delay prefill_decode_interval prefill_decode_interval_min_bs
        enable_prefill_delayer prefill_delayer_forward_passes_buckets prefill_delayer_max_delay_ms
        prefill_delayer_max_delay_passes prefill_delayer_queue_min_ratio
        prefill_delayer_token_usage_low_watermark prefill_delayer_wait_seconds_buckets prefill_max_requests
        num_continuous_decode_steps disable_overlap_schedule pp_async_batch_depth pp_max_micro_batch_size
        load_balance_method num_reserved_decode_tokens""",
    ),
    (
        "cuts a prompt into parts; each token reads the same tokens before it",
        "chunked_prefill_size max_prefill_tokens enable_dynamic_chunking enable_mixed_chunk",
    ),
    (
        "how much memory a pool takes",
        """mem_fraction_static max_total_tokens mamba_full_memory_ratio max_mamba_cache_size int8_mamba_ckpt_size
        swa_full_tokens_ratio _swa_full_tokens_ratio_explicitly_set swa_prefix_tails hicache_ratio hicache_size
        hicache_host_memory_fraction mamba_max_states_per_path enable_memory_saver""",
    ),
    (
        "which cached pages stay, and where copies of them go",
        """disable_radix_cache radix_cache_backend radix_eviction_policy radix_eviction_policy_config
        _radix_eviction_policy_explicitly_set enable_session_radix_cache strip_thinking_cache
        enable_hierarchical_cache hicache_host_memory_mode hicache_io_backend hicache_storage_backend
        hicache_storage_backend_extra_config hicache_storage_prefetch_policy
        hicache_storage_prefetch_retry_max_attempts hicache_storage_prefetch_retry_poll_interval
        hicache_write_policy flexkv_config_file lmcache_config_file unified_cache_external_linker_backend
        unified_cache_external_linker_config""",
    ),
    ("the host pool itself states it, and its layout is part of the name", "hicache_mem_layout"),
    (
        "where processes run, and how they wait",
        """base_gpu_id gpu_id_step gc_threshold numa_node sleep_on_idle watchdog_timeout soft_watchdog_timeout
        custom_sigquit_handler use_ray nnodes node_rank dp_size enable_p2p_check pre_warm_nccl
        enable_dp_attention_local_control_broadcast kt_cpuinfer kt_threadpool_count""",
    ),
    (
        "how kernels are launched; the kernels are the same",
        """cuda_graph_backend_decode cuda_graph_backend_prefill cuda_graph_bs_decode cuda_graph_bs_prefill
        cuda_graph_config cuda_graph_max_bs_decode cuda_graph_max_bs_prefill cuda_graph_max_seq_len_prefill
        cuda_graph_prefill_max_context debug_cuda_graph disable_cuda_graph disable_cuda_graph_padding
        disable_decode_cuda_graph disable_prefill_cuda_graph enable_cudagraph_gc
        enable_torch_compile_debug_mode""",
    ),
    (
        "how files become weights in memory; the name contains the content of the weights",
        """download_dir delete_ckpt_after_loading model_checksum startup_weight_load_mode
        weight_loader_disable_mmap weight_loader_drop_cache_after_load weight_loader_prefetch_checkpoints
        weight_loader_prefetch_num_threads weight_cache_timeout weight_cache_socket
        modelopt_checkpoint_save_path modelopt_export_path cpu_offload_gb offload_group_size offload_mode
        offload_num_in_group offload_prefetch_step ple_offload_backend ple_offload_dir
        enable_weights_cpu_backup enable_draft_weights_cpu_backup""",
    ),
    (
        "the name contains each adapter by its id and its content, and these set how many are in memory",
        """lora_paths enable_lora_overlap_loading max_loaded_loras max_loras_per_batch lora_eviction_policy
        lora_drain_wait_threshold lora_strict_loading""",
    ),
    (
        "moves experts between ranks; the sums stay the same",
        """enable_eplb eplb_algorithm eplb_min_rebalancing_utilization_threshold eplb_rebalance_layers_per_chunk
        eplb_rebalance_num_iterations elastic_ep_scale_timeout""",
    ),
    (
        "how pages and messages travel between servers",
        """disaggregation_decode_allocation_policy disaggregation_decode_enable_offload_kvcache
        disaggregation_decode_enable_radix_cache disaggregation_decode_extra_slots
        disaggregation_decode_host_receive_threshold disaggregation_decode_polling_interval
        disaggregation_decode_retraction_backup disaggregation_enable_kv_checksum disaggregation_ib_device
        disaggregation_transfer_backend encoder_transfer_backend mooncake_ib_device optimistic_prefill_attempts
        enable_linker_mla_dedup""",
    ),
    (
        "fetches and limits images, audio and video; a page is named by their content",
        """allowed_media_domains media_url_max_file_size_mb limit_mm_data_per_request mm_io_worker_num
        mm_processor_worker_num mm_preprocess_cache_size_mb mm_feature_transport
        enable_broadcast_mm_inputs_process""",
    ),
)

#: Attributes of SGLang's model configuration.
MODEL_CONFIG: Final = _table(
    ("the setting of this name is part of the name", "model_path revision"),
    (
        _TOKENS,
        """hf_generation_config hf_eos_token_id sampling_defaults think_end_ids self_opened_think_start_ids
        request_selectable_think_end_id_sequences""",
    ),
    (
        "how kernels are launched; the kernels are the same",
        """is_multimodal_breakable_cuda_graph_supported is_multimodal_piecewise_cuda_graph_supported
        is_piecewise_cuda_graph_disabled_model""",
    ),
)

#: Environment variables that begin with ``SGLANG_``.
ENVIRONMENT: Final = _table(
    (
        "names one start, one machine or one port",
        """SGLANG_RUN_ID SGLANG_PORT SGLANG_GRPC_PORT SGLANG_GRPC_WORKER_THREADS SGLANG_TCP_STORE_PORT
        SGLANG_BACKUP_PORT_BASE SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE SGLANG_HTTP_SERVER_APP_PATH
        SGLANG_IS_FIRST_RANK_ON_NODE SGLANG_DP_RANK SGLANG_RAY_BUNDLE_INDICES SGLANG_ZMQ_ALLOWED_PEERS
        SGLANG_ZMQ_SOURCE_IP SGLANG_ONE_VISIBLE_DEVICE_PER_PROCESS SGLANG_IS_IN_CI SGLANG_IS_IN_CI_AMD""",
    ),
    (
        _RECORDS,
        """SGLANG_LOG_DECODE_GRAPH_KEY SGLANG_LOG_FORWARD_ITERS SGLANG_LOG_GC SGLANG_LOG_MS
        SGLANG_LOG_REQUEST_EXCEEDED_MS SGLANG_LOG_REQUEST_HEADERS SGLANG_LOG_SCHEDULER_STATUS_INTERVAL
        SGLANG_LOG_SCHEDULER_STATUS_TARGET SGLANG_LOG_PICKLE_IPC_OBJECTS SGLANG_ENABLE_METRICS_DEVICE_TIMER
        SGLANG_ENABLE_METRICS_DP_ATTENTION SGLANG_CACHE_HIT_RATE_WINDOW_SECONDS SGLANG_TORCH_PROFILER_DIR
        SGLANG_PROFILE_V2 SGLANG_PROFILE_WITH_STACK SGLANG_PROFILE_RECORD_SHAPES SGLANG_ENABLE_NVTX_OPERATIONS
        SGLANG_ENABLE_NVTX_SCHEDULER SGLANG_OTLP_EXPORTER_MAX_EXPORT_BATCH_SIZE
        SGLANG_OTLP_EXPORTER_SCHEDULE_DELAY_MILLIS SGLANG_RECORD_STEP_TIME SGLANG_CUDA_COREDUMP
        SGLANG_CUDA_COREDUMP_DIR SGLANG_TEST_REQUEST_TIME_STATS SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR""",
    ),
    (
        "how long something waits, and when it gives up",
        """SGLANG_REQ_RUNNING_TIMEOUT SGLANG_REQ_WAITING_TIMEOUT SGLANG_REQUEST_STATE_WAIT_TIMEOUT
        SGLANG_TIMEOUT_KEEP_ALIVE SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT SGLANG_WARMUP_TIMEOUT
        SGLANG_FORCE_SHUTDOWN SGLANG_KILLPG_ON_SCHEDULER_EXCEPTION SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT
        SGLANG_DISAGGREGATION_WAITING_TIMEOUT SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL
        SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE SGLANG_GRAMMAR_POLL_INTERVAL
        SGLANG_GRAMMAR_MAX_POLL_ITERATIONS""",
    ),
    (
        "where compiled kernels are kept",
        "SGLANG_CACHE_DIR SGLANG_DG_CACHE_DIR SGLANG_JIT_CACHE_DIR SGLANG_JIT_CACHE_KEEP SGLANG_CUTE_AOT_CACHE_DIR",
    ),
    (
        "which cached pages stay, and where copies of them go",
        """SGLANG_HICACHE_BUFFER_ANCHOR_LOCK_CAP SGLANG_HICACHE_DECODE_OFFLOAD_STRIDE
        SGLANG_HICACHE_FILE_BACKEND_ENABLE_METADATA_CACHE SGLANG_HICACHE_FILE_BACKEND_EVICTION_RATIO
        SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE SGLANG_HICACHE_FILE_BACKEND_METADATA_TTL
        SGLANG_HICACHE_FILE_BACKEND_MIN_FREE_SPACE SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR
        SGLANG_HICACHE_HF3FS_CONFIG_PATH SGLANG_HICACHE_HOST_PARALLEL_ALLOC_THREADS
        SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB SGLANG_HICACHE_MEMCACHE_CONFIG_PATH
        SGLANG_HICACHE_MOONCAKE_CONFIG_PATH SGLANG_HICACHE_MOONCAKE_REUSE_TE
        SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR SGLANG_HICACHE_NIXL_USE_DIRECT_IO
        SGLANG_HICACHE_SKIP_HOST_DUPLICATE_RECLAIM SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY
        SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE SGLANG_RADIX_FORCE_MISS
        SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND""",
    ),
    (
        "orders requests; the KV of a token does not depend on other requests",
        """SGLANG_INIT_NEW_TOKEN_RATIO SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS
        SGLANG_RETRACT_DECODE_STEPS SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION SGLANG_SCHEDULER_MAX_RECV_PER_POLL
        SGLANG_SCHEDULER_DECREASE_PREFILL_IDLE SGLANG_PREFILL_DELAYER_MAX_DELAY_PASSES""",
    ),
    (
        _TOKENS,
        """SGLANG_DISABLE_OUTLINES_DISK_CACHE SGLANG_MAX_NEW_TOKENS_LIMIT SGLANG_MAX_THINK_TOKENS
        SGLANG_DEFAULT_THINKING SGLANG_TOOL_STRICT_LEVEL SGLANG_FORWARD_UNKNOWN_TOOLS
        SGLANG_BATCH_TOKENIZER_OUTPUTS SGLANG_PATCH_TOKENIZER""",
    ),
    (
        "moves images, audio and video between processes",
        """SGLANG_USE_CUDA_IPC_TRANSPORT SGLANG_MM_FEATURE_CACHE_MB SGLANG_MM_BUFFER_SIZE_MB SGLANG_VLM_CACHE_SIZE_MB
        SGLANG_MM_ITEM_MEM_POOL_RECYCLE_INTERVAL_SEC SGLANG_USE_IPC_POOL_HANDLE_CACHE SGLANG_USE_PICKLE_IPC""",
    ),
    (
        "where processes run",
        "SGLANG_SET_CPU_AFFINITY SGLANG_AUTO_NUMA_BIND SGLANG_NUMA_BIND_V2 SGLANG_CRASH_ON_NUMA_BIND_FAILURE",
    ),
)
