"""A dashboard of Grafana's as plain data: its panels, and the queries that Grafana would send for them.

Owns what is read of the JSON, what is refused in it, and how variables become text. Knows no Prometheus and draws
nothing. Grafana's rules, as its documentation states them:

- ``$__interval`` is the range over the points that a panel has room for, at least the scrape interval; it is the step.
- ``$__rate_interval`` is the larger of ``$__interval`` plus the scrape interval, and four scrape intervals.
- A variable with one value is that value; one with several, All included, is ``(a|b)``. Both are escaped for a regular
  expression inside of a string of PromQL.
- ``${datasource}`` is no part of a query: it names the Prometheus that is asked.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: Columns of the grid.
COLUMNS: Final = 24
#: Types of panels that can be drawn.
KINDS: Final = ("timeseries", "stat", "gauge", "bargauge")
#: Units that can be written, by Grafana's names.
UNITS: Final = ("short", "percentunit", "s", "bytes")

_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))|\[\[(\w+)")


class DashboardError(Exception):
    """The dashboard has something that Grafana would not show, or this cannot draw; the message names the panel."""


@dataclass(frozen=True)
class Target:
    """A query of a panel."""

    expression: str
    legend: str
    instant: bool


@dataclass(frozen=True)
class Style:
    """How the values of a panel, or of one of its series, are shown."""

    unit: str
    low: float | None = None
    high: float | None = None
    axis: str = ""
    right: bool = False
    #: From which value on which colour.
    thresholds: tuple[tuple[float, str], ...] = ()
    #: Text in place of a value.
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """A panel at its place; a row has a title alone."""

    kind: str
    title: str
    x: int
    y: int
    w: int
    h: int
    targets: tuple[Target, ...] = ()
    style: Style = Style("short")
    #: Styles of series by what their legend says.
    overrides: Mapping[str, Style] = field(default_factory=dict)
    stacked: bool = False
    fill: float = 0.0
    #: Whether a stat has its course behind its number.
    course: bool = False

    def style_of(self, legend: str) -> Style:
        """How a series is shown."""
        return self.overrides.get(legend, self.style)


@dataclass(frozen=True)
class Dashboard:
    """Panels from top to bottom, and by variable the metric and the label whose values it has."""

    title: str
    panels: tuple[Panel, ...]
    variables: Mapping[str, tuple[str, str]]


def read(path: Path) -> Dashboard:
    """Reads a dashboard.

    Raises:
        DashboardError: A panel without place, title, unit or queries; two at one place; a type, a unit or a variable
            that is not known.
    """
    whole = json.loads(path.read_text(encoding="utf-8"))
    variables: dict[str, tuple[str, str]] = {}
    for one in whole["templating"]["list"]:
        if one["type"] == "query":
            asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", one["query"]["query"])
            if asked is None or not (one["multi"] and one["includeAll"]):
                raise DashboardError(f"the variable {one['name']!r} is not label_values(metric, label) with All")
            variables[one["name"]] = (asked[1], asked[2])
        elif one["type"] != "datasource":
            raise DashboardError(
                f"the variable {one['name']!r} is of type {one['type']!r}: must be query or datasource"
            )
    panels = [_panel(one) for one in whole["panels"]]
    _check_places(panels)
    numbers = Numbers(range_s=60, points=60, scrape_s=1)
    for panel in panels:
        for target in panel.targets:
            substitute(target.expression, numbers, dict.fromkeys(variables, ("any",)))
    return Dashboard(whole["title"], tuple(sorted(panels, key=lambda panel: (panel.y, panel.x))), variables)


def _panel(one: Mapping[str, Any]) -> Panel:
    title, kind = one.get("title", ""), one["type"]
    if not title:
        raise DashboardError(f"panel {one.get('id')} has no title")
    if set(one.get("gridPos", {})) != {"x", "y", "w", "h"}:
        raise DashboardError(f"panel {title!r} has no place")
    x, y, w, h = (int(one["gridPos"][key]) for key in ("x", "y", "w", "h"))
    if kind == "row":
        if one.get("collapsed") or one.get("panels"):
            raise DashboardError(f"row {title!r} is collapsed")
        return Panel("row", title, x, y, w, h)
    if kind not in KINDS:
        raise DashboardError(f"panel {title!r} is of type {kind!r}: must be one of {', '.join(KINDS)}")
    defaults = one["fieldConfig"]["defaults"]
    style = _style(title, defaults)
    if kind != "timeseries" and not style.thresholds:
        raise DashboardError(f"panel {title!r} has no thresholds: Grafana's own begin with red at 80")
    targets = tuple(_target(title, target) for target in one.get("targets", ()))
    if not targets:
        raise DashboardError(f"panel {title!r} has no queries")
    overrides: dict[str, Style] = {}
    for override in one["fieldConfig"].get("overrides", ()):
        if override["matcher"]["id"] != "byName":
            raise DashboardError(f"panel {title!r} has an override by {override['matcher']['id']}: must be byName")
        merged: dict[str, Any] = {**defaults, "custom": dict(defaults.get("custom", {}))}
        for changed in override["properties"]:
            at, _, inner = changed["id"].rpartition(".")
            (merged[at] if at else merged)[inner] = changed["value"]
        overrides[override["matcher"]["options"]] = _style(title, merged)
    custom = defaults.get("custom", {})
    return Panel(
        kind,
        title,
        x,
        y,
        w,
        h,
        targets=targets,
        style=style,
        overrides=overrides,
        stacked=custom.get("stacking", {}).get("mode") == "normal",
        fill=custom.get("fillOpacity", 0) / 100,
        course=one.get("options", {}).get("graphMode") == "area",
    )


def _style(title: str, said: Mapping[str, Any]) -> Style:
    if said.get("unit") not in UNITS:
        raise DashboardError(f"panel {title!r} has the unit {said.get('unit')!r}: must be one of {', '.join(UNITS)}")
    custom = said.get("custom", {})
    steps = said.get("thresholds", {}).get("steps", ())
    texts: dict[str, str] = {}
    for mapping in said.get("mappings", ()):
        texts |= {value: shown["text"] for value, shown in mapping["options"].items()}
    return Style(
        said["unit"],
        said.get("min"),
        said.get("max"),
        custom.get("axisLabel", ""),
        custom.get("axisPlacement") == "right",
        tuple((-math.inf if step["value"] is None else float(step["value"]), step["color"]) for step in steps),
        texts,
    )


def _target(title: str, target: Mapping[str, Any]) -> Target:
    if not target.get("expr") or not target.get("legendFormat"):
        raise DashboardError(f"panel {title!r} has a query without an expression or a legend")
    if target["datasource"] != {"type": "prometheus", "uid": "${datasource}"}:
        raise DashboardError(f"panel {title!r} asks {target['datasource']!r}, not the data source that was chosen")
    return Target(target["expr"], target["legendFormat"], bool(target.get("instant")))


def _check_places(panels: Sequence[Panel]) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        if panel.x < 0 or panel.y < 0 or panel.w < 1 or panel.h < 1 or panel.x + panel.w > COLUMNS:
            raise DashboardError(f"panel {panel.title!r} is outside of the grid of {COLUMNS} columns")
        for cell in ((x, y) for x in range(panel.x, panel.x + panel.w) for y in range(panel.y, panel.y + panel.h)):
            if cell in taken:
                raise DashboardError(f"panel {panel.title!r} lies over {taken[cell]!r}")
            taken[cell] = panel.title


@dataclass(frozen=True)
class Numbers:
    """What Grafana derives from the range that is shown, the points that there is room for, and the data source."""

    range_s: int
    points: int
    scrape_s: int

    @property
    def interval_s(self) -> int:
        """``$__interval``, in whole seconds."""
        return max(self.scrape_s, math.ceil(self.range_s / self.points))

    @property
    def rate_interval_s(self) -> int:
        """``$__rate_interval``."""
        return max(self.interval_s + self.scrape_s, 4 * self.scrape_s)


def substitute(expression: str, numbers: Numbers, values: Mapping[str, Sequence[str]]) -> str:
    """An expression as Grafana would send it.

    Raises:
        DashboardError: A variable that there is not, has no value, or is written in another form.
    """
    known = {
        "__interval": f"{numbers.interval_s}s",
        "__interval_ms": f"{1000 * numbers.interval_s}",
        "__rate_interval": f"{numbers.rate_interval_s}s",
        "__range": f"{numbers.range_s}s",
        "__range_s": f"{numbers.range_s}",
    }

    def text(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if found[3] or ":" in found[0] or (name not in known and name not in values):
            raise DashboardError(f"{found[0]!r} in {expression!r} is no variable of the dashboard")
        if name in known:
            return known[name]
        escaped = [_escape(value) for value in values[name]]
        if not escaped:
            raise DashboardError(f"{found[0]!r} in {expression!r} has no value")
        return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"

    return _VARIABLE.sub(text, expression)


def _escape(value: str) -> str:
    r"""For a regular expression in a string of PromQL: ``a.b`` is ``a\\.b``."""
    return re.sub(r"[$^*{}\[\]'+?.()|]", lambda found: rf"\\{found[0]}", value.replace("\\", r"\\\\"))


def legend(form: str, labels: Mapping[str, str]) -> str:
    """What a series is called."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), form)


def written(value: float, unit: str) -> str:
    """A value with its unit, about as Grafana writes it."""
    if math.isnan(value):
        return "NaN"
    if unit == "percentunit":
        return f"{_digits(100 * value)}%"
    if unit == "s":
        steps = ((1e-6, 1e-9, "ns"), (1e-3, 1e-6, "µs"), (1, 1e-3, "ms"), (60, 1, "s"), (3600, 60, "min"))
        below = next(((size, end) for limit, size, end in steps if 0 < abs(value) < limit), None)
        size, end = below or ((1, "s") if value == 0 else (3600, "hour"))
        return f"{_digits(value / size)} {end}"
    base, ends = (1024, ("B", "KiB", "MiB", "GiB", "TiB")) if unit == "bytes" else (1000, ("", "K", "Mil", "Bil"))
    power = 0
    while abs(value) >= base and power < len(ends) - 1:
        value, power = value / base, power + 1
    return f"{_digits(value)} {ends[power]}".rstrip()


def _digits(value: float) -> str:
    """At most three digits."""
    return f"{value:.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"
