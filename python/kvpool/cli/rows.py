"""Writes figures as CSV: ``--csv``.

This module owns the form: a line of names, then lines of values, as in RFC 4180, except that lines end
with a line feed only. A missing figure is an empty cell. A report becomes one line. The names of nested
figures are joined by points (``hits.token_hits``), and lists are left out.
"""

from __future__ import annotations

import csv
import sys
from typing import TYPE_CHECKING, Any

from kvpool.cli.problems import UsageError
from kvpool.cli.terminal import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["flat", "one_form", "print_csv"]


def one_form(*, as_json: bool, as_csv: bool) -> None:
    """Raise if both ``--json`` and ``--csv`` are given.

    Raises:
        UsageError: Both are given.

    """
    if as_json and as_csv:
        raise UsageError("--json and --csv are two forms of the same: give one of them")


def flat(report: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a report as one row. Names of nested figures are joined by points, and lists are left out.

    >>> flat({"mode": "engine", "hits": {"tokens": 7, "groups": [1, 2]}, "misses": None})
    {'mode': 'engine', 'hits.tokens': 7, 'misses': None}
    """
    row: dict[str, Any] = {}
    for name, value in report.items():
        if isinstance(value, dict):
            row |= flat(value, f"{prefix}{name}.")
        elif not isinstance(value, list):
            row[prefix + name] = value
    return row


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as CSV. Columns of the first row come first, then columns that only other rows have."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in names])


def _cell(value: object) -> object:
    """Escape text from files and reports, because CSV is also printed to terminals.

    A spreadsheet does not run the escaped text as a formula.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    text = shown(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
