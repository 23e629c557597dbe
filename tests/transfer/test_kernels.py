"""Tests what only kernels can do: mappings in device memory, graphs, and offsets beyond 32 bits. Also
tests streams that do not accept batches.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING

import pytest
import torch

import kvpool
from kvpool.transfer import BlockStore, TransferEngine
from tests.transfer.memory import on_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.transfer.fake_cuda.driver import Driver, FakeCuda
    from tests.transfer.memory import Blocks

GLOBAL, RELAXED = 0, 2
MAP_NORESERVE = 0x4000


class DeviceMapping:
    """Has the attributes of a CUDA tensor of int64 [n, 2] that kvpool reads. Its memory is that of the
    fake device.
    """

    def __init__(self, driver: Driver, pairs: Sequence[tuple[int, int]]) -> None:
        self.rows = len(pairs)
        self.address = driver.alloc(max(16 * self.rows, 16))
        self.fill(pairs)
        self.dtype = torch.int64
        self.shape = torch.Size([self.rows, 2])
        self.device = torch.device("cuda:0")
        self.is_cpu = False

    def fill(self, pairs: Sequence[tuple[int, int]]) -> None:
        flat = [number for pair in pairs for number in pair]
        ctypes.memmove(self.address, (ctypes.c_int64 * len(flat))(*flat), 8 * len(flat))

    def data_ptr(self) -> int:
        return self.address

    def stride(self) -> tuple[int, int]:
        return (2, 1)

    def element_size(self) -> int:
        return 8


@pytest.fixture
def engine(fake: FakeCuda) -> Iterator[TransferEngine]:
    fake.set(strict=1, check_races=1)
    with TransferEngine("cuda:0", staging_bytes=4096) as engine:
        yield engine
    fake.set(strict=0, check_races=0)


@pytest.fixture
def device(fake: FakeCuda) -> Iterator[Blocks]:
    blocks = on_device(fake, tensors=2)
    yield blocks
    blocks.release()


def test_a_mapping_on_the_device_skips_and_reports(
    engine: TransferEngine, device: Blocks, driver: Driver
) -> None:
    """Pairs with -1 are skipped and not reported. Pairs with ids out of range are skipped, and the next
    poll reports them once.
    """
    stream = driver.stream()
    mapping = DeviceMapping(driver, [(0, 4), (-1, 5), (1, -1), (2, 6), (-1, -1)])
    oracle = device.copy()
    oracle.assign(oracle.copy(), [(0, 4), (2, 6)])
    engine.copy(device.store, device.store, mapping, stream=stream)
    assert device.same(oracle)
    assert engine.poll() == []
    for bad in ((8, 1), (1, 8), (1 << 40, 1), (1, 1 << 40)):
        mapping.fill([bad, (0, 5), (-1, -1), (-1, -1), (-1, -1)])
        engine.copy(device.store, device.store, mapping, stream=stream)
        oracle.assign(oracle.copy(), [(0, 5)])
        assert device.same(oracle), bad
        with pytest.raises(kvpool.errors.BlockIndexError, match="device mapping held block ids out of range"):
            engine.poll()
        assert engine.poll() == []


def test_a_mapping_on_the_device_is_for_kernels(
    engine: TransferEngine, device: Blocks, driver: Driver
) -> None:
    mapping = DeviceMapping(driver, [(0, 4)])
    pageable = BlockStore.host(8, like=device.store, pinned=False)
    before = device.copy()
    with pytest.raises(kvpool.errors.MappingTypeError, match="use copy"):
        engine.submit(device.store, device.store, mapping, after=None)
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="takes the kernel"):
        engine.copy(device.store, device.store, mapping, stream=None, method="memcpy")
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="not pinned"):
        engine.copy(device.store, pageable, mapping, stream=None)
    twin = device.copy()
    with (
        TransferEngine() as cpu,
        pytest.raises(kvpool.errors.InvalidArgumentError, match="both stores are on the cpu"),
    ):
        cpu.copy(twin.store, twin.store, mapping, stream=None)
    assert device.same(before)


def test_a_graph_replays_a_mapping_on_the_device(
    engine: TransferEngine, device: Blocks, driver: Driver
) -> None:
    """The graph has a fixed number of pairs, of which unused ones are -1. Each replay uses the pairs in
    memory at that time.
    """
    stream = driver.stream()
    mapping = DeviceMapping(driver, [(-1, -1)] * 4)
    before = device.copy()
    assert driver.call("cuStreamBeginCapture_v2", stream, RELAXED) == 0
    engine.copy(device.store, device.store, mapping, stream=stream)
    result, graph = driver.end_capture(stream)
    assert result == 0
    assert device.same(before), "nothing runs while it is captured"
    executable = driver.get_value(ctypes.c_void_p, "cuGraphInstantiateWithFlags", graph, 0)
    oracle = device.copy()
    for pairs in ([(0, 4), (1, 5)], [(2, 6), (3, 7), (4, 0), (5, 1)], []):
        mapping.fill([*pairs, *[(-1, -1)] * (4 - len(pairs))])
        assert driver.call("cuGraphLaunch", executable, stream) == 0
        assert driver.call("cuStreamSynchronize", stream) == 0
        oracle.assign(oracle.copy(), pairs)
        assert device.same(oracle)


def test_a_graph_replays_pairs_by_value(engine: TransferEngine, device: Blocks, driver: Driver) -> None:
    stream = driver.stream()
    pinned = BlockStore.host(8, like=device.store)
    engine.copy(
        device.store, pinned, [(0, 0)], stream=stream, method="kernel"
    )  # brings the pool's table to the device
    assert driver.call("cuStreamBeginCapture_v2", stream, RELAXED) == 0
    engine.copy(device.store, pinned, [(1, 3), (2, 4)], stream=stream)
    engine.copy(device.store, device.store, [(5, 6)], stream=stream)
    result, graph = driver.end_capture(stream)
    assert result == 0
    executable = driver.get_value(ctypes.c_void_p, "cuGraphInstantiateWithFlags", graph, 0)
    for _ in range(2):
        for tensor in device.tensors:
            tensor.random_(0, 256)
        assert driver.call("cuGraphLaunch", executable, stream) == 0
        assert driver.call("cuStreamSynchronize", stream) == 0
        assert [pinned.read_block(i) for i in (3, 4)] == [device.block(1), device.block(2)]
        assert device.block(5) == device.block(6)


def test_what_cannot_be_captured_is_refused(engine: TransferEngine, device: Blocks, driver: Driver) -> None:
    """After the refusal the capture can continue. If the engine did not check the result of the batch,
    the batch would be lost without an error (rmm#2518).
    """
    stream = driver.stream()
    pinned = BlockStore.host(8, like=device.store)
    pageable = BlockStore.host(8, like=device.store, pinned=False)
    assert driver.call("cuStreamBeginCapture_v2", stream, RELAXED) == 0
    with pytest.raises(kvpool.errors.CaptureError, match="cannot capture batched copies"):
        engine.copy(device.store, pinned, [(1, 3)], stream=stream, method="batch")
    with pytest.raises(kvpool.errors.CaptureError, match="staging buffers are shared"):
        engine.copy(device.store, pinned, [(1, 3)], stream=stream, method="staged")
    with pytest.raises(kvpool.errors.CaptureError, match="not pinned"):
        engine.copy(device.store, pageable, [(1, 3)], stream=stream)
    with pytest.raises(kvpool.errors.CaptureError, match="use copy"):
        engine.submit(device.store, pinned, [(1, 3)], after=stream)
    with pytest.raises(kvpool.errors.CaptureError, match="copy once before"):
        engine.copy(device.store, pinned, [(1, 3)], stream=stream, method="kernel")
    engine.copy(device.store, device.store, [(1, 3)], stream=stream)
    result, graph = driver.end_capture(stream)
    assert (result, bool(graph)) == (0, True)
    assert device.block(1) != device.block(3)


def test_engines_work_during_a_capture(engine: TransferEngine, device: Blocks, driver: Driver) -> None:
    """In torch's default mode of captures, a query of any event by any thread would end the capture.
    The engine makes no such query.
    """
    stream = driver.stream()
    pinned = BlockStore.host(8, like=device.store)
    pageable = BlockStore.host(8, like=device.store, pinned=False)
    transfer = engine.submit(device.store, pinned, [(1, 3)], after=None)
    assert driver.call("cuStreamBeginCapture_v2", stream, GLOBAL) == 0
    engine.copy(device.store, device.store, [(5, 6)], stream=stream)
    transfer.wait()
    engine.poll()
    engine.submit(device.store, pageable, [(2, 3)], after=None).wait()
    for method in ("kernel", "batch", "staged", "memcpy"):
        engine.submit(device.store, pinned, [(2, 4)], after=None, method=method).wait()
    with TransferEngine("cuda:0") as other:
        other.submit(pinned, device.store, [(4, 7)], after=None).wait()
    result, graph = driver.end_capture(stream)
    assert (result, bool(graph)) == (0, True)
    assert device.block(5) != device.block(6)


@pytest.mark.parametrize("stream", [None, 0, 1])
def test_the_legacy_stream_takes_no_batch(
    stream: int | None, engine: TransferEngine, device: Blocks, fake: FakeCuda
) -> None:
    pinned = BlockStore.host(8, like=device.store)
    batches = fake.count("batches")
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="legacy default stream"):
        engine.copy(device.store, pinned, [(1, 3)], stream=stream, method="batch")
    for method in ("auto", "staged", "kernel", "memcpy"):
        engine.copy(device.store, pinned, [(1, 3)], stream=stream, method=method)
        assert pinned.read_block(3) == device.block(1)
        pinned.write_block(3, bytes(1024))
    assert fake.count("batches") == batches


@pytest.fixture(scope="module")
def huge() -> Iterator[tuple[int, mmap.mmap]]:
    """Reserves 10 GiB of address space. Only pages that are written take memory."""
    memory = mmap.mmap(-1, 10 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    anchor = ctypes.c_char.from_buffer(memory)
    yield ctypes.addressof(anchor), memory
    del anchor
    memory.close()


@pytest.mark.parametrize("where", ["cpu", "cuda:0"])
@pytest.mark.parametrize("blocks", [[0, 1], [2047, 2048], [4095, 4097], [9000, 5000]])
def test_offsets_beyond_32_bits(
    where: str, blocks: list[int], huge: tuple[int, mmap.mmap], fake: FakeCuda
) -> None:
    """Blocks are 1 MiB apart, and their pieces have 96 bytes. The bytes before and after the pieces
    must not change (vllm#50427, #52109, lmcache#2762).
    """
    address, memory = huge
    piece, stride = 96, 1 << 20
    store = BlockStore.from_regions([(address + 64, stride, piece)], 10_000, device=where, keep_alive=memory)
    source, target = blocks
    for block in (source, target):
        at = block * stride
        memory[at : at + 224] = bytes([block % 251 + 1]) * 224
    with TransferEngine(where) as engine:
        engine.copy(store, store, [(source, target)], stream=None)
        fake.run_all()
    at, mark = target * stride, bytes([target % 251 + 1])
    assert memory[at : at + 64] == mark * 64
    assert memory[at + 64 : at + 160] == bytes([source % 251 + 1]) * 96
    assert memory[at + 160 : at + 224] == mark * 64
