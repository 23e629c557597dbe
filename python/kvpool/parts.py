"""The parts of a block pool, each usable alone: allocator, free list, prefix index, evictor.

They are for schedulers that keep a pool of their own. ``kvpool.BlockPool`` combines all four, and its
operations are all or nothing.

>>> from kvpool.parts import BlockAllocator
>>> allocator = BlockAllocator(num_blocks=5)
>>> allocator.allocate(3)
[1, 2, 3]
"""

from kvpool._core.parts import BlockAllocator, FreeBlockList, LruEvictor, PrefixIndex

__all__ = ["BlockAllocator", "FreeBlockList", "LruEvictor", "PrefixIndex"]
