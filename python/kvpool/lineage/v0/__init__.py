"""The last version of vLLM v0's block management. Each module has the name that it has in ``vllm.core``.

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

``block_manager_util`` does not exist in vLLM. It reads the engine's sequences and groups. The modules
of ``block`` can also be imported without ``block.``, and the trackers as ``trackers``, because earlier
versions of kvpool had them there.

Each module lists its differences from the ancestor. The numbers in these lists identify the known
defects of the ancestors. A module is imported only when it is used. docs/lineage.md shows how to port
the callers of each ancestor.
"""
