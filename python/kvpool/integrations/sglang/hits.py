"""Computes which prefixes can be restored from the pages that a host pool has. Pure functions; O(pages).

SGLang has a hit policy for each host pool. A hit needs every page of a prefix (``all_pages``), the last
pages of the prefix (``trailing_pages``), or one group of pages for each whole block of the prefix
(``block_groups``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ends_of_blocks", "grouped", "leading", "trailing"]


def leading(present: Sequence[bool]) -> int:
    """Returns the number of consecutive pages that are present, from the first page on."""
    return next((at for at, there in enumerate(present) if not there), len(present))


def trailing(present: Sequence[bool], window: int) -> list[int]:
    """Returns the prefix lengths, ascending from 1, for which the last ``window`` pages are present.

    For a length shorter than the window, all of its pages have to be present. A window or a recurrent
    state is stored only where a prefix ended. For example, a prefix of 4 pages and one of 9 pages may
    be restorable, and none between. Therefore the result is a list of lengths. A length that is not in
    the list cannot be restored.
    """
    lengths, run = [], 0
    for length, there in enumerate(present, start=1):
        run = run + 1 if there else 0
        if run >= min(window, length):
            lengths.append(length)
    return lengths


def grouped(present: Sequence[bool], group_pages: int, block_pages: int) -> int:
    """Returns the number of pages that the complete groups at the beginning cover.

    Each group of ``group_pages`` stored pages represents one block of ``block_pages`` pages of the
    prefix.
    """
    if group_pages < 1 or block_pages < 1:
        return 0
    return leading(present) // group_pages * block_pages


def ends_of_blocks(keys: Sequence[str], group_pages: int, block_pages: int) -> list[str]:
    """Returns the keys of all groups of a prefix.

    A group consists of the last ``group_pages`` keys of a whole block of ``block_pages`` pages.
    """
    if group_pages < 1 or block_pages < 1:
        return []
    ends = range(block_pages, len(keys) + 1, block_pages)
    return [key for end in ends for key in keys[max(0, end - group_pages) : end]]
