"""Formats the report's numbers: counts with commas, rates as per cent with two digits, sizes in GiB."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvpool.sizing.report import Capacity, SizingReport

__all__ = [
    "capacity_label",
    "count",
    "gib",
    "name_of",
    "percent",
    "points",
    "sample_note",
    "seconds",
    "share_label",
]

#: Names of policies that are written differently than on the command line.
_NAMES = {"lru": "LRU", "s3-fifo": "S3-FIFO", "arc": "ARC"}


def name_of(policy: str) -> str:
    """Return the name of a policy, as its paper writes it."""
    return _NAMES.get(policy.lower(), policy)


def count(value: int) -> str:
    """Write 1234567 as 1,234,567."""
    return f"{value:,}"


def percent(rate: float | None) -> str:
    """Write a share from 0 to 1 as per cent, or a dash for ``None``."""
    return "–" if rate is None else f"{100 * rate:.2f}"  # noqa: RUF001 - a dash, not a minus sign


def points(difference: float) -> str:
    """Write a difference of two shares as percentage points, with its sign."""
    text = f"{100 * difference:+.2f}"
    return "0.00" if text in {"+0.00", "-0.00"} else text.replace("-", "−")  # noqa: RUF001 - a minus sign


def gib(value: float | None) -> str:
    """Write a size with three significant digits, or a dash for ``None``."""
    if value is None:
        return "–"  # noqa: RUF001 - a dash
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def seconds(value: float | None) -> str:
    """Write a duration in a suitable unit."""
    if value is None:
        return "–"  # noqa: RUF001 - a dash
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if value >= 2 * size:
            return f"{value / size:,.1f} {unit}"
    return f"{value:,.1f} s" if value >= 1 or value == 0 else f"{1000 * value:,.1f} ms"


def share_label(capacity: Capacity) -> str:
    """Return a short name of a capacity: 5 %, or its blocks if it was not given as a share."""
    if capacity["relative_size"] is None:
        return count(capacity["blocks"])
    return f"{100 * capacity['relative_size']:g} %"


def capacity_label(capacity: Capacity) -> str:
    """Return the full name of a capacity: 5 %: 9,139 blocks, 143 GiB."""
    label = f"{count(capacity['blocks'])} blocks"
    if capacity["relative_size"] is not None:
        label = f"{100 * capacity['relative_size']:g} % of the unique blocks: {label}"
    if capacity["gib"] is not None:
        label += f", {gib(capacity['gib'])} GiB"
    return label


def sample_note(report: SizingReport) -> str:
    """Return a note that the hit rates are from a sample, or an empty text if they are not."""
    sample = report["sample"]
    if sample is None:
        return ""
    return (
        f"Estimated from a sample: {percent(sample['rate'])} % of the blocks, "
        f"{count(sample['most_blocks'])} at most. There are no policies in it."
    )
