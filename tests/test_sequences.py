"""Sequences, tiers and plans from Python, and the manager's forks and swaps: conversions, errors, one life of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvpool
from kvpool import errors

if TYPE_CHECKING:
    from collections.abc import Callable


def sequences(device: int = 16, host: int = 16, **settings: Any) -> kvpool.Sequences:
    return kvpool.Sequences([device, host], kvpool.BlockHasher(block_size=4), **settings)


def test_a_life_of_a_sequence() -> None:
    all_ = sequences()
    a = all_.admit(np.arange(10, dtype=np.int32))
    assert (all_.block_ids(a), all_.commit(a, 10), len(all_)) == ([1, 2, 3], [], 1)
    b = all_.fork(a)
    assert all_.block_ids(b) == [1, 2, 3]
    assert all_.append(a, [7, 8, 9], lookahead=2) == [(2, 4), (3, 5)]
    assert all_.take_plan().transfers == [((0, 3), (0, 4))]
    all_.truncate(a, 11)
    assert all_.block_ids(a) == [1, 2, 4]
    all_.commit(a, 11)
    assert (all_.trim_window(a, 3), all_.block_ids(a)) == (2, [0, 0, 4])
    out = np.zeros(4, dtype=np.int32)
    assert (all_.block_ids(a, out=out), out.tolist()) == (3, [0, 0, 4, 0])
    assert all_.info(a) == {
        "tokens": 11,
        "computed_tokens": 11,
        "blocks": 3,
        "registered_blocks": 2,
        "trimmed_blocks": 2,
        "tier": 0,
        "swap": None,
    }
    all_.check_invariants()
    all_.free(a)
    all_.free(b, after_step=3)
    assert (a in all_, len(all_), all_.stats().fenced) == (False, 0, 3)
    assert (all_.complete_step(3), all_.stats().fenced) == (3, 0)


def test_a_swap_of_a_group() -> None:
    all_ = sequences()
    a = all_.admit(range(10))
    all_.commit(a, 10)
    b = all_.fork(a)
    all_.append(b, [5])
    assert all_.fit_swap([a, b], 1) == "ok"
    assert all_.fit_swap([a, b], 1, reserve=12) == "never"
    swap = all_.begin_swap([a, b], 1)
    assert all_.info(a)["swap"] == swap
    with pytest.raises(errors.SwapError, match="take the plan"):
        all_.complete_swap(swap)
    # Block 4 is still block 3: its copy is in the same plan.
    assert all_.take_plan().runs() == [[((0, 3), (0, 4), 1), ((0, 1), (1, 1), 3), ((0, 3), (1, 4), 1)]]
    assert all_.complete_swap(swap) == {1: 1, 2: 2, 3: 3, 4: 4}
    assert (all_.info(a)["tier"], all_.stats(tier=1).active, all_.stats().cached_free) == (1, 4, 2)
    back = all_.begin_swap([a, b], 0)
    all_.abort_swap(back)
    assert all_.info(b)["tier"] == 1
    back = all_.begin_swap([a, b], 0)
    assert len(all_.take_plan()) == 2  # two blocks are cached on the device still
    all_.complete_swap(back)
    all_.check_invariants()


def test_commit_exchanges_equal_blocks_if_asked() -> None:
    all_ = sequences()
    a, b = all_.admit(range(9)), all_.admit(range(9))
    assert all_.commit(a, 9, dedupe=True) == []
    assert all_.commit(b, 9, dedupe=True) == [(0, 1), (1, 2)]
    assert all_.block_ids(b) == [1, 2, 6]


def test_extra_keys_and_epochs_reach_the_hashes() -> None:
    all_ = sequences()
    salted = kvpool.ExtraKeys(salt="s")
    a = all_.admit(range(9), salted)
    all_.commit(a, 9)
    assert all_.info(all_.admit(range(9)))["computed_tokens"] == 0
    assert all_.info(all_.admit(range(9), salted))["computed_tokens"] == 8
    stale = kvpool.BlockHasher(block_size=4).cursor(range(9))
    assert all_.bump_epoch() == 1
    assert all_.info(all_.admit(range(9), salted))["computed_tokens"] == 0
    with pytest.raises(errors.StaleEpochError):
        all_.admit(stale)


def test_events_tell_the_tier() -> None:
    all_ = sequences(event_capacity=8)
    a = all_.admit(range(5))
    all_.commit(a, 5)
    swap = all_.begin_swap([a], 1)
    all_.take_plan()
    all_.complete_swap(swap)
    (device, _), (host, _) = all_.take_events(), all_.take_events(tier=1)
    assert [event["type"] for event in device] == ["stored"]
    assert [event["type"] for event in host] == ["stored"]
    assert device[0]["hash"] == host[0]["hash"]  # type: ignore[typeddict-item]


BAD: list[tuple[Callable[[kvpool.Sequences, int], object], type[kvpool.KvpoolError], type[Exception], str]] = [
    (lambda s, _: s.fork(99), errors.StaleSequenceError, KeyError, "sequence 99.0 is stale"),
    (lambda s, _: s.append(2**64 - 1, [1]), errors.StaleSequenceError, KeyError, "stale"),
    (lambda s, _: s.info(-1), errors.InvalidArgumentError, ValueError, "sequence is -1"),
    (lambda s, _: s.info(2**64), errors.InvalidArgumentError, ValueError, str(2**64)),
    (lambda s, a: s.append(a, [-1]), errors.TokenError, ValueError, "token -1"),
    (lambda s, a: s.append(a, range(100)), errors.OutOfBlocksError, MemoryError, "never fit"),
    (lambda s, a: s.append(a, [], lookahead=10**30), errors.InvalidArgumentError, ValueError, str(10**30)),
    (lambda s, a: s.commit(a, 11), errors.InvalidArgumentError, ValueError, "cannot set computed to 11"),
    (lambda s, a: s.truncate(a, 11), errors.InvalidArgumentError, ValueError, "cannot keep 11 tokens"),
    (lambda s, _: s.admit([]), errors.InvalidArgumentError, ValueError, "at least one token"),
    (lambda s, _: s.admit([1], tier=2), errors.InvalidArgumentError, ValueError, "tier 2 does not exist"),
    (lambda s, a: s.begin_swap([a], 0), errors.InvalidArgumentError, ValueError, "tier 0 to itself"),
    (lambda s, a: s.begin_swap([a, a], 1), errors.InvalidArgumentError, ValueError, "named twice"),
    (lambda s, _: s.begin_swap([], 1), errors.InvalidArgumentError, ValueError, "at least one sequence"),
    (lambda s, a: s.begin_swap([a], 1), errors.OutOfBlocksError, MemoryError, "3 needed, 2 available"),
    (lambda s, _: s.complete_swap(0), errors.SwapError, RuntimeError, "swap 0 is not under way"),
    (lambda s, _: s.abort_swap(7), errors.SwapError, RuntimeError, "swap 7 is not under way"),
]


@pytest.mark.parametrize(("call", "error", "builtin", "words"), BAD, ids=[bad[3] for bad in BAD])
def test_bad_input(
    call: Callable[[kvpool.Sequences, int], object],
    error: type[kvpool.KvpoolError],
    builtin: type[Exception],
    words: str,
) -> None:
    all_ = sequences(8, 3)
    a = all_.admit(range(10))
    before = (all_.info(a), all_.block_ids(a), all_.stats(), all_.stats(tier=1), len(all_))
    with pytest.raises(error) as raised:
        call(all_, a)
    assert isinstance(raised.value, builtin)
    assert words in str(raised.value)
    assert (all_.info(a), all_.block_ids(a), all_.stats(), all_.stats(tier=1), len(all_)) == before
    all_.check_invariants()


def test_a_handle_is_stale_when_its_slot_is_used_again() -> None:
    all_ = sequences()
    a = all_.admit([1, 2])
    all_.free(a)
    b = all_.admit([3])
    assert (a == b, a in all_, b in all_) == (False, False, True)
    for use in (all_.fork, all_.free, all_.info, all_.block_ids):
        with pytest.raises(errors.StaleSequenceError):
            use(a)


# --- Tiers and plans ---------------------------------------------------------------------------------------


def test_pools_of_a_tiered_pool_are_views() -> None:
    tiers = kvpool.TieredPool([6, 4], 4, eviction="last-accessed")
    device, host = tiers.pools
    held = device.allocate(2)
    assert (tiers.pools[0].ref_count(held[0]), host.num_available, len(tiers)) == (1, 3, 2)
    device.acquire(held)
    fresh = tiers.copy_on_write(held[1])
    assert (fresh, device.num_holders(held[1]), device.ref_count(held[1])) == (3, 1, 2)
    assert tiers.pending_copies() == [((0, 2), (0, 3))]
    device.release([3])  # nobody needs the copy any more
    assert (len(tiers.take_plan()), device.num_available) == (0, 3)
    assert tiers.copy_on_write(held[1]) == held[1]
    for wrong in (0, 9, 5):
        with pytest.raises(errors.InvalidBlockError, match=str(wrong)):
            tiers.copy_on_write(wrong)
    assert device.bump_epoch() == host.epoch == 1
    tiers.check_invariants()


def test_links_and_access_times() -> None:
    hasher = kvpool.BlockHasher(block_size=2)
    pool = kvpool.BlockPool(8, 2, eviction="last-accessed")
    first = hasher.link([1, 2])
    second = hasher.link([3, 4], first, None)
    assert (first.depth, second.depth, second.num_tokens, len({first, second, hasher.link([1, 2])})) == (0, 1, 4, 2)
    one, other = pool.allocate(2)
    assert (pool.register_link(one, first), pool.acquire_registered(second)) == (one, None)
    assert pool.register_link(other, hasher.link([1, 2])) == one  # shared, computed or not
    assert (pool.ref_count(one), pool.state(other), pool.copies(first.digest)) == (2, "free", [one])
    pool.mark_computed([one])
    pool.release([one, one])
    (late,) = pool.allocate(1)
    pool.register_link(late, second)
    pool.mark_computed([late])
    pool.mark_accessed([one], 20.0)
    pool.mark_accessed([late], 10.0)
    pool.release([late])
    assert pool.eviction_order() == [late, one]
    for call, error, builtin in (
        (lambda: pool.mark_accessed([7], 1.0), errors.InvalidBlockError, ValueError),
        (lambda: pool.mark_accessed([one], float("nan")), errors.InvalidArgumentError, ValueError),
        (lambda: pool.register_link(one, first), errors.InvalidBlockError, ValueError),
        (lambda: pool.copies(b"short"), errors.HashingError, ValueError),
        (lambda: hasher.link([1]), errors.HashingError, ValueError),
        (lambda: hasher.link([1, 2], first, epoch=1), errors.HashingError, ValueError),
        (lambda: pool.acquire_registered(hasher.link([1, 2], epoch=1)), errors.StaleEpochError, RuntimeError),
    ):
        with pytest.raises(error) as raised:
            call()
        assert isinstance(raised.value, builtin)
    pool.check_invariants()


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


# --- The manager -------------------------------------------------------------------------------------------


def test_parallel_samples_of_one_prompt() -> None:
    manager = kvpool.CacheManager(32, 4, host_blocks=16)
    manager.admit("s0", range(10))
    manager.commit("s0", 10)
    for child in ("s1", "s2"):
        manager.fork("s0", child)
    assert manager.append(["s0", "s1", "s2"], [1, 2, 3], commit=True) == [(0, 2, 4), (1, 2, 5)]
    assert manager.take_plan().transfers == [((0, 3), (0, 4)), ((0, 3), (0, 5))]
    assert manager.append_tokens("s2", [4, 5], lookahead=3) == [(3, 6)]
    manager.truncate("s2", 11)
    assert manager.fit_swap_out(["s1", "s2"]) == "ok"
    swap = manager.begin_swap_out(["s1", "s2"])
    with pytest.raises(errors.RequestStateError, match="moving"):
        manager.preempt("s1")
    assert len(manager.take_plan()) == 4
    assert manager.complete_swap(swap) == {1: 1, 2: 2, 5: 3, 3: 4}
    stats = manager.stats()
    assert (stats.swapped, stats.swapped_out, stats.forks, stats.copied_blocks, len(manager)) == (2, 2, 2, 6, 3)
    assert (manager.request("s1").state, manager.request("s1").tier) == ("swapped", 1)
    host = manager.host_stats()
    assert host is not None
    assert host.active == 4
    assert manager.fit_swap_in(["s1"]) == "ok"
    back = manager.begin_swap_in(["s1"])
    manager.abort_swap(back)
    manager.preempt("s1")
    assert manager.resume("s1").cached_tokens == 8
    manager.release("s2")
    manager.check_invariants()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m: m.fork("no", "x"), errors.UnknownRequestError, "no"),
        (lambda m: m.fork("a", "b"), errors.DuplicateRequestError, "b"),
        (lambda m: m.fork("b", "x"), errors.RequestStateError, "preempted"),
        (lambda m: m.begin_swap_out(["a", "a"]), errors.DuplicateRequestError, "named twice"),
        (lambda m: m.begin_swap_out([]), errors.InvalidArgumentError, "at least one request"),
        (lambda m: m.begin_swap_out(["a"]), errors.OutOfBlocksError, "never fit"),
        (lambda m: m.begin_swap_in(["a"]), errors.RequestStateError, "running"),
        (lambda m: m.complete_swap(3), errors.SwapError, "swap 3"),
        (lambda m: m.truncate("a", 0), errors.InvalidArgumentError, "cannot keep 0"),
        (lambda m: m.trim_window("b", 1), errors.RequestStateError, "preempted"),
        (lambda m: kvpool.CacheManager(4).begin_swap_out(["a"]), errors.InvalidArgumentError, "host_blocks"),
    ],
)
def test_refused_table_operations(
    call: Callable[[kvpool.CacheManager], object], error: type[kvpool.KvpoolError], words: str
) -> None:
    manager = kvpool.CacheManager(16, 4, host_blocks=3)
    manager.admit("a", range(10))
    manager.admit("b", range(5))
    manager.preempt("b")
    before = (manager.block_ids("a"), manager.request("a"), manager.request("b"), manager.stats(), manager.host_stats())
    with pytest.raises(error, match=words):
        call(manager)
    after = (manager.block_ids("a"), manager.request("a"), manager.request("b"), manager.stats(), manager.host_stats())
    assert after == before
    manager.check_invariants()
