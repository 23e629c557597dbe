"""Property 23: whatever was hit and held before, n blocks can be allocated if n are evictable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvpool
from tests.properties.support import B, chain_of, fill, recount

if TYPE_CHECKING:
    from kvpool._core import EvictionPolicy


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
        with pytest.raises(kvpool.errors.OutOfBlocksError) as refused:
            pool.allocate(n)
        assert refused.value.missing == n - free - cached_free
    pool.check_invariants()


WITH_HINTS = [name for name in kvpool.policies.eviction_policies() if name != "last-accessed"]


@pytest.mark.parametrize("eviction", WITH_HINTS)
@pytest.mark.parametrize("budget", [0, 1, 4, 8])
@pytest.mark.parametrize("floor", [0, 2])
def test_property_23_hints_forbid_no_allocation_and_stay_within_their_budget(
    eviction: EvictionPolicy, budget: int, floor: int
) -> None:
    """vllm#55461, mooncake#2286: pinned blocks were counted as evictable and never evicted."""
    limits = [kvpool.TenantLimits(5, floor=min(floor, 8 - budget))]
    config = kvpool.RetentionConfig(pin_budget=budget, tenants=limits)
    pool = kvpool.BlockPool(9, B, eviction=eviction, retention=config)
    tables = [fill(pool, range(6)), fill(pool, range(10, 14))]
    for table in tables:
        pool.assign_tenant(table, 5)
        report = pool.retain(table, kvpool.Retention(pinned=True))
        assert report.accepted + report.clipped + report.ignored == len(table)
        stats = pool.retention_stats()
        assert stats is not None
        assert stats.pinned <= budget
    for table in tables:
        pool.release_table(table)
    for n in range(8, 0, -1):
        blocks = pool.allocate(n)
        assert len(set(blocks)) == n
        pool.release(blocks)
    pool.check_invariants()


@pytest.mark.parametrize("eviction", WITH_HINTS)
@pytest.mark.parametrize("idle", [False, True])
def test_property_23_what_has_expired_has_no_effect(eviction: EvictionPolicy, idle: bool) -> None:
    """mooncake#3028: retention that had run out still counted, and its budget was gone."""
    made = []
    for ttl in (10.0, None):
        config = kvpool.RetentionConfig(pin_budget=1)
        pool = kvpool.BlockPool(5, B, eviction=eviction, retention=config)
        pool.advance_time(0.0)
        tables = [fill(pool, [one, one]) for one in range(4)]
        pinned = kvpool.Retention(pinned=True, ttl=ttl, idle=idle and ttl is not None)
        assert pool.retain(tables[0], pinned).accepted == 1
        for table in tables:
            pool.release_table(table)
        pool.advance_time(9.0)
        made.append(pool)
    pool, plain = made
    assert pool.eviction_order() == plain.eviction_order()
    assert pool.eviction_order()[-1:] == tables[0]
    assert pool.advance_time(11.0) == 1
    plain.advance_time(11.0)
    plain.retain(tables[0], kvpool.Retention())  # takes it back
    assert pool.eviction_order() == plain.eviction_order()
    assert pool.retain(tables[1], kvpool.Retention(pinned=True)).accepted == 1
    assert len(pool.allocate(4)) == 4
    pool.check_invariants()
