"""Measures copies by the CPU, and compares them with torch indexing and a plain loop of memcpy. Also
measures the time of a call before it begins to copy.

64 MiB are copied from adjacent blocks to blocks in random order, so no way can merge adjacent blocks.
Every way copies the same bytes. ``extra_info`` has the GB/s of the median. Targets: 3 times the rate of
``index_copy_`` at 32 KiB, at most 20 % slower than the plain loop on one thread, and 5 us for a call by
handle.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import kvpool.transfer.ops  # noqa: F401 - registers the ops
from kvpool.transfer import BlockStore, TransferEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

PAYLOAD = 64 << 20
PIECES = {"8 KiB": 8 << 10, "32 KiB": 32 << 10, "2 MiB": 2 << 20}


class Copy:
    """The bytes to copy, and every way to copy them."""

    def __init__(self, piece: int) -> None:
        blocks = PAYLOAD // piece
        rng = np.random.default_rng(0)
        self.src = torch.from_numpy(rng.integers(0, 256, (blocks, piece), dtype=np.uint8))
        self.dst = torch.zeros_like(self.src)
        self.to = torch.from_numpy(rng.permutation(blocks))
        self.mapping = torch.stack([torch.arange(blocks), self.to], 1)
        self.stores = [BlockStore.from_tensors([tensor]) for tensor in (self.src, self.dst)]

    def kvpool(self, threads: int) -> Callable[[], None]:
        engine, (source, target) = TransferEngine(threads=threads), self.stores
        return lambda: engine.copy(source, target, self.mapping)

    def index_copy(self, dtype: torch.dtype) -> Callable[[], object]:
        src, dst, to = self.src.view(dtype), self.dst.view(dtype), self.to
        return lambda: dst.index_copy_(0, to, src)

    def loop_in_c(self) -> Callable[[], None]:
        """Copies with numpy's assignment of opaque items: one memcpy per piece, in a loop in C."""
        item = np.dtype((np.void, self.src.shape[1]))
        src, dst = self.src.numpy().view(item)[:, 0], self.dst.numpy().view(item)[:, 0]
        to = self.to.numpy()

        def run() -> None:
            dst[to] = src

        return run

    def loop_in_python(self) -> Callable[[], None]:
        """Copies each piece of a block with one slice assignment."""
        src, dst, to = self.src.numpy(), self.dst.numpy(), self.to.tolist()

        def run() -> None:
            for at, block in enumerate(to):
                dst[block] = src[at]

        return run

    def memmove(self) -> Callable[[], object]:
        """Copies all bytes at once. This is the memory bandwidth of one thread."""
        dst, src = self.dst.data_ptr(), self.src.data_ptr()
        return lambda: ctypes.memmove(dst, src, PAYLOAD)


WAYS: dict[str, Callable[[Copy, int], Callable[[], Any]]] = {
    "kvpool": lambda copy, threads: copy.kvpool(threads),
    "index_copy_ of uint8": lambda copy, _: copy.index_copy(torch.uint8),
    "index_copy_ of int64": lambda copy, _: copy.index_copy(torch.int64),
    "memcpy per piece, loop in C": lambda copy, _: copy.loop_in_c(),
    "memcpy per piece, loop in Python": lambda copy, _: copy.loop_in_python(),
    "one memmove": lambda copy, _: copy.memmove(),
}
#: Every way of copying, with one and two threads. Ways with only one thread are measured once.
CASES = [
    (way, threads)
    for way in WAYS
    for threads in (1, 2)
    if threads == 1 or way.startswith(("kvpool", "index"))
]


@pytest.fixture(scope="module", params=PIECES)
def copy(request: pytest.FixtureRequest) -> Copy:
    return Copy(PIECES[request.param])


@pytest.fixture
def _threads_of_torch(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.getfixturevalue("threads"))
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads_of_torch")
@pytest.mark.parametrize(("way", "threads"), CASES)
def test_copy_64_mib(benchmark: BenchmarkFixture, copy: Copy, way: str, threads: int) -> None:
    run = WAYS[way](copy, threads)
    copy.dst.zero_()
    run()
    assert (
        torch.equal(copy.dst, copy.src) if way == "one memmove" else torch.equal(copy.dst[copy.to], copy.src)
    )
    rounds = 7 if way == "index_copy_ of uint8" else 25
    benchmark.group = f"64 MiB in pieces of {copy.src.shape[1] >> 10} KiB"
    benchmark.pedantic(run, rounds=rounds, warmup_rounds=2)
    if benchmark.stats:
        benchmark.extra_info["GB/s"] = round(PAYLOAD / benchmark.stats.stats.median / 1e9, 2)


# --- Calls ---

SMALL = 64


@pytest.fixture(scope="module")
def small() -> list[BlockStore]:
    """Returns two stores with blocks of one piece of 64 bytes each."""
    return [BlockStore.from_tensors([torch.zeros(1024, SMALL, dtype=torch.uint8)]) for _ in range(2)]


def scattered(pairs: int) -> torch.Tensor:
    return torch.tensor([(3 * at, 1023 - 5 * at) for at in range(pairs)], dtype=torch.int64).reshape(-1, 2)


def call(benchmark: BenchmarkFixture, run: Callable[[], object], iterations: int = 50) -> None:
    benchmark.group = "calls"
    benchmark.pedantic(run, rounds=300, iterations=iterations, warmup_rounds=10)


@pytest.mark.parametrize("pairs", [0, 1, 16])
def test_call_copy_blocks_by_handle(benchmark: BenchmarkFixture, small: list[BlockStore], pairs: int) -> None:
    op, (source, target) = torch.ops.kvpool.copy_blocks_by_handle.default, (store.handle for store in small)
    mapping = scattered(pairs)
    call(benchmark, lambda: op(source, target, mapping))


@pytest.mark.parametrize("pairs", [1, 16])
@pytest.mark.parametrize("form", ["tensor", "list"])
def test_call_copy(benchmark: BenchmarkFixture, small: list[BlockStore], form: str, pairs: int) -> None:
    engine, (source, target) = TransferEngine(threads=1), small
    mapping: Any = scattered(pairs) if form == "tensor" else [tuple(row) for row in scattered(pairs).tolist()]
    call(benchmark, lambda: engine.copy(source, target, mapping))


@pytest.mark.parametrize("tensors", [1, 32])
def test_call_copy_blocks(benchmark: BenchmarkFixture, tensors: int) -> None:
    """Measures copies in lists of K and V per layer with 16 pairs of blocks, as an engine makes them
    for copy-on-write.
    """
    op = torch.ops.kvpool.copy_blocks.default
    src, dst = ([torch.zeros(2, 1024, SMALL, dtype=torch.uint8) for _ in range(tensors)] for _ in range(2))
    mapping = scattered(16)
    call(benchmark, lambda: op(src, dst, mapping, 1))


def test_call_swap_blocks_of_vllm(benchmark: BenchmarkFixture) -> None:
    op = torch.ops.kvpool.swap_blocks.vllm
    src, dst = (torch.zeros(1024, SMALL, dtype=torch.uint8) for _ in range(2))
    mapping = scattered(16)
    call(benchmark, lambda: op(src, dst, SMALL, mapping))


def test_call_submit_and_wait(benchmark: BenchmarkFixture, small: list[BlockStore]) -> None:
    """Measures the time to submit work to the engine's thread and to wait for its result."""
    (source, target), mapping = small, scattered(16)
    with TransferEngine(threads=1) as engine:
        call(benchmark, lambda: engine.submit(source, target, mapping).wait(), 20)


def test_call_submit(benchmark: BenchmarkFixture, small: list[BlockStore]) -> None:
    """Measures the time of the call that submits a copy to the engine's thread, which makes the copy
    meanwhile.
    """
    (source, target), mapping = small, scattered(16)
    with TransferEngine(threads=1) as engine:

        def poll() -> None:
            engine.submit(source, target, []).wait()
            engine.poll()

        benchmark.group = "calls"
        benchmark.pedantic(
            lambda: engine.submit(source, target, mapping), setup=poll, rounds=3000, warmup_rounds=100
        )
