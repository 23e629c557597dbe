"""Property 20: with copies of a content, evicting one leaves it matchable through another; no entry dangles."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

import kvpool
from tests.properties.support import B, chain_of, fill

if TYPE_CHECKING:
    from kvpool._core import Duplicates


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("how", ["drop_cached", "allocate"])
@pytest.mark.parametrize("duplicates", ["keep", "drop-on-release"])
def test_property_20_duplicates_leave_in_any_order(order: tuple[int, ...], how: str, duplicates: Duplicates) -> None:
    """kvcached#401, nano#219: evicting one duplicate made the others unreachable, or left a dangling entry."""
    pool = kvpool.BlockPool(5, B, duplicates=duplicates)
    copies = [fill(pool, [1, 1])[0] for _ in range(3)]
    other = pool.allocate(1)
    chain = chain_of([1, 1])
    for at in order:
        pool.release([copies[at]])
        assert pool.probe(chain).cached_blocks == 1
        pool.check_invariants()
    cached = [copies[at] for at in order] if duplicates == "keep" else [copies[order[-1]]]
    assert pool.eviction_order() == cached
    pool.allocate(len(pool.free_order()))
    for gone in range(1, len(cached) + 1):
        if how == "drop_cached":
            assert pool.drop_cached([cached[gone - 1]]) == 1
            pool.allocate(1)
        else:
            assert pool.allocate(1) == [cached[gone - 1]]
        left = len(cached) - gone
        assert (pool.probe(chain).cached_blocks, pool.stats().registered) == (min(left, 1), left)
        if left:
            found = pool.match_and_acquire(chain)
            assert pool.hash_of(found[0]) == chain.digests()[0]
            assert found[0] in cached[gone:]
            # A hit makes it the last to go.
            cached = cached[:gone] + [block for block in cached[gone:] if block != found[0]] + found
            pool.release(found)
            assert pool.eviction_order() == cached[gone:]
        pool.check_invariants()
    assert pool.match_and_acquire(chain) == []
    pool.release(other)
