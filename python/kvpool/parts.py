"""The parts of a block pool as separate classes: allocator, free list, prefix index, evictor.

Use them in a scheduler that has its own pool. ``kvpool.BlockPool`` combines all four. Each of its
operations either completes or changes nothing.

>>> from kvpool.parts import BlockAllocator
>>> allocator = BlockAllocator(num_blocks=5)
>>> allocator.allocate(3)
[1, 2, 3]
"""

from kvpool._core.parts import BlockAllocator, FreeBlockList, LruEvictor, PrefixIndex

__all__ = ["BlockAllocator", "FreeBlockList", "LruEvictor", "PrefixIndex"]
