"""Measures the effect of readers on a scheduler's steps: how long each call holds a manager, and the
time of steps with readers.

``python benches/python/readers.py [--blocks 65536 1048576] [--steps 2000]`` prints the tables of
design/threads.md.

The table "alone" has the processor time of every read call on a manager of each size, without other
threads. The call holds the lock for less than this time. For the table "together", one thread runs
steps, and a second one calls one reader without a pause. A step adds a token to each of 256 requests.
In every 16th step, a prompt of 32k tokens is admitted and another one released. Two Python threads also
wait for each other because only one can use the interpreter. The row `control` shows this effect alone:
its second thread never calls the manager.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from array import array
from typing import TYPE_CHECKING

import kvpool

if TYPE_CHECKING:
    from collections.abc import Callable

RUNNING = 256
PROMPT = 32_768
BLOCK = 16
PROMPTS = 4


def prompt(number: int) -> array[int]:
    return array("I", (number * 1_000_003 + token * 7 + 1 & 0x7FFFFFFF for token in range(PROMPT)))


class Steps:
    """The steps of a scheduler, on a manager whose pool is full of cached blocks."""

    def __init__(self, blocks: int, *, fill: bool = True) -> None:
        self.manager = kvpool.CacheManager(blocks, BLOCK, event_capacity=1 << 20, advisor=True)
        self.names = list(range(RUNNING))
        self.tokens = array("I", range(RUNNING))
        for name in self.names:
            self.manager.admit(name, [name] * 100)
        self.prompts = [self.manager.prepare(prompt(number)) for number in range(PROMPTS)]
        self.plain = prompt(0)
        if fill:
            # Admit distinct content until every block has been cached once.
            for number in range(blocks * BLOCK // PROMPT + 1):
                self.admit("fill", self.manager.prepare(prompt(PROMPTS + number)))
                self.manager.release("fill")
        self.turn = 0
        self.admit("long 0", self.prompts[0])
        self.admit("reader", self.prompts[1])

    def admit(self, name: str, cursor: kvpool.hashing.HashCursor) -> None:
        self.manager.admit(name, cursor)
        self.manager.commit(name, PROMPT)

    def append(self) -> None:
        self.manager.append(self.names, self.tokens, commit=True)

    def turn_over(self) -> None:
        """Releases the oldest long prompt, and admits the next one."""
        self.manager.release(f"long {self.turn}")
        self.turn += 1
        self.admit(f"long {self.turn}", self.prompts[self.turn % PROMPTS])

    def restart(self) -> None:
        """Replaces the decoding requests by short ones, so that every run begins with the same number
        of available blocks.
        """
        for name in self.names:
            self.manager.release(name)
            self.manager.admit(name, [name] * 100)


def timed(call: Callable[[], object]) -> float:
    """Returns the time that a call takes, in microseconds of elapsed time."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1000


def worked(call: Callable[[], object]) -> float:
    """Returns the microseconds of processor time of a call, which exclude other processes."""
    start = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - start) / 1000


def row(name: str, times: list[float]) -> str:
    times.sort()
    at = [times[min(len(times) - 1, int(len(times) * share))] for share in (0, 0.5, 0.99, 0.999)]
    return f"{name:28s}" + "".join(f"{one:12.1f}" for one in (*at, times[-1])) + f"{len(times):10d}"


def readers(steps: Steps) -> dict[str, Callable[[], object]]:
    manager = steps.manager
    return {
        "stats()": manager.stats,
        "num_available": lambda: manager.num_available,
        "request(id)": lambda: manager.request(7),
        "probe(cursor), 2048 blocks": lambda: manager.probe(steps.prompts[1]),
        "probe(tokens), 2048 blocks": lambda: manager.probe(steps.plain),
        "block_ids(id), 2048 blocks": lambda: manager.block_ids("reader"),
        "advice()": manager.diagnose.advice,
        "take_events()": manager.take_events,
        "check_invariants()": manager.diagnose.check_invariants,
        "free_order()": manager.diagnose.free_order,
        "eviction_order()": manager.diagnose.eviction_order,
    }


def alone(blocks: int) -> None:
    steps = Steps(blocks)
    print(
        f"\nalone, {blocks} blocks, us{'min':>19}{'p50':>12}{'p99':>12}{'p99.9':>12}{'max':>12}{'calls':>10}"
    )
    print(row("append, 256 requests", [worked(steps.append) for _ in range(1000)]))
    print(row("admit + release, 2048 blocks", [worked(steps.turn_over) for _ in range(100)]))
    steps.restart()
    for name, call in readers(steps).items():
        slow = name in {"check_invariants()", "free_order()", "eviction_order()"}
        times = []
        for _ in range(5 if slow else 1000):
            if name == "take_events()":
                steps.append()
            times.append(worked(call))
        print(row(name, times))
    # Measure a slow consumer of events, for several numbers of unread events in the log.
    behind = kvpool.BlockPool(1 << 18, 1, event_capacity=1 << 18)
    for events in (1 << 10, 1 << 14, 1 << 17):
        chain = kvpool.BlockHasher(block_size=1).cursor(range(events)).chain()
        times = []
        for _ in range(5):
            behind.reset()
            behind.take_events()
            table = behind.allocate(events)
            behind.register(table, chain)
            behind.mark_computed(table)
            behind.release(table, tail_first=True)
            times.append(worked(behind.take_events))
        print(row(f"take_events(), {events}", times))


def together(blocks: int, count: int) -> None:
    steps = Steps(blocks)
    calls: dict[str, Callable[[], object] | None] = {"nobody": None, "control": lambda: sum(range(20))}
    calls |= readers(steps)
    for name, interval in (("5 ms, the default", 5e-3), ("10 us", 1e-5)):
        sys.setswitchinterval(interval)
        print(f"\ntogether, {blocks} blocks, turns of {name}, us   append, 256 requests / admit + release")
        print(f"{'reader':28s}{'min':>12}{'p50':>12}{'p99':>12}{'p99.9':>12}{'max':>12}{'calls':>10}")
        for reader, call in calls.items():
            if reader in {"free_order()", "eviction_order()"}:
                continue
            few = reader == "check_invariants()"
            appends, turns = beside(steps, call, count // 10 if few else count)
            print(row(reader, appends))
            print(row("   admit + release", turns))
            steps.restart()


def beside(steps: Steps, call: Callable[[], object] | None, count: int) -> tuple[list[float], list[float]]:
    """Returns the times of `count` steps while a reader runs."""
    done, started = threading.Event(), threading.Event()

    def read() -> None:
        started.set()
        while call is not None and not done.is_set():
            call()

    thread = threading.Thread(target=read)
    thread.start()
    started.wait()
    appends, turns = [], []
    for step in range(count):
        appends.append(timed(steps.append))
        if step % 16 == 0:
            turns.append(timed(steps.turn_over))
    done.set()
    thread.join()
    return appends, turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, nargs="+", default=[1 << 16, 1 << 20])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--part", choices=["alone", "together", "both"], default="both")
    arguments = parser.parse_args()
    for blocks in arguments.blocks:
        if arguments.part != "together":
            alone(blocks)
        if arguments.part != "alone":
            together(blocks, arguments.steps)


if __name__ == "__main__":
    main()
