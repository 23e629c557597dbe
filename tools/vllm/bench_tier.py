"""Times kvpool's tier beside vLLM's file tier, and fio where it is installed: chunks to a disk and back, in GB/s.

    .venv-vllm/bin/python tools/vllm/bench_tier.py /mnt/nvme --gib 1

Both tiers get the same jobs of eight chunks, four at a time, from the same memory; both go round the page cache where
the file system can. Chunks are read in another order than they were written. kvpool checks every byte, vLLM's tier
none; fio moves as many bytes with as many threads in blocks of a chunk. Rounds of all three, the best of each.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import tempfile
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

from kvpool.integrations.vllm.offload.tier import KvpoolStoreTier

if TYPE_CHECKING:
    from collections.abc import Callable

JOB: Final = 8
JOBS: Final = 4
THREADS: Final = 8
SIZES: Final = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
CONTEXT: Final = ReqContext("bench")


def spec_of(chunk_bytes: int) -> Any:
    config = OffloadingConfig(
        groups=(OffloadingGroupConfig(16, ("layer",), 0),),
        worker_kv_bytes_per_block=chunk_bytes,
        enable_kv_cache_events=False,
        extra_config={},
        engine_id="bench",
        model=OffloadingModelConfig("bench", "bfloat16"),
        cache=OffloadingCacheConfig(16, 1),
        parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True),
    )
    events = types.SimpleNamespace(enable_kv_cache_events=False)
    return types.SimpleNamespace(config=config, kv_events_config=events, blocks_per_chunk=1)


def kvpool_tier(view: memoryview, chunk_bytes: int, folder: str, total: int) -> Any:
    return KvpoolStoreTier(
        spec_of(chunk_bytes), view, "kvpool", root_dir=folder, capacity_bytes=total * (chunk_bytes + 8192), weights="1",
        free_floor_bytes=0, admission="always", workers=THREADS, deadline=600.0,
    )  # fmt: skip


def vllm_tier(view: memoryview, chunk_bytes: int, folder: str, total: int) -> Any:  # noqa: ARG001 - as the other
    return FileSystemTierManager(
        spec_of(chunk_bytes), view, "fs", folder, n_read_threads=THREADS // 2, n_write_threads=THREADS // 2
    )


def move(tier: Any, keys: list[bytes], *, load: bool) -> float:
    """Moves all chunks; seconds."""
    begun = time.perf_counter()
    jobs = [keys[at : at + JOB] for at in range(0, len(keys), JOB)][::-1]
    running: dict[int, int] = {}
    free, number = list(range(JOBS)), 0
    while jobs or running:
        while jobs and free:
            lane, of, number = free.pop(), jobs.pop(), number + 1
            chunks = np.arange(lane * JOB, lane * JOB + len(of))
            running[number] = lane
            (tier.submit_load if load else tier.submit_store)(TransferJob(number, of, chunks, load, CONTEXT))
        for result in tier.get_finished_jobs():
            if not result.success:
                raise RuntimeError(f"a job of {type(tier).__name__} failed")
            free.append(running.pop(result.job_id))
        if not free:
            time.sleep(20e-6)
    return time.perf_counter() - begun


def tier_round(make: Callable[..., Any], root: Path, chunk_bytes: int, total: int) -> tuple[float, float]:
    """GB/s of writing and of reading."""
    memory = np.frombuffer(np.random.default_rng(1).bytes(JOB * JOBS * chunk_bytes), np.int8)
    # Whole pages, as vLLM's own mapping of CPU memory has them.
    room = np.empty(memory.nbytes + 4096, np.int8)
    begin = -room.ctypes.data % 4096
    aligned = room[begin : begin + memory.nbytes]
    aligned[:] = memory
    keys = [make_offload_key(number.to_bytes(32, "big"), 0) for number in range(total)]
    with tempfile.TemporaryDirectory(dir=root, prefix="kvpool-bench-") as folder:
        view: Any = aligned.reshape(-1, chunk_bytes)
        tier = make(memoryview(view), chunk_bytes, folder, total)
        try:
            write = move(tier, keys, load=False)
            random.Random(2).shuffle(keys)
            read = move(tier, keys, load=True)
        finally:
            tier.shutdown()
    return total * chunk_bytes / write / 1e9, total * chunk_bytes / read / 1e9


def fio_round(root: Path, chunk_bytes: int, total: int) -> tuple[float, float]:
    """GB/s of writing and of reading, by fio."""
    with tempfile.TemporaryDirectory(dir=root, prefix="kvpool-bench-") as folder:
        rates = []
        for way in ("write", "randread"):
            command = [
                "fio",
                "--name=tier",
                f"--filename={folder}/file",
                f"--rw={way}",
                f"--bs={chunk_bytes}",
                "--direct=1",
            ]
            command += [f"--size={total * chunk_bytes}", "--ioengine=psync", f"--numjobs={THREADS}", "--thread"]
            command += ["--group_reporting", "--output-format=json", f"--io_size={total * chunk_bytes // THREADS}"]
            if way == "write":
                command += ["--offset_increment=" + str(total * chunk_bytes // THREADS)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            job = json.loads(done.stdout)["jobs"][0]
            rates.append(job["write" if way == "write" else "read"]["bw_bytes"] / 1e9)
    return rates[0], rates[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="on the disk that is measured")
    parser.add_argument("--gib", type=float, default=1.0, help="bytes of each size and round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    ways: dict[str, Callable[[int, int], tuple[float, float]]] = {
        "kvpool": lambda size, total: tier_round(kvpool_tier, options.folder, size, total),
        "vLLM fs": lambda size, total: tier_round(vllm_tier, options.folder, size, total),
    }
    if shutil.which("fio"):
        ways["fio"] = lambda size, total: fio_round(options.folder, size, total)
    else:
        print("fio is not installed: apt-get install fio")
    print(f"{'chunk':>8}  " + "  ".join(f"{name + ' write':>14}  {name + ' read':>14}" for name in ways))
    for size in SIZES:
        total = max(JOB * JOBS, int(options.gib * 2**30) // size // (JOB * JOBS) * JOB * JOBS)
        best = dict.fromkeys(ways, (0.0, 0.0))
        for _ in range(options.rounds):
            for name, measure in ways.items():
                write, read = measure(size, total)
                best[name] = (max(best[name][0], write), max(best[name][1], read))
        cells = "  ".join(f"{best[name][0]:>14.2f}  {best[name][1]:>14.2f}" for name in ways)
        print(f"{size >> 10:>5} KiB  {cells}", flush=True)


if __name__ == "__main__":
    main()
