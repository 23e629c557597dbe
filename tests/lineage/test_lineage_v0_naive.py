"""Ancestor 004, the naive allocator of 3.3: surface, behaviours, and the defects that it has, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.lineage.errors import BlockStateError, ContractError, StaleBlockError
from kvpool.lineage.v0.block.common import BlockPool
from kvpool.lineage.v0.block.interfaces import BlockAllocator
from kvpool.lineage.v0.block.naive_block import NaiveBlock, NaiveBlockAllocator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvpool.lineage.v0.block.interfaces import Block

NoFreeBlocksError = BlockAllocator.NoFreeBlocksError


def make(num_blocks: int = 8, block_size: int = 2, block_ids: Iterable[int] | None = None) -> NaiveBlockAllocator:
    return NaiveBlockAllocator(NaiveBlock, num_blocks, block_size, block_ids)


def ids(blocks: Iterable[Block]) -> list[int | None]:
    return [block.block_id for block in blocks]


def observe(allocator: NaiveBlockAllocator) -> object:
    """All that a failed call must leave alone."""
    allocator._tiers.check_invariants()
    pool = allocator._pool
    counts = [pool.ref_count(block) for block in range(1, pool.num_blocks)]
    return pool.free_order(), pool.eviction_order(), counts, allocator._tiers.pending_copies()


@pytest.mark.lineage(ancestor="004", item="naive: allocation in id order, freed last is allocated first")
def test_allocation_order() -> None:
    allocator = make(4)
    blocks = [allocator.allocate_mutable_block(prev_block=None) for _ in range(3)]
    assert ids(blocks) == [0, 1, 2]
    allocator.free(blocks[0])
    allocator.free(blocks[2])
    assert ids(allocator.allocate_mutable_block(None) for _ in range(3)) == [2, 0, 3]


@pytest.mark.lineage(ancestor="004", item="naive: NoFreeBlocksError, a ValueError")
def test_out_of_blocks() -> None:
    allocator = make(2)
    allocator.allocate_mutable_block(None)
    allocator.allocate_immutable_block(None, [1, 2])
    before = observe(allocator)
    calls: list[Callable[[], Block]] = [
        lambda: allocator.allocate_mutable_block(None),
        lambda: allocator.allocate_immutable_block(None, [1, 2]),
    ]
    for call in calls:
        with pytest.raises(NoFreeBlocksError):
            call()
        with pytest.raises(ValueError, match="block"):
            call()
    assert observe(allocator) == before


@pytest.mark.lineage(ancestor="004", item="naive: custom block_ids, and the errors of the constructor")
def test_block_ids() -> None:
    allocator = make(3, block_ids=[30, 10, 20])
    blocks = allocator.allocate_immutable_blocks(None, [[1, 2], [3, 4], [5, 6]])
    assert ids(blocks) == [30, 10, 20]
    assert allocator.all_block_ids == frozenset({10, 20, 30})
    assert [allocator.get_physical_block_id(block) for block in (10, 20, 30)] == [0, 1, 2]
    assert make(2, block_ids=(5 + n for n in range(2))).all_block_ids == {5, 6}  # a generator is read once
    refused: list[Callable[[], object]] = [
        lambda: make(3, block_ids=[1, 2]),
        lambda: make(2, block_ids=[1, 1]),
        lambda: make(-1),
        lambda: make(2, block_size=0),
    ]
    for call in refused:
        with pytest.raises(kvpool.errors.InvalidArgumentError):
            call()


@pytest.mark.lineage(ancestor="004", item="naive: counts of blocks; an allocator of no blocks")
def test_counts() -> None:
    allocator = make(4)
    assert (allocator.get_num_total_blocks(), allocator.get_num_free_blocks()) == (4, 4)
    block = allocator.allocate_mutable_block(None)
    assert (allocator.get_num_total_blocks(), allocator.get_num_free_blocks()) == (4, 3)
    assert allocator.refcounter.get(0) == 1
    allocator.free(block)
    assert allocator.get_num_free_blocks() == 4
    none = make(0)
    assert (none.get_num_total_blocks(), none.get_num_free_blocks(), none.all_block_ids) == (0, 0, frozenset())
    with pytest.raises(NoFreeBlocksError):
        none.allocate_mutable_block(None)
    assert none.reset_prefix_cache()


@pytest.mark.lineage(ancestor="004", item="naive: a device is refused; a shared block_pool is used")
def test_device_and_block_pool() -> None:
    allocator = make()
    with pytest.raises(AssertionError):
        allocator.allocate_mutable_block(None, device="gpu")
    with pytest.raises(AssertionError):
        allocator.allocate_immutable_block(None, [1, 2], device="gpu")
    with pytest.raises(AssertionError):
        allocator.allocate_immutable_blocks(None, [[1, 2]], device="gpu")
    assert allocator.get_num_free_blocks() == 8
    pool = BlockPool(2, NaiveBlock, allocator, 1)
    sharing = NaiveBlockAllocator(create_block=NaiveBlock, num_blocks=4, block_size=2, block_pool=pool)
    sharing.allocate_immutable_blocks(None, [[1, 2]] * 3)
    assert pool.pool_size == 4


@pytest.mark.lineage(ancestor="004", item="naive: free, keep_block_object, a second free, free_block_id")
def test_free() -> None:
    allocator = make(2)
    block = allocator.allocate_immutable_block(None, [1, 2])
    twin = allocator.fork(block)[0]
    allocator.free(block)
    assert (block.block_id, allocator.get_num_free_blocks(), allocator.refcounter.get(0)) == (None, 1, 1)
    with pytest.raises(AssertionError):
        allocator.free(block)
    assert allocator.refcounter.get(0) == 1
    allocator.free(twin, keep_block_object=True)
    assert (twin.block_id, twin.token_ids, allocator.get_num_free_blocks()) == (None, [1, 2], 2)
    with pytest.raises(AssertionError):
        allocator.free(twin)
    allocator.allocate_mutable_block(None)
    allocator.free_block_id(0)
    assert allocator.get_num_free_blocks() == 2
    for block_id in (0, 9):
        with pytest.raises(kvpool.errors.InvalidBlockError):
            allocator.free_block_id(block_id)


@pytest.mark.lineage(ancestor="004", item="naive: fork shares every block with new objects")
def test_fork() -> None:
    allocator = make()
    first, last = allocator.allocate_immutable_blocks(None, [[1, 2], [3, 4]])
    forked = allocator.fork(last)
    assert ids(forked) == [0, 1]
    assert [block.token_ids for block in forked] == [[1, 2], [3, 4]]
    assert forked[0].prev_block is None
    assert forked[1].prev_block is forked[0]
    assert not {id(block) for block in forked} & {id(first), id(last)}
    assert [allocator.refcounter.get(block) for block in (0, 1, 2)] == [2, 2, 0]
    allocator.free(first)
    before = observe(allocator)
    with pytest.raises(AssertionError):
        allocator.fork(last)  # its predecessor is gone
    assert observe(allocator) == before


@pytest.mark.lineage(ancestor="004", item="naive: copy on write of a shared block")
def test_copy_on_write() -> None:
    allocator = make()
    block = allocator.allocate_mutable_block(None)
    block.append_token_ids([1])
    twin = allocator.fork(block)[0]
    twin.append_token_ids([2])
    block.append_token_ids([3])  # alone by now
    assert (block.block_id, twin.block_id) == (0, 1)
    assert (block.token_ids, twin.token_ids) == ([1, 3], [1, 2])
    assert [allocator.refcounter.get(n) for n in (0, 1)] == [1, 1]
    assert allocator.clear_copy_on_writes() == [(0, 1)]
    assert allocator.clear_copy_on_writes() == []


@pytest.mark.lineage(ancestor="004", item="naive: cow_block_if_not_appendable")
def test_cow_block_if_not_appendable() -> None:
    allocator = make()
    block = allocator.allocate_mutable_block(None)
    assert allocator.cow_block_if_not_appendable(block) == 0
    allocator.fork(block)
    assert allocator.cow_block_if_not_appendable(block) == block.block_id == 1
    allocator.free(block, keep_block_object=True)
    with pytest.raises(AssertionError):
        allocator.cow_block_if_not_appendable(block)


@pytest.mark.lineage(ancestor="004", item="naive: what is not cached")
def test_nothing_is_cached() -> None:
    allocator = make()
    block = allocator.allocate_immutable_block(None, [1, 2])
    with pytest.raises(NotImplementedError, match="There is no promotion for naive blocks"):
        allocator.promote_to_immutable_block(block)
    assert allocator.get_common_computed_block_ids([[1], [1]]) == []
    assert allocator.find_cached_blocks_prefix([1, 2]) == []
    before = observe(allocator)
    allocator.mark_blocks_as_accessed([0], 1.0)
    allocator.mark_blocks_as_computed([])
    assert observe(allocator) == before
    assert (allocator.get_prefix_cache_hit_rate(), allocator.reset_prefix_cache()) == (-1, True)
    again = allocator.allocate_immutable_block(None, [1, 2])
    assert again.block_id == 1  # equal content, another block


@pytest.mark.lineage(ancestor="004", item="NaiveBlock: append, slots, is_full, and what it does not know")
def test_naive_block() -> None:
    allocator = make(block_size=4)
    block: Any = NaiveBlock(None, [1], 4, allocator, block_id=None, _cow_target=None, extra_hash=5)
    assert (block.token_ids, block.num_empty_slots, block.is_full, block.block_size) == ([1], 3, False, 4)
    block.append_token_ids([2, 3, 4])
    assert (block.token_ids, block.num_empty_slots, block.is_full) == ([1, 2, 3, 4], 0, True)
    with pytest.raises(AssertionError):
        block.append_token_ids([5])
    with pytest.raises(AssertionError):
        NaiveBlock(None, [1, 2, 3], 2, allocator)
    assert (block.content_hash, block.extra_hash, block.block_id, block.prev_block) == (None, None, None, None)
    for name in ("num_tokens_total", "computed", "last_accessed"):
        with pytest.raises(NotImplementedError):
            getattr(block, name)
    for name in ("computed", "last_accessed"):
        with pytest.raises(NotImplementedError):
            setattr(block, name, 1)
    block.token_ids.append(9)  # a copy
    assert block.token_ids == [1, 2, 3, 4]


@pytest.mark.lineage(ancestor="004", item="NaiveBlock: _cow_target is what is copied")
def test_cow_target() -> None:
    allocator = make()
    target = allocator.allocate_mutable_block(None)
    allocator.fork(target)
    inner = NaiveBlock(None, [], 2, allocator, target.block_id, _cow_target=target)
    inner.append_token_ids([1])
    assert inner.block_id == target.block_id == 1


@pytest.mark.lineage(ancestor="004", item="naive: swap_out keeps objects, swap_in finds them blocks")
def test_swap() -> None:
    device, host = make(4), make(4, block_ids=range(4, 8))
    first = device.allocate_immutable_block(None, [1, 2])
    tail = device.allocate_mutable_block(first)
    tail.append_token_ids([3])
    device.swap_out([first, tail])
    assert (ids([first, tail]), device.get_num_free_blocks()) == ([None, None], 4)
    host.swap_in([first, tail])
    assert ids([first, tail]) == [4, 5]
    assert [first.token_ids, tail.token_ids, tail.prev_block] == [[1, 2], [3], first]
    assert host.get_num_free_blocks() == 2
    twin = host.fork(tail)[-1]
    twin.append_token_ids([4])  # the handle has moved with its block
    assert host.clear_copy_on_writes() == [(5, 6)]
    for wrong in ([first], [tail, tail]):
        with pytest.raises(AssertionError):
            host.swap_in(wrong)


# The defects.


@pytest.mark.lineage(ancestor="004", item="3: fork of a long chain")
def test_defect_03_fork_does_not_recurse() -> None:
    allocator = make(5000, 1)
    blocks = allocator.allocate_immutable_blocks(None, [[token] for token in range(5000)])
    assert ids(allocator.fork(blocks[-1])) == list(range(5000))


@pytest.mark.lineage(ancestor="004", item="8: copy on write without a free block changes nothing")
def test_defect_08_a_failed_copy_leaves_the_block_as_it_was() -> None:
    allocator = make(1)
    block = allocator.allocate_mutable_block(None)
    block.append_token_ids([1])
    twin = allocator.fork(block)[0]
    before = observe(allocator)
    with pytest.raises(NoFreeBlocksError):
        twin.append_token_ids([2])
    assert (twin.token_ids, twin.block_id, allocator.refcounter.get(0)) == ([1], 0, 2)
    assert observe(allocator) == before
    allocator.free(block)
    twin.append_token_ids([2])
    assert (twin.token_ids, twin.block_id) == ([1, 2], 0)


@pytest.mark.lineage(ancestor="004", item="9: swapping a forked group keeps sharing")
def test_defect_09_shared_blocks_are_shared_after_a_swap() -> None:
    device, host = make(4), make(4, block_ids=range(4, 8))
    table = device.allocate_immutable_blocks(None, [[1, 2], [3, 4]])
    group = [*table, *device.fork(table[-1])]
    device.swap_out(group)
    assert device.get_num_free_blocks() == 4
    host.swap_in(group)
    assert ids(group) == [4, 5, 4, 5]
    assert host.get_num_free_blocks() == 2
    assert host.refcounter.get(4) == 2


@pytest.mark.lineage(ancestor="004", item="10: a swap_in that does not fit changes nothing")
def test_defect_10_a_failed_swap_in_leaves_every_handle_alone() -> None:
    device, host = make(4), make(1, block_ids=[4])
    table = device.allocate_immutable_blocks(None, [[1, 2], [3, 4]])
    device.swap_out(table)
    before = observe(host)
    with pytest.raises(NoFreeBlocksError):
        host.swap_in(table)
    assert ids(table) == [None, None]
    assert observe(host) == before
    device.swap_in(table)
    assert ids(table) == [1, 0]  # freed last, taken first


@pytest.mark.lineage(ancestor="004", item="10: a swap_out that is refused changes nothing")
def test_a_refused_swap_out_releases_nothing() -> None:
    allocator = make(4)
    table = allocator.allocate_immutable_blocks(None, [[1, 2], [3, 4]])
    stale = allocator.allocate_mutable_block(None)
    allocator.free(stale)
    foreign = make(2, block_ids=[8, 9]).allocate_mutable_block(None)
    before = observe(allocator)
    for wrong in ([*table, stale], [*table, foreign], [*table, table[0]]):
        with pytest.raises(BlockStateError):
            allocator.swap_out(wrong)
        assert (observe(allocator), ids(table)) == (before, [0, 1])


@pytest.mark.lineage(ancestor="004", item="12: a shared block is counted once")
def test_defect_12_full_blocks_are_counted_by_physical_block() -> None:
    allocator = make()
    table = allocator.allocate_immutable_blocks(None, [[1, 2], [3, 4]])
    tail = allocator.allocate_mutable_block(table[-1])
    group = [*table, tail, *allocator.fork(tail)]
    assert allocator.get_num_full_blocks_touched(group) == 2  # the ancestor: 4
    allocator.swap_out(group)
    assert allocator.get_num_full_blocks_touched(group[:2]) == 2


@pytest.mark.lineage(ancestor="004", item="13: batch allocation is all or nothing")
def test_defect_13_a_batch_that_does_not_fit_takes_nothing() -> None:
    allocator = make(2)
    before = observe(allocator)
    with pytest.raises(NoFreeBlocksError):
        allocator.allocate_immutable_blocks(None, [[1, 2], [3, 4], [5, 6]])
    assert observe(allocator) == before
    assert allocator.get_num_free_blocks() == 2


@pytest.mark.lineage(ancestor="004", item="13: a block that cannot be made leaks nothing")
def test_a_failing_factory_leaks_nothing() -> None:
    made: list[NaiveBlock] = []

    def create(*args: Any, **kwargs: Any) -> NaiveBlock:
        if len(made) == 2:
            raise RuntimeError("no block today")
        made.append(NaiveBlock(*args, **kwargs))
        return made[-1]

    allocator = NaiveBlockAllocator(create, 4, 2)
    with pytest.raises(RuntimeError):
        allocator.allocate_immutable_blocks(None, [[1, 2]] * 3)
    assert allocator.get_num_free_blocks() == 4
    made.clear()
    block = allocator.allocate_mutable_block(None)
    made.append(made[0])
    with pytest.raises(RuntimeError):
        allocator.fork(block)
    assert allocator.refcounter.get(0) == 1


@pytest.mark.lineage(ancestor="004", item="14: use after free is an error")
def test_defect_14_use_after_free_is_no_alias() -> None:
    allocator = make()
    old = allocator.allocate_immutable_block(None, [1, 2])
    allocator.free(old)
    new = allocator.allocate_mutable_block(None)
    assert new.block_id == 0
    before = observe(allocator)
    uses: list[Callable[[], object]] = [
        lambda: allocator.free(old),
        lambda: allocator.fork(old),
        lambda: old.append_token_ids([]),
        lambda: old.token_ids,
        lambda: allocator.cow_block_if_not_appendable(old),
        lambda: allocator.swap_out([old]),
        lambda: allocator.swap_in([old]),
        lambda: allocator.allocate_mutable_block(old),
        lambda: allocator.get_num_full_blocks_touched([old]),
    ]
    for use in uses:
        with pytest.raises(StaleBlockError):
            use()
        assert observe(allocator) == before
    assert new.token_ids == []


@pytest.mark.lineage(ancestor="004", item="18: the source of a planned copy is not handed out")
def test_defect_18_a_copy_s_source_and_destination_are_pinned() -> None:
    allocator = make(3)
    block = allocator.allocate_mutable_block(None)
    block.append_token_ids([1])
    twin = allocator.fork(block)[0]
    twin.append_token_ids([2])  # 0 -> 1 is planned
    allocator.free(block)
    assert allocator.allocate_mutable_block(None).block_id == 2  # not 0
    with pytest.raises(NoFreeBlocksError):
        allocator.allocate_mutable_block(None)
    assert allocator.clear_copy_on_writes() == [(0, 1)]
    assert allocator.allocate_mutable_block(None).block_id == 0


class Counted(int):
    """A block id that counts how often it is compared with another one."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)


@pytest.mark.lineage(ancestor="004", item="19: get_physical_block_id does not sort")
def test_defect_19_physical_ids_need_no_comparison() -> None:
    block_ids = [Counted(block) for block in (*range(500, 1000), *range(500))]
    allocator = make(1000, block_ids=block_ids)
    Counted.compared = 0
    assert [allocator.get_physical_block_id(block) for block in block_ids] == block_ids
    assert Counted.compared == 0  # the ancestor: a sort of all ids, each time
    by_default = make(1000)
    assert [by_default.get_physical_block_id(block) for block in range(1000)] == list(range(1000))
    for wrong in (1000, -1):
        for refuses in (allocator, by_default):
            with pytest.raises(KeyError):
                refuses.get_physical_block_id(wrong)


@pytest.mark.lineage(ancestor="004", item="20: partial chunks are not immutable")
def test_defect_20_immutable_blocks_are_full() -> None:
    allocator = make()
    before = observe(allocator)
    wrong: list[list[list[int]]] = [[[1, 2], [3]], [[1, 2, 3]], [[]]]
    for chunks in wrong:
        with pytest.raises(ContractError):
            allocator.allocate_immutable_blocks(None, chunks)
        assert observe(allocator) == before
    with pytest.raises(AssertionError):
        allocator.allocate_immutable_block(None, [1])
