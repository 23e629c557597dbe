"""Tests threads that use one pool and one manager at once. Calls are atomic, and no block is lost. The
tests use no sleeps and no timing.
"""

from __future__ import annotations

import threading
from functools import partial

import pytest

import kvpool
from tests.together import check_sums, together, watched

WORKERS = 8
ROUNDS = 200


pytestmark = pytest.mark.usefixtures("frequent_switches")


def test_requests_of_many_threads() -> None:
    manager = kvpool.CacheManager(WORKERS * 12 + 1, 4, event_capacity=10**6)
    shared = list(range(16))

    def work(worker: int) -> tuple[int, int, int]:
        prompt_tokens = hit_tokens = appended = 0
        for turn in range(ROUNDS):
            name = f"{worker}-{turn}"
            # All requests share the first four blocks. The rest of each prompt is unique.
            prompt = [*shared, 1000 + worker, turn, 7]
            admission = manager.admit(name, prompt)
            assert admission.cached_tokens in {0, 4, 8, 12, 16}
            prompt_tokens += len(prompt)
            hit_tokens += admission.cached_tokens
            for token in range(10):
                manager.append([name], [token], commit=True)
                appended += 1
            assert manager.request(name).tokens == 29
            table = manager.block_ids(name)
            assert table[: admission.num_blocks] == admission.block_ids
            assert len(set(table)) == len(table) == 8
            if turn % 3 == 0:
                manager.preempt(name)
                assert manager.resume(name).cached_tokens <= 28
            manager.release(name, after_step=turn if turn % 2 else None)
            manager.complete_step(turn)
        return prompt_tokens, hit_tokens, appended

    def read() -> None:
        stats = manager.stats()
        check_sums(stats.pool)
        assert stats.hit_tokens + stats.computed_tokens == stats.prompt_tokens
        assert manager.probe(shared).cached_blocks <= 3
        manager.diagnose.check_invariants()

    results = watched(read, [partial(work, worker) for worker in range(WORKERS)])
    manager.complete_step(ROUNDS)
    manager.diagnose.check_invariants()
    stats = manager.stats()
    assert (len(manager), stats.running, stats.preempted) == (0, 0, 0)
    assert (stats.pool.active, stats.pool.fenced) == (0, 0)
    assert stats.pool.available == stats.pool.usable == WORKERS * 12
    assert stats.admissions == WORKERS * ROUNDS
    expected = tuple(sum(column) for column in zip(*results, strict=True))
    assert (stats.prompt_tokens, stats.hit_tokens, stats.appended_tokens) == expected
    assert manager.probe([*shared, 0]).cached_blocks == 4
    events, lost = manager.take_events()
    assert lost == 0
    live: set[bytes] = set()
    for event in events:
        if event["type"] == "stored":
            assert event["hash"] not in live
            live.add(event["hash"])
        elif event["type"] == "removed":
            live.remove(event["hash"])
    assert len(live) <= stats.pool.registered


def test_a_pool_of_many_threads() -> None:
    pool = kvpool.BlockPool(WORKERS * 6 + 1, 4)
    hasher = kvpool.BlockHasher(block_size=4)
    chain = hasher.cursor(range(12)).chain()
    owners = [0] * pool.num_blocks

    def work(worker: int) -> int:
        taken = 0
        for turn in range(ROUNDS * 4):
            found = pool.match_and_acquire(chain)
            fresh = pool.allocate(3)
            taken += 3
            for block in fresh:
                assert owners[block] == 0
                owners[block] = worker + 1
            assert not set(found) & set(fresh)
            own = hasher.cursor([worker, turn, 0, 0]).chain()
            assert pool.register(fresh[:1], own if found else chain) == 1
            pool.mark_computed(fresh[:1])
            for block in fresh:
                assert owners[block] == worker + 1
                owners[block] = 0
            pool.release(found)
            pool.release(fresh, tail_first=True)
        return taken

    def read() -> None:
        check_sums(pool.stats())
        assert pool.probe(chain).cached_blocks <= 3
        pool.diagnose.check_invariants()

    taken = sum(watched(read, [partial(work, worker) for worker in range(WORKERS)]))
    pool.diagnose.check_invariants()
    stats = pool.stats()
    assert (stats.active, stats.fenced, stats.available) == (0, 0, WORKERS * 6)
    assert stats.allocated == taken
    assert sorted(pool.diagnose.free_order() + pool.diagnose.eviction_order()) == list(
        range(1, pool.num_blocks)
    )


def test_threads_that_want_more_than_there_is() -> None:
    """Each refusal is correct when it happens, and reports the number of missing blocks. At the end no
    block is held.
    """
    pool = kvpool.BlockPool(10, 4)

    def work() -> tuple[int, int]:
        refusals = taken = 0
        for n in range(ROUNDS * 4):
            try:
                table = pool.allocate(n % 9 + 1)
            except kvpool.errors.OutOfBlocksError as error:
                refusals += 1
                if not error.missing == error.needed - error.available > 0:
                    raise
            else:
                taken += len(table)
                pool.release(table)
        return refusals, taken

    results = together(*[work] * WORKERS)
    assert pool.stats().allocated == sum(taken for _, taken in results)
    assert pool.num_available == 9
    pool.diagnose.check_invariants()


def test_prompts_are_hashed_while_others_append() -> None:
    manager = kvpool.CacheManager(2000, 16)
    manager.admit("running", range(100))
    expected = kvpool.BlockHasher().hash_tokens(range(20_000))

    def prepare() -> None:
        for _ in range(20):
            assert manager.prepare(range(20_000)).digests() == expected

    def append() -> None:
        for token in range(1000):
            manager.append(["running"], [token], commit=True)

    together(prepare, append, prepare, lambda: [manager.probe(range(5000)) for _ in range(50)])
    assert manager.request("running").tokens == 1100
    manager.diagnose.check_invariants()


def test_one_cursor_of_many_threads() -> None:
    cursor = kvpool.BlockHasher(block_size=4).cursor()
    together(*[lambda: [cursor.append([5, 5, 5]) for _ in range(400)]] * WORKERS)
    assert cursor.num_tokens == WORKERS * 1200
    assert cursor.digests() == kvpool.BlockHasher(block_size=4).hash_tokens([5] * WORKERS * 1200)
    assert cursor.hashed_blocks == WORKERS * 300


def test_one_request_is_admitted_once() -> None:
    manager = kvpool.CacheManager(1000, 4)

    def work() -> int:
        admitted = 0
        for name in range(100):
            try:
                manager.admit(name, [name] * 9)
            except kvpool.errors.DuplicateRequestError:
                continue
            admitted += 1
        return admitted

    assert sum(together(*[work] * WORKERS)) == 100 == len(manager)
    assert manager.num_available == 999 - 300
    manager.diagnose.check_invariants()


def test_a_step_is_stale_once_another_thread_changed_the_manager() -> None:
    manager = kvpool.CacheManager(100, 4)
    manager.admit("a", range(9))
    step = manager.plan_step()
    step.append("a", range(8))
    thread = threading.Thread(target=lambda: manager.admit("b", range(9)))
    thread.start()
    thread.join()
    with pytest.raises(kvpool.errors.StaleStepError):
        step.commit()
    with pytest.raises(kvpool.errors.StaleStepError):
        step.release("a")
    assert manager.request("a").tokens == 9


def test_of_steps_planned_at_once_each_is_whole() -> None:
    """Threads plan and commit steps at the same time. A commit executes its whole plan, or nothing if
    another thread has committed a step meanwhile.
    """
    manager = kvpool.CacheManager(4000, 4)
    names = list(range(5))
    for name in names:
        manager.admit(name, [name])

    def work() -> int:
        committed = 0
        while committed < 20:
            with manager.plan_step() as step:
                try:
                    for name in names:
                        step.append(name, [1, 2, 3])
                    step.commit()
                except kvpool.errors.StaleStepError:
                    continue
                committed += 1
        return committed

    assert sum(together(*[work] * WORKERS)) == 20 * WORKERS
    assert {manager.request(name).tokens for name in names} == {1 + 3 * 20 * WORKERS}
    manager.diagnose.check_invariants()


def test_one_step_used_by_many_threads_commits_once() -> None:
    manager = kvpool.CacheManager(100, 4)
    manager.admit("a", [1])
    step = manager.plan_step()
    step.append("a", [2, 3])

    def commit() -> int:
        try:
            step.commit()
        except kvpool.errors.StaleStepError:
            return 0
        return 1

    assert sum(together(*[commit] * WORKERS)) == 1
    assert manager.request("a").tokens == 3
