"""A comparison as one HTML page: a plot of both, and the tables.

This module owns the page. It has no script, and its content security policy forbids external content.
Everything from a report or a trace passes through ``html.escape``, so a file may have the name
``</style>``.
"""

from __future__ import annotations

from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Final

import kvpool
from kvpool.cli.comparison import cells
from kvpool.cli.sizing_html.figures import Figure, Series, Table, linear_axis, log_axis
from kvpool.cli.sizing_html.svg import draw
from kvpool.cli.tables import percent
from kvpool.cli.terminal import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvpool.cli.comparison import Comparison, Section

__all__ = ["render"]

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_DEFINITION: Final = (
    "Block hits: share of block references that are found; a block counts only if every block before it "
    "in its prompt does."
)


def render(found: Comparison) -> str:
    """Return the page. Equal comparisons give equal pages, byte by byte."""
    title = escape(f"Two {found.of}: {shown(found.a)} and {shown(found.b)}")
    style = resources.files("kvpool.cli.sizing_html").joinpath("page.css").read_text(encoding="utf-8")
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8"/>',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        '<meta name="color-scheme" content="light dark"/>',
        f"<title>{title}</title>",
        f"<style>{style}</style>",
        "</head>",
        "<body>",
        f"<header><h1>Two {escape(found.of)}</h1>",
        f"<p>A: {escape(shown(found.a))}<br/>B: {escape(shown(found.b))}</p></header>",
        "<main>",
        *_plot(found),
        *(line for section in found.sections for line in _section(section)),
        "</main>",
        f"<footer><p>Made by kvpool {escape(kvpool.__version__)}.</p></footer>",
        "</body>",
        "</html>",
        "",
    ]
    return "\n".join(lines)


def _section(section: Section) -> Iterator[str]:
    yield f"<section><h2>{escape(shown(section.title))}</h2>"
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("", "A", "B", "difference"))
    yield f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>'
    for row in section.rows:
        name, *rest = (escape(shown(cell)) for cell in cells(row))
        yield f'<tr><th scope="row">{name}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"
    yield "</tbody></table></div></section>"


def _plot(found: Comparison) -> Iterator[str]:
    points = [point for curve in found.curves for point in curve.points]
    if not points:
        return
    x = log_axis("capacity (blocks, log scale)", max(1, min(points)[0]) / 1.1, max(1, max(points)[0]) * 1.1)
    y = linear_axis("block hits (%)", 100 * max(rate for _, rate in points))
    series = tuple(
        Series(
            name=f"{'AB'[curve.side]}: {shown(curve.name)}",
            kind="marked" if curve.marked else "line",
            x=tuple(float(blocks) for blocks, _ in curve.points),
            y=tuple(100 * rate for _, rate in curve.points),
            places=tuple(f"{blocks:,} blocks" for blocks, _ in curve.points),
            notes=tuple(percent(rate) for _, rate in curve.points),
            colour=str(curve.side),
            dashed=curve.side == 1,
        )
        for curve in found.curves
    )
    figure = Figure("hits", "Block hits by size", _DEFINITION, x, y, series, Table((), ()))
    what = "by size" if found.of == "policies" else "by size, LRU"
    yield f'<section aria-labelledby="head-hits"><h2 id="head-hits">Block hits {what}</h2><figure>'
    yield '<ul class="legend">'
    for each in series:
        dash = ' stroke-dasharray="7 4"' if each.dashed else ""
        yield (
            f'<li><svg class="sample series c{each.colour}" viewBox="0 -8 26 16" aria-hidden="true"><line '
            f'class="line" x1="1" x2="25" y1="0" y2="0"{dash}/></svg><span>{escape(each.name)}</span></li>'
        )
    yield f'</ul><div class="drawing">{draw(figure)}</div>'
    yield f"<figcaption>{escape(_DEFINITION)}</figcaption></figure></section>"
