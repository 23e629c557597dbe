"""The screen of ``kvpool top``: a summary of a reading as panels for a terminal.

This module owns the texts and bars. It only reads the result of :func:`kvpool.cli.top_reading.summary`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from kvpool.cli.tables import percent
from kvpool.cli.terminal import shown
from kvpool.metrics.collect import SCALES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

__all__ = ["screen"]

#: Width, in characters, of a terminal that has room for two panels side by side.
_WIDE: Final = 120
#: The width of a bar that shows parts of a whole, in characters.
_BAR: Final = 24
#: The states of blocks, and the colours of their parts of a bar.
_STATES: Final = (
    ("active", "green"),
    ("fenced", "yellow"),
    ("cached_free", "cyan"),
    ("free", "bright_black"),
)
_SOURCES: Final = (
    ("hit", "device", "green"),
    ("external", "connector", "cyan"),
    ("computed", "computed", "red"),
)
_LEVELS: Final = "▁▂▃▄▅▆▇█"
#: Maximum number of rows of a table. Further rows are left out.
_ROWS: Final = 8


def screen(summary: Mapping[str, Any], source: str, note: str = "", width: int = 80) -> RenderableType:
    """Return the screen for a summary. Its panels are in two columns if the terminal is wide enough."""
    head = Text.assemble(("kvpool top", "bold"), "  ", shown(source, 100), "  ", (note, "bright_black"))
    parts: list[RenderableType] = [head]
    parts += [_pool(name, pool, width >= _WIDE) for name, pool in summary["pools"].items()]
    if summary["stores"]:
        parts.append(Panel(_stores(summary["stores"]), title="stores", title_align="left", box=box.ROUNDED))
    return Group(*parts)


def _pool(name: str, pool: Mapping[str, Any], wide: bool) -> Panel:
    left = [_occupancy(pool["tiers"]), _sources(pool), _counts(pool), _ages(pool["tiers"])]
    missed = pool["missed_tokens"]
    right = [
        _shares("misses by reason", "tokens", missed, pool["last"], "missed_tokens", "needs explain"),
        _evictions(pool),
        _curve(pool["advice"]),
        _tenants(pool["tenants"]),
    ]
    body: RenderableType
    if wide:
        body = grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(ratio=1)
        grid.add_column(ratio=1)
        grid.add_row(_stack(left), _stack(right))
    else:
        body = _stack(left + right)
    title = Text(shown(name, 60), "bold")
    if pool["poisoned"]:
        title.append("  POISONED: it refuses all work", "bold red")
    return Panel(body, title=title, title_align="left", box=box.ROUNDED)


def _stack(tables: list[Table | None]) -> Group:
    parts: list[RenderableType] = []
    for table in tables:
        if table is not None:
            # The title is printed on its own, because Rich limits a table's title to the width of the table.
            title, table.title = Text(str(table.title), "bold"), None
            parts += ["", title, table] if parts else [title, table]
    return Group(*parts)


def _table(title: str) -> Table:
    return Table(title=title, box=None, show_header=False, padding=(0, 1))


def _bar(parts: list[tuple[float, str]], whole: float) -> Text:
    """Return a bar that shows parts of a whole. A part above 0 has at least one character if possible."""
    bar, left, rest = Text(), _BAR, whole
    for value, style in parts:
        cells = round(left * value / rest) if rest > 0 else 0
        cells = min(left, max(cells, 1 if value > 0 else 0))
        bar.append("█" * cells, style)
        left, rest = left - cells, rest - value
    return bar.append("░" * left, "bright_black")


def _count(value: float) -> str:
    """Return a count in about four characters, such as ``1.2 k``.

    >>> [_count(value) for value in (0, 999, 1234, 45_600_000, 3e12)]
    ['0', '999', '1.2 k', '45.6 M', '3.0 T']
    """
    for unit in ("", " k", " M", " G"):
        if abs(value) < 1000:
            return f"{value:.0f}" if not unit else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.1f} T"


def _seconds(value: float | None) -> str:
    """Return a time as text, in a suitable unit.

    >>> [_seconds(value) for value in (None, 0.25, 42.0, 600.0, 7200.0, 200_000.0)]
    ['-', '0.25 s', '42 s', '10 min', '2.0 h', '2.3 d']
    """
    if value is None:
        return "-"
    for most, divisor, unit in (
        (10, 1, ".2f s"),
        (120, 1, ".0f s"),
        (7200, 60, ".0f min"),
        (172_800, 3600, ".1f h"),
    ):
        if value < most:
            digits, _, name = unit.partition(" ")
            return f"{value / divisor:{digits}} {name}"
    return f"{value / 86_400:.1f} d"


def _occupancy(tiers: Mapping[str, Any]) -> Table:
    table = _table("blocks")
    for name, tier in tiers.items():
        blocks = tier["blocks"]
        parts = [(blocks.get(state, 0.0), style) for state, style in _STATES[:-1]]
        table.add_row(name, _bar(parts, tier["capacity_blocks"]), f"of {_count(tier['capacity_blocks'])}")
        said = Text()
        for state, style in _STATES:
            if blocks.get(state):
                said.append(f"{state.replace('_', '-')} {_count(blocks[state])}  ", style)
        table.add_row("", said, "")
    return table


def _sources(pool: Mapping[str, Any]) -> Table | None:
    tokens = pool["tokens"]
    table = _table("prompt tokens")
    if not tokens["prompt"]:
        # A pool has no requests, so the table shows its hit and missed blocks instead of tokens.
        device: Mapping[str, Any] = next(iter(pool["tiers"].values()), {})
        asked = device.get("hit_blocks", 0) + device.get("miss_blocks", 0)
        if not asked:
            return None
        table.title = "blocks that lookups asked for"
        table.add_row(
            "hit", _bar([(device["hit_blocks"], "green")], asked), percent(device["hit_blocks"] / asked, 1)
        )
        return table
    for part, name, style in _SOURCES:
        share = tokens[part] / tokens["prompt"]
        table.add_row(
            name, _bar([(tokens[part], style)], tokens["prompt"]), percent(share, 1), _count(tokens[part])
        )
    if pool["last"] is not None:
        now, speed = f"now {percent(pool['last']['hit_ratio'], 1)}", pool["last"]["prompt_tokens_per_second"]
        table.add_row("", Text(now if speed is None else f"{now} of {_count(speed)} tokens/s", "bold"))
    return table


def _counts(pool: Mapping[str, Any]) -> Table | None:
    if not pool["requests"]:
        return None
    table, last = _table("requests"), pool["last"] or {}

    def speed(name: str) -> str:
        found = last.get(f"{name}_per_second")
        return "" if found is None else f"{found:.2f}/s"

    states = (
        ", ".join(f"{_count(count)} {state}" for state, count in pool["requests"].items() if count) or "none"
    )
    table.add_row("now", states)
    table.add_row("refusals", _count(pool["refusals"]), speed("refusals"))
    table.add_row("preemptions", _count(pool["preemptions"]), speed("preemptions"))
    swapped = pool["swapped"]
    table.add_row("swapped", f"{_count(swapped.get('out', 0))} out, {_count(swapped.get('in', 0))} in")
    hints = {answer: count for answer, count in pool["hinted_blocks"].items() if count}
    if hints:
        table.add_row("hints", ", ".join(f"{_count(count)} {answer}" for answer, count in hints.items()))
    return table


def _shares(
    title: str,
    unit: str,
    counts: Mapping[str, float],
    last: Mapping[str, Any] | None,
    name: str,
    without: str,
) -> Table:
    table = _table(title)
    whole = sum(counts.values())
    recent = {} if last is None else last[name]
    for reason, count in sorted(counts.items(), key=lambda item: -item[1])[:_ROWS]:
        if count:
            now = f"+{_count(recent[reason])}" if recent.get(reason) else ""
            table.add_row(
                shown(reason, 30), _bar([(count, "magenta")], whole), f"{_count(count)} {unit}", now
            )
    if not whole:
        table.add_row(Text(f"none, or not counted: {without}" if not counts else "none", "bright_black"))
    return table


def _evictions(pool: Mapping[str, Any]) -> Table:
    causes: dict[str, float] = {}
    for tier, counted in pool["tiers"].items():
        for cause, blocks in counted["evicted_blocks"].items():
            causes[cause if tier == "device" else f"{tier}: {cause}"] = blocks
    return _shares(
        "evictions by cause", "blocks", causes, pool["last"], "evicted_blocks", "needs metrics=True"
    )


def _ages(tiers: Mapping[str, Any]) -> Table | None:
    table = _table("ages, mean")
    for name, tier in tiers.items():
        if tier["mean_age_at_hit_seconds"] is None and tier["mean_idle_before_eviction_seconds"] is None:
            continue
        table.add_row(name, "at a hit", _seconds(tier["mean_age_at_hit_seconds"]))
        table.add_row("", "between uses", _seconds(tier["mean_reuse_gap_seconds"]))
        table.add_row("", "idle before eviction", _seconds(tier["mean_idle_before_eviction_seconds"]))
        if tier["mean_hits_before_eviction"] is not None:
            table.add_row("", "hits before eviction", f"{tier['mean_hits_before_eviction']:.1f}")
    return table if table.row_count else None


def _curve(advice: Mapping[str, Any] | None) -> Table | None:
    if advice is None:
        return None
    table = _table(f"advice, {_count(advice['references'])} references")
    table.add_row("measured", percent(advice["hit_ratio"], 1))
    marks, words = Text(), []
    for scale in SCALES:
        if scale in advice["curve"]:
            rate = min(max(advice["curve"][scale], 0.0), 1.0)
            style = "bold green" if scale == "1" else "green"
            marks.append(_LEVELS[min(int(rate * len(_LEVELS)), len(_LEVELS) - 1)] * 2 + " ", style)
            if scale in {"0.5", "1", "2", "4"}:
                words.append(f"{scale}x {percent(rate, 1)}")
    table.add_row("lru, 1/8 to 8x", marks)
    table.add_row("", ", ".join(words))
    policies = sorted(advice["policies"].items(), key=lambda item: -item[1])[:4]
    table.add_row("policies", ", ".join(f"{shown(name, 20)} {percent(rate, 1)}" for name, rate in policies))
    return table


def _tenants(tenants: Mapping[str, Any]) -> Table | None:
    if not set(tenants) - {"none"}:
        return None
    table = _table("tenants")
    rows = sorted(tenants.items(), key=lambda item: -(item[1]["hits"] + item[1]["misses"]))
    for tenant, counted in rows[:_ROWS]:
        asked = counted["hits"] + counted["misses"]
        bar = _bar([(counted["hits"], "green")], asked)
        table.add_row(
            shown(tenant, 20), bar, percent(counted["hits"] / asked, 1), f"of {_count(asked)} blocks"
        )
    if len(rows) > _ROWS:
        table.add_row(Text(f"{len(rows) - _ROWS} more", "bright_black"))
    return table


def _stores(stores: Mapping[str, Any]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1))
    for name, store in stores.items():
        table.add_row(shown(name, 30), _bar([(store["bytes"], "cyan")], store["capacity_bytes"]))
        table.add_row(
            "",
            ", ".join(f"{_count(store[part])} {part}" for part in ("objects", "loads", "misses", "writes")),
        )
        flight = f"{_count(store['in_flight'])} in flight"
        if store["quarantined"]:
            flight += f", {_count(store['quarantined'])} late"
        table.add_row("", flight)
        failures = {reason: count for reason, count in store["failures"].items() if count}
        said = Text(
            ", ".join(f"{_count(count)} {reason.replace('_', ' ')}" for reason, count in failures.items())
        )
        if store["checksum_failures"]:
            said.append(f"  {_count(store['checksum_failures'])} damaged", "bold red")
        if store["breaker_openings"]:
            said.append(f"  breaker opened {_count(store['breaker_openings'])} times", "bold yellow")
        if said:
            table.add_row("", said)
    return table
