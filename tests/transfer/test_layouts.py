"""Tests on random layouts that every method of copying gives the same result: kernel, copy engine,
staging and the CPU twin.

The fake driver runs the kernels of cuda/block_copy.cu. It checks every access against the registered
memory, and reports racing copies. The expected result is computed with torch's indexing. The tests
compare all memory, including the bytes between and around blocks.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch

from kvpool.transfer import BlockStore, TransferEngine
from tests.transfer.memory import DTYPES, LAYOUTS, MORE, Blocks, random_pairs, random_shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvpool._core.transfer import Method
    from tests.transfer.fake_cuda.driver import FakeCuda

#: Number of cases for each direction. Every layout occurs with every dtype and with every method.
CASES = 8 * 3 * 5 * MORE
METHODS: tuple[Method, ...] = ("auto", "kernel", "batch", "staged", "memcpy")


@pytest.fixture
def engine(fake: FakeCuda) -> Iterator[TransferEngine]:
    fake.set(strict=1, check_races=1)
    # Use small staging buffers, so that most staged copies need several of them.
    with TransferEngine("cuda:0", staging_bytes=4096) as engine:
        yield engine
    fake.set(strict=0, check_races=0)


@pytest.fixture(scope="module")
def twin() -> Iterator[TransferEngine]:
    with TransferEngine(threads=2) as engine:
        yield engine


class Case:
    """Blocks with a random layout on the device, equal blocks on the CPU, and a host pool for each."""

    def __init__(self, seed: int, fake: FakeCuda) -> None:
        rng = self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self.layout = LAYOUTS[seed % len(LAYOUTS)]
        dtype = DTYPES[(seed // len(LAYOUTS)) % len(DTYPES)]
        self.method = METHODS[seed % len(METHODS)]
        shape = random_shape(rng)
        blocks, self.host_blocks = rng.choice((1, 4, 9, 40)), rng.choice((1, 5, 33))
        self.plain = Blocks(self.layout.make(shape, blocks, dtype), self.layout.block_dim)
        self.device = self.plain.copy(fake=fake)
        self.oracle = self.plain.copy()
        self.hint = f"seed {seed}: {self.layout.name}, {dtype}, {shape}, {blocks} blocks, {self.method}"

    def host(self, like: BlockStore) -> BlockStore:
        store = BlockStore.host(self.host_blocks, like=like)
        rng = random.Random(7)
        for block in range(store.num_blocks):
            store.write_block(block, rng.randbytes(store.bytes_per_block))
        return store

    def content(self, store: BlockStore) -> list[bytes]:
        return [store.read_block(block) for block in range(store.num_blocks)]


@pytest.mark.longer
@pytest.mark.parametrize("part", range(8))
def test_to_the_host(part: int, fake: FakeCuda, engine: TransferEngine, twin: TransferEngine) -> None:
    for seed in range(part, CASES, 8):
        case = Case(seed, fake)
        pinned, plain = case.host(case.device.store), case.host(case.plain.store)
        assert pinned.pinned
        assert not plain.pinned
        expected = case.content(plain)
        pairs = random_pairs(case.rng, case.device.store.num_blocks, case.host_blocks)
        engine.submit(case.device.store, pinned, pairs, after=None, method=case.method).wait()
        twin.submit(case.plain.store, plain, torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)).wait()
        for src, dst in pairs:
            expected[dst] = case.oracle.block(src)
        assert case.content(pinned) == expected, case.hint
        assert case.content(plain) == expected, case.hint
        assert case.device.same(case.oracle), case.hint
        case.device.release()


@pytest.mark.longer
@pytest.mark.parametrize("part", range(8))
def test_to_the_device(part: int, fake: FakeCuda, engine: TransferEngine, twin: TransferEngine) -> None:
    for seed in range(part, CASES, 8):
        case = Case(seed, fake)
        pinned, plain = case.host(case.device.store), case.host(case.plain.store)
        pairs = random_pairs(case.rng, case.host_blocks, case.device.store.num_blocks)
        engine.submit(pinned, case.device.store, pairs, after=None, method=case.method).wait()
        twin.submit(plain, case.plain.store, pairs).wait()
        content = case.content(plain)
        # The copied blocks must equal their sources, and no other byte may have changed. The pool is
        # compared first, and then the twin.
        for src, dst in pairs:
            assert case.device.block(dst) == content[src], case.hint
        assert case.device.same(case.plain), case.hint
        case.plain.assign(case.oracle, [(dst, dst) for _, dst in pairs])
        assert case.plain.same(case.oracle), case.hint
        case.device.release()


@pytest.mark.longer
@pytest.mark.parametrize("part", range(8))
def test_within_the_device(part: int, fake: FakeCuda, engine: TransferEngine, twin: TransferEngine) -> None:
    methods: tuple[Method, ...] = ("auto", "kernel", "batch", "memcpy")
    for seed in range(part, CASES, 8):
        case = Case(seed, fake)
        method = methods[seed % len(methods)]
        other, plain_other, oracle = (case.plain.copy(fake=fake), case.plain.copy(), case.plain.copy())
        pairs = random_pairs(case.rng, case.device.store.num_blocks, other.store.num_blocks)
        engine.submit(case.device.store, other.store, pairs, after=None, method=method).wait()
        twin.copy(case.plain.store, plain_other.store, pairs)
        oracle.assign(case.oracle, pairs)
        assert other.same(oracle), case.hint
        assert plain_other.same(oracle), case.hint
        # The copy within the store only writes to blocks that it does not read.
        half = case.device.store.num_blocks // 2
        pairs = [(src, dst + half) for src, dst in random_pairs(case.rng, half, half)] if half else []
        engine.copy(
            case.device.store, case.device.store, pairs, stream=None, method="kernel" if seed % 2 else "auto"
        )
        fake.run_all()
        twin.copy(case.plain.store, case.plain.store, pairs)
        case.oracle.assign(case.oracle, pairs)
        assert case.device.same(case.oracle), case.hint
        assert case.plain.same(case.oracle), case.hint
        case.device.release()
        other.release()


@pytest.mark.parametrize("part", range(4))
def test_pageable_memory_goes_through_buffers(part: int, fake: FakeCuda, engine: TransferEngine) -> None:
    for seed in range(part, 96, 4):
        case = Case(seed, fake)
        pageable = case.plain.copy()  # scattered like the device's blocks
        pairs = random_pairs(case.rng, case.device.store.num_blocks, pageable.store.num_blocks)
        for tensor in case.device.tensors:
            tensor.view(torch.uint8).random_(0, 256)
        out = engine.submit(case.device.store, pageable.store, pairs, after=None)
        assert out.method == "staged" or not pairs
        out.wait()
        case.oracle.assign(case.device, pairs)
        assert pageable.same(case.oracle), case.hint
        back = case.device.copy()
        pairs = random_pairs(case.rng, pageable.store.num_blocks, case.device.store.num_blocks)
        engine.submit(pageable.store, case.device.store, pairs, after=None).wait()
        back.assign(pageable, pairs)
        assert case.device.same(back), case.hint
        case.device.release()


@pytest.mark.longer
def test_a_part_of_the_regions(fake: FakeCuda, engine: TransferEngine, twin: TransferEngine) -> None:
    """Copies one layer at a time. The other layers of the host's block must remain unchanged."""
    for seed in range(48 * MORE):
        case = Case(seed, fake)
        count = case.device.store.num_regions
        first = case.rng.randrange(count)
        regions = (first, case.rng.randint(first + 1, count))
        pinned, plain = case.host(case.device.store), case.host(case.plain.store)
        pairs = random_pairs(case.rng, case.device.store.num_blocks, case.host_blocks)
        method = METHODS[seed % len(METHODS)]
        engine.submit(case.device.store, pinned, pairs, after=None, method=method, regions=regions).wait()
        twin.submit(case.plain.store, plain, pairs, regions=regions).wait()
        assert case.content(pinned) == case.content(plain), (case.hint, regions)
        back = [(dst, src) for src, dst in pairs]
        for store in (pinned, plain):
            for block in range(store.num_blocks):
                store.write_block(block, bytes(reversed(store.read_block(block))))
        engine.submit(pinned, case.device.store, back, after=None, method=method, regions=regions).wait()
        twin.submit(plain, case.plain.store, back, regions=regions).wait()
        assert case.device.same(case.plain), (case.hint, regions)
        case.device.release()


def test_more_pairs_than_one_launch_takes(fake: FakeCuda, engine: TransferEngine) -> None:
    plain = Blocks([torch.randint(0, 256, (2000, 24), dtype=torch.uint8)], 0)
    device, target = plain.copy(fake=fake), plain.copy(fake=fake)
    rng = random.Random(1)
    pairs = list(zip(rng.sample(range(2000), 1500), rng.sample(range(2000), 1500), strict=True))
    before = fake.count("launches")
    engine.submit(device.store, target.store, pairs, after=None, method="kernel").wait()
    assert fake.count("launches") - before == 4  # of 480 pairs each
    oracle = plain.copy()
    oracle.assign(plain, pairs)
    assert target.same(oracle)
    device.release()
    target.release()


def test_neighbours_are_one_descriptor(fake: FakeCuda, engine: TransferEngine) -> None:
    """Ascending and descending runs are merged into larger copies. The result equals that of copies
    that are not merged (vllm#56110).
    """
    plain = Blocks([torch.randint(0, 256, (64, 512), dtype=torch.uint8)], 0)
    for pairs in ([(i, i + 8) for i in range(40)], [(i, i + 8) for i in reversed(range(40))]):
        device = plain.copy(fake=fake)
        pinned = BlockStore.host(64, like=device.store)
        before = fake.count("descriptors")
        engine.submit(device.store, pinned, pairs, after=None, method="batch").wait()
        assert fake.count("descriptors") - before == 1
        assert [pinned.read_block(dst) for _, dst in pairs] == [plain.block(src) for src, _ in pairs]
        device.release()


def test_no_copy_crosses_the_border_of_two_registrations(fake: FakeCuda, engine: TransferEngine) -> None:
    """The driver refuses a copy that crosses the border between two registrations. So the engine
    divides runs there.
    """
    plain = Blocks([torch.randint(0, 256, (64, 512), dtype=torch.uint8)], 0)
    device = plain.copy(fake=fake)
    fake.set(register_limit=8192)
    pinned = BlockStore.host(64, like=device.store, pinned=True, registration_limit=8192)
    fake.set(register_limit=0)
    pairs = [(i, i) for i in range(1, 63)]
    for method in ("batch", "memcpy", "staged"):
        engine.submit(device.store, pinned, pairs, after=None, method=method).wait()
        assert all(pinned.read_block(i) == plain.block(i) for i, _ in pairs), method
        for i, _ in pairs:
            pinned.write_block(i, random.Random(i).randbytes(512))
        engine.submit(pinned, device.store, pairs, after=None, method=method).wait()
        assert all(device.block(i) == pinned.read_block(i) for i, _ in pairs), method
        device.assign(plain, pairs)
    device.release()
