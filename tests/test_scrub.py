"""Tests in Python: digests of the state, the scrubber (which checks parts of the state step by step),
and the errors of a poisoned pool (which has found a broken invariant).
"""

from __future__ import annotations

import random

import pytest

import kvpool


def chain(tokens: range) -> kvpool.hashing.HashChain:
    return kvpool.BlockHasher(block_size=2).cursor(tokens).chain()


def play(pool: kvpool.BlockPool, seed: int) -> list[int | None]:
    """Runs random requests. Returns the digest of the state after each."""
    numbers = random.Random(seed)
    tables: list[list[int]] = []
    digests = []
    for _ in range(60):
        if tables and (numbers.random() < 0.5 or pool.num_available < 4):
            pool.release(tables.pop(numbers.randrange(len(tables))), tail_first=True)
        else:
            first = numbers.randrange(3)
            prompt = chain(range(first, first + 8))
            table = pool.match_and_acquire(prompt)
            hits = len(table)
            table += pool.allocate(4 - hits)
            pool.register(table[hits:], prompt, hits)
            pool.mark_computed(table[hits:])
            tables.append(table)
        digests.append(pool.diagnose.state_digest())
    return digests


def test_equal_histories_have_equal_digests() -> None:
    pools = [kvpool.BlockPool(20, 2, digest=True) for _ in range(3)]
    histories = [play(pool, seed) for pool, seed in zip(pools, (1, 1, 2), strict=True)]
    assert histories[0] == histories[1] != histories[2]
    assert len(set(histories[0])) == len(histories[0]), "every operation counts something"
    for pool in pools:
        assert pool.diagnose.state_digest() == pool.diagnose.state_digest_from_scratch()


def test_without_the_setting_there_is_none() -> None:
    plain, kept = kvpool.BlockPool(20, 2), kvpool.BlockPool(20, 2, digest=True)
    assert plain.diagnose.state_digest() is None
    assert plain.diagnose.state_digest_from_scratch() == kept.diagnose.state_digest()
    assert kvpool.CacheManager(20).diagnose.state_digest() is None


def test_a_manager_has_one() -> None:
    managers = [kvpool.CacheManager(40, 2, host_blocks=20, digest=True) for _ in range(2)]
    seen: set[int | None] = set()
    for manager in managers:
        digests = [manager.diagnose.state_digest()]
        manager.admit("a", range(7))
        digests.append(manager.diagnose.state_digest())
        manager.append(["a"], [7], commit=True)
        digests.append(manager.diagnose.state_digest())
        swap = manager.swaps.begin_out(["a"])
        manager.take_plan()
        manager.swaps.complete(swap)
        digests.append(manager.diagnose.state_digest())
        assert manager.diagnose.state_digest() == manager.diagnose.state_digest_from_scratch()
        seen.update(digests)
    assert len(seen) == 4


def test_the_scrubber_starts_again_after_the_last_block() -> None:
    pool = kvpool.BlockPool(20, 2, digest=True)
    play(pool, 3)
    before = pool.stats()
    reports = [pool.diagnose.scrub(7) for _ in range(6)]
    assert [report.position for report in reports] == [7, 14, 1, 8, 15, 2]
    assert [report.passes for report in reports] == [0, 0, 1, 1, 1, 2]
    assert {report.blocks for report in reports} == {7}
    assert pool.diagnose.scrub(10**9).blocks == 20, "no block twice in one call"
    assert pool.diagnose.scrub(0) == pool.diagnose.scrub(0)
    assert repr(pool.diagnose.scrub(0)) == "ScrubReport(position=2, blocks=0, requests=0, passes=3)"
    assert pool.stats() == before
    assert pool.diagnose.poison_reason is None


def test_a_manager_scrubs_tables_too() -> None:
    manager = kvpool.CacheManager(40, 2, host_blocks=20)
    for request in range(3):
        manager.admit(request, range(9))
    report = manager.diagnose.scrub(100)
    assert (report.blocks, report.requests, report.passes) == (60, 3, 1)
    # Each of the three block tables has five entries, and a call checks three entries. So the six calls check
    # these numbers of entries per table: 3; 2 + 1; 3; 1 + 2; 3; and then the first table again.
    assert [manager.diagnose.scrub(3).requests for _ in range(6)] == [0, 1, 0, 1, 1, 0]
    assert manager.diagnose.poison_reason is None


@pytest.mark.parametrize("blocks", [-1, 1.5, None, "7"])
def test_bad_budgets_are_refused(blocks: object) -> None:
    for holder in (kvpool.BlockPool(20), kvpool.CacheManager(20)):
        with pytest.raises((kvpool.KvpoolError, TypeError)):
            holder.diagnose.scrub(blocks)  # type: ignore[arg-type]
        assert holder.diagnose.scrub(1).blocks == 1
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="scrub_blocks"):
        kvpool.CacheManager(20, scrub_blocks=-1)


def test_steps_scrub_if_scrub_blocks_is_set() -> None:
    manager = kvpool.CacheManager(40, 2, scrub_blocks=5)
    for step in range(4):
        manager.complete_step(step)
    assert manager.diagnose.scrub(0).position == 20


class Lossy(kvpool.policies.Policy):
    """A policy that loses blocks. The pool must not rely on its answers."""

    def __init__(self) -> None:
        self.order: list[int] = []

    def release(self, block: int) -> None:
        self.order.append(block)

    def pop(self) -> int | None:
        return self.order.pop(0) if self.order else None

    def forget(self, block: int) -> None:
        if block in self.order:
            self.order.remove(block)


def test_pools_with_a_policy_of_their_own_are_scrubbed() -> None:
    pool = kvpool.BlockPool(20, 2, eviction=Lossy(), digest=True)
    play(pool, 4)
    assert pool.diagnose.scrub(20).passes == 1
    pool.diagnose.check_invariants()
