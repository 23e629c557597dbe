"""The measurements of tools/vllm_bench.py, and the statistics that are computed from them. This module
does not use vLLM.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
import zlib
from array import array
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

STOCK: Final = "stock"
PHASES: Final = ("hash", "append", "lookup", "allocate", "decode", "ids", "free", "events", "other")
HASH, APPEND, LOOKUP, ALLOCATE, DECODE, IDS, FREE, EVENTS, OTHER = range(len(PHASES))
# The calls of vLLM that each phase contains, for the reports.
PHASE_NOTES: Final = {
    "hash": "Request(...): the hashes of the prompt, and the copy of its tokens",
    "append": "append_output_token_ids: a running request each step",
    "lookup": "get_computed_blocks",
    "allocate": "allocate_slots and get_blocks of admitted or refused requests, allocate_slots of prefill "
    "chunks",
    "decode": "allocate_slots and cache_blocks of decoding requests",
    "ids": "get_block_ids",
    "free": "free: finished and preempted requests",
    "events": "take_events",
    "other": "new_step_starts, take_new_block_ids, take_kv_cache_block_copies, "
    "take_boundary_state_offloads, usage, "
    "statistics, estimate_cached_tokens",
}


class BenchError(Exception):
    """A run cannot be made, or it would not measure the level that it names. The message states the
    reason.
    """


# Clocks by name. "wall" is the elapsed time, and "thread" the time that the thread ran. "thread"
# excludes waits for a processor, a lock or the interpreter. So it can compare levels while the machine
# is busy, but reading it takes longer.
CLOCKS: Final[dict[str, Callable[[], int]]] = {"wall": time.perf_counter_ns, "thread": time.thread_time_ns}


def clock_cost_ns(samples: int = 20_000, clock: Callable[[], int] = time.perf_counter_ns) -> float:
    """Returns the nanoseconds that are added to a measured time because the clock is read at its start
    and end.
    """
    found = []
    for _ in range(samples):
        begun = clock()
        found.append(clock() - begun)
    return statistics.median(found)


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the value below which this share of the values lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclasses.dataclass
class Timings:
    """The nanoseconds and the number of calls of each phase and each step, and the garbage collections
    of the run.
    """

    spent: list[int] = dataclasses.field(default_factory=lambda: [0] * len(PHASES))
    calls: list[int] = dataclasses.field(default_factory=lambda: [0] * len(PHASES))
    steps: list[int] = dataclasses.field(default_factory=list)
    step_calls: list[int] = dataclasses.field(default_factory=list)
    gc_runs: int = 0
    gc_ns: int = 0

    def end_step(self, spent_before: int, calls_before: int) -> None:
        """Adds a step to the lists. The arguments are the sums at the start of the step. A step does
        not include the hashing of prompts.
        """
        self.steps.append(self.step_sum() - spent_before)
        self.step_calls.append(self.call_sum() - calls_before)

    def step_sum(self) -> int:
        """Returns the nanoseconds of all steps so far."""
        return sum(self.spent) - self.spent[HASH]

    def call_sum(self) -> int:
        """Returns the number of timed calls in all steps so far."""
        return sum(self.calls) - self.calls[HASH]


@dataclasses.dataclass(frozen=True)
class Counts:
    """Numbers of events in a run. They are equal at every level, unless the levels behave differently."""

    steps: int
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    refusals: int


class Ledger:
    """A checksum of all block ids that were allocated so far. It is stored after each step, to compare
    levels.
    """

    def __init__(self) -> None:
        self.value = 0
        self.steps: list[int] = []

    def add(self, job: int, groups: Iterable[Iterable[int]] | None) -> None:
        if groups is None:
            return
        for group in groups:
            self.value = zlib.crc32(
                array("q", group).tobytes(), zlib.crc32(job.to_bytes(8, "little"), self.value)
            )

    def end_step(self) -> None:
        self.steps.append(self.value)


@dataclasses.dataclass
class Run:
    timings: Timings
    counts: Counts
    ledger: list[int]
    seconds: float  # elapsed time, including the driver's own work
    events: int = 0


@dataclasses.dataclass(frozen=True)
class Figures:
    """Statistics of one level over all rounds of a load: medians and minima. Times are in seconds,
    times of steps in microseconds.
    """

    phases: Mapping[str, float]  # medians
    phases_min: Mapping[str, float]
    calls: Mapping[str, int]
    total: float
    total_min: float
    step_p50: float
    step_p99: float
    # Percentiles over the steps. For each step the shortest time of all rounds counts, because a step
    # does the same work in every round, and other load on the machine only makes it longer.
    step_p50_min: float
    step_p99_min: float
    gc_runs: float
    gc_seconds: float
    wall: float
    events: int
    rounds: int


def figures(runs: Sequence[Run], clock_ns: float) -> Figures:
    """Computes medians and minima over the runs. Subtracts the cost of reading the clock."""
    by_phase: dict[str, list[float]] = {}
    for number, name in enumerate(PHASES):
        by_phase[name] = [
            max(0.0, run.timings.spent[number] - clock_ns * run.timings.calls[number]) / 1e9 for run in runs
        ]
    totals = [sum(values[index] for values in by_phase.values()) for index in range(len(runs))]
    steps = [
        [
            max(0.0, spent - clock_ns * calls) / 1e3
            for spent, calls in zip(run.timings.steps, run.timings.step_calls, strict=True)
        ]
        for run in runs
    ]
    shortest = [min(several) for several in zip(*steps, strict=False)]
    return Figures(
        phases={name: statistics.median(values) for name, values in by_phase.items()},
        phases_min={name: min(values) for name, values in by_phase.items()},
        calls=dict(zip(PHASES, runs[0].timings.calls, strict=True)),
        total=statistics.median(totals),
        total_min=min(totals),
        step_p50=statistics.median(percentile(one, 0.5) for one in steps),
        step_p99=statistics.median(percentile(one, 0.99) for one in steps),
        step_p50_min=percentile(shortest, 0.5),
        step_p99_min=percentile(shortest, 0.99),
        gc_runs=statistics.median(run.timings.gc_runs for run in runs),
        gc_seconds=statistics.median(run.timings.gc_ns / 1e9 for run in runs),
        wall=statistics.median(run.seconds for run in runs),
        events=runs[0].events,
        rounds=len(runs),
    )


def ratio(stock: float, level: float) -> float | None:
    """Returns stock's time divided by the level's time, or None if one of them is 0."""
    return stock / level if stock > 0 and level > 0 else None


def first_difference(stock: Sequence[int], level: Sequence[int]) -> int | None:
    """Returns the number of the first step after which the checksums differ, counted from 1. Returns
    None if they agree.
    """
    for number, (one, other) in enumerate(zip(stock, level, strict=False), 1):
        if one != other:
            return number
    return None if len(stock) == len(level) else min(len(stock), len(level)) + 1


def compare(stock: Run, level: Run) -> list[str]:
    """Returns the differences between a level and stock, one line each. If the list is empty, blocks,
    hits and preemptions are equal.
    """
    problems = []
    step = first_difference(stock.ledger, level.ledger)
    if step is not None:
        problems.append(f"block ids differ from step {step} on")
    for field in dataclasses.fields(Counts):
        ours, theirs = getattr(level.counts, field.name), getattr(stock.counts, field.name)
        if ours != theirs:
            problems.append(f"{field.name.replace('_', ' ')}: {ours:,}, stock {theirs:,}")
    return problems


def rotations(levels: Sequence[str], rounds: int) -> list[list[str]]:
    """Returns the order of the levels in each round. Each level is the first one equally often."""
    return [
        [*levels[shift:], *levels[:shift]] for shift in (number % len(levels) for number in range(rounds))
    ]
