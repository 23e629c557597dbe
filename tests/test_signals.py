"""Signals at release: how a request ended, as a hint to policies."""

from __future__ import annotations

import pytest

import kvpool


def manager() -> kvpool.CacheManager:
    """A manager with the policy that listens."""
    return kvpool.CacheManager(num_blocks=33, block_size=4, eviction="hazard")


def admitted(*names: str) -> kvpool.CacheManager:
    """A manager with requests of three blocks each."""
    made = manager()
    for number, name in enumerate(names):
        made.admit(name, range(12 * number, 12 * number + 12))
        made.commit(name, 12)
    return made


@pytest.mark.parametrize("reason", [None, "stop", "tool_calls", "length", "abort", "end_turn", "no such reason", ""])
def test_any_reason_is_taken(reason: str | None) -> None:
    made = admitted("a", "b")
    made.release("a", finish_reason=reason, output_tokens=7)
    made.release_batch(["b"], finish_reasons=[reason])
    made.check_invariants()
    assert made.admit("c", range(12)).cached_tokens == 8


def test_what_is_refused_changes_nothing() -> None:
    made = admitted("a", "b")
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="output_tokens is -1"):
        made.release("a", output_tokens=-1)
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="finish_reasons has 1 entries: must be 2"):
        made.release_batch(["a", "b"], finish_reasons=["stop"])
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="output_tokens has 3 entries: must be 2"):
        made.release_batch(["a", "b"], output_tokens=[1, 2, 3])
    with pytest.raises(kvpool.errors.DuplicateRequestError):
        made.release_batch(["a", "a"], finish_reasons=["stop", "stop"])
    made.check_invariants()
    assert all(made.block_ids(request) for request in ("a", "b")), "both are there"
    made.release_batch(["a", "b"], finish_reasons=["stop", None], output_tokens=[None, 3])
    made.check_invariants()
    made.admit("a", range(12))


def test_other_policies_are_told_nothing() -> None:
    made = kvpool.CacheManager(num_blocks=33, block_size=4)
    made.admit("a", range(12))
    made.release("a", finish_reason="stop", output_tokens=2)
    made.check_invariants()


def test_a_policy_that_measures_ages_takes_the_time_without_retention() -> None:
    made = manager()
    assert made.advance_time(1.5) == 0
    with pytest.raises(kvpool.errors.TimeBackwardsError):
        made.advance_time(1.0)
    with pytest.raises(kvpool.errors.NoRetentionError):
        kvpool.CacheManager(num_blocks=33, block_size=4).advance_time(1.0)
