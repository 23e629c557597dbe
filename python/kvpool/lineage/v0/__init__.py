"""vLLM v0 in its last form, module by module: change ``vllm.core`` to ``kvpool.lineage.v0``.

| Here | There | What |
|---|---|---|
| ``interfaces`` | ``block.interfaces`` | blocks and allocators as such, ``Device``, ``AllocStatus`` |
| ``common`` | ``block.common`` | ``RefCounter``, ``CopyOnWriteTracker``, ``BlockList``, and more |
| ``naive_block`` | ``block.naive_block`` | ``NaiveBlockAllocator``, ``NaiveBlock`` |
| ``prefix_caching_block`` | ``block.prefix_caching_block`` | ``PrefixCachingBlockAllocator``, ``PrefixCachingBlock`` |
| ``cpu_gpu_block_allocator`` | ``block.cpu_gpu_block_allocator`` | ``CpuGpuBlockAllocator``, ``NullBlock`` |
| ``block_table`` | ``block.block_table`` | ``BlockTable`` |
| ``trackers`` | ``block.prefix_caching_block`` | ``ComputedBlocksTracker``, ``LastAccessBlocksTracker`` |
| ``evictor`` | ``evictor`` | ``Evictor``, ``LRUEvictor``, ``EvictionPolicy``, ``make_evictor`` |
| ``block_manager`` | ``block_manager`` | ``SelfAttnBlockSpaceManager`` |

Each module lists what it does otherwise than the ancestor, by the number of the defect that it leaves out. Nothing is
imported before it is asked for.
"""
