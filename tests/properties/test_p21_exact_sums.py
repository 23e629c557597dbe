"""Property 21: free + cached-free + active + fenced is the number of usable blocks, per tier, after every call."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvpool
from tests.properties.support import B, chain_of, fill, recount, sums


@given(st.lists(st.tuples(st.sampled_from("cccharfse"), st.integers(0, 3), st.integers(0, 5)), max_size=50))
def test_property_21_counters_of_a_pool_equal_a_recount(script: list[tuple[str, int, int]]) -> None:
    """sglang#35270, mllm#656: counters drifted from what was really there."""
    prompts = [[0, 0, 1, 1], [0, 0, 2, 2], [0, 0], [3, 3, 4, 4, 5, 5]]
    pool = kvpool.BlockPool(10, B)
    held: list[list[int]] = []
    step = 0
    for what, which, other in script:
        if what == "c" and pool.num_available >= len(prompts[which]) // B:
            held.append(fill(pool, prompts[which]))
        elif what == "h":
            held.append(pool.match_and_acquire(chain_of(prompts[which], pool.epoch)))
        elif what == "a" and other <= pool.num_available:
            held.append(pool.allocate(other))
        elif what == "r" and held:
            pool.release_table(held.pop(other % len(held)))
        elif what == "f" and held:
            pool.release_after(held.pop(other % len(held)), step + which)
        elif what == "s":
            pool.complete_step(step)
            step += 1
        elif what == "e":
            pool.drop_cached([other + 1]) if which else pool.bump_epoch()
        assert sums(pool.stats()) == recount(pool)
        assert sum(recount(pool)) == pool.stats().usable == 9
        assert pool.num_available == recount(pool)[0] + recount(pool)[1]
        registered = sum(pool.hash_of(block) is not None for block in range(1, 10))
        assert pool.stats().registered == registered
        pool.check_invariants()


@given(
    sizes=st.tuples(st.integers(3, 8), st.integers(2, 8)),
    script=st.lists(
        st.tuples(
            st.sampled_from("aaaccfffxxssspppee"),
            st.integers(0, 4),
            st.lists(st.integers(0, 1), min_size=1, max_size=8),
        ),
        max_size=60,
    ),
)
def test_property_21_every_tier_adds_up_across_swaps(
    sizes: tuple[int, int], script: list[tuple[str, int, list[int]]]
) -> None:
    """trtllm#12834: a tier lost the blocks of transfers that were taken back, or counted those of both tiers."""
    device, host = sizes
    manager = kvpool.CacheManager(device + 1, B, host_blocks=host + 1)
    swaps: list[int] = []
    names = 0
    for what, nth, tokens in script:
        live = [name for name in range(names) if name in manager]
        name = live[nth % len(live)] if live else -1
        with contextlib.suppress(kvpool.KvpoolError):  # refused calls are part of a history
            if what == "a":
                manager.admit(names, tokens)
                names += 1
            elif what == "c":
                manager.commit(name, manager.request(name).tokens)
            elif what == "f":
                manager.fork(name, names)
                names += 1
                manager.append([name], [5])
            elif what == "x":
                manager.release(name, after_step=len(tokens) if len(tokens) > 4 else None)
            elif what == "s":
                state = manager.request(name).state
                begin = manager.begin_swap_out if state == "running" else manager.begin_swap_in
                # Alone, or with all that may share its blocks.
                alike = [one for one in live if manager.request(one).state == state]
                swaps.append(begin(alike if len(tokens) > 2 else [name]))
            elif what == "p":
                manager.take_plan()
            elif what == "e" and swaps:
                end = manager.complete_swap if len(tokens) > 3 else manager.abort_swap
                end(swaps[nth % len(swaps)])
                del swaps[nth % len(swaps)]
        there = manager.host_stats()
        assert there is not None
        assert (sum(sums(manager.stats().pool)), sum(sums(there))) == (device, host)
        states = [manager.request(name).state for name in range(names) if name in manager]
        stats = manager.stats()
        counted = (stats.running, stats.preempted, stats.swapped, stats.moving)
        assert counted == tuple(states.count(state) for state in ("running", "preempted", "swapped", "moving"))
        manager.check_invariants()  # recounts both tiers from scratch
    for swap in swaps:
        manager.abort_swap(swap)
    for name in [name for name in range(names) if name in manager]:
        manager.release(name)
    manager.take_plan()
    manager.complete_step(99)
    there = manager.host_stats()
    assert there is not None
    assert (manager.num_available, there.available) == (device, host)


def test_property_21_a_hit_on_a_fenced_block_is_counted_once() -> None:
    """mllm#656: a block that a step still has and a request has again was counted as both."""
    pool = kvpool.BlockPool(6, B)
    table = fill(pool, [1, 1, 2, 2])
    pool.release_after(table, 3)
    assert sums(pool.stats()) == recount(pool) == (3, 0, 0, 2)
    hit = pool.match_and_acquire(chain_of([1, 1]))
    assert sums(pool.stats()) == recount(pool) == (3, 0, 1, 1)
    pool.acquire(table)
    assert sums(pool.stats()) == recount(pool) == (3, 0, 2, 0)
    pool.complete_step(3)
    assert sums(pool.stats()) == recount(pool) == (3, 0, 2, 0)
    pool.release(hit)
    pool.release_table(table)
    assert sums(pool.stats()) == recount(pool) == (3, 2, 0, 0)
    pool.check_invariants()


@pytest.mark.parametrize("complete", [True, False])
def test_property_21_a_group_that_shares_its_blocks_moves_each_once(complete: bool) -> None:
    """trtllm#12834, step by step: three requests over two shared blocks, and a tail of their own."""
    manager = kvpool.CacheManager(11, B, host_blocks=9)

    def tiers() -> tuple[tuple[int, int, int, int], tuple[int, int, int, int]]:
        host = manager.host_stats()
        assert host is not None
        manager.check_invariants()
        return sums(manager.stats().pool), sums(host)

    manager.admit("a", [1, 2, 3, 4, 5])
    manager.commit("a", 5)
    for name in ("b", "c"):
        manager.fork("a", name)
        manager.append([name], [9])
    manager.take_plan()
    assert tiers() == ((5, 0, 5, 0), (8, 0, 0, 0))
    swap = manager.begin_swap_out(["a", "b", "c"])
    assert tiers() == ((5, 0, 5, 0), (3, 0, 5, 0))
    assert len(manager.take_plan()) == 5
    if complete:
        manager.complete_swap(swap)
        assert tiers() == ((8, 2, 0, 0), (3, 0, 5, 0))
        back = manager.begin_swap_in(["a", "b", "c"])
        assert len(manager.take_plan()) == 3  # the device caches the other two
        manager.complete_swap(back)
        assert tiers() == ((5, 0, 5, 0), (6, 2, 0, 0))
    else:
        manager.abort_swap(swap)
        assert tiers() == ((5, 0, 5, 0), (8, 0, 0, 0))
