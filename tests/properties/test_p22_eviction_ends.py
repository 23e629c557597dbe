"""Property 22: an eviction starts no other one, a commit allocates nothing, evicting n gives min(n, evictable)."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import pytest

import kvpool
from tests.properties.support import B, cache, chain_of

if TYPE_CHECKING:
    from collections.abc import Callable


class Watched(kvpool.policies.Policy):
    """LRU that counts what it is asked, fails if it is asked while it answers, and may call its pool."""

    def __init__(self) -> None:
        self.order: OrderedDict[int, None] = OrderedDict()
        self.inside = False
        self.pops = self.calls = 0
        self.call: Callable[[], object] = lambda: None
        self.refused: list[kvpool.errors.PolicyError] = []

    def _enter(self) -> None:
        assert not self.inside, "the policy was re-entered"
        self.inside = True
        self.calls += 1
        try:
            self.call()
        except kvpool.errors.PolicyError as error:
            self.refused.append(error)
        self.inside = False

    def release(self, block: int) -> None:
        self._enter()
        self.order[block] = None
        self.order.move_to_end(block)

    def pop(self) -> int | None:
        self._enter()
        self.pops += 1
        return self.order.popitem(last=False)[0] if self.order else None

    def forget(self, block: int) -> None:
        self._enter()
        self.order.pop(block, None)

    hit = take = forget


@pytest.mark.parametrize("cached", range(6))
@pytest.mark.parametrize("n", range(8))
def test_property_22_one_eviction_per_victim_and_none_for_a_commit(cached: int, n: int) -> None:
    """sglang#27631, trtllm#17926: an eviction inside an eviction; a commit that needed a block when none was left."""
    policy = Watched()
    pool = kvpool.BlockPool(8, B, eviction=policy)
    for one in range(cached):
        cache(pool, [one, one])
    blocks = pool.allocate(n)
    victims = max(0, n - (7 - cached))
    assert (len(blocks), policy.pops, pool.stats().cached_free) == (n, victims, cached - victims)
    calls = policy.calls
    with pytest.raises(kvpool.errors.OutOfBlocksError):
        pool.allocate(8 - n)
    assert policy.calls == calls, "a refused call asks nothing"

    available, allocated = pool.num_available, pool.stats().allocated
    pool.register(blocks, chain_of([9] * (B * n)))
    pool.mark_computed(blocks)
    assert (policy.pops, pool.num_available, pool.stats().allocated) == (victims, available, allocated)
    # All of it can be evicted, and then it is over.
    pool.release_table(blocks)
    assert len(pool.allocate(7)) == 7
    with pytest.raises(kvpool.errors.OutOfBlocksError):
        pool.allocate(1)
    pool.check_policy()
    pool.check_invariants()


def test_property_22_a_commit_of_a_full_pool_needs_no_block() -> None:
    """trtllm#17926, through the manager: nothing is available, and all that was computed is cached."""
    manager = kvpool.CacheManager(4, B)
    manager.admit("a", [1, 2, 3, 4, 5])
    assert manager.num_available == 0
    allocated = manager.stats().pool.allocated
    assert manager.commit("a", 5) == 2
    assert (manager.stats().pool.allocated, manager.num_available) == (allocated, 0)


@pytest.mark.parametrize("call", ["allocate", "drop_cached", "bump_epoch"])
def test_property_22_a_policy_cannot_start_an_eviction(call: str) -> None:
    """sglang#27631: whatever a policy does while it is asked for a victim, no second eviction begins."""
    policy = Watched()
    pool = kvpool.BlockPool(4, B, eviction=policy)
    for one in range(3):
        cache(pool, [one, one])
    calls = {
        "allocate": lambda: pool.allocate(1),
        "drop_cached": lambda: pool.drop_cached([1]),
        "bump_epoch": pool.bump_epoch,
    }
    policy.call = calls[call]
    assert len(pool.allocate(2)) == 2
    assert policy.refused
    policy.call = lambda: None
    assert (pool.stats().evicted, pool.stats().cached_free, pool.epoch) == (2, 1, 0)
    pool.check_policy()
    pool.check_invariants()
