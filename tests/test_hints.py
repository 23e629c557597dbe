"""Tests hints of engines: each line of the table in docs/hints.md, arbitrary input, effects on blocks,
and sessions.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvpool
from kvpool.errors import ArgumentTypeError, InvalidArgumentError
from kvpool.hints import HintRules, Sessions, of_vllm_request, read

PAGE = (Path(__file__).resolve().parent.parent / "docs/hints.md").read_text(encoding="utf-8")
LISTED = PAGE.partition("<!-- table -->\n")[2].partition("<!-- /table -->")[0]
ENTRIES = [" ".join(entry.split()) for entry in re.split(r"^- ", LISTED, flags=re.MULTILINE)[1:]]
ALL = HintRules.all(pins=True, tenants={"s": 7})


def action(kind: str) -> Any:
    return lambda **payload: {"actions": [{"action_id": "1", "action_type": kind, "payload": payload}]}


NAMES = {
    "R": kvpool.Retention,
    "dict": dict,
    **{kind: action(kind) for kind in ("retain", "pin", "demote", "end_of_life", "end_session", "prefetch")},
}


def manager(**more: Any) -> kvpool.CacheManager:
    retention = kvpool.RetentionConfig(pin_budget=4, tenants=[kvpool.TenantLimits(7, ceiling=20)])
    made = kvpool.CacheManager(64, 4, retention=retention, **more)
    made.clock.advance(0.0)
    return made


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_page_lists_what_a_hint_becomes(entry: str) -> None:
    """Each row of the table has a hint in backticks, kvpool's answer to it, and the retention or the
    other effect that results.
    """
    found = re.fullmatch(r"`(.+?)`: (accepted|clipped|ignored); (.+)", entry)
    assert found is not None
    hint, answered, becomes = found.groups()
    hints = read(ALL, tokens=100, **eval(f"dict({hint})", NAMES))
    assert {answer.outcome for answer in hints.answers} == {answered}
    assert all(answer.why for answer in hints.answers if answer.outcome != "accepted")
    ranges = re.match(r"`(\[.*?\])`", becomes)
    assert hints.ranges == (tuple(eval(ranges[1], NAMES)) if ranges else ())
    assert hints.tenant == (7 if becomes == "tenant 7" else None)
    assert hints.ends_session == (becomes == "ends the session")
    assert hints.no_cache == becomes.endswith("the rest `no_cache`")


def test_the_page_lists_every_hint_and_every_answer() -> None:
    text = "\n".join(ENTRIES)
    for name in (
        "priority",
        "session_id",
        "cache_salt",
        "prompt_cache_key",
        "prompt_cache_retention",
        "breakpoints",
    ):
        assert f"`{name}=" in text
    assert set(re.findall(r"`: (\w+); ", text)) == {"accepted", "clipped", "ignored"}


def test_nothing_is_followed_until_it_is_switched_on() -> None:
    hints = read(
        HintRules(),
        tokens=10,
        priority=5,
        session_id="a",
        cache_salt="s",
        prompt_cache_key="k",
        breakpoints=[(4, "5m")],
        kv_hints=action("pin")(),
    )
    assert [(answer.outcome, answer.why) for answer in hints.answers] == [("ignored", "off")] * 6
    assert hints.options == {}
    # If every kind of hint is switched off, even a manager without retention accepts the engine's options.
    kvpool.CacheManager(16, 4).admit("a", range(10), **hints.options)
    assert read(ALL, tokens=10) == read(HintRules(), tokens=10)


@pytest.mark.parametrize("switch", ["priority", "kv_hints", "cache_key", "breakpoints"])
def test_each_switch_is_its_own(switch: str) -> None:
    said: dict[str, Any] = {
        "priority": 5,
        "session_id": "a",
        "prompt_cache_key": "k",
        "breakpoints": [(4, "5m")],
        "kv_hints": action("retain")(),
    }
    only: dict[str, Any] = {switch: True}
    hints = read(HintRules(**only), tokens=10, **said)
    followed = [answer.hint.partition("[")[0] for answer in hints.answers if answer.outcome == "accepted"]
    assert followed == [{"cache_key": "prompt_cache_key"}.get(switch, switch)]


def test_limits_are_checked() -> None:
    for bad in (
        {"max_priority": 34},
        {"max_priority": 101},
        {"max_ttl": 0},
        {"max_ttl": float("inf")},
        {"max_ttl": float("nan")},
        {"session_ttl": 0},
        {"session_ttl": 90_000.0},
        {"session_ttl": float("nan")},
    ):
        with pytest.raises(InvalidArgumentError, match=next(iter(bad))):
            HintRules(**bad)
    for tenants in ([("s", 1)], {"s": "1"}, {1: 1}):
        with pytest.raises(ArgumentTypeError, match="tenants"):
            HintRules(tenants=tenants)  # type: ignore[arg-type]


def test_limits_hold_for_every_hint() -> None:
    rules = HintRules.all(max_priority=50, max_ttl=100.0, session_ttl=100.0)
    for said in (
        {"priority": -70},
        {"session_id": "a"},
        {"prompt_cache_key": "k", "prompt_cache_retention": "24h"},
        {"breakpoints": [(8, "1h")]},
        {"kv_hints": action("pin")(ttl_s=1e6)},
        {"kv_hints": action("retain")(priority=99, ttl_s=1e6)},
    ):
        hints = read(rules, tokens=10, **said)
        (found,) = hints.ranges
        assert found[2].priority is not None
        assert found[2].priority <= 50
        assert found[2].ttl is None or found[2].ttl <= 100


#: Arbitrary values, as JSON or a careless engine may pass them.
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
NUMBER = st.none() | st.integers(-3, 2**33) | st.floats() | st.booleans() | st.text(max_size=2)
PAYLOAD = st.fixed_dictionaries(
    {}, optional={"start": NUMBER, "end": NUMBER, "priority": NUMBER, "ttl_s": NUMBER, "other": ANYTHING}
)
KIND = st.sampled_from(["retain", "pin", "DEMOTE", "end-of-life", "end_session", "prefetch", "x"]) | ANYTHING
ACTION = st.fixed_dictionaries(
    {"action_type": KIND, "payload": PAYLOAD | ANYTHING}, optional={"action_version": NUMBER}
)
ENVELOPE = st.fixed_dictionaries({"actions": st.lists(ACTION | ANYTHING, max_size=5) | ANYTHING}) | ANYTHING
MARK = st.tuples(NUMBER, st.sampled_from(["5m", "1h", "2h", 5])) | ANYTHING


@given(
    said=st.fixed_dictionaries(
        {},
        optional={
            "priority": st.integers() | ANYTHING,
            "session_id": st.text(max_size=4) | ANYTHING,
            "cache_salt": st.sampled_from(["s", "t"]) | ANYTHING,
            "prompt_cache_key": ANYTHING,
            "prompt_cache_retention": st.sampled_from(["24h", "in_memory"]) | ANYTHING,
            "breakpoints": st.lists(MARK, max_size=6) | ANYTHING,
            "kv_hints": ENVELOPE,
        },
    ),
    tokens=st.integers(0, 60),
    pins=st.booleans(),
)
def test_any_hints_are_answered_and_admitted(said: dict[str, Any], tokens: int, pins: bool) -> None:
    rules = HintRules.all(pins=pins, tenants={"s": 7})
    hints = read(rules, tokens=tokens, **said)
    for answer in hints.answers:
        assert answer.outcome in {"accepted", "clipped", "ignored"}
        assert bool(answer.why) == (answer.outcome != "accepted")
    named = {answer.hint.partition("[")[0] for answer in hints.answers}
    given = {
        "prompt_cache_key" if name == "prompt_cache_retention" else name
        for name, one in said.items()
        if one is not None
    }
    assert named <= given
    assert given - named <= {"kv_hints"}  # an empty list of actions
    made = manager()
    made.admit("a", range(tokens + 1), **hints.options)
    made.commit("a", tokens + 1)
    made.release("a")
    made.clock.advance(1e6)
    made.diagnose.check_invariants()


def kept(made: kvpool.CacheManager, prompts: dict[str, list[int]]) -> set[str]:
    """Returns those prompts of which all blocks are still cached."""
    return {
        name for name, prompt in prompts.items() if made.probe([*prompt, 0]).cached_blocks == len(prompt) // 4
    }


def test_hints_decide_the_order_of_eviction() -> None:
    made = kvpool.CacheManager(33, 4, retention=True)
    made.clock.advance(0.0)
    said: dict[str, dict[str, Any]] = {
        "scan": {"kv_hints": action("demote")()},
        "low": {"priority": 20},
        "plain": {},
        "session": {"session_id": "a"},
        "marked": {"breakpoints": [(16, "1h")]},
        "high": {"priority": -60},
    }
    prompts = {name: [1000 * nth + at for at in range(16)] for nth, name in enumerate(said)}
    for name, hints in said.items():
        prompt = prompts[name]
        made.admit(name, prompt, **read(ALL, tokens=16, **hints).options)
        made.commit(name, 16)
        made.release(name)
    assert kept(made, prompts) == set(said)
    gone = []
    for nth in range(6):
        before = kept(made, prompts)
        made.admit("filler", range(10_000, 10_000 + 4 * (8 + 4 * (nth + 1))))
        made.release("filler")
        gone += sorted(before - kept(made, prompts))
    assert gone == ["scan", "low", "plain", "session", "marked", "high"]


def test_envelopes_may_be_objects_and_are_bounded() -> None:
    one = SimpleNamespace(
        action_id="x", action_type="Retain", action_version=1, payload=SimpleNamespace(end=8)
    )
    envelope = SimpleNamespace(protocol_version=1, message_id="m", actions=[one])
    assert read(ALL, tokens=10, kv_hints=envelope).ranges == ((0, 8, kvpool.Retention(70)),)
    hints = read(ALL, tokens=10, kv_hints={"actions": [one] * 100})
    assert len(hints.ranges) == 64
    assert (hints.answers[0].outcome, hints.answers[0].why) == ("clipped", "100 actions: the first 64 count")
    newer = {"actions": [{"action_type": "retain", "action_version": 2}]}
    assert read(ALL, tokens=10, kv_hints=newer).answers[0].why == "action version 2 is not known"


def test_requests_of_vllm() -> None:
    request = SimpleNamespace(
        priority=-5, session_id=None, cache_salt="s", kv_hints=action("demote")(), num_prompt_tokens=9
    )
    hints = read(ALL, **of_vllm_request(request))
    assert [answer.hint for answer in hints.answers] == ["priority", "cache_salt", "kv_hints[0] demote"]
    assert of_vllm_request(SimpleNamespace(priority=0, num_prompt_tokens=9)) == {"tokens": 9}


@pytest.mark.parametrize("seed", range(8))
def test_sessions_against_a_model(seed: int) -> None:
    """A hint for a session must have the same effect as the same hint for each of its running requests,
    and for the prompt of the request that was released last.
    """
    draw, number = random.Random(seed), 0
    one, other = (kvpool.CacheManager(300, 4, retention=True, digest=True) for _ in range(2))
    sessions = Sessions(one, limit=1000)
    live: dict[int, tuple[str, list[int]]] = {}
    last: dict[str, list[int]] = {}
    ended = 0
    for _ in range(120):
        name, kind = draw.choice("abcd"), draw.randrange(5)
        if kind < 2 or not live:
            number += 1
            prompt = [7] * 8 + [ord(name)] * draw.randrange(12) + list(range(draw.randrange(20)))
            for made in (one, other):
                made.admit(number, prompt)
                made.commit(number, len(prompt))
            sessions.admitted(name, number)
            live[number] = (name, prompt)
        elif kind < 4:
            done = draw.choice(list(live))
            sessions.releasing(done)
            for made in (one, other):
                made.release(done)
            session, prompt = live.pop(done)
            if session:
                last[session] = prompt
        else:
            reports = [
                other.retention.end_of_life(request)
                for request, (session, _) in live.items()
                if session == name
            ]
            live = {request: ("" if it[0] == name else it[0], it[1]) for request, it in live.items()}
            if name in last:
                reports.append(other.retention.end_of_life(last.pop(name)))
            told = sessions.end(name)
            assert told == (
                sum(report.accepted for report in reports),
                sum(report.clipped for report in reports),
                sum(report.ignored for report in reports),
            )
            ended += told[0]
            assert sessions.end(name) == (0, 0, 0)
        assert one.diagnose.state_digest() == other.diagnose.state_digest()
        assert one.retention.stats() == other.retention.stats()
        one.diagnose.check_invariants()
    assert ended > 10


def test_what_a_session_left_is_ended() -> None:
    made = kvpool.CacheManager(64, 4, retention=True)
    sessions = Sessions(made)
    shared = list(range(16))
    for name in ("a", "b"):
        made.admit(name, shared + [ord(name)] * 8)
        made.commit(name, 24)
        sessions.admitted(name, name)
        sessions.releasing(name)
        made.release(name)
    assert sessions.end("a") == (6, 0, 0)
    assert made.retention.stats().demoted == 6  # type: ignore[union-attr]
    # The hint stated that the system prompt is not used again. This request uses it, so the hint was
    # wrong.
    made.admit("c", [*shared, 99])
    assert made.retention.stats().demoted == 2  # type: ignore[union-attr]
    assert sessions.end("unknown") == (0, 0, 0)
    sessions.releasing("unknown")


def test_sessions_are_bounded_and_tolerate_released_requests() -> None:
    made = kvpool.CacheManager(64, 4, retention=True)
    sessions = Sessions(made, limit=2)
    for name in ("a", "b", "c"):
        made.admit(name, range(8))
        sessions.admitted(name, name)
    assert len(sessions) == 2
    assert sessions.end("a") == (0, 0, 0)
    sessions.releasing("a")
    made.release("b")  # without the session's knowledge
    sessions.releasing("b")
    assert sessions.end("b") == (0, 0, 0)
    made.commit("c", 8)
    sessions.releasing("c")
    made.release("c")
    made.bump_epoch()
    assert sessions.end("c") == (0, 0, 0)
    with pytest.raises(InvalidArgumentError, match="limit is 0"):
        Sessions(made, limit=0)
