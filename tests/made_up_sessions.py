"""Sessions of which some return, as tests of policies that are told which."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def returning_sessions(turns: int = 4000) -> Iterator[tuple[int, int, bool]]:
    """The turn, its session, and whether that returns: a quarter of the new ones do, once, 60 turns
    later or more.
    """
    draw = random.Random(1)
    returns: dict[int, int] = {}
    for turn in range(turns):
        session = returns.pop(turn, None)
        comes_back = session is None and draw.random() < 0.25
        session = turn if session is None else session
        if comes_back:
            at = next(at for at in range(turn + 60, turn + turns) if at not in returns)
            returns[at] = session
        yield turn, session, comes_back
