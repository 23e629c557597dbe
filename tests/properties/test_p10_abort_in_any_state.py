"""Property 10: aborting a request in any state of its life gives back all that it had."""

from __future__ import annotations

import pytest

import kvpool
from kvpool.testing import observe_manager
from tests.properties.support import B

STATES = ["admitted", "half computed", "computed", "decoding", "preempted", "resumed", "fenced before"]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("after", [None, 4])
@pytest.mark.parametrize("late", [False, True])
def test_property_10_aborting_in_any_state_gives_everything_back(state: str, after: int | None, late: bool) -> None:
    """vllm#46283, vllm#41269, vllm#44100: an abort at the wrong moment leaked blocks, or freed them twice."""
    manager = kvpool.CacheManager(20, B)
    manager.admit("other", [5, 5, 6, 6, 7])
    manager.commit("other", 5)
    before = (manager.stats().pool.active, manager.num_available)
    manager.admit("a", [5, 5, 6, 6, 8, 8, 9])
    if state != "admitted":
        manager.commit("a", 5)
    if state not in {"admitted", "half computed"}:
        manager.commit("a", 7)
    if state in {"decoding", "preempted", "resumed", "fenced before"}:
        for token in range(4):
            manager.append(["a"], [token], commit=True)
    if state in {"preempted", "resumed"}:
        manager.preempt("a", after_step=1)
    if state == "resumed":
        manager.resume("a")
    if state == "fenced before":
        manager.preempt("a", after_step=3)
        manager.resume("a")
    if not late:
        manager.complete_step(3)
    manager.release("a", after_step=after)
    # The engine reports the end again, or a message about the request comes late.
    for call in (manager.release, manager.preempt, manager.resume, lambda name: manager.commit(name, 1)):
        with pytest.raises(kvpool.errors.UnknownRequestError):
            call("a")
    for step in (4, 4, 3, 5):
        manager.complete_step(step)
        manager.check_invariants()
    assert (manager.stats().pool.active, manager.num_available) == before
    assert manager.block_ids("other") == [1, 2, 3]
    manager.admit("a", [1])  # the id is free again


@pytest.mark.parametrize("loaded", [0, 3, None])
@pytest.mark.parametrize("early", [False, True])
def test_property_10_aborting_while_a_connector_loads_gives_everything_back(loaded: int | None, early: bool) -> None:
    """vllm#46283: the blocks are the connector's until it says that it is done with them, whatever it has loaded."""
    manager = kvpool.CacheManager(20, B)
    before = observe_manager(manager)
    ticket = manager.fence()
    manager.admit("a", [8, 8, 9, 9, 7], external_tokens=4)
    manager.release("a", until=ticket)
    assert (manager.num_available, manager.request("a").state) == (16, "releasing")
    if early:
        assert manager.end_fence(ticket) == 0
    assert manager.external_done("a", loaded) == 0
    assert "a" not in manager
    if not early:
        assert (manager.num_available, manager.end_fence(ticket)) == (16, 3)
    assert manager.num_available == 19
    assert observe_manager(manager)[3:] == before[3:]
    manager.check_invariants()


@pytest.mark.parametrize("trip", ["out begun", "out taken", "out", "in begun", "in taken", "in"])
@pytest.mark.parametrize("take_back", [False, True])
@pytest.mark.parametrize("after", [None, 4])
def test_property_10_aborting_anywhere_in_a_swap_gives_everything_back(
    trip: str, take_back: bool, after: int | None
) -> None:
    """vllm#44100: a request and its fork end on their way to the host, there, or on their way back."""
    manager = kvpool.CacheManager(20, B, host_blocks=10)
    manager.admit("other", [5, 5, 6, 6, 7])
    manager.commit("other", 5)

    def held() -> tuple[object, ...]:
        stats, host = manager.stats(), manager.host_stats()
        assert host is not None
        states = (stats.running, stats.preempted, stats.swapped, stats.moving, stats.releasing)
        return (stats.pool.active, stats.pool.fenced, manager.num_available, host.active, host.available, *states)

    before = held()
    manager.admit("a", [5, 5, 6, 6, 8, 8, 9])
    manager.commit("a", 7)
    manager.fork("a", "b")
    manager.append(["b"], [1])
    over: list[int] = []
    under_way = None
    for begin, way in ((manager.begin_swap_out, "out"), (manager.begin_swap_in, "in")):
        under_way = begin(["a", "b"])
        if trip == f"{way} begun":
            break
        manager.take_plan()
        if trip == f"{way} taken":
            break
        manager.complete_swap(under_way)
        over.append(under_way)
        under_way = None
        if trip == way:
            break
    names = ["a", "b"]
    if under_way is not None:
        # Its blocks stay with it while its copies may still be made.
        manager.release("a", after_step=after)
        assert manager.request("a").state == "releasing"
        with pytest.raises(kvpool.errors.RequestStateError):
            manager.release("a", after_step=after)
        names.remove("a")
        if take_back:
            manager.abort_swap(under_way)
        else:
            manager.take_plan()
            manager.complete_swap(under_way)
        over.append(under_way)
        assert "a" not in manager
    for name in names:
        manager.release(name, after_step=after)
    for late in over:
        for end in (manager.complete_swap, manager.abort_swap):
            with pytest.raises(kvpool.errors.SwapError):
                end(late)
    manager.take_plan()
    for step in (4, 4, 3):
        manager.complete_step(step)
        manager.check_invariants()
    assert held() == before
