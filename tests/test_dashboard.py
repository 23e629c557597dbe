"""The dashboard as Grafana reads it, without Grafana or Prometheus: places, units, variables; its picture is fresh."""

from __future__ import annotations

import copy
import json
import math
import random
import re
from typing import TYPE_CHECKING, Any

import promql_parser
import pytest
import yaml
from PIL import Image

from tools import dashboard_picture
from tools.dashboard import panels, prometheus
from tools.dashboard.panels import DashboardError, Numbers, Target, read, substitute, written
from tools.releasing.targets import MissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

PICTURE = dashboard_picture.ROOT / "docs" / "images" / "dashboard.png"
WHOLE: dict[str, Any] = json.loads(dashboard_picture.DASHBOARD.read_text(encoding="utf-8"))
VALUES = {"pool": ["main", "a.b"], "store": ["disk"]}


def changed(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The dashboard with a change."""
    whole = copy.deepcopy(WHOLE)
    change(whole)
    path = tmp_path / "dashboard.json"
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path


def test_every_panel_has_place_title_unit_and_queries_that_are_promql() -> None:
    dashboard = read(dashboard_picture.DASHBOARD)
    assert len(dashboard.panels) == len(WHOLE["panels"]) > 20
    assert set(dashboard.variables) == set(VALUES)
    numbers = Numbers(range_s=3600, points=640, scrape_s=15)
    for panel in dashboard.panels:
        assert panel.kind == "row" or panel.targets
        for target in panel.targets:
            query = substitute(target.expression, numbers, VALUES)
            assert "$" not in query
            promql_parser.parse(query)
            # A legend has the labels that are left of the series, and all of them that are summed by.
            kept = re.findall(r"\b(?:sum|max) by \(([^)]*)\)", query)
            if re.search(r"\b(?:sum|max)\b", query):
                by = {label.strip() for labels in kept for label in labels.split(",")} - {"le"}
                assert set(re.findall(r"\{\{(\w+)\}\}", target.legend)) == by, panel.title
    # Rows are as wide as the grid, and the panels between them leave no hole.
    cells = sum(panel.w * panel.h for panel in dashboard.panels)
    assert cells == panels.COLUMNS * max(panel.y + panel.h for panel in dashboard.panels)


def a_timeseries(whole: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in whole["panels"] if one["type"] == "timeseries")
    return found


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("has no title", lambda whole: a_timeseries(whole).update(title="")),
        ("has no place", lambda whole: a_timeseries(whole).pop("gridPos")),
        ("outside of the grid", lambda whole: a_timeseries(whole)["gridPos"].update(w=25)),
        ("lies over", lambda whole: a_timeseries(whole)["gridPos"].update(h=9)),
        (
            "has the unit 'furlongs'",
            lambda whole: a_timeseries(whole)["fieldConfig"]["defaults"].update(unit="furlongs"),
        ),
        ("has the unit None", lambda whole: a_timeseries(whole)["fieldConfig"]["defaults"].pop("unit")),
        ("of type 'piechart'", lambda whole: a_timeseries(whole).update(type="piechart")),
        ("has no queries", lambda whole: a_timeseries(whole).update(targets=[])),
        ("without an expression or a legend", lambda whole: a_timeseries(whole)["targets"][0].pop("legendFormat")),
        ("not the data source", lambda whole: a_timeseries(whole)["targets"][0].update(datasource={"uid": "mine"})),
        ("has no thresholds", lambda whole: whole["panels"][1]["fieldConfig"]["defaults"].pop("thresholds")),
        ("'$pod' in", lambda whole: a_timeseries(whole)["targets"][0].update(expr='up{pod=~"$pod"}')),
        ("not label_values", lambda whole: whole["templating"]["list"][1]["query"].update(query="metrics(.*)")),
    ],
)
def test_what_grafana_would_not_show_is_refused(
    tmp_path: Path, said: str, change: Callable[[dict[str, Any]], object]
) -> None:
    with pytest.raises(DashboardError) as error:
        read(changed(tmp_path, change))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("expression", "query"),
    [
        ('a{pool=~"$pool"}', r'a{pool=~"(main|a\\.b)"}'),
        ('a{store=~"${store}"}', 'a{store=~"disk"}'),
        ("rate(a[$__rate_interval])", "rate(a[60s])"),
        ("rate(a[${__interval}])", "rate(a[15s])"),
        ("a[$__range] offset ${__range_s}s", "a[3600s] offset 3600s"),
        ("$__interval_ms", "15000"),
    ],
)
def test_variables_are_grafanas(expression: str, query: str) -> None:
    assert substitute(expression, Numbers(range_s=3600, points=640, scrape_s=15), VALUES) == query


@pytest.mark.parametrize("expression", ["$pools", "${pool:csv}", "[[pool]]", "$__from", "$none"])
def test_other_variables_and_forms_are_refused(expression: str) -> None:
    with pytest.raises(DashboardError, match="in '"):
        substitute(expression, Numbers(60, 60, 1), {**VALUES, "none": []})


def test_values_are_escaped_for_promql() -> None:
    """What Prometheus unescapes as a string and then as a regular expression is the value and nothing else."""
    draw = random.Random(1)
    for _ in range(200):
        value = "".join(draw.choice(r"ab.*+?()[]{}|^$\'") for _ in range(draw.randrange(1, 9)))
        query = substitute('a{pool=~"$pool"}', Numbers(60, 60, 1), {"pool": [value]})
        selector: Any = promql_parser.parse(query)
        (matcher,) = selector.matchers.matchers
        unescaped, rest = "", iter(matcher.value)
        for letter in rest:
            assert letter not in "$^*+?()[]{}|.'"
            unescaped += next(rest) if letter == "\\" else letter
        assert unescaped == value


@pytest.mark.parametrize(
    ("numbers", "interval", "rate_interval"),
    [
        (Numbers(60, 640, 1), 1, 4),
        (Numbers(3600, 640, 15), 15, 60),
        (Numbers(86400, 640, 15), 135, 150),
        (Numbers(86400, 640, 60), 135, 240),
    ],
)
def test_intervals_are_grafanas(numbers: Numbers, interval: int, rate_interval: int) -> None:
    assert (numbers.interval_s, numbers.rate_interval_s) == (interval, rate_interval)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.613, "percentunit", "61.3%"),
        (1.0, "percentunit", "100%"),
        (0.0, "s", "0 s"),
        (0.00025, "s", "250 µs"),
        (0.25, "s", "250 ms"),
        (45.0, "s", "45 s"),
        (90.0, "s", "1.5 min"),
        (7200.0, "s", "2 hour"),
        (12 << 20, "bytes", "12 MiB"),
        (0, "bytes", "0 B"),
        (1536, "short", "1.54 K"),
        (999, "short", "999"),
        (0.3333, "short", "0.333"),
        (math.nan, "short", "NaN"),
    ],
)
def test_values_with_units(value: float, unit: str, text: str) -> None:
    assert written(value, unit) == text
    assert {unit} <= set(panels.UNITS)


class Answering:
    """A Prometheus that answers one series with a gap, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def ask(self, path: str, **parameters: Any) -> Any:
        self.asked.append((path, parameters))
        if path == "query":
            return {"result": [{"metric": {"scale": "2"}, "value": [1004, "0.5"]}]}
        return {"result": [{"metric": {"pool": "main"}, "values": [[1000, "1"], [1001, "NaN"], [1003, "4"]]}]}


def test_a_panel_is_asked_as_grafana_asks() -> None:
    server: Any = Answering()
    targets = (
        Target('rate(a{pool=~"$pool"}[$__rate_interval])', "{{pool}}: {{tier}}", False),
        Target("b", "{{scale}} x", True),
    )
    panel = panels.Panel("timeseries", "A", 0, 0, 12, 8, targets)
    line, bar = dashboard_picture.answers(server, panel, 1000, Numbers(4, 600, 1), {"pool": ["main"]})
    assert server.asked == [
        ("query_range", {"query": 'rate(a{pool=~"main"}[4s])', "start": 1000, "end": 1004, "step": 1}),
        ("query", {"query": "b", "time": 1004}),
    ]
    assert (line.name, list(line.at), line.last) == ("main: ", [0, 1, 2, 3, 4], 4)
    assert [math.isnan(value) for value in line.values] == [False, True, True, False, True]
    assert (bar.name, bar.last) == ("2 x", 0.5)


def test_every_alert_is_tested_to_fire_and_not_to() -> None:
    """By ``promtool test rules``, in ``make dashboard-check``."""
    rules = yaml.safe_load(dashboard_picture.RULES.read_text(encoding="utf-8"))
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    tests = yaml.safe_load(dashboard_picture.RULES_TEST.read_text(encoding="utf-8"))
    (file,) = tests["rule_files"]
    assert (dashboard_picture.RULES_TEST.parent / file).resolve() == dashboard_picture.RULES
    cases = [case for test in tests["tests"] for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == alerts
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == alerts


def test_the_picture_is_of_this_dashboard() -> None:
    with Image.open(PICTURE) as image:
        assert image.info[dashboard_picture.NOTE] == dashboard_picture.digest(), "run make dashboard-picture"
    assert PICTURE.stat().st_size < 300_000


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("1", 1)])
def test_without_prometheus_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ci: str, code: int
) -> None:
    def none(packages: Sequence[str], *_: object) -> None:
        raise MissingError(f"no apt to fetch {packages[0]} with")

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(prometheus, "fetch", none)
    picture = tmp_path / "picture.png"
    assert dashboard_picture.main([str(picture), "--programs", str(tmp_path / "none")]) == code
    said = capsys.readouterr().err
    assert "no apt to fetch prometheus with" in said
    assert "NOT CHECKED" in said.splitlines()[-1]
    # What is in the folder is somebody's.
    (tmp_path / "letters").touch()
    assert dashboard_picture.main([str(picture), "--programs", str(tmp_path)]) == code
    assert "other things" in capsys.readouterr().err
    assert (tmp_path / "letters").exists()
    assert not picture.exists()
