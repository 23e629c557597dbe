"""The ancestors of kvpool, each with its names and signatures, over kvpool's core.

Each ancestor has one module here. Code that was written for the ancestor runs with its imports changed.
No module keeps allocation state of its own: reference counts, free lists, prefix index, eviction order,
pending copies and swaps are those of kvpool's pools. A module only adds names, return shapes, maps of
ids, and handles. Nothing is imported before it is used.

| Module | Ancestor | Written for |
|---|---|---|
| ``kvpool.lineage.token_blocks`` | 000 | Aphrodite's token blocks |
| ``kvpool.lineage.v1_early`` | 001 | vLLM V1, early: ``KVCacheBlock`` and its free queue |
| ``kvpool.lineage.aphrodite`` | 002 | Aphrodite's (and vLLM 0.4's) prefix-caching allocator |
| ``kvpool.lineage.cacheflow`` | 003 | CacheFlow's ``BlockSpaceManager`` |
| ``kvpool.lineage.v0`` | 004 | vLLM v0 in its last form |

docs/lineage.md has a recipe for each of the ancestors' callers. The ancestors' defects are not
repeated: each module lists its intended differences by the number of the defect. All modules share
three rules. A failed call changes nothing. A handle used after its block was freed is an error, never
another block. Errors are those of ``kvpool.errors`` and also the builtins that the ancestors raised:
``kvpool.lineage.errors``.
"""
