"""The report of ``kvpool size`` as one HTML page.

This module owns the page: its order, its tables and its content security policy. Everything from the
report passes through ``html.escape`` or :func:`_json`, so a trace may have the name ``</script>``. The
source is well-formed XML, except the script and the style sheet.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, Literal

from kvpool.cli.sizing_html.grid import grid_rows
from kvpool.cli.sizing_html.plots import figures_of, prefix_rule
from kvpool.cli.sizing_html.summary import findings
from kvpool.cli.sizing_html.svg import colour_class, draw, hover_data, mark
from kvpool.cli.sizing_html.words import (
    count,
    gib,
    name_of,
    percent,
    points,
    sample_note,
    seconds,
    share_label,
)
from kvpool.cli.terminal import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvpool.cli.sizing_html.figures import Figure, Series, Table
    from kvpool.cli.sizing_html.grid import Cell
    from kvpool.sizing.report import Hits, SizingReport

__all__ = ["render"]

_RATES: Final[tuple[tuple[Literal["block_hit_rate", "token_hit_rate"], str], ...]] = (
    ("block_hit_rate", "Block hits (%)"),
    ("token_hit_rate", "Token hits (%)"),
)


def render(report: SizingReport) -> str:
    """Return the page of a report.

    Equal reports give equal pages, byte by byte.
    """
    script, style = _asset("page.js"), _asset("page.css")
    figures, missing = figures_of(report)
    points_of_all = _json({each.key: hover_data(each) for each in figures})
    source = shown(report["trace"]["source"])
    body = [
        "<header>",
        f"<h1>Cache sizing: {escape(source)}</h1>",
        f"<p>{escape(_subject(report))}</p>",
        "</header>",
        "<main>",
        *_findings(report),
        *(_figure(figure) for figure in figures if figure.key == "capacity"),
        *_grid(report),
        *(_figure(figure) for figure in figures if figure.key != "capacity"),
        *_missing(missing),
        *_policies(report),
        *_facts(report),
        "</main>",
        f"<footer><p>Made by kvpool {escape(report['kvpool'])} in "
        f"{escape(seconds(report['elapsed_s']))}.</p></footer>",
        f'<script type="application/json" id="points">{points_of_all}</script>',
        f"<script>{script}</script>",
    ]
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8"/>',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        '<meta name="color-scheme" content="light dark"/>',
        f"<title>Cache sizing: {escape(source)}</title>",
        f"<style>{style}</style>",
        "</head>",
        "<body>",
    ]
    return "\n".join([*head, *body, "</body>", "</html>", ""])


def _asset(name: str) -> str:
    return resources.files("kvpool.cli.sizing_html").joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _json(value: Any) -> str:
    """Return a value as JSON in which ``</script>`` cannot occur, so that it can be part of a script."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _subject(report: SizingReport) -> str:
    trace = report["trace"]
    subject = (
        f"{count(trace['requests'])} requests over {seconds(trace['span_s'])}, "
        f"{count(trace['references'])} references to {count(trace['unique_blocks'])} different blocks of "
        f"{count(trace['block_size'])} tokens."
    )
    model = report["model"]
    if model is not None:
        block = model["bytes_per_token"] * trace["block_size"] / 2**20
        subject += f" A block of {model['name']} takes {block:,.3g} MiB."
    return f"{subject} {sample_note(report)}".rstrip()


def _findings(report: SizingReport) -> Iterator[str]:
    yield '<section aria-label="Summary"><dl class="findings">'
    for finding in findings(report):
        yield (
            f"<div><dt>{escape(finding.name)}</dt><dd><strong>{escape(finding.value)}</strong> "
            f"<span>{escape(finding.remark)}</span></dd></div>"
        )
    yield "</dl></section>"


def _figure(figure: Figure) -> str:
    return "\n".join(
        [
            f'<section id="{figure.key}" aria-labelledby="head-{figure.key}">',
            f'<h2 id="head-{figure.key}">{escape(figure.title)}</h2>',
            f'<figure data-figure="{figure.key}">',
            f'<ul class="legend" aria-label="Series of {escape(figure.title)}">',
            *(_legend(index, series) for index, series in enumerate(figure.series)),
            "</ul>",
            f'<div class="drawing">{draw(figure)}<div class="tip" role="status" hidden="hidden"></div></div>',
            f"<figcaption>{escape(figure.definition)}</figcaption>",
            "</figure>",
            f"<details><summary>Figures of this plot</summary>{_table(figure.table)}</details>",
            "</section>",
        ]
    )


def _legend(index: int, series: Series) -> str:
    """Return the legend entry of a series: its colour, mark and name.

    The page's script turns the entry into a button.
    """
    if series.kind == "bars":
        sample = '<rect class="bar" x="7" y="-6" width="12" height="12"/>'
    else:
        sample = "" if series.kind == "marks" else '<line class="line" x1="1" x2="25" y1="0" y2="0"/>'
        if series.kind in {"marks", "marked"}:
            sample += f'<path class="mark" transform="translate(13 0)" d="{mark(series.colour)}"/>'
    look = colour_class(series.colour) + (" dashed" if series.dashed else "")
    return (
        f'<li data-series="{index}"><svg class="sample series {look}" viewBox="0 -8 26 16" '
        f'aria-hidden="true">{sample}'
        f"</svg><span>{escape(series.name)}</span></li>"
    )


def _table(table: Table) -> str:
    header = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    rows = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in table.rows
    )
    return f'<div class="scroll"><table><thead><tr>{header}</tr></thead>\n<tbody>{rows}</tbody></table></div>'


def _grid(report: SizingReport) -> Iterator[str]:
    capacities = report["capacities"]
    if not capacities or not report["policies"]:
        return
    yield '<section id="grid" aria-labelledby="head-grid"><h2 id="head-grid">Policies by capacity</h2>'
    for rate, caption in _RATES:
        rows = grid_rows(report, rate)
        highest = max((cell.rate for row in rows for cell in row.cells), default=0.0) or 1.0
        sizes: list[tuple[str, Iterable[str]]] = [
            ("blocks", (count(capacity["blocks"]) for capacity in capacities))
        ]
        if any(capacity["gib"] is not None for capacity in capacities):
            sizes.append(("GiB", (gib(capacity["gib"]) for capacity in capacities)))
        if any(capacity["relative_size"] is not None for capacity in capacities):
            sizes.insert(0, ("of unique blocks", (share_label(capacity) for capacity in capacities)))
        yield f'<div class="rate" data-rate="{rate}"><div class="scroll"><table class="grid">'
        yield f"<caption>{escape(caption)}</caption><thead>"
        for name, cells in sizes:
            heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in cells)
            yield f'<tr><th scope="row">{escape(name)}</th>{heads}</tr>'
        yield "</thead><tbody>"
        for row in rows:
            cells_of_row = "".join(_cell(cell, highest) for cell in row.cells)
            yield f'<tr class="{row.kind}"><th scope="row">{escape(row.name)}</th>{cells_of_row}</tr>'
        yield "</tbody></table></div></div>"
    form = {
        "stream": "Each block is evicted on its own, and a running request holds no blocks.",
        "pool": "As in a block manager: the blocks of a request are held together, and a block is never "
        "evicted before the blocks that follow it.",
    }[report["form"]]
    yield (
        f'<p class="note">{escape(prefix_rule(report))} Token hits: tokens of those blocks, of all prompt '
        "tokens. ★ best policy of the column, to 0.01 points; small: points above or below LRU. "
        f"{escape(form)} The optimum knows the future, hints know part of it; neither competes.</p></section>"
    )


def _cell(cell: Cell, highest: float) -> str:
    classes = ' class="best"' if cell.best else ""
    star = '<span class="star" title="best of the column">★</span>' if cell.best else ""
    difference = "" if cell.difference is None else f" <small>{points(cell.difference)}</small>"
    heat = max(cell.rate, 0) / highest
    return f'<td{classes} style="--heat:{heat:.3f}">{star}<span>{percent(cell.rate)}</span>{difference}</td>'


def _missing(sentences: list[str]) -> Iterator[str]:
    if sentences:
        yield f'<section aria-label="Left out"><p class="note">{escape(" ".join(sentences))}</p></section>'


def _policies(report: SizingReport) -> Iterator[str]:
    """Yield the section about the policies: their sources, their turnover, and the time of each run."""
    if not report["policies"]:
        return
    yield '<section id="policies" aria-labelledby="head-policies"><h2 id="head-policies">Policies</h2>'
    heads = "".join(
        f'<th scope="col">{escape(share_label(capacity))}</th>' for capacity in report["capacities"]
    )
    yield (
        '<div class="scroll"><table><caption>Resident turnover: the share of the resident blocks, in %, '
        "that one "
        "capacity of new blocks replaces; near 0 the cache has stagnated</caption><thead>"
        f'<tr><th scope="col">policy</th>{heads}<th scope="col">replayed in</th>'
        '<th scope="col" class="text">defined in</th></tr></thead><tbody>'
    )
    for policy in report["policies"]:
        cells = "".join(_turnover(hits) for hits in policy["hits"])
        yield (
            f'<tr><th scope="row">{escape(name_of(policy["name"]))}</th>{cells}'
            f"<td>{escape(seconds(policy['seconds']))}</td>"
            f'<td class="text">{escape(policy["source"])}</td></tr>'
        )
    yield "</tbody></table></div></section>"


def _turnover(hits: Hits) -> str:
    evictions, turnover = hits["evictions"], hits["resident_turnover"]
    title = "" if evictions is None else f' title="{count(evictions)} evictions"'
    return f"<td{title}>{'-' if turnover is None else f'{100 * turnover:.0f}'}</td>"


def _facts(report: SizingReport) -> Iterator[str]:
    trace, ideal = report["trace"], report["trace"]["ideal"]
    facts = [
        ("source", shown(trace["source"])),
        ("format", trace["format"]),
        ("requests", count(trace["requests"])),
        ("span", seconds(trace["span_s"])),
        ("prompt tokens", count(trace["tokens_in"])),
        ("tokens of a block", count(trace["block_size"])),
        ("block references", count(trace["references"])),
        ("different blocks", count(trace["unique_blocks"])),
        ("ceiling, blocks", f"{percent(ideal['block'])} %"),
        ("ceiling, full blocks", f"{percent(ideal['full_blocks'])} %"),
        ("ceiling, tokens", f"{percent(ideal['token'])} %"),
    ]
    if ideal["last_half"] is not None:
        facts.append(("ceiling, tokens of the last half", f"{percent(ideal['last_half'])} %"))
    model = report["model"]
    if model is not None:
        facts.append(("model", model["name"]))
        facts.append(("KV bytes of a token", count(model["bytes_per_token"])))
        if model["prefill_tokens_per_s"] is not None:
            facts.append(("prefill", f"{model['prefill_tokens_per_s']:,.0f} tokens/s"))
    yield (
        '<section id="trace" aria-labelledby="head-trace"><h2 id="head-trace">The trace</h2><dl '
        'class="facts">'
    )
    for name, value in facts:
        yield f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
    yield "</dl></section>"
