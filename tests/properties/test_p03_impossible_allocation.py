"""Property 3: an allocation of nothing, of a negative number, or of more than there is changes nothing."""

from __future__ import annotations

import pytest

import kvpool
from kvpool.testing import observe_pool
from tests.properties.support import B, cache, recount, sums


@pytest.mark.parametrize("cached", [0, 1, 2])
@pytest.mark.parametrize("held", [0, 1, 2])
def test_property_03_an_impossible_allocation_changes_nothing(cached: int, held: int) -> None:
    """ascend#14283, lmcache#987: allocating 0, a negative number or more than there is changed the counts."""
    pool = kvpool.BlockPool(7, B)
    cache(pool, range(cached * B))
    table = pool.allocate(held)
    pool.release_after(table[:1], 7)
    available = pool.num_available
    assert available == 6 - held
    before = observe_pool(pool)
    assert pool.allocate(0) == []
    assert observe_pool(pool) == before
    for n in (available + 1, 7, 2**31, 2**62):
        with pytest.raises(kvpool.errors.OutOfBlocksError) as refused:
            pool.allocate(n)
        error = refused.value
        assert (error.needed, error.available, error.fenced) == (n, available, min(held, 1))
        assert observe_pool(pool) == before
    for n in (-1, -(2**31), -(2**63)):
        with pytest.raises(kvpool.errors.InvalidArgumentError):
            pool.allocate(n)
        assert observe_pool(pool) == before
    assert len(pool.allocate(available)) == available
    assert sums(pool.stats()) == recount(pool)
    assert all(0 <= figure <= 6 for figure in recount(pool))
