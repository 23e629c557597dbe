"""The report of ``kvpool size`` as one picture: ``--png``.

Draws the same figures as the page, one below the other, and the table of policies by capacities. It
needs matplotlib, which is not a dependency of kvpool: ``pip install 'kvpool[plot]'``.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

from kvpool.cli.plot import need_matplotlib
from kvpool.cli.sizing_html.grid import grid_rows
from kvpool.cli.sizing_html.plots import figures_of
from kvpool.cli.sizing_html.words import percent, share_label
from kvpool.cli.terminal import shown

if TYPE_CHECKING:
    from pathlib import Path

    from kvpool.cli.sizing_html.figures import Axis, Figure, Series
    from kvpool.sizing.report import SizingReport

__all__ = ["save_png"]

_PALETTE: Final = (
    "#1769aa", "#d1600a", "#16814d", "#b3246b", "#6a4fbf", "#0d8a96", "#9a7400", "#c0392b",
    "#566a00", "#8a5a44",
)  # fmt: skip
_NAMED: Final = {"ink": "#16191d", "optimum": "#5a6270", "ceiling": "#7b8494"}
_MARKS: Final = "os^Dv P".replace(" ", "")
#: The sizes of the picture, of a plot and of a row of the table, in inches.
_WIDTH: Final = 10.0
_PLOT_HEIGHT: Final = 4.4
_ROW_HEIGHT: Final = 0.3


def save_png(report: SizingReport, path: Path) -> None:
    """Draw the plots and the table of a report into a PNG file.

    Raises:
        UsageError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    need_matplotlib()
    from matplotlib.figure import Figure as Picture

    figures, missing = figures_of(report)
    rows = grid_rows(report, "block_hit_rate") if report["capacities"] else []
    heights = [_PLOT_HEIGHT] * len(figures)
    if rows:
        heights.append(_ROW_HEIGHT * (len(rows) + 3))
    if not heights:
        heights.append(_PLOT_HEIGHT)
    picture = Picture(figsize=(_WIDTH, sum(heights) + 0.8), layout="constrained")
    # A path may contain a $, which must not start a formula of matplotlib.
    picture.suptitle(_plain(f"kvpool size: {shown(report['trace']['source'])}"), fontsize=13)
    places: Any = picture.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for figure, axes in zip(figures, places, strict=False):
        _draw(figure, axes)
    if rows:
        _grid(report, places[-1])
    elif not figures:
        places[0].axis("off")
        places[0].text(0, 0.5, "\n".join(missing))
    picture.savefig(path, format="png", dpi=110, metadata={"Software": f"kvpool {report['kvpool']}"})


def _plain(text: str) -> str:
    return text.replace("$", r"\$")


def _colour(series: Series) -> str:
    return _PALETTE[int(series.colour) % len(_PALETTE)] if series.colour.isdigit() else _NAMED[series.colour]


def _scale(axis: Any, limits: Any, label: Any, to: Axis) -> None:
    limits(to.low, to.high)
    axis.set_ticks([value for value, _ in to.ticks], labels=[text for _, text in to.ticks])
    axis.minorticks_off()
    label(_plain(to.label))


def _draw(figure: Figure, axes: Any) -> None:
    axes.set_xscale("log" if figure.x.log else "linear")
    axes.set_yscale("log" if figure.y.log else "linear")
    for series in figure.series:
        _series(series, axes)
    for rule in figure.rules:
        draw = axes.axhline if rule.axis == "y" else axes.axvline
        draw(rule.at, color=_NAMED["ceiling"], linestyle=":", linewidth=1.2, label=_plain(rule.label))
    _scale(axes.xaxis, axes.set_xlim, axes.set_xlabel, figure.x)
    _scale(axes.yaxis, axes.set_ylim, axes.set_ylabel, figure.y)
    if figure.top is not None:
        top = axes.twiny()
        top.set_xscale("log" if figure.top.log else "linear")
        _scale(top.xaxis, top.set_xlim, top.set_xlabel, figure.top)
    lines = textwrap.fill(figure.definition, 150)
    axes.set_title(_plain(f"{figure.title}\n") + _plain(lines), fontsize=8, loc="left")
    axes.grid(alpha=0.25)
    if len(figure.series) + len(figure.rules) > 1:
        axes.legend(fontsize=8, loc="best")


def _series(series: Series, axes: Any) -> None:
    colour = _colour(series)
    heights = [float("nan") if y is None else y for y in series.y]
    if series.kind == "bars":
        widths = [right - left for left, right in zip(series.left, series.x, strict=True)]
        axes.bar(
            series.left,
            heights,
            width=widths,
            align="edge",
            color=colour,
            edgecolor="white",
            label=_plain(series.name),
        )
    elif series.kind == "steps":
        axes.stairs(
            heights, [*series.left, series.x[-1]], color=colour, baseline=None, label=_plain(series.name)
        )
    else:
        number = int(series.colour) if series.colour.isdigit() else 0
        axes.plot(
            series.x,
            heights,
            color=colour,
            linestyle="" if series.kind == "marks" else "--" if series.dashed else "-",
            linewidth=2.2 if series.kind == "line" else 1.5,
            marker=_MARKS[number % len(_MARKS)] if series.kind != "line" else None,
            markersize=5,
            label=_plain(series.name),
        )


def _grid(report: SizingReport, axes: Any) -> None:
    """Draw the table of policies by capacities, with the best of each column in bold."""
    rows = grid_rows(report, "block_hit_rate")
    axes.axis("off")
    axes.set_title(
        "Policies by capacity, block hits (%); bold: best policy of the column", fontsize=8, loc="left"
    )
    table = axes.table(
        cellText=[[percent(cell.rate) for cell in row.cells] for row in rows],
        rowLabels=[_plain(row.name) for row in rows],
        colLabels=[_plain(share_label(capacity)) for capacity in report["capacities"]],
        loc="center",
        bbox=(0.16, 0.0, 0.84, 1.0),
    )
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    for line, row in enumerate(rows, start=1):
        for column, cell in enumerate(row.cells):
            if cell.best:
                table[line, column].get_text().set_fontweight("bold")
