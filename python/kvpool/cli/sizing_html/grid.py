"""The table of policies by capacities: the hit rates, the best policies, and the differences from LRU.

This module owns the comparison. Only policies can be the best of a column. Hints and the optimum use
knowledge that a policy does not have, so they are separate rows below. Rates that are equal when rounded
to 0.01 points are treated as equally good.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from kvpool.cli.sizing_html.words import name_of

if TYPE_CHECKING:
    from kvpool.sizing.report import Hits, SizingReport

__all__ = ["Cell", "Row", "grid_rows", "lru_of"]

#: The hit rate that the table shows: that of blocks, or that of tokens.
Rate = Literal["block_hit_rate", "token_hit_rate"]


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """The hit rate of a row at one capacity."""

    rate: float
    #: The hit rate minus that of LRU. ``None`` for LRU itself, and if the report has no LRU.
    difference: float | None
    best: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a policy, LRU with hints of one accuracy, or the optimum."""

    name: str
    kind: Literal["policy", "hint", "optimum"]
    cells: tuple[Cell, ...]


def lru_of(report: SizingReport) -> list[Hits] | None:
    """Return the hits of LRU at each capacity. ``None`` if LRU is not one of the report's policies."""
    return next((policy["hits"] for policy in report["policies"] if policy["name"].lower() == "lru"), None)


def grid_rows(report: SizingReport, rate: Rate) -> list[Row]:
    """Return the rows of the table: the policies in the order of the report, then hints and optimum."""
    lru = lru_of(report)
    best = [
        max((round(policy["hits"][column][rate], 4) for policy in report["policies"]), default=1.0)
        for column in range(len(report["capacities"]))
    ]

    def row(name: str, kind: Literal["policy", "hint", "optimum"], hits: list[Hits]) -> Row:
        cells = []
        for column, each in enumerate(hits):
            difference = None if lru is None or hits is lru else each[rate] - lru[column][rate]
            is_best = kind == "policy" and round(each[rate], 4) == best[column]
            cells.append(Cell(each[rate], difference, is_best))
        return Row(name, kind, tuple(cells))

    rows = [row(name_of(policy["name"]), "policy", policy["hits"]) for policy in report["policies"]]
    rows += [
        row(f"LRU, hints {100 * hint['accuracy']:g} %", "hint", hint["hits"]) for hint in report["hints"]
    ]
    if report["optimum"] is not None:
        rows.append(row("optimum (clairvoyant)", "optimum", report["optimum"]["hits"]))
    return rows
