"""Keeps the bytes of blocks outside the engine's memory, on a disk or a server, without blocking the engine.

The content of a store is limited in size, verified when it is read, and survives a restart.

A :class:`Store` copies objects between the slots of an :class:`Arena` (a region of host memory) and a
back end. Calls only submit jobs. ``poll`` returns the jobs that have finished, and an event loop can
wait for the store's file descriptor. No call waits for the back end. If the bytes that are read do not
belong to the requested object, the result is a miss.

>>> import tempfile
>>> from kvpool.store import Arena, Disk, Namespace, Store
>>> namespace = Namespace(
...     model="llama-3-8b", weights="rev-5f0b02c", kv_dtype="bf16", scales="", block_size=16,
...     layouts=[(0, "LKNHD", [32, 2, 16, 8, 128], [32768, 16384, 1024, 128, 1])],
...     layers=(0, 32), heads=(0, 8),
...     hash_algorithm="sha256", hash_seed=b"", extra={},
... )
>>> arena = Arena(slots=8, slot_bytes=65536)
>>> folder = tempfile.TemporaryDirectory()
>>> disk = Disk(folder.name, capacity_bytes=64 << 20, free_floor_bytes=0)
>>> with Store(disk, arena, namespace, admission="always", deadline=60) as store:
...     arena.write(0, b"KV" * 32768)
...     job = store.put([b"digest of a prefix"], [0])
...     assert store.wait(60) == [(job, ["ok"])]
>>> with Store(disk, arena, namespace, deadline=60) as store:  # another day
...     assert store.contains([b"digest of a prefix", b"of another"]) == ["here", "absent"]
...     job = store.get([b"digest of a prefix"], [5])
...     assert store.wait(60) == [(job, ["ok"])]
>>> arena.read(5) == b"KV" * 32768
True
>>> folder.cleanup()

:class:`PrefixStore` adds a store to a scheduler that uses ``CacheManager``. :func:`save_index` and
:func:`load_index` are for memory that outlives the process: see ``docs/restart.md``.

The back ends are :class:`Disk`, :class:`SharedFolder`, :class:`Redis`, and :class:`Custom` for back
ends in Python, such as ``kvpool.store.s3`` and ``kvpool.store.mooncake``. Several engines can share any
back end except the disk. For shared back ends, ``probe`` finds out which objects exist.

``docs/store.md`` describes how a store works and what it guarantees. The command ``kvpool store``
inspects stores.
"""

from kvpool._core.store import (
    Arena,
    Custom,
    Disk,
    Namespace,
    Redis,
    SharedFolder,
    SlotHeaders,
    Store,
    StoreFolder,
    StoreServer,
    StoreStats,
    WarmStart,
    check_object,
    load_index,
    save_index,
)
from kvpool.store.custom import CustomBackend
from kvpool.store.prefixes import Prefetch, PrefixStore
from kvpool.store.urls import backend_from_url

__all__ = [
    "Arena",
    "Custom",
    "CustomBackend",
    "Disk",
    "Namespace",
    "Prefetch",
    "PrefixStore",
    "Redis",
    "SharedFolder",
    "SlotHeaders",
    "Store",
    "StoreFolder",
    "StoreServer",
    "StoreStats",
    "WarmStart",
    "backend_from_url",
    "check_object",
    "load_index",
    "save_index",
]
