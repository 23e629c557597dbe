"""Property 5: no interleaving of lookups and allocations gives a block to two requests, unless by the same hash."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import kvpool
from tests.properties.support import B, cache, chain_of, interleavings, recount

if TYPE_CHECKING:
    from kvpool._core import EvictionPolicy


def test_property_05_a_matched_block_is_never_handed_out() -> None:
    """vllm#37164, vllm#10507: a block found by one request was allocated to another before it was held.

    Three requests look up, allocate and release in every order; two share a prefix.
    """
    prompts = [[0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 3, 3], [9, 9, 8, 8, 7, 7]]
    orders = list(interleavings(3, 3))
    assert len(orders) == 1680
    for order in orders:
        pool = kvpool.BlockPool(9, B)
        cache(pool, prompts[0][:4])
        cache(pool, prompts[2])
        tables: dict[int, list[int]] = {}
        shared: dict[int, int] = {}
        done = [0, 0, 0]
        for who in order:
            phase, done[who] = done[who], done[who] + 1
            if phase == 0:
                tables[who] = pool.match_and_acquire(chain_of(prompts[who]), 2)
                shared[who] = len(tables[who])
            elif phase == 1:
                try:
                    fresh = pool.allocate(3 - len(tables[who]))
                except kvpool.errors.OutOfBlocksError:
                    continue
                assert not set(fresh) & {block for table in tables.values() for block in table}
                tables[who] += fresh
            else:
                pool.release_table(tables.pop(who))
            holders: dict[int, set[int]] = {}
            for holder, table in tables.items():
                for block in table:
                    holders.setdefault(block, set()).add(holder)
            for block, names in holders.items():
                assert pool.ref_count(block) == len(names)
                # More than one holder only by the same hash at the same place.
                if len(names) > 1:
                    places = {tables[name].index(block) for name in names}
                    assert len(places) == 1
                    assert all(tables[name].index(block) < shared[name] for name in names)
        assert recount(pool)[2:] == (0, 0)
        pool.check_invariants()


def test_property_05_an_admission_does_not_evict_its_own_hit() -> None:
    """vllm#10507: the blocks behind a hit were allocated from the hit itself."""
    manager = kvpool.CacheManager(6, B)
    manager.admit("a", [1, 1, 2, 2])
    manager.commit("a", 4)
    manager.release("a")
    # Five blocks, two of them cached. Six tokens hit two blocks and need one; ten hit two and need three.
    admission = manager.admit("b", [1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    assert (admission.cached_blocks, admission.block_ids[:2]) == (2, [1, 2])
    assert len(set(admission.block_ids)) == 5
    manager.release("b")
    with pytest.raises(kvpool.errors.OutOfBlocksError) as refused:
        manager.admit("c", [1, 1, 2, 2, *range(8)])
    assert (refused.value.needed, refused.value.available) == (4, 3)
    assert manager.probe([1, 1, 2, 2, 0]).cached_blocks == 2
    # The refused one holds nothing of what it found.
    assert (manager.stats().pool.active, manager.num_available) == (0, 5)
    manager.check_invariants()


@pytest.mark.parametrize("eviction", kvpool.policies.eviction_policies())
def test_property_05_what_an_admission_found_is_held_before_the_rest_is_allocated(eviction: EvictionPolicy) -> None:
    """vllm#10507: the hit is the oldest of the cache, and the next victim of the allocation behind it."""
    manager = kvpool.CacheManager(6, B, eviction=eviction)
    for name, prompt in (("a", [1, 1, 2, 2]), ("c", [7, 7, 8, 8])):
        manager.admit(name, prompt)
        manager.commit(name, 4)
        manager.release(name)
    admission = manager.admit("b", [1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    assert (admission.cached_blocks, admission.block_ids[:2]) == (2, [1, 2])
    assert len(set(admission.block_ids)) == 5
    assert manager.probe([7, 7, 8, 8, 0]).cached_blocks == 0
    manager.check_invariants()
