"""Eviction policies for vLLM's CPU offloading: ``CachePolicy`` classes whose order is an evictor of kvpool.

Owns, for one ``CPUOffloadingManager``, which keys are resident and in which order they would go. vLLM's
manager owns the rest: reference counts, slots, events, and what a request has used. The block id that
the evictor knows is the slot of a chunk plus one, for block 0 is the null block: slots are unique among
resident chunks and dense, keys are neither.

Chosen by ``"eviction_policy": "kvpool_lru"`` with ``"cache_policy_module_path"`` naming this module. A
further evictor of kvpool is one more subclass of ``EvictorCachePolicy``, with a name here.
"""

# ruff: noqa: ARG002  # the signatures are vLLM's

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, order_request_keys

import kvpool
from kvpool.errors import InvalidBlockError, InvariantError
from kvpool.integrations.vllm.offload.order import Evictor, Request, RunningRequests, VictimOrder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["EvictorCachePolicy", "kvpool_lru"]

#: vLLM's ``OffloadKey``: a block hash, and 4 bytes for the KV-cache group.
Key: TypeAlias = bytes
#: vLLM's ``ChunkStatus``: ``ref_cnt`` (-1 while it is being stored) and ``chunk_id``, its slot.
Chunk: TypeAlias = Any
#: vLLM's ``ReqContext``.
Context: TypeAlias = Any


class EvictorCachePolicy(CachePolicy):  # type: ignore[misc]  # vLLM is Any here
    """A ``CachePolicy`` of vLLM over an evictor of kvpool; subclasses say which.

    A use is a store, a ``touch``, or what a request has met when it finishes; loads that begin or end
    move nothing. Every use orders the tail of a prefix before its head. What a running request has met
    goes after what none has, by the token positions that vLLM notes. Chunks without a position (vLLM's
    scheduler makes none) count at once, the first stored first.

    Args:
        cache_capacity: Slots, of which ``chunk_id`` is one: 0 to ``cache_capacity - 1``.

    Raises:
        InvalidArgumentError: More slots than a pool of kvpool can have.
    """

    evictor_type: ClassVar[type[Evictor]]

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.clear()

    def clear(self) -> None:
        """Forgets every chunk, those in use included."""
        self._chunks: dict[Key, Chunk] = {}
        self._keys: dict[int, Key] = {}  # by block
        # The evictor has room for the null block, and for one more: there may be no slot at all.
        self._order = VictimOrder(self.evictor_type(max(2, self.cache_capacity + 1)))
        self._running = RunningRequests()
        self._fresh: dict[
            int, None
        ] = {}  # inserted without a position, not in the order yet: one call for all
        self._storing: Context = None  # whose misses were offered last

    def get(self, key: Key) -> Chunk | None:
        """The chunk of a key, or None. O(1)."""
        return self._chunks.get(key)

    def insert(self, key: Key, chunk: Chunk, req_context: Context = None) -> None:
        """Adds a chunk, used last; vLLM 0.32 passes no context. O(1).

        Raises:
            InvalidBlockError: The slot is outside the capacity, or another key's.
        """
        block = chunk.chunk_id + 1
        if not 0 < block <= self.cache_capacity:
            raise InvalidBlockError(
                f"slot {block - 1} is outside the {self.cache_capacity} slots of this policy"
            )
        if self._keys.get(block, key) != key:
            raise InvalidBlockError(f"slot {block - 1} is that of another resident chunk")
        if key in self._chunks:
            self.remove(key)
        context = self._storing if req_context is None else req_context
        position = None if context is None else context.get_offload_key_position(key)
        self._chunks[key] = chunk
        self._keys[block] = key
        if position is None:
            self._fresh[block] = None
        else:
            self._running.use(self._request(context), block, position)

    def remove(self, key: Key) -> None:
        """Drops a chunk, whatever its state. O(1).

        Raises:
            KeyError: The key is not resident.
        """
        block = self._chunks.pop(key).chunk_id + 1
        del self._keys[block]
        if block in self._fresh:
            del self._fresh[block]
        elif not self._running.drop(block):
            self._order.drop(block)

    def touch(self, keys: Iterable[Key], req_context: Context) -> None:
        """Uses the resident ones of some keys, given head to tail. O(keys)."""
        self._use(keys)

    def on_store_miss(self, keys: Iterable[Key], req_context: Context) -> None:
        """Notes whose chunks are going to be inserted; none of them is resident, so that there is
        nothing to use.
        """
        self._storing = req_context

    def on_request_access(self, keys: Iterable[Key], req_context: Context) -> None:
        """Notes the resident ones of what a request has met for the first time: vLLM 0.33 and later. O(keys).

        Those without a position stay where they are until the request finishes.
        """
        chunks, position = self._chunks, req_context.get_offload_key_position
        for key in keys:
            if key in chunks and (depth := position(key)) is not None:
                block = chunks[key].chunk_id + 1
                self._settle()
                self._order.drop(block)
                self._running.use(self._request(req_context), block, depth)

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[Key]],
        insertion_only_keys: set[Key],
        reused_keys: set[Key],
        req_context: Context,
    ) -> None:
        """Uses all that a request has met, as one: of all its KV-cache groups the tails go first. O(keys).

        What a request that began later has met, too, stays that one's until it finishes.
        """
        if self._storing is req_context:
            self._storing = None
        self._use(order_request_keys(key_groups, req_context), self._request(req_context))

    def evict(self, n: int, protected: set[Key]) -> list[tuple[Key, Chunk]] | None:
        """Gives up ``n`` chunks that no transfer uses and that are not protected; None, and nothing
        changed, if fewer.

        O(n), O(1) for each chunk whose turn has come while it was in use or protected, and O(b log b)
        for the b chunks of running requests that it has to look at when there is nothing else left.
        """
        if n <= 0:
            return []
        self._settle()
        chunks, keys = self._chunks, self._keys

        def may_go(block: int) -> bool:
            key = keys[block]
            return chunks[key].ref_cnt == 0 and key not in protected

        victims = self._order.find(n, may_go)
        behind = self._running.find(n - len(victims), may_go) if len(victims) < n else []
        if len(victims) + len(behind) < n:
            return None
        for block in victims:
            self._order.drop(block)
        for block in behind:
            self._running.drop(block)
        return [(key, chunks.pop(key)) for key in map(keys.pop, [*victims, *behind])]

    def order(self) -> list[Key]:
        """Every resident key, those in use included, next victim first. O(chunks log chunks), for tests
        and tools.
        """
        self._settle()
        return [self._keys[block] for block in [*self._order.order(), *self._running.order()]]

    def check_invariants(self) -> None:
        """Recounts keys, slots and order. O(chunks), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """
        self._order.check_invariants()
        self._running.check_invariants()
        slots = {chunk.chunk_id + 1: key for key, chunk in self._chunks.items()}
        if slots != self._keys or len(slots) != len(self._chunks):
            raise InvariantError("the keys by slot are not those of the resident chunks")
        ordered = [*self._order.order(), *self._fresh, *self._running.order()]
        if sorted(ordered) != sorted(slots):
            raise InvariantError(
                f"ordered blocks {sorted(ordered)} are not the resident ones {sorted(slots)}"
            )

    def _request(self, req_context: Context) -> Request:
        """A context's request, as this policy knows it."""
        request: Request | None = req_context.get_state(Request)
        if request is None or request.owner is not self._running:
            request = self._running.begin()
            req_context.set_state(request)
        return request

    def _settle(self) -> None:
        """Puts what was inserted without a position into the order."""
        if self._fresh:
            fresh, self._fresh = self._fresh, {}
            self._order.append([(block, 0) for block in fresh])

    def _use(self, keys: Iterable[Key], finished: Request | None = None) -> None:
        """Moves the resident ones of some keys, head to tail, to the end, the tail before the head.

        With the request that has finished, those that count for a later one stay.
        """
        self._settle()
        chunks, running = self._chunks, self._running
        blocks = []
        for key in dict.fromkeys(keys):
            if key in chunks:
                block = chunks[key].chunk_id + 1
                holder = running.holder(block)
                if holder is None:
                    self._order.drop(block)
                elif finished is not None and holder.rank > finished.rank:
                    continue
                else:
                    running.drop(block)
                blocks.append(block)
        if blocks:
            candidates = list(zip(blocks, range(len(blocks)), strict=True))
            candidates.reverse()
            self._order.append(candidates)


class kvpool_lru(EvictorCachePolicy):  # noqa: N801 - the name is what a configuration says
    """Least recently used, the tail of a prefix before its head: kvpool's LRU evictor."""

    evictor_type = kvpool.parts.LruEvictor
