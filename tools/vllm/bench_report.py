"""Writes the results of tools/vllm_bench.py: as tables on the terminal, as Markdown, and as JSON."""

from __future__ import annotations

import dataclasses
import datetime
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from tools.vllm.bench_stats import PHASE_NOTES, PHASES, STOCK, Counts, Figures, ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
#: Units of time: the smallest number of seconds that is shown in the unit, the factor, and the name.
UNITS: Final = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "us"))


@dataclasses.dataclass(frozen=True)
class Result:
    """The statistics of a load, with or without events, at every level of kvpool's plug-in."""

    load: str
    title: str
    events: bool
    counts: Counts
    levels: Mapping[str, Figures]
    problems: Sequence[str]

    @property
    def heading(self) -> str:
        return f"{self.load}, KV events {'on' if self.events else 'off'}"


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit() -> str:
    """Returns the commit of the checkout. A mark shows whether files have been changed since."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+changes", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def facts(vllm: str, kvpool: str, clock: tuple[str, float], rounds: int) -> dict[str, Any]:
    """Returns the versions and settings of the measurement, for the report."""
    return {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "commit": commit(),
        "cpu": cpu_model(),
        "python": platform.python_version(),
        "vllm": vllm,
        "kvpool": kvpool,
        "rounds": rounds,
        "clock": clock[0],
        "clock_ns": clock[1],
    }


def seconds(value: float) -> str:
    if value == 0:
        return "0"
    factor, unit = next((factor, unit) for least, factor, unit in UNITS if value >= least)
    shown = value * factor
    return f"{shown:.0f} {unit}" if shown >= 999.5 else f"{shown:.3g} {unit}"


def times(value: float | None) -> str:
    """Formats a ratio."""
    return "" if value is None else f"{value:.2f}x" if value < 10 else f"{value:.1f}x"


def rows(result: Result) -> tuple[list[str], list[list[str]]]:
    """Returns the header and the rows of a load's table. Rows are phases, their sum, steps, and garbage
    collections.
    """
    levels = list(result.levels)
    stock = result.levels.get(STOCK)
    head = ["", "calls", *levels]
    others = [level for level in levels if level != STOCK and stock is not None]
    head += [f"{STOCK}/{level}" for level in others]

    def line(label: str, calls: str, values: Mapping[str, float], shown: Mapping[str, str]) -> list[str]:
        ratios = [times(ratio(values[STOCK], values[level])) for level in others]
        return [label, calls, *(shown[level] for level in levels), *ratios]

    lines = []
    first = next(iter(result.levels.values()))
    for phase in PHASES:
        values = {level: one.phases[phase] for level, one in result.levels.items()}
        texts = {
            level: f"{seconds(one.phases[phase])} ({seconds(one.phases_min[phase])})"
            for level, one in result.levels.items()
        }
        lines.append(line(phase, f"{first.calls[phase]:,}", values, texts))
    totals = {level: one.total for level, one in result.levels.items()}
    texts = {
        level: f"{seconds(one.total)} ({seconds(one.total_min)})" for level, one in result.levels.items()
    }
    lines.append(line("all", "", totals, texts))
    for label, p50 in (("step p50", True), ("step p99", False)):
        pairs = {
            level: (one.step_p50, one.step_p50_min) if p50 else (one.step_p99, one.step_p99_min)
            for level, one in result.levels.items()
        }
        values = {level: median for level, (median, _) in pairs.items()}
        texts = {level: f"{median:.1f} us ({least:.1f} us)" for level, (median, least) in pairs.items()}
        lines.append(line(label, f"{result.counts.steps:,}", values, texts))
    texts = {level: f"{one.gc_runs:g}: {seconds(one.gc_seconds)}" for level, one in result.levels.items()}
    collected = {level: one.gc_seconds for level, one in result.levels.items()}
    lines.append(line("gc", "", collected, texts))
    return head, lines


def describe(result: Result) -> str:
    counts = result.counts
    parts = [
        f"{counts.steps:,} steps",
        f"{counts.requests:,} requests done",
        f"{counts.prompt_tokens:,} prompt tokens",
    ]
    parts += [f"{counts.cached_tokens:,} of them cached" if counts.cached_tokens else "none of them cached"]
    parts += [f"{counts.output_tokens:,} output tokens", f"{counts.preemptions:,} preemptions"]
    if counts.refusals:
        parts.append(f"{counts.refusals:,} refused admissions")
    if result.events:
        parts.append(
            "events: " + ", ".join(f"{level} {one.events:,}" for level, one in result.levels.items())
        )
    return "; ".join(parts)


def rich_table(result: Result) -> Table:
    head, lines = rows(result)
    table = Table()
    for number, cell in enumerate(head):
        table.add_column(cell, justify="right" if number else "left", no_wrap=True)
    for line in lines:
        if line[0] == "all":
            table.add_section()
        table.add_row(*line)
    return table


def markdown(known: Mapping[str, Any], results: Sequence[Result]) -> str:
    text = [
        f"# KV-cache management inside vLLM, {known['date']}",
        "",
        f"Commit {known['commit']}, vLLM {known['vllm']}, kvpool {known['kvpool']}, Python "
        f"{known['python']}, "
        f"{known['cpu']}. Medians of {known['rounds']} rounds, the levels in turn in one process, minima in "
        "brackets; "
        f"ratios of medians; reading the clock ({known['clock']}, {known['clock_ns']:.0f} ns a call) is "
        "taken off. "
        "Made by tools/vllm_bench.py (make vllm-bench).",
        "",
        "stock is vLLM's own; pool and manager are values of KVPOOL_VLLM. The block ids that every level "
        "hands out are "
        "the same as stock's, by checksum. Steps are without the hashes of prompts, which are computed as "
        "requests "
        "arrive; in brackets those of the shortest time that each step took in any round.",
        "",
    ]
    text += [f"- {phase}: {PHASE_NOTES[phase]}" for phase in PHASES]
    text += ["- gc: garbage collections while it ran, and their time, which lies in the phases, too"]
    for result in results:
        head, lines = rows(result)
        text += ["", f"## {result.heading}", "", f"{result.title}. {describe(result)}.", ""]
        if result.problems:
            text += [f"- **{problem}**" for problem in result.problems] + [""]
        text += ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
        text += ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join(text) + "\n"


def as_json(known: Mapping[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    """Returns all results as JSON. Times of phases are in seconds, times of steps in microseconds."""
    return {**known, "results": [dataclasses.asdict(result) for result in results]}
