"""Figures of a hybrid model on the page: hit rates by memory, and by the spacing of checkpoints.

This module owns both figures. The first shows the hits of all KV-cache groups together and of each kind
alone. The second shows the same at one size by value of ``keep``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kvpool.cli.size_groups import group_name, keep_name, sentence
from kvpool.cli.sizing_html.figures import Axis, Figure, Series, Table, linear_axis, log_axis
from kvpool.cli.sizing_html.words import count, gib, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvpool.sizing.report import GroupRun, Groups, SizingReport

__all__ = ["by_memory", "by_spacing"]

_RATE = "token hits (%)"
_ROOM = 1.12


def by_memory(report: SizingReport) -> Figure | None:
    """Return the figure of token hit rates by GiB of memory, with the KV-cache groups of the model."""
    groups, model = report["groups"], report["model"]
    if groups is None or model is None or not groups["sizes"]:
        return None
    runs = groups["sizes"]
    x = tuple(run["gib"] for run in runs)
    places = tuple(f"{gib(run['gib'])} GiB, {count(run['blocks'])} blocks" for run in runs)
    series = _series(groups, runs, x, places)
    if all(run["in_full_rate"] is not None for run in runs):
        rates = [run["in_full_rate"] or 0.0 for run in runs]
        series.append(_line("every layer in full", rates, x, places, "optimum", dashed=True))
    highest = max(y for each in series for y in each.y if y is not None)
    kinds = ", ".join(
        f"{group['groups']} {group['kind']}"
        + (f" {group['span']:,}" if group["span"] else "")
        + f" with {group['layers']} layers"
        for group in groups["groups"]
    )
    in_full = any(run["in_full_rate"] is not None for run in runs)
    return Figure(
        key="groups",
        title=f"Hit rate of {model['name']} by memory",
        definition=f"Groups ({kinds}) share one pool; windows and states keep {keep_name(groups['keep'])}. "
        "A hit ends where every group has what it needs; alone: what one kind would have served. Full "
        "blocks, LRU, requests one after the other."
        + (" In full: the same memory if every layer kept every token." if in_full else ""),
        x=log_axis("GiB (log scale)", min(x) / _ROOM, max(x) * _ROOM),
        y=linear_axis(_RATE, max(highest, 1.0)),
        series=tuple(series),
        table=_table(groups, runs, "GiB", [gib(run["gib"]) for run in runs]),
    )


def by_spacing(report: SizingReport) -> Figure | None:
    """Return the figure of token hits at one size by value of ``keep``."""
    groups, model = report["groups"], report["model"]
    if groups is None or model is None or not groups["spacing"]:
        return None
    runs = groups["spacing"]
    names = [keep_name(run["keep"]) for run in runs]
    x = tuple(float(place) for place in range(1, len(runs) + 1))
    series = [dataclasses.replace(each, kind="marked") for each in _series(groups, runs, x, tuple(names))]
    highest = max(y for each in series for y in each.y if y is not None)
    own = next(run for run in runs if run["keep"] == groups["keep"])
    return Figure(
        key="spacing",
        title="What checkpoint spacing buys",
        definition="Windows and states are kept for later requests at multiples of a number of tokens, or "
        "only at junctions: where prompts end, and where one departs from another. Keeping more of them "
        f"allows more hits, and takes memory from other blocks. {sentence(groups, own)}",
        x=Axis("kept", 0.5, len(runs) + 0.5, False, tuple(zip(x, names, strict=True))),
        y=linear_axis(_RATE, max(highest, 1.0)),
        series=tuple(series),
        table=_table(groups, runs, "keep", names),
    )


def _series(
    groups: Groups, runs: Sequence[GroupRun], x: tuple[float, ...], places: tuple[str, ...]
) -> list[Series]:
    lines = [_line("all together", [run["token_hit_rate"] for run in runs], x, places, "ink")]
    for at, group in enumerate(groups["groups"]):
        rates = [run["alone"][at] for run in runs]
        lines.append(_line(f"{group_name(group)} alone", rates, x, places, str(at), dashed=True))
    return lines


def _line(
    name: str,
    rates: Sequence[float],
    x: tuple[float, ...],
    places: tuple[str, ...],
    colour: str,
    *,
    dashed: bool = False,
) -> Series:
    return Series(
        name=name,
        kind="marked",
        x=x,
        y=tuple(100 * rate for rate in rates),
        places=places,
        notes=tuple(f"{name}: {percent(rate)} % of tokens" for rate in rates),
        colour=colour,
        dashed=dashed,
    )


def _table(groups: Groups, runs: Sequence[GroupRun], first: str, cells: Sequence[str]) -> Table:
    in_full = any(run["in_full_rate"] is not None for run in runs)
    states = any(group["kind"] == "state" for group in groups["groups"])
    header = [first, "all together %", *(f"{group_name(group)} alone %" for group in groups["groups"])]
    header += ["in full %"] * in_full + ["blocks", "evictions"] + ["states kept"] * states
    rows = []
    for cell, run in zip(cells, runs, strict=True):
        row = [cell, percent(run["token_hit_rate"]), *(percent(rate) for rate in run["alone"])]
        row += [percent(run["in_full_rate"])] * in_full + [count(run["blocks"]), count(run["evictions"])]
        rows.append((*row, *[count(run["checkpoints"])] * states))
    return Table(tuple(header), tuple(rows))
