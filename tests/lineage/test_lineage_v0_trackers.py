"""vLLM v0's trackers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.lineage.v0.block import _trackers as trackers
from kvpool.lineage.v0.block.cpu_gpu_block_allocator import CpuGpuBlockAllocator
from kvpool.lineage.v0.block.interfaces import Device
from kvpool.lineage.v0.block.prefix_caching_block import (
    ComputedBlocksTracker,
    LastAccessBlocksTracker,
    hash_block_tokens,
)
from tests.lineage.rows import lineage

if TYPE_CHECKING:
    from collections.abc import Callable

GPU, CPU = Device.GPU, Device.CPU
B = 4


class Seq:
    """An engine's sequence."""

    def __init__(self, seq_id: int, num_tokens: int, extra: int | kvpool.ExtraKeys | None = None) -> None:
        self.seq_id, self.tokens, self.extra, self.prefill = seq_id, list(range(num_tokens)), extra, True

    def get_token_ids(self) -> list[int]:
        return self.tokens

    def is_prefill(self) -> bool:
        return self.prefill

    def extra_hash(self) -> int | kvpool.ExtraKeys | None:
        return self.extra


def create(gpu: int = 16) -> CpuGpuBlockAllocator:
    return CpuGpuBlockAllocator.create("prefix_caching", gpu, 4, B)


def cache(
    allocator: CpuGpuBlockAllocator, num_blocks: int, extra: int | kvpool.ExtraKeys | None = None
) -> list[int]:
    """Computes the first blocks of the prompt 0, 1, 2, ... and frees them, so that they are cached."""
    chunks = [list(range(B * at, B * (at + 1))) for at in range(num_blocks)]
    blocks = allocator.allocate_immutable_blocks(None, chunks, GPU, extra)
    allocator.mark_blocks_as_computed([])
    ids = [block.block_id for block in blocks]
    for block in blocks:
        allocator.free(block)
    return [one for one in ids if one is not None]


def seen(allocator: CpuGpuBlockAllocator, seq: Seq) -> int:
    """Returns the number of cached tokens that a new tracker reports."""
    return ComputedBlocksTracker(allocator, B, enable_caching=True).get_num_cached_tokens(seq)


@lineage("3.7: ComputedBlocksTracker, 0 without caching")
def test_without_caching_nothing_is_cached() -> None:
    allocator = create()
    cache(allocator, 2)
    tracker = ComputedBlocksTracker(allocator, B, enable_caching=False)
    assert tracker.get_num_cached_tokens(Seq(1, 12)) == 0
    tracker.remove_seq(1)
    tracker.settle(Seq(1, 12), 8)
    assert tracker.get_num_cached_tokens(Seq(1, 12)) == 0


@lineage("3.7: ComputedBlocksTracker, prefix length times block size")
@pytest.mark.parametrize("cached", range(4))
@pytest.mark.parametrize("num_tokens", [1, 4, 7, 8, 13])
def test_cached_tokens(cached: int, num_tokens: int) -> None:
    allocator = create()
    cache(allocator, cached)
    assert seen(allocator, Seq(1, num_tokens)) == B * min(cached, num_tokens // B)


@lineage("3.7: a prompt repeats its first answer, later the answer is fresh")
def test_a_prompt_repeats_its_first_answer() -> None:
    allocator = create()
    tracker = ComputedBlocksTracker(allocator, B, enable_caching=True)
    seq = Seq(1, 12)
    assert tracker.get_num_cached_tokens(seq) == 0
    cache(allocator, 3)
    assert tracker.get_num_cached_tokens(seq) == 0
    seq.prefill = False
    assert tracker.get_num_cached_tokens(seq) == 12
    cache(allocator, 4)
    seq.tokens += [12, 13]
    assert tracker.get_num_cached_tokens(seq) == 12
    seq.tokens += [14, 15, 16]
    assert tracker.get_num_cached_tokens(seq) == 16


@lineage("3.7: the answer for a waiting prompt never grows, and becomes smaller when blocks are evicted")
@pytest.mark.parametrize("gone", [None, 0, 1])
def test_the_answer_for_a_waiting_prompt_counts_no_evicted_block(gone: int | None) -> None:
    allocator = create()
    blocks = cache(allocator, 2)
    tracker = ComputedBlocksTracker(allocator, B, enable_caching=True)
    seq = Seq(1, 16)
    assert tracker.get_num_cached_tokens(seq) == 8
    if gone is not None:
        gpu = allocator._allocator_on(GPU)
        gpu._pool.drop_cached([gpu._to_core(blocks[gone])])
    kept = 8 if gone is None else B * gone
    assert (
        tracker.get_num_cached_tokens(seq) == kept
    )  # the ancestor: 8, and the engine skips tokens without KV
    cache(allocator, 4)
    assert tracker.get_num_cached_tokens(seq) == 8  # computed again, by another prompt
    tracker.remove_seq(1)
    assert tracker.get_num_cached_tokens(seq) == 16


@lineage("3.7: a first answer of 0 for a waiting prompt is final")
def test_the_allocator_is_asked_once_for_a_waiting_prompt_without_hits() -> None:
    asked: list[list[int]] = []

    class Allocator:
        def find_cached_blocks_prefix(self, block_hashes: list[int]) -> list[int]:
            asked.append(block_hashes)
            return [] if len(asked) == 1 else [1]

    allocator: Any = Allocator()
    tracker = ComputedBlocksTracker(allocator, B, enable_caching=True)
    seq = Seq(1, 6)
    assert [tracker.get_num_cached_tokens(seq) for _ in range(3)] == [0, 0, 0]
    assert len(asked) == 1
    seq.prefill = False
    assert tracker.get_num_cached_tokens(seq) == B


@lineage("3.7: only new full blocks are hashed")
def test_hashing_is_incremental(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[list[int]] = []

    def spy(is_first: bool, prev: int | None, tokens: Any, extra: Any, **epoch: int) -> int:
        hashed.append(tokens)
        return hash_block_tokens(is_first, prev, tokens, extra, **epoch)

    monkeypatch.setattr(trackers, "hash_block_tokens", spy)
    tracker = ComputedBlocksTracker(create(), B, enable_caching=True)
    seq = Seq(1, 9)
    for _ in range(3):
        tracker.get_num_cached_tokens(seq)
    assert hashed == [[0, 1, 2, 3], [4, 5, 6, 7]]
    seq.tokens += [9, 10, 11, 12]
    tracker.get_num_cached_tokens(seq)
    assert hashed[2:] == [[8, 9, 10, 11]]


@lineage("3.7: a sequence that shrank asserts")
def test_a_sequence_that_has_become_shorter() -> None:
    tracker = ComputedBlocksTracker(create(), B, enable_caching=True)
    seq = Seq(1, 8)
    tracker.get_num_cached_tokens(seq)
    del seq.tokens[7:]
    with pytest.raises(AssertionError):
        tracker.get_num_cached_tokens(seq)
    tracker.remove_seq(1)
    assert tracker.get_num_cached_tokens(seq) == 0


@lineage("22: remove_seq of a sequence that was never looked up")
def test_defect_22_a_sequence_that_was_never_looked_up() -> None:
    allocator = create()
    tracker = ComputedBlocksTracker(allocator, B, enable_caching=True)
    tracker.remove_seq(1)
    seq = Seq(1, 8)
    assert tracker.get_num_cached_tokens(seq) == 0
    cache(allocator, 2)
    tracker.remove_seq(1)
    tracker.remove_seq(1)
    assert tracker.get_num_cached_tokens(seq) == 8


@lineage("3.7: settle, what a prompt really got")
def test_settle_until_removed() -> None:
    allocator = create()
    cache(allocator, 3)
    tracker = ComputedBlocksTracker(allocator, B, enable_caching=True)
    seq = Seq(1, 12)
    assert tracker.get_num_cached_tokens(seq) == 12
    tracker.settle(seq, 4)  # two blocks were evicted between lookup and allocation
    assert tracker.get_num_cached_tokens(seq) == 4
    tracker.remove_seq(1)
    assert tracker.get_num_cached_tokens(seq) == 12


@lineage("3.7: extra keys and the epoch reach the tracker's hashes")
@pytest.mark.parametrize("extra", [None, 3, kvpool.ExtraKeys(salt="s")])
def test_extra_keys_and_epoch(extra: int | kvpool.ExtraKeys | None) -> None:
    allocator = create()
    cache(allocator, 2, extra)
    extras: list[int | kvpool.ExtraKeys | None] = [
        None,
        3,
        4,
        kvpool.ExtraKeys(salt="s"),
        kvpool.ExtraKeys(tenant="s"),
    ]
    assert [seen(allocator, Seq(1, 8, one)) for one in extras] == [8 * (one == extra) for one in extras]
    tracker = ComputedBlocksTracker(allocator, B, enable_caching=True)
    seq = Seq(1, 8, extra)
    assert tracker.get_num_cached_tokens(seq) == 8
    allocator._allocator_on(GPU)._pool.bump_epoch()
    assert tracker.get_num_cached_tokens(seq) == 0
    tracker.remove_seq(1)
    cache(allocator, 2, extra)
    assert tracker.get_num_cached_tokens(seq) == 8


@lineage("3.7: LastAccessBlocksTracker")
def test_last_access() -> None:
    allocator = create()
    tracker = LastAccessBlocksTracker(allocator)
    blocks = [allocator.allocate_immutable_block(None, [at] * B, GPU) for at in range(2)]
    ids = [block.block_id for block in blocks if block.block_id is not None]
    allocator.mark_blocks_as_computed([])
    tracker.add_seq(1)
    tracker.add_seq(2)
    tracker.update_last_access(1, 20.0)
    tracker.update_last_access(1, 30.0)
    tracker.update_last_access(2, 10.0)
    tracker.update_seq_blocks_last_access(1, ids[:1])
    tracker.update_seq_blocks_last_access(2, ids[1:])
    for block in blocks:
        allocator.free(block)
    assert allocator._tiers.pools[0].diagnose.eviction_order() == [2, 1]
    tracker.remove_seq(1)
    tracker.add_seq(1)


@lineage("3.7: LastAccessBlocksTracker, no time recorded is a no-op")
def test_no_time_recorded() -> None:
    allocator = create()
    tracker = LastAccessBlocksTracker(allocator)
    tracker.add_seq(1)
    tracker.update_seq_blocks_last_access(1, [12345])  # nothing is marked, and nothing is looked up
    tracker.update_last_access(1, 1.0)
    with pytest.raises(KeyError):
        tracker.update_seq_blocks_last_access(1, [12345])


@lineage("3.7: LastAccessBlocksTracker, asserts")
def test_last_access_asserts() -> None:
    tracker = LastAccessBlocksTracker(create())
    unknown_seq: list[Callable[[], None]] = [
        lambda: tracker.remove_seq(1),
        lambda: tracker.update_last_access(1, 1.0),
        lambda: tracker.update_seq_blocks_last_access(1, []),
    ]
    for unknown in unknown_seq:
        with pytest.raises(AssertionError):
            unknown()
    tracker.add_seq(1)
    with pytest.raises(AssertionError):
        tracker.add_seq(1)
