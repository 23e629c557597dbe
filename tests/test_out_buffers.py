"""Tests buffers of every length for every call with the argument ``out``. If a buffer is too short, the
call is refused before anything changes.
"""

from __future__ import annotations

import array
import contextlib
import functools
import inspect
import itertools
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool import GroupSpec
from kvpool.errors import InvalidArgumentError
from kvpool.testing import observe_manager, observe_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FILL = -7
IDS = ["old", "a", "b", "c"]
#: Configurations of groups. ``admit`` writes the table of the first group, which is of a different kind
#: in each.
GROUPS: dict[str, list[GroupSpec] | None] = {
    "none": None,
    "full": [GroupSpec("full", 4), GroupSpec("sliding", 4, window=6)],
    "longer blocks": [GroupSpec("full", 8), GroupSpec("full", 4)],
    "partial hits": [GroupSpec("full", 8, partial_hits=True)],
    "sliding": [GroupSpec("sliding", 4, window=6), GroupSpec("full", 8)],
    "sink": [GroupSpec("sliding", 4, window=6, sink=5), GroupSpec("full", 4)],
    "chunked": [GroupSpec("chunked", 4, chunk=10), GroupSpec("full", 4)],
    "state": [GroupSpec("state", 4), GroupSpec("full", 4)],
    "cross": [GroupSpec("cross", 4), GroupSpec("full", 4)],
    "margin": [GroupSpec("full", 4, margin=1), GroupSpec("sliding", 4, window=6)],
    "keeps nothing": [GroupSpec("full", 2, keep="none"), GroupSpec("full", 4)],
    "keeps no state": [GroupSpec("state", 2, keep="none"), GroupSpec("full", 4)],
}


def buffer(items: int) -> array.array[int]:
    return array.array("i", [FILL] * items)


def manager_of(
    groups: list[GroupSpec] | None, journal: kvpool.journal.Journal | None = None
) -> kvpool.CacheManager:
    manager = kvpool.CacheManager(num_blocks=96, block_size=4, groups=groups, journal=journal)
    manager.admit("old", range(23))
    manager.commit("old", 23)
    manager.take_plan()
    return manager


def state_of(manager: kvpool.CacheManager) -> object:
    manager.diagnose.check_invariants()
    return observe_manager(manager, IDS), manager.stats().refusals


def driven(
    make: Callable[[], Any],
    call: Callable[[Any, array.array[int]], object],
    needed: int,
    state: Callable[[Any], object] = state_of,
    columns: int = 1,
) -> Iterator[tuple[Any, object, list[list[int]]]]:
    """Makes the same call with longer and longer buffers. A call that is refused must change nothing.

    For each call that succeeds, yields the object it was made on, its result, and the content of each
    column of the buffer.
    """
    for room in range(needed + 4):
        subject, out = make(), buffer(room * columns)
        if room < needed:
            before = state(subject)
            with pytest.raises(
                InvalidArgumentError, match=rf"\b({needed}\b.*\b{room}|{room}\b.*\b{needed})\b"
            ):
                call(subject, out)
            assert (state(subject), out) == (before, buffer(room * columns))
            continue
        answer = call(subject, out)
        parts = [out.tolist()[room * at : room * (at + 1)] for at in range(columns)]
        assert [part[needed:] for part in parts] == [[FILL] * (room - needed)] * columns
        yield subject, answer, [part[:needed] for part in parts]


def check_admissions(groups: list[GroupSpec] | None, prompt: Sequence[int], settings: dict[str, Any]) -> None:
    expected = manager_of(groups).admit("a", prompt, **settings)
    table = expected.block_ids

    def admit(manager: kvpool.CacheManager, out: array.array[int]) -> kvpool.Admission:
        return manager.admit("a", prompt, out=out, **settings)

    for manager, admission, columns in driven(lambda: manager_of(groups), admit, len(table)):
        assert columns == [table]
        assert isinstance(admission, kvpool.Admission)
        assert (admission.num_blocks, admission.block_ids) == (len(table), [])
        assert admission.tables[1:] == expected.tables[1:]
        assert manager.block_ids("a") == table


#: Prompts of which all blocks are cached, or some, or none. The hit of "some" ends inside a block.
PROMPTS = {"all": range(23), "some": [*range(14), *range(50, 60)], "none": range(70, 81)}


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("reuse", [True, False])
def test_an_admission_writes_its_table_or_changes_nothing(reuse: bool, prompt: str, name: str) -> None:
    for chunk, external in itertools.product([None, 0, 1, 5, 100], [0, 3, 10]):
        settings = {"allocate_tokens": chunk, "external_tokens": external, "reuse": reuse}
        check_admissions(GROUPS[name], PROMPTS[prompt], settings)


def test_a_refused_buffer_leaves_no_entry_in_a_journal() -> None:
    def admitted(rooms: Sequence[int]) -> bytes | None:
        manager = manager_of(GROUPS["full"], kvpool.journal.Journal(ring_bytes=1 << 20))
        for room in rooms:
            with contextlib.suppress(InvalidArgumentError):
                manager.admit("a", range(14), allocate_tokens=3, out=buffer(room))
        assert "a" in manager
        return manager.journal.image()

    assert admitted([0, 1, 2, 4]) == admitted([4])


#: A step: request ids, tokens, offsets and the other arguments.
Step = tuple[list[str], list[int], "list[int] | None", dict[str, Any]]


def decoding(manager: kvpool.CacheManager) -> Step:
    """Prepares a step that decodes: a request at the end of a block, one inside a block, forks that
    share their last block, and slots for drafts.
    """
    manager.admit("a", range(100, 116))
    manager.commit("a", 16)
    manager.fork("old", "b")
    manager.fork("old", "c")
    manager.take_plan()
    return ["a", "b", "c", "old"], [1, 2, 3, 4], None, {"commit": True, "lookahead": 6}


def chunks(manager: kvpool.CacheManager) -> Step:
    """Prepares a step with a chunk of a prompt and a request that decodes. The commit releases blocks
    that a window does not need.
    """
    manager.admit("a", range(100, 140), allocate_tokens=12)
    return ["a", "old"], [5], [0, 0, 1], {"computed": [12, 23], "covered": [30, 24]}


def nothing(manager: kvpool.CacheManager) -> Step:
    """Prepares a step whose tokens already have slots, so that it allocates nothing."""
    manager.extend("old", 32)
    manager.take_plan()
    return ["old"], [1, 2, 3], [0, 3], {"computed": [25]}


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("prepare", [decoding, chunks, nothing])
def test_a_step_writes_its_changes_or_changes_nothing(prepare: Callable[..., Step], name: str) -> None:
    groups = GROUPS[name]
    twin = manager_of(groups)
    ids, tokens, offsets, settings = prepare(twin)
    changes = twin.append_ragged(ids, tokens, offsets, **settings)
    assert len(changes) == (3 if groups is None else 4)

    def prepared() -> kvpool.CacheManager:
        manager = manager_of(groups)
        prepare(manager)
        return manager

    def step(manager: kvpool.CacheManager, out: array.array[int]) -> int:
        return manager.append_ragged(ids, tokens, offsets, out=out, **settings)

    for manager, written, columns in driven(prepared, step, len(changes[0]), columns=len(changes)):
        assert (written, columns) == (len(changes[0]), list(changes))
        assert [manager.block_ids(one) for one in ids] == [twin.block_ids(one) for one in ids]


@pytest.mark.parametrize("name", GROUPS)
def test_a_table_is_written_whole_or_not_at_all(name: str) -> None:
    manager = manager_of(GROUPS[name])
    for group, table in enumerate(
        [manager.block_ids("old", group=at) for at in range(len(manager.groups) or 1)]
    ):
        read = functools.partial(read_table, group=group)
        for _, written, columns in driven(lambda: manager, read, len(table)):
            assert (written, columns) == (len(table), [table])


def read_table(manager: kvpool.CacheManager, out: array.array[int], group: int) -> int:
    return manager.block_ids("old", out=out, group=group)


@pytest.mark.parametrize("asked", range(5))
def test_a_pool_writes_all_ids_or_changes_nothing(asked: int) -> None:
    def pool() -> kvpool.BlockPool:
        pool = kvpool.BlockPool(num_blocks=16, block_size=4)
        pool.allocate(4)
        return pool

    def allocate(pool: kvpool.BlockPool, out: array.array[int]) -> int:
        return pool.allocate(asked, out=out)

    def count(pool: kvpool.BlockPool, out: array.array[int]) -> int:
        return pool.ref_count(range(1, 1 + asked), out=out)

    def cached() -> kvpool.BlockPool:
        one = pool()
        cursor = kvpool.BlockHasher(block_size=4).cursor(range(16))
        blocks = one.allocate(4)
        one.register_table(blocks, cursor)
        one.release(blocks, tail_first=True)
        return one

    def match(pool: kvpool.BlockPool, out: array.array[int]) -> int:
        return pool.match_and_acquire(kvpool.BlockHasher(block_size=4).cursor(range(4 * asked)), out=out)

    def evict(pool: kvpool.BlockPool, out: array.array[int]) -> int:
        return pool.evict(asked, out=out)

    for one, written, columns in driven(cached, match, asked, observe_pool):
        assert (written, columns) == (asked, [list(range(5, 5 + asked))])
        assert one.stats().active == 4 + asked
    for one, written, columns in driven(cached, evict, asked, observe_pool):
        assert (written, columns) == (asked, [list(range(8, 8 - asked, -1))])
        assert one.stats().evicted == asked
    for one, written, columns in driven(pool, allocate, asked, observe_pool):
        assert (written, columns) == (asked, [list(range(5, 5 + asked))])
        assert one.stats().active == 4 + asked
    for _, written, columns in driven(pool, count, asked, observe_pool):
        assert (written, columns) == (asked, [[1] * asked])


@pytest.mark.parametrize("asked", range(6))
def test_a_manager_writes_its_victims_or_evicts_none(asked: int) -> None:
    def released() -> kvpool.CacheManager:
        manager = manager_of(None)
        manager.release("old")
        return manager

    def evict(manager: kvpool.CacheManager, out: array.array[int]) -> int:
        return manager.evict(asked, out=out)

    for manager, written, columns in driven(released, evict, asked):
        assert (written, columns) == (asked, [list(range(5, 5 - asked, -1))])
        assert manager.stats().pool.evicted == asked


def test_these_are_all_calls_with_a_buffer() -> None:
    from kvpool._core import events, journal, pool, requests, store, tiers, transfer, vllm
    from kvpool._core import manager as managers

    modules = [managers, pool, tiers, transfer, store, requests, vllm, events, journal]
    found = {
        f"{cls.__name__}.{name}"
        for module in modules
        for cls in vars(module).values()
        if inspect.isclass(cls)
        for name, method in vars(cls).items()
        if callable(method) and "out" in inspect.signature(method).parameters
    }
    assert found == {
        "CacheManager.admit",
        "CacheManager.append_ragged",
        "CacheManager.block_ids",
        "CacheManager.evict",
        "BlockPool.allocate",
        "BlockPool.evict",
        "BlockPool.match_and_acquire",
        "BlockPool.ref_count",
    }
