"""Tests ancestor 003, CacheFlow's block manager. There is one test for each class of its interface,
each behaviour and each defect.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.lineage.cacheflow import (
    AllocStatus,
    BlockAllocator,
    BlockSpaceManager,
    Device,
    PhysicalTokenBlock,
    SequenceStatus,
)
from kvpool.lineage.errors import (
    BlockStateError,
    ContractError,
    NoFreeBlocksError,
    StaleBlockError,
    UnknownBlockError,
)
from tests.lineage.model_memory import own_enum

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Seq:
    """The engine's sequence."""

    seq_id: int
    num_blocks: int
    status: Any = SequenceStatus.SERVING

    @property
    def logical_token_blocks(self) -> range:
        return range(self.num_blocks)


@dataclass
class Group:
    """A group of sequences as the engine defines it."""

    seqs: list[Seq] = field(default_factory=list)


def group_of(n: int, num_blocks: int, first: int = 0) -> Group:
    return Group([Seq(first + at, num_blocks) for at in range(n)])


def manager_of(gpu: int = 8, cpu: int = 8, watermark: float = 0.0) -> BlockSpaceManager:
    return BlockSpaceManager(16, gpu, cpu, watermark)


def allocated(n: int, num_blocks: int, **sizes: int) -> tuple[BlockSpaceManager, Group]:
    manager, group = manager_of(**sizes), group_of(n, num_blocks)
    manager.allocate(group)
    return manager, group


def tables(manager: BlockSpaceManager) -> dict[int, list[tuple[Device, int, int]]]:
    return {
        seq_id: [(block.device, block.block_number, block.ref_count) for block in table]
        for seq_id, table in manager.block_tables.items()
    }


def observe(manager: BlockSpaceManager) -> tuple[Any, ...]:
    manager.check_invariants()
    return tables(manager), manager.get_num_free_gpu_blocks(), manager.get_num_free_cpu_blocks()


def refuses(manager: BlockSpaceManager, error: type[Exception], call: Callable[[], object]) -> Exception:
    """Checks that a call raises this error and changes nothing."""
    before = observe(manager)
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, kvpool.KvpoolError)
    assert observe(manager) == before
    return caught.value


def no_leak(manager: BlockSpaceManager) -> None:
    """Checks that every block is available after a reset."""
    manager.reset()
    manager.check_invariants()
    assert manager.block_tables == {}
    for allocator in (manager.gpu_allocator, manager.cpu_allocator):
        assert allocator.get_num_free_blocks() == allocator.num_blocks
        assert (
            len({allocator.allocate().block_number for _ in range(allocator.num_blocks)})
            == allocator.num_blocks
        )


# --- BlockAllocator


@pytest.mark.lineage(ancestor="003", item="BlockAllocator: highest id first, then the last freed")
def test_allocation_order() -> None:
    allocator = BlockAllocator(Device.GPU, 16, 4)
    blocks = [allocator.allocate() for _ in range(3)]
    assert [block.block_number for block in blocks] == [3, 2, 1]
    assert [(block.device, block.block_size, block.ref_count) for block in blocks] == [
        (Device.GPU, 16, 1)
    ] * 3
    assert allocator.get_num_free_blocks() == 1
    for block in (blocks[0], blocks[2]):
        allocator.free(block)
    assert [allocator.allocate().block_number for _ in range(3)] == [1, 3, 0]
    assert (allocator.device, allocator.block_size, allocator.num_blocks) == (Device.GPU, 16, 4)


@pytest.mark.lineage(ancestor="003", item="BlockAllocator: out of memory is a ValueError")
@pytest.mark.parametrize("num_blocks", [0, 2])
def test_out_of_memory(num_blocks: int) -> None:
    allocator = BlockAllocator(Device.GPU, 8, num_blocks)
    for _ in range(num_blocks):
        allocator.allocate()
    with pytest.raises(ValueError, match="Out of memory! No more free blocks are available") as caught:
        allocator.allocate()
    assert isinstance(caught.value, kvpool.errors.OutOfBlocksError)
    assert (caught.value.needed, caught.value.missing, caught.value.can_ever_fit) == (1, 1, num_blocks > 0)
    assert allocator.get_num_free_blocks() == 0


@pytest.mark.lineage(
    ancestor="003", item="BlockAllocator: double free is a ValueError, also when the id is in use again"
)
def test_double_free() -> None:
    allocator = BlockAllocator(Device.GPU, 8, 2)
    block = allocator.allocate()
    allocator.free(block)
    with pytest.raises(ValueError, match=r"Double free! The block .* is already freed") as caught:
        allocator.free(block)
    assert isinstance(caught.value, kvpool.errors.InvalidBlockError)
    assert (block.ref_count, allocator.get_num_free_blocks()) == (0, 2)
    heir = allocator.allocate()
    assert heir.block_number == block.block_number
    with pytest.raises(StaleBlockError):
        allocator.free(block)
    with pytest.raises(StaleBlockError):
        block.ref_count = 2
    assert (heir.ref_count, block.ref_count, allocator.get_num_free_blocks()) == (1, 0, 1)


@pytest.mark.lineage(ancestor="003", item="BlockAllocator: references are counted by the core")
def test_ref_counts() -> None:
    allocator = BlockAllocator(Device.CPU, 32, 2)
    block = allocator.allocate()
    block.ref_count += 2
    allocator.free(block)
    assert (block.ref_count, allocator.get_num_free_blocks()) == (2, 1)
    block.ref_count -= 1
    for wrong in (0, -1):
        with pytest.raises(BlockStateError):
            block.ref_count = wrong
    assert block.ref_count == 1
    allocator.free(block)
    assert (block.ref_count, allocator.get_num_free_blocks()) == (0, 2)


@pytest.mark.lineage(
    ancestor="003", item="BlockAllocator: blocks of another allocator, or of none, are refused"
)
def test_foreign_blocks() -> None:
    allocator, other = (BlockAllocator(Device.GPU, 8, 2) for _ in range(2))
    block = other.allocate()
    allocator.allocate()
    made = PhysicalTokenBlock(device=Device.GPU, block_number=1, block_size=8)
    assert made.ref_count == 0
    assert repr(block) == "PhysicalTokenBlock(device=Device.GPU, block_number=1, block_size=8, ref_count=1)"
    for wrong in (block, made):
        with pytest.raises(UnknownBlockError):
            allocator.free(wrong)
    assert (block.ref_count, allocator.get_num_free_blocks()) == (1, 1)


@pytest.mark.lineage(ancestor="003", item="BlockAllocator: block sizes 8, 16 and 32")
def test_block_sizes() -> None:
    for size in (8, 16, 32):
        assert BlockAllocator(Device.GPU, size, 1).block_size == size
    for size in (0, 1, 12, 64):
        with pytest.raises(AssertionError):
            BlockAllocator(Device.GPU, size, 1)
        with pytest.raises(ContractError):
            BlockSpaceManager(size, 1, 1)
    with pytest.raises(kvpool.errors.InvalidArgumentError):
        BlockAllocator(Device.GPU, 8, -1)


# --- BlockSpaceManager


@pytest.mark.lineage(ancestor="003", item="BlockSpaceManager: constructor, attributes and refusals")
def test_manager_constructor() -> None:
    manager = BlockSpaceManager(block_size=16, num_gpu_blocks=8, num_cpu_blocks=3)
    assert (manager.block_size, manager.num_total_gpu_blocks, manager.num_total_cpu_blocks) == (16, 8, 3)
    assert (manager.gpu_allocator.device, manager.cpu_allocator.device) == (Device.GPU, Device.CPU)
    assert (manager.block_tables, manager.get_num_free_gpu_blocks(), manager.get_num_free_cpu_blocks()) == (
        {},
        8,
        3,
    )
    for sizes in ((0, 1, 0.0), (1, -1, 0.0), (1, 1, -0.1), (1, 1, 1.1)):
        with pytest.raises(ContractError):
            BlockSpaceManager(16, *sizes)


@pytest.mark.lineage(ancestor="003", item="allocate: a group shares one prompt at ref count n")
def test_a_group_shares_its_prompt() -> None:
    manager, group = allocated(3, 2)
    assert tables(manager) == {seq_id: [(Device.GPU, 7, 3), (Device.GPU, 6, 3)] for seq_id in range(3)}
    assert manager.get_num_free_gpu_blocks() == 6
    assert manager.get_block_table(group.seqs[2]) == [7, 6]
    assert manager.block_tables[0] is not manager.block_tables[1]
    for seq in group.seqs:
        manager.free(seq)
    assert manager.get_num_free_gpu_blocks() == 8
    no_leak(manager)


@pytest.mark.lineage(
    ancestor="003", item="allocate: a sequence that has a table, or is named twice, is refused"
)
def test_allocate_twice() -> None:
    manager, group = allocated(2, 2)
    refuses(manager, kvpool.errors.DuplicateRequestError, lambda: manager.allocate(group))
    refuses(
        manager, kvpool.errors.DuplicateRequestError, lambda: manager.allocate(Group([Seq(8, 1), Seq(1, 1)]))
    )
    refuses(
        manager, kvpool.errors.DuplicateRequestError, lambda: manager.allocate(Group([Seq(8, 1), Seq(8, 1)]))
    )
    refuses(manager, ContractError, lambda: manager.allocate(Group()))


@pytest.mark.lineage(ancestor="003", item="append: a new block, the same block, or a copy")
def test_append() -> None:
    manager, group = allocated(1, 2)
    (seq,) = group.seqs
    assert manager.append(seq) is None
    assert manager.get_block_table(seq) == [7, 6]
    seq.num_blocks = 3
    assert manager.append(seq) is None
    assert manager.get_block_table(seq) == [7, 6, 5]
    child = Seq(9, 3)
    manager.fork(seq, child)
    assert manager.append(child) == (5, 4)
    assert (manager.get_block_table(seq), manager.get_block_table(child)) == ([7, 6, 5], [7, 6, 4])
    assert (manager.append(seq), manager.append(child)) == (None, None)
    empty = Group([Seq(20, 0)])
    manager.allocate(empty)
    assert manager.append(empty.seqs[0]) is None
    assert manager.get_block_table(empty.seqs[0]) == []
    no_leak(manager)


@pytest.mark.lineage(
    ancestor="003", item="append: unknown sequence KeyError, swapped out AssertionError, no block ValueError"
)
def test_append_refusals() -> None:
    manager, group = allocated(2, 3, gpu=3, cpu=3)
    refuses(manager, KeyError, lambda: manager.append(Seq(5, 1)))
    refuses(manager, NoFreeBlocksError, lambda: manager.append(group.seqs[0]))  # no block for the copy
    group.seqs[0].num_blocks = 4
    refuses(manager, ValueError, lambda: manager.append(group.seqs[0]))  # no further block
    manager.swap_out(group)
    for num_blocks in (3, 4):
        group.seqs[0].num_blocks = num_blocks
        refuses(manager, AssertionError, lambda: manager.append(group.seqs[0]))


@pytest.mark.lineage(ancestor="003", item="fork: shares every block, takes none")
def test_fork() -> None:
    manager, group = allocated(1, 2, gpu=2)
    child = Seq(1, 2)
    manager.fork(group.seqs[0], child)
    assert tables(manager)[1] == tables(manager)[0] == [(Device.GPU, 1, 2), (Device.GPU, 0, 2)]
    assert refuses(manager, KeyError, lambda: manager.fork(Seq(7, 1), Seq(8, 1))).args
    refuses(manager, ValueError, lambda: manager.fork(group.seqs[0], child))
    manager.free(group.seqs[0])
    assert tables(manager) == {1: [(Device.GPU, 1, 1), (Device.GPU, 0, 1)]}
    no_leak(manager)


@pytest.mark.lineage(
    ancestor="003", item="statuses are known by name: another enum, a string, finished kinds"
)
def test_statuses_by_name() -> None:
    manager, group = allocated(3, 8)
    for status in (
        "FINISHED",
        "FINISHED_ABORTED",
        SequenceStatus.FINISHED,
        SequenceStatus.PENDING,
        "SWAPPED",
    ):
        for seq in group.seqs:
            seq.status = status
        assert manager.can_append(group) is True
    group.seqs[1].status = "SERVING"
    assert manager.can_append(group) is False
    group.seqs[1].status = "FINISHED_STOPPED"
    manager.swap_out(group)
    assert {seq_id: table[0][0] for seq_id, table in tables(manager).items()} == {
        0: Device.CPU,
        1: Device.GPU,
        2: Device.CPU,
    }
    no_leak(manager)


@pytest.mark.lineage(ancestor="003", item="swap: out and in keep sharing and leak nothing")
def test_swap_round_trip() -> None:
    manager, group = allocated(2, 3)
    group.seqs[0].num_blocks = group.seqs[1].num_blocks = 4
    assert [manager.append(seq) for seq in group.seqs] == [None, None]
    assert manager.get_num_free_gpu_blocks() == 3
    assert manager.can_swap_out(group) is AllocStatus.OK
    out = manager.swap_out(group)
    assert out == {7: 7, 6: 6, 5: 5, 4: 4, 3: 3}
    assert observe(manager) == (
        {
            0: [(Device.CPU, 7, 2), (Device.CPU, 6, 2), (Device.CPU, 5, 2), (Device.CPU, 4, 1)],
            1: [(Device.CPU, 7, 2), (Device.CPU, 6, 2), (Device.CPU, 5, 2), (Device.CPU, 3, 1)],
        },
        8,
        3,
    )
    assert manager.can_swap_in(group) is AllocStatus.OK
    back = manager.swap_in(group)
    assert list(back) == list(out.values())
    assert sorted(back.values()) == sorted(set(back.values()))
    assert [[ref for _, _, ref in table] for table in tables(manager).values()] == [[2, 2, 2, 1]] * 2
    assert observe(manager)[1:] == (3, 8)
    no_leak(manager)


@pytest.mark.lineage(
    ancestor="003", item="swap: a table on the wrong side, or no room, is an error that changes nothing"
)
def test_swap_refusals() -> None:
    manager, group = allocated(2, 3, cpu=2)
    assert manager.can_swap_out(group) is AllocStatus.NEVER
    error = refuses(manager, ValueError, lambda: manager.swap_out(group))
    assert isinstance(error, NoFreeBlocksError)
    assert (error.needed, error.can_ever_fit) == (3, False)
    for call in (manager.swap_in, manager.can_swap_in):
        refuses(manager, BlockStateError, lambda call=call: call(group))  # type: ignore[misc]
    manager, group = allocated(1, 2, gpu=4, cpu=2)
    other = group_of(1, 1, first=5)
    manager.allocate(other)
    manager.swap_out(other)
    assert manager.can_swap_out(group) is AllocStatus.LATER
    refuses(manager, NoFreeBlocksError, lambda: manager.swap_out(group))
    manager.allocate(group_of(1, 2, first=8))
    assert manager.can_swap_in(other) is AllocStatus.LATER
    refuses(manager, NoFreeBlocksError, lambda: manager.swap_in(other))
    no_leak(manager)


@pytest.mark.lineage(ancestor="003", item="swap in two phases: sources are kept until the copies are done")
def test_two_phase_swap() -> None:
    manager, group = allocated(2, 3)
    before = observe(manager)
    swap = manager.begin_swap_out(group)
    assert swap.mapping == {7: 7, 6: 6, 5: 5}
    assert observe(manager) == (before[0], 5, 5)
    (seq, *_) = group.seqs
    for call in (
        lambda: manager.append(seq),
        lambda: manager.free(seq),
        lambda: manager.fork(seq, Seq(9, 3)),
        lambda: manager.swap_out(group),
        lambda: manager.can_swap_out(group),
    ):
        refuses(manager, kvpool.errors.RequestStateError, call)
    busy = group_of(1, 5, first=20)
    manager.allocate(busy)
    assert not set(manager.get_block_table(busy.seqs[0])) & set(swap.mapping)
    manager.free(busy.seqs[0])
    swap.abort()
    assert observe(manager) == before
    for end in (swap.abort, swap.complete):
        refuses(manager, kvpool.errors.RequestStateError, end)
    swap = manager.begin_swap_out(group)
    assert swap.complete() == swap.mapping
    assert observe(manager)[1:] == (8, 5)
    manager.begin_swap_in(group)
    no_leak(manager)  # a reset aborts it


# --- Defects


@pytest.mark.lineage(ancestor="003", item="C1: copy on write replaces the last block")
def test_defect_c1_copy_on_write_replaces_the_last_block() -> None:
    manager, group = allocated(2, 2)
    parent, child = group.seqs
    assert manager.append(child) == (6, 5)
    assert tables(manager) == {
        0: [(Device.GPU, 7, 2), (Device.GPU, 6, 1)],
        1: [(Device.GPU, 7, 2), (Device.GPU, 5, 1)],
    }
    assert manager.append(parent) is None
    manager.free(child)
    manager.free(parent)
    assert manager.get_num_free_gpu_blocks() == 8
    no_leak(manager)


@pytest.mark.lineage(ancestor="003", item="C2: swap_in copies a shared block once")
def test_defect_c2_swap_in_copies_a_shared_block_once() -> None:
    manager, group = allocated(3, 2)
    manager.swap_out(group)
    mapping = manager.swap_in(group)
    assert len(mapping) == len(set(mapping.values())) == 2
    assert manager.get_num_free_gpu_blocks() == 6
    assert [ref for _, _, ref in tables(manager)[0]] == [3, 3]
    no_leak(manager)


@pytest.mark.lineage(ancestor="003", item="C3: swap_out drops every reference that moves")
def test_defect_c3_swap_out_drops_every_reference() -> None:
    manager, group = allocated(2, 2)
    assert len(manager.swap_out(group)) == 2
    assert manager.get_num_free_gpu_blocks() == 8
    assert [ref for _, _, ref in tables(manager)[0]] == [2, 2]
    manager.free(group.seqs[0])
    assert tables(manager) == {1: [(Device.CPU, 7, 1), (Device.CPU, 6, 1)]}
    manager.free(group.seqs[1])
    assert manager.get_num_free_cpu_blocks() == 8
    no_leak(manager)


@pytest.mark.lineage(ancestor="003", item="C4: swaps update the block tables, old handles are stale")
def test_defect_c4_swaps_update_the_block_tables() -> None:
    manager, group = allocated(1, 2)
    table = manager.block_tables[0]
    old = list(table)
    manager.swap_out(group)
    assert manager.block_tables[0] is table
    assert [block.device for block in table] == [Device.CPU] * 2
    assert [block.ref_count for block in old] == [0, 0]
    heir = group_of(1, 2, first=1)
    manager.allocate(heir)
    assert set(manager.get_block_table(heir.seqs[0])) == {block.block_number for block in old}
    for block in old:
        refuses(
            manager,
            StaleBlockError,
            lambda block=block: manager.gpu_allocator.free(block),  # type: ignore[misc]
        )
    manager.swap_in(group)
    assert [block.device for block in table] == [Device.GPU] * 2
    assert not set(manager.get_block_table(heir.seqs[0])) & set(manager.get_block_table(group.seqs[0]))
    no_leak(manager)


@pytest.mark.lineage(ancestor="003", item="C5: running out midway changes nothing")
def test_defect_c5_running_out_midway_changes_nothing() -> None:
    manager, _ = allocated(2, 5)
    error = refuses(manager, NoFreeBlocksError, lambda: manager.allocate(group_of(3, 4, first=10)))
    assert isinstance(error, NoFreeBlocksError)
    assert (error.needed, error.available, error.can_ever_fit) == (4, 3, True)
    grown = manager.block_tables[0], Seq(0, 9)
    refuses(manager, NoFreeBlocksError, lambda: manager.append(grown[1]))
    assert len(grown[0]) == 5
    manager.allocate(group_of(3, 3, first=10))
    assert manager.get_num_free_gpu_blocks() == 0
    no_leak(manager)


@pytest.mark.lineage(ancestor="003", item="C6: never, later and a watermark")
def test_defect_c6_never_differs_from_later() -> None:
    manager = manager_of(gpu=10, watermark=0.2)
    statuses = [manager.can_allocate(group_of(2, n)) for n in (1, 8, 9, 11)]
    assert statuses == [AllocStatus.OK, AllocStatus.OK, AllocStatus.NEVER, AllocStatus.NEVER]
    assert [bool(status) for status in statuses] == [True, True, False, False]
    manager.allocate(group_of(1, 4))
    assert [manager.can_allocate(group_of(1, n, first=9)).name for n in (4, 5, 8, 9)] == [
        "OK",
        "LATER",
        "LATER",
        "NEVER",
    ]
    plain = manager_of(gpu=10)
    assert [plain.can_allocate(group_of(1, n)).name for n in (10, 11)] == ["OK", "NEVER"]
    group = group_of(1, 8, first=20)
    roomy = manager_of(gpu=10, watermark=0.2)
    roomy.allocate(group)
    roomy.swap_out(group)
    assert roomy.can_swap_in(group) is AllocStatus.OK
    roomy.allocate(group_of(1, 1, first=30))
    assert roomy.can_swap_in(group) is AllocStatus.LATER


@pytest.mark.lineage(ancestor="003", item="C7: free of an unknown sequence does nothing")
def test_defect_c7_free_of_an_unknown_sequence_does_nothing() -> None:
    manager, group = allocated(2, 2)
    before = observe(manager)
    manager.free(Seq(99, 3))
    assert observe(manager) == before
    manager.free(group.seqs[0])
    before = observe(manager)
    manager.free(group.seqs[0])
    assert observe(manager) == before
    with pytest.raises(kvpool.errors.UnknownRequestError, match="sequence 99 has no block table"):
        manager.get_block_table(Seq(99, 3))


@pytest.mark.lineage(ancestor="003", item="C8: swaps skip sequences without a table")
def test_defect_c8_swaps_skip_sequences_without_a_table() -> None:
    manager, group = allocated(2, 2)
    manager.free(group.seqs[0])
    group.seqs.append(Seq(50, 3, SequenceStatus.PENDING))
    assert manager.can_swap_out(group) is AllocStatus.OK
    assert manager.swap_out(group) == {7: 7, 6: 6}
    assert manager.can_swap_in(group) is AllocStatus.OK
    assert len(manager.swap_in(group)) == 2
    assert list(manager.block_tables) == [1]
    no_leak(manager)


@pytest.mark.lineage(ancestor="003", item="C9: can_append asks for what append takes")
def test_defect_c9_can_append_asks_for_what_append_takes() -> None:
    manager, group = allocated(1, 3, gpu=3)
    assert manager.get_num_free_gpu_blocks() == 0
    assert manager.can_append(group) is True
    assert manager.append(group.seqs[0]) is None
    group.seqs[0].num_blocks = 4
    assert manager.can_append(group) is False
    manager, group = allocated(1, 2, gpu=3)
    group.seqs[0].num_blocks = 4  # two blocks short
    assert manager.can_append(group) is False
    refuses(manager, NoFreeBlocksError, lambda: manager.append(group.seqs[0]))


@pytest.mark.lineage(ancestor="003", item="C9: can_append over forks: the last holder writes in place")
@pytest.mark.parametrize("outsider", [False, True])
def test_defect_c9_can_append_counts_copies(outsider: bool) -> None:
    for gpu in range(1, 6):
        manager, group = allocated(3, 1, gpu=gpu)
        if outsider:
            manager.fork(group.seqs[0], Seq(9, 1))
        fits = manager.can_append(group)
        assert fits is (gpu >= 3 + outsider)
        copies = []
        if fits:
            copies = [manager.append(seq) for seq in group.seqs]
        else:
            with pytest.raises(NoFreeBlocksError):
                copies = [manager.append(seq) for seq in group.seqs]
        assert copies.count(None) == (fits and not outsider)
        no_leak(manager)


@pytest.mark.lineage(
    ancestor="003", item="any calls: an engine's random walk leaks nothing and its bytes arrive"
)
@pytest.mark.parametrize("seed", range(6))
def test_random_walk(seed: int) -> None:
    """The test writes a number to each block, and copies the numbers as the manager plans. Every table
    must read the numbers that its sequence wrote.
    """
    draw = random.Random(seed)
    manager = manager_of(gpu=12, cpu=10)
    memory: dict[tuple[Device, int], object] = {}
    truth: dict[int, list[object]] = {}
    groups: list[Group] = []

    def copy(pairs: dict[int, int], src: Device, dst: Device) -> None:
        read = {number: memory[src, number] for number in pairs}
        memory.update({(dst, pairs[number]): content for number, content in read.items()})

    def step() -> None:
        group = draw.choice(groups) if groups else Group()
        swapped = bool(group.seqs) and group.seqs[0].status is SequenceStatus.SWAPPED
        what = draw.choice(("allocate", "append", "append", "append", "fork", "swap", "free"))
        if what == "allocate":
            new = group_of(draw.randint(1, 3), draw.randint(1, 4), first=len(truth))
            if manager.can_allocate(new):
                manager.allocate(new)
                groups.append(new)
                prompt = [object() for _ in manager.block_tables[new.seqs[0].seq_id]]
                for seq in new.seqs:
                    truth[seq.seq_id] = list(prompt)
                for number, content in zip(manager.get_block_table(new.seqs[0]), prompt, strict=True):
                    memory[Device.GPU, number] = content
        elif not group.seqs:
            return
        elif what == "append" and not swapped:
            for seq in group.seqs:
                seq.num_blocks += draw.random() < 0.4
            if not manager.can_append(group):
                for seq in group.seqs:
                    seq.num_blocks = len(truth[seq.seq_id])
                return
            for seq in group.seqs:
                pair = manager.append(seq)
                if pair:
                    copy(dict([pair]), Device.GPU, Device.GPU)
                last = object()
                truth[seq.seq_id][seq.num_blocks - 1 :] = [last]
                memory[Device.GPU, manager.get_block_table(seq)[-1]] = last
        elif what == "fork":
            child = Seq(len(truth), group.seqs[0].num_blocks, group.seqs[0].status)
            manager.fork(group.seqs[0], child)
            truth[child.seq_id] = list(truth[group.seqs[0].seq_id])
            group.seqs.append(child)
        elif what == "swap" and swapped and manager.can_swap_in(group):
            copy(manager.swap_in(group), Device.CPU, Device.GPU)
            for seq in group.seqs:
                seq.status = SequenceStatus.SERVING
        elif what == "swap" and not swapped and manager.can_swap_out(group):
            copy(manager.swap_out(group), Device.GPU, Device.CPU)
            for seq in group.seqs:
                seq.status = SequenceStatus.SWAPPED
        elif what == "free":
            manager.free(group.seqs.pop())
            if not group.seqs:
                groups.remove(group)

    for _ in range(400):
        step()
        manager.check_invariants()
        for group in groups:
            for seq in group.seqs:
                table = manager.block_tables[seq.seq_id]
                assert [memory[block.device, block.block_number] for block in table] == truth[seq.seq_id]
        held = {
            (block.device, block.block_number) for table in manager.block_tables.values() for block in table
        }
        assert manager.get_num_free_gpu_blocks() + manager.get_num_free_cpu_blocks() + len(held) == 22
    no_leak(manager)


@pytest.mark.lineage(ancestor="003", item="an engine's own Device, AllocStatus and SequenceStatus")
def test_the_engine_s_own_enums() -> None:
    device = own_enum("Device", "GPU CPU")
    status = own_enum("AllocStatus", "OK LATER NEVER")
    state = own_enum("SequenceStatus", "SERVING")
    manager, group = allocated(1, 2)
    (block, _) = manager.block_tables[0]
    assert block.device == device["GPU"]
    assert device["GPU"] == block.device
    assert block.device != device["CPU"]
    assert manager.can_allocate(group) == status["OK"]
    assert manager.can_allocate(group_of(1, 9)) == status["NEVER"]
    assert manager.can_allocate(group) != device["GPU"]
    assert state["SERVING"] == SequenceStatus.SERVING
    allocator = BlockAllocator(device["CPU"], 16, 2)
    assert allocator.allocate().device == Device.CPU
    manager.free(group.seqs[0])


@pytest.mark.lineage(
    ancestor="003", item="BlockAllocator.free_blocks: the free blocks, the last allocated next"
)
def test_free_blocks() -> None:
    allocator = BlockAllocator(Device.GPU, 16, 4)
    assert [block.block_number for block in allocator.free_blocks] == [0, 1, 2, 3]
    held = [allocator.allocate() for _ in range(3)]
    allocator.free(held[1])
    free = allocator.free_blocks
    assert [(block.block_number, block.ref_count, block.device) for block in free] == [
        (0, 0, Device.GPU),
        (2, 0, Device.GPU),
    ]
    free.clear()
    assert len(allocator.free_blocks) == allocator.get_num_free_blocks() == 2
    assert allocator.allocate().block_number == 2
    assert BlockAllocator(Device.CPU, 16, 0).free_blocks == []


@pytest.mark.lineage(ancestor="003", item="append takes all blocks that the table lacks")
def test_append_takes_all_missing_blocks() -> None:
    manager, group = allocated(1, 1)
    (seq,) = group.seqs
    seq.num_blocks = 4
    assert manager.append(seq) is None
    assert len(manager.get_block_table(seq)) == 4


@pytest.mark.lineage(ancestor="003", item="a swap frees table by table, a shared block with its last table")
@pytest.mark.parametrize("way", ["out", "in"])
def test_shared_blocks_freed_by_a_swap_are_reused_in_the_order_of_the_original(way: str) -> None:
    manager, group = allocated(1, 3, gpu=12)
    (parent,) = group.seqs
    child = Seq(1, 3)
    manager.fork(parent, child)
    parent.num_blocks = 4
    assert manager.append(parent) is None
    group.seqs.append(child)
    if way == "in":
        manager.swap_out(group)
    tables = [manager.get_block_table(seq) for seq in group.seqs]
    assert tables[0][:3] == tables[1]
    (manager.swap_out if way == "out" else manager.swap_in)(group)
    free = manager.gpu_allocator if way == "out" else manager.cpu_allocator
    # Releasing the first table frees the block that only this table has. Releasing the second table
    # frees the shared blocks. The block that is freed last is allocated first.
    freed = [tables[0][3], *tables[1]]
    assert [free.allocate().block_number for _ in range(4)] == freed[::-1]
    manager.check_invariants()


@pytest.mark.lineage(
    ancestor="003", item="can_allocate, can_swap_in and can_swap_out equal the original's booleans"
)
def test_an_answer_equals_the_boolean_of_the_original() -> None:
    manager, group = allocated(1, 2)
    answers = [manager.can_allocate(group), manager.can_swap_out(group), manager.can_allocate(group_of(1, 9))]
    assert [answer == True for answer in answers] == [True, True, False]  # noqa: E712
    assert [answer == False for answer in answers] == [False, False, True]  # noqa: E712
    assert [answer != True for answer in answers] == [False, False, True]  # noqa: E712
    assert AllocStatus.LATER == False  # noqa: E712
    assert AllocStatus.LATER != AllocStatus.NEVER
    assert AllocStatus.OK not in (0, 1)
    assert {AllocStatus.OK: "now"}[manager.can_allocate(group)] == "now"
