"""A :class:`~kvpool.cli.sizing_html.figures.Figure` as SVG inside HTML.

This module owns the geometry of the page's plots. Text is escaped, colours are classes of the style
sheet, and every mark has its note as a ``<title>``, so a plot can be read without the script.
:func:`hover_data` gives the script the positions of the same points.
"""

from __future__ import annotations

from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvpool.cli.sizing_html.figures import Figure, Rule, Series

__all__ = ["colour_class", "draw", "hover_data", "mark"]

WIDTH: Final = 860
HEIGHT: Final = 400
_LEFT: Final = 62
_RIGHT: Final = 18
_BOTTOM: Final = 48
_TOP: Final = 16
_TOP_WITH_AXIS: Final = 50

#: SVG paths of the marks, centred on (0, 0). Series have different marks, and not only different colours.
_SHAPES: Final = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
    "M-3.6,-3.6h7.2v7.2h-7.2z",
    "M0,-4.8L4.6,3.6H-4.6z",
    "M0,-5L5,0L0,5L-5,0z",
    "M0,4.8L4.6,-3.6H-4.6z",
    "M-1.5,-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
)
#: Number of colours in the style sheet.
_PALETTE: Final = 10


def colour_class(colour: str) -> str:
    """Return the CSS class for the colour of a series."""
    return f"c{int(colour) % _PALETTE}" if colour.isdigit() else f"c-{colour}"


def mark(colour: str) -> str:
    """Return the SVG path of the mark for a series. The colour determines which mark the series has."""
    return _SHAPES[int(colour) % len(_SHAPES)] if colour.isdigit() else _SHAPES[0]


class _Frame:
    """Converts values of a figure to positions in its picture."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure
        self.top = _TOP if figure.top is None else _TOP_WITH_AXIS
        self.bottom = HEIGHT - _BOTTOM
        self.left = _LEFT
        self.right = WIDTH - _RIGHT

    def x(self, value: float) -> float:
        return round(self.left + self.figure.x.place(value) * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        return round(self.bottom - self.figure.y.place(value) * (self.bottom - self.top), 1)


def draw(figure: Figure) -> str:
    """Return the plot as an ``<svg>`` element."""
    frame = _Frame(figure)
    key = figure.key
    parts = [
        f'<svg id="plot-{key}" class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" '
        f'aria-labelledby="title-{key} desc-{key}">',
        f'<title id="title-{key}">{escape(figure.title)}</title>',
        f'<desc id="desc-{key}">{escape(_description(figure))}</desc>',
        *_axes(frame),
        *(line for rule in figure.rules for line in _rule(frame, rule)),
    ]
    for index, series in enumerate(figure.series):
        dashed = " dashed" if series.dashed else ""
        parts.append(f'<g class="series {colour_class(series.colour)}{dashed}" data-series="{index}">')
        parts.extend(_series(frame, series))
        parts.append("</g>")
    parts.append('<g class="cursor" aria-hidden="true"></g>')
    parts.append("</svg>")
    return "\n".join(parts)


def hover_data(figure: Figure) -> list[dict[str, Any]]:
    """Return the points of each series, in the coordinates of the plot, with their notes."""
    frame = _Frame(figure)
    series = []
    for each in figure.series:
        kept = [index for index, y in enumerate(each.y) if y is not None]
        entry: dict[str, Any] = {
            "x": [frame.x(each.x[index]) for index in kept],
            "y": [frame.y(y) for y in each.y if y is not None],
            "places": [each.places[index] for index in kept],
            "notes": [each.notes[index] for index in kept],
        }
        if each.left:
            entry["left"] = [frame.x(each.left[index]) for index in kept]
        series.append(entry)
    return series


def _description(figure: Figure) -> str:
    names = ", ".join(series.name for series in figure.series)
    rules = "".join(f"; {rule.label}" for rule in figure.rules)
    return f"{figure.y.label} by {figure.x.label}: {names}{rules}. The table below has the figures."


def _axes(frame: _Frame) -> Iterator[str]:
    figure = frame.figure
    yield '<g class="axes" aria-hidden="true">'
    for value, label in figure.y.ticks:
        y = frame.y(value)
        yield f'<line class="grid" x1="{frame.left}" x2="{frame.right}" y1="{y}" y2="{y}"/>'
        yield f'<text class="tick" x="{frame.left - 8}" y="{y + 4}" text-anchor="end">{escape(label)}</text>'
    yield f'<line class="axis" x1="{frame.left}" x2="{frame.right}" y1="{frame.bottom}" y2="{frame.bottom}"/>'
    for value, label in figure.x.ticks:
        x = frame.x(value)
        yield f'<line class="axis" x1="{x}" x2="{x}" y1="{frame.bottom}" y2="{frame.bottom + 5}"/>'
        yield (
            f'<text class="tick" x="{x}" y="{frame.bottom + 19}" text-anchor="middle">{escape(label)}</text>'
        )
    middle = (frame.left + frame.right) / 2
    yield (
        f'<text class="label" x="{middle}" y="{HEIGHT - 8}" '
        f'text-anchor="middle">{escape(figure.x.label)}</text>'
    )
    height = (frame.top + frame.bottom) / 2
    yield (
        f'<text class="label" x="0" y="0" transform="translate(14 {height}) rotate(-90)" '
        'text-anchor="middle">'
        f"{escape(figure.y.label)}</text>"
    )
    if figure.top is not None:
        yield f'<line class="axis" x1="{frame.left}" x2="{frame.right}" y1="{frame.top}" y2="{frame.top}"/>'
        for value, label in figure.top.ticks:
            x = frame.x(value)
            yield f'<line class="axis" x1="{x}" x2="{x}" y1="{frame.top}" y2="{frame.top - 5}"/>'
            yield (
                f'<text class="tick" x="{x}" y="{frame.top - 9}" text-anchor="middle">{escape(label)}</text>'
            )
        label = escape(figure.top.label)
        yield f'<text class="label" x="{middle}" y="{frame.top - 31}" text-anchor="middle">{label}</text>'
    yield "</g>"


def _rule(frame: _Frame, rule: Rule) -> Iterator[str]:
    yield f'<g class="rule rule-{rule.axis}">'
    if rule.axis == "y":
        y = frame.y(rule.at)
        yield f'<line x1="{frame.left}" x2="{frame.right}" y1="{y}" y2="{y}"/>'
        # The label of a horizontal line is below the line if there is no space above it.
        below = y - frame.top < 18
        yield f'<text x="{frame.left + 6}" y="{y + 14 if below else y - 5}">{escape(rule.label)}</text>'
    else:
        x = frame.x(rule.at)
        yield f'<line x1="{x}" x2="{x}" y1="{frame.top}" y2="{frame.bottom}"/>'
        anchor, offset = ("end", -6) if frame.right - x < 260 else ("start", 6)
        yield (
            f'<text x="{x + offset}" y="{frame.bottom - 8}" '
            f'text-anchor="{anchor}">{escape(rule.label)}</text>'
        )
    yield "</g>"


def _series(frame: _Frame, series: Series) -> Iterator[str]:
    if series.kind == "bars":
        yield from _bars(frame, series)
        return
    if series.kind == "steps":
        yield f'<path class="line" d="{_steps(frame, series)}"/>'
        return
    runs = groupby(zip(series.x, series.y, strict=True), key=lambda point: point[1] is None)
    for is_gap, run in runs:
        if not is_gap and series.kind != "marks":
            points = " ".join(f"{frame.x(x)},{frame.y(y)}" for x, y in run if y is not None)
            yield f'<polyline class="line" points="{points}"/>'
    if series.kind in {"marks", "marked"}:
        for x, y, note in zip(series.x, series.y, _titles(series), strict=True):
            if y is not None:
                yield (
                    f'<path class="mark" transform="translate({frame.x(x)} {frame.y(y)})" '
                    f'd="{mark(series.colour)}">'
                    f"<title>{escape(note)}</title></path>"
                )


def _titles(series: Series) -> list[str]:
    return [f"{place}: {note}" for place, note in zip(series.places, series.notes, strict=True)]


def _bars(frame: _Frame, series: Series) -> Iterator[str]:
    for left, x, y, note in zip(series.left, series.x, series.y, _titles(series), strict=True):
        if y is None:
            continue
        start, top = frame.x(left), frame.y(y)
        width = max(1.0, frame.x(x) - start - 1)
        yield (
            f'<rect class="bar" x="{start}" y="{top}" width="{width:.1f}" height="{frame.bottom - top:.1f}">'
            f"<title>{escape(note)}</title></rect>"
        )


def _steps(frame: _Frame, series: Series) -> str:
    """Return a path with a horizontal line for each window of time, and gaps for windows without a figure."""
    path, pen_down = [], False
    for left, x, y in zip(series.left, series.x, series.y, strict=True):
        if y is None:
            pen_down = False
            continue
        path.append(f"{'L' if pen_down else 'M'}{frame.x(left)},{frame.y(y)}H{frame.x(x)}")
        pen_down = True
    return "".join(path)
