"""Measures the cost of a journal with the clock of ``kvpool.traces.Replay``: runs a trace with and
without a journal. All variants take turns.

    python benches/python/journal_clock.py TRACE [--rounds 11] [--running 4] [--json]

A small number of running requests makes many small steps, in which a journal has its highest relative
cost. Other threads hash the prompts in advance. So if a core is free, the elapsed time is that of the
manager's thread. The processor time is that of all threads. "No journal" runs twice: the difference
between the two is the resolution of the measurement. The order of the variants differs in each round.
The report uses the fastest round, because other load on the machine only adds time.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track
from rich.table import Table

import kvpool

if TYPE_CHECKING:
    from collections.abc import Callable

RING = 1 << 23
PLAIN = "no journal"


def run(
    trace: kvpool.traces.Trace, running: int, journal: kvpool.journal.Journal | None
) -> tuple[float, float]:
    """Returns the seconds on the clock, and the seconds of processor time."""
    clock, processor = time.perf_counter(), time.process_time()
    replay = kvpool.traces.Replay(trace, mode="engine", max_running=running, journal=journal)
    while replay.advance(1000) < replay.total:
        pass
    replay.flush_journal()
    seconds = time.perf_counter() - clock, time.process_time() - processor
    stats = replay.journal_stats()
    if stats is not None and stats.error is not None:
        sys.exit(f"the journal stopped: {stats.error}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path, help="a trace that `kvpool replay` reads")
    parser.add_argument("--rounds", type=int, default=11, help="how often each way runs (11)")
    parser.add_argument("--running", type=int, default=4, help="requests that run at once, at most (4)")
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    options = parser.parse_args()
    trace = kvpool.traces.Trace.read(options.trace)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.kvj"
        ways: dict[str, Callable[[], kvpool.journal.Journal | None]] = {
            PLAIN: lambda: None,
            "no journal, again": lambda: None,
            "file, default settings": lambda: kvpool.journal.Journal(path),
            "ring of 8 MiB, default settings": lambda: kvpool.journal.Journal(ring_bytes=RING),
            "ring of 8 MiB, no digests": lambda: kvpool.journal.Journal(ring_bytes=RING, digest_every=0),
        }
        seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        names, order = list(ways), random.Random(0)
        rounds = track(range(options.rounds), "rounds", console=Console(stderr=True))
        for _ in rounds:
            order.shuffle(names)
            for way in names:
                seconds[way].append(run(trace, options.running, ways[way]()))
                path.unlink(missing_ok=True)
    # Compute a ratio for each round, because a change of the machine's speed affects both times of a
    # round.
    rows = {
        way: {
            "fastest_s": min(clock for clock, _ in runs),
            "fastest_ratio": min(clock for clock, _ in runs) / min(clock for clock, _ in seconds[PLAIN]),
            "clock_s": statistics.median(clock for clock, _ in runs),
            "clock_ratio": statistics.median(
                mine / plain for (mine, _), (plain, _) in zip(runs, seconds[PLAIN], strict=True)
            ),
            "processor_s": statistics.median(processor for _, processor in runs),
            "processor_ratio": statistics.median(
                mine / plain for (_, mine), (_, plain) in zip(runs, seconds[PLAIN], strict=True)
            ),
        }
        for way, runs in seconds.items()
    }
    if options.json:
        print(json.dumps(rows))
        return
    heads = ("fastest s", "of none", "median s", "of none", "processor s", "of none")
    table = Table("way", *heads, title=f"{options.rounds} rounds, {options.running} requests at once")
    for way, row in rows.items():
        table.add_row(way, *(f"{value:.3f}" for value in row.values()))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
