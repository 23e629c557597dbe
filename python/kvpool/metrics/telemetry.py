"""Exports metrics as OpenTelemetry instruments. It needs the package ``opentelemetry``.

A counter of the catalogue becomes an observable counter, and a gauge becomes an observable gauge.
OpenTelemetry has no observable histogram, so a histogram becomes three observable counters:
``NAME_bucket``, ``NAME_count`` and ``NAME_sum``. ``NAME_bucket`` has the label ``le``, and its counts
are cumulative as in Prometheus.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from kvpool.errors import MissingPackageError
from kvpool.metrics.catalogue import CATALOGUE
from kvpool.metrics.collect import Buckets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvpool.metrics.catalogue import Definition
    from kvpool.metrics.collect import Samples

__all__ = ["observe"]

#: OpenTelemetry's names of the units.
_UNITS = {
    "seconds": "s",
    "bytes": "By",
    "ratio": "1",
    "blocks": "{block}",
    "tokens": "{token}",
    "objects": "{object}",
}


def observe(meter: Any, collect: Callable[[], Samples], constant: Mapping[str, str]) -> None:
    """Creates one instrument per metric. Each reads its samples when OpenTelemetry collects it."""
    try:
        from opentelemetry.metrics import Observation
    except ImportError as error:
        raise MissingPackageError("observe() needs opentelemetry: pip install opentelemetry-api") from error

    def values(
        definition: Definition, pick: Callable[[float | Buckets], list[tuple[dict[str, str], float]]]
    ) -> Any:
        def read(_options: object) -> list[Any]:
            found = collect().values.get(definition.name, [])
            return [
                Observation(value, {**constant, **dict(zip(definition.labels, labels, strict=True)), **more})
                for labels, whole in found
                for more, value in pick(whole)
            ]

        return read

    for definition in CATALOGUE:
        name, unit, text = definition.name, _UNITS.get(definition.unit, "1"), definition.help
        if definition.kind == "gauge":
            meter.create_observable_gauge(name, [values(definition, _plain)], unit=unit, description=text)
        elif definition.kind == "counter":
            meter.create_observable_counter(name, [values(definition, _plain)], unit=unit, description=text)
        else:
            for end, pick, of in (("bucket", _buckets, "1"), ("count", _count, "1"), ("sum", _sum, unit)):
                meter.create_observable_counter(
                    f"{name}_{end}", [values(definition, pick)], unit=of, description=text
                )


def _plain(value: float | Buckets) -> list[tuple[dict[str, str], float]]:
    return [] if isinstance(value, Buckets) else [({}, value)]


def _buckets(value: float | Buckets) -> list[tuple[dict[str, str], float]]:
    if not isinstance(value, Buckets):
        return []
    ends = [*(repr(float(end)) for end in value.bounds), "+Inf"]
    return [({"le": end}, count) for end, count in zip(ends, itertools.accumulate(value.counts), strict=True)]


def _count(value: float | Buckets) -> list[tuple[dict[str, str], float]]:
    return [({}, sum(value.counts))] if isinstance(value, Buckets) else []


def _sum(value: float | Buckets) -> list[tuple[dict[str, str], float]]:
    return [({}, value.sum)] if isinstance(value, Buckets) else []
