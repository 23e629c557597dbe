"""One pool per tier, swaps between them, and plans of what is copied."""

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
    """Several pools, one per tier, and the copies between their blocks.

    Tier 0 is the device. A copy is planned by the call that makes it necessary; its source and
    destination are pinned, neither freed nor handed out, until ``take_plan`` has handed the copy out.
    ``bump_epoch`` and ``reset`` of one pool apply to all.

    Args:
        num_blocks: Blocks per tier, null block included.
        block_size: Tokens per block. At least 1.
        verify: As in ``BlockPool``.
        duplicates: As in ``BlockPool``.
        eviction: As in ``BlockPool``.
        event_capacity: As in ``BlockPool``.

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
        """The tiers' pools, over the same state and lock."""
    def copy_on_write(self, block_id: int, *, tier: int = 0, fences: bool = True) -> int:
        """Returns the block that a holder of this one may write to: itself, or a copy that is planned.

        Returns the block itself if nobody else holds it, no fence is on it, and it is not registered.
        Otherwise returns a new block and drops the caller's reference to the old one. O(1).

        Args:
            block_id: A block that the caller holds.
            tier: Its tier.
            fences: Whether a fence forbids writing. Pass False if your fences only keep blocks from
                being handed out.

        Raises:
            OutOfBlocksError: There is no block for the copy.
            InvalidBlockError: Nobody holds the block, or the id is unknown.
            InvalidArgumentError: There is no such tier.
        """
    def pending_copies(self) -> list[BlockMove]:
        """Returns the copies that are planned and not yet handed out, in order.

        O(copies).
        """
    def take_plan(self) -> TransferPlan:
        """Hands out all planned copies as one plan.

        Leaves out copies whose destination nobody holds any more. Execute the plan before the step
        writes to a block: from now on its sources may be freed and handed out. O(copies).
        """
    def begin_swap(self, block_ids: BlockIds, *, src: int, dst: int) -> Swap:
        """Begins to move references from one tier to another.

        One entry per reference: a block that two tables share is named twice, moves once and is shared
        there too. Content that the destination caches is not copied; null blocks are skipped. The
        source references stay until ``Swap.complete``, and must not be released before. O(blocks).

        Raises:
            OutOfBlocksError: The destination has too few blocks.
            InvalidBlockError: An id is unknown, or named more often than it has holders.
            InvalidArgumentError: There is no such tier, or both are one.
        """
    def fit_swap(self, block_ids: BlockIds, *, src: int, dst: int, reserve: int = 0) -> Fit:
        """Says whether a swap would find its blocks: ok, later or never.

        Leaves ``reserve`` blocks in the destination. Changes nothing. O(blocks).

        Raises:
            InvalidBlockError: An id is unknown, or named more often than it has holders.
            InvalidArgumentError: There is no such tier, or both are one.
        """
    def check_invariants(self) -> None:
        """Recounts pools, planned copies and swaps from scratch.

        O(blocks).

        Raises:
            InvariantError: One is broken; the message names it.
        """
    def __len__(self) -> int: ...

@final
class Swap:
    """A swap: begun, and to be completed or aborted.

    Comes from ``TieredPool.begin_swap``. ``len(swap)`` is the number of distinct blocks.
    """

    @property
    def mapping(self) -> dict[int, int]:
        """Source block -> destination block, in order of first appearance."""
    @property
    def copies(self) -> list[tuple[int, int]]:
        """The pairs of the mapping whose bytes have to be copied."""
    def complete(self) -> dict[int, int]:
        """Ends the swap after its copies are done: the destination blocks take over.

        Drops the source references. Registered blocks become registered in the destination, and stay
        cached in the source until evicted. Returns the mapping. O(blocks).

        Raises:
            SwapError: It is over, or its copies have not been taken with ``take_plan``.
            InvalidBlockError: A source reference was released meanwhile.
        """
    def abort(self) -> None:
        """Aborts the swap.

        Releases the destination blocks and leaves everything as it was before the swap began. O(blocks).

        Raises:
            SwapError: It is over.
        """
    def __len__(self) -> int: ...

@final
class TransferPlan:
    """Copies of one step, as plain data.

    A plan is one simultaneous assignment: every copy reads what its source held before any copy was written.
    ``len(plan)`` is the number of transfers. Plans with the same transfers are equal.

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

        Within a round nothing is read that the round writes: any order, or all at once. O(n log n).

        Args:
            scratch: Blocks whose content may be lost, one for each cycle of the plan.

        Raises:
            InvalidArgumentError: Too few scratch blocks, or one that the plan uses.
        """
    def runs(
        self, scratch: Sequence[tuple[int, int]] | None = None
    ) -> list[list[tuple[tuple[int, int], tuple[int, int], int]]]:
        """The rounds, with consecutive blocks merged: source, destination, length.

        O(n log n).

        Args:
            scratch: As in ``rounds``.

        Raises:
            InvalidArgumentError: As in ``rounds``.
        """
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
