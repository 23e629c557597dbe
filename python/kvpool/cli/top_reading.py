"""Reads pages of metrics and journals for ``kvpool top``, and summarizes one or two readings.

This module owns the summary, which ``--json`` prints: numbers by pool and store. Some numbers are totals,
and some are for the time between two readings. The names of metrics are those of ``kvpool.metrics``. A
page without such metrics is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kvpool.cli.problems import UsageError
from kvpool.errors import InvalidArgumentError
from kvpool.fetch import FetchError, fetch
from kvpool.metrics.catalogue import CATALOGUE
from kvpool.metrics.collect import Buckets, view_samples
from kvpool.metrics.page import library
from kvpool.store.urls import split_url, without_password

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from kvpool.journal import JournalView
    from kvpool.metrics.collect import Samples

__all__ = ["PageError", "Reading", "of_samples", "of_view", "read_url", "summary"]

#: Maximum number of bytes of a page. A longer page is an error.
_LONGEST: Final = 64 << 20
_ACCEPT: Final = "application/openmetrics-text; version=1.0.0; escaping=allow-utf-8"


class PageError(Exception):
    """A page that is unavailable, or has no metrics of kvpool."""


@dataclass(frozen=True)
class Reading:
    """The values of one reading, by metric and labels.

    A histogram has two entries: the number of its values, and their sum.
    """

    values: dict[str, list[tuple[dict[str, str], float]]] = field(default_factory=dict)

    def rows(self, name: str, **where: str) -> Iterator[tuple[dict[str, str], float]]:
        """Yield the samples of a metric that have these labels. ``name`` lacks the prefix ``kvpool_``."""
        for labels, value in self.values.get(f"kvpool_{name}", []):
            if all(labels.get(label) == said for label, said in where.items()):
                yield labels, value

    def sum(self, name: str, **where: str) -> float:
        """Return the sum of those samples of a metric that have the labels ``where``."""
        return sum(value for _, value in self.rows(name, **where))

    def by(self, name: str, label: str, **where: str) -> dict[str, float]:
        """Return sums of the samples with the labels ``where``, one per value of the label ``label``."""
        found: dict[str, float] = {}
        for labels, value in self.rows(name, **where):
            key = labels.get(label, "")
            found[key] = found.get(key, 0.0) + value
        return found


def read_url(url: str, seconds: float, names: Collection[str] = ()) -> Reading:
    """Read a page of metrics within ``seconds``. Returns kvpool's samples, or those in ``names``."""
    shown = without_password(url)
    try:
        parts = split_url(url)
    except InvalidArgumentError as error:
        raise UsageError(str(error)) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"{shown}: must begin with http:// or https://, and name a host")
    if "@" in parts.netloc:
        raise UsageError(f"{shown}: a login in the URL is not sent; a page of kvpool.metrics asks for none")
    try:
        page = fetch(url, seconds=seconds, most_bytes=_LONGEST, headers={"Accept": _ACCEPT})
    except FetchError as error:
        raise PageError(f"{shown}: {error}") from error
    return _parsed(shown, page.body, "openmetrics" in page.content_type, names)


def _parsed(url: str, page: bytes, openmetrics: bool, names: Collection[str]) -> Reading:
    library()
    from prometheus_client import parser as text
    from prometheus_client.openmetrics import parser

    parse: Any = parser.text_string_to_metric_families if openmetrics else text.text_string_to_metric_families
    known = {one.sample for one in CATALOGUE if one.kind != "histogram"}
    known |= {f"{one.name}_{end}" for one in CATALOGUE if one.kind == "histogram" for end in ("count", "sum")}
    known = set(names) or known
    reading = Reading()
    try:
        for family in parse(page.decode()):
            for sample in family.samples:
                if sample.name in known:
                    name = sample.name.removesuffix("_total")
                    reading.values.setdefault(name, []).append((dict(sample.labels), sample.value))
    except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        # prometheus_client does not document which exceptions its parser raises for an invalid page.
        raise PageError(f"{url}: no page of metrics: {error}") from error
    if not reading.values:
        what = ", ".join(names) if names else "metric of kvpool's"
        raise PageError(f"{url}: no {what} is on the page")
    return reading


def of_view(view: JournalView) -> Reading:
    """Return the samples of a journal's pool or manager. The name of the pool is the kind of object."""
    return of_samples(view_samples(view.subject, view))


def of_samples(samples: Samples) -> Reading:
    """Return the samples that this process has collected as a reading."""
    labels = {one.name: one.labels for one in CATALOGUE}
    reading = Reading()
    for name, rows in samples.values.items():
        for said, value in rows:
            named = dict(zip(labels[name], said, strict=True))
            if isinstance(value, Buckets):
                reading.values.setdefault(f"{name}_count", []).append((named, sum(value.counts)))
                reading.values.setdefault(f"{name}_sum", []).append((named, value.sum))
            else:
                reading.values.setdefault(name, []).append((named, value))
    return reading


def summary(reading: Reading, before: Reading | None = None, seconds: float | None = None) -> dict[str, Any]:
    """Summarize a reading by pool and store.

    If the previous reading is given, the summary includes the changes between the two. They are per second if
    ``seconds`` is given.
    """
    pools = {labels["pool"]: None for labels, _ in reading.rows("capacity_blocks")}
    stores = {labels["store"]: None for labels, _ in reading.rows("store_capacity_bytes")}
    return {
        "seconds": seconds if before is not None else None,
        "pools": {name: _pool(reading, before, seconds, name) for name in pools},
        "stores": {name: _store(reading, before, seconds, name) for name in stores},
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _pool(reading: Reading, before: Reading | None, seconds: float | None, pool: str) -> dict[str, Any]:
    tiers = {labels["tier"]: None for labels, _ in reading.rows("capacity_blocks", pool=pool)}
    tokens = {
        part: reading.sum(f"{part}_tokens", pool=pool) for part in ("prompt", "hit", "external", "computed")
    }
    hits, misses = (
        reading.by("tenant_hit_blocks", "tenant", pool=pool),
        reading.by("tenant_miss_blocks", "tenant", pool=pool),
    )
    found: dict[str, Any] = {
        "poisoned": reading.sum("poisoned", pool=pool) > 0,
        "tiers": {tier: _tier(reading, pool, tier) for tier in tiers},
        "requests": reading.by("requests", "state", pool=pool),
        "tokens": tokens,
        "hit_ratio": _ratio(tokens["hit"], tokens["prompt"]),
        "missed_tokens": reading.by("missed_tokens", "reason", pool=pool),
        "refusals": reading.sum("refusals", pool=pool),
        "preemptions": reading.sum("preemptions", pool=pool),
        "swapped": reading.by("swapped_requests", "direction", pool=pool),
        "hinted_blocks": reading.by("hinted_blocks", "answer", pool=pool),
        "tenants": {
            tenant: {"hits": hits[tenant], "misses": misses.get(tenant, 0.0)}
            for tenant in hits
            if hits[tenant] + misses.get(tenant, 0.0) > 0
        },
        "advice": None,
        "last": None,
    }
    if any(True for _ in reading.rows("advice_hit_ratio", pool=pool)):
        found["advice"] = {
            "hit_ratio": reading.sum("advice_hit_ratio", pool=pool),
            "references": reading.sum("advice_references", pool=pool),
            "curve": reading.by("advice_curve_ratio", "scale", pool=pool),
            "policies": reading.by("advice_policy_ratio", "policy", pool=pool),
        }
    if before is not None:
        found["last"] = _last_of_pool(reading, before, seconds, pool)
    return found


def _tier(reading: Reading, pool: str, tier: str) -> dict[str, Any]:
    where = {"pool": pool, "tier": tier}

    def mean(name: str) -> float | None:
        return _ratio(reading.sum(f"{name}_sum", **where), reading.sum(f"{name}_count", **where))

    return {
        "capacity_blocks": reading.sum("capacity_blocks", **where),
        "blocks": reading.by("blocks", "state", **where),
        "hit_blocks": reading.sum("hit_blocks", **where),
        "miss_blocks": reading.sum("miss_blocks", **where),
        "evicted_blocks": reading.by("evicted_blocks", "cause", **where),
        "mean_age_at_hit_seconds": mean("block_age_at_hit_seconds"),
        "mean_reuse_gap_seconds": mean("block_reuse_gap_seconds"),
        "mean_idle_before_eviction_seconds": mean("block_idle_before_eviction_seconds"),
        "mean_hits_before_eviction": mean("block_hits_before_eviction"),
    }


def _risen(now: float, then: float) -> float:
    """Return the increase of a counter. If the counter is lower than before, it restarted at 0."""
    return now - then if now >= then else now


def _speed(count: float, seconds: float | None) -> float | None:
    return count / seconds if seconds else None


def _last_of_pool(reading: Reading, before: Reading, seconds: float | None, pool: str) -> dict[str, Any]:
    def risen(name: str) -> float:
        return _risen(reading.sum(name, pool=pool), before.sum(name, pool=pool))

    def risen_by(name: str, label: str) -> dict[str, float]:
        then = before.by(name, label, pool=pool)
        now = reading.by(name, label, pool=pool).items()
        return {key: _risen(value, then.get(key, 0.0)) for key, value in now}

    return {
        "hit_ratio": _ratio(risen("hit_tokens"), risen("prompt_tokens")),
        "prompt_tokens_per_second": _speed(risen("prompt_tokens"), seconds),
        "admissions_per_second": _speed(risen("admissions"), seconds),
        "evicted_blocks_per_second": _speed(risen("evicted_blocks"), seconds),
        "refusals_per_second": _speed(risen("refusals"), seconds),
        "preemptions_per_second": _speed(risen("preemptions"), seconds),
        "missed_tokens": risen_by("missed_tokens", "reason"),
        "evicted_blocks": risen_by("evicted_blocks", "cause"),
    }


def _store(reading: Reading, before: Reading | None, seconds: float | None, store: str) -> dict[str, Any]:
    def count(name: str) -> float:
        return reading.sum(f"store_{name}", store=store)

    found: dict[str, Any] = {
        "objects": count("objects"),
        "bytes": count("bytes"),
        "capacity_bytes": count("capacity_bytes"),
        "in_flight": count("in_flight_objects"),
        "quarantined": count("quarantined_objects"),
        "loads": count("loads"),
        "misses": count("misses"),
        "writes": count("writes"),
        "checksum_failures": count("checksum_failures"),
        "breaker_openings": count("breaker_openings"),
        "failures": reading.by("store_failures", "reason", store=store),
        "last": None,
    }
    if before is not None:

        def speed(name: str) -> float | None:
            return _speed(_risen(count(name), before.sum(f"store_{name}", store=store)), seconds)

        found["last"] = {
            "loaded_bytes_per_second": speed("loaded_bytes"),
            "written_bytes_per_second": speed("written_bytes"),
        }
    return found
