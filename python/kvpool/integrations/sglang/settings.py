"""What the configuration of SGLang's storage back end says of kvpool, and how its room is shared out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, Self

from kvpool.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvpool._core import EvictionPolicy

__all__ = ["OBJECT_HEADER", "Settings", "divide"]

#: Bytes that an object takes on a disk besides its payload; payloads take whole pages of as many.
OBJECT_HEADER: Final = 4096

#: What SGLang reads itself from the same object.
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
    """The settings of ``KvpoolHiCacheStorage``; see there.

    Raises:
        InvalidArgumentError: A setting is of another type, or out of its range.
    """

    capacity_bytes: int
    root_dir: str | None = None
    url: str | None = None
    weights: str | None = None
    scales: str = ""
    free_floor_bytes: int = 4 << 30
    eviction: EvictionPolicy = "lru"
    workers: int = 8
    queue: int = 4096
    deadline: float = 10.0
    staging_bytes: int = 256 << 20
    shares: Mapping[str, float] = dataclasses.field(default_factory=dict)
    interface_v1: bool = False

    def __post_init__(self) -> None:
        for name, wanted in _TYPES.items():
            value = getattr(self, name)
            if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
                kinds = " or ".join("null" if kind is type(None) else kind.__name__ for kind in wanted)
                raise InvalidArgumentError(f"{name} is {value!r}: must be {kinds}")
        if (self.root_dir is None) == (self.url is None):
            raise InvalidArgumentError("root_dir and url: give one of them in --hicache-storage-backend-extra-config")
        if self.url is not None and ("://" not in self.url or self.url.startswith("disk:")):
            raise InvalidArgumentError("url names a disk: give its folder as root_dir, each rank takes one in it")
        if self.staging_bytes < 1:
            raise InvalidArgumentError(f"staging_bytes is {self.staging_bytes}: must be at least 1")
        shares = self.shares.values()
        if not all(isinstance(share, (int, float)) and 0 < share <= 1 for share in shares) or sum(shares) > 1:
            raise InvalidArgumentError(
                f"shares is {dict(self.shares)!r}: each must be above 0, and their sum at most 1"
            )

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> tuple[Self, list[str]]:
        """The settings in a configuration, and the names in it that mean nothing to kvpool or to SGLang.

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
    "staging_bytes": (int,),
    "shares": (dict,),
}


def divide(capacity_bytes: int, page_bytes: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, int]:
    """How many bytes each host pool's store has.

    What ``shares`` does not name takes the rest, so that each of them has room for as many pages.

    Args:
        capacity_bytes: Of all together.
        page_bytes: By pool: what a page takes on the disk, headers included.
        shares: By pool: its part of the whole; also of pools that are none of these.

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
