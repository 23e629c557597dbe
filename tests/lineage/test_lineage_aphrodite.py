"""Ancestor 002, Aphrodite's and vLLM 0.4's allocators: the older names, shapes, and behaviours of the checklist."""

from __future__ import annotations

import enum
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.lineage import aphrodite
from kvpool.lineage.aphrodite import (
    CopyOnWriteTracker,
    NaiveBlock,
    NaiveBlockAllocator,
    PrefixCachingBlock,
    PrefixCachingBlockAllocator,
    RefCounter,
    get_all_blocks_recursively,
    hash_block_tokens,
)
from kvpool.lineage.errors import StaleBlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvpool.lineage.v0.block.interfaces import Block

EXAMPLE = Path(__file__).parents[2] / "examples" / "lineage_aphrodite.py"
Allocator = NaiveBlockAllocator | PrefixCachingBlockAllocator


def prefix(num_blocks: int = 8, block_size: int = 2, **kwargs: Any) -> PrefixCachingBlockAllocator:
    return PrefixCachingBlockAllocator(num_blocks, block_size, **kwargs)


def naive(num_blocks: int = 8, block_size: int = 2, **kwargs: Any) -> NaiveBlockAllocator:
    return NaiveBlockAllocator(NaiveBlock, num_blocks, block_size, **kwargs)


both = pytest.mark.parametrize("make", [naive, prefix])


def ids(blocks: Iterable[Block]) -> list[int | None]:
    return [block.block_id for block in blocks]


@pytest.mark.lineage(ancestor="002", item="PrefixCachingBlockAllocator: equal content is reused")
def test_reuse_of_equal_content() -> None:
    allocator = prefix()
    first = allocator.allocate_immutable(prev_block=None, token_ids=[1, 2])
    second = allocator.allocate_immutable(prev_block=first, token_ids=[3, 4])
    again = allocator.allocate_immutable(prev_block=None, token_ids=[1, 2])
    assert ids([first, second, again]) == [0, 1, 0]
    assert (allocator.get_num_free_blocks(), allocator.refcounter.get(0)) == (6, 2)
    assert allocator.allocate_immutable(None, [3, 4]).block_id == 2  # another prefix
    assert isinstance(first, PrefixCachingBlock)


@pytest.mark.lineage(ancestor="002", item="a hit on a block with no owner leaves the evictable set")
def test_a_hit_leaves_the_evictable_set() -> None:
    allocator = prefix(2)
    block = allocator.allocate_immutable(None, [1, 2])
    allocator.mark_blocks_as_computed([])
    allocator.free(block)
    assert (allocator.evictor.num_blocks, allocator.get_num_free_blocks()) == (1, 2)
    again = allocator.allocate_immutable(None, [1, 2])
    assert (again.block_id, allocator.evictor.num_blocks, allocator.get_num_free_blocks()) == (0, 0, 1)
    assert ids([allocator.allocate_mutable(None)]) == [1]
    with pytest.raises(ValueError, match="block"):  # the hit block is not evicted
        allocator.allocate_mutable(None)


@pytest.mark.lineage(ancestor="002", item="eviction only when no unhashed block is free, in the order of release")
def test_eviction_order() -> None:
    allocator = prefix(4)
    blocks = [allocator.allocate_immutable(None, [n, n]) for n in range(3)]
    allocator.mark_blocks_as_computed([])
    for n in (1, 0, 2):
        allocator.free(blocks[n])
    assert [allocator.allocate_mutable(None).block_id for _ in range(4)] == [3, 1, 0, 2]


@pytest.mark.lineage(ancestor="002", item="promotion onto a cached block changes the id and releases the own one")
def test_promotion() -> None:
    allocator = prefix()
    allocator.allocate_immutable(None, [1, 2])
    block = allocator.allocate_mutable(None)
    block.append_token_ids([1])
    assert block.block_id == 1
    block.append_token_ids([2])
    assert (block.block_id, allocator.promote_to_immutable_block(block)) == (0, 0)
    assert (allocator.get_num_free_blocks(), allocator.allocate_mutable(None).block_id) == (7, 1)


@pytest.mark.lineage(ancestor="002", item="7: hash defined only when full and the parent is hashed")
def test_defect_07_hash_needs_a_full_block_and_a_hashed_parent() -> None:
    allocator = prefix()
    first = allocator.allocate_mutable(None)
    second = allocator.allocate_mutable(first)
    second.append_token_ids([3, 4])  # its parent is not full
    assert (first.content_hash, second.content_hash) == (None, None)
    first.append_token_ids([1, 2])
    third = allocator.allocate_immutable(first, [3, 4])
    expected = hash_block_tokens(True, None, [1, 2])
    assert (first.content_hash, second.content_hash) == (expected, None)
    assert third.content_hash == PrefixCachingBlock.hash_block_tokens(False, expected, [3, 4])
    assert third.block_id != second.block_id
    with pytest.raises(AssertionError):
        hash_block_tokens(is_first_block=False, prev_block_hash=None, cur_block_token_ids=[1, 2])


@pytest.mark.lineage(ancestor="002", item="COW of a shared block; clear_copy_on_writes returns Dict[src, List[dst]]")
@both
def test_copy_on_write(make: Callable[..., Allocator]) -> None:
    allocator = make()
    block = allocator.allocate_mutable(prev_block=None)
    block.append_token_ids([1])
    forks = [allocator.fork(block)[0] for _ in range(2)]
    for token, fork in enumerate(forks, 5):
        fork.append_token_ids([token])
    block.append_token_ids([7])
    assert ids([block, *forks]) == [0, 1, 2]
    assert allocator.clear_copy_on_writes() == {0: [1, 2]}
    assert allocator.clear_copy_on_writes() == {}
    shared = allocator.allocate_mutable(None)
    allocator.fork(shared)
    assert allocator.cow_block_if_not_appendable(shared) == shared.block_id == 4


@pytest.mark.lineage(ancestor="002", item="8: COW without a free block changes nothing")
@both
def test_defect_08_a_failed_copy_changes_nothing(make: Callable[..., Allocator]) -> None:
    allocator = make(1)
    block = allocator.allocate_mutable(None)
    twin = allocator.fork(block)[0]
    with pytest.raises(ValueError, match="block"):
        twin.append_token_ids([1])
    assert (twin.block_id, twin.token_ids, allocator.refcounter.get(0)) == (0, [], 2)
    assert allocator.clear_copy_on_writes() == {}


@pytest.mark.lineage(ancestor="002", item="is_block_cached says True of a cached block")
def test_is_block_cached_is_not_inverted() -> None:
    allocator = prefix()
    block = allocator.allocate_immutable(None, [1, 2])
    assert allocator.is_block_cached(block) is True
    assert allocator.is_block_cached(PrefixCachingBlock(None, [3, 4], 2, allocator)) is False


@pytest.mark.lineage(ancestor="002", item="fork, free, counts, all_block_ids, custom block_ids")
@both
def test_surface_of_both_allocators(make: Callable[..., Allocator]) -> None:
    allocator = make(4, block_ids=[7, 5, 9, 3])
    assert allocator.all_block_ids == frozenset({3, 5, 7, 9})
    assert (allocator.get_num_free_blocks(), allocator.get_num_total_blocks()) == (4, 4)
    first = allocator.allocate_immutable(None, [1, 2])
    second = allocator.allocate_mutable(prev_block=first, device=None)
    assert ids(get_all_blocks_recursively(second)) == [7, 5]
    forked = allocator.fork(second)
    assert ids(forked) == [7, 5]
    for block in (first, second, *forked):
        allocator.free(block)
    assert allocator.get_num_free_blocks() == 4
    for call in (
        lambda: allocator.free(first),
        lambda: allocator.fork(second),
        lambda: allocator.allocate_mutable(None, device="cuda"),
        lambda: allocator.allocate_immutable(None, [1]),
    ):
        with pytest.raises(AssertionError):
            call()
    with pytest.raises(AssertionError):
        make(2, block_ids=[1, 1])


@pytest.mark.lineage(ancestor="002", item="PrefixCachingBlock and NaiveBlock: the properties, block_size an attribute")
@both
def test_blocks(make: Callable[..., Allocator]) -> None:
    allocator = make(block_size=4)
    first: Any = allocator.allocate_immutable(None, [1, 2, 3, 4])
    block: Any = allocator.allocate_mutable(first)
    block.append_token_ids([5])
    seen = (block.block_id, block.is_full, block.num_empty_slots, block.block_size, block.token_ids, block.prev_block)
    assert seen == (1, False, 3, 4, [5], first)
    assert block.content_hash is None
    assert (first.is_full, first.num_empty_slots, first.block_size) == (True, 0, 4)
    with pytest.raises(AssertionError):
        block.append_token_ids([6, 7, 8, 9])
    assert block.token_ids == [5]


@pytest.mark.lineage(ancestor="002", item="blocks made by hand, with the ancestor's parameters")
def test_blocks_made_by_hand() -> None:
    caching, plain = prefix(), naive()
    block = PrefixCachingBlock(prev_block=None, token_ids=[1, 2], block_size=2, prefix_caching_allocator=caching)
    assert block.content_hash == hash_block_tokens(True, None, [1, 2])
    other = NaiveBlock(prev_block=None, token_ids=[1], block_size=2, allocator=plain, block_id=None, _cow_target=None)
    assert (other.token_ids, other.block_id, other.content_hash) == ([1], None, None)
    with pytest.raises(AssertionError):
        PrefixCachingBlock(None, [1, 2], 2, plain)
    with pytest.raises(NotImplementedError):
        plain.promote_to_immutable_block(other)


@pytest.mark.lineage(ancestor="002", item="5: blocks freed before they are computed are no hits")
def test_defect_05_an_aborted_request_caches_nothing() -> None:
    allocator = prefix()
    allocator.free(allocator.allocate_immutable(None, [1, 2]))
    assert allocator.evictor.num_blocks == 0
    assert not allocator.is_block_cached(PrefixCachingBlock(None, [1, 2], 2, allocator))


@pytest.mark.lineage(ancestor="002", item="mark_blocks_as_computed, get_common_computed_block_ids")
def test_computed_blocks() -> None:
    allocator = prefix()
    first = allocator.allocate_immutable(None, [1, 2])
    second = allocator.allocate_immutable(first, [3, 4])
    allocator.mark_blocks_as_computed([1])
    assert (first.computed, second.computed) == (False, True)
    allocator.mark_blocks_as_computed([])
    assert (first.computed, second.computed) == (True, True)
    assert allocator.get_common_computed_block_ids([[0, 1, 2], [0, 1, 3]]) == [0, 1]
    assert naive().get_common_computed_block_ids([[0, 1], [0, 1]]) == []


@pytest.mark.lineage(ancestor="002", item="13, 20: batches are all or nothing and immutable blocks full")
@both
def test_defects_13_20_batches(make: Callable[..., Allocator]) -> None:
    allocator = make(2)
    with pytest.raises(ValueError, match="block"):
        allocator.allocate_immutable_blocks(None, [[1, 2], [3, 4], [5, 6]])
    with pytest.raises(AssertionError):
        allocator.allocate_immutable_blocks(None, [[1, 2], [3]])
    assert allocator.get_num_free_blocks() == 2


@pytest.mark.lineage(ancestor="002", item="14: use after free is an error")
@both
def test_defect_14_use_after_free(make: Callable[..., Allocator]) -> None:
    allocator = make()
    old = allocator.allocate_mutable(None)
    allocator.free(old)
    new = allocator.allocate_mutable(None)
    assert (new.block_id, old.block_id) == (0, None)
    with pytest.raises(StaleBlockError):
        old.append_token_ids([1])
    with pytest.raises(StaleBlockError):
        allocator.free(old)
    assert allocator.refcounter.get(0) == 1


@pytest.mark.lineage(ancestor="002", item="24: extra keys reach every hash")
def test_defect_24_extra_keys_separate() -> None:
    allocator = prefix()
    tenant = kvpool.ExtraKeys(tenant="a")
    plain = allocator.allocate_immutable(None, [1, 2])
    own = allocator.allocate_immutable(None, [1, 2], extra=tenant)
    typed = allocator.allocate_mutable(None, extra=tenant)
    typed.append_token_ids([1, 2])
    assert (plain.block_id, own.block_id, typed.block_id) == (0, 1, 1)
    assert own.content_hash == hash_block_tokens(True, None, [1, 2], extra=tenant)
    assert own.content_hash == PrefixCachingBlock.hash_block_tokens(True, None, [1, 2], extra=tenant)
    assert allocator.fork(own)[0].extra_hash == tenant
    assert naive().allocate_mutable(None, extra=tenant).extra_hash is None


@pytest.mark.lineage(ancestor="002", item="RefCounter, CopyOnWriteTracker with Dict[src, List[dst]]")
def test_trackers() -> None:
    counter = RefCounter(all_block_indices=[0, 1])
    tracker = CopyOnWriteTracker(counter)
    block = NaiveBlock(None, [], 2, naive(), block_id=0)
    counter.incr(0)
    assert tracker.is_appendable(block)
    counter.incr(0)
    assert not tracker.is_appendable(block)
    for src, dst in ((0, 3), (1, 2), (0, 1)):
        tracker.record_cow(src, dst)
    with pytest.raises(AssertionError):
        tracker.record_cow(None, 1)
    assert tracker.clear_cows() == {0: [3, 1], 1: [2]}
    assert tracker.clear_cows() == {}


@pytest.mark.lineage(ancestor="002", item="CopyOnWriteTracker(refcounter, allocator): cow_block_if_not_appendable")
@both
def test_a_tracker_of_an_allocator(make: Callable[..., Allocator]) -> None:
    allocator = make()
    tracker = CopyOnWriteTracker(refcounter=allocator.refcounter, allocator=allocator)
    block = allocator.allocate_mutable(None)
    assert tracker.cow_block_if_not_appendable(block) == 0
    (twin,) = allocator.fork(block)
    assert tracker.cow_block_if_not_appendable(twin) == twin.block_id == 1
    assert tracker.clear_cows() == {0: [1]}
    assert tracker.clear_cows() == {}
    assert tracker.cow_block_if_not_appendable(NaiveBlock(None, [], 2, naive())) is None
    with pytest.raises(AssertionError, match="without an allocator"):
        CopyOnWriteTracker(RefCounter([0])).cow_block_if_not_appendable(block)
    allocator.free(twin)
    with pytest.raises(StaleBlockError):
        tracker.cow_block_if_not_appendable(twin)


@pytest.mark.lineage(ancestor="002", item="append_token_ids([]) of a prefix-caching block is refused")
def test_no_tokens_are_refused() -> None:
    block = prefix().allocate_mutable(None)
    with pytest.raises(AssertionError, match="no tokens"):
        block.append_token_ids([])
    naive().allocate_mutable(None).append_token_ids([])


@pytest.mark.lineage(ancestor="002", item="interfaces to derive from, assert_prefix_caching_block_or_none, PrefixHash")
def test_interfaces() -> None:
    class Allocator(aphrodite.DeviceAwareBlockAllocator):
        """An engine's own, with the ancestor's methods."""

        def allocate_mutable(self, prev_block: Any, device: Any) -> Any:
            return prefix().allocate_mutable(prev_block)

        def allocate_immutable(self, prev_block: Any, token_ids: Any, device: Any) -> Any:
            return prefix().allocate_immutable(prev_block, token_ids)

        def get_num_free_blocks(self, device: Any) -> int:
            return {aphrodite.Device.GPU: 3}[device]

    class Device(enum.Enum):
        GPU = enum.auto()

    engine_s: Any = Device.GPU
    assert Allocator().get_num_free_blocks(engine_s) == 3
    assert issubclass(Allocator.NoFreeBlocksError, ValueError)
    for allocator in (naive(), prefix()):
        assert isinstance(allocator, aphrodite.BlockAllocator)
    aphrodite.assert_prefix_caching_block_or_none(None)
    aphrodite.assert_prefix_caching_block_or_none(prefix().allocate_mutable(None))
    with pytest.raises(AssertionError):
        aphrodite.assert_prefix_caching_block_or_none(naive().allocate_mutable(None))
    assert isinstance(hash_block_tokens(True, None, [1]), aphrodite.PrefixHash)


@pytest.mark.lineage(ancestor="002", item="swap_out and swap_in of a forked group keep sharing (9)")
@both
def test_defect_09_swap(make: Callable[..., Allocator]) -> None:
    device, host = make(4), make(2, block_ids=[8, 9])
    first = device.allocate_immutable(None, [1, 2])
    tail = device.allocate_mutable(first)
    tail.append_token_ids([3])
    group = [first, tail, *device.fork(tail)]
    device.swap_out(group)
    host.swap_in(group)
    assert ids(group) == [8, 9, 8, 9]
    assert (device.get_num_free_blocks(), host.get_num_free_blocks()) == (4, 0)


@pytest.mark.lineage(ancestor="002", item="everything of the checklist has its name here")
def test_names() -> None:
    for name in aphrodite.__all__:
        assert hasattr(aphrodite, name)
    for cls in (NaiveBlockAllocator, PrefixCachingBlockAllocator):
        for name in ("allocate_immutable", "allocate_mutable", "free", "fork", "promote_to_immutable_block"):
            assert callable(getattr(cls, name))
        for name in ("cow_block_if_not_appendable", "clear_copy_on_writes", "mark_blocks_as_computed"):
            assert callable(getattr(cls, name))


@pytest.mark.lineage(ancestor="002", item="example: examples/lineage_aphrodite.py runs")
def test_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "promotion: 101 -> 100 cached: True" in capsys.readouterr().out
