"""A large state machine in shares, each a run of its own.

A run of Hypothesis keeps all that it has drawn, in one process: 7,500 histories of the pool take more
than 6 GB. Shares draw as many in all, side by side, and give back their memory at the end of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

if TYPE_CHECKING:
    from hypothesis.stateful import RuleBasedStateMachine

#: One for every change, one for 500 examples in `make test-slow`.
SHARES: Final = max(settings().max_examples // 500, 1)


def run_share(machine: type[RuleBasedStateMachine], share: int, examples: int) -> None:
    """Runs one share of so many examples."""
    run = examples * (share + 1) // SHARES - examples * share // SHARES
    run_state_machine_as_test(machine, settings=settings(max_examples=run))
