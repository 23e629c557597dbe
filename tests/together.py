"""Runs threads for tests. They start at the same moment, and readers can run while they work."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import kvpool


def together(*tasks: Callable[[], Any]) -> list[Any]:
    """Runs each task in a thread. All threads start at the same moment. Raises the exception of a task
    that fails.
    """
    barrier = threading.Barrier(len(tasks))

    def run(task: Callable[[], Any]) -> Any:
        barrier.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as executor:
        return [future.result() for future in [executor.submit(run, task) for task in tasks]]


def watched(
    readers: Callable[[], None] | list[Callable[[], None]], writers: list[Callable[[], Any]]
) -> list[Any]:
    """Runs the writers, and repeats each reader until all writers are done."""
    readers = readers if isinstance(readers, list) else [readers]
    left = [len(writers)]
    lock, done = threading.Lock(), threading.Event()

    def writing(writer: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            try:
                return writer()
            finally:
                with lock:
                    left[0] -= 1
                    if left[0] == 0:
                        done.set()

        return run

    def reading(reader: Callable[[], None]) -> Callable[[], int]:
        def run() -> int:
            reads = 0
            while not done.is_set() or reads == 0:
                reader()
                reads += 1
            return reads

        return run

    results = together(*map(writing, writers), *map(reading, readers))
    assert all(reads > 0 for reads in results[len(writers) :])
    return results[: len(writers)]


def check_sums(stats: kvpool.PoolStats) -> None:
    """Checks that the pool's counts contain every block exactly once."""
    assert stats.free + stats.cached_free + stats.active + stats.fenced == stats.usable
    assert stats.available == stats.free + stats.cached_free
