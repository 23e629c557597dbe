"""Tests that detect small defects of the engine. Each fails if a certain wait, bound or condition is
removed from the engine.
"""

from __future__ import annotations

import ctypes
import random
from typing import TYPE_CHECKING

import pytest
import torch

import kvpool
from kvpool.transfer import BlockStore, TransferEngine
from tests.transfer.memory import Blocks, on_device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvpool._core.transfer import Method
    from tests.transfer.fake_cuda.driver import Driver, FakeCuda

RELAXED = 2
#: Number of times that a test tries to observe a transfer while it is running. On a busy machine, a try
#: may come too late.
TRIES = 50


@pytest.fixture
def device(lazy: FakeCuda) -> Iterator[Blocks]:
    blocks = on_device(lazy)
    yield blocks
    lazy.run_all()
    blocks.release()


@pytest.fixture
def pool(device: Blocks) -> BlockStore:
    store = BlockStore.host(8, like=device.store)
    for block in range(8):
        store.write_block(block, random.Random(block).randbytes(512))
    return store


class Busy:
    """A CPU engine that first copies for some tenths of a second, and then makes the transfer ``last``."""

    def __init__(self) -> None:
        self.engine = TransferEngine(threads=1)
        source, target = (
            BlockStore.from_tensors([torch.ones(64, 1 << 20, dtype=torch.uint8)]) for _ in range(2)
        )
        for _ in range(20):
            self.last = self.engine.submit(source, target, [(i, i) for i in range(64)])


class Event:
    """Has the attributes of a torch.cuda.Event that kvpool reads."""

    def __init__(self, driver: Driver, stream: int) -> None:
        self.cuda_event = driver.event()
        assert driver.call("cuEventRecord", self.cuda_event, stream) == 0


@pytest.mark.parametrize("out", [True, False])
def test_staging_buffers_are_written_again_after_their_last_use(out: bool, lazy: FakeCuda) -> None:
    """Two streams use the same staging buffer. Whichever runs first, the buffer is written again only
    after the other stream has read it.
    """
    for seed in range(6):
        device = on_device(lazy, blocks=64)
        pinned = BlockStore.host(64, like=device.store)
        rng = random.Random(seed)
        pairs = list(zip(rng.sample(range(64), 60), rng.sample(range(64), 60), strict=True))
        content = [device.block(i) for i in range(64)]
        if not out:
            for block in range(64):
                pinned.write_block(block, rng.randbytes(512))
            content = [pinned.read_block(i) for i in range(64)]
        with TransferEngine("cuda:0", staging_bytes=4096) as engine:  # each buffer holds eight blocks
            source, target = (device.store, pinned) if out else (pinned, device.store)
            transfer = engine.submit(source, target, pairs, after=None, method="staged")
            while lazy.run_pick(rng.randrange(1 << 30) if seed else 0):
                pass
            transfer.wait()
        found = [(pinned.read_block if out else device.block)(dst) for _, dst in pairs]
        assert found == [content[src] for src, _ in pairs]
        device.release()


def other_pinned(
    driver: Driver, regions: list[tuple[int, int, int]], blocks: int, nbytes: int
) -> tuple[int, BlockStore]:
    """Returns a store in page-locked memory that kvpool did not allocate. Each of ``regions`` has an
    offset, a stride and a length.
    """
    address = driver.host_alloc(nbytes)
    ctypes.memset(address, 0xEE, nbytes)
    places = [(address + start, stride, length) for start, stride, length in regions]
    return address, BlockStore.from_regions(places, blocks, pinned=True)


def test_padding_between_blocks_of_others_stays(lazy: FakeCuda, driver: Driver, device: Blocks) -> None:
    address, store = other_pinned(driver, [(0, 640, 512)], 8, 8 * 640)
    with TransferEngine("cuda:0") as engine:
        engine.submit(device.store, store, [(i, i) for i in range(8)], after=None, method="staged").wait()
    for block in range(8):
        assert ctypes.string_at(address + 640 * block, 640) == device.block(block) + b"\xee" * 128


def test_holes_within_blocks_of_others_stay(lazy: FakeCuda, driver: Driver) -> None:
    device = on_device(lazy, nbytes=256, tensors=2)
    address, store = other_pinned(driver, [(0, 1024, 256), (512, 1024, 256)], 8, 8 * 1024)
    assert not store.packed
    pairs = [(i, i) for i in range(8)]
    with TransferEngine("cuda:0") as engine:
        with pytest.raises(kvpool.errors.InvalidArgumentError, match="scattered"):
            engine.submit(device.store, store, pairs, after=None, method="staged")
        engine.submit(device.store, store, pairs, after=None).wait()
    for block in range(8):
        first, second = device.block(block)[:256], device.block(block)[256:]
        hole = b"\xee" * 256
        assert ctypes.string_at(address + 1024 * block, 1024) == first + hole + second + hole
    device.release()


def test_a_copy_after_one_that_another_engine_has_queued(
    lazy: FakeCuda, device: Blocks, pool: BlockStore
) -> None:
    """The device cannot wait for the copy of the other engine. So this copy is enqueued only after that
    one has finished.
    """

    def under_way() -> bool:
        source = BlockStore.from_tensors([torch.randint(0, 256, (8, 512), dtype=torch.uint8)])
        busy = Busy()
        with TransferEngine("cuda:0") as engine:
            first = busy.engine.submit(source, pool, [(1, 3)])
            then = engine.submit(pool, device.store, [(3, 5)], after=first)
            seen = not first.done()
            then.wait()
        assert device.block(5) == source.read_block(1)
        busy.engine.close()
        return seen

    assert any(under_way() for _ in range(TRIES))


def test_nothing_overtakes_what_the_worker_has(lazy: FakeCuda, device: Blocks, pool: BlockStore) -> None:
    pageable = BlockStore.host(8, like=device.store, pinned=False)

    def under_way() -> bool:
        busy = Busy()
        with TransferEngine("cuda:0") as engine:
            first = engine.submit(device.store, pageable, [(1, 1)], after=busy.last)
            second = engine.submit(device.store, pool, [(2, 2)], after=None)
            seen = not first.done()
            second.wait()
            assert first.done()
        busy.engine.close()
        return seen

    assert any(under_way() for _ in range(TRIES))


def write(driver: Driver, address: int, data: bytes, stream: int) -> None:
    """Enqueues a copy from memory of the device to another address."""
    assert driver.call("cuMemcpyAsync", address, driver.put(data), len(data), stream) == 0


def test_a_source_that_an_event_announces_is_read_in_order(
    lazy: FakeCuda, driver: Driver, device: Blocks, pool: BlockStore
) -> None:
    """A copy without order would read the pool before the event has occurred."""
    stream, data = driver.stream(), bytes(range(256)) * 2
    write(driver, pool.regions[0][0] + 3 * 512, data, stream)
    with TransferEngine("cuda:0") as engine:
        engine.submit(pool, device.store, [(3, 5)], after=Event(driver, stream), method="batch").wait()
    assert device.block(5) == data


def test_memory_of_others_is_read_in_order(lazy: FakeCuda, driver: Driver, device: Blocks) -> None:
    """The owner of page-locked memory may write to it on any stream, so a copy must not read it early."""
    address, store = other_pinned(driver, [(0, 512, 512)], 8, 8 * 512)
    stream, data = driver.stream(), bytes(range(256)) * 2
    write(driver, address + 3 * 512, data, stream)
    with TransferEngine("cuda:0") as engine:
        engine.submit(store, device.store, [(3, 5)], after=stream, method="batch").wait()
    assert device.block(5) == data


def test_a_pool_that_a_graph_writes_is_read_in_order(
    lazy: FakeCuda, driver: Driver, device: Blocks, pool: BlockStore
) -> None:
    stream = driver.stream()
    with TransferEngine("cuda:0") as engine:
        engine.submit(device.store, pool, [(0, 0)], after=None, method="kernel").wait()  # creates the tables
        assert driver.call("cuStreamBeginCapture_v2", stream, RELAXED) == 0
        engine.copy(device.store, pool, [(1, 3)], stream=stream, method="kernel")
        result, graph = driver.end_capture(stream)
        assert result == 0
        engine.poll()
        executable = driver.get_value(ctypes.c_void_p, "cuGraphInstantiateWithFlags", graph, 0)
        assert driver.call("cuGraphLaunch", executable, stream) == 0
        engine.submit(pool, device.store, [(3, 5)], after=stream, method="batch").wait()
    assert device.block(5) == device.block(1)


def plan_stream(driver: Driver, device: Blocks) -> tuple[int, int]:
    return driver.stream(), device.store.regions[0][0]


def test_a_swap_waits_for_the_stream(
    lazy: FakeCuda, driver: Driver, device: Blocks, pool: BlockStore
) -> None:
    stream, base = plan_stream(driver, device)
    assert driver.call("cuMemsetD8Async", base + 512, 7, 512, stream) == 0
    with TransferEngine("cuda:0") as engine:
        (transfer,) = engine.execute(
            kvpool.TransferPlan([((0, 1), (1, 4))]), [device.store, pool], stream=stream
        )
        transfer.wait()
    assert pool.read_block(4) == b"\7" * 512


def test_the_step_waits_for_a_swap_of_what_copy_on_write_leaves(
    lazy: FakeCuda, driver: Driver, device: Blocks, pool: BlockStore
) -> None:
    """After copy-on-write no request holds block 1, but the swap still reads it."""
    stream, base = plan_stream(driver, device)
    before = device.block(1)
    plan = kvpool.TransferPlan([((0, 1), (0, 2)), ((0, 1), (1, 4))])
    with TransferEngine("cuda:0") as engine:
        transfers = engine.execute(plan, [device.store, pool], stream=stream)
        assert driver.call("cuMemsetD8Async", base + 512, 7, 512, stream) == 0
        assert driver.call("cuStreamSynchronize", stream) == 0
        for transfer in transfers:
            transfer.wait()
    assert device.block(2) == before
    assert pool.read_block(4) == before


def test_a_swap_does_not_wait_for_copies_of_its_round(
    lazy: FakeCuda, driver: Driver, device: Blocks, pool: BlockStore
) -> None:
    stream, _ = plan_stream(driver, device)
    before = device.block(2)
    plan = kvpool.TransferPlan([((0, 1), (0, 2)), ((0, 3), (1, 4))])
    with TransferEngine("cuda:0") as engine:
        (transfer,) = engine.execute(plan, [device.store, pool], stream=stream)
        transfer.wait()
        assert device.block(2) == before
        lazy.run_all()
        assert device.block(2) == device.block(1)


def test_rounds_follow_each_other_on_a_device(
    lazy: FakeCuda, driver: Driver, device: Blocks, pool: BlockStore
) -> None:
    stream, _ = plan_stream(driver, device)
    before, there = [device.block(i) for i in range(8)], [pool.read_block(i) for i in range(8)]
    plan = kvpool.TransferPlan([((0, 1), (1, 4)), ((1, 4), (0, 5)), ((0, 5), (0, 6)), ((0, 6), (1, 7))])
    with TransferEngine("cuda:0") as engine:
        for transfer in engine.execute(plan, [device.store, pool], stream=stream):
            transfer.wait()
        assert driver.call("cuStreamSynchronize", stream) == 0
    assert [device.block(5), device.block(6)] == [there[4], before[5]]
    assert [pool.read_block(4), pool.read_block(7)] == [before[1], before[6]]


def test_a_plan_that_fails_halfway_leaves_nothing_under_way(
    lazy: FakeCuda, driver: Driver, device: Blocks, pool: BlockStore
) -> None:
    stream, _ = plan_stream(driver, device)
    before = device.block(1)
    plan = kvpool.TransferPlan([((0, 1), (1, 4)), ((1, 5), (0, 6))])
    with TransferEngine("cuda:0") as engine:
        lazy.set(fail_memcpy=2, fail_memcpy_code=1)
        with pytest.raises(kvpool.errors.CudaError, match="INVALID_VALUE"):
            engine.execute(plan, [device.store, pool], stream=stream)
        lazy.set(fail_memcpy=0, fail_memcpy_code=700)
        assert pool.read_block(4) == before


@pytest.mark.parametrize(
    ("offsets", "nbytes"), [((0, 0), 20), ((0, 4), 64), ((4, 0), 64), ((0, 1), 64), ((0, 8), 24)]
)
def test_accesses_are_as_wide_as_both_ends_allow(
    offsets: tuple[int, int], nbytes: int, lazy: FakeCuda
) -> None:
    """A piece may be smaller than the pages of 128 bytes, and may start at any address."""
    source, target = on_device(lazy, nbytes=128), on_device(lazy, nbytes=128)
    stores = [
        BlockStore.from_regions(
            [(one.store.regions[0][0] + offset, 128, nbytes)], 7, device="cuda:0", keep_alive=one
        )
        for one, offset in zip((source, target), offsets, strict=True)
    ]
    with TransferEngine("cuda:0") as engine:
        engine.submit(stores[0], stores[1], [(2, 3)], after=None).wait()
    first, second = offsets
    assert target.block(3)[second : second + nbytes] == source.block(2)[first : first + nbytes]
    source.release()
    target.release()


def test_regions_out_of_order_are_no_part_of_a_block(lazy: FakeCuda, driver: Driver) -> None:
    """Of three regions, 0 and 1 are not adjacent in a pinned block. So the two cannot be copied as one
    piece.
    """
    device = on_device(lazy, nbytes=256, tensors=3)
    address, store = other_pinned(driver, [(512, 768, 256), (0, 768, 256), (256, 768, 256)], 8, 8 * 768)
    assert store.packed
    with TransferEngine("cuda:0") as engine:
        with pytest.raises(kvpool.errors.InvalidArgumentError, match="scattered"):
            engine.submit(device.store, store, [(1, 2)], after=None, regions=(0, 2), method="staged")
        engine.submit(device.store, store, [(1, 2)], after=None, regions=(0, 2)).wait()
        engine.submit(device.store, store, [(1, 3)], after=None, method="staged").wait()
    block = device.block(1)
    assert ctypes.string_at(address + 2 * 768, 768) == block[256:512] + b"\xee" * 256 + block[:256]
    assert ctypes.string_at(address + 3 * 768, 768) == block[256:512] + block[512:] + block[:256]
    device.release()


def test_a_batch_has_4096_descriptors_at_most(lazy: FakeCuda) -> None:
    """A driver crashed when one batched call had 51,828 descriptors (vLLM #49276).

    So the engine divides larger copies.
    """
    device = on_device(lazy, blocks=10_000, nbytes=16)
    pinned = BlockStore.host(10_000, like=device.store)
    batches, descriptors = lazy.count("batches"), lazy.count("descriptors")
    with TransferEngine("cuda:0") as engine:
        pairs = [(i, 9_998 - i) for i in range(9_998)]
        engine.submit(device.store, pinned, pairs, after=None, method="batch").wait()
    assert (lazy.count("batches") - batches, lazy.count("descriptors") - descriptors) == (3, 9_998)
    assert all(pinned.read_block(dst) == device.block(src) for src, dst in pairs[::997])
    device.release()


def test_a_mapping_of_too_many_rows_is_refused(lazy: FakeCuda, device: Blocks) -> None:
    class Mapping:
        dtype, shape, is_cpu = torch.int64, torch.Size([1 << 31, 2]), False
        device = torch.device("cuda:0")

        def data_ptr(self) -> int:
            return 4096

        def stride(self) -> tuple[int, int]:
            return (2, 1)

    with TransferEngine("cuda:0") as engine, pytest.raises(kvpool.errors.InvalidArgumentError, match="rows"):
        engine.copy(device.store, device.store, Mapping(), stream=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("out", [True, False])
def test_buffers_between_pageable_memory_and_the_device_take_turns(out: bool, lazy: FakeCuda) -> None:
    device = on_device(lazy, blocks=64)
    pageable = BlockStore.host(64, like=device.store, pinned=False)
    pairs = [(i, 63 - i) for i in range(60)]
    for block in range(64):
        pageable.write_block(block, random.Random(block).randbytes(512))
    source, target = (device.store, pageable) if out else (pageable, device.store)
    content = [(device.block if out else pageable.read_block)(i) for i in range(64)]
    with TransferEngine("cuda:0", staging_bytes=4096) as engine:
        engine.submit(source, target, pairs, after=None).wait()
        found = [(pageable.read_block if out else device.block)(dst) for _, dst in pairs]
    assert found == [content[src] for src, _ in pairs]
    device.release()


def test_a_copy_within_the_host_comes_after_what_the_device_brings(
    lazy: FakeCuda, driver: Driver, device: Blocks, pool: BlockStore
) -> None:
    stream, data = driver.stream(), bytes(range(256)) * 2
    other = BlockStore.host(8, like=device.store)
    with TransferEngine("cuda:0") as engine:
        engine.submit(device.store, pool, [(1, 3)], after=None)
        engine.copy(pool, other, [(3, 0)], stream=stream)
        assert other.read_block(0) == device.block(1)
        write(driver, pool.regions[0][0] + 4 * 512, data, stream)
        engine.copy(pool, other, [(4, 1)], stream=stream)
        assert other.read_block(1) == data


@pytest.mark.parametrize("inline", [False, True])
def test_a_copy_that_is_refused_halfway_has_ended(
    inline: bool, lazy: FakeCuda, driver: Driver, device: Blocks, pool: BlockStore
) -> None:
    """No part of the refused copy is running, so the caller may close the stores at once."""
    stream, pairs = driver.stream(), [(1, 2), (4, 0), (6, 5)]
    with TransferEngine("cuda:0") as engine:

        def start() -> None:
            if inline:
                engine.copy(device.store, pool, pairs, stream=stream, method="memcpy")
            else:
                engine.submit(device.store, pool, pairs, after=None, method="memcpy")

        lazy.set(fail_memcpy=3, fail_memcpy_code=1)
        with pytest.raises(kvpool.errors.CudaError, match="INVALID_VALUE"):
            start()
        lazy.set(fail_memcpy=0, fail_memcpy_code=700)
        assert lazy.count("queued") == 0
        assert engine.in_flight == 0


@pytest.mark.parametrize("method", ["kernel", "batch", "staged", "memcpy"])
def test_stores_live_until_an_inline_copy_has_ended(method: Method, lazy: FakeCuda, driver: Driver) -> None:
    device = on_device(lazy)
    pinned = BlockStore.host(8, like=device.store)
    memory = pinned.regions[0][0]
    lazy.watch(memory, 8 * 512)
    stream = driver.stream()
    with TransferEngine("cuda:0") as engine:
        engine.copy(device.store, pinned, [(2, 1)], stream=stream, method=method)
        del pinned
        assert lazy.count("live_registrations") == 1
        assert driver.call("cuStreamSynchronize", stream) == 0
        lazy.unwatch(memory)
        assert engine.poll() == []
    device.release()


def test_the_threads_context_and_capture_mode_stay(
    lazy: FakeCuda, driver: Driver, device: Blocks, pool: BlockStore
) -> None:
    def exchange(mode: int) -> int:
        value = ctypes.c_int(mode)
        assert driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(value)) == 0
        return value.value

    stream = driver.stream()
    context = driver.get_value(ctypes.c_void_p, "cuCtxGetCurrent")
    with TransferEngine("cuda:0") as engine:
        for current in (None, context):
            assert driver.call("cuCtxSetCurrent", current) == 0
            for mode in (0, 1):
                exchange(mode)
                engine.submit(device.store, pool, [(1, 2)], after=None, method="staged").wait()
                engine.copy(pool, device.store, [(2, 3)], stream=stream)
                engine.poll()
                assert driver.get_value(ctypes.c_void_p, "cuCtxGetCurrent") == current
                assert exchange(0) == mode


@pytest.mark.parametrize("count", [3, 200])
def test_ends_of_transfers_without_references_are_reported(
    count: int, lazy: FakeCuda, device: Blocks, pool: BlockStore
) -> None:
    with TransferEngine("cuda:0") as engine:
        ids = [
            engine.submit(device.store, pool, [(1, 2)], after=None, method="memcpy").id for _ in range(count)
        ]
        lazy.run_all()
        lazy.set(event_queries=0)
        assert [one.id for one in engine.poll()] == ids
        assert engine.poll() == []
