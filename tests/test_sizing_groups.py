"""Tests the sizing of hybrid models. Each size is a replay with the model's groups. The table, the page
and the JSON show its results.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.cli import main
from kvpool.cli.sizing_html import render
from kvpool.cli.sizing_html.plots import figures_of
from kvpool.errors import InvalidArgumentError
from kvpool.models import KvShape, kv_shape
from kvpool.models.layers import attention, mamba1
from kvpool.sizing import group_runs, parse_keep, size
from kvpool.sizing.grouped import group_arguments
from tests.command import json_of
from tests.made_up_sizing import made_up

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("plain_output")

#: A model of four groups with two layers each. One has full attention, and three have windows of two
#: blocks of the trace.
WINDOWS = KvShape("windows", (attention(2, 1, 64), attention(6, 1, 64, window=1024)))
#: A model with one layer of full attention and two with states, whose blocks need 256 tokens.
STATES = KvShape("states", (attention(1, 1, 64), mamba1(2, inner=1024, state=29, kernel=4)))


@pytest.fixture(scope="module")
def trace() -> kvpool.traces.Trace:
    return kvpool.traces.Trace.generate(200, seed=5)


def sized(trace: kvpool.traces.Trace, shape: KvShape, **more: Any) -> Any:
    return size(trace, policies=["lru"], capacities=["5%", "200%"], hints=[], shape=shape, **more)


@pytest.mark.parametrize("shape", [WINDOWS, STATES])
def test_each_size_is_a_replay_with_the_groups(trace: kvpool.traces.Trace, shape: KvShape) -> None:
    report = sized(trace, shape, keep=2048)
    groups = report["groups"]
    made = shape.groups(16 if shape.bytes_per_state else 64)
    assert groups["block_bytes"] == made.block_bytes
    assert [run["gib"] for run in groups["sizes"]] == [capacity["gib"] for capacity in report["capacities"]]
    for run in groups["sizes"]:
        assert run["blocks"] == int(run["gib"] * 2**30) // made.block_bytes
        replay = kvpool.traces.Replay(trace, capacity_blocks=run["blocks"], **group_arguments(made, 2048))
        while replay.advance() < replay.total:
            pass
        replay.check_invariants()
        by_hand = json.loads(replay.report_json())
        assert run["token_hit_rate"] == by_hand["token_hit_rate"]
        assert run["evictions"] == by_hand["evicted"]
        assert run["checkpoints"] == by_hand["checkpoints"]
        rates = [group["reach_rate"] for group in by_hand["groups"]]
        assert run["alone"] == [rates[0], min(rates[1:])]
        assert run["token_hit_rate"] <= min(run["alone"])
    small, large = groups["sizes"]
    assert small["token_hit_rate"] < large["token_hit_rate"]
    assert large["evictions"] == 0


def test_windows_make_more_of_the_same_memory(trace: kvpool.traces.Trace) -> None:
    groups = sized(trace, WINDOWS)["groups"]
    small, large = groups["sizes"]
    assert small["token_hit_rate"] > small["in_full_rate"]
    # The large size has room for everything. So its rate cannot exceed the ideal rate of the trace.
    ceiling = json.loads(trace.stats_json())["ideal_token_hit_rate"]
    assert large["in_full_rate"] <= ceiling
    assert large["token_hit_rate"] <= large["in_full_rate"]
    assert [group["groups"] for group in groups["groups"]] == [1, 3]


def test_spacing_has_each_way_to_keep_once(trace: kvpool.traces.Trace) -> None:
    windows, states = sized(trace, WINDOWS)["groups"], sized(trace, STATES, keep="all")["groups"]
    assert [run["keep"] for run in windows["spacing"]] == ["all", 512, 1024, 2048, 4096, "junctions"]
    block = STATES.groups(16).groups[0].block_tokens
    rounded = [-(-tokens // block) * block for tokens in (512, 1024, 2048, 4096)]
    assert [run["keep"] for run in states["spacing"]] == ["all", *dict.fromkeys(rounded), "junctions"]
    assert len({run["gib"] for run in windows["spacing"]}) == 1
    # If the setting keeps fewer recurrent states, fewer states are copied.
    kept = [run["checkpoints"] for run in states["spacing"]]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > kept[-1] > 0


def test_results_do_not_depend_on_threads_and_progress_counts_requests(trace: kvpool.traces.Trace) -> None:
    seen: list[tuple[int, int]] = []
    capacities = sized(trace, WINDOWS)["capacities"]
    asked: dict[str, Any] = {"unique_blocks": trace.summary()["unique_blocks"]}
    runs = [group_runs(trace, WINDOWS, capacities, jobs=jobs, **asked) for jobs in (1, 3)]
    told = group_runs(
        trace, WINDOWS, capacities, progress=lambda done, all_: seen.append((done, all_)), **asked
    )
    assert all(run is not None for run in runs)
    assert [{**(run or {}), "seconds": 0} for run in runs] == [{**(told or {}), "seconds": 0}] * 2
    total = (2 + 5 + 2) * 200
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_model_of_one_group_has_no_runs(trace: kvpool.traces.Trace) -> None:
    assert sized(trace, kv_shape("gpt-2"))["groups"] is None
    assert sized(trace, kv_shape("Mistral-7B-v0.1"))["groups"] is None
    assert size(trace, shape=WINDOWS, sample_blocks=100)["groups"] is None


def test_what_cannot_be_run_is_refused(trace: kvpool.traces.Trace) -> None:
    with pytest.raises(InvalidArgumentError, match="must hold a block of"):
        size(trace, policies=["lru"], capacities=["1"], hints=[], shape=kv_shape("Qwen3-Next-80B-A3B"))
    with pytest.raises(InvalidArgumentError, match="keeps states alone"):
        sized(trace, KvShape("pure", (mamba1(4, inner=8, state=2),)))
    for wrong in ("", "0", "-1", "1.5", "some", "9" * 20):
        with pytest.raises(InvalidArgumentError, match="must be all, junctions, or a number"):
            parse_keep(wrong)
    for groups, message in (
        ([("round", 16, 0, None)], 'kind is "round"'),
        ([("full", 16, 0, "some")], 'keep is "some"'),
        ([("sliding", 16, 0, None)], "window is 0"),
        ([], "groups is 0"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            kvpool.traces.Replay(trace, groups=groups)


def test_the_command_prints_the_tables_and_the_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    asked = ["size", "--limit", "60", "--model", "qwen3-next-80b-a3b", "--policies", "lru", "--hints", "none"]
    asked += ["--capacities", "2GiB,40GiB", "--html", str(page)]
    printed = json_of(capsys, *asked)
    groups = printed["groups"]
    assert [run["gib"] for run in groups["sizes"]] == [
        pytest.approx(2, rel=0.01),
        pytest.approx(40, rel=0.01),
    ]
    assert main([*asked, "--no-progress"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    assert "groups full, 3 x state; keep junctions" in flat
    assert "What checkpoint spacing buys" in flat
    for run in (*groups["sizes"], *groups["spacing"]):
        assert f"{100 * run['token_hit_rate']:.2f}" in text
        assert f"{run['checkpoints']:,}" in text
    assert "full alone would reach" in flat
    assert "all layers in full" in flat
    html = page.read_text(encoding="utf-8")
    assert "Hit rate of Qwen3-Next-80B-A3B by memory" in html
    assert 'id="spacing"' in html
    assert main(["size", "--model", "gemma-3-1b", "--keep", "some"]) == 2
    assert "--keep is 'some'" in capsys.readouterr().err


def test_the_page_shows_groups_of_hybrid_models_alone(trace: kvpool.traces.Trace) -> None:
    plain, hybrid = made_up(), sized(trace, WINDOWS)
    assert not {"groups", "spacing"} & {figure.key for figure in figures_of(plain)[0]}
    figures = {figure.key: figure for figure in figures_of(hybrid)[0]}
    by_memory, spacing = figures["groups"], figures["spacing"]
    assert [series.name for series in by_memory.series] == [
        "all together",
        "full alone",
        "windows alone",
        "every layer in full",
    ]
    assert by_memory.series[0].y == tuple(100 * run["token_hit_rate"] for run in hybrid["groups"]["sizes"])
    assert len(spacing.table.rows) == 6
    assert re.search(r"full alone would reach \d+\.\d %", spacing.definition)
    assert "All layers are counted in full here." in render(hybrid)


@pytest.mark.parametrize("mode", ["lookup", "engine"])
def test_replay_with_the_groups_of_a_model(capsys: pytest.CaptureFixture[str], mode: str) -> None:
    asked = ["replay", "--limit", "40", "--mode", mode, "--capacity-gib", "20", "--keep", "1024"]
    printed = json_of(capsys, *asked, "--model", "gemma-3-4b")
    groups = kv_shape("Gemma-3-4B").groups(16)
    assert printed["capacity_blocks"] == groups.blocks_in(20)
    assert printed["capacity_tokens"] == groups.longest_in(groups.blocks_in(20))
    assert [group["kind"] for group in printed["groups"]] == ["full"] + ["sliding"] * 6
    assert printed["token_hit_rate"] > 0
    assert all(group["reach_rate"] >= printed["token_hit_rate"] for group in printed["groups"])
    assert main([*asked, "--model", "qwen3-next-80b-a3b", "--no-progress"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "blocks of 4 groups" in text
    assert "state alone" in text
    assert "states kept" in text
    assert "37.69 MiB per state" in text


@pytest.mark.parametrize("mode", ["lookup", "engine"])
def test_replays_of_hybrids_are_explained_and_recorded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, mode: str
) -> None:
    asked = [
        "replay",
        "--limit",
        "60",
        "--mode",
        mode,
        "--capacity-gib",
        "20",
        "--keep",
        "junctions",
        "--explain",
    ]
    run = tmp_path / "run.kvj"
    printed = json_of(capsys, *asked, "--model", "qwen3-next-80b-a3b", "--journal", str(run))
    unserved = {"full": 0, "state": 0}
    for group in printed["groups"]:  # three of them have states
        unserved[group["kind"]] += group["unserved_tokens"]
    assert printed["misses"]["unserved"] == unserved["state"] > unserved["full"] == 0
    assert kvpool.journal.replay_journal(run.read_bytes()).difference is None
    assert main([*asked, "--model", "qwen3-next-80b-a3b", "--no-progress"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"short for state {unserved['state']:,} tokens that full attention had" in text


def test_hits_of_hybrids_are_not_verified(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["replay", "--limit", "5", "--model", "gpt-oss-20b", "--no-progress", "--verify", "tokens"]) == 2
    )
    assert "verify" in capsys.readouterr().err
