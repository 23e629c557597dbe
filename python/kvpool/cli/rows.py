"""Figures as CSV: ``--csv``.

Owns the form: a line of names, then lines of values, as RFC 4180 has it but with a line feed alone; a
figure that is not there is empty. A report becomes one line, its parts joined by points
(``hits.token_hits``); lists in it are left out.
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
    """Refuse two forms at once.

    Raises:
        UsageError: both are asked for.

    """
    if as_json and as_csv:
        raise UsageError("--json and --csv are two forms of the same: give one of them")


def flat(report: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Make one row of a report.

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
    """Print rows, whose names are those of the first and of what the others have beside."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in names])


def _cell(value: object) -> object:
    """Text from outside is shown, not obeyed: CSV goes to terminals, too.

    And a spreadsheet runs no formula of it.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    text = shown(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
