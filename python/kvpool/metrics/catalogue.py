"""The catalogue of metrics: the name, type, unit, labels and meaning of each.

The names are in ``data/metrics.toml``. The collector (:mod:`.collect`), the text page, OpenTelemetry,
``docs/metrics.md``, the dashboard and the alert rules use them. Tests check that all of these agree. A
released name never changes its meaning.

Names follow OpenMetrics: a name ends with its unit, and the samples of a counter end in ``_total``.
Besides its own labels, every metric has the label ``pool`` or ``store``, and the labels that were
passed to :class:`~kvpool.metrics.Metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from kvpool import _data

__all__ = ["CATALOGUE", "Definition", "Kind"]

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a metric, which a page shows before the samples."""

    name: str
    kind: Kind
    #: The unit, which is also the end of the name; empty for a metric without a unit.
    unit: str
    labels: tuple[str, ...]
    help: str

    @property
    def sample(self) -> str:
        """The name of the metric's samples. A histogram has samples with three other names instead."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


#: All definitions, in the order of the page.
CATALOGUE: Final[tuple[Definition, ...]] = tuple(
    Definition(f"kvpool_{one['name']}", one["kind"], one.get("unit", ""), tuple(one["labels"]), one["help"])
    for one in _data.toml("metrics.toml")["metrics"]
)
