"""CacheFlow's blocks (ancestor 003): handles with reference counts, and the allocator of one device.

This module also defines the interfaces of the engine's sequences and groups.

It owns the handles and the numbers of blocks. CacheFlow allocates the highest number first. Therefore
block ``n`` here is block ``num_blocks - n`` of the ``kvpool.BlockPool``, which counts the references
and keeps the free list. ``kvpool.lineage.cacheflow`` lists the differences from the original.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import kvpool
from kvpool.errors import InvalidArgumentError, OutOfBlocksError
from kvpool.lineage._enums import Device, NamedEnum
from kvpool.lineage.errors import (
    BlockStateError,
    ContractError,
    NoFreeBlocksError,
    StaleBlockError,
    UnknownBlockError,
    no_free_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence, Sized

__all__ = [
    "AllocStatus",
    "BlockAllocator",
    "BlockTable",
    "Device",
    "PhysicalTokenBlock",
    "SequenceGroupLike",
    "SequenceLike",
    "SequenceStatus",
    "check_block_size",
    "never_fits",
    "out_of_memory",
    "prompt_of",
    "status_of",
]


class SequenceStatus(NamedEnum):
    """The state of a sequence. An engine may use its own enum with the same names."""

    PENDING = enum.auto()
    SERVING = enum.auto()
    SWAPPED = enum.auto()
    FINISHED = enum.auto()


class AllocStatus(NamedEnum):
    """Whether blocks are available. ``OK`` is true and equals True.

    The other members are false and equal False.

    ``OK is True`` is false. The hash of a member is the hash of its name, so a boolean and a member are
    different keys of a dict.
    """

    OK = "ok"
    LATER = "later"
    NEVER = "never"

    def __bool__(self) -> bool:
        return self is AllocStatus.OK

    def __eq__(self, other: object) -> bool:
        return bool(self) is other if isinstance(other, bool) else super().__eq__(other)

    __hash__ = NamedEnum.__hash__


class SequenceLike(Protocol):
    """The attributes of a sequence that the block manager reads."""

    @property
    def seq_id(self) -> int:
        """The id of the sequence."""

    @property
    def status(self) -> Any:
        """The status of the sequence: a member of an enum, or the name of one."""

    @property
    def logical_token_blocks(self) -> Sized:
        """The logical blocks of the sequence: one entry for each block that its tokens need."""


class SequenceGroupLike(Protocol):
    """The attributes of a group that the block manager reads. A group has the sequences of one prompt."""

    @property
    def seqs(self) -> Sequence[SequenceLike]:
        """The sequences of the group."""


class PhysicalTokenBlock:
    """A handle on one block of KV memory. Block tables that share the block share the handle.

    ``BlockAllocator.allocate`` makes handles. A handle that is constructed directly has no block, and
    no allocator accepts it.

    Args:
        device: The device of the block.
        block_number: The block's number on that device.
        block_size: Tokens per block.
    """

    def __init__(self, device: Any, block_number: int, block_size: int) -> None:
        self.device = device
        self.block_number = block_number
        self.block_size = block_size
        self._owner: BlockAllocator | None = None
        self._pool: kvpool.BlockPool | None = None
        self._id = 0

    @property
    def ref_count(self) -> int:
        """Number of references to the block. 0 after the last reference was dropped.

        Assigning a larger number adds references, as in the ancestor. To drop the last reference, call
        ``BlockAllocator.free``.

        Raises:
            BlockStateError: The assigned number is less than 1.
            StaleBlockError: The block was freed.
        """
        return self._pool.diagnose.num_holders(self._id) if self._pool else 0

    @ref_count.setter
    def ref_count(self, references: int) -> None:
        if self._pool is None:
            raise StaleBlockError(f"block {self.block_number} is not allocated")
        if references < 1:
            raise BlockStateError(
                f"ref_count of block {self.block_number} set to {references}: free the block instead"
            )
        change = references - self.ref_count
        if change > 0:
            self._pool.acquire([self._id] * change)
        else:
            self._pool.release([self._id] * -change)

    def __repr__(self) -> str:
        return (
            f"PhysicalTokenBlock(device={self.device}, block_number={self.block_number}, "
            f"block_size={self.block_size}, ref_count={self.ref_count})"
        )


BlockTable: TypeAlias = list[PhysicalTokenBlock]


def check_block_size(block_size: int) -> None:
    """Raises ``ContractError`` for block sizes that CacheFlow's kernels did not support."""
    if block_size not in (8, 16, 32):
        raise ContractError(f"block_size is {block_size}: must be 8, 16 or 32")


def out_of_memory(error: OutOfBlocksError) -> NoFreeBlocksError:
    """Converts an ``OutOfBlocksError`` of the core to CacheFlow's error. The numbers of blocks are kept."""
    return no_free_blocks(error, "Out of memory! No more free blocks are available.")


def never_fits(blocks: int) -> NoFreeBlocksError:
    """Returns the error for an allocation on a device that has no blocks."""
    error = OutOfBlocksError()
    error.needed = error.missing = blocks
    error.can_ever_fit = error.fits_in_chunks = False
    return out_of_memory(error)


class BlockAllocator:
    """The blocks of one device, with reference counts. The block freed last is allocated next.

    At first, the block with the highest number is allocated first.

    Args:
        device: The device of the blocks.
        block_size: Tokens per block: 8, 16 or 32.
        num_blocks: Number of blocks.
        pool: The pool of the blocks. It has one more block, the null block. By default, a new pool is
            made.

    Raises:
        ContractError: The block size is another one.
        InvalidArgumentError: ``num_blocks`` is negative.
    """

    def __init__(
        self, device: Any, block_size: int, num_blocks: int, *, pool: kvpool.BlockPool | None = None
    ) -> None:
        check_block_size(block_size)
        if num_blocks < 0:
            raise InvalidArgumentError(f"num_blocks is {num_blocks}: must not be negative")
        self.device = device
        self.block_size = block_size
        self.num_blocks = num_blocks
        # The core does not support pools without usable blocks, so an allocator without blocks has no
        # pool.
        self._pool = kvpool.BlockPool(num_blocks + 1, block_size) if pool is None and num_blocks else pool

    def allocate(self) -> PhysicalTokenBlock:
        """Takes a block, with one reference.

        Raises:
            NoFreeBlocksError: No block is free.
        """
        return self._allocate(1)[0]

    def free(self, block: PhysicalTokenBlock) -> None:
        """Drops one reference. With the last one, the block becomes free, and the handle becomes invalid.

        Raises:
            StaleBlockError: The handle was freed before (a double free).
            UnknownBlockError: The block belongs to another allocator.
        """
        self._release([block])

    @property
    def free_blocks(self) -> BlockTable:
        """A copy of the list of free blocks. The last block in it is allocated next. O(blocks)."""
        order = self._pool.diagnose.free_order() if self._pool else []
        return [
            PhysicalTokenBlock(self.device, self._number(block_id), self.block_size)
            for block_id in reversed(order)
        ]

    def get_num_free_blocks(self) -> int:
        """Returns the number of free blocks."""
        return self._pool.num_available if self._pool else 0

    def _allocate(self, n: int, references: int = 1) -> BlockTable:
        if self._pool is None:
            if n == 0:
                return []
            raise never_fits(n)
        try:
            ids = self._pool.allocate(n)
        except OutOfBlocksError as error:
            raise out_of_memory(error) from error
        self._pool.acquire(ids * (references - 1))
        return [self._handle(block_id) for block_id in ids]

    def _handle(self, block_id: int) -> PhysicalTokenBlock:
        """Makes the handle on a block that has just been allocated. A block never has two handles."""
        block = PhysicalTokenBlock(self.device, self._number(block_id), self.block_size)
        block._owner, block._pool, block._id = self, self._pool, block_id
        return block

    def _number(self, block_id: int) -> int:
        return self.num_blocks - block_id

    def _ids(self, blocks: Iterable[PhysicalTokenBlock]) -> list[int]:
        """Returns the core's ids of the given blocks, which must be allocated by this allocator."""
        ids = []
        for block in blocks:
            if block._owner is not self:
                raise UnknownBlockError(f"{block} is not of this allocator")
            if block._pool is None:
                raise StaleBlockError(f"Double free! The block {block} is already freed.")
            ids.append(block._id)
        return ids

    def _check_owner(self, table: BlockTable) -> None:
        """Checks that a block table is on this device.

        All blocks of a table are on the same device, so only the last block is checked.
        """
        for block in table[-1:]:
            if block._owner is not self:
                raise BlockStateError(f"{block} is not on {self.device}")

    def _acquire(self, blocks: BlockTable) -> None:
        ids = self._ids(blocks)
        if self._pool and ids:
            self._pool.acquire(ids)

    def _release(self, blocks: BlockTable) -> None:
        ids = self._ids(blocks)
        if self._pool and ids:
            self._pool.release(ids)
            self._retire(blocks)

    def _retire(self, blocks: Iterable[PhysicalTokenBlock]) -> None:
        """Invalidates the handles of blocks without references, because their ids may be reused."""
        for block in blocks:
            if block._pool and not block.ref_count:
                block._pool = None


def prompt_of(seq_group: SequenceGroupLike) -> Sized:
    """Returns the logical blocks of the group's first sequence, whose blocks the other sequences share."""
    if not seq_group.seqs:
        raise ContractError("the group has no sequence")
    return seq_group.seqs[0].logical_token_blocks


def status_of(seq: SequenceLike) -> str:
    """Returns the name of a sequence's status."""
    return str(getattr(seq.status, "name", seq.status)).upper()
