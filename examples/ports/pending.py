"""Calls of ``BlockPool`` that two of the ports wait for: what they are to take and to return.

``AVAILABLE`` says whether the installed kvpool has them. Once the stubs have them, this module can go: replace
``batch_pool(pool)`` by ``pool``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

import kvpool

if TYPE_CHECKING:
    from kvpool._core import BlockIds, _Array
    from kvpool.hashing import HashChain

__all__ = ["AVAILABLE", "BatchPool", "Match", "batch_pool"]

AVAILABLE = all(
    hasattr(kvpool.BlockPool, name)
    for name in ("ref_counts", "evict", "lookup", "acquire_match", "register_table", "adopt", "disown")
)


class Match(Protocol):
    """A match that holds nothing: a handle that may go stale. ``len`` is its blocks."""

    def __len__(self) -> int: ...


class BatchPool(Protocol):
    """The calls."""

    def ref_counts(self, ids: BlockIds, *, out: _Array) -> int:
        """Writes the references of each block."""

    def evict(self, n: int) -> list[int]:
        """Forgets the contents of the next victims and returns them."""

    def lookup(self, chain: HashChain, start: int = 0) -> Match:
        """Finds the longest cached prefix and holds nothing."""

    def acquire_match(self, match: Match) -> list[int]:
        """Acquires what a lookup found, all or nothing."""

    def register_table(self, ids: BlockIds, chain: HashChain, start: int) -> list[tuple[int, int]]:
        """Registers blocks, and exchanges those that are cached already: returns positions and the blocks there now."""

    def adopt(self, ids: BlockIds, chain: HashChain, start: int) -> int:
        """Takes blocks that somebody else's allocator handed out, with their contents."""

    def disown(self, ids: BlockIds) -> int:
        """Forgets blocks that go back to that allocator."""


def batch_pool(pool: kvpool.BlockPool) -> BatchPool:
    """The pool, with the calls above."""
    return cast("BatchPool", pool)
