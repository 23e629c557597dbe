"""Tests that tools/vllm_bench.py detects a level of kvpool's plug-in that allocates other blocks than
stock vLLM.
"""

from __future__ import annotations

import dataclasses
from array import array
from typing import TYPE_CHECKING, Any

from tools.vllm import bench_stats
from tools.vllm.bench_stats import PHASES, Counts, Ledger, Run, Timings

if TYPE_CHECKING:
    from collections.abc import Sequence


def make_run(scale: int = 1, ledger: Sequence[int] = (1, 2, 3), **counts: int) -> Run:
    timings = Timings(spent=[1000 * scale * (n + 1) for n in range(len(PHASES))], calls=[10] * len(PHASES))
    timings.steps, timings.step_calls = [5000 * scale, 7000 * scale], [2, 2]
    timings.gc_runs, timings.gc_ns = 2, 4000
    fields = dict.fromkeys((field.name for field in dataclasses.fields(Counts)), 3)
    return Run(timings, Counts(**{**fields, **counts}), list(ledger), seconds=1.0, events=4)


def test_a_ledger_distinguishes_ids_requests_and_order() -> None:
    def total(*given: tuple[int, Any]) -> int:
        ledger = Ledger()
        for job, groups in given:
            ledger.add(job, groups)
        return ledger.value

    assert total((1, ([1, 2],))) == total((1, (array("q", [1, 2]),)), (2, None))
    values = [
        total(*given)
        for given in ([(1, ([1, 2],))], [(1, ([2, 1],))], [(2, ([1, 2],))], [(1, ([1, 2], [3]))])
    ]
    assert len(set(values)) == 4
    assert total((1, ([1],)), (2, ([2],))) != total((2, ([2],)), (1, ([1],)))


def test_compare() -> None:
    assert bench_stats.compare(make_run(), make_run(5)) == []
    assert bench_stats.compare(make_run(), make_run(ledger=(1, 9, 3))) == ["block ids differ from step 2 on"]
    assert bench_stats.compare(make_run(), make_run(ledger=(1, 2))) == ["block ids differ from step 3 on"]
    assert bench_stats.compare(make_run(), make_run(cached_tokens=1234)) == ["cached tokens: 1,234, stock 3"]
