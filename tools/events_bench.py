#!/usr/bin/env python3
"""What a publisher of KV events costs the steps of a scheduler, with consumers of several kinds.

    python tools/events_bench.py --rounds 20

One thread steps through a load of prompts: each step admits, commits and releases. Each round runs it
without a publisher and with one: with a subscriber that reads, one that asks for replays all the time,
one that reads nothing, one that died, and with a function whose queue is full. What a round says of a
kind is compared with what it says of no consumer at all, in the same minute. Whoever compares wants a
quiet machine: the last line says how busy it was.

Of each step there are three times. *Wall* is what it took. *Core* is what its thread had to wait for a
core, as the kernel counts it: that is what consumers' processes and everybody else take of the machine.
*Own* is wall less core: the step's work, and what it waited for the interpreter and for locks, which is
what the publisher does to a step. *CPU* is what the thread ran: own less CPU is that waiting alone.

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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import kvpool
from kvpool.events import CallSink, Publisher, ZmqSink

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BLOCK: Final = 16
#: Blocks of the pool, blocks of a prompt, requests of a step, and steps of a run.
BLOCKS, PROMPT, REQUESTS, STEPS = 8192, 64, 8, 400
KINDS: Final = ("no publisher", "no subscriber", "reads", "replays", "slow", "dead", "full")
#: What the kernel says of the thread that asks: ran, waited for a core, how often.
WAITED: Final = Path("/proc/thread-self/schedstat")
#: What is said of each step.
TIMES: Final = ("wall", "own", "cpu")

# : Subscribes to its first argument and reads everything, or nothing; or asks its third one for
# replays, one by one.
READER: Final = """
import sys, time, zmq
context = zmq.Context()
socket = context.socket(zmq.SUB)
socket.rcvhwm = 10
socket.subscribe(b"")
socket.connect(sys.argv[1])
asks = context.socket(zmq.DEALER)
print("ready", flush=True)
if sys.argv[2] == "replays":
    asks.connect(sys.argv[3])
while sys.argv[2] == "replays":
    asks.send_multipart([b"", bytes(8)])
    while asks.recv_multipart()[-2] != b"\\xff" * 8:
        pass
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
        sink = ZmqSink("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", high_water_mark=10)
    with Publisher(manager, [sink]) as publisher:
        reader = None
        try:
            if kind in {"reads", "replays", "slow", "dead"}:
                command = [sys.executable, "-c", READER, sink.endpoint, kind, sink.replay_endpoint]
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


def waited_for_core() -> int:
    """Nanoseconds that this thread has waited for a core since it began; 0 where the kernel does not say."""
    try:
        return int(WAITED.read_bytes().split()[1])
    except OSError:
        return 0


def run(kind: str) -> list[tuple[float, float, float]]:
    """Microseconds of each step: ``TIMES``."""
    manager = kvpool.CacheManager(BLOCKS, block_size=BLOCK)
    prompts = [
        [(one * 7919 + at) % 128_000 for at in range(PROMPT * BLOCK)] for one in range(REQUESTS * STEPS)
    ]
    spent = []
    with published(kind, manager):
        for step in range(STEPS):
            waited, ran, begun = waited_for_core(), time.thread_time_ns(), time.perf_counter_ns()
            for one in range(REQUESTS):
                request = step * REQUESTS + one
                manager.admit(request, prompts[request])
                manager.commit(request, PROMPT * BLOCK)
                manager.release(request)
            wall, cpu = time.perf_counter_ns() - begun, time.thread_time_ns() - ran
            own = wall - (waited_for_core() - waited)
            spent.append((wall / 1e3, own / 1e3, cpu / 1e3))
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
    #: By kind, of each round: p50 and p99 of each time.
    figures: dict[str, list[list[tuple[float, float]]]] = {kind: [] for kind in KINDS}
    for number in range(options.rounds):
        # Another one first each time: what slows the machine for a while slows all.
        for kind in (*KINDS[number % len(KINDS) :], *KINDS[: number % len(KINDS)]):
            steps = run(kind)
            columns = [sorted(column) for column in zip(*steps, strict=True)]
            figures[kind].append([(statistics.median(one), one[int(len(one) * 0.99)]) for one in columns])
    base = figures["no subscriber"]
    blocks = REQUESTS * PROMPT
    print(
        f"us per step of {blocks} blocks, p50 and p99, and p99 beside that of no subscriber; medians of",
        end=" ",
    )
    print(f"{options.rounds} rounds. own: wall less the wait for a core")
    print("| consumer |" + "".join(f" {name} p50 | p99 | times |" for name in TIMES))
    print("|---" * (1 + 3 * len(TIMES)) + "|")
    for kind, found in figures.items():
        cells = []
        for at in range(len(TIMES)):
            pairs = zip(found, base, strict=True)
            ratio = statistics.median(one[at][1] / other[at][1] for one, other in pairs)
            p50, p99 = (statistics.median(one[at][which] for one in found) for which in (0, 1))
            cells.append(f" {p50:.0f} | {p99:.0f} | {ratio:.3f} |")
        print(f"| {kind} |" + "".join(cells))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
