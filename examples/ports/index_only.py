"""The caches of ``ids_and_trie`` and ``radix_cache`` with batch calls and an index-only pool.

If the pool is only an index, the engine allocates the ids.

These calls of kvpool replace the calls of the engine:

| call of the engine | kvpool |
|---|---|
| insert, perhaps after another request | ``pool.register_table(ids, chain, start)`` returns replaced blocks |
| ``match_prefix`` | ``pool.lookup(chain)``: ids, count and handle, without references |
| ``inc_lock_ref(node)`` | ``pool.acquire(match)``: all blocks, or ``StaleMatchError`` |
| insert ids of the engine's allocator | ``pool.adopt(ids, chain, start)`` returns ids that it does not need |
| ``evict(n)``, for that allocator | ``pool.evict(n)`` returns ids to the allocator |
| is this page cached, or owned by the request? | ``pool.ref_count(ids, out=)``: 0 for an unknown id |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import kvpool
from examples.ports.ids_and_trie import Ids, IdsAndTrie
from examples.ports.memory import Memory
from examples.ports.radix_cache import Handle, PlainRadixCache, Tree, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvpool.hashing import HashChain

__all__ = ["BatchIdsAndTrie", "IndexOnly", "main"]


class BatchIdsAndTrie(IdsAndTrie):
    """``IdsAndTrie`` with one call per insert, even if another request has cached a block first."""

    def insert(self, tokens: Sequence[int], ids: Ids, start: int) -> None:
        """Caches the full blocks of these tokens, from block ``start`` on."""
        chain = self.chain(tokens)
        for position, block in self.pool.register_table(ids[start : len(chain)], chain, start):
            ids[start + position] = block

    def ref_counts(self, ids: Ids) -> Ids:
        """Returns the reference count of each block; 0 for a block that the pool does not know."""
        counts = np.empty(len(ids), dtype=np.int32)
        self.pool.ref_count(ids, out=counts)
        return counts


class IndexOnly(IdsAndTrie):
    """``RadixCache`` for an engine that allocates the ids itself.

    The pool only knows the ids of cached blocks.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        #: The free ids of the engine's allocator. In SGLang this is a tensor on the device.
        self.free = list(range(num_blocks - 1, 0, -1))

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of cached blocks that can be evicted, and number of cached blocks that requests use."""
        stats = self.pool.stats()
        return stats.cached_free, stats.registered - stats.cached_free

    @property
    def num_available(self) -> int:
        """Number of ids that no request holds. Their blocks may be cached."""
        return len(self.free) + self.pool.stats().cached_free

    def allocate(self, n: int) -> Ids:
        """Takes ids from the engine's allocator.

        If it has too few, the pool evicts blocks and returns their ids.
        """
        self.free += self.pool.evict(max(n - len(self.free), 0))
        if n > len(self.free):
            raise kvpool.errors.OutOfBlocksError(f"{n} blocks, {len(self.free)} available")
        return np.array([self.free.pop() for _ in range(n)], dtype=np.int32)

    def match_prefix(self, tokens: Sequence[int]) -> Handle[tuple[HashChain, kvpool.Match]]:
        """Finds the longest cached prefix, without adding references."""
        chain = self.chain(tokens[:-1])
        match = self.pool.lookup(chain)
        return Handle(len(match), (chain, match))

    def lock(self, handle: Handle[tuple[HashChain, kvpool.Match]]) -> Ids:
        """Acquires those of the matched blocks that are still cached."""
        chain, match = handle.where
        try:
            self.pool.acquire(match)
        except kvpool.errors.StaleMatchError:  # some blocks were evicted
            return np.array(self.pool.match_and_acquire(chain, handle.num_blocks), dtype=np.int32)
        return np.array(match.block_ids, dtype=np.int32)

    def insert(self, tokens: Sequence[int], ids: Ids, start: int) -> None:
        """Caches full blocks.

        If another request has cached a block with the same content first, this request gets that block.
        Its own id becomes free.
        """
        chain = self.chain(tokens)
        for position, block in self.pool.adopt(ids[start : len(chain)], chain, start):
            self.free.append(int(ids[start + position]))
            ids[start + position] = block

    def release(self, ids: Ids) -> None:
        """Releases references to cached blocks in the pool. Returns other ids to the engine's allocator."""
        held = np.empty(len(ids), dtype=np.int32)
        self.pool.ref_count(ids, out=held)
        self.pool.release(ids[held > 0], tail_first=True)
        self.free += ids[held == 0].tolist()


def main() -> None:
    """Serves twelve prompts with two different prefixes on a pool that is too small for all of them."""
    prompts = [
        [*range(100 * (number % 2), 100 * (number % 2) + 12), *range(number, number + 5)]
        for number in range(12)
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
