"""Property 1: a block that one call names twice loses two references and is queued once."""

from __future__ import annotations

import itertools

import pytest

import kvpool
from tests.properties.support import B, fill, recount, sums


@pytest.mark.parametrize("cached", [False, True])
def test_property_01_a_block_freed_twice_in_one_call_is_queued_once(cached: bool) -> None:
    """vllm#42571, dynamo#13398: freeing [b, b] put b on the queue twice."""
    calls = [call for length in range(6) for call in itertools.product([1, 2, 3], repeat=length)]
    assert len(calls) == 364
    for call in calls:
        pool = kvpool.BlockPool(6, B)
        assert (fill(pool, range(6)) if cached else pool.allocate(3)) == [1, 2, 3]
        pool.acquire([2, 3, 3])
        fits = all(call.count(block) <= block for block in (1, 2, 3))
        if fits:
            pool.release(call)
        else:
            with pytest.raises(kvpool.errors.InvalidBlockError):
                pool.release(call)
        left = [block - call.count(block) if fits else block for block in (1, 2, 3)]
        assert [pool.ref_count(block) for block in (1, 2, 3)] == left
        queue = pool.eviction_order() if cached else pool.free_order()
        assert len(set(queue)) == len(queue)
        idle = left.count(0)
        expected = (2, idle, 3 - idle, 0) if cached else (2 + idle, 0, 3 - idle, 0)
        assert sums(pool.stats()) == recount(pool) == expected
        pool.check_invariants()  # walks every list in both directions
