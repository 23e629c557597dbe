"""Prints the report of ``kvpool size`` as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich import box
from rich.table import Table
from rich.text import Text

from kvpool.cli.size_groups import print_groups
from kvpool.cli.size_tiers import print_tiers
from kvpool.cli.tables import figure, percent, show
from kvpool.cli.terminal import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from kvpool.sizing.report import Capacity, Hits, SizingReport

__all__ = ["print_sizing"]

_FORMS: Final = {
    "pool": "pool form: requests one after the other, as kvpool evicts: a request's blocks are in use "
    "until it is released, and no block is evicted before its cached descendants",
    "stream": "stream form: requests one after the other, each block on its own, last block first; "
    "papers simulate this, but a pool cannot do it, because it holds whole requests",
}
_DEFINITIONS: Final = (
    "hit rate: share of block references that are found; a block counts only if every block before it in "
    "its prompt does",
    "turnover: share of the resident blocks that is replaced while as many new blocks arrive as the cache "
    "holds; near 0, the cache keeps old blocks and evicts all new ones",
    "optimum: the most that any policy could hit if it knew the future and could leave blocks out",
    "hints: LRU with end-of-life hints for this share of the blocks that are not used again",
)
#: The definitions below a report that estimates LRU from a sample of the blocks.
_SAMPLE_DEFINITIONS: Final = (
    _DEFINITIONS[0],
    "sample: some of the blocks, picked by a hash of their ids, and all their uses; the hit rates are "
    "estimates, and more blocks make them better: with 8,192 they are off by less than a point on average",
)


def print_sizing(report: SizingReport, console: Console) -> None:
    """Print the report as tables that fit a terminal of 80 columns."""
    _print_trace(report, console)
    _print_grid(report, console)
    _print_memory(report, console)
    print_groups(report, console)
    print_tiers(report, console)
    definitions = Table(box=box.SIMPLE, show_header=False, title="What the figures mean")
    definitions.add_column(style="bold", no_wrap=True)
    definitions.add_column()
    for line in _SAMPLE_DEFINITIONS if report["sample"] else (_FORMS[report["form"]], *_DEFINITIONS):
        name, _, text = line.partition(": ")
        definitions.add_row(name, text)
    show(console, definitions)


def _print_trace(report: SizingReport, console: Console) -> None:
    trace, ideal = report["trace"], report["trace"]["ideal"]
    table = Table(box=box.SIMPLE, show_header=False, title="kvpool size")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    table.add_row("trace", "", Text(f"{shown(trace['source'])} ({trace['format']})"))
    table.add_row("requests", f"{trace['requests']:,}", f"arriving over {trace['span_s']:,.1f} s")
    table.add_row("prompt tokens", f"{trace['tokens_in']:,}", "")
    different = f"{trace['unique_blocks']:,} different"
    table.add_row(f"{trace['block_size']:,}-token blocks", f"{trace['references']:,}", different)
    others = f"{percent(ideal['token'])} of tokens, {percent(ideal['full_blocks'])} of full blocks"
    if ideal["last_half"] is not None:
        others += f", {percent(ideal['last_half'])} of tokens in the last half"
    table.add_row("at most", percent(ideal["block"]), f"of blocks can hit; {others}")
    cells = (len(report["policies"]) + (report["finish_reasons"] is not None)) * len(report["capacities"])
    memory = f"peak memory {report['peak_memory_bytes'] / 2**20:,.0f} MiB"
    if report["sample"] is not None:
        most = (
            f"of the blocks, {report['sample']['most_blocks']:,} at most: all hit rates below are estimates"
        )
        table.add_row("sample", percent(report["sample"]["rate"]), most)
    work = memory if report["sample"] else f"{cells} simulations; {memory}"
    table.add_row("sized in", f"{report['elapsed_s']:,.2f} s", work)
    show(console, table)


def _print_grid(report: SizingReport, console: Console) -> None:
    """Print a table of hit rates: a row per policy, a column per capacity, the best of a column in bold."""
    sizes = report["capacities"]
    table = _by_capacity("Estimated block hit rate, %" if report["sample"] else "Block hit rate, %", sizes)
    if report["sample"] is not None:
        curve = {point["blocks"]: point["block_hit_rate"] for point in report["lru_curve"]}
        table.add_row(
            "lru, sample", *(f"{100 * curve.get(capacity['blocks'], 0.0):.2f}" for capacity in sizes)
        )
    rates = [
        [policy["hits"][at]["block_hit_rate"] for policy in report["policies"]] for at in range(len(sizes))
    ]
    best = [max(column, default=1.0) for column in rates]
    for policy in report["policies"]:
        table.add_row(Text(policy["name"]), *_cells(policy["hits"], best))
    table.add_section()
    for hint in report["hints"]:
        table.add_row(f"hints {100 * hint['accuracy']:.0f} %", *_cells(hint["hits"]))
    if report["optimum"] is not None:
        table.add_row("optimum", *_cells(report["optimum"]["hits"]))
    show(console, table)
    if (words := _worth_of_finish_reasons(report)) is not None:
        console.print(words + "\n")
    if not report["policies"]:
        return
    _print_gains(report, console)
    turnover = _by_capacity("Resident turnover, %", sizes)
    for policy in report["policies"]:
        shares = [hits["resident_turnover"] for hits in policy["hits"]]
        turnover.add_row(
            Text(policy["name"]), *("-" if share is None else f"{100 * share:.0f}" for share in shares)
        )
    show(console, turnover)


def _print_gains(report: SizingReport, console: Console) -> None:
    """Print the largest gain of a policy over LRU and the largest gain of hints, with their capacities."""
    from kvpool.cli.sizing_html.summary import gains

    for gain in gains(report):
        console.print(f"{gain.name[0].upper()}{gain.name[1:]}: {gain.value}, {gain.remark}.")
    console.print()


def _worth_of_finish_reasons(report: SizingReport) -> str | None:
    """Return one line of text: how many more blocks hit because the policy knows how requests ended.

    Returns ``None`` if the trace has no finish reasons, or if no policy of the report uses them.
    """
    reasons = report["finish_reasons"]
    if reasons is None:
        return None
    (told,) = (policy["hits"] for policy in report["policies"] if policy["name"] == reasons["policy"])
    gains = [
        f"{100 * (one['block_hit_rate'] - less['block_hit_rate']):+.2f}"
        for one, less in zip(told, reasons["without"], strict=True)
    ]
    requests = f"{reasons['requests']:,} of {report['trace']['requests']:,} requests have one"
    return (
        f"What the finish reason is worth here, {reasons['policy']}, points: {' '.join(gains)} ({requests})."
    )


def _cells(hits: Sequence[Hits], best: Sequence[float] | None = None) -> list[Text]:
    rates = [one["block_hit_rate"] for one in hits]
    styles = ["bold" if best and rate == top else "" for rate, top in zip(rates, best or rates, strict=True)]
    return [Text(f"{100 * rate:.2f}", style=style) for rate, style in zip(rates, styles, strict=True)]


def _by_capacity(title: str, sizes: Sequence[Capacity]) -> Table:
    """Return an empty table with a column per capacity.

    To fit 80 columns, only the header of the first column contains the units.
    """
    shares = any(capacity["relative_size"] is not None for capacity in sizes)
    weighed = any(capacity["gib"] is not None for capacity in sizes)
    table = Table(box=box.SIMPLE, title=title, padding=(0, 1, 0, 0))
    table.add_column("\n".join(["of different"] * shares + ["blocks"] + ["GiB"] * weighed), no_wrap=True)
    for capacity in sizes:
        share = "" if capacity["relative_size"] is None else f"{100 * capacity['relative_size']:g} %"
        gib = "" if capacity["gib"] is None else _gib(capacity["gib"])
        head = [share] * shares + [f"{capacity['blocks']:,}"] + [gib] * weighed
        table.add_column("\n".join(head), justify="right", no_wrap=True)
    return table


def _gib(size: float) -> str:
    return f"{size:,.0f}" if size >= 1000 else figure(size)


def _print_memory(report: SizingReport, console: Console) -> None:
    knee, model = report["knee"], report["model"]
    if knee is not None:
        gib = "" if knee["gib"] is None else f", {knee['gib']:,.1f} GiB"
        rate = percent(knee["block_hit_rate"])
        estimated = " (estimated)" if report["sample"] else ""
        console.print(
            f"Knee of the LRU curve{estimated}: {knee['blocks']:,} blocks{gib}, {rate} of blocks hit.\n"
        )
    if model is None:
        console.print("What a GiB buys: name a model, --model llama-3.1-8b for instance.\n", style="dim")
        return
    in_full = ", all layers in full" if report["groups"] else ""
    title = Text(f"What memory buys, LRU, {model['name']}{in_full}")
    table = Table(box=box.SIMPLE, title=title)
    timed = model["prefill_tokens_per_s"] is not None
    heads = ("from GiB", "to GiB", "prefill tokens\nsaved", "prefill tokens\nsaved per GiB")
    for head in (*heads, *["prefill seconds\nsaved"] * timed):
        table.add_column(head, justify="right", no_wrap=True)
    for step in report["worth"]:
        width = step["to_gib"] - step["from_gib"]
        seconds = step["prefill_seconds"]
        table.add_row(
            figure(step["from_gib"]),
            figure(step["to_gib"]),
            f"{step['hit_tokens']:,}",
            f"{step['hit_tokens'] / width:,.0f}",
            *[] if seconds is None else [f"{seconds:,.0f}"],
        )
    show(console, table)
    if not timed:
        console.print("In seconds of prefill: add --prefill-tokens-per-s N.\n", style="dim")
