"""Eviction policies for vLLM's CPU offloading: ``CachePolicy`` classes that use an evictor of kvpool.

For one ``CPUOffloadingManager``, this module owns the set of resident keys and their order of eviction.
vLLM's manager owns the rest: reference counts, slots, events, and the record of each request's chunks.
A block id in the evictor is the slot of a chunk plus one, because block 0 is the null block. Slots are
used because they are consecutive small numbers and unique among resident chunks. Keys are not.

To select the policy, set ``"eviction_policy": "kvpool_lru"``, and this module as
``"cache_policy_module_path"``. To add another evictor of kvpool, define a subclass of
``EvictorCachePolicy`` in this module.
"""

# ruff: noqa: ARG002  # unused arguments belong to vLLM's signatures

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
    """A ``CachePolicy`` of vLLM that uses an evictor of kvpool. Subclasses select the evictor.

    A use of a chunk is a store, a ``touch``, or the end of a request that used it. The begin and the
    end of a load are not uses. Each use puts the tail of a prefix before its head in the order of
    eviction. Chunks of running requests are evicted after all others, ordered by the token positions
    that vLLM records. vLLM's scheduler gives every chunk a position. A chunk without one counts as used
    when it is stored, and is evicted in the order of storing.

    Args:
        cache_capacity: Number of slots. ``chunk_id`` is the number of a slot, from 0 to
            ``cache_capacity - 1``.

    Raises:
        InvalidArgumentError: There are more slots than a pool of kvpool can have.
    """

    evictor_type: ClassVar[type[Evictor]]

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.clear()

    def clear(self) -> None:
        """Drops every chunk, even those in use."""
        self._chunks: dict[Key, Chunk] = {}
        self._keys: dict[int, Key] = {}  # by block
        # The evictor has at least two blocks, the null block and one more, because there may be no
        # slots.
        self._order = VictimOrder(self.evictor_type(max(2, self.cache_capacity + 1)))
        self._running = RunningRequests()
        self._fresh: dict[
            int, None
        ] = {}  # inserted without a position, not in the order yet: added together in one call
        self._storing: Context = None  # the context of the last offer

    def get(self, key: Key) -> Chunk | None:
        """Returns the resident chunk with a key, or None if there is none. O(1)."""
        return self._chunks.get(key)

    def insert(self, key: Key, chunk: Chunk, req_context: Context = None) -> None:
        """Adds a chunk as the most recently used one. vLLM 0.32 passes no context. O(1).

        Raises:
            InvalidBlockError: The slot is out of range, or belongs to another key.
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
        """Drops a chunk, in any state. O(1).

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
        """Records a use of the resident chunks among ``keys``, which are ordered head to tail. O(keys)."""
        self._use(keys)

    def on_store_miss(self, keys: Iterable[Key], req_context: Context) -> None:
        """Records the request whose chunks will be inserted next.

        None of these chunks is resident yet, so there is no use to record.
        """
        self._storing = req_context

    def on_request_access(self, keys: Iterable[Key], req_context: Context) -> None:
        """Records a request's first use of the resident chunks among ``keys`` (vLLM 0.33 and later). O(keys).

        Chunks without a position keep their place in the order until the request finishes.
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
        """Records one common use of all chunks of a request.

        The chunks at the end of each KV-cache group's prefix are evicted first. O(keys).

        If a later request has also used a chunk, the chunk belongs to that request until that request
        finishes.
        """
        if self._storing is req_context:
            self._storing = None
        self._use(order_request_keys(key_groups, req_context), self._request(req_context))

    def evict(self, n: int, protected: set[Key]) -> list[tuple[Key, Chunk]] | None:
        """Evicts ``n`` chunks that are not protected and not part of a transfer.

        If there are fewer, returns None and changes nothing. O(n), plus O(1) for each chunk that was in
        use or protected when its turn came. If only chunks of running requests are left, O(b log b) for
        the b chunks that were examined.
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
        """Returns every resident key, the next victim first. Chunks in use are included.

        O(chunks log chunks), for tests and tools.
        """
        self._settle()
        return [self._keys[block] for block in [*self._order.order(), *self._running.order()]]

    def check_invariants(self) -> None:
        """Checks keys, slots and order. O(chunks), for tests.

        Raises:
            InvariantError: An invariant is broken; the error describes the first one.
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
        """Returns this policy's record of the request of a context. The first call creates it."""
        request: Request | None = req_context.get_state(Request)
        if request is None or request.owner is not self._running:
            request = self._running.begin()
            req_context.set_state(request)
        return request

    def _settle(self) -> None:
        """Adds the chunks that were inserted without a position to the order."""
        if self._fresh:
            fresh, self._fresh = self._fresh, {}
            self._order.append([(block, 0) for block in fresh])

    def _use(self, keys: Iterable[Key], finished: Request | None = None) -> None:
        """Moves the resident chunks among ``keys`` to the end of the order.

        ``keys`` are ordered head to tail. The tail is evicted first.

        If ``finished`` is given, chunks that belong to a later request keep their place.
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
    """Evicts the least recently used chunk, and the tail of a prefix before its head.

    Uses kvpool's LRU evictor.
    """

    evictor_type = kvpool.parts.LruEvictor
