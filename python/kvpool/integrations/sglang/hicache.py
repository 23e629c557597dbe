"""A storage back end of SGLang's HiCache over kvpool's store.

Its content is limited in size, verified, and survives restarts.

It is selected by ``--hicache-storage-backend dynamic`` and a JSON object of settings.
``docs/sglang.md`` describes both.

SGLang calls the back end from its threads for prefetch and backup, which may wait. If a page is not
loaded in time, the engine computes it. If a disk fails, the result is a miss, and no exception is
raised. Other failures are also misses, and are written to SGLang's log.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolName, PoolTransferResult

from kvpool.errors import StoreError
from kvpool.integrations.sglang.engine import Engine, weight_version
from kvpool.integrations.sglang.hits import ends_of_blocks, grouped, leading, trailing
from kvpool.integrations.sglang.namespace import rank_of
from kvpool.integrations.sglang.pools import KV, Pool, check_pools, close_pools, has_packed_draft, open_pools
from kvpool.integrations.sglang.resets import unwatch_pool, watch_pool, watch_weights
from kvpool.integrations.sglang.settings import Settings
from kvpool.integrations.sglang.speeds import Speeds
from kvpool.store.replicas import open_replica

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvpool._core.store import StoreStats

__all__ = ["KvpoolHiCacheStorage"]

_Answer = TypeVar("_Answer")

_LOG: Final = logging.getLogger("sglang.kvpool")


class KvpoolHiCacheStorage(HiCacheStorage):  # type: ignore[misc]  # SGLang is Any here
    """A storage back end on a disk, or in a server or folder that several engines share.

    On a disk, each rank has a folder below ``root_dir``. It has one subfolder per host pool, because
    all pages of a store must have the same size. If several engines have the same ``root_dir``, such as
    data-parallel replicas, each of them has its own folder inside the rank's folder: see
    ``kvpool.store.replicas``.

    With ``"interface_v1": 1``, pages move directly between SGLang's host memory and the disk, if a page
    consists of one or two contiguous pieces (``page_first``, ``page_first_direct``, ``page_head``).
    SGLang then passes no tensors, and calls with tensors store nothing. In all other cases, pages are
    copied through slots of kvpool.

    The stores are opened when SGLang has registered its host pools. With a draft model, they are opened
    once the draft's host pool is registered, so that the draft gets its part of the capacity. A call
    waits at most for the deadline, over all host pools together.

    SGLang clears its host pools when its prefix cache is reset, for example after an update of the
    weights. In this case, everything in the stores is dropped, unless ``on_reset`` is ``keep``.

    Args:
        storage_config: SGLang's configuration. Its ``extra_config`` contains the settings: see
            ``Settings``.
        kwargs: Arguments that SGLang passes. They are not used.

    Raises:
        InvalidArgumentError: A setting is missing or out of range, or the weights are unknown.
    """

    def __init__(self, storage_config: Any, kwargs: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        self._config = storage_config
        self._settings, unknown = Settings.of(storage_config.extra_config or {})
        if unknown:
            _LOG.warning("kvpool: settings that mean nothing: %s", ", ".join(unknown))
        self._settings.check_shares([one.value for one in PoolName])
        self._registered: dict[str, Any] = {}
        self._pools: dict[str, Pool] = {}
        self._folder = ""
        self._opening = threading.Lock()
        self._is_checked = self._is_open = self._is_used = False
        self._engine = Engine.found(self._settings, storage_config)
        self._weight_version = weight_version()
        self._watched: Any = None
        self._is_stale = False
        if self._settings.on_reset == "renew" and not watch_weights(self):
            _LOG.warning(
                "kvpool: updates of weights without a flush are not seen in this SGLang: flush its cache"
            )
        self._speeds = Speeds()

    # Host pools
    # ------------------------------------------------------------------------------------------------------

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Registers the host pool of KV, and watches it for resets."""
        super().register_mem_pool_host(mem_pool_host)
        self._registered[KV] = mem_pool_host
        if self._settings.on_reset == "renew" and self._watched is None and watch_pool(mem_pool_host, self):
            self._watched = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Registers another host pool, or registers that of KV again.

        If this happens before the first call that uses pages, a further pool, such as a draft's, gets
        its part of the capacity. After that call, a further pool gets only the capacity that ``shares``
        sets for it, and a failure is logged.

        Raises:
            InvalidArgumentError: As in ``on_host_pools_registered``. Raised only before the first call.
            StoreError: As in ``on_host_pools_registered``. Raised only before the first call.
        """
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = _name(host_pool_name)
        is_new = name not in self._registered
        self._registered[name] = host_pool
        with self._opening:
            if not is_new or not self._is_checked:
                return
            if self._is_used:
                # The server is running and must continue, even if the store of this pool cannot be
                # opened.
                _guarded(f"the store of host pool {name}", lambda: self._open([name], late=True), None)
                return
            close_pools(self._pools.values(), self._settings.deadline)
            self._pools, self._is_open = {}, False
            self._open(list(self._registered), late=False)

    def on_host_pools_registered(self) -> None:
        """Opens the stores. If the host pool of a draft is still missing, only checks the pools.

        Raises:
            InvalidArgumentError: Pages of a host pool cannot be read, or ranks would have to read pages
                of another rank, which a folder per rank does not allow.
            StoreError: A folder cannot be used, or another rank or engine uses it.
        """
        with self._opening:
            if self._is_open:
                return
            has_draft = any(name.startswith("draft") for name in self._registered)
            has_draft = has_draft or any(map(has_packed_draft, self._registered.values()))
            if self._engine.has_draft and not has_draft:
                check_pools(self._registered, self._config, self._settings)
                self._is_checked = True
            else:
                self._open(list(self._registered), late=False)

    def _open(self, names: Sequence[str], *, late: bool) -> None:
        registered = {name: self._registered[name] for name in names}

        def opened(folder: str) -> tuple[str, dict[str, Pool]]:
            pools = open_pools(registered, self._config, self._settings, self._engine, folder, late=late)
            return folder, pools

        # All pools of one replica are in one folder, including those that are registered later.
        folder, pools = opened(self._folder) if self._pools else open_replica(rank_of(self._config), opened)
        self._folder, self._pools = folder, {**self._pools, **pools}
        self._is_open = self._is_checked = True

    def _pool(self, name: Any) -> Pool | None:
        """Returns an open host pool. Opens the stores if no registration has done so."""
        if not self._is_used:
            with self._opening:
                try:
                    if not self._is_used and not self._is_open:
                        self._open(list(self._registered), late=False)
                finally:
                    self._is_used = True  # also after a failure, which every call would repeat
        if self._settings.on_reset == "renew" and (
            self._is_stale or weight_version() != self._weight_version
        ):
            self._renew()
        return self._pools.get(_name(name))

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:  # noqa: ARG002
        """Returns the number of consecutive pages, from the first page on, that can be loaded.

        Waits only if the back end is shared.
        """
        until = self._until()

        def answer() -> int:
            pool = self._pool(KV)
            # In a pool without bytes, every page counts as present. Pages of such a pool alone are no hit.
            return 0 if pool is None or pool.is_empty else leading(pool.has(keys, until))

        return _guarded("batch_exists", answer, 0)

    def exists(self, key: str) -> bool:
        """Returns whether a page can be loaded."""
        return self.batch_exists([key]) == 1

    def batch_get_v1(
        self,
        keys: Sequence[str],
        host_indices: Any,
        extra_info: Any = None,  # noqa: ARG002 - SGLang's signature
    ) -> list[bool]:
        """Loads pages from the store into the host pool. Returns which of them were found."""
        return self._load(KV, keys, host_indices, self._until())()

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores pages of the host pool. Returns which of them are stored.

        Pages that the store already has are neither read nor written.
        """
        return self._save(KV, keys, host_indices, extra_info, self._until())()

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:  # noqa: ARG002
        """Loads a page into a flat tensor, and returns the tensor. Makes a new tensor if none is given.

        Returns None if the page is missing.
        """
        return self.batch_get([key], None if target_location is None else [target_location])[0]

    def batch_get(
        self,
        keys: Sequence[str],
        target_locations: Any = None,
        target_sizes: Any = None,  # noqa: ARG002 - SGLang's signature
    ) -> list[Any]:
        """Loads pages into flat tensors. Returns None for each missing page."""
        until = self._until()

        def answer() -> list[Any]:
            pool = self._pool(KV)
            if pool is None:
                return [None] * len(keys)
            make = pool.pages.pool.get_dummy_flat_data_page
            tensors = [make() for _ in keys] if target_locations is None else list(target_locations)
            loaded = pool.load_tensors(keys, tensors, until)
            return [tensor if there else None for tensor, there in zip(tensors, loaded, strict=True)]

        return self._timed("prefetch", lambda: _guarded("batch_get", answer, [None] * len(keys)))

    def set(
        self,
        key: str,
        value: Any = None,
        target_location: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Stores a page from a flat tensor."""
        return self.batch_set([key], [value], target_location, target_sizes)

    def batch_set(
        self,
        keys: Sequence[str],
        values: Any = None,
        target_locations: Any = None,  # noqa: ARG002 - SGLang's signature
        target_sizes: Any = None,  # noqa: ARG002
    ) -> bool:
        """Stores pages from flat tensors. Returns whether all are stored."""
        until = self._until()

        def answer() -> list[bool]:
            pool = self._pool(KV)
            return [False] * len(keys) if pool is None else pool.save_tensors(keys, list(values or ()), until)

        return all(self._timed("backup", lambda: _guarded("batch_set", answer, [False] * len(keys))))

    def batch_exists_v2(
        self,
        keys: Sequence[str],
        pool_transfers: Sequence[Any] | None = None,
        extra_info: Any = None,  # noqa: ARG002 - SGLang's signature
    ) -> Any:
        """Returns the longest prefix that can be loaded from all host pools, and the length for each pool.

        ``restorable_prefix_pages`` contains every length for which each pool has the pages it needs.
        The ranks use this list to agree on one length.
        """
        until = self._until()

        def answer() -> Any:
            pool = self._pool(KV)
            if pool is None or (pool.is_empty and not pool_transfers):
                return PoolTransferResult.empty()
            length = leading(pool.has(keys, until))
            reached: dict[Any, int] = {PoolName.KV: length} if length else {}
            lengths = list(range(1, length + 1))
            for transfer in pool_transfers or ():
                reach, legal = self._reach(transfer, keys[:length], until)
                if reach:
                    reached[transfer.name] = reach
                if legal is not None:
                    lengths = [one for one in lengths if one in legal]
            return PoolTransferResult(lengths[-1] if lengths else 0, reached, lengths)

        return _guarded("batch_exists_v2", answer, PoolTransferResult.empty())

    def _reach(
        self, transfer: Any, keys: Sequence[str], until: float
    ) -> tuple[int, Sequence[int] | frozenset[int] | None]:
        """Returns how many pages of a prefix a host pool has, and the prefix lengths that it can restore.

        The lengths are None if the pool does not restrict them.
        """
        pool = self._pool(transfer.name)
        policy = _name(transfer.hit_policy)
        if policy == "block_groups":
            sizes = (int(transfer.group_pages), int(transfer.block_pages))
            named = ends_of_blocks(keys, *sizes) if transfer.keys is None else transfer.keys
            present = pool.has(named, until) if pool is not None else []
            return min(grouped(present, *sizes), len(keys)), None
        present = pool.has(keys, until) if pool is not None else [False] * len(keys)
        if policy == "all_pages":
            reach = leading(present)
            return reach, range(1, reach + 1)
        if policy == "trailing_pages":
            lengths = trailing(present, max(1, len(transfer.keys or ())))
            return max(lengths, default=0), frozenset(lengths)
        _LOG.warning(
            "kvpool: hit policy %s of host pool %s is not known: nothing is loaded", policy, transfer.name
        )
        return 0, ()

    def batch_get_v2(
        self,
        transfers: Sequence[Any],
        extra_info: Any = None,  # noqa: ARG002 - SGLang's signature
    ) -> dict[Any, list[bool]]:
        """Loads pages into several host pools. Returns for each pool which of the pages were found."""
        until = self._until()
        begun = [
            (one.name, self._load(one.name, one.keys or [], one.host_indices, until)) for one in transfers
        ]
        return {name: wait() for name, wait in begun}

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Stores pages of several host pools. Returns for each pool which of the pages are stored."""
        until = self._until()
        begun = [
            (one.name, self._save(one.name, one.keys or [], one.host_indices, extra_info, until))
            for one in transfers
        ]
        return {name: wait() for name, wait in begun}

    def _load(
        self, name: Any, keys: Sequence[str], host_indices: Any, until: float
    ) -> Callable[[], list[bool]]:
        """Begins to load pages. Returns a function that waits for them."""

        def begin() -> Callable[[], list[bool]]:
            pool = self._pool(name)
            first = pool.pages.first_indices(host_indices, len(keys)) if pool is not None else None
            if pool is None or first is None or len(set(first)) != len(first):
                _LOG.error(
                    "kvpool: %d pages of host pool %s cannot be loaded to these indices", len(keys), name
                )
                return missed
            return pool.load(keys, first, until)

        def missed() -> list[bool]:
            return [False] * len(keys)

        began = time.monotonic()
        wait = _guarded("load", begin, missed)
        return lambda: self._timed("prefetch", lambda: _guarded("load", wait, missed()), name, began)

    def _save(
        self, name: Any, keys: Sequence[str], host_indices: Any, extra_info: Any, until: float
    ) -> Callable[[], list[bool]]:
        """Begins to store pages. Returns a function that waits for them."""

        def begin() -> Callable[[], list[bool]]:
            pool = self._pool(name)
            first = pool.pages.first_indices(host_indices, len(keys)) if pool is not None else None
            if pool is None or first is None:
                _LOG.error(
                    "kvpool: %d pages of host pool %s cannot be stored from these indices", len(keys), name
                )
                return missed
            before = getattr(extra_info, "prefix_keys", None) or ()
            return pool.save(keys, first, len(before) * pool.pages.page_size, until)

        def missed() -> list[bool]:
            return [False] * len(keys)

        began = time.monotonic()
        wait = _guarded("save", begin, missed)
        return lambda: self._timed("backup", lambda: _guarded("save", wait, missed()), name, began)

    def _until(self) -> float:
        """Returns the time at which a call that begins now has to end."""
        return time.monotonic() + self._settings.deadline

    def clear(self) -> bool:
        """Drops all stored pages. SGLang calls it on request (``POST /hicache/storage-backend/clear``).

        Pages that are stored from now on may belong to other weights than those with which SGLang was
        started. Therefore a process that starts with those weights does not find them.
        """
        return _guarded("clear", self._renew, False)

    def _renew(self) -> bool:
        with self._opening:
            self._weight_version, self._is_stale = weight_version(), False
            renewed = str(uuid.uuid4())
            self._engine = dataclasses.replace(self._engine, facts={**self._engine.facts, "renewed": renewed})
            is_recorded = True
            for name, pool in self._pools.items():
                try:
                    pool.renew(renewed)
                except StoreError:
                    # The store could not record the change, but it has dropped its pages. Its new
                    # namespace is unique, so pages that it stores from now on are safe.
                    _LOG.exception("kvpool: host pool %s: a restart may find its pages of before", name)
                    is_recorded = False
                except Exception:
                    # The store may still contain its earlier pages, although the weights may have
                    # changed.
                    _LOG.exception(
                        "kvpool: host pool %s cannot be renewed: its pages are not kept any more", name
                    )
                    is_recorded = False
                    self._pools = {other: one for other, one in self._pools.items() if other != name}
                    close_pools([pool], self._settings.deadline)
        return is_recorded

    def on_reset(self) -> None:
        """Drops all stored pages, because SGLang was reset and its weights may have changed."""
        if self._settings.on_reset == "renew":
            _guarded("the reset of SGLang's prefix cache", self._renew, False)

    def on_update(self) -> None:
        """Records that SGLang's weights may have changed. The next call then drops all stored pages first."""
        self._is_stale = True

    def stats(self) -> dict[str, StoreStats]:
        """Returns the statistics of each host pool's store, by the pool's name."""
        return {name: pool.shelf.stats() for name, pool in self._pools.items() if pool.shelf is not None}

    def get_stats(self) -> Any:
        """Returns the pages and GB/s of the calls since the last report, for SGLang's metrics.

        Returns None if metrics are disabled.
        """
        return self._speeds.report() if self._config.enable_storage_metrics else None

    def _timed(
        self, kind: str, call: Callable[[], list[Any]], name: Any = KV, began: float | None = None
    ) -> list[Any]:
        began = time.monotonic() if began is None else began
        answers = call()
        pages = sum(one is not None and one is not False for one in answers)
        pool = self._pools.get(_name(name))
        if self._config.enable_storage_metrics and pages and pool is not None:
            self._speeds.add(kind, pages, pool.pages.parts * pool.pages.part_bytes, began)
        return answers

    def close(self) -> None:
        """Closes the stores. Waits for running writes up to the deadline. Later calls return misses."""
        with self._opening:
            close_pools(self._pools.values(), self._settings.deadline)
            self._pools, self._is_checked, self._is_open, self._is_used = {}, True, True, True
            if self._watched is not None:
                unwatch_pool(self._watched)
                self._watched = None


def _guarded(what: str, call: Callable[[], _Answer], miss: _Answer) -> _Answer:
    """Returns the result of a call, or ``miss`` if the call raises.

    SGLang's threads must not end by an exception.
    """
    try:
        return call()
    except Exception:
        _LOG.exception("kvpool: %s failed: a miss", what)
        return miss


def _name(name: Any) -> str:
    """Returns the text of an SGLang name, which is a string or a member of an enumeration."""
    return str(getattr(name, "value", name))
