"""Tests the page and the picture of ``kvpool size`` as text and as bytes. They show the numbers of the
report.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from kvpool.cli.problems import UsageError
from kvpool.cli.sizing_html import render, save_png
from kvpool.cli.sizing_html.figures import linear_axis, log_axis
from kvpool.cli.sizing_html.grid import grid_rows
from kvpool.cli.sizing_html.plots import figures_of
from kvpool.cli.sizing_html.summary import findings
from kvpool.cli.sizing_html.svg import HEIGHT, WIDTH, hover_data
from tests.made_up_sizing import CEILING, HOSTILE, PERCENTS, made_up

if TYPE_CHECKING:
    from pathlib import Path

    from kvpool.sizing.report import Hits


def parsed(page: str) -> ElementTree.Element:
    """Returns the page as XML. Scripts and styles are empty."""
    bare = re.sub(r"(<(script|style)\b[^>]*>).*?(</\2>)", r"\1\3", page, flags=re.DOTALL)
    return ElementTree.fromstring(bare.removeprefix("<!DOCTYPE html>"))


def text_of(element: ElementTree.Element) -> str:
    return "".join(element.itertext())


def embedded(page: str) -> dict[str, list[dict[str, Any]]]:
    """Returns the data that is embedded in the page for its script."""
    found = re.search(r'<script type="application/json" id="points">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    points: dict[str, list[dict[str, Any]]] = json.loads(found[1])
    return points


def test_the_page_is_well_formed() -> None:
    root = parsed(render(made_up()))
    assert [child.tag for child in root] == ["head", "body"]
    ids = [element.get("id") for element in root.iter() if element.get("id") is not None]
    assert len(ids) == len(set(ids))
    for element in root.iter():
        assert set((element.get("aria-labelledby") or "").split()) <= set(ids)


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = render(made_up())
    assert not re.search(r"https?:|\bsrc=|@import|url\(", page, re.IGNORECASE)
    for element in parsed(page).iter():
        assert element.tag not in {"link", "img", "iframe", "object", "embed", "base", "form", "a"}
        assert not {"src", "href", "srcset", "action"} & set(element.attrib)
        assert not [name for name in element.attrib if name.startswith("on")]


def test_the_same_report_gives_the_same_page() -> None:
    assert render(made_up()) == render(made_up())


def test_the_table_has_the_figures_of_the_report() -> None:
    report = made_up()
    root = parsed(render(report))
    names = ("LRU", "S3-FIFO", "ARC", "hazard", "adaptive")
    expected = [(name, policy["hits"]) for name, policy in zip(names, report["policies"], strict=True)]
    expected += [(f"LRU, hints {100 * hint['accuracy']:g} %", hint["hits"]) for hint in report["hints"]]
    assert report["optimum"] is not None
    expected.append(("optimum (clairvoyant)", report["optimum"]["hits"]))

    def both(hits: Hits) -> dict[str, float]:
        return {"block_hit_rate": hits["block_hit_rate"], "token_hit_rate": hits["token_hit_rate"]}

    for rate in ("block_hit_rate", "token_hit_rate"):
        (table,) = (each for each in root.iter("div") if each.get("data-rate") == rate)
        heads = [[text_of(cell) for cell in row] for row in next(table.iter("thead"))]
        assert heads[0][1:] == ["1 %", "2 %", "5 %", "10 %", "20 %", "50 %"]
        assert heads[1][1:] == [f"{each['blocks']:,}" for each in report["capacities"]]
        body = next(table.iter("tbody"))
        assert [text_of(row[0]) for row in body] == [name for name, _ in expected]
        for row, (name, hits) in zip(body, expected, strict=True):
            for cell, own, base in zip(row[1:], hits, expected[0][1], strict=True):
                (figure,) = (text_of(each) for each in cell.iter("span") if each.get("class") is None)
                assert figure == f"{100 * both(own)[rate]:.2f}"
                differences = [
                    float(text_of(each).replace("−", "-"))  # noqa: RUF001
                    for each in cell.iter("small")
                ]
                difference = 100 * (both(own)[rate] - both(base)[rate])
                assert differences == ([] if name == "LRU" else [pytest.approx(difference, abs=0.00501)])


def test_the_best_of_a_column_is_the_best_policy_and_ties_share_it() -> None:
    report = made_up()
    # The hit rates of these two policies differ by less than the printed precision, so both count as the
    # best.
    report["policies"][2]["hits"][0]["block_hit_rate"] = 0.09001
    report["policies"][-1]["hits"][0]["block_hit_rate"] = 0.09
    rows = grid_rows(report, "block_hit_rate")
    assert [row.name for row in rows if row.cells[0].best] == ["ARC", "adaptive"]
    report["policies"][-1]["hits"][0]["block_hit_rate"] = 0.0899
    rows = grid_rows(report, "block_hit_rate")
    assert [row.name for row in rows if row.cells[0].best] == ["ARC"]
    # The rates of hints and of the optimum are higher, but only policies can be the best of a column.
    assert max(row.cells[0].rate for row in rows) > 0.0901
    assert (
        len({round(row.cells[-1].rate, 4) for row in rows if row.cells[-1].best or row.kind != "policy"}) == 1
    )
    assert not [row.name for row in rows if row.kind != "policy" and any(cell.best for cell in row.cells)]
    marked = [cell for cell in parsed(render(report)).iter("td") if cell.get("class") == "best"]
    every = [*rows, *grid_rows(report, "token_hit_rate")]
    assert len(marked) == sum(cell.best for row in every for cell in row.cells)


def test_the_summary_states_what_the_report_has() -> None:
    report = made_up()
    said = {finding.name: (finding.value, finding.remark) for finding in findings(report)}
    assert said["ceiling"][0] == "36.64 %"
    assert said["knee of the curve"][0] == "1,312 GiB"
    (nearly,) = (name for name in said if name.startswith("LRU gets 90 %"))
    enough = [point for point in report["lru_curve"] if point["block_hit_rate"] >= 0.9 * CEILING]
    assert said[nearly][0] == f"{enough[0]['gib']:,.0f} GiB"
    lru, arc = report["policies"][0]["hits"], report["policies"][2]["hits"]
    gain, where = max(
        (own["block_hit_rate"] - base["block_hit_rate"], at)
        for at, (own, base) in enumerate(zip(arc, lru, strict=True))
    )
    value, remark = said["most that a policy gains over LRU"]
    assert value == f"+{100 * gain:.2f} points"
    assert remark == f"ARC at {PERCENTS[where]:g} %: {report['capacities'][where]['blocks']:,} blocks"
    assert not [name for name in said if "finish reason" in name]
    report["finish_reasons"] = {"policy": "arc", "requests": 9_000, "without": lru}
    said = {finding.name: (finding.value, finding.remark) for finding in findings(report)}
    remark = f"arc at {PERCENTS[where]:g} %; 9,000 requests have one"
    assert said["most that the finish reason is worth"] == (value, remark)
    report["finish_reasons"] = None
    report["policies"] = [policy for policy in report["policies"] if policy["name"] in {"lru", "hazard"}]
    said = {finding.name: (finding.value, finding.remark) for finding in findings(report)}
    assert said["most that a policy gains over LRU"][0] == "nothing"


def test_without_lru_nothing_is_compared_with_it() -> None:
    report = made_up()
    report["policies"] = [policy for policy in report["policies"] if policy["name"] != "lru"]
    assert all(cell.difference is None for row in grid_rows(report, "block_hit_rate") for cell in row.cells)
    assert "gains over LRU" not in render(report)


def test_every_plot_is_drawn_to_the_scale_of_its_axes() -> None:
    figures, missing = figures_of(made_up())
    assert [figure.key for figure in figures] == ["capacity", "hints", "reuse", "time", "worth"]
    assert missing == []
    for figure in figures:
        assert figure.y.low == 0
        assert not figure.y.log
        assert figure.definition.endswith(".")
        for series in figure.series:
            assert len(series.x) == len(series.y) == len(series.notes) == len(series.places)
            assert len(series.left) in {0, len(series.x)}
            assert all(figure.x.low <= x <= figure.x.high * (1 + 1e-9) for x in (*series.x, *series.left))
            assert all(0 <= y <= figure.y.high for y in series.y if y is not None)
        # The drawing of each series is inside of the plot, and each point has its note.
        for series, places in zip(figure.series, hover_data(figure), strict=True):
            for x, y, note in zip(places["x"], places["y"], places["notes"], strict=True):
                assert 0 < x < WIDTH
                assert 0 < y < HEIGHT
                assert note in series.notes


def test_a_height_of_the_plot_is_the_rate_of_the_report() -> None:
    report = made_up()
    figures, _ = figures_of(report)
    (figure,) = (each for each in figures if each.key == "capacity")
    arc = next(index for index, series in enumerate(figure.series) if series.name == "ARC")
    # Compute the scale from two ticks of the axis, and compare the marks with it.
    (plot,) = (each for each in parsed(render(report)).iter("svg") if each.get("id") == "plot-capacity")
    ticks = {
        text_of(each): float(each.get("y") or "nan") - 4
        for each in plot.iter("text")
        if each.get("class") == "tick" and each.get("text-anchor") == "end"
    }
    per_point = (ticks["0"] - ticks["10"]) / 10
    heights = [(ticks["0"] - y) / per_point for y in hover_data(figure)[arc]["y"]]
    rates = [100 * hits["block_hit_rate"] for hits in report["policies"][2]["hits"]]
    assert heights == pytest.approx(rates, abs=0.02)


def test_a_bar_of_worth_is_tokens_by_gib() -> None:
    report = made_up()
    figures, _ = figures_of(report)
    (figure,) = (each for each in figures if each.key == "worth")
    step = report["worth"][3]
    assert figure.y.label == "thousand tokens per GiB"
    assert figure.series[0].y[3] == pytest.approx(
        step["hit_tokens"] / (step["to_gib"] - step["from_gib"]) / 1000
    )
    assert figure.table.rows[3][1] == f"{step['hit_tokens']:,}"


def test_every_bar_of_worth_can_be_seen(tmp_path: Path) -> None:
    """The first GiB may be worth thousands of times as much as the last one, because the common
    beginning of all prompts takes little space. Even the smallest bar must be visible.
    """
    report = made_up()
    for place, step in enumerate(report["worth"]):
        step["hit_tokens"] = int((step["to_gib"] - step["from_gib"]) * 5e6 / 4**place) + 1
    (figure,) = (each for each in figures_of(report)[0] if each.key == "worth")
    bars = figure.series[0]
    heights = [figure.y.place(y) for y in bars.y if y is not None]
    assert max(heights) / min(heights) > 1
    assert all(height > 0.02 for height in heights)
    assert figure.y.log
    assert figure.y.label == "tokens per GiB (log scale)"
    assert len(figure.y.ticks) >= 3
    (plot,) = (each for each in parsed(render(report)).iter("svg") if each.get("id") == "plot-worth")
    drawn = [float(each.get("height") or 0) for each in plot.iter("rect") if each.get("class") == "bar"]
    assert len(drawn) == len(report["worth"])
    assert min(drawn) > 5
    save_png(report, tmp_path / "worth.png")


def test_worth_that_is_nearly_even_keeps_a_linear_axis() -> None:
    report = made_up()
    for step in report["worth"]:
        step["hit_tokens"] = int((step["to_gib"] - step["from_gib"]) * 3e3)
    (figure,) = (each for each in figures_of(report)[0] if each.key == "worth")
    assert not figure.y.log
    assert figure.y.label == "thousand tokens per GiB"


def test_a_window_without_requests_is_a_gap() -> None:
    root = parsed(render(made_up()))
    (plot,) = (each for each in root.iter("svg") if each.get("id") == "plot-time")
    lines = [each.get("d") or "" for each in plot.iter("path") if each.get("class") == "line"]
    assert [line.count("M") for line in lines] == [2, 2]


def test_what_is_not_in_the_report_is_said_to_be_missing() -> None:
    report = made_up(with_model=False)
    report["hints"], report["over_time"], report["knee"] = [], None, None
    figures, missing = figures_of(report)
    assert [figure.key for figure in figures] == ["capacity", "reuse"]
    assert all(figure.top is None for figure in figures)
    page = text_of(parsed(render(report)))
    for sentence in missing:
        assert sentence in page
    assert "GiB" not in page.replace("Nothing in GiB", "")


def test_a_trace_without_reuse_is_a_page_too(tmp_path: Path) -> None:
    report = made_up(with_model=False)
    report |= {
        "capacities": [],
        "policies": [],
        "hints": [],
        "optimum": None,
        "over_time": None,
        "finish_reasons": None,
    }
    report |= {"lru_curve": [], "knee": None, "reuse_distances": [], "reuse_times_s": []}
    report["trace"]["ideal"] = {"block": 0.0, "token": 0.0, "full_blocks": 0.0, "last_half": 0.0}
    root = parsed(render(report))
    assert not [each for each in root.iter("svg") if each.get("class") == "plot"]
    save_png(report, tmp_path / "report.png")
    # The figures leave out a policy without hit rates.
    report["policies"] = [{"name": "lru", "source": "", "hits": [], "seconds": 0.0}]
    parsed(render(report))
    save_png(report, tmp_path / "report.png")


def test_one_capacity_and_nothing_hit() -> None:
    report = made_up()
    report["capacities"] = report["capacities"][:1]
    for result in (*report["policies"], *report["hints"], report["optimum"]):
        assert result is not None
        result["hits"] = [
            {"block_hit_rate": 0.0, "token_hit_rate": 0.0, "evictions": 0, "resident_turnover": 0.0}
        ]
    report["lru_curve"] = report["lru_curve"][:1]
    report["reuse_distances"] = report["reuse_distances"][:1]
    parsed(render(report))


def test_only_full_blocks_have_their_own_ceiling() -> None:
    report = made_up()
    report["blocks"] = "full"
    page = render(report)
    assert "ceiling 37.98 %" in page
    assert "share of the blocks that their prompt fills" in page


def test_hostile_names_stay_names() -> None:
    report = made_up(source=HOSTILE)
    report["trace"]["format"] = HOSTILE
    report["kvpool"] = HOSTILE
    assert report["model"] is not None
    report["model"]["name"] = HOSTILE
    assert report["over_time"] is not None
    report["over_time"]["policy"] = HOSTILE
    for policy in report["policies"]:
        policy["name"] = policy["source"] = HOSTILE
    page = render(report)
    root = parsed(page)
    assert text_of(next(root.iter("h1"))) == f"Cache sizing: {HOSTILE}"
    assert len(re.findall(r"<script", page)) == 2
    assert "<img" not in page
    notes = [note for each in embedded(page)["capacity"] for note in each["notes"]]
    assert any(note.startswith(HOSTILE) for note in notes)


@pytest.mark.parametrize("high", [1e-7, 0.3, 1.0, 7.0, 36.64, 100.0, 101.0, 12_345.0, 9.9e12])
def test_axes_reach_as_far_as_the_figures(high: float) -> None:
    axis = linear_axis("", high)
    assert axis.ticks[0][0] == 0
    assert high <= axis.ticks[-1][0] * (1 + 1e-9)
    assert axis.high == axis.ticks[-1][0]
    assert 2 <= len(axis.ticks) <= 7
    assert len({text for _, text in axis.ticks}) == len(axis.ticks)
    tight = linear_axis("", high, tight=True)
    assert tight.high == high
    assert tight.ticks[-1][0] <= high * (1 + 1e-9)
    for factor in (1.0, 1.5, 30.0, 1e4, 1e9):
        scale = log_axis("", high, high * factor)
        assert 2 <= len(scale.ticks) <= 9
        assert len({text for _, text in scale.ticks}) == len(scale.ticks)
        assert all(scale.low * 0.99 <= value <= scale.high * 1.01 for value, _ in scale.ticks)
        assert scale.place(scale.low) == 0
        assert scale.place(scale.high) == pytest.approx(1)
        assert scale.place(math.sqrt(scale.low * scale.high)) == pytest.approx(0.5)


def test_the_picture_shows_the_same_plots(tmp_path: Path) -> None:
    path = tmp_path / "report.png"
    save_png(made_up(source=HOSTILE), path)
    written = path.read_bytes()
    assert written.startswith(b"\x89PNG")
    width, height = (int.from_bytes(written[at : at + 4], "big") for at in (16, 20))
    assert width == 1100
    # The picture has five plots and a table below each other.
    assert height > 5 * 400


def test_a_picture_needs_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs matplotlib"):
        save_png(made_up(), tmp_path / "report.png")
    assert not (tmp_path / "report.png").exists()
