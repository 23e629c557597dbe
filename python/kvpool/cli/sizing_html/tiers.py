"""Two figures of tiers beneath the device: the hits of each tier, and the time to the first token.

This module owns both figures, by the size of the device. The second needs a prefill speed.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from kvpool.cli.size_tiers import below_words, stack_names
from kvpool.cli.sizing_html.figures import Axis, Figure, Rule, Series, Table, linear_axis, log_axis
from kvpool.cli.sizing_html.words import count, gib, percent, sample_note, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvpool.sizing.report import SizingReport, Tiers

__all__ = ["by_tier", "first_token"]

_ROOM = 1.12


def by_tier(report: SizingReport) -> Figure | None:
    """Return the figure of token hits of the device, and with each further tier."""
    tiers = report["tiers"]
    if tiers is None:
        return None
    rates = [[one["token_hit_rate"] for one in served] for served in tiers["sizes"]]
    sums = [list(itertools.accumulate(each)) for each in rates]
    names = stack_names(tiers)
    series = [
        _line(
            report,
            at,
            names[at],
            [100 * each[at] for each in sums],
            [
                f"{names[at]}: {percent(all_[at])} % of tokens, {percent(own[at])} of its own"
                for all_, own in zip(sums, rates, strict=True)
            ],
        )
        for at in range(len(names))
    ]
    ceiling = 100 * report["trace"]["ideal"]["token"]
    loads = [sum(one["load_s"] for one in served) for served in tiers["sizes"]]
    rows = [
        (place, *(percent(rate) for rate in (*own, 1 - sum(own))), seconds(load))
        for place, own, load in zip(_sizes(report), rates, loads, strict=True)
    ]
    header = ("device, GiB", *(f"by {one['tier']} %" for one in tiers["sizes"][0]), "computed %", "loading")
    definition = [
        "Share of prompt tokens that the device and the tiers beneath it serve, LRU in all of them.",
        *_each_tier(tiers),
        "Each tier has all blocks of the tiers above it, and the first tier that has a block serves it.",
        *below_words(report),
        sample_note(report),
    ]
    return Figure(
        key="tiers",
        title="Hit rate by tier",
        definition=" ".join(definition).rstrip(),
        x=_device_axis(report),
        y=linear_axis("token hits (%)", max(ceiling, 100 * max(each[-1] for each in sums), 1.0)),
        series=tuple(series),
        table=Table(header, tuple(rows)),
        rules=(Rule(f"ceiling {ceiling:.2f} %", ceiling, "y"),),
    )


def first_token(report: SizingReport) -> Figure | None:
    """Return the figure of the mean time to the first token, for the device and each further tier."""
    tiers, model = report["tiers"], report["model"]
    if tiers is None or model is None or model["prefill_tokens_per_s"] is None:
        return None
    names = stack_names(tiers)
    times = [[one["first_token_s"] or 0.0 for one in served] for served in tiers["sizes"]]
    trace = report["trace"]
    nothing = trace["tokens_in"] / max(trace["requests"], 1) / model["prefill_tokens_per_s"]
    series = [
        _line(
            report,
            at,
            names[at],
            [each[at] for each in times],
            [f"{names[at]}: {seconds(each[at])}" for each in times],
        )
        for at in range(len(names))
    ]
    rows = [
        (place, *(seconds(one) for one in each)) for place, each in zip(_sizes(report), times, strict=True)
    ]
    return Figure(
        key="first-token",
        title="Time to the first token by tier",
        definition="Mean of all requests: loading from one tier after the other, then prefill of the rest at "
        f"{model['prefill_tokens_per_s']:,.0f} tokens a second. No queue, nothing at the same time.",
        x=_device_axis(report),
        y=linear_axis("time to the first token (s)", max(nothing, *itertools.chain(*times))),
        series=tuple(series),
        table=Table(("device, GiB", *names), tuple(rows)),
        rules=(Rule(f"without a cache {seconds(nothing)}", nothing, "y"),),
    )


def _each_tier(tiers: Tiers) -> list[str]:
    """Return one sentence per tier: its size, its speed, and the time to load a token."""
    return [
        f"{tier['name'].capitalize()}: {gib(tier['gib'])} GiB at {tier['read_bytes_per_s'] / 1e9:,.4g} GB/s, "
        f"{1e6 * tier['load_s_per_token']:,.3g} us a token to the device; prefill is faster from "
        f"{tier['break_even_tokens_per_s']:,.0f} tokens/s."
        for tier in tiers["below"]
    ]


def _sizes(report: SizingReport) -> list[str]:
    return [gib(capacity["gib"]) for capacity in report["capacities"]]


def _device_axis(report: SizingReport) -> Axis:
    sizes = [capacity["gib"] or 0.0 for capacity in report["capacities"]]
    return log_axis("device (GiB, log scale)", min(sizes) / _ROOM, max(sizes) * _ROOM)


def _line(report: SizingReport, at: int, name: str, y: Sequence[float], notes: Sequence[str]) -> Series:
    return Series(
        name=name,
        kind="marked",
        x=tuple(capacity["gib"] or 0.0 for capacity in report["capacities"]),
        y=tuple(y),
        places=tuple(
            f"device of {gib(capacity['gib'])} GiB, {count(capacity['blocks'])} blocks"
            for capacity in report["capacities"]
        ),
        notes=tuple(notes),
        colour="ink" if at == 0 else str(at - 1),
    )
