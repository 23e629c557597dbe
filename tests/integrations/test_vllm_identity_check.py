"""Tests how tools/vllm_identity_check.py reports differences between engines. Its engines need vLLM, so
this test does not run them.
"""

from __future__ import annotations

from typing import Any

import pytest

from tools.vllm.identity_cases import BASES, CASES
from tools.vllm_identity_check import problems_of

TOKENS = [[1, 2], [3, 4]]


def record(*, hits: bool, **changed: Any) -> dict[str, Any]:
    start = {"tokens": TOKENS, "loads": 10 if hits else 0, "writes": 10, "damaged": 0, "failed": 0}
    starts: dict[str, Any] = {name: dict(start) for name in ("first", "stock", "second")}
    for name, fields in changed.items():
        starts.setdefault(name, {}).update(fields)
    return {"case": "change", "base": "full", "hits": hits, "seconds": 1.0, **starts}


@pytest.mark.parametrize("hits", [True, False])
def test_a_case_without_a_difference_has_no_problem(hits: bool) -> None:
    assert problems_of(record(hits=hits)) == []


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (record(hits=True, second={"loads": 0}), "KV has not changed, and nothing was loaded"),
        (record(hits=False, second={"loads": 3}), "KV has changed, and 3 chunks were loaded"),
        (record(hits=False, second={"tokens": [[1, 2], [3, 5]]}), "other tokens than without a store"),
        (record(hits=False, first={"writes": 0}), "the first start wrote nothing"),
        (record(hits=True, second={"damaged": 1}), "1 chunks damaged, 0 failed"),
        (record(hits=True, during={"error": "broken"}), "during: broken"),
    ],
)
def test_every_difference_is_a_problem(found: dict[str, Any], problem: str) -> None:
    assert problems_of(found) == [f"change: {problem}"]


def test_each_base_has_a_change_that_hits() -> None:
    """If no case of a base configuration hit, its cases could miss for another reason than the change."""
    assert {case.base for case in CASES} == set(BASES) == {case.base for case in CASES if case.hits}
    assert len({case.name for case in CASES}) == len(CASES)
    assert sum(not case.hits for case in CASES) >= 17
    assert sum(case.hits for case in CASES) >= 17
