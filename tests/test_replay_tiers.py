"""Tests the options and the report of ``kvpool replay`` for tiers below the device. The crate's tests
check the numbers themselves.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from kvpool.cli import main
from kvpool.errors import InvalidArgumentError
from kvpool.traces import Replay, Trace
from tests.command import json_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("plain_output")

#: A model whose token takes four bytes. So a block of 16 tokens takes 64 bytes.
SHAPE: Final = ("--layers", "1", "--kv-heads", "1", "--head-dim", "1")
BLOCK_BYTES: Final = 64
BLOCKS: Final = 200
GIB: Final = BLOCK_BYTES / 2**30
#: Sizes of the tiers. Between two turns of a session, more blocks are used than host memory has, but
#: fewer than the disk has.
TIERS: Final = (
    "--host-gib",
    str(2000 * GIB),
    "--host-read",
    "8kB/s",
    "--disk-tib",
    str(9000 * GIB / 1024),
    "--disk-read",
    "2kB/s",
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Writes a trace of sessions that take turns, one request per second."""
    path = tmp_path / "trace.jsonl"
    lines: list[dict[str, Any]] = []
    for turn in range(4):
        for session in range(50):
            ids = [1 + session * 1000 + at for at in range(2 + turn)]
            lines.append(
                {
                    "timestamp": 1000 * len(lines),
                    "input_length": 512 * len(ids) - 100,
                    "output_length": 2,
                    "hash_ids": ids,
                }
            )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def replayed(capsys: pytest.CaptureFixture[str], trace: Path, *arguments: str) -> Any:
    return json_of(capsys, "replay", trace, "--capacity-blocks", str(BLOCKS), *SHAPE, *arguments)


def test_tiers_serve_blocks_that_the_device_evicted(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = replayed(capsys, trace)
    assert "tiers" not in alone
    found = replayed(capsys, trace, *TIERS)
    host, disk = found["tiers"]
    assert (host["name"], host["blocks"], host["read_bytes_per_s"]) == ("host", 2000, 8000)
    assert (disk["name"], disk["blocks"], disk["read_bytes_per_s"]) == ("disk", 9000, 2000)
    device, with_host, with_both = found["stacks"]
    assert [stack["down_to"] for stack in found["stacks"]] == ["device", "host", "disk"]
    assert device["mean_time_to_first_token_ms"] == alone["engine"]["mean_time_to_first_token_ms"]
    assert device["token_hit_rate"] == pytest.approx(alone["token_hit_rate"])
    assert with_both["mean_time_to_first_token_ms"] == found["engine"]["mean_time_to_first_token_ms"]
    rates = [stack["token_hit_rate"] for stack in found["stacks"]]
    assert rates == sorted(rates)
    assert disk["token_hits"] > 0
    assert with_both["token_hit_rate"] == pytest.approx(
        found["token_hit_rate"] + host["token_hit_rate"] + disk["token_hit_rate"]
    )
    only_host = replayed(capsys, trace, *TIERS[:4])
    assert only_host["engine"]["mean_time_to_first_token_ms"] == with_host["mean_time_to_first_token_ms"]
    assert only_host["stacks"][0] == device


def test_a_fast_tier_is_worth_time_and_a_slow_one_costs_it(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefill = ("--host-gib", str(20000 * GIB), "--prefill-tokens-per-s", "1000")
    fast = replayed(capsys, trace, "--host-read", "1GB/s", *prefill)["stacks"]
    slow = replayed(capsys, trace, "--host-read", "1kB/s", *prefill)["stacks"]
    assert fast[1]["token_hit_rate"] == slow[1]["token_hit_rate"] > fast[0]["token_hit_rate"]
    assert fast[1]["mean_time_to_first_token_ms"] < fast[0]["mean_time_to_first_token_ms"]
    assert slow[1]["mean_time_to_first_token_ms"] > slow[0]["mean_time_to_first_token_ms"]


def test_the_table_shows_the_tiers(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["replay", str(trace), "--capacity-blocks", str(BLOCKS), *SHAPE, *TIERS, "--no-progress"]) == 0
    )
    out = capsys.readouterr().out
    assert "Tiers beneath the device" in out
    for words in ("+ host", "+ disk", "link", "First token: mean of all"):
        assert words in out
    assert main(["replay", str(trace), "--capacity-blocks", str(BLOCKS), *SHAPE, "--no-progress"]) == 0
    assert "Tiers beneath" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mode", "lookup", *SHAPE, *TIERS], "lookup mode has no time in it, and no tiers"),
        (["--host-gib", "1"], "needs the KV shape of a model"),
        ([*SHAPE, "--host-gib", "1e-9"], "holds no block"),
        ([*SHAPE, "--disk-tib", "1"], "needs the speed of loads"),
        (["--model", "gpt-oss-20b", *TIERS], "whose layers all keep every token"),
    ],
)
def test_bad_usage(trace: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(trace), "--capacity-blocks", "5000", *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "settings",
    [
        {"tiers": [(10, 1.0)]},
        {"tiers": [(0, 1.0)], "mode": "engine"},
        {"tiers": [(-1, 1.0)], "mode": "engine"},
        {"tiers": [(1, float("nan"))], "mode": "engine"},
        {"tiers": [(1, 1.0)], "mode": "engine", "groups": [("full", 16, 0, None)]},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        Replay(Trace.generate(requests=3), **settings)
