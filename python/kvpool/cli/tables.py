"""Writes figures and tables for a terminal.

This module owns the format of numbers, and two rules for tables. The title is printed as a line of its
own, and may be wider than its table. A table with more columns than fit the terminal is printed as
several tables.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Final

from rich.measure import Measurement
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.table import Column, Table

__all__ = ["figure", "percent", "show"]

#: Width, in characters, of a terminal that has room for any table.
_WIDEST: Final = 10_000


def percent(share: float | None, digits: int = 2) -> str:
    """Return a share from 0 to 1 as per cent. ``None`` gives a dash.

    >>> percent(0.5), percent(1 / 3, 1), percent(None)
    ('50.00 %', '33.3 %', '-')
    """
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def figure(value: float, digits: int = 4) -> str:
    """Return a number as text with ``digits`` digits, or more before the point, and without an exponent.

    >>> figure(11152.8), figure(6.4375), figure(0.00012345, 3), figure(60)
    ('11,153', '6.438', '0.000123', '60')
    """
    text = f"{value:,.{digits}g}"
    if "e" not in text:
        return text
    return f"{value:,.0f}" if abs(value) >= 1 else f"{value:.12f}".rstrip("0")


def show(console: Console, table: Table) -> None:
    """Print a table below its title. A table that is too wide is split by columns.

    Each part has the first column.
    """
    title, table.title = table.title, None
    if title is not None:
        console.print(title if isinstance(title, Text) else Text(str(title)), style="italic")
    for part in _parts(console, table):
        console.print(part)


def _parts(console: Console, table: Table) -> Iterator[Table]:
    if _width(console, table) <= console.width or not all(column.no_wrap for column in table.columns):
        yield table
        return
    first, *others = table.columns
    chosen: list[Column] = []
    for column in others:
        if chosen and _width(console, _of_columns(table, [first, *chosen, column])) > console.width:
            yield _of_columns(table, [first, *chosen])
            chosen = []
        chosen.append(column)
    yield _of_columns(table, [first, *chosen])


def _of_columns(table: Table, columns: list[Column]) -> Table:
    part = copy.copy(table)
    part.columns = [dataclasses.replace(column, _index=at) for at, column in enumerate(columns)]
    return part


def _width(console: Console, table: Table) -> int:
    """Return the width of a table in characters if no cell is wrapped."""
    return Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum
