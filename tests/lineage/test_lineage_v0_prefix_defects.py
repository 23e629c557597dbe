"""Tests the numbered defects of ancestor 004's (vLLM v0's) prefix-caching allocator. Each test fails
with the ancestor.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvpool
from kvpool.lineage.errors import NoFreeBlocksError, StaleBlockError, UnknownBlockError
from kvpool.lineage.v0.block.prefix_caching_block import (
    PrefixCachingBlock,
    PrefixCachingBlockAllocator,
    hash_block_tokens,
)
from tests.lineage import rows
from tests.lineage.rows import ids, lineage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvpool.lineage.v0.block.interfaces import Block

PROMPT = [[1, 2], [3, 4], [5, 6], [7, 8]]


def make(num_blocks: int = 8, block_size: int = 2) -> PrefixCachingBlockAllocator:
    return PrefixCachingBlockAllocator(num_blocks, block_size)


def hashes_of(blocks: Sequence[Block]) -> list[int]:
    return [block.content_hash for block in blocks if block.content_hash is not None]


def free(allocator: PrefixCachingBlockAllocator, blocks: Iterable[Block]) -> None:
    for block in blocks:
        allocator.free(block)


def observe(allocator: PrefixCachingBlockAllocator) -> object:
    """Returns everything that a failed call must not change."""
    return rows.observe(allocator._tiers), allocator.get_prefix_cache_hit_rate()


@lineage("1: an updated block can be evicted")
def test_defect_01_a_cached_block_that_was_accessed_can_be_evicted() -> None:
    allocator = make(1)
    block = allocator.allocate_immutable_block(None, [1, 2])
    allocator.mark_blocks_as_computed([])
    allocator.free(block)
    allocator.mark_blocks_as_accessed([0], 5.0)
    assert allocator.allocate_mutable_block(None).block_id == 0


@lineage("2: a block cached again at the same time is evicted under its new hash")
def test_defect_02_eviction_drops_the_mapping_of_the_block_itself() -> None:
    allocator = make(2)
    for content in ([1, 2], [3, 4]):  # block 0 is cached, evicted, and cached again, always at time 1
        blocks = [allocator.allocate_immutable_block(None, content), allocator.allocate_mutable_block(None)]
        allocator.mark_blocks_as_computed([])
        allocator.mark_blocks_as_accessed([0], 1.0)
        free(allocator, reversed(blocks))
        assert blocks[0].block_id is None
    first, second = hash_block_tokens(True, None, [1, 2]), hash_block_tokens(True, None, [3, 4])
    assert allocator.find_cached_blocks_prefix([first]) == []
    assert allocator.find_cached_blocks_prefix([second]) == [second]
    assert {allocator.allocate_mutable_block(None).block_id for _ in range(2)} == {0, 1}
    assert allocator.find_cached_blocks_prefix([second]) == []
    allocator._tiers.check_invariants()


@lineage("4: the prefix ends at the first hole")
def test_defect_04_a_hole_ends_the_prefix() -> None:
    allocator = make(4)
    blocks = allocator.allocate_immutable_blocks(None, PROMPT)
    allocator.mark_blocks_as_computed([])
    hashes = hashes_of(blocks)
    free(allocator, blocks)
    for block, time in ((0, 9.0), (1, 1.0), (2, 9.0), (3, 9.0)):
        allocator.mark_blocks_as_accessed([block], time)
    assert allocator.allocate_mutable_block(None).block_id == 1
    assert allocator.find_cached_blocks_prefix(hashes) == hashes[:1]  # the ancestor: all four


@lineage("5: what is shared before it is computed stays with the other holder")
def test_an_abort_leaves_a_shared_block_to_be_computed() -> None:
    allocator = make()
    one, two = (allocator.allocate_immutable_block(None, PROMPT[0]) for _ in range(2))
    assert ids([one, two]) == [0, 0]
    allocator.free(one)
    assert not two.computed
    allocator.mark_blocks_as_computed([])
    assert two.computed


@lineage("6: a recycled mutable block is not computed")
def test_defect_06_old_touches_do_not_mark_new_blocks() -> None:
    allocator = make(1)
    allocator.free(allocator.allocate_immutable_block(None, [1, 2]))  # touched, and aborted
    block = allocator.allocate_mutable_block(None)
    assert block.block_id == 0
    allocator.mark_blocks_as_computed([])
    assert not allocator.block_is_computed(0)
    block.append_token_ids([3, 4])
    assert not block.computed
    assert allocator.find_cached_blocks_prefix(hashes_of([block])) == []


@lineage("6: mark_blocks_as_computed marks the ids given, and those alone")
def test_the_ids_given_are_marked() -> None:
    allocator = make()
    blocks = allocator.allocate_immutable_blocks(None, PROMPT[:3])
    mutable = allocator.allocate_mutable_block(blocks[-1])
    allocator.mark_blocks_as_computed([1])
    assert [block.computed for block in blocks] == [False, True, False]
    before = observe(allocator)
    for wrong in ([0, 3], [0, 7], [0, 99]):  # mutable, free, unknown
        with pytest.raises(kvpool.errors.InvalidBlockError):
            allocator.mark_blocks_as_computed(wrong)
        assert observe(allocator) == before
    allocator.mark_blocks_as_computed([])
    assert [block.computed for block in [*blocks, mutable]] == [True, True, True, False]


@lineage("11: a predecessor that a window has dropped makes no cycle")
def test_defect_11_freed_predecessors_do_not_come_back() -> None:
    allocator = make()
    first, second, third = allocator.allocate_immutable_blocks(None, PROMPT[:3])
    allocator.free(first)  # the window has passed it
    tail = allocator.allocate_mutable_block(third)  # the ancestor recycled the object of `first`
    tail.append_token_ids([7, 8])
    assert tail.content_hash == PrefixCachingBlock.hash_block_tokens(False, third.content_hash, [7, 8])
    assert tail.num_tokens_total == 8
    assert second.prev_block is first
    before = observe(allocator)
    with pytest.raises(StaleBlockError):
        allocator.fork(tail)
    assert observe(allocator) == before
    forked = allocator._fork_blocks([second, third, tail])  # what BlockTable.fork does
    assert ids(forked) == ids([second, third, tail])
    assert hashes_of(forked) == hashes_of([second, third, tail])
    assert [block.num_tokens_total for block in forked] == [4, 6, 8]


@lineage("13: batch allocation is all or nothing")
def test_defect_13_a_batch_that_does_not_fit_takes_nothing() -> None:
    allocator = make(3)
    cached = allocator.allocate_immutable_blocks(None, PROMPT[:2])
    allocator.mark_blocks_as_computed([])
    free(allocator, cached)
    allocator.mark_blocks_as_accessed([0], 7.0)
    before = observe(allocator)
    with pytest.raises(NoFreeBlocksError) as refused:
        allocator.allocate_immutable_blocks(None, PROMPT)
    assert observe(allocator) == before
    assert (refused.value.needed, refused.value.available) == (4, 3)
    with pytest.raises(kvpool.errors.TokenError):
        allocator.allocate_immutable_blocks(None, [[1, 2], [3, -1]])
    assert observe(allocator) == before
    assert ids(allocator.allocate_immutable_blocks(None, PROMPT[:3])) == [0, 1, 2]


@lineage("13: a batch does not evict what it is about to hit")
def test_hits_of_a_batch_are_taken_before_anything_is_evicted() -> None:
    allocator = make(3)
    cached = allocator.allocate_immutable_blocks(None, PROMPT[:3])
    allocator.mark_blocks_as_computed([])
    free(allocator, cached)
    allocator.mark_blocks_as_accessed([1, 2], 3.0)
    allocator.mark_blocks_as_accessed([0], 2.0)
    assert allocator.allocate_mutable_block(None).block_id == 0
    assert ids(allocator.allocate_immutable_blocks(None, PROMPT[:2])) == [2, 1]


@lineage("23: an access is never moved back in time")
def test_defect_23_a_time_is_never_lowered() -> None:
    allocator = make(2)
    for tokens, time in (([1, 2], 9.0), ([3, 4], 5.0)):
        block = allocator.allocate_immutable_block(None, tokens)
        allocator.mark_blocks_as_computed([])
        assert block.block_id is not None
        allocator.mark_blocks_as_accessed([block.block_id], time)
        allocator.mark_blocks_as_accessed([block.block_id], 1.0)  # an older time
        block.last_accessed = 2.0
        allocator.free(block)
    allocator.mark_blocks_as_accessed([0], 1.0)
    assert [allocator.allocate_mutable_block(None).block_id for _ in range(2)] == [1, 0]


@lineage("23: one error for free and unknown blocks")
def test_defect_23_one_mistake_is_one_error() -> None:
    allocator = make()
    block = allocator.allocate_immutable_block(None, [1, 2])
    assert block.block_id == 0
    before = observe(allocator)
    for wrong in (5, 99):  # free, unknown
        for old in (ValueError, KeyError, UnknownBlockError):
            with pytest.raises(old):
                allocator.mark_blocks_as_accessed([0, wrong], 3.0)
    assert observe(allocator) == before
    with pytest.raises(ValueError, match="NaN"):
        allocator.mark_blocks_as_accessed([0], float("nan"))


@lineage("24: hashes are cryptographic, equal everywhere, and of full width")
def test_defect_24_a_hash_is_a_digest_and_the_same_in_every_process() -> None:
    code = (
        "from kvpool.lineage.v0.block.prefix_caching_block import hash_block_tokens as h;"
        "a = h(True, None, [1, 2], 5); print(a, h(False, a, [3, 4], 5))"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1")
    }
    first = hash_block_tokens(True, None, [1, 2], 5)
    assert runs == {f"{first} {hash_block_tokens(False, first, [3, 4], 5)}\n"}
    assert min(hash_block_tokens(True, None, [n]) for n in range(50)) > 2**200
    # In Python, hash(-1) equals hash(-2), and an attacker can compute x such that hash((1, x)) has a
    # chosen value.
    assert hash_block_tokens(True, None, [1], -1) != hash_block_tokens(True, None, [1], -2)


calls = st.lists(
    st.tuples(
        st.sampled_from(["prompt", "append", "fork", "free", "computed", "access", "copies", "swap"]),
        st.integers(0, 6),
        st.integers(0, 2),
    ),
    max_size=50,
)


@rows.rows("any calls keep counts exact, tokens right, and lookups computed", caching=True)
@given(calls=calls)
def test_any_calls(row: rows.Row, calls: list[tuple[str, int, int]]) -> None:
    """The test simulates the KV of each block. If a block is reported as computed, it must contain the
    tokens of the prefix that its Python objects describe.
    """
    allocator = row.make(6)
    tables: list[list[Block]] = []
    written: dict[int, list[int]] = {}  # physical block -> the tokens of its prefix, once computed

    def prefix(table: list[Block], upto: int) -> list[int]:
        return [token for block in table[: upto + 1] for token in block.token_ids]

    def run_step() -> None:
        copies = allocator.clear_copy_on_writes()
        if row.older:
            copies = [(src, dst) for src, targets in copies.items() for dst in targets]
        sources = {dst: written.get(src) for src, dst in copies}
        written.update({dst: kv for dst, kv in sources.items() if kv is not None})
        for table in tables:
            for at, block in enumerate(table):
                assert block.block_id is not None
                if block.computed:
                    assert written[block.block_id] == prefix(table, at)
                written[block.block_id] = prefix(table, at)
        allocator.mark_blocks_as_computed([])
        for table in tables:
            numbers = [block.block_id for block in table]
            common = allocator.get_common_computed_block_ids([numbers])
            assert numbers[: len(common)] == common
            assert not row.older or len(common) < len(numbers)  # something is left to be computed

    for call, pick, token in calls:
        table = tables[pick % len(tables)] if tables else None
        try:
            if call == "prompt":
                chunks = [[token, token]] * (1 + pick % 3)
                blocks = allocator.allocate_immutable_blocks(None, chunks)
                tables.append(blocks)
            elif call == "append" and table:
                if table[-1].is_full:
                    table.append(allocator.allocate_mutable_block(table[-1]))
                table[-1].append_token_ids([token])
            elif call == "fork" and table:
                tables.append(allocator.fork(table[-1]))
            elif call == "free" and table:
                tables = [other for other in tables if other is not table]
                for block in table:
                    allocator.free(block)
            elif call == "access" and table:
                allocator.mark_blocks_as_accessed([b.block_id for b in table if b.block_id is not None], pick)
            elif call == "swap" and table and not allocator._tiers.pending_copies():
                run_step()
                allocator.swap_out(table)
                tables = [other for other in tables if other is not table]
                # The table may not fit, because blocks that it shared with another table are separate
                # after a swap.
                allocator.swap_in(table)
                tables.append(table)
            elif call in ("computed", "copies"):
                run_step()
        except NoFreeBlocksError:
            pass
        holders: dict[int, int] = {}
        for other in tables:
            for block in other:
                assert block.block_id is not None
                holders[block.block_id] = holders.get(block.block_id, 0) + 1
        assert {n: allocator.refcounter.get(n) for n in range(6)} == {n: holders.get(n, 0) for n in range(6)}
        allocator._tiers.check_invariants()
    for table in tables:
        free(allocator, table)
    allocator.clear_copy_on_writes()
    assert allocator.get_num_free_blocks() == 6
