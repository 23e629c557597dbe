"""The host pools of an SGLang rank, each with the store of its pages.

Pages of one pool are of one size, and a store has places of one size: so each pool has a store, and they share the room
out. All are opened together, or none.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import json
import logging
from typing import TYPE_CHECKING, Any, Final

from kvpool.errors import InvalidArgumentError
from kvpool.integrations.sglang.namespace import is_replicated, namespace_of
from kvpool.integrations.sglang.pages import Empty, pages_of
from kvpool.integrations.sglang.settings import OBJECT_HEADER, divide
from kvpool.integrations.sglang.shelf import Shelf, is_shared, open_backend
from kvpool.integrations.weights import weights_of
from kvpool.store import Namespace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvpool.integrations.sglang.pages import Pages
    from kvpool.integrations.sglang.settings import Settings

__all__ = ["KV", "Engine", "Pool", "close_pools", "open_pools"]

#: SGLang's name of the host pool whose pages a prefix is made of.
KV: Final = "kv"

_LOG: Final = logging.getLogger("sglang.kvpool")

#: Settings of SGLang's server that change what KV is computed.
_OF_SERVER: Final = (
    "model_path",
    "revision",
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "quantization_param_path",
    "json_model_override_args",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Engine:
    """What SGLang is, and what it serves."""

    facts: Mapping[str, object]
    weights: str

    @classmethod
    def found(cls, settings: Settings, config: Any) -> Engine:
        """The engine of this process.

        Args:
            settings: The settings.
            config: SGLang's ``HiCacheStorageConfig``.

        Raises:
            InvalidArgumentError: The weights' revision was not given, and cannot be found out.
        """
        facts: dict[str, object] = {"engine": f"sglang {importlib.metadata.version('sglang')}"}
        try:
            server = importlib.import_module("sglang.srt.runtime_context").get_server_args()
        except (ImportError, AttributeError, ValueError):
            server = None  # not in a server
        facts |= {f"server {name}": getattr(server, name, None) for name in _OF_SERVER}
        if settings.weights is not None:
            return cls(facts, settings.weights)
        return cls(facts, weights_of(getattr(server, "model_path", None) or config.model_name or ""))


@dataclasses.dataclass(frozen=True, slots=True)
class Pool:
    """A host pool: its pages, and their store, which one without bytes or without room has not.

    Attributes:
        pages: How its pages lie.
        shelf: Its store.
        namespace: Whose its pages are.
        writes: Whether this rank writes; else another one writes the same bytes.
    """

    pages: Pages
    shelf: Shelf | None
    namespace: Namespace | None
    writes: bool

    @property
    def is_empty(self) -> bool:
        """Whether its pages have no bytes: all of them can be had."""
        return isinstance(self.pages, Empty)

    def has(self, keys: Sequence[str]) -> list[bool]:
        """Which pages can be loaded."""
        return [self.is_empty] * len(keys) if self.shelf is None else self.shelf.has(keys)

    def load(self, keys: Sequence[str], first_indices: Sequence[int]) -> list[bool]:
        """Loads pages to where they begin; which of them are there."""
        return [self.is_empty] * len(keys) if self.shelf is None else self.shelf.load(keys, first_indices)

    def save(self, keys: Sequence[str], first_indices: Sequence[int], position: int) -> list[bool]:
        """Stores pages; which of them are stored, by this rank or another."""
        if not self.writes:
            return [True] * len(keys)
        return [self.is_empty] * len(keys) if self.shelf is None else self.shelf.save(keys, first_indices, position)

    def load_tensors(self, keys: Sequence[str], tensors: Sequence[Any]) -> list[bool]:
        """Loads pages into flat tensors; which of them are there. A tensor of another size is a miss."""
        if self.shelf is None:
            return [self.is_empty] * len(keys)
        fit = [at for at, one in enumerate(tensors) if _bytes_of(one) == self.pages.part_bytes]
        found = self.shelf.load_tensors([keys[at] for at in fit], [tensors[at] for at in fit])
        loaded = {at for at, there in zip(fit, found, strict=True) if there}
        return [at in loaded for at in range(len(keys))]

    def save_tensors(self, keys: Sequence[str], tensors: Sequence[Any]) -> list[bool]:
        """Stores flat tensors; which of them are stored. One of another size stores none."""
        if not self.writes:
            return [True] * len(keys)
        if self.shelf is None:
            return [self.is_empty] * len(keys)
        if len(tensors) != len(keys) or any(_bytes_of(one) != self.pages.part_bytes for one in tensors):
            return [False] * len(keys)
        return self.shelf.save_tensors(keys, tensors)

    def renew(self, renewed: str) -> None:
        """Forgets everything, and serves from now on a namespace that no process starts with.

        Args:
            renewed: What tells it from others.
        """
        if self.shelf is not None and self.namespace is not None:
            fields = json.loads(self.namespace.to_json())
            fields["extra"]["renewed"] = renewed
            self.shelf.renew(Namespace.from_json(json.dumps(fields)))


def open_pools(
    registered: Mapping[str, Any], config: Any, settings: Settings, engine: Engine, folder: str, *, late: bool
) -> dict[str, Pool]:
    """Opens the stores of host pools, all or none.

    Args:
        registered: SGLang's host pools, by name.
        config: SGLang's ``HiCacheStorageConfig``.
        settings: The settings.
        engine: What is served.
        folder: Beneath the root, that of the rank and the replica.
        late: Whether others have been opened before: then one without a share of its own has no room.

    Raises:
        InvalidArgumentError: Pages of a host pool cannot be read, or ranks would have to read what another wrote, which
            a folder of one rank cannot do.
        StoreError: A folder cannot be used; another rank or engine has it.
    """
    pages = {
        name: pages_of(pool, lend=settings.interface_v1 or name != KV, staging_bytes=settings.staging_bytes)
        for name, pool in registered.items()
    }
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
            replicated = is_replicated(config, pool, name)
            shelf = namespace = None
            if name in rooms and not isinstance(one, Empty):
                if replicated and config.tp_size > getattr(config, "dcp_size", 1) and not is_shared(settings):
                    raise InvalidArgumentError(
                        f"all {config.tp_size} ranks of tensor parallelism read what one of them writes (MLA), and a "
                        "folder is one rank's: use --enable-dp-attention with as many --dp-size"
                    )
                namespace = namespace_of(
                    config, pool, one, name=name, weights=engine.weights, scales=settings.scales, engine=engine.facts
                )
                shelf = Shelf(one, settings, namespace, open_backend(settings, folder, name, rooms[name]))
            elif name not in rooms and not isinstance(one, Empty):
                _LOG.warning("kvpool: host pool %s came late and has no share: its pages are not kept", name)
            opened[name] = Pool(one, shelf, namespace, not replicated or bool(config.is_storage_writer))
    except BaseException:
        close_pools(opened.values())
        raise
    return opened


def close_pools(pools: Iterable[Pool]) -> None:
    """Ends the stores; what is being written is waited for, at most for the deadline."""
    for pool in pools:
        if pool.shelf is not None:
            pool.shelf.close()


def _bytes_of(tensor: Any) -> int:
    """Bytes of a tensor; -1 of what is none."""
    try:
        return int(tensor.numel()) * int(tensor.element_size())
    except AttributeError:
        return -1
