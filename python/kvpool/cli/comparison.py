"""Two reports side by side: the settings in which they differ, and the differences of their figures.

This module owns :class:`Comparison`. It makes one from two reports of ``kvpool replay --json``, from two
reports of ``kvpool size --json``, or from the figures of two traces. Hit rates are shares from 0 to 1.
Tables show them in per cent, and differences of two rates in points. Differences of all other figures
have the unit of the figure. A figure that only one of the reports has is left out. This module also owns
the format of a figure, which the table and the page share.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from kvpool.cli.tables import figure, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "Comparison",
    "Curve",
    "Row",
    "RowError",
    "Section",
    "cells",
    "kind_of",
    "of_policies",
    "of_replays",
    "of_sizes",
    "of_traces",
]

#: The name of the unit of hit rates, which are from 0 to 1.
SHARE: Final = "share"

#: The name of the unit of differences of two rates, from -1 to 1. Tables show them in hundredths.
POINTS: Final = "points"

#: The largest value that is accepted as a share. Rounding errors may exceed 1.
_LARGEST_SHARE: Final = 1 + 1e-9

#: A report with a figure of this size or above is refused, because no valid report has one.
_LARGEST: Final = 1e18


class RowError(ValueError):
    """A report has a value that is not a valid figure."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A figure with a name, and its values in report A and report B."""

    name: str
    #: The unit: ``share`` (0 to 1), ``points`` (a difference of two shares), ``s``, ``ms``, ``MiB``, ``GiB``,
    #: ``text``, or empty for a count.
    unit: str
    a: Any
    b: Any

    def __post_init__(self) -> None:
        if self.unit != "text":
            for value in (self.a, self.b):
                _check_number(value)
                if self.unit == SHARE and value is not None and value > _LARGEST_SHARE:
                    raise RowError(
                        f"{self.name} is {figure(value)}, and a share is at most 1; kvpool 0.1 wrote per cent"
                    )

    @property
    def difference(self) -> float | None:
        """B minus A. ``None`` for text, and if A or B is missing."""
        if self.unit == "text" or self.a is None or self.b is None:
            return None
        return float(self.b - self.a)

    @property
    def ratio(self) -> float | None:
        """B divided by A. ``None`` for shares, points and text, and if A is 0 or one is missing."""
        if self.unit in ("text", SHARE, POINTS) or self.a is None or self.b is None or self.a == 0:
            return None
        return float(self.b / self.a)


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """Figures that one table of the comparison shows together."""

    title: str
    rows: list[Row]


@dataclasses.dataclass(frozen=True, slots=True)
class Curve:
    """A curve of hit rates by size of the cache, from one of the two reports."""

    name: str
    #: The points of the curve: size of the cache in blocks, and share of block references that hit.
    points: list[tuple[int, float]]
    #: The report that the curve belongs to: 0 for A, 1 for B.
    side: int
    #: Whether each point is drawn as a mark, because the curve has few points.
    marked: bool

    def __post_init__(self) -> None:
        for blocks, rate in self.points:
            _check_number(blocks)
            _check_number(rate)


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison of two reports, A and B."""

    #: The kind of comparison: runs, sizes, traces or policies.
    of: str
    a: str
    b: str
    sections: list[Section]
    curves: list[Curve] = dataclasses.field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return {
            "compared": self.of,
            "a": self.a,
            "b": self.b,
            "sections": [
                {"title": section.title, "rows": list(map(_row, section.rows))} for section in self.sections
            ],
            "curves": [dataclasses.asdict(curve) for curve in self.curves],
        }

    def as_rows(self) -> list[dict[str, Any]]:
        """Return the rows that ``--csv`` prints."""
        return [{"section": section.title, **_row(row)} for section in self.sections for row in section.rows]


def _check_number(value: object) -> None:
    """Raise :class:`RowError` if a value is not a number, because users may have edited the report."""
    if value is None:
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise RowError(f"{value!r:.100} is no number")
    if not abs(value) < _LARGEST:
        raise RowError(f"{value!s:.100} is out of range")


def _row(row: Row) -> dict[str, Any]:
    return {**dataclasses.asdict(row), "difference": row.difference, "ratio": row.ratio}


def cells(row: Row) -> tuple[str, str, str, str]:
    """Return the cells of a row as text: name, A, B, and the difference with its sign."""
    if row.unit == "text":
        return row.name, str(row.a), str(row.b), ""
    name = row.name if row.unit in ("", SHARE, POINTS) else f"{row.name}, {row.unit}"
    if row.difference is None:
        return name, _number(row.a, row.unit), _number(row.b, row.unit), ""
    if row.unit in (SHARE, POINTS):
        a, b = _number(row.a, row.unit), _number(row.b, row.unit)
        return name, a, b, f"{100 * row.difference:+.2f} points"
    ratio = "" if row.ratio is None or row.difference == 0 else f" ({100 * (row.ratio - 1):+.1f} %)"
    return name, _number(row.a, row.unit), _number(row.b, row.unit), f"{_signed(row.difference)}{ratio}"


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == SHARE:
        return percent(value)
    if unit == POINTS:
        return f"{100 * value:.2f}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _signed(value: float) -> str:
    return f"{value:+,.0f}" if value == int(value) else f"{value:+,.2f}"


def kind_of(report: object) -> str | None:
    """Return which command made a report: ``replay``, ``size``, or ``None`` if it is no report."""
    if not isinstance(report, dict):
        return None
    if "hits" in report and "mode" in report:
        return "replay"
    return "size" if "capacities" in report and "lru_curve" in report else None


#: Figures that are compared, by their names in tables: settings of a replay, hit rates, engine, trace.
_REPLAY_SETTINGS: Final = ("mode", "eviction", "block_size", "capacity_blocks", "algorithm", "verify")
_REPLAY_RATES: Final = {
    "block hits": "block_hit_rate",
    "full-block hits": "full_block_hit_rate",
    "token hits": "token_hit_rate",
    "token hits, last half": "last_half_token_hit_rate",
}
_ENGINE: Final = {
    "time to first token": ("ms", "mean_time_to_first_token_ms"),
    "virtual time": ("s", "virtual_seconds"),
    "decoded tokens": ("", "decode_appends"),
    "running at once": ("", "peak_running"),
    "waiting at once": ("", "peak_waiting"),
    "preemptions": ("", "preemptions"),
    "rejected requests": ("", "rejected"),
}
_TRACE: Final = {
    "requests": ("", "requests"),
    "prompt tokens": ("", "input_tokens"),
    "output tokens": ("", "output_tokens"),
    "different blocks": ("", "unique_blocks"),
}


def of_replays(reports: tuple[Mapping[str, Any], Mapping[str, Any]], names: tuple[str, str]) -> Comparison:
    """Compare two reports of ``kvpool replay --json``."""
    traces = [report["trace"] for report in reports]
    settings = [*_settings(_REPLAY_SETTINGS, reports), *_settings(("source",), traces)]
    shapes = [report.get("kv_shape") or {} for report in reports]
    settings += _settings(("name",), shapes, {"name": "model"})
    hits = [Row(label, SHARE, *(report[name] for report in reports)) for label, name in _REPLAY_RATES.items()]
    hits.append(Row("prefill saved, tokens", "", *(report["hits"]["token_hits"] for report in reports)))
    hits.append(Row("blocks allocated", "", *(report["allocated"] for report in reports)))
    hits.append(Row("blocks evicted", "", *(report["evicted"] for report in reports)))
    sections = [
        Section("Settings that differ", settings),
        Section("Traces", list(_figures(_TRACE, traces))),
        Section("Hits", hits),
    ]
    engines = [report["engine"] for report in reports]
    if None not in engines:
        queues = Row("overloaded", "text", *("yes" if engine["overloaded"] else "no" for engine in engines))
        sections.append(Section("Engine", [*_figures(_ENGINE, engines), queues]))
    misses = [report.get("misses") or {} for report in reports]
    if all(misses):
        reasons = sorted({*misses[0], *misses[1]})
        rows = [Row(reason, "", *(found.get(reason, 0) for found in misses)) for reason in reasons]
        sections.append(Section("Why prompt tokens were computed", rows))
    cost = [
        Row("replayed in", "s", *(report["wall_seconds"] for report in reports)),
        Row("peak memory", "MiB", *(report["peak_memory_bytes"] / 2**20 for report in reports)),
    ]
    sections.append(Section("What the runs cost", cost))
    return Comparison("runs", *names, [section for section in sections if section.rows])


def of_sizes(reports: tuple[Mapping[str, Any], Mapping[str, Any]], names: tuple[str, str]) -> Comparison:
    """Compare two reports of ``kvpool size --json``: policy by policy, at the sizes that both have."""
    return Comparison("sizes", *names, list(_size_sections(reports)), list(_curves(reports, names)))


def of_traces(
    reports: tuple[Mapping[str, Any], Mapping[str, Any]],
    stats: tuple[Mapping[str, Any], Mapping[str, Any]],
    names: tuple[str, str],
    labels: tuple[Mapping[int, str], Mapping[int, str]] | None = None,
) -> Comparison:
    """Compare the statistics of two traces, and the hit rates of caches of the same size.

    ``labels`` maps the sizes of each report, in blocks, to the text with which they were given.
    """
    figures = {
        "requests": ("", "requests"),
        "span": ("s", "span_s"),
        "requests per second": ("", "arrivals_per_s"),
        "prompt tokens": ("", "input_tokens"),
        "output tokens": ("", "output_tokens"),
        "block references": ("", "block_references"),
        "different blocks": ("", "unique_blocks"),
        "used once": ("", "blocks_used_once"),
        "tokens that can hit": (SHARE, "ideal_token_hit_rate"),
        "full blocks that can hit": (SHARE, "ideal_full_block_hit_rate"),
    }
    rows = list(_figures(figures, stats))
    spreads = {
        "input_length": "prompt, tokens",
        "output_length": "output, tokens",
        "reuse_time_s": "next use, s",
    }
    for name, label in spreads.items():
        rows += [
            Row(f"{label}, {part}", "", *(one[name][part] for one in stats))
            for part in ("mean", "p50", "p99")
        ]
    return Comparison(
        "traces",
        *names,
        [Section("Traces", rows), *_size_sections(reports, ("block_size",), labels)],
        list(_curves(reports, names)),
    )


def of_policies(report: Mapping[str, Any], names: tuple[str, str]) -> Comparison:
    """Compare two eviction policies of one run of ``kvpool size``."""
    by_name = {policy["name"]: policy["hits"] for policy in report["policies"]}
    sides = [by_name[name] for name in names]
    sizes, optimum = report["capacities"], report["optimum"]
    sections = []
    for title, rate in (("Block hits", "block_hit_rate"), ("Token hits", "token_hit_rate")):
        pairs = zip(sizes, *sides, strict=True)
        sections.append(Section(title, [Row(_size(size), SHARE, a[rate], b[rate]) for size, a, b in pairs]))
    evictions = [
        Row(_size(size), "", a["evictions"], b["evictions"]) for size, a, b in zip(sizes, *sides, strict=True)
    ]
    sections.append(Section("Evictions", evictions))
    if optimum is not None:
        best = [hits["block_hit_rate"] for hits in optimum["hits"]]
        gaps = [
            Row(_size(size), POINTS, top - a["block_hit_rate"], top - b["block_hit_rate"])
            for size, top, a, b in zip(sizes, best, *sides, strict=True)
        ]
        sections.append(Section("Points below the optimum, blocks", gaps))
    curves = [
        Curve(
            name,
            [(size["blocks"], one["block_hit_rate"]) for size, one in zip(sizes, hits, strict=True)],
            side,
            marked=True,
        )
        for side, (name, hits) in enumerate(zip(names, sides, strict=True))
    ]
    return Comparison("policies", *names, sections, curves)


def _size_sections(
    reports: tuple[Mapping[str, Any], Mapping[str, Any]],
    of_trace: tuple[str, ...] = ("source", "block_size"),
    labels: tuple[Mapping[int, str], Mapping[int, str]] | None = None,
) -> Iterator[Section]:
    """Yield tables of two reports of ``kvpool size``: their traces, and each policy at their common sizes."""
    traces, models = [report["trace"] for report in reports], [report["model"] or {} for report in reports]
    settings = [
        *_settings(of_trace, traces),
        *_settings(("form", "blocks"), reports),
        *_settings(("name",), models, {"name": "model"}),
    ]
    if settings:
        yield Section("Settings that differ", settings)
    rows = [Row("most that can hit, blocks", SHARE, *(trace["ideal"]["block"] for trace in traces))]
    rows.append(Row("most that can hit, tokens", SHARE, *(trace["ideal"]["token"] for trace in traces)))
    knees = [report["knee"] for report in reports]
    if None not in knees:
        rows.append(Row("knee of the LRU curve, blocks", "", *(knee["blocks"] for knee in knees)))
    yield Section("Ceilings", rows)
    lines = [_by_size(report, known) for report, known in zip(reports, labels or ({}, {}), strict=True)]
    for name in lines[0]:
        if name in lines[1]:
            shared = [size for size in lines[0][name] if size in lines[1][name]]
            found = [Row(size, SHARE, lines[0][name][size], lines[1][name][size]) for size in shared]
            if found:
                yield Section(f"Block hits, {name}", found)
    together = [
        {
            _gib(size["gib"]): size["token_hit_rate"]
            for size in (report.get("groups") or {"sizes": []})["sizes"]
        }
        for report in reports
    ]
    found = [
        Row(size, SHARE, together[0][size], together[1][size]) for size in together[0] if size in together[1]
    ]
    if found:
        yield Section("Token hits, all groups of the model together", found)


def _by_size(report: Mapping[str, Any], known: Mapping[int, str]) -> dict[str, dict[str, float]]:
    """Return the block hit rate of each policy and of the optimum, by the name of the size.

    If the user gave the sizes of both reports with the same text, such as ``5 %``, they have the same name.
    """
    named = [(policy["name"], policy["hits"]) for policy in report["policies"]]
    if report["optimum"] is not None:
        named.append(("optimum", report["optimum"]["hits"]))
    labels = [known.get(size["blocks"]) or _asked(size) for size in report["capacities"]]
    return {
        name: {label: one["block_hit_rate"] for label, one in zip(labels, hits, strict=True)}
        for name, hits in named
    }


def _asked(size: Mapping[str, Any]) -> str:
    """Return a name for a size that is equal in both reports, such as ``5 % of the different blocks``."""
    if size["relative_size"] is not None:
        return f"{100 * size['relative_size']:g} % of the different blocks"
    return _size(size) if size["gib"] is None else _gib(size["gib"])


def _gib(size: float) -> str:
    return f"{figure(size, 3)} GiB"


def _size(size: Mapping[str, Any]) -> str:
    gib = "" if size["gib"] is None else f", {figure(size['gib'])} GiB"
    share = "" if size["relative_size"] is None else f"{100 * size['relative_size']:g} %: "
    return f"{share}{size['blocks']:,} blocks{gib}"


def _curves(reports: tuple[Mapping[str, Any], Mapping[str, Any]], names: tuple[str, str]) -> Iterator[Curve]:
    for side, (report, name) in enumerate(zip(reports, names, strict=True)):
        points = [(point["blocks"], point["block_hit_rate"]) for point in report["lru_curve"]]
        if points:
            yield Curve(name, points, side, marked=False)


def _settings(
    names: Iterable[str], of: Iterable[Mapping[str, Any]], labels: Mapping[str, str] | None = None
) -> list[Row]:
    a, b = of
    return [
        Row(
            (labels or {}).get(name, name.replace("_", " ")),
            "text",
            *(_text(one.get(name)) for one in (a, b)),
        )
        for name in names
        if a.get(name) != b.get(name)
    ]


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "-" if value is None else str(value)


def _figures(names: Mapping[str, tuple[str, str]], of: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    a, b = of
    for label, (unit, name) in names.items():
        if a.get(name) is not None and b.get(name) is not None:
            yield Row(label, unit, a[name], b[name])
