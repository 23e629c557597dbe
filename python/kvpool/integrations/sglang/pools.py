"""The host pools of an SGLang rank, each with the store of its pages.

All pages of a pool have the same size, and so do all slots of a store. Therefore each pool has its own
store, and the stores divide the capacity. Either all stores are opened, or none.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from kvpool.errors import InvalidArgumentError
from kvpool.integrations.sglang.namespace import is_replicated, namespace_of
from kvpool.integrations.sglang.pages import Copied, Empty, Lent, pages_of
from kvpool.integrations.sglang.settings import OBJECT_HEADER, divide
from kvpool.integrations.sglang.shelf import Shelf, is_shared, open_backend
from kvpool.store import Namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kvpool.integrations.sglang.engine import Engine
    from kvpool.integrations.sglang.pages import Pages
    from kvpool.integrations.sglang.settings import Settings

__all__ = ["KV", "Pool", "check_pools", "close_pools", "has_packed_draft", "open_pools"]

#: SGLang's name of the host pool that contains the KV of every page of a prefix.
KV: Final = "kv"

_LOG: Final = logging.getLogger("sglang.kvpool")


@dataclasses.dataclass(frozen=True, slots=True)
class Pool:
    """A host pool with the store of its pages. A pool without bytes or without capacity has no store.

    Attributes:
        pages: The pages of the pool.
        shelf: The store of the pages, or None.
        namespace: The namespace of the pages, or None.
        writes: Whether this rank writes pages. If not, another rank writes the same bytes.
    """

    pages: Pages
    shelf: Shelf | None
    namespace: Namespace | None
    writes: bool

    @property
    def is_empty(self) -> bool:
        """Whether the pages have no bytes. In this case, every page counts as found."""
        return isinstance(self.pages, Empty)

    def has(self, keys: Sequence[str], until: float) -> list[bool]:
        """Returns which pages can be loaded. Waits for a shared back end, at most until ``until``."""
        return [self.is_empty] * len(keys) if self.shelf is None else self.shelf.has(keys, until)

    def load(
        self, keys: Sequence[str], first_indices: Sequence[int], until: float
    ) -> Callable[[], list[bool]]:
        """Begins to load pages to the given indices.

        Returns a function that waits for them and returns which of them are loaded.
        """
        if self.shelf is None:
            return lambda: [self.is_empty] * len(keys)
        return self.shelf.load(keys, first_indices, until)

    def save(
        self, keys: Sequence[str], first_indices: Sequence[int], position: int, until: float
    ) -> Callable[[], list[bool]]:
        """Begins to store pages.

        Returns a function that waits for them and returns which of them are stored, by this rank or another.
        """
        if not self.writes:
            return lambda: [True] * len(keys)
        if self.shelf is None:
            return lambda: [self.is_empty] * len(keys)
        return self.shelf.save(keys, first_indices, position, until)

    def load_tensors(self, keys: Sequence[str], tensors: Sequence[Any], until: float) -> list[bool]:
        """Loads pages into flat tensors. Returns which of them were found.

        A tensor of another size is a miss.
        """
        if self.shelf is None:
            return [self.is_empty] * len(keys)
        fit = [at for at, one in enumerate(tensors) if _bytes_of(one) == self.pages.part_bytes]
        found = self.shelf.load_tensors([keys[at] for at in fit], [tensors[at] for at in fit], until)
        loaded = {at for at, there in zip(fit, found, strict=True) if there}
        return [at in loaded for at in range(len(keys))]

    def save_tensors(self, keys: Sequence[str], tensors: Sequence[Any], until: float) -> list[bool]:
        """Stores flat tensors. Returns which of them are stored.

        If a tensor has another size than a page, none is stored.
        """
        if not self.writes:
            return [True] * len(keys)
        if self.shelf is None:
            return [self.is_empty] * len(keys)
        if len(tensors) != len(keys) or any(_bytes_of(one) != self.pages.part_bytes for one in tensors):
            return [False] * len(keys)
        return self.shelf.save_tensors(keys, tensors, until)

    def renew(self, renewed: str) -> None:
        """Drops all stored pages, and switches to a namespace that no other process has.

        Args:
            renewed: A unique value, which becomes part of the new namespace.
        """
        if self.shelf is not None and self.namespace is not None:
            fields = json.loads(self.namespace.to_json())
            fields["extra"]["renewed"] = renewed
            self.shelf.renew(Namespace.from_json(json.dumps(fields)))


def has_packed_draft(pool: Any) -> bool:
    """Returns whether a host pool also contains the layers of a draft model."""
    own = getattr(pool, "target_layer_num", None)
    return own is not None and int(getattr(pool, "layer_num", own)) > int(own)


def check_pools(registered: Mapping[str, Any], config: Any, settings: Settings) -> None:
    """Checks host pools as ``open_pools`` does, without opening a store.

    Raises:
        InvalidArgumentError: As ``open_pools``.
    """
    for name, pool in registered.items():
        if not isinstance(_pages(name, pool, settings), Empty):
            _check_replicas(name, pool, config, settings)


def _pages(name: str, pool: Any, settings: Settings) -> Pages:
    return pages_of(pool, lend=settings.interface_v1 or name != KV, staging_bytes=settings.staging_bytes)


def _check_replicas(name: str, pool: Any, config: Any, settings: Settings) -> None:
    ranks = int(config.tp_size)
    if (
        is_replicated(config, pool, name)
        and ranks > getattr(config, "dcp_size", 1)
        and not is_shared(settings)
    ):
        raise InvalidArgumentError(
            f"all {ranks} ranks of tensor parallelism read what one of them writes (MLA), and a folder is "
            "one rank's: use --enable-dp-attention with as many --dp-size"
        )


def open_pools(
    registered: Mapping[str, Any], config: Any, settings: Settings, engine: Engine, folder: str, *, late: bool
) -> dict[str, Pool]:
    """Opens the stores of host pools: either all or none.

    Args:
        registered: SGLang's host pools, by name.
        config: SGLang's ``HiCacheStorageConfig``.
        settings: The settings.
        engine: The engine that computes the pages.
        folder: The folder of the rank and the replica, below the root.
        late: Whether stores that are already open have taken the capacity. If so, a pool that
            ``shares`` does not name gets no store.

    Raises:
        InvalidArgumentError: Pages of a host pool cannot be read, or ranks would have to read pages of
            another rank, which a folder per rank does not allow.
        StoreError: A folder cannot be used, or another rank or engine uses it.
    """
    pages = {name: _pages(name, pool, settings) for name, pool in registered.items()}
    sizes = {
        name: one.parts * (-(-one.part_bytes // OBJECT_HEADER) + 1) * OBJECT_HEADER
        for name, one in pages.items()
        if not isinstance(one, Empty) and not (late and name not in settings.shares)
    }
    rooms = divide(settings.capacity_bytes, sizes, settings.shares)
    opened: dict[str, Pool] = {}
    try:
        for name, one in pages.items():
            pool = registered[name]
            shelf = namespace = None
            if name in rooms and isinstance(one, (Lent, Copied)):
                _check_replicas(name, pool, config, settings)
                namespace = namespace_of(
                    config,
                    pool,
                    one,
                    name=name,
                    weights=engine.weights,
                    scales=settings.scales,
                    engine=engine.facts,
                    model=engine.model,
                )
                shelf = Shelf(one, settings, namespace, open_backend(settings, folder, name, rooms[name]))
            elif name not in rooms and not isinstance(one, Empty):
                _LOG.warning("kvpool: host pool %s came late and has no share: its pages are not kept", name)
            writes = not is_replicated(config, pool, name) or bool(config.is_storage_writer)
            opened[name] = Pool(one, shelf, namespace, writes)
    except BaseException:
        close_pools(opened.values(), settings.deadline)
        raise
    return opened


def close_pools(pools: Iterable[Pool], seconds: float) -> None:
    """Closes the stores. Waits for running transfers, at most ``seconds`` seconds for all stores together."""
    until = time.monotonic() + seconds
    for pool in pools:
        if pool.shelf is not None:
            pool.shelf.close(until)


def _bytes_of(tensor: Any) -> int:
    """Returns the bytes of a tensor; -1 if the value is not a tensor."""
    try:
        return int(tensor.numel()) * int(tensor.element_size())
    except AttributeError:
        return -1
