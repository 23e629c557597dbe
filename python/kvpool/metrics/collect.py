"""Collects samples from the counts of managers, pools and stores, under the names of the catalogue.

This module owns the mapping from counts to names. It counts nothing itself. For a page, it reads each
subject (a manager, pool or store) once: one call per group of counts, each under the subject's lock.
Between two of these calls, the subject may do a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvpool import BlockPool, CacheManager
from kvpool._core.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvpool import ManagerStats, PoolStats
    from kvpool._core.advisor import Advice
    from kvpool._core.requests import AgeHistogram, PoolMetrics
    from kvpool._core.store import StoreStats
    from kvpool.journal import JournalView

__all__ = ["SCALES", "Buckets", "Samples", "Subject", "collect", "view_samples"]

#: The types of objects whose counts this module can collect.
Subject = CacheManager | BlockPool | Store

#: The sizes in the hit-rate curve of the advisor, as multiples of the pool's size.
SCALES: Final = ("0.125", "0.25", "0.5", "0.75", "1", "1.5", "2", "3", "4", "6", "8")
_TIERS: Final = ("device", "host")
_STATES: Final = ("free", "cached_free", "active", "fenced")
_REQUESTS: Final = ("running", "preempted", "swapped", "moving", "loading", "releasing")
#: Counters of a manager for which the metric has the same name as the field.
_MANAGER: Final = (
    "admissions",
    "refusals",
    "prompt_tokens",
    "hit_tokens",
    "external_tokens",
    "computed_tokens",
    "unserved_tokens",
    "appended_tokens",
    "preemptions",
    "preempted_tokens",
    "resumptions",
    "resumed_tokens",
    "resumed_hit_tokens",
    "resumed_external_tokens",
    "forks",
    "copied_blocks",
    "checkpoints",
)
_RETAINED: Final = ("demoted", "below_normal", "above_normal", "pinned", "with_ttl")
_STORE_FIELDS: Final = {
    "store_objects": "objects",
    "store_bytes": "bytes",
    "store_capacity_bytes": "capacity_bytes",
    "store_in_flight_objects": "in_flight",
    "store_quarantined_objects": "quarantined",
    "store_restored_objects": "restored",
    "store_foreign_objects": "foreign",
    "store_loads": "loads",
    "store_loaded_bytes": "loaded_bytes",
    "store_misses": "misses",
    "store_writes": "writes",
    "store_written_bytes": "written_bytes",
    "store_evicted_objects": "evicted",
    "store_removed_objects": "removed",
    "store_checksum_failures": "damaged",
    "store_breaker_openings": "opened",
}
_STORE_FAILURES: Final = ("lost", "full", "failed", "timed_out", "busy", "unavailable", "known_absent")


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram: the upper bound of each bucket, the count of each bucket, and the sum of all values.

    ``counts`` has one more entry than ``bounds``, for values above the last bound. Counts are not
    cumulative.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class Samples:
    """Collected values, by metric and labels, in the order of collection."""

    def __init__(self) -> None:
        self.values: dict[str, list[tuple[tuple[str, ...], float | Buckets]]] = {}

    def add(self, name: str, labels: tuple[str, ...], value: float | Buckets) -> None:
        """Adds a sample. Pass the name without ``kvpool_``, and the labels in the order of the catalogue."""
        self.values.setdefault(f"kvpool_{name}", []).append((labels, value))


def collect(subjects: Mapping[str, Subject]) -> Samples:
    """Collects the samples of every subject (a manager, pool or store), reading each once."""
    samples = Samples()
    for name, subject in subjects.items():
        if isinstance(subject, Store):
            _store(samples, name, subject.stats())
        elif isinstance(subject, BlockPool):
            counted = subject.diagnose.metrics()
            samples.add("poisoned", (name,), float(subject.diagnose.poison_reason is not None))
            _tiers(samples, name, [subject.stats()], [] if counted is None else [counted])
            _advice(samples, name, subject.diagnose.advice())
        else:
            _manager(samples, name, subject)
    return samples


def view_samples(name: str, view: JournalView) -> Samples:
    """Returns the samples of the pool or manager that a journal replays, at one point of the replay."""
    samples = Samples()
    _tiers(samples, name, [view.pool, view.host], view.metrics)
    if view.stats is not None:
        _requests(samples, name, view.stats)
    _advice(samples, name, view.advice)
    return samples


def _manager(samples: Samples, name: str, manager: CacheManager) -> None:
    stats = manager.stats()
    samples.add("poisoned", (name,), float(manager.diagnose.poison_reason is not None))
    _tiers(samples, name, [stats.pool, manager.swaps.host_stats()], manager.diagnose.metrics())
    _requests(samples, name, stats)
    _advice(samples, name, manager.diagnose.advice())


def _tiers(samples: Samples, name: str, pools: list[PoolStats | None], counted: list[PoolMetrics]) -> None:
    for index, pool in enumerate(pools):
        if pool is not None:
            _tier(samples, (name, _TIERS[index]), pool, counted[index] if counted else None)
    if counted:
        _tenants(samples, name, counted[0])


def _tier(samples: Samples, labels: tuple[str, str], stats: PoolStats, counted: PoolMetrics | None) -> None:
    samples.add("capacity_blocks", labels, stats.usable)
    for state in _STATES:
        samples.add("blocks", (*labels, state), getattr(stats, state))
    samples.add("registered_blocks", labels, stats.registered)
    samples.add("usage_ratio", labels, stats.usage)
    samples.add("block_size_tokens", labels, stats.block_size)
    samples.add("epoch", labels, stats.epoch)
    samples.add("allocated_blocks", labels, stats.allocated)
    samples.add("hit_blocks", labels, stats.hits)
    samples.add("miss_blocks", labels, stats.misses)
    samples.add("collisions", labels, stats.collisions)
    samples.add("duplicate_blocks", labels, stats.duplicates_dropped)
    if counted is None:
        samples.add("evicted_blocks", (*labels, "unknown"), stats.evicted)
        return
    for cause, blocks in counted["evicted"].items():
        samples.add("evicted_blocks", (*labels, cause), blocks)
    samples.add("stored_blocks", labels, counted["stored"])
    samples.add("dropped_blocks", labels, counted["dropped"])
    samples.add("cleared_blocks", labels, counted["cleared"])
    samples.add("block_age_at_hit_seconds", labels, _buckets(counted["age_at_hit"]))
    samples.add("block_reuse_gap_seconds", labels, _buckets(counted["reuse_gap"]))
    samples.add("block_lifetime_seconds", labels, _buckets(counted["lifetime"]))
    samples.add("block_idle_before_eviction_seconds", labels, _buckets(counted["idle_before_eviction"]))
    samples.add("block_hits_before_eviction", labels, _buckets(counted["hits_before_eviction"]))


def _buckets(histogram: AgeHistogram) -> Buckets:
    return Buckets(tuple(histogram["bounds"]), tuple(histogram["counts"]), histogram["sum"])


def _tenants(samples: Samples, name: str, counted: PoolMetrics) -> None:
    tenants = {str(tenant): hits for tenant, hits in counted["tenants"].items()}
    for tenant, hits in {**tenants, "other": counted["other_tenants"], "none": counted["no_tenant"]}.items():
        samples.add("tenant_hit_blocks", (name, tenant), hits["hits"])
        samples.add("tenant_miss_blocks", (name, tenant), hits["misses"])


def _requests(samples: Samples, name: str, stats: ManagerStats) -> None:
    for state in _REQUESTS:
        samples.add("requests", (name, state), getattr(stats, state))
    for field in _MANAGER:
        samples.add(field, (name,), getattr(stats, field))
    samples.add("swapped_requests", (name, "out"), stats.swapped_out)
    samples.add("swapped_requests", (name, "in"), stats.swapped_in)
    for metric, misses in (("missed_tokens", stats.misses), ("resumed_missed_tokens", stats.resumed_misses)):
        for reason, tokens in (misses or {}).items():
            samples.add(metric, (name, reason), tokens)
    for answer in ("accepted", "clipped", "ignored"):
        samples.add("hinted_blocks", (name, answer), getattr(stats.hints, answer))
    if stats.retention is not None:
        for kind in _RETAINED:
            samples.add("retained_blocks", (name, kind), getattr(stats.retention, kind))
        samples.add("expired_retentions", (name,), stats.retention.expired)


def _advice(samples: Samples, name: str, advice: Advice | None) -> None:
    if advice is None:
        return
    samples.add("advice_hit_ratio", (name,), advice["block_hit_rate"])
    samples.add("advice_references", (name,), advice["references"])
    for scale, point in zip(SCALES, advice["curve"], strict=True):
        samples.add("advice_curve_ratio", (name, scale), point["block_hit_rate"])
    for policy in advice["policies"]:
        samples.add("advice_policy_ratio", (name, policy["name"]), policy["block_hit_rate"])
    for tenant in advice["tenants"]:
        samples.add("advice_tenant_ratio", (name, str(tenant["tenant"])), tenant["block_hit_rate"])


def _store(samples: Samples, name: str, stats: StoreStats) -> None:
    for metric, field in _STORE_FIELDS.items():
        samples.add(metric, (name,), getattr(stats, field))
    for reason in ("known", "not_admitted"):
        samples.add("store_offers_declined", (name, reason), getattr(stats, reason))
    for reason in _STORE_FAILURES:
        samples.add("store_failures", (name, reason), getattr(stats, reason))
