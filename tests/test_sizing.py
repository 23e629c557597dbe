"""Tests sizing. Every estimator of hit rates gives the same result as a simulation that is written from
its definition.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvpool
from kvpool.cli import main
from kvpool.errors import InvalidArgumentError
from kvpool.models import kv_shape
from kvpool.sizing import (
    DEFAULT_POLICIES,
    POLICIES,
    References,
    Size,
    check_sizing,
    measure,
    sampled_lru,
    size,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kvpool._core import EvictionPolicy, SizingBlocks, SizingForm

B = 4


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Draws prompts of a few conversations. Blocks form a tree, and each prompt is a path from its
    root.
    """
    parents = [draw(st.integers(-1, block - 1)) for block in range(draw(st.integers(1, 12)))]

    def path(block: int) -> tuple[int, ...]:
        return (*path(parents[block]), block) if block >= 0 else ()

    return [path(draw(st.integers(0, len(parents) - 1))) for _ in range(draw(st.integers(1, 30)))]


def trace_of(prompts: list[tuple[int, ...]]) -> kvpool.traces.Trace:
    lines = (
        json.dumps(
            {"timestamp": 10 * at, "input_length": B * len(prompt), "output_length": 1, "hash_ids": prompt}
        )
        for at, prompt in enumerate(prompts)
    )
    return kvpool.traces.Trace.parse("\n".join(lines).encode(), block_tokens=B)


def lru_of(prompts: list[tuple[int, ...]], capacity: int, form: SizingForm) -> int:
    """Returns the hits of an LRU cache. The model is a list with the least recently used block first."""
    cached: list[int] = []
    hits = 0
    for prompt in prompts:
        found = next((at for at, block in enumerate(prompt) if block not in cached), len(prompt))
        hits += found
        held = prompt[:capacity] if form == "pool" else ()
        for block in reversed(held or prompt):
            if block in cached:
                cached.remove(block)
            elif len(cached) == capacity:
                cached.remove(next(old for old in cached if old not in held))
            cached.append(block)
    return hits


@given(workloads(), st.integers(1, 14), st.sampled_from(["pool", "stream"]))
def test_lru_is_the_model_in_both_forms(
    prompts: list[tuple[int, ...]], capacity: int, form: SizingForm
) -> None:
    references = References(trace_of(prompts))
    assert references.run("lru", capacity, form=form).block_hits == lru_of(prompts, capacity, form)


def in_a_pool(prompts: list[tuple[int, ...]], capacity: int, policy: EvictionPolicy) -> tuple[int, int]:
    """Returns the hits and the evictions if a real pool serves these prompts."""
    trace = trace_of(prompts)
    replay = kvpool.traces.Replay(
        trace, mode="lookup", block_size=B, capacity_blocks=capacity, eviction=policy, threads=1
    )
    replay.advance()
    report = json.loads(replay.report_json())
    return report["hits"]["block_hits"], report["evicted"]


def in_the_grid(references: References, capacity: int, policy: EvictionPolicy) -> tuple[int, int | None]:
    """Returns the hits and the evictions that sizing computes on its fast path, without a pool."""
    run = references.run(policy, capacity)
    return run.block_hits, run.evictions


@given(workloads(), st.integers(1, 14))
def test_the_pool_form_is_what_the_pool_does(prompts: list[tuple[int, ...]], capacity: int) -> None:
    references = References(trace_of(prompts))
    for policy in POLICIES:
        if policy != "hazard":
            assert in_the_grid(references, capacity, policy) == in_a_pool(prompts, capacity, policy), policy


@st.composite
def documents(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Draws beginnings of a few texts. Two texts share no block, but a text may occur several times."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
    begins = [sum(lengths[:at]) for at in range(len(lengths))]
    texts = [tuple(range(begin, begin + length)) for begin, length in zip(begins, lengths, strict=True)]
    read = st.sampled_from(texts).flatmap(lambda text: st.integers(1, len(text)).map(lambda end: text[:end]))
    return draw(st.lists(read, min_size=1, max_size=40))


@given(documents(), st.integers(1, 14))
def test_hazard_is_what_the_pool_does_where_one_content_follows_another(
    prompts: list[tuple[int, ...]], capacity: int
) -> None:
    """The policy "hazard" records evicted blocks. A record has two bits of the key of the next block.
    Sizing uses other keys than a pool, so the two could confuse different blocks. If only one
    content can follow each block, they confuse none, or the same.
    """
    grid = in_the_grid(References(trace_of(prompts)), capacity, "hazard")
    named = ([tuple(1000 * name + block for block in prompt) for prompt in prompts] for name in range(2000))
    assert any(in_a_pool(prompts, capacity, "hazard") == grid for prompts in named), grid


@given(workloads(), st.integers(1, 14))
def test_no_policy_beats_the_optimum(prompts: list[tuple[int, ...]], capacity: int) -> None:
    references = References(trace_of(prompts))
    best = references.optimal(capacity).block_hits
    ceiling = references.references - references.unique_blocks
    assert best <= ceiling
    for policy in POLICIES:
        for form in ("pool", "stream"):
            run = references.run(policy, capacity, form=form)
            assert run.block_hits <= best, (policy, form)
            if capacity >= references.unique_blocks:
                assert (run.block_hits, run.evictions) == (ceiling, 0), (policy, form)


@given(workloads(), st.integers(1, 14), st.floats(0, 1))
def test_hints_help_and_never_beat_the_optimum(
    prompts: list[tuple[int, ...]], capacity: int, accuracy: float
) -> None:
    references = References(trace_of(prompts))
    told = references.lru_with_hints(capacity, accuracy).block_hits
    assert references.lru_with_hints(capacity, 0.0).block_hits <= told
    assert (
        told <= references.lru_with_hints(capacity, 1.0).block_hits <= references.optimal(capacity).block_hits
    )


@given(workloads(), st.sampled_from(["all", "full"]))
def test_a_report_is_consistent(prompts: list[tuple[int, ...]], blocks: Literal["all", "full"]) -> None:
    trace = trace_of(prompts)
    seen: list[tuple[int, int]] = []
    report = size(
        trace,
        policies=["lru", "arc"],
        capacities=["50%", "3", "1000"],
        blocks=blocks,
        shape=kv_shape("llama-3.1-8b"),
        prefill_tokens_per_s=100.0,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert json.loads(json.dumps(report)) == report
    sizes = [capacity["blocks"] for capacity in report["capacities"]]
    assert sizes == sorted(set(sizes))
    assert seen == [(done + 1, 2 * len(sizes)) for done in range(2 * len(sizes))]
    curve = References(trace, blocks=blocks).lru()
    lru = next(policy for policy in report["policies"] if policy["name"] == "lru")
    # In a pool, a running request holds its blocks until it ends. That makes no difference to the hits if all
    # blocks of the request fit into the pool.
    longest = max(map(len, prompts))
    for blocks_of_size, hits in zip(sizes, lru["hits"], strict=True):
        if blocks_of_size >= longest:
            assert hits["block_hit_rate"] == curve.at(blocks_of_size)[0]
    assert all(one["block_hit_rate"] <= report["trace"]["ideal"]["block"] + 1e-12 for one in lru["hits"])
    assert sum(step["hit_tokens"] for step in report["worth"]) == B * sum(
        len(set(prompt) & {block for earlier in prompts[:at] for block in earlier})
        for at, prompt in enumerate(prompts)
    )
    assert report["over_time"] is not None
    assert (
        size(trace, policies=["arc"], jobs=1)["policies"][0]["hits"]
        == size(trace, policies=["arc"], jobs=7)["policies"][0]["hits"]
    )


@given(workloads(), st.sampled_from(["all", "full"]), st.sampled_from([None, 100]))
def test_a_sample_of_everything_is_exact(
    prompts: list[tuple[int, ...]], blocks: SizingBlocks, most: int | None
) -> None:
    trace = trace_of(prompts)
    sampled, exact = (
        sampled_lru(trace, max_blocks=most, blocks=blocks),
        References(trace, blocks=blocks).lru(),
    )
    assert (sampled.sample_rate, exact.sample_rate) == (1.0, 1.0)
    assert sampled.references == exact.references == sum(map(len, prompts))
    assert [sampled.at(capacity) for capacity in range(16)] == [exact.at(capacity) for capacity in range(16)]


@pytest.mark.parametrize("blocks", ["all", "full"])
def test_a_tenth_of_the_blocks_is_close(blocks: Literal["all", "full"]) -> None:
    """If a tenth of the blocks is sampled, each rate in a report differs by at most 1.5 points."""
    trace = kvpool.traces.Trace.generate(40_000, seed=5)
    references = References(trace, blocks=blocks)
    exact, most = references.lru(), references.unique_blocks // 10
    capacities = [references.unique_blocks * percent // 100 for percent in (1, 2, 5, 10, 20, 30, 40, 50)]
    # The exact rates at these sizes differ by more than the allowed 1.5 points, so a wrong estimate fails.
    assert exact.at(capacities[-1])[0] - exact.at(capacities[0])[0] > 0.08
    estimates = [sampled_lru(trace, max_blocks=most, seed=seed, blocks=blocks) for seed in range(5)]
    estimates.append(sampled_lru(trace, rate=0.1, blocks=blocks))
    for estimate in estimates:
        assert 0.09 < estimate.sample_rate < 0.11
        assert estimate.references == exact.references
        for capacity in capacities:
            assert estimate.at(capacity) == pytest.approx(exact.at(capacity), abs=0.015)
    curves = {tuple(estimate.at(capacities[0])) for estimate in estimates}
    assert len(curves) == len(estimates)  # each seed picks another sample


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": 0.0}, "rate is 0; allowed: above 0, at most 1"),
        ({"rate": 1.5}, "rate is 1.5; allowed: above 0, at most 1"),
        ({"max_blocks": 0}, "max_blocks is 0; allowed: 1 to 1073741824"),
        ({"max_blocks": -1}, "max_blocks is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"blocks": "some"}, "blocks is some; allowed: all or full"),
    ],
)
def test_a_sample_that_is_none(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        sampled_lru(kvpool.traces.Trace.generate(5), **arguments)


@given(workloads(), st.sampled_from(["all", "full"]), st.integers(1, 20))
def test_a_report_from_a_sample_is_consistent(
    prompts: list[tuple[int, ...]], blocks: Literal["all", "full"], most: int
) -> None:
    """Counted numbers equal those of the report without sampling. Estimated numbers equal them only if
    the sample contains everything.
    """
    trace = trace_of(prompts)
    asked: Any = {"capacities": ["50%", "3", "1000"], "blocks": blocks, "shape": kv_shape("llama-3.1-8b")}
    found, whole = (size(trace, policies=["lru"], sample_blocks=sample, **asked) for sample in (most, None))
    assert json.loads(json.dumps(found)) == found
    assert (found["policies"], found["optimum"], found["hints"], found["over_time"]) == ([], None, [], None)
    assert whole["sample"] is None
    assert found["sample"] is not None
    assert found["sample"]["most_blocks"] == most
    curve = {point["blocks"]: point["block_hit_rate"] for point in found["lru_curve"]}
    assert list(curve) == sorted(curve)
    estimate = sampled_lru(trace, max_blocks=most, blocks=blocks)
    for capacity in found["capacities"]:
        assert curve.get(capacity["blocks"], 0.0) == estimate.at(capacity["blocks"])[0]
    for part in ("requests", "block_size", "references", "tokens_in", "span_s"):
        assert found["trace"][part] == whole["trace"][part]
    assert found["trace"]["ideal"]["block"] == pytest.approx(whole["trace"]["ideal"]["block"])
    if most >= whole["trace"]["unique_blocks"]:
        assert found["sample"]["rate"] == 1
        assert found["trace"]["unique_blocks"] == whole["trace"]["unique_blocks"]
        for share in ("token", "full_blocks"):
            ideal = whole["trace"]["ideal"][share]
            assert found["trace"]["ideal"][share] == pytest.approx(ideal)
        assert found["capacities"] == whole["capacities"]
        assert found["knee"] == whole["knee"]
        assert found["worth"] == whole["worth"]
        assert found["reuse_distances"] == whole["reuse_distances"]


@pytest.mark.parametrize("blocks", ["all", "full"])
def test_a_sample_of_all_blocks_says_what_the_full_report_says(blocks: Literal["all", "full"]) -> None:
    """The trace of this test has partial last blocks.

    So the rates over blocks, full blocks and tokens differ.
    """
    asked: Any = {"policies": ["lru"], "hints": [], "blocks": blocks, "shape": kv_shape("llama-3.1-8b")}
    trace = kvpool.traces.Trace.generate(300)
    found, whole = (size(trace, sample_blocks=sample, **asked) for sample in (10_000, None))
    ideal = found["trace"]["ideal"]
    assert len({ideal["block"], ideal["token"], ideal["full_blocks"]}) == 3
    assert ideal == pytest.approx({**whole["trace"]["ideal"], "last_half": None})
    for part in ("capacities", "model", "sample"):
        assert (found[part] == whole[part]) == (part != "sample")
    assert {**found["trace"], "ideal": None} == {**whole["trace"], "ideal": None}
    exact = References(trace, blocks=blocks).lru()
    for point in found["lru_curve"]:
        # Reuse distances above 512 are counted in ranges that are 0.4 % wide, so rates may differ
        # slightly.
        rates = (point["block_hit_rate"], point["token_hit_rate"])
        assert rates == pytest.approx(exact.at(point["blocks"]), abs=0.005)


@pytest.mark.parametrize("most", [0, -3, 2**30 + 1])
def test_a_sample_of_no_blocks_or_too_many(most: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"sample_blocks is {most}: must be 1 to 1073741824"):
        size(kvpool.traces.Trace.generate(5), sample_blocks=most)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf"), float("nan")])
def test_a_speed_of_prefill_that_is_none(speed: float) -> None:
    with pytest.raises(InvalidArgumentError, match="prefill_tokens_per_s is"):
        size(kvpool.traces.Trace.generate(5), prefill_tokens_per_s=speed)


def test_the_command_says_that_it_is_a_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    asked = [
        "size",
        "--limit",
        "400",
        "--sample-blocks",
        "500",
        "--capacities",
        "1%,10%,2000",
        "--no-progress",
    ]
    assert main([*asked, "--html", str(page), "--png", str(picture), "--model", "llama-3.1-8b"]) == 0
    table = capsys.readouterr().out
    for words in (
        "500 at most",
        "Estimated block hit rate, %",
        "lru, sample",
        "What memory buys",
        "are estimates",
    ):
        assert words in table
    for words in ("optimum", "Resident turnover", "hints", "simulations"):
        assert words not in table
    written = page.read_text(encoding="utf-8")
    for words in ("Estimated from a sample: ", "500 at most", "LRU, every capacity (estimated)"):
        assert words in written
    for words in ("Policies by capacity", "Resident turnover", "clairvoyant", "no accuracy"):
        assert words not in written
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([*asked, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sample"]["most_blocks"] == 500
    assert 0 < report["sample"]["rate"] < 1
    assert main(["size", "--limit", "20", "--sample-blocks", "0"]) == 2
    assert "--sample-blocks" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "x%", "-1%", "0", "0%", "1.5", "1.5 blocks", "nan", "inf%", "1e400", "5%%", "..%"]
)
def test_a_size_that_is_none(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="must be like 5%, 60GiB or 9139"):
        Size.parse(text)


def test_sizes_in_gib_need_a_model_and_all_have_a_limit() -> None:
    with pytest.raises(InvalidArgumentError, match="needs a KV shape"):
        Size.parse("1 GiB").blocks(unique_blocks=10, bytes_per_block=None)
    with pytest.raises(InvalidArgumentError, match="at most 4,294,967,288"):
        Size.parse("1e12").blocks(unique_blocks=10, bytes_per_block=None)
    assert Size.parse("5").blocks(unique_blocks=10, bytes_per_block=None) == 5
    assert Size.parse("0.001%").blocks(unique_blocks=10, bytes_per_block=None) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "mru"], "error: --policies is 'mru': must be one of lru, s3-fifo, arc,"),
        (["--policies", ""], "error: --policies is '': there is nothing between two commas"),
        (["--policies", "lru,last-accessed"], "error: --policies is 'last-accessed': must be one of lru,"),
        (["--capacities", "5%,much"], "error: --capacities is 'much': must be like 5%, 60GiB or 9139"),
        (
            ["--capacities", "5GiB"],
            "error: --capacities is in GiB: that needs a KV shape, name a model\n"
            "hint: add --model NAME (kvpool models",
        ),
        (["--hints", "often"], "error: --hints is 'often': must be shares of 0 to 1, by commas, or none"),
        (["--hints", "1.5"], "error: --hints is 1.5; allowed: 0 to 1"),
        (["--hints", "nan"], "error: --hints is nan; allowed: 0 to 1"),
        (["--form", "best"], "error: --form is 'best': must be one of pool, stream"),
        (["--prefill-tokens-per-s", "5"], "error: --prefill-tokens-per-s needs the KV shape of a model"),
        (
            ["--prefill-tokens-per-s", "0", "--model", "llama-3.1-8b"],
            "error: --prefill-tokens-per-s is 0.0: must be",
        ),
        (["--html", "page.txt"], "error: --html page.txt: the name must end in .html"),
        (
            ["--png", "nowhere/at/all.png"],
            "error: --png nowhere/at/all.png: there is no directory nowhere/at",
        ),
    ],
)
def test_bad_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["size", "--limit", "20", "--no-progress", *arguments])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert captured.err.startswith(message)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--capacities", "60GiB"],
        ["--capacities", "5%,much"],
        ["--policies", "mru"],
        ["--hints", "0.5,2"],
        ["--prefill-tokens-per-s", "5"],
        ["--html", "page.txt"],
    ],
)
def test_what_is_refused_is_refused_before_anything_is_read_or_shown(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Invalid arguments are refused before the trace is read and before progress is shown. The trace
    cannot be read, which would be another error.
    """
    assert main(["size", str(tmp_path / "none"), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    error, *hints = captured.err.splitlines()
    assert error.startswith("error: --")
    assert all(hint.startswith("hint: ") for hint in hints)


def test_a_refusal_that_needs_the_trace_leaves_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "--limit", "20", "--capacities", "1e12"]) == 2
    assert (
        capsys.readouterr().err
        == "error: --capacities is 1,000,000,000,000 blocks: must be at most 4,294,967,288\n"
    )
    assert main(["size", "--limit", "20", "--hints", "none", "--policies", "lru"]) == 0
    assert "8/8 simulations" in capsys.readouterr().err


def test_the_library_checks_before_it_reads() -> None:
    trace = kvpool.traces.Trace.generate(5)
    told: list[int] = []
    wrong: list[dict[str, Any]] = [
        {"hints": [0.5, 1.5]},
        {"capacities": ["1GiB"]},
        {"policies": ["mru"]},
        {"capacities": []},
    ]
    for asked in wrong:
        with pytest.raises(InvalidArgumentError):
            check_sizing(**asked)
        with pytest.raises(InvalidArgumentError):
            size(trace, **asked, progress=lambda done, _: told.append(done))
    assert told == []
    assert check_sizing(capacities=["5%", Size(3, "blocks")]) == [Size(5, "%"), Size(3, "blocks")]


def test_progress_of_cells_equals_progress_of_work() -> None:
    """Policies differ in cost by a factor of twenty. The order of the simulations has to mix them, so
    that at any time the share of finished simulations is close to the share of finished work.
    """
    cost = dict.fromkeys(DEFAULT_POLICIES, 1.0) | {"adaptive": 20.0}
    by_capacity = [1.6, 1.4, 1.2, 1.1, 1.0, 0.9, 0.8, 0.7]
    capacities = [10 * (place + 1) for place in range(8)]
    cells = measure._spread(DEFAULT_POLICIES, capacities)
    assert sorted(cells) == sorted((policy, blocks) for policy in DEFAULT_POLICIES for blocks in capacities)
    work = [cost[policy] * by_capacity[blocks // 10 - 1] for policy, blocks in cells]
    for done in range(len(cells) // 8, len(cells)):
        estimate = sum(work[:done]) * len(cells) / done
        assert estimate == pytest.approx(sum(work), rel=0.35), done
    in_order = [cost[policy] * share for policy in DEFAULT_POLICIES for share in by_capacity]
    assert sum(in_order[:24]) * 40 / 24 < 0.4 * sum(work)  # the cause of the wrong estimate "4 s left" of 52


def test_the_grid_is_run_in_that_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, int]] = []
    references = References

    class Noted:
        def __init__(self, *arguments: Any, **named: Any) -> None:
            self._inner = references(*arguments, **named)

        def run(self, policy: EvictionPolicy, blocks: int, *, form: SizingForm) -> Any:
            ran.append((policy, blocks))
            return self._inner.run(policy, blocks, form=form)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    monkeypatch.setattr(measure, "References", Noted)
    monkeypatch.setattr(measure, "_over_time", lambda *_: None)
    found = size(
        kvpool.traces.Trace.generate(100),
        policies=["lru", "arc"],
        capacities=["9", "5", "7", "3"],
        hints=[],
        jobs=1,
    )
    assert ran == [(policy, blocks) for blocks in (7, 3, 9, 5) for policy in ("lru", "arc")]
    assert [capacity["blocks"] for capacity in found["capacities"]] == [3, 5, 7, 9]


def test_no_column_without_figures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Columns with seconds are printed only if the speed of prefill is known. Otherwise the output
    explains how to pass it.
    """
    page = tmp_path / "page.html"
    asked = [
        "size",
        "--limit",
        "60",
        "--no-progress",
        "--hints",
        "none",
        "--policies",
        "lru",
        "--model",
        "gpt-2",
    ]
    for speed in ([], ["--prefill-tokens-per-s", "1000"]):
        assert main([*asked, *speed, "--html", str(page)]) == 0
        memory = (
            capsys.readouterr().out.partition("What memory buys")[2].partition("What the figures mean")[0]
        )
        assert ("seconds  " in memory.partition("──")[0]) == bool(speed)
        assert ("add --prefill-tokens-per-s N" in memory) == (not speed)
        assert ("prefill saved" in page.read_text(encoding="utf-8")) == bool(speed)


def test_the_command_writes_what_the_library_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    asked = ["--policies", "lru,s3-fifo", "--capacities", "10%,300", "--hints", "none", "--no-progress"]
    assert main(["size", "--limit", "200", *asked, "--json", "--html", str(page)]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    expected: Any = size(
        kvpool.traces.Trace.generate(200),
        policies=["lru", "s3-fifo"],
        capacities=["10%", "300"],
        hints=[],
        source="generated",
    )
    for report in (found, expected):
        del report["elapsed_s"], report["peak_memory_bytes"]
        for policy in report["policies"]:
            del policy["seconds"]
    assert found == expected
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert main(["size", "--limit", "200", *asked, "--model", "llama-3.1-8b"]) == 0
    table = capsys.readouterr().out
    for words in ("Block hit rate, %", "optimum", "s3-fifo", "Knee of the LRU curve", "What memory buys"):
        assert words in table


def ending(*, told: bool) -> bytes:
    """Makes a trace of agents. Sessions that call tools return after a while, and sessions whose turn
    ends normally do not. The prompts of both kinds look alike.
    """
    lines = []
    for at in range(3000):
        comes_back = at % 3 == 0
        # One in three requests is new or repeats the prompt of 120 requests before. The prompts of the
        # others are used only once.
        number = at % 120 + 120 * (at // 240) if comes_back else 100_000 + at
        line = {
            "timestamp": 100 * at,
            "session_id": str(number),
            "input_length": 12 * B,
            "output_length": 9,
            "hash_ids": list(range(12 * number, 12 * number + 12)),
        }
        if told and at % 10:
            line["finish_reason"] = "tool_calls" if comes_back else "stop"
        lines.append(json.dumps(line))
    return "\n".join(lines).encode()


def test_what_the_finish_reason_is_worth_is_the_difference_to_a_trace_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: Any = {"policies": ["lru", "hazard"], "capacities": ["500", "800"], "hints": []}
    told, untold = (
        size(kvpool.traces.Trace.parse(ending(told=told), block_tokens=B), **asked) for told in (True, False)
    )
    assert untold["finish_reasons"] is None
    reasons = told["finish_reasons"]
    assert reasons is not None
    assert (reasons["policy"], reasons["requests"]) == ("hazard", 2700)
    assert reasons["without"] == untold["policies"][1]["hits"]
    assert told["policies"][0]["hits"] == untold["policies"][0]["hits"]
    gains = [
        100 * (one["block_hit_rate"] - less["block_hit_rate"])
        for one, less in zip(told["policies"][1]["hits"], reasons["without"], strict=True)
    ]
    assert max(gains) > 1.0, gains
    assert (
        size(kvpool.traces.Trace.parse(ending(told=True), block_tokens=B), policies=["lru"])["finish_reasons"]
        is None
    )

    trace = tmp_path / "ending.jsonl"
    trace.write_bytes(ending(told=True))
    command = [
        "size",
        str(trace),
        "--trace-block-size",
        str(B),
        "--policies",
        "lru,hazard",
        "--capacities",
        "500,800",
    ]
    assert main([*command, "--hints", "none", "--no-progress"]) == 0
    points = " ".join(f"{gain:+.2f}" for gain in gains)
    line = (
        f"What the finish reason is worth here, hazard, points: {points} (2,700 of 3,000 requests have one)."
    )
    assert line in " ".join(capsys.readouterr().out.split())
