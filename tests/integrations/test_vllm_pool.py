"""Tests ``BlockPool``, kvpool's pool for vLLM, over a stand-in for vLLM. Each test checks one
behaviour.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool import errors
from tests.integrations.fake_vllm import BlockRemoved, BlockStored, LooseBlock, Request, part
from tests.integrations.pool_stand_ins import (
    BLOCK,
    Metrics,
    cached_keys,
    digest,
    ids,
    key_of,
    make_pool,
    order,
    request_of,
)

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("vllm")


@pytest.mark.parametrize("caching", [True, False])
def test_metrics_are_notified_of_every_block_in_order(caching: bool) -> None:
    metrics = Metrics()
    pool = make_pool(4, None, caching=caching, metrics_collector=metrics)
    table = pool.get_new_blocks(2)
    heard = [("evicted", 1), ("allocated", 1), ("evicted", 2), ("allocated", 2)]
    assert metrics.heard == [one for one in heard if caching or one[0] == "allocated"]
    metrics.heard.clear()
    pool.touch([pool.null_block, *table])
    assert metrics.heard == [("accessed", 1), ("accessed", 2)]
    pool.free_blocks([*table, *table])
    metrics.heard.clear()
    assert pool.reset_prefix_cache()
    assert metrics.heard == [("reset",)]


def test_a_reuse_watcher_is_called_once_and_before_its_block_is_handed_out() -> None:
    pool = make_pool(4)
    seen: list[tuple[int, int, bytes | None]] = []

    def watch(block: Any) -> None:
        seen.append((block.block_id, block.ref_cnt, block.block_hash))

    table = pool.get_new_blocks(2)
    pool.cache_full_blocks(request_of([1, 2]), table, 0, 1, BLOCK[0], 0)
    pool.unpin_blocks(table, watch)
    assert order(pool) == [3, 1, 2]
    pool.get_new_blocks(1)
    assert seen == []
    # The block has no references, but it still has its hash, so a lookup can find it.
    pool.get_new_blocks(2)
    assert seen == [(1, 0, key_of([1, 2])), (2, 0, None)]
    pool.free_blocks(table)
    pool.get_new_blocks(2)
    assert len(seen) == 2


def test_a_reuse_watcher_is_not_called_by_an_allocation_that_is_refused() -> None:
    pool = make_pool(3)
    seen: list[Any] = []
    pool.unpin_blocks(pool.get_new_blocks(2), seen.append)
    with pytest.raises(ValueError, match="Cannot get 3"):
        pool.get_new_blocks(3)
    assert seen == []
    assert order(pool) == [1, 2]


def test_a_reuse_watcher_of_a_block_that_others_hold_waits_and_a_reset_calls_it_once() -> None:
    pool = make_pool(3)
    (block,) = pool.get_new_blocks(1)
    pool.touch([block])
    seen: list[Any] = []
    pool.unpin_blocks([block], seen.append)
    assert (block.ref_cnt, order(pool)) == (1, [2])
    assert not pool.reset_prefix_cache()
    pool.free_blocks([block])
    assert seen == []
    assert pool.reset_prefix_cache()
    assert pool.reset_prefix_cache()
    assert seen == [block]


def test_blocks_of_another_pool_are_freed_there() -> None:
    pool, other = make_pool(3), make_pool(3)
    (own,), foreign = pool.get_new_blocks(1), other.get_new_blocks(2)
    assert (own.block_id, own == foreign[0], own.pool is pool, foreign[0].pool is other) == (
        1,
        False,
        True,
        True,
    )
    pool.free_blocks(iter([foreign[1], own, foreign[0]]))
    assert (order(pool), order(other)) == ([1, 2], [2, 1])


def test_loose_blocks_keep_their_own_counts_and_are_found() -> None:
    pool = make_pool(4)
    (own,) = pool.get_new_blocks(1)
    loose = LooseBlock(1000, ref_cnt=1)
    request = request_of([1, 2, 3, 4])
    pool.cache_full_blocks(request, [own, loose], 0, 2, BLOCK[0], 0)
    (event,) = pool.take_events()
    assert event.block_hashes == request.block_hashes
    assert (loose.block_hash, loose.block_hash_num_tokens) == (key_of([1, 2, 3, 4]), 4)
    assert pool.get_cached_block(digest((1, 2, 3, 4)), [0]) == [loose]
    assert pool.get_cached_block(digest((1, 2)), [0]) == [own]
    assert pool.cached_block_hash_to_block.get_one_block(key_of([1, 2, 3, 4])) is loose
    assert len(pool.cached_block_hash_to_block) == 2
    pool.touch([own, loose])
    assert (own.ref_cnt, loose.ref_cnt) == (2, 2)
    pool.free_blocks([loose, own])
    assert (own.ref_cnt, loose.ref_cnt) == (1, 1)
    pool._maybe_evict_cached_block(loose)
    assert loose.block_hash is None
    assert pool.get_cached_block(digest((1, 2, 3, 4)), [0]) is None
    assert [event.block_hashes for event in pool.take_events()] == [[digest((1, 2, 3, 4))]]
    assert pool.loose == {}


def test_a_copy_in_a_loose_block_keeps_its_hash_from_being_removed() -> None:
    pool = make_pool(3)
    (own,) = pool.get_new_blocks(1)
    request = request_of([1, 2])
    for block in (own, LooseBlock(1000, ref_cnt=1)):
        pool.cache_full_blocks(request, [block], 0, 1, BLOCK[0], 0)
    assert len(pool.take_events()) == 1
    # In the view of the index that vLLM reads, both blocks are under the same key. The pool's own block comes
    # first.
    assert list(pool.cached_block_hash_to_block._cache[key_of([1, 2])]) == [1, 1000]
    pool.free_blocks([own])
    assert pool.reset_prefix_cache()
    assert pool.get_cached_block(digest((1, 2)), [0]) is None


def test_a_part_of_a_block_is_found_until_the_block_is_full() -> None:
    pool = make_pool(3)
    (block,) = pool.get_new_blocks(1)
    request = request_of([1, 2, 3, 4])
    assert pool.cache_partial_block(request, block, 2, 0, 4) == key_of([1, 2])
    assert (block.block_hash, block.block_hash_num_tokens) == (key_of([1, 2]), 2)
    pool.cache_partial_block(request, block, 2, 0, 4)
    (event,) = pool.take_events()
    assert (event.block_hashes, event.token_ids, event.block_size) == ([digest((1, 2))], (1, 2), 2)
    pool.cache_full_blocks(request, [block], 0, 1, 4, 0)
    assert [type(event) for event in pool.take_events()] == [BlockRemoved, BlockStored]
    assert pool.get_cached_block(digest((1, 2)), [0]) is None
    assert block.block_hash_num_tokens == 4
    # If a full block is cached as a shorter part, it gets an additional key. If the part replaces the
    # content, all other keys are removed.
    pool.cache_partial_block(request, block, 2, 0, 4)
    assert pool.cached_block_hashes_by_block == {block.block_id: {key_of([1, 2])}}
    pool.cache_partial_block(request, block, 2, 0, 4, replace_existing_hashes=True)
    assert (cached_keys(pool), block.block_hash) == ({key_of([1, 2])}, key_of([1, 2]))
    assert pool.cache_partial_block(request, pool.null_block, 2, 0, 4) is None


def snapshot(pool: Any) -> tuple[Any, ...]:
    return (
        order(pool),
        [(block.ref_cnt, block.block_hash) for block in pool.blocks],
        cached_keys(pool),
        list(pool.kv_event_queue),
        dict(pool._reuse_watchers),
    )


@pytest.fixture
def busy() -> Any:
    """A pool of four blocks. Blocks 1 and 2 have references, and 1 is also cached. Block 3 is cached
    and free, and 4 is free without content.
    """
    pool = make_pool(5)
    table = pool.get_new_blocks(3)
    pool.cache_full_blocks(request_of([1, 2]), table, 0, 1, BLOCK[0], 0)
    pool.cache_full_blocks(request_of([3, 4]), [table[2]], 0, 1, BLOCK[0], 0)
    pool.free_blocks([table[2]])
    assert order(pool) == [4, 3]
    return pool


@pytest.mark.parametrize(
    "freed",
    [[1, 2, 2], [3], [1, 4], [2, 1, 2]],
    ids=["twice", "free and cached", "free", "twice with another"],
)
def test_a_double_free_is_refused_and_frees_nothing(busy: Any, freed: list[int]) -> None:
    before = snapshot(busy)
    with pytest.raises(errors.InvalidBlockError, match="has no references"):
        busy.free_blocks([busy.blocks[block] for block in freed])
    assert snapshot(busy) == before
    busy.core.check_invariants()


@pytest.mark.parametrize("unpinned", [[1, 1], [2, 0], [1, 3]], ids=["twice", "the null block", "a free one"])
def test_an_unpin_without_a_reference_is_refused_and_watches_nothing(busy: Any, unpinned: list[int]) -> None:
    before = snapshot(busy)
    with pytest.raises(errors.InvalidBlockError, match="has no references"):
        busy.unpin_blocks([busy.blocks[block] for block in unpinned], print)
    assert snapshot(busy) == before


@pytest.mark.parametrize("unknown", [-1, 5, 2**40])
def test_an_eviction_of_an_unknown_block_is_refused_and_evicts_nothing(busy: Any, unknown: int) -> None:
    before = snapshot(busy)
    with pytest.raises(errors.InvalidBlockError, match="a connector may only report"):
        busy.evict_blocks({1, 3, unknown})
    assert snapshot(busy) == before


def test_what_is_cached_already_is_refused_before_anything_is_cached(busy: Any) -> None:
    before = snapshot(busy)
    request = request_of([5, 6, 7, 8])
    with pytest.raises(errors.InvalidBlockError, match="block 1 is cached already, for 2 tokens"):
        busy.cache_full_blocks(request_of([5, 6]), [busy.blocks[1]], 0, 1, BLOCK[0], 0)
    busy.cache_full_blocks(request, [busy.blocks[2]] * 2, 1, 1, BLOCK[0], 0)
    with pytest.raises(errors.InvalidArgumentError, match="block_mask has 2 entries for 1 blocks"):
        busy.cache_full_blocks(request, [busy.blocks[2]], 0, 1, BLOCK[0], 0, [True, True])
    with pytest.raises(
        errors.InvalidArgumentError, match="block_size is 3: must be a multiple of the 2 tokens"
    ):
        busy.cache_full_blocks(request, [busy.blocks[2]], 0, 1, 3, 0)
    for num_tokens in (0, 1, 6):
        with pytest.raises(errors.InvalidArgumentError, match=f"num_tokens is {num_tokens}"):
            busy.cache_partial_block(request, busy.blocks[2], num_tokens, 0, 4)
    assert snapshot(busy) == before


@pytest.mark.parametrize("given", [-1, -(2**70)])
def test_a_negative_number_of_blocks_is_refused(busy: Any, given: int) -> None:
    before = snapshot(busy)
    with pytest.raises((OverflowError, ValueError)):
        busy.get_new_blocks(given)
    assert snapshot(busy) == before


def test_hashes_that_are_too_long_are_refused(busy: Any) -> None:
    before = snapshot(busy)
    request = Request("r", [1, 2, 3, 4], [b"x" * 32, b"x" * 36])
    with pytest.raises(errors.InvalidArgumentError, match="36 bytes are too many"):
        busy.cache_full_blocks(request, [busy.blocks[2], busy.blocks[2]], 0, 2, BLOCK[0], 0)
    with pytest.raises(errors.InvalidArgumentError):
        busy.get_cached_block(b"x" * 36, [0])
    assert snapshot(busy) == before


@pytest.mark.parametrize("value", [0, -3, 2.0, "8", 2**40])
def test_a_pool_of_no_number_of_blocks_is_refused(value: Any) -> None:
    with pytest.raises((errors.InvalidArgumentError, OverflowError, TypeError)):
        make_pool(value)


def test_a_pool_of_the_null_block_alone_has_nothing_to_give() -> None:
    pool = make_pool(1)
    assert (pool.get_num_free_blocks(), pool.get_usage(), order(pool)) == (0, 0, [])
    with pytest.raises(ValueError, match="Cannot get 1"):
        pool.get_new_blocks(1)
    assert pool.reset_prefix_cache()


def test_the_sixth_argument_is_the_medium_or_the_lookahead_as_the_version_has_it() -> None:
    pool_class = part("pool").BlockPool
    assert pool_class(2, True, 2, False, None, "CPU").medium == "CPU"
    newer = pool_class(2, True, 2, False, None, 3, "CPU")
    assert (newer.num_hash_lookahead_tokens, newer.medium) == (3, "CPU")
    assert pool_class(2, True, 2).medium == "GPU"


def test_a_pool_and_its_blocks_do_not_keep_each_other() -> None:
    pool = make_pool(3)
    block, gone = pool.blocks[1], weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None
    assert block.pool is None
    assert (block.block_id, block.ref_cnt) == (1, 0)


def test_a_block_is_one_object_that_cannot_be_hashed() -> None:
    pool = make_pool(3)
    (block,) = pool.get_new_blocks(1)
    assert block is pool.blocks[1]
    assert block == pool.blocks[1]
    assert block != pool.blocks[2]
    assert block != 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(block)
    with pytest.raises(AttributeError):
        block.anything = 1
    assert "block_id=1" in repr(block)


def test_the_queue_can_be_walked_by_its_links_and_moved_by_hand() -> None:
    pool = make_pool(5)
    queue = pool.free_block_queue
    walked, block = [], queue.fake_free_list_head.next_free_block
    while block is not queue.fake_free_list_tail:
        walked.append(block.block_id)
        assert block.prev_free_block.block_id == (walked[-2] if len(walked) > 1 else -1)
        block = block.next_free_block
    assert walked == order(pool) == [1, 2, 3, 4]
    assert queue.fake_free_list_tail.prev_free_block is pool.blocks[4]
    queue.remove(pool.blocks[2])
    assert pool.blocks[2].next_free_block is None
    with pytest.raises(RuntimeError, match=r"remove\(\)"):
        queue.remove(pool.blocks[2])
    queue.append(pool.blocks[2])
    assert ids(queue.iter_blocks_after(pool.blocks[3])) == [4, 2]
    assert ids(queue.iter_blocks_after(None)) == [1, 3, 4, 2]
    first = queue.popleft()
    queue.prepend_n([pool.blocks[block.block_id] for block in [*queue.popleft_n(1), first]])
    assert (order(pool), queue.num_free_blocks) == ([3, 1, 4, 2], 4)
    with pytest.raises(ValueError, match="Cannot get 5"):
        queue.popleft_n(5)
    queue.popleft_n(4)
    with pytest.raises(ValueError, match="No free blocks"):
        queue.popleft()


def test_the_count_of_free_blocks_can_be_written_and_allocations_follow_it() -> None:
    pool = make_pool(9)
    queue = pool.free_block_queue
    taken = pool.get_new_blocks(2)
    queue.num_free_blocks = 1
    assert (queue.num_free_blocks, pool.get_num_free_blocks(), pool.get_usage()) == (1, 1, 1 - 1 / 8)
    with pytest.raises(ValueError, match=r"Cannot get 2 free blocks from the pool \(1 are free\)"):
        pool.get_new_blocks(2)
    taken += pool.get_new_blocks(1)
    assert (queue.num_free_blocks, order(pool)) == (0, [4, 5, 6, 7, 8])
    pool.free_blocks(taken[:2])
    assert (queue.num_free_blocks, order(pool)) == (2, [1, 2, 4, 5, 6, 7, 8])
    # The test removes more blocks from the queue than its count of free blocks. The count does not
    # become negative.
    queue.popleft_n(2)
    queue.popleft()
    assert queue.num_free_blocks == 0
    queue.prepend_n(pool.blocks[1:3])
    queue.append(pool.blocks[4])
    pool.free_blocks(taken[2:])
    assert not pool.reset_prefix_cache(), "not everything counts as free"
    queue.num_free_blocks = 8
    assert pool.get_usage() == 0
    assert pool.reset_prefix_cache()
    assert len(pool.get_new_blocks(8)) == 8


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (4, "num_free_blocks is 4: must be at most 3, the blocks in the queue"),
        (-1, "num_free_blocks is -1: must not be negative"),
    ],
)
def test_no_more_blocks_can_be_counted_as_free_than_there_are(count: int, told: str) -> None:
    pool = make_pool(4)
    pool.free_block_queue.num_free_blocks = 2
    with pytest.raises(ValueError, match=told):
        pool.free_block_queue.num_free_blocks = count
    assert pool.free_block_queue.num_free_blocks == 2


def test_what_a_written_count_refuses_is_in_no_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part("pool").BlockPool, "journal_folder", str(tmp_path))
    pool = make_pool(5)
    pool.free_block_queue.num_free_blocks = 1
    with pytest.raises(ValueError, match="Cannot get 2"):
        pool.get_new_blocks(2)
    assert not pool.reset_prefix_cache()
    with pytest.raises(ValueError, match="Cannot get 9"):
        pool.get_new_blocks(9)
    pool.free_block_queue.num_free_blocks = 4
    pool.get_new_blocks(2)
    pool.core.journal_image()
    report = kvpool.journal.replay_journal(next(tmp_path.iterdir()))
    assert (report.difference, report.operations) == (None, 2)


def test_the_map_of_hashes_reads_and_writes_like_vllms() -> None:
    pool = make_pool(4)
    table = pool.get_new_blocks(3)
    view, cache = pool.cached_block_hash_to_block, pool.cached_block_hash_to_block._cache
    one, other = key_of([1, 2]), key_of([3, 4])
    view.insert(one, table[0])
    assert (view.get_one_block(one), cache[one], len(view)) == (table[0], table[0], 1)
    view.insert(one, table[1])
    view.insert(other, table[2])
    assert cache == {one: {1: table[0], 2: table[1]}, other: table[2]}
    assert (view.contain(one, 2), view.contain(one, 3), view.pop(one, 3)) == (True, False, None)
    assert view.pop(one, 1) is table[0]
    # If a key once had several blocks, vLLM keeps a dictionary for it until the dictionary is empty.
    assert cache[one] == {2: table[1]}
    assert set(cache) == {one, other}
    del cache[other]
    with pytest.raises(KeyError):
        cache[other]
    cache.clear()
    assert (len(view), view.get_one_block(one)) == (0, None)
    assert all(block.block_hash is None for block in table)


def test_lookups_want_every_group() -> None:
    pool = make_pool(4)
    table = pool.get_new_blocks(2)
    request = request_of([1, 2])
    for group, block in enumerate(table):
        assert pool.get_cached_block(digest((1, 2)), [0, 1]) is None
        pool.cache_full_blocks(request, [block], 0, 1, BLOCK[0], group)
    assert pool.get_cached_block(digest((1, 2)), [1, 0]) == [table[1], table[0]]


def test_null_blocks_have_no_references_and_are_not_cached() -> None:
    pool = make_pool(3)
    null = pool.null_block
    pool.touch([null, null])
    pool.free_blocks([null])
    pool.cache_full_blocks(request_of([1, 2]), [null], 0, 1, BLOCK[0], 0)
    assert (null.is_null, null.ref_cnt, null.block_hash, pool.is_block_writable(null)) == (
        True,
        0,
        None,
        False,
    )
    assert pool.take_events() == []
    assert order(pool) == [1, 2]


def test_every_order_of_freeing_copies_leaves_the_last_findable() -> None:
    for released in itertools.permutations(range(3)):
        pool = make_pool(4)
        blocks = pool.get_new_blocks(3)
        for block in blocks:
            pool.cache_full_blocks(request_of([1, 2]), [block], 0, 1, BLOCK[0], 0)
        for at in released:
            pool.free_blocks([blocks[at]])
        for left in (2, 1):
            pool.get_new_blocks(1)
            assert len(pool.blocks_of(key_of([1, 2]))) == left
            pool.core.check_invariants()
        pool.get_new_blocks(1)
        assert cached_keys(pool) == set()
