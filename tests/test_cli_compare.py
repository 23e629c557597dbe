"""Tests ``kvpool compare``. Its numbers equal those of the two reports, and it reports numbers that
cannot be compared.
"""

from __future__ import annotations

import csv
import io
import json
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

import kvpool
from kvpool.cli import main
from kvpool.cli.compare import _of_reports, print_comparison
from kvpool.cli.compare_page import render
from kvpool.cli.comparison import Row, RowError, kind_of, of_replays, of_sizes
from kvpool.cli.problems import UsageError
from tests.command import json_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("plain_output")

SIZES = ["--capacities", "5%,20%,700"]


def rows_of(found: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(section["title"], row["name"]): row for section in found["sections"] for row in section["rows"]}


@pytest.fixture
def reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, Path]:
    """Writes the reports of two replays. The second replay has another policy and a smaller pool."""
    paths = tmp_path / "a.json", tmp_path / "b.json"
    settings = (
        ["--capacity-blocks", "20000"],
        ["--capacity-blocks", "4000", "--eviction", "arc", "--explain"],
    )
    for path, more in zip(paths, settings, strict=True):
        path.write_text(json.dumps(json_of(capsys, "replay", "example", "--limit", "80", *more)))
    return paths


def test_two_replays(reports: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (json.loads(path.read_text()) for path in reports)
    found = json_of(capsys, "compare", *reports)
    assert (found["compared"], found["a"], found["b"]) == ("runs", *map(str, reports))
    rows = rows_of(found)
    hits = rows["Hits", "token hits"]
    assert (hits["a"], hits["b"]) == (a["token_hit_rate"], b["token_hit_rate"])
    assert hits["difference"] == b["token_hit_rate"] - a["token_hit_rate"] != 0
    assert hits["ratio"] is None
    evicted = rows["Hits", "blocks allocated"]
    assert evicted["ratio"] == b["allocated"] / a["allocated"]
    differ = {
        name: (row["a"], row["b"]) for (title, name), row in rows.items() if title == "Settings that differ"
    }
    assert differ == {"eviction": ("lru", "arc"), "capacity blocks": ("20,000", "4,000")}
    # Only one of the two replays has explanations of misses, so these are not compared.
    assert not [title for title, _ in rows if title.startswith("Why")]
    first = rows["Engine", "time to first token"]
    assert (first["unit"], first["a"]) == ("ms", a["engine"]["mean_time_to_first_token_ms"])


def test_reasons_of_misses_where_both_have_them(
    reports: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    b = json.loads(reports[1].read_text())
    rows = rows_of(json_of(capsys, "compare", reports[1], reports[1]))
    title = "Why prompt tokens were computed"
    reasons = {name: row["a"] for (where, name), row in rows.items() if where == title}
    assert {name: count for name, count in reasons.items() if count} == b["misses"]
    assert {row["difference"] for row in rows.values()} <= {0.0, None}


def test_lookup_mode_has_no_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lookup.json"
    path.write_text(json.dumps(json_of(capsys, "replay", "example", "--limit", "20", "--mode", "lookup")))
    titles = {title for title, _ in rows_of(json_of(capsys, "compare", path, path))}
    assert titles == {"Traces", "Hits", "What the runs cost"}


def test_two_sizings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = tmp_path / "a.json", tmp_path / "b.json"
    asked = ["--limit", "100", "--hints", "none", "--policies"]
    a = json_of(capsys, "size", "example", *asked, "lru,arc", *SIZES)
    b = json_of(
        capsys, "size", "example", *asked, "lru,s3-fifo", "--capacities", "5%,700,900", "--form", "stream"
    )
    for path, report in zip(paths, (a, b), strict=True):
        path.write_text(json.dumps(report))
    found = json_of(capsys, "compare", *paths)
    rows = rows_of(found)
    assert found["compared"] == "sizes"
    assert rows["Settings that differ", "form"]["b"] == "stream"
    # The command compares only policies and sizes that both reports have.
    titles = {title for title, _ in rows if title.startswith("Block hits")}
    assert titles == {"Block hits, lru", "Block hits, optimum"}
    assert {name for title, name in rows if title == "Block hits, lru"} == {
        "5 % of the different blocks",
        "700 blocks",
    }
    at = [capacity["blocks"] for capacity in a["capacities"]].index(700)
    assert rows["Block hits, lru", "700 blocks"]["a"] == a["policies"][0]["hits"][at]["block_hit_rate"]
    assert [curve["side"] for curve in found["curves"]] == [0, 1]


def test_two_policies_are_those_of_size(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "compare", "lru", "adaptive", "--trace", "example", *SIZES)
    report = json_of(capsys, "size", "example", "--policies", "lru,adaptive", "--hints", "none", *SIZES)
    rows = rows_of(found)
    for title, figure in (("Block hits", "block_hit_rate"), ("Token hits", "token_hit_rate")):
        got = [(row["a"], row["b"]) for (where, _), row in rows.items() if where == title]
        wanted = [[one[figure] for one in policy["hits"]] for policy in report["policies"]]
        assert got == list(zip(*wanted, strict=True))
    gaps = [row["a"] for (where, _), row in rows.items() if where == "Points below the optimum, blocks"]
    best = [one["block_hit_rate"] for one in report["optimum"]["hits"]]
    assert gaps == [
        top - one["block_hit_rate"] for top, one in zip(best, report["policies"][0]["hits"], strict=True)
    ]
    assert found["compared"] == "policies"
    assert main(["compare", "lru", "adaptive", "--trace", "example", *SIZES, "--no-progress"]) == 0
    below = capsys.readouterr().out.partition("Points below the optimum")[2]
    assert f"{100 * gaps[0]:.2f} " in below
    assert f"{100 * gaps[0]:.2f} %" not in below


def test_two_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = tmp_path / "monday.jsonl", tmp_path / "tuesday.jsonl.gz"
    for seed, path in enumerate(paths):
        assert main(["generate", "--requests", "120", "--seed", str(seed), "-o", str(path)]) == 0
    capsys.readouterr()
    found = json_of(capsys, "compare", *paths, "--policies", "lru,arc", "--model", "llama-3.1-8b", *SIZES)
    rows = rows_of(found)
    stats = [json.loads(kvpool.traces.Trace.read(path).stats_json()) for path in paths]
    tokens = rows["Traces", "prompt tokens"]
    assert (tokens["a"], tokens["b"]) == tuple(one["input_tokens"] for one in stats)
    assert rows["Traces", "next use, s, p99"]["b"] == stats[1]["reuse_time_s"]["p99"]
    assert {title for title, _ in rows} == {
        "Traces",
        "Ceilings",
        "Block hits, lru",
        "Block hits, arc",
        "Block hits, optimum",
    }
    report = json_of(capsys, "size", paths[1], "--policies", "arc", "--hints", "none", *SIZES)
    assert [row["b"] for (title, _), row in rows.items() if title == "Block hits, arc"] == [
        one["block_hit_rate"] for one in report["policies"][0]["hits"]
    ]


def test_sizes_of_two_traces_are_named_as_they_were_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If blocks have different sizes, the same number of GiB is a different number of blocks. The name
    of a size stays as it was given.
    """
    paths = tmp_path / "large.jsonl", tmp_path / "small.jsonl"
    for tokens, path in zip((512, 64), paths, strict=True):
        path.write_bytes(kvpool.traces.Trace.generate(60, block_tokens=tokens).to_jsonl())
    common = ["--model", "llama-3.1-8b", "--capacities", "3GiB,5%,7", "--trace-block-size"]
    for size, path in zip(("512", "64"), paths, strict=True):
        found = rows_of(json_of(capsys, "compare", path, path, *common, size))
        assert {name for title, name in found if title == "Block hits, lru"} == {"3 GiB", "5 %", "7 blocks"}


def test_hybrid_models_are_compared_as_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = tmp_path / "a.json", tmp_path / "b.json"
    reports = []
    for keep, path in zip(("junctions", "512"), paths, strict=True):
        asked = [
            "--limit",
            "40",
            "--policies",
            "lru",
            "--hints",
            "none",
            "--capacities",
            "20GiB,40GiB",
            "--keep",
            keep,
        ]
        reports.append(json_of(capsys, "size", "example", "--model", "gemma-3-27b", *asked))
        path.write_text(json.dumps(reports[-1]))
    rows = rows_of(json_of(capsys, "compare", *paths))
    title = "Token hits, all groups of the model together"
    wanted = [[size["token_hit_rate"] for size in report["groups"]["sizes"]] for report in reports]
    assert [(row["a"], row["b"]) for (where, _), row in rows.items() if where == title] == list(
        zip(*wanted, strict=True)
    )


def test_to_read_and_as_csv(reports: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "compare", *reports)
    assert main(["compare", *map(str, reports)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= max(80, 4 + max(len(str(path)) for path in reports))
    hits = rows_of(found)["Hits", "token hits"]
    assert f"{100 * hits['a']:.2f} %" in text
    assert f"{100 * hits['difference']:+.2f} points" in text
    assert main(["compare", *map(str, reports), "--csv"]) == 0
    read = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["section"], row["name"]) for row in read] == list(rows_of(found))
    assert float(next(row for row in read if row["name"] == "token hits")["difference"]) == hits["difference"]


@pytest.mark.parametrize("of", ["policies", "runs"])
def test_the_page(
    reports: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path, of: str
) -> None:
    page = tmp_path / "page.html"
    compared = ["lru", "arc", "--trace", "example", *SIZES] if of == "policies" else list(map(str, reports))
    found = json_of(capsys, "compare", *compared, "--html", page)
    source = page.read_text(encoding="utf-8")
    tree = ElementTree.fromstring(re.sub(r"<style>.*?</style>|<!DOCTYPE html>", "", source, flags=re.DOTALL))
    cells = ["".join(cell.itertext()) for cell in tree.iter("td")]
    assert len(cells) == 3 * sum(len(section["rows"]) for section in found["sections"])
    assert len(list(tree.iter("svg"))) == (3 if of == "policies" else 0)
    assert not list(tree.iter("script"))
    assert "default-src 'none'" in source.replace("&#x27;", "'")
    # The HTML page of the comparison refers to no other file or address.
    assert not re.search(r"(src|href)=", source)


def test_names_are_shown_and_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = tmp_path / "a<\x1b]0;x\x07script>.jsonl"
    hostile.write_bytes(kvpool.traces.Trace.generate(5).to_jsonl())
    page = tmp_path / "page.html"
    assert main(["compare", str(hostile), str(hostile), "--html", str(page)]) == 0
    assert "\x1b" not in capsys.readouterr().out + page.read_text()
    assert "script>" not in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lru", "arc"], "lru is an eviction policy: on which trace?"),
        (["lru", "nothing", "--trace", "example"], "nothing"),
        (["A", "example"], "A is a report and example is none"),
        (["A", "S"], "A is of kvpool replay and S of kvpool size"),
        (["A", "A", "--limit", "3"], "reports are compared as they are"),
        (["A", "A", "--capacities", "3"], "reports are compared as they are"),
        (["A", "A", "--json", "--csv"], "give one of them"),
        (["-", "-"], "both stdin"),
        (["A", "A", "--html", "page.txt"], "must end in .html"),
        (["example", "example", "--capacities", "60GiB"], "needs a KV shape"),
    ],
)
def test_what_cannot_be_compared(
    reports: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    small = ["--limit", "5", "--capacities", "5", "--policies", "lru", "--hints", "none"]
    sizing = tmp_path / "s.json"
    sizing.write_text(json.dumps(json_of(capsys, "size", "example", *small)))
    named = {"A": str(reports[0]), "S": str(sizing)}
    assert main(["compare", *(named.get(argument, argument) for argument in arguments)]) == 2
    captured = capsys.readouterr()
    said = captured.err
    for name, path in named.items():
        said = said.replace(path, name)
    assert (captured.out, words in said) == ("", True), said


def broken(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Yields copies of the report. In each, another part is missing or replaced."""
    values: tuple[Any, ...] = (None, "text", [], {}, float("nan"), 10**400, True)
    changed = [{**report, name: value} for name in report for value in values]
    return changed + [{name: report[name] for name in report if name != gone} for gone in report]


def test_reports_that_are_broken_are_refused_or_compared(
    reports: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For any file, the command prints a comparison or one line with an error, and never a traceback."""
    sized = json_of(capsys, "size", "example", "--limit", "5", "--capacities", "5", "--policies", "lru")
    refused = compared = 0
    for good in (json.loads(reports[0].read_text()), sized):
        for report in broken(good):
            if kind_of(report) != kind_of(good):
                continue
            try:
                found = _of_reports((report, good), ("a", "b"))
            except UsageError:
                refused += 1
                continue
            compared += 1
            render(found)
            print_comparison(found, Console(file=io.StringIO()))
            json.dumps(found.as_json(), allow_nan=False)
    assert min(refused, compared) > 20
    path = tmp_path / "broken.json"
    path.write_text(json.dumps({**sized, "policies": "text"}))
    assert main(["compare", str(path), str(path)]) == 2
    assert "a report has another form than this version prints" in capsys.readouterr().err


def test_a_row_says_what_a_difference_is() -> None:
    assert (Row("hits", "share", 0.25, 0.5).difference, Row("hits", "share", 0.25, 0.5).ratio) == (0.25, None)
    assert (Row("blocks", "", 40, 50).difference, Row("blocks", "", 40, 50).ratio) == (10.0, 1.25)
    assert Row("blocks", "", 0, 50).ratio is None
    assert Row("name", "text", "a", "b").difference is None
    with pytest.raises(RowError, match="'forty' is no number"):
        Row("blocks", "", "forty", 50)


def test_the_same_comparison_gives_the_same_page(reports: tuple[Path, Path]) -> None:
    loaded = json.loads(reports[0].read_text()), json.loads(reports[1].read_text())
    pages = {render(of_replays(loaded, ("a", "b"))) for _ in range(2)}
    assert len(pages) == 1
    with pytest.raises(KeyError):
        of_sizes(loaded, ("a", "b"))
