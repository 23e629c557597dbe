"""Figures and tables as a terminal shows them."""

from __future__ import annotations

__all__ = ["percent"]


def percent(share: float | None, digits: int = 2) -> str:
    """Write a share from 0 to 1 as per cent; a dash for ``None``.

    >>> percent(0.5), percent(1 / 3, 1), percent(None)
    ('50.00 %', '33.3 %', '-')
    """
    return "-" if share is None else f"{100 * share:.{digits}f} %"
