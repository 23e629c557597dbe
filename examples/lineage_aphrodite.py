"""Uses kvpool as Aphrodite's prefix-caching allocator: reuse, promotion, copy-on-write."""

from __future__ import annotations

from kvpool.lineage.aphrodite import PrefixCachingBlockAllocator


def main() -> None:
    """Allocates two sequences with a common prefix, and copies a block before a write."""
    allocator = PrefixCachingBlockAllocator(num_blocks=6, block_size=4, block_ids=range(100, 106))

    first = allocator.allocate_immutable(prev_block=None, token_ids=[1, 2, 3, 4])
    twin = allocator.allocate_immutable(prev_block=None, token_ids=[1, 2, 3, 4])
    print("equal content:", first.block_id, twin.block_id)
    allocator.mark_blocks_as_computed()  # the step is certain to run
    print("a prefill can skip:", allocator.get_common_computed_block_ids([[100, 105]]))
    allocator.free(twin)

    typed = allocator.allocate_mutable(prev_block=None)
    before = typed.block_id
    typed.append_token_ids([1, 2, 3, 4])
    print("promotion:", before, "->", typed.block_id, "cached:", allocator.is_block_cached(typed))

    tail = allocator.allocate_mutable(prev_block=first)
    tail.append_token_ids([5])
    fork = allocator.fork(tail)
    fork[-1].append_token_ids([6])
    print("copies to make:", allocator.clear_copy_on_writes())

    allocator.free(fork[-1])
    try:
        fork[-1].append_token_ids([7])
    except AssertionError as error:
        print("use after free:", error)
    print("free:", allocator.get_num_free_blocks(), "of", allocator.get_num_total_blocks())


if __name__ == "__main__":
    main()
