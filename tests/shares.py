"""Splits the examples of a large state machine into shares, each of which runs in a separate process.

In one run, Hypothesis keeps all data that it has drawn: 7,500 histories of the pool take more than 6
GB. The shares draw the same number of histories in parallel, and each process frees its memory at its
end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

if TYPE_CHECKING:
    from hypothesis.stateful import RuleBasedStateMachine

#: Number of shares: one in a normal run, and one per 500 examples in `make test-slow`.
SHARES: Final = max(settings().max_examples // 500, 1)


def run_share(machine: type[RuleBasedStateMachine], share: int, examples: int) -> None:
    """Runs one share of the examples of a state machine."""
    run = examples * (share + 1) // SHARES - examples * share // SHARES
    run_state_machine_as_test(machine, settings=settings(max_examples=run))
