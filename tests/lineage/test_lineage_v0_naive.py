"""Tests the naive allocator of ancestor 004, vLLM v0 (section 3.3 of its description), where it differs
from the prefix-caching allocator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.lineage.v0.block.common import BlockPool
from kvpool.lineage.v0.block.interfaces import BlockAllocator
from kvpool.lineage.v0.block.naive_block import NaiveBlock, NaiveBlockAllocator
from tests.lineage.rows import ids, lineage, observe

if TYPE_CHECKING:
    from collections.abc import Iterable


NoFreeBlocksError = BlockAllocator.NoFreeBlocksError


def make(
    num_blocks: int = 8, block_size: int = 2, block_ids: Iterable[int] | None = None
) -> NaiveBlockAllocator:
    return NaiveBlockAllocator(NaiveBlock, num_blocks, block_size, block_ids)


@lineage("naive: allocation in id order, freed last is allocated first")
def test_allocation_order() -> None:
    allocator = make(4)
    blocks = [allocator.allocate_mutable_block(prev_block=None) for _ in range(3)]
    assert ids(blocks) == [0, 1, 2]
    allocator.free(blocks[0])
    allocator.free(blocks[2])
    assert ids(allocator.allocate_mutable_block(None) for _ in range(3)) == [2, 0, 3]


@lineage("naive: a shared block_pool is used")
def test_block_pool() -> None:
    allocator = make()
    pool = BlockPool(2, NaiveBlock, allocator, 1)
    sharing = NaiveBlockAllocator(create_block=NaiveBlock, num_blocks=4, block_size=2, block_pool=pool)
    sharing.allocate_immutable_blocks(None, [[1, 2]] * 3)
    assert pool.pool_size == 4


@lineage("naive: free, keep_block_object, a second free, free_block_id")
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


@lineage("naive: what is not cached")
def test_nothing_is_cached() -> None:
    allocator = make()
    block = allocator.allocate_immutable_block(None, [1, 2])
    with pytest.raises(NotImplementedError, match="There is no promotion for naive blocks"):
        allocator.promote_to_immutable_block(block)
    assert allocator.get_common_computed_block_ids([[1], [1]]) == []
    assert allocator.find_cached_blocks_prefix([1, 2]) == []
    before = observe(allocator._tiers)
    allocator.mark_blocks_as_accessed([0], 1.0)
    allocator.mark_blocks_as_computed([])
    assert observe(allocator._tiers) == before
    assert (allocator.get_prefix_cache_hit_rate(), allocator.reset_prefix_cache()) == (-1, True)
    again = allocator.allocate_immutable_block(None, [1, 2])
    assert again.block_id == 1  # equal content, another block


@lineage("NaiveBlock: append, slots, is_full, and what it does not know")
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
    assert (block.content_hash, block.extra_hash, block.block_id, block.prev_block) == (
        None,
        None,
        None,
        None,
    )
    for name in ("num_tokens_total", "computed", "last_accessed"):
        with pytest.raises(NotImplementedError):
            getattr(block, name)
    for name in ("computed", "last_accessed"):
        with pytest.raises(NotImplementedError):
            setattr(block, name, 1)
    block.token_ids.append(9)  # a copy
    assert block.token_ids == [1, 2, 3, 4]


@lineage("NaiveBlock: _cow_target is what is copied")
def test_cow_target() -> None:
    allocator = make()
    target = allocator.allocate_mutable_block(None)
    allocator.fork(target)
    inner = NaiveBlock(None, [], 2, allocator, target.block_id, _cow_target=target)
    inner.append_token_ids([1])
    assert inner.block_id == target.block_id == 1


@lineage("naive: swap_out keeps objects, swap_in finds them blocks")
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


@lineage("13: a block that cannot be made leaks nothing")
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
