#!/usr/bin/env python3
"""What a publisher of KV events costs a scheduler's steps, with consumers that read, are slow, dead or full.

    python tools/events_bench.py --rounds 20

One thread steps through a load of prompts: each step admits, commits and releases. Each round runs it without a
publisher and with one: with a subscriber that reads, one that reads nothing, one that died, and with a function whose
queue is full. What a round says of a kind is compared with what it says of no consumer at all, in the same minute.
Whoever compares wants a quiet machine: the last line says how busy it was.

Exit code 0: measured. 2: bad usage.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import kvpool
from kvpool.events import CallSink, Publisher, ZmqSink

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BLOCK: Final = 16
#: Blocks of the pool, blocks of a prompt, requests of a step, and steps of a run.
BLOCKS, PROMPT, REQUESTS, STEPS = 8192, 64, 8, 400
KINDS: Final = ("no publisher", "no subscriber", "reads", "slow", "dead", "full")

#: Subscribes to its first argument and reads everything, or nothing.
READER: Final = """
import sys, time, zmq
socket = zmq.Context().socket(zmq.SUB)
socket.rcvhwm = 10
socket.subscribe(b"")
socket.connect(sys.argv[1])
print("ready", flush=True)
while True:
    time.sleep(3600) if sys.argv[2] == "slow" else socket.recv_multipart()
"""


@contextlib.contextmanager
def published(kind: str, manager: kvpool.CacheManager) -> Iterator[None]:
    """A publisher with a consumer of a kind."""
    if kind == "no publisher":
        yield
        return
    go = threading.Event()
    sink: Any
    if kind == "full":
        sink = CallSink(lambda _number, _batch: go.wait(), room=1, patience=1.0)
    else:
        sink = ZmqSink("tcp://127.0.0.1:*", high_water_mark=10)
    with Publisher(manager, [sink]) as publisher:
        reader = None
        try:
            if kind in {"reads", "slow", "dead"}:
                command = [sys.executable, "-c", READER, sink.endpoint, kind]
                reader = subprocess.Popen(command, stdout=subprocess.PIPE)
                assert reader.stdout is not None
                reader.stdout.readline()
                if kind == "dead":
                    reader.kill()
            yield
            if publisher.counts().failures:
                raise RuntimeError("the publisher failed")
        finally:
            go.set()
            if reader is not None:
                reader.kill()
                reader.wait()
                if reader.stdout is not None:
                    reader.stdout.close()


def run(kind: str) -> list[float]:
    """Microseconds of each step."""
    manager = kvpool.CacheManager(BLOCKS, block_size=BLOCK)
    prompts = [[(one * 7919 + at) % 128_000 for at in range(PROMPT * BLOCK)] for one in range(REQUESTS * STEPS)]
    spent = []
    with published(kind, manager):
        for step in range(STEPS):
            begun = time.perf_counter()
            for one in range(REQUESTS):
                request = step * REQUESTS + one
                manager.admit(request, prompts[request])
                manager.commit(request, PROMPT * BLOCK)
                manager.release(request)
            spent.append((time.perf_counter() - begun) * 1e6)
            # What an engine does meanwhile is none of the scheduler's: it waits for its GPU.
            time.sleep(0.0005)
    return spent[STEPS // 10 :]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--rounds", type=int, default=10, help="runs of each kind (default: 10)")
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    figures: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for number in range(options.rounds):
        # Another one first each time: what slows the machine for a while slows all.
        for kind in (*KINDS[number % len(KINDS) :], *KINDS[: number % len(KINDS)]):
            ordered = sorted(run(kind))
            figures[kind].append((statistics.median(ordered), ordered[int(len(ordered) * 0.99)]))
    base = figures["no subscriber"]
    blocks = REQUESTS * PROMPT
    print(f"us per step of {blocks} blocks; p99 beside that of no subscriber; medians of {options.rounds} rounds")
    print("| consumer | p50 | p99 | p99, times that of no subscriber |\n|---|---|---|---|")
    for kind, found in figures.items():
        ratio = statistics.median(one[1] / other[1] for one, other in zip(found, base, strict=True))
        p50, p99 = (statistics.median(one[at] for one in found) for at in (0, 1))
        print(f"| {kind} | {p50:.0f} | {p99:.0f} | {ratio:.3f} |")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
