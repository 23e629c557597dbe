"""Aphrodite's block allocators, with the interface of vLLM 0.4: ``allocate_immutable``, ``allocate_mutable``.

The classes are those of ``kvpool.lineage.v0`` under their older names. They also have the newer
methods. The ancestor defined them in several modules; here they are in one.

The differences from the ancestor are those of ``kvpool.lineage.v0.block.naive_block`` and
``prefix_caching_block``, and the following. A number identifies a known defect of the ancestors.

- ``is_block_cached`` returns True for a cached block. The ancestor returned the opposite.
- 5: a block is cached only after ``mark_blocks_as_computed``. An engine calls it without an argument
  once a planned step is certain to run. ``get_common_computed_block_ids`` takes the ids of whole
  tables, and returns blocks that are cached in this sense.
- 7, 24: hashes are SHA-256 chains. If a full block follows a block without a hash, it has no hash
  either.
- 20: ``allocate_immutable`` accepts only the tokens of a full block.
- ``allocate_immutable`` and ``allocate_mutable`` have an optional argument ``extra``: extra keys of the
  prompt, which the ancestor's hash did not cover.
- ``block_size`` is an attribute of both kinds of blocks.
- Tokens that are hashed have to be from 0 to 2**32 - 1. The ancestor accepted any int.
- Cached blocks are evicted in the order in which they were freed, as in the ancestor. If one
  ``swap_out`` frees several blocks, the deepest of them is evicted first.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, ClassVar

from kvpool.lineage._aphrodite_interfaces import BlockAllocator, DeviceAwareBlockAllocator
from kvpool.lineage.errors import ContractError
from kvpool.lineage.v0.block import common, naive_block, prefix_caching_block
from kvpool.lineage.v0.block._allocator import PoolAllocator
from kvpool.lineage.v0.block._handle import check_live
from kvpool.lineage.v0.block._prefix_block import assert_prefix_caching_block_or_none
from kvpool.lineage.v0.block.common import ReadOnlyRefCounter, RefCounter, get_all_blocks_recursively
from kvpool.lineage.v0.block.interfaces import Block, BlockId, Device, PrefixHash

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import kvpool
    from kvpool._core import EvictionPolicy

__all__ = [
    "Block",
    "BlockAllocator",
    "BlockId",
    "CopyOnWriteTracker",
    "Device",
    "DeviceAwareBlockAllocator",
    "NaiveBlock",
    "NaiveBlockAllocator",
    "PrefixCachingBlock",
    "PrefixCachingBlockAllocator",
    "PrefixHash",
    "ReadOnlyRefCounter",
    "RefCounter",
    "assert_prefix_caching_block_or_none",
    "get_all_blocks_recursively",
    "hash_block_tokens",
]


def _by_source(copies: Iterable[tuple[BlockId, BlockId]]) -> dict[BlockId, list[BlockId]]:
    """Groups copies by source, in the ancestor's form: a list of destinations for each source, in order."""
    destinations: dict[BlockId, list[BlockId]] = {}
    for src, dst in copies:
        destinations.setdefault(src, []).append(dst)
    return destinations


class CopyOnWriteTracker:
    """The copies that are planned and have not been executed yet.

    See ``kvpool.lineage.v0.block.common.CopyOnWriteTracker``.

    Args:
        refcounter: The object that reports which blocks are shared.
        allocator: The allocator that copies blocks in ``cow_block_if_not_appendable``, and records
            these copies.
    """

    def __init__(self, refcounter: common.RefCounterProtocol, allocator: PoolAllocator | None = None) -> None:
        self._tracker = common.CopyOnWriteTracker(refcounter)
        self._allocator = allocator

    def is_appendable(self, block: Block) -> bool:
        """Returns whether a block may be written to.

        It may if it has no memory yet, or at most one reference.

        Raises:
            StaleBlockError: The handle was freed.
        """
        return self._tracker.is_appendable(block)

    def cow_block_if_not_appendable(self, block: Block) -> BlockId | None:
        """Makes a handle's block writable, by a copy if the block is shared. Returns the id of the block.

        Returns None if the handle has no memory.

        Raises:
            NoFreeBlocksError: No block is free for a copy. Nothing has changed.
            StaleBlockError: The handle was freed.
            ContractError: The tracker has no allocator.
        """
        if self._allocator is None:
            raise ContractError("a tracker without an allocator copies no block: give it one")
        check_live(block)
        return None if block.block_id is None else self._allocator.cow_block_if_not_appendable(block)

    def record_cow(self, src_block_id: BlockId | None, trg_block_id: BlockId | None) -> None:
        """Records a copy.

        Raises:
            ContractError: An id is None.
        """
        self._tracker.record_cow(src_block_id, trg_block_id)

    def clear_cows(self) -> dict[BlockId, list[BlockId]]:
        """Returns the recorded copies, as destinations by source, and clears the record.

        The allocator's copies come first.
        """
        planned = [] if self._allocator is None else PoolAllocator.clear_copy_on_writes(self._allocator)
        return _by_source([*planned, *self._tracker.clear_cows()])


class _OlderNames(PoolAllocator, BlockAllocator):
    """Adds the older names of an allocator's methods."""

    #: This policy evicts in the order in which blocks were freed, and ignores access times.
    _eviction: ClassVar[EvictionPolicy] = "lru"

    def allocate_immutable(
        self,
        prev_block: Block | None,
        token_ids: Sequence[int],
        device: object = None,
        *,
        extra: kvpool.ExtraKeys | None = None,
    ) -> Block:
        """Returns a full block with these tokens.

        If the allocator caches, the result may be a block that already has this content.

        Args:
            prev_block: The preceding block of the sequence.
            token_ids: The tokens, exactly as many as fill the block.
            device: Must be None.
            extra: Extra keys of the prompt. They must be the same for all blocks of a sequence.

        Raises:
            NoFreeBlocksError: No block is free.
            StaleBlockError: ``prev_block`` was freed.
            ContractError: The tokens do not fill the block, a device is given, or ``prev_block`` is of
                another kind.
        """
        self._check_device(device)
        return self.allocate_immutable_block(prev_block, token_ids, extra)

    def allocate_mutable(
        self, prev_block: Block | None, device: object = None, *, extra: kvpool.ExtraKeys | None = None
    ) -> Block:
        """Returns an empty block that follows ``prev_block``.

        Args:
            prev_block: The preceding block of the sequence.
            device: Must be None.
            extra: Extra keys of the prompt. They must be the same for all blocks of a sequence.

        Raises:
            NoFreeBlocksError: No block is free.
            StaleBlockError: ``prev_block`` was freed.
            ContractError: A device is given, or ``prev_block`` is of another kind.
        """
        self._check_device(device)
        return self.allocate_mutable_block(prev_block, extra)

    def clear_copy_on_writes(self) -> dict[BlockId, list[BlockId]]:  # type: ignore[override]  # older
        """Returns the planned copies, as lists of destinations by source, and unpins their blocks."""
        return _by_source(super().clear_copy_on_writes())

    def mark_blocks_as_computed(self, block_ids: Sequence[BlockId] = ()) -> None:
        """Marks blocks as computed: their KV is written. From now on, they remain cached when they are freed.

        Args:
            block_ids: Ids of full, hashed blocks. If empty, all blocks are marked that were filled
                since the last call and still have references.

        Raises:
            UnknownBlockError: A block does not belong to this allocator.
            BlockStateError: A block is not full and hashed.
        """
        # ``super()`` is the allocator class with which this class is combined.
        super().mark_blocks_as_computed(block_ids)  # type: ignore[safe-super]

    def get_common_computed_block_ids(self, seq_block_ids: Sequence[list[BlockId]]) -> list[BlockId]:
        """Returns the computed blocks at the beginning that all these tables share. A prefill can skip them.

        The last block of a table is never included. A step has to compute at least one token in order
        to get the next token.

        Args:
            seq_block_ids: All block ids of each table. If a table begins with a block that is not
                computed, the result is empty.

        Raises:
            UnknownBlockError: A block does not belong to this allocator.
        """
        computed = [list(takewhile(self._is_computed, ids[:-1])) for ids in seq_block_ids]
        return common.common_prefix(computed)

    def _is_computed(self, block_id: BlockId) -> bool:
        return self._pool.diagnose.is_computed(self._to_core(block_id))


class NaiveBlock(naive_block.NaiveBlock):
    """A block without a content hash. See ``kvpool.lineage.v0.block.naive_block.NaiveBlock``."""


class NaiveBlockAllocator(_OlderNames, naive_block.NaiveBlockAllocator):
    """Allocates blocks. Blocks are shared only by ``fork``.

    Args:
        create_block: The class of the blocks: ``NaiveBlock``, or a class derived from it.
        num_blocks: Number of blocks.
        block_size: Tokens per block.
        block_ids: The ids of the blocks, from 0 by default. The first id is allocated first.

    Raises:
        ContractError: The ids are not ``num_blocks`` different ones, or a number is negative.
    """

    def __init__(
        self,
        create_block: Block.Factory,
        num_blocks: int,
        block_size: int,
        block_ids: Iterable[int] | None = None,
    ) -> None:
        super().__init__(create_block, num_blocks, block_size, block_ids)


class PrefixCachingBlock(prefix_caching_block.PrefixCachingBlock):
    """A block that can be found by its content.

    See ``kvpool.lineage.v0.block.prefix_caching_block.PrefixCachingBlock``.

    Args:
        prev_block: The preceding block of the sequence.
        token_ids: The first tokens of the block.
        block_size: Tokens per block.
        prefix_caching_allocator: The allocator of the block's memory.
        block_id: The id of the block's memory; None if it has none.
        extra_hash: Extra keys that identify the prompt in addition to its tokens.

    Raises:
        ContractError: The allocator or the predecessor is of another kind.
        BlockStateError: The tokens do not fit.
    """

    def __init__(
        self,
        prev_block: Block | None,
        token_ids: Sequence[int],
        block_size: int,
        prefix_caching_allocator: PoolAllocator,
        block_id: int | None = None,
        *,
        extra_hash: int | kvpool.ExtraKeys | None = None,
    ) -> None:
        super().__init__(
            prev_block, token_ids, block_size, prefix_caching_allocator, block_id, False, extra_hash
        )

    def append_token_ids(self, token_ids: Sequence[int]) -> None:
        """Appends at least one token.

        See ``kvpool.lineage.v0.block.prefix_caching_block.PrefixCachingBlock``.

        Raises:
            ContractError: ``token_ids`` is empty. The base class raises the other errors.
        """
        if not token_ids:
            raise ContractError("no tokens to append")
        super().append_token_ids(token_ids)

    @classmethod
    def hash_block_tokens(  # type: ignore[override]  # the ancestor has no extra_hash
        cls,
        is_first_block: bool,
        prev_block_hash: int | None,
        cur_block_token_ids: Sequence[int],
        *,
        extra: kvpool.ExtraKeys | None = None,
    ) -> int:
        """Hashes one full block. See the function ``hash_block_tokens``."""
        return hash_block_tokens(is_first_block, prev_block_hash, cur_block_token_ids, extra=extra)


class PrefixCachingBlockAllocator(_OlderNames, prefix_caching_block.PrefixCachingBlockAllocator):
    """Allocates blocks, and shares full blocks that have the same content.

    Blocks without cached content are allocated first. Then the cached blocks are evicted in the order
    in which they were freed.

    Args:
        num_blocks: Number of blocks.
        block_size: Tokens per block.
        block_ids: The ids of the blocks, from 0 by default. The first id is allocated first.

    Raises:
        ContractError: The ids are not ``num_blocks`` different ones, or a number is negative.

    >>> allocator = PrefixCachingBlockAllocator(num_blocks=4, block_size=2)
    >>> first = allocator.allocate_immutable(None, [1, 2])
    >>> tail = allocator.allocate_mutable(first)
    >>> tail.append_token_ids([3])
    >>> _, fork = allocator.fork(tail)
    >>> fork.append_token_ids([4])
    >>> first.block_id, tail.block_id, fork.block_id, allocator.clear_copy_on_writes()
    (0, 1, 2, {1: [2]})
    """

    _block_type: ClassVar[type[prefix_caching_block.PrefixCachingBlock]] = PrefixCachingBlock

    def __init__(self, num_blocks: int, block_size: int, block_ids: Iterable[int] | None = None) -> None:
        super().__init__(num_blocks, block_size, block_ids)


def hash_block_tokens(
    is_first_block: bool,
    prev_block_hash: int | None,
    cur_block_token_ids: Sequence[int],
    *,
    extra: kvpool.ExtraKeys | None = None,
) -> int:
    """Hashes one full block, together with everything before it.

    Args:
        is_first_block: Whether the block is the first of its sequence.
        prev_block_hash: The hash of the preceding block: the result of this function, or the
            ``content_hash`` of that block.
        cur_block_token_ids: The tokens of the block.
        extra: Extra keys of the prompt. They must be the same for all blocks of a sequence.

    Raises:
        ContractError: A first block has a predecessor, another block has none, or there are no tokens.
        HashingError: The block before has another number of tokens.
        TokenError: A token is out of range.
    """
    return prefix_caching_block.hash_block_tokens(is_first_block, prev_block_hash, cur_block_token_ids, extra)
