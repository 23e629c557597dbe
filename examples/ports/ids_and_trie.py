"""An allocator of ids with reference counts, and a trie of cached blocks, as in LMDeploy.

Ids are numpy arrays.

These calls of kvpool replace the calls of the engine:

| call of the engine | kvpool |
|---|---|
| ``allocator.allocate(n)`` | ``pool.allocate(n, out=ids)``, which evicts blocks if needed |
| ``allocator.add_ref_count(ids, 1)`` | ``pool.acquire(ids)`` |
| ``free(ids)`` | ``pool.release(ids, tail_first=True)`` |
| ``allocator.get_ref_count(ids)`` | ``pool.ref_count(ids, out=)``, see :mod:`~examples.ports.index_only` |
| ``trie.match(seq)`` | ``pool.match_and_acquire(chain)``: returns the blocks with references |
| ``trie.insert(seq)``, after the step | ``pool.register(ids, chain, start)``, ``pool.mark_computed(ids)`` |
| ``trie.evict(n)`` | nothing: a cached block without references counts as available |

The trie of such an engine has a reference to every cached block, and drops it when too few blocks are free.
In kvpool a cached block needs no reference, so the engine needs no code for the trie's references.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

import kvpool
from examples.ports.memory import Memory
from kvpool.hashing import ChainLink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvpool.hashing import HashChain

__all__ = ["Cache", "Ids", "IdsAndTrie", "Node", "PlainIdsAndTrie", "main", "serve"]

Ids: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"


class Cache(Protocol):
    """The calls that an engine makes on its cache.

    ``tokens`` are all tokens of the sequence, from its start.
    """

    @property
    def num_available(self) -> int: ...  # noqa: D102
    def allocate(self, n: int) -> Ids: ...  # noqa: D102
    def add_ref(self, ids: Ids) -> None: ...  # noqa: D102
    def release(self, ids: Ids) -> None: ...  # noqa: D102
    def match(self, tokens: Sequence[int]) -> Ids: ...  # noqa: D102
    def insert(self, tokens: Sequence[int], ids: Ids, start: int) -> None: ...  # noqa: D102


@dataclass(eq=False, slots=True)
class Node:
    """A node of the plain trie. Each node is a cached block."""

    block: int
    tokens: tuple[int, ...]
    parent: Node | None
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    #: Time at which the last request released the block. Eviction uses it.
    released: int = 0


class PlainIdsAndTrie:
    """A cache without kvpool: a free list, reference counts, and a trie with one reference to each node."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, 0, -1))
        self._refs = np.zeros(num_blocks, dtype=np.int32)
        self._root = Node(0, (), None)
        self._nodes: dict[int, Node] = {}
        self._idle = 0
        self._clock = count(1)

    @property
    def num_available(self) -> int:
        """Number of blocks that no request holds.

        A pool can allocate all of them. The trie's own references do not count.
        """
        return len(self._free) + self._idle

    def allocate(self, n: int) -> Ids:
        """Allocates blocks with one reference each. Evicts blocks if needed."""
        if n > self.num_available:
            raise kvpool.errors.OutOfBlocksError(f"{n} blocks, {self.num_available} available")
        self.evict(n - len(self._free))
        ids = np.array([self._free.pop() for _ in range(n)], dtype=np.int32)
        self._refs[ids] = 1
        return ids

    def add_ref(self, ids: Ids) -> None:
        """Adds a reference to each block."""
        np.add.at(self._refs, ids, 1)

    def release(self, ids: Ids) -> None:
        """Drops one reference to each block, the last block first."""
        for block in reversed(ids.tolist()):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free.append(block)
            elif self._refs[block] == 1 and (node := self._nodes.get(block)):
                node.released = next(self._clock)
                self._idle += 1

    def find(self, tokens: Sequence[int]) -> list[Node]:
        """Returns the trie's nodes for the longest cached prefix. At least one token is left to compute."""
        node, path = self._root, []
        for end in range(self.block_size, len(tokens), self.block_size):
            child = node.children.get(tuple(tokens[end - self.block_size : end]))
            if child is None:
                break
            path.append(node := child)
        return path

    def match(self, tokens: Sequence[int]) -> Ids:
        """Returns the blocks of the longest cached prefix, with one reference each."""
        return self.hold(self.find(tokens))

    def hold(self, path: list[Node]) -> Ids:
        """Adds a reference to the block of each node."""
        ids = np.array([node.block for node in path], dtype=np.int32)
        self._idle -= int((self._refs[ids] == 1).sum())
        self.add_ref(ids)
        return ids

    def insert(self, tokens: Sequence[int], ids: Ids, start: int) -> None:
        """Caches the full blocks from block ``start`` on.

        If the content of a block is already cached, the cached block replaces the request's in ``ids``.
        """
        node = self._root
        for position in range(len(tokens) // self.block_size):
            part = tuple(tokens[position * self.block_size : (position + 1) * self.block_size])
            child = node.children.get(part)
            if child is None:
                child = node.children[part] = Node(int(ids[position]), part, node)
                self._nodes[child.block] = child
                self._refs[child.block] += 1
            elif position >= start and child.block != ids[position]:
                mine, ids[position : position + 1] = ids[position : position + 1].copy(), self.hold([child])
                self.release(mine)
            node = child

    def evict(self, n: int) -> None:
        """Evicts leaves of the trie that no request holds, least recently released first."""
        leaves = [] if n <= 0 else [node for node in self._nodes.values() if self._evictable(node)]
        heap = [(node.released, node.block, node) for node in leaves]
        heapq.heapify(heap)
        for _ in range(n):
            _, block, node = heapq.heappop(heap)
            parent = node.parent
            assert parent is not None
            del parent.children[node.tokens], self._nodes[block]
            self._refs[block] = 0
            self._free.append(block)
            self._idle -= 1
            if parent is not self._root and self._evictable(parent):
                heapq.heappush(heap, (parent.released, parent.block, parent))

    def _evictable(self, node: Node) -> bool:
        return not node.children and bool(self._refs[node.block] == 1)


class IdsAndTrie:
    """A cache over ``BlockPool``, with the answers of :class:`PlainIdsAndTrie`."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.pool = kvpool.BlockPool(num_blocks, block_size)
        self.hasher = kvpool.BlockHasher("sha256", block_size)

    @property
    def num_available(self) -> int:
        """Number of blocks that no request holds. A pool can allocate all of them."""
        return self.pool.num_available

    def allocate(self, n: int) -> Ids:
        """Allocates blocks with one reference each."""
        ids = np.empty(n, dtype=np.int32)
        self.pool.allocate(n, out=ids)
        return ids

    def add_ref(self, ids: Ids) -> None:
        """Adds a reference to each block."""
        self.pool.acquire(ids)

    def release(self, ids: Ids) -> None:
        """Drops one reference to each block.

        Cached blocks without references are evicted when space is needed.
        """
        self.pool.release(ids, tail_first=True)

    def match(self, tokens: Sequence[int]) -> Ids:
        """Returns the blocks of the longest cached prefix, with one reference each."""
        most = max(len(tokens) - 1, 0) // self.block_size
        return np.array(self.pool.match_and_acquire(self.chain(tokens), most), dtype=np.int32)

    def insert(self, tokens: Sequence[int], ids: Ids, start: int) -> None:
        """Caches the full blocks from block ``start`` on.

        If the content of a block is already cached, the cached block replaces the request's in ``ids``.
        """
        chain = self.chain(tokens)
        if self.pool.probe(chain).cached_blocks > start:
            self._exchange(tokens, chain, ids, start)
        else:
            self.pool.register(ids[start : len(chain)], chain, start)
            self.pool.mark_computed(ids[start : len(chain)])

    def chain(self, tokens: Sequence[int]) -> HashChain:
        """Returns the hashes of all full blocks of these tokens.

        A real engine would keep one cursor per request, and append the new tokens to it.
        """
        return self.hasher.cursor(tokens).chain()

    def _exchange(self, tokens: Sequence[int], chain: HashChain, ids: Ids, start: int) -> None:
        """Registers one block after the other, because another request has cached some of them first."""
        digests, size = chain.digests(), self.block_size
        for position in range(start, len(chain)):
            part = tokens[position * size : (position + 1) * size]
            parent = digests[position - 1] if position else None
            link = ChainLink.from_digest("sha256", digests[position], part, parent=parent, depth=position)
            block = self.pool.register_link(int(ids[position]), link)
            if block == ids[position]:
                self.pool.mark_computed([block])
            ids[position] = block


def serve(
    cache: Cache, memory: Memory, prompts: Sequence[list[int]], new_tokens: int
) -> list[tuple[int, int, int]]:
    """Runs a scheduler that admits a request if blocks for its full length are available.

    Each step computes one token of each request. Returns an entry for each start and each end of a
    request: its number, its number of matched blocks, and the number of available blocks.
    """
    size = memory.block_size
    waiting = list(enumerate(prompts))
    running: list[tuple[int, list[int], Ids]] = []
    log = []
    while waiting or running:
        rows = [(ids.tolist(), tokens, len(tokens) - 1) for _, tokens, ids in running]
        old = len(running)
        while waiting:
            number, prompt = waiting[0]
            matched = cache.match(prompt)
            missing = -(-(len(prompt) + new_tokens) // size) - len(matched)
            if missing > cache.num_available:
                cache.release(matched)
                break
            del waiting[0]
            ids = np.concatenate([matched, cache.allocate(missing)])
            running.append((number, list(prompt), ids))
            rows.append((ids.tolist(), prompt, len(matched) * size))
            log.append((number, len(matched), cache.num_available))
        memory.step(rows)
        for (_, tokens, ids), (_, _, start) in zip(running[old:], rows[old:], strict=True):
            cache.insert(tokens, ids, start // size)
        left = []
        for number, tokens, ids in running:
            tokens.append(sum(tokens[-3:]) % 7)
            if len(tokens) < len(prompts[number]) + new_tokens:
                left.append((number, tokens, ids))
                continue
            # The last token was sampled, but its KV was not computed. The prompt's blocks are already
            # cached.
            cache.insert(tokens[:-1], ids, len(prompts[number]) // size)
            cache.release(ids)
            log.append((number, -1, cache.num_available))
        running = left
    return log


def main() -> None:
    """Serves twelve prompts with a common start on a pool that is too small for all of them."""
    prompts = [[*range(100, 112), *range(number, number + 5)] for number in range(12)]
    results = []
    for cache in (PlainIdsAndTrie(24, 4), IdsAndTrie(24, 4)):
        log = serve(cache, Memory(24, 4), prompts, new_tokens=8)
        matched = sum(number for _, number, _ in log if number > 0)
        print(
            f"{type(cache).__name__}: {len(log)} events, {matched} blocks matched, {cache.num_available} "
            "available"
        )
        results.append(log)
    print("the same answers:", results[0] == results[1])


if __name__ == "__main__":
    main()
