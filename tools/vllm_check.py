#!/usr/bin/env python3
"""Checks kvpool inside of a real vLLM engine: tokens, cached tokens, preemptions and KV events have to
equal those of stock vLLM.

    python tools/vllm_check.py                              # stock against pool, manager and shadow
    python tools/vllm_check.py --levels manager --model hybrid --prompts 400

Needs the environment of tools/vllm_env.py. Each level runs in its own process: vllm.LLM on the CPU,
with a made-up model of two layers, and a pool so small that requests are preempted. There are three
models: a Llama in which both layers read all tokens, a Llama in which one layer has a sliding window,
and an LFM2 in which one layer has a recurrent state. The latter two have two KV-cache groups.

Each model generates answers to prompts that share prefixes, first greedily with n=1, and then with n=4
and sampling. vLLM's CPU backend schedules synchronously.

Levels run with kvpool's KV events, which report a hash once, even if several blocks have it. They must
equal stock's events after repeated events are removed. pool and manager run once more with
KVPOOL_VLLM_EVENTS=stock; then the events must equal stock's one by one. Exit code 0: every level
behaved like stock. 1: a difference, or a failed run. 2: bad usage. 130: Ctrl-C.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT: Final = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # the folder tools/ contains a folder named vllm

from tools.vllm import common  # noqa: E402
from tools.vllm.check_compare import EXACT, STOCK, Engine, Record, changes, verdict  # noqa: E402
from tools.vllm.check_engine import MODELS  # noqa: E402

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from rich.console import Console

LEVELS: Final = ("pool", "manager", "shadow")
# Levels that run once more with vLLM's own setting of KV events. At the level shadow, vLLM's own events
# are published anyway.
WITH_STOCK_EVENTS: Final = frozenset({"pool", "manager"})


def planned(levels: Sequence[str]) -> list[Engine]:
    """Returns the runs of engines to make: first stock vLLM, then the chosen levels."""
    chosen = [level for level in dict.fromkeys(levels) if level != STOCK]
    engines = [Engine(STOCK, STOCK)]
    engines += [Engine(level, EXACT if level in WITH_STOCK_EVENTS else STOCK) for level in chosen]
    return engines + [Engine(level, STOCK) for level in chosen if level in WITH_STOCK_EVENTS]


def child_environment(engine: Engine, settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the environment of an engine's process: the caller's environment, without its settings of
    vLLM and kvpool.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("KVPOOL_VLLM", "VLLM_"))}
    kept.pop("PYTHONPATH", None)
    kept.update(settings["environment"])
    kept.update(
        PYTHONHASHSEED="0",
        OMP_NUM_THREADS="1",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine runs in this process, which reads its events
    )
    if engine.level != STOCK:
        kept["KVPOOL_VLLM"] = engine.level
        if engine.level in WITH_STOCK_EVENTS:
            kept["KVPOOL_VLLM_EVENTS"] = engine.events
    return kept


def run_engine(engine: Engine, model: str, settings: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Runs one engine in its own process, and reads its record."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kvpool-check-") as scratch:
        result = Path(scratch) / "record.json"
        command = [settings["python"], "-m", "tools.vllm.check_engine", "--model", model]
        command += [
            "--prompts",
            str(options.prompts),
            "--blocks",
            str(options.blocks),
            "--result",
            str(result),
        ]
        problem, text = common.run_child(command, child_environment(engine, settings), options.timeout)
        if options.logs:
            (options.logs / f"{model}-{engine.level}-{engine.events}.log").write_text(text, encoding="utf-8")
        try:
            found = json.loads(result.read_text(encoding="utf-8"))
            engine.vllm, engine.replaced = found["vllm"], found["replaced"]
            engine.scenarios = {name: Record.from_json(one) for name, one in found["scenarios"].items()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = problem or f"left no record: {error}"
        if problem:
            engine.broken = problem + "\n" + common.last_lines(text, 20)
    engine.seconds = time.monotonic() - begun


def run_all(
    engines: Sequence[Engine],
    model: str,
    settings: Mapping[str, Any],
    options: argparse.Namespace,
    console: Console,
) -> None:
    """Runs the engines one after the other. Stops if the engine of stock fails."""
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("engines", total=len(engines))
        for engine in engines:
            progress.update(task, description=f"{model}: {engine.name}")
            run_engine(engine, model, settings, options)
            progress.advance(task)
            if engine.level == STOCK and engine.broken:
                raise common.ConformanceError(f"stock: {engine.broken}")
        progress.update(task, description=model)


def rows(engines: Sequence[Engine]) -> list[list[str]]:
    found = []
    for engine in engines:
        for scenario, record in engine.scenarios.items():
            kinds = [change[0] for change in changes(record.events)]
            same = record.tokens == engines[0].scenarios[scenario].tokens
            found.append(
                [
                    engine.name,
                    scenario,
                    f"{sum(len(one) for prompt in record.tokens for one in prompt):,}",
                    "yes" if same else "no",
                    f"{sum(record.cached):,}",
                    f"{record.preemptions:,}",
                    f"{kinds.count('stored'):,}",
                    f"{kinds.count('removed'):,}",
                    f"{record.seconds:.1f}",
                    ", ".join(engine.replaced),
                ]
            )
    return found


def make_table(model: str, engines: Sequence[Engine]) -> Table:
    """Makes the table of all engines for one model. It shows how each compares with stock."""
    table = Table(title=f"layers: {', '.join(MODELS[model])}")
    heads = [
        "level",
        "scenario",
        "tokens",
        "as stock",
        "cached",
        "preempted",
        "stored",
        "removed",
        "s",
        "kvpool at",
    ]
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if 2 <= number <= 8 else "left")
    for line in rows(engines):
        table.add_row(*line)
    return table


def check(
    models: dict[str, list[Engine]], options: argparse.Namespace, console: Console
) -> tuple[list[str], str]:
    """Runs all engines. Returns the problems, and the number of compared runs."""
    settings = common.read_settings(options.venv.absolute())
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
    for model, engines in models.items():
        run_all(engines, model, settings, options, console)
    out, problems = common.wide_console(), []
    for model, engines in models.items():
        out.print(make_table(model, engines))
        problems += [f"{model}: {problem}" for problem in verdict(engines)]
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        runs = {
            model: [dataclasses.asdict(engine) for engine in engines] for model, engines in models.items()
        }
        report = {"problems": problems, "engines": runs}
        options.json.write_text(json.dumps(report) + "\n", encoding="utf-8")
    compared = sum(len(engines) - 1 for engines in models.values())
    return problems, f"; {compared} runs did what stock did" if compared and not problems else ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = common.engine_arguments(__doc__, prompts=200)
    parser.add_argument(
        "--levels",
        nargs="*",
        default=list(LEVELS),
        metavar="LEVEL",
        choices=(STOCK, *LEVELS),
        help="(default: all)",
    )
    parser.add_argument(
        "--model", action="append", choices=list(MODELS), help="this one; can be repeated (default: all)"
    )
    parser.add_argument("--json", type=Path, help="write everything that was recorded as JSON")
    parser.add_argument("--logs", type=Path, help="a folder for what the engines print, one file each")
    options = common.parse_engine(parser, argv)
    models = {model: planned(options.levels) for model in dict.fromkeys(options.model or MODELS)}
    return common.ended("vllm_check", lambda console: check(models, options, console))


if __name__ == "__main__":
    sys.exit(main())
