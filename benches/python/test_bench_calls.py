"""Measures calls from Python: the time that a scheduler spends for a step and for a request, including
the crossing from Python to Rust.

Budgets (see benches/results): a decode append of 256 requests in 25 us, a cold 32k-token prompt in 0.4
ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvpool

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from kvpool._core import HashAlgorithm

BATCH = 256
PROMPT = 32_768


def running(ids: list[Any]) -> kvpool.CacheManager:
    """Returns a manager with requests of slightly different lengths, so that each step crosses some
    block boundaries.
    """
    manager = kvpool.CacheManager(num_blocks=1 << 18)
    for number, request in enumerate(ids):
        manager.admit(request, np.arange(512 + number % 16, dtype=np.int32) + 1000 * number)
    return manager


@pytest.mark.parametrize("ids", ["str", "int64 buffer"])
@pytest.mark.parametrize("commit", [False, True], ids=["append", "commit and append"])
def test_decode_append_256(benchmark: BenchmarkFixture, ids: str, commit: bool) -> None:
    numbers = np.arange(BATCH, dtype=np.int64)
    names: list[Any] = [f"request-{i:06}" for i in range(BATCH)] if ids == "str" else numbers.tolist()
    manager = running(names)
    batch: Any = names if ids == "str" else numbers
    tokens = np.full(BATCH, 7, dtype=np.int32)
    benchmark.pedantic(lambda: manager.append(batch, tokens, commit=commit), rounds=3000, warmup_rounds=200)


@pytest.mark.parametrize("algorithm", ["sha256", "blake3", "vllm-sha256"])
def test_prompt_32k_cold(benchmark: BenchmarkFixture, algorithm: HashAlgorithm) -> None:
    """Hashes, looks up, allocates and registers new tokens in an empty pool. All memory of the pool was
    used before.
    """
    manager = kvpool.CacheManager(num_blocks=1 << 16, algorithm=algorithm)
    for number in range(31):
        manager.admit(number, np.arange(PROMPT, dtype=np.int32) + (number << 15))
        manager.commit(number, PROMPT)
    for number in range(31):
        manager.release(number)
    manager.reset()
    salts = iter(range(1, 1000))

    def prompt() -> tuple[tuple[Any], dict[str, Any]]:
        if 0 in manager:
            manager.release(0)
            manager.reset()
        return (np.arange(PROMPT, dtype=np.int32) ^ (next(salts) << 15),), {}

    def cold(tokens: np.ndarray[Any, Any]) -> None:
        manager.admit(0, tokens)
        manager.commit(0, PROMPT)

    benchmark.pedantic(cold, setup=prompt, rounds=200, warmup_rounds=10)


@pytest.mark.parametrize("tokens", [PROMPT, 100_000])
@pytest.mark.parametrize("keep_tokens", [True, False])
def test_prompt_cached(benchmark: BenchmarkFixture, tokens: int, keep_tokens: bool) -> None:
    """Looks up, acquires and releases a prompt that is already cached. Without ``keep_tokens``, the manager
    also hashes the prompt.
    """
    manager = kvpool.CacheManager(num_blocks=1 << 16, keep_tokens=keep_tokens)
    prompt = np.arange(tokens, dtype=np.int32)
    manager.admit("first", prompt)
    manager.commit("first", tokens)

    def again() -> None:
        manager.admit("again", prompt)
        manager.release("again")

    benchmark.pedantic(again, rounds=200, warmup_rounds=10)


def test_prompt_32k_cached_prepared(benchmark: BenchmarkFixture) -> None:
    """Measures the part of an admission that runs in the scheduler's thread. The prompt was hashed
    before, possibly on another thread.
    """
    manager = kvpool.CacheManager(num_blocks=1 << 16)
    prompt = manager.prepare(np.arange(PROMPT, dtype=np.int32))
    manager.admit("first", prompt)
    manager.commit("first", PROMPT)

    def again() -> None:
        manager.admit("again", prompt)
        manager.release("again")

    benchmark.pedantic(again, rounds=500, warmup_rounds=10)


@pytest.mark.parametrize("blocks", [1, 16, 512])
def test_pool_allocate_release(benchmark: BenchmarkFixture, blocks: int) -> None:
    pool = kvpool.BlockPool(num_blocks=1 << 16)
    out = np.zeros(blocks, dtype=np.int32)

    def both() -> None:
        pool.allocate(blocks, out=out)
        pool.release(out)

    benchmark.pedantic(both, rounds=5000, warmup_rounds=100)


def test_stats(benchmark: BenchmarkFixture) -> None:
    manager = kvpool.CacheManager(num_blocks=1 << 16)
    benchmark.pedantic(manager.stats, rounds=5000, warmup_rounds=100)


def sampled(algorithm: HashAlgorithm = "sha256") -> kvpool.CacheManager:
    """Returns a manager with one computed prompt. Its last block is partly filled, so that every sample
    copies it.
    """
    manager = kvpool.CacheManager(num_blocks=1 << 14, algorithm=algorithm)
    manager.admit(0, np.arange(PROMPT - 8, dtype=np.int32))
    manager.commit(0, PROMPT - 8)
    return manager


def test_parallel_sampling_8x32k(benchmark: BenchmarkFixture) -> None:
    """Runs eight samples of one prompt: fork, 64 decode steps with copy-on-write, and the end of all
    eight.
    """
    ids = np.arange(8, dtype=np.int64)
    tokens = np.arange(8, dtype=np.int32)

    def sample(manager: kvpool.CacheManager) -> None:
        for child in range(1, 8):
            manager.fork(0, child)
        for _ in range(64):
            manager.append(ids, tokens, commit=True)
            manager.take_plan()
        for request in range(8):
            manager.release(request)

    benchmark.pedantic(sample, setup=lambda: ((sampled(),), {}), rounds=100, warmup_rounds=5)


def test_swap_out_plan_4096(benchmark: BenchmarkFixture) -> None:
    """Swaps out a request of 4,096 blocks: allocates destination blocks, plans the copies, and takes
    the plan.
    """
    manager = kvpool.CacheManager(num_blocks=1 << 13, host_blocks=1 << 13)
    manager.admit(0, np.arange(4096 * 16, dtype=np.int32))
    manager.commit(0, 4096 * 16)
    begun: list[int] = []

    def plan() -> None:
        begun.append(manager.swaps.begin_out([0]))
        manager.take_plan()

    def back() -> tuple[tuple[()], dict[str, Any]]:
        if begun:
            manager.swaps.abort(begun.pop())
        return (), {}

    benchmark.pedantic(plan, setup=back, rounds=200, warmup_rounds=10)
