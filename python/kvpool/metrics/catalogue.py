"""Every metric: its name, type, unit, labels and meaning.

This module owns the names, which are in ``data/metrics.toml``. The collector (:mod:`.collect`), the
text, OpenTelemetry, ``docs/metrics.md``, the dashboard and the alert rules use them, and tests compare.
A released name never changes its meaning.

Names follow OpenMetrics: the unit is the end of the name, and a counter's samples end in ``_total``.
Every metric has the label ``pool`` or ``store`` besides its own, and the labels of its
:class:`~kvpool.metrics.Metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from kvpool import _data

__all__ = ["CATALOGUE", "Definition", "Kind"]

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Definition:
    """A metric: its description on a page, before its samples."""

    name: str
    kind: Kind
    #: The end of the name; empty for a metric without a unit.
    unit: str
    labels: tuple[str, ...]
    help: str

    @property
    def sample(self) -> str:
        """The name of its samples. A histogram has three further names instead."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


#: In the order of the page.
CATALOGUE: Final[tuple[Definition, ...]] = tuple(
    Definition(f"kvpool_{one['name']}", one["kind"], one.get("unit", ""), tuple(one["labels"]), one["help"])
    for one in _data.toml("metrics.toml")["metrics"]
)
