"""Property 6: a block with a live hash is handed out only when no free block without one is left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import kvpool
from tests.properties.support import B, cache, chain_of, recount


@given(cached=st.integers(0, 6), held=st.integers(0, 6), n=st.integers(0, 12))
def test_property_06_a_cached_block_is_taken_only_when_no_free_one_is_left(cached: int, held: int, n: int) -> None:
    """vllm#42948, vllm#42656: cached content was evicted while free blocks were left."""
    pool = kvpool.BlockPool(13, B)
    for one in range(cached):
        cache(pool, [one, one])
    pool.allocate(held)
    free, cached_free, _, _ = recount(pool)
    if n > free + cached_free:
        return
    live = set(pool.eviction_order())
    taken = pool.allocate(n)
    assert len(live & set(taken)) == max(0, n - free) == pool.stats().evicted
    assert all(pool.hash_of(block) is None for block in taken)


def test_property_06_a_released_block_without_content_is_reused_first() -> None:
    """vllm#42948: blocks without a hash queued behind those that had one."""
    pool = kvpool.BlockPool(5, B)
    table = pool.allocate(4)
    pool.register(table[:2], chain_of(range(4)))
    pool.mark_computed(table[:2])
    pool.release(table)
    assert set(pool.allocate(2)) == set(table[2:])
    assert pool.stats().evicted == 0
