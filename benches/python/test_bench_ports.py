"""Measures steps of schedulers with 256 requests, and compares the ports of examples/ports with plain
Python managers of the same design.

A step is one call for the batch. Costs that occur once per request (admission, end, fork) are not part
of a step unless the docstring says so. Budgets: a step with drafts 40 us. For a 32,768-token prompt:
free 0.1 ms, cold allocate 0.15 ms, match 1 ms, including its hash. Each benchmark has p50 and p99 in
its ``extra_info``, and ``make bench-report`` writes both.
"""

from __future__ import annotations

import itertools
import sys
from array import array
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvpool

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.ports.ids_and_trie import IdsAndTrie, PlainIdsAndTrie
from examples.ports.index_only import IndexOnly
from examples.ports.radix_cache import PlainRadixCache, RadixCache
from examples.ports.sequence_manager import BlockManager, PlainBlockManager, Sequence

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchmark.fixture import BenchmarkFixture

BATCH, SIZE, PROMPT = 256, 16, 32_768
ROUNDS = 1000
RANDOM = np.random.default_rng(7)
#: Numbers for the start of prompts, so that no two prompts are equal.
FRESH = itertools.count(1)


def measure(
    benchmark: BenchmarkFixture, step: Callable[..., Any], setup: Any = None, rounds: int = ROUNDS
) -> None:
    """Runs a benchmark, and records p50 and p99 in microseconds."""
    benchmark.pedantic(step, setup=setup, rounds=rounds, warmup_rounds=max(rounds // 10, 1))
    if benchmark.stats is None:  # with --benchmark-disable
        return
    times = sorted(benchmark.stats.stats.data)
    for share in (50, 99):
        benchmark.extra_info[f"p{share}_us"] = round(
            1e6 * times[min(len(times) - 1, len(times) * share // 100)], 2
        )


def prompt(tokens: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Returns new tokens."""
    return np.arange(tokens, dtype=np.int32) ^ (next(FRESH) << 16)


def decoding(requests: int = BATCH, first: int = 0) -> kvpool.CacheManager:
    """Returns a manager with requests of slightly different lengths, so that each step crosses some
    block boundaries.
    """
    manager = kvpool.CacheManager(1 << 18)
    for number in range(requests):
        manager.admit(first + number, prompt(512 + number % SIZE))
    return manager


IDS = np.arange(BATCH, dtype=np.int64)
ONE_EACH = np.full(BATCH, 7, dtype=np.int32)


def changes() -> np.ndarray[Any, np.dtype[np.int32]]:
    """Returns a buffer for the changes of block tables in a step."""
    return np.zeros((3, 20_000), dtype=np.int32)


# The next benchmarks measure steps of schedulers.


@pytest.mark.benchmark(group="step: decode")
def test_step_decode_256(benchmark: BenchmarkFixture) -> None:
    manager, out = decoding(), changes()
    measure(benchmark, lambda: manager.append_ragged(IDS, ONE_EACH, commit=True, out=out))


@pytest.mark.benchmark(group="step: decode")
def test_step_decode_256_plain(benchmark: BenchmarkFixture) -> None:
    """Measures a decode step of the plain manager over sequence objects, with one call per sequence."""
    manager = PlainBlockManager(1 << 18, SIZE)
    seqs = [Sequence(number, prompt(512 + number % SIZE).tolist()) for number in range(BATCH)]
    for seq in seqs:
        manager.allocate(seq)

    def sampled() -> None:
        for seq in seqs:
            seq.tokens.append(7)

    def step() -> None:
        for seq in seqs:
            if manager.can_append(seq):
                manager.may_append(seq)

    measure(benchmark, step, setup=sampled)


@pytest.mark.benchmark(group="step: chunks")
def test_step_chunked_prefill_256(benchmark: BenchmarkFixture) -> None:
    """Measures a step in which 248 requests decode and 8 prompts of 32k compute 512 tokens each.
    Prompts are admitted and released between the steps.
    """
    prefills, chunk = 8, 512
    manager, out = decoding(BATCH - prefills), changes()
    ids = IDS.copy()
    lengths = np.array([manager.request(int(number)).tokens for number in ids[:-prefills]], dtype=np.int64)
    ends = np.zeros(prefills, dtype=np.int64)
    tokens = ONE_EACH[:-prefills]
    offsets = np.minimum(np.arange(BATCH + 1, dtype=np.int64), BATCH - prefills)
    keys = itertools.count(BATCH)

    def plan() -> tuple[tuple[Any, Any], dict[str, Any]]:
        for row in range(prefills):
            if ends[row] in (0, PROMPT):
                if ends[row]:
                    manager.release(int(ids[row - prefills]))
                ids[row - prefills] = next(keys)
                manager.admit(int(ids[row - prefills]), prompt(PROMPT), allocate_tokens=chunk)
                # The lengths of the prompts differ, so that they do not all end in the same step.
                ends[row] = chunk
        computed = np.concatenate([lengths, ends])
        lengths[:] += 1
        ends[:] += chunk
        return (computed, np.concatenate([lengths, ends])), {}

    def step(computed: Any, covered: Any) -> None:
        manager.append_ragged(ids, tokens, offsets, computed=computed, covered=covered, out=out)

    measure(benchmark, step, setup=plan)


def accepted() -> tuple[tuple[Any, Any], dict[str, Any]]:
    """Returns the tokens of a step: the accepted drafts (zero to three of three), and the sampled
    token.
    """
    offsets = np.concatenate([[0], np.cumsum(RANDOM.integers(1, 5, BATCH))]).astype(np.int64)
    return (np.full(offsets[-1], 7, dtype=np.int32), offsets), {}


@pytest.mark.benchmark(group="step: drafts")
def test_step_drafts_256(benchmark: BenchmarkFixture) -> None:
    """Measures a step with three drafts per request, of which some are rejected. Drafts use slots after
    the last token. The next step overwrites these slots.
    """
    manager, out = decoding(), changes()

    def step(tokens: Any, offsets: Any) -> None:
        manager.append_ragged(IDS, tokens, offsets, commit=True, lookahead=3, out=out)

    measure(benchmark, step, setup=accepted)


@pytest.mark.benchmark(group="step: drafts")
def test_step_drafts_truncated_256(benchmark: BenchmarkFixture) -> None:
    """Measures a step of an engine that appends its drafts as tokens and removes rejected ones, with
    two calls.
    """
    manager, out = decoding(), changes()
    offsets = np.arange(0, 4 * BATCH + 1, 4, dtype=np.int64)
    drafts = np.full(4 * BATCH, 7, dtype=np.int32)
    lengths = np.array([manager.request(int(number)).tokens for number in IDS], dtype=np.int64)

    def verified() -> tuple[tuple[Any], dict[str, Any]]:
        lengths[:] += RANDOM.integers(1, 5, BATCH)
        return (lengths.copy(),), {}

    def step(kept: Any) -> None:
        manager.append_ragged(IDS, drafts, offsets, out=out)
        manager.truncate(IDS, kept)

    measure(benchmark, step, setup=verified)


@pytest.mark.benchmark(group="step: drafts")
def test_step_drafts_256_plain(benchmark: BenchmarkFixture) -> None:
    """Measures a step with drafts of the plain manager over sequence objects, with one call per token."""
    manager = PlainBlockManager(1 << 18, SIZE)
    seqs = [Sequence(number, prompt(512 + number % SIZE).tolist()) for number in range(BATCH)]
    for seq in seqs:
        manager.allocate(seq)

    def step(_tokens: Any, offsets: Any) -> None:
        for seq, more in zip(seqs, np.diff(offsets).tolist(), strict=True):
            for _ in range(more):
                seq.tokens.append(7)
                manager.may_append(seq)

    measure(benchmark, step, setup=accepted, rounds=ROUNDS // 4)


@pytest.mark.benchmark(group="step: in flight")
def test_step_in_flight_256(benchmark: BenchmarkFixture) -> None:
    """Measures a step while two other steps are running: plans the step, and completes the oldest one.
    Between the steps, a request is released with a fence, and a new one is admitted.
    """
    manager, out, ids = decoding(), changes(), IDS.copy()
    steps, keys = itertools.count(), itertools.count(BATCH)

    def ended() -> tuple[tuple[int], dict[str, Any]]:
        number, key = next(steps), next(keys)
        row = number % BATCH
        manager.release(int(ids[row]), after_step=number)
        ids[row] = key
        manager.admit(key, prompt(512))
        return (number,), {}

    def step(number: int) -> None:
        manager.append_ragged(ids, ONE_EACH, commit=True, lookahead=2, out=out)
        manager.complete_step(max(number - 2, 0))

    measure(benchmark, step, setup=ended)


@pytest.mark.benchmark(group="step: external")
def test_step_external_256(benchmark: BenchmarkFixture) -> None:
    """Measures the decode side of disaggregated prefill and decode (P/D) with 4 calls. A request of
    2,048 tokens is admitted, one arrives with missing tokens, and one ends.
    """
    manager, out, ids = decoding(), changes(), IDS.copy()
    keys, rows, loading = itertools.count(BATCH), itertools.cycle(range(BATCH)), deque[int]()

    def arrives() -> tuple[tuple[Any, ...], dict[str, Any]]:
        while len(loading) < 8:
            loading.append(next(keys))
            manager.admit(loading[-1], prompt(2048), external_tokens=2047)
        return (next(rows), next(keys), manager.prepare(prompt(2048)), loading.popleft()), {}

    def step(row: int, new: int, prepared: Any, arrived: int) -> None:
        manager.admit(new, prepared, external_tokens=2047)
        manager.external_done(arrived, failed=[(1024, 1040)])
        manager.release(int(ids[row]))
        ids[row] = arrived
        loading.append(new)
        manager.append_ragged(ids, ONE_EACH, out=out)

    measure(benchmark, step, setup=arrives)


@pytest.mark.benchmark(group="step: beams")
def test_step_beams_256(benchmark: BenchmarkFixture) -> None:
    """Measures 32 beam searches with 8 beams each. In each step, two beams of each search end and two
    fork, with 4 calls for 64 forks and 64 releases.
    """
    manager = kvpool.CacheManager(1 << 18)
    searches = [[search * 1_000_000 + beam for beam in range(8)] for search in range(32)]
    for beams in searches:
        manager.admit(beams[0], prompt(509))
        for beam in beams[1:]:
            manager.fork(beams[0], beam)
    fresh = itertools.count(8)

    def step() -> None:
        parents, ended = [], []
        born = [beams[0] + next(fresh) for beams in searches for _ in range(2)]
        for nth, beams in enumerate(searches):
            parents += beams[:2]
            ended += beams[6:]
            beams[6:] = born[2 * nth : 2 * nth + 2]
        manager.release(ended)
        manager.fork(parents, born)
        manager.append([beam for beams in searches for beam in beams], ONE_EACH, commit=True)
        manager.take_plan()

    measure(benchmark, step, rounds=ROUNDS // 4)


@pytest.mark.benchmark(group="step: index only")
@pytest.mark.parametrize("kind", [PlainRadixCache, IndexOnly])
def test_step_index_only_256(benchmark: BenchmarkFixture, kind: type[Any]) -> None:
    """Measures 256 requests of an engine that allocates block ids itself. One request ends, and one of
    2,048 tokens is admitted, half of which is cached. The time includes its hash.

    A step without an admission or an end makes no call, because the engine takes ids from its own
    allocator.
    """
    cache, shared = kind(1 << 16, SIZE), prompt(1024)
    running: deque[tuple[Any, Any, int]] = deque()

    def ends() -> None:
        tokens, ids, start = running.popleft()
        cache.insert(tokens, ids, start)
        cache.release(ids)

    def comes(tokens: Any) -> None:
        matched = cache.lock(cache.match_prefix(tokens))
        ids = np.concatenate([matched, cache.allocate(2048 // SIZE - len(matched))])
        running.append((tokens, ids, len(matched)))

    def step(tokens: Any) -> None:
        ends()
        comes(tokens)

    def another() -> tuple[tuple[Any], dict[str, Any]]:
        return (array("i", np.concatenate([shared, prompt(1024)]).tolist()),), {}

    for _ in range(BATCH):
        comes(another()[0][0])
    measure(benchmark, step, setup=another, rounds=ROUNDS // 4)


# The next benchmarks measure the ports of examples/ports.

TRIES = pytest.mark.parametrize("kind", [PlainIdsAndTrie, IdsAndTrie])
POOL = 1 << 14


def tokens_32k() -> array[int]:
    """Returns a prompt in two forms: a sequence of ints, and a buffer. Each of the two managers that
    are compared accepts one of them.
    """
    return array("i", prompt(PROMPT).tolist())


@pytest.mark.benchmark(group="32k prompt: cold allocate")
@TRIES
def test_port_allocate_32k(benchmark: BenchmarkFixture, kind: type[Any]) -> None:
    """Measures the allocation of 2,048 ids. It needs no hash, because the blocks are registered when
    the prompt is computed.
    """
    cache = kind(POOL, SIZE)
    held: list[Any] = []

    def give_back() -> None:
        for ids in held:
            cache.release(ids)
        held.clear()

    measure(benchmark, lambda: held.append(cache.allocate(PROMPT // SIZE)), setup=give_back, rounds=200)


@pytest.mark.benchmark(group="32k prompt: free")
@TRIES
def test_port_free_32k(benchmark: BenchmarkFixture, kind: type[Any]) -> None:
    """Measures the release of the last reference to cached blocks."""
    cache, tokens = kind(POOL, SIZE), tokens_32k()
    first = cache.allocate(PROMPT // SIZE)
    cache.insert(tokens, first, 0)
    cache.release(first)
    measure(benchmark, lambda ids: cache.release(ids), setup=lambda: ((cache.match(tokens),), {}), rounds=200)


@pytest.mark.benchmark(group="32k prompt: match")
@TRIES
def test_port_match_32k(benchmark: BenchmarkFixture, kind: type[Any]) -> None:
    """Measures matching a whole prompt, including its hash."""
    cache, tokens = kind(POOL, SIZE), tokens_32k()
    held: list[Any] = []
    cache.insert(tokens, cache.allocate(PROMPT // SIZE), 0)

    def give_back() -> None:
        for ids in held:
            cache.release(ids)
        held.clear()

    measure(benchmark, lambda: held.append(cache.match(tokens)), setup=give_back, rounds=200)


@pytest.mark.benchmark(group="32k prompt: match that holds nothing")
@pytest.mark.parametrize("kind", [PlainRadixCache, RadixCache])
def test_port_match_prefix_32k(benchmark: BenchmarkFixture, kind: type[Any]) -> None:
    cache, tokens = kind(POOL, SIZE), tokens_32k()
    cache.insert(tokens, cache.allocate(PROMPT // SIZE), 0)
    measure(benchmark, lambda: cache.match_prefix(tokens), rounds=200)


@pytest.mark.benchmark(group="32k prompt: sequence, cold, with its hash")
@pytest.mark.parametrize("kind", [PlainBlockManager, BlockManager])
def test_port_sequence_32k(benchmark: BenchmarkFixture, kind: type[Any]) -> None:
    """Measures ``allocate``, which also registers the blocks."""
    manager = kind(POOL, SIZE)
    held: list[Sequence] = []

    def fresh() -> tuple[tuple[Sequence], dict[str, Any]]:
        for seq in held:
            manager.deallocate(seq)
        held[:] = [Sequence(next(FRESH), prompt(PROMPT).tolist())]
        return (held[0],), {}

    measure(benchmark, manager.allocate, setup=fresh, rounds=100)


@pytest.mark.benchmark(group="32k prompt: sequence, free")
@pytest.mark.parametrize("kind", [PlainBlockManager, BlockManager])
def test_port_sequence_free_32k(benchmark: BenchmarkFixture, kind: type[Any]) -> None:
    manager, tokens = kind(POOL, SIZE), prompt(PROMPT).tolist()

    def again() -> tuple[tuple[Sequence], dict[str, Any]]:
        seq = Sequence(next(FRESH), tokens)
        manager.allocate(seq)
        return (seq,), {}

    measure(benchmark, manager.deallocate, setup=again, rounds=100)
