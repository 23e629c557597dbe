"""Property 23: whatever was hit and held before, n blocks can be allocated if n are evictable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvpool
from tests.properties.support import B, chain_of, fill, recount


@given(script=st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), max_size=25), n=st.integers(0, 9))
def test_property_23_what_is_evictable_can_be_allocated(script: list[tuple[int, bool, bool]], n: int) -> None:
    """vllm#55461, mooncake#2286, mooncake#3028: retained blocks made an allocation fail though enough were idle."""
    pool = kvpool.BlockPool(10, B)
    held: list[list[int]] = []
    for which, release, hit in script:
        if hit:
            held.append(pool.match_and_acquire(chain_of([which, which, 1, 1])))
        elif pool.num_available >= 2:
            held.append(fill(pool, [which, which, 1, 1]))
        if release and held:
            pool.release_table(held.pop(0))
    free, cached_free, active, _ = recount(pool)
    assert pool.num_available == free + cached_free == 9 - active
    if n <= free + cached_free:
        table = pool.allocate(n)
        assert len(set(table)) == n
        assert not set(table) & {block for one in held for block in one}
    else:
        with pytest.raises(kvpool.OutOfBlocksError) as refused:
            pool.allocate(n)
        assert refused.value.missing == n - free - cached_free
    pool.check_invariants()
