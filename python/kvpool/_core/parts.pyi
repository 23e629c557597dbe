"""The parts of a block pool, each usable alone."""

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
    """Reference counts over a free list: a pool without a prefix cache.

    Args:
        num_blocks: Blocks, null block included. At least 2.

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
        """Blocks, null block included."""
    @property
    def num_free(self) -> int:
        """Blocks on the free list."""
    @property
    def num_held(self) -> int:
        """Blocks with at least one reference."""
    def allocate(self, n: int) -> list[int]:
        """Takes free blocks, each with one reference.

        O(1) per block.

        Raises:
            OutOfBlocksError: Fewer are free.
        """
    def acquire(self, block_ids: BlockIds) -> None:
        """Adds one reference per id to blocks in use.

        O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, the null block, or a block without references.
            ArgumentTypeError: The ids have a type or dtype that is not supported.
        """
    def release(self, block_ids: BlockIds) -> None:
        """Drops one reference per id; blocks without further references become free.

        The last of them is handed out first. O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, the null block, or named more often than it has references (a
                double free).
            ArgumentTypeError: The ids have a type or dtype that is not supported.
        """
    def ref_count(self, block_id: int) -> int:
        """Returns the references of a block.

        O(1).

        Raises:
            InvalidBlockError: The id is outside the pool.
        """
    def free_order(self) -> list[int]:
        """Returns the free blocks in the order in which they will be handed out.

        O(free blocks), for tests and tools.
        """
    def check_invariants(self) -> None:
        """Recounts references and free list from scratch.

        O(blocks), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """

@final
class FreeBlockList:
    """The free blocks of a pool, in the order in which they are handed out.

    An index-linked list: O(1) per block, removal from the middle included. Starts with every block but the
    null block, in ascending order. ``len(free)`` counts the free blocks, ``block_id in free`` asks for one.

    Args:
        num_blocks: Blocks of the pool, null block included. At least 2.

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
        """Takes the next free blocks.

        O(1) per block.

        Raises:
            OutOfBlocksError: Fewer are free.
        """
    def push_front(self, block_id: int) -> None:
        """Frees a block; it will be handed out next.

        O(1).

        Raises:
            InvalidBlockError: The id is unknown, the null block, or a block that is free already.
        """
    def push_back(self, block_id: int) -> None:
        """Frees a block; it will be handed out last.

        O(1).

        Raises:
            InvalidBlockError: The id is unknown, the null block, or a block that is free already.
        """
    def push_front_n(self, block_ids: BlockIds) -> None:
        """Frees blocks, all or none, as if pushed to the front one after the other.

        O(1) per block.

        Raises:
            InvalidBlockError: An id is unknown, the null block, named twice, or a block that is free already.
            ArgumentTypeError: The ids have a type or dtype that is not supported.
        """
    def remove(self, block_id: int) -> None:
        """Takes a block from wherever it is on the list.

        O(1).

        Raises:
            InvalidBlockError: The id is unknown, the null block, or a block that is not free.
        """
    def order(self) -> list[int]:
        """Returns the free blocks in the order in which they will be handed out.

        O(free blocks).
        """
    def check_invariants(self) -> None:
        """Recounts the list from its links.

        O(blocks), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """
    def __contains__(self, block_id: int, /) -> bool: ...
    def __len__(self) -> int: ...

@final
class PrefixIndex:
    """The prefix index: block hash to the blocks that hold this content.

    Several blocks may hold one content: lookups find the oldest computed copy. Knows nothing of reference
    counts. ``block_id in index`` asks whether a block is registered. O(1) per block.

    Args:
        num_blocks: Blocks of the pool, null block included. At least 2.
        block_size: Tokens per block. At least 1.
        verify: One of ``verify_modes()``; chains must come from a hasher with at least this mode.

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
        """Registers a block as one block of a chain, not yet computed; False means a hash collision.

        O(1).

        Args:
            block_id: A block that is not registered.
            chain: Hashes of a prompt.
            position: Which block of the chain, from 0.

        Raises:
            InvalidBlockError: The id is unknown, the null block, or registered already.
            InvalidArgumentError: The chain is too short, or of another block size, algorithm or verification.
        """
    def mark_computed(self, block_id: int) -> None:
        """Says that the KV of a registered block is written: lookups may return it.

        O(1).

        Raises:
            InvalidBlockError: The id is unknown, the null block, or not registered.
        """
    def find(self, chain: _Chain, position: int) -> int | None:
        """Returns a computed block that holds this block of a chain, or None.

        O(1). A collision, and a position behind the chain, are misses.

        Raises:
            InvalidArgumentError: The chain is of another block size, algorithm or verification.
        """
    def remove(self, block_id: int) -> bool:
        """Takes a block out of the index and returns whether it was registered.

        O(1).

        Raises:
            InvalidBlockError: The id does not fit 32 bits.
        """
    def clear(self) -> None:
        """Forgets everything.

        O(blocks).
        """
    def copies(self, chain: _Chain, position: int) -> list[int]:
        """Returns the blocks registered under this hash of a chain, computed ones first.

        O(copies). Computed ones are in the order in which they became so, the others in the order in
        which they were registered. Does not verify, and is empty behind the chain.
        """
    @property
    def num_registered(self) -> int:
        """Blocks that are registered, computed or not."""
    @property
    def num_hashes(self) -> int:
        """Different hashes among the registered blocks."""
    def check_invariants(self) -> None:
        """Recounts the index from scratch.

        O(blocks), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """
    def __contains__(self, block_id: int, /) -> bool: ...

@final
class LruEvictor:
    """The least-recently-used order of cached-free blocks.

    ``len(evictor)`` counts the blocks held, ``block_id in evictor`` asks for one. O(1) per block.

    Args:
        num_blocks: Blocks of the pool, null block included. At least 2.

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
        """Takes blocks that one release made cached-free: pairs of block id and depth in the chain.

        They count as used at the same moment, and the deeper is evicted before the shallower. Blocks held
        already are ignored. O(1) per block if sorted by falling depth, else O(log n).

        Raises:
            InvalidBlockError: An id is unknown, or the null block.
            InvalidArgumentError: A depth is negative.
        """
    def remove(self, block_id: int) -> bool:
        """Gives up one block, because it was hit or dropped, and returns whether it was held.

        O(1).

        Raises:
            InvalidBlockError: The id does not fit 32 bits.
        """
    def evict(self) -> int | None:
        """Gives up the next victim, or returns None if there is none.

        O(1).
        """
    def order(self) -> list[int]:
        """Returns the blocks in the order in which they would be evicted.

        O(blocks held).
        """
    def check_invariants(self) -> None:
        """Recounts the order from its links.

        O(blocks), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """
    def __contains__(self, block_id: int, /) -> bool: ...
    def __len__(self) -> int: ...
