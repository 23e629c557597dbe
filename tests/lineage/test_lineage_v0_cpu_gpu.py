"""Tests kvpool's interface of vLLM v0's allocator over two devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.lineage.v0.block.cpu_gpu_block_allocator import CpuGpuBlockAllocator, NullBlock
from kvpool.lineage.v0.block.interfaces import Device, DeviceAwareBlockAllocator
from kvpool.lineage.v0.block.naive_block import NaiveBlock, NaiveBlockAllocator
from kvpool.lineage.v0.block.prefix_caching_block import hash_block_tokens
from tests.lineage.rows import ids, lineage, observe

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvpool.lineage.v0.block.interfaces import Block

GPU, CPU = Device.GPU, Device.CPU
B = 4
BOTH = pytest.mark.parametrize("kind", ["naive", "prefix_caching"])


def create(kind: str = "naive", gpu: int = 8, cpu: int = 8) -> CpuGpuBlockAllocator:
    return CpuGpuBlockAllocator.create(kind, num_gpu_blocks=gpu, num_cpu_blocks=cpu, block_size=B)


def chain(allocator: CpuGpuBlockAllocator, length: int, device: Device = GPU, first: int = 0) -> list[Block]:
    """Returns the full blocks of one sequence, each after its previous block."""
    chunks = [list(range(first + B * at, first + B * (at + 1))) for at in range(length)]
    return allocator.allocate_immutable_blocks(None, chunks, device)


@lineage("3.5: create, GPU ids from 0, CPU ids behind them")
@BOTH
def test_create_gives_each_device_its_ids(kind: str) -> None:
    allocator = create(kind, gpu=3, cpu=2)
    assert isinstance(allocator, DeviceAwareBlockAllocator)
    assert allocator.all_block_ids == frozenset(range(5))
    assert [allocator.get_num_total_blocks(device) for device in (GPU, CPU)] == [3, 2]
    assert [allocator.get_num_free_blocks(device) for device in (GPU, CPU)] == [3, 2]
    gpu = [allocator.allocate_mutable_block(None, GPU).block_id for _ in range(3)]
    cpu = [allocator.allocate_mutable_block(None, CPU).block_id for _ in range(2)]
    assert (gpu, cpu) == ([0, 1, 2], [3, 4])
    for device in (GPU, CPU):
        with pytest.raises(allocator.NoFreeBlocksError):
            allocator.allocate_mutable_block(None, device)


@lineage("3.5: create, unknown type")
def test_create_refuses_an_unknown_type() -> None:
    with pytest.raises(ValueError, match="Unknown allocator type"):
        create("lru")
    with pytest.raises(AssertionError):
        create("naive", gpu=-1)


@lineage("3.5: a device without blocks")
@BOTH
def test_a_device_without_blocks(kind: str) -> None:
    allocator = create(kind, gpu=2, cpu=0)
    assert (allocator.get_num_total_blocks(CPU), allocator.get_num_free_blocks(CPU)) == (0, 0)
    blocks = chain(allocator, 1)
    before = observe(allocator._tiers)
    with pytest.raises(allocator.NoFreeBlocksError):
        allocator.swap(blocks, GPU, CPU)
    assert observe(allocator._tiers) == before
    assert allocator._fit(blocks, GPU, CPU, 0) == "never"
    allocator.free(blocks[0])
    assert allocator.reset_prefix_cache() is True


@lineage("3.5: constructor, disjoint ids")
def test_constructor_puts_two_allocators_on_one_pool() -> None:
    gpu = NaiveBlockAllocator(NaiveBlock, 4, B, block_ids=[5, 3, 9, 7])
    cpu = NaiveBlockAllocator(NaiveBlock, 2, B, block_ids=[20, 21])
    allocator = CpuGpuBlockAllocator(cpu_block_allocator=cpu, gpu_block_allocator=gpu)
    block = allocator.allocate_immutable_block(None, [1, 2, 3, 4], GPU)
    assert allocator.swap([block], GPU, CPU) == {5: 20}
    assert [allocator.get_physical_block_id(GPU, one) for one in (3, 5, 7, 9)] == [0, 1, 2, 3]
    with pytest.raises(AssertionError):
        CpuGpuBlockAllocator(NaiveBlockAllocator(NaiveBlock, 2, B), NaiveBlockAllocator(NaiveBlock, 2, B))
    busy = NaiveBlockAllocator(NaiveBlock, 2, B, block_ids=[8, 9])
    busy.allocate_mutable_block(None)
    with pytest.raises(AssertionError):
        CpuGpuBlockAllocator(busy, NaiveBlockAllocator(NaiveBlock, 2, B))
    with pytest.raises(AssertionError):
        CpuGpuBlockAllocator(
            NaiveBlockAllocator(NaiveBlock, 2, 8, block_ids=[8, 9]), NaiveBlockAllocator(NaiveBlock, 2, B)
        )


@lineage("3.5: allocate and free by device")
@BOTH
@pytest.mark.parametrize("device", [GPU, CPU])
def test_allocate_and_free_go_to_the_device(kind: str, device: Device) -> None:
    allocator = create(kind)
    other = CPU if device is GPU else GPU
    first = allocator.allocate_immutable_block(None, [1, 2, 3, 4], device)
    rest = allocator.allocate_immutable_blocks(first, [[5, 6, 7, 8], [9, 10, 11, 12]], device)
    last = allocator.allocate_mutable_block(rest[-1], device)
    assert (allocator.get_num_free_blocks(device), allocator.get_num_free_blocks(other)) == (4, 8)
    assert last.prev_block is rest[-1]
    twins = allocator.fork(last)
    assert ids(twins) == ids([first, *rest, last])
    for block in [*twins, first, *rest, last]:
        allocator.free(block)
    assert [allocator.get_num_free_blocks(one) for one in (GPU, CPU)] == [8, 8]
    with pytest.raises(AssertionError):
        allocator.free(first)
    with pytest.raises(kvpool.KvpoolError):
        allocator.fork(last)


@lineage("3.5: errors of devices and ids")
def test_unknown_devices_and_ids() -> None:
    allocator = create()
    nowhere: Any = "tpu"
    for call in (
        lambda: allocator.get_num_free_blocks(nowhere),
        lambda: allocator.get_prefix_cache_hit_rate(nowhere),
        lambda: allocator.reset_prefix_cache(nowhere),
        lambda: allocator.get_physical_block_id(GPU, 8),
        lambda: allocator.mark_blocks_as_accessed([99], 1.0),
        lambda: allocator.swap([], GPU, GPU),
    ):
        with pytest.raises(AssertionError):
            call()


@lineage("3.5: free and fork pick the allocator by id, None asserts")
def test_a_handle_without_an_id_is_an_error() -> None:
    allocator = create()
    loose = NaiveBlock(None, [1], B, allocator._allocator_on(GPU))
    for call in (allocator.free, allocator.fork):
        with pytest.raises(AssertionError):
            call(loose)


@lineage("3.5: allocate_or_get_null_block, one for all")
@BOTH
def test_there_is_one_null_block(kind: str) -> None:
    allocator = create(kind)
    null = allocator.allocate_or_get_null_block()
    assert allocator.allocate_or_get_null_block() is null
    assert isinstance(null, NullBlock)
    assert null.block_id in range(8)
    assert allocator.get_num_full_blocks_touched([null], CPU) == 0
    allocator.free(null)
    allocator.free(null)
    with pytest.raises(AssertionError):
        allocator.fork(null)
    assert null.block_id not in ids([allocator.allocate_mutable_block(None, GPU) for _ in range(7)])
    with pytest.raises(allocator.NoFreeBlocksError):
        allocator.allocate_mutable_block(None, GPU)


@lineage("3.5: the null block is outside of the usable count")
def test_the_null_block_is_not_counted() -> None:
    allocator = create()
    allocator.allocate_or_get_null_block()
    assert allocator.get_num_total_blocks(GPU) == allocator.get_num_free_blocks(GPU) == 7
    assert allocator.get_num_total_blocks(CPU) == allocator.get_num_free_blocks(CPU) == 8
    full = create(gpu=1)
    full.allocate_mutable_block(None, GPU)
    before = observe(full._tiers)
    with pytest.raises(full.NoFreeBlocksError):
        full.allocate_or_get_null_block()
    assert observe(full._tiers) == before


@lineage("3.5: NullBlock, a proxy that cannot be changed")
def test_null_block() -> None:
    null = create("prefix_caching").allocate_or_get_null_block()
    changes: list[Callable[[], None]] = [
        lambda: null.append_token_ids([1]),
        lambda: setattr(null, "block_id", 3),
    ]
    for change in changes:
        with pytest.raises(ValueError, match="null block should not be modified"):
            change()
    with pytest.raises(NotImplementedError):
        _ = null.num_tokens_total
    assert (null.extra_hash, null.content_hash, null.prev_block, null.token_ids) == (None, None, None, [])
    assert (null.num_empty_slots, null.is_full, null.computed, null.last_accessed) == (B, False, False, -1)
    null.last_accessed = 5.0
    assert null.last_accessed == 5.0


@lineage("15: reset works although there is a null block")
def test_defect_15_reset_with_a_null_block() -> None:
    allocator = create("prefix_caching")
    null = allocator.allocate_or_get_null_block()
    (block,) = chain(allocator, 1)
    hashes: list[int] = [hash_block_tokens(True, None, block.token_ids)]
    allocator.mark_blocks_as_computed([])
    assert allocator.reset_prefix_cache(GPU) is False
    allocator.free(block)
    assert allocator.find_cached_blocks_prefix(hashes) == hashes
    assert allocator.reset_prefix_cache() is True
    assert allocator.find_cached_blocks_prefix(hashes) == []
    assert allocator.allocate_or_get_null_block() is null
    assert allocator.get_num_free_blocks(GPU) == 7


@lineage("15: every device is reset, also after one in use")
def test_defect_15_every_device_is_reset() -> None:
    allocator = create("prefix_caching")
    gpu, cpu = chain(allocator, 1)[0], chain(allocator, 1, CPU, first=100)[0]
    hashes: list[int] = [hash_block_tokens(True, None, cpu.token_ids)]
    allocator._allocator_on(CPU).mark_blocks_as_computed([])
    allocator.free(cpu)
    assert allocator.find_cached_blocks_prefix(hashes, CPU) == hashes
    assert allocator.reset_prefix_cache() is False  # the GPU's block is in use
    assert allocator.find_cached_blocks_prefix(hashes, CPU) == []
    assert gpu.block_id == 0


@lineage("3.5: swap, old id to new id, and the pairs to be copied")
@BOTH
def test_swap_there_and_back(kind: str) -> None:
    allocator = create(kind)
    blocks = chain(allocator, 2)
    tail = allocator.allocate_mutable_block(blocks[-1], GPU)
    tail.append_token_ids([50, 51])
    blocks.append(tail)
    tokens = [block.token_ids for block in blocks]
    assert allocator.swap(blocks, GPU, CPU) == {0: 8, 1: 9, 2: 10}
    assert ids(blocks) == [8, 9, 10]
    assert [allocator.get_num_free_blocks(device) for device in (GPU, CPU)] == [8, 5]
    assert [allocator.get_physical_block_id(CPU, one) for one in (8, 9, 10)] == [0, 1, 2]
    assert allocator.get_and_reset_swaps() == [(0, 8), (1, 9), (2, 10)]
    assert allocator.get_and_reset_swaps() == []
    back = allocator.swap(blocks, CPU, GPU)
    assert list(back) == [8, 9, 10]
    assert ids(blocks) == list(back.values())
    assert [block.token_ids for block in blocks] == tokens
    assert [allocator.get_num_free_blocks(device) for device in (GPU, CPU)] == [5, 8]
    tail.append_token_ids([52, 53])
    assert tail.is_full
    assert allocator.get_and_reset_swaps() == list(back.items())
    allocator._tiers.check_invariants()


@lineage("3.5: an out and an in of one step, in order")
def test_swaps_of_both_directions_come_in_order() -> None:
    allocator = create()
    mine, yours = chain(allocator, 1), chain(allocator, 1, CPU)
    out, back = allocator.swap(mine, GPU, CPU), allocator.swap(yours, CPU, GPU)
    assert allocator.get_and_reset_swaps() == [*out.items(), *back.items()]


@lineage("3.5: null blocks stay when a table is swapped")
def test_swap_leaves_null_blocks() -> None:
    allocator = create()
    null = allocator.allocate_or_get_null_block()
    (block,) = chain(allocator, 1)
    assert allocator.swap([null, block], GPU, CPU) == {1: 8}
    assert null.block_id == 0
    assert allocator.swap([null], GPU, CPU) == {}


@lineage("9: a block that others still hold stays where it is, too")
@BOTH
def test_defect_09_swap_of_one_of_two_holders(kind: str) -> None:
    allocator = create(kind)
    blocks = chain(allocator, 2)
    twins = allocator.fork(blocks[-1])
    assert allocator.swap(twins, GPU, CPU) == {0: 8, 1: 9}
    assert (ids(blocks), ids(twins)) == ([0, 1], [8, 9])
    assert [allocator.get_num_free_blocks(device) for device in (GPU, CPU)] == [6, 6]


@lineage("10: swap is all or nothing")
@BOTH
@pytest.mark.parametrize(("src", "dst"), [(GPU, CPU), (CPU, GPU)])
def test_defect_10_swap_is_all_or_nothing(kind: str, src: Device, dst: Device) -> None:
    allocator = create(kind, gpu=4, cpu=4)
    blocks = chain(allocator, 3, src)
    others = chain(allocator, 2, dst, first=500)
    before, handles = observe(allocator._tiers), ids(blocks)
    with pytest.raises(allocator.NoFreeBlocksError):
        allocator.swap(blocks, src, dst)
    assert observe(allocator._tiers) == before
    assert ids(blocks) == handles
    assert [block.token_ids for block in blocks] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert allocator.get_and_reset_swaps() == []
    allocator.free(others[-1])
    assert len(allocator.swap(blocks, src, dst)) == 3


@lineage("10: swap of handles that are not there")
@BOTH
def test_swap_refuses_bad_handles(kind: str) -> None:
    allocator = create(kind)
    blocks = chain(allocator, 2)
    other = chain(allocator, 1, CPU)
    allocator.free(blocks[1])
    before = observe(allocator._tiers)
    for bad in ([blocks[0], blocks[1]], [blocks[0], blocks[0]], [blocks[0], *other]):
        with pytest.raises(AssertionError):
            allocator.swap(bad, GPU, CPU)
        assert observe(allocator._tiers) == before
        assert blocks[0].block_id == 0


@lineage("3.5: swapped content is cached on the other device, and not copied twice")
def test_swap_of_content_that_the_other_device_caches() -> None:
    allocator = create("prefix_caching")
    blocks = chain(allocator, 2)
    hashes: list[int] = [block.content_hash or 0 for block in blocks]
    allocator.mark_blocks_as_computed([])
    allocator.swap(blocks, GPU, CPU)
    assert allocator.find_cached_blocks_prefix(hashes) == hashes
    assert allocator.find_cached_blocks_prefix(hashes, CPU) == hashes
    assert allocator.get_and_reset_swaps() == [(0, 8), (1, 9)]
    # The GPU's blocks still contain this KV, so swapping the blocks in needs no copy.
    assert allocator.swap(blocks, CPU, GPU) == {8: 0, 9: 1}
    assert allocator.get_and_reset_swaps() == []
    assert all(block.computed for block in blocks)


@lineage("3.5: blocks that were not computed are registered again after a swap")
def test_swap_of_blocks_that_are_not_computed() -> None:
    allocator = create("prefix_caching")
    blocks = chain(allocator, 2)
    hashes: list[int] = [block.content_hash or 0 for block in blocks]
    allocator.swap(blocks, GPU, CPU)
    allocator.swap(blocks, CPU, GPU)
    assert allocator.find_cached_blocks_prefix(hashes) == []
    allocator.mark_blocks_as_computed([])
    assert allocator.find_cached_blocks_prefix(hashes) == hashes
    twins = chain(allocator, 2)
    assert ids(twins) == ids(blocks)
    allocator._tiers.check_invariants()


@lineage("18: a copy that is planned keeps its source from swaps of the same step")
@BOTH
def test_defect_18_the_source_of_a_copy_is_no_swap_target(kind: str) -> None:
    allocator = create(kind, gpu=6)
    block = allocator.allocate_mutable_block(None, GPU)
    block.append_token_ids([1, 2, 3])
    (twin,) = allocator.fork(block)
    twin.append_token_ids([4])  # copies 0 to 1
    if kind == "prefix_caching":
        block.append_token_ids([4])  # found to be 1, so 0 has no holder any more
        assert block.block_id == twin.block_id == 1
    else:
        allocator.free(block)
    one, two = chain(allocator, 2, CPU, first=100), chain(allocator, 2, CPU, first=200)
    targets = [*allocator.swap(one, CPU, GPU).values(), *allocator.swap(two, CPU, GPU).values()]
    assert targets == [2, 3, 4, 5]
    assert allocator.get_num_free_blocks(GPU) == 0  # 0 is kept until the copy is handed out
    assert allocator.clear_copy_on_writes() == [(0, 1)]
    assert allocator.get_num_free_blocks(GPU) == 1
    allocator._tiers.check_invariants()


@lineage("18: a block whose copy is still planned is swapped from where its bytes are")
def test_defect_18_swap_out_of_the_target_of_a_planned_copy() -> None:
    allocator = create()
    block = allocator.allocate_mutable_block(None, GPU)
    block.append_token_ids([1, 2, 3])
    (twin,) = allocator.fork(block)
    twin.append_token_ids([4])
    assert allocator.swap([twin], GPU, CPU) == {1: 8}
    assert allocator.get_and_reset_swaps() == [(0, 8)]  # workers swap out before they copy
    assert allocator.clear_copy_on_writes() == [(0, 1)]
    assert allocator.get_num_free_blocks(GPU) == 7


@lineage("16: no common prefix is an empty list")
@BOTH
def test_defect_16_common_computed_blocks_are_a_list(kind: str) -> None:
    allocator = create(kind)
    nothing: list[list[list[int]]] = [[], [[]], [[], []]]
    assert [allocator.get_common_computed_block_ids(lists) for lists in nothing] == [[], [], []]
    if kind == "prefix_caching":
        assert allocator.get_common_computed_block_ids([[1, 2, 3], [1, 2, 4], []]) == [1, 2]


@lineage("3.5: accesses of blocks of either device")
def test_mark_blocks_as_accessed_on_both_devices() -> None:
    allocator = create("prefix_caching")
    old, new = chain(allocator, 1), chain(allocator, 1, first=100)
    allocator.mark_blocks_as_computed([])
    out = chain(allocator, 1, first=200)
    allocator.swap(out, GPU, CPU)
    allocator.mark_blocks_as_accessed([*filter(None, ids(new)), *filter(None, ids(out))], 1.0)
    allocator.mark_blocks_as_accessed([0], 2.0)
    for block in (*old, *new):
        allocator.free(block)
    assert [pool.diagnose.eviction_order() for pool in allocator._tiers.pools] == [[2, 1], []]
    with pytest.raises((ValueError, KeyError)):
        allocator.mark_blocks_as_accessed([5], 3.0)


@lineage("3.5: hit rate per device")
def test_hit_rate() -> None:
    naive, caching = create(), create("prefix_caching")
    assert [naive.get_prefix_cache_hit_rate(device) for device in (GPU, CPU)] == [-1, -1]
    chain(caching, 2)
    chain(caching, 2)
    assert [caching.get_prefix_cache_hit_rate(device) for device in (GPU, CPU)] == [0.5, 0.0]


@lineage("3.5: ids that a swap has freed are reused last freed first")
@BOTH
def test_ids_freed_by_a_swap_are_reused_last_freed_first(kind: str) -> None:
    allocator = create(kind)
    blocks = chain(allocator, 2)
    blocks.append(allocator.allocate_mutable_block(blocks[-1], GPU))
    before = ids(blocks)
    allocator.swap(blocks, GPU, CPU)
    assert ids([allocator.allocate_mutable_block(None, GPU) for _ in range(3)]) == before[::-1]
    before = ids(blocks)
    allocator.swap(blocks, CPU, GPU)
    assert ids([allocator.allocate_mutable_block(None, CPU) for _ in range(3)]) == before[::-1]


@lineage("3.5: the hit rate counts what is swapped in, and no allocation that failed")
def test_hit_rate_of_swaps_and_failures() -> None:
    allocator = create("prefix_caching", gpu=4, cpu=4)
    blocks = chain(allocator, 2)
    twin = allocator.fork(blocks[-1])
    assert [allocator.get_prefix_cache_hit_rate(device) for device in (GPU, CPU)] == [0.0, 0.0]
    allocator.mark_blocks_as_computed([])
    allocator.swap([*blocks, *twin], GPU, CPU)
    assert (
        allocator.get_prefix_cache_hit_rate(CPU) == 2 / 4
    )  # the second handle finds the content that the first has brought
    allocator.swap([*blocks, *twin], CPU, GPU)
    assert allocator.get_prefix_cache_hit_rate(GPU) == 4 / 6  # still cached on the GPU
    with pytest.raises(allocator.NoFreeBlocksError):
        chain(allocator, 5, first=100)
    assert allocator.get_prefix_cache_hit_rate(GPU) == 4 / 6


@lineage("3.5: swaps that nobody fetches are not kept for ever")
def test_swaps_that_the_engine_never_fetches() -> None:
    allocator = create("naive", gpu=2, cpu=2)
    blocks = chain(allocator, 2)
    for _ in range(50):
        allocator.swap(blocks, GPU, CPU)
        allocator.swap(blocks, CPU, GPU)
        assert len(allocator._swaps or []) <= 8
    with pytest.raises(AssertionError, match="fetch them every step"):
        allocator.get_and_reset_swaps()
    assert allocator.get_and_reset_swaps() == []
    allocator.swap(blocks, GPU, CPU)
    assert len(allocator.get_and_reset_swaps()) == 2
