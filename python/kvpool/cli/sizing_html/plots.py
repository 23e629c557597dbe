"""The plots of a sizing report, as :class:`~kvpool.cli.sizing_html.figures.Figure`.

This module owns the content of each plot, its axes and its definition. Axes of rates begin at 0 and end
at or above the ceiling. A plot without figures in the report is left out, and :func:`figures_of`
returns the reason.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

from kvpool.cli.sizing_html.figures import Axis, Figure, Rule, Series, Table, linear_axis, log_axis
from kvpool.cli.sizing_html.hybrid import by_memory, by_spacing
from kvpool.cli.sizing_html.tiers import by_tier, first_token
from kvpool.cli.sizing_html.words import (
    capacity_label,
    count,
    gib,
    name_of,
    percent,
    sample_note,
    seconds,
    share_label,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvpool.sizing.report import Capacity, CurvePoint, Hits, SizingReport

__all__ = ["figures_of", "prefix_rule"]

_RATE: Final = "block hits (%)"

#: The factor by which an axis of sizes extends beyond the smallest and the largest size.
_ROOM: Final = 1.12

#: The axis of bars is logarithmic if the highest bar is more than this many times the lowest.
_STEEP: Final = 20
#: The largest ratio of the ends of a logarithmic axis of bars. Lower values have bars without height, and
#: appear only in the table.
_MOST_DECADES: Final = 1e5

#: The units of an axis of time. Each has the shortest span in seconds for which it is used, its length in
#: seconds, and its name.
_TIMES: Final = (
    (3 * 86400.0, 86400.0, "days"),
    (3 * 3600.0, 3600.0, "hours"),
    (300.0, 60.0, "minutes"),
    (0.0, 1.0, "s"),
)


def figures_of(report: SizingReport) -> tuple[list[Figure], list[str]]:
    """Return the plots of a report in reading order, and a sentence for each plot that has no data."""
    figures, missing = [], []
    for build, absent in _PLOTS:
        figure = build(report)
        if figure is not None:
            figures.append(figure)
        elif absent:
            missing.append(absent)
    return figures, missing


def prefix_rule(report: SizingReport) -> str:
    """Return the definition of a block hit in this report."""
    of = (
        "all blocks, partial last ones included"
        if report["blocks"] == "all"
        else "the blocks that their prompt fills"
    )
    rule = f"Block hits: share of {of}, that were found cached with every block before them in their prompt."
    return f"{rule} {sample_note(report)}".rstrip()


def _capacity_axis(blocks: Iterable[int]) -> Axis:
    """Return the logarithmic axis of sizes in blocks, with some space at both ends."""
    sizes = [max(size, 1) for size in blocks]
    return log_axis("capacity (blocks, log scale)", min(sizes) / _ROOM, max(sizes) * _ROOM)


def _gib_axis(report: SizingReport, x: Axis) -> Axis | None:
    """Return the axis of sizes in GiB.

    ``None`` if the report has no model, so that it lacks the bytes of a block.
    """
    model = report["model"]
    if model is None:
        return None
    per_block = model["bytes_per_token"] * report["trace"]["block_size"] / 2**30
    sizes = log_axis("", x.low * per_block, x.high * per_block)
    ticks = tuple((value / per_block, label) for value, label in sizes.ticks)
    return Axis(f"GiB of {model['name']}", x.low, x.high, True, ticks)


def _rates(name: str, blocks: float, tokens: float) -> str:
    return f"{name}: {percent(blocks)} % of blocks, {percent(tokens)} % of tokens"


def _at_capacities(
    name: str, hits: list[Hits], capacities: list[Capacity], colour: str, *, dashed: bool = False
) -> Series:
    return Series(
        name=name,
        kind="marked",
        x=tuple(float(capacity["blocks"]) for capacity in capacities),
        y=tuple(100 * each["block_hit_rate"] for each in hits),
        places=tuple(capacity_label(capacity) for capacity in capacities),
        notes=tuple(_rates(name, each["block_hit_rate"], each["token_hit_rate"]) for each in hits),
        colour=colour,
        dashed=dashed,
    )


def _lru_curve(report: SizingReport) -> Series | None:
    curve = report["lru_curve"]
    if not curve:
        return None
    return Series(
        name="LRU, every capacity" + (" (estimated)" if report["sample"] else ""),
        kind="line",
        x=tuple(float(point["blocks"]) for point in curve),
        y=tuple(100 * point["block_hit_rate"] for point in curve),
        places=tuple(
            f"{count(point['blocks'])} blocks"
            + ("" if point["gib"] is None else f", {gib(point['gib'])} GiB")
            for point in curve
        ),
        notes=tuple(_rates("LRU", point["block_hit_rate"], point["token_hit_rate"]) for point in curve),
    )


def _ceiling(report: SizingReport) -> float:
    ideal = report["trace"]["ideal"]
    return 100 * (ideal["block"] if report["blocks"] == "all" else ideal["full_blocks"])


def _rate_axis(report: SizingReport, series: Iterable[Series]) -> Axis:
    highest = max((y for each in series for y in each.y if y is not None), default=0.0)
    return linear_axis(_RATE, max(highest, _ceiling(report), 1.0))


def _by_capacity(report: SizingReport) -> Figure | None:
    capacities, curve = report["capacities"], _lru_curve(report)
    series = [] if curve is None else [curve]
    # The LRU curve is exact for policies that see single block references (stream form). A pool (pool form)
    # has other hit rates with LRU, which are drawn as separate marks.
    others = [policy for policy in report["policies"] if policy["name"].lower() != "lru"]
    series += [
        dataclasses.replace(_at_capacities("LRU", policy["hits"], capacities, "ink"), kind="marks")
        for policy in report["policies"]
        if policy["name"].lower() == "lru"
    ]
    series += [
        _at_capacities(name_of(policy["name"]), policy["hits"], capacities, str(index))
        for index, policy in enumerate(others)
    ]
    if report["optimum"] is not None:
        series.append(
            _at_capacities("optimum", report["optimum"]["hits"], capacities, "optimum", dashed=True)
        )
    series = [each for each in series if each.x]
    if not series:
        return None
    x = _capacity_axis(
        [*(each["blocks"] for each in capacities), *(each["blocks"] for each in report["lru_curve"])]
    )
    ceiling = _ceiling(report)
    rules = [Rule(f"ceiling {ceiling:.2f} %", ceiling, "y")]
    knee = report["knee"]
    if knee is not None:
        size = "" if knee["gib"] is None else f", {gib(knee['gib'])} GiB"
        rules.append(Rule(f"knee {count(knee['blocks'])} blocks{size}", float(knee["blocks"]), "x"))
    thinned = _thinned(report)
    columns = [("LRU, blocks", [count(point["blocks"]) for point in thinned])]
    if report["model"] is not None:
        columns.append(("GiB", [gib(point["gib"]) for point in thinned]))
    columns.append(("block hits %", [percent(point["block_hit_rate"]) for point in thinned]))
    columns.append(("token hits %", [percent(point["token_hit_rate"]) for point in thinned]))
    return Figure(
        key="capacity",
        title="Hit rate by capacity",
        definition=f"{prefix_rule(report)} Ceiling: a cache without end. Knee: the point of the LRU curve "
        "farthest above the straight line from nothing to its end.",
        x=x,
        y=_rate_axis(report, series),
        series=tuple(series),
        table=Table(
            tuple(name for name, _ in columns), tuple(zip(*(cells for _, cells in columns), strict=True))
        ),
        rules=tuple(rules),
        top=_gib_axis(report, x),
    )


def _thinned(report: SizingReport) -> list[CurvePoint]:
    """Return about forty points of the LRU curve, evenly chosen by index. The last point is included."""
    curve = report["lru_curve"]
    step = max(1, len(curve) // 40)
    return [point for index, point in enumerate(curve) if (len(curve) - 1 - index) % step == 0]


def _hints(report: SizingReport) -> Figure | None:
    capacities = report["capacities"]
    if not report["hints"] or not capacities:
        return None
    series = [
        _at_capacities(f"hints for {100 * hint['accuracy']:g} %", hint["hits"], capacities, str(index))
        for index, hint in enumerate(report["hints"])
    ]
    lru = next((policy for policy in report["policies"] if policy["name"].lower() == "lru"), None)
    if lru is not None:
        series.insert(0, _at_capacities("LRU, no hints", lru["hits"], capacities, "ink"))
    if report["optimum"] is not None:
        series.append(
            _at_capacities("optimum", report["optimum"]["hits"], capacities, "optimum", dashed=True)
        )
    x = _capacity_axis(capacity["blocks"] for capacity in capacities)
    header = ("", *(share_label(capacity) for capacity in capacities))
    rows = tuple((each.name, *("" if y is None else f"{y:.2f}" for y in each.y)) for each in series)
    return Figure(
        key="hints",
        title="What hints are worth",
        definition="Block hits of LRU with hints: when a request ends, LRU learns with the given "
        "probability of each of its blocks that no later request uses. No hint is wrong.",
        x=x,
        y=_rate_axis(report, series),
        series=tuple(series),
        table=Table(header, rows),
        rules=(Rule(f"ceiling {_ceiling(report):.2f} %", _ceiling(report), "y"),),
        top=_gib_axis(report, x),
    )


def _reuse(report: SizingReport) -> Figure | None:
    ranges = report["reuse_distances"]
    if not ranges:
        return None
    # A range of whole numbers is drawn from the end of the range before it, to avoid gaps.
    left = tuple(max(each["from_blocks"] - 1, 0.5) for each in ranges)
    right = tuple(max(float(each["to_blocks"]), low * 1.01) for each, low in zip(ranges, left, strict=True))
    references = report["trace"]["references"]
    reused = sum(each["references"] for each in ranges)
    label = [
        count(low) if low == high else f"{count(low)} to {count(high)}"
        for low, high in ((each["from_blocks"], each["to_blocks"]) for each in ranges)
    ]
    share = [100 * each["references"] / max(references, 1) for each in ranges]
    series = Series(
        name="references",
        kind="bars",
        left=left,
        x=right,
        y=tuple(share),
        places=tuple(f"{text} blocks apart" for text in label),
        notes=tuple(
            f"{count(each['references'])} references, {value:.2f} %"
            for each, value in zip(ranges, share, strict=True)
        ),
        colour="0",
    )
    times = "; ".join(
        f"{100 * each['share']:g} % within {seconds(each['seconds'])}" for each in report["reuse_times_s"]
    )
    rows = tuple(
        (text, count(each["references"]), f"{value:.2f}")
        for text, each, value in zip(label, ranges, share, strict=True)
    )
    return Figure(
        key="reuse",
        title="Reuse distances",
        definition="Different blocks used between two uses of the same block, itself included: an LRU "
        f"cache hits if it is as large. {100 * reused / max(references, 1):.2f} % of the references are "
        "reuses" + (f"; time between uses: {times}." if times else "."),
        x=log_axis("reuse distance (blocks, log scale)", left[0], right[-1]),
        y=linear_axis("references (%)", max(share)),
        series=(series,),
        table=Table(("distance, blocks", "references", "% of all references"), rows),
    )


def _over_time(report: SizingReport) -> Figure | None:
    course = report["over_time"]
    if course is None or not course["windows"]:
        return None
    windows = course["windows"]
    end = max(window["end_s"] for window in windows)
    start = min(window["start_s"] for window in windows)
    unit, unit_name = next((size, name) for least, size, name in _TIMES if end - start >= least)
    policy = name_of(course["policy"])
    spans = [f"{seconds(each['start_s'] - start)} to {seconds(each['end_s'] - start)}" for each in windows]

    def steps(name: str, rates: list[float | None], colour: str) -> Series:
        return Series(
            name=name,
            kind="steps",
            left=tuple((window["start_s"] - start) / unit for window in windows),
            x=tuple((window["end_s"] - start) / unit for window in windows),
            y=tuple(None if rate is None else 100 * rate for rate in rates),
            places=tuple(spans),
            notes=tuple(f"{name}: {percent(rate)} % of blocks" for rate in rates),
            colour=colour,
        )

    ideal = steps("cache without end", [window["ideal_hit_rate"] for window in windows], "ceiling")
    own = steps(policy, [window["block_hit_rate"] for window in windows], "ink")
    highest = max((y for each in (ideal, own) for y in each.y if y is not None), default=1.0)
    rows = tuple(
        (span, percent(window["block_hit_rate"]), percent(window["ideal_hit_rate"]))
        for span, window in zip(spans, windows, strict=True)
    )
    return Figure(
        key="time",
        title="Hit rate over time",
        definition="Block hits of the requests that arrive in each window, of a cache without end and of "
        f"{policy}, cold at the start, with {capacity_label(course['capacity'])}.",
        x=linear_axis(f"since the first arrival ({unit_name})", (end - start) / unit, tight=True),
        y=linear_axis(_RATE, max(highest, 1.0)),
        series=(ideal, own),
        table=Table(("window", f"{policy} %", "without end %"), rows),
    )


def _worth(report: SizingReport) -> Figure | None:
    steps, model = report["worth"], report["model"]
    if not steps or model is None:
        return None
    per_gib = [step["hit_tokens"] / max(step["to_gib"] - step["from_gib"], 1e-9) for step in steps]
    scale, y = _worth_axis(per_gib)
    lowest = next((step["from_gib"] for step in steps if step["from_gib"] > 0), steps[0]["to_gib"] / 2)
    wide = steps[-1]["to_gib"] > 20 * lowest and math.isfinite(lowest)
    left = tuple(step["from_gib"] if step["from_gib"] > 0 or not wide else lowest / 2 for step in steps)
    series = Series(
        name="saved by each GiB",
        kind="bars",
        left=left,
        x=tuple(step["to_gib"] for step in steps),
        y=tuple(value / scale for value in per_gib),
        places=tuple(f"{gib(step['from_gib'])} to {gib(step['to_gib'])} GiB" for step in steps),
        notes=tuple(
            f"{value:,.0f} tokens per GiB"
            + _seconds_per_gib(step["prefill_seconds"], step["to_gib"] - step["from_gib"])
            for step, value in zip(steps, per_gib, strict=True)
        ),
        colour="0",
    )
    speed = model["prefill_tokens_per_s"]
    columns = [
        ("GiB", [f"{gib(step['from_gib'])} to {gib(step['to_gib'])}" for step in steps]),
        ("tokens saved", [count(step["hit_tokens"]) for step in steps]),
        ("tokens per GiB", [f"{value:,.0f}" for value in per_gib]),
    ]
    if speed is not None:
        columns.append(("prefill saved", [seconds(step["prefill_seconds"]) for step in steps]))
    # A logarithmic axis cannot show 0, so the definition mentions that the first bar begins there.
    beginning = " The first bar begins at 0." if left[0] > steps[0]["from_gib"] else ""
    return Figure(
        key="worth",
        title="What each GiB buys",
        definition="Prompt tokens, over the whole trace, that each GiB more of LRU cache spares from "
        "prefill, between one size and the next"
        + (f"; seconds at {speed:,.0f} tokens of prefill a second." if speed is not None else ".")
        + (" All layers are counted in full here." if report["groups"] else "")
        + beginning,
        x=log_axis(f"GiB of {model['name']} (log scale)", left[0], steps[-1]["to_gib"])
        if wide
        else linear_axis(f"GiB of {model['name']}", steps[-1]["to_gib"], tight=True),
        y=y,
        series=(series,),
        table=Table(
            tuple(name for name, _ in columns), tuple(zip(*(cells for _, cells in columns), strict=True))
        ),
    )


def _worth_axis(per_gib: list[float]) -> tuple[float, Axis]:
    """Return the number of tokens in one unit of the axis of tokens per GiB, and the axis.

    The first GiB hold the common beginnings of prompts, and may save thousands of times more tokens than the
    last GiB. On a linear axis, only their bars would be visible.
    """
    highest = max(per_gib)
    lowest = min((value for value in per_gib if value > 0), default=highest)
    if highest > _STEEP * lowest:
        return 1.0, log_axis(
            "tokens per GiB (log scale)", max(lowest / 2, highest / _MOST_DECADES), highest * _ROOM
        )
    scale, unit = (1e6, "million tokens") if highest >= 2e6 else (1e3, "thousand tokens")
    return scale, linear_axis(f"{unit} per GiB", max(highest / scale, 0.001))


def _seconds_per_gib(prefill: float | None, size: float) -> str:
    return "" if prefill is None else f", {seconds(prefill / max(size, 1e-9))} of prefill per GiB"


_PLOTS: Final = (
    (_by_capacity, "No hit rate by capacity: no capacity and no LRU curve was computed."),
    # The two plots of KV-cache groups exist only for hybrid models.
    (by_memory, ""),
    (by_spacing, ""),
    # The two plots of tiers exist only if the user gave tiers.
    (by_tier, ""),
    (first_token, ""),
    (_hints, "No value of hints: it was not computed."),
    (_reuse, "No reuse distances: no block of this trace is used twice."),
    (_over_time, "No hit rate over time: it was not computed."),
    (_worth, "Nothing in GiB: no model was given, so the size of a block is not known."),
)
