"""Property 7: a block released after a step can be allocated exactly from the completion of that step on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvpool
from tests.properties.support import B, fill, recount, sums


@given(
    fenced=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    completions=st.lists(st.integers(0, 6), max_size=5),
    cached=st.booleans(),
)
def test_property_07_a_fenced_block_is_allocatable_exactly_when_its_step_completes(
    fenced: list[int], completions: list[int], cached: bool
) -> None:
    """vllm#45357, tpu-inference#3449: a block freed while a step ran was overwritten by that step."""
    pool = kvpool.BlockPool(len(fenced) + 1, B)
    tables = [fill(pool, [one, one]) if cached else pool.allocate(1) for one in range(len(fenced))]
    for table, step in zip(tables, fenced, strict=True):
        pool.release_after(table, step)
    last = -1
    for completed in [*completions, 6]:
        waiting = sum(step > last for step in fenced)
        assert sums(pool.stats()) == recount(pool)
        assert (pool.stats().fenced, pool.num_available) == (waiting, len(fenced) - waiting)
        for table, step in zip(tables, fenced, strict=True):
            assert (pool.state(table[0]) == "fenced") == (step > last)
        with pytest.raises(kvpool.errors.OutOfBlocksError) as refused:
            pool.allocate(len(fenced) - waiting + 1)
        assert refused.value.fenced == waiting
        ended = pool.complete_step(completed)
        assert ended == sum(last < step <= completed for step in fenced)
        last = max(last, completed)
    assert pool.num_available == len(fenced)
    assert sorted(pool.allocate(len(fenced))) == sorted(table[0] for table in tables)


def test_property_07_a_hit_on_a_fenced_block_succeeds_and_outlives_the_fence() -> None:
    """tpu-inference#3449: a block in flight was either lost or freed under its new holder."""
    manager = kvpool.CacheManager(6, B)
    manager.admit("a", [1, 1, 2, 2, 3])
    manager.commit("a", 4)
    manager.release("a", after_step=3)
    assert manager.stats().pool.fenced == 3
    assert manager.admit("b", [1, 1, 2, 2, 9]).block_ids == [1, 2, 4]
    assert manager.complete_step(3) == 3
    assert manager.stats().pool.active == 3
    assert manager.free_order()[0] == 3
    # A step that has completed already fences nothing.
    manager.release("b", after_step=2)
    assert manager.num_available == 5
