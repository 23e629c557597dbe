"""A prefix tree, as in SGLang. A match takes no references.

In each round, the scheduler matches all waiting requests and sorts them by the length of the match.
Then it locks, that is acquires, the matched blocks of those requests that it runs.

These calls of kvpool replace the calls of the engine:

| call of the engine | kvpool |
|---|---|
| ``match_prefix(key)``, for each request | ``pool.probe(chain, most)``; chain and count are the handle |
| ``inc_lock_ref(node)`` | ``pool.match_and_acquire(chain, blocks)``, of blocks still cached |
| ``dec_lock_ref(node)``, and the request's own pages | ``pool.release(ids, tail_first=True)`` |
| insert after a prompt or an answer was computed | ``insert`` of :mod:`~examples.ports.ids_and_trie` |
| ``evict(n)`` | nothing: ``pool.allocate`` evicts |
| ``evictable_size``, ``protected_size`` | ``pool.stats()``: ``cached_free``, and ``registered`` less that |

A page is a block, with 16 tokens or more. The pool chooses the ids. For an engine with its own
allocator of slots the pool can be only an index: :mod:`~examples.ports.index_only`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from examples.ports.ids_and_trie import Ids, IdsAndTrie, Node, PlainIdsAndTrie
from examples.ports.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvpool.hashing import HashChain

__all__ = ["Handle", "PlainRadixCache", "RadixCache", "Tree", "main", "serve"]

What = TypeVar("What")


@dataclass(frozen=True, slots=True)
class Handle(Generic[What]):
    """The result of a match: the first ``num_blocks`` blocks of ``where``.

    They are not acquired until ``lock``.
    """

    num_blocks: int
    where: What


class Tree(Protocol):
    """The calls that a scheduler makes on a prefix tree."""

    @property
    def num_available(self) -> int: ...  # noqa: D102
    @property
    def sizes(self) -> tuple[int, int]: ...  # noqa: D102
    def match_prefix(self, tokens: Sequence[int]) -> Handle[Any]: ...  # noqa: D102
    def lock(self, handle: Any) -> Ids: ...  # noqa: D102
    def allocate(self, n: int) -> Ids: ...  # noqa: D102
    def insert(self, tokens: Sequence[int], ids: Ids, start: int) -> None: ...  # noqa: D102
    def release(self, ids: Ids) -> None: ...  # noqa: D102


class PlainRadixCache(PlainIdsAndTrie):
    """A prefix tree without kvpool, over the plain trie of ``ids_and_trie``."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of cached blocks that can be evicted, and number of cached blocks that requests use."""
        return self._idle, len(self._nodes) - self._idle

    def match_prefix(self, tokens: Sequence[int]) -> Handle[list[Node]]:
        """Finds the longest cached prefix, without adding references."""
        path = self.find(tokens)
        return Handle(len(path), path)

    def lock(self, handle: Handle[list[Node]]) -> Ids:
        """Acquires those of the matched blocks that are still cached."""
        return self.hold([node for node in handle.where if self._nodes.get(node.block) is node])


class RadixCache(IdsAndTrie):
    """A prefix tree over ``BlockPool``, with the answers of :class:`PlainRadixCache`."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of cached blocks that can be evicted, and number of cached blocks that requests use."""
        stats = self.pool.stats()
        return stats.cached_free, stats.registered - stats.cached_free

    def match_prefix(self, tokens: Sequence[int]) -> Handle[HashChain]:
        """Finds the longest cached prefix, without adding references."""
        chain = self.chain(tokens)
        most = max(len(tokens) - 1, 0) // self.block_size
        return Handle(self.pool.probe(chain, most).cached_blocks, chain)

    def lock(self, handle: Handle[HashChain]) -> Ids:
        """Acquires those of the matched blocks that are still cached."""
        return np.array(self.pool.match_and_acquire(handle.where, handle.num_blocks), dtype=np.int32)


def serve(
    cache: Tree, memory: Memory, prompts: Sequence[list[int]]
) -> list[tuple[int, int, tuple[int, int]]]:
    """Serves prompts without decoding.

    Each round matches all waiting prompts, and takes those with the longest match first. Returns an
    entry for each request: its number, its number of matched blocks, and the sizes of the tree
    afterwards.
    """
    waiting = list(enumerate(prompts))
    log = []
    while waiting:
        matches = [(cache.match_prefix(prompt), number, prompt) for number, prompt in waiting]
        matches.sort(key=lambda match: -match[0].num_blocks)
        batch = []
        for handle, number, prompt in matches:
            # Requests that ran earlier in this round may have evicted some of the matched blocks.
            matched = cache.lock(handle)
            missing = -(-len(prompt) // memory.block_size) - len(matched)
            if missing > cache.num_available:
                cache.release(matched)
                break
            batch.append((number, prompt, np.concatenate([matched, cache.allocate(missing)]), len(matched)))
            log.append((number, len(matched), cache.sizes))
        memory.step((ids.tolist(), prompt, start * memory.block_size) for _, prompt, ids, start in batch)
        for _, prompt, ids, start in batch:
            cache.insert(prompt, ids, start)
        for number, _, ids, _ in batch:
            cache.release(ids)
            waiting = [row for row in waiting if row[0] != number]
            log.append((number, -1, cache.sizes))
    return log


def main() -> None:
    """Serves twelve prompts with two different prefixes on a pool that is too small for all of them."""
    prompts = [
        [*range(100 * (number % 2), 100 * (number % 2) + 12), *range(number, number + 5)]
        for number in range(12)
    ]
    results = []
    caches: list[Tree] = [PlainRadixCache(16, 4), RadixCache(16, 4)]
    for cache in caches:
        log = serve(cache, Memory(16, 4), prompts)
        matched = sum(number for _, number, _ in log if number > 0)
        print(
            f"{type(cache).__name__}: {len(log)} events, {matched} blocks matched, {cache.sizes[0]} evictable"
        )
        results.append(log)
    print("the same answers:", results[0] == results[1])


if __name__ == "__main__":
    main()
