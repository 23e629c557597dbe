"""Property 2: a block is on one list at most; releasing what nobody holds is an error that changes nothing."""

from __future__ import annotations

import pytest

import kvpool
from kvpool.testing import observe_pool
from tests.properties.support import B, cache


@pytest.mark.parametrize("fence", [True, False])
def test_property_02_a_block_is_on_one_list_and_an_unheld_block_cannot_be_released(fence: bool) -> None:
    """trtllm#14937: a block on two lists at once, after a release of what nobody held."""
    pool = kvpool.BlockPool(7, B)
    cache(pool, range(4))
    assert pool.allocate(2) == [3, 4]
    pool.release_after([3], 1)
    if not fence:
        pool.complete_step(1)

    def places(block: int) -> int:
        lists = [*pool.free_order(), *pool.eviction_order()]
        return lists.count(block) + (pool.ref_count(block) > 0)

    states = {1: "cached-free", 2: "cached-free", 3: "fenced" if fence else "free", 4: "active", 5: "free", 6: "free"}
    for block, state in states.items():
        assert (pool.state(block), places(block)) == (state, 1)
        if state == "active":
            continue
        before = observe_pool(pool)
        for call in ([block], [4, block], [block, 4]):
            for release in (pool.release, pool.release_table, lambda ids: pool.release_after(ids, 9)):
                with pytest.raises(kvpool.errors.InvalidBlockError, match=f"block {block} has 0 references"):
                    release(call)
                assert observe_pool(pool) == before
        assert places(block) == 1
    with pytest.raises(kvpool.errors.InvalidBlockError):
        pool.release([0])
    assert places(0) == 0
