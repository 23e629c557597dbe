"""Compares the throughput of kvpool's disk tier with vLLM's, and with NIXL, LMCache and fio if these
are installed.

    .venv-vllm/bin/python tools/vllm/bench_tier.py /mnt/nvme --gib 1

Results are in GB/s. Both tiers, NIXL's POSIX plug-in and LMCache's native files get the same jobs of
eight chunks, four jobs at a time, from the same memory. All bypass the page cache if the file system
supports that. Chunks are read three times each, in another order than they were written. kvpool
verifies every byte, the others verify none.

fio moves the same number of bytes with the same number of threads, in blocks that have the size of a
chunk. It uses huge pages like the others, because with small pages the kernel splits a chunk into many
more requests to the disk. The order of the methods differs in each round; the table shows medians.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import random
import shutil
import statistics
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
# Number of times that each chunk is read. With several reads, writes that are still running have little
# effect on the result.
READS: Final = 3


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
        spec_of(chunk_bytes), view, "kvpool", root_dir=folder, capacity_bytes=total * (chunk_bytes + 8192),
        weights="1", free_floor_bytes=0, admission="always", workers=THREADS, deadline=600.0,
    )  # fmt: skip


def vllm_tier(view: memoryview, chunk_bytes: int, folder: str, total: int) -> Any:  # noqa: ARG001
    return FileSystemTierManager(
        spec_of(chunk_bytes), view, "fs", folder, n_read_threads=THREADS // 2, n_write_threads=THREADS // 2
    )


def reading(chunks: list[Any]) -> list[Any]:
    """Returns the order in which the chunks are read, which differs from the order of the writes."""
    passes = [random.Random(nth).sample(chunks, len(chunks)) for nth in range(READS)]
    return [chunk for one in passes for chunk in one]


def move(tier: Any, keys: list[bytes], *, load: bool) -> float:
    """Writes or reads all chunks of a tier. Returns the elapsed seconds."""
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


def tier_round(
    make: Callable[..., Any], root: Path, chunk_bytes: int, total: int, rest: Callable[[], None]
) -> tuple[float, float]:
    """Measures one tier once. Returns the GB/s of writing and of reading."""
    memory = np.frombuffer(np.random.default_rng(1).bytes(JOB * JOBS * chunk_bytes), np.int8)
    # Allocate whole pages of memory, as vLLM does for the KV in CPU memory.
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
            rest()
            read = move(tier, reading(keys), load=True)
        finally:
            tier.shutdown()
    return total * chunk_bytes / write / 1e9, READS * total * chunk_bytes / read / 1e9


def nixl_api() -> Any:
    """Imports NIXL's module, or returns ``None`` if it is not installed. Files need no CUDA, so a
    module for any CUDA version will do.
    """
    for name in ("nixl_cu12", "nixl_cu13"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(f"{name}._api")
    return None


def nixl_round(
    api: Any, root: Path, chunk_bytes: int, total: int, rest: Callable[[], None]
) -> tuple[float, float]:
    """Measures NIXL's POSIX plug-in. Returns the GB/s of writing and of reading. It uses one file with
    a slot for each chunk, and verifies nothing.
    """
    room = np.frombuffer(np.random.default_rng(1).bytes(JOB * JOBS * chunk_bytes + 4096), np.uint8).copy()
    begin = room.ctypes.data + -room.ctypes.data % 4096
    agent = api.nixl_agent("bench", api.nixl_agent_config(backends=[]))
    agent.create_backend("POSIX", {})
    with tempfile.TemporaryDirectory(dir=root, prefix="kvpool-bench-") as folder:
        file = os.open(f"{folder}/file", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        os.posix_fallocate(file, 0, total * chunk_bytes)
        memory = agent.register_memory([(begin, JOB * JOBS * chunk_bytes, 0, "")], "DRAM")
        whole = agent.register_memory([(0, total * chunk_bytes, file, "file")], "FILE")

        def move(way: str, order: list[int]) -> float:
            begun = time.perf_counter()
            jobs = [order[at : at + JOB] for at in range(0, len(order), JOB)][::-1]
            running: dict[int, Any] = {}
            while jobs or running:
                for lane in set(range(JOBS)) - set(running):
                    if jobs:
                        of = jobs.pop()
                        into = [
                            (begin + (lane * JOB + at) * chunk_bytes, chunk_bytes, 0) for at in range(len(of))
                        ]
                        places = [(chunk * chunk_bytes, chunk_bytes, file) for chunk in of]
                        lists = (agent.get_xfer_descs(into, "DRAM"), agent.get_xfer_descs(places, "FILE"))
                        running[lane] = agent.initialize_xfer(way, *lists, "bench")
                        agent.transfer(running[lane])
                for lane, handle in list(running.items()):
                    state = agent.check_xfer_state(handle)
                    if state == "ERR":
                        raise RuntimeError("a transfer of NIXL failed")
                    if state == "DONE":
                        agent.release_xfer_handle(running.pop(lane))
                time.sleep(20e-6)
            return time.perf_counter() - begun

        order = list(range(total))
        write = move("WRITE", order)
        rest()
        read = move("READ", reading(order))
        agent.deregister_memory(memory)
        agent.deregister_memory(whole)
        os.close(file)
    return total * chunk_bytes / write / 1e9, READS * total * chunk_bytes / read / 1e9


def lmcache_files() -> Any:
    """Loads LMCache's native module for files without the rest of its package, which needs CUDA.
    Returns ``None`` if LMCache is not installed.
    """
    package = importlib.util.find_spec("lmcache")
    for folder in (package and package.submodule_search_locations) or ():
        for path in Path(folder).glob("lmcache_fs.*.so"):
            spec = importlib.util.spec_from_file_location("lmcache_fs", path)
            if spec is not None and spec.loader is not None:
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return module
    return None


def lmcache_round(
    files: Any, root: Path, chunk_bytes: int, total: int, rest: Callable[[], None]
) -> tuple[float, float]:
    """Measures LMCache's native files. Returns the GB/s of writing and of reading. It uses one file per
    chunk, and verifies nothing.
    """
    room = np.frombuffer(np.random.default_rng(1).bytes(JOB * JOBS * chunk_bytes + 4096), np.uint8).copy()
    begin = -room.ctypes.data % 4096
    slots = [
        memoryview(room[begin + at * chunk_bytes :][:chunk_bytes])  # type: ignore[arg-type]
        for at in range(JOB * JOBS)
    ]
    with tempfile.TemporaryDirectory(dir=root, prefix="kvpool-bench-") as folder:
        client = files.LMCacheFSClient(folder, THREADS, use_odirect=True)

        def move(submit: Any, order: list[int]) -> float:
            begun = time.perf_counter()
            jobs = [order[at : at + JOB] for at in range(0, len(order), JOB)][::-1]
            running: dict[int, int] = {}
            free = list(range(JOBS))
            while jobs or running:
                while jobs and free:
                    lane, of = free.pop(), jobs.pop()
                    names = [f"bench@1@0@{chunk:064x}" for chunk in of]
                    running[submit(names, slots[lane * JOB :][: len(of)])] = lane
                for number, moved, why, each in client.drain_completions():
                    if not moved or (each is not None and not all(each)):
                        raise RuntimeError(f"a job of LMCache failed: {why}")
                    free.append(running.pop(number))
                if not free:
                    time.sleep(20e-6)
            return time.perf_counter() - begun

        order = list(range(total))
        write = move(client.submit_batch_set, order)
        rest()
        read = move(client.submit_batch_get, reading(order))
        client.close()
    return total * chunk_bytes / write / 1e9, READS * total * chunk_bytes / read / 1e9


def fio_round(root: Path, chunk_bytes: int, total: int, rest: Callable[[], None]) -> tuple[float, float]:
    """Measures fio. Returns the GB/s of writing and of reading."""
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
                "--iomem_align=2M",
            ]
            command += [
                f"--size={total * chunk_bytes}",
                "--ioengine=psync",
                f"--numjobs={THREADS}",
                "--thread",
            ]
            share = total * chunk_bytes // THREADS
            command += ["--group_reporting", "--output-format=json"]
            if way == "randread":
                command += [f"--io_size={READS * share}"]
                rest()
            else:
                command += [f"--io_size={share}", f"--offset_increment={share}"]
            # Let fio's memory use huge pages, like the memory of the other methods.
            huge = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=huge)
            job = json.loads(done.stdout)["jobs"][0]
            rates.append(job["write" if way == "write" else "read"]["bw_bytes"] / 1e9)
    return rates[0], rates[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="a folder on the disk to measure")
    parser.add_argument("--gib", type=float, default=1.0, help="GiB per size and round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--chunks", type=int, nargs="+", default=SIZES, help="sizes of chunks in bytes")
    parser.add_argument(
        "--rest", type=float, default=0.0, help="seconds before each measurement: a rented disk has a budget"
    )
    options = parser.parse_args()

    def rest() -> None:
        time.sleep(options.rest)

    ways: dict[str, Callable[[int, int], tuple[float, float]]] = {
        "kvpool": lambda size, total: tier_round(kvpool_tier, options.folder, size, total, rest),
        "vLLM fs": lambda size, total: tier_round(vllm_tier, options.folder, size, total, rest),
    }
    api = nixl_api()
    if api is None:
        print("NIXL is not measured: pip install --no-deps nixl-cu12")
    else:
        ways["NIXL"] = lambda size, total: nixl_round(api, options.folder, size, total, rest)
    files = lmcache_files()
    if files is None:
        print("LMCache is not measured: pip install --no-deps lmcache")
    else:
        ways["LMCache"] = lambda size, total: lmcache_round(files, options.folder, size, total, rest)
    if shutil.which("fio"):
        ways["fio"] = lambda size, total: fio_round(options.folder, size, total, rest)
    else:
        print("fio is not measured: apt-get install fio")
    print(f"{'chunk':>8}  " + "  ".join(f"{name + ' write':>14}  {name + ' read':>14}" for name in ways))
    for size in options.chunks:
        total = max(JOB * JOBS, int(options.gib * 2**30) // size // (JOB * JOBS) * JOB * JOBS)
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for nth in range(options.rounds):
            # Shuffle the methods. While one method runs, the files of the method before it are still
            # being deleted, so no method should always follow the same one.
            for name in random.Random(nth).sample(list(ways), len(ways)):
                rest()
                rates[name].append(ways[name](size, total))
        medians = [statistics.median(one[way] for one in of) for of in rates.values() for way in (0, 1)]
        cells = "  ".join(f"{rate:>14.2f}" for rate in medians)
        print(f"{size >> 10:>5} KiB  {cells}", flush=True)


if __name__ == "__main__":
    main()
