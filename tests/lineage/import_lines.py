"""The import statements in the source tree of each ancestor, an older block manager whose interface
kvpool provides.

Each line is one import: the file, the imported module, and the names. Words at its end describe the
statement. ``lazy``: it is in a function. ``long``: it has parentheses and spans several lines.
``string``: the module and the name are in a string that the engine resolves later.
"""

from __future__ import annotations

from typing import Final

#: Imports in vLLM 0.8.5, including its tests.
V0: Final = """
vllm/config.py: vllm.core.scheduler: Scheduler string
vllm/core/block/block_table.py: vllm.core.block.common: BlockList
vllm/core/block/block_table.py: vllm.core.block.interfaces: Block DeviceAwareBlockAllocator
vllm/core/block/common.py: vllm.core.block.interfaces: Block BlockAllocator
vllm/core/block/cpu_gpu_block_allocator.py: vllm.core.block.interfaces: Block BlockAllocator BlockId \
DeviceAwareBlockAllocator long
vllm/core/block/cpu_gpu_block_allocator.py: vllm.core.block.naive_block: NaiveBlock NaiveBlockAllocator
vllm/core/block/cpu_gpu_block_allocator.py: vllm.core.block.prefix_caching_block: PrefixCachingBlockAllocator
vllm/core/block/naive_block.py: vllm.core.block.common: BlockPool CopyOnWriteTracker RefCounter \
get_all_blocks_recursively long
vllm/core/block/naive_block.py: vllm.core.block.interfaces: Block BlockAllocator BlockId Device
vllm/core/block/prefix_caching_block.py: vllm.core.block.common: CacheMetricData CopyOnWriteTracker \
get_all_blocks_recursively long
vllm/core/block/prefix_caching_block.py: vllm.core.block.interfaces: Block BlockAllocator BlockId Device \
DeviceAwareBlockAllocator long
vllm/core/block/prefix_caching_block.py: vllm.core.block.naive_block: BlockPool NaiveBlock \
NaiveBlockAllocator long
vllm/core/block/prefix_caching_block.py: vllm.core.evictor: EvictionPolicy Evictor make_evictor
vllm/core/block_manager.py: vllm.core.block.block_table: BlockTable
vllm/core/block_manager.py: vllm.core.block.cpu_gpu_block_allocator: CpuGpuBlockAllocator
vllm/core/block_manager.py: vllm.core.block.interfaces: Block
vllm/core/block_manager.py: vllm.core.block.prefix_caching_block: ComputedBlocksTracker \
LastAccessBlocksTracker long
vllm/core/block_manager.py: vllm.core.block.utils: check_no_caching_or_swa_for_blockmgr_encdec
vllm/core/block_manager.py: vllm.core.interfaces: AllocStatus BlockSpaceManager
vllm/core/interfaces.py: vllm.core.block_manager: SelfAttnBlockSpaceManager lazy
vllm/core/interfaces.py: vllm.core.placeholder_block_space_manager: PlaceholderBlockSpaceManager lazy long
vllm/core/placeholder_block_space_manager.py: vllm.core.interfaces: AllocStatus BlockSpaceManager
vllm/core/scheduler.py: vllm.core.interfaces: AllocStatus BlockSpaceManager
vllm/engine/async_llm_engine.py: vllm.core.scheduler: SchedulerOutputs
vllm/engine/llm_engine.py: vllm.core.scheduler: ScheduledSequenceGroup SchedulerOutputs
vllm/engine/multiprocessing/client.py: vllm.core.scheduler: SchedulerOutputs
vllm/engine/output_processor/interfaces.py: vllm.core.scheduler: Scheduler
vllm/engine/output_processor/multi_step.py: vllm.core.scheduler: Scheduler
vllm/engine/output_processor/single_step.py: vllm.core.scheduler: Scheduler
vllm/engine/protocol.py: vllm.core.scheduler: SchedulerOutputs
vllm/entrypoints/openai/tool_parsers/utils.py: partial_json_parser.core.options: Allow
vllm/model_executor/layers/quantization/torchao.py: torchao.core.config: config_from_dict lazy
vllm/v1/engine/core_client.py: vllm.v1.core.sched.scheduler: Scheduler
vllm/worker/model_runner.py: vllm.core.scheduler: SchedulerOutputs
tests/basic_correctness/test_preemption.py: vllm.core.scheduler: ARTIFICIAL_PREEMPTION_MAX_CNT \
ENABLE_ARTIFICIAL_PREEMPT long
tests/core/block/e2e/test_correctness_sliding_window.py: vllm.core.scheduler: Scheduler
tests/core/block/test_block_manager.py: vllm.core.block.utils: STR_NOT_IMPL_ENC_DEC_PREFIX_CACHE \
STR_NOT_IMPL_ENC_DEC_SWA long
tests/core/block/test_block_manager.py: vllm.core.block_manager: SelfAttnBlockSpaceManager
tests/core/block/test_block_manager.py: vllm.core.interfaces: AllocStatus
tests/core/block/test_block_table.py: vllm.core.block.block_table: BlockTable
tests/core/block/test_block_table.py: vllm.core.block.cpu_gpu_block_allocator: CpuGpuBlockAllocator
tests/core/block/test_common.py: vllm.core.block.common: RefCounter
tests/core/block/test_cpu_gpu_block_allocator.py: vllm.core.block.cpu_gpu_block_allocator: \
CpuGpuBlockAllocator
tests/core/block/test_naive_block.py: vllm.core.block.interfaces: Block BlockAllocator
tests/core/block/test_naive_block.py: vllm.core.block.naive_block: NaiveBlock NaiveBlockAllocator
tests/core/block/test_prefix_caching_block.py: vllm.core.block.cpu_gpu_block_allocator: CpuGpuBlockAllocator
tests/core/block/test_prefix_caching_block.py: vllm.core.block.interfaces: Block BlockAllocator
tests/core/block/test_prefix_caching_block.py: vllm.core.block.prefix_caching_block: ComputedBlocksTracker \
PrefixCachingBlock PrefixCachingBlockAllocator long
tests/core/test_chunked_prefill_scheduler.py: vllm.core.scheduler: Scheduler
tests/core/test_scheduler.py: vllm.core.interfaces: AllocStatus
tests/core/test_scheduler.py: vllm.core.scheduler: Scheduler SchedulingBudget
tests/core/test_scheduler_encoder_decoder.py: vllm.core.scheduler: Scheduler
tests/core/utils.py: vllm.core.scheduler: Scheduler SchedulerOutputs
tests/engine/test_multi_step_output_processor.py: vllm.core.scheduler: Scheduler
tests/engine/test_multi_step_output_processor.py: ..core.utils: create_seq_group
tests/plugins_tests/test_scheduler_plugins.py: vllm.core.scheduler: Scheduler
tests/prefix_caching/test_prefix_caching.py: tests.core.utils: SchedulerProxy create_dummy_prompt
tests/prefix_caching/test_prefix_caching.py: vllm.core.scheduler: Scheduler
tests/v1/e2e/test_correctness_sliding_window.py: ...core.block.e2e.test_correctness_sliding_window: \
prep_prompts long
"""
#: Imports in vLLM 0.4.2, including its tests.
APHRODITE: Final = """
vllm/core/block/block_table.py: vllm.core.block.interfaces: Block DeviceAwareBlockAllocator
vllm/core/block/common.py: vllm.core.block.interfaces: Block BlockAllocator
vllm/core/block/cpu_gpu_block_allocator.py: vllm.core.block.interfaces: Block BlockAllocator BlockId \
DeviceAwareBlockAllocator long
vllm/core/block/cpu_gpu_block_allocator.py: vllm.core.block.naive_block: NaiveBlock NaiveBlockAllocator
vllm/core/block/cpu_gpu_block_allocator.py: vllm.core.block.prefix_caching_block: PrefixCachingBlockAllocator
vllm/core/block/naive_block.py: vllm.core.block.common: CopyOnWriteTracker RefCounter \
get_all_blocks_recursively long
vllm/core/block/naive_block.py: vllm.core.block.interfaces: Block BlockAllocator BlockId Device
vllm/core/block/prefix_caching_block.py: vllm.core.block.common: CopyOnWriteTracker \
get_all_blocks_recursively long
vllm/core/block/prefix_caching_block.py: vllm.core.block.interfaces: Block BlockAllocator BlockId Device
vllm/core/block/prefix_caching_block.py: vllm.core.block.naive_block: NaiveBlock NaiveBlockAllocator
vllm/core/block/prefix_caching_block.py: vllm.core.evictor_v2: EvictionPolicy Evictor make_evictor
vllm/core/block_manager_v1.py: vllm.core.evictor_v1: EvictionPolicy Evictor make_evictor
vllm/core/block_manager_v1.py: vllm.core.interfaces: AllocStatus BlockSpaceManager
vllm/core/block_manager_v2.py: vllm.core.block.block_table: BlockTable
vllm/core/block_manager_v2.py: vllm.core.block.cpu_gpu_block_allocator: CpuGpuBlockAllocator
vllm/core/block_manager_v2.py: vllm.core.interfaces: AllocStatus BlockSpaceManager
vllm/core/interfaces.py: vllm.core.block_manager_v1: BlockSpaceManagerV1 lazy
vllm/core/interfaces.py: vllm.core.block_manager_v2: BlockSpaceManagerV2 lazy
vllm/core/scheduler.py: vllm.core.interfaces: AllocStatus BlockSpaceManager
vllm/core/scheduler.py: vllm.core.policy: Policy PolicyFactory
vllm/engine/llm_engine.py: vllm.core.scheduler: ScheduledSequenceGroup Scheduler SchedulerOutputs long
tests/core/block/test_block_manager_v2.py: vllm.core.block_manager_v2: BlockSpaceManagerV2
tests/core/block/test_block_table.py: vllm.core.block.block_table: BlockTable
tests/core/block/test_block_table.py: vllm.core.block.cpu_gpu_block_allocator: CpuGpuBlockAllocator
tests/core/block/test_common.py: vllm.core.block.common: RefCounter
tests/core/block/test_naive_block.py: vllm.core.block.interfaces: Block BlockAllocator
tests/core/block/test_naive_block.py: vllm.core.block.naive_block: NaiveBlock NaiveBlockAllocator
tests/core/block/test_prefix_caching_block.py: vllm.core.block.prefix_caching_block: PrefixCachingBlock \
PrefixCachingBlockAllocator long
tests/core/test_block_manager.py: vllm.core.block_manager_v1: BlockSpaceManagerV1 UncachedBlockAllocator long
"""
#: CacheFlow.
CACHEFLOW: Final = """
cacheflow/master/block_manager.py: cacheflow.block: PhysicalTokenBlock
cacheflow/master/scheduler.py: cacheflow.master.block_manager: BlockSpaceManager
cacheflow/master/server.py: cacheflow.master.scheduler: Scheduler
cacheflow/sequence.py: cacheflow.block: LogicalTokenBlock
"""
#: vLLM 0.6.4.
V1_EARLY: Final = """
vllm/v1/core/kv_cache_manager.py: vllm.v1.core.kv_cache_utils: BlockHashType FreeKVCacheBlockQueue \
KVCacheBlock hash_block_tokens hash_request_tokens long
vllm/v1/core/scheduler.py: vllm.v1.core.kv_cache_manager: KVCacheManager
tests/v1/core/test_prefix_caching.py: vllm.v1.core.kv_cache_manager: KVCacheManager Request
tests/v1/core/test_prefix_caching.py: vllm.v1.core.kv_cache_utils: hash_block_tokens
"""
#: Aphrodite 0.5.1.
TOKEN_BLOCKS: Final = """
aphrodite/common/sequence.py: aphrodite.common.block: LogicalTokenBlock
aphrodite/processing/block_manager.py: aphrodite.common.block: BlockTable PhysicalTokenBlock
aphrodite/processing/evictor.py: aphrodite.common.block: PhysicalTokenBlock
"""
