"""vLLM v0's block manager: the block tables of sequences, on a GPU and a CPU.

This module owns the block tables, and the number of computed tokens of each sequence. Blocks come from
a ``CpuGpuBlockAllocator``.

Differences from the ancestor, vLLM v0 (a number identifies a known defect of the ancestors):

- 5, 6: ``mark_blocks_as_computed`` marks the blocks that the group has computed. If a sequence still
  computes its prompt, these are the blocks that its chunks have covered. Otherwise, they are all full
  blocks. The ancestor ignored both arguments.
- 9, 10, 12: ``swap_out`` and ``swap_in`` move a whole group, or nothing. Sequences that share blocks
  still share them afterwards. ``can_swap_out`` and ``can_swap_in`` count each block once. They do not
  count blocks that the other device has already cached.
- 11, 13, 17: see ``block_table``. ``allocate`` takes the blocks of all tables of a group, or none.
- 15: ``reset_prefix_cache`` works even if there is a null block, and resets every device.
- 16: ``get_common_computed_block_ids`` returns a list in every case.
- 18: the blocks of a copy that ``append_slots`` has returned remain unavailable until the step is over.
  Workers execute swaps before copies. Otherwise, a swap in the same step could overwrite the source.
- 19: each id of a swap is translated in O(1).
- 21: ``can_allocate`` counts all blocks of a prompt, even with a window, because ``allocate`` takes
  them all.
- 22: a sequence that was never looked up can be removed from the tracker. ``free`` removes a sequence
  from both trackers, even if it has no table because it was aborted while it waited.
- ``can_swap_in`` also returns NEVER if a group fits on the device only without the watermark, because
  the group would wait forever.
- For a prompt, ``get_common_computed_block_ids`` returns the blocks that were already computed when the
  prompt's blocks were allocated.
- ``fork`` to a sequence that already has a table raises an error. The ancestor lost the blocks of the
  old table.
- As in the ancestor, ``free`` and ``free_cross`` do nothing without a table, and ``fork`` does nothing
  if the parent has no table. The parent may have been freed before its output was processed.
- The state of a sequence is compared by name, so an engine can use its own enum. It can also use its
  own ``Device``. Its ``AllocStatus`` equals the one that is returned here.
- Assertions are replaced by typed errors that derive from ``AssertionError``.

The blocks of a step's copies are kept until the step is over. A step ends at the first of these events:

- ``mark_blocks_as_computed`` is called. The ancestor's scheduler calls it once everything is planned.
- ``append_slots`` is called again for the same sequence. The step has then computed the sequence's
  previous token.
- No block table exists any more.
- The engine calls ``end_step``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvpool.lineage.errors import BlockStateError, ContractError, UnknownTableError
from kvpool.lineage.v0 import block_manager_util as util
from kvpool.lineage.v0.block.block_table import BlockTable
from kvpool.lineage.v0.block.cpu_gpu_block_allocator import CpuGpuBlockAllocator
from kvpool.lineage.v0.block.interfaces import Device
from kvpool.lineage.v0.block.prefix_caching_block import ComputedBlocksTracker, LastAccessBlocksTracker
from kvpool.lineage.v0.block.utils import check_no_caching_or_swa_for_blockmgr_encdec
from kvpool.lineage.v0.block_manager_util import SequenceStatus, seqs_in
from kvpool.lineage.v0.interfaces import AllocStatus, BlockSpaceManager

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from kvpool.lineage.v0.block.interfaces import Block, EncoderSeqId, SeqId
    from kvpool.lineage.v0.block_manager_util import Sequence, SequenceGroup

__all__ = ["SelfAttnBlockSpaceManager", "UnknownTableError"]


class SelfAttnBlockSpaceManager(BlockSpaceManager):
    """The block tables of sequences.

    Args:
        block_size: Tokens per block.
        num_gpu_blocks: Number of GPU blocks.
        num_cpu_blocks: Number of CPU blocks, which are the destinations of swaps.
        watermark: The share of the GPU's blocks that must remain free when a group is allocated or
            swapped in.
        sliding_window: Number of tokens to which attention is limited; None for no limit.
        enable_caching: Whether full blocks with the same content are shared.

    Raises:
        ContractError: A number is out of range.

    >>> from types import SimpleNamespace
    >>> seq = SimpleNamespace(seq_id=7, status=SequenceStatus.WAITING, get_token_ids=lambda: [1, 2, 3, 4, 5])
    >>> group = SimpleNamespace(request_id="a", get_seqs=lambda: [seq])
    >>> manager = SelfAttnBlockSpaceManager(block_size=4, num_gpu_blocks=8, num_cpu_blocks=8)
    >>> manager.can_allocate(group)
    <AllocStatus.OK: 1>
    >>> manager.allocate(group)
    >>> manager.get_block_table(seq), manager.get_num_free_gpu_blocks()
    ([0, 1], 6)
    """

    def __init__(
        self,
        block_size: int,
        num_gpu_blocks: int,
        num_cpu_blocks: int,
        watermark: float = 0.01,
        sliding_window: int | None = None,
        enable_caching: bool = False,
    ) -> None:
        if block_size < 1:
            raise ContractError(f"blocks of {block_size} tokens")
        if not watermark >= 0.0:
            raise ContractError(f"a watermark of {watermark}: it is a share of the GPU's blocks")
        if sliding_window is not None and sliding_window < 0:
            raise ContractError(f"a sliding window of {sliding_window} tokens")
        self.block_size = block_size
        self.num_total_gpu_blocks = num_gpu_blocks
        self.num_total_cpu_blocks = num_cpu_blocks
        self.sliding_window = sliding_window
        # The table keeps two blocks more than the window fills: one because the window can end inside a
        # block, and one for the block that the step computes.
        self.max_block_sliding_window = None if sliding_window is None else sliding_window // block_size + 2
        self.watermark = watermark
        self.enable_caching = enable_caching
        self.watermark_blocks = int(watermark * num_gpu_blocks)
        self.block_allocator = CpuGpuBlockAllocator.create(
            "prefix_caching" if enable_caching else "naive", num_gpu_blocks, num_cpu_blocks, block_size
        )
        self.block_tables: dict[SeqId, BlockTable] = {}
        self.cross_block_tables: dict[EncoderSeqId, BlockTable] = {}
        self._computed_blocks_tracker = ComputedBlocksTracker(
            self.block_allocator, block_size, enable_caching
        )
        self._last_access_blocks_tracker = LastAccessBlocksTracker(self.block_allocator)
        # For each sequence, the number of tokens whose KV is written, as reported by the engine.
        self._num_computed: dict[SeqId, int] = {}
        self._appended: set[SeqId] = set()

    def can_allocate(self, seq_group: SequenceGroup, num_lookahead_slots: int = 0) -> AllocStatus:
        """Returns whether a waiting group can get its blocks now, later, or never. Ignores cached blocks.

        If the answer is never, the hashes of the group are dropped. An engine then ignores the group
        and makes no further call for it.

        Raises:
            ContractError: No sequence of the group is waiting.
            NotSupportedError: A sliding window or prefix caching with an encoder-decoder model.
        """
        check_no_caching_or_swa_for_blockmgr_encdec(self, seq_group)
        tokens = util.first_waiting(seq_group).get_token_ids()
        required = BlockTable.get_num_required_blocks(tokens, self.block_size, num_lookahead_slots)
        if (encoder := util.encoder_seq_of(seq_group)) is not None:
            required += BlockTable.get_num_required_blocks(encoder.get_token_ids(), self.block_size)
        if self.block_allocator.get_num_total_blocks(Device.GPU) - required < self.watermark_blocks:
            for seq in seq_group.get_seqs():
                self._computed_blocks_tracker.remove_seq(seq.seq_id)
            return AllocStatus.NEVER
        fits = self.get_num_free_gpu_blocks() - required >= self.watermark_blocks
        return AllocStatus.OK if fits else AllocStatus.LATER

    def allocate(self, seq_group: SequenceGroup) -> None:
        """Allocates the blocks of a waiting group. All its waiting sequences share these blocks.

        All or nothing.

        The prompt of an encoder may be empty, for example in a request without images. Its table then
        has no blocks.

        Raises:
            NoFreeBlocksError: Too few blocks are free.
            BlockStateError: A sequence or the group has a table already.
            ContractError: No sequence of the group is waiting, or one has no tokens.
            NotSupportedError: A sliding window or prefix caching with an encoder-decoder model.
        """
        check_no_caching_or_swa_for_blockmgr_encdec(self, seq_group)
        first, encoder = util.first_waiting(seq_group), util.encoder_seq_of(seq_group)
        if not first.get_token_ids():
            raise ContractError(f"sequence {first.seq_id} has no tokens to allocate blocks for")
        waiting = seqs_in(seq_group, SequenceStatus.WAITING)
        taken = [seq.seq_id for seq in waiting if seq.seq_id in self.block_tables]
        if taken or (encoder is not None and seq_group.request_id in self.cross_block_tables):
            raise BlockStateError(
                f"block table already exists: group {seq_group.request_id!r}, sequences {taken}"
            )
        if encoder is not None:
            # Encoder-decoder models have no cache, so the number of blocks is known before the first is
            # taken.
            tokens = (first.get_token_ids(), encoder.get_token_ids())
            needed = sum(BlockTable.get_num_required_blocks(one, self.block_size) for one in tokens)
            BlockTable._check_free(needed, self.get_num_free_gpu_blocks())
        table = self._allocate_sequence(first)
        num_cached = self._num_leading_computed(table.blocks) * self.block_size if self.enable_caching else 0
        for seq in waiting:
            self.block_tables[seq.seq_id] = table if seq is first else table.fork()
            self._last_access_blocks_tracker.add_seq(seq.seq_id)
            self._computed_blocks_tracker.settle(seq, num_cached)
            self._num_computed[seq.seq_id] = 0
        if encoder is not None:
            self.cross_block_tables[seq_group.request_id] = self._allocate_sequence(encoder)

    def _allocate_sequence(self, seq: Sequence) -> BlockTable:
        window = self.max_block_sliding_window
        table = BlockTable(self.block_size, self.block_allocator, max_block_sliding_window=window)
        tokens = seq.get_token_ids()
        if tokens:
            table.allocate(tokens, extra_hash=util.extra_hash_of(seq))
        return table

    @staticmethod
    def _num_leading_computed(blocks: Items[Block]) -> int:
        return next((at for at, block in enumerate(blocks) if not block.computed), len(blocks))

    def can_append_slots(self, seq_group: SequenceGroup, num_lookahead_slots: int) -> bool:
        """Returns whether all running sequences of a group can get slots for their new tokens."""
        touched = 0
        for seq in seqs_in(seq_group, SequenceStatus.RUNNING):
            table = self._table(seq)
            unseen = table.get_unseen_token_ids(seq.get_token_ids())
            touched += table.get_num_blocks_touched_by_append_slots(unseen, num_lookahead_slots)
        return touched <= self.get_num_free_gpu_blocks()

    def append_slots(self, seq: Sequence, num_lookahead_slots: int) -> list[tuple[int, int]]:
        """Appends the tokens that a sequence's table lacks. Returns the copies that this requires.

        All or nothing. The copies are pairs (source, destination). The engine has to execute them
        before the step writes KV.

        Raises:
            NoFreeBlocksError: Too few blocks are free.
            UnknownTableError: The sequence has no table.
            BlockStateError: The sequence is swapped out.
            ContractError: There is a sliding window, and the sequence has no number of computed tokens.
        """
        table = self._table(seq)
        if seq.seq_id in self._appended:
            self.end_step()
        table.append_token_ids(
            token_ids=table.get_unseen_token_ids(seq.get_token_ids()),
            num_lookahead_slots=num_lookahead_slots,
            num_computed_slots=None
            if self.max_block_sliding_window is None
            else util.num_computed_tokens_of(seq),
            extra_hash=util.extra_hash_of(seq),
        )
        self._appended.add(seq.seq_id)
        return self.block_allocator._take_copies(fence=True)

    def end_step(self) -> None:
        """Ends the step, after its copies have been executed.

        The ancestor has no such method. The module's documentation lists when it must be called.
        """
        self._appended.clear()
        self.block_allocator.end_step()

    def free(self, seq: Sequence) -> None:
        """Frees the blocks and all other state of a sequence. The sequence may have no table.

        O(blocks).
        """
        self._computed_blocks_tracker.remove_seq(seq.seq_id)
        table = self.block_tables.get(seq.seq_id)
        if table is None:
            return
        self._last_access_blocks_tracker.update_seq_blocks_last_access(seq.seq_id, table.physical_block_ids)
        self._last_access_blocks_tracker.remove_seq(seq.seq_id)
        table.free()
        del self.block_tables[seq.seq_id], self._num_computed[seq.seq_id]
        self._end_step_if_empty()

    def _end_step_if_empty(self) -> None:
        if (
            not self.block_tables and not self.cross_block_tables
        ):  # no table has blocks that a late copy could overwrite
            self.end_step()

    def free_cross(self, seq_group: SequenceGroup) -> None:
        """Frees the blocks of a group's encoder. Does nothing if there are none."""
        table = self.cross_block_tables.pop(seq_group.request_id, None)
        if table is not None:
            table.free()
            self._end_step_if_empty()

    def remove_seq_from_computed_blocks_tracker(self, seq: Sequence) -> None:
        """Drops the hashes of a sequence. Does nothing for a sequence that was never looked up.

        ``free`` does this, too.
        """
        self._computed_blocks_tracker.remove_seq(seq.seq_id)

    def get_block_table(self, seq: Sequence) -> list[int]:
        """Returns the ids of a sequence's blocks. This is the table's own list.

        Raises:
            UnknownTableError: The sequence has no table. The error is also a ``KeyError``.
        """
        return self._table(seq).physical_block_ids

    def _table(self, seq: Sequence) -> BlockTable:
        if (table := self.block_tables.get(seq.seq_id)) is None:
            raise UnknownTableError(f"sequence {seq.seq_id} has no block table")
        return table

    def get_cross_block_table(self, seq_group: SequenceGroup) -> list[int]:
        """Returns the ids of a group's encoder blocks. This is the table's own list.

        Raises:
            UnknownTableError: The group has no such table. The error is also an ``AssertionError``.
        """
        if (table := self.cross_block_tables.get(seq_group.request_id)) is None:
            raise UnknownTableError(f"group {seq_group.request_id!r} has no cross block table")
        return table.physical_block_ids

    def access_all_blocks_in_seq(self, seq: Sequence, now: float) -> None:
        """Records a use of a sequence.

        After its blocks are freed, they are evicted in the order of these times.

        Raises:
            ContractError: The sequence has no table.
        """
        if self.enable_caching:
            self._last_access_blocks_tracker.update_last_access(seq.seq_id, now)

    def mark_blocks_as_computed(self, seq_group: SequenceGroup, token_chunk_size: int) -> None:
        """Marks the tokens as computed that a group computes in the planned step.

        O(blocks filled).

        Args:
            seq_group: The group. Only its sequences that have a table on the GPU are considered.
            token_chunk_size: For each sequence whose ``is_prefill()`` is true, the number of tokens
                that are computed, including cached ones.
        """
        for seq in seq_group.get_seqs():
            table = self.block_tables.get(seq.seq_id)
            if table is None or util.status_name(seq) == "SWAPPED":
                continue
            before, end = self._num_computed[seq.seq_id], table.num_full_slots
            if before + token_chunk_size < end and util.is_prefill(seq):
                end = before + token_chunk_size
            if end > before:
                self._num_computed[seq.seq_id] = end
                first, last = before // self.block_size, end // self.block_size
                if first < last and self.enable_caching:
                    self.block_allocator._mark_filled(table.blocks[first:last])
        if self._appended or self.block_allocator._targets:
            self.end_step()

    def get_common_computed_block_ids(self, seqs: list[Sequence]) -> list[int]:
        """Returns the computed blocks at the beginning that all these sequences share.

        Sequences without computed blocks are ignored.

        Raises:
            UnknownTableError: A sequence has no table.
        """
        computed = []
        for seq in seqs:
            num_blocks = self._computed_blocks_tracker.get_num_cached_tokens(seq) // self.block_size
            computed.append(self._table(seq).physical_block_ids[:num_blocks])
        return self.block_allocator.get_common_computed_block_ids(computed)

    def fork(self, parent_seq: Sequence, child_seq: Sequence) -> None:
        """Shares all blocks of a parent with a child. Does nothing if the parent has no table. O(blocks).

        Raises:
            BlockStateError: The child has a table already.
        """
        parent = self.block_tables.get(parent_seq.seq_id)
        if parent is None:
            return
        if child_seq.seq_id in self.block_tables:
            raise BlockStateError(f"sequence {child_seq.seq_id} has a block table already")
        self._last_access_blocks_tracker.add_seq(child_seq.seq_id)
        self.block_tables[child_seq.seq_id] = parent.fork()
        self._num_computed[child_seq.seq_id] = self._num_computed[parent_seq.seq_id]

    def can_swap_in(self, seq_group: SequenceGroup, num_lookahead_slots: int) -> AllocStatus:
        """Returns whether a swapped group can return to the GPU, with the watermark kept free.

        The slots that the group needs in the next step are included.
        """
        seqs = seqs_in(seq_group, SequenceStatus.SWAPPED)
        # The core counts the swapped blocks. The blocks that are needed right after the swap are added
        # here: blocks for new tokens, and a copy of the last block for each sequence that shares it.
        appended = sum(
            self._table(seq)._num_appended(seq.get_token_ids(), num_lookahead_slots) for seq in seqs
        )
        return AllocStatus[self._fit(seqs, Device.CPU, Device.GPU, self.watermark_blocks + appended).upper()]

    def _fit(self, seqs: Items[Sequence], src: Device, dst: Device, reserve: int) -> str:
        blocks = [block for seq in seqs for block in self._table(seq).blocks]
        return self.block_allocator._fit(blocks, src, dst, reserve)

    def swap_in(self, seq_group: SequenceGroup) -> list[tuple[int, int]]:
        """Moves a swapped group to the GPU.

        Returns the copies as pairs (CPU block, GPU block). A block is given by its position in memory.

        All or nothing. A block whose content the GPU still has cached is not copied.

        Raises:
            NoFreeBlocksError: The GPU has too few free blocks.
            UnknownTableError: A sequence has no table.
        """
        return self._swap(seqs_in(seq_group, SequenceStatus.SWAPPED), Device.CPU, Device.GPU)

    def can_swap_out(self, seq_group: SequenceGroup) -> bool:
        """Returns whether the CPU has room for a running group."""
        return self._fit(seqs_in(seq_group, SequenceStatus.RUNNING), Device.GPU, Device.CPU, 0) == "ok"

    def swap_out(self, seq_group: SequenceGroup) -> list[tuple[int, int]]:
        """Moves a running group to the CPU.

        Returns the copies as pairs (GPU block, CPU block). A block is given by its position in memory.

        All or nothing. A block whose content the CPU still has cached is not copied.

        Raises:
            NoFreeBlocksError: The CPU has too few free blocks.
            UnknownTableError: A sequence has no table.
        """
        seqs = seqs_in(seq_group, SequenceStatus.RUNNING)
        if not self._appended.isdisjoint(seq.seq_id for seq in seqs):
            self.end_step()
        return self._swap(seqs, Device.GPU, Device.CPU)

    def _swap(self, seqs: Items[Sequence], src: Device, dst: Device) -> list[tuple[int, int]]:
        allocator = self.block_allocator
        tables = [self._table(seq) for seq in seqs]
        # There is one swap for all sequences, so that a shared block is moved once.
        _, copies = allocator._move([block for table in tables for block in table.blocks], src, dst)
        for table in tables:
            table._refresh()
        places = allocator.get_physical_block_id
        return [(places(src, old), places(dst, new)) for old, new in copies]

    def get_num_free_gpu_blocks(self) -> int:
        """Returns the number of GPU blocks that can be allocated now."""
        return self.block_allocator.get_num_free_blocks(Device.GPU)

    def get_num_free_cpu_blocks(self) -> int:
        """Returns the number of CPU blocks that can be allocated now."""
        return self.block_allocator.get_num_free_blocks(Device.CPU)

    def get_prefix_cache_hit_rate(self, device: Device) -> float:
        """Returns hits per query of a device, or -1 if nothing is cached there."""
        return self.block_allocator.get_prefix_cache_hit_rate(device)

    def reset_prefix_cache(self, device: Device | None = None) -> bool:
        """Drops all cached content of one device, or of both.

        Returns False if blocks of a device are in use.
        """
        return self.block_allocator.reset_prefix_cache(device)

    def get_num_cached_tokens(self, seq: Sequence) -> int:
        """Returns the number of tokens, from the start of a sequence, that are cached and computed."""
        return self._computed_blocks_tracker.get_num_cached_tokens(seq)
