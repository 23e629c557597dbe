"""The parts of a block pool. Each part can be used alone."""

from collections.abc import Sequence
from typing import Self, final

from kvpool._core import BlockIds, VerifyMode
from kvpool._core.hashing import _Chain

__all__ = [
    "BlockAllocator",
    "FreeBlockList",
    "LruEvictor",
    "PrefixIndex",
]

@final
class BlockAllocator:
    """A block pool without a prefix cache: reference counts of blocks, and a list of free blocks.

    Args:
        num_blocks: The number of blocks, null block included. At least 2.

    Raises:
        InvalidArgumentError: ``num_blocks`` is out of range.

    >>> allocator = kvpool.parts.BlockAllocator(5)
    >>> allocator.allocate(3)
    [1, 2, 3]
    >>> allocator.acquire([1])
    >>> allocator.release([3, 2, 1])
    >>> allocator.free_order(), allocator.ref_count(1)
    ([2, 3, 4], 1)
    """

    def __new__(cls, num_blocks: int) -> Self: ...
    @property
    def num_blocks(self) -> int:
        """The number of blocks, null block included."""
    @property
    def num_free(self) -> int:
        """The number of blocks on the free list."""
    @property
    def num_held(self) -> int:
        """The number of blocks with at least one reference."""
    def allocate(self, n: int) -> list[int]:
        """Allocates ``n`` free blocks, each with one reference, and returns their ids.

        O(1) per block.

        Raises:
            OutOfBlocksError: Fewer blocks are free.
            InvalidArgumentError: ``n`` is negative.
        """
    def acquire(self, block_ids: BlockIds) -> None:
        """Adds one reference per id. The blocks must already have a reference.

        O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, the null block, or a block without references.
            ArgumentTypeError: The ids have a type or dtype that is not supported.
        """
    def release(self, block_ids: BlockIds) -> None:
        """Releases one reference per id. Blocks without further references become free.

        Of these blocks, the last one in ``block_ids`` is the first to be allocated again. O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown or the null block, or appears more often than the block
                has references (a double free).
            ArgumentTypeError: The ids have a type or dtype that is not supported.
        """
    def ref_count(self, block_id: int) -> int:
        """Returns the number of references of a block.

        O(1).

        Raises:
            InvalidBlockError: The id is outside the pool.
        """
    def free_order(self) -> list[int]:
        """Returns the free blocks in the order of allocation.

        O(free blocks), for tests and tools.
        """
    def check_invariants(self) -> None:
        """Recomputes references and the free list, and compares them with the stored state.

        O(blocks), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """

@final
class FreeBlockList:
    """The free blocks of a pool, in the order of allocation.

    A linked list in an array, indexed by block id. Each operation is O(1) per block, also a removal from the
    middle. A new list has all blocks except the null block, in ascending order. ``len(free)`` is the number
    of free blocks, and ``block_id in free`` is whether a block is free.

    Args:
        num_blocks: The number of blocks of the pool, null block included. At least 2.

    Raises:
        InvalidArgumentError: ``num_blocks`` is out of range.

    >>> free = kvpool.parts.FreeBlockList(5)
    >>> free.pop_front_n(2)
    [1, 2]
    >>> free.push_front(2)
    >>> free.remove(3)
    >>> free.order(), len(free), 3 in free
    ([2, 4], 2, False)
    """

    def __new__(cls, num_blocks: int) -> Self: ...
    def pop_front_n(self, n: int) -> list[int]:
        """Removes the next ``n`` free blocks from the front, and returns their ids.

        O(1) per block.

        Raises:
            OutOfBlocksError: Fewer blocks are free.
            InvalidArgumentError: ``n`` is negative.
        """
    def push_front(self, block_id: int) -> None:
        """Adds a block to the front of the list. It is the next to be allocated.

        O(1).

        Raises:
            InvalidBlockError: The id is unknown, the null block, or a block that is already free.
        """
    def push_back(self, block_id: int) -> None:
        """Adds a block to the back of the list. It is the last to be allocated.

        O(1).

        Raises:
            InvalidBlockError: The id is unknown, the null block, or a block that is already free.
        """
    def push_front_n(self, block_ids: BlockIds) -> None:
        """Adds blocks to the front of the list, one after the other. A call that fails adds none.

        O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, the null block, in the list twice, or a block that is
                already free.
            ArgumentTypeError: The ids have a type or dtype that is not supported.
        """
    def remove(self, block_id: int) -> None:
        """Removes a block from its position on the list.

        O(1).

        Raises:
            InvalidBlockError: The id is unknown, the null block, or a block that is not free.
        """
    def order(self) -> list[int]:
        """Returns the free blocks in the order of allocation.

        O(free blocks).
        """
    def check_invariants(self) -> None:
        """Checks the list by following its links.

        O(blocks), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """
    def __contains__(self, block_id: int, /) -> bool: ...
    def __len__(self) -> int: ...

@final
class PrefixIndex:
    """The prefix index: a map from block hashes to the blocks with that content.

    Several blocks may have the same content. A lookup finds the oldest computed one. The index has no
    reference counts. ``block_id in index`` is whether a block is registered. O(1) per block.

    Args:
        num_blocks: The number of blocks of the pool, null block included. At least 2.
        block_size: The number of tokens per block. At least 1.
        verify: One of ``verify_modes()``. The hasher of the chains must have this mode, or one that
            verifies more.

    Raises:
        InvalidArgumentError: A setting is out of range.

    >>> chain = kvpool.BlockHasher(block_size=2).cursor([1, 2, 3, 4, 5]).chain()
    >>> index = kvpool.parts.PrefixIndex(num_blocks=8, block_size=2)
    >>> index.insert(3, chain, 0)
    True
    >>> index.find(chain, 0)  # registered, not computed
    >>> index.mark_computed(3)
    >>> index.find(chain, 0)
    3
    """

    def __new__(cls, num_blocks: int, block_size: int = 16, *, verify: VerifyMode = "none") -> Self: ...
    def insert(self, block_id: int, chain: _Chain, position: int) -> bool:
        """Registers a block as one block of a chain, not yet computed.

        O(1).

        Args:
            block_id: A block that is not registered.
            chain: The hash chain of a prompt.
            position: The position of the block in the chain, from 0.

        Returns:
            Whether the block was registered. False means a hash collision: blocks with this hash have other
                content.

        Raises:
            InvalidBlockError: The id is unknown, the null block, or already registered.
            InvalidArgumentError: The chain is too short. Or it has another block size, algorithm or
                verification.
        """
    def mark_computed(self, block_id: int) -> None:
        """Marks a registered block as computed: its KV is written, and lookups may return it.

        O(1).

        Raises:
            InvalidBlockError: The id is unknown, the null block, or not registered.
        """
    def find(self, chain: _Chain, position: int) -> int | None:
        """Returns a computed block with the content at a position of a chain, or None.

        O(1). Returns None for a collision, and for a position after the end of the chain.

        Raises:
            InvalidArgumentError: The chain has another block size, algorithm or verification.
        """
    def remove(self, block_id: int) -> bool:
        """Removes a block from the index, and returns whether it was registered.

        O(1).

        Raises:
            InvalidBlockError: The id does not fit 32 bits.
        """
    def clear(self) -> None:
        """Removes all blocks from the index.

        O(blocks).
        """
    def copies(self, chain: _Chain, position: int) -> list[int]:
        """Returns the blocks that are registered under the hash at a position of a chain.

        Computed blocks come first, in the order in which they were marked as computed. The other blocks
        follow in the order of registration. The call does not verify the content. Empty if the position is
        after the end of the chain. O(copies).
        """
    @property
    def num_registered(self) -> int:
        """The number of registered blocks, computed or not."""
    @property
    def num_hashes(self) -> int:
        """The number of different hashes of the registered blocks."""
    def check_invariants(self) -> None:
        """Recomputes the index, and compares it with the stored state.

        O(blocks), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """
    def __contains__(self, block_id: int, /) -> bool: ...

@final
class LruEvictor:
    """The least-recently-used order of cached-free blocks.

    ``len(evictor)`` is the number of blocks in the order, and ``block_id in evictor`` is whether a
    block is one of them. O(1) per block.

    Args:
        num_blocks: The number of blocks of the pool, null block included. At least 2.

    Raises:
        InvalidArgumentError: ``num_blocks`` is out of range.

    >>> evictor = kvpool.parts.LruEvictor(10)
    >>> evictor.insert([(1, 0), (2, 1), (3, 2)])  # one chain: its deepest block goes first
    >>> evictor.order()
    [3, 2, 1]
    >>> evictor.remove(2), evictor.evict(), len(evictor)
    (True, 3, 1)
    """

    def __new__(cls, num_blocks: int) -> Self: ...
    def insert(self, candidates: Sequence[tuple[int, int]]) -> None:
        """Adds the blocks that one release has made cached-free.

        Each candidate is a pair of a block id and the depth of the block in its chain. All of them count as
        used at the same moment, and deeper blocks are evicted before shallower ones. Blocks that are already
        in the order are ignored. O(1) per block if the blocks are sorted by decreasing depth, otherwise O(log
        n).

        Raises:
            InvalidBlockError: An id is unknown, or the null block.
            InvalidArgumentError: A depth is negative.
        """
    def remove(self, block_id: int) -> bool:
        """Removes a block, because it was hit or dropped, and returns whether it was in the order.

        O(1).

        Raises:
            InvalidBlockError: The id does not fit 32 bits.
        """
    def evict(self) -> int | None:
        """Removes and returns the next block to evict. Returns None if the order is empty.

        O(1).
        """
    def order(self) -> list[int]:
        """Returns the blocks in the order of eviction.

        O(blocks in the order).
        """
    def check_invariants(self) -> None:
        """Checks the order by following its links.

        O(blocks), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """
    def __contains__(self, block_id: int, /) -> bool: ...
    def __len__(self) -> int: ...
