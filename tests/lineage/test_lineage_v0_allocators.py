"""Tests the behaviours and defects that the naive and the prefix-caching allocator of ancestors 004
(vLLM v0) and 002 (Aphrodite) have in common.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.lineage.errors import BlockStateError, ContractError, NoFreeBlocksError, StaleBlockError
from kvpool.lineage.v0.block.prefix_caching_block import hash_block_tokens
from tests.lineage.rows import Counted, Row, ids, observe, rows

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPT = [[1, 2], [3, 4], [5, 6]]


@rows("NoFreeBlocksError, a ValueError")
def test_out_of_blocks(row: Row) -> None:
    allocator = row.make(2)
    row.mutable(allocator)
    row.immutable(allocator, [1, 2])
    before = observe(allocator._tiers)
    calls: list[Callable[[], object]] = [
        lambda: row.mutable(allocator),
        lambda: row.immutable(allocator, [3, 4]),
    ]
    for call in calls:
        with pytest.raises(NoFreeBlocksError):
            call()
        with pytest.raises(ValueError, match="block"):
            call()
    assert observe(allocator._tiers) == before


@rows("custom block_ids, get_physical_block_id, and the errors of the constructor")
def test_block_ids(row: Row) -> None:
    allocator = row.make(3, block_ids=[30, 10, 20])
    assert ids(allocator.allocate_immutable_blocks(None, PROMPT)) == [30, 10, 20]
    assert allocator.all_block_ids == frozenset({10, 20, 30})
    assert [allocator.get_physical_block_id(block) for block in (10, 20, 30)] == [0, 1, 2]
    assert row.make(2, block_ids=(5 + n for n in range(2))).all_block_ids == {
        5,
        6,
    }  # a generator is read once
    refused: list[Callable[[], object]] = [
        lambda: row.make(3, block_ids=[1, 2]),
        lambda: row.make(2, block_ids=[1, 1]),
        lambda: row.make(-1),
    ]
    for call in refused:
        with pytest.raises(ContractError):
            call()
    with pytest.raises(kvpool.errors.InvalidArgumentError):
        row.make(2, block_size=0)


@rows("counts of blocks; an allocator of no blocks")
def test_counts(row: Row) -> None:
    allocator = row.make(4)
    assert (allocator.get_num_total_blocks(), allocator.get_num_free_blocks()) == (4, 4)
    block = row.mutable(allocator)
    assert (allocator.get_num_total_blocks(), allocator.get_num_free_blocks()) == (4, 3)
    assert allocator.refcounter.get(0) == 1
    allocator.free(block)
    assert allocator.get_num_free_blocks() == 4
    none = row.make(0)
    assert (none.get_num_total_blocks(), none.get_num_free_blocks(), none.all_block_ids) == (
        0,
        0,
        frozenset(),
    )
    with pytest.raises(NoFreeBlocksError):
        row.mutable(none)
    assert none.reset_prefix_cache()


@rows("a device is refused")
def test_device(row: Row) -> None:
    allocator = row.make()
    calls: list[Callable[[], object]] = [
        lambda: row.mutable(allocator, device="gpu"),
        lambda: row.immutable(allocator, [1, 2], device="gpu"),
        lambda: allocator.allocate_immutable_blocks(None, [[1, 2]], device="gpu"),
    ]
    for call in calls:
        with pytest.raises(AssertionError):
            call()
    assert row.mutable(allocator, device=None).block_id == 0
    assert allocator.get_num_free_blocks() == 7


@rows("fork shares every block with new objects")
def test_fork(row: Row) -> None:
    allocator = row.make()
    first, last = allocator.allocate_immutable_blocks(None, PROMPT[:2])
    forked = allocator.fork(last)
    assert ids(forked) == [0, 1]
    assert [block.token_ids for block in forked] == PROMPT[:2]
    assert forked[0].prev_block is None
    assert forked[1].prev_block is forked[0]
    assert not {id(block) for block in forked} & {id(first), id(last)}
    assert [allocator.refcounter.get(block) for block in (0, 1, 2)] == [2, 2, 0]
    allocator.free(first)
    before = observe(allocator._tiers)
    with pytest.raises(AssertionError):
        allocator.fork(last)  # its predecessor is gone
    assert observe(allocator._tiers) == before
    for block in (last, *forked):
        allocator.free(block)
    assert allocator.get_num_free_blocks() == 8


@rows("copy on write of a shared block, and the shape of clear_copy_on_writes")
def test_copy_on_write(row: Row) -> None:
    allocator = row.make(block_size=3)
    block = row.mutable(allocator)
    block.append_token_ids([1])
    forks = [allocator.fork(block)[0] for _ in range(2)]
    for token, fork in enumerate(forks, 5):
        fork.append_token_ids([token])
    block.append_token_ids([7])  # the only holder by now
    assert ids([block, *forks]) == [0, 1, 2]
    assert [one.token_ids for one in (block, *forks)] == [[1, 7], [1, 5], [1, 6]]
    assert [allocator.refcounter.get(n) for n in range(3)] == [1, 1, 1]
    assert allocator.clear_copy_on_writes() == row.copies((0, 1), (0, 2))
    assert allocator.clear_copy_on_writes() == row.copies()


@rows("cow_block_if_not_appendable")
def test_cow_block_if_not_appendable(row: Row) -> None:
    allocator = row.make()
    block = row.mutable(allocator)
    assert allocator.cow_block_if_not_appendable(block) == 0
    allocator.fork(block)
    assert allocator.cow_block_if_not_appendable(block) == block.block_id == 1
    allocator.free(block, keep_block_object=True)
    with pytest.raises(AssertionError):
        allocator.cow_block_if_not_appendable(block)


@rows("equal content is one block", caching=True)
def test_equal_content_is_one_block(row: Row) -> None:
    allocator = row.make()
    first = row.immutable(allocator, [1, 2])
    second = row.immutable(allocator, [3, 4], first)
    again = row.immutable(allocator, [1, 2])
    assert ids([first, second, again]) == [0, 1, 0]
    assert (allocator.get_num_free_blocks(), allocator.refcounter.get(0)) == (6, 2)
    assert row.immutable(allocator, [3, 4]).block_id == 2  # another prefix


@rows(
    "free blocks first, then cached ones in the order of release, of one sequence the deepest first",
    caching=True,
)
def test_order_of_allocation(row: Row) -> None:
    allocator = row.make(5)
    blocks = [row.immutable(allocator, [n, n]) for n in range(2)]
    blocks.append(row.immutable(allocator, [2, 2], blocks[0]))
    allocator.mark_blocks_as_computed([])
    for n in (1, 0, 2):
        allocator.free(blocks[n])
    order = [1, 0, 2] if row.older else [2, 0, 1]
    assert ids(row.mutable(allocator) for _ in range(5)) == [3, 4, *order]
    with pytest.raises(NoFreeBlocksError):
        row.mutable(allocator)


@rows("a hit on a block without holders leaves the evictor, and is not evicted", caching=True)
def test_a_hit_leaves_the_evictor(row: Row) -> None:
    allocator = row.make(2)
    block = row.immutable(allocator, [1, 2])
    allocator.mark_blocks_as_computed([])
    allocator.free(block)
    assert (allocator.evictor.num_blocks, 0 in allocator.evictor, allocator.get_num_free_blocks()) == (
        1,
        True,
        2,
    )
    again = row.immutable(allocator, [1, 2])
    assert (again.block_id, again.computed) == (0, True)
    assert (allocator.evictor.num_blocks, 0 in allocator.evictor, allocator.get_num_free_blocks()) == (
        0,
        False,
        1,
    )
    assert row.mutable(allocator).block_id == 1
    with pytest.raises(NoFreeBlocksError):
        row.mutable(allocator)


@rows("promotion onto cached content changes the id, and releases the own block", caching=True)
def test_promotion(row: Row) -> None:
    allocator = row.make()
    cached = row.immutable(allocator, [1, 2])
    allocator.mark_blocks_as_computed([])
    allocator.free(cached)
    block = row.mutable(allocator)
    block.append_token_ids([1])
    assert (block.block_id, block.computed) == (1, False)
    block.append_token_ids([2])
    assert (block.block_id, block.computed, allocator.refcounter.get(0)) == (0, True, 1)
    assert allocator.promote_to_immutable_block(block) == 0
    assert (allocator.get_num_free_blocks(), row.mutable(allocator).block_id) == (7, 1)


@rows("3: fork of a long chain")
def test_defect_03_fork_does_not_recurse(row: Row) -> None:
    allocator = row.make(5000, 1)
    blocks = allocator.allocate_immutable_blocks(None, [[token] for token in range(5000)])
    forked = allocator.fork(blocks[-1])
    assert ids(forked) == list(range(5000))
    assert [block.content_hash for block in forked] == [block.content_hash for block in blocks]
    assert not row.caching or forked[-1].num_tokens_total == 5000


@rows("5: blocks freed before they are computed are no hits", caching=True)
def test_defect_05_an_aborted_block_is_not_cached(row: Row) -> None:
    allocator = row.make()
    block = row.immutable(allocator, [1, 2])
    assert allocator.is_block_cached(block) is True
    allocator.free(block)
    assert allocator.evictor.num_blocks == 0
    assert not row.immutable(allocator, [1, 2]).computed


@rows("7: a full block behind an unhashed one is not hashed", caching=True)
def test_defect_07_two_prompts_do_not_share_what_they_have_not_in_common(row: Row) -> None:
    allocator = row.make()
    tails = []
    for token in (1, 2):
        partial = row.mutable(allocator)
        partial.append_token_ids([token])  # has no hash
        tail = row.mutable(allocator, partial)
        tail.append_token_ids([8, 9])
        tails.append(tail)
        behind = [tail, row.immutable(allocator, [8, 9], partial), row.immutable(allocator, [5, 5], tail)]
        assert [block.content_hash for block in behind] == [None] * 3
        partial.append_token_ids([3])  # filled afterwards
        assert partial.content_hash == hash_block_tokens(True, None, [token, 3])
        assert tail.content_hash is None  # and still has none
    assert tails[0].block_id != tails[1].block_id  # the ancestor: one block
    with pytest.raises(AssertionError):
        hash_block_tokens(False, None, [8, 9])


@rows("8: copy on write without a free block changes nothing")
@pytest.mark.parametrize("tokens", [[2], [2, 3]])
def test_defect_08_a_failed_copy_leaves_the_block_as_it_was(row: Row, tokens: list[int]) -> None:
    allocator = row.make(1, 3)
    block = row.mutable(allocator)
    block.append_token_ids([1])
    twin = allocator.fork(block)[0]
    before = observe(allocator._tiers)
    with pytest.raises(NoFreeBlocksError):
        twin.append_token_ids(tokens)
    assert (twin.token_ids, twin.block_id, twin.content_hash) == ([1], 0, None)
    assert observe(allocator._tiers) == before
    assert allocator.clear_copy_on_writes() == row.copies()
    allocator.free(block)
    twin.append_token_ids(tokens)
    assert (twin.token_ids, twin.block_id) == ([1, *tokens], 0)


@rows("9: swapping a forked group keeps sharing")
def test_defect_09_shared_blocks_are_shared_after_a_swap(row: Row) -> None:
    device, host = row.make(), row.make(2, block_ids=[8, 9])
    first = row.immutable(device, [1, 2])
    tail = row.mutable(device, first)
    tail.append_token_ids([3])
    group = [first, tail, *device.fork(tail)]
    device.swap_out(group)
    host.swap_in(group)  # the ancestor needs three blocks: the tail is not found by its content
    assert ids(group) == [8, 9, 8, 9]
    assert [host.refcounter.get(n) for n in (8, 9)] == [2, 2]
    assert (device.get_num_free_blocks(), host.get_num_free_blocks()) == (8, 0)


@rows("10: a swap_in that does not fit changes nothing")
def test_defect_10_a_swap_in_without_room_leaves_every_handle_alone(row: Row) -> None:
    device, host = row.make(4), row.make(1, block_ids=[4])
    table = device.allocate_immutable_blocks(None, PROMPT[:2])
    device.swap_out(table)
    before = observe(host._tiers)
    with pytest.raises(NoFreeBlocksError):
        host.swap_in(table)
    assert ids(table) == [None, None]
    assert observe(host._tiers) == before
    device.swap_in(table)
    assert ids(table) == [1, 0]  # freed last, allocated first


@rows("10: a swap_out that is refused changes nothing")
def test_a_refused_swap_out_releases_nothing(row: Row) -> None:
    allocator = row.make(4)
    table = allocator.allocate_immutable_blocks(None, PROMPT[:2])
    stale = row.mutable(allocator)
    allocator.free(stale)
    foreign = row.mutable(row.make(2, block_ids=[8, 9]))
    before = observe(allocator._tiers)
    for wrong in ([*table, stale], [*table, foreign], [*table, table[0]]):
        with pytest.raises(BlockStateError):
            allocator.swap_out(wrong)
        assert (observe(allocator._tiers), ids(table)) == (before, [0, 1])


@rows("12: a shared block is counted once")
def test_defect_12_full_blocks_are_counted_by_physical_block(row: Row) -> None:
    device, host = row.make(), row.make()
    table = device.allocate_immutable_blocks(None, PROMPT[:2])
    tail = row.mutable(device, table[-1])
    group = [*table, tail, *device.fork(tail)]
    assert host.get_num_full_blocks_touched(group) == 2  # the ancestor: 4
    device.swap_out(group)
    assert host.get_num_full_blocks_touched(group[:2]) == 2


@rows("13, 20: batch allocation is all or nothing, and immutable blocks are full")
def test_defects_13_20_batches(row: Row) -> None:
    allocator = row.make(2)
    before = observe(allocator._tiers)
    with pytest.raises(NoFreeBlocksError):
        allocator.allocate_immutable_blocks(None, PROMPT)
    wrong: list[list[list[int]]] = [[[1, 2], [3]], [[1, 2, 3]], [[]]]
    for chunks in wrong:
        with pytest.raises(ContractError):
            allocator.allocate_immutable_blocks(None, chunks)
    with pytest.raises(AssertionError):
        row.immutable(allocator, [1])
    assert observe(allocator._tiers) == before


@rows("14: use after free is an error")
def test_defect_14_use_after_free_is_no_alias(row: Row) -> None:
    allocator = row.make()
    old: Any = row.immutable(allocator, [1, 2])
    allocator.free(old)
    new = row.immutable(allocator, [3, 4])
    assert (new.block_id, old.block_id) == (0, None)
    before = observe(allocator._tiers)
    uses: list[Callable[[], object]] = [
        lambda: allocator.free(old),
        lambda: allocator.fork(old),
        lambda: old.append_token_ids([5]),
        lambda: old.token_ids,
        lambda: allocator.cow_block_if_not_appendable(old),
        lambda: row.mutable(allocator, old),
        lambda: row.immutable(allocator, [5, 6], old),
        lambda: allocator.swap_out([new, old]),
        lambda: allocator.swap_in([old]),
        lambda: allocator.get_num_full_blocks_touched([old]),
    ]
    of_cached: list[Callable[[], object]] = [
        lambda: old.content_hash,
        lambda: old.computed,
        lambda: old.last_accessed,
        lambda: old.num_tokens_total,
        lambda: old.extra_hash,
        lambda: setattr(old, "last_accessed", 1.0),
        lambda: setattr(old, "computed", True),
        lambda: setattr(old, "block_id", 0),
        lambda: allocator.promote_to_immutable_block(old),
        lambda: allocator.is_block_cached(old),
    ]
    for use in uses + of_cached * row.caching:
        with pytest.raises(StaleBlockError):
            use()
        assert observe(allocator._tiers) == before
    assert new.token_ids == [3, 4]


@rows("18: the source of a planned copy is not handed out")
def test_defect_18_a_copy_s_source_and_destination_are_pinned(row: Row) -> None:
    allocator = row.make(3)
    block = row.mutable(allocator)
    block.append_token_ids([1])
    twin = allocator.fork(block)[0]
    twin.append_token_ids([2])  # 0 -> 1 is planned
    allocator.free(block)
    assert row.mutable(allocator).block_id == 2  # not 0
    with pytest.raises(NoFreeBlocksError):
        row.mutable(allocator)
    assert allocator.clear_copy_on_writes() == row.copies((0, 1))
    assert row.mutable(allocator).block_id == 0


@rows("19: get_physical_block_id does not sort")
def test_defect_19_physical_ids_need_no_comparison(row: Row) -> None:
    block_ids = [Counted(block) for block in (*range(500, 1000), *range(500))]
    allocator, by_default = row.make(1000, block_ids=block_ids), row.make(1000)
    Counted.compared = 0
    assert [allocator.get_physical_block_id(block) for block in block_ids] == block_ids
    assert Counted.compared == 0  # the ancestor: a sort of all ids, each time
    assert [by_default.get_physical_block_id(block) for block in range(1000)] == list(range(1000))
    for wrong in (1000, -1):
        for refuses in (allocator, by_default):
            with pytest.raises(KeyError):
                refuses.get_physical_block_id(wrong)
