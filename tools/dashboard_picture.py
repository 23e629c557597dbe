#!/usr/bin/env python3
"""A picture of docs/metrics/kvpool-dashboard.json, by a real Prometheus over a manager and a store at work.

    python tools/dashboard_picture.py docs/images/dashboard.png
    python tools/dashboard_picture.py target/dashboard.png --seconds 30

Grafana is not run: what it would ask is asked, and its panels are drawn at their places, each with its title, its unit
and its legend (``tools/dashboard`` says how). A load of its own (``tools/dashboard/load.py``) is read by Prometheus
once a second for so long, and alert rules are evaluated as often. Then:

- every query is answered without an error or a warning, and no panel is empty;
- ``promtool check metrics`` is content with the page of ``kvpool.metrics``, without names of engines;
- ``promtool check rules`` and ``promtool test rules`` are with the alert rules: each of them fires, and does not.

Prometheus comes from the search path, or is Debian's package, unpacked into --programs. It listens on 127.0.0.1.

Exit code 0: all held; or there is no Prometheus or matplotlib, and the last line says that nothing was checked; with CI
set in the environment that is 1. 1: something did not hold. 2: bad usage. 130: Ctrl-C.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

ROOT: Final = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tools.dashboard import panels, prometheus  # noqa: E402
from tools.dashboard.panels import DashboardError, Numbers  # noqa: E402
from tools.dashboard.prometheus import PrometheusError, UnavailableError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tools.dashboard.draw import Series
    from tools.dashboard.panels import Panel
    from tools.dashboard.prometheus import Programs, Prometheus

DASHBOARD: Final = ROOT / "docs" / "metrics" / "kvpool-dashboard.json"
RULES: Final = ROOT / "docs" / "metrics" / "kvpool.rules.yml"
RULES_TEST: Final = ROOT / "tools" / "dashboard" / "rules_test.yml"

#: The name of the text in the picture that says of which dashboard it is.
NOTE: Final = "dashboard-sha256"


def digest() -> str:
    """Of the dashboard."""
    return hashlib.sha256(DASHBOARD.read_bytes()).hexdigest()


def answers(
    server: Prometheus,
    panel: Panel,
    start: float,
    numbers: Numbers,
    values: Mapping[str, list[str]],
) -> list[Series]:
    """The series of a panel, in the order of its queries and of Prometheus's answers."""
    from tools.dashboard.draw import Series

    times = [start + at for at in range(0, numbers.range_s + 1, numbers.interval_s)]
    found: list[Series] = []
    for target in panel.targets:
        query = panels.substitute(target.expression, numbers, values)
        if target.instant:
            told = server.ask("query", query=query, time=times[-1])["result"]
            rows = [(one["metric"], [one["value"]]) for one in told]
        else:
            told = server.ask("query_range", query=query, start=times[0], end=times[-1], step=numbers.interval_s)
            rows = [(one["metric"], one["values"]) for one in told["result"]]
        for labels, pairs in rows:
            by_time = {round(at, 3): float(value) for at, value in pairs}
            points = [by_time.get(round(at, 3), math.nan) for at in (times if not target.instant else times[-1:])]
            shown = times if not target.instant else times[-1:]
            found.append(Series(panels.legend(target.legend, labels), [at - start for at in shown], points))
    return found


def check_rules(programs: Programs) -> None:
    """Raises PrometheusError if promtool is not content with the alert rules, or one does not fire when it should."""
    programs.promtool("check", "rules", RULES)
    programs.promtool("test", "rules", RULES_TEST)


def picture(programs: Programs, path: Path, seconds: int) -> list[str]:
    """Draws it, and says what does not hold."""
    from kvpool.metrics import Metrics
    from tools.dashboard.draw import WIDTH, draw
    from tools.dashboard.load import load

    dashboard, metrics, wrong = panels.read(DASHBOARD), Metrics(), []
    with (
        load(metrics) as failed,
        metrics.start_http(0) as page,
        prometheus.running(programs, f"127.0.0.1:{page.port}", [RULES]) as server,
    ):
        # The first rates need their window full.
        time.sleep(Numbers(seconds, seconds, prometheus.SCRAPE_S).rate_interval_s + 2 * prometheus.SCRAPE_S)
        start = math.ceil(time.time())
        while time.time() < start + seconds and not failed.is_set():
            time.sleep(0.2)
        if failed.is_set():
            return ["the load has failed: see above"]
        programs.promtool("check", "metrics", given=metrics.render("prometheus"))
        server.check_readings()
        values = {
            name: server.ask(f"label/{label}/values", **{"match[]": metric})
            for name, (metric, label) in dashboard.variables.items()
        }
        told: list[list[Series]] = []
        for panel in dashboard.panels:
            numbers = Numbers(seconds, WIDTH * panel.w // panels.COLUMNS, prometheus.SCRAPE_S)
            series = answers(server, panel, start, numbers, values)
            if panel.targets and not any(not math.isnan(value) for one in series for value in one.values):
                wrong.append(f"panel {panel.title!r} is empty")
            told.append(series)
    zero = [
        f"{panel.title}: {one.name}"
        for panel, series in zip(dashboard.panels, told, strict=True)
        for one in series
        if not any(value and not math.isnan(value) for value in one.values)
    ]
    print(f"0 all the time: {'; '.join(zero) or 'nothing'}")
    caption = (
        f"docs/metrics/kvpool-dashboard.json, all pools and stores: {seconds} s of a load, read every second by "
        f"Prometheus {programs.version()}. Drawn from the panels and the answers to their queries, not by Grafana."
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(dashboard, told, seconds, caption, path, {NOTE: digest()})
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("picture", type=Path, help="a PNG file")
    parser.add_argument("--seconds", type=int, default=60, help="how long the load is watched (default: 60)")
    parser.add_argument(
        "--programs", type=Path, default=ROOT / "target" / "prometheus", help="where Debian's package is unpacked"
    )
    given = parser.parse_args(arguments)
    if given.seconds < 5:
        parser.error(f"--seconds is {given.seconds}: must be 5 or more")
    try:
        if importlib.util.find_spec("matplotlib") is None:
            raise UnavailableError("there is no matplotlib: pip install 'kvpool[plot]'")
        programs = prometheus.Programs.find(given.programs.absolute())
    except UnavailableError as error:
        print(f"dashboard_picture: {error}", file=sys.stderr)
        print("dashboard_picture: NOT CHECKED: the dashboard and the alert rules under Prometheus", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    try:
        check_rules(programs)
        wrong = picture(programs, given.picture, given.seconds)
    except (DashboardError, PrometheusError) as error:
        wrong = [str(error)]
    for line in wrong:
        print(f"dashboard_picture: {line}", file=sys.stderr)
    if not wrong:
        print(f"{given.picture}: {given.picture.stat().st_size / 1000:.0f} kB")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
