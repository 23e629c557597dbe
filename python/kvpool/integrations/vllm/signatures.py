"""What the plug-in relies on in each supported vLLM. Written by tools/vllm_signatures.py: do not edit.

Owns the table, nothing else. Module, then name in it, then the form: of a function or a method its signature without
annotations and values of defaults; of a class how it is called; "is X" for what is imported from elsewhere; "attribute"
for what is on the class or is stored by its methods; of "X.*" the public methods of X. A form per version where
they differ; a version that is not listed then lacks the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

Table: TypeAlias = Mapping[str, Mapping[str, str | Mapping[str, str]]]

VERSIONS: Final = ("0.32", "0.33")

POOL: Final[Table] = {
    "vllm.v1.core.block_pool": {
        "BlockHashToBlockMap": "()",
        "BlockHashToBlockMap.*": "contain get_one_block insert pop",
        "BlockHashToBlockMap.contain": "(self, key, block_id)",
        "BlockHashToBlockMap.get_one_block": "(self, key)",
        "BlockHashToBlockMap.insert": "(self, key, block)",
        "BlockHashToBlockMap.pop": "(self, key, block_id)",
        "BlockHashToBlockMap.__len__": "(self)",
        "BlockHashToBlockMap._cache": "attribute",
        "BlockPool": {
            "0.32": (
                "(num_gpu_blocks, enable_caching, hash_block_size, enable_kv_cache_events=..., metrics_collector=..., "
                "medium=...)"
            ),
            "0.33": (
                "(num_gpu_blocks, enable_caching, hash_block_size, enable_kv_cache_events=..., metrics_collector=..., "
                "num_hash_lookahead_tokens=..., medium=...)"
            ),
        },
        "BlockPool.*": (
            "cache_full_blocks cache_partial_block emit_cached_block_events evict_blocks free_blocks get_cached_block "
            "get_new_blocks get_num_free_blocks get_usage is_block_writable move_block_hashes reset_prefix_cache "
            "take_events touch unpin_blocks"
        ),
        "BlockPool.cache_full_blocks": (
            "(self, request, blocks, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id, block_mask=...)"
        ),
        "BlockPool.cache_partial_block": (
            "(self, request, block, num_tokens, kv_cache_group_id, block_size, replace_existing_hashes=...)"
        ),
        "BlockPool.emit_cached_block_events": "(self, request, num_cached_blocks, block_size, kv_cache_group_id)",
        "BlockPool.evict_blocks": "(self, block_ids)",
        "BlockPool.free_blocks": "(self, ordered_blocks)",
        "BlockPool.get_cached_block": "(self, block_hash, kv_cache_group_ids)",
        "BlockPool.get_new_blocks": "(self, num_blocks)",
        "BlockPool.get_num_free_blocks": "(self)",
        "BlockPool.get_usage": "(self)",
        "BlockPool.is_block_writable": "(self, block)",
        "BlockPool.move_block_hashes": "(self, src_block, dst_block)",
        "BlockPool.reset_prefix_cache": "(self)",
        "BlockPool.take_events": "(self)",
        "BlockPool.touch": "(self, blocks)",
        "BlockPool.unpin_blocks": "(self, blocks, on_reuse)",
        "BlockPool._maybe_evict_cached_block": "(self, block)",
        "BlockPool._insert_block_hash": "(self, block_hash_with_group_id, block, num_tokens)",
        "BlockPool._remove_cached_block_hashes": "(self, block)",
        "BlockPool.num_gpu_blocks": "attribute",
        "BlockPool.medium": "attribute",
        "BlockPool.enable_caching": "attribute",
        "BlockPool.hash_block_size": "attribute",
        "BlockPool.num_hash_lookahead_tokens": {"0.33": "attribute"},
        "BlockPool.blocks": "attribute",
        "BlockPool.free_block_queue": "attribute",
        "BlockPool.cached_block_hash_to_block": "attribute",
        "BlockPool.cached_block_hashes_by_block": "attribute",
        "BlockPool.null_block": "attribute",
        "BlockPool.enable_kv_cache_events": "attribute",
        "BlockPool.kv_event_queue": "attribute",
        "BlockPool.metrics_collector": "attribute",
    },
    "vllm.v1.core.kv_cache_utils": {
        "KVCacheBlock": (
            "(block_id, ref_cnt=..., _block_hash=..., _block_hash_num_tokens=..., prev_free_block=..., "
            "next_free_block=..., is_null=..., *, pool=...)"
        ),
        "KVCacheBlock.*": "block_hash block_hash_num_tokens reset_hash set_block_hash",
        "KVCacheBlock.block_hash": "property",
        "KVCacheBlock.block_hash_num_tokens": "property",
        "KVCacheBlock.reset_hash": "(self)",
        "KVCacheBlock.set_block_hash": "(self, block_hash, num_tokens=...)",
        "KVCacheBlock.block_id": "attribute",
        "KVCacheBlock.ref_cnt": "attribute",
        "KVCacheBlock.pool": "attribute",
        "KVCacheBlock._block_hash": "attribute",
        "KVCacheBlock._block_hash_num_tokens": "attribute",
        "KVCacheBlock.prev_free_block": "attribute",
        "KVCacheBlock.next_free_block": "attribute",
        "KVCacheBlock.is_null": "attribute",
        "FreeKVCacheBlockQueue": "(blocks)",
        "FreeKVCacheBlockQueue.*": (
            "append append_n get_all_free_blocks iter_blocks_after popleft popleft_n prepend_n remove"
        ),
        "FreeKVCacheBlockQueue.append": "(self, block)",
        "FreeKVCacheBlockQueue.append_n": "(self, blocks)",
        "FreeKVCacheBlockQueue.get_all_free_blocks": "(self)",
        "FreeKVCacheBlockQueue.iter_blocks_after": "(self, cursor)",
        "FreeKVCacheBlockQueue.popleft": "(self)",
        "FreeKVCacheBlockQueue.popleft_n": "(self, n)",
        "FreeKVCacheBlockQueue.prepend_n": "(self, blocks)",
        "FreeKVCacheBlockQueue.remove": "(self, block)",
        "FreeKVCacheBlockQueue.num_free_blocks": "attribute",
        "FreeKVCacheBlockQueue.fake_free_list_head": "attribute",
        "FreeKVCacheBlockQueue.fake_free_list_tail": "attribute",
        "init_none_hash": "(hash_fn)",
        "get_request_block_hasher": {
            "0.32": "(hash_block_size, caching_hash_fn)",
            "0.33": "(hash_block_size, caching_hash_fn, num_hash_lookahead_tokens=...)",
        },
        "hash_block_tokens": "(hash_function, parent_block_hash, curr_block_token_ids, extra_keys=...)",
        "generate_block_hash_extra_keys": "(request, start_token_idx, end_token_idx, start_mm_idx)",
        "generate_lookahead_block_hash_extra_keys": {
            "0.33": "(request, start_token_idx, end_token_idx, hash_end_token_idx, start_mm_idx)",
        },
        "to_event_extra_keys": "(extra_keys)",
        "maybe_convert_block_hash": "(hash_bytes)",
        "make_block_hash_with_group_id": "(block_hash, group_id)",
        "get_block_hash": "(key)",
        "get_group_id": "(key)",
        "resolve_block_hashes": (
            "(block_hashes, hash_block_size, block_size, *, supports_fine_grained_hash_lookup=..., "
            "alignment_tokens=...)"
        ),
        "BlockHashListWithBlockSize": "(block_hashes, hash_block_size, target_block_size)",
        "BlockHashListWithBlockSize.__len__": "(self)",
        "BlockHashListWithBlockSize.__getitem__": "(self, idx)",
        "BlockHashListWithBlockSize.block_hashes": "attribute",
        "BlockHashListWithBlockSize.scale_factor": "attribute",
    },
    "vllm.v1.core.kv_cache_coordinator": {
        "BlockPool": "is vllm.v1.core.block_pool.BlockPool",
    },
    "vllm.v1.core.single_type_kv_cache_manager": {
        "FullAttentionManager.find_longest_cache_hit": (
            "classmethod (cls, block_hashes, max_length, kv_cache_group_ids, block_pool, kv_cache_spec, "
            "drop_eagle_block, alignment_tokens, dcp_world_size=..., pcp_world_size=...)"
        ),
        "SlidingWindowManager.find_longest_cache_hit": (
            "classmethod (cls, block_hashes, max_length, kv_cache_group_ids, block_pool, kv_cache_spec, "
            "drop_eagle_block, alignment_tokens, dcp_world_size=..., pcp_world_size=...)"
        ),
        "SingleTypeKVCacheManager._get_num_evictable_blocks": "classmethod (cls, blocks)",
    },
    "vllm.v1.core.kv_cache_metrics": {
        "KVCacheMetricsCollector.*": (
            "drain_events on_block_accessed on_block_allocated on_block_evicted reset should_sample_block"
        ),
        "KVCacheMetricsCollector.drain_events": "(self)",
        "KVCacheMetricsCollector.on_block_accessed": "(self, block)",
        "KVCacheMetricsCollector.on_block_allocated": "(self, block)",
        "KVCacheMetricsCollector.on_block_evicted": "(self, block)",
        "KVCacheMetricsCollector.reset": "(self)",
        "KVCacheMetricsCollector.should_sample_block": "(self)",
        "KVCacheMetricsCollector.sample_rate": "attribute",
    },
    "vllm.v1.engine.core": {
        "get_request_block_hasher": "is vllm.v1.core.kv_cache_utils.get_request_block_hasher",
        "init_none_hash": "is vllm.v1.core.kv_cache_utils.init_none_hash",
    },
    "vllm.distributed.kv_events": {
        "BlockStored": {
            "0.32": (
                "(block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name, extra_keys=..., "
                "group_idx=..., kv_cache_spec_kind=..., kv_cache_spec_sliding_window=..., locality=..., ownership=..., "
                "session_id=...)"
            ),
            "0.33": (
                "(block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name, extra_keys=..., "
                "group_idx=..., kv_cache_spec_kind=..., kv_cache_spec_sliding_window=..., locality=..., ownership=..., "
                "session_id=..., lookahead_token_ids=...)"
            ),
        },
        "BlockRemoved": "(block_hashes, medium, group_idx=..., locality=..., ownership=...)",
        "AllBlocksCleared": "()",
        "MEDIUM_GPU": "attribute",
    },
    "vllm.utils.hashing": {
        "sha256": "(input)",
        "sha256_cbor": "(input)",
        "xxhash": "(input)",
        "xxhash_cbor": "(input)",
    },
    "vllm.v1.request": {
        "Request.request_id": "attribute",
        "Request._all_token_ids": "attribute",
        "Request.all_token_ids": "attribute",
        "Request.num_tokens": "property",
        "Request.block_hashes": "attribute",
        "Request.update_block_hashes": "(self)",
        "Request.mm_features": "attribute",
        "Request.lora_request": "attribute",
        "Request.cache_salt": "attribute",
        "Request.prompt_embeds": "attribute",
        "Request.session_id": "attribute",
    },
}

MANAGER: Final[Table] = {
    "vllm.v1.core.kv_cache_manager": {
        "KVCacheBlocks": "(blocks)",
        "KVCacheBlocks.*": "get_block_ids get_unhashed_block_ids get_unhashed_block_ids_all_groups new_empty",
        "KVCacheBlocks.get_block_ids": "(self, allow_none=..., *, group_ids=...)",
        "KVCacheBlocks.get_unhashed_block_ids": "(self)",
        "KVCacheBlocks.get_unhashed_block_ids_all_groups": "(self)",
        "KVCacheBlocks.new_empty": "(self)",
        "KVCacheBlocks.__add__": "(self, other)",
        "KVCacheBlocks.blocks": "attribute",
        "KVCacheManager": {
            "0.32": (
                "(kv_cache_config, max_model_len, scheduler_block_size, hash_block_size, max_in_flight_tokens=..., "
                "enable_caching=..., use_eagle=..., num_prefill_lookahead=..., log_stats=..., "
                "enable_kv_cache_events=..., dcp_world_size=..., pcp_world_size=..., metrics_collector=..., "
                "watermark=..., enable_mamba_shared_prefix_checkpoint=...)"
            ),
            "0.33": (
                "(kv_cache_config, max_model_len, scheduler_block_size, hash_block_size, max_in_flight_tokens=..., "
                "enable_caching=..., use_eagle=..., num_hash_lookahead_tokens=..., num_prefill_lookahead=..., "
                "log_stats=..., enable_kv_cache_events=..., dcp_world_size=..., pcp_world_size=..., "
                "metrics_collector=..., watermark=..., enable_mamba_shared_prefix_checkpoint=...)"
            ),
        },
        "KVCacheManager.*": (
            "allocate_slots cache_blocks create_kv_cache_blocks estimate_cached_tokens evict_blocks "
            "finalize_partial_tail_offloads free get_block_ids get_block_ids_for_computed_tokens get_blocks "
            "get_computed_blocks get_computed_blocks_for_connector get_num_common_prefix_blocks "
            "make_prefix_cache_stats new_step_starts pop_blocks_for_free prefix_cache_lookup_enabled "
            "record_blocks_for_zeroing record_prefix_cache_stats remove_skipped_blocks reset_prefix_cache "
            "take_boundary_state_offloads take_events take_kv_cache_block_copies take_new_block_ids "
            "truncate_computed_blocks usage"
        ),
        "KVCacheManager.allocate_slots": (
            "(self, request, num_new_tokens, num_new_computed_tokens=..., new_computed_blocks=..., "
            "num_lookahead_tokens=..., num_external_computed_tokens=..., delay_cache_blocks=..., "
            "num_encoder_tokens=..., full_sequence_must_fit=..., reserved_blocks=..., has_scheduled_reqs=..., "
            "skip_zeroing_group_ids=...)"
        ),
        "KVCacheManager.cache_blocks": "(self, request, num_computed_tokens)",
        "KVCacheManager.create_kv_cache_blocks": "(self, blocks)",
        "KVCacheManager.estimate_cached_tokens": "(self, request)",
        "KVCacheManager.evict_blocks": "(self, block_ids)",
        "KVCacheManager.finalize_partial_tail_offloads": "(self, request)",
        "KVCacheManager.free": "(self, request)",
        "KVCacheManager.get_block_ids": "(self, request_id)",
        "KVCacheManager.get_block_ids_for_computed_tokens": "(self, request_id, num_computed_tokens)",
        "KVCacheManager.get_blocks": "(self, request_id)",
        "KVCacheManager.get_computed_blocks": {
            "0.32": "(self, request)",
            "0.33": "(self, request, max_cache_hit_length=...)",
        },
        "KVCacheManager.get_computed_blocks_for_connector": {
            "0.32": "(self, request)",
            "0.33": "(self, request, max_cache_hit_length=...)",
        },
        "KVCacheManager.get_num_common_prefix_blocks": "(self, running_request_id)",
        "KVCacheManager.make_prefix_cache_stats": "(self)",
        "KVCacheManager.new_step_starts": "(self)",
        "KVCacheManager.pop_blocks_for_free": "(self, request)",
        "KVCacheManager.prefix_cache_lookup_enabled": "(self, request)",
        "KVCacheManager.record_blocks_for_zeroing": "(self, request_id, start_token)",
        "KVCacheManager.record_prefix_cache_stats": "(self, request, num_hits)",
        "KVCacheManager.remove_skipped_blocks": "(self, request_id, processed_computed_tokens, num_prompt_tokens=...)",
        "KVCacheManager.reset_prefix_cache": "(self)",
        "KVCacheManager.take_boundary_state_offloads": "(self)",
        "KVCacheManager.take_events": "(self)",
        "KVCacheManager.take_kv_cache_block_copies": "(self)",
        "KVCacheManager.take_new_block_ids": "(self)",
        "KVCacheManager.truncate_computed_blocks": "(self, blocks, num_computed_tokens)",
        "KVCacheManager.usage": "property",
        "KVCacheManager.max_model_len": "attribute",
        "KVCacheManager.enable_caching": "attribute",
        "KVCacheManager.enable_kv_cache_events": "attribute",
        "KVCacheManager.use_eagle": "attribute",
        "KVCacheManager.log_stats": "attribute",
        "KVCacheManager.metrics_collector": "attribute",
        "KVCacheManager.prefix_cache_stats": "attribute",
        "KVCacheManager.coordinator": "attribute",
        "KVCacheManager.mamba_shared_prefix_checkpoint": "attribute",
        "KVCacheManager.num_kv_cache_groups": "attribute",
        "KVCacheManager.block_pool": "attribute",
        "KVCacheManager.retained_hit_group_ids": "attribute",
        "KVCacheManager.kv_cache_config": "attribute",
        "KVCacheManager.watermark_blocks": "attribute",
        "KVCacheManager.kv_cache_event_metadata": "attribute",
        "KVCacheManager.empty_kv_cache_blocks": "attribute",
        "get_kv_cache_coordinator": "is vllm.v1.core.kv_cache_coordinator.get_kv_cache_coordinator",
    },
    "vllm.v1.core.kv_cache_coordinator": {
        "KVCacheCoordinator": {
            "0.32": (
                "(kv_cache_config, max_model_len, max_in_flight_tokens, use_eagle, enable_caching, "
                "enable_kv_cache_events, dcp_world_size, pcp_world_size, scheduler_block_size, hash_block_size, "
                "metrics_collector=..., num_prefill_lookahead=...)"
            ),
            "0.33": (
                "(kv_cache_config, max_model_len, max_in_flight_tokens, use_eagle, enable_caching, "
                "enable_kv_cache_events, dcp_world_size, pcp_world_size, scheduler_block_size, hash_block_size, "
                "metrics_collector=..., num_prefill_lookahead=..., num_hash_lookahead_tokens=...)"
            ),
        },
        "KVCacheCoordinator.*": (
            "allocate_new_blocks allocate_new_computed_blocks cache_blocks emit_cached_block_events "
            "find_longest_cache_hit free get_blocks get_num_blocks_to_allocate get_num_cacheable_tokens "
            "new_step_starts pop_blocks_for_free remove_skipped_blocks reset_prefix_cache"
        ),
        "KVCacheCoordinator.allocate_new_blocks": (
            "(self, request_id, num_tokens, num_tokens_main_model, num_encoder_tokens=...)"
        ),
        "KVCacheCoordinator.allocate_new_computed_blocks": (
            "(self, request_id, new_computed_blocks, num_local_computed_tokens, num_external_computed_tokens, "
            "skip_zeroing_group_ids=...)"
        ),
        "KVCacheCoordinator.cache_blocks": "(self, request, num_computed_tokens)",
        "KVCacheCoordinator.emit_cached_block_events": "(self, request, computed_blocks)",
        "KVCacheCoordinator.find_longest_cache_hit": "(self, block_hashes, max_cache_hit_length)",
        "KVCacheCoordinator.free": "(self, request_id)",
        "KVCacheCoordinator.get_blocks": "(self, request_id)",
        "KVCacheCoordinator.get_num_blocks_to_allocate": (
            "(self, request_id, num_tokens, new_computed_blocks, num_encoder_tokens, total_computed_tokens, "
            "num_local_computed_tokens, num_tokens_main_model, apply_admission_cap=..., prefill_end=...)"
        ),
        "KVCacheCoordinator.get_num_cacheable_tokens": "(self, num_computed_tokens, kv_cache_group_id)",
        "KVCacheCoordinator.new_step_starts": "(self)",
        "KVCacheCoordinator.pop_blocks_for_free": "(self, request_id)",
        "KVCacheCoordinator.remove_skipped_blocks": (
            "(self, request_id, processed_computed_tokens, num_prompt_tokens=...)"
        ),
        "KVCacheCoordinator.reset_prefix_cache": "(self)",
        "KVCacheCoordinator.kv_cache_config": "attribute",
        "KVCacheCoordinator.scheduler_block_size": "attribute",
        "KVCacheCoordinator.num_reprefillable_tokens": "attribute",
        "KVCacheCoordinator.block_pool": "attribute",
        "KVCacheCoordinator.eagle_group_ids": "attribute",
        "KVCacheCoordinator.drop_eagle_group_ids": {"0.33": "attribute"},
        "KVCacheCoordinator.single_type_managers": "attribute",
        "KVCacheCoordinator.group_block_sizes": "attribute",
        "KVCacheCoordinator.retention_interval": "attribute",
        "KVCacheCoordinatorNoPrefixCache": {
            "0.32": (
                "(kv_cache_config, max_model_len, max_in_flight_tokens, use_eagle, enable_kv_cache_events, "
                "dcp_world_size, pcp_world_size, scheduler_block_size, hash_block_size, metrics_collector=..., "
                "num_prefill_lookahead=...)"
            ),
            "0.33": (
                "(kv_cache_config, max_model_len, max_in_flight_tokens, use_eagle, enable_kv_cache_events, "
                "dcp_world_size, pcp_world_size, scheduler_block_size, hash_block_size, metrics_collector=..., "
                "num_hash_lookahead_tokens=..., num_prefill_lookahead=...)"
            ),
        },
        "KVCacheCoordinatorNoPrefixCache.find_longest_cache_hit": "(self, block_hashes, max_cache_hit_length)",
        "UnitaryKVCacheCoordinator": {
            "0.32": (
                "(kv_cache_config, max_model_len, max_in_flight_tokens, use_eagle, enable_caching, "
                "enable_kv_cache_events, dcp_world_size, pcp_world_size, scheduler_block_size, hash_block_size, "
                "metrics_collector=..., num_prefill_lookahead=...)"
            ),
            "0.33": (
                "(kv_cache_config, max_model_len, max_in_flight_tokens, use_eagle, enable_caching, "
                "enable_kv_cache_events, dcp_world_size, pcp_world_size, scheduler_block_size, hash_block_size, "
                "metrics_collector=..., num_hash_lookahead_tokens=..., num_prefill_lookahead=...)"
            ),
        },
        "UnitaryKVCacheCoordinator.find_longest_cache_hit": "(self, block_hashes, max_cache_hit_length)",
        "UnitaryKVCacheCoordinator.kv_cache_spec": "attribute",
        "UnitaryKVCacheCoordinator.block_size": "attribute",
        "HybridKVCacheCoordinator": {
            "0.32": (
                "(kv_cache_config, max_model_len, max_in_flight_tokens, use_eagle, enable_caching, "
                "enable_kv_cache_events, dcp_world_size, pcp_world_size, scheduler_block_size, hash_block_size, "
                "metrics_collector=..., num_prefill_lookahead=..., allow_partial_hash_hits=...)"
            ),
            "0.33": (
                "(kv_cache_config, max_model_len, max_in_flight_tokens, use_eagle, enable_caching, "
                "enable_kv_cache_events, dcp_world_size, pcp_world_size, scheduler_block_size, hash_block_size, "
                "metrics_collector=..., num_hash_lookahead_tokens=..., num_prefill_lookahead=..., "
                "allow_partial_hash_hits=...)"
            ),
        },
        "HybridKVCacheCoordinator.find_longest_cache_hit": "(self, block_hashes, max_cache_hit_length)",
        "HybridKVCacheCoordinator.find_longest_cache_hit_per_group": "(self, block_hashes, max_cache_hit_length)",
        "HybridKVCacheCoordinator.get_num_cacheable_tokens": "(self, num_computed_tokens, kv_cache_group_id)",
        "HybridKVCacheCoordinator.hash_block_size": "attribute",
        "HybridKVCacheCoordinator.enable_partial_hash_hits": "attribute",
        "HybridKVCacheCoordinator.attention_groups": "attribute",
        "HybridKVCacheCoordinator.full_attention_group_id": "attribute",
        "get_kv_cache_coordinator": {
            "0.32": (
                "(kv_cache_config, max_model_len, max_in_flight_tokens, use_eagle, enable_caching, "
                "enable_kv_cache_events, dcp_world_size, pcp_world_size, scheduler_block_size, hash_block_size, "
                "metrics_collector=..., num_prefill_lookahead=..., allow_partial_hash_hits=...)"
            ),
            "0.33": (
                "(kv_cache_config, max_model_len, max_in_flight_tokens, use_eagle, enable_caching, "
                "enable_kv_cache_events, dcp_world_size, pcp_world_size, scheduler_block_size, hash_block_size, "
                "metrics_collector=..., num_hash_lookahead_tokens=..., num_prefill_lookahead=..., "
                "allow_partial_hash_hits=...)"
            ),
        },
        "replay_boundaries": "(num_prompt_tokens, scheduler_block_size, use_eagle)",
        "SpecGroup": "(spec, group_ids, manager_cls, use_eagle)",
    },
    "vllm.v1.core.single_type_kv_cache_manager": {
        "SingleTypeKVCacheManager": (
            "(kv_cache_spec, block_pool, enable_caching, kv_cache_group_id, scheduler_block_size, dcp_world_size=..., "
            "pcp_world_size=..., needs_kv_cache_zeroing=..., max_admission_blocks_per_request=...)"
        ),
        "SingleTypeKVCacheManager.*": (
            "add_local_computed_blocks allocate_external_computed_blocks allocate_new_blocks cache_blocks "
            "finalize_partial_tail_offload find_longest_cache_hit free get_num_blocks_to_allocate "
            "get_num_skipped_tokens has_positionally_stable_blocks new_step_starts pop_blocks_for_free "
            "reachable_block_mask records_new_block_ids remove_skipped_blocks take_new_block_ids "
            "take_pending_boundary_state_offloads take_pending_cow_copies"
        ),
        "SingleTypeKVCacheManager.add_local_computed_blocks": (
            "(self, request_id, new_computed_blocks, num_local_computed_tokens, num_external_computed_tokens)"
        ),
        "SingleTypeKVCacheManager.allocate_external_computed_blocks": (
            "(self, request_id, num_local_computed_tokens, num_external_computed_tokens, record_for_zeroing=...)"
        ),
        "SingleTypeKVCacheManager.allocate_new_blocks": "(self, request_id, num_tokens, num_tokens_main_model)",
        "SingleTypeKVCacheManager.cache_blocks": (
            "(self, request, num_tokens, retention_interval=..., *, replay_boundaries)"
        ),
        "SingleTypeKVCacheManager.finalize_partial_tail_offload": (
            "(self, request_id, num_computed_tokens, num_in_flight_tokens)"
        ),
        "SingleTypeKVCacheManager.find_longest_cache_hit": (
            "classmethod (cls, block_hashes, max_length, kv_cache_group_ids, block_pool, kv_cache_spec, "
            "drop_eagle_block, alignment_tokens, dcp_world_size=..., pcp_world_size=...)"
        ),
        "SingleTypeKVCacheManager.free": "(self, request_id)",
        "SingleTypeKVCacheManager.get_num_blocks_to_allocate": (
            "(self, request_id, num_tokens, new_computed_blocks, total_computed_tokens, num_local_computed_tokens, "
            "num_tokens_main_model, apply_admission_cap=..., prefill_end=...)"
        ),
        "SingleTypeKVCacheManager.get_num_skipped_tokens": "(self, num_computed_tokens)",
        "SingleTypeKVCacheManager.has_positionally_stable_blocks": "property",
        "SingleTypeKVCacheManager.new_step_starts": "(self)",
        "SingleTypeKVCacheManager.pop_blocks_for_free": "(self, request_id)",
        "SingleTypeKVCacheManager.reachable_block_mask": (
            "classmethod (cls, start_block, end_block, alignment_tokens, kv_cache_spec, use_eagle, "
            "retention_interval=..., reachable_boundaries=..., dcp_world_size=..., final_segment_end_block=...)"
        ),
        "SingleTypeKVCacheManager.records_new_block_ids": "property",
        "SingleTypeKVCacheManager.remove_skipped_blocks": (
            "(self, request_id, processed_computed_tokens, num_prompt_tokens=...)"
        ),
        "SingleTypeKVCacheManager.take_new_block_ids": "(self)",
        "SingleTypeKVCacheManager.take_pending_boundary_state_offloads": "(self)",
        "SingleTypeKVCacheManager.take_pending_cow_copies": "(self)",
        "SingleTypeKVCacheManager.block_size": "attribute",
        "SingleTypeKVCacheManager.kv_cache_spec": "attribute",
        "SingleTypeKVCacheManager.block_pool": "attribute",
        "SingleTypeKVCacheManager.enable_caching": "attribute",
        "SingleTypeKVCacheManager.max_admission_blocks_per_request": "attribute",
        "SingleTypeKVCacheManager.scheduler_block_size": "attribute",
        "SingleTypeKVCacheManager.cache_hit_alignment_tokens": "attribute",
        "SingleTypeKVCacheManager.dcp_world_size": "attribute",
        "SingleTypeKVCacheManager.pcp_world_size": "attribute",
        "SingleTypeKVCacheManager.new_block_ids": "attribute",
        "SingleTypeKVCacheManager.req_to_blocks": "attribute",
        "SingleTypeKVCacheManager.num_cached_block": "attribute",
        "SingleTypeKVCacheManager.kv_cache_group_id": "attribute",
        "SingleTypeKVCacheManager._null_block": "attribute",
        "SingleTypeKVCacheManager.use_eagle": "attribute",
        "SingleTypeKVCacheManager.retains_longer_hit": "attribute",
        "SingleTypeKVCacheManager.supports_fine_grained_hash_lookup": "attribute",
        "FullAttentionManager": (
            "(kv_cache_spec, block_pool, enable_caching, kv_cache_group_id, scheduler_block_size, dcp_world_size=..., "
            "pcp_world_size=..., needs_kv_cache_zeroing=..., max_admission_blocks_per_request=...)"
        ),
        "FullAttentionManager.cache_blocks": (
            "(self, request, num_tokens, retention_interval=..., *, replay_boundaries)"
        ),
        "FullAttentionManager.reachable_block_mask": (
            "classmethod (cls, start_block, end_block, alignment_tokens, kv_cache_spec, use_eagle, "
            "retention_interval=..., reachable_boundaries=..., dcp_world_size=..., final_segment_end_block=...)"
        ),
        "SlidingWindowManager": "(kv_cache_spec, **kwargs)",
        "SlidingWindowManager.cache_blocks": (
            "(self, request, num_tokens, retention_interval=..., *, replay_boundaries)"
        ),
        "SlidingWindowManager.reachable_block_mask": (
            "classmethod (cls, start_block, end_block, alignment_tokens, kv_cache_spec, use_eagle, "
            "retention_interval=..., reachable_boundaries=..., dcp_world_size=..., final_segment_end_block=...)"
        ),
        "SlidingWindowManager.get_num_skipped_tokens": "(self, num_computed_tokens)",
        "SlidingWindowManager.sliding_window": "attribute",
        "SlidingWindowManager.extra_retained_tokens": "attribute",
        "SingleTypeKVCacheManager._partial_hit_reqs": "attribute",
        "ChunkedLocalAttentionManager": "(kv_cache_spec, **kwargs)",
        "ChunkedLocalAttentionManager.get_num_skipped_tokens": "(self, num_computed_tokens)",
        "ChunkedLocalAttentionManager.attention_chunk_size": "attribute",
        "MambaManager": "(kv_cache_spec, block_pool, **kwargs)",
        "MambaManager.cache_blocks": "(self, request, num_tokens, retention_interval=..., *, replay_boundaries)",
        "MambaManager.get_num_skipped_tokens": "(self, num_computed_tokens)",
        "MambaManager.remove_skipped_blocks": "(self, request_id, processed_computed_tokens, num_prompt_tokens=...)",
        "MambaManager.get_num_blocks_to_allocate": (
            "(self, request_id, num_tokens, new_computed_blocks, total_computed_tokens, num_local_computed_tokens, "
            "num_tokens_main_model, apply_admission_cap=..., prefill_end=...)"
        ),
        "MambaManager.allocate_new_blocks": "(self, request_id, num_tokens, num_tokens_main_model)",
        "MambaManager.mamba_cache_mode": "attribute",
        "MambaManager.num_speculative_blocks": "attribute",
        "MambaManager.has_prefill_checkpoint_blocks": "attribute",
        "MambaManager.last_state_block_idx": "attribute",
        "MambaManager._num_retired_blocks": "attribute",
        "MambaManager._allocated_block_reqs": "attribute",
        "MambaManager._checkpoints": "attribute",
        "MambaManager.cached_blocks_this_step": "attribute",
        "MambaManager._producer_partial_tail_reqs": "attribute",
        "MambaManager.drop_eagle_checkpoint_block": "attribute",
        "MambaManager._cache_partial_tail_block": "(self, request, num_tokens, retention_interval)",
        "FullAttentionManager._cache_partial_tail_block": "(self, request, num_tokens)",
        "SingleTypeKVCacheManager.shared_prefix_checkpoint": "attribute",
        "SingleTypeKVCacheManager._pending_boundary_state_offloads": "attribute",
    },
    "vllm.v1.core.sched.scheduler": {
        "KVCacheManager": "is vllm.v1.core.kv_cache_manager.KVCacheManager",
    },
    "vllm.v1.metrics.stats": {
        "PrefixCacheStats": (
            "(reset=..., requests=..., queries=..., hits=..., preempted_requests=..., preempted_queries=..., "
            "preempted_hits=..., hits_by_source=...)"
        ),
        "PrefixCacheStats.record": "(self, num_tokens, num_hits, preempted, hits_by_source=...)",
    },
    "vllm.v1.request": {
        "Request.num_computed_tokens": "attribute",
        "Request.num_prompt_tokens": "attribute",
        "Request.num_in_flight_tokens": "attribute",
        "Request.status": "attribute",
        "Request.skip_reading_prefix_cache": "attribute",
        "Request.num_preemptions": "attribute",
        "Request.shared_prefix_boundary": "attribute",
        "Request.kv_cache_report_mode": "attribute",
        "RequestStatus.WAITING": "attribute",
        "RequestStatus.PREEMPTED": "attribute",
    },
}
