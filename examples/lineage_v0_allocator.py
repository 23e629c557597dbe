"""Uses kvpool as vLLM v0's prefix-caching allocator: reuse, copy-on-write, and an abort."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kvpool
from kvpool.lineage.v0.block.prefix_caching_block import PrefixCachingBlockAllocator

if TYPE_CHECKING:
    from kvpool.lineage.v0.block.interfaces import Block

PROMPT = [[1, 2, 3, 4], [5, 6, 7, 8]]


def ids(blocks: list[Block]) -> list[int | None]:
    """Returns the numbers of the physical blocks in a sequence's table."""
    return [block.block_id for block in blocks]


def main() -> None:
    """Runs four requests on eight blocks."""
    allocator = PrefixCachingBlockAllocator(num_blocks=8, block_size=4)

    table = allocator.allocate_immutable_blocks(None, PROMPT)
    tail = allocator.allocate_mutable_block(table[-1])
    tail.append_token_ids([9])
    allocator.mark_blocks_as_computed([])  # the step has run, so filled blocks are cached
    fork = allocator.fork(tail)
    fork[-1].append_token_ids([10])  # the tail is shared, so this block gets a copy
    print(
        "first:",
        ids([*table, tail]),
        "its fork:",
        ids(fork),
        "copies to make:",
        allocator.clear_copy_on_writes(),
    )

    for block in [*table, tail, *fork]:
        allocator.free(block)
    again = allocator.allocate_immutable_blocks(None, PROMPT)
    print("the same prompt:", ids(again), "computed:", [block.computed for block in again])

    other = allocator.allocate_immutable_blocks(None, PROMPT, kvpool.ExtraKeys(tenant="somebody else"))
    hashes = [block.content_hash for block in other if block.content_hash is not None]
    for block in other:
        allocator.free(block)  # aborted before its step has run
    print(
        "another tenant's blocks:",
        len(hashes),
        "found after the abort:",
        len(allocator.find_cached_blocks_prefix(hashes)),
    )
    print(
        f"hit rate: {allocator.get_prefix_cache_hit_rate():.2f}, free: {allocator.get_num_free_blocks()} of 8"
    )


if __name__ == "__main__":
    main()
