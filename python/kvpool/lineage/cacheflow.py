"""CacheFlow's block manager (ancestor 003) over ``kvpool.TieredPool``: tier 0 is the device, tier 1 the host.

This module owns the block tables, which are lists of handles by sequence id. Reference counts, free
lists, copies and swaps belong to the core.

Groups, sequences and statuses are the engine's own objects. A group has ``seqs``, and a sequence has
``seq_id``, ``status`` and ``logical_token_blocks``. Statuses are compared by name: ``SERVING`` (or
``RUNNING``), and ``FINISHED`` (or any name that begins with it). A sequence with any other status
counts as waiting. Nothing is hashed here, so there are no extra keys.

The engine has to execute the copies that ``append``, ``swap_in`` and ``swap_out`` return at once, in
the order of the calls. The reason is that the source blocks can be allocated again as soon as the call
returns. ``begin_swap_out`` and ``begin_swap_in`` keep the source blocks until the copies are done.

Intended differences from the original (C1 to C9 are its known defects):

- C1: copy-on-write replaces the last block of the table. The caller's reference to the old block is
  released exactly once.
- C2, C3: a block that several sequences share is moved once, together with all references that move. No
  block leaks, and the sequences share the block on the other device.
- C4: a swap updates the block tables in place.
- C5: ``allocate`` takes either all blocks or none. All other calls are all-or-nothing, too.
- C6: ``can_allocate`` returns an ``AllocStatus``, which is true only if it is ``OK``, and which
  distinguishes ``NEVER`` from ``LATER``. A watermark of free blocks can be reserved. ``can_swap_in``
  and ``can_swap_out`` return the same type.
- C7: ``free`` does nothing for a sequence without a block table, because the sequence was freed or
  never allocated.
- C8: swaps skip sequences without a block table.
- C9: ``can_append`` requires exactly the number of blocks that ``append`` will take.
- ``append`` takes all blocks that the table lacks. The original took one per call, so that a table
  could remain too short.
- ``free_blocks`` is a copy, so changing it has no effect.
- A handle of a freed block is refused forever, even if the block's number is in use again. Allocating
  or forking to a sequence that already has a table raises ``DuplicateRequestError``. The original
  leaked that table.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import kvpool
from kvpool.errors import (
    DuplicateRequestError,
    OutOfBlocksError,
    RequestStateError,
    UnknownRequestError,
)
from kvpool.lineage._cacheflow_blocks import (
    AllocStatus,
    BlockAllocator,
    BlockTable,
    PhysicalTokenBlock,
    SequenceStatus,
    check_block_size,
    never_fits,
    out_of_memory,
    prompt_of,
    status_of,
)
from kvpool.lineage._enums import Device
from kvpool.lineage.errors import ContractError

if TYPE_CHECKING:
    from kvpool.lineage._cacheflow_blocks import SequenceGroupLike, SequenceLike

__all__ = [
    "AllocStatus",
    "BlockAllocator",
    "BlockSpaceManager",
    "BlockTable",
    "Device",
    "GroupSwap",
    "PhysicalTokenBlock",
    "SequenceStatus",
]

_GPU, _CPU = 0, 1


class GroupSwap:
    """A swap of a group's blocks that has begun and not ended.

    Copy the blocks of each pair in ``mapping``, and then call ``complete``. To cancel the swap, call
    ``abort``.

    Before the swap has ended, its sequences cannot be appended to, forked, freed or swapped.
    """

    def __init__(
        self,
        manager: BlockSpaceManager,
        seq_ids: list[int],
        references: list[int],
        route: tuple[BlockAllocator, BlockAllocator],
        swap: kvpool.Swap | None,
    ) -> None:
        self._manager, self._seq_ids, self._references = manager, seq_ids, references
        self._route, self._swap = route, swap
        self._is_ended = False
        source, target = route
        pairs = swap.mapping.items() if swap else ()
        #: Maps each source block of the swap to its destination block.
        self.mapping = {source._number(src): target._number(dst) for src, dst in pairs}

    def complete(self) -> dict[int, int]:
        """Ends the swap. The tables then contain the destination blocks, and the source blocks are freed.

        Returns ``mapping``.

        Raises:
            RequestStateError: The swap has ended.
        """
        self._check_open()
        manager, (source, target) = self._manager, self._route
        if self._swap:
            manager._tiers.take_plan()
            # In the original, source blocks are freed table by table, and a shared block is freed with
            # the last table that contains it. The references that are added here produce the same
            # order. The order matters because the block that is freed last is reused first.
            pool = manager._tiers.pools[_GPU if source is manager.gpu_allocator else _CPU]
            pool.acquire(self._references)
            try:
                moved = self._swap.complete()
            finally:
                pool.release(self._references)
            blocks = {src: target._handle(dst) for src, dst in moved.items()}
            for seq_id in self._seq_ids:
                table = manager.block_tables[seq_id]
                old, table[:] = list(table), [blocks[block._id] for block in table]
                source._retire(old)
        self._close()
        return self.mapping

    def abort(self) -> None:
        """Cancels the swap. The destination blocks are freed, and the tables do not change.

        Raises:
            RequestStateError: The swap has ended.
        """
        self._check_open()
        if self._swap:
            self._swap.abort()
        self._close()

    def _check_open(self) -> None:
        if self._is_ended:
            raise RequestStateError("the swap is over")

    def _close(self) -> None:
        self._is_ended = True
        for seq_id in self._seq_ids:
            del self._manager._swaps[seq_id]


class BlockSpaceManager:
    """The block tables of sequences, with blocks on a device and in host memory.

    Args:
        block_size: Tokens per block: 8, 16 or 32.
        num_gpu_blocks: Number of device blocks. At least 1.
        num_cpu_blocks: Number of host blocks. If 0, nothing can be swapped.
        watermark: The share of the device's blocks that ``can_allocate`` and ``can_swap_in`` keep free.

    Raises:
        ContractError: A number is out of range.
    """

    def __init__(
        self, block_size: int, num_gpu_blocks: int, num_cpu_blocks: int, watermark: float = 0.0
    ) -> None:
        check_block_size(block_size)
        if num_gpu_blocks < 1 or num_cpu_blocks < 0:
            raise ContractError(
                f"{num_gpu_blocks} GPU blocks and {num_cpu_blocks} CPU blocks: at least 1 and 0"
            )
        if not 0 <= watermark <= 1:
            raise ContractError(f"watermark is {watermark}: must be from 0 to 1")
        self.block_size = block_size
        self.num_total_gpu_blocks = num_gpu_blocks
        self.num_total_cpu_blocks = num_cpu_blocks
        self.watermark_blocks = int(watermark * num_gpu_blocks)
        tiers = [num_gpu_blocks + 1] + [num_cpu_blocks + 1] * (num_cpu_blocks > 0)
        self._tiers = kvpool.TieredPool(tiers, block_size)
        gpu, cpu = (*self._tiers.pools, None)[:2]
        self.gpu_allocator = BlockAllocator(Device.GPU, block_size, num_gpu_blocks, pool=gpu)
        self.cpu_allocator = BlockAllocator(Device.CPU, block_size, num_cpu_blocks, pool=cpu)
        self.block_tables: dict[int, BlockTable] = {}
        self._swaps: dict[int, GroupSwap] = {}

    def can_allocate(self, seq_group: SequenceGroupLike) -> AllocStatus:
        """Returns whether the prompt of a group fits now, later, or never. O(1)."""
        required = len(prompt_of(seq_group)) + self.watermark_blocks
        if required > self.num_total_gpu_blocks:
            return AllocStatus.NEVER
        return AllocStatus.OK if required <= self.get_num_free_gpu_blocks() else AllocStatus.LATER

    def allocate(self, seq_group: SequenceGroupLike) -> None:
        """Allocates blocks for the prompt of a group. All sequences of the group share them.

        Raises:
            NoFreeBlocksError: Not enough blocks are free.
            DuplicateRequestError: A sequence has a block table already, or is named twice.
        """
        seq_ids = [seq.seq_id for seq in seq_group.seqs]
        known = [
            seq_id for seq_id, times in Counter(seq_ids).items() if times > 1 or seq_id in self.block_tables
        ]
        if known:
            raise DuplicateRequestError(f"sequences {known} have a block table already, or are named twice")
        table = self.gpu_allocator._allocate(len(prompt_of(seq_group)), len(seq_ids))
        self.block_tables.update((seq_id, list(table)) for seq_id in seq_ids)

    def can_append(self, seq_group: SequenceGroupLike) -> bool:
        """Returns whether ``append`` can be called for every serving sequence of the group. O(sequences)."""
        needed, writers = 0, Counter[PhysicalTokenBlock]()
        for seq in seq_group.seqs:
            if status_of(seq) in ("SERVING", "RUNNING"):
                table = self.block_tables.get(seq.seq_id, [])
                missing = len(seq.logical_token_blocks) - len(table)
                if missing > 0:
                    needed += missing
                elif table:
                    writers[table[-1]] += 1
        # If several sequences share a block, all but the last writer need a copy.
        needed += sum(min(count, block.ref_count - 1) for block, count in writers.items())
        return needed <= self.get_num_free_gpu_blocks()

    def append(self, seq: SequenceLike) -> tuple[int, int] | None:
        """Makes the slot of the newest token writable: takes a new block, or copies a shared last block.

        Returns:
            The source and the destination of the required copy, or None.

        Raises:
            UnknownRequestError: The sequence has no block table.
            NoFreeBlocksError: No block is free.
            BlockStateError: The sequence is swapped out.
            RequestStateError: The sequence is being swapped.
        """
        table = self._table(seq)
        self.gpu_allocator._check_owner(table)
        missing = len(seq.logical_token_blocks) - len(table)
        if missing > 0:
            table += self.gpu_allocator._allocate(missing)
            return None
        if not table:
            return None
        last = table[-1]
        try:
            new = self._tiers.copy_on_write(last._id, tier=_GPU)
        except OutOfBlocksError as error:
            raise out_of_memory(error) from error
        if new == last._id:
            return None
        self._tiers.take_plan()
        table[-1] = self.gpu_allocator._handle(new)
        return last.block_number, table[-1].block_number

    def fork(self, src_seq: SequenceLike, child_seq: SequenceLike) -> None:
        """Shares all blocks of a parent with a child.

        Raises:
            UnknownRequestError: The parent has no block table.
            DuplicateRequestError: The child already has a block table.
            RequestStateError: The parent is being swapped.
        """
        table = self._table(src_seq)
        if child_seq.seq_id in self.block_tables:
            raise DuplicateRequestError(f"sequence {child_seq.seq_id} has a block table already")
        for block in table[:1]:
            self._allocator_of(block)._acquire(table)
        self.block_tables[child_seq.seq_id] = list(table)

    def can_swap_in(self, seq_group: SequenceGroupLike) -> AllocStatus:
        """Returns whether the unfinished sequences of a group fit on the device now, later, or never.

        Raises:
            BlockStateError: A sequence is on the device.
            RequestStateError: A sequence is being swapped.
        """
        return self._fit(seq_group, _CPU)

    def can_swap_out(self, seq_group: SequenceGroupLike) -> AllocStatus:
        """Returns whether the unfinished sequences of a group fit in host memory now, later, or never.

        Raises:
            BlockStateError: A sequence is on the host.
            RequestStateError: A sequence is being swapped.
        """
        return self._fit(seq_group, _GPU)

    def swap_in(self, seq_group: SequenceGroupLike) -> dict[int, int]:
        """Moves the unfinished sequences of a group to the device.

        Returns the device block of each host block.

        Raises:
            NoFreeBlocksError: Not enough blocks are free.
            BlockStateError: A sequence is on the device.
            RequestStateError: A sequence is being swapped.
        """
        return self.begin_swap_in(seq_group).complete()

    def swap_out(self, seq_group: SequenceGroupLike) -> dict[int, int]:
        """Moves the unfinished sequences of a group to the host. Returns the host block of each device block.

        Raises:
            NoFreeBlocksError: Not enough blocks are free.
            BlockStateError: A sequence is on the host.
            RequestStateError: A sequence is being swapped.
        """
        return self.begin_swap_out(seq_group).complete()

    def begin_swap_in(self, seq_group: SequenceGroupLike) -> GroupSwap:
        """Begins a swap to the device, which the caller then completes. Raises the errors of ``swap_in``."""
        return self._begin(seq_group, _CPU)

    def begin_swap_out(self, seq_group: SequenceGroupLike) -> GroupSwap:
        """Begins a swap to the host, which the caller then completes. Raises the errors of ``swap_out``."""
        return self._begin(seq_group, _GPU)

    def free(self, seq: SequenceLike) -> None:
        """Frees the blocks of a sequence. Does nothing for a sequence without a block table.

        Raises:
            RequestStateError: The sequence is being swapped.
        """
        if seq.seq_id in self.block_tables:
            self._free_block_table(self._table(seq))
            del self.block_tables[seq.seq_id]

    def reset(self) -> None:
        """Aborts the open swaps and frees the blocks of all sequences."""
        for swap in dict.fromkeys(self._swaps.values()):
            swap.abort()
        for seq_id in list(self.block_tables):
            self._free_block_table(self.block_tables.pop(seq_id))

    def get_block_table(self, seq: SequenceLike) -> list[int]:
        """Returns the numbers of the blocks in a sequence's block table.

        Raises:
            UnknownRequestError: The sequence has no block table.
        """
        return [block.block_number for block in self._known_table(seq)]

    def get_num_free_gpu_blocks(self) -> int:
        """Returns the number of free device blocks."""
        return self.gpu_allocator.get_num_free_blocks()

    def get_num_free_cpu_blocks(self) -> int:
        """Returns the number of free host blocks."""
        return self.cpu_allocator.get_num_free_blocks()

    def check_invariants(self) -> None:
        """Recomputes the pools' state from scratch and compares. O(blocks), for tests.

        Raises:
            InvariantError: An invariant is broken; the error describes the first one.
        """
        self._tiers.check_invariants()

    def _known_table(self, seq: SequenceLike) -> BlockTable:
        try:
            return self.block_tables[seq.seq_id]
        except KeyError:
            raise UnknownRequestError(f"sequence {seq.seq_id} has no block table") from None

    def _table(self, seq: SequenceLike) -> BlockTable:
        if seq.seq_id in self._swaps:
            raise RequestStateError(f"sequence {seq.seq_id} is being swapped")
        return self._known_table(seq)

    def _allocator_of(self, block: PhysicalTokenBlock) -> BlockAllocator:
        return self.gpu_allocator if block.device == Device.GPU else self.cpu_allocator

    def _free_block_table(self, table: BlockTable) -> None:
        for block in table[:1]:
            self._allocator_of(block)._release(table)

    def _moving(self, seq_group: SequenceGroupLike, source: BlockAllocator) -> tuple[list[int], list[int]]:
        """Returns the ids of the sequences to move, and the core's ids of the blocks in their tables.

        Finished sequences and sequences without a block table are left out. A block that several tables
        share occurs once per table.
        """
        references = list[int]()
        unfinished = {seq.seq_id: seq for seq in seq_group.seqs if not status_of(seq).startswith("FINISHED")}
        moving = [seq for seq_id, seq in unfinished.items() if seq_id in self.block_tables]
        for seq in moving:
            references += source._ids(self._table(seq))
        return [seq.seq_id for seq in moving], references

    def _route(self, src: int) -> tuple[BlockAllocator, BlockAllocator]:
        route = self.gpu_allocator, self.cpu_allocator
        return route if src == _GPU else route[::-1]

    def _fit(self, seq_group: SequenceGroupLike, src: int) -> AllocStatus:
        _, references = self._moving(seq_group, self._route(src)[0])
        if not self.num_total_cpu_blocks:
            return AllocStatus.NEVER if references else AllocStatus.OK
        reserve = self.watermark_blocks if src == _CPU else 0
        return AllocStatus(self._tiers.fit_swap(references, src=src, dst=1 - src, reserve=reserve))

    def _begin(self, seq_group: SequenceGroupLike, src: int) -> GroupSwap:
        route = self._route(src)
        seq_ids, references = self._moving(seq_group, route[0])
        if references and not self.num_total_cpu_blocks:
            raise never_fits(len(set(references)))
        try:
            begun = self._tiers.begin_swap(references, src=src, dst=1 - src) if references else None
        except OutOfBlocksError as error:
            raise out_of_memory(error) from error
        swap = GroupSwap(self, seq_ids, references, route, begun)
        self._swaps.update(dict.fromkeys(seq_ids, swap))
        return swap
