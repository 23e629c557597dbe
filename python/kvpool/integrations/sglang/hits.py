"""Finds which prefixes can be restored from the present pages of a host pool. Pure functions; O(pages).

SGLang has a policy for each host pool. A hit needs every page of a prefix (``all_pages``), the last
pages of it (``trailing_pages``), or a group of pages for each whole block of it (``block_groups``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ends_of_blocks", "grouped", "leading", "trailing"]


def leading(present: Sequence[bool]) -> int:
    """Returns the number of pages that are present, from the first on."""
    return next((at for at, there in enumerate(present) if not there), len(present))


def trailing(present: Sequence[bool], window: int) -> list[int]:
    """Returns the lengths, from 1 up, at whose end the last ``window`` pages are present.

    For a length shorter than the window, all its pages have to be present. A window or a recurrent
    state is stored where a prefix ended. So there may be one at 4 and at 9 pages, and none between.
    Therefore the result is a list of lengths, and a length that is not in it cannot be served.
    """
    lengths, run = [], 0
    for length, there in enumerate(present, start=1):
        run = run + 1 if there else 0
        if run >= min(window, length):
            lengths.append(length)
    return lengths


def grouped(present: Sequence[bool], group_pages: int, block_pages: int) -> int:
    """Returns the number of pages that the leading whole groups cover.

    A group stands for a block of ``block_pages`` pages.
    """
    if group_pages < 1 or block_pages < 1:
        return 0
    return leading(present) // group_pages * block_pages


def ends_of_blocks(keys: Sequence[str], group_pages: int, block_pages: int) -> list[str]:
    """Returns the keys of the groups of a prefix.

    These are the last ``group_pages`` keys of each whole block of ``block_pages``.
    """
    if group_pages < 1 or block_pages < 1:
        return []
    ends = range(block_pages, len(keys) + 1, block_pages)
    return [key for end in ends for key in keys[max(0, end - group_pages) : end]]
