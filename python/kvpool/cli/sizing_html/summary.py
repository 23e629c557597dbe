"""The first lines of the page: the main findings.

This module owns the choice of findings, each with its figure and its source.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kvpool.cli.sizing_html.grid import grid_rows
from kvpool.cli.sizing_html.words import count, gib, percent, points, share_label

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvpool.sizing.report import Capacity, SizingReport

__all__ = ["Finding", "findings", "gains"]

#: One finding is the size at which LRU reaches this share of the highest possible hit rate.
_NEARLY = 0.9


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A main finding: its name, its value, and a remark about the basis of the value."""

    name: str
    value: str
    remark: str


def findings(report: SizingReport) -> list[Finding]:
    """Return the main findings of a report, in the order of the page."""
    return [
        finding for build in (_ceiling, _knee, _nearly, _policy, _hint, _finish) for finding in build(report)
    ]


def gains(report: SizingReport) -> list[Finding]:
    """Return the largest gain of a policy over LRU, and the largest gain of hints."""
    return [*_policy(report), *_hint(report)]


def _ceiling(report: SizingReport) -> Iterator[Finding]:
    ideal = report["trace"]["ideal"]
    blocks = ideal["block"] if report["blocks"] == "all" else ideal["full_blocks"]
    yield Finding(
        "ceiling",
        f"{percent(blocks)} %",
        f"of blocks, {percent(ideal['token'])} % of tokens: a cache without end",
    )


def _size(blocks: int, size: float | None) -> str:
    return f"{count(blocks)} blocks" if size is None else f"{gib(size)} GiB"


def _knee(report: SizingReport) -> Iterator[Finding]:
    knee = report["knee"]
    if knee is not None:
        remark = f"{percent(knee['block_hit_rate'])} % of blocks with LRU"
        if knee["gib"] is not None:
            remark = f"{count(knee['blocks'])} blocks: {remark}"
        yield Finding("knee of the curve", _size(knee["blocks"], knee["gib"]), remark)


def _nearly(report: SizingReport) -> Iterator[Finding]:
    ideal = report["trace"]["ideal"]
    goal = _NEARLY * (ideal["block"] if report["blocks"] == "all" else ideal["full_blocks"])
    point = next((point for point in report["lru_curve"] if point["block_hit_rate"] >= goal > 0), None)
    if point is not None:
        share = 100 * point["blocks"] / max(report["trace"]["unique_blocks"], 1)
        yield Finding(
            f"LRU gets {100 * _NEARLY:.0f} % of the ceiling with",
            _size(point["blocks"], point["gib"]),
            f"{share:.1f} % of the unique blocks: {percent(point['block_hit_rate'])} % of blocks",
        )


def _most(report: SizingReport, kind: str) -> tuple[float, str, Capacity] | None:
    """Return the largest gain over LRU among the rows of a kind, with the row's name and the capacity."""
    gains = [
        (cell.difference, row.name, capacity)
        for row in grid_rows(report, "block_hit_rate")
        if row.kind == kind
        for cell, capacity in zip(row.cells, report["capacities"], strict=True)
        if cell.difference is not None
    ]
    return max(gains, key=lambda gain: gain[0], default=None)


def _policy(report: SizingReport) -> Iterator[Finding]:
    gain = _most(report, "policy")
    if gain is None:
        return
    if round(gain[0], 4) > 0:
        at = f"{gain[1]} at {share_label(gain[2])}: {count(gain[2]['blocks'])} blocks"
        yield Finding("most that a policy gains over LRU", f"{points(gain[0])} points", at)
    else:
        yield Finding("most that a policy gains over LRU", "nothing", "at these capacities")


def _hint(report: SizingReport) -> Iterator[Finding]:
    gain = _most(report, "hint")
    if gain is not None and round(gain[0], 4) > 0:
        at = f"{gain[1]} at {share_label(gain[2])}: {count(gain[2]['blocks'])} blocks"
        yield Finding("most that hints gain", f"{points(gain[0])} points", at)


def _finish(report: SizingReport) -> Iterator[Finding]:
    reasons = report["finish_reasons"]
    if reasons is None:
        return
    (told,) = (policy["hits"] for policy in report["policies"] if policy["name"] == reasons["policy"])
    gains = [
        (one["block_hit_rate"] - less["block_hit_rate"], capacity)
        for one, less, capacity in zip(told, reasons["without"], report["capacities"], strict=True)
    ]
    if gains:
        gain, capacity = max(gains, key=lambda gain: gain[0])
        at = f"{reasons['policy']} at {share_label(capacity)}; {count(reasons['requests'])} requests have one"
        yield Finding("most that the finish reason is worth", f"{points(gain)} points", at)
