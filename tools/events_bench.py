#!/usr/bin/env python3
"""Measures how a publisher of KV events slows the steps of a scheduler, with several kinds of
consumers.

    python tools/events_bench.py --rounds 20

One thread runs a scheduler's steps; each step admits, commits and releases requests. Each round runs
all steps without a publisher, and with a publisher for each kind of consumer. The kinds are: a
subscriber that reads, one that requests replays all the time, one that reads nothing, one that died,
and a function whose queue is full. The times with each kind of consumer are compared with the times
without a publisher in the same round. A comparison needs a quiet machine; the last line shows how busy
it was.

Each step has three times. *Wall* is the elapsed time. *CPU* is the time that the thread ran. *Own* is
the elapsed time minus the time that the thread waited for a core, as the kernel measures it. Other
processes, including the consumers, cause these waits. So *own* minus *CPU* is the time of the waits for
the interpreter and for locks, which the publisher may cause.

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
#: Number of blocks in the pool and in a prompt, number of requests per step, and number of steps per
#: run.
BLOCKS, PROMPT, REQUESTS, STEPS = 8192, 64, 8, 400
KINDS: Final = ("no publisher", "no subscriber", "reads", "replays", "slow", "dead", "full")
#: The kernel's counters of the calling thread: nanoseconds run, nanoseconds waited for a core, number
#: of runs.
WAITED: Final = Path("/proc/thread-self/schedstat")
#: The names of the three times that are measured in each step.
TIMES: Final = ("wall", "own", "cpu")

# A program that subscribes to the endpoint in its first argument. Depending on its kind, it reads
# everything, reads nothing, or requests replays from the endpoint in its third argument.
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
    """Publishes the events of a manager to a consumer of this kind, until the end of the context."""
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
    """Returns the nanoseconds for which this thread has waited for a core. Returns 0 if the kernel does
    not report them.
    """
    try:
        return int(WAITED.read_bytes().split()[1])
    except OSError:
        return 0


def run(kind: str) -> list[tuple[float, float, float]]:
    """Runs all steps. Returns the times of each step in microseconds, in the order of ``TIMES``."""
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
            # Sleep as a scheduler does while it waits for the GPU, so that the consumers can run.
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
    #: For each kind of consumer and each round, the p50 and the p99 of each time.
    figures: dict[str, list[list[tuple[float, float]]]] = {kind: [] for kind in KINDS}
    for number in range(options.rounds):
        # Each round starts with another kind of consumer, so that a temporary slowdown affects all
        # kinds.
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
