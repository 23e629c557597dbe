"""Property 4: a call that fails, wherever it fails, leaves everything as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvpool
from kvpool.testing import observe_manager, observe_pool
from tests.properties.support import B, cache, chain_of, fill

if TYPE_CHECKING:
    from collections.abc import Callable

NULL, UNKNOWN, FREE, CACHED, FENCED = 0, 13, 10, 1, 7


def crowded_pool() -> kvpool.BlockPool:
    """1, 2 cached; 3, 4 held and registered; 5 held twice; 6 not computed yet; 7 fenced; 8, 9 held; the rest free."""
    pool = kvpool.BlockPool(13, B, event_capacity=100)
    cache(pool, range(4))
    hits = pool.match_and_acquire(chain_of(range(4)))
    assert fill(pool, range(10, 14)) == [3, 4]
    pool.release_table(hits)
    assert pool.allocate(5) == [5, 6, 7, 8, 9]
    pool.acquire([5])
    pool.register([6], chain_of([9, 9]))
    pool.release_after([7], 3)
    pool.take_events()
    return pool


CALLS: dict[str, tuple[list[int], list[int], Callable[[kvpool.BlockPool, list[int]], Any]]] = {
    "acquire": ([3, 5, 5, 8], [NULL, UNKNOWN, FREE, CACHED], lambda pool, ids: pool.acquire(ids)),
    "release": ([3, 8, 5, 5, 6], [NULL, UNKNOWN, FREE, CACHED, FENCED, 8], lambda pool, ids: pool.release(ids)),
    "release_table": (
        [3, 8, 5, 5, 6],
        [NULL, UNKNOWN, FREE, CACHED, FENCED, 8],
        lambda pool, ids: pool.release_table(ids),
    ),
    "release_after": (
        [3, 8, 5, 5, 6],
        [NULL, UNKNOWN, FREE, CACHED, FENCED, 8],
        lambda pool, ids: pool.release_after(ids, 4),
    ),
    "mark_computed": ([3, 6, 4], [NULL, UNKNOWN, FREE, 8], lambda pool, ids: pool.mark_computed(ids)),
    "drop_cached": ([2, 3, 6, 8], [NULL, UNKNOWN], lambda pool, ids: pool.drop_cached(ids)),
    "register": (
        [5, 8, 9],
        [NULL, UNKNOWN, FREE, CACHED, 3, 6, 8],
        lambda pool, ids: pool.register(ids, chain_of(range(20, 28))),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_property_04_a_failed_call_of_the_pool_changes_nothing(name: str) -> None:
    """vllm#24228: a call that failed half-way had moved blocks or counters. The bad id is first, amid, last."""
    good, bad, call = CALLS[name]
    for wrong in bad:
        for at in (0, len(good) // 2, len(good)):
            pool = crowded_pool()
            before = observe_pool(pool)
            with pytest.raises(kvpool.KvpoolError):
                call(pool, [*good[:at], wrong, *good[at:]])
            assert observe_pool(pool) == before
            assert pool.take_events() == ([], 0)
            pool.check_invariants()
    pool = crowded_pool()
    before = observe_pool(pool)
    call(pool, good)
    assert observe_pool(pool) != before


def crowded_manager() -> kvpool.CacheManager:
    """Two blocks are available; 1 and 3 need one for their next token, 2 does not; 4 is preempted."""
    manager = kvpool.CacheManager(10, B)
    for name, tokens in ((1, [1, 2, 3, 4]), (2, [5, 6, 7]), (3, [8, 9, 10, 11]), (4, [1, 2, 5, 5, 5])):
        manager.admit(name, tokens)
    manager.commit(4, 4)
    manager.commit(1, 2)
    manager.preempt(4)
    manager.admit(5, [30])
    assert manager.num_available == 2
    return manager


@given(
    batch=st.permutations([1, 2, 3]),
    wrong=st.sampled_from([9, 4, 2]),
    at=st.integers(0, 3),
    commit=st.booleans(),
)
def test_property_04_a_failed_batch_changes_nothing(batch: list[int], wrong: int, at: int, commit: bool) -> None:
    """vllm#24228: an unknown request, a preempted one, or one that is named twice, at any place of a batch."""
    manager = crowded_manager()
    before = observe_manager(manager, range(10))
    rows = [*batch[:at], wrong, *batch[at:]]
    if wrong != 4:  # the preempted one takes the token that the step under way has sampled
        with pytest.raises(kvpool.KvpoolError):
            manager.append(rows, [0] * 4, commit=commit)
        with pytest.raises(kvpool.KvpoolError):
            manager.append_ragged(rows, [0] * 4, commit=commit, lookahead=1)
    with pytest.raises(kvpool.KvpoolError):
        manager.commit_batch(rows, [4, 4, 4, 4])
    with pytest.raises(kvpool.KvpoolError):
        manager.truncate_batch(rows, [2, 2, 2, 2])
    assert observe_manager(manager, range(10)) == before
    # One too many for the pool: the row that finds no block may be any.
    manager.admit(6, [40, 41])
    before = observe_manager(manager, range(10))
    with pytest.raises(kvpool.errors.OutOfBlocksError) as refused:
        manager.append([*batch[:at], 6, *batch[at:]], [0] * 4, commit=commit)
    assert (refused.value.needed, refused.value.missing) == (3, 2)
    assert observe_manager(manager, range(10)) == before
    manager.check_invariants()


def test_property_04_a_failed_admission_and_a_dropped_plan_change_nothing() -> None:
    """vllm#24228: a match that succeeds, then no blocks for the rest; a plan of which one operation fails."""
    manager = crowded_manager()
    before = observe_manager(manager, range(10))
    prompt = [1, 2, 5, 5, 50, 51, 52, 53]
    assert manager.probe(prompt).cached_blocks == 2
    with pytest.raises(kvpool.errors.OutOfBlocksError):
        manager.admit(8, prompt)
    with pytest.raises(kvpool.errors.OutOfBlocksError):
        manager.append_tokens(1, [0] * 99)
    with manager.plan_step() as step:
        step.preempt(3)
        step.admit(8, prompt)
        with pytest.raises(kvpool.errors.OutOfBlocksError):
            step.append(1, [0] * 99)
        with pytest.raises(kvpool.errors.UnknownRequestError):
            step.release(9)
    assert observe_manager(manager, range(10)) == before
    manager.check_invariants()
