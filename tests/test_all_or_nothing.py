"""Refused calls that had changed something, and calls that did half of what they were asked."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

import kvpool
from kvpool import errors
from kvpool.testing import observe_manager

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvpool._core import HashAlgorithm, VerifyMode


def chain(algorithm: HashAlgorithm, verify: VerifyMode = "none") -> kvpool.hashing.HashChain:
    return kvpool.BlockHasher(algorithm, 2, verify=verify).cursor([1, 2, 3, 4]).chain()


def test_a_refused_registration_leaves_no_algorithm() -> None:
    pool = kvpool.BlockPool(6, 2)
    table = pool.allocate(2)
    with pytest.raises(errors.InvalidBlockError, match="already registered"):
        pool.register([table[0], table[0]], chain("sha256"))
    assert pool.register(table, chain("blake3")) == 2
    with pytest.raises(errors.InvalidArgumentError, match="made with sha256"):
        pool.probe(chain("sha256"))
    pool.release(table)
    pool.reset()
    assert pool.probe(chain("sha256")).cached_blocks == 0
    index = kvpool.parts.PrefixIndex(6, 2)
    index.insert(1, chain("sha256"), 0)
    index.clear()
    assert index.insert(1, chain("blake3"), 0)


def test_events_tell_digests_of_the_algorithm_that_they_are_of() -> None:
    pool = kvpool.BlockPool(6, 2, verify="fingerprint", event_capacity=20)
    expected = []
    for algorithm in ("sha256", "xxh3"):
        table, hashes = pool.allocate(2), chain(algorithm, "fingerprint")
        pool.register(table, hashes)
        pool.mark_computed(table)
        pool.release(table)
        pool.reset()
        expected += hashes.digests()
    assert [len(digest) for digest in expected] == [32, 32, 16, 16]
    events, _ = pool.take_events()
    assert [event["hash"] for event in events if event["type"] == "stored"] == expected


def test_a_registration_that_is_too_deep_is_refused() -> None:
    pool = kvpool.BlockPool(6, 2)
    table = pool.allocate(1)
    with pytest.raises(errors.InvalidArgumentError, match=r"block 268435456 .* too deep: .* up to 268435455"):
        pool.register(table, chain("sha256"), 2**28)
    assert not pool.is_registered(table[0])


def test_a_time_to_live_that_overflows_fails_no_commit() -> None:
    manager = kvpool.CacheManager(16, 4, retention=True)
    manager.advance_time(1e308)
    for name, first in (("a", 0), ("b", 100)):
        manager.admit(name, range(first, first + 8), retention=[(0, None, kvpool.Retention(100, ttl=1.7e308))])
    assert manager.commit_batch(["a", "b"], [8, 8]) == 4
    stats = manager.retention_stats()
    assert stats is not None
    assert (stats.above_normal, stats.with_ttl) == (4, 4)
    assert manager.advance_time(sys.float_info.max) == 4


def test_a_commit_counts_each_block_once() -> None:
    manager = kvpool.CacheManager(16, 4)
    manager.admit("a", range(9))
    manager.fork("a", "b")
    assert [manager.commit(name, 9) for name in "ab"] == [2, 0]
    assert manager.stats().pool.registered == 2


def test_a_batch_whose_last_row_is_refused_has_done_nothing() -> None:
    """No row before it has tokens, blocks, copies or computed tokens more, or fewer."""
    manager = kvpool.CacheManager(8, 2)
    manager.admit("a", [1, 2, 3])
    manager.fork("a", "b")
    manager.admit("c", [7, 7, 7])
    names = ["a", "b", "c"]
    before = observe_manager(manager, names)
    step = manager.plan_step()
    late: list[tuple[Callable[[], object], type[kvpool.KvpoolError]]] = [
        (lambda: manager.append_ragged([*names, "d"], [5] * 4, commit=True), errors.UnknownRequestError),
        (lambda: manager.append_ragged([*names, "a"], [5] * 4, commit=True), errors.DuplicateRequestError),
        (lambda: manager.append_ragged(names, [5] * 3, computed=[3, 3, 5]), errors.InvalidArgumentError),
        (lambda: manager.append_ragged(names, [5] * 3, commit=True, lookahead=6), errors.OutOfBlocksError),
        (lambda: manager.truncate_batch(names, [1, 1, 4]), errors.InvalidArgumentError),
        (lambda: manager.truncate_batch([*names, "a"], [1] * 4), errors.DuplicateRequestError),
        (lambda: manager.release_batch([*names, "d"]), errors.UnknownRequestError),
        (lambda: manager.release_batch([*names, "a"]), errors.DuplicateRequestError),
        (lambda: manager.fork_batch([*names, "d"], [1, 2, 3, 4]), errors.UnknownRequestError),
        (lambda: manager.fork_batch(names, [1, 2, "c"]), errors.DuplicateRequestError),
        (lambda: manager.fork_batch(names, [1, 2, 1]), errors.DuplicateRequestError),
        (lambda: step.append_ragged([*names, "d"], [5] * 4), errors.UnknownRequestError),
        (lambda: step.append_ragged(names, [5] * 3, lookahead=6), errors.OutOfBlocksError),
    ]
    for call, error in late:
        with pytest.raises(error):
            call()
        assert observe_manager(manager, names) == before
        assert (len(step), step.available_blocks) == (0, 3)
    assert manager.append_ragged(names, [5] * 3, commit=True) == ([0], [1], [5])
    assert len(manager.take_plan().transfers) == 1
    manager.check_invariants()


@pytest.mark.parametrize("groups", [None, [kvpool.GroupSpec("full", 4), kvpool.GroupSpec("sliding", 4, window=6)]])
def test_tokens_that_had_no_blocks_before_a_step_do_not_count_as_computed(
    groups: list[kvpool.GroupSpec] | None,
) -> None:
    manager = kvpool.CacheManager(32, 4, groups=groups)
    manager.admit("a", range(40), allocate_tokens=8)
    calls: list[Callable[[], object]] = [
        lambda: manager.append_ragged(["a"], [], [0, 0], computed=[40]),
        lambda: manager.append_ragged(["a"], [], [0, 0], computed=[9], covered=[12]),
        lambda: manager.append_ragged(["a"], [7], commit=True),
        lambda: manager.append(["a"], [7], commit=True),
        lambda: manager.commit("a", 9),
        lambda: manager.commit_batch(["a"], [9]),
    ]
    before = observe_manager(manager, ["a"])
    for call in calls:
        with pytest.raises(errors.InvalidArgumentError, match="blocks for 8"):
            call()
        assert observe_manager(manager, ["a"]) == before
    assert manager.fit(range(40)).cached_tokens == 0
    manager.append_ragged(["a"], [], [0, 0], computed=[8], covered=[20])
    assert manager.request("a").computed_tokens == 8
    # Slots behind the tokens are there for drafts: an accepted one counts, one beyond them does not.
    manager.admit("b", range(50, 57))
    manager.append_ragged(["b"], [1], commit=True, lookahead=2)
    before = observe_manager(manager, ["b"])
    with pytest.raises(errors.InvalidArgumentError):
        manager.append_ragged(["b"], [2] * 8, [0, 8], computed=[13])
    assert observe_manager(manager, ["b"]) == before
    manager.append_ragged(["b"], [2, 3, 4], [0, 3], commit=True)
    assert manager.request("b").computed_tokens == 10


def test_a_step_whose_rows_share_a_registered_block_copies_it_once_without_blocks_for_more() -> None:
    manager = kvpool.CacheManager(5, 4)
    manager.admit("a", range(8))
    manager.commit("a", 8)
    manager.truncate("a", 6)
    manager.fork("a", "b")
    manager.admit("c", range(100, 104))
    assert manager.num_available == 1
    # One of them gets a copy, the other writes in place: the content of the block is no longer cached.
    assert manager.append(["a", "b"], [1, 2]) == [(0, 1, 4)]
    assert (manager.block_ids("a"), manager.block_ids("b")) == ([1, 4], [1, 2])
    assert manager.fit(range(9)).cached_tokens == 4
    manager.take_plan()
    manager.check_invariants()
