"""tools/vllm_bench.py without vLLM: loads, figures, reports, and its scheduler over a manager of a few lines."""

from __future__ import annotations

import dataclasses
import enum
import gc
import itertools
import sys
import types
from array import array
from typing import TYPE_CHECKING, Any

import pytest

from tools import vllm_bench
from tools.vllm import bench_loads, bench_report, bench_run, bench_stats
from tools.vllm.bench_driver import Driver
from tools.vllm.bench_loads import Job, Load, LoadError, Settings, make_load
from tools.vllm.bench_stats import PHASES, STOCK, BenchError, Counts, Ledger, Run, Timings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

QUICK = Settings(quick=True)
LINES = [
    b'{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}',
    b'{"timestamp": 9, "input_length": 512, "output_length": 900, "hash_ids": [0]}',
    b"",
    b'{"timestamp": 9, "input_length": 0, "output_length": 0, "hash_ids": []}',
]

# --- Loads ------------------------------------------------------------------------------------------------------------


def test_jobs_of_a_trace() -> None:
    first, second, third = bench_loads.trace_jobs(LINES)
    assert (first.length, first.outputs, second.outputs) == (700, 5, 900)
    assert first.prompt() == list(range(700))
    assert second.prompt() == first.prompt()[:512]  # equal ids, equal prefix
    assert (third.length, third.outputs, third.prompt()) == (1, 1, [0])  # a request without a token is none
    assert bench_loads.trace_jobs(LINES, max_output=7)[1].outputs == 7


@pytest.mark.parametrize("name", list(bench_loads.LOADS))
def test_loads_are_deterministic(name: str) -> None:
    load = make_load(name, QUICK)
    assert load == make_load(name, QUICK)
    assert load.name == name
    assert load.max_model_len % bench_loads.BLOCK_SIZE == 0
    assert all(len(job.prompt()) == job.length for job in (*load.warm[:3], *load.jobs[:3]))
    assert load.title
    assert len(make_load(name, Settings(requests=300)).jobs) >= len(load.jobs)


def test_unique_prompts_share_no_block() -> None:
    seen: set[int] = set()
    for job in bench_loads.unique(50, 100, 1):
        tokens = set(job.prompt())
        assert not tokens & seen
        seen |= tokens
    assert max(seen) < bench_loads.FIRST_OUTPUT_TOKEN


def test_zero_hit_fills_the_pool_before() -> None:
    load = make_load("zero-hit", QUICK)
    assert sum(job.length // bench_loads.BLOCK_SIZE for job in load.warm) >= load.num_blocks
    assert {one for job in load.warm for one in job.ids}.isdisjoint(one for job in load.jobs for one in job.ids)


def test_blocked_request_has_no_room_until_the_end() -> None:
    load = make_load("blocked", Settings())
    *small, big = load.jobs
    size = bench_loads.BLOCK_SIZE
    used = sum(job.length // size for job in small)
    assert (load.num_blocks - 1) - used < big.length // size
    assert sum(-(-(job.length + job.outputs) // size) for job in small) + 2049 < load.num_blocks
    assert load.skip_steps + load.steps < min(job.outputs for job in small)


def test_output_tokens_differ_by_request_and_fit_32_bits() -> None:
    one, other = ([bench_loads.output_token(job, place) for place in range(50)] for job in (1, 2))
    assert not set(one) & set(other)
    assert max(bench_loads.output_token(10**9, 10**9), *one) < 2**31


def test_a_pool_too_small_for_a_request() -> None:
    with pytest.raises(LoadError, match=r"request \d+ takes \d+ blocks, the pool has 15: take more with --blocks"):
        make_load("conversation", Settings(blocks=16, quick=True))


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"conversation: .*nothing"):
        make_load("conversation", Settings(trace=tmp_path / "nothing.jsonl"))


# --- Figures ----------------------------------------------------------------------------------------------------------


def make_run(scale: int = 1, ledger: Sequence[int] = (1, 2, 3), **counts: int) -> Run:
    timings = Timings(spent=[1000 * scale * (n + 1) for n in range(len(PHASES))], calls=[10] * len(PHASES))
    timings.steps, timings.step_calls = [5000 * scale, 7000 * scale], [2, 2]
    timings.gc_runs, timings.gc_ns = 2, 4000
    fields = dict.fromkeys((field.name for field in dataclasses.fields(Counts)), 3)
    return Run(timings, Counts(**{**fields, **counts}), list(ledger), seconds=1.0, events=4)


def test_figures_take_the_clock_off() -> None:
    found = bench_stats.figures([make_run(1), make_run(3), make_run(2)], clock_ns=50)
    assert found.phases["append"] == pytest.approx((4000 - 500) / 1e9)
    assert found.phases_min["append"] == pytest.approx((2000 - 500) / 1e9)
    assert found.total == pytest.approx(sum(found.phases.values()))
    assert found.step_p50 == found.step_p99 == pytest.approx(13.9)
    assert found.step_p50_min == found.step_p99_min == pytest.approx(6.9)  # each step's shortest: 4.9 and 6.9 us
    assert (found.gc_runs, found.rounds, found.events) == (2, 3, 4)
    assert bench_stats.figures([make_run()], clock_ns=10**6).total == 0  # never below nothing


def test_percentiles() -> None:
    values = [float(value) for value in range(200)]
    assert [bench_stats.percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [0, 100, 198, 199]
    assert bench_stats.percentile([], 0.5) == 0


def test_steps_are_without_the_hashes_of_prompts() -> None:
    timings = Timings()
    timings.spent[bench_stats.HASH] = 1000
    timings.calls[bench_stats.HASH] = 1
    timings.spent[bench_stats.DECODE] = 70
    timings.calls[bench_stats.DECODE] = 2
    timings.end_step(10, 1)
    assert (timings.steps, timings.step_calls) == ([60], [1])


def test_ratio() -> None:
    assert bench_stats.ratio(6.0, 2.0) == 3.0
    assert bench_stats.ratio(0.0, 2.0) is None
    assert bench_stats.ratio(2.0, 0.0) is None


def test_the_clock_costs_something() -> None:
    assert 0 < bench_stats.clock_cost_ns(100) < 1_000_000


def test_ledger_tells_ids_requests_and_order() -> None:
    def total(*given: tuple[int, Any]) -> int:
        ledger = Ledger()
        for job, groups in given:
            ledger.add(job, groups)
        return ledger.value

    assert total((1, ([1, 2],))) == total((1, (array("q", [1, 2]),)), (2, None))
    values = [total(*given) for given in ([(1, ([1, 2],))], [(1, ([2, 1],))], [(2, ([1, 2],))], [(1, ([1, 2], [3]))])]
    assert len(set(values)) == 4
    assert total((1, ([1],)), (2, ([2],))) != total((2, ([2],)), (1, ([1],)))


def test_compare() -> None:
    assert bench_stats.compare(make_run(), make_run(5)) == []
    assert bench_stats.compare(make_run(), make_run(ledger=(1, 9, 3))) == ["block ids differ from step 2 on"]
    assert bench_stats.compare(make_run(), make_run(ledger=(1, 2))) == ["block ids differ from step 3 on"]
    assert bench_stats.compare(make_run(), make_run(cached_tokens=1234)) == ["cached tokens: 1,234, stock 3"]


def test_rotations() -> None:
    assert bench_stats.rotations(["a", "b", "c"], 4) == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


# --- Reports ----------------------------------------------------------------------------------------------------------


def make_result(problems: Sequence[str] = ()) -> bench_report.Result:
    levels = {
        STOCK: bench_stats.figures([make_run(9)], clock_ns=0),
        "manager": bench_stats.figures([make_run(1)], clock_ns=0),
    }
    return bench_report.Result("decode", "256 requests", True, make_run().counts, levels, problems)


def test_rows() -> None:
    head, lines = bench_report.rows(make_result())
    assert head == ["", "calls", "stock", "manager", "stock/manager"]
    assert [line[0] for line in lines] == [*PHASES, "all", "step p50", "step p99", "gc"]
    assert lines[1] == ["append", "10", "18 us (18 us)", "2 us (2 us)", "9.00x"]
    assert lines[-1][-1] == "1.00x"
    assert all(len(line) == len(head) for line in lines)


def test_rows_without_stock() -> None:
    result = make_result()
    head, lines = bench_report.rows(dataclasses.replace(result, levels={"manager": result.levels["manager"]}))
    assert head == ["", "calls", "manager"]
    assert all(len(line) == 3 for line in lines)


def test_markdown_and_json() -> None:
    known = bench_report.facts("0.32.0", "0.1.0", ("wall", 55.0), 3)
    assert set(known) >= {"date", "commit", "cpu", "python", "vllm", "kvpool"}
    text = bench_report.markdown(known, [make_result(["pool, round 1: block ids differ from step 2 on"])])
    assert f"# KV-cache management inside vLLM, {known['date']}" in text
    assert "vLLM 0.32.0" in text
    assert "## decode, KV events on" in text
    assert "- **pool, round 1: block ids differ from step 2 on**" in text
    assert "| append | 10 | 18 us (18 us) | 2 us (2 us) | 9.00x |" in text
    table = bench_report.rich_table(make_result())
    assert table.row_count == len(PHASES) + 4
    plain = bench_report.as_json(known, [make_result()])
    assert plain["results"][0]["levels"]["manager"]["phases"]["append"] == pytest.approx(2e-6)
    assert "preemptions" in bench_report.describe(make_result())


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (2.5, "2.5 s"), (1234.0, "1234 s"), (0.0123, "12.3 ms"), (4.2e-6, "4.2 us"), (0.0009999, "1000 us")],
)
def test_seconds(value: float, text: str) -> None:
    assert bench_report.seconds(value) == text


# --- The driver -------------------------------------------------------------------------------------------------------


class Status(enum.IntEnum):
    WAITING = 1
    RUNNING = 2
    PREEMPTED = 3
    FINISHED_LENGTH_CAPPED = 4


class Request:
    """As much of vLLM's Request as the driver touches."""

    def __init__(self, name: str, prompt: list[int], sampling: Any, _: None, arrival_time: float, block_hasher: Any):
        self.request_id = name
        self.tokens = list(prompt)
        self.num_prompt_tokens = len(prompt)
        self.max_tokens = sampling.max_tokens
        self.status = Status.WAITING
        self.num_computed_tokens = self.num_output_placeholders = self.num_in_flight_tokens = 0
        self.num_stale_output_tokens = self.num_preemptions = self.num_output_tokens = 0
        self.is_prefill_chunk = self.drop_stale_output = False
        self.shared_prefix_boundary = 0
        self.stats: object | None = object()

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_tokens_with_spec(self) -> int:
        return len(self.tokens)

    def append_output_token_ids(self, token: int) -> None:
        self.tokens.append(token)
        self.num_output_tokens += 1

    def take_prefill_stats(self) -> object | None:
        stats, self.stats = self.stats, None
        return stats


class Blocks:
    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def get_block_ids(self, allow_none: bool = False) -> tuple[list[int]] | None:
        return None if allow_none and not self.ids else (self.ids,)


class Manager:
    """Blocks of 16 tokens without a cache."""

    def __init__(self, num_blocks: int) -> None:
        self.free_ids = list(range(1, num_blocks))
        self.tables: dict[str, list[int]] = {}
        self.usage = 0.0
        self.block_pool = self

    def new_step_starts(self) -> None: ...
    def take_boundary_state_offloads(self) -> dict[str, Any]:
        return {}

    def take_kv_cache_block_copies(self) -> tuple[list[Any], list[Any]]:
        return [], []

    def take_new_block_ids(self) -> list[int]:
        return []

    def take_events(self) -> list[Any]:
        return []

    def make_prefix_cache_stats(self) -> None: ...
    def record_prefix_cache_stats(self, request: Request, hits: int) -> None: ...
    def estimate_cached_tokens(self, request: Request) -> int:
        return 0

    def cache_blocks(self, request: Request, tokens: int) -> None:
        assert tokens <= request.num_tokens

    def get_computed_blocks(self, request: Request) -> tuple[Blocks, int, int]:
        return Blocks([]), 0, 0

    def get_blocks(self, name: str) -> Blocks:
        return Blocks(list(self.tables[name]))

    def allocate_slots(self, request: Request, tokens: int, **others: Any) -> Blocks | None:
        table = self.tables.get(request.request_id, [])
        whole = request.num_tokens if others.get("full_sequence_must_fit") else 0
        needed = -(-max(request.num_computed_tokens + tokens, whole) // 16) - len(table)
        if needed > len(self.free_ids):
            return None
        count = max(0, -(-(request.num_computed_tokens + tokens) // 16) - len(table))
        new, self.free_ids = self.free_ids[:count], self.free_ids[count:]
        self.tables[request.request_id] = table + new
        return Blocks(new)

    def free(self, request: Request) -> None:
        self.free_ids += self.tables.pop(request.request_id, [])


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = types.SimpleNamespace(SamplingParams=types.SimpleNamespace)
    for name, module in (
        ("vllm", types.ModuleType("vllm")),
        ("vllm.v1", types.ModuleType("vllm.v1")),
        ("vllm.v1.request", types.SimpleNamespace(Request=Request, RequestStatus=Status)),
        ("vllm.sampling_params", sampling),
    ):
        monkeypatch.setitem(sys.modules, name, module)


def drive(load: Load, **more: Any) -> tuple[Run, Manager]:
    manager = Manager(load.num_blocks)
    return Driver(load, manager, None, events=True, **more).run(lambda _: None), manager


@pytest.mark.usefixtures("vllm")
def test_calls_are_timed_with_the_clock_that_was_asked_for() -> None:
    # A clock that counts its readings: every call that is timed takes one. A collection of garbage reads it, too.
    load = Load("x", "", bench_loads.unique(9, 40, 20), max_running=4, num_blocks=64, token_budget=64)
    gc.disable()
    try:
        run, _ = drive(load, clock=itertools.count().__next__)
    finally:
        gc.enable()
    timings = run.timings
    phases = (bench_stats.HASH, bench_stats.APPEND, bench_stats.LOOKUP, bench_stats.DECODE, bench_stats.EVENTS)
    assert all(timings.calls[phase] for phase in phases)
    assert [timings.spent[phase] for phase in phases] == [timings.calls[phase] for phase in phases]


@pytest.mark.usefixtures("vllm")
def test_driver_finishes_every_request() -> None:
    load = Load("x", "", bench_loads.unique(9, 40, 20), max_running=4, num_blocks=64, token_budget=64)
    run, manager = drive(load)
    assert (run.counts.requests, run.counts.output_tokens) == (9, 180)
    assert (run.counts.preemptions, run.counts.prompt_tokens) == (0, 360)
    assert len(manager.free_ids) == 63
    assert not manager.tables
    assert len(run.ledger) == run.counts.steps == len(run.timings.steps)
    assert run.timings.calls[bench_stats.LOOKUP] == run.timings.calls[bench_stats.FREE] == 9
    assert drive(load)[0].ledger == run.ledger


@pytest.mark.usefixtures("vllm")
def test_driver_preempts_and_goes_on() -> None:
    load = Load("x", "", bench_loads.unique(12, 40, 60), max_running=6, num_blocks=24, token_budget=64)
    run, manager = drive(load)
    assert run.counts.preemptions > 0
    assert run.counts.refusals > 0
    # A token that was under way when its request was preempted still counts.
    assert (run.counts.requests, run.counts.output_tokens) == (12, 720)
    assert len(manager.free_ids) == 23


@pytest.mark.usefixtures("vllm")
def test_driver_times_the_steps_that_it_is_asked_for() -> None:
    jobs = bench_loads.unique(4, 40, 50)
    load = Load("x", "", jobs, 4, num_blocks=64, warm=(Job((99,), 40, 40, 3),), skip_steps=5, steps=10)
    run, _ = drive(load)
    assert len(run.timings.steps) == run.counts.steps == 10
    assert run.timings.calls[bench_stats.LOOKUP] == 0
    assert run.timings.calls[bench_stats.APPEND] == run.counts.output_tokens == 40
    assert len(run.ledger) > 15  # what comes before is checked, too


@pytest.mark.usefixtures("vllm")
def test_driver_tells_of_a_pool_too_small() -> None:
    load = Load("x", "", bench_loads.unique(1, 400, 2), max_running=1, num_blocks=8)
    with pytest.raises(BenchError, match="x: nothing can run"):
        drive(load)


def test_check_level() -> None:
    ours = type("KVCacheManager", (), {"__module__": "kvpool.integrations.vllm.manager"})()
    theirs = type("KVCacheManager", (), {"__module__": "vllm.v1.core.kv_cache_manager"})()
    bench_run.check_level(STOCK, theirs, theirs)
    bench_run.check_level("pool", theirs, ours)
    bench_run.check_level("manager", ours, ours)
    with pytest.raises(BenchError, match="stock is not stock"):
        bench_run.check_level(STOCK, theirs, ours)
    with pytest.raises(BenchError, match="manager: vLLM's own objects"):
        bench_run.check_level("manager", theirs, ours)


# --- The command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "at least 1"),
        (["--load", "nothing"], "invalid choice"),
        (["--levels", "nothing"], "invalid choice"),
        (["--blocks", "1"], "at least 2"),
        (["--quic"], "unrecognized"),
    ],
)
def test_bad_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as failure:
        vllm_bench.main(arguments)
    assert failure.value.code == 2
    assert message in capsys.readouterr().err


def test_options() -> None:
    options = vllm_bench.parse(["--levels", "manager", "stock", "manager", "--quick", "--out"])
    assert (options.levels, options.rounds) == ([STOCK, "manager"], 1)
    assert options.out.name.endswith("-vllm.md")
    assert options.trace is None
    assert vllm_bench.parse([]).rounds == vllm_bench.ROUNDS


def test_without_vllm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "WARNING")
    monkeypatch.delenv("KVPOOL_VLLM", raising=False)
    assert vllm_bench.main(["--quick", "--load", "decode"]) == 1
    assert "vllm_bench: vLLM cannot be imported" in capsys.readouterr().err


def test_evaluate_compares_every_round_with_the_first_of_stock() -> None:
    load = make_load("decode", QUICK)
    runs: vllm_bench.Runs = {
        ("decode", False, STOCK): [make_run(), make_run()],
        ("decode", False, "pool"): [make_run(), make_run(ledger=(1, 2, 4))],
    }
    options = vllm_bench.parse(["--levels", STOCK, "pool"])
    (result,) = vllm_bench.evaluate([load], runs, options, 0.0)
    assert result.problems == ["pool, round 2: block ids differ from step 3 on"]
    assert result.heading == "decode, KV events off"
