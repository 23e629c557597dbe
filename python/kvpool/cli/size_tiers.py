"""Tiers beneath the device in ``kvpool size``: the options, and the report as tables and words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from kvpool.cli.problems import SHAPE_HINT, UsageError
from kvpool.cli.tables import figure, show
from kvpool.errors import InvalidArgumentError
from kvpool.sizing.tiers import MOST_GIB, Tier, parse_speed

if TYPE_CHECKING:
    from rich.console import Console

    from kvpool.models import KvShape
    from kvpool.sizing.report import SizingReport, Tiers

__all__ = [
    "DiskRead",
    "DiskTib",
    "HostGib",
    "HostRead",
    "below_words",
    "print_tiers",
    "stack_names",
    "tiers_asked",
]

#: The default speed of loads from host memory, which 16 lanes of PCIe 4.0 reach in practice.
_HOST_READ: Final = "25GB/s"

_PANEL: Final = "Tiers beneath the device, which has the sizes of --capacities"
HostGib = Annotated[
    float | None,
    typer.Option(
        help="GiB of KV in host memory. Needs a KV shape.",
        metavar="GIB",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
HostRead = Annotated[
    str | None,
    typer.Option(
        help="Speed of loads from host memory to the device, all ranks together.",
        metavar="SPEED",
        rich_help_panel=_PANEL,
        show_default=f"{_HOST_READ}, about 16 lanes of PCIe 4.0",
    ),
]
DiskTib = Annotated[
    float | None,
    typer.Option(
        help="TiB of KV on a disk beneath that. Needs a KV shape.",
        metavar="TIB",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
DiskRead = Annotated[
    str | None,
    typer.Option(
        help="Speed of loads from the disk, 6GB/s for instance; kvpool store bench measures it.",
        metavar="SPEED",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]

_NOTE: Final = (
    "LRU in all tiers. Each tier has all blocks of the tiers above it, and the first tier that has a block "
    "serves it. Load: mean of all requests; a block passes through the tiers above, one after the other."
)
_TIMES: Final = (
    "First token: mean time of loading and then prefill of the rest, at one speed and without a queue, "
    "with the device and the tiers up to this one."
)


def tiers_asked(
    host_gib: float | None,
    host_read: str | None,
    disk_tib: float | None,
    disk_read: str | None,
    shape: KvShape | None,
) -> list[Tier]:
    """Return the tiers beneath the device that the options specify, the fastest first.

    Raises:
        UsageError: A size or speed is invalid, one is given without the other, or there is no KV shape.

    """
    tiers = []
    for name, unit, amount, gib, read, default in (
        ("host", "gib", host_gib, 1, host_read, _HOST_READ),
        ("disk", "tib", disk_tib, 1024, disk_read, None),
    ):
        size, speed = f"--{name}-{unit}", f"--{name}-read"
        if amount is None:
            if read is not None:
                raise UsageError(f"{speed} is the speed of a tier that has no size", f"add {size} N")
            continue
        if not 0 < amount * gib <= MOST_GIB:
            raise UsageError(f"{size} is {amount:g}: must be above 0, and at most {MOST_GIB / gib:,.0f}")
        text = default if read is None else read
        if text is None:
            raise UsageError(
                f"{size} needs the speed of loads from the disk",
                f"add {speed} 6GB/s, or what kvpool store bench FOLDER measures",
            )
        if shape is None:
            raise UsageError(f"{size} needs the KV shape of a model", f"add {SHAPE_HINT}")
        try:
            tiers.append(Tier(name, amount * gib, parse_speed(text)))
        except InvalidArgumentError as error:
            raise UsageError(str(error).replace("speed", speed, 1)) from None
    return tiers


def stack_names(tiers: Tiers) -> list[str]:
    """Return the names of the rows: the device alone, and each tier that is added to it."""
    return ["device", *(f"+ {tier['name']}" for tier in tiers["below"])]


def below_words(report: SizingReport) -> list[str]:
    """Return sentences about tiers that are slower than prefill, or so small that they serve nothing."""
    tiers, model = report["tiers"], report["model"]
    if tiers is None or model is None:
        return []
    words = []
    speed = model["prefill_tokens_per_s"]
    for at, tier in enumerate(tiers["below"], start=1):
        even = tier["break_even_tokens_per_s"]
        name = tier["name"].capitalize()
        if speed is not None and speed > even:
            words.append(
                f"{name}: loading is slower than computing, with prefill of {speed:,.0f} tokens/s: "
                f"{even:,.0f} would be as fast."
            )
        hidden = [
            capacity["gib"] or 0.0
            for capacity in report["capacities"]
            if tier["blocks"]
            <= max(capacity["blocks"], *(above["blocks"] for above in tiers["below"][: at - 1]), 0)
        ]
        if len(hidden) == len(tiers["sizes"]):
            words.append(f"{name}: serves nothing, for what is above it holds as much.")
        elif hidden:
            words.append(
                f"{name}: serves nothing beneath a device of {_size(min(hidden))} GiB, which holds as much."
            )
    return words


def print_tiers(report: SizingReport, console: Console) -> None:
    """Print a table of the size and the hits of each tier. Print nothing if the report has no tiers."""
    tiers, model = report["tiers"], report["model"]
    if tiers is None or model is None:
        return
    names = [tier["name"] for tier in tiers["below"]]
    table = Table(box=box.SIMPLE, title=Text(f"Tiers beneath the device, {model['name']}"))
    for head in ("tier", "GiB", "GB/s", "us a token", "prefill is faster from"):
        table.add_column(head, justify="left" if head == "tier" else "right", no_wrap=True)
    for tier in tiers["below"]:
        table.add_row(
            tier["name"],
            _size(tier["gib"]),
            figure(tier["read_bytes_per_s"] / 1e9),
            figure(1e6 * tier["load_s_per_token"], 3),
            f"{tier['break_even_tokens_per_s']:,.0f} tokens/s",
        )
    show(console, table)
    timed = model["prefill_tokens_per_s"] is not None
    estimated = "Estimated token" if report["sample"] else "Token"
    title = f"{estimated} hit rate by tier, %, and {'time to the first token' if timed else 'loading'}, s"
    table = Table(box=box.SIMPLE, title=Text(title), padding=(0, 1, 0, 0))
    heads = ["device\nGiB", "by the\ndevice", *(f"by\n{name}" for name in names), "by\nprefill", "load\ns"]
    heads += [f"first s\n{name}" for name in stack_names(tiers)] if timed else []
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for capacity, served in zip(report["capacities"], tiers["sizes"], strict=True):
        rates = [one["token_hit_rate"] for one in served]
        times = [sum(one["load_s"] for one in served)]
        times += [one["first_token_s"] for one in served if one["first_token_s"] is not None]
        table.add_row(
            _size(capacity["gib"] or 0.0),
            *(f"{100 * rate:.2f}" for rate in (*rates, 1 - sum(rates))),
            *(f"{seconds:.3f}" for seconds in times),
        )
    show(console, table)
    for words in below_words(report):
        console.print(Text(words))
    console.print(f"{_NOTE} {_TIMES}" if timed else _NOTE, style="dim")
    if not timed:
        console.print("Time to the first token: add --prefill-tokens-per-s N.", style="dim")
    console.print()


def _size(gib: float) -> str:
    return f"{gib:,.0f}" if gib >= 100 else figure(gib, 3)
