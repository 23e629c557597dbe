"""A table of the allocators with vLLM v0's interface, and of those with Aphrodite's interface over
them. Also has common code of their tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.lineage import aphrodite
from kvpool.lineage.v0.block.naive_block import NaiveBlock, NaiveBlockAllocator
from kvpool.lineage.v0.block.prefix_caching_block import PrefixCachingBlockAllocator

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvpool.lineage.v0.block.interfaces import Block


def lineage(item: str, ancestor: str = "004") -> pytest.MarkDecorator:
    return pytest.mark.lineage(ancestor=ancestor, item=item)


@dataclass(frozen=True)
class Row:
    """An allocator, and how its methods are called in the ancestor, the older block manager that it
    replaces.
    """

    #: Whether the methods have Aphrodite's names, which are older than vLLM v0's.
    older: bool
    caching: bool

    @property
    def name(self) -> str:
        return f"{'aphrodite' if self.older else 'v0'}-{'prefix' if self.caching else 'naive'}"

    def make(self, num_blocks: int = 8, block_size: int = 2, block_ids: Iterable[int] | None = None) -> Any:
        if self.caching:
            prefix = aphrodite.PrefixCachingBlockAllocator if self.older else PrefixCachingBlockAllocator
            return prefix(num_blocks, block_size, block_ids)
        if self.older:
            return aphrodite.NaiveBlockAllocator(aphrodite.NaiveBlock, num_blocks, block_size, block_ids)
        return NaiveBlockAllocator(NaiveBlock, num_blocks, block_size, block_ids)

    def mutable(self, allocator: Any, before: Block | None = None, **more: Any) -> Any:
        allocate = allocator.allocate_mutable if self.older else allocator.allocate_mutable_block
        return allocate(before, **more)

    def immutable(
        self, allocator: Any, tokens: Sequence[int], before: Block | None = None, **more: Any
    ) -> Any:
        allocate = allocator.allocate_immutable if self.older else allocator.allocate_immutable_block
        return allocate(before, tokens, **more)

    def copies(self, *pairs: tuple[int, int]) -> Any:
        """Returns the result that ``clear_copy_on_writes`` must have if these copies were made."""
        if not self.older:
            return list(pairs)
        return {src: [dst for other, dst in pairs if other == src] for src, _ in pairs}


ROWS = [Row(older, caching) for older in (False, True) for caching in (False, True)]


def rows(item: str, *, caching: bool | None = None) -> pytest.MarkDecorator:
    """Runs a test with every allocator, or only with those that cache, or only with those that do not
    cache.
    """
    chosen = [row for row in ROWS if caching in (None, row.caching)]
    marked = [
        pytest.param(row, marks=lineage(item, "002" if row.older else "004"), id=row.name) for row in chosen
    ]
    return pytest.mark.parametrize("row", marked)


def ids(blocks: Iterable[Block]) -> list[int | None]:
    return [block.block_id for block in blocks]


def observe(tiers: Any) -> object:
    """Returns everything that can be observed of the core, to check that a failed call has changed
    nothing.
    """
    tiers.check_invariants()
    shown = [
        (
            pool.diagnose.free_order(),
            pool.diagnose.eviction_order(),
            [
                (pool.ref_count(b), pool.diagnose.hash_of(b), pool.diagnose.is_computed(b))
                for b in range(pool.num_blocks)
            ],
        )
        for pool in tiers.pools
    ]
    return shown, tiers.pending_copies()


class Counted(int):
    """A block id that counts how often it is compared with another value."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)
