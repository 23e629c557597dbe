"""Parts of vLLM v0's allocators: reference counts, pending copies, handles, block lists, hit rates.

The allocators of this package do not use these reference counts and copies, because the core has its
own. The classes are for code that uses them separately. ``RefCounter`` is based on
``kvpool.parts.BlockAllocator``.

Differences from the ancestor, vLLM v0 (a number identifies a known defect of the ancestors):

- 3: ``get_all_blocks_recursively`` is a loop, so a chain may have any length.
- 11, 14: ``BlockPool`` makes a new handle each time, and reuses only the numbers of handles. A freed
  handle therefore remains invalid, and never becomes a handle on another block. The tokens of a freed
  handle are dropped.
- Assertions are replaced by typed errors that derive from ``AssertionError``.
- ``RefCounter`` has no state in Python. ``CacheMetricData`` counts hits as integers, so its sums are
  exact.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

import kvpool
from kvpool.lineage.errors import BlockStateError, ContractError, UnknownBlockError
from kvpool.lineage.v0.block._handle import check_live, retire
from kvpool.lineage.v0.block._metric_data import CacheMetricData

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvpool.lineage.v0.block.interfaces import Block, BlockAllocator, BlockId, ExtraHash

__all__ = [
    "BlockList",
    "BlockPool",
    "CacheMetricData",
    "CopyOnWriteTracker",
    "ReadOnlyRefCounter",
    "RefCounter",
    "RefCounterProtocol",
    "get_all_blocks_recursively",
]


class RefCounterProtocol(Protocol):
    """Counts the references to blocks, by block id."""

    def incr(self, block_id: BlockId) -> int:
        """Adds a reference. Returns the new number of references."""

    def decr(self, block_id: BlockId) -> int:
        """Drops a reference. Returns the new number of references."""

    def get(self, block_id: BlockId) -> int:
        """Returns the number of references."""


class RefCounter:
    """The reference counts of a set of blocks. All counts are 0 at first.

    Args:
        all_block_indices: The ids of the blocks. The iterable is read once.

    >>> counter = RefCounter([4, 5])
    >>> counter.incr(5), counter.incr(5), counter.decr(5), counter.get(4)
    (1, 2, 1, 0)
    """

    def __init__(self, all_block_indices: Iterable[BlockId]) -> None:
        self._slots = {block_id: slot for slot, block_id in enumerate(dict.fromkeys(all_block_indices), 1)}
        # In the core, each block has one reference more than this object reports. So a block with the
        # reported count 0 is not free, and its id cannot be allocated.
        self._counts = kvpool.parts.BlockAllocator(max(len(self._slots), 1) + 1)
        self._counts.allocate(len(self._slots))

    def _slot(self, block_id: BlockId) -> int:
        slot = self._slots.get(block_id)
        if slot is None:
            raise UnknownBlockError(f"block {block_id} is none of the {len(self._slots)} blocks counted here")
        return slot

    def incr(self, block_id: BlockId) -> int:
        """Adds a reference. Returns the new number of references.

        Raises:
            UnknownBlockError: The id is not counted here.
        """
        slot = self._slot(block_id)
        self._counts.acquire([slot])
        return self._counts.ref_count(slot) - 1

    def decr(self, block_id: BlockId) -> int:
        """Drops a reference. Returns the new number of references.

        Raises:
            UnknownBlockError: The id is not counted here.
            BlockStateError: The block has no reference.
        """
        slot = self._slot(block_id)
        if self._counts.ref_count(slot) == 1:
            raise BlockStateError(f"block {block_id} has no reference to drop")
        self._counts.release([slot])
        return self._counts.ref_count(slot) - 1

    def get(self, block_id: BlockId) -> int:
        """Returns the number of references.

        Raises:
            UnknownBlockError: The id is not counted here.
        """
        return self._counts.ref_count(self._slot(block_id)) - 1

    def as_readonly(self) -> ReadOnlyRefCounter:
        """Returns a view that cannot change the counts."""
        return ReadOnlyRefCounter(self)


class _Counted(Protocol):
    def get(self, block_id: BlockId) -> int:
        """Returns the number of references."""


class ReadOnlyRefCounter:
    """A read-only view of the reference counts of a ``RefCounter`` or of an allocator.

    Args:
        refcounter: The object that counts the references.
    """

    def __init__(self, refcounter: _Counted) -> None:
        self._refcounter = refcounter

    def incr(self, block_id: BlockId) -> int:
        """Always raises, because this view cannot change the counts.

        Raises:
            ContractError: Always. The error is also a ``ValueError``.
        """
        raise ContractError(f"Incr not allowed: block {block_id} is counted elsewhere")

    def decr(self, block_id: BlockId) -> int:
        """Always raises, because this view cannot change the counts.

        Raises:
            ContractError: Always. The error is also a ``ValueError``.
        """
        raise ContractError(f"Decr not allowed: block {block_id} is counted elsewhere")

    def get(self, block_id: BlockId) -> int:
        """Returns the number of references.

        Raises:
            UnknownBlockError: The id is not counted here.
        """
        return self._refcounter.get(block_id)


class CopyOnWriteTracker:
    """The copies that are planned and have not been executed yet.

    The allocators of this package plan their copies in the core instead. There, the source and the
    destination remain pinned until the copies are taken.

    Args:
        refcounter: The object that reports which blocks are shared.
    """

    def __init__(self, refcounter: RefCounterProtocol) -> None:
        self._refcounter = refcounter
        self._copies: list[tuple[BlockId, BlockId]] = []

    def is_appendable(self, block: Block) -> bool:
        """Returns whether a block may be written to.

        It may if it has no memory yet, or at most one reference.

        Raises:
            StaleBlockError: The handle was freed.
        """
        check_live(block)
        block_id = block.block_id
        return block_id is None or self._refcounter.get(block_id) <= 1

    def record_cow(self, src_block_id: BlockId | None, trg_block_id: BlockId | None) -> None:
        """Records a copy.

        Raises:
            ContractError: An id is None.
        """
        if src_block_id is None or trg_block_id is None:
            raise ContractError(f"a copy from {src_block_id} to {trg_block_id}: both ids are needed")
        self._copies.append((src_block_id, trg_block_id))

    def clear_cows(self) -> list[tuple[BlockId, BlockId]]:
        """Returns the copies in the order in which they were recorded, and clears the record."""
        copies, self._copies = self._copies, []
        return copies


class BlockPool:
    """Makes and numbers the handles of an allocator.

    Args:
        block_size: Tokens per block.
        create_block: A function that makes a block.
        allocator: The allocator to which the blocks belong.
        pool_size: The initial number of handle numbers. It is doubled when necessary.

    Raises:
        ContractError: ``pool_size`` is negative.
    """

    def __init__(
        self, block_size: int, create_block: Block.Factory, allocator: BlockAllocator, pool_size: int
    ) -> None:
        if pool_size < 0:
            raise ContractError(f"a pool of {pool_size} handles")
        self._block_size = block_size
        self._create_block = create_block
        self._allocator = allocator
        self._pool_size = pool_size
        self._unused: list[int] = []  # numbers that were returned, the last one first
        self._next = 0

    @property
    def pool_size(self) -> int:
        """The number of handles that the pool can number before it has to double its size."""
        return self._pool_size

    def increase_pool(self) -> None:
        """Doubles the number of handle numbers.

        Raises:
            ContractError: The pool was made for zero handles.
        """
        if self._pool_size == 0:
            raise ContractError("a pool of no handles cannot be doubled")
        self._pool_size *= 2

    def init_block(
        self,
        prev_block: Block | None,
        token_ids: Sequence[int],
        block_size: int,
        physical_block_id: BlockId | None,
        extra_hash: ExtraHash = None,
    ) -> Block:
        """Returns a new handle, with its number in ``pool_id``.

        Raises:
            ContractError: The pool was made for another block size, or for zero handles.
        """
        if block_size != self._block_size:
            raise ContractError(f"a block of {block_size} tokens from a pool of blocks of {self._block_size}")
        if not self._unused and self._next == self._pool_size:
            self.increase_pool()
        # ``extra_hash`` is passed only if it is set, because block classes of older ancestors do not
        # have the parameter.
        extra = {} if extra_hash is None else {"extra_hash": extra_hash}
        block = self._create_block(
            prev_block, token_ids, block_size, self._allocator, physical_block_id, **extra
        )
        if self._unused:
            pool_id = self._unused.pop()
        else:
            pool_id, self._next = self._next, self._next + 1
        block.pool_id = pool_id  # type: ignore[attr-defined]  # as in the ancestor: not part of the interface
        return block

    def free_block(self, block: Block) -> None:
        """Takes back a handle. Every further use of the handle raises an error.

        Raises:
            StaleBlockError: It was taken back before.
        """
        check_live(block)
        retire(block)
        pool_id: int | None = getattr(block, "pool_id", None)
        if pool_id is not None:
            self._unused.append(pool_id)


class BlockList:
    """The blocks of a sequence, and the list of their ids.

    ``list()`` and ``ids()`` return the object's own lists, so that engines can use them without a copy.

    Args:
        blocks: The initial blocks.

    Raises:
        BlockStateError: A block has no id.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks: list[Block] = []
        self._block_ids: list[BlockId] = []
        self.update(blocks)

    @staticmethod
    def _id_of(block: Block) -> BlockId:
        block_id = block.block_id
        if block_id is None:
            raise BlockStateError("a block without an id cannot be in a block list")
        return block_id

    def update(self, blocks: Sequence[Block]) -> None:
        """Replaces all blocks.

        Raises:
            BlockStateError: A block has no id.
        """
        block_ids = [self._id_of(block) for block in blocks]
        self._blocks, self._block_ids = list(blocks), block_ids

    def append_token_ids(self, block_index: int, token_ids: Sequence[int]) -> None:
        """Appends tokens to one block. This may change its id.

        Raises:
            NoFreeBlocksError: The block is shared, and no block is free for a copy.
            BlockStateError: The tokens do not fit, or the block is immutable.
        """
        block = self._blocks[block_index]
        block.append_token_ids(token_ids)
        self._block_ids[block_index] = block.block_id or self._id_of(block)

    def append(self, new_block: Block) -> None:
        """Adds a block at the end.

        Raises:
            BlockStateError: The block has no id.
        """
        block_id = self._id_of(new_block)
        self._blocks.append(new_block)
        self._block_ids.append(block_id)

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, block_index: int) -> Block:
        return self._blocks[block_index]

    def __setitem__(self, block_index: int, new_block: Block) -> None:
        block_id = self._id_of(new_block)
        self._blocks[block_index] = new_block
        self._block_ids[block_index] = block_id

    def reset(self) -> None:
        """Removes all blocks."""
        self._blocks, self._block_ids = [], []

    def list(self) -> list[Block]:
        """Returns the object's own list of blocks, which later calls change."""
        return self._blocks

    def ids(self) -> list[BlockId]:  # type: ignore[valid-type]  # list is the method above
        """Returns the object's own list of ids, which later calls change."""
        return self._block_ids


def common_prefix(lists: Sequence[list[BlockId]]) -> list[BlockId]:
    """Returns the common prefix of all lists; an empty list if there are no lists."""
    columns = zip(*lists, strict=False)
    return [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]


def get_all_blocks_recursively(last_block: Block) -> list[Block]:
    """Returns the blocks of a chain, first to last. O(blocks), without recursion.

    Raises:
        StaleBlockError: A block of the chain was freed.
    """
    chain: list[Block] = []
    block: Block | None = last_block
    while block is not None:
        check_live(block)
        chain.append(block)
        block = block.prev_block
    chain.reverse()
    return chain
