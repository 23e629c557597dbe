"""kvpool's store as a tier beneath vLLM's CPU memory: bounded, checked, there after a restart.

Chosen by an entry of ``secondary_tiers`` of vLLM's ``TieringOffloadingSpec``: docs/vllm-offloading.md has it.

vLLM calls from its scheduler, so nothing here waits, but for ``drain_jobs`` and ``shutdown``, as vLLM wants it. It
reuses a slot of CPU memory as soon as a job is told to have ended, so transfers are staged: whatever hangs has let its
slot go. What is not loaded is computed: no failure of a disk is one of a request.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
import uuid
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

from kvpool.errors import InvalidArgumentError, SlotBusyError, StoreError
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

#: Counters and gauges, by field of ``StoreStats``.
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

#: Seconds for which a chunk counts as absent after a shared back end could not say whether it has it.
_DOUBTED: Final = 1.0

#: Outcomes of an offer that are none of the store's faults.
_FINE: Final = frozenset(("ok", "not_admitted"))


@dataclasses.dataclass(slots=True)
class _Job:
    job_id: int
    keys: Sequence[bytes]
    is_promotion: bool
    began: float


class KvpoolStoreTier(SecondaryTierManager):  # type: ignore[misc]  # vLLM is Any here
    """A secondary tier on a disk, or in a back end that engines share.

    Args:
        offloading_spec: vLLM's.
        primary_kv_view: vLLM's CPU memory, a row per chunk.
        tier_type: vLLM's name for it.
        backpressure_detector: vLLM's.
        root_dir: The folder of a disk. Engines with the same folder, such as data-parallel replicas, take one beneath
            it each: ``kvpool.store.replicas``.
        url: A back end by its URL, instead: ``kvpool.store.backend_from_url`` has the list. A shared one is asked once
            a step, for all chunks that nothing is known of; their requests wait for the answer.
        capacity_bytes: What it may take, for each engine.
        weights: The revision of the weights. By default the commit in the Hugging Face cache, or names, sizes and
            times of the files in a folder.
        scales: Which quantisation scales, if they are not the weights'.
        free_floor_bytes: What stays free on a disk.
        admission: What is written: ``second_touch``, ``always``, ``never``.
        eviction: What goes first.
        workers: Threads that wait for the disk.
        queue: Chunks on their way; more are misses.
        deadline: Seconds that a chunk may take, waiting included.
        on_reset: What vLLM's resets (sleep, new weights) mean: ``renew`` forgets all, for KV of other weights is wrong;
            ``keep`` keeps it, for who never changes weights.
        enable_kv_events: Whether to emit events of what is stored and what goes.
        locality: As vLLM's tiers.

    Raises:
        InvalidArgumentError: A setting is out of range, or the weights' revision cannot be found out.
        StoreError: The back end cannot be used.
    """

    medium = Medium.STORAGE

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
        where = url or str(root_dir)
        # A disk by either name.
        floor = {"free_floor_bytes": free_floor_bytes} if "://" not in where or where.startswith("disk:") else {}
        self.locality = None if locality is None else Locality(locality)
        self._deadline = deadline
        self._renews = on_reset == "renew"
        self._chunk_bytes = int(primary_kv_view.strides[0])  # type: ignore[index]  # vLLM's has two dimensions
        wanted = enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events
        self._events: list[OffloadingEvent] | None = [] if wanted else None
        self._jobs: dict[int, _Job] = {}
        self._results: list[JobResult] = []
        self._unknown: dict[bytes, None] = {}
        self._asked: dict[int, list[bytes]] = {}
        self._doubted: dict[bytes, float] = {}
        self._digest_bytes = 32
        self._namespace = namespace_of(offloading_spec, self._chunk_bytes, weights=weights, scales=scales)
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
        self._told = self._store.stats()

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:  # noqa: ARG002 - vLLM's signature
        """Whether a chunk can be loaded. What is being written is in CPU memory, too: a miss here costs nothing."""
        presence = self._store.contains([key[:-4]], groups=_group(key))[0]
        if presence == "unknown":
            if self._doubted.get(key, 0.0) > time.monotonic():
                return LookupResult.MISS
            self._unknown[key] = None
            return LookupResult.RETRY
        return LookupResult.HIT if presence == "here" else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:  # noqa: ARG002 - vLLM's signature
        """Asks a shared back end for what the lookups of this step did not know of."""
        asked = set().union(*self._asked.values())
        keys = [key for key in self._unknown if key not in asked]
        self._unknown.clear()
        if keys:
            groups = [_group(key) for key in keys]
            self._asked[self._store.probe([key[:-4] for key in keys], groups=groups)] = keys

    def has_pending_work(self) -> bool:
        """Whether requests wait for an answer."""
        return bool(self._unknown or self._asked)

    def submit_store(self, job_metadata: Any) -> None:
        """Offers chunks. Those that are there, and those that are not admitted, cost nothing."""
        context = job_metadata.req_context
        keys = list(job_metadata.keys)
        tokens = [(context.get_offload_key_position(key) or 0, 1) for key in keys]
        self._submit(
            job_metadata,
            keys,
            lambda digests, slots, groups: self._store.put(digests, slots, groups=groups, tokens=tokens),
        )

    def submit_load(self, job_metadata: Any) -> None:
        """Asks for chunks."""
        self._submit(
            job_metadata,
            list(job_metadata.keys),
            lambda digests, slots, groups: self._store.get(digests, slots, groups=groups),
        )

    def _submit(self, metadata: Any, keys: list[bytes], move: Any) -> None:
        slots = [int(chunk) for chunk in metadata.chunk_ids]
        digests = [key[:-4] for key in keys]
        if digests:
            self._digest_bytes = len(digests[0])
        try:
            number = move(digests, slots, [_group(key) for key in keys])
        except SlotBusyError:
            # A worker is copying the last bytes of a job that timed out.
            self._results.append(JobResult(job_id=metadata.job_id, success=False))
            return
        self._jobs[number] = _Job(metadata.job_id, keys, metadata.is_promotion, time.monotonic())

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """The jobs that have ended since the last call."""
        self._take(self._store.poll())
        results, self._results = self._results, []
        return results

    def _take(self, ended: list[tuple[int, list[Outcome]]]) -> None:
        now = time.monotonic()
        for number, outcomes in ended:
            asked = self._asked.pop(number, None)
            if asked is not None:
                # What could not be said is a miss for a while: else its request would ask for ever.
                doubted = [key for key, why in zip(asked, outcomes, strict=True) if why not in ("ok", "absent")]
                self._doubted = {key: until for key, until in self._doubted.items() if until > now}
                self._doubted |= dict.fromkeys(doubted, now + _DOUBTED)
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
                # Else the next lookup would find it again, and the request would come back for ever.
                gone = [key for key, why in zip(job.keys, outcomes, strict=True) if why in ("failed", "timed_out")]
                self._store.remove([key[:-4] for key in gone], groups=[_group(key) for key in gone])
            elif self._events is not None and moved:
                self._events.append(self._event(moved, removed=False))

    def _event(self, keys: list[bytes], *, removed: bool) -> OffloadingEvent:
        return OffloadingEvent(keys=keys, medium=self.medium, removed=removed, locality=self.locality)

    def take_events(self) -> Iterable[OffloadingEvent]:
        """What was stored and what went since the last call."""
        if self._events is None:
            return ()
        events, self._events = self._events, []
        gone = self._store.take_gone()
        if gone:
            keys = [digest[: self._digest_bytes] + group.to_bytes(4, "big") for digest, group in gone]
            events.append(self._event(keys, removed=True))
        return events

    def touch(self, keys: Collection[bytes], req_context: Any) -> None:  # noqa: ARG002 - vLLM's signature
        """These chunks were used."""
        listed = list(keys)
        self._store.touch([key[:-4] for key in listed], groups=[_group(key) for key in listed])

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:  # noqa: ARG002 - vLLM's signature
        """No request is treated in another way."""
        return RequestOffloadingContext()

    def drain_jobs(self) -> None:
        """Waits until no job is running, at most for the deadline; called by vLLM when it resets its caches.

        vLLM keeps what a persistent tier has, also when the weights change, under the same keys. So this forgets it,
        unless it is told not to, and what is stored from now on is none of a process that starts with the old ones.
        """
        while self._jobs:
            self._take(self._store.wait(self._deadline))
        if self._renews:
            fields = json.loads(self._namespace.to_json())
            fields["extra"]["renewed"] = str(uuid.uuid4())
            try:
                self._store.renew(Namespace.from_json(json.dumps(fields)))
            except StoreError as error:
                _LOG.error("kvpool: %s", error)  # nothing of before is found by this engine all the same

    def shutdown(self) -> None:
        """Ends the store; what is being written is waited for, at most for the deadline."""
        self._store.close(self._deadline)

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG003 - vLLM's signature
        """What ``get_stats`` emits."""
        counters = {
            f"{_PREFIX}{name}": OffloadingCounterMetadata(documentation=text) for name, text in _COUNTERS.items()
        }
        gauges = {f"{_PREFIX}{name}": OffloadingGaugeMetadata(documentation=text) for name, text in _GAUGES.items()}
        return counters | gauges

    def get_stats(self) -> OffloadingConnectorStats:
        """What happened since the last call, and what is so now."""
        told, self._told = self._told, self._store.stats()
        stats = OffloadingConnectorStats()
        for name in _COUNTERS:
            stats.increase_counter(f"{_PREFIX}{name}", getattr(self._told, name) - getattr(told, name))
        for name in _GAUGES:
            stats.set_gauge(f"{_PREFIX}{name}", getattr(self._told, name))
        return stats


def _group(key: bytes) -> int:
    """The KV-cache group of one of vLLM's keys, whose last four bytes it is."""
    return int.from_bytes(key[-4:], "big")
