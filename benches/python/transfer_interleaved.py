"""Runs the copies of ``test_bench_transfer`` round by round. In each round all ways of copying take
turns.

Run it with ``python benches/python/transfer_interleaved.py``.

The speed of a shared machine changes from second to second. Ways that take turns are affected equally,
so their ratios are reliable.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent))
bench: Any = importlib.import_module("test_bench_transfer")

ROUNDS = 41


def main() -> None:
    torch.set_num_threads(1)
    table = Table("piece", "way", "min ms", "median ms", "GB/s", "of one memmove")
    for name, piece in track(bench.PIECES.items(), description="pieces"):
        copy = bench.Copy(piece)
        ways = {way: make(copy, 1) for way, make in bench.WAYS.items()}
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, run in ways.items():
                start = time.perf_counter()
                run()
                seconds[way].append(time.perf_counter() - start)
        memmove = statistics.median(seconds["one memmove"])
        for way, taken in seconds.items():
            median = statistics.median(taken)
            rate = bench.PAYLOAD / median / 1e9
            table.add_row(
                name,
                way,
                f"{min(taken) * 1e3:.2f}",
                f"{median * 1e3:.2f}",
                f"{rate:.1f}",
                f"{median / memmove:.2f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
