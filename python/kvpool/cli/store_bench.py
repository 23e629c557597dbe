"""The measurement of ``kvpool store bench``: fills a store, and reads it again.

Every object is checked when it is read, as in an engine. The slots in memory are filled only once, before
the measurement, so that only the store is measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvpool.errors import StoreError
from kvpool.store import Arena, Custom, Disk, Namespace, Redis, SharedFolder, Store, backend_from_url
from kvpool.store.inspect import inspector_from_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Measured", "Way", "measure"]

#: The number of seconds after which a transfer that has not ended is abandoned.
_DEADLINE: Final = 120.0

#: The largest number of objects. The keys and times of all objects are kept in memory, so their number is
#: limited.
_MOST_OBJECTS: Final = 1 << 24

#: Number of keys per lookup: as many as a prompt of 16,384 tokens has blocks of 16 tokens.
_LOOKED_UP: Final = 1024

#: Number of bytes of the disk that must remain free.
_FREE: Final = 1 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """The speed and the latency of writing or of reading."""

    #: The number of payload bytes per second, in 10^9.
    gb_per_s: float
    #: Milliseconds from the call to the end of its transfer: the median and the 99th percentile.
    p50_ms: float
    p99_ms: float


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """The measurements for one object size."""

    object_bytes: int
    objects: int
    write: Way
    read: Way
    #: Whether the store bypassed the page cache. ``None`` if the back end is not a disk.
    is_direct: bool | None
    #: How bytes were moved, for instance with ``io_uring``: the value of ``Store.io``.
    io: str
    #: The number of seconds to open the filled store again, after its files were dropped from the page cache.
    #: ``None`` if the back end is not a disk.
    open_s: float | None
    #: The median number of microseconds that a lookup takes per key, in calls with up to 1,024 keys.
    lookup_us: float


def measure(
    place: str, object_bytes: int, total_bytes: int, workers: int, depth: int, progress: Callable[[int], None]
) -> Measured:
    """Fill a new store, open it again, read it, and remove everything that it wrote.

    Args:
        place: The folder for a store on a disk, or the URL of a server for ``backend_from_url``.
        object_bytes: Bytes of an object; whole pages of 4 KiB.
        total_bytes: Bytes of all objects.
        workers: Number of threads of the store.
        depth: Number of objects in transfer at once.
        progress: Called with the number of bytes moved.

    Raises:
        StoreError: The disk has no room, or an object was not moved.
        InvalidArgumentError: The URL does not name a back end.

    """
    objects = max(1, total_bytes // object_bytes)
    capacity = objects * (object_bytes + 8192)
    # The number of objects is checked before memory for them is allocated.
    if objects > _MOST_OBJECTS:
        raise StoreError(
            f"{objects:,} objects of {object_bytes:,} bytes: at most {_MOST_OBJECTS:,}; lower --gib"
        )
    if "://" not in place:
        free = shutil.disk_usage(place).free
        if free < capacity + _FREE:
            raise StoreError(
                f"{place} has {free:,} bytes free: {capacity:,} are needed, and {_FREE:,} stay free; lower "
                "--gib"
            )
    depth = min(depth, objects)
    namespace = Namespace(
        model="bench",
        weights="",
        kv_dtype="",
        scales="",
        layouts=[],
        block_size=16,
        layers=(0, 1),
        heads=(0, 1),
        hash_algorithm="sha256",
        hash_seed=b"",
        extra={"run": str(uuid.uuid4())},  # no other run has this name, not even a killed one
    )
    arena = Arena(depth, object_bytes)
    noise = random.Random(1)  # noqa: S311 - bytes to write
    for slot in range(depth):
        arena.write(slot, noise.randbytes(4096) * (object_bytes // 4096))
    keys = [number.to_bytes(8, "big") for number in range(objects)]
    with _backend(place, capacity) as (backend, folder):

        def opened() -> Store:
            return Store(
                backend,
                arena,
                namespace,
                admission="always",
                workers=workers,
                queue=depth,
                deadline=_DEADLINE,
            )

        if folder is None:
            with opened() as store, _emptied_after(store, keys, place, namespace):
                write = _move(store, store.put, keys, object_bytes, depth, progress)
                lookup_us = _look_up(store, keys)
                read = _read(store, keys, object_bytes, depth, progress)
                return Measured(object_bytes, objects, write, read, None, store.io, None, lookup_us)
        with opened() as store:
            write = _move(store, store.put, keys, object_bytes, depth, progress)
        _forget_cached(folder)
        began = time.perf_counter()
        with opened() as store:
            open_s = time.perf_counter() - began
            if store.stats().objects != objects:
                raise StoreError(
                    f"{store.stats().objects:,} of {objects:,} objects are there after a restart"
                )
            lookup_us = _look_up(store, keys)
            read = _read(store, keys, object_bytes, depth, progress)
            return Measured(object_bytes, objects, write, read, store.is_direct, store.io, open_s, lookup_us)


def _look_up(store: Store, keys: list[bytes]) -> float:
    """Look up every key in random order. Return the microseconds per key."""
    order = random.Random(3).sample(keys, len(keys))  # noqa: S311 - an order
    times = []
    for at in range(0, len(order), _LOOKED_UP):
        asked = order[at : at + _LOOKED_UP]
        began = time.perf_counter()
        found = store.contains(asked)
        times.append((time.perf_counter() - began) / len(asked))
        if found != ["here"] * len(asked):
            raise StoreError(f"what was written is not found: {sorted({*found} - {'here'})[0]}")
    return statistics.median(times) * 1e6


def _read(
    store: Store, keys: list[bytes], object_bytes: int, depth: int, progress: Callable[[int], None]
) -> Way:
    order = random.Random(2).sample(keys, len(keys))  # noqa: S311 - an order
    return _move(store, store.get, order, object_bytes, depth, progress)


@contextlib.contextmanager
def _emptied_after(store: Store, keys: list[bytes], url: str, namespace: Namespace) -> Iterator[None]:
    """Remove everything that a run wrote to a server, also after an error or Ctrl-C."""
    try:
        yield
    finally:
        store.remove(keys)
        while store.stats().in_flight:
            store.wait(_DEADLINE)
        inspector = inspector_from_url(url)
        # On the server, the record of the namespace's generation is stored under the digest of the namespace.
        # The text of the namespace is stored under the digest that includes the generation.
        for digest in (namespace.digest, store.namespace.digest):
            inspector.forget(digest.hex())


def _forget_cached(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def _backend(place: str, capacity: int) -> Iterator[tuple[Disk | SharedFolder | Redis | Custom, Path | None]]:
    if "://" in place:
        yield backend_from_url(place, capacity), None
        return
    with tempfile.TemporaryDirectory(prefix="kvpool-bench-", dir=place) as inside:
        yield Disk(inside, capacity, free_floor_bytes=0), Path(inside)


def _move(
    store: Store,
    move: Callable[[list[bytes], list[int]], int],
    keys: list[bytes],
    object_bytes: int,
    depth: int,
    progress: Callable[[int], None],
) -> Way:
    """Write or read all objects, ``depth`` objects at a time, and return the speed."""
    left = keys[::-1]
    running: dict[int, tuple[int, float]] = {}
    times: list[float] = []
    began = time.perf_counter()
    free = list(range(depth))
    while left or running:
        while free and left:
            slot = free.pop()
            running[move([left.pop()], [slot])] = (slot, time.perf_counter())
        for job, outcomes in store.wait(_DEADLINE):
            if outcomes != ["ok"]:
                raise StoreError(f"an object was not moved: {outcomes[0]} ({store.stats().last_error})")
            slot, sent = running.pop(job)
            times.append(time.perf_counter() - sent)
            free.append(slot)
            progress(object_bytes)
    seconds = time.perf_counter() - began
    times.sort()
    return Way(
        gb_per_s=len(keys) * object_bytes / seconds / 1e9,
        p50_ms=times[len(times) // 2] * 1e3,
        p99_ms=times[min(len(times) - 1, len(times) * 99 // 100)] * 1e3,
    )
