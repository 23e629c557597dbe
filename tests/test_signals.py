"""Tests signals: when a request is released, the caller can pass how it ended. Policies use this as a
hint.
"""

from __future__ import annotations

import random

import pytest

import kvpool
from tests.made_up_sessions import returning_sessions


def manager() -> kvpool.CacheManager:
    """Returns a manager whose policy uses signals."""
    return kvpool.CacheManager(num_blocks=33, block_size=4, eviction="hazard")


def admitted(*names: str) -> kvpool.CacheManager:
    """Returns a manager with some running requests of three blocks each."""
    made = manager()
    for number, name in enumerate(names):
        made.admit(name, range(12 * number, 12 * number + 12))
        made.commit(name, 12)
    return made


@pytest.mark.parametrize(
    "reason", [None, "stop", "tool_calls", "length", "abort", "end_turn", "no such reason", ""]
)
def test_any_reason_is_taken(reason: str | None) -> None:
    made = admitted("a", "b")
    made.release("a", finish_reason=reason, output_tokens=7)
    made.release(["b"], finish_reason=[reason])
    made.diagnose.check_invariants()
    assert made.admit("c", range(12)).cached_tokens == 8


def test_what_is_refused_changes_nothing() -> None:
    made = admitted("a", "b")
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="output_tokens is -1"):
        made.release("a", output_tokens=-1)
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="finish_reason has 1 entries: must be 2"):
        made.release(["a", "b"], finish_reason=["stop"])
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="output_tokens has 3 entries: must be 2"):
        made.release(["a", "b"], output_tokens=[1, 2, 3])
    with pytest.raises(kvpool.errors.DuplicateRequestError):
        made.release(["a", "a"], finish_reason=["stop", "stop"])
    made.diagnose.check_invariants()
    assert all(made.block_ids(request) for request in ("a", "b")), "both are there"
    made.release(["a", "b"], finish_reason=["stop", None], output_tokens=[None, 3])
    made.diagnose.check_invariants()
    made.admit("a", range(12))


def test_other_policies_get_no_ends() -> None:
    made = kvpool.CacheManager(num_blocks=33, block_size=4)
    made.admit("a", range(12))
    made.release("a", finish_reason="stop", output_tokens=2)
    made.diagnose.check_invariants()


def test_a_policy_that_measures_ages_takes_the_time_without_retention() -> None:
    made = manager()
    assert made.clock.advance(1.5) == 0
    with pytest.raises(kvpool.errors.TimeBackwardsError):
        made.clock.advance(1.0)
    with pytest.raises(kvpool.errors.NoRetentionError):
        kvpool.CacheManager(num_blocks=33, block_size=4).clock.advance(1.0)


def hits_of_agents(*, said: bool) -> int:
    """Returns the number of hit tokens in a small pool with retention. Sessions that call tools return
    once, and the others never return.
    """
    # The pool is too small for the blocks that requests release in 60 turns, so it evicts some of them.
    made = kvpool.CacheManager(num_blocks=161, block_size=4, eviction="hazard", retention=True)
    hits = 0
    for turn, session, calls_tools in returning_sessions():
        hits += made.admit(turn, range(1000 * session, 1000 * session + 16)).cached_tokens
        made.commit(turn, 16)
        reason = "tool_calls" if calls_tools else "stop"
        made.release(turn, finish_reason=reason if said else None)
    made.diagnose.check_invariants()
    return hits


def test_a_class_is_learned_beside_retention() -> None:
    # The policy keeps the blocks of sessions that return if it gets signals. Otherwise it keeps some
    # blocks of all sessions.
    assert hits_of_agents(said=True) > 1.3 * hits_of_agents(said=False)


@pytest.mark.parametrize("seed", range(8))
def test_a_signal_is_no_rule(seed: int) -> None:
    """If blocks have retention rules, signals change neither their eviction nor the rules."""
    draw = random.Random(seed)
    rules = [kvpool.Retention(priority) for priority in (0, 20, 60, 100)]
    rules += [
        kvpool.Retention(pinned=True),
        kvpool.Retention(demoted=True),
        kvpool.Retention(70, ttl=90, idle=True),
    ]
    config = kvpool.RetentionConfig(pin_budget=6, tenants=[kvpool.TenantLimits(1, floor=4, ceiling=12)])
    plain, told = (
        kvpool.CacheManager(num_blocks=33, block_size=4, eviction="hazard", retention=config)
        for _ in range(2)
    )
    seen = 0
    for turn in range(400):
        prompt, rule = 100 * draw.randrange(24), draw.choice(rules)
        length, tenant = draw.choice([4, 8, 12]), draw.randrange(2)
        reason, tokens = draw.choice(["tool_calls", "stop", "length", "abort"]), draw.randrange(900)
        hits = []
        for made in (plain, told):
            made.clock.advance(10.0 * turn)
            hits.append(made.admit(turn, range(prompt, prompt + length), tenant=tenant).cached_tokens)
            made.commit(turn, length)
            made.retention.retain(turn, [(0, None, rule)])
        plain.release(turn)
        told.release(turn, finish_reason=reason, output_tokens=tokens)
        assert hits[0] == hits[1]
        assert repr(plain.retention.stats()) == repr(told.retention.stats())
        assert plain.diagnose.eviction_order() == told.diagnose.eviction_order()
        seen += hits[0]
    assert seen, "the pool is large enough for hits"
    assert len(told.diagnose.eviction_order()) == 32, "and too small for all 72 contents"
    told.diagnose.check_invariants()


def test_a_retention_rule_has_precedence_over_a_class() -> None:
    made = kvpool.CacheManager(num_blocks=33, block_size=4, eviction="hazard", retention=True)
    rules = {
        "kept": kvpool.Retention(60),
        "plain": kvpool.Retention(),
        "over": kvpool.Retention(demoted=True),
    }
    reasons = {"kept": "stop", "plain": "length", "over": "tool_calls"}
    tables = {}
    for number, (request, rule) in enumerate(rules.items()):
        made.admit(request, range(100 * number, 100 * number + 8))
        made.commit(request, 8)
        made.retention.retain(request, [(0, None, rule)])
        tables[request] = list(reversed(made.block_ids(request)))
        made.release(request, finish_reason=reasons[request], output_tokens=700)
    assert made.diagnose.eviction_order() == tables["over"] + tables["plain"] + tables["kept"]
