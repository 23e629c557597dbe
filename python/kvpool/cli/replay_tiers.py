"""Tiers beneath the device in ``kvpool replay``: the hits of each, and the time that they save.

This module owns the replays that are compared: one with the device alone, and one more for each further
tier.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from kvpool.cli.problems import UsageError
from kvpool.cli.tables import figure, percent, show

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from kvpool.cli.capacity import Capacity
    from kvpool.sizing.tiers import Tier
    from kvpool.traces import Replay

__all__ = ["beneath", "print_replay_tiers", "stacks", "with_tiers"]

_NOTE: Final = (
    "First token: mean of all requests, waiting included, with the tiers so far; each is a run of its own. "
    "Once computed, a prompt's full blocks are in every tier. Each tier evicts by LRU. A block that is not "
    "on the device comes from the first tier that has it, through the tiers above; a link moves one load at "
    "a time."
)


def beneath(tiers: Sequence[Tier], capacity: Capacity, mode: str) -> list[tuple[int, float]]:
    """Return the number of blocks of each tier, and the milliseconds to load one block to the tier above.

    Raises:
        UsageError: A tier is too small for a block, or this replay does not support tiers.

    """
    if not tiers:
        return []
    if mode != "engine":
        raise UsageError("lookup mode has no time in it, and no tiers", "--mode engine has")
    if capacity.shape is None or capacity.groups is not None:
        raise UsageError(
            "tiers need a model whose layers all keep every token",
            "kvpool size --capacities with the sizes of the tiers says what they hit with each",
        )
    block_bytes = capacity.shape.bytes_per_block(capacity.block_size)
    found = [
        (int(tier.gib * 2**30) // block_bytes, 1000 * block_bytes / tier.read_bytes_per_s) for tier in tiers
    ]
    for tier, (blocks, _) in zip(tiers, found, strict=True):
        if blocks == 0:
            raise UsageError(
                f"{tier.name} of {tier.gib:g} GiB holds no block: one takes {block_bytes / 2**20:,.1f} MiB"
            )
    return found


def stacks(
    tiers: Sequence[Tier],
    below: list[tuple[int, float]],
    start: Callable[[list[tuple[int, float]]], Replay],
    run: Callable[[Replay, str], None],
) -> list[dict[str, Any]]:
    """Replay the trace with the device alone, then with one more tier each time, except with all."""
    measured = []
    for at in range(len(tiers)):
        replay = start(below[:at])
        run(replay, "device alone" if at == 0 else f"with {tiers[at - 1].name}")
        measured.append(_stack("device" if at == 0 else tiers[at - 1].name, json.loads(replay.report_json())))
    return measured


def _stack(name: str, report: dict[str, Any]) -> dict[str, Any]:
    hits = report["hits"]
    served = hits["token_hits"] + sum(tier["token_hits"] for tier in report.get("tiers", []))
    return {
        "down_to": name,
        "token_hit_rate": served / max(hits["tokens"], 1),
        "mean_time_to_first_token_ms": report["engine"]["mean_time_to_first_token_ms"],
        "overloaded": report["engine"]["overloaded"],
    }


def with_tiers(report: dict[str, Any], tiers: Sequence[Tier], before: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the report of the run with all tiers, completed.

    The function adds the names and speeds of the tiers, and the results of the runs with fewer tiers.
    """
    named = [
        {"name": tier.name, "gib": tier.gib, "read_bytes_per_s": tier.read_bytes_per_s, **served}
        for tier, served in zip(tiers, report.get("tiers", []), strict=True)
    ]
    return {**report, "tiers": named, "stacks": [*before, _stack(tiers[-1].name, report)]}


def print_replay_tiers(report: dict[str, Any], console: Console) -> None:
    """Print the hits of each tier, for 80 columns and more. Prints nothing without tiers."""
    if not report.get("stacks"):
        return
    table = Table(box=box.SIMPLE, title="Tiers beneath the device", padding=(0, 1, 0, 0))
    for head in ("tier", "GiB", "GB/s", "token\nhits", "tokens", "link\nbusy", "first\ntoken"):
        table.add_column(head, justify="left" if head == "tier" else "right", no_wrap=True)
    seconds = max(report["engine"]["virtual_seconds"], 1e-9)
    device = ("device", "", "", percent(report["token_hit_rate"]), f"{report['hits']['token_hits']:,}", "")
    rows = [device] + [
        (
            f"+ {tier['name']}",
            figure(tier["gib"]),
            figure(tier["read_bytes_per_s"] / 1e9),
            percent(tier["token_hit_rate"]),
            f"{tier['token_hits']:,}",
            percent(tier["busy_seconds"] / seconds, 1),
        )
        for tier in report["tiers"]
    ]
    for row, stack in zip(rows, report["stacks"], strict=True):
        grows = " *" if stack["overloaded"] else ""
        table.add_row(
            *(Text(cell) for cell in (*row, f"{stack['mean_time_to_first_token_ms'] / 1000:,.3f} s{grows}"))
        )
    show(console, table)
    if any(stack["overloaded"] for stack in report["stacks"]):
        console.print(Text("*: of a queue that grows with the trace"))
    console.print(_NOTE, style="dim")
    console.print()
