"""Property 24: blocks of a failed step are never matched, nor after an epoch bump what came before it."""

from __future__ import annotations

import pytest

import kvpool
from kvpool.testing import observe_manager
from tests.properties.support import B, chain_of


def test_property_24_blocks_of_an_aborted_request_are_never_matchable() -> None:
    """trtllm#15018: blocks allocated for a failed step were stored and reused."""
    prompt = [1, 1, 2, 2, 3, 3, 4]
    for computed in range(8):
        for end in ("release", "preempt", "step"):
            manager = kvpool.CacheManager(20, B)
            manager.admit("a", prompt)
            assert manager.probe(prompt).cached_blocks == 0
            manager.commit("a", computed)
            if end == "release":
                manager.release("a")
            elif end == "preempt":
                manager.preempt("a")
            else:
                with manager.plan_step() as step:
                    step.append("a", [9, 9, 9, 9])
                manager.release("a", after_step=1)
            assert manager.probe([*prompt, 9, 9, 9]).cached_blocks == computed // B
            assert manager.stats().pool.registered == computed // B


def test_property_24_nothing_committed_before_an_epoch_bump_is_found_after_it() -> None:
    """lmdeploy#4917, NeMo-RL#4018: after a change of weights, requests that ran on published old KV."""
    manager = kvpool.CacheManager(40, B)
    prompt = [1, 1, 2, 2, 3, 3, 4]
    for name in ("cached", "running", "preempted"):
        manager.admit(name, prompt)
    manager.commit("cached", 7)
    manager.release("cached")
    manager.commit("running", 3)
    manager.preempt("preempted")
    old = manager.prepare(prompt)
    step = manager.plan_step()
    assert manager.bump_epoch() == 1
    assert manager.probe(prompt).cached_blocks == 0
    # Running requests go on, and what they compute is never found.
    assert manager.commit("running", 7) == 0
    for token in range(6):
        manager.append(["running"], [token], commit=True)
    manager.release("running")
    assert manager.probe(prompt).cached_blocks == 0
    assert manager.stats().pool.registered == 0
    before = observe_manager(manager, ["preempted"])
    for call in (lambda: manager.admit("new", old), lambda: manager.probe(old)):
        with pytest.raises(kvpool.errors.StaleEpochError):
            call()
    with pytest.raises(kvpool.errors.StaleStepError):
        step.admit("new", old)
    assert observe_manager(manager, ["preempted"]) == before
    # What is computed in the new epoch is found again, by the preempted one, too.
    manager.admit("new", prompt)
    manager.commit("new", 7)
    assert manager.resume("preempted").cached_tokens == 6
    manager.check_invariants()


@pytest.mark.parametrize("computed", range(4))
@pytest.mark.parametrize("fenced", [False, True])
def test_property_24_what_is_registered_and_not_computed_is_not_matched(computed: int, fenced: bool) -> None:
    """trtllm#15018, for engines that register ahead of the step that writes: a failed step never says that it wrote."""
    pool = kvpool.BlockPool(9, B)
    chain = chain_of(range(6))
    blocks = pool.allocate(3)
    pool.register(blocks, chain)
    pool.mark_computed(blocks[:computed])
    for ended in (False, True):
        if ended and fenced:
            pool.release_after(blocks, 1)
        elif ended:
            pool.release_table(blocks)
        found = pool.match_and_acquire(chain)
        assert found == blocks[:computed]
        assert pool.probe(chain).cached_blocks == computed
        pool.release_table(found)
    pool.complete_step(1)
    assert pool.probe(chain).cached_blocks == pool.stats().registered == computed
    assert (pool.stats().free, pool.stats().cached_free) == (8 - computed, computed)
    pool.check_invariants()
