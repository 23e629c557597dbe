"""Tables of a hybrid model in the report of ``kvpool size``: sizes, and the spacing of checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich import box
from rich.table import Table
from rich.text import Text

from kvpool.cli.tables import figure, show

if TYPE_CHECKING:
    from rich.console import Console

    from kvpool.sizing.report import Group, GroupRun, Groups, SizingReport

__all__ = ["group_name", "keep_name", "print_groups", "sentence"]

_WORDS: Final = {"full": "full", "sliding": "windows", "chunked": "chunks", "state": "states"}

_NOTE: Final = (
    "Each size is a run of all requests through a manager with these groups, with LRU: full blocks can "
    "hit, and a hit ends where every group has what it needs. Alone: what one kind of groups would have "
    "served. In full: the same memory if every layer kept every token."
)


def group_name(group: Group) -> str:
    """Return the name of the KV-cache groups of one kind, as the tables show it.

    >>> facts = {"groups": 6, "layers": 52, "block_tokens": 64, "padding": 0.1}
    >>> group_name({"kind": "sliding", "span": 1024, **facts})
    'windows'
    """
    return _WORDS[group["kind"]]


def keep_name(keep: int | str) -> str:
    """Return the name of a value of ``keep``, as the tables show it.

    >>> keep_name(2048), keep_name("junctions"), keep_name("all")
    ('every 2,048', 'junctions', 'all')
    """
    return keep if isinstance(keep, str) else f"every {keep:,}"


def sentence(groups: Groups, run: GroupRun) -> str:
    """Return the hit rates of one size: of each kind of groups alone, and of all groups together."""
    alone = zip(groups["groups"], run["alone"], strict=True)
    each = ", ".join(f"{group_name(group)} alone would reach {100 * rate:.1f} %" for group, rate in alone)
    return f"With {_gib(run['gib'])} GiB {each}, all together {100 * run['token_hit_rate']:.1f} %."


def print_groups(report: SizingReport, console: Console) -> None:
    """Print the tables of sizes and of checkpoint spacings. Print nothing for a model with one group."""
    groups, model = report["groups"], report["model"]
    if groups is None or model is None:
        return
    parts = []
    for group in groups["groups"]:
        span = f" {group['span']:,}" if group["span"] else ""
        number = f"{group['groups']} x " if group["groups"] > 1 else ""
        parts.append(f"{number}{group['kind']}{span}")
    keeps = keep_name(groups["keep"])
    title = f"Token hit rate of {model['name']}, %: groups {', '.join(parts)}; keep {keeps}"
    table = _table(
        title, groups, "GiB", in_full=any(run["in_full_rate"] is not None for run in groups["sizes"])
    )
    for run in groups["sizes"]:
        _row(table, _gib(run["gib"]), run, in_full=run["in_full_rate"])
    show(console, table)
    spaced = groups["spacing"][0]
    table = _table(
        f"What checkpoint spacing buys, with {_gib(spaced['gib'])} GiB", groups, "keep", in_full=False
    )
    for run in groups["spacing"]:
        _row(table, keep_name(run["keep"]), run)
    show(console, table)
    middle = next(run for run in groups["spacing"] if run["keep"] == groups["keep"])
    console.print(Text(sentence(groups, middle)))
    console.print(_NOTE, style="dim")
    cut = sum(run["cut_short"] for run in groups["sizes"])
    if cut:
        console.print(
            f"{cut:,} prompts of all runs did not fit to the end: what did is counted.", style="dim"
        )
    console.print()


def _table(title: str, groups: Groups, first: str, *, in_full: bool) -> Table:
    table = Table(box=box.SIMPLE, title=Text(title), padding=(0, 1, 0, 0))
    table.add_column(first, justify="right" if first == "GiB" else "left", no_wrap=True)
    heads = ["all\ntogether", *(f"{group_name(group)}\nalone" for group in groups["groups"])]
    for head in [*heads, *["in full"] * in_full, "blocks", "evictions"]:
        table.add_column(head, justify="right", no_wrap=True)
    if any(group["kind"] == "state" for group in groups["groups"]):
        table.add_column("states\nkept", justify="right", no_wrap=True)
    return table


def _row(table: Table, first: str, run: GroupRun, *, in_full: float | None = None) -> None:
    cells = [f"{100 * run['token_hit_rate']:.2f}", *(f"{100 * rate:.2f}" for rate in run["alone"])]
    cells += [] if in_full is None else [f"{100 * in_full:.2f}"]
    cells += [f"{run['blocks']:,}", f"{run['evictions']:,}"]
    if len(table.columns) > len(cells) + 1:
        cells.append(f"{run['checkpoints']:,}")
    table.add_row(Text(first), *cells)


def _gib(size: float) -> str:
    return f"{size:,.0f}" if size >= 100 else figure(size, 3)
