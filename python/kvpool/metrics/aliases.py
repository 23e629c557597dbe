"""Reports some metrics also under the names that vLLM and SGLang use, for existing dashboards.

This module contains only names whose meaning is exactly that of a metric of kvpool. Two names are left
out for this reason: vLLM's gap between uses does not count the first gap, and SGLang's hit rate covers
only the last batch. Samples keep kvpool's labels. vLLM has its own page, so inside vLLM these metrics
would be reported twice. Enable them only if the engine does not report them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from kvpool.metrics.catalogue import Kind
    from kvpool.metrics.collect import Buckets, Samples

__all__ = ["ALIASES", "Alias", "Engine", "values"]

Engine = Literal["vllm", "sglang"]


@dataclass(frozen=True, slots=True)
class Alias:
    """A metric's name in an engine, and the samples of kvpool with the same meaning."""

    name: str
    kind: Kind
    #: The metric's name in kvpool's catalogue.
    of: str
    #: The values that kvpool's samples must have for their labels after ``pool``, in the order of the labels.
    #: The alias does not include samples with other values.
    where: tuple[str, ...] = ()
    #: The label and the value that the engine uses in place of the labels of ``where``.
    label: tuple[str, str] | None = None
    #: Whether the engine counts tokens, so that kvpool's number of blocks is multiplied by the block
    #: size.
    in_tokens: bool = False


ALIASES: Final[dict[Engine, tuple[Alias, ...]]] = {
    "vllm": (
        Alias("vllm:prefix_cache_queries", "counter", "kvpool_prompt_tokens"),
        Alias("vllm:prefix_cache_hits", "counter", "kvpool_hit_tokens"),
        Alias("vllm:external_prefix_cache_hits", "counter", "kvpool_external_tokens"),
        Alias("vllm:kv_cache_usage_perc", "gauge", "kvpool_usage_ratio", ("device",)),
        Alias("vllm:num_requests_running", "gauge", "kvpool_requests", ("running",)),
        Alias("vllm:num_preemptions", "counter", "kvpool_preemptions"),
        Alias("vllm:kv_block_lifetime_seconds", "histogram", "kvpool_block_lifetime_seconds", ("device",)),
        Alias(
            "vllm:kv_block_idle_before_evict_seconds",
            "histogram",
            "kvpool_block_idle_before_eviction_seconds",
            ("device",),
        ),
    ),
    "sglang": (
        Alias("sglang:prompt_tokens", "counter", "kvpool_prompt_tokens"),
        Alias("sglang:cached_tokens", "counter", "kvpool_hit_tokens", label=("cache_source", "device")),
        Alias("sglang:num_running_reqs", "gauge", "kvpool_requests", ("running",)),
        Alias("sglang:token_usage", "gauge", "kvpool_usage_ratio", ("device",)),
        Alias("sglang:kv_used_tokens", "gauge", "kvpool_blocks", ("device", "active"), in_tokens=True),
        Alias("sglang:kv_available_tokens", "gauge", "kvpool_blocks", ("device", "free"), in_tokens=True),
        Alias(
            "sglang:kv_evictable_tokens", "gauge", "kvpool_blocks", ("device", "cached_free"), in_tokens=True
        ),
    ),
}


def values(alias: Alias, samples: Samples) -> list[tuple[str, float | Buckets]]:
    """Returns the values that a metric of an engine gets, by pool."""
    found: list[tuple[str, float | Buckets]] = []
    sizes = {labels[0]: value for labels, value in samples.values.get("kvpool_block_size_tokens", [])}
    for (pool, *rest), value in samples.values.get(alias.of, []):
        if tuple(rest) != alias.where:
            continue
        if alias.in_tokens:
            size = sizes[pool]
            assert isinstance(size, (int, float)), size  # noqa: S101 - the collector's own
            assert isinstance(value, (int, float)), value  # noqa: S101
            found.append((pool, value * size))
        else:
            found.append((pool, value))
    return found
