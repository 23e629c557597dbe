"""Which prefixes can be restored, if these pages of a host pool are there. Pure; O(pages).

SGLang has a policy for each host pool: every page of a prefix (``all_pages``), the last ones of it
(``trailing_pages``), or a group of pages for each whole block of it (``block_groups``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ends_of_blocks", "grouped", "leading", "trailing"]


def leading(present: Sequence[bool]) -> int:
    """How many pages are there from the first on."""
    return next((at for at, there in enumerate(present) if not there), len(present))


def trailing(present: Sequence[bool], window: int) -> list[int]:
    """The lengths at whose end the last ``window`` pages are there, or all of a shorter one; ascending,
    from 1.

    A window or a recurrent state is stored where a prefix ended, so there may be one at 4 and at 9
    pages, and none between: the lengths are a set, and a smaller one is not as good.
    """
    lengths, run = [], 0
    for length, there in enumerate(present, start=1):
        run = run + 1 if there else 0
        if run >= min(window, length):
            lengths.append(length)
    return lengths


def grouped(present: Sequence[bool], group_pages: int, block_pages: int) -> int:
    """How many pages the leading whole groups cover, if a group stands for a block of ``block_pages``
    pages.
    """
    if group_pages < 1 or block_pages < 1:
        return 0
    return leading(present) // group_pages * block_pages


def ends_of_blocks(keys: Sequence[str], group_pages: int, block_pages: int) -> list[str]:
    """The keys of the groups of a prefix: the last ``group_pages`` of each whole block of ``block_pages``."""
    if group_pages < 1 or block_pages < 1:
        return []
    ends = range(block_pages, len(keys) + 1, block_pages)
    return [key for end in ends for key in keys[max(0, end - group_pages) : end]]
