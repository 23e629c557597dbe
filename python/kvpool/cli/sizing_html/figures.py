"""The content of a plot, before it is drawn.

This module owns :class:`Figure` and its parts: plain data, in the units of the axes. ``svg`` draws the
plots of the page from it, and ``png`` those of the picture. Neither reads the report, so both draw the
same figures.
This module also owns the choice of ticks.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

__all__ = ["Axis", "Figure", "Rule", "Series", "Table", "linear_axis", "log_axis"]

#: Maximum number of ticks of an axis.
_MOST_TICKS = 7


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a plot."""

    label: str
    low: float
    high: float
    log: bool
    #: The ticks: pairs of value and label.
    ticks: tuple[tuple[float, str], ...]

    def place(self, value: float) -> float:
        """Return the position of a value on the axis: 0 at the low end, 1 at the high end.

        A value outside of the axis is moved to the nearer end.
        """
        value = min(max(value, self.low), self.high)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """A series of points of a plot. ``None`` in ``y`` is a gap in the line."""

    name: str
    #: How the points are drawn: ``line`` joins them, ``marks`` draws a mark at each, and ``marked`` does
    #: both. ``steps`` draws a horizontal line and ``bars`` a bar for each point, which begins at ``left``.
    kind: Literal["line", "marks", "marked", "steps", "bars"]
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    #: For each point, its x value as text in ``places``, and a text about its y value in ``notes``.
    places: tuple[str, ...]
    notes: tuple[str, ...]
    #: The x values at which the steps or bars begin. Empty for other kinds.
    left: tuple[float, ...] = ()
    #: The colour: ``ink`` (for LRU), ``optimum``, ``ceiling``, or the number of a colour of the palette.
    colour: str = "ink"
    dashed: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A straight line through the plot."""

    label: str
    #: The value on the axis at which the line crosses it.
    at: float
    #: The axis that the line crosses: ``x`` for a vertical line, ``y`` for a horizontal line.
    axis: Literal["x", "y"]


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """The figures of a plot as a table."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A plot: its axes, its series, its texts, and its table."""

    #: The identifier of the plot within the page.
    key: str
    title: str
    #: A definition of the measured quantity, in one line.
    definition: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    table: Table
    rules: tuple[Rule, ...] = ()
    #: A second x axis at the top, in another unit. Its ticks are at values of ``x``.
    top: Axis | None = None


def linear_axis(label: str, high: float, *, tight: bool = False) -> Axis:
    """Return a linear axis from 0 to ``high``. Unless ``tight``, it ends at the next tick."""
    high = high if high > 0 else 1.0
    step = _round_up(high / 5)
    count = math.floor(high / step + 1e-9) if tight else math.ceil(high / step - 1e-9)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    ticks = tuple((step * index, f"{step * index:,.{digits}f}") for index in range(count + 1))
    return Axis(label, 0.0, high if tight else step * count, False, ticks)


def log_axis(label: str, low: float, high: float) -> Axis:
    """Return an axis from ``low`` to ``high``, both above 0, with ticks at round values."""
    if high <= low:
        low, high = low / 2, high * 2
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        values = [step * 10.0**exponent for exponent in exponents for step in steps]
        values = [value for value in values if low * 0.999 <= value <= high * 1.001]
        if len(values) <= _MOST_TICKS:
            break
    else:
        values = values[:: math.ceil(len(values) / _MOST_TICKS)]
    if len(values) < 2:
        # The range is less than a factor of about 2, so ticks are those of a linear axis.
        step = _round_up((high - low) / 4)
        values = [step * index for index in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return Axis(label, low, high, True, tuple((value, _short(value)) for value in values))


def _round_up(value: float) -> float:
    """Return the smallest number that is not below the value, and is 1, 2 or 5 times a power of ten."""
    base = 10.0 ** math.floor(math.log10(value))
    return next(base * step for step in (1, 2, 5, 10) if base * step >= value * (1 - 1e-9))


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
