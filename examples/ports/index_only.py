"""The last two shapes with the pool's batch calls, and a pool that is an index only: ids are the engine's.

| the engine's call | here |
|---|---|
| insert, when others may have been faster | ``pool.register_table(ids, chain, start)`` returns what it exchanged |
| ``match_prefix`` | ``pool.lookup(chain)``: ids, count and handle, and nobody holds them |
| ``inc_lock_ref(node)`` | ``pool.acquire_match(match)``: all of it, or ``StaleMatchError`` |
| insert ids that the engine's allocator handed out | ``pool.adopt(ids, chain, start)``; what it exchanges goes back |
| ``evict(n)``, for that allocator | ``pool.evict(n)``: the ids are the allocator's again |
| is this page cached or the request's own? | ``pool.ref_counts(ids, out=)``: 0 of an id that it does not know |

``AVAILABLE`` says whether the installed kvpool has these calls. Once its stubs have them, ``BatchPool`` can go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

import kvpool
from examples.ports.ids_and_trie import Ids, IdsAndTrie
from examples.ports.memory import Memory
from examples.ports.radix_cache import Handle, PlainRadixCache, Tree, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvpool._core import BlockIds, _Array
    from kvpool.hashing import HashChain

__all__ = ["AVAILABLE", "BatchIdsAndTrie", "IndexOnly", "main"]

AVAILABLE = all(
    hasattr(kvpool.BlockPool, name)
    for name in ("ref_counts", "evict", "lookup", "acquire_match", "register_table", "adopt")
)


class Match(Protocol):
    """A match that holds nothing."""

    @property
    def block_ids(self) -> list[int]: ...
    def __len__(self) -> int: ...


class BatchPool(Protocol):
    """The calls, as they are to be."""

    def ref_counts(self, block_ids: BlockIds, *, out: _Array) -> int: ...
    def evict(self, n: int) -> list[int]: ...
    def lookup(self, chain: HashChain, start: int = 0, max_blocks: int | None = None) -> Match: ...
    def acquire_match(self, found: Match) -> None: ...
    def register_table(self, block_ids: BlockIds, chain: HashChain, start: int = 0) -> list[tuple[int, int]]: ...
    def adopt(self, block_ids: BlockIds, chain: HashChain, start: int = 0) -> list[tuple[int, int]]: ...


class BatchIdsAndTrie(IdsAndTrie):
    """``IdsAndTrie`` with one call per insert, whether somebody was faster or not."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.calls = cast("BatchPool", self.pool)

    def insert(self, tokens: Sequence[int], ids: Ids, start: int) -> None:
        """Caches the full blocks from ``start`` on."""
        chain = self.chain(tokens)
        for position, block in self.calls.register_table(ids[start : len(chain)], chain, start):
            ids[start + position] = block

    def ref_counts(self, ids: Ids) -> Ids:
        """How many hold each block."""
        counts = np.empty(len(ids), dtype=np.int32)
        self.calls.ref_counts(ids, out=counts)
        return counts


class IndexOnly(IdsAndTrie):
    """``RadixCache`` for an engine that hands out the ids itself. The pool knows those that are cached."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.calls = cast("BatchPool", self.pool)
        #: The engine's allocator: in SGLang a tensor on the device.
        self.free = list(range(num_blocks - 1, 0, -1))

    @property
    def sizes(self) -> tuple[int, int]:
        """Cached blocks that could be evicted, and that could not."""
        stats = self.pool.stats()
        return stats.cached_free, stats.registered - stats.cached_free

    @property
    def num_available(self) -> int:
        """Ids that nobody holds, cached or not."""
        return len(self.free) + self.pool.stats().cached_free

    def allocate(self, n: int) -> Ids:
        """Takes ids from the engine's allocator. The pool gives back what is missing."""
        self.free += self.calls.evict(max(n - len(self.free), 0))
        if n > len(self.free):
            raise kvpool.errors.OutOfBlocksError(f"{n} blocks, {len(self.free)} available")
        return np.array([self.free.pop() for _ in range(n)], dtype=np.int32)

    def match_prefix(self, tokens: Sequence[int]) -> Handle[tuple[HashChain, Match]]:
        """Finds the longest cached prefix and holds nothing."""
        chain = self.chain(tokens[:-1])
        match = self.calls.lookup(chain)
        return Handle(len(match), (chain, match))

    def lock(self, handle: Handle[tuple[HashChain, Match]]) -> Ids:
        """Holds what was matched, as far as it is still there."""
        chain, match = handle.where
        try:
            self.calls.acquire_match(match)
        except kvpool.KvpoolError:  # stale: some of it was evicted
            return np.array(self.pool.match_and_acquire(chain, handle.num_blocks), dtype=np.int32)
        return np.array(match.block_ids, dtype=np.int32)

    def insert(self, tokens: Sequence[int], ids: Ids, start: int) -> None:
        """Caches full blocks. Where somebody was faster, the request gets that block, and its own id is free again."""
        chain = self.chain(tokens)
        for position, block in self.calls.adopt(ids[start : len(chain)], chain, start):
            self.free.append(int(ids[start + position]))
            ids[start + position] = block

    def release(self, ids: Ids) -> None:
        """Gives up cached blocks to the pool, and others to the engine's allocator."""
        held = np.empty(len(ids), dtype=np.int32)
        self.calls.ref_counts(ids, out=held)
        self.pool.release_table(ids[held > 0])
        self.free += ids[held == 0].tolist()


def main() -> None:
    """Serves twelve prompts of two families on a pool that is too small for all of them."""
    if not AVAILABLE:
        print("this kvpool has no batch calls yet")
        return
    prompts = [
        [*range(100 * (number % 2), 100 * (number % 2) + 12), *range(number, number + 5)] for number in range(12)
    ]
    results = []
    caches: list[Tree] = [PlainRadixCache(16, 4), IndexOnly(16, 4)]
    for cache in caches:
        log = serve(cache, Memory(16, 4), prompts)
        print(f"{type(cache).__name__}: {len(log)} events, {cache.sizes[0]} evictable")
        results.append(log)
    print("the same answers:", results[0] == results[1])


if __name__ == "__main__":
    main()
