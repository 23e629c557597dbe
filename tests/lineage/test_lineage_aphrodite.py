"""Tests ancestor 002, the allocators of Aphrodite and vLLM 0.4: the older names, the forms of arguments
and results, and the behaviours in the ancestor's checklist.
"""

from __future__ import annotations

import enum
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
    hash_block_tokens,
)
from kvpool.lineage.errors import StaleBlockError

if TYPE_CHECKING:
    from collections.abc import Callable


EXAMPLE = Path(__file__).parents[2] / "examples" / "lineage_aphrodite.py"
Allocator = NaiveBlockAllocator | PrefixCachingBlockAllocator


def prefix(num_blocks: int = 8, block_size: int = 2, **kwargs: Any) -> PrefixCachingBlockAllocator:
    return PrefixCachingBlockAllocator(num_blocks, block_size, **kwargs)


def naive(num_blocks: int = 8, block_size: int = 2, **kwargs: Any) -> NaiveBlockAllocator:
    return NaiveBlockAllocator(NaiveBlock, num_blocks, block_size, **kwargs)


both = pytest.mark.parametrize("make", [naive, prefix])


@pytest.mark.lineage(ancestor="002", item="is_block_cached says True of a cached block")
def test_is_block_cached_is_not_inverted() -> None:
    allocator = prefix()
    block = allocator.allocate_immutable(None, [1, 2])
    assert allocator.is_block_cached(block) is True
    assert allocator.is_block_cached(PrefixCachingBlock(None, [3, 4], 2, allocator)) is False


@pytest.mark.lineage(ancestor="002", item="blocks made by hand, with the ancestor's parameters")
def test_blocks_made_by_hand() -> None:
    caching, plain = prefix(), naive()
    block = PrefixCachingBlock(
        prev_block=None, token_ids=[1, 2], block_size=2, prefix_caching_allocator=caching
    )
    assert block.content_hash == hash_block_tokens(True, None, [1, 2])
    other = NaiveBlock(
        prev_block=None, token_ids=[1], block_size=2, allocator=plain, block_id=None, _cow_target=None
    )
    assert (other.token_ids, other.block_id, other.content_hash) == ([1], None, None)
    with pytest.raises(AssertionError):
        PrefixCachingBlock(None, [1, 2], 2, plain)
    with pytest.raises(NotImplementedError):
        plain.promote_to_immutable_block(other)


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


@pytest.mark.lineage(
    ancestor="002", item="CopyOnWriteTracker(refcounter, allocator): cow_block_if_not_appendable"
)
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


@pytest.mark.lineage(
    ancestor="002", item="interfaces to derive from, assert_prefix_caching_block_or_none, PrefixHash"
)
def test_interfaces() -> None:
    class Allocator(aphrodite.DeviceAwareBlockAllocator):
        """An allocator that is not kvpool's. It has the methods of the ancestor, an older block
        manager.
        """

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
