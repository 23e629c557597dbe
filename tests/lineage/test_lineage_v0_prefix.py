"""Tests the interface and behaviours of ancestor 004's (vLLM v0's) prefix-caching allocator, section
3.4 of its description. Another file tests its defects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

import kvpool
from kvpool.lineage.errors import BlockStateError, UnknownBlockError
from kvpool.lineage.v0.block.naive_block import NaiveBlock, NaiveBlockAllocator
from kvpool.lineage.v0.block.prefix_caching_block import (
    BlockTracker,
    PrefixCachingBlock,
    PrefixCachingBlockAllocator,
    hash_block_tokens,
)
from kvpool.lineage.v0.evictor import EvictionPolicy
from tests.lineage.rows import ids, lineage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvpool.lineage.v0.block.interfaces import Block, ExtraHash

PROMPT = [[1, 2], [3, 4], [5, 6]]


def make(num_blocks: int = 8, block_size: int = 2, **kwargs: Any) -> PrefixCachingBlockAllocator:
    return PrefixCachingBlockAllocator(num_blocks, block_size, **kwargs)


def cache(
    allocator: PrefixCachingBlockAllocator,
    chunks: Sequence[Sequence[int]] = PROMPT,
    extra_hash: ExtraHash = None,
) -> list[int]:
    """Runs a request until it finishes. Returns the ids of its blocks, which are now cached."""
    blocks = allocator.allocate_immutable_blocks(None, chunks, extra_hash)
    allocator.mark_blocks_as_computed([])
    numbers = [block.block_id for block in blocks if block.block_id is not None]
    for block in blocks:
        allocator.free(block)
    return numbers


@lineage("prefix: mark_blocks_as_accessed decides what is evicted")
def test_least_recently_accessed_is_evicted_first() -> None:
    allocator = make(3)
    for chunk in PROMPT:
        cache(allocator, [chunk])
    held = allocator.allocate_immutable_block(None, [1, 2])
    allocator.mark_blocks_as_accessed([0], 3.0)  # while it is held
    allocator.free(held)
    allocator.mark_blocks_as_accessed([1], 1.0)
    allocator.evictor.update(2, 2.0)
    assert [allocator.allocate_mutable_block(None).block_id for _ in range(3)] == [1, 2, 0]


def chain_hashes(chunks: Sequence[Sequence[int]], extra_hash: ExtraHash = None) -> list[int]:
    hashes: list[int] = []
    for chunk in chunks:
        before = hashes[-1] if hashes else None
        hashes.append(PrefixCachingBlock.hash_block_tokens(before is None, before, chunk, extra_hash))
    return hashes


@lineage("prefix: allocate_mutable_block, filled by append, is promoted")
def test_a_filled_block_is_registered() -> None:
    allocator = make(block_ids=range(10, 18))
    block = allocator.allocate_mutable_block(None)
    assert (block.block_id, block.content_hash, block.computed) == (10, None, False)
    block.append_token_ids([1])
    block.append_token_ids([2])
    assert block.content_hash == chain_hashes([[1, 2]])[0]
    assert allocator.is_block_cached(block)
    assert not allocator.block_is_computed(10)
    allocator.mark_blocks_as_computed([10])
    assert allocator.block_is_computed(10)
    assert block.computed


@lineage("prefix: promote_to_immutable_block and its errors")
def test_promote_to_immutable_block() -> None:
    allocator = make()
    held = allocator.allocate_mutable_block(None)
    block = PrefixCachingBlock(None, [1, 2], 2, allocator, block_id=held.block_id)
    assert allocator.promote_to_immutable_block(block) == 0
    assert allocator.promote_to_immutable_block(block) == 0  # again
    assert allocator.is_block_cached(block)
    partial = allocator.allocate_mutable_block(None)
    unallocated = PrefixCachingBlock(None, [1, 2], 2, allocator)
    for wrong in (partial, unallocated):
        with pytest.raises(AssertionError):
            allocator.promote_to_immutable_block(wrong)


@lineage("prefix: content_hash only when full and the parent is hashed")
def test_content_hash() -> None:
    allocator = make()
    first = allocator.allocate_immutable_block(None, [1, 2])
    second = allocator.allocate_mutable_block(first)
    second.append_token_ids([3])
    assert second.content_hash is None
    second.append_token_ids([4])
    assert [first.content_hash, second.content_hash] == chain_hashes([[1, 2], [3, 4]])
    digests = kvpool.BlockHasher(block_size=2).hash_tokens([1, 2, 3, 4])
    assert second.content_hash == int.from_bytes(digests[1], "big")  # kvpool's own chain
    assert len({second.content_hash, *chain_hashes([[3, 4], [1, 2]])}) == 3


@lineage("prefix: extra_hash separates, for int and ExtraKeys")
def test_extra_hash() -> None:
    allocator = make(num_blocks=32)
    salt = kvpool.ExtraKeys(salt="s")
    extras: list[ExtraHash] = [None, 0, 1, -1, 2**70, salt, kvpool.ExtraKeys(adapter="s")]
    tables = [allocator.allocate_immutable_blocks(None, PROMPT[:2], extra) for extra in extras]
    assert len({block.block_id for table in tables for block in table}) == 2 * len(extras)
    assert [table[1].extra_hash for table in tables] == extras
    again = allocator.allocate_immutable_blocks(None, PROMPT[:2], kvpool.ExtraKeys(salt=b"s"))
    assert ids(again) == ids(tables[5])
    forked = allocator.fork(tables[2][1])
    assert [block.extra_hash for block in forked] == [1, 1]
    with pytest.raises(AssertionError):
        allocator.allocate_mutable_block(None, "adapter")  # type: ignore[arg-type]


@lineage("prefix: extra_hash that changes within a chain, and multimodal items")
def test_extra_hash_that_changes() -> None:
    image = kvpool.ExtraKeys(multimodal=[("image", 2, 2)])
    other = kvpool.ExtraKeys(multimodal=[("other", 2, 2)])
    assert chain_hashes(PROMPT, image)[0] == chain_hashes(PROMPT, other)[0]  # before the item
    assert not set(chain_hashes(PROMPT, image)[1:]) & set(chain_hashes(PROMPT, other)[1:])
    first = chain_hashes(PROMPT[:1])[0]
    # The extra keys begin with the second block. Its hash must depend on both the prefix and the keys.
    late = [hash_block_tokens(False, first, [3, 4], extra) for extra in (None, 1, 2, image, other)]
    late.append(hash_block_tokens(False, chain_hashes([[9, 9]])[0], [3, 4], 1))
    assert len(set(late)) == 6
    video = kvpool.ExtraKeys(multimodal=[("video", 3, 2)])
    third = [hash_block_tokens(False, second, [5, 6], extra) for second in late for extra in (None, 1, video)]
    assert len(set(third)) == 18
    assert hash_block_tokens(False, first, [3, 4], 1) == late[1]
    # If the extra keys change, multimodal items keep their positions.
    fourth = kvpool.ExtraKeys(multimodal=[("image", 6, 2)])
    behind = hash_block_tokens(False, third[0], [7, 8], fourth)
    assert behind.link.depth == 3
    assert behind != hash_block_tokens(
        False, third[0], [7, 8], kvpool.ExtraKeys(multimodal=[("other", 6, 2)])
    )


@lineage("hash_block_tokens: first and later blocks, foreign hashes, errors")
def test_hash_block_tokens() -> None:
    first = hash_block_tokens(
        is_first_block=True, prev_block_hash=None, cur_block_token_ids=[1, 2], extra_hash=None
    )
    assert first == PrefixCachingBlock.hash_block_tokens(True, None, [1, 2])
    foreign = hash_block_tokens(False, 12345, [1, 2])  # an int that no chain made
    assert foreign == hash_block_tokens(False, 12345, [1, 2])
    assert (
        len(
            {
                first,
                foreign,
                hash_block_tokens(False, 12346, [1, 2]),
                hash_block_tokens(False, 12345, [1, 2], 5),
            }
        )
        == 4
    )
    for wrong in ((False, None, [1, 2]), (True, first, [1, 2]), (True, None, [])):
        with pytest.raises(AssertionError):
            hash_block_tokens(*wrong)
    with pytest.raises(kvpool.errors.TokenError):
        hash_block_tokens(True, None, [-1])
    with pytest.raises(kvpool.errors.HashingError):
        hash_block_tokens(False, first, [1, 2, 3])  # another block size


@lineage("prefix: is_block_cached, and of a block without a hash")
def test_is_block_cached() -> None:
    allocator = make()
    probe = PrefixCachingBlock(None, [1, 2], 2, allocator)
    assert not allocator.is_block_cached(probe)
    allocator.allocate_immutable_block(None, [1, 2])
    assert allocator.is_block_cached(probe)
    with pytest.raises(AssertionError):
        allocator.is_block_cached(PrefixCachingBlock(None, [1], 2, allocator))


@lineage("prefix: free of hashed and unhashed blocks; keep_block_object")
def test_free() -> None:
    allocator = make()
    full = allocator.allocate_immutable_block(None, [1, 2])
    allocator.mark_blocks_as_computed([0])
    tail = allocator.allocate_mutable_block(full)
    allocator.free(tail)
    allocator.free(full, keep_block_object=True)
    assert (allocator.evictor.num_blocks, allocator.get_num_free_blocks()) == (1, 8)
    assert (full.block_id, full.token_ids, full.computed) == (None, [1, 2], False)
    for block in (full, tail):
        with pytest.raises(AssertionError):
            allocator.free(block)
    with pytest.raises(AssertionError):
        allocator.free(PrefixCachingBlock(None, [], 2, allocator))  # never allocated


@lineage("prefix: get_common_computed_block_ids")
def test_get_common_computed_block_ids() -> None:
    common = make().get_common_computed_block_ids
    one = [4, 5]
    assert common([one]) is one
    assert common([[1, 2, 3], [1, 2, 4], [1, 2]]) == [1, 2]
    assert common([[1, 2], [], [1, 3]]) == [1]
    assert common([[1], [2]]) == []


@lineage("prefix: find_cached_blocks_prefix")
def test_find_cached_blocks_prefix() -> None:
    allocator = make()
    hashes = chain_hashes(PROMPT)
    assert allocator.find_cached_blocks_prefix(hashes) == []
    blocks = allocator.allocate_immutable_blocks(None, PROMPT)
    assert allocator.find_cached_blocks_prefix(hashes) == []  # not computed
    allocator.mark_blocks_as_computed([0, 1])
    assert allocator.find_cached_blocks_prefix(hashes) == hashes[:2]
    for block in blocks:
        allocator.free(block)
    assert allocator.find_cached_blocks_prefix(block_hashes=hashes) == hashes[:2]
    # A lookup of an invalid hash finds no block.
    assert allocator.find_cached_blocks_prefix([hashes[0], -1]) == hashes[:1]
    assert allocator.find_cached_blocks_prefix([2**256]) == []
    assert allocator.find_cached_blocks_prefix([]) == []


@lineage("prefix: get_num_full_blocks_touched")
def test_get_num_full_blocks_touched() -> None:
    device, host = make(), make(block_ids=range(8, 16))
    table = device.allocate_immutable_blocks(None, PROMPT)
    tail = device.allocate_mutable_block(table[-1])
    assert host.get_num_full_blocks_touched([*table, tail]) == 3
    cache(host, PROMPT[:2])
    assert host.get_num_full_blocks_touched([*table, tail]) == 3  # cached, but from the free ones
    host.allocate_immutable_block(None, PROMPT[0])
    assert host.get_num_full_blocks_touched([*table, tail]) == 2


@lineage("prefix: swap_out and swap_in match full blocks again and keep extra_hash")
def test_swap() -> None:
    device, host = make(), make(block_ids=range(8, 16))
    cache(host, PROMPT[:1], 5)
    table: list[Block] = [*device.allocate_immutable_blocks(None, PROMPT, 5)]
    tail = device.allocate_mutable_block(table[-1], 5)
    tail.append_token_ids([7])
    device.mark_blocks_as_computed([])
    device.swap_out([*table, tail])
    assert (device.get_num_free_blocks(), device.evictor.num_blocks) == (8, 3)
    host.swap_in([*table, tail])
    assert ids([*table, tail]) == [8, 9, 10, 11]
    assert [block.computed for block in table] == [
        True,
        False,
        False,
    ]  # the bytes of two blocks have to be copied first
    host.mark_blocks_as_computed([])
    assert all(block.computed for block in table)
    assert [block.extra_hash for block in table] == [5, 5, 5]
    tail.append_token_ids([8])
    assert tail.content_hash == chain_hashes([*PROMPT, [7, 8]], 5)[3]
    assert host.is_block_cached(tail)


@lineage("prefix: reset_prefix_cache")
def test_reset_prefix_cache(caplog: pytest.LogCaptureFixture) -> None:
    allocator = make()
    cache(allocator)
    block = allocator.allocate_immutable_block(None, PROMPT[0])
    assert not allocator.reset_prefix_cache()
    assert "1 blocks are in use" in caplog.text
    assert allocator.find_cached_blocks_prefix(chain_hashes(PROMPT)) == chain_hashes(PROMPT)
    allocator.free(block)
    assert allocator.reset_prefix_cache()
    assert (allocator.evictor.num_blocks, allocator.get_num_free_blocks()) == (0, 8)
    assert allocator.get_prefix_cache_hit_rate() == 0.0
    assert allocator.find_cached_blocks_prefix(chain_hashes(PROMPT)) == []
    assert cache(allocator, [[8, 8]])  # it still works


@lineage("prefix: constructor, eviction policy")
def test_constructor() -> None:
    assert make(3, eviction_policy=EvictionPolicy.LRU).get_num_total_blocks() == 3
    with pytest.raises(ValueError, match="Unknown cache eviction policy"):
        make(eviction_policy=None)


@lineage("PrefixCachingBlock: append, immutability, slots, num_tokens_total")
def test_block() -> None:
    allocator = make(block_size=4)
    first = allocator.allocate_immutable_block(None, [1, 2, 3, 4])
    block: Any = allocator.allocate_mutable_block(first)
    later = allocator.allocate_mutable_block(block)  # lookahead
    block.append_token_ids([])
    block.append_token_ids([5, 6])
    assert (block.num_tokens_total, block.num_empty_slots, block.is_full, block.block_size) == (
        6,
        2,
        False,
        4,
    )
    assert (block.prev_block, block.token_ids, block.extra_hash) == (first, [5, 6], None)
    with pytest.raises(AssertionError):
        block.append_token_ids([7, 8, 9])
    with pytest.raises(kvpool.errors.TokenError):
        block.append_token_ids([2**32])
    assert block.token_ids == [5, 6]
    block.append_token_ids([7, 8])
    later.append_token_ids([9])
    assert (block.is_full, block.num_tokens_total, later.num_tokens_total) == (True, 8, 9)
    with pytest.raises(AssertionError):
        block.append_token_ids([])
    block.token_ids.clear()
    assert block.token_ids == [5, 6, 7, 8]


@lineage("PrefixCachingBlock: computed and last_accessed, get and set")
def test_block_notes() -> None:
    allocator = make(3)
    block = allocator.allocate_mutable_block(None)
    with pytest.raises(BlockStateError):
        block.computed = True  # nothing is cached in it
    block.append_token_ids([1, 2])
    assert (block.computed, block.last_accessed) == (False, -1)
    block.computed = True
    assert block.computed
    assert PrefixCachingBlock(None, [1, 2], 2, allocator, block_id=0, computed=True).computed
    with pytest.raises(BlockStateError):
        block.computed = False
    block.last_accessed = 5.0
    assert block.last_accessed == 5.0
    allocator.free(block)
    cache(allocator, [[3, 4]])
    assert ids(allocator.allocate_mutable_block(None) for _ in range(3)) == [
        2,
        1,
        0,
    ]  # free, never used, used at time 5


@lineage("PrefixCachingBlock: allocator and prev_block have to be of its kind")
def test_block_kinds() -> None:
    naive = NaiveBlockAllocator(NaiveBlock, 4, 2)
    allocator = make()
    with pytest.raises(AssertionError):
        PrefixCachingBlock(None, [], 2, naive)
    with pytest.raises(AssertionError):
        PrefixCachingBlock(naive.allocate_mutable_block(None), [], 2, allocator)
    with pytest.raises(AssertionError):
        allocator.allocate_mutable_block(naive.allocate_mutable_block(None))
    with pytest.raises(AssertionError):
        PrefixCachingBlock(None, [1, 2, 3], 2, allocator)


@lineage("PrefixCachingBlock: over a stand-in for its allocator, as the old tests did")
@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("parent", [None, 4711])
def test_block_with_mocks(is_full: bool, parent: int | None) -> None:
    allocator, before = MagicMock(spec=PrefixCachingBlockAllocator), MagicMock(spec=PrefixCachingBlock)
    before.content_hash = parent
    tokens = [1, 2] if is_full else [1]
    first: PrefixCachingBlock = PrefixCachingBlock(None, tokens, 2, allocator)
    nth: PrefixCachingBlock = PrefixCachingBlock(before, [], 2, allocator)
    nth.append_token_ids(tokens)
    assert first.content_hash == (hash_block_tokens(True, None, tokens) if is_full else None)
    expected = hash_block_tokens(False, parent, tokens) if is_full and parent is not None else None
    assert nth.content_hash == expected


@lineage("BlockTracker: enable, disable, reset")
def test_block_tracker() -> None:
    tracker = BlockTracker()
    assert (tracker.active, tracker.last_accessed, tracker.computed) == (False, -1, False)
    with pytest.raises(AssertionError):
        tracker.disable()
    tracker.enable()
    tracker.last_accessed, tracker.computed = 3.0, True
    with pytest.raises(AssertionError):
        tracker.enable()
    tracker.reset()
    assert (tracker.active, tracker.last_accessed, tracker.computed) == (True, -1, False)
    tracker.computed = True
    tracker.disable()
    assert (tracker.active, tracker.computed) == (False, False)


@lineage("prefix: the evictor is a view and evicts nothing by itself")
def test_evictor_view() -> None:
    allocator = make()
    cache(allocator, PROMPT[:1])
    refused: list[Callable[[], object]] = [
        allocator.evictor.evict,
        lambda: allocator.evictor.add(1, 1, 1, 1.0),
        lambda: allocator.evictor.remove(0),
    ]
    for call in refused:
        with pytest.raises(NotImplementedError):
            call()
    assert allocator.evictor.num_blocks == 1
    with pytest.raises(UnknownBlockError):
        assert 99 in allocator.evictor
    with pytest.raises(ValueError, match="Incr not allowed"):
        allocator.refcounter.incr(0)


@lineage("prefix: a new epoch hides everything cached before")
def test_epochs() -> None:
    allocator = make()
    cache(allocator)
    held = allocator.allocate_immutable_block(None, PROMPT[0])
    grown = allocator.allocate_mutable_block(held)
    old_hash = held.content_hash
    assert allocator.bump_epoch() == 1
    fresh = allocator.allocate_immutable_block(None, PROMPT[0])
    assert fresh.block_id != held.block_id
    assert fresh.content_hash != old_hash
    grown.append_token_ids([3, 4])  # after a block of the old epoch: never cached
    assert not allocator.is_block_cached(grown)
    allocator.mark_blocks_as_computed([])
    assert fresh.computed
    assert not grown.computed
    allocator._tiers.check_invariants()


@lineage("prefix: eviction_policy, _none_hash, get_num_free_blocks(device=None)")
def test_attributes_that_callers_read() -> None:
    allocator = make(4)
    assert allocator.eviction_policy is EvictionPolicy.LRU
    assert allocator.get_num_free_blocks(device=None) == 4
    with pytest.raises(AssertionError):
        allocator.get_num_free_blocks(device="cuda")
    none_hash = allocator._none_hash
    assert none_hash == PrefixCachingBlock._none_hash
    assert hash_block_tokens(True, none_hash, [1, 2]) == hash_block_tokens(True, None, [1, 2])
    with pytest.raises(AssertionError):
        hash_block_tokens(False, none_hash, [1, 2])
    assert allocator.allocate_immutable_block(None, [1, 2]).content_hash != none_hash


@lineage("prefix: the hit rate counts what is swapped in")
def test_hit_rate_of_swap_in() -> None:
    allocator = make(8)
    blocks = allocator.allocate_immutable_blocks(None, PROMPT)
    allocator.mark_blocks_as_computed([])
    allocator.swap_out(blocks)
    allocator.swap_in(blocks)
    assert allocator.get_prefix_cache_hit_rate() == 3 / 6
