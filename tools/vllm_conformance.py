#!/usr/bin/env python3
"""Runs vLLM's own tests of KV cache, stock and with kvpool inside, and compares which tests pass.

    python tools/vllm_conformance.py                         # stock alone
    python tools/vllm_conformance.py stock pool manager      # stock, and KVPOOL_VLLM=pool and =manager
    python tools/vllm_conformance.py stock pool --file core/test_prefix_caching.py
    python tools/vllm_conformance.py offload-policy offload-manager offload-tier

Needs the environment of tools/vllm_env.py. The suites are those of the KV-cache core, of connectors and
of offloading. Each file or folder runs in its own process. ``stock`` always runs, because the levels
are compared with it.

Levels that begin with ``offload-`` run only the suites of offloading, with parts of vLLM replaced for
the tests. ``offload-policy`` replaces vLLM's LRU by ``kvpool_lru``, also in tiering.
``offload-manager`` replaces vLLM's manager with LRU by kvpool's manager. ``offload-tier`` replaces
vLLM's example of a tier by kvpool's store on a disk.

Exit code 0: every level passes exactly the tests that stock passes. 1: a difference, a level that
leaves vLLM unchanged, or a failed run. 2: bad usage. 130: Ctrl-C.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from rich.console import Console

ROOT: Final = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # the folder tools/ contains a folder named vllm

from tools.vllm import common  # noqa: E402
from tools.vllm.conformance_suites import (  # noqa: E402
    AGAIN,
    AGAINST_THE_CLOCK,
    FILES,
    FOLDER,
    LEFT_OUT,
    OFFLOAD,
    OFFLOAD_SUITES,
    ON_PURPOSE,
    STOCK,
    SUITES_OF,
)

PLUGINS: Final = Path(__file__).resolve().parent / "vllm"
# Exit codes of pytest after which the results of the tests are valid: all passed, some failed,
# interrupted (a file cannot be imported), no test found.
TELLING: Final = frozenset({0, 1, 2, 5})


@dataclasses.dataclass
class Outcome:
    """The results of the tests of one file or folder at one level."""

    passed: set[str] = dataclasses.field(default_factory=set)
    failed: set[str] = dataclasses.field(default_factory=set)
    skipped: set[str] = dataclasses.field(default_factory=set)
    seconds: float = 0.0
    broken: str = ""
    replaced: list[str] = dataclasses.field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        plain = dataclasses.asdict(self)
        return {key: sorted(value) if isinstance(value, set) else value for key, value in plain.items()}


Suites = dict[str, list[str]]  # the files that run in one process, by name of the suite
Outcomes = dict[tuple[str, str], Outcome]  # by level and suite
TIMEOUT: Final = 5400.0  # seconds for one suite
RUNNING: Final[set[subprocess.Popen[bytes]]] = set()


def read_junit(file: Path) -> Outcome:
    """Reads the results of the tests from pytest's junit file. A test counts as failed if it fails, or
    if it raises an error in its teardown.
    """
    outcome = Outcome()
    for case in ET.parse(file).getroot().iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        tags = {child.tag for child in case}
        if tags & {"failure", "error"}:
            outcome.failed.add(name)
        elif "skipped" in tags:
            outcome.skipped.add(name)
        else:
            outcome.passed.add(name)
    outcome.passed -= outcome.failed
    return outcome


def differences(stock: set[str], level: set[str]) -> list[str]:
    """Returns one line for each test that passes with stock or at the level, but not at both."""
    return [f"- {name}" for name in sorted(stock - level)] + [f"+ {name}" for name in sorted(level - stock)]


def find_files(tests: Path, patterns: Sequence[str]) -> Suites:
    """Returns the test files that the patterns name, relative to vLLM's folder of tests. Each file is
    listed once.
    """
    root = tests / FOLDER
    found: Suites = {}
    for pattern in patterns:
        folder, star, _ = pattern.partition("*")
        names = (
            sorted(f"{folder}{one.name}" for one in (root / folder).glob("test_*.py")) if star else [pattern]
        )
        if not names or not all((root / name).is_file() for name in names):
            raise common.ConformanceError(f"vLLM has no {FOLDER}/{pattern} in {tests}")
        known = {name for others in found.values() for name in others}
        if star:
            known |= LEFT_OUT
        names = [name for name in names if name not in known]
        if names:
            found[pattern] = names
    return found


def child_environment(level: str, settings: Mapping[str, Any], replaced: Path) -> dict[str, str]:
    """Returns the environment of a test process: the caller's environment, without the settings of
    kvpool's plug-in.
    """
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("KVPOOL_", "PYTEST_", "VLLM_"))
    }
    kept.update(settings["environment"])
    kept["PYTHONPATH"] = os.pathsep.join([str(PLUGINS), settings["tests"]])
    kept["PYTHONHASHSEED"] = "0"
    kept["KVPOOL_CONFORMANCE_REPLACED"] = str(replaced)
    if level.startswith(OFFLOAD):
        kept["KVPOOL_OFFLOAD"] = level.removeprefix(OFFLOAD)
    elif level != STOCK:
        kept["KVPOOL_VLLM"] = level
    return kept


def run_suite(
    level: str, suite: str, files: Sequence[str], settings: Mapping[str, Any], options: argparse.Namespace
) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="kvpool-conformance-") as scratch:
        junit, replaced, log = (Path(scratch) / name for name in ("junit.xml", "replaced.json", "log"))
        command = [settings["python"], "-m", "pytest", *(f"{FOLDER}/{file}" for file in files)]
        command += [
            "-q",
            "--continue-on-collection-errors",
            "--tb=native",  # the other styles parse whole files, on which Python 3.11's parser may fail
            "-p",
            "no:cacheprovider",
            f"--junitxml={junit}",
            "--rootdir=.",
            f"--config-file={PLUGINS / 'pytest.ini'}",
        ]
        # Do not load tests/conftest.py, because it collects garbage after each test and needs more
        # packages.
        is_offload = suite in OFFLOAD_SUITES
        command += (
            ["--noconftest", "-p", "offload_plugin"]
            if is_offload
            else [f"--confcutdir={FOLDER}", "-p", "load_plugins"]
        )
        begun = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=settings["tests"],
                env=child_environment(level, settings, replaced),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            RUNNING.add(process)
            try:
                code = process.wait(timeout=TIMEOUT)
                problem = "" if code in TELLING else f"pytest exited with {code}"
            except subprocess.TimeoutExpired:
                problem = f"still running after {TIMEOUT:g} s"
            finally:
                RUNNING.discard(process)
                common.kill(process)
        text = log.read_text(encoding="utf-8", errors="replace")
        if options.logs:
            (options.logs / f"{level}-{suite.replace('/', '-').replace('*', 'all')}.log").write_text(
                text, encoding="utf-8"
            )
        if junit.exists():
            outcome = read_junit(junit)
        else:
            outcome = Outcome()
            problem = problem or "pytest wrote no results"
        if problem:
            outcome.broken = problem + "\n" + common.last_lines(text, 15)
        if replaced.exists():
            outcome.replaced = json.loads(replaced.read_text(encoding="utf-8"))
        outcome.seconds = time.monotonic() - begun
        return outcome


def run_all(
    levels: Sequence[str],
    suites: Suites,
    settings: Mapping[str, Any],
    options: argparse.Namespace,
    console: Console,
) -> Outcomes:
    """Runs every suite at every level. Half the number of cores is the number of parallel runs."""
    outcomes: Outcomes = {}
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with (
        Progress(*columns, console=console) as progress,
        concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool,
    ):
        runs = {
            pool.submit(run_suite, level, suite, files, settings, options): (level, suite)
            for suite, files in suites.items()
            for level in levels
            if suite in SUITES_OF.get(level, suites)
        }
        task = progress.add_task("vLLM's tests", total=len(runs))
        try:
            left = set(runs)
            while left:
                # Wait with a timeout, because Python handles a Ctrl-C only when this thread runs.
                done, left = concurrent.futures.wait(
                    left, timeout=0.5, return_when=concurrent.futures.FIRST_COMPLETED
                )
                for run in done:
                    level, suite = runs[run]
                    outcome = outcomes[level, suite] = run.result()
                    progress.advance(task)
                    progress.console.print(
                        f"{level:8} {suite}: {len(outcome.passed)} passed, {len(outcome.failed)} failed, "
                        f"{len(outcome.skipped)} skipped, {outcome.seconds:.0f} s",
                        highlight=False,
                        soft_wrap=True,
                    )
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(RUNNING):
                common.kill(process)
            raise
    return outcomes


def is_on_purpose(level: str, name: str) -> bool:
    """Returns whether a test is in the list of tests that this level fails on purpose."""
    return name.rpartition("::")[2] in ON_PURPOSE.get(level, ())


def expected(level: str, stock: Outcome, one: Outcome) -> set[str]:
    """Returns the tests that a level must pass: those that stock passes, without those that the level
    fails on purpose.
    """
    return {name for name in stock.passed if not (name in one.failed and is_on_purpose(level, name))}


def run_again(
    levels: Sequence[str],
    suites: Suites,
    outcomes: Outcomes,
    settings: Mapping[str, Any],
    options: argparse.Namespace,
) -> list[str]:
    """Repeats tests that passed only with stock or only at a level, if their file is listed as
    depending on time limits. A test passes if all repetitions pass, with stock and at the level.
    Returns one line per test.
    """
    steady = []
    for level in levels[1:]:
        for suite, files in suites.items():
            if (level, suite) not in outcomes:
                continue
            stock, one = outcomes[STOCK, suite], outcomes[level, suite]
            differ = expected(level, stock, one) ^ one.passed
            for file in sorted(AGAINST_THE_CLOCK.intersection(files)):
                module = f"{FOLDER}/{file}".removesuffix(".py").replace("/", ".")
                names = {name for name in differ if f"{name.partition('::')[0]}.".startswith(f"{module}.")}
                for at in [STOCK, level] * AGAIN:
                    if names:
                        names &= run_suite(at, f"{file} again", [file], settings, options).passed
                for outcome in (stock, one):
                    outcome.passed |= names
                    outcome.failed -= names
                steady += [
                    f"{level}, {name}: differed, and passed {AGAIN} times at both" for name in sorted(names)
                ]
    return steady


def print_table(levels: Sequence[str], suites: Suites, outcomes: Outcomes, console: Console) -> None:
    """Prints one row per suite and a last row with sums. Each level has a column with the numbers of
    passed, failed and skipped tests, and the seconds.
    """
    table = Table(title="vLLM's tests: passed / failed / skipped, seconds", show_footer=True)
    table.add_column(FOLDER, footer="all", no_wrap=True)
    for level in levels:
        every = [outcomes[level, suite] for suite in suites if (level, suite) in outcomes]
        counts = [sum(len(getattr(one, kind)) for one in every) for kind in ("passed", "failed", "skipped")]
        footer = f"{counts[0]} / {counts[1]} / {counts[2]}, {sum(one.seconds for one in every):.0f} s"
        table.add_column(level, footer=footer, justify="right", no_wrap=True)
    stock = levels[0]
    for suite in suites:
        cells = []
        for level in levels:
            if (level, suite) not in outcomes:
                cells.append("")
                continue
            one = outcomes[level, suite]
            cell = f"{len(one.passed)} / {len(one.failed)} / {len(one.skipped)}, {one.seconds:.0f} s"
            differs = one.broken or one.passed != outcomes[stock, suite].passed
            cells.append(f"[red]{cell}[/red]" if differs else cell)
        table.add_row(suite, *cells)
    console.print(table)


def verdict(levels: Sequence[str], suites: Suites, outcomes: Outcomes) -> list[str]:
    """Returns the problems, one text for each. An empty list means that every level agrees with stock."""
    problems = []
    for level in levels:
        ran = [suite for suite in suites if (level, suite) in outcomes]
        for suite in ran:
            one = outcomes[level, suite]
            if one.broken:
                problems.append(f"{level}, {suite}: {one.broken}")
            stock = outcomes[STOCK, suite]
            problems += [
                f"{level}, {name}: passes, and is listed as one that cannot"
                for name in stock.passed & one.passed
                if is_on_purpose(level, name)
            ]
            changed = differences(expected(level, stock, one), one.passed)
            if changed:
                lines = "\n".join("    " + line for line in changed)
                problems.append(
                    f"{level}, {suite}: - passes in stock only, + passes at this level only\n{lines}"
                )
        replaced = {name for suite in ran for name in outcomes[level, suite].replaced}
        if level == STOCK and replaced:
            problems.append(
                f"the level stock is not stock vLLM: kvpool has replaced {', '.join(sorted(replaced))}"
            )
        if level != STOCK and not replaced:
            problems.append(f"{level}: kvpool left vLLM as it is: this compared stock with stock")
    if not any(outcomes[STOCK, suite].passed for suite in suites):
        problems.append("no test passed: nothing was compared")
    return problems


def check(levels: list[str], options: argparse.Namespace, console: Console) -> tuple[list[str], str]:
    """Runs all suites at all levels. Returns the problems, and the path of the report."""
    settings = common.read_settings(options.venv.absolute())
    suites = {name: list(files) for name, files in OFFLOAD_SUITES.items()}
    if not any(level.startswith(OFFLOAD) for level in levels):
        suites = find_files(Path(settings["tests"]), options.file or FILES)
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    outcomes = run_all(levels, suites, settings, options, console)
    steady = run_again(levels, suites, outcomes, settings, options)
    seconds = time.monotonic() - begun
    print_table(levels, suites, outcomes, common.wide_console(60 + 30 * len(levels)))
    problems = verdict(levels, suites, outcomes)
    report = {
        "vllm": settings.get("vllm"),
        "torch": settings.get("torch"),
        "seconds": round(seconds, 1),
        "problems": problems,
        "steady": steady,
        "levels": {
            level: {suite: outcomes[level, suite].as_json() for suite in suites if (level, suite) in outcomes}
            for level in levels
        },
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for line in steady:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    agreed = (
        "" if problems or len(levels) == 1 else "; every level passes exactly the tests that stock passes"
    )
    return problems, f"; sets of tests in {options.json}{agreed}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = common.arguments(__doc__)
    parser.add_argument(
        "levels",
        nargs="*",
        default=[STOCK],
        help="stock, and values of KVPOOL_VLLM, or offload-* (default: stock)",
    )
    parser.add_argument(
        "--file",
        action="append",
        help=f"a file of {FOLDER}, or folder/*; can be repeated (default: {len(FILES)} of those)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=ROOT / "target" / "vllm-conformance.json",
        help="file for the sets of tests (default: target/vllm-conformance.json)",
    )
    parser.add_argument("--logs", type=Path, help="a folder for what pytest prints, a file for each suite")
    options = parser.parse_args(argv)
    levels = [STOCK, *dict.fromkeys(level for level in options.levels if level != STOCK)]
    offload = {level.startswith(OFFLOAD) for level in levels[1:]}
    if len(offload) > 1:
        parser.error(
            f"levels {', '.join(levels[1:])}: those of {OFFLOAD}* run other suites than the others do"
        )
    return common.ended("vllm_conformance", lambda console: check(levels, options, console))


if __name__ == "__main__":
    sys.exit(main())
