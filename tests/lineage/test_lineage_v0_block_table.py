"""Tests kvpool's interface of vLLM v0's block table."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.lineage.v0.block.block_table import BlockTable
from kvpool.lineage.v0.block.cpu_gpu_block_allocator import CpuGpuBlockAllocator, NullBlock
from kvpool.lineage.v0.block.interfaces import Device
from tests.lineage import rows
from tests.lineage.rows import lineage

if TYPE_CHECKING:
    from collections.abc import Callable

GPU, CPU = Device.GPU, Device.CPU
B = 4
BOTH = pytest.mark.parametrize("kind", ["naive", "prefix_caching"])
NoFreeBlocksError = CpuGpuBlockAllocator.NoFreeBlocksError


def create(kind: str = "naive", gpu: int = 16, cpu: int = 8, block_size: int = B) -> CpuGpuBlockAllocator:
    return CpuGpuBlockAllocator.create(kind, num_gpu_blocks=gpu, num_cpu_blocks=cpu, block_size=block_size)


def table_of(
    allocator: CpuGpuBlockAllocator, num_tokens: int, *, window: int | None = None, first: int = 0
) -> BlockTable:
    table = BlockTable(block_size=B, block_allocator=allocator, max_block_sliding_window=window)
    table.allocate(list(range(first, first + num_tokens)))
    return table


def observe(allocator: CpuGpuBlockAllocator, *tables: BlockTable) -> Any:
    """Returns everything that can be observed of the core and the tables, to check that a failed call
    has changed nothing.
    """
    shown = [
        (list(one.physical_block_ids), one.num_full_slots, [list(b.token_ids) for b in one.blocks])
        for one in tables
    ]
    return rows.observe(allocator._tiers), shown


def tokens_of(table: BlockTable) -> list[int]:
    return [token for block in table.blocks for token in block.token_ids]


@lineage("3.6: get_num_required_blocks")
@pytest.mark.parametrize(
    ("tokens", "lookahead", "blocks"), [(0, 0, 0), (1, 0, 1), (4, 0, 1), (5, 0, 2), (4, 1, 2), (3, 9, 3)]
)
def test_required_blocks(tokens: int, lookahead: int, blocks: int) -> None:
    assert BlockTable.get_num_required_blocks(list(range(tokens)), B, lookahead) == blocks


@lineage("3.6: allocate, full chunks immutable, the tail mutable")
@BOTH
def test_allocate(kind: str) -> None:
    for num_tokens, device in itertools.product(range(1, 14), (GPU, CPU)):
        allocator = create(kind)
        table = BlockTable(B, allocator)
        table.allocate(list(range(num_tokens)), device)
        needed = -(-num_tokens // B)
        first = 0 if device is GPU else 16
        assert table.physical_block_ids == list(range(first, first + needed))
        assert (table.num_full_slots, tokens_of(table)) == (num_tokens, list(range(num_tokens)))
        assert [block.is_full for block in table.blocks] == [True] * (num_tokens // B) + [False] * (
            num_tokens % B > 0
        )
        assert [block.prev_block for block in table.blocks] == [None, *table.blocks][:needed]
        assert allocator.get_num_free_blocks(device) == (16 if device is GPU else 8) - needed


@lineage("3.6: allocate, asserts")
def test_allocate_refuses() -> None:
    allocator = create()
    table = table_of(allocator, 5)
    empty = BlockTable(B, allocator)
    before = observe(allocator, table)
    refused: list[Callable[[], object]] = [lambda: table.allocate([1]), lambda: empty.allocate([])]
    for call in refused:
        with pytest.raises(AssertionError):
            call()
    needing_blocks: list[Callable[[], object]] = [
        lambda: empty.append_token_ids([1]),
        lambda: empty.ensure_num_empty_slots(1),
        lambda: empty.fork(),
    ]
    for missing in needing_blocks:
        with pytest.raises(AssertionError, match="no blocks have been allocated"):
            missing()
    assert observe(allocator, table) == before
    with pytest.raises(AssertionError):
        BlockTable(0, allocator)
    with pytest.raises(AssertionError):
        BlockTable(B, allocator, max_block_sliding_window=0)


@lineage("3.6: constructor with blocks, and update")
def test_tables_of_given_blocks() -> None:
    allocator = create()
    table = table_of(allocator, 6)
    other = BlockTable(B, allocator, _blocks=table.blocks)
    assert (other.physical_block_ids, other.num_full_slots) == ([0, 1], 6)
    other.update(table.blocks[:1])
    assert (other.physical_block_ids, other.num_full_slots) == ([0], 4)
    assert (table.physical_block_ids, table.num_full_slots) == ([0, 1], 6)


@lineage("3.6: equal prompts share full blocks if the allocator caches")
def test_equal_prompts() -> None:
    allocator = create("prefix_caching")
    tables = [table_of(allocator, 10) for _ in range(3)]
    assert [table.physical_block_ids for table in tables] == [[0, 1, 2], [0, 1, 3], [0, 1, 4]]
    naive = create()
    assert [table_of(naive, 10).physical_block_ids for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]


@lineage("3.6: append_token_ids, token by token and at once")
@BOTH
def test_append(kind: str) -> None:
    for num_tokens, more in itertools.product((1, 3, 4, 5, 8), range(12)):
        allocator = create(kind)
        table, other = table_of(allocator, num_tokens), table_of(allocator, num_tokens, first=1000)
        table.append_token_ids(list(range(num_tokens, num_tokens + more)))
        for token in range(num_tokens, num_tokens + more):
            other.append_token_ids([1000 + token])
        total = num_tokens + more
        assert tokens_of(table) == list(range(total))
        assert tokens_of(other) == list(range(1000, 1000 + total))
        assert len(table.blocks) == len(other.blocks) == -(-total // B)
        assert (table.num_full_slots, other.num_full_slots) == (total, total)
        assert allocator.get_num_free_blocks(GPU) == 16 - 2 * -(-total // B)
        assert [block.is_full for block in table.blocks[:-1]] == [True] * (len(table.blocks) - 1)


@lineage("3.6: lookahead slots are empty blocks, and used by later appends")
@BOTH
@pytest.mark.parametrize("lookahead", range(10))
def test_append_with_lookahead(kind: str, lookahead: int) -> None:
    allocator = create(kind)
    table = table_of(allocator, 5)
    table.append_token_ids([5], num_lookahead_slots=lookahead)
    blocks = -(-(6 + lookahead) // B)
    assert (len(table.physical_block_ids), table.num_full_slots) == (blocks, 6)
    table.append_token_ids(list(range(6, 6 + lookahead)))
    assert (len(table.physical_block_ids), tokens_of(table)) == (max(blocks, 2), list(range(6 + lookahead)))


@lineage("3.6: ensure_num_empty_slots")
@pytest.mark.parametrize(("slots", "blocks"), [(0, 2), (3, 2), (4, 3), (7, 3), (8, 4)])
def test_ensure_num_empty_slots(slots: int, blocks: int) -> None:
    table = table_of(create(), 5)
    for _ in range(2):
        table.ensure_num_empty_slots(slots)
        assert (len(table.physical_block_ids), table.num_full_slots) == (blocks, 5)


@lineage("3.6: get_num_blocks_touched_by_append_slots, observed values")
def test_blocks_touched_by_append_slots() -> None:
    table = BlockTable(2, create(block_size=2))
    table.allocate([1, 2])
    touched = table.get_num_blocks_touched_by_append_slots
    assert [touched([], 0), touched([3], 0), touched([3], 2), touched([3, 4], 0), touched([3, 4, 5], 0)] == [
        0,
        1,
        2,
        1,
        2,
    ]
    table.append_token_ids([3])
    assert [touched([], 0), touched([4], 0), touched([4], 1), touched([4, 5], 0), touched([4, 5], 3)] == [
        1,
        1,
        2,
        2,
        3,
    ]


@lineage("3.6: no append takes more blocks than touched")
@BOTH
def test_touched_is_an_upper_bound(kind: str) -> None:
    for num_tokens, more, lookahead in itertools.product(range(1, 10), range(10), (0, 3, 5)):
        allocator = create(kind)
        table = table_of(allocator, num_tokens)
        child = table.fork()
        tokens = list(range(500, 500 + more))
        touched = child.get_num_blocks_touched_by_append_slots(tokens, lookahead)
        before = allocator.get_num_free_blocks(GPU)
        child.append_token_ids(tokens, lookahead)
        assert before - allocator.get_num_free_blocks(GPU) <= touched


@lineage("3.6: get_unseen_token_ids")
def test_unseen_tokens() -> None:
    table = table_of(create(), 5)
    assert table.get_unseen_token_ids(list(range(7))) == [5, 6]
    assert table.get_unseen_token_ids(list(range(5))) == []


@lineage("3.6: fork shares, append copies the last block")
@BOTH
def test_fork_and_copy_on_write(kind: str) -> None:
    allocator = create(kind)
    table = table_of(allocator, 6)
    child = table.fork()
    assert child.physical_block_ids == table.physical_block_ids == [0, 1]
    assert child.num_full_slots == 6
    child.append_token_ids([100])
    assert (table.physical_block_ids, child.physical_block_ids) == ([0, 1], [0, 2])
    assert allocator.clear_copy_on_writes() == [(1, 2)]
    table.append_token_ids([200])  # the only holder now
    assert allocator.clear_copy_on_writes() == []
    assert (tokens_of(table)[6:], tokens_of(child)[6:]) == ([200], [100])
    table.free()
    child.free()
    assert allocator.get_num_free_blocks(GPU) == 16


@lineage("17: num_full_slots after free, and after another one")
@BOTH
def test_defect_17_free_resets_the_slots(kind: str) -> None:
    allocator = create(kind)
    table = table_of(allocator, 6)
    table.free()
    table.free()
    assert allocator.get_num_free_blocks(GPU) == 16
    assert (table.physical_block_ids, table.blocks, table.num_full_slots) == ([], [], 0)
    with pytest.raises(AssertionError):
        table.append_token_ids([1])
    assert table.get_unseen_token_ids([1, 2, 3]) == [1, 2, 3]
    table.allocate([7, 8, 9, 10, 11])
    table.append_token_ids([12])
    assert (table.num_full_slots, tokens_of(table)) == (6, [7, 8, 9, 10, 11, 12])


@lineage("13: allocate takes all blocks or none")
@BOTH
@pytest.mark.parametrize("num_tokens", [17, 20, 21, 40])
def test_defect_13_allocate_is_all_or_nothing(kind: str, num_tokens: int) -> None:
    allocator = create(kind, gpu=6)
    used = table_of(allocator, 8, first=500)
    before = observe(allocator, used)
    table = BlockTable(B, allocator)
    with pytest.raises(NoFreeBlocksError) as refused:
        table.allocate(list(range(num_tokens)))
    assert observe(allocator, used) == before
    assert refused.value.missing == -(-num_tokens // B) - 4
    table.allocate(list(range(16)))
    assert allocator.get_num_free_blocks(GPU) == 0


@lineage("13: a refused prompt evicts nothing, and hits count")
def test_defect_13_a_refused_prompt_evicts_nothing() -> None:
    allocator = create("prefix_caching", gpu=6)
    cached = table_of(allocator, 12)
    allocator.mark_blocks_as_computed([])
    cached.free()
    used = table_of(allocator, 12, first=500)
    before = observe(allocator, used)
    for tokens in (list(range(13)), list(range(700, 716))):
        with pytest.raises(NoFreeBlocksError):
            BlockTable(B, allocator).allocate(tokens)
        assert observe(allocator, used) == before
    again = table_of(allocator, 12)
    assert again.physical_block_ids == [0, 1, 2]
    # Blocks in use can be hit, which takes no free block.
    assert BlockTable.get_num_required_blocks(list(range(12)), B) > allocator.get_num_free_blocks(GPU)
    assert table_of(allocator, 12).physical_block_ids == [0, 1, 2]


@lineage("8: an append without a block for its copy changes nothing")
@BOTH
@pytest.mark.parametrize("more", [1, 2, 5])
@pytest.mark.parametrize("lookahead", [0, 4])
def test_defect_08_append_is_all_or_nothing(kind: str, more: int, lookahead: int) -> None:
    allocator = create(kind, gpu=2)
    table = table_of(allocator, 6)
    child = table.fork()
    before = observe(allocator, table, child)
    with pytest.raises(NoFreeBlocksError):
        child.append_token_ids(list(range(more)), lookahead)
    assert observe(allocator, table, child) == before
    with pytest.raises(NoFreeBlocksError):
        child.ensure_num_empty_slots(10)
    assert observe(allocator, table, child) == before
    table.free()
    child.append_token_ids([7])
    assert (child.physical_block_ids, tokens_of(child)) == ([0, 1], [0, 1, 2, 3, 4, 5, 7])


@lineage("8: a copy counts, beside the new blocks")
@BOTH
def test_append_counts_copies_of_lookahead_blocks(kind: str) -> None:
    allocator = create(kind, gpu=5)
    table = table_of(allocator, 3)
    table.ensure_num_empty_slots(5)  # blocks 0 and 1
    child = table.fork()
    blocker = table_of(allocator, 8, first=600)
    before = observe(allocator, table, child, blocker)
    with pytest.raises(NoFreeBlocksError):
        child.append_token_ids([1, 2, 3])  # copies of both: one block is free
    assert observe(allocator, table, child, blocker) == before
    blocker.free()
    child.append_token_ids([1, 2, 3])
    assert not set(child.physical_block_ids) & set(table.physical_block_ids)
    assert len(allocator.clear_copy_on_writes()) == 2


@lineage("3.6: a bad token changes nothing")
@pytest.mark.parametrize("bad", [-1, 1 << 32])
def test_bad_tokens(bad: int) -> None:
    allocator = create("prefix_caching")
    table = table_of(allocator, 6)
    before = observe(allocator, table)
    with pytest.raises(kvpool.errors.TokenError):
        table.append_token_ids([7, 8, 9, bad, 10])
    with pytest.raises(kvpool.errors.TokenError):
        BlockTable(B, allocator).allocate([1, 2, 3, 4, bad])
    assert observe(allocator, table) == before


@lineage("3.6: append promotes onto a block that is cached already")
def test_append_onto_cached_content() -> None:
    allocator = create("prefix_caching")
    one, two = table_of(allocator, 6), table_of(allocator, 6)
    assert (one.physical_block_ids, two.physical_block_ids) == ([0, 1], [0, 2])
    for table in (one, two):
        table.append_token_ids([6, 7, 8])
    # Block 1 has replaced block 2 in the second table, because both have the same content. The last block of
    # each table is its own.
    assert (one.physical_block_ids, two.physical_block_ids) == ([0, 1, 3], [0, 1, 4])
    # Block 1 is not computed yet. So the tokens that the second table has computed in block 2 are
    # copied to block 1.
    assert allocator.clear_copy_on_writes() == [(2, 1)]
    assert allocator.get_num_free_blocks(GPU) == 12
    assert tokens_of(one) == tokens_of(two) == list(range(9))


@lineage("3.6: append to a table on the CPU")
def test_append_to_a_table_on_the_cpu() -> None:
    allocator = create()
    table = table_of(allocator, 6)
    allocator.swap(table.blocks, GPU, CPU)
    table.update(table.blocks)
    assert table.physical_block_ids == [16, 17]
    before = observe(allocator, table)
    calls: list[Callable[[], None]] = [
        lambda: table.append_token_ids([1]),
        lambda: table.ensure_num_empty_slots(5),
    ]
    for call in calls:
        with pytest.raises(AssertionError, match="GPU"):
            call()
    assert observe(allocator, table) == before


@lineage("3.6: sliding window, dropped blocks become the null block")
@BOTH
def test_sliding_window(kind: str) -> None:
    allocator = create(kind)
    table = table_of(allocator, 10, window=2)
    with pytest.raises(AssertionError):
        table.append_token_ids([10])
    table.append_token_ids([10], num_computed_slots=10)  # 10 // 4 - 2 = 0: nothing to drop
    assert table.physical_block_ids == [0, 1, 2]
    for token in range(11, 40):
        table.append_token_ids([token], num_computed_slots=token)
        dropped = token // B - 2
        null = allocator.allocate_or_get_null_block()
        assert [block is null for block in table.blocks] == [at < dropped for at in range(len(table.blocks))]
        assert all(block_id == null.block_id for block_id in table.physical_block_ids[:dropped])
        assert null.block_id not in table.physical_block_ids[dropped:]
        # All other blocks are free again. The null block counts neither as free nor as used.
        held = len(table.blocks) - dropped
        assert allocator.get_num_free_blocks(GPU) == allocator.get_num_total_blocks(GPU) - held
        assert tokens_of(table) == list(range(B * max(dropped, 0), token + 1))
        assert table.num_full_slots == token + 1
    table.free()
    assert allocator.get_num_free_blocks(GPU) == allocator.get_num_total_blocks(GPU) == 15


@lineage("11: fork after a window has dropped blocks")
@BOTH
def test_defect_11_fork_after_the_window_has_dropped_blocks(kind: str) -> None:
    allocator = create(kind)
    table = table_of(allocator, 20, window=2)
    table.append_token_ids(list(range(20, 30)), num_computed_slots=20)
    child = table.fork()
    grandchild = child.fork()
    assert grandchild.physical_block_ids == child.physical_block_ids == table.physical_block_ids
    assert [isinstance(block, NullBlock) for block in child.blocks] == [True] * 3 + [False] * 5
    assert child.num_full_slots == 30
    for at, one in enumerate((table, child, grandchild)):
        for step in range(20):
            one.append_token_ids([100 * at + step], num_computed_slots=30 + step)
        # The last token is number 49. So the window has dropped the blocks before number 49 // 4 - 2.
        assert tokens_of(one) == list(range(100 * at + 10, 100 * at + 20))
        assert one.num_full_slots == 50
    # The destination of a copy stays allocated until the engine takes the list of copies. In this test,
    # the window has dropped all destinations.
    assert allocator.clear_copy_on_writes() == []
    for one in (child, table, grandchild):
        one.free()
    assert allocator.get_num_free_blocks(GPU) == 15
    allocator._tiers.check_invariants()


@lineage("11: a window without a block for the null block keeps its blocks until there is one")
def test_window_without_a_block_for_the_null_block() -> None:
    allocator = create(gpu=6)
    table = table_of(allocator, 20, window=1)
    blocker = table_of(allocator, 4, first=900)
    twin = table.fork()  # the dropped blocks stay held: nothing becomes free
    before = observe(allocator, table, twin, blocker)
    with pytest.raises(NoFreeBlocksError):
        table.append_token_ids([20], num_computed_slots=20)
    assert observe(allocator, table, twin, blocker) == before
    twin.free()
    # The window frees four blocks. The null block takes one of them, and the new token another one.
    table.append_token_ids([20], num_computed_slots=20)
    null = allocator.allocate_or_get_null_block()
    assert [block is null for block in table.blocks] == [True] * 4 + [False] * 2
    assert allocator.get_num_free_blocks(GPU) == 2
    blocker.free()


@lineage("8: an append in place that finds no block for its copy changes nothing")
@BOTH
@pytest.mark.parametrize("token", [3, 9])
def test_defect_08_an_append_in_place_that_fails_changes_nothing(kind: str, token: int) -> None:
    allocator = create(kind, gpu=3)
    table = table_of(allocator, 3)
    child = table.fork()
    other = table_of(allocator, 4)  # the child's future content, not computed yet
    filler = table_of(allocator, 4, first=50)
    before = observe(allocator, table, child, other)
    for _ in range(2):
        with pytest.raises(NoFreeBlocksError):
            child.append_token_ids([token])
        assert observe(allocator, table, child, other) == before
    filler.free()
    child.append_token_ids([token])
    assert tokens_of(child) == [0, 1, 2, token]
    assert tokens_of(table) == [0, 1, 2]


@lineage("3.6: an append in place is what the general one is")
@BOTH
@pytest.mark.parametrize("extra", [None, 3])
def test_an_append_in_place_is_what_the_general_one_is(
    kind: str, extra: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    for general in (False, True):
        allocator = create(kind, gpu=24)
        tables = [BlockTable(B, allocator) for _ in range(2)]
        if general:
            monkeypatch.setattr(BlockTable, "_append_in_place", lambda *_: False)
        for table in tables:
            table.allocate([1, 2], extra_hash=extra)
        tables += [tables[0].fork()]
        seen = []
        for step in range(11):
            for at, table in enumerate(tables):
                more = [step % 3 if at < 2 else step, 7][: 1 + step % 2]
                table.append_token_ids(more, num_lookahead_slots=step % 3, extra_hash=extra)
            seen.append((allocator.clear_copy_on_writes(), observe(allocator, *tables)))
            if step % 2:
                allocator.mark_blocks_as_computed([])
        hashes = [[block.content_hash for block in table.blocks] for table in tables]
        shown.append((seen, hashes))
    assert shown[0] == shown[1]
