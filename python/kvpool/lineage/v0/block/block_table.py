"""vLLM v0's block table: the blocks of one sequence.

This module owns the assignment of tokens to blocks, and computes how many slots a step needs. The
blocks come from a ``CpuGpuBlockAllocator``.

Differences from the ancestor, vLLM v0 (a number identifies a known defect of the ancestors):

- 8, 13: ``allocate``, ``append_token_ids`` and ``ensure_num_empty_slots`` are all-or-nothing. Each
  checks that enough blocks are free before it takes the first one. Copies of shared blocks are
  included.
- 11: ``fork`` works after a window has dropped blocks. It forks the remaining blocks, and null blocks
  remain null blocks.
- When a block becomes full, and a block with the same content exists, the table uses that block
  instead, even if it is not computed yet. Another prompt may compute its KV in chunks, so its KV may be
  missing in this step. Therefore the KV of the own block is copied to it.
- 17: ``free`` resets ``num_full_slots`` to 0.
- With a window, the null block is taken when the first block is dropped, and not at the first append.
- Dropping blocks never needs a free block. If other references exist to all blocks that a window could
  drop, and there is no null block yet, the blocks are kept. As soon as one of them becomes free, it is
  used as the null block.
- ``extra_hash`` is an int or ``kvpool.ExtraKeys``. Assertions are replaced by typed errors that derive
  from ``AssertionError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvpool.lineage.errors import BlockStateError, ContractError, NoFreeBlocksError
from kvpool.lineage.v0.block.common import BlockList
from kvpool.lineage.v0.block.cpu_gpu_block_allocator import NullBlock
from kvpool.lineage.v0.block.interfaces import Device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvpool.lineage.v0.block.cpu_gpu_block_allocator import CpuGpuBlockAllocator
    from kvpool.lineage.v0.block.interfaces import Block, BlockId, ExtraHash

__all__ = ["BlockTable"]


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


class BlockTable:
    """The blocks of one sequence.

    Args:
        block_size: Tokens per block.
        block_allocator: The allocator of the blocks.
        _blocks: Blocks that now belong to the table.
        max_block_sliding_window: The size of the window in blocks. Without it, all blocks are kept.

    Raises:
        ContractError: The block size or the window is less than 1, or a block is of the wrong kind.

    >>> from kvpool.lineage.v0.block.cpu_gpu_block_allocator import CpuGpuBlockAllocator
    >>> allocator = CpuGpuBlockAllocator.create("naive", num_gpu_blocks=8, num_cpu_blocks=0, block_size=4)
    >>> table = BlockTable(block_size=4, block_allocator=allocator)
    >>> table.allocate([1, 2, 3, 4, 5])
    >>> child = table.fork()
    >>> child.append_token_ids([6])
    >>> table.physical_block_ids, child.physical_block_ids, allocator.clear_copy_on_writes()
    ([0, 1], [0, 2], [(1, 2)])
    """

    def __init__(
        self,
        block_size: int,
        block_allocator: CpuGpuBlockAllocator,
        _blocks: Sequence[Block] | None = None,
        max_block_sliding_window: int | None = None,
    ) -> None:
        if block_size < 1:
            raise ContractError(f"blocks of {block_size} tokens")
        if max_block_sliding_window is not None and max_block_sliding_window < 1:
            raise ContractError(f"a sliding window of {max_block_sliding_window} blocks")
        self._block_size = block_size
        self._allocator = block_allocator
        self._max_block_sliding_window = max_block_sliding_window
        self._blocks = BlockList([] if _blocks is None else _blocks)
        self._num_full_slots = self._count_slots()
        # Number of blocks at the start of the table that the sliding window has dropped.
        self._num_dropped = self._count_dropped()

    def _count_slots(self) -> int:
        return sum(
            self._block_size if isinstance(block, NullBlock) else len(block.token_ids)
            for block in self._blocks.list()
        )

    def _count_dropped(self) -> int:
        blocks = self._blocks.list()
        return next((at for at, block in enumerate(blocks) if not isinstance(block, NullBlock)), len(blocks))

    @staticmethod
    def get_num_required_blocks(
        token_ids: Sequence[int], block_size: int, num_lookahead_slots: int = 0
    ) -> int:
        """Returns the number of blocks for a sequence and for the lookahead slots after it."""
        return _ceil_div(len(token_ids) + num_lookahead_slots, block_size)

    def allocate(
        self, token_ids: Sequence[int], device: Device = Device.GPU, extra_hash: ExtraHash = None
    ) -> None:
        """Allocates blocks for a prompt. If the allocator caches, full blocks with equal content are shared.

        All or nothing.

        Raises:
            NoFreeBlocksError: Too few blocks are free.
            BlockStateError: The table has blocks already.
            ContractError: There are no tokens.
            TokenError: A token is out of range, and the allocator caches.
        """
        if self._is_allocated:
            raise BlockStateError("the table has blocks already")
        if not token_ids:
            raise ContractError("a table is allocated for at least one token")
        self._allocator._check_tokens(token_ids)
        tokens = list(token_ids)
        chunks = self._chunks(tokens)
        tail = chunks.pop() if len(chunks[-1]) < self._block_size else None
        spare = self._allocator.get_num_free_blocks(device) - (tail is not None)
        self._check_free(self._allocator._num_to_take(chunks, device, extra_hash, at_most=spare), spare)
        blocks: list[Block] = []
        if chunks:
            blocks += self._allocator.allocate_immutable_blocks(None, chunks, device, extra_hash)
        if tail is not None:
            prev_block = blocks[-1] if blocks else None
            blocks.append(self._allocator.allocate_mutable_block(prev_block, device, extra_hash))
            blocks[-1].append_token_ids(tail)
        self._blocks.update(blocks)
        self._num_full_slots = len(tokens)

    def update(self, blocks: Sequence[Block]) -> None:
        """Replaces all blocks. The caller has to free the old ones.

        Raises:
            BlockStateError: A block has no id.
        """
        self._blocks.update(blocks)
        self._num_full_slots = self._count_slots()
        self._num_dropped = self._count_dropped()

    def _refresh(self) -> None:
        """Reads the ids of the blocks again after a swap."""
        self._blocks.update(self._blocks.list())

    def append_token_ids(
        self,
        token_ids: Sequence[int],
        num_lookahead_slots: int = 0,
        num_computed_slots: int | None = None,
        extra_hash: ExtraHash = None,
    ) -> None:
        """Drops the blocks outside the window, and then appends tokens. All or nothing.

        O(tokens + blocks dropped).

        The table's ids may change, for two reasons. A shared block is copied before it is written to. A
        block that becomes full may be cached already in another block.

        Args:
            token_ids: The tokens.
            num_lookahead_slots: Number of empty slots to provide after the tokens.
            num_computed_slots: Number of tokens whose KV is written. The window ends after them.
                Required if there is a window.
            extra_hash: Extra keys of the sequence.

        Raises:
            NoFreeBlocksError: Too few blocks are free.
            BlockStateError: The table has no blocks, or is swapped out.
            ContractError: There is a window, and ``num_computed_slots`` is missing.
            TokenError: A token is out of range, and the allocator caches.
        """
        if self._append_in_place(token_ids, num_lookahead_slots):
            return
        self._check_allocated()
        self._allocator._check_tokens(token_ids)
        num_blocks = self._num_new_blocks(len(token_ids) + num_lookahead_slots)
        needed = num_blocks + self._num_copies(len(token_ids))
        free = self._allocator.get_num_free_blocks(Device.GPU)
        outside = self._outside_window(num_computed_slots)
        if outside:
            freed = self._allocator._num_freed(outside) - (self._allocator._null_block is None)
            if freed >= 0:
                free += freed
            else:
                outside = []
        self._check_free(needed, free)
        if outside:
            self._drop(outside)
        num_old = len(self._blocks)
        self._add_blocks(num_blocks, extra_hash)
        for chunk in self._chunks(token_ids, self._num_full_slots):
            at = self._num_full_slots // self._block_size
            if at < num_old:
                self._allocator._append(self._blocks, at, chunk)
            else:
                self._blocks.append_token_ids(at, chunk)
            self._num_full_slots += len(chunk)

    def _append_in_place(self, token_ids: Sequence[int], num_lookahead_slots: int) -> bool:
        """Handles the usual append of a decode step: to one block that exists and is on the GPU.

        In every other case, returns False and changes nothing.

        An append to a single block is always all-or-nothing.
        """
        before, num_tokens = self._num_full_slots, len(token_ids)
        at, used = divmod(before, self._block_size)
        blocks = self._blocks.list()
        if (
            not 0 < num_tokens <= self._block_size - used
            or before + num_tokens + num_lookahead_slots > len(blocks) * self._block_size
            or self._max_block_sliding_window is not None
            or getattr(blocks[at], "_allocator", None) is not self._allocator._gpu
        ):
            return False
        if used + num_tokens < self._block_size:
            self._blocks.append_token_ids(at, token_ids)
        else:
            self._allocator._append(self._blocks, at, token_ids)
        self._num_full_slots = before + num_tokens
        return True

    def ensure_num_empty_slots(self, num_empty_slots: int, extra_hash: ExtraHash = None) -> None:
        """Adds GPU blocks until there are ``num_empty_slots`` empty slots. All or nothing.

        Raises:
            NoFreeBlocksError: Too few blocks are free.
            BlockStateError: The table has no blocks, or is swapped out.
        """
        self._check_allocated()
        num_blocks = self._num_new_blocks(num_empty_slots)
        self._check_free(num_blocks, self._allocator.get_num_free_blocks(Device.GPU))
        self._add_blocks(num_blocks, extra_hash)

    def fork(self) -> BlockTable:
        """Returns a table that shares all blocks. O(blocks).

        Raises:
            BlockStateError: The table has no blocks.
        """
        self._require_blocks()
        blocks = self._blocks.list()
        dropped, live = blocks[: self._num_dropped], blocks[self._num_dropped :]
        child = BlockTable(
            self._block_size, self._allocator, max_block_sliding_window=self._max_block_sliding_window
        )
        child._blocks.update([*dropped, *self._allocator._fork_blocks(live)])
        child._num_full_slots, child._num_dropped = self._num_full_slots, self._num_dropped
        return child

    def free(self) -> None:
        """Frees all blocks. The table can then be allocated again. O(blocks)."""
        for block in self._blocks.list():
            self._allocator.free(block)
        self._blocks.reset()
        self._num_full_slots = self._num_dropped = 0

    @property
    def physical_block_ids(self) -> list[BlockId]:
        """The ids of the blocks, in order.

        This is the table's own list. The next change of the table may change or replace it.
        """
        return self._blocks.ids()

    @property
    def blocks(self) -> list[Block]:
        """The blocks, in order. This is the table's own list."""
        return self._blocks.list()

    @property
    def num_full_slots(self) -> int:
        """The number of tokens in the table, including those in dropped blocks."""
        return self._num_full_slots

    def _get_all_token_ids(self) -> list[int]:
        """Returns the tokens of all blocks. This is the whole sequence, unless a window has dropped blocks.

        O(tokens).
        """
        return [token for block in self.blocks for token in block.token_ids]

    def get_unseen_token_ids(self, sequence_token_ids: Sequence[int]) -> list[int]:
        """Returns the tokens of a sequence that are not in the table yet. O(tokens returned)."""
        unseen = sequence_token_ids[self._num_full_slots :]
        return unseen if type(unseen) is list else list(unseen)

    def get_num_blocks_touched_by_append_slots(
        self, token_ids: Sequence[int], num_lookahead_slots: int
    ) -> int:
        """Returns the number of blocks to which an append of these tokens writes.

        These are the last block, if it is not full, and the new blocks.

        An append never takes more blocks than this, including copies.
        """
        first = self._block_size - self._num_full_slots % self._block_size
        return 1 + _ceil_div(len(token_ids) + num_lookahead_slots - first, self._block_size)

    @property
    def _is_allocated(self) -> bool:
        return len(self._blocks) > 0

    def _require_blocks(self) -> None:
        if not self._is_allocated:
            raise BlockStateError("no blocks have been allocated")

    def _check_allocated(self) -> None:
        self._require_blocks()
        if not self._allocator._is_on(self._blocks[len(self._blocks) - 1], Device.GPU):
            raise BlockStateError("the blocks are not on the GPU: swap them in before appending")

    @staticmethod
    def _check_free(needed: int, free: int) -> None:
        if needed > free:
            error = NoFreeBlocksError(f"{needed} blocks are needed, {max(free, 0)} can be had")
            error.needed, error.available, error.missing = needed, max(free, 0), needed - max(free, 0)
            raise error

    def _chunks(self, token_ids: Sequence[int], num_before: int = 0) -> list[list[int]]:
        """Splits tokens at block boundaries. ``num_before`` tokens of the sequence precede them."""
        first = self._block_size - num_before % self._block_size
        starts = [0, *range(first, len(token_ids), self._block_size)]
        ends = [*starts[1:], len(token_ids)]
        return (
            [list(token_ids[start:end]) for start, end in zip(starts, ends, strict=True)] if token_ids else []
        )

    def _num_new_blocks(self, num_slots: int) -> int:
        empty = len(self._blocks) * self._block_size - self._num_full_slots
        return _ceil_div(max(num_slots - empty, 0), self._block_size)

    def _num_copies(self, num_tokens: int) -> int:
        """Returns the number of shared blocks to which an append of ``num_tokens`` tokens writes.

        Each of them has to be copied.
        """
        if num_tokens == 0:
            return 0
        end = _ceil_div(self._num_full_slots + num_tokens, self._block_size)
        return self._allocator._num_to_copy(
            self._blocks.list()[self._num_full_slots // self._block_size : end]
        )

    def _num_appended(self, sequence_token_ids: Sequence[int], num_lookahead_slots: int) -> int:
        """Returns the number of blocks needed to append the tokens that the table lacks, copies included."""
        unseen = max(len(sequence_token_ids) - self._num_full_slots, 0)
        return self._num_new_blocks(unseen + num_lookahead_slots) + self._num_copies(unseen)

    def _add_blocks(self, num_blocks: int, extra_hash: ExtraHash) -> None:
        for _ in range(num_blocks):
            last = self._blocks[len(self._blocks) - 1]
            self._blocks.append(self._allocator.allocate_mutable_block(last, Device.GPU, extra_hash))

    def _outside_window(self, num_computed_slots: int | None) -> list[Block]:
        if self._max_block_sliding_window is None:
            return []
        if num_computed_slots is None:
            raise ContractError("num_computed_slots is needed with a sliding window")
        end = num_computed_slots // self._block_size - self._max_block_sliding_window
        # The block into which the next token is written is never dropped.
        end = min(end, self._num_full_slots // self._block_size, len(self._blocks) - 1)
        return self._blocks.list()[self._num_dropped : max(end, 0)]

    def _drop(self, blocks: Sequence[Block]) -> None:
        """Frees the next blocks, and puts the null block in their positions.

        If there is no null block yet, one of the freed blocks may become the null block.
        """
        for block in blocks:
            self._allocator.free(block)
        null_block = self._allocator.allocate_or_get_null_block()
        for at in range(self._num_dropped, self._num_dropped + len(blocks)):
            self._blocks[at] = null_block
        self._num_dropped += len(blocks)
