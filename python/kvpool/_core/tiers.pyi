"""Pools of several tiers, swaps between them, and plans of copies."""

from collections.abc import Sequence
from typing import Self, TypeAlias, final

from kvpool._core import BlockIds, Duplicates, EvictionPolicy, Fit, VerifyMode
from kvpool._core.pool import BlockPool

__all__ = [
    "Swap",
    "TieredPool",
    "TransferPlan",
]

#: Source and destination of a copy, each a tier and a block.
BlockMove: TypeAlias = tuple[tuple[int, int], tuple[int, int]]

@final
class TieredPool:
    """Several block pools, one per tier, and the planned copies between their blocks.

    Tier 0 is the device. kvpool copies no bytes: a call that needs a copy plans the copy, and ``take_plan``
    returns it for the engine to execute. Until then, the source and the destination of the copy are neither
    freed nor allocated to others. ``bump_epoch`` and ``reset`` of one pool apply to all pools.

    Args:
        num_blocks: The number of blocks of each tier, the null block included.
        block_size: Tokens per block. At least 1.
        verify: As for ``BlockPool``.
        duplicates: As for ``BlockPool``.
        eviction: As for ``BlockPool``.
        event_capacity: As for ``BlockPool``.

    Raises:
        InvalidArgumentError: A setting is out of range, or there is no tier.

    >>> tiers = kvpool.TieredPool([8, 8], block_size=4)
    >>> device, host = tiers.pools
    >>> table = device.allocate(2)
    >>> device.acquire(table)  # a second holder
    >>> tiers.copy_on_write(table[1])  # one of them writes
    3
    >>> swap = tiers.begin_swap([1, 1, 2, 3], src=0, dst=1)  # one entry per reference
    >>> tiers.take_plan().transfers  # to be executed before the step writes; block 3 is still block 2 then
    [((0, 2), (0, 3)), ((0, 1), (1, 1)), ((0, 2), (1, 2)), ((0, 2), (1, 3))]
    >>> swap.complete()
    {1: 1, 2: 2, 3: 3}
    >>> host.ref_count(1)
    2
    """

    def __new__(
        cls,
        num_blocks: Sequence[int],
        block_size: int = 16,
        *,
        verify: VerifyMode = "none",
        duplicates: Duplicates = "keep",
        eviction: EvictionPolicy = "lru",
        event_capacity: int = 0,
    ) -> Self: ...
    @property
    def pools(self) -> tuple[BlockPool, ...]:
        """The pools of the tiers, which share one state and one lock."""
    def copy_on_write(self, block_id: int, *, tier: int = 0, fences: bool = True) -> int:
        """Returns a block to which the caller may write: the block itself, or a planned copy of it.

        Returns the block itself if it has no other reference and no fence, and is not registered. Otherwise
        allocates a new block, plans the copy, and releases the caller's reference to the old block. O(1).

        Args:
            block_id: A block to which the caller has a reference.
            tier: The tier of the block.
            fences: Whether a fence of the block prevents writing to it. Pass False if your fences only have
                to prevent allocation.

        Raises:
            OutOfBlocksError: No block is available for the copy.
            InvalidBlockError: The block has no references, or the id is unknown.
            InvalidArgumentError: The tier does not exist.
        """
    def pending_copies(self) -> list[BlockMove]:
        """Returns the planned copies that ``take_plan`` has not returned yet, in order.

        O(copies).
        """
    def take_plan(self) -> TransferPlan:
        """Returns all planned copies as one plan, and removes them.

        The plan does not contain copies whose destination no longer has references. Execute the plan before
        the step writes to a block, because the sources may be allocated again after this call. O(copies).
        """
    def begin_swap(self, block_ids: BlockIds, *, src: int, dst: int) -> Swap:
        """Begins to move references from one tier to another.

        Pass one entry per reference. If two tables share a block, pass the block twice: it is copied once,
        and shared in the other tier, too. Content that the destination already caches is not copied, and null
        blocks are skipped. ``Swap.complete`` releases the source references. Do not release them before.
        O(blocks).

        Raises:
            OutOfBlocksError: The destination has too few blocks.
            InvalidBlockError: An id is unknown, or is named more often than it has references.
            InvalidArgumentError: A tier does not exist, or both are the same.
        """
    def fit_swap(self, block_ids: BlockIds, *, src: int, dst: int, reserve: int = 0) -> Fit:
        """Returns whether the destination has the blocks for a swap: ok, later or never.

        The swap has to leave ``reserve`` blocks available in the destination. The call changes nothing.
        O(blocks).

        Raises:
            InvalidBlockError: An id is unknown, or is named more often than it has references.
            InvalidArgumentError: A tier does not exist, or both are the same.
        """
    def check_invariants(self) -> None:
        """Recomputes the state of pools, planned copies and swaps, and compares it with the stored state.

        O(blocks).

        Raises:
            InvariantError: An invariant is broken, and the message names it.
        """
    def __len__(self) -> int: ...

@final
class Swap:
    """A swap that has begun. Complete it or abort it.

    ``TieredPool.begin_swap`` returns swaps. ``len(swap)`` is the number of distinct blocks.
    """

    @property
    def mapping(self) -> dict[int, int]:
        """The destination block of each source block, in the order in which source blocks first appear."""
    @property
    def copies(self) -> list[tuple[int, int]]:
        """The pairs of source and destination block whose bytes have to be copied."""
    def complete(self) -> dict[int, int]:
        """Ends the swap after its copies are done. The destination blocks replace the source blocks.

        Releases the source references. Registered blocks are then also registered in the destination, and
        remain cached in the source tier until they are evicted. Returns the mapping. O(blocks).

        Raises:
            SwapError: The swap has ended, or its copies have not been taken with ``take_plan``.
            InvalidBlockError: A source reference was released meanwhile.
        """
    def abort(self) -> None:
        """Aborts the swap.

        Releases the destination blocks and restores the state before the swap began. O(blocks).

        Raises:
            SwapError: The swap has ended.
        """
    def __len__(self) -> int: ...

@final
class TransferPlan:
    """The planned copies between blocks for one step of the engine, as plain data.

    A plan is one simultaneous assignment: every copy reads what its source contained before any copy
    was written. ``len(plan)`` is the number of transfers. Plans with the same transfers are equal.

    Args:
        transfers: Pairs of source and destination, each a pair of tier and block.

    Raises:
        InvalidArgumentError: A block is written twice, or is the null block.

    >>> plan = kvpool.TransferPlan([((0, 1), (0, 2)), ((0, 2), (0, 3))])
    >>> plan.rounds()  # block 2 is read before it is written
    [[((0, 2), (0, 3))], [((0, 1), (0, 2))]]
    """

    def __new__(cls, transfers: Sequence[BlockMove]) -> Self: ...
    @property
    def transfers(self) -> list[BlockMove]:
        """The transfers in the order in which they were planned."""
    def rounds(self, scratch: Sequence[tuple[int, int]] | None = None) -> list[list[BlockMove]]:
        """Splits the plan into rounds that are executed one after the other.

        No copy of a round reads a block that the round writes. So the copies of a round can run in any
        order, or all at once. O(n log n).

        Args:
            scratch: Blocks whose content may be overwritten. A cycle of copies needs one of them, for
                instance two blocks that are exchanged.

        Raises:
            InvalidArgumentError: There are too few scratch blocks, or the plan uses one of them.
        """
    def runs(
        self, scratch: Sequence[tuple[int, int]] | None = None
    ) -> list[list[tuple[tuple[int, int], tuple[int, int], int]]]:
        """Returns rounds in which copies of consecutive blocks are merged.

        A merged copy is a triple of first source, first destination and number of blocks.

        O(n log n).

        Args:
            scratch: As for ``rounds``.

        Raises:
            InvalidArgumentError: As for ``rounds``.
        """
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
