"""Tests the common parts of ancestor 004's (vLLM v0's) allocators. There is one test for each class in
section 3.2 of the ancestor's description, each error, and each interface.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.lineage import errors
from kvpool.lineage.v0.block import interfaces
from kvpool.lineage.v0.block.common import (
    BlockList,
    BlockPool,
    CacheMetricData,
    CopyOnWriteTracker,
    ReadOnlyRefCounter,
    RefCounter,
    get_all_blocks_recursively,
)
from kvpool.lineage.v0.block.naive_block import NaiveBlock, NaiveBlockAllocator
from kvpool.lineage.v0.interfaces import AllocStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def naive(num_blocks: int = 8, block_size: int = 2) -> NaiveBlockAllocator:
    return NaiveBlockAllocator(NaiveBlock, num_blocks, block_size)


@pytest.mark.lineage(ancestor="004", item="RefCounter: incr, decr, get, as_readonly")
def test_ref_counter_counts() -> None:
    counter = RefCounter(iter([7, 3, 100]))
    assert [counter.get(block) for block in (7, 3, 100)] == [0, 0, 0]
    assert [counter.incr(3), counter.incr(3), counter.incr(100), counter.decr(3)] == [1, 2, 1, 1]
    assert [counter.get(block) for block in (7, 3, 100)] == [0, 1, 1]
    assert counter.decr(3) == 0
    assert counter.incr(3) == 1


@pytest.mark.lineage(ancestor="004", item="RefCounter: unknown ids, and decr at 0, are typed errors")
@pytest.mark.parametrize(
    "error", [AssertionError, kvpool.errors.InvalidBlockError, kvpool.KvpoolError, ValueError]
)
def test_ref_counter_refuses(error: type[Exception]) -> None:
    counter = RefCounter([1])
    unknown: list[Callable[[], int]] = [
        lambda: counter.incr(2),
        lambda: counter.decr(2),
        lambda: counter.get(2),
    ]
    at_zero: list[Callable[[], int]] = [lambda: counter.decr(1)]
    for call in unknown + at_zero:
        with pytest.raises(error):
            call()
    assert counter.get(1) == 0
    assert RefCounter([])._slots == {}


@pytest.mark.lineage(ancestor="004", item="ReadOnlyRefCounter: get, and ValueError of incr and decr")
def test_read_only_ref_counter() -> None:
    counter = RefCounter([1])
    view = counter.as_readonly()
    assert isinstance(view, ReadOnlyRefCounter)
    counter.incr(1)
    assert view.get(1) == 1
    with pytest.raises(ValueError, match="Incr not allowed"):
        view.incr(1)
    with pytest.raises(ValueError, match="Decr not allowed"):
        view.decr(1)
    assert view.get(1) == 1


@pytest.mark.lineage(ancestor="004", item="CopyOnWriteTracker: is_appendable, record_cow, clear_cows")
def test_copy_on_write_tracker() -> None:
    counter = RefCounter([0, 1])
    tracker = CopyOnWriteTracker(counter)
    block = NaiveBlock(None, [], 2, naive(), block_id=None)
    assert tracker.is_appendable(block)
    block.block_id = 1
    appendable = []
    for _ in range(3):
        appendable.append(tracker.is_appendable(block))
        counter.incr(1)
    assert appendable == [True, True, False]
    tracker.record_cow(1, 5)
    tracker.record_cow(0, 4)
    tracker.record_cow(1, 3)
    for src, dst in ((None, 1), (1, None)):
        with pytest.raises(AssertionError):
            tracker.record_cow(src, dst)
    assert tracker.clear_cows() == [(1, 5), (0, 4), (1, 3)]
    assert tracker.clear_cows() == []


@pytest.mark.lineage(ancestor="004", item="BlockPool: init_block, free_block (LIFO numbers), increase_pool")
def test_block_pool_numbers_handles() -> None:
    allocator = naive()
    pool = BlockPool(2, NaiveBlock, allocator, 2)
    blocks: list[Any] = [pool.init_block(None, [token], 2, None) for token in range(5)]
    assert [block.pool_id for block in blocks] == [0, 1, 2, 3, 4]
    assert pool.pool_size == 8  # 2, doubled twice
    assert [block.token_ids for block in blocks] == [[0], [1], [2], [3], [4]]
    pool.free_block(blocks[1])
    pool.free_block(blocks[3])
    again: list[Any] = [pool.init_block(blocks[0], [], 2, 6) for _ in range(3)]
    assert [block.pool_id for block in again] == [3, 1, 5]
    assert again[0].prev_block is blocks[0]
    assert again[0].block_id == 6


@pytest.mark.lineage(
    ancestor="004", item="BlockPool: a wrong block size, and doubling nothing, are typed errors"
)
def test_block_pool_refuses() -> None:
    pool = BlockPool(2, NaiveBlock, naive(), 0)
    with pytest.raises(AssertionError, match="doubled"):
        pool.increase_pool()
    with pytest.raises(AssertionError):
        pool.init_block(None, [], 2, None)
    with pytest.raises(AssertionError):
        BlockPool(2, NaiveBlock, naive(), 4).init_block(None, [], 3, None)
    with pytest.raises(ValueError, match="-1 handles"):
        BlockPool(2, NaiveBlock, naive(), -1)


@pytest.mark.lineage(ancestor="004", item="11: objects are not recycled into cycles")
def test_defect_11_a_new_handle_is_never_an_old_object() -> None:
    pool = BlockPool(2, NaiveBlock, naive(), 1)
    first = pool.init_block(None, [1, 2], 2, 0)
    second = pool.init_block(first, [3], 2, 1)
    pool.free_block(first)  # a sliding window has passed this block
    third = pool.init_block(second, [], 2, 2)  # the ancestor made this of `first`, and the chain a cycle
    assert third is not first
    assert second.prev_block is first
    with pytest.raises(errors.StaleBlockError):
        get_all_blocks_recursively(third)


@pytest.mark.lineage(ancestor="004", item="14: a freed object does not come to life as another block")
def test_defect_14_a_freed_handle_stays_invalid() -> None:
    pool = BlockPool(2, NaiveBlock, naive(), 1)
    old: Any = pool.init_block(None, [1], 2, 0)
    pool.free_block(old)
    new: Any = pool.init_block(None, [9], 2, 5)
    assert (new.pool_id, new.block_id, old.block_id) == (old.pool_id, 5, None)
    for use in (
        lambda: old.token_ids,
        lambda: old.is_full,
        lambda: old.prev_block,
        lambda: old.append_token_ids([1]),
        lambda: setattr(old, "block_id", 5),
        lambda: pool.free_block(old),
    ):
        with pytest.raises(errors.StaleBlockError):
            use()
    assert new.token_ids == [9]
    assert "freed" in repr(old)


@pytest.mark.lineage(
    ancestor="004", item="BlockList: update, append, append_token_ids, [], len, reset, list, ids"
)
def test_block_list() -> None:
    allocator = naive()
    blocks = allocator.allocate_immutable_blocks(None, [[1, 2], [3, 4]])
    table = BlockList(blocks)
    live, live_ids = table.list(), table.ids()
    tail = allocator.allocate_mutable_block(blocks[-1])
    table.append(tail)
    assert (live, live_ids) == ([*blocks, tail], [0, 1, 2])  # the lists themselves
    twin = allocator.fork(tail)[-1]
    table.append_token_ids(2, [5])  # shared: another id
    assert table.ids() == [0, 1, 3]
    table[2] = twin
    assert (len(table), table[2], table.ids()) == (3, twin, [0, 1, 2])
    table.update(blocks)
    assert (table.list(), table.ids()) == (blocks, [0, 1])
    table.reset()
    assert (len(table), table.list(), table.ids()) == (0, [], [])


@pytest.mark.lineage(
    ancestor="004", item="BlockList: a block without an id is a typed error and changes nothing"
)
def test_block_list_refuses_blocks_without_ids() -> None:
    allocator = naive()
    block = allocator.allocate_mutable_block(None)
    bare = NaiveBlock(None, [], 2, allocator)
    table = BlockList([block])
    calls: list[Callable[[], None]] = [
        lambda: table.append(bare),
        lambda: table.__setitem__(0, bare),
        lambda: table.update([block, bare]),
    ]
    for call in calls:
        with pytest.raises(AssertionError):
            call()
        assert (table.list(), table.ids()) == ([block], [0])
    with pytest.raises(AssertionError):
        BlockList([bare])


@pytest.mark.lineage(ancestor="004", item="3: get_all_blocks_recursively does not recurse")
def test_defect_03_a_chain_of_any_length_is_walked() -> None:
    allocator = naive(3000, 1)
    blocks = allocator.allocate_immutable_blocks(None, [[token] for token in range(3000)])
    assert get_all_blocks_recursively(blocks[-1]) == blocks
    assert get_all_blocks_recursively(blocks[0]) == blocks[:1]


@pytest.mark.lineage(ancestor="004", item="interfaces: Device, AllocStatus, NoFreeBlocksError")
def test_interfaces() -> None:
    assert [device.name for device in interfaces.Device] == ["GPU", "CPU"]
    assert [status.name for status in AllocStatus] == ["OK", "LATER", "NEVER"]
    for allocator in (interfaces.BlockAllocator, interfaces.DeviceAwareBlockAllocator):
        assert issubclass(allocator.NoFreeBlocksError, ValueError)
        assert issubclass(allocator.NoFreeBlocksError, kvpool.errors.OutOfBlocksError)
    abstract: Sequence[type] = (
        interfaces.Block,
        interfaces.BlockAllocator,
        interfaces.DeviceAwareBlockAllocator,
    )
    for cls in abstract:
        assert inspect.isabstract(cls)


@pytest.mark.lineage(ancestor="004", item="errors: old except clauses catch the new ones")
@pytest.mark.parametrize(
    ("error", "builtins"),
    [
        (errors.NoFreeBlocksError, (ValueError, MemoryError, kvpool.errors.OutOfBlocksError)),
        (errors.BlockStateError, (AssertionError, ValueError, kvpool.errors.InvalidBlockError)),
        (errors.StaleBlockError, (AssertionError, ValueError, kvpool.errors.InvalidBlockError)),
        (errors.UnknownBlockError, (AssertionError, ValueError, KeyError, kvpool.errors.InvalidBlockError)),
        (errors.ContractError, (AssertionError, ValueError, kvpool.errors.InvalidArgumentError)),
        (errors.NotSupportedError, (NotImplementedError,)),
    ],
)
def test_errors(error: type[kvpool.KvpoolError], builtins: tuple[type[Exception], ...]) -> None:
    caught: list[type[Exception]] = [kvpool.KvpoolError, *builtins]
    for builtin in caught:
        with pytest.raises(builtin):
            raise error("text")
    assert str(error("text")) == "text"


@pytest.mark.lineage(ancestor="004", item="CacheMetricData: its fields")
def test_fields_of_cache_metric_data() -> None:
    metrics = CacheMetricData(block_size=10)
    for n in range(25):
        metrics.query(hit=n % 5 == 0)
    assert (metrics.num_completed_blocks, metrics.completed_block_cache_hit_rate) == (2, 0.2)
    assert (metrics.num_incompleted_block_queries, metrics.num_incompleted_block_hit) == (5, 1)
    again = CacheMetricData(
        num_completed_blocks=metrics.num_completed_blocks,
        completed_block_cache_hit_rate=metrics.completed_block_cache_hit_rate,
        num_incompleted_block_queries=metrics.num_incompleted_block_queries,
        num_incompleted_block_hit=metrics.num_incompleted_block_hit,
        block_size=10,
    )
    assert again.get_hit_rate() == metrics.get_hit_rate() == 0.2
    assert CacheMetricData().completed_block_cache_hit_rate == 0.0
    with pytest.raises(AssertionError):
        CacheMetricData(block_size=0)
