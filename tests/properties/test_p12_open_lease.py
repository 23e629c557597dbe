"""Property 12: a block with an open lease is nobody's victim, whatever the policy; hits on it succeed."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

import kvpool
from tests.properties.support import B, cache, chain_of, fill

if TYPE_CHECKING:
    from kvpool._core import EvictionPolicy

LEASES = ["held", "fence", "source of a copy", "source of a swap", "destination of a swap"]
PROMPT = [1, 2, 3, 4]


@pytest.mark.parametrize("lease", LEASES)
@pytest.mark.parametrize("eviction", kvpool.policies.eviction_policies())
def test_property_12_a_leased_block_is_nobodys_victim_and_can_be_hit(eviction: EvictionPolicy, lease: str) -> None:
    """trtllm#12542, sglang#31427: a block was evicted while it was copied, or could not be hit meanwhile."""
    tiers = kvpool.TieredPool([9, 9], B, eviction=eviction)
    device, host = tiers.pools
    leased = table = fill(device, PROMPT)
    if eviction == "last-accessed":
        device.mark_accessed(table, 0.0)  # the first to go, if it could
    pool, swap = device, None
    if lease == "fence":
        device.release_after(table, 4)
    elif lease == "source of a copy":
        assert not {tiers.copy_on_write(block) for block in table} & set(table)
    elif "swap" in lease:
        swap = tiers.begin_swap(table, src=0, dst=1)
        if lease == "destination of a swap":
            pool, leased = host, list(swap.mapping.values())
    for first in (50, 60):
        room = pool.num_available // 2
        assert not set(leased) & set(cache(pool, range(first, first + B * room)))
    rest = pool.allocate(pool.num_available)
    assert rest
    assert not set(leased) & set(rest)
    hit = pool.match_and_acquire(chain_of(PROMPT))
    assert hit == ([] if pool is host else leased)  # nothing is in the host before its copy is made
    pool.release_table(hit)
    with pytest.raises(kvpool.errors.OutOfBlocksError):
        pool.allocate(1)
    tiers.check_invariants()

    # When the lease is over they can be had like all others.
    if lease == "held":
        pool.release_table(table)
    elif lease == "fence":
        pool.complete_step(4)
    elif lease == "source of a copy":
        tiers.take_plan()
    elif swap is not None:
        assert len(tiers.take_plan()) == 2
        moved = swap.complete()
        host.release_table(list(moved.values()))
    assert sorted(pool.allocate(2)) == sorted(leased)
    tiers.check_invariants()


@pytest.mark.parametrize("eviction", [name for name in kvpool.policies.eviction_policies() if name != "last-accessed"])
def test_property_12_a_request_that_runs_keeps_its_blocks_whatever_its_hints(eviction: EvictionPolicy) -> None:
    """trtllm#12542: a hint that a prompt will not be used again does not end its use now."""
    manager = kvpool.CacheManager(9, B, eviction=eviction, retention=True)
    manager.admit("a", PROMPT)
    manager.commit("a", 4)
    manager.end_of_life("a")
    taken = itertools.chain.from_iterable(manager.admit(name, [10 * name] * (2 * B)).block_ids for name in range(1, 4))
    assert not set(manager.block_ids("a")) & set(taken)
    with pytest.raises(kvpool.errors.OutOfBlocksError):
        manager.admit("b", [99])
    assert manager.probe([*PROMPT, 5]).cached_blocks == 2
    manager.release("a")
    assert manager.admit("b", [98, 98, 99]).block_ids
