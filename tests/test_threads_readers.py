"""Tests threads that read while others run steps, epochs, fences, events, policies, replays and
transfers. The tests use no sleeps and no timing.
"""

from __future__ import annotations

import ctypes
import json
import queue
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.transfer import BlockStore, TransferEngine
from tests.together import check_sums, together, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

pytestmark = pytest.mark.usefixtures("frequent_switches")

WORKERS = 4
ROUNDS = 150


def matchable(pool: kvpool.BlockPool) -> set[bytes]:
    """Returns the hashes that a lookup could find, computed only from what the pool reports about its
    blocks.
    """
    computed = [block for block in range(1, pool.num_blocks) if pool.diagnose.is_computed(block)]
    return {digest for block in computed if (digest := pool.diagnose.hash_of(block)) is not None}


def apply(live: set[bytes], events: Sequence[Mapping[str, Any]]) -> None:
    for event in events:
        match event["type"]:
            case "stored":
                assert event["hash"] not in live
                live.add(event["hash"])
            case "removed":
                live.remove(event["hash"])
            case "cleared":
                live.clear()


def test_readers_of_every_kind_beside_steps() -> None:
    manager = kvpool.CacheManager(
        600, 4, event_capacity=1 << 16, advisor=True, retention=True, host_blocks=40
    )
    batch = [f"batch {number}" for number in range(8)]
    for name in batch:
        manager.admit(name, [1, 2, 3, 4, 5])
    long = list(range(1000))
    seen = 0

    def steps() -> int:
        appended = 0
        for turn in range(ROUNDS):
            manager.append(batch, [turn] * len(batch), commit=True)
            appended += len(batch)
            if turn % 5 == 0:
                manager.admit(turn, [*long, turn])
                manager.commit(turn, 1001)
                manager.release(turn, after_step=turn)
            if turn % 25 == 0:
                swap = manager.swaps.begin_out(batch[:1])
                manager.take_plan()
                manager.swaps.complete(swap)
                swap = manager.swaps.begin_in(batch[:1])
                manager.take_plan()
                manager.swaps.complete(swap)
            manager.complete_step(turn)
        return appended

    def counters() -> None:
        stats = manager.stats()
        check_sums(stats.pool)
        assert stats.running + stats.swapped + stats.moving in {8, 9}
        assert manager.num_available <= 599
        assert len(manager) in {8, 9}

    def lookups() -> None:
        assert manager.probe(long).cached_blocks <= 250
        info = manager.request(batch[1])
        assert info.blocks == (info.tokens + 3) // 4
        table = manager.block_ids(batch[1])
        assert len(set(table)) == len(table) >= info.blocks

    def consumer() -> None:
        nonlocal seen
        events, dropped = manager.take_events()
        assert dropped == 0
        seen += sum(event["type"] == "stored" for event in events)

    def diagnostics() -> None:
        advice = manager.diagnose.advice()
        assert advice is not None
        assert 0 <= advice["block_hit_rate"] <= 1
        assert manager.retention.stats() is not None
        assert manager.swaps.host_stats() is not None
        # The two orders are read one after the other. A block may move from one to the other in
        # between.
        for order in (manager.diagnose.free_order(), manager.diagnose.eviction_order()):
            assert len(set(order)) == len(order)
            assert set(order) <= set(range(1, 600))
        manager.diagnose.check_invariants()

    [appended] = watched([counters, lookups, consumer, diagnostics], [steps])
    consumer()
    stats = manager.stats()
    assert (stats.appended_tokens, stats.running) == (appended, 8)
    assert seen >= 250
    manager.diagnose.check_invariants()


def test_the_events_give_what_is_matchable() -> None:
    pool = kvpool.BlockPool(40, 2, event_capacity=1 << 20)
    hasher = kvpool.BlockHasher(block_size=2)
    live: set[bytes] = set()

    def work(worker: int) -> None:
        for turn in range(ROUNDS * 2):
            epoch = pool.stats().epoch
            chain = hasher.cursor([(worker + turn) % 6, 0, turn % 3, 1, 2, 3], epoch=epoch).chain()
            try:
                found = pool.match_and_acquire(chain)
            except kvpool.errors.StaleEpochError:
                continue
            fresh = pool.allocate(3 - len(found))
            try:
                pool.register(fresh, chain, len(found))
                pool.mark_computed(fresh)
            except (kvpool.errors.StaleEpochError, kvpool.errors.InvalidBlockError):
                pass  # the epoch changed meanwhile: never published
            pool.release([*found, *fresh], tail_first=True)
            if worker == 0 and turn % 50 == 49:
                pool.bump_epoch()

    def consume() -> None:
        events, dropped = pool.take_events()
        assert dropped == 0
        apply(live, events)

    watched(consume, [partial(work, worker) for worker in range(WORKERS)])
    consume()
    assert live == matchable(pool)
    assert pool.stats().epoch == ROUNDS * 2 // 50
    pool.diagnose.check_invariants()


def test_several_consumers_share_the_events() -> None:
    """Each event goes to exactly one of the consumers."""
    pool = kvpool.BlockPool(50, 1, event_capacity=1 << 20)
    hasher = kvpool.BlockHasher(block_size=1)
    taken: list[list[bytes]] = [[], []]

    def work() -> int:
        for turn in range(ROUNDS * 4):
            block = pool.allocate(1)
            pool.register(block, hasher.cursor([turn]).chain())
            pool.mark_computed(block)
            pool.release(block)
        return ROUNDS * 4

    def consume(mine: list[bytes]) -> Callable[[], None]:
        def run() -> None:
            mine.extend(event["hash"] for event in pool.take_events()[0] if event["type"] == "stored")

        return run

    readers = [consume(mine) for mine in taken]
    [stored] = watched(readers, [work])
    readers[0]()
    assert len(taken[0]) + len(taken[1]) == stored == len({*taken[0], *taken[1]})


def test_many_events_at_once_while_others_append() -> None:
    """A slow consumer converts many events while steps continue. It gets all of them, in order."""
    events = 20_000
    pool = kvpool.BlockPool(events + 1, 1, event_capacity=events)
    chain = kvpool.BlockHasher(block_size=1).cursor(range(events)).chain()
    table = pool.allocate(events)
    pool.register(table, chain)
    pool.mark_computed(table)

    def step() -> None:
        for _ in range(ROUNDS):
            pool.acquire(table[:4])
            pool.release(table[:4])

    (got, dropped), _ = together(pool.take_events, step)
    assert dropped == 0
    assert [event["block_id"] for event in got] == table
    assert [event["depth"] for event in got] == list(range(events))


def test_a_prompt_hashed_before_the_epoch_changed_never_hits() -> None:
    """A prompt is hashed without the lock, so the weights may change before the request is admitted.
    Then the admission is refused, and the prompt is hashed again.
    """
    manager = kvpool.CacheManager(400, 4)
    prompt = list(range(200))
    written = [-1] * manager.num_blocks

    def serve(worker: int) -> int:
        stale = 0
        for turn in range(ROUNDS):
            cursor = manager.prepare([turn % 3, *prompt])
            while turn % 10 == 0 and manager.stats().pool.epoch == cursor.epoch:
                pass  # the weights changed meanwhile
            while True:
                try:
                    admission = manager.admit(f"{worker} {turn}", cursor)
                    break
                except kvpool.errors.StaleEpochError:
                    stale += 1
                    cursor = manager.prepare([turn % 3, *prompt])
            cached = admission.cached_blocks
            assert all(written[block] == cursor.epoch for block in admission.block_ids[:cached])
            for block in admission.block_ids[cached:]:
                written[block] = cursor.epoch
            manager.commit(f"{worker} {turn}", 201)
            manager.release(f"{worker} {turn}")
        return stale

    def bump() -> None:
        manager.bump_epoch()

    assert min(watched(bump, [lambda: serve(0), lambda: serve(1)])) >= ROUNDS // 10
    assert manager.stats().pool.active == 0
    manager.diagnose.check_invariants()


def test_a_device_completes_steps_behind_the_scheduler() -> None:
    """If a request is aborted, a running step may still write to its blocks. No other request gets them
    before the step has completed.
    """
    pool = kvpool.BlockPool(40, 4)
    memory = [0] * pool.num_blocks
    steps: queue.SimpleQueue[tuple[int, list[int]] | None] = queue.SimpleQueue()

    def device() -> int:
        done = 0
        while (work := steps.get()) is not None:
            step, table = work
            for block in table:
                memory[block] = -step
            pool.complete_step(step)
            done += 1
        return done

    def scheduler() -> int:
        overlapping = 0
        try:
            for step in range(1, ROUNDS * 4):
                try:
                    table = pool.allocate(4)
                except kvpool.errors.OutOfBlocksError:
                    continue
                steps.put((step, table))
                pool.release(table, after_step=step)
                try:
                    other = pool.allocate(3)
                except kvpool.errors.OutOfBlocksError:
                    continue
                overlapping += pool.stats().fenced > 0
                for block in other:
                    memory[block] = step
                assert all(memory[block] == step for block in other)
                pool.release(other)
                assert pool.num_available <= 39
        finally:
            steps.put(None)
        return overlapping

    done, overlapping = together(device, scheduler)
    assert done > 0
    assert overlapping > 0
    stats = pool.stats()
    assert (stats.fenced, stats.active, stats.free) == (0, 0, 39)


def test_a_policy_whose_helper_looks_at_its_pool() -> None:
    """A policy cannot call the pool in the thread in which it runs. If it lets another thread call the
    pool, that thread gets its answer when the policy's call has ended.
    """
    asked: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    refused: list[bool] = []

    class Asks(kvpool.policies.Policy):
        def __init__(self) -> None:
            self.order: dict[int, None] = {}

        def release(self, block: int) -> None:
            self.order[block] = None

        def pop(self) -> int | None:
            asked.put(1)
            try:
                pool.stats()
            except kvpool.errors.PolicyError:
                refused.append(True)
            block = next(iter(self.order), None)
            if block is not None:
                del self.order[block]
            return block

        def forget(self, block: int) -> None:
            self.order.pop(block, None)

        hit = take = forget

    pool = kvpool.BlockPool(8, 1, eviction=Asks())
    hasher = kvpool.BlockHasher(block_size=1)

    def helper() -> int:
        answers = 0
        while asked.get() is not None:
            check_sums(pool.stats())
            answers += 1
        return answers

    def work() -> None:
        for turn in range(ROUNDS):
            block = pool.allocate(1)
            pool.register(block, hasher.cursor([turn]).chain())
            pool.mark_computed(block)
            pool.release(block)

    def working() -> None:
        try:
            together(work, work)
        finally:
            asked.put(None)

    answers, _ = together(helper, working)
    assert answers == len(refused) > 0
    pool.diagnose.check_policy()
    pool.diagnose.check_invariants()


def test_a_replay_is_read_while_several_threads_advance_it() -> None:
    trace = kvpool.traces.Trace.generate(300, seed=3, block_tokens=16)
    settings: dict[str, Any] = {"mode": "engine", "block_size": 16, "capacity_blocks": 4000}
    alone = kvpool.traces.Replay(trace, **settings)
    alone.advance()
    shared = kvpool.traces.Replay(trace, **settings, threads=2)

    def advance() -> int:
        before = -1
        while (done := shared.advance(3)) < shared.total:
            assert done > before
            before = done
        return done

    def read() -> None:
        assert json.loads(shared.report_json())
        assert shared.total == 300
        shared.check_invariants()

    assert watched(read, [advance] * WORKERS) == [300] * WORKERS
    assert shared.report_json() == alone.report_json()


def test_replays_of_one_trace_at_once() -> None:
    trace = kvpool.traces.Trace.generate(100, seed=4, block_tokens=16)

    def run() -> str:
        replay = kvpool.traces.Replay(trace, block_size=16, capacity_blocks=500, threads=2)
        replay.advance()
        return replay.report_json()

    # If a caller drops a replay before its end, the replay stops its threads.
    def give_up() -> str:
        kvpool.traces.Replay(trace, block_size=16, capacity_blocks=500, threads=3).advance(1)
        return ""

    results = together(run, give_up, run, give_up, run)
    assert results[0] == results[2] == results[4] != ""


def blocks_of(store: BlockStore, count: int) -> list[int]:
    return [store.read_block(block)[0] for block in range(count)]


def store_of(count: int) -> BlockStore:
    """Makes host memory whose blocks have 64 bytes. Each block is filled with its number."""
    memory = ctypes.create_string_buffer(count * 64)
    store = BlockStore.from_regions([(ctypes.addressof(memory), 64, 64)], count, keep_alive=memory)
    for block in range(count):
        store.write_block(block, bytes([block]) * 64)
    return store


def test_one_engine_of_many_threads() -> None:
    """Each thread copies only within its own blocks. The end of each transfer is reported once, to one
    of the threads that wait or poll.
    """
    count = 16 * WORKERS
    source, target = store_of(count), store_of(count)
    ended: list[int] = []
    with TransferEngine(threads=2) as engine:

        def work(worker: int) -> list[int]:
            own = range(worker * 16, worker * 16 + 16)
            numbers = []
            for turn in range(ROUNDS):
                pairs = [(own[(turn + index) % 16], own[index]) for index in range(16)]
                transfer = engine.submit(source, target, pairs)
                numbers.append(transfer.id)
                if turn % 3 == 0:
                    transfer.wait()
                    assert [target.read_block(dst)[0] for _, dst in pairs] == [src for src, _ in pairs]
            transfer.wait()
            return numbers

        def poll() -> None:
            ended.extend(transfer.id for transfer in engine.poll())
            assert engine.in_flight >= 0

        numbers = watched([poll, lambda: engine.wait()], [partial(work, worker) for worker in range(WORKERS)])
        poll()
    every = sorted(number for some in numbers for number in some)
    assert every == list(range(WORKERS * ROUNDS))
    assert len(set(ended)) == len(ended) <= len(every)
    assert engine.in_flight == 0
    last = [(ROUNDS - 1 + index) % 16 for index in range(16)]
    assert blocks_of(target, count) == [worker * 16 + offset for worker in range(WORKERS) for offset in last]


def test_an_engine_is_closed_while_others_submit() -> None:
    for _ in range(20):
        source, target = store_of(WORKERS * 32), store_of(WORKERS * 32)
        engine = TransferEngine()

        def work(worker: int) -> int:
            for turn in range(32):
                block = worker * 32 + turn
                try:
                    engine.submit(source, target, [((block + 1) % (WORKERS * 32), block)])  # noqa: B023
                except kvpool.errors.ClosedError:
                    return turn
            return 32

        done = together(engine.close, *[partial(work, worker) for worker in range(WORKERS)])[1:]
        # The engine has executed all transfers that it has accepted, and no others.
        assert engine.closed
        assert engine.in_flight == 0
        now = blocks_of(target, WORKERS * 32)
        for worker, accepted in enumerate(done):
            for turn in range(32):
                block = worker * 32 + turn
                assert now[block] == ((block + 1) % (WORKERS * 32) if turn < accepted else block)
