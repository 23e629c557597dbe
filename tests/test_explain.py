"""Tests explanations of misses in Python: the reasons, their sums, the settings, the table of a replay,
and the examples of the docs.

The crate's tests compare the reasons with a model that stores the whole history.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvpool
from kvpool import CacheManager, ExplainConfig, ExtraKeys
from kvpool.cli import main
from kvpool.errors import InvalidArgumentError, UnknownRequestError

BLOCK = 4


def serve(manager: CacheManager, request_id: str | int, tokens: list[int], **more: Any) -> None:
    """Runs a request: admits, computes and releases it."""
    manager.admit(request_id, tokens, **more)
    manager.commit(request_id, len(tokens))
    manager.release(request_id)


def reasons(manager: CacheManager, request_id: str | int) -> list[tuple[tuple[int, int], str]]:
    manager.diagnose.check_invariants()
    return [(span.blocks, span.reason) for span in manager.explain(request_id).spans]


def test_an_explanation_says_what_happened_when_and_for_whom() -> None:
    manager = CacheManager(num_blocks=5, block_size=BLOCK, explain=True, retention=True)
    manager.clock.advance(2.5)
    serve(manager, "a", list(range(12)))
    serve(manager, 77, list(range(100, 112)))
    manager.admit("c", range(13))
    explanation = manager.explain("c")
    assert (explanation.request_id, explanation.admission, explanation.resumed) == ("c", 3, False)
    assert (explanation.block_size, explanation.prompt_tokens, explanation.cached_tokens) == (BLOCK, 13, 4)
    evicted, tail = explanation.spans
    assert (evicted.blocks, evicted.tokens, evicted.reason, evicted.policy) == (
        (1, 3),
        (4, 12),
        "evicted",
        "lru",
    )
    assert (evicted.request, evicted.admission, evicted.time, evicted.another) == (77, 2, 2.5, False)
    assert (evicted.token, evicted.epoch) == (None, None)
    assert (tail.blocks, tail.reason, tail.policy, tail.request) == ((3, 4), "too-short", None, None)
    assert str(evicted) == "blocks 1-2 (tokens 4-11): evicted at admission 2, time 2.5 by lru for request 77"
    assert str(explanation).splitlines()[1:] == [f"  {span}" for span in explanation.spans]
    assert repr(explanation) == '<Explanation of request "c": 4 of 13 tokens cached, 2 spans>'
    assert repr(tail) == "<MissSpan block 3 (token 12): too few tokens to fill a block>"
    as_dict = explanation.to_dict()
    assert as_dict == json.loads(json.dumps(as_dict))
    assert as_dict["spans"] == [span.to_dict() for span in explanation.spans]
    assert as_dict["spans"][0]["request"] == 77
    assert explanation == manager.explain("c")
    assert explanation.spans == manager.explain("c").spans != manager.explain(77).spans


@pytest.mark.parametrize("clock", [False, True])
def test_a_policy_that_learns_reports_its_expectation(clock: bool) -> None:
    manager = CacheManager(num_blocks=5, block_size=4, eviction="hazard", explain=True)
    prompts = {"a": range(16), "b": range(16), "c": range(100, 116), "d": range(16)}
    for turn, (name, prompt) in enumerate(prompts.items()):
        if clock:
            manager.clock.advance(50.0 * turn)
        manager.admit(name, prompt)
        manager.commit(name, 16)
        manager.release(name, finish_reason="tool_calls", output_tokens=210)
    span = manager.explain("d").spans[0]
    gap = "less than 96 s" if clock else "less than 0.4 capacities"
    words = f"used twice, {gap} apart, prompt known in part, answer of 200 or more, tool calls"
    assert (span.reason, span.policy, span.evicted_class) == ("evicted", "hazard", words)
    told, untold = span.expected_return_s, span.expected_return_capacities
    if not clock:
        told, untold = untold, told
    assert untold is None
    assert told is not None
    assert told > 0
    said = span.to_dict()
    assert said["evicted_class"] == words
    assert said["expected_return_s" if clock else "expected_return_capacities"] == told
    assert f'; of the class "{words}", expected back once in ' in str(span)

    first = manager.explain("a").spans[0]
    assert (first.evicted_class, first.expected_return_s, first.expected_return_capacities) == (
        None,
        None,
        None,
    )
    assert "evicted_class" not in first.to_dict()


def test_an_explanation_names_no_ids_of_requests_with_another_salt() -> None:
    manager = CacheManager(num_blocks=9, block_size=BLOCK, explain=True)
    serve(manager, "theirs", list(range(8)), extra=ExtraKeys(salt=b"one"))
    manager.admit("mine", range(8), ExtraKeys(salt=b"two"))
    assert reasons(manager, "mine") == [((0, 1), "other-salt"), ((1, 2), "behind")]
    assert "theirs" not in str(manager.explain("mine"))
    manager.release("mine")
    serve(manager, "busy", list(range(100, 132)), extra=ExtraKeys(salt=b"one"))
    serve(manager, "theirs", list(range(8)), extra=ExtraKeys(salt=b"two"))
    serve(manager, "full", list(range(200, 232)), extra=ExtraKeys(salt=b"one"))
    manager.admit("mine", range(8), ExtraKeys(salt=b"two"))
    span = manager.explain("mine").spans[0]
    assert (span.reason, span.request, span.another) == ("evicted", None, True)
    assert span.to_dict()["another"] is True
    assert "another tenant" in str(span)


def test_epochs_and_tokens_are_named() -> None:
    manager = CacheManager(num_blocks=9, block_size=BLOCK, explain=True)
    serve(manager, "a", list(range(8)))
    manager.admit("b", [0, 1, 9, 3])
    assert [(span.reason, span.token) for span in manager.explain("b").spans] == [("diverged", 2)]
    manager.release("b")
    manager.bump_epoch()
    manager.admit("c", range(8))
    assert [(span.reason, span.epoch) for span in manager.explain("c").spans] == [
        ("other-epoch", 0),
        ("behind", None),
    ]


def test_a_planned_step_and_a_resumption_are_explained() -> None:
    manager = CacheManager(num_blocks=9, block_size=BLOCK, explain=True)
    with manager.plan_step() as step:
        step.admit("a", range(12))
        step.commit()
    assert reasons(manager, "a") == [((0, 1), "never-seen"), ((1, 3), "behind")]
    manager.preempt("a")
    manager.resume("a")
    assert manager.explain("a").resumed
    assert reasons(manager, "a") == [((0, 3), "not-computed")]
    stats = manager.stats()
    assert (stats.misses, stats.resumed_misses) == ({"never-seen": 4, "behind": 8}, {"not-computed": 12})


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 30), st.booleans()), min_size=1, max_size=30))
def test_misses_sum_up_to_what_was_computed(served: list[tuple[int, int, bool]]) -> None:
    manager = CacheManager(num_blocks=9, block_size=BLOCK, explain=True)
    for number, (first, length, whole) in enumerate(served):
        cached = manager.admit(number, [first, *range(1, length)]).cached_tokens
        manager.commit(number, length if whole else max(cached, length // 2))
        explanation = manager.explain(number)
        missed = sum(end - start for start, end in (span.tokens for span in explanation.spans))
        assert missed == explanation.prompt_tokens - explanation.cached_tokens
        manager.release(number)
    stats = manager.stats()
    assert stats.misses is not None
    assert sum(stats.misses.values()) == stats.computed_tokens
    assert stats.resumed_misses == {}
    manager.diagnose.check_invariants()


def test_a_manager_explains_only_if_asked_to() -> None:
    for off in (None, False):
        manager = CacheManager(num_blocks=9, block_size=BLOCK, explain=off)
        manager.admit("a", [1])
        assert (manager.stats().misses, manager.stats().resumed_misses) == (None, None)
        with pytest.raises(InvalidArgumentError, match="explains no misses"):
            manager.explain("a")
    manager = CacheManager(num_blocks=9, block_size=BLOCK, explain=ExplainConfig(requests=1))
    with pytest.raises(UnknownRequestError):
        manager.explain("a")
    serve(manager, "a", [1])
    serve(manager, "b", [2])
    assert manager.explain("b").prompt_tokens == 1
    with pytest.raises(UnknownRequestError):
        manager.explain("a")


def test_settings() -> None:
    config = ExplainConfig(records=16, requests=0)
    assert (config.records, config.requests) == (16, 0)
    assert repr(config) == "ExplainConfig(records=16, requests=0)"
    assert ExplainConfig() == ExplainConfig(records=None, requests=1024) != config
    assert repr(ExplainConfig()) == "ExplainConfig(records=None, requests=1024)"
    for wrong, named in (
        ({"records": 15}, "records is 15"),
        ({"records": -1}, "records"),
        ({"requests": 2**21}, "req"),
    ):
        with pytest.raises(InvalidArgumentError, match=named):
            ExplainConfig(**wrong)
    with pytest.raises(TypeError, match="explain is a int"):
        CacheManager(num_blocks=9, explain=7)  # type: ignore[arg-type]


def test_a_replay_reports_why_tokens_were_computed() -> None:
    trace = kvpool.traces.Trace.generate(requests=40, seed=3)
    replay = kvpool.traces.Replay(trace, mode="engine", capacity_blocks=9_000, explain=True)
    replay.advance()
    replay.check_invariants()
    report = json.loads(replay.report_json())
    assert sum(report["misses"].values()) == report["hits"]["tokens"] - report["hits"]["token_hits"]
    assert report["misses"]["evicted"] > 0
    silent = kvpool.traces.Replay(trace, mode="engine", capacity_blocks=9_000)
    silent.advance()
    del report["misses"]
    assert json.loads(silent.report_json()) == report
    with pytest.raises(InvalidArgumentError, match="explain is true: must be false in lookup mode"):
        kvpool.traces.Replay(trace, explain=True)


def test_the_command_prints_a_table_of_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["replay", "--limit", "60", "--capacity-blocks", "9000", "--no-progress", "--explain"]
    assert main([*arguments, "--json"]) == 0
    misses = json.loads(capsys.readouterr().out)["misses"]
    assert main(arguments) == 0
    table = (
        capsys.readouterr()
        .out.partition("Why prompt tokens were computed")[2]
        .partition("What the figures")[0]
    )
    for reason, tokens in misses.items():
        assert re.search(rf"{reason} +{tokens:,} +{100 * tokens / sum(misses.values()):.2f} %", table)
    assert main([*arguments, "--mode", "lookup"]) == 2
    assert "takes no --explain" in capsys.readouterr().err


DOCS = (Path(__file__).resolve().parent.parent / "docs" / "explain.md").read_text(encoding="utf-8")


def test_examples_of_the_docs_run_and_print_what_they_say() -> None:
    examples = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", DOCS, flags=re.DOTALL)
    assert len(examples) == DOCS.count("```python")
    names: dict[str, Any] = {}
    for number, (code, expected) in enumerate(examples):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"docs/explain.md, example {number}", "exec"), names)
        assert printed.getvalue() == expected


def test_the_docs_name_every_reason() -> None:
    stub = Path(kvpool.__file__).with_name("_core").joinpath("__init__.pyi").read_text(encoding="utf-8")
    names = re.search(r"MissReason: TypeAlias = Literal\[(.*?)\]", stub, flags=re.DOTALL)
    assert names is not None
    for reason in re.findall(r'"([a-z-]+)"', names.group(1)):
        assert re.search(rf"^- .*`{reason}`.*:", DOCS, flags=re.MULTILINE), reason
