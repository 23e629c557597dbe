"""Every metric: its name, type, unit, labels and meaning.

Owns the names. What collects (:mod:`.collect`), the text, OpenTelemetry, ``docs/metrics.md``, the dashboard and the
alert rules have them from here, and tests compare. A name, once released, keeps its meaning.

Names are those of OpenMetrics: a unit is the end of the name, and a counter's samples end in ``_total``. Every metric
has the label ``pool`` or ``store`` besides its own, and the labels of its :class:`~kvpool.metrics.Metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["CATALOGUE", "Definition", "Kind"]

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Definition:
    """A metric: what a page says of it before its samples."""

    name: str
    kind: Kind
    #: The end of the name, or nothing for what has no unit.
    unit: str
    labels: tuple[str, ...]
    help: str

    @property
    def sample(self) -> str:
        """The name of its samples, but for a histogram's, which have three."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


_POOL: Final = ("pool",)
_TIER: Final = ("pool", "tier")
_STORE: Final = ("store",)


def _counter(name: str, unit: str, labels: tuple[str, ...], text: str) -> Definition:
    return Definition(f"kvpool_{name}", "counter", unit, labels, text)


def _gauge(name: str, unit: str, labels: tuple[str, ...], text: str) -> Definition:
    return Definition(f"kvpool_{name}", "gauge", unit, labels, text)


def _histogram(name: str, unit: str, text: str) -> Definition:
    return Definition(f"kvpool_{name}", "histogram", unit, _TIER, text)


#: In the order of the page.
CATALOGUE: Final[tuple[Definition, ...]] = (
    # What a pool holds.
    _gauge("capacity_blocks", "blocks", _TIER, "Usable blocks: all but the null block."),
    _gauge(
        "blocks",
        "blocks",
        (*_TIER, "state"),
        "Blocks by state: free, cached_free, active, fenced. They sum up to the capacity.",
    ),
    _gauge("registered_blocks", "blocks", _TIER, "Blocks whose content is in the prefix index, in use or not."),
    _gauge("usage_ratio", "ratio", _TIER, "Share of the usable blocks that is active or fenced."),
    _gauge("block_size_tokens", "tokens", _TIER, "Tokens per block."),
    _gauge("epoch", "", _TIER, "The epoch of the contents: it goes up with new weights."),
    _gauge("poisoned", "", _POOL, "1 if an invariant broke and the pool refuses all work, 0 otherwise."),
    # What it did.
    _counter("allocated_blocks", "blocks", _TIER, "Blocks handed out."),
    _counter(
        "evicted_blocks",
        "blocks",
        (*_TIER, "cause"),
        "Cached blocks that made way: policy, priority, end-of-life, expired, tenant-ceiling; unknown without "
        "metrics=True.",
    ),
    _counter("hit_blocks", "blocks", _TIER, "Blocks that lookups asked for, found and acquired."),
    _counter("miss_blocks", "blocks", _TIER, "Blocks that lookups asked for and did not find."),
    _counter(
        "collisions", "", _TIER, "Hits and registrations refused because other content stood behind an equal hash."
    ),
    _counter("duplicate_blocks", "blocks", _TIER, "Released duplicates that were freed at once."),
    # With metrics=True.
    _counter("stored_blocks", "blocks", _TIER, "Blocks whose content became computed and can be hit."),
    _counter("dropped_blocks", "blocks", _TIER, "Computed blocks that were dropped by name or as duplicates."),
    _counter("cleared_blocks", "blocks", _TIER, "Computed blocks that resets and ended epochs forgot."),
    _histogram(
        "block_age_at_hit_seconds", "seconds", "From the moment a block's content was computed to each hit of it."
    ),
    _histogram(
        "block_reuse_gap_seconds",
        "seconds",
        "From the moment a block's content was computed, or hit before, to each hit of it.",
    ),
    _histogram("block_lifetime_seconds", "seconds", "From the moment a block's content was computed to its eviction."),
    _histogram(
        "block_idle_before_eviction_seconds",
        "seconds",
        "From the moment a block's content was computed, or hit last, to its eviction.",
    ),
    _histogram("block_hits_before_eviction", "", "How often a block was hit before it was evicted."),
    _counter(
        "tenant_hit_blocks",
        "blocks",
        ("pool", "tenant"),
        "Of the blocks that lookups found, those of each tenant; other behind the first 64, none for nobody's.",
    ),
    _counter(
        "tenant_miss_blocks",
        "blocks",
        ("pool", "tenant"),
        "Of the blocks that lookups did not find, those of each tenant.",
    ),
    # Of a manager.
    _gauge(
        "requests", "", ("pool", "state"), "Requests by state: running, preempted, swapped, moving, loading, releasing."
    ),
    _counter("admissions", "", _POOL, "Requests admitted."),
    _counter("refusals", "", _POOL, "Admissions and resumptions refused for want of blocks."),
    _counter("prompt_tokens", "tokens", _POOL, "Prompt tokens of admitted requests."),
    _counter("hit_tokens", "tokens", _POOL, "Of the prompt tokens, those whose KV was cached on the device."),
    _counter("external_tokens", "tokens", _POOL, "Of the prompt tokens, those whose KV a connector brought."),
    _counter("computed_tokens", "tokens", _POOL, "Of the prompt tokens, those that the engine had to compute."),
    _counter(
        "missed_tokens",
        "tokens",
        ("pool", "reason"),
        "Prompt tokens that were not found at admission, by reason; needs explain.",
    ),
    _counter("resumed_missed_tokens", "tokens", ("pool", "reason"), "The same of resumed requests."),
    _counter(
        "unserved_tokens",
        "tokens",
        _POOL,
        "Tokens that full attention had cached and another KV-cache group could not serve.",
    ),
    _counter("appended_tokens", "tokens", _POOL, "Tokens appended after admission."),
    _counter("preemptions", "", _POOL, "Requests preempted."),
    _counter("preempted_tokens", "tokens", _POOL, "Computed tokens that preemptions gave up, cached again or not."),
    _counter("resumptions", "", _POOL, "Requests resumed."),
    _counter("resumed_tokens", "tokens", _POOL, "Tokens of resumed requests."),
    _counter("resumed_hit_tokens", "tokens", _POOL, "Of the resumed tokens, those whose KV was still cached."),
    _counter("resumed_external_tokens", "tokens", _POOL, "Of the resumed tokens, those whose KV a connector brought."),
    _counter("forks", "", _POOL, "Requests forked from others."),
    _counter("swapped_requests", "", ("pool", "direction"), "Requests that were swapped: out, in."),
    _counter("copied_blocks", "blocks", _POOL, "Blocks handed out to be copied, by copy-on-write and by swaps."),
    _counter("checkpoints", "", _POOL, "States of recurrent groups that were copied to be kept."),
    # Retention.
    _counter(
        "hinted_blocks", "blocks", ("pool", "answer"), "Blocks that hints were given for: accepted, clipped, ignored."
    ),
    _gauge(
        "retained_blocks",
        "blocks",
        ("pool", "kind"),
        "Blocks by retention: demoted, below_normal, above_normal, pinned, with_ttl.",
    ),
    _counter("expired_retentions", "", _POOL, "Times to live that have run out."),
    # The advisor.
    _gauge("advice_hit_ratio", "ratio", _POOL, "Block hit rate in the advisor's window, measured."),
    _gauge("advice_references", "", _POOL, "Block references in the advisor's window."),
    _gauge("advice_curve_ratio", "ratio", ("pool", "scale"), "What LRU would hit at so many times the pool's size."),
    _gauge("advice_policy_ratio", "ratio", ("pool", "policy"), "What a policy would hit at the pool's size."),
    _gauge("advice_tenant_ratio", "ratio", ("pool", "tenant"), "What each tenant hits, in the window."),
    # Of a store beneath the device.
    _gauge("store_objects", "", _STORE, "Objects that can be found."),
    _gauge("store_bytes", "bytes", _STORE, "Bytes that they, and what is on its way, take at most."),
    _gauge("store_capacity_bytes", "bytes", _STORE, "The bound on these bytes."),
    _gauge("store_in_flight_objects", "objects", _STORE, "Objects on their way."),
    _gauge(
        "store_quarantined_objects",
        "objects",
        _STORE,
        "Of these, what a back end still has after its deadline: slots that stay taken.",
    ),
    _gauge("store_restored_objects", "objects", _STORE, "Objects that were there when the store was opened."),
    _gauge(
        "store_foreign_objects",
        "objects",
        _STORE,
        "Objects of another namespace or format, or damaged, that were there then.",
    ),
    _counter("store_loads", "", _STORE, "Objects loaded."),
    _counter("store_loaded_bytes", "bytes", _STORE, "Bytes of their payloads."),
    _counter("store_misses", "", _STORE, "Loads that missed, whatever the reason."),
    _counter("store_writes", "", _STORE, "Objects written."),
    _counter("store_written_bytes", "bytes", _STORE, "Bytes of their payloads."),
    _counter("store_offers_declined", "", ("store", "reason"), "Offers that were not written: known, not_admitted."),
    _counter("store_evicted_objects", "objects", _STORE, "Objects evicted for others."),
    _counter("store_removed_objects", "objects", _STORE, "Objects removed by a caller."),
    _counter("store_checksum_failures", "", _STORE, "Loads of an object that was another, or damaged: never served."),
    _counter(
        "store_failures",
        "",
        ("store", "reason"),
        "Transfers that came to nothing: lost, full, failed, timed_out, busy, unavailable, known_absent.",
    ),
    _counter("store_breaker_openings", "", _STORE, "How often the breaker opened: the back end had failed too often."),
)
