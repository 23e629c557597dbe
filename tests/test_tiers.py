"""Tests tiers and plans, and the manager's forks and swaps, in Python: conversions, errors, and one
complete use of each.
"""

from __future__ import annotations

import pytest

import kvpool
from kvpool import errors


def test_pools_of_a_tiered_pool_are_views() -> None:
    tiers = kvpool.TieredPool([6, 4], 4, eviction="last-accessed")
    device, host = tiers.pools
    held = device.allocate(2)
    assert (tiers.pools[0].ref_count(held[0]), host.num_available, len(tiers)) == (1, 3, 2)
    device.acquire(held)
    fresh = tiers.copy_on_write(held[1])
    assert (fresh, device.diagnose.num_holders(held[1]), device.ref_count(held[1])) == (3, 1, 2)
    assert tiers.pending_copies() == [((0, 2), (0, 3))]
    device.release([3])  # the copy is not needed any more
    assert (len(tiers.take_plan()), device.num_available) == (0, 3)
    assert tiers.copy_on_write(held[1]) == held[1]
    for wrong in (0, 9, 5):
        with pytest.raises(errors.InvalidBlockError, match=str(wrong)):
            tiers.copy_on_write(wrong)
    assert device.bump_epoch() == host.stats().epoch == 1
    tiers.check_invariants()


def test_links_and_access_times() -> None:
    hasher = kvpool.BlockHasher(block_size=2)
    pool = kvpool.BlockPool(8, 2, eviction="last-accessed")
    first = hasher.link([1, 2])
    second = hasher.link([3, 4], first, None)
    assert (first.depth, second.depth, second.num_tokens, len({first, second, hasher.link([1, 2])})) == (
        0,
        1,
        4,
        2,
    )
    one, other = pool.allocate(2)
    assert (pool.register_link(one, first), pool.acquire(second)) == (one, None)
    assert pool.register_link(other, hasher.link([1, 2])) == one  # shared, computed or not
    assert (pool.ref_count(one), pool.state(other), pool.diagnose.copies(first.digest)) == (2, "free", [one])
    pool.mark_computed([one])
    pool.release([one, one])
    (late,) = pool.allocate(1)
    pool.register_link(late, second)
    pool.mark_computed([late])
    pool.mark_accessed([one], 20.0)
    pool.mark_accessed([late], 10.0)
    pool.release([late])
    assert pool.diagnose.eviction_order() == [late, one]
    for call, error, builtin in (
        (lambda: pool.mark_accessed([7], 1.0), errors.InvalidBlockError, ValueError),
        (lambda: pool.mark_accessed([one], float("nan")), errors.InvalidArgumentError, ValueError),
        (lambda: pool.register_link(one, first), errors.InvalidBlockError, ValueError),
        (lambda: pool.diagnose.copies(b"short"), errors.HashingError, ValueError),
        (lambda: hasher.link([1]), errors.HashingError, ValueError),
        (lambda: hasher.link([1, 2], first, epoch=1), errors.HashingError, ValueError),
        (lambda: pool.acquire(hasher.link([1, 2], epoch=1)), errors.StaleEpochError, RuntimeError),
    ):
        with pytest.raises(error) as raised:
            call()
        assert isinstance(raised.value, builtin)
    pool.diagnose.check_invariants()


def test_plans_of_the_callers_own() -> None:
    chain = kvpool.TransferPlan([((0, 1), (0, 2)), ((0, 2), (1, 3)), ((1, 4), (0, 7)), ((1, 5), (0, 8))])
    assert chain.rounds() == [[((0, 2), (1, 3)), ((1, 4), (0, 7)), ((1, 5), (0, 8))], [((0, 1), (0, 2))]]
    assert chain.runs()[0] == [((0, 2), (1, 3), 1), ((1, 4), (0, 7), 2)]
    cycle = kvpool.TransferPlan([((0, 1), (0, 2)), ((0, 2), (0, 1))])
    assert len(cycle.rounds([(0, 9)])) == 3
    for wrong, words in (
        (lambda: cycle.rounds(), "1 cycles and was given 0 scratch blocks"),
        (lambda: cycle.rounds([(0, 1)]), "used already"),
        (lambda: kvpool.TransferPlan([((0, 1), (0, 2)), ((0, 3), (0, 2))]), "written twice"),
        (lambda: kvpool.TransferPlan([((0, 0), (0, 2))]), "null block"),
        (lambda: kvpool.TransferPlan([((-1, 1), (0, 2))]), "tier is -1"),
    ):
        with pytest.raises(errors.InvalidArgumentError, match=words):
            wrong()


def test_parallel_samples_of_one_prompt() -> None:
    manager = kvpool.CacheManager(32, 4, host_blocks=16)
    manager.admit("s0", range(10))
    manager.commit("s0", 10)
    for child in ("s1", "s2"):
        manager.fork("s0", child)
    assert manager.append(["s0", "s1", "s2"], [1, 2, 3], commit=True) == [(0, 2, 4), (1, 2, 5)]
    assert manager.take_plan().transfers == [((0, 3), (0, 4)), ((0, 3), (0, 5))]
    assert manager.append("s2", [4, 5], lookahead=3) == [(3, 6)]
    manager.truncate("s2", 11)
    assert manager.swaps.fit_out(["s1", "s2"]) == "ok"
    swap = manager.swaps.begin_out(["s1", "s2"])
    with pytest.raises(errors.RequestStateError, match="moving"):
        manager.preempt("s1")
    assert len(manager.take_plan()) == 4
    assert manager.swaps.complete(swap) == {1: 1, 2: 2, 5: 3, 3: 4}
    stats = manager.stats()
    assert (stats.swapped, stats.swapped_out, stats.forks, stats.copied_blocks, len(manager)) == (
        2,
        2,
        2,
        6,
        3,
    )
    assert (manager.request("s1").state, manager.request("s1").tier) == ("swapped", 1)
    host = manager.swaps.host_stats()
    assert host is not None
    assert host.active == 4
    assert manager.swaps.fit_in(["s1"]) == "ok"
    back = manager.swaps.begin_in(["s1"])
    manager.swaps.abort(back)
    manager.preempt("s1")
    assert manager.resume("s1").cached_tokens == 8
    manager.release("s2")
    manager.diagnose.check_invariants()
