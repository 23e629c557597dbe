"""Makes the calls that vLLM 0.4 made to its allocators, and checks kvpool's interface with Aphrodite's
names, which are of the same time.

The callers put a prompt into immutable blocks and one mutable block. They called
``get_common_computed_block_ids`` with the ids of every table. After a step was planned, they called
``mark_blocks_as_computed()`` without an argument.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvpool.lineage import aphrodite

SIZE = 4


def lineage(item: str) -> pytest.MarkDecorator:
    return pytest.mark.lineage(ancestor="002", item=item)


def allocator_of(kind: str, num_blocks: int) -> Any:
    if kind == "naive":
        return aphrodite.NaiveBlockAllocator(
            create_block=aphrodite.NaiveBlock,
            num_blocks=num_blocks,
            block_size=SIZE,
            block_ids=range(num_blocks),
        )
    return aphrodite.PrefixCachingBlockAllocator(
        num_blocks=num_blocks, block_size=SIZE, block_ids=range(num_blocks)
    )


both = pytest.mark.parametrize("kind", ["naive", "prefix_caching"])


def table_of(allocator: Any, tokens: list[int]) -> list[int]:
    """Returns the ids of a prompt's blocks. Full blocks are immutable, and the last block is mutable."""
    ids: list[int] = []
    prev: Any = None
    for start in range(0, len(tokens), SIZE):
        chunk = tokens[start : start + SIZE]
        if len(chunk) == SIZE:
            prev = allocator.allocate_immutable(prev_block=prev, token_ids=chunk)
        else:
            prev = allocator.allocate_mutable(prev_block=prev)
            prev.append_token_ids(chunk)
        ids.append(prev.block_id)
    return ids


@lineage("callers: all ids of every table: right after allocate nothing is computed")
@both
def test_right_after_allocate_nothing_is_computed(kind: str) -> None:
    allocator = allocator_of(kind, 8)
    first = table_of(allocator, list(range(9)))
    assert allocator.get_common_computed_block_ids([first]) == []
    assert allocator.get_common_computed_block_ids(seq_block_ids=[first, first]) == []
    allocator.mark_blocks_as_computed()
    second = table_of(allocator, list(range(9)))
    expected = first[:2] if kind == "prefix_caching" else []
    assert allocator.get_common_computed_block_ids([second]) == expected
    assert allocator.get_common_computed_block_ids([first, second]) == expected


@lineage("callers: a prompt that is cached whole has its last block computed again")
def test_the_last_block_of_a_table_is_never_skipped() -> None:
    allocator = allocator_of("prefix_caching", 8)
    first = table_of(allocator, list(range(8)))
    allocator.mark_blocks_as_computed()
    second = table_of(allocator, list(range(8)))
    assert first == second
    assert allocator.get_common_computed_block_ids([second]) == second[:1]
    assert allocator.get_common_computed_block_ids([[], second]) == []
    assert allocator.get_common_computed_block_ids([]) == []


@lineage("callers: a block behind a hole, or of one table alone, is not common")
def test_a_gap_and_a_difference_end_the_common_prefix() -> None:
    allocator = allocator_of("prefix_caching", 8)
    chain: Any = [allocator.allocate_immutable(None, [0] * SIZE)]
    for n in range(1, 4):
        chain.append(allocator.allocate_immutable(chain[-1], [n] * SIZE))
    ids = [block.block_id for block in chain]
    allocator.mark_blocks_as_computed([ids[0], ids[2], ids[3]])
    assert allocator.get_common_computed_block_ids([ids]) == ids[:1]
    allocator.mark_blocks_as_computed()
    assert allocator.get_common_computed_block_ids([ids]) == ids[:3]
    assert allocator.get_common_computed_block_ids([ids, [*ids[:2], 7, 6]]) == ids[:2]
