"""vLLM v0 in its last form, module by module. These modules of ``vllm.core`` exist here under the same names.

| Module, under the same name there | Content |
|---|---|
| ``block.interfaces`` | the interfaces of blocks and allocators, ``Device`` |
| ``block.common`` | ``RefCounter``, ``CopyOnWriteTracker``, ``BlockList``, and more |
| ``block.naive_block`` | ``NaiveBlockAllocator``, ``NaiveBlock`` |
| ``block.prefix_caching_block`` | ``PrefixCachingBlockAllocator``, ``PrefixCachingBlock``, both trackers |
| ``block.cpu_gpu_block_allocator`` | ``CpuGpuBlockAllocator``, ``NullBlock`` |
| ``block.block_table`` | ``BlockTable`` |
| ``block.utils`` | refuses the features that encoder-decoder models do not support |
| ``block_manager`` | ``SelfAttnBlockSpaceManager`` |
| ``evictor`` | ``Evictor``, ``LRUEvictor``, ``EvictionPolicy``, ``make_evictor`` |
| ``interfaces`` | ``BlockSpaceManager``, ``AllocStatus`` |
| ``placeholder_block_space_manager`` | ``PlaceholderBlockSpaceManager``, for models without KV |

The engine keeps its own ``vllm.core.scheduler``.

``block_manager_util`` is new: it reads the engine's sequences and groups. The modules of ``block`` can
also be imported without ``block.``, and the trackers as ``trackers``. These are their paths from before
they had the ancestor's names.

Each module lists its differences from the ancestor, by the number of the defect that it avoids. Nothing
is imported before it is used. docs/lineage.md has a recipe for each of the ancestor's
callers.
"""
