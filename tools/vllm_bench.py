#!/usr/bin/env python3
"""Measures vLLM's KV-cache management, stock and with kvpool inside, and checks that all levels
allocate the same blocks.

    # Every load, at stock, pool and manager:
    .venv-vllm/bin/python tools/vllm_bench.py
    .venv-vllm/bin/python tools/vllm_bench.py --load decode --levels stock manager --events off
    # The first load from a Mooncake trace:
    .venv-vllm/bin/python tools/vllm_bench.py --trace conversation.jsonl

Needs the environment of tools/vllm_env.py. All runs are made in one process; the levels take turns
within each round. vLLM's Request, request hasher and KVCacheManager are called as its scheduler does;
there is no model. Times are those of the calls alone. On a busy machine use --clock thread, which
counts only the time that the scheduler's thread ran.

Exit code 0: the block ids, hits and preemptions of every level equal those of stock. 1: they differ, or
the runs cannot be made. 2: bad usage. 130: Ctrl-C.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import kvpool

ROOT: Final = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # the folder tools/ contains a folder named vllm

from tools.vllm.bench_loads import LOADS, TRACE_REQUESTS, Load, LoadError, Settings, make_load  # noqa: E402
from tools.vllm.bench_report import Result, as_json, describe, facts, markdown, rich_table  # noqa: E402
from tools.vllm.bench_run import import_vllm, run_level  # noqa: E402
from tools.vllm.bench_stats import (  # noqa: E402
    CLOCKS,
    STOCK,
    BenchError,
    Run,
    clock_cost_ns,
    compare,
    figures,
    rotations,
)
from tools.vllm.common import arguments, ended, wide_console  # noqa: E402

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rich.console import Console

LEVELS: Final = (STOCK, "pool", "manager")
ROUNDS: Final = 3
Runs = dict[tuple[str, bool, str], list[Run]]  # by load, events and level


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__, venv=False)
    parser.add_argument(
        "--levels",
        nargs="+",
        default=list(LEVELS),
        metavar="LEVEL",
        choices=LEVELS,
        help="stock and values of KVPOOL_VLLM (default: stock pool manager)",
    )
    parser.add_argument(
        "--load", action="append", choices=list(LOADS), help="this load; can be repeated (default: all)"
    )
    parser.add_argument(
        "--events", choices=("off", "on", "both"), default="both", help="KV events (default: both)"
    )
    parser.add_argument("--rounds", type=int, help=f"runs of each level (default: {ROUNDS}; 1 with --quick)")
    parser.add_argument(
        "--clock",
        choices=list(CLOCKS),
        default="wall",
        help="what calls are timed with: a clock, or the processor time of their thread (default: wall)",
    )
    parser.add_argument("--quick", action="store_true", help="small loads, one round: does it work?")
    parser.add_argument(
        "--trace", type=Path, help="a Mooncake trace for the first load (default: a generated one)"
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=TRACE_REQUESTS,
        help=f"requests of the trace (default: {TRACE_REQUESTS})",
    )
    today = datetime.datetime.now(tz=datetime.UTC).date()
    parser.add_argument(
        "--out",
        type=Path,
        nargs="?",
        const=ROOT / "benches" / "results" / f"{today}-vllm.md",
        help="write a Markdown file of the results (without a name: benches/results/<date>-vllm.md)",
    )
    parser.add_argument("--json", type=Path, help="write the results as JSON; - is standard output")
    options = parser.parse_args(argv)
    if options.rounds is None:
        options.rounds = 1 if options.quick else ROUNDS
    if options.rounds < 1 or options.requests < 1:
        parser.error("--rounds and --requests are at least 1")
    options.levels = list(dict.fromkeys(options.levels))
    if STOCK in options.levels:
        options.levels = [STOCK, *(level for level in options.levels if level != STOCK)]
    return options


def measure(loads: Sequence[Load], options: argparse.Namespace, console: Console) -> Runs:
    """Makes all runs, one round after the other. So a temporary slowdown of the machine affects every
    level.
    """
    runs: Runs = {}
    kinds = {"off": (False,), "on": (True,), "both": (False, True)}[options.events]
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    total = options.rounds * len(loads) * len(kinds) * len(options.levels)
    # Draw the progress bar only between runs and at fixed moments of a run. A separate thread would
    # take time from the measurement.
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("runs", total=total)
        for number, order in enumerate(rotations(options.levels, options.rounds), 1):
            for load in loads:
                for events in kinds:
                    for level in order:
                        label = f"round {number}, {load.name}, events {'on' if events else 'off'}, {level}"

                        def tick(done: int, label: str = label, load: Load = load) -> None:
                            progress.update(
                                task, description=f"{label}: {done:,}/{len(load.jobs):,} requests"
                            )
                            progress.refresh()

                        progress.update(task, description=label)
                        progress.refresh()
                        runs.setdefault((load.name, events, level), []).append(
                            run_level(level, load, events, tick, CLOCKS[options.clock])
                        )
                        progress.advance(task)
        progress.update(task, description="runs")
        progress.refresh()
    return runs


def evaluate(loads: Sequence[Load], runs: Runs, options: argparse.Namespace, clock_ns: float) -> list[Result]:
    """Returns the statistics of each load with and without events. Also returns the differences between
    each level and stock.
    """
    results = []
    for load in loads:
        for events in (False, True):
            of_level = {
                level: runs[load.name, events, level]
                for level in options.levels
                if (load.name, events, level) in runs
            }
            if not of_level:
                continue
            first = next(iter(of_level.values()))[0]
            problems = []
            for level, several in of_level.items():
                problems += [
                    f"{level}, round {number}: {problem}"
                    for number, run in enumerate(several, 1)
                    for problem in compare(first, run)
                ]
            results.append(
                Result(
                    load=load.name,
                    title=load.title,
                    events=events,
                    counts=first.counts,
                    levels={level: figures(several, clock_ns) for level, several in of_level.items()},
                    problems=problems,
                )
            )
    return results


def bench(options: argparse.Namespace, console: Console) -> tuple[list[str], str]:
    """Runs all loads at all levels, and writes the requested files. Returns the problems."""
    settings = Settings(options.trace, options.requests, options.quick)
    loads = [make_load(name, settings) for name in options.load or LOADS]
    with console.status("importing vLLM"):
        vllm = import_vllm(options.levels)
    clock_ns = clock_cost_ns(clock=CLOCKS[options.clock])
    results = evaluate(loads, measure(loads, options, console), options, clock_ns)
    known = facts(vllm, kvpool.__version__, (options.clock, clock_ns), options.rounds)
    if options.json != Path("-"):
        out = wide_console(200)
        for result in results:
            out.print(f"\n{result.heading}", style="bold", highlight=False)
            out.print(f"{result.title}. {describe(result)}.", highlight=False)
            out.print(rich_table(result))
    for path, text in (
        (options.out, markdown(known, results)),
        (options.json, json.dumps(as_json(known, results), indent=1) + "\n"),
    ):
        if path == Path("-"):
            sys.stdout.write(text)
        elif path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    problems = [f"{result.heading}: {problem}" for result in results for problem in result.problems]
    agreed = "" if problems or len(options.levels) == 1 else "; every level hands out the same block ids"
    return problems, agreed


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.pop("KVPOOL_VLLM", None)  # the levels are installed and removed here
    return ended("vllm_bench", lambda console: bench(options, console), (BenchError, LoadError))


if __name__ == "__main__":
    sys.exit(main())
