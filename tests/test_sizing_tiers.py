"""Tests the sizing of tiers below the device. The output of ``kvpool size`` must equal that of a
simulated chain of caches.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvpool
from kvpool.cli import main
from kvpool.cli.sizing_html import render
from kvpool.cli.sizing_html.plots import figures_of
from kvpool.errors import InvalidArgumentError
from kvpool.models import kv_shape
from kvpool.sizing import Tier, check_sizing, parse_speed, size
from tests.command import json_of
from tests.made_up_sizing import made_up

pytestmark = pytest.mark.usefixtures("plain_output")

B: Final = 4
#: A model whose token takes four bytes.
SHAPE: Final = ("--layers", "1", "--kv-heads", "1", "--head-dim", "1")
TOKEN_BYTES: Final = 4
BLOCK_BYTES: Final = TOKEN_BYTES * B
TIERS: Final = ("--host-gib", "512", "--disk-tib", "4", "--disk-read", "6GB/s")
LLAMA: Final = ("--model", "llama-3.1-8b")
#: Options for a small and fast report, for tests that are not about policies.
GRID: Final = ("--policies", "lru", "--hints", "none", "--no-progress")

Prompt = tuple[tuple[int, int], ...]


@st.composite
def workloads(draw: st.DrawFn) -> list[Prompt]:
    """Draws prompts as lists of blocks with their numbers of tokens. Blocks form a tree, and only a
    leaf may be partial.
    """
    parents = [draw(st.integers(-1, block - 1)) for block in range(draw(st.integers(1, 12)))]
    tokens = [B if block in parents else draw(st.integers(1, B)) for block in range(len(parents))]

    def path(block: int) -> Prompt:
        return (*path(parents[block]), (block, tokens[block])) if block >= 0 else ()

    return [path(draw(st.integers(0, len(parents) - 1))) for _ in range(draw(st.integers(1, 30)))]


def served_by(prompts: list[Prompt], holds: list[int]) -> tuple[list[int], list[int]]:
    """Returns the blocks and the tokens that each tier serves. Each tier is an LRU cache that sees
    every use of a block. The last block of a prompt is used first.
    """
    tiers: list[list[int]] = [[] for _ in holds]
    blocks, tokens = [0] * len(holds), [0] * len(holds)
    for prompt in prompts:
        for block, length in prompt:
            at = next((at for at, tier in enumerate(tiers) if block in tier), None)
            if at is None:
                break
            blocks[at] += 1
            tokens[at] += length
        for tier, most in zip(tiers, holds, strict=True):
            for block, _ in reversed(prompt):
                if block in tier:
                    tier.remove(block)
                tier.append(block)
                del tier[: max(0, len(tier) - most)]
    return blocks, tokens


def printed(prompts: list[Prompt], *arguments: str) -> Any:
    """Returns the output of ``kvpool size --json`` for these prompts."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        lines = (
            {
                "timestamp": 10 * at,
                "input_length": sum(length for _, length in prompt),
                "output_length": 1,
                "hash_ids": [block for block, _ in prompt],
            }
            for at, prompt in enumerate(prompts)
        )
        trace.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert (
                main(["size", str(trace), "--trace-block-size", str(B), *SHAPE, *GRID, *arguments, "--json"])
                == 0
            )
    return json.loads(out.getvalue())


@given(workloads(), *[st.integers(1, 14)] * 2, *[st.integers(0, 14)] * 2, st.sampled_from([0.0, 0.5]))
def test_each_tier_serves_what_caches_one_beneath_the_other_do(
    prompts: list[Prompt], one: int, other: int, host: int, disk: int, rest: float
) -> None:
    """The rates, the seconds of loading and the seconds to the first token must be equal, whichever
    tier is larger.
    """
    # A tier whose size in bytes is smaller than one block holds no block.
    host_gib, disk_tib = (
        max(blocks + rest, 0.25) * BLOCK_BYTES / 2**unit for blocks, unit in ((host, 30), (disk, 40))
    )
    report = printed(
        prompts,
        *("--capacities", f"{one},{other}", "--host-gib", str(host_gib), "--host-read", "8kB/s"),
        *("--disk-tib", str(disk_tib), "--disk-read", "2kB/s", "--prefill-tokens-per-s", "1000"),
    )
    references, prompt_tokens = (
        sum(map(len, prompts)),
        sum(length for prompt in prompts for _, length in prompt),
    )
    tiers = report["tiers"]
    assert [tier["blocks"] for tier in tiers["below"]] == [host, disk]
    # Blocks on the disk are read into host memory first, and from there into the device.
    a_token = [0.0, TOKEN_BYTES / 8_000, TOKEN_BYTES / 8_000 + TOKEN_BYTES / 2_000]
    assert [tier["load_s_per_token"] for tier in tiers["below"]] == a_token[1:]
    assert [size["blocks"] for size in report["capacities"]] == sorted({one, other})
    for capacity, served in zip(report["capacities"], tiers["sizes"], strict=True):
        blocks, tokens = served_by(prompts, [capacity["blocks"], host, disk])
        assert [one["tier"] for one in served] == ["device", "host", "disk"]
        assert [one["block_hit_rate"] * references for one in served] == pytest.approx(blocks)
        assert [one["token_hit_rate"] * prompt_tokens for one in served] == pytest.approx(tokens)
        loads = [number * each / len(prompts) for number, each in zip(tokens, a_token, strict=True)]
        assert [one["load_s"] for one in served] == pytest.approx(loads)
        for at, one_tier in enumerate(served, start=1):
            computed = prompt_tokens - sum(tokens[:at])
            waited = sum(loads[:at]) + computed / len(prompts) / 1000
            assert one_tier["first_token_s"] == pytest.approx(waited)


@given(workloads(), st.integers(1, 14), st.integers(1, 14))
@settings(max_examples=settings().max_examples // 3)
def test_a_sample_of_everything_says_the_same(prompts: list[Prompt], device: int, host: int) -> None:
    asked = ("--capacities", str(device), "--host-gib", str(host * BLOCK_BYTES / 2**30))
    assert printed(prompts, *asked, "--sample-blocks", "100")["tiers"] == printed(prompts, *asked)["tiers"]


def test_break_even_is_where_a_tier_buys_no_time() -> None:
    trace = kvpool.traces.Trace.generate(200)
    tiers = [Tier("host", 400.0, 25e9), Tier("disk", 4096.0, 6e9)]
    asked: dict[str, Any] = {
        "policies": ["lru"],
        "capacities": ["2GiB"],
        "hints": [],
        "shape": kv_shape("llama-3.1-8b"),
    }

    def times(speed: float) -> list[float]:
        report: Any = size(trace, **asked, tiers=tiers, prefill_tokens_per_s=speed)
        return [one["first_token_s"] for one in report["tiers"]["sizes"][0]]

    report: Any = size(trace, **asked, tiers=tiers)
    assert {one["first_token_s"] for one in report["tiers"]["sizes"][0]} == {None}
    assert all(one["token_hit_rate"] > 0 for one in report["tiers"]["sizes"][0][:2])
    even = report["tiers"]["below"][0]["break_even_tokens_per_s"]
    assert even == pytest.approx(25e9 / 131_072)
    assert times(even)[0] == pytest.approx(times(even)[1])
    assert times(0.9 * even)[0] > times(0.9 * even)[1]
    assert times(1.1 * even)[0] < times(1.1 * even)[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (TIERS, "error: --host-gib needs the KV shape of a model\nhint: add --model NAME"),
        ((*LLAMA, "--host-gib", "0"), "error: --host-gib is 0: must be above 0, and at most 1,073,741,824"),
        ((*LLAMA, "--host-gib", "nan"), "error: --host-gib is nan: must be above 0"),
        ((*LLAMA, "--host-gib", "inf"), "error: --host-gib is inf: must be above 0"),
        (
            (*LLAMA, "--disk-tib", "-1", "--disk-read", "6GB/s"),
            "error: --disk-tib is -1: must be above 0, and at most",
        ),
        (
            (*LLAMA, "--disk-tib", "1e7", "--disk-read", "6GB/s"),
            "error: --disk-tib is 1e+07: must be above 0, and at",
        ),
        (
            (*LLAMA, "--disk-tib", "4"),
            "error: --disk-tib needs the speed of loads from the disk\n"
            "hint: add --disk-read 6GB/s, or what kvpool",
        ),
        (
            (*LLAMA, "--host-read", "25GB/s"),
            "error: --host-read is the speed of a tier that has no size\nhint: add --host",
        ),
        (
            (*LLAMA, "--host-gib", "1", "--disk-read", "6GB/s"),
            "error: --disk-read is the speed of a tier that has no",
        ),
        (
            (*LLAMA, *TIERS[:-1], "6Gb/s"),
            "error: --disk-read is '6Gb/s': must be like 6GB/s or 5.5GiB/s, a byte",
        ),
        ((*LLAMA, *TIERS, "--host-read", "0GB/s"), "error: --host-read is '0GB/s': must be like 6GB/s"),
        (
            ("--model", "gemma-3-27b", "--host-gib", "512"),
            "error: tiers need a model whose layers all keep every token: Gemma-3-27B has 10 full, "
            "52 sliding 1,024\nhint: leave --host-gib and --disk-tib out",
        ),
        (
            ("--model", "qwen3-next-80b-a3b", "--host-gib", "512"),
            "error: tiers need a model whose layers all keep every",
        ),
    ],
)
def test_what_is_refused_is_refused_before_a_trace_is_read(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["size", str(tmp_path / "none"), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message)


@pytest.mark.parametrize(
    "text",
    ["", "6", "6GB", "GB/s", "6 gb/s", "-6GB/s", "nanGB/s", "0.0001kB/s", "1e9GB/s", "6GB/s/s", "٣GB/s"],
)
def test_a_speed_that_is_none(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="must be like 6GB/s or"):
        parse_speed(text)


@pytest.mark.parametrize(
    ("gib", "speed"), [(0, 1), (float("nan"), 1), (2.0**31, 1), (1, 0.5), (1, float("inf"))]
)
def test_a_tier_that_is_none(gib: float, speed: float) -> None:
    with pytest.raises(InvalidArgumentError, match="must be "):
        Tier("host", gib, speed)


@pytest.mark.parametrize("name", [None, "gemma-3-1b", "Mistral-7B-v0.1", "qwen3-next-80b-a3b"])
def test_the_library_refuses_what_a_curve_does_not_say(name: str | None) -> None:
    """Refused shapes are: none, windows beside full attention, only windows, and states."""
    with pytest.raises(InvalidArgumentError, match="need a"):
        check_sizing(shape=None if name is None else kv_shape(name), tiers=[Tier("host", 1, 1)])


def test_the_command_prints_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["size", "--limit", "400", *GRID, *LLAMA, "--capacities", "2GiB,20GiB,600GiB", *TIERS]
    report = json_of(capsys, *asked, "--prefill-tokens-per-s", "50000")
    assert main([*asked, "--prefill-tokens-per-s", "50000"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    tables = text.partition("Tiers beneath the device")[2].partition("What the figures mean")[0]
    for tier in report["tiers"]["below"]:
        assert f"{tier['break_even_tokens_per_s']:,.0f} tokens/s" in tables
    for served in report["tiers"]["sizes"]:
        rates = [one["token_hit_rate"] for one in served]
        for share in (*rates, 1 - sum(rates)):
            assert f"{100 * share:.2f}" in tables
        for one in served:
            assert f"{one['first_token_s']:.3f}" in tables
    flat = " ".join(tables.split())
    assert "Host: serves nothing beneath a device of 600 GiB, which holds as much." in flat
    # If tokens are read at 6 GB/s and then copied at 25 GB/s, 36,916 tokens/s are loaded.
    assert (
        "Disk: loading is slower than computing, with prefill of 50,000 tokens/s: 36,916 would be as fast."
        in flat
    )
    assert "Host: loading" not in flat
    assert "add --prefill-tokens-per-s" not in flat


def test_without_a_prefill_speed_only_loading_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "size",
        "--limit",
        "60",
        *GRID,
        *LLAMA,
        "--capacities",
        "2GiB",
        "--disk-tib",
        "4",
        "--disk-read",
        "6GB/s",
    ]
    (served,) = json_of(capsys, *asked)["tiers"]["sizes"]
    assert [(one["tier"], one["first_token_s"]) for one in served] == [("device", None), ("disk", None)]
    assert main([*asked, "--sample-blocks", "50"]) == 0
    flat = " ".join(capsys.readouterr().out.split())
    assert "Estimated token hit rate by tier, %, and loading, s" in flat
    assert "Time to the first token: add --prefill-tokens-per-s N." in flat
    assert "first s" not in flat


def test_a_tier_that_never_serves_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["size", "--limit", "60", *GRID, *LLAMA, "--capacities", "2GiB", "--host-gib", "5000", *TIERS[2:]]
    assert main(asked) == 0
    flat = " ".join(capsys.readouterr().out.split())
    assert "Disk: serves nothing, for what is above it holds as much." in flat
    assert "Host: serves" not in flat


def test_the_page_and_the_picture_have_them_where_they_were_asked_for(tmp_path: Path) -> None:
    assert not {"tiers", "first-token"} & {figure.key for figure in figures_of(made_up())[0]}
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    asked = ["size", "--limit", "400", *GRID, *LLAMA, "--capacities", "2GiB,20GiB", *TIERS]
    assert main([*asked, "--prefill-tokens-per-s", "20000", "--html", str(page), "--png", str(picture)]) == 0
    written = page.read_text(encoding="utf-8")
    for words in (
        "Hit rate by tier",
        "Time to the first token by tier",
        "512 GiB at 25 GB/s",
        "without a cache",
    ):
        assert words in written
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([*asked, "--html", str(page)]) == 0
    written = page.read_text(encoding="utf-8")
    assert "Hit rate by tier" in written
    assert "Time to the first token by tier" not in written


def test_the_figures_are_those_of_the_report() -> None:
    trace = kvpool.traces.Trace.generate(300)
    tiers = [Tier("host", 400.0, 25e9), Tier("<far>", 8000.0, 1e9)]
    report = size(
        trace,
        policies=["lru"],
        capacities=["2GiB", "20GiB"],
        hints=[],
        shape=kv_shape("llama-3.1-8b"),
        tiers=tiers,
        prefill_tokens_per_s=1e4,
    )
    found: Any = report["tiers"]
    figures = {figure.key: figure for figure in figures_of(report)[0]}
    rates, times = figures["tiers"], figures["first-token"]
    assert [series.name for series in rates.series] == ["device", "+ host", "+ <far>"]
    for at in range(3):
        assert rates.series[at].y == pytest.approx(
            [100 * sum(one["token_hit_rate"] for one in served[: at + 1]) for served in found["sizes"]]
        )
        assert list(times.series[at].y) == [served[at]["first_token_s"] for served in found["sizes"]]
    assert rates.table.rows[0][0] == "2.00"
    assert len(rates.table.header) == len(rates.table.rows[0]) == 6
    assert "<far>" not in render(report)
