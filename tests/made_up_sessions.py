"""Makes sessions for tests of policies that get hints. Some of the sessions return later."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def returning_sessions(turns: int = 4000) -> Iterator[tuple[int, int, bool]]:
    """Yields the number of each turn, its session, and whether the session will return. A quarter of
    the new sessions return once, after at least 60 turns.
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
