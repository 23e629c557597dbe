"""A dashboard and what Prometheus answered, drawn: every panel at its place in the grid, about as Grafana would.

Owns the drawing alone. Needs matplotlib.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tools.dashboard.panels import COLUMNS, Dashboard, Panel, Style, written

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: Pixels of the whole width, of a row of the grid, between two panels.
WIDTH: Final = 1280
ROW: Final = 28
GAP: Final = 6
DPI: Final = 100
#: Colours of series in their order.
COLOURS: Final = (
    *("#56a64b", "#f2cc0c", "#3274d9", "#ff780a", "#e02f44", "#8f3bb8", "#1aa5b8", "#7c5f3b"),
    *("#96d98d", "#a352cc", "#8ab8ff", "#ffb357"),
)
NAMED: Final = {"green": "#37872d", "red": "#c4162a", "orange": "#fa6400", "blue": "#1f60c4"}
INK, FAINT, LINE, PAGE = "#24292e", "#6e7681", "#e4e7eb", "#f4f5f5"
#: Letters that a line of a legend has room for, per column of the grid; it has at most two lines.
LETTERS: Final = 9.4


@dataclass(frozen=True)
class Series:
    """Values of a series by second since the start, in the order of time."""

    name: str
    at: Sequence[float]
    values: Sequence[float]

    @property
    def last(self) -> float:
        """The last value that is one."""
        return next((value for value in reversed(self.values) if not math.isnan(value)), math.nan)


def draw(
    dashboard: Dashboard,
    answers: Sequence[Sequence[Series]],
    until: float,
    caption: str,
    path: Path,
    notes: Mapping[str, str],
) -> None:
    """Writes the picture.

    Args:
        dashboard: What is drawn.
        answers: The series of each of its panels.
        until: Seconds at the right end of every axis of time.
        caption: A line beneath the title.
        path: A PNG file.
        notes: Texts that are kept in it.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    head = 46
    height = head + ROW * max(panel.y + panel.h for panel in dashboard.panels) + GAP
    with rc_context({"font.size": 8, "text.color": INK, "axes.edgecolor": LINE, "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI, facecolor=PAGE)
        sheet = Sheet(figure, height, head)
        sheet.text(2 * GAP, 18, dashboard.title, size=13, weight="bold")
        sheet.text(2 * GAP, 36, caption, size=8, color=FAINT)
        for panel, series in zip(dashboard.panels, answers, strict=True):
            _panel(sheet, panel, series, until)
        figure.savefig(path, format="png")
    _shrink(path, notes)


class Sheet:
    """A figure that is measured in pixels from the top left."""

    def __init__(self, figure: Any, height: int, head: int) -> None:
        self.figure, self.height, self.head = figure, height, head

    def text(self, x: float, y: float, words: str, **how: Any) -> None:
        """A line of words, whose base line is at y."""
        self.figure.text(x / WIDTH, 1 - y / self.height, words.replace("$", r"\$"), va="baseline", **how)

    def axes(self, x: float, y: float, w: float, h: float, **how: Any) -> Any:
        """Axes in a rectangle."""
        return self.figure.add_axes((x / WIDTH, 1 - (y + h) / self.height, w / WIDTH, h / self.height), **how)

    def card(self, x: float, y: float, w: float, h: float) -> None:
        """The white ground of a panel."""
        from matplotlib.patches import Rectangle

        at, size = (x / WIDTH, 1 - (y + h) / self.height), (w / WIDTH, h / self.height)
        self.figure.add_artist(Rectangle(at, *size, facecolor="white", edgecolor=LINE, linewidth=0.8, zorder=-1))


def _panel(sheet: Sheet, panel: Panel, series: Sequence[Series], until: float) -> None:
    column = (WIDTH - GAP) / COLUMNS
    x, y = GAP + panel.x * column, sheet.head + panel.y * ROW
    w, h = panel.w * column - GAP, panel.h * ROW - GAP
    if panel.kind == "row":
        sheet.text(x + 4, y + h - 4, f"▾  {panel.title}", size=9.5, weight="bold")
        return
    sheet.card(x, y, w, h)
    sheet.text(x + 9, y + 17, panel.title, size=8.5, weight="bold")
    if not any(not math.isnan(value) for one in series for value in one.values):
        sheet.text(x + w / 2, y + h / 2 + 4, "No data", size=11, color=FAINT, ha="center")
        return
    kinds = {"timeseries": _timeseries, "stat": _stat, "gauge": _gauge, "bargauge": _bargauge}
    kinds[panel.kind](sheet, panel, series, until, (x, y, w, h))


Place = tuple[float, float, float, float]


def _timeseries(sheet: Sheet, panel: Panel, series: Sequence[Series], until: float, place: Place) -> None:
    x, y, w, h = place
    right = any(panel.style_of(one.name).right for one in series)
    lines = _legend_lines(series, panel.w)
    left, top, bottom = (64 if panel.style.axis else 48), 26, 20 + 15 * len(lines)
    axes = sheet.axes(x + left, y + top, w - left - (58 if right else 14), h - top - bottom)
    other = axes.twinx() if right else axes
    base = [0.0] * max(len(one.values) for one in series)
    for at, one in enumerate(series):
        on = other if panel.style_of(one.name).right else axes
        colour = COLOURS[at % len(COLOURS)]
        values = list(one.values)
        if panel.stacked:
            floor = list(base)
            base = [low + (0.0 if math.isnan(value) else value) for low, value in zip(base, values, strict=True)]
            values = [math.nan if math.isnan(value) else top_ for value, top_ in zip(values, base, strict=True)]
            on.fill_between(one.at, floor, base, color=colour, alpha=panel.fill, linewidth=0)
        elif panel.fill:
            on.fill_between(one.at, 0, values, color=colour, alpha=panel.fill, linewidth=0)
        on.plot(one.at, values, color=colour, linewidth=1.2, clip_on=False, zorder=3)
    _scale(axes, panel.style, until)
    if right:
        style = next(panel.style_of(one.name) for one in series if panel.style_of(one.name).right)
        _scale(other, style, until)
        other.grid(visible=False)
    _legend(sheet, lines, x + 12, y + h - 15 * len(lines) + 4)


def _scale(axes: Any, style: Style, until: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

    axes.set_xlim(0, until)
    low, high = axes.get_ylim()
    if style.low is not None:
        low = style.low
    high = style.high if style.high is not None else max(high, low + 1e-9)
    axes.set_ylim(low, high)
    if style.unit == "bytes":
        step = 2.0 ** math.ceil(math.log2(max(high - low, 1) / 4))
        axes.yaxis.set_major_locator(MultipleLocator(step))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value, style.unit)))
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 1.5, 3, 6, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{int(value) // 60}:{int(value) % 60:02}"))
    axes.tick_params(length=0, labelsize=7, labelcolor=FAINT)
    axes.grid(color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_facecolor("none")
    for side in axes.spines.values():
        side.set_visible(False)
    if style.axis:
        axes.set_ylabel(style.axis, fontsize=7, color=FAINT)


def _legend_lines(series: Sequence[Series], columns: int) -> list[list[tuple[str, str]]]:
    """Names with their colours, in lines."""
    lines: list[list[tuple[str, str]]] = [[]]
    room = letters = int(columns * LETTERS)
    for at, one in enumerate(series):
        needs = len(one.name) + 5
        if needs > letters and lines[-1]:
            lines.append([])
            letters = room
        letters -= needs
        lines[-1].append((one.name, COLOURS[at % len(COLOURS)]))
    return lines


def _legend(sheet: Sheet, lines: Sequence[Sequence[tuple[str, str]]], x: float, y: float) -> None:
    for at, line in enumerate(lines):
        left = x
        for name, colour in line:
            sheet.text(left, y + 15 * at, "━", size=8, color=colour)
            sheet.text(left + 13, y + 15 * at, name, size=7.5)
            left += 24 + max(5.7 * len(name), 24)


def _colour(style: Style, value: float) -> str:
    name = next((name for start, name in reversed(style.thresholds) if value >= start), "blue")
    return NAMED[name]


def _shown(style: Style, value: float) -> str:
    return style.texts.get(f"{value:g}", written(value, style.unit))


def _stat(sheet: Sheet, panel: Panel, series: Sequence[Series], until: float, place: Place) -> None:
    x, y, w, h = place
    (one,) = series
    colour = _colour(panel.style, one.last)
    sheet.text(
        x + w / 2, y + h * 0.58, _shown(panel.style, one.last), size=22, weight="bold", color=colour, ha="center"
    )
    if panel.course:
        axes = sheet.axes(x + 2, y + h * 0.68, w - 4, h * 0.32 - 2)
        axes.axis("off")
        axes.fill_between(one.at, 0, one.values, color=colour, alpha=0.15, linewidth=0)
        axes.plot(one.at, one.values, color=colour, linewidth=1)
        axes.set_xlim(0, until)
        axes.set_ylim(0, max(1e-9, *(value for value in one.values if not math.isnan(value))) * 1.05)


def _gauge(sheet: Sheet, panel: Panel, series: Sequence[Series], _until: float, place: Place) -> None:
    from matplotlib.patches import Wedge

    x, y, w, h = place
    (one,) = series
    style = panel.style
    low, high = style.low or 0.0, style.high if style.high is not None else 1.0
    axes = sheet.axes(x + 8, y + 26, w - 16, h - 30, aspect="equal")
    axes.axis("off")
    axes.set_xlim(-1.25, 1.25)
    axes.set_ylim(-0.35, 1.1)

    def angle(value: float) -> float:
        return 180 - 180 * (min(max(value, low), high) - low) / (high - low)

    axes.add_patch(Wedge((0, 0), 0.94, 0, 180, width=0.26, facecolor=LINE))
    axes.add_patch(Wedge((0, 0), 0.94, angle(one.last), 180, width=0.26, facecolor=_colour(style, one.last)))
    starts = [max(start, low) for start, _ in style.thresholds] + [high]
    for (_, name), start, end in zip(style.thresholds, starts, starts[1:], strict=False):
        axes.add_patch(Wedge((0, 0), 1.04, angle(end), angle(start), width=0.06, facecolor=NAMED[name]))
    axes.text(
        0, -0.04, _shown(style, one.last), fontsize=17, weight="bold", ha="center", color=_colour(style, one.last)
    )


def _bargauge(sheet: Sheet, panel: Panel, series: Sequence[Series], _until: float, place: Place) -> None:
    x, y, w, h = place
    style = panel.style
    low = style.low or 0.0
    high = style.high if style.high is not None else max(one.last for one in series)
    names = 5.9 * max(len(one.name) for one in series) + 14
    axes = sheet.axes(x + names, y + 30, w - names - 52, h - 40)
    axes.axis("off")
    axes.set_xlim(low, high)
    axes.set_ylim(len(series) - 0.5, -0.5)
    for at, one in enumerate(series):
        colour = _colour(style, one.last)
        axes.barh(at, high - low, left=low, height=0.72, color=PAGE)
        axes.barh(at, one.last - low, left=low, height=0.72, color=colour, alpha=0.75)
        axes.annotate(one.name, (low, at), (-6, 0), textcoords="offset points", ha="right", va="center", fontsize=7.5)
        axes.annotate(
            _shown(style, one.last),
            (high, at),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=colour,
        )


def _shrink(path: Path, notes: Mapping[str, str]) -> None:
    """A picture of few colours: a palette takes a third of the bytes."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    with Image.open(path) as image:
        small = image.convert("RGB").quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    texts = PngInfo()
    for name, text in notes.items():
        texts.add_text(name, text)
    small.save(path, optimize=True, pnginfo=texts)
