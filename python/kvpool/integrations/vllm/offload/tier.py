"""A secondary tier of vLLM's offloading that keeps KV in kvpool's store.

The content of the tier is limited in size, verified, and survives restarts.

To select it, add an entry to ``secondary_tiers`` of vLLM's ``TieringOffloadingSpec``: see
docs/vllm-offloading.md.

vLLM calls the tier from its scheduler. Only ``drain_jobs``, ``renew`` and ``shutdown`` wait, as vLLM
requires. vLLM reuses a slot of CPU memory as soon as its job has ended. Therefore transfers are staged,
so that a transfer that hangs does not block a slot. If KV cannot be loaded, the engine computes it. A
failed disk therefore never makes a request fail.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingEvent,
    OffloadingGaugeMetadata,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvpool.errors import InvalidArgumentError, SlotBusyError, StoreError
from kvpool.integrations.vllm.offload import hooks
from kvpool.integrations.vllm.offload.adapters import Adapters, names_with
from kvpool.integrations.vllm.offload.identity import config_of
from kvpool.integrations.vllm.offload.namespace import namespace_of
from kvpool.store import Arena, Namespace, Store, backend_from_url
from kvpool.store.replicas import open_replica

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from kvpool._core import EvictionPolicy
    from kvpool._core.store import Admission, Outcome

__all__ = ["KvpoolStoreTier"]

_LOG: Final = logging.getLogger("vllm.kvpool")

_PREFIX: Final = "vllm:kvpool_store_"

#: The descriptions of the counters in vLLM's metrics, by field of ``StoreStats``. Those of the gauges
#: follow.
_COUNTERS: Final = {
    "loads": "Chunks loaded.",
    "loaded_bytes": "Bytes loaded.",
    "misses": "Loads that missed, whatever the reason.",
    "writes": "Chunks written.",
    "written_bytes": "Bytes written.",
    "not_admitted": "Offers that were not written: chunks have to be offered twice.",
    "evicted": "Chunks evicted for others.",
    "damaged": "Loads of a chunk that was another, or damaged; it was removed, and computed.",
    "failed": "Transfers that failed.",
    "timed_out": "Transfers whose deadline passed.",
    "unavailable": "Transfers not tried, since the back end failed too often of late.",
}
_GAUGES: Final = {
    "objects": "Chunks that can be found.",
    "bytes": "Bytes that they take.",
    "in_flight": "Chunks on their way.",
}

#: If a shared back end could not determine whether it has a chunk, the chunk counts as absent for this
#: number of seconds.
_UNKNOWN_SECONDS: Final = 1.0

#: Outcomes of writing a chunk that do not count as failures of the store.
_FINE: Final = frozenset(("ok", "not_admitted"))


@dataclasses.dataclass(slots=True)
class _Job:
    job_id: int
    keys: Sequence[bytes]
    names: Sequence[bytes]
    is_promotion: bool
    began: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Request:
    """The tier's state of a request. vLLM's context of the request contains this object."""

    generation: int  # the tier's generation when the request began
    adapter: str | None  # identifies the adapter's content: empty for the base model, None if unknown


class KvpoolStoreTier(SecondaryTierManager):  # type: ignore[misc]  # vLLM is Any here
    """A secondary tier on a disk, or in a back end that engines share.

    Args:
        offloading_spec: vLLM's specification.
        primary_kv_view: vLLM's CPU memory, with one row per chunk.
        tier_type: vLLM's name for this tier.
        backpressure_detector: vLLM's detector.
        root_dir: The folder on a disk. If several engines have the same folder, such as data-parallel
            replicas, each uses its own subfolder: see ``kvpool.store.replicas``.
        url: The URL of a back end, instead of ``root_dir``. ``kvpool.store.backend_from_url`` lists the
            forms. If the back end is shared, the tier queries it once per step for all chunks of
            unknown state. The requests concerned wait for the answer.
        capacity_bytes: The largest number of bytes that each engine may store.
        weights: The name of the weights, including those of draft models. The default is a digest of
            the files in a folder, or the commit of the Hugging Face model that is served.
        scales: The name of quantisation scales, if they are not part of the weights.
        free_floor_bytes: The number of bytes that must remain free on a disk.
        admission: Which chunks are written: ``second_touch`` (those offered a second time), ``always``,
            ``never``.
        eviction: The eviction policy.
        workers: Number of threads that wait for the disk.
        queue: The largest number of chunks in transfer. Further chunks are misses.
        deadline: The largest number of seconds for the transfer of a chunk, including the time in the queue.
            Above zero.
        on_reset: The action when vLLM resets its prefix cache, or when its workers run a method that
            may change weights. ``renew`` drops all chunks, also those in CPU memory. ``keep`` changes
            nothing, and is for engines whose weights never change.
        enable_kv_events: Whether to emit events when chunks are stored or removed.
        locality: The locality, as for vLLM's own tiers.

    Raises:
        InvalidArgumentError: A setting is out of range, or the weights' revision cannot be determined.
        StoreError: The back end cannot be used.
    """

    medium = Medium.STORAGE
    #: The source of hits in vLLM's metrics. For a tier on a disk, the constructor sets vLLM's value
    #: for disks.
    cache_hit_source = CacheHitSource.EXTERNAL_UNSPECIFIED

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        *,
        root_dir: str | None = None,
        url: str | None = None,
        capacity_bytes: int,
        weights: str | None = None,
        scales: str = "",
        free_floor_bytes: int = 4 << 30,
        admission: Admission = "second_touch",
        eviction: EvictionPolicy = "lru",
        workers: int = 8,
        queue: int = 4096,
        deadline: float = 10.0,
        on_reset: str = "renew",
        enable_kv_events: bool = False,
        locality: str | None = None,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        if on_reset not in ("renew", "keep"):
            raise InvalidArgumentError(f"on_reset is {on_reset!r}: must be renew or keep")
        if (root_dir is None) == (url is None):
            raise InvalidArgumentError("root_dir and url: give one of them")
        for name, value in (("root_dir", root_dir), ("url", url), ("weights", weights)):
            if value is not None and not value.strip():
                raise InvalidArgumentError(
                    f"{name} is {value!r}: must not be empty; leave it out for the default"
                )
        if not deadline > 0:
            raise InvalidArgumentError(f"deadline is {deadline}: must be above 0 seconds")
        where = url or str(root_dir)
        if where.startswith("~"):
            where = str(Path(where).expanduser())
        floor: dict[str, int] = {}
        if "://" not in where or where.startswith("disk:"):  # a disk, by path or by URL
            floor["free_floor_bytes"] = free_floor_bytes
            self.cache_hit_source = CacheHitSource.DISK
        try:
            self.locality = None if locality is None else Locality(locality)
        except ValueError:
            known = ", ".join(one.value for one in Locality)
            raise InvalidArgumentError(f"locality is {locality!r}: must be one of {known}") from None
        self._deadline = deadline
        self.renews = on_reset == "renew"
        self.generation = 0
        # vLLM's view of CPU memory has two dimensions, and each row is one chunk.
        self._chunk_bytes = int(primary_kv_view.strides[0])  # type: ignore[index]
        wanted = enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events
        self._events: list[OffloadingEvent] | None = [] if wanted else None
        self._jobs: dict[int, _Job] = {}
        self._results: list[JobResult] = []
        self._unknown: dict[bytes, None] = {}
        self._asked: dict[int, list[bytes]] = {}
        self._unknown_until: dict[bytes, float] = {}
        self._digest_bytes = 32
        self.adapters = Adapters()
        # Maps a chunk's name in the store to vLLM's key, for chunks whose name differs from the key.
        # Events contain the key.
        self._keys: dict[bytes, bytes] = {}
        config = config_of(offloading_spec)
        self._has_adapters = config is not None and config.lora_config is not None
        self._namespace = namespace_of(
            offloading_spec, config, self._chunk_bytes, weights=weights, scales=scales
        )
        hooks.install(config, renews=self.renews)
        arena = Arena.over(primary_kv_view, self._chunk_bytes)
        self._store = open_replica(
            where,
            lambda place: Store(
                backend_from_url(place, capacity_bytes, **floor),
                arena,
                self._namespace,
                eviction=eviction,
                admission=admission,
                workers=workers,
                queue=queue,
                deadline=deadline,
                staged=True,
                tell_gone=wanted,
            ),
        )
        self._reported = self._store.stats()
        hooks.watch(self)

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        """Returns whether a chunk can be loaded.

        A chunk that is still being written is a miss. This has no cost, because the chunk is still in
        CPU memory.
        """
        names = self._names([key], self._request(req_context))
        if names is None:
            return LookupResult.MISS
        (name,) = names
        presence = self._store.contains([name[:-4]], groups=_group(name))[0]
        if presence == "unknown":
            if self._unknown_until.get(name, 0.0) > time.monotonic():
                return LookupResult.MISS
            self._unknown[name] = None
            return LookupResult.RETRY
        return LookupResult.HIT if presence == "here" else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:  # noqa: ARG002 - vLLM's signature
        """Queries a shared back end for the chunks that were unknown in the lookups of this step."""
        asked = set().union(*self._asked.values())
        names = [name for name in self._unknown if name not in asked]
        self._unknown.clear()
        if names:
            groups = [_group(name) for name in names]
            self._asked[self._store.probe([name[:-4] for name in names], groups=groups)] = names

    def has_pending_work(self) -> bool:
        """Returns whether requests wait for the answer of a shared back end."""
        return bool(self._unknown or self._asked)

    def submit_store(self, job_metadata: Any) -> None:
        """Offers chunks to the store. Chunks that are already stored, or are not admitted, cost nothing.

        No chunk is stored if its request began before the last renewal of the tier, or if the content
        of its adapter is unknown.
        """
        context = job_metadata.req_context
        keys = list(job_metadata.keys)
        tokens = [(context.get_offload_key_position(key) or 0, 1) for key in keys]
        request = self._request(context)
        names = self._names(keys, request) if self._is_current(request, context) else None
        self._submit(
            job_metadata,
            keys,
            names,
            lambda digests, slots, groups: self._store.put(digests, slots, groups=groups, tokens=tokens),
        )

    def submit_load(self, job_metadata: Any) -> None:
        """Begins to load chunks from the store into CPU memory."""
        keys = list(job_metadata.keys)
        self._submit(
            job_metadata,
            keys,
            self._names(keys, self._request(job_metadata.req_context)),
            lambda digests, slots, groups: self._store.get(digests, slots, groups=groups),
        )

    def _submit(self, metadata: Any, keys: list[bytes], names: Sequence[bytes] | None, move: Any) -> None:
        if names is None:
            nothing = JobResult(job_id=metadata.job_id, success=not metadata.is_promotion, transfer_bytes=0)
            self._results.append(nothing)
            return
        slots = [int(chunk) for chunk in metadata.chunk_ids]
        digests = [name[:-4] for name in names]
        if digests:
            self._digest_bytes = len(digests[0])
        try:
            number = move(digests, slots, [_group(name) for name in names])
        except SlotBusyError:
            # The slot cannot be used yet, because a worker still copies the last bytes of a job that
            # timed out.
            self._results.append(JobResult(job_id=metadata.job_id, success=False))
            return
        self._jobs[number] = _Job(metadata.job_id, keys, names, metadata.is_promotion, time.monotonic())

    def _request(self, context: Any) -> _Request:
        """Returns the state of a request. The first call creates it."""
        if context is None:
            return _Request(self.generation, None if self._has_adapters else "")
        request: _Request | None = context.get_state(_Request)
        if request is None:
            request = _Request(self.generation, self._adapter(context))
            context.set_state(request)
        return request

    def _adapter(self, context: Any) -> str | None:
        """Returns the content of a request's adapter: empty for the base model, None if it is unknown."""
        if not self._has_adapters:
            return ""
        adapter: hooks.Adapter | None = context.get_state(hooks.Adapter)
        if adapter is None:
            return None
        return "" if adapter.request is None else self.adapters.content_of(adapter.request)

    def _is_current(self, request: _Request, context: Any) -> bool:
        """Returns whether the KV of a request still matches its name in the store.

        It matches if it was computed with the current weights and with the current content of the
        adapter.
        """
        return request.generation == self.generation and (
            not request.adapter or request.adapter == self._adapter(context)
        )

    def _names(self, keys: Sequence[bytes], request: _Request) -> Sequence[bytes] | None:
        """Returns the names of chunks in the store.

        The last four bytes of a name are the group, as in vLLM's keys.

        Returns None if the content of the request's adapter is unknown.
        """
        if request.adapter is None:
            return None
        if not request.adapter:
            return keys
        return names_with(request.adapter, keys)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Returns the jobs that have ended since the last call."""
        self._take(self._store.poll())
        results, self._results = self._results, []
        return results

    def _take(self, ended: list[tuple[int, list[Outcome]]]) -> None:
        now = time.monotonic()
        for number, outcomes in ended:
            asked = self._asked.pop(number, None)
            if asked is not None:
                # A chunk of unknown state counts as a miss for some time. Otherwise, its request would
                # repeat the query forever.
                unknown = [
                    name for name, why in zip(asked, outcomes, strict=True) if why not in ("ok", "absent")
                ]
                self._unknown_until = {
                    name: until for name, until in self._unknown_until.items() if until > now
                }
                self._unknown_until |= dict.fromkeys(unknown, now + _UNKNOWN_SECONDS)
                continue
            job = self._jobs.pop(number)
            moved = [key for key, outcome in zip(job.keys, outcomes, strict=True) if outcome == "ok"]
            success = len(moved) == len(job.keys) if job.is_promotion else _FINE.issuperset(outcomes)
            self._results.append(
                JobResult(
                    job_id=job.job_id,
                    success=success,
                    successful_keys=tuple(moved) if job.is_promotion and moved and not success else None,
                    transfer_time=now - job.began,
                    transfer_bytes=len(moved) * self._chunk_bytes,
                )
            )
            if job.is_promotion:
                # The chunk is removed. Otherwise, the next lookup would find it again, and the request
                # would repeat the load forever.
                gone = [
                    name
                    for name, why in zip(job.names, outcomes, strict=True)
                    if why in ("failed", "timed_out")
                ]
                self._store.remove([name[:-4] for name in gone], groups=[_group(name) for name in gone])
            elif self._events is not None and moved:
                self._events.append(self._event(moved, removed=False))
                pairs = zip(job.names, job.keys, outcomes, strict=True)
                self._keys |= {name: key for name, key, why in pairs if why == "ok" and name != key}

    def _event(self, keys: list[bytes], *, removed: bool) -> OffloadingEvent:
        return OffloadingEvent(keys=keys, medium=self.medium, removed=removed, locality=self.locality)

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Returns the events of chunks stored and removed since the last call."""
        if self._events is None:
            return ()
        events, self._events = self._events, []
        gone = self._store.take_gone()
        if gone:
            names = [digest[: self._digest_bytes] + group.to_bytes(4, "big") for digest, group in gone]
            events.append(self._event([self._keys.pop(name, name) for name in names], removed=True))
        return events

    def touch(self, keys: Collection[bytes], req_context: Any) -> None:
        """Records that these chunks are used now, so that they are evicted later."""
        names = self._names(list(keys), self._request(req_context))
        if names:
            self._store.touch([name[:-4] for name in names], groups=[_group(name) for name in names])

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        """Determines the adapter of a new request. The returned context has no special settings."""
        self._request(req_context)
        return RequestOffloadingContext()

    def drain_jobs(self) -> None:
        """Waits until no job is running, and then drops all chunks, unless ``on_reset`` is ``keep``.

        vLLM calls this when it resets its connector.
        """
        self._drain()
        if self.renews:
            self.renew()

    def _drain(self) -> None:
        while self._jobs:
            self._take(self._store.wait(self._deadline))

    def renew(self) -> None:
        """Drops every chunk, because the weights may change.

        Waits for running jobs, at most for the deadline.

        vLLM uses the same keys after a change of weights. Therefore chunks that are stored from now on
        get a namespace that no other process has. An engine that starts with the earlier weights then
        does not find them. If the back end fails to record the end of the old namespace, such an engine
        may still find the earlier chunks. They match its weights, so this is harmless.
        """
        self._drain()
        self.generation += 1
        fields = json.loads(self._namespace.to_json())
        fields["extra"]["renewed"] = str(uuid.uuid4())
        try:
            self._store.renew(Namespace.from_json(json.dumps(fields)))
        except StoreError as error:
            # The store has dropped its chunks, although its back end could not record the renewal.
            _LOG.error("kvpool: %s", error)

    def shutdown(self) -> None:
        """Closes the store. Waits for running writes, at most for the deadline."""
        hooks.unwatch(self)
        self._store.close(self._deadline)

    @classmethod
    def build_metric_definitions(
        cls,
        extra_config: dict[str, Any],  # noqa: ARG003 - vLLM's signature
    ) -> dict[str, Any]:
        """Returns the definitions of the metrics of ``get_stats``."""
        counters = {
            f"{_PREFIX}{name}": OffloadingCounterMetadata(documentation=text)
            for name, text in _COUNTERS.items()
        }
        gauges = {
            f"{_PREFIX}{name}": OffloadingGaugeMetadata(documentation=text) for name, text in _GAUGES.items()
        }
        return counters | gauges

    def get_stats(self) -> OffloadingConnectorStats:
        """Returns the counts since the last call, and the current values of the gauges."""
        earlier, self._reported = self._reported, self._store.stats()
        stats = OffloadingConnectorStats()
        for name in _COUNTERS:
            stats.increase_counter(f"{_PREFIX}{name}", getattr(self._reported, name) - getattr(earlier, name))
        for name in _GAUGES:
            stats.set_gauge(f"{_PREFIX}{name}", getattr(self._reported, name))
        return stats


def _group(key: bytes) -> int:
    """Returns the KV-cache group of one of vLLM's keys: the key's last four bytes."""
    return int.from_bytes(key[-4:], "big")
