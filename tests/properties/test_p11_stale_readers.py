"""Property 11: a reader that copies bytes and validates afterwards never accepts what a later owner wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from tests.properties.support import B, chain_of

if TYPE_CHECKING:
    from collections.abc import Callable


CHANGES: dict[str, list[Callable[[kvpool.CacheManager], Any]]] = {
    "release and admit": [lambda manager: manager.release("a"), lambda manager: manager.admit("a", [1, 2, 3])],
    "preempt and resume": [lambda manager: manager.preempt("a"), lambda manager: manager.resume("a")],
    "truncate and append": [lambda manager: manager.truncate("a", 2), lambda manager: manager.append_tokens("a", [3])],
    "append and truncate": [lambda manager: manager.append_tokens("a", [4]), lambda manager: manager.truncate("a", 3)],
    "fork and release": [lambda manager: manager.fork("a", "b"), lambda manager: manager.release("b")],
    "a swap taken back": [lambda manager: manager.abort_swap(manager.begin_swap_out(["a"]))],
    "out and in": [
        lambda manager: (swap := manager.begin_swap_out(["a"]), manager.take_plan(), manager.complete_swap(swap)),
        lambda manager: (swap := manager.begin_swap_in(["a"]), manager.take_plan(), manager.complete_swap(swap)),
    ],
    "truncate": [lambda manager: manager.truncate("a", 3)],
    "drop_cached": [lambda manager: manager.drop_cached([1])],
    "commit": [lambda manager: manager.commit("a", 1)],
    "complete_step": [lambda manager: manager.complete_step(1)],
    "bump_epoch": [lambda manager: manager.bump_epoch()],
}


@pytest.mark.parametrize("change", CHANGES)
def test_property_11_a_step_from_before_a_read_tells_of_any_change(change: str) -> None:
    """vllm#47021: what changed and changed back is a change; an empty step begun before it is refused."""
    manager = kvpool.CacheManager(5, B, host_blocks=5)
    manager.admit("a", [1, 2, 3])
    step = manager.plan_step()
    assert manager.block_ids("a") == [1, 2]
    for call in CHANGES[change]:
        call(manager)
    assert manager.block_ids("a") == [1, 2]
    with pytest.raises(kvpool.errors.StaleStepError):
        step.commit()
    undisturbed = manager.plan_step()
    assert (manager.block_ids("a"), manager.probe([1, 2, 3]).cached_blocks) == ([1, 2], 0)
    assert undisturbed.commit() == []


def test_property_11_a_late_message_of_a_swap_does_not_end_another_one() -> None:
    """mooncake#850: a number that is used again ends somebody else's transfer."""
    manager = kvpool.CacheManager(5, B, host_blocks=5)
    manager.admit("a", [1, 2, 3])
    over: list[int] = []
    for round_ in range(8):
        begin = manager.begin_swap_in if round_ % 2 else manager.begin_swap_out
        swap = begin(["a"])
        assert swap not in over
        manager.take_plan()
        for late in over:
            for end in (manager.complete_swap, manager.abort_swap):
                with pytest.raises(kvpool.errors.SwapError):
                    end(late)
        assert manager.request("a").state == "moving"
        manager.complete_swap(swap)
        over.append(swap)


def test_property_11_who_holds_what_was_found_reads_what_was_found() -> None:
    """A lookup of the pool holds what it returns: nobody else is given it before the reader lets go."""
    pool = kvpool.BlockPool(5, B)
    blocks = pool.allocate(2)
    pool.register(blocks, chain_of(range(4)))
    pool.mark_computed(blocks)
    pool.release_table(blocks)
    found = pool.match_and_acquire(chain_of(range(4)))
    assert not set(found) & set(pool.allocate(2))
    pool.drop_cached(found)
    pool.bump_epoch()
    with pytest.raises(kvpool.errors.OutOfBlocksError):
        pool.allocate(1)
    pool.release(found)
    assert sorted(pool.allocate(2)) == found
