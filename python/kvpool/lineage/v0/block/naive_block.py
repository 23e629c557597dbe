"""vLLM v0's allocator without a prefix cache, and its block.

Differences from the ancestor, vLLM v0 (a number identifies a known defect of the ancestors):

- 3, 11: ``fork`` walks a chain of any length, and handles are never recycled, so a chain cannot become
  a cycle.
- 8: a shared block is copied before tokens are appended. If no block is free for the copy, nothing has
  changed.
- 9, 10: ``swap_in`` takes either all blocks or none, and handles that shared a block share one again.
- 12: ``get_num_full_blocks_touched`` counts physical blocks, not handles.
- 13: ``allocate_immutable_blocks`` takes either all blocks or none.
- 14: a freed handle remains invalid: ``block_id`` is None, and all other uses raise
  ``StaleBlockError``.
- 18: the source and the destination of a copy remain pinned until ``clear_copy_on_writes``.
- 19: ``get_physical_block_id`` is O(1).
- 20: immutable blocks are always full.
- ``block_ids`` may be any iterable, which is read once. Assertions are replaced by typed errors that
  derive from ``AssertionError``.
- ``refcounter`` is a view, because only handles hold references. ``token_ids`` is a copy.
"""

# ruff: noqa: ARG002  # unused arguments belong to the ancestor's signatures

from __future__ import annotations

from typing import TYPE_CHECKING

from kvpool.lineage.errors import ContractError, NotSupportedError
from kvpool.lineage.v0.block._allocator import PoolAllocator
from kvpool.lineage.v0.block._handle import TokenBlock, check_live
from kvpool.lineage.v0.block.common import BlockPool

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import NoReturn

    import kvpool
    from kvpool.lineage.v0.block.interfaces import Block, BlockAllocator, BlockId, ExtraHash

__all__ = ["BlockPool", "NaiveBlock", "NaiveBlockAllocator"]


class NaiveBlockAllocator(PoolAllocator):
    """Allocates blocks. Blocks are shared only by ``fork``.

    The block that was freed last is allocated next.

    Args:
        create_block: The class of the blocks: ``NaiveBlock``, or a class derived from it.
        num_blocks: Number of blocks.
        block_size: Tokens per block.
        block_ids: The ids of the blocks, from 0 by default. The first id is allocated first.
        block_pool: The object that makes the handles. Several allocators can share one.

    Raises:
        ContractError: The ids are not ``num_blocks`` different ones, or a number is negative.

    >>> allocator = NaiveBlockAllocator(NaiveBlock, num_blocks=4, block_size=2)
    >>> block = allocator.allocate_mutable_block(None)
    >>> block.append_token_ids([7])
    >>> twin, = allocator.fork(block)
    >>> twin.append_token_ids([8])  # shared: a copy is made
    >>> block.block_id, twin.block_id, allocator.clear_copy_on_writes()
    (0, 1, [(0, 1)])
    """

    def __init__(
        self,
        create_block: Block.Factory,
        num_blocks: int,
        block_size: int,
        block_ids: Iterable[int] | None = None,
        block_pool: BlockPool | None = None,
        *,
        _tier: tuple[kvpool.TieredPool, int] | None = None,
    ) -> None:
        super().__init__(num_blocks, block_size, block_ids, _tier)
        if block_pool is None:
            block_pool = BlockPool(block_size, create_block, self, 4 * max(num_blocks, 1))
        self._block_pool = block_pool

    def allocate_mutable_block(
        self, prev_block: Block | None, extra_hash: ExtraHash = None, device: object = None
    ) -> Block:
        """Returns an empty block that follows ``prev_block``.

        Raises:
            NoFreeBlocksError: No block is free.
            StaleBlockError: ``prev_block`` was freed.
            ContractError: A device is given.
        """
        return self._allocate_blocks(prev_block, [[]], device)[0]

    def allocate_immutable_block(
        self,
        prev_block: Block | None,
        token_ids: Sequence[int],
        extra_hash: ExtraHash = None,
        device: object = None,
    ) -> Block:
        """Returns a full block with these tokens.

        Raises:
            NoFreeBlocksError: No block is free.
            StaleBlockError: ``prev_block`` was freed.
            ContractError: The tokens do not fill the block, or a device is given.
        """
        return self.allocate_immutable_blocks(prev_block, [token_ids], extra_hash, device)[0]

    def allocate_immutable_blocks(
        self,
        prev_block: Block | None,
        block_token_ids: Sequence[Sequence[int]],
        extra_hash: ExtraHash = None,
        device: object = None,
    ) -> list[Block]:
        """Returns one full block per chunk of tokens, each after the one before it. All or nothing.

        Raises:
            NoFreeBlocksError: Too few blocks are free.
            StaleBlockError: ``prev_block`` was freed.
            ContractError: A chunk does not fill its block, or a device is given.
        """
        for token_ids in block_token_ids:
            if len(token_ids) != self._block_size:
                raise ContractError(f"an immutable block has {self._block_size} tokens, not {len(token_ids)}")
        return self._allocate_blocks(prev_block, block_token_ids, device)

    def _allocate_blocks(
        self, prev_block: Block | None, block_token_ids: Sequence[Sequence[int]], device: object
    ) -> list[Block]:
        self._check_device(device)
        if prev_block is not None:
            check_live(prev_block)
        cores = self._allocate(len(block_token_ids))
        blocks: list[Block] = []
        try:
            for core, token_ids in zip(cores, block_token_ids, strict=True):
                block_id = self._to_face(core)
                prev_block = self._block_pool.init_block(prev_block, token_ids, self._block_size, block_id)
                blocks.append(prev_block)
        except BaseException:
            self._pool.release(cores, tail_first=True)
            raise
        return blocks

    def free_block_id(self, block_id: BlockId) -> None:
        """Drops one reference to a block, given by its id.

        Use it for references without a handle. To release a handle, use ``free``.

        Raises:
            UnknownBlockError: The id does not belong to this allocator.
            InvalidBlockError: The block has no references.
        """
        self._pool.release([self._to_core(block_id)])

    def promote_to_immutable_block(self, block: Block) -> BlockId:
        """Always raises, because this allocator does not cache.

        Raises:
            NotSupportedError: Always.
        """
        raise NotSupportedError("There is no promotion for naive blocks")

    def mark_blocks_as_accessed(self, block_ids: Sequence[int], now: float) -> None:
        """Does nothing, because no block is ever evicted."""

    def mark_blocks_as_computed(self, block_ids: Sequence[int]) -> None:
        """Does nothing, because nothing reads whether a block is computed."""

    def get_common_computed_block_ids(self, computed_seq_block_ids: Sequence[list[int]]) -> list[int]:
        """Returns an empty list, because this allocator does not cache."""
        return []

    def find_cached_blocks_prefix(self, block_hashes: list[int]) -> list[int]:
        """Returns an empty list, because this allocator does not cache."""
        return []

    def get_num_full_blocks_touched(self, blocks: Sequence[Block]) -> int:
        """Returns how many different physical blocks the full blocks among these would take.

        Raises:
            StaleBlockError: A block was freed.
        """
        return len(
            {("handle", id(b)) if b.block_id is None else ("id", b.block_id) for b in blocks if b.is_full}
        )

    def get_prefix_cache_hit_rate(self) -> float:
        """Returns -1, because this allocator does not cache."""
        return -1

    def reset_prefix_cache(self) -> bool:
        """Returns True, because there is no cached content."""
        return True


class NaiveBlock(TokenBlock):
    """A block without a content hash.

    Args:
        prev_block: The preceding block of the sequence.
        token_ids: The first tokens of the block.
        block_size: Tokens per block.
        allocator: The allocator of the block's memory.
        block_id: The id of the block's memory; None if it has none.
        _cow_target: The handle that is passed to the allocator for copy-on-write. By default, the block
            itself.
        extra_hash: Ignored.

    Raises:
        BlockStateError: The tokens do not fit.
    """

    def __init__(
        self,
        prev_block: Block | None,
        token_ids: Sequence[int],
        block_size: int,
        allocator: BlockAllocator,
        block_id: int | None = None,
        _cow_target: Block | None = None,
        extra_hash: ExtraHash = None,
    ) -> None:
        super().__init__(prev_block, token_ids, block_size, allocator, block_id)
        self._cow_target: Block = self if _cow_target is None else _cow_target

    def append_token_ids(self, token_ids: Sequence[int]) -> None:
        """Appends tokens. A shared block is copied first, and ``block_id`` becomes that of the copy.

        Raises:
            NoFreeBlocksError: The block is shared and no block is free for a copy; nothing has changed.
            BlockStateError: The tokens do not fit.
            StaleBlockError: The block was freed.
        """
        if not self._live or len(token_ids) > self._block_size - len(self._token_ids):
            self._refuse(token_ids)
        if type(token_ids) is not list:  # unreadable tokens fail before anything has changed
            token_ids = list(token_ids)
        if self._block_id is not None:
            self._block_id = self._allocator.cow_block_if_not_appendable(self._cow_target)
        self._token_ids.extend(token_ids)

    def _unsupported(self, what: str) -> NoReturn:
        raise NotSupportedError(f"{what} is not known of naive blocks")

    @property
    def num_tokens_total(self) -> int:
        """Always raises, because a block without prefix caching does not have this property.

        Raises:
            NotSupportedError: Always.
        """
        self._unsupported("num_tokens_total")

    @property
    def computed(self) -> bool:
        """Always raises when read or set, because a block without a hash does not have it.

        Raises:
            NotSupportedError: Always.
        """
        self._unsupported("computed")

    @computed.setter
    def computed(self, value: bool) -> None:
        self._unsupported("computed")

    @property
    def last_accessed(self) -> float:
        """Always raises when read or set, because a block without a hash does not have it.

        Raises:
            NotSupportedError: Always.
        """
        self._unsupported("last_accessed")

    @last_accessed.setter
    def last_accessed(self, last_accessed_ts: float) -> None:
        self._unsupported("last_accessed")

    @property
    def extra_hash(self) -> ExtraHash:
        """Always None."""
        return None

    @property
    def content_hash(self) -> int | None:
        """Always None."""
        return None
