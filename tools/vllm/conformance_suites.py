"""The tables of tools/vllm_conformance.py: the suites, the tests whose results differ on purpose, and
the tests that depend on timing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STOCK: Final = "stock"
FOLDER: Final = "tests/v1"
# The test files of each suite. "folder/*" stands for all files of a folder, which run in one process.
FILES: Final = (
    "core/test_prefix_caching.py",
    "core/test_kv_cache_utils.py",
    "core/test_single_type_kv_cache_manager.py",
    "core/test_kv_cache_metrics.py",
    "core/prefix_cache/*",
    "core/test_scheduler.py",
    "core/test_prefix_replay.py",
    "core/test_deferred_block_free.py",
    "core/test_swa_inflight_window_free.py",
    "core/test_async_scheduler.py",
    "core/test_priority_preemption_bug.py",
    "core/test_priority_scheduler_random.py",
    "simple_kv_offload/*",
    "kv_connector/unit/*",
    "kv_connector/unit/offloading_connector/*",
    "kv_offload/*",
    "kv_offload/cpu/*",
    "kv_offload/cpu/policies/*",
    "kv_offload/tiering/*",
)
OFFLOAD: Final = "offload-"
#: The test files of the suites for offloading.
OFFLOAD_SUITES: Final[Mapping[str, Sequence[str]]] = {
    "offload, managers": (
        "kv_offload/cpu/test_manager.py",
        "kv_offload/cpu/policies/test_factory.py",
        "kv_offload/test_factory.py",
        "kv_connector/unit/offloading_connector/test_events.py",
    ),
    "offload, example tier": ("kv_offload/tiering/test_tiering_offloading.py",),
    "offload, tiers": tuple(
        f"kv_offload/tiering/test_{name}.py"
        for name in ("backpressure", "metrics", "fs_tier", "obj_tier", "kvcr_tier")
    ),
}
# Levels that run only some of the suites for offloading. vLLM's manager for tiering derives from its
# offloading manager. So it uses a replaced policy, but is not affected if that manager is replaced.
SUITES_OF: Final[Mapping[str, frozenset[str]]] = {
    "offload-manager": frozenset({"offload, managers"}),
    "offload-tier": frozenset({"offload, example tier"}),
}
# Test files in these folders that are skipped. They need a GPU or a package that the environment lacks
# (msgpack, ray), or share memory between processes with time limits.
LEFT_OUT: Final = frozenset(
    {
        "kv_connector/unit/test_bidirectional_kv_transfer.py",
        "kv_connector/unit/test_moriio_connector.py",
        "kv_connector/unit/test_moriio_hma_scheduler.py",
        "kv_connector/unit/test_moriio_proxy_routing.py",
        "kv_connector/unit/test_moriio_routing.py",
        "kv_connector/unit/test_moriio_routing_fairness.py",
        "kv_connector/unit/test_moriio_tp_ack.py",
        "kv_connector/unit/test_moriio_unmap.py",
        "kv_connector/unit/test_moriio_write_done_routing.py",
        "kv_connector/unit/test_nixl_connector.py",
        "kv_offload/cpu/test_gpu_worker.py",
        "kv_offload/cpu/test_shared_offload_region.py",
        "kv_offload/cpu/test_swap_blocks_batch.py",
        "kv_offload/cpu/test_swap_blocks_triton.py",
        "simple_kv_offload/test_integration.py",
        "simple_kv_offload/test_worker.py",
    }
)
# Files with tests that give a thread of vLLM a time limit. On a busy machine these sometimes fail, even
# with stock vLLM. If such a test passes only with stock or only at a level, it is repeated.
AGAINST_THE_CLOCK: Final = frozenset(
    {
        "core/test_kv_cache_utils.py",
        "kv_connector/unit/test_mooncake_connector.py",
        "kv_connector/unit/test_nixl_push_connector.py",
        "kv_offload/tiering/test_async_lookup.py",
        "kv_offload/tiering/test_backpressure.py",
        "kv_offload/tiering/test_fs_tier.py",
        "kv_offload/tiering/test_obj_tier.py",
    }
)
#: Number of times that such a test is repeated with stock and at the level. It counts as equal if all
#: runs pass.
AGAIN: Final = 3
#: Tests of behaviour that kvpool changes on purpose, by level, with the reason. docs/vllm.md describes
#: the changes.
ON_PURPOSE: Final[Mapping[str, Mapping[str, str]]] = {
    "manager": {
        "test_eagle_group_registers_unaligned_tail_under_partial_hash_hits": (
            "observes a Python call that kvpool makes inside of Rust"
        ),
    },
    # These tests of vLLM read private attributes of the classes that kvpool replaces.
    "offload-policy": {
        "test_lru_repeated_pin_cycles_compact_lazy_heap_entries": "_heap of the policy",
        "test_touch_propagates_to_all_tiers": "_ranks of the policy",
    },
    "offload-manager": {
        "test_cpu_manager_reports_allocation_size_on_allocation_failure": "_allocate_chunks",
        "test_lru_batch_eviction_failure_is_atomic": "_policy",
        "test_lru_repeated_pin_cycles_compact_lazy_heap_entries": "_policy",
        "test_evictable_cache_chunk_count": "_num_evictable_cache_chunks",
        "test_touch_forwards_req_context_to_policy": "_policy",
        "test_request_finish_forwards_grouped_deduplicated_accesses": "_policy",
        "test_failed_store_records_access_once_and_uses_store_miss_hook": "_record_request_cache_access",
    },
    "offload-tier": {
        "test_ref_cnt_protection_during_cascade": "completed_jobs of the example",
        "test_failed_promotion_keeps_only_successful_chunks": "completed_jobs of the example",
    },
}
