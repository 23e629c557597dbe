"""Measures kvpool's interface of vLLM v0, per block. The work is that of the published costs of vLLM's
own block allocator (the ancestor).

If the ancestor is importable (vLLM 0.8.5 or another version that still has ``vllm.core``), the decode
append of its block table runs, too. Compare medians only within one run.

The pool has 20,000 blocks of 16 tokens, and 512 of them are used at a time. The ancestor's published
times in ns per block are: cold allocate with hash 10,384, hit of blocks in use 3,435, hit of freed
blocks 4,137, free 2,605, cold under eviction 14,775. In ns per call they are: decode append 4,114,
get_physical_block_id 282,000.
"""

from __future__ import annotations

import importlib
import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.lineage.v0.block.prefix_caching_block import PrefixCachingBlockAllocator

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

BLOCKS, POOL, SIZE = 512, 20_000, 16
RANDOM = random.Random(7)


def chunks(blocks: int = BLOCKS) -> list[list[int]]:
    return [[RANDOM.randrange(50_000) for _ in range(SIZE)] for _ in range(blocks)]


def full(allocator: PrefixCachingBlockAllocator) -> None:
    """Fills the pool with blocks that are cached and have no references."""
    for _ in range(POOL // BLOCKS + 1):
        held = allocator.allocate_immutable_blocks(None, chunks())
        allocator.mark_blocks_as_computed([])
        for block in reversed(held):
            allocator.free(block)


def test_v0_allocate_cold_512(benchmark: BenchmarkFixture) -> None:
    allocator = PrefixCachingBlockAllocator(POOL, SIZE)
    held: list[Any] = []

    def fresh() -> tuple[tuple[Any], dict[str, Any]]:
        for block in reversed(held):
            allocator.free(block)
        held.clear()
        return (chunks(),), {}

    benchmark.pedantic(
        lambda c: held.extend(allocator.allocate_immutable_blocks(None, c)), setup=fresh, rounds=50
    )


def test_v0_allocate_evicting_512(benchmark: BenchmarkFixture) -> None:
    allocator = PrefixCachingBlockAllocator(POOL, SIZE)
    full(allocator)
    held: list[Any] = []

    def fresh() -> tuple[tuple[Any], dict[str, Any]]:
        allocator.mark_blocks_as_computed([])
        for block in reversed(held):
            allocator.free(block)
        held.clear()
        return (chunks(),), {}

    benchmark.pedantic(
        lambda c: held.extend(allocator.allocate_immutable_blocks(None, c)), setup=fresh, rounds=50
    )


def hits(benchmark: BenchmarkFixture, in_use: bool) -> None:
    allocator = PrefixCachingBlockAllocator(POOL, SIZE)
    prompt = chunks()
    first = allocator.allocate_immutable_blocks(None, prompt)
    allocator.mark_blocks_as_computed([])
    if not in_use:
        for block in reversed(first):
            allocator.free(block)
    held: list[Any] = []

    def again() -> tuple[tuple[()], dict[str, Any]]:
        for block in reversed(held):
            allocator.free(block)
        held.clear()
        return (), {}

    benchmark.pedantic(
        lambda: held.extend(allocator.allocate_immutable_blocks(None, prompt)), setup=again, rounds=50
    )


def test_v0_hit_in_use_512(benchmark: BenchmarkFixture) -> None:
    hits(benchmark, in_use=True)


def test_v0_hit_freed_512(benchmark: BenchmarkFixture) -> None:
    hits(benchmark, in_use=False)


def test_v0_free_512(benchmark: BenchmarkFixture) -> None:
    allocator = PrefixCachingBlockAllocator(POOL, SIZE)
    prompt = chunks()

    def held() -> tuple[tuple[Any], dict[str, Any]]:
        return (allocator.allocate_immutable_blocks(None, prompt)[::-1],), {}

    def free(blocks: list[Any]) -> None:
        for block in blocks:
            allocator.free(block)

    benchmark.pedantic(free, setup=held, rounds=50)


def test_v0_decode_append(benchmark: BenchmarkFixture) -> None:
    allocator = PrefixCachingBlockAllocator(POOL, SIZE)
    tokens = itertools.cycle(range(50_000))
    state: list[Any] = [allocator.allocate_mutable_block(None)]

    def append() -> None:
        if state[-1].is_full:
            state.append(allocator.allocate_mutable_block(state[-1]))
        state[-1].append_token_ids([next(tokens)])

    benchmark.pedantic(append, rounds=20_000)


def test_v0_get_physical_block_id(benchmark: BenchmarkFixture) -> None:
    allocator = PrefixCachingBlockAllocator(POOL, SIZE)
    benchmark(allocator.get_physical_block_id, POOL // 2)


SEQUENCES, STEPS = 64, 64


def block_modules(whose: str) -> tuple[Any, Any]:
    """Returns the classes ``BlockTable`` and ``CpuGpuBlockAllocator``, from kvpool's interface or from
    the ancestor.
    """
    root = {"face": "kvpool.lineage.v0", "ancestor": "vllm.core"}[whose]
    try:
        table = importlib.import_module(f"{root}.block.block_table")
        allocator = importlib.import_module(f"{root}.block.cpu_gpu_block_allocator")
    except ImportError as error:
        if whose == "face":
            raise
        pytest.skip(
            "NOT COMPARED with the ancestor: this environment has no vLLM with vllm.core, "
            f"such as 0.8.5: {error}"
        )
    return table.BlockTable, allocator.CpuGpuBlockAllocator


@pytest.mark.parametrize("whose", ["face", "ancestor"])
@pytest.mark.parametrize("kind", ["naive", "prefix_caching"])
def test_v0_block_table_decode(benchmark: BenchmarkFixture, kind: str, whose: str) -> None:
    """Appends a token to each of 64 sequences, 64 times, so a round is 4,096 tokens."""
    table_of, allocators = block_modules(whose)

    def start() -> tuple[tuple[Any, ...], dict[str, Any]]:
        allocator = allocators.create(kind, num_gpu_blocks=16 * SEQUENCES, num_cpu_blocks=16, block_size=SIZE)
        tables = [table_of(block_size=SIZE, block_allocator=allocator) for _ in range(SEQUENCES)]
        for table in tables:
            table.allocate([RANDOM.randrange(50_000) for _ in range(100)])
        allocator.mark_blocks_as_computed([])
        return (tables, [[[RANDOM.randrange(50_000)] for _ in tables] for _ in range(STEPS)]), {}

    def decode(tables: list[Any], steps: list[list[list[int]]]) -> None:
        for tokens in steps:
            for table, token in zip(tables, tokens, strict=True):
                table.append_token_ids(token)

    benchmark.pedantic(decode, setup=start, rounds=15)
