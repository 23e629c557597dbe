"""Bad input of whole steps of batches, chunks, external tokens and tickets: typed errors, and nothing has changed."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvpool
from kvpool import errors
from kvpool.testing import observe_manager
from tests.test_bad_input import refused

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def manager() -> kvpool.CacheManager:
    """ "run" holds blocks 1 to 3 (two computed), "new" 4 and 5; "wait" is preempted; 1 loads; 7 blocks are left."""
    manager = kvpool.CacheManager(15, 4, host_blocks=8)
    manager.admit("run", range(10))
    manager.commit("run", 8)
    manager.admit("new", range(20, 26))
    manager.admit("wait", range(50, 60))
    manager.preempt("wait")
    manager.admit(1, range(70, 78), external_tokens=7)
    return manager


@pytest.mark.parametrize(
    ("tokens", "offsets", "words"),
    [
        ([1, 2, 3], None, ["2 requests", "3 tokens"]),
        ([1, 2, 3], [0, 3], ["2 requests"]),
        ([1, 2, 3], [0, 1, 2, 3], ["2 requests"]),
        ([1, 2, 3], [1, 2, 3], ["offset 1", "position 0"]),
        ([1, 2, 3], [0, 2, 2], ["offset 2", "position 2"]),
        ([1, 2, 3], [0, 2, 4], ["offset 4", "position 2"]),
        ([1, 2, 3], [0, 4, 3], ["offset 4", "position 1"]),
        ([1, 2, 3], [0, 2**63 - 1, 3], ["position 1"]),
    ],
    ids=str,
)
def test_offsets(manager: kvpool.CacheManager, tokens: list[int], offsets: list[int] | None, words: list[str]) -> None:
    step = manager.plan_step()
    for append in (manager.append_ragged, step.append_ragged):
        call = functools.partial(append, ["run", "new"], tokens, offsets)
        refused(call, errors.InvalidArgumentError, ValueError, *words, on=manager)
    assert (len(step), step.available_blocks) == (0, 7)


def test_counts_of_a_batch(manager: kvpool.CacheManager) -> None:
    """Lists that do not fit the requests, settings that exclude each other, and counts out of range."""
    step, names = manager.plan_step(), ["run", "new"]
    wrong: list[tuple[dict[str, Any], list[object]]] = [
        ({"computed": [9]}, ["2 requests", "1 "]),
        ({"computed": [9, 1, 1]}, ["2 requests", "3 "]),
        ({"covered": []}, ["2 requests", "0 "]),
        ({"covered": [1, 1, 1]}, ["2 requests", "3 "]),
        ({"computed": [9, 1], "commit": True}, ["commit", "computed"]),
        ({"covered": [9, 1], "lookahead": 1}, ["lookahead", "covered"]),
        ({"computed": [7, 0]}, ['"run"', "11 tokens", "8 computed", "to 7"]),
        ({"computed": [12, 0]}, ['"run"', "11 tokens", "to 12"]),
        ({"computed": [11, 8]}, ['"new"', "7 tokens", "to 8"]),
        ({"computed": [8, 2**32 - 1]}, ['"new"', 2**32 - 1]),
        ({"computed": [8, 2**32]}, ["position 1", 2**32]),
    ]
    for arguments, words in wrong:
        call: Callable[..., object] = functools.partial(manager.append_ragged, names, [5, 6], **arguments)
        refused(call, errors.InvalidArgumentError, ValueError, *words, on=manager)
        if "computed" not in arguments:
            call = functools.partial(step.append_ragged, names, [5, 6], **arguments)
            refused(call, errors.InvalidArgumentError, ValueError, *words, on=manager)
    for arguments in ({"covered": [2**32 - 1, 0]}, {"covered": [44, 0]}, {"lookahead": 2**63 - 1}, {"lookahead": 24}):
        for call in (manager.append_ragged, step.append_ragged):
            refused(
                functools.partial(call, names, [5, 6], **arguments), errors.OutOfBlocksError, MemoryError, on=manager
            )
    assert len(step) == 0


def test_computed_counts_end_where_blocks_end() -> None:
    manager = kvpool.CacheManager(15, 4)
    manager.admit("chunk", range(10), allocate_tokens=4)
    wrong = functools.partial(refused, error=errors.InvalidArgumentError, builtin=ValueError, on=manager)
    for call in (
        lambda: manager.commit("chunk", 5),
        lambda: manager.commit_batch(["chunk"], [5]),
        lambda: manager.append_ragged(["chunk"], [], [0, 0], computed=[5], covered=[4]),
        lambda: manager.append_ragged(["chunk"], [1], commit=True, covered=[8]),
    ):
        error = wrong(call)
        assert "10 tokens" in str(error) or "11 tokens" in str(error)
    assert manager.append_ragged(["chunk"], [], [0, 0], computed=[4], covered=[8]) == ([0], [1], [2])


COUNTS: list[tuple[Any, type[kvpool.KvpoolError]]] = [
    ([0, True], errors.ArgumentTypeError),
    ([0, 1.0], errors.ArgumentTypeError),
    ([0, "1"], errors.ArgumentTypeError),
    ([0, None], errors.ArgumentTypeError),
    ("01", errors.ArgumentTypeError),
    (b"01", errors.ArgumentTypeError),
    (5, errors.ArgumentTypeError),
    (object(), errors.ArgumentTypeError),
    (np.array([0, 1], dtype=np.float32), errors.ArgumentTypeError),
    (np.array([0, 1], dtype=np.int8), errors.ArgumentTypeError),
    (np.array([0, 1], dtype=np.uint16), errors.ArgumentTypeError),
    (np.array([[0, 1]], dtype=np.int64), errors.ArgumentTypeError),
    (np.array([False, True]), errors.ArgumentTypeError),
    ([0, -1], errors.InvalidArgumentError),
    (np.array([0, -1]), errors.InvalidArgumentError),
    ([0, 2**64], errors.InvalidArgumentError),
    ([0, 10**30], errors.InvalidArgumentError),
]


@pytest.mark.parametrize(("counts", "error"), COUNTS, ids=lambda one: repr(one).partition(" at 0x")[0][:30])
def test_counts_of_a_wrong_type(manager: kvpool.CacheManager, counts: Any, error: type[kvpool.KvpoolError]) -> None:
    step, builtin = manager.plan_step(), TypeError if error is errors.ArgumentTypeError else ValueError
    calls: list[Callable[[], object]] = [
        lambda: manager.append_ragged(["run"], [1], counts),
        lambda: manager.append_ragged(["run", "new"], [1, 2], computed=counts),
        lambda: manager.append_ragged(["run", "new"], [1, 2], covered=counts),
        lambda: manager.truncate_batch(["run", "new"], counts),
        lambda: step.append_ragged(["run"], [1], counts),
        lambda: step.append_ragged(["run", "new"], [1, 2], covered=counts),
    ]
    for call in calls:
        refused(call, error, builtin, on=manager)


def test_lists_of_a_truncation(manager: kvpool.CacheManager) -> None:
    wrong = functools.partial(refused, error=errors.InvalidArgumentError, builtin=ValueError, on=manager)
    for lengths in ([9], [9, 5, 1], [11, 5], [9, 0], [9, 7], [9, 2**63 - 1]):
        wrong(lambda lengths=lengths: manager.truncate_batch(["run", "new"], lengths))  # type: ignore[misc]
    assert manager.truncate_batch([], []) is None  # type: ignore[func-returns-value]


def test_lists_of_forks(manager: kvpool.CacheManager) -> None:
    for children in ([], ["fork"], ["fork", "other", "third"]):
        refused(
            lambda children=children: manager.fork_batch(["run", "new"], children),  # type: ignore[misc]
            errors.InvalidArgumentError,
            ValueError,
            on=manager,
        )
    manager.fork_batch([], [])
    manager.release_batch([])


def test_tickets_that_are_not_open(manager: kvpool.CacheManager) -> None:
    ended = manager.fence()
    manager.end_fence(ended)
    for ticket in (ended, ended + 1, 2**63 - 1, 2**64 - 1):
        step = manager.plan_step()
        calls: list[Callable[[], object]] = [
            lambda: manager.end_fence(ticket),  # noqa: B023
            *[
                functools.partial(leave, "run", until=ticket)
                for leave in (manager.release, manager.preempt, step.release, step.preempt)
            ],
            functools.partial(manager.release, 1, until=ticket),
            functools.partial(manager.truncate, "run", 9, until=ticket),
            functools.partial(manager.truncate_batch, ["run"], [9], until=ticket),
            functools.partial(manager.truncate_batch, [], [], until=ticket),
            functools.partial(manager.release_batch, ["run"], until=ticket),
            functools.partial(manager.release_batch, [], until=ticket),
        ]
        for call in calls:
            refused(call, errors.InvalidArgumentError, ValueError, ticket, on=manager)
    open_now = manager.fence()
    both: dict[str, Any] = {"after_step": 1, "until": open_now}
    step = manager.plan_step()
    for call in (
        *[functools.partial(leave, "run", **both) for leave in (manager.release, manager.preempt, step.release)],
        functools.partial(manager.truncate, "run", 9, **both),
        functools.partial(manager.truncate_batch, ["run"], [9], **both),
        functools.partial(manager.release_batch, ["run"], **both),
    ):
        refused(call, errors.InvalidArgumentError, ValueError, "after_step", "until", on=manager)


@pytest.mark.parametrize("ticket", ["0", None, 1.0, [0]], ids=repr)
def test_tickets_of_a_wrong_type(manager: kvpool.CacheManager, ticket: Any) -> None:
    manager.fence()
    before = observe_manager(manager, ["run"])
    calls: list[Callable[[], object]] = [lambda: manager.end_fence(ticket)]
    if ticket is not None:
        calls += [functools.partial(leave, "run", until=ticket) for leave in (manager.release, manager.preempt)]
    for call in calls:
        with pytest.raises(TypeError):
            call()
    assert observe_manager(manager, ["run"]) == before


def test_external_tokens(manager: kvpool.CacheManager) -> None:
    """More than a prompt has, or all of them; more than are loaded, or fewer than were cached; ranges that are none."""
    step, wrong = manager.plan_step(), errors.InvalidArgumentError
    for n in (10, 11, 2**63 - 1):
        for call in (
            lambda: manager.admit("other", range(10), external_tokens=n),  # noqa: B023
            lambda: step.admit("other", range(10), external_tokens=n),  # noqa: B023
            lambda: manager.resume("wait", external_tokens=n),  # noqa: B023
            lambda: step.resume("wait", external_tokens=n),  # noqa: B023
        ):
            refused(call, wrong, ValueError, f"{n} external tokens", on=manager)
    refused(lambda: manager.external_done(1, 8), wrong, ValueError, "8 external tokens", "from 0 to 7", on=manager)
    both = functools.partial(manager.external_done, 1, 3, failed=[])
    refused(both, wrong, ValueError, "loaded_tokens", "failed", on=manager)
    failed: list[Any] = [5, "ab", [5], [(1,)], [(1, 2, 3)], [("a", 2)], [(1, None)], [(1.0, 2)], {1: 2}]
    for ranges in failed:
        call = functools.partial(manager.external_done, 1, failed=ranges)
        refused(call, errors.ArgumentTypeError, TypeError, on=manager)
    # What is elsewhere, or empty, has not failed.
    assert manager.external_done(1, failed=[(7, 2**63 - 1), (5, 5), (6, 2)]) == 1
    assert manager.request(1).computed_tokens == 7
    manager.admit("half", [*range(8), 99, 98], external_tokens=9)
    refused(lambda: manager.external_done("half", 7), wrong, ValueError, "from 8 to 9", on=manager)


def test_what_loads_or_moves_is_left_alone(manager: kvpool.CacheManager) -> None:
    """But for release, once; and a plan that was made before is stale then."""
    swap = manager.begin_swap_out(["new"])
    names: dict[str | int, str] = {"new": "moving", 1: "loading"}
    for released in (False, True):
        for name, state in names.items():
            step = manager.plan_step()
            again: list[Callable[..., object]] = [manager.release, step.release]
            calls: list[Callable[..., object]] = [
                lambda name: manager.append([name], [1]),
                lambda name: manager.append_tokens(name, [1]),
                lambda name: manager.append_ragged(["run", name], [1, 2]),
                lambda name: manager.extend(name, 1),
                lambda name: manager.commit(name, 0),
                lambda name: manager.preempt(name),
                lambda name: manager.resume(name),
                lambda name: manager.fork(name, "fork"),
                lambda name: manager.truncate(name, 1),
                lambda name: manager.truncate_batch(["run", name], [9, 1]),
                lambda name: manager.fork_batch(["run", name], ["fork", "other"]),
                lambda name: manager.trim_window(name, 1),
                lambda name: manager.begin_swap_out([name]),
                functools.partial(step.append, token_ids=[1]),
                lambda name, step=step: step.append_ragged(["run", name], [1, 2]),
                step.preempt,
                *(again if released else []),
                *([manager.external_done] if name == "new" else []),
            ]
            for call in calls:
                word = "releasing" if released else state
                refused(functools.partial(call, name), errors.RequestStateError, RuntimeError, word, on=manager)
            refused(functools.partial(manager.admit, name, [1]), errors.DuplicateRequestError, ValueError, on=manager)
            assert len(step) == 0
        for name in () if released else names:
            manager.release(name)
    manager.abort_swap(swap)
    assert manager.external_done(1) == 0
    assert "new" not in manager
    assert 1 not in manager
    assert manager.num_available == 11


# --- out ------------------------------------------------------------------------------------------------


def read_only() -> Any:
    out = np.zeros((3, 4), dtype=np.int32)
    out.setflags(write=False)
    return out


WRONG_OUT: list[Any] = [
    read_only(),
    np.zeros((3, 4), dtype=np.int64),
    np.zeros((3, 4), dtype=np.uint32),
    np.zeros((3, 4), dtype=np.float32),
    np.zeros((4, 3), dtype=np.int32),
    np.zeros((2, 6), dtype=np.int32),
    np.zeros((3, 2, 2), dtype=np.int32),
    np.zeros((0, 3), dtype=np.int32),
    np.zeros(13, dtype=np.int32),
    np.zeros((), dtype=np.int32),
    np.zeros((3, 8), dtype=np.int32)[:, ::2],
    np.zeros((4, 3), dtype=np.int32).T,
    [[0] * 4] * 3,
    bytearray(48),
    bytes(48),
    "out",
    5,
]


@pytest.mark.parametrize("out", WRONG_OUT, ids=lambda out: f"{type(out).__name__} {out!r}"[:40])
def test_out_of_a_wrong_type(manager: kvpool.CacheManager, out: Any) -> None:
    before = bytes(out) if isinstance(out, bytearray | np.ndarray) else None
    call = functools.partial(manager.append_ragged, ["run", "new"], [1, 2], lookahead=4, out=out)
    refused(call, errors.ArgumentTypeError, TypeError, "out is", "int32", "(3, n)", on=manager)
    assert before is None or bytes(out) == before


@pytest.mark.parametrize("shape", [(3, 1), 3, (3, 0), 0], ids=str)
@pytest.mark.parametrize("commit", [False, True])
def test_out_too_small(manager: kvpool.CacheManager, shape: Any, commit: bool) -> None:
    """Nothing has changed: no token, no block, and nothing is computed."""
    out = np.full(shape, -1, dtype=np.int32)
    call = functools.partial(manager.append_ragged, ["run", "wait"], [1, 2], commit=commit, lookahead=6, out=out)
    refused(call, errors.InvalidArgumentError, ValueError, "2 blocks change", f"room for {out.size // 3}", on=manager)
    assert (out == -1).all()
    enough = np.full((3, 2), -1, dtype=np.int32)
    changed = manager.append_ragged(["run", "wait"], [1, 2], commit=commit, lookahead=6, out=enough)
    assert (changed, enough.tolist()) == (2, [[0, 0], [3, 4], [8, 9]])


def test_out_is_untouched_if_the_call_fails(manager: kvpool.CacheManager) -> None:
    out = np.full((3, 50), -1, dtype=np.int32)
    wrong: list[tuple[Callable[[], object], type[kvpool.KvpoolError], type[Exception]]] = [
        (lambda: manager.append_ragged(["run"], [1], lookahead=99, out=out), errors.OutOfBlocksError, MemoryError),
        (lambda: manager.append_ragged(["nobody"], [1], out=out), errors.UnknownRequestError, KeyError),
        (lambda: manager.append_ragged([1], [1], out=out), errors.RequestStateError, RuntimeError),
        (lambda: manager.append_ragged(["run"], [-1], out=out), errors.TokenError, ValueError),
    ]
    for call, error, builtin in wrong:
        refused(call, error, builtin, on=manager)
    assert (out == -1).all()
