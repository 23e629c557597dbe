"""Tests copies in every order that the driver's rules allow. If a program waits wherever it must, its
result equals that of step-by-step execution.

The fake driver delays work, and runs it in a random order that is allowed. It reads the sources of
unordered copies as early as possible.
"""

from __future__ import annotations

import dataclasses
import gc
import random
import weakref
from typing import TYPE_CHECKING

import pytest
import torch

import kvpool
from kvpool.transfer import BlockStore, Transfer, TransferEngine
from tests.transfer.memory import MORE, Blocks, on_device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvpool._core.transfer import Method
    from tests.transfer.fake_cuda.driver import Driver, FakeCuda

METHODS: tuple[Method, ...] = ("auto", "kernel", "batch", "staged", "memcpy")


@dataclasses.dataclass
class Tier:
    """A store, and the content that it must have at the end."""

    store: BlockStore
    expected: list[bytes]
    actual: Blocks | None = None

    def content(self) -> list[bytes]:
        store = self.actual.copy().store if self.actual else self.store
        return [store.read_block(block) for block in range(store.num_blocks)]


class Program:
    """A random program. If two copies use the same block and one of them writes it, the program waits
    between them, and nowhere else.
    """

    def __init__(self, seed: int, fake: FakeCuda, driver: Driver) -> None:
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self.fake = fake
        self.engine = TransferEngine("cuda:0", staging_bytes=4096)
        self.stream = driver.stream()
        self.tiers: list[Tier] = []
        for _ in range(2):
            blocks = Blocks(
                [torch.randint(0, 256, (12, 96), dtype=torch.uint8) for _ in range(3)], 0, fake=fake
            )
            self.tiers.append(Tier(blocks.store, [blocks.block(i) for i in range(12)], blocks))
        for pinned in (True, True, False):
            store = BlockStore.host(12, like=self.tiers[0].store, pinned=pinned)
            content = [self.rng.randbytes(store.bytes_per_block) for _ in range(12)]
            for index, data in enumerate(content):
                store.write_block(index, data)
            self.tiers.append(Tier(store, content))
        #: Running transfers, each with the blocks that it reads and writes. None stands for copies on
        #: the stream.
        self.under_way: list[tuple[Transfer | None, set[tuple[int, int]], set[tuple[int, int]]]] = []

    def conflicts(self, reads: set[tuple[int, int]], writes: set[tuple[int, int]]) -> list[Transfer | None]:
        return [one for one, r, w in self.under_way if w & (reads | writes) or r & writes]

    def step(self) -> None:
        rng = self.rng
        source, target = rng.choice(
            [(0, 2), (0, 3), (1, 2), (2, 0), (3, 0), (3, 1), (0, 1), (1, 0), (0, 4), (4, 1), (0, 0)]
        )
        count = rng.randint(1, 4)
        src = rng.sample(range(6) if source == target else range(12), count)
        dst = rng.sample(range(6, 12) if source == target else range(12), count)
        pairs = list(zip(src, dst, strict=True))
        reads, writes = {(source, block) for block in src}, {(target, block) for block in dst}
        conflicts = self.conflicts(reads, writes)
        transfers = [one for one in conflicts if one is not None]
        on_stream = len(transfers) < len(conflicts)
        a, b = self.tiers[source].store, self.tiers[target].store
        crosses = source > 1 or target > 1
        methods = METHODS if crosses and 4 not in (source, target) else ("auto",)
        method = rng.choice(methods)
        done: Transfer | None = None
        if rng.random() < 0.3:
            for transfer in transfers:
                transfer.wait_on(self.stream)
            self.engine.copy(a, b, pairs, stream=self.stream, method=method)
        elif on_stream or len(transfers) > 1:
            for transfer in transfers:
                transfer.wait_on(self.stream)
            done = self.engine.submit(a, b, pairs, after=self.stream, method=method)
        elif transfers:
            done = self.engine.submit(a, b, pairs, after=transfers[0], method=method)
        else:
            done = self.engine.submit(a, b, pairs, after=None, method=method)
        self.under_way.append((done, reads, writes))
        taken = [self.tiers[source].expected[block] for block in src]
        for block, data in zip(dst, taken, strict=True):
            self.tiers[target].expected[block] = data

    def run(self) -> None:
        for _ in range(40):
            self.step()
            for _ in range(self.rng.randrange(4)):
                self.fake.run_pick(self.rng.randrange(1 << 30))
            if self.rng.random() < 0.1:
                self.engine.poll()
            if self.rng.random() < 0.1:
                finished = {id(one) for one, _, _ in self.under_way if one is not None and one.done()}
                self.under_way = [item for item in self.under_way if id(item[0]) not in finished]
        while self.fake.run_pick(self.rng.randrange(1 << 30)):
            pass
        self.engine.close()
        self.fake.run_all()
        for index, tier in enumerate(self.tiers):
            assert tier.content() == tier.expected, f"tier {index}"
            if tier.actual is not None:
                tier.actual.release()


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Frees the garbage of earlier tests, and excludes all other objects from later garbage
    collections. These then take milliseconds.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.longer
@pytest.mark.parametrize("seed", range(30 * MORE))
def test_programs_that_wait_end_as_if_run_step_by_step(seed: int, lazy: FakeCuda, driver: Driver) -> None:
    Program(seed, lazy, driver).run()


def test_transfers_of_a_direction_end_in_order(lazy: FakeCuda) -> None:
    device = on_device(lazy)
    pinned = BlockStore.host(8, like=device.store)
    pageable = BlockStore.host(8, like=device.store, pinned=False)
    with TransferEngine("cuda:0", staging_bytes=4096) as engine:
        # The second transfer uses the engine's worker thread. So all later transfers must use this thread,
        # too, to keep their order.
        transfers = [
            engine.submit(device.store, store, [(index, index)], after=None)
            for index, store in enumerate([pinned, pageable, pinned, pageable, pinned])
        ]
        transfers[-1].wait()
        assert all(transfer.done() for transfer in transfers)
    assert [store.read_block(i) for i, store in enumerate([pinned, pageable, pinned])] == [
        device.block(i) for i in range(3)
    ]
    device.release()


def test_the_processor_waits_for_a_device_that_touches_a_block(lazy: FakeCuda) -> None:
    """The device works only when a call waits for it. So a missing wait is detected."""
    device = on_device(lazy)
    pinned = BlockStore.host(8, like=device.store)
    expected = device.block(0)
    with TransferEngine("cuda:0") as engine, TransferEngine() as processor:
        out = engine.submit(device.store, pinned, [(0, 3)], after=None)
        assert pinned.read_block(4) == bytes(512)
        assert not out.done(), "another block was waited for"
        assert pinned.read_block(3) == expected
        back = engine.submit(pinned, device.store, [(3, 5)], after=None)
        pinned.write_block(3, bytes(512))
        engine.submit(device.store, pinned, [(5, 6)], after=back)
        processor.submit(pinned, pinned, [(6, 7)]).wait()
        assert pinned.read_block(7) == expected
        back = engine.submit(pinned, device.store, [(7, 1)], after=None)
        processor.copy(pinned, pinned, [(3, 7)])
        back.wait()
        assert device.block(1) == device.block(5) == expected
    device.release()


def test_a_copy_waits_for_the_callers_stream(lazy: FakeCuda, driver: Driver) -> None:
    """The KV is written by work that is already on the caller's stream. So the copy must run after it."""
    device = on_device(lazy)
    pinned = BlockStore.host(8, like=device.store)
    stream = driver.stream()
    address = device.store.regions[0][0]
    with TransferEngine("cuda:0") as engine:
        for method in METHODS:
            assert driver.call("cuMemsetD8Async", address, METHODS.index(method) + 1, 512, stream) == 0
            engine.submit(device.store, pinned, [(0, 0)], after=stream, method=method).wait()
            assert pinned.read_block(0) == bytes([METHODS.index(method) + 1]) * 512
    device.release()


def test_a_consumer_waits_for_the_copy(lazy: FakeCuda, driver: Driver) -> None:
    device = on_device(lazy)
    pinned = BlockStore.host(8, like=device.store)
    pinned.write_block(3, bytes(range(256)) * 2)
    stream = driver.stream()
    with TransferEngine("cuda:0") as engine:
        for method in METHODS:
            transfer = engine.submit(pinned, device.store, [(3, 0)], after=None, method=method)
            transfer.wait_on(stream)
            engine.copy(device.store, device.store, [(0, 5)], stream=stream)
            assert driver.call("cuStreamSynchronize", stream) == 0
            assert device.block(5) == pinned.read_block(3)
            device.tensors[0].zero_()
    device.release()


def test_an_event_is_waited_for(lazy: FakeCuda, driver: Driver) -> None:
    class Event:
        def __init__(self) -> None:
            self.cuda_event = driver.event()

    device = on_device(lazy)
    pinned = BlockStore.host(8, like=device.store)
    pageable = BlockStore.host(8, like=device.store, pinned=False)
    stream, event = driver.stream(), Event()
    address = device.store.regions[0][0]
    with TransferEngine("cuda:0") as engine:
        for number, host in enumerate([pinned, pageable]):
            assert driver.call("cuMemsetD8Async", address, 7 + number, 512, stream) == 0
            assert driver.call("cuEventRecord", event.cuda_event, stream) == 0
            engine.submit(device.store, host, [(0, 0)], after=event).wait()
            assert host.read_block(0) == bytes([7 + number]) * 512
    device.release()


@pytest.mark.parametrize("method", METHODS)
def test_stores_live_until_the_copy_has_ended(method: Method, lazy: FakeCuda) -> None:
    """The store is closed and dropped while the copy is running. The fake driver would report any use
    of freed memory.
    """
    target = on_device(lazy)
    alive = weakref.ref(target.tensors[0])
    address = target.tensors[0].data_ptr()
    pinned = BlockStore.host(8, like=target.store)
    pool = pinned.regions[0][0]
    lazy.watch(pool, 8 * 512)
    engine = TransferEngine("cuda:0")
    engine.submit(pinned, target.store, [(2, 1)], after=None, method=method)
    pinned.close()
    target.store.close()
    del pinned, target
    gc.collect()
    assert alive() is not None
    assert lazy.count("live_registrations") == 1
    lazy.run_all()
    lazy.set(event_queries=0)  # from now on queries report the state at once
    (transfer,) = engine.poll()
    assert transfer.error is None
    gc.collect()
    assert alive() is None
    assert lazy.count("live_registrations") == 0
    lazy.unwatch(pool)
    lazy.unmark(address)
    engine.close()


def test_poll_reports_each_end_once(lazy: FakeCuda) -> None:
    device = on_device(lazy)
    pinned = BlockStore.host(8, like=device.store)
    with TransferEngine("cuda:0") as engine:
        first, second, third = (engine.submit(device.store, pinned, [(i, i)], after=None) for i in range(3))
        assert engine.in_flight == 3
        assert engine.poll() == []
        lazy.run_all()
        assert second.done()
        assert [one.id for one in engine.poll()] == [first.id, third.id]
        assert engine.poll() == []
        assert engine.in_flight == 0
        assert first.seconds is not None
    device.release()


def test_an_engines_wait_covers_all_transfers_and_reports_no_ends(lazy: FakeCuda) -> None:
    device = on_device(lazy)
    pinned = BlockStore.host(8, like=device.store)
    with TransferEngine("cuda:0") as engine:
        transfers = [engine.submit(device.store, pinned, [(i, i)], after=None) for i in range(3)]
        lazy.set(event_queries=1 << 30)
        with pytest.raises(kvpool.errors.TransferTimeoutError, match=r"has not ended within 0\.001 s"):
            engine.wait(0.001)
        lazy.set(event_queries=2)
        engine.wait()
        assert [one.id for one in engine.poll()] == [one.id for one in transfers]
        engine.wait()
    device.release()


@pytest.mark.parametrize("dropped", [False, True])
def test_the_end_of_an_engine_waits(dropped: bool, lazy: FakeCuda) -> None:
    device = on_device(lazy)
    pinned = BlockStore.host(8, like=device.store)
    engine = TransferEngine("cuda:0")
    transfer = engine.submit(device.store, pinned, [(1, 2)], after=None)
    if dropped:
        del engine
    else:
        engine.close()
    assert transfer.done()
    assert pinned.read_block(2) == device.block(1)
    device.release()


def test_memory_of_the_driver_is_given_back(lazy: FakeCuda) -> None:
    """A hundred engines are made and closed. Afterwards the numbers of streams, events, buffers, tables
    and registrations are as before.
    """
    counters = (
        "live_allocs",
        "live_host_allocs",
        "live_registrations",
        "live_streams",
        "live_events",
        "queued",
    )
    gc.collect()
    device = on_device(lazy)
    before = [lazy.count(counter) for counter in counters]
    for seed in range(20):
        pinned = BlockStore.host(8, like=device.store)
        pageable = BlockStore.host(8, like=device.store, pinned=False)
        with TransferEngine("cuda:0", staging_bytes=4096) as engine:
            for store in (pinned, pageable):
                for method in METHODS if store is pinned else ("auto",):
                    engine.submit(device.store, store, [(seed % 8, 1)], after=None, method=method)
                    engine.copy(store, device.store, [(2, 3)], stream=None)
        del pinned, pageable, engine, store
    gc.collect()
    assert [lazy.count(counter) for counter in counters] == before
    device.release()
