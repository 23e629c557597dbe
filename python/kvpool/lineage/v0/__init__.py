"""vLLM v0 in its last form, module by module: these modules of ``vllm.core`` are here under the same names.

| Module, under the same name there | What |
|---|---|
| ``block.interfaces`` | blocks and allocators as such, ``Device`` |
| ``block.common`` | ``RefCounter``, ``CopyOnWriteTracker``, ``BlockList``, and more |
| ``block.naive_block`` | ``NaiveBlockAllocator``, ``NaiveBlock`` |
| ``block.prefix_caching_block`` | ``PrefixCachingBlockAllocator``, ``PrefixCachingBlock``, both trackers |
| ``block.cpu_gpu_block_allocator`` | ``CpuGpuBlockAllocator``, ``NullBlock`` |
| ``block.block_table`` | ``BlockTable`` |
| ``block.utils`` | what encoder-decoder models cannot have |
| ``block_manager`` | ``SelfAttnBlockSpaceManager`` |
| ``evictor`` | ``Evictor``, ``LRUEvictor``, ``EvictionPolicy``, ``make_evictor`` |
| ``interfaces`` | ``BlockSpaceManager``, ``AllocStatus`` |
| ``placeholder_block_space_manager`` | ``PlaceholderBlockSpaceManager``, for models without KV |

``vllm.core.scheduler`` is not here: it stays the engine's.

``block_manager_util`` is new: what is read of sequences and groups, which are the engine's. The modules
of ``block`` can also be had without ``block.``, and the trackers as ``trackers``: their paths before
they were the ancestor's.

Each module lists what it does otherwise than the ancestor, by the number of the defect that it leaves
out. Nothing is imported before it is asked for. docs/lineage.md has a recipe for each of the ancestor's
callers.
"""
