"""Every metric: its name, type, unit, labels and meaning.

Owns the names, which are in ``data/metrics.toml``. What collects (:mod:`.collect`), the text,
OpenTelemetry, ``docs/metrics.md``, the dashboard and the alert rules have them from here, and tests
compare. A name, once released, keeps its meaning.

Names are those of OpenMetrics: a unit is the end of the name, and a counter's samples end in
``_total``. Every metric has the label ``pool`` or ``store`` besides its own, and the labels of its
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


#: In the order of the page.
CATALOGUE: Final[tuple[Definition, ...]] = tuple(
    Definition(f"kvpool_{one['name']}", one["kind"], one.get("unit", ""), tuple(one["labels"]), one["help"])
    for one in _data.toml("metrics.toml")["metrics"]
)
