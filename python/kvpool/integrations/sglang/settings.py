"""Checks the settings of the storage back end for SGLang, and divides the capacity among host pools."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final, Self

from kvpool.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kvpool._core import EvictionPolicy

__all__ = ["OBJECT_HEADER", "Settings", "divide"]

#: Bytes that an object takes on a disk in addition to its payload. The size of a payload is rounded up
#: to a multiple of this.
OBJECT_HEADER: Final = 4096

#: Settings in the same configuration object that SGLang itself reads. They are not reported as unknown.
_OF_SGLANG: Final = frozenset(
    (
        "backend_name",
        "module_path",
        "class_name",
        "interface_v1",
        "tp_lcm_size",
        "prefetch_threshold",
        "prefetch_timeout_base",
        "prefetch_timeout_per_ki_token",
        "hicache_storage_pass_prefix_keys",
    )
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of ``KvpoolHiCacheStorage``.

    Args:
        capacity_bytes: The largest number of bytes that one rank may store, for all of its host pools
            together.
        root_dir: The folder on a disk. ``~`` is the user's home.
        url: Instead of ``root_dir``, the URL of a server or folder that engines and ranks share: see
            ``kvpool.store.backend_from_url``.
        weights: A name for the weights of the model and of its draft model. The default is the commit
            that SGLang serves, or the digest of the files in the model's folder.
        scales: A name for quantisation scales that are not part of the weights.
        free_floor_bytes: The number of bytes that must remain free on the disk.
        eviction: The eviction policy; any policy of kvpool.
        workers: The number of threads per host pool that wait for the disk.
        queue: The largest number of objects in transfer. Further objects are misses.
        deadline: The largest number of seconds that a call of SGLang may take, over all host pools together.
        on_reset: The action after a reset of SGLang's prefix cache, and after an update of its weights.
            ``renew`` drops all stored pages. ``keep`` changes nothing, and is for servers whose weights
            never change.
        staging_bytes: Bytes of memory for copied pages. Each host pool with such pages takes this amount.
        shares: For some host pools, their part of ``capacity_bytes``, by name. The other pools divide
            the rest, so that each has room for the same number of pages. A host pool that is registered
            after the first call gets capacity only if it is named here.
        interface_v1: Whether SGLang passes pages by their indices.

    Raises:
        InvalidArgumentError: A setting is of another type, or out of its range.
    """

    capacity_bytes: int
    root_dir: str | None = None
    #: ``repr`` of the settings does not show the URL, because it may contain a password.
    url: str | None = dataclasses.field(default=None, repr=False)
    weights: str | None = None
    scales: str = ""
    free_floor_bytes: int = 4 << 30
    eviction: EvictionPolicy = "lru"
    workers: int = 8
    queue: int = 4096
    deadline: float = 4.0
    on_reset: str = "renew"
    staging_bytes: int = 256 << 20
    shares: Mapping[str, float] = dataclasses.field(default_factory=dict)
    interface_v1: bool = False

    def __post_init__(self) -> None:
        for name, wanted in _TYPES.items():
            value = getattr(self, name)
            if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
                kinds = " or ".join("null" if kind is type(None) else kind.__name__ for kind in wanted)
                raise InvalidArgumentError(f"{name} is {value!r}: must be {kinds}")
        for name in ("root_dir", "url", "weights"):
            if getattr(self, name) == "":
                raise InvalidArgumentError(f"{name} is empty: give a value, or leave it out")
        for name, least in (("capacity_bytes", 1), ("free_floor_bytes", 0), ("workers", 1), ("queue", 1)):
            if getattr(self, name) < least:
                raise InvalidArgumentError(f"{name} is {getattr(self, name)}: must be at least {least}")
        if self.on_reset not in ("renew", "keep"):
            raise InvalidArgumentError(f"on_reset is {self.on_reset!r}: must be renew or keep")
        if not 0 < self.deadline < math.inf:
            raise InvalidArgumentError(f"deadline is {self.deadline}: must be above 0 seconds, and finite")
        if (self.root_dir is None) == (self.url is None):
            raise InvalidArgumentError(
                "root_dir and url: give one of them in --hicache-storage-backend-extra-config"
            )
        if self.url is not None and ("://" not in self.url or self.url.startswith("disk:")):
            raise InvalidArgumentError(
                "url names a disk: give its folder as root_dir, each rank takes one in it"
            )
        if self.staging_bytes < 1:
            raise InvalidArgumentError(f"staging_bytes is {self.staging_bytes}: must be at least 1")
        shares = self.shares.values()
        if not all(type(share) in (int, float) and 0 < share <= 1 for share in shares) or sum(shares) > 1:
            raise InvalidArgumentError(
                f"shares is {dict(self.shares)!r}: each must be above 0, and their sum at most 1"
            )

    def check_shares(self, pools: Collection[str]) -> None:
        """Checks that ``shares`` names only host pools that SGLang has.

        Raises:
            InvalidArgumentError: ``shares`` names another pool.
        """
        for name in self.shares:
            if name not in pools:
                raise InvalidArgumentError(
                    f"shares names the host pool {name!r}, which SGLang does not have: give one of "
                    + ", ".join(sorted(pools))
                )

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> tuple[Self, list[str]]:
        """Reads the settings from a configuration. Also returns the unknown names in it.

        Raises:
            InvalidArgumentError: ``capacity_bytes`` is missing, or a setting is out of its range.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if "capacity_bytes" not in config:
            raise InvalidArgumentError("capacity_bytes is missing in --hicache-storage-backend-extra-config")
        given = {name: value for name, value in config.items() if name in names}
        given["interface_v1"] = bool(config.get("interface_v1", False))
        return cls(**given), sorted(set(config) - names - _OF_SGLANG)


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "root_dir": (str, type(None)),
    "url": (str, type(None)),
    "capacity_bytes": (int,),
    "weights": (str, type(None)),
    "scales": (str,),
    "free_floor_bytes": (int,),
    "eviction": (str,),
    "workers": (int,),
    "queue": (int,),
    "deadline": (int, float),
    "on_reset": (str,),
    "staging_bytes": (int,),
    "shares": (dict,),
}


def divide(capacity_bytes: int, page_bytes: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, int]:
    """Divides the capacity among the stores of the host pools. Returns the bytes for each pool.

    Pools that ``shares`` does not name divide the rest, so that each has room for the same number of
    pages.

    Args:
        capacity_bytes: The bytes of all pools together.
        page_bytes: For each pool, the bytes of a page on the disk, headers included.
        shares: For some pools, their part of the capacity. It may contain further pools.

    Raises:
        InvalidArgumentError: ``shares`` leaves nothing for a pool that it does not name.
    """
    rest = 1.0 - sum(shares.values())
    unnamed = {name: size for name, size in page_bytes.items() if name not in shares}
    if unnamed and rest <= 0:
        raise InvalidArgumentError(f"shares leaves nothing for the host pool {min(unnamed)!r}")
    total = sum(unnamed.values())
    return {
        name: int(capacity_bytes * (shares[name] if name in shares else rest * size / total))
        for name, size in page_bytes.items()
    }
