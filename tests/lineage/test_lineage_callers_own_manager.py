"""Tests a block manager that an engine defines itself over kvpool's tables, allocator and trackers,
with real KV bytes.

The manager below makes only the calls that vLLM 0.8.5's manager made to its block tables, its allocator
and its trackers. The scheduler is that of ``test_lineage_callers_v0``, with two differences that
docs/lineage.md requires. It makes copies before it swaps in. If a prompt is computed in chunks, it does
not report the whole prompt as computed.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvpool.lineage.v0.block.block_table import BlockTable
from kvpool.lineage.v0.block.cpu_gpu_block_allocator import CpuGpuBlockAllocator
from kvpool.lineage.v0.block.prefix_caching_block import ComputedBlocksTracker, LastAccessBlocksTracker
from tests.lineage.test_lineage_callers_v0 import SIZE, AllocStatus, Device, Scheduler, SequenceStatus, Step

DEVICES: Any = Device
GPU, CPU = DEVICES.GPU, DEVICES.CPU


def lineage(item: str) -> pytest.MarkDecorator:
    return pytest.mark.lineage(ancestor="004", item=item)


class OwnManager:
    """A manager with one table per sequence, like vLLM's manager."""

    def __init__(self, gpu: int, cpu: int, *, caching: bool, window: int | None) -> None:
        kind = "prefix_caching" if caching else "naive"
        self.caching = caching
        self.block_allocator = CpuGpuBlockAllocator.create(
            allocator_type=kind, num_gpu_blocks=gpu, num_cpu_blocks=cpu, block_size=SIZE
        )
        self.max_window = None if window is None else window // SIZE + 2
        self.block_tables: dict[int, BlockTable] = {}
        self.computed = ComputedBlocksTracker(self.block_allocator, SIZE, caching)
        self.last_access = LastAccessBlocksTracker(self.block_allocator)

    def can_allocate(self, group: Any, num_lookahead_slots: int = 0) -> AllocStatus:
        tokens = group.seqs[0].get_token_ids()
        needed = BlockTable.get_num_required_blocks(tokens, SIZE, num_lookahead_slots)
        if needed > self.block_allocator.get_num_total_blocks(GPU):
            self.computed.remove_seq(group.seqs[0].seq_id)
            return AllocStatus.NEVER
        return (
            AllocStatus.OK if needed <= self.block_allocator.get_num_free_blocks(GPU) else AllocStatus.LATER
        )

    def allocate(self, group: Any) -> None:
        (seq,) = group.seqs
        table = BlockTable(
            block_size=SIZE, block_allocator=self.block_allocator, max_block_sliding_window=self.max_window
        )
        table.allocate(token_ids=seq.get_token_ids(), extra_hash=seq.extra_hash())
        self.block_tables[seq.seq_id] = table
        self.last_access.add_seq(seq.seq_id)

    def can_append_slots(self, group: Any, num_lookahead_slots: int) -> bool:
        touched = 0
        for seq in group.get_seqs(SequenceStatus.RUNNING):
            table = self.block_tables[seq.seq_id]
            touched += table.get_num_blocks_touched_by_append_slots(
                token_ids=table.get_unseen_token_ids(seq.get_token_ids()),
                num_lookahead_slots=num_lookahead_slots,
            )
        return touched <= self.block_allocator.get_num_free_blocks(GPU)

    def append_slots(self, seq: Any, num_lookahead_slots: int) -> list[tuple[int, int]]:
        table = self.block_tables[seq.seq_id]
        table.append_token_ids(
            token_ids=table.get_unseen_token_ids(seq.get_token_ids()),
            num_lookahead_slots=num_lookahead_slots,
            num_computed_slots=seq.data.get_num_computed_tokens(),
            extra_hash=seq.extra_hash(),
        )
        return self.block_allocator.clear_copy_on_writes()

    def free(self, seq: Any) -> None:
        self.computed.remove_seq(seq.seq_id)
        if seq.seq_id in self.block_tables:
            ids = self.block_tables[seq.seq_id].physical_block_ids
            self.last_access.update_seq_blocks_last_access(seq.seq_id, ids)
            self.last_access.remove_seq(seq.seq_id)
            self.block_tables.pop(seq.seq_id).free()

    def fork(self, parent: Any, child: Any) -> None:
        self.block_tables[child.seq_id] = self.block_tables[parent.seq_id].fork()
        self.last_access.add_seq(child.seq_id)

    def get_block_table(self, seq: Any) -> list[int]:
        return self.block_tables[seq.seq_id].physical_block_ids

    def access_all_blocks_in_seq(self, seq: Any, now: float) -> None:
        if self.caching:
            self.last_access.update_last_access(seq.seq_id, now)

    def mark_blocks_as_computed(self, group: Any, token_chunk_size: int) -> None:
        self.block_allocator.mark_blocks_as_computed([])

    def get_num_cached_tokens(self, seq: Any) -> int:
        return self.computed.get_num_cached_tokens(seq)

    def get_common_computed_block_ids(self, seqs: list[Any]) -> list[int]:
        computed = []
        for seq in seqs:
            number = self.computed.get_num_cached_tokens(seq) // SIZE
            computed.append(self.block_tables[seq.seq_id].physical_block_ids[:number])
        return self.block_allocator.get_common_computed_block_ids(computed)

    def _touched(self, group: Any, status: SequenceStatus, device: Any) -> int:
        blocks = [block for seq in group.get_seqs(status) for block in self.block_tables[seq.seq_id].blocks]
        tails = sum(not block.is_full for block in blocks)
        return self.block_allocator.get_num_full_blocks_touched(blocks, device=device) + tails

    def can_swap_out(self, group: Any) -> bool:
        # If single sequences are swapped, they do not share blocks afterwards. So each sequence needs a
        # copy of a shared block.
        needed = sum(len(self.block_tables[seq.seq_id].blocks) for seq in group.seqs)
        return needed <= self.block_allocator.get_num_free_blocks(device=CPU)

    def can_swap_in(self, group: Any, num_lookahead_slots: int) -> AllocStatus:
        needed = sum(
            len(self.block_tables[seq.seq_id].blocks) + 1 + num_lookahead_slots for seq in group.seqs
        )
        if needed > self.block_allocator.get_num_total_blocks(GPU):
            return AllocStatus.NEVER
        return (
            AllocStatus.OK if needed <= self.block_allocator.get_num_free_blocks(GPU) else AllocStatus.LATER
        )

    def _swap(self, group: Any, status: SequenceStatus, src: Any, dst: Any) -> list[tuple[int, int]]:
        pairs = []
        for seq in group.get_seqs(status):
            blocks = self.block_tables[seq.seq_id].blocks
            assert self._touched(group, status, dst) <= len(blocks) * len(group.seqs)
            mapping = self.block_allocator.swap(blocks=blocks, src_device=src, dst_device=dst)
            self.block_tables[seq.seq_id].update(blocks)
            for old, new in mapping.items():
                place = self.block_allocator.get_physical_block_id
                pairs.append((place(src, old), place(dst, new)))
        return pairs

    def swap_out(self, group: Any) -> list[tuple[int, int]]:
        return self._swap(group, SequenceStatus.RUNNING, GPU, CPU)

    def swap_in(self, group: Any) -> list[tuple[int, int]]:
        return self._swap(group, SequenceStatus.SWAPPED, CPU, GPU)

    def get_num_free_gpu_blocks(self) -> int:
        return self.block_allocator.get_num_free_blocks(GPU)

    def get_num_free_cpu_blocks(self) -> int:
        return self.block_allocator.get_num_free_blocks(CPU)


class OwnScheduler(Scheduler):
    """The scheduler of ``test_lineage_callers_v0`` over this manager."""

    def __init__(self, seed: int, gpu: int, cpu: int, *, caching: bool, window: int | None = None) -> None:
        super().__init__(seed, gpu, cpu, caching=caching, window=window)
        own: Any = OwnManager(gpu, cpu, caching=caching, window=window)
        self.manager = own
        self.copies_first, self.whole_prompts, self.twins = True, caching, False

    def entries(self) -> dict[str, int]:
        manager: Any = self.manager
        return {
            "computed": len(manager.computed._tracked),
            "last access": len(manager.last_access._seq_last_access),
            "tables": len(manager.block_tables),
        }


@lineage("callers: the ancestor's own block manager over tables, allocator and trackers, with KV bytes")
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "setting",
    [{"caching": False}, {"caching": True}, {"caching": False, "window": 6}],
    ids=["plain", "caching", "window"],
)
def test_an_own_manager_s_calls(seed: int, setting: dict[str, Any]) -> None:
    scheduler = OwnScheduler(seed, 10 + seed * 3, 6 * (seed % 3), **setting)
    for _ in range(70):
        if scheduler.one_in(2):
            scheduler.add()
        scheduler.step()
    scheduler.drain()


@lineage("callers: a prefix that is evicted between lookup and allocation is computed again")
def test_a_prefix_that_is_evicted_before_its_allocation() -> None:
    scheduler = OwnScheduler(0, 4, 0, caching=True)
    manager: Any = scheduler.manager
    first, second = (scheduler.group_of([7] * 8) for _ in range(2))
    manager.allocate(first)
    manager.mark_blocks_as_computed(first, 8)
    manager.free(first.seqs[0])
    assert manager.get_num_cached_tokens(second.seqs[0]) == 8
    other = scheduler.group_of([8] * 16)
    manager.allocate(other)  # takes all four blocks
    manager.free(other.seqs[0])
    manager.allocate(second)
    assert manager.get_common_computed_block_ids(second.seqs) == []
    scheduler.execute(Step(scheduled=[(second, 8)]))
