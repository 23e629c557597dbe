"""Property 8: preempting victims until a demand is met ends, with fenced blocks counted as capacity on its way."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

import kvpool
from tests.properties.support import B


def refusal_of(manager: kvpool.CacheManager, demand: int) -> kvpool.errors.OutOfBlocksError | None:
    """Admits a request of so many blocks, or says why not."""
    try:
        manager.admit("new", [5000 + at for at in range(demand * B)])
    except kvpool.errors.OutOfBlocksError as refusal:
        return refusal
    return None


@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    shared=st.booleans(),
    demand=st.integers(1, 12),
    fenced_before=st.booleans(),
    oldest_first=st.booleans(),
)
def test_property_08_preempting_until_demand_is_met_ends(
    lengths: list[int], shared: bool, demand: int, fenced_before: bool, oldest_first: bool
) -> None:
    """ascend#16315: a victim's blocks come back a step later; who does not see that preempts everybody."""
    usable = sum(-(-length // B) for length in lengths)
    assume(demand <= usable)
    manager = kvpool.CacheManager(usable + 1, B)
    for name, length in enumerate(lengths):
        tokens = [(0 if shared and at < B else 100 * (name + 1)) + at for at in range(length)]
        manager.admit(name, tokens)
        manager.commit(name, length)
    victims = list(range(len(lengths)))
    if fenced_before:
        manager.release(victims.pop(0), after_step=1)
    if oldest_first:
        victims.reverse()
    running, preemptions, completed = len(victims), 0, False
    while True:
        refusal = refusal_of(manager, demand)
        if refusal is None:
            break
        assert refusal.can_ever_fit
        assert refusal.fenced == manager.stats().pool.fenced
        if refusal.missing <= refusal.fenced:
            # All that is missing is on its way: wait for the steps, and preempt nobody else.
            assert not completed, "what was pending did not come"
            manager.complete_step(99)
            completed = True
            continue
        assert victims, "nobody runs, and the demand is not met"
        manager.preempt(victims.pop(), after_step=2 + preemptions)
        preemptions += 1
    assert preemptions <= running
    manager.check_invariants()
