"""An ``OffloadingManager`` of vLLM for CPU memory, based on kvpool's ``BlockPool``.

This module implements the protocol of vLLM's scheduler. It owns the record of each request's chunks,
the rule that admits only reused chunks, events and metrics. ``ChunkTable`` decides which chunks are
resident, in which slots, and which of them are evicted.

With the policy ``"last-accessed"``, chunks are evicted in the order of the requests that used them
last. Within a request, they are ordered by token position. The tail is evicted before the head, even if
several calls stored it. The position of a request in the order is determined by its first access. When
the request finishes, all its chunks count as used once more. Therefore, whatever is evicted, the chunks
of a prefix that remain still form a prefix. Chunks without a position come only from callers other than
vLLM's scheduler. Each counts as used at the moment of the call, in the order of the call. Other
policies of the pool order chunks by release instead.

The time of a chunk is ``rank - position / 2**25``. Ranks number the requests, and positions are tokens.
For up to 16 million tokens, the times of a request's chunks lie within half a rank. Beyond 2**28 ranks,
the lowest bits of a position are lost to rounding.
"""

# ruff: noqa: ARG002  # unused arguments belong to vLLM's signatures

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    PrepareStoreOutput,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec, CPUOffloadingMetrics
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvpool.errors import InvalidArgumentError
from kvpool.integrations.vllm.offload.chunks import BY_TIME, ChunkTable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from kvpool._core import EvictionPolicy

__all__ = ["KvpoolOffloadingManager"]

#: vLLM's ``OffloadKey``: a block hash, and 4 bytes for the KV-cache group.
Key: TypeAlias = bytes
#: vLLM's ``ReqContext``.
Context: TypeAlias = Any

_TOKEN: Final = 2.0**-25
#: Whether vLLM (0.33 and later) has events that allow a reader to drop the metadata of a failed store.
_METADATA_EVENTS: Final = any(one.name == "metadata_only" for one in fields(OffloadingEvent))
_HIT, _PENDING, _MISS = LookupResult.HIT, LookupResult.HIT_PENDING, LookupResult.MISS


@dataclass(slots=True)
class _Request:
    """The chunks that a request has used. vLLM's context of the request contains this object."""

    owner: object
    generation: int
    rank: float = 0.0  # 0 before its first access
    keys: dict[Key, object] = field(default_factory=dict)  # in the order of their first use
    finished: bool = False


class KvpoolOffloadingManager(OffloadingManager):  # type: ignore[misc]  # vLLM is Any here
    """Tracks which chunks are in CPU memory. It runs in vLLM's scheduler, on the scheduler's thread.

    Args:
        num_chunks: Number of slots of the tier.
        eviction: A policy of ``kvpool.BlockPool``.
        enable_events: Whether to collect events for ``take_events``.
        store_threshold: How often a chunk must be offered before it is stored. With a value below 2, it
            is stored at once.
        max_tracker_size: The largest number of chunks for which offers are counted. At least 1.
        info: The ``CPUOffloadingInfo`` for vLLM's config metric (0.33 and later).
    """

    def __init__(
        self,
        num_chunks: int,
        eviction: str = BY_TIME,
        *,
        enable_events: bool = False,
        store_threshold: int = 1,
        max_tracker_size: int = 64_000,
        info: Any = None,
    ) -> None:
        if max_tracker_size < 1:
            raise InvalidArgumentError(f"max_tracker_size is {max_tracker_size}: must be at least 1")
        self.medium = Medium.CPU
        self.chunks = ChunkTable(num_chunks, cast("EvictionPolicy", eviction))
        self.events: list[Any] | None = [] if enable_events else None
        self.store_threshold = store_threshold
        self.max_tracker_size = max_tracker_size
        #: Number of offers per chunk, the least recently offered chunk first; None if there is no
        #: threshold.
        self.counts: OrderedDict[Key, int] | None = OrderedDict() if store_threshold >= 2 else None
        self.stores_skipped_in_current_batch = 0
        self.allocation_sizes_in_current_batch: list[int] = []
        self._info = {} if info is None else info.as_config_info()
        self._generation = 0
        self._clock = 0.0

    # Requests.

    def on_new_request(self, req_context: Context) -> Any:
        """Returns how the chunks of a request are offloaded: each one as soon as it is computed."""
        self._request(req_context)
        return RequestOffloadingContext()

    def lookup(self, key: Key, req_context: Context) -> Any:
        """Returns whether a chunk is resident, is being stored, or is missing. Changes nothing. O(1)."""
        chunks = self.chunks
        if key in chunks.ready:
            return _HIT
        return _PENDING if key in chunks.pending else _MISS

    def get_load_source(self, key: Key, req_context: Context) -> Any:
        """Returns the source of all hits: host memory, because this manager has no other tier."""
        return CacheHitSource.HOST

    def prepare_load(self, keys: Collection[Key], req_context: Context) -> Any:
        """Acquires chunks until ``complete_load``. Returns their slots, in the order of the keys. O(keys).

        Raises:
            InvalidBlockError: A chunk is not resident, or not ready. Nothing has changed.
        """
        request = self._request(req_context)
        slots = self.chunks.load(
            keys, self._use_times(keys, req_context, request) if self.chunks.by_time else None
        )
        request.keys.update(dict.fromkeys(keys))
        return CPULoadStoreSpec(slots)

    def complete_load(self, keys: Collection[Key], req_context: Context) -> None:
        """Ends one load of each chunk. O(keys).

        Raises:
            InvalidBlockError: A chunk is not being loaded this number of times. Nothing has changed.
        """
        self.chunks.complete_load(keys)

    def prepare_store(self, keys: Collection[Key], req_context: Context) -> Any:
        """Takes slots for the chunks that are not resident, and evicts others if necessary.

        Returns None if there is no room for all of them. An offer never evicts a chunk that it
        contains. O(keys), and O(log slots) for each victim.
        """
        if self.counts is not None:
            self._count_offers(keys)
        ready, pending = self.chunks.ready, self.chunks.pending
        met = {key: key in ready for key in keys if key not in pending}
        if self.counts is not None:
            counts, offered = self.counts, len(met)
            met = {key: old for key, old in met.items() if old or counts.get(key, 0) >= self.store_threshold}
            self.stores_skipped_in_current_batch += offered - len(met)
        resident = [key for key, old in met.items() if old]
        new = [key for key, old in met.items() if not old] if resident else list(met)
        request = self._request(req_context)
        request.keys.update(met)
        if resident and self.chunks.by_time:
            self.chunks.use(resident, self._use_times(resident, req_context, request))
        if not new:
            return PrepareStoreOutput(keys_to_store=[], store_spec=CPULoadStoreSpec([]), evicted_keys=[])
        self.allocation_sizes_in_current_batch.append(len(new))
        times = self._store_times(new, req_context, request) if self.chunks.by_time else ()
        stored = self.chunks.store(new, times, keep=resident)
        if stored is None:
            return None
        if stored.evicted:
            self._announce(stored.evicted, removed=True)
        return PrepareStoreOutput(
            keys_to_store=new, store_spec=CPULoadStoreSpec(stored.slots), evicted_keys=stored.evicted
        )

    def complete_store(self, keys: Collection[Key], req_context: Context, success: bool = True) -> None:
        """Marks stored chunks as ready, or drops them after a failure. Ignores other chunks. O(keys)."""
        if success:
            done = self.chunks.complete_store(keys)
            if done:
                self._announce(done, removed=False)
            return
        dropped = self.chunks.abandon_store(keys)
        if dropped and _METADATA_EVENTS:
            self._announce(dropped, removed=True, metadata_only=True)

    def touch(self, keys: Collection[Key], req_context: Context) -> None:
        """Records that the resident chunks among ``keys`` are used now. O(keys).

        ``keys`` are ordered from the head of a prefix to its tail.
        """
        if self.chunks.by_time:
            tail_first = list(dict.fromkeys(keys))
            tail_first.reverse()
            self.chunks.use(tail_first, self._moments(len(tail_first)))

    def on_request_finished(self, req_context: Context) -> None:
        """Records one more use of all chunks of a request. O(keys). A second call changes nothing."""
        request = req_context.get_state(_Request)
        if request is None or not self._is_mine(request) or request.finished:
            return
        request.finished = True
        if not self.chunks.by_time:
            return
        keys = list(request.keys)
        positions = [req_context.get_offload_key_position(key) for key in keys]
        if None in positions:
            self.touch(keys, req_context)
        elif keys:
            self._clock += 1.0
            self.chunks.use(keys, [self._clock - position * _TOKEN for position in positions])

    def reset_cache(self) -> None:
        """Drops every chunk, even those in use, because vLLM also drops the jobs that use them. O(slots)."""
        self.chunks.clear()
        self._generation += 1
        self._clock = 0.0

    # Statistics.

    def take_events(self) -> Iterator[Any]:
        """Yields the events since the last call, oldest first. Yields none unless events are enabled."""
        if self.events is None:
            return
        events, self.events = self.events, []
        for event in events:
            if getattr(event, "metadata_only", False):
                # If the chunk was stored again after the failed store, a reader must keep its metadata.
                gone = [key for key in event.keys if self.lookup(key, None) is _MISS]
                if gone:
                    yield replace(event, keys=gone)
            else:
                yield event

    def get_stats(self) -> Any:
        """Returns the statistics since the last call, and the shares of slots in use, from 0 to 1."""
        stats = OffloadingConnectorStats()
        slots = max(1, self.chunks.num_chunks)
        held, written = self.chunks.num_held / slots, len(self.chunks.pending) / slots
        stats.set_gauge(CPUOffloadingMetrics.CPU_CACHE_USAGE_PERC, held)
        stats.set_gauge(CPUOffloadingMetrics.CPU_CACHE_WRITE_USAGE_PERC, written)
        stats.set_gauge(CPUOffloadingMetrics.CPU_CACHE_READ_USAGE_PERC, max(held - written, 0.0))
        for size in self.allocation_sizes_in_current_batch:
            stats.observe_histogram(CPUOffloadingMetrics.CPU_ALLOCATION_SIZE, size)
        self.allocation_sizes_in_current_batch.clear()
        if self.counts is not None:
            stats.increase_counter(CPUOffloadingMetrics.STORES_SKIPPED, self.stores_skipped_in_current_batch)
            self.stores_skipped_in_current_batch = 0
        return stats

    def config_info(self) -> Sequence[Any]:
        """Returns the labels of vLLM's config metric (0.33 and later)."""
        return [self._info]

    # Times.

    def _is_mine(self, request: _Request) -> bool:
        return request.owner is self and request.generation == self._generation

    def _request(self, req_context: Context) -> _Request:
        request: _Request | None = req_context.get_state(_Request)
        if request is None or not self._is_mine(request):
            request = _Request(self, self._generation)
            req_context.set_state(request)
        return request

    def _moments(self, n: int) -> list[float]:
        """Returns ``n`` consecutive times, each a new rank and later than all earlier ones."""
        first = self._clock + 1.0
        self._clock += n
        return [first + i for i in range(n)]

    def _use_times(self, keys: Iterable[Key], req_context: Context, request: _Request) -> list[float]:
        """Returns the times of a request's use of resident chunks.

        For a chunk without a position, the result is minus infinity, so its time does not change.
        """
        if not request.rank:
            self._clock += 1.0
            request.rank = self._clock
        position, rank = req_context.get_offload_key_position, request.rank
        return [-inf if (tokens := position(key)) is None else rank - tokens * _TOKEN for key in keys]

    def _store_times(self, keys: Sequence[Key], req_context: Context, request: _Request) -> list[float]:
        """Returns the times of a request's use of new chunks.

        If a chunk has no position, all times are consecutive new ranks.
        """
        times = self._use_times(keys, req_context, request)
        return times if -inf not in times else self._moments(len(keys))

    # Admission and events.

    def _count_offers(self, keys: Iterable[Key]) -> None:
        """Counts one offer of each key. Never drops the counts of keys that are part of the same offer."""
        counts = self.counts
        assert counts is not None  # noqa: S101 - the caller has checked it
        keys = list(keys)
        known = {key for key in keys if key in counts}
        others = len(counts) - len(known)
        for key in keys:
            if key in counts:
                counts[key] += 1
                counts.move_to_end(key)
        for key in keys:
            if key in counts:
                continue
            if len(counts) >= self.max_tracker_size:
                if others == 0:
                    break
                counts.popitem(last=False)
                others -= 1
            counts[key] = 1

    def _announce(self, keys: list[Key], **what: bool) -> None:
        if self.events is not None:
            self.events.append(OffloadingEvent(keys=keys, medium=self.medium, **what))
