"""Rates and shares have one unit: from 0 to 1 in output for programs, and percent in output for people."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from tests.printing_commands import OTHERS, TABLES, WITH_CSV, prepare, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("plain_output")

#: A field whose name ends like this is a share. So is every number in a table with such a name.
SHARES = ("rate", "share", "hit_ratio")
#: Words in names that would suggest another unit.
FORBIDDEN = ("percent", "percentage", "pct")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("units")
    prepare(made)
    return made


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yields every number of a report, with the names of the fields that lead to it."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from numbers(part, f"{path}.{name}")
    elif isinstance(value, list):
        for part in value:
            yield from numbers(part, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


def checked(found: Iterator[tuple[str, float]]) -> int:
    """Checks that every share is between 0 and 1. Returns the number of shares."""
    count = 0
    for path, number in found:
        names = path.split(".")
        assert not any(word in name for name in names for word in FORBIDDEN), path
        if any(name.endswith(SHARES) for name in names):
            assert 0 <= number <= 1, (path, number)
            count += 1
    return count


@pytest.mark.parametrize("name", [*TABLES, *(name for name in OTHERS if name not in TABLES)])
def test_every_rate_of_every_command_is_a_share_in_json(name: str, folder: Path) -> None:
    command = TABLES.get(name) or OTHERS[name]
    code, out, error = run(f"{command} --json", folder)
    assert code == 0, error
    count = checked(number for line in [out] for number in numbers(json.loads(line)))
    has_rates = name.startswith(("replay", "size", "trace stats", "top"))
    assert count > 0 or not has_rates


@pytest.mark.parametrize("name", [name for name in TABLES if name.startswith(WITH_CSV)])
def test_every_rate_of_every_command_is_a_share_in_csv(name: str, folder: Path) -> None:
    code, out, error = run(f"{TABLES[name]} --csv", folder)
    assert code == 0, error
    rows = list(csv.DictReader(io.StringIO(out)))
    assert rows
    for row in rows:
        if row.get("unit") == "share":
            checked(iter([("a.rate", float(row["a"])), ("b.rate", float(row["b"]))]))
        checked((column, float(cell)) for column, cell in row.items() if is_number(cell))


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def test_a_comparison_of_rates_is_in_shares(folder: Path) -> None:
    runs = [json.loads((folder / f"{name}.json").read_text()) for name in "ab"]
    _, out, _ = run("compare {}/a.json {}/b.json --json", folder)
    rows = [
        row for section in json.loads(out)["sections"] for row in section["rows"] if row["unit"] == "share"
    ]
    (tokens,) = (row for row in rows if row["name"] == "token hits")
    assert (tokens["a"], tokens["b"]) == tuple(one["token_hit_rate"] for one in runs)
    _, text, _ = run("compare {}/a.json {}/b.json", folder)
    assert f"{100 * tokens['a']:.2f} %" in text
    assert f"{100 * tokens['difference']:+.2f} points" in text


def test_a_report_in_per_cent_is_refused(folder: Path, tmp_path: Path) -> None:
    old = json.loads((folder / "a.json").read_text())
    for name in [name for name in old if name.endswith("rate")]:
        old[name] *= 100
    (tmp_path / "old.json").write_text(json.dumps(old))
    code, _, error = run(f"compare {tmp_path}/old.json {{}}/b.json", folder)
    assert code == 2
    assert "a share is at most 1" in error
    assert "hint: make both again" in error


def test_rates_of_the_library_are_shares() -> None:
    trace = kvpool.traces.Trace.generate(60)
    replay = kvpool.traces.Replay(trace, mode="engine", capacity_blocks=50_000)
    replay.advance()
    assert checked(numbers(json.loads(replay.report_json()))) == 4
    assert checked(numbers(json.loads(trace.stats_json()))) == 9
    assert checked(numbers(kvpool.sizing.size(trace, capacities=["5%", "200%"], policies=["lru"]))) > 20
