"""Resets with several tiers: what any tier holds may be served again, so all are forgotten, or none."""

from __future__ import annotations

import pytest

import kvpool
from kvpool import errors


def swapped_out(manager: kvpool.CacheManager, name: str) -> int:
    """Serves a request and swaps it out; returns how many blocks were copied."""
    manager.admit(name, range(8))
    manager.commit(name, 8)
    swap = manager.begin_swap_out([name])
    copies = len(manager.take_plan())
    manager.complete_swap(swap)
    return copies


def registered(manager: kvpool.CacheManager) -> tuple[int, int]:
    host = manager.host_stats()
    assert host is not None
    return manager.stats().pool.registered, host.registered


def test_a_reset_forgets_the_host_tier_too() -> None:
    manager = kvpool.CacheManager(8, 4, host_blocks=8)
    assert swapped_out(manager, "old") == 2
    manager.release("old")
    assert registered(manager) == (2, 2)
    assert manager.reset() == 4
    assert registered(manager) == (0, 0)
    assert swapped_out(manager, "new") == 2  # blocks of the new weights are copied, not found in the host


def test_a_reset_is_refused_while_a_request_is_swapped_out() -> None:
    manager = kvpool.CacheManager(8, 4, host_blocks=8)
    swapped_out(manager, "old")
    with pytest.raises(errors.BlocksInUseError, match="2 blocks of tier 1 are active and 0 fenced"):
        manager.reset()
    assert registered(manager) == (2, 2)
    manager.preempt("old", after_step=1)
    with pytest.raises(errors.BlocksInUseError, match="0 blocks of tier 1 are active and 2 fenced"):
        manager.reset()
    manager.complete_step(1)
    assert manager.reset() == 4
    assert manager.resume("old").cached_tokens == 0


def test_pools_of_several_tiers_are_reset_together_or_not_at_all() -> None:
    tiers = kvpool.TieredPool([6, 4], 2)
    chain = kvpool.BlockHasher(block_size=2).cursor([1, 2, 3, 4]).chain()
    tables = [pool.allocate(2) for pool in tiers.pools]
    for pool, table in zip(tiers.pools, tables, strict=True):
        pool.register(table, chain)
        pool.mark_computed(table)
    device, host = tiers.pools
    device.release(tables[0])
    for pool in tiers.pools:
        with pytest.raises(errors.BlocksInUseError, match="2 blocks of tier 1 are active"):
            pool.reset()
    assert (device.stats().registered, host.stats().registered) == (2, 2)
    host.release(tables[1])
    assert host.reset() == 4
    assert (device.num_available, device.probe(chain).cached_blocks, host.probe(chain).cached_blocks) == (5, 0, 0)
    tiers.check_invariants()
