"""Aphrodite's block allocators, which are those of vLLM 0.4: ``allocate_immutable``, ``allocate_mutable``.

The classes are those of ``kvpool.lineage.v0`` under the older names; the newer ones are there, too.
What the ancestor took from several modules is found here together.

Differences from the ancestor, beside those of ``kvpool.lineage.v0.block.naive_block`` and
``prefix_caching_block``:

- ``is_block_cached`` says True for a block that is cached; the ancestor's said the opposite.
- 5: a block is cached from ``mark_blocks_as_computed`` on, which an engine calls, without an argument,
  once what is planned is sure to run. ``get_common_computed_block_ids`` is given the ids of whole
  tables, and finds these blocks.
- 7, 24: hashes are SHA-256 chains, and a full block behind an unhashed one has none.
- 20: ``allocate_immutable`` takes full blocks alone.
- ``allocate_immutable`` and ``allocate_mutable`` take an optional ``extra``: what identifies the prompt
  beside its tokens, which the ancestor's hash left out.
- ``block_size`` is an attribute of both kinds of blocks.
- Tokens are from 0 to 2**32 - 1 where they are hashed; the ancestor took any int.
- Cached blocks are evicted in the order in which they were given up, as there; of blocks that
  ``swap_out`` gives up together the deepest goes first.
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
    """Copies in the shape of the ancestor: the destinations of each source, in order."""
    destinations: dict[BlockId, list[BlockId]] = {}
    for src, dst in copies:
        destinations.setdefault(src, []).append(dst)
    return destinations


class CopyOnWriteTracker:
    """Copies that were decided and not executed yet; see
    ``kvpool.lineage.v0.block.common.CopyOnWriteTracker``.

    Args:
        refcounter: Says which blocks are shared.
        allocator: Whose blocks are copied by ``cow_block_if_not_appendable``: those copies are the
            allocator's own.
    """

    def __init__(self, refcounter: common.RefCounterProtocol, allocator: PoolAllocator | None = None) -> None:
        self._tracker = common.CopyOnWriteTracker(refcounter)
        self._allocator = allocator

    def is_appendable(self, block: Block) -> bool:
        """Says whether a block may be written to: it has no memory yet, or one holder at most.

        Raises:
            StaleBlockError: The handle was freed.
        """
        return self._tracker.is_appendable(block)

    def cow_block_if_not_appendable(self, block: Block) -> BlockId | None:
        """Returns the id of a block that may be written to, and points the handle to it; None if it has
        no memory.

        Raises:
            NoFreeBlocksError: No block is free for a copy; nothing has changed.
            StaleBlockError: The handle was freed.
            ContractError: The tracker was made without an allocator.
        """
        if self._allocator is None:
            raise ContractError("a tracker without an allocator copies no block: give it one")
        check_live(block)
        return None if block.block_id is None else self._allocator.cow_block_if_not_appendable(block)

    def record_cow(self, src_block_id: BlockId | None, trg_block_id: BlockId | None) -> None:
        """Notes a copy.

        Raises:
            ContractError: An id is None.
        """
        self._tracker.record_cow(src_block_id, trg_block_id)

    def clear_cows(self) -> dict[BlockId, list[BlockId]]:
        """Returns the destinations of each source, those of the allocator first, and forgets them."""
        planned = [] if self._allocator is None else PoolAllocator.clear_copy_on_writes(self._allocator)
        return _by_source([*planned, *self._tracker.clear_cows()])


class _OlderNames(PoolAllocator, BlockAllocator):
    """The older names of what an allocator does."""

    #: Insertion order of what is given up, without access times.
    _eviction: ClassVar[EvictionPolicy] = "lru"

    def allocate_immutable(
        self,
        prev_block: Block | None,
        token_ids: Sequence[int],
        device: object = None,
        *,
        extra: kvpool.ExtraKeys | None = None,
    ) -> Block:
        """Returns a full block with these tokens; one that holds this content already, if the allocator
        caches.

        Args:
            prev_block: The block before it in the sequence.
            token_ids: As many as fill the block.
            device: None.
            extra: What identifies the prompt beside its tokens; the same for all blocks of a sequence.

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
        """Returns an empty block behind ``prev_block``.

        Args:
            prev_block: The block before it in the sequence.
            device: None.
            extra: What identifies the prompt beside its tokens; the same for all blocks of a sequence.

        Raises:
            NoFreeBlocksError: No block is free.
            StaleBlockError: ``prev_block`` was freed.
            ContractError: A device is given, or ``prev_block`` is of another kind.
        """
        self._check_device(device)
        return self.allocate_mutable_block(prev_block, extra)

    def clear_copy_on_writes(self) -> dict[BlockId, list[BlockId]]:  # type: ignore[override]  # the older shape
        """Returns the destinations of each planned copy's source, and ends the copies' pins."""
        return _by_source(super().clear_copy_on_writes())

    def mark_blocks_as_computed(self, block_ids: Sequence[BlockId] = ()) -> None:
        """Says that the KV of blocks is written: they stay cached when they are freed.

        Args:
            block_ids: Full, hashed blocks. None at all: those that were filled since the last call and
                are still held.

        Raises:
            UnknownBlockError: A block is none of this allocator's.
            BlockStateError: A block is not full and hashed.
        """
        super().mark_blocks_as_computed(block_ids)  # type: ignore[safe-super]  # that of the allocator it is mixed into

    def get_common_computed_block_ids(self, seq_block_ids: Sequence[list[BlockId]]) -> list[BlockId]:
        """Returns the blocks that all these tables begin with and that are computed: what a prefill can skip.

        The last block of a table is never among them: a step of no token computes nothing, not even the
        next token.

        Args:
            seq_block_ids: All ids of each table. One with nothing computed leaves nothing in common.

        Raises:
            UnknownBlockError: A block is none of this allocator's.
        """
        computed = [list(takewhile(self._is_computed, ids[:-1])) for ids in seq_block_ids]
        return common.common_prefix(computed)

    def _is_computed(self, block_id: BlockId) -> bool:
        return self._pool.is_computed(self._to_core(block_id))


class NaiveBlock(naive_block.NaiveBlock):
    """A block that is told apart by its id alone: see ``kvpool.lineage.v0.block.naive_block.NaiveBlock``."""


class NaiveBlockAllocator(_OlderNames, naive_block.NaiveBlockAllocator):
    """Allocates blocks and shares them by ``fork`` only.

    Args:
        create_block: Makes blocks: ``NaiveBlock``, or a class derived from it.
        num_blocks: How many blocks there are.
        block_size: Tokens per block.
        block_ids: Their ids; from 0 by default. The first is allocated first.

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
    """A block that is found by its content: see
    ``kvpool.lineage.v0.block.prefix_caching_block.PrefixCachingBlock``.

    Args:
        prev_block: The block before it in the sequence.
        token_ids: Its first tokens.
        block_size: Tokens per block.
        prefix_caching_allocator: The allocator of its memory.
        block_id: Its memory.
        extra_hash: What identifies the prompt beside its tokens.

    Raises:
        ContractError: Allocator or predecessor are of another kind.
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
        """Appends at least one token: see
        ``kvpool.lineage.v0.block.prefix_caching_block.PrefixCachingBlock``.

        Raises:
            ContractError: There are none. The others are those of the base.
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
        """Hashes one full block: see the function."""
        return hash_block_tokens(is_first_block, prev_block_hash, cur_block_token_ids, extra=extra)


class PrefixCachingBlockAllocator(_OlderNames, prefix_caching_block.PrefixCachingBlockAllocator):
    """Allocates blocks and shares full ones by their content.

    Blocks that nothing is cached in are handed out first, then the cached block that was given up
    longest ago.

    Args:
        num_blocks: How many blocks there are.
        block_size: Tokens per block.
        block_ids: Their ids; from 0 by default. The first is allocated first.

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
    """Hashes one full block and everything before it.

    Args:
        is_first_block: Whether it is the first of its sequence.
        prev_block_hash: What this function returned for the block before, or its ``content_hash``.
        cur_block_token_ids: The tokens.
        extra: What identifies the prompt beside its tokens; the same for all blocks of a sequence.

    Raises:
        ContractError: A first block with a predecessor, another one without, or no tokens.
        HashingError: The block before has another number of tokens.
        TokenError: A token is out of range.
    """
    return prefix_caching_block.hash_block_tokens(is_first_block, prev_block_hash, cur_block_token_ids, extra)
