"""The ancestors of kvpool.

Each module offers one ancestor's names and signatures, implemented by kvpool's core.

Code that was written for an ancestor runs after its imports are changed. No module keeps allocation
state of its own. Reference counts, free lists, the prefix index, the eviction order, pending copies and
swaps are those of kvpool's pools. A module only adds names, return types, maps between ids, and
handles. A module is imported only when it is used.

| Module | Ancestor | Written for |
|---|---|---|
| ``kvpool.lineage.token_blocks`` | 000 | Aphrodite's token blocks |
| ``kvpool.lineage.v1_early`` | 001 | vLLM V1, early: ``KVCacheBlock`` and its free queue |
| ``kvpool.lineage.aphrodite`` | 002 | Aphrodite's (and vLLM 0.4's) prefix-caching allocator |
| ``kvpool.lineage.cacheflow`` | 003 | CacheFlow's ``BlockSpaceManager`` |
| ``kvpool.lineage.v0`` | 004 | vLLM v0 in its last form |

docs/lineage.md shows how to port the callers of each ancestor. The ancestors' known defects are
numbered and not repeated. Each module lists its intended differences by the numbers of these defects.
Three rules hold for all modules. A failed call changes nothing. If a handle is used after its block was
freed, the call raises, and never reaches another block. Errors are those of ``kvpool.errors``, and also
the built-in exceptions that the ancestors raised: ``kvpool.lineage.errors``.
"""
