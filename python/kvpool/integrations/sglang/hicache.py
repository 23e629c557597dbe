"""kvpool's store as a storage back end of SGLang's HiCache: bounded, checked, there after a restart.

Chosen by ``--hicache-storage-backend dynamic`` and a JSON object: ``docs/sglang.md`` has both.

SGLang calls from its threads for prefetch and backup, which may wait; a page that is not loaded in time is computed. No
failure of a disk leaves a call as an exception: it is a miss, and a line in SGLang's log where it is not a disk's.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolName, PoolTransferResult

from kvpool.errors import StoreError
from kvpool.integrations.sglang.hits import ends_of_blocks, grouped, leading, trailing
from kvpool.integrations.sglang.namespace import rank_of
from kvpool.integrations.sglang.pools import KV, Engine, Pool, close_pools, open_pools
from kvpool.integrations.sglang.settings import Settings
from kvpool.store.replicas import open_replica

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvpool._core.store import StoreStats

__all__ = ["KvpoolHiCacheStorage"]

_Answer = TypeVar("_Answer")

_LOG: Final = logging.getLogger("sglang.kvpool")


class KvpoolHiCacheStorage(HiCacheStorage):  # type: ignore[misc]  # SGLang is Any here
    """A storage back end on a disk, or in what engines share.

    Each rank has a folder of its own below ``root_dir``, and in it one for each host pool, since pages of one pool are
    of one size. Engines with the same ``root_dir``, such as data-parallel replicas, have one each in the folder of the
    rank: ``kvpool.store.replicas``. With ``"interface_v1": 1`` pages are moved between SGLang's host memory and the
    disk, without slots of kvpool between, where a page is one or two pieces (``page_first``, ``page_first_direct``,
    ``page_head``); tensors, which SGLang does not offer then, are not taken. Without it, and in other layouts, they are
    copied.

    The stores are opened when SGLang has registered its host pools. Calls that wait do so for the deadline at most.

    Args:
        storage_config: SGLang's. ``extra_config`` has what follows.
        kwargs: SGLang's; not used.

    ``extra_config``:
        root_dir: The folder of a disk.
        url: A server or folder that engines and ranks share, instead: ``kvpool.store.backend_from_url`` has the list.
        capacity_bytes: What one rank of one replica may take: all of its host pools together.
        weights: The revision of the weights. By default the commit in the Hugging Face cache, or names, sizes and times
            of the files in the model's folder.
        scales: Which quantisation scales, if they are not the weights'.
        free_floor_bytes: What stays free on the disk; 4 GiB by default.
        eviction: What goes first; any policy of kvpool, ``lru`` by default.
        workers: Threads that wait for the disk, for each host pool; 8 by default.
        queue: Objects on their way; more are misses. 4096 by default.
        deadline: Seconds that a page may take, waiting included; 10 by default.
        staging_bytes: Memory for pages that are copied, for each such host pool; 256 MiB by default.
        shares: The part of ``capacity_bytes`` of some host pools, by name. The others take the rest, with room for as
            many pages each. A host pool that is registered later than the others has what is said here, or nothing.

    Raises:
        InvalidArgumentError: A setting is missing or out of range.
    """

    def __init__(self, storage_config: Any, kwargs: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        self._config = storage_config
        self._settings, unknown = Settings.of(storage_config.extra_config or {})
        if unknown:
            _LOG.warning("kvpool: settings that mean nothing: %s", ", ".join(unknown))
        self._registered: dict[str, Any] = {}
        self._pools: dict[str, Pool] = {}
        self._folder = ""
        self._opening = threading.Lock()
        self._is_open = False
        self._engine = Engine.found(self._settings, storage_config)
        self._counted = threading.Lock()
        self._moved: dict[str, list[tuple[int, float]]] = {"prefetch": [], "backup": []}

    # Host pools ------------------------------------------------------------------------------------------------------

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """The host pool of KV."""
        super().register_mem_pool_host(mem_pool_host)
        self._registered[KV] = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Another host pool, or that of KV again. One that comes late and cannot be kept is a line in the log."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = _name(host_pool_name)
        self._registered[name] = host_pool
        with self._opening:
            if self._is_open and name not in self._pools:
                # The server runs: what cannot be kept must not end it.
                _guarded(f"the store of host pool {name}", lambda: self._open([name], late=True), None)

    def on_host_pools_registered(self) -> None:
        """Opens the stores.

        Raises:
            InvalidArgumentError: Pages of a host pool cannot be read, or ranks would have to read what another wrote,
                which a folder of one rank cannot do.
            StoreError: A folder cannot be used; another rank or engine has it.
        """
        with self._opening:
            if not self._is_open:
                self._open(list(self._registered), late=False)
                self._is_open = True

    def _open(self, names: Sequence[str], *, late: bool) -> None:
        registered = {name: self._registered[name] for name in names}

        def opened(folder: str) -> tuple[str, dict[str, Pool]]:
            pools = open_pools(registered, self._config, self._settings, self._engine, folder, late=late)
            return folder, pools

        # Pools of one replica are in one folder, late ones, too.
        self._folder, pools = opened(self._folder) if self._folder else open_replica(rank_of(self._config), opened)
        self._pools = {**self._pools, **pools}

    def _pool(self, name: Any) -> Pool | None:
        if not self._is_open:
            self.on_host_pools_registered()  # an SGLang that does not say so
        return self._pools.get(_name(name))

    # Pages of the host pool of KV ------------------------------------------------------------------------------------

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:  # noqa: ARG002 - SGLang's signature
        """How many pages can be loaded, from the first on. Waits for a shared back end, and for nothing else."""

        def answer() -> int:
            pool = self._pool(KV)
            # What keeps no bytes can be had, and is worth nothing by itself.
            return 0 if pool is None or pool.is_empty else leading(pool.has(keys))

        return _guarded("batch_exists", answer, 0)

    def exists(self, key: str) -> bool:
        """Whether a page can be loaded."""
        return self.batch_exists([key]) == 1

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:  # noqa: ARG002
        """Loads pages into the host pool; which of them are there."""
        return self._load(KV, keys, host_indices)

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores pages of the host pool; which of them are stored. What is held already is neither read nor written."""
        return self._save(KV, keys, host_indices, extra_info)

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:  # noqa: ARG002
        """Loads a page into a flat tensor, a new one if none is given; None if it is not there."""
        return self.batch_get([key], None if target_location is None else [target_location])[0]

    def batch_get(
        self,
        keys: Sequence[str],
        target_locations: Any = None,
        target_sizes: Any = None,  # noqa: ARG002 - SGLang's signature
    ) -> list[Any]:
        """Loads pages into flat tensors; None in place of what is not there."""

        def answer() -> list[Any]:
            pool = self._pool(KV)
            if pool is None:
                return [None] * len(keys)
            make = pool.pages.pool.get_dummy_flat_data_page
            tensors = [make() for _ in keys] if target_locations is None else list(target_locations)
            loaded = pool.load_tensors(keys, tensors)
            return [tensor if there else None for tensor, there in zip(tensors, loaded, strict=True)]

        return self._timed("prefetch", lambda: _guarded("batch_get", answer, [None] * len(keys)))

    def set(
        self,
        key: str,
        value: Any = None,
        target_location: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Stores a page, a flat tensor."""
        return self.batch_set([key], [value], target_location, target_sizes)

    def batch_set(
        self,
        keys: Sequence[str],
        values: Any = None,
        target_locations: Any = None,  # noqa: ARG002 - SGLang's signature
        target_sizes: Any = None,  # noqa: ARG002
    ) -> bool:
        """Stores pages, flat tensors; whether all are stored."""

        def answer() -> list[bool]:
            pool = self._pool(KV)
            return [False] * len(keys) if pool is None else pool.save_tensors(keys, list(values or ()))

        return all(self._timed("backup", lambda: _guarded("batch_set", answer, [False] * len(keys))))

    # Pages of several host pools -------------------------------------------------------------------------------------

    def batch_exists_v2(
        self,
        keys: Sequence[str],
        pool_transfers: Sequence[Any] | None = None,
        extra_info: Any = None,  # noqa: ARG002 - SGLang's signature
    ) -> Any:
        """The longest prefix that can be loaded from all host pools, and how far each of them goes.

        All lengths at which every pool has what a prefix of that length needs are in ``restorable_prefix_pages``, for
        ranks to agree on one.
        """

        def answer() -> Any:
            pool = self._pool(KV)
            if pool is None or (pool.is_empty and not pool_transfers):
                return PoolTransferResult.empty()
            length = leading(pool.has(keys))
            reached: dict[Any, int] = {PoolName.KV: length} if length else {}
            lengths = list(range(1, length + 1))
            for transfer in pool_transfers or ():
                reach, legal = self._reach(transfer, keys[:length])
                if reach:
                    reached[transfer.name] = reach
                if legal is not None:
                    lengths = [one for one in lengths if one in legal]
            return PoolTransferResult(lengths[-1] if lengths else 0, reached, lengths)

        return _guarded("batch_exists_v2", answer, PoolTransferResult.empty())

    def _reach(self, transfer: Any, keys: Sequence[str]) -> tuple[int, Sequence[int] | frozenset[int] | None]:
        """How many pages of a prefix a host pool has, and which lengths it can serve; None if it does not decide."""
        pool = self._pool(transfer.name)
        policy = _name(transfer.hit_policy)
        if policy == "block_groups":
            sizes = (int(transfer.group_pages), int(transfer.block_pages))
            named = ends_of_blocks(keys, *sizes) if transfer.keys is None else transfer.keys
            present = pool.has(named) if pool is not None else []
            return min(grouped(present, *sizes), len(keys)), None
        present = pool.has(keys) if pool is not None else [False] * len(keys)
        if policy == "all_pages":
            reach = leading(present)
            return reach, range(1, reach + 1)
        if policy == "trailing_pages":
            lengths = trailing(present, max(1, len(transfer.keys or ())))
            return max(lengths, default=0), frozenset(lengths)
        _LOG.warning("kvpool: hit policy %s of host pool %s is not known: nothing is loaded", policy, transfer.name)
        return 0, ()

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:  # noqa: ARG002
        """Loads pages into several host pools; which of them are there, by pool."""
        return {one.name: self._load(one.name, one.keys or [], one.host_indices) for one in transfers}

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Stores pages of several host pools; which of them are stored, by pool."""
        return {one.name: self._save(one.name, one.keys or [], one.host_indices, extra_info) for one in transfers}

    def _load(self, name: Any, keys: Sequence[str], host_indices: Any) -> list[bool]:
        def answer() -> list[bool]:
            pool = self._pool(name)
            first = pool.pages.first_indices(host_indices, len(keys)) if pool is not None else None
            if pool is None or first is None or len(set(first)) != len(first):
                _LOG.error("kvpool: %d pages of host pool %s cannot be loaded to these indices", len(keys), name)
                return [False] * len(keys)
            return pool.load(keys, first)

        return self._timed("prefetch", lambda: _guarded("load", answer, [False] * len(keys)), name)

    def _save(self, name: Any, keys: Sequence[str], host_indices: Any, extra_info: Any) -> list[bool]:
        def answer() -> list[bool]:
            pool = self._pool(name)
            first = pool.pages.first_indices(host_indices, len(keys)) if pool is not None else None
            if pool is None or first is None:
                _LOG.error("kvpool: %d pages of host pool %s cannot be stored from these indices", len(keys), name)
                return [False] * len(keys)
            before = getattr(extra_info, "prefix_keys", None) or ()
            return pool.save(keys, first, len(before) * pool.pages.page_size)

        return self._timed("backup", lambda: _guarded("save", answer, [False] * len(keys)), name)

    # The whole -------------------------------------------------------------------------------------------------------

    def clear(self) -> bool:
        """Forgets everything; SGLang calls it when it is told to, after an update of the weights for one.

        What is stored from now on may be of other weights than those that were served when SGLang was started, so it is
        not found by a process that starts with those.
        """

        def answer() -> bool:
            renewed = str(uuid.uuid4())
            failed: StoreError | None = None
            for pool in self._pools.values():
                try:
                    pool.renew(renewed)
                except StoreError as error:  # this one has forgotten all the same; the others have to
                    failed = error
            if failed is not None:
                raise failed
            return True

        return _guarded("clear", answer, False)

    def stats(self) -> dict[str, StoreStats]:
        """What the store of each host pool did and has, by the pool's name."""
        return {name: pool.shelf.stats() for name, pool in self._pools.items() if pool.shelf is not None}

    def get_stats(self) -> Any:
        """Pages and GB/s of the calls since the last one, for SGLang's metrics; None if they are off."""
        if not self._config.enable_storage_metrics:
            return None
        try:
            metrics = importlib.import_module("sglang.srt.observability.metrics_collector").StorageMetrics()
        except (ImportError, AttributeError):
            return None
        with self._counted:
            moved, self._moved = self._moved, {"prefetch": [], "backup": []}
        for kind, calls in moved.items():
            getattr(metrics, f"{kind}_pgs").extend(pages for pages, _ in calls)
            getattr(metrics, f"{kind}_bandwidth").extend(speed for _, speed in calls)
        return metrics

    def _timed(self, kind: str, call: Callable[[], list[Any]], name: Any = KV) -> list[Any]:
        began = time.monotonic()
        answers = call()
        pages = sum(one is not None and one is not False for one in answers)
        pool = self._pools.get(_name(name))
        if self._config.enable_storage_metrics and pages and pool is not None:
            gigabytes = pages * pool.pages.parts * pool.pages.part_bytes / 1e9
            with self._counted:
                self._moved[kind].append((pages, gigabytes / max(time.monotonic() - began, 1e-9)))
        return answers

    def close(self) -> None:
        """Ends the stores; what is being written is waited for, at most for the deadline. Then everything misses."""
        with self._opening:
            close_pools(self._pools.values())
            self._pools, self._is_open = {}, True


def _guarded(what: str, call: Callable[[], _Answer], miss: _Answer) -> _Answer:
    """What a call returns; a miss if it fails, since SGLang's threads must go on."""
    try:
        return call()
    except Exception:
        _LOG.exception("kvpool: %s failed: a miss", what)
        return miss


def _name(name: Any) -> str:
    """A name of SGLang's: a string, or one of an enumeration."""
    return str(getattr(name, "value", name))
