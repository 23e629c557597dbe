"""Measures vLLM's offloading manager, with vLLM's own policies and with kvpool's, and kvpool's own
manager.

    .venv-vllm/bin/python tools/vllm/bench_offload.py

Each row of the result is one kind of call over many chunks. It shows the best time of several runs, in
nanoseconds per chunk. ``lookup`` is one call per chunk, like in vLLM's scheduler. Keys and positions
are those of vLLM's scheduler. The program has one thread.
"""

from __future__ import annotations

import gc
import hashlib
import time
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from kvpool.integrations.vllm.offload.manager import KvpoolOffloadingManager

if TYPE_CHECKING:
    from collections.abc import Callable

POLICIES = "kvpool.integrations.vllm.offload.policies"
MAKERS: dict[str, Callable[[int], Any]] = {
    "vLLM lru": lambda n: CPUOffloadingManager(n, "lru"),
    "vLLM arc": lambda n: CPUOffloadingManager(n, "arc"),
    "kvpool_lru": lambda n: CPUOffloadingManager(n, "kvpool_lru", POLICIES),
    "kvpool manager": KvpoolOffloadingManager,
}
CHUNK_TOKENS = 256
#: Number of slots of the tier, and number of chunks per call.
CHUNKS = 10_000
#: Number of chunks per request in the last row of the result.
BATCH = 100
REPEAT = 5


def prompt(seed: str, n: int) -> tuple[list[bytes], ReqContext]:
    """Returns the keys of the ``n`` chunks of one prompt, and the context of its request."""
    context = ReqContext(req_id=seed)
    keys = [make_offload_key(hashlib.sha256(f"{seed} {i}".encode()).digest(), 0) for i in range(n)]
    for i, key in enumerate(keys):
        context.set_offload_key_position(key, (i + 1) * CHUNK_TOKENS)
    return keys, context


def again(keys: list[bytes], seed: str) -> tuple[list[bytes], ReqContext]:
    """Returns the same keys as new objects without cached hashes, as if another request had made them."""
    context = ReqContext(req_id=seed)
    fresh = [bytes(bytearray(key)) for key in keys]
    for i, key in enumerate(fresh):
        context.set_offload_key_position(key, (i + 1) * CHUNK_TOKENS)
    return fresh, context


def measure(make: Callable[[int], Any], chunks: int, batch: int) -> dict[str, float]:
    """Measures the nanoseconds per chunk of each operation, once."""
    times: dict[str, float] = {}

    def timed(name: str, n: int, call: Callable[[], object]) -> None:
        begun = time.perf_counter_ns()
        call()
        times[name] = (time.perf_counter_ns() - begun) / n

    manager = make(chunks)
    keys, first = prompt("first", chunks)
    manager.on_new_request(first)
    timed("prepare_store, empty tier", chunks, lambda: manager.prepare_store(keys, first))
    timed("complete_store", chunks, lambda: manager.complete_store(keys, first))
    timed("on_request_finished", chunks, lambda: manager.on_request_finished(first))
    same, second = again(keys, "second")
    manager.on_new_request(second)

    def lookups(wanted: list[bytes]) -> None:
        for key in wanted:
            manager.lookup(key, second)

    timed("lookup, hit", chunks, lambda: lookups(same))
    absent, _ = prompt("absent", chunks)
    timed("lookup, miss", chunks, lambda: lookups(absent))
    timed("prepare_load", chunks, lambda: manager.prepare_load(same, second))
    timed("complete_load", chunks, lambda: manager.complete_load(same, second))
    timed("on_request_finished, idle", chunks, lambda: manager.on_request_finished(second))
    timed("touch", chunks, lambda: manager.touch(keys, second))
    timed(
        "prepare_store, all resident", chunks, lambda: manager.prepare_store(keys, ReqContext(req_id="third"))
    )
    other, third = prompt("other", chunks)
    manager.on_new_request(third)
    timed("prepare_store, evicting all", chunks, lambda: manager.prepare_store(other, third))
    manager.complete_store(other, third)
    manager.on_request_finished(third)

    def steps() -> None:
        for step in range(steady):
            wanted, context = prompts[step]
            manager.on_new_request(context)
            manager.prepare_store(wanted, context)
            manager.complete_store(wanted, context)
            manager.on_request_finished(context)

    steady = chunks // batch
    prompts = [prompt(f"steady {step}", batch) for step in range(steady)]
    timed(f"whole life, evicting, {batch} a request", chunks, steps)
    return times


def main() -> None:
    best: dict[str, dict[str, float]] = {}
    for _ in range(REPEAT):
        for name, make in MAKERS.items():
            gc.collect()
            gc.disable()
            rows = measure(make, CHUNKS, BATCH)
            gc.enable()
            kept = best.setdefault(name, rows)
            best[name] = {row: min(kept[row], rows[row]) for row in rows}
    print(f"{'ns per chunk':40}" + "".join(f"{name:>16}" for name in best))
    for row in next(iter(best.values())):
        print(f"{row:40}" + "".join(f"{best[name][row]:16.0f}" for name in best))


if __name__ == "__main__":
    main()
