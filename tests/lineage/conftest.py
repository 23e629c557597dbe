"""The lineage report. ``make lineage-report`` (``pytest --lineage-report``) prints the ancestor, the
interface item, the test and the result of each test. An ancestor is an older block manager whose
interface kvpool provides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

#: Result of each test, by ancestor, item and test.
RESULTS: dict[tuple[str, str, str], str] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--lineage-report", action="store_true", help="print what each test of a lineage face shows"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    marker = item.get_closest_marker("lineage")
    if marker is not None and (report.when == "call" or report.outcome != "passed"):
        key = (str(marker.kwargs["ancestor"]), str(marker.kwargs["item"]), item.nodeid.partition("::")[2])
        RESULTS[key] = report.outcome
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.getoption("--lineage-report"):
        return
    write = terminalreporter.write_line
    terminalreporter.section("lineage")
    rows = [("ancestor", "item", "test", "result")]
    rows += [(*key, result) for key, result in sorted(RESULTS.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        write("  ".join(text.ljust(width) for text, width in zip(row, [*widths, 0], strict=True)).rstrip())
    passed = sum(result == "passed" for result in RESULTS.values())
    write(f"{passed} of {len(RESULTS)} passed")
