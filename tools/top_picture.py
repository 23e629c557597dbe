"""A picture of ``kvpool top``, for the docs: a made-up day of four tenants, the same on every machine.

python tools/top_picture.py docs/images/top.svg
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console

import kvpool
from kvpool.cli.top_reading import of_samples, summary
from kvpool.cli.top_view import screen
from kvpool.errors import OutOfBlocksError
from kvpool.metrics import Metrics
from kvpool.store import Arena, Disk, Namespace, Store

NAMESPACE = Namespace(
    model="m",
    weights="w",
    kv_dtype="bf16",
    scales="",
    block_size=1,
    layouts=[(0, "LKNHD", [1, 2, 1, 1, 8], [16, 8, 8, 8, 1])],
    layers=(0, 1),
    heads=(0, 1),
    hash_algorithm="sha256",
    hash_seed=b"",
    extra={},
)


def traffic(manager: kvpool.CacheManager, store: Store, arena: Arena, start: int, end: int) -> None:
    """Requests of a generated trace, in the order in which they came."""
    lines = kvpool.traces.Trace.generate(requests=end, seed=3).to_jsonl().splitlines()
    rows = sorted((json.loads(line) for line in lines), key=lambda row: row["timestamp"])
    running: list[int] = []
    for number, row in enumerate(rows[start:], start):
        manager.advance_time(row["timestamp"] / 1000)
        scan = [(0, None, kvpool.Retention(10))] if number % 9 == 0 else None
        try:
            manager.admit(number, row["hash_ids"], tenant=number % 4 + 1, retention=scan)
        except OutOfBlocksError:
            manager.release(running.pop(0))
            continue
        manager.commit(number, len(row["hash_ids"]))
        running.append(number)
        if len(running) > 14:
            if number % 60 == 0:
                swap = manager.begin_swap_out([running[0]])
                manager.take_plan()
                manager.complete_swap(swap)
            manager.release(running.pop(0))
        if number % 20 == 0:
            arena.write(0, bytes([number % 251]) * 4096)
            store.put([b"%d" % (number % 300)], [0])
            store.wait(60)
            store.get([b"%d" % (number % 420)], [1])
            store.wait(60)
    for one in running[3:]:
        manager.release(one)


def picture() -> str:
    manager = kvpool.CacheManager(
        2001, 1, retention=True, host_blocks=600, advisor=True, explain=True, metrics=True, watermark=0.02
    )
    arena = Arena(slots=2, slot_bytes=4096)
    with tempfile.TemporaryDirectory() as folder:
        disk = Disk(folder, capacity_bytes=1 << 20, free_floor_bytes=0, direct=False)
        with Store(disk, arena, NAMESPACE, admission="always") as store:
            metrics = Metrics()
            metrics.add("main", manager)
            metrics.add("disk", store)
            traffic(manager, store, arena, 0, 1500)
            before = of_samples(metrics.collect())
            for one in range(1500):
                if one in manager:
                    manager.release(one)
            traffic(manager, store, arena, 1500, 1600)
            told = summary(of_samples(metrics.collect()), before, 2.0)
    console = Console(record=True, width=128, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(screen(told, "http://127.0.0.1:9400/metrics", "every 2 s", console.width))
    # A font that pictures can have: they load none from elsewhere.
    page = console.export_svg(title="kvpool top http://127.0.0.1:9400/metrics", font_aspect_ratio=0.602)
    return re.sub(r"@font-face \{.*?\}\n", "", page, flags=re.DOTALL).replace("Fira Code", "DejaVu Sans Mono")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Take a picture of kvpool top.")
    parser.add_argument("picture", type=Path, help="an SVG file")
    given = parser.parse_args(arguments)
    given.picture.write_text(picture(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
