"""Hints about the future use of blocks: priorities, times to live, pins, and limits of tenants."""

from collections.abc import Sequence
from typing import ClassVar, Self, TypeAlias, final

from kvpool._core import ExpiredAs

__all__ = [
    "HintReport",
    "Retention",
    "RetentionConfig",
    "RetentionStats",
    "TenantLimits",
]

_Ranges: TypeAlias = Sequence[tuple[int, int | None, Retention]]

@final
class Retention:
    """A hint for how long to keep blocks cached.

    Blocks are evicted in this order: demoted blocks, blocks of tenants above their ceilings, other blocks by
    priority (lowest first), blocks of tenants at or under their floors, and pinned blocks. The pool's policy
    orders the blocks with priority 35. Within each of these classes, a block is evicted only after the cached
    blocks that continue its prefix. See docs/retention.md.

    Args:
        priority: The priority, from 0 (evicted first) to 100 (evicted last). Blocks without a hint have 35.
        ttl: Seconds after which the hint ends, on the clock of ``clock.advance``. With None, the hint applies
            as long as the content is cached. An end that is too large for a float is replaced by the largest
            float.
        idle: Whether the seconds begin at the last release of the block instead of at the hint, and begin
            again after each use.
        then: The state after the ``ttl``. With ``"normal"``, the block then has no hint. With ``"demote"``,
            it is then evicted first.
        pinned: Whether the block is evicted last. If the number of pinned blocks exceeds
            ``RetentionConfig.pin_budget``, further pins become priority 100.
        demoted: Whether the block is evicted first, because its content will not be used again. A hit ends
            the demotion.

    Raises:
        InvalidArgumentError: The priority is above 100. Or ``ttl`` is negative or not a number, or
            ``idle`` is given without it. Or more than one of priority, pinned and demoted are given.

    >>> kvpool.Retention(80, ttl=300, idle=True)
    Retention(80, ttl=300.0, idle=True)
    >>> kvpool.Retention(pinned=True, ttl=3600, then="demote")
    Retention(pinned=True, ttl=3600.0, then='demote')
    """

    def __new__(
        cls,
        priority: int = 35,
        *,
        ttl: float | None = None,
        idle: bool = False,
        then: ExpiredAs = "normal",
        pinned: bool = False,
        demoted: bool = False,
    ) -> Self: ...
    @property
    def priority(self) -> int | None:
        """The priority, 0 (evicted first) to 100 (evicted last). None if pinned or demoted."""
    @property
    def ttl(self) -> float | None:
        """Number of seconds after which the hint ends. None if it does not end by time."""
    @property
    def idle(self) -> bool:
        """Whether the seconds of ``ttl`` begin at the last use of the block, and not when the hint is set."""
    @property
    def then(self) -> ExpiredAs:
        """The state of the block after ``ttl``: normal or demote."""
    @property
    def pinned(self) -> bool:
        """Whether the blocks are evicted last, up to ``pin_budget`` blocks."""
    @property
    def demoted(self) -> bool:
        """Whether the blocks are evicted first."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class RetentionConfig:
    """Settings of a pool's retention: the number of pins, and the limits of tenants.

    Args:
        pin_budget: The largest number of blocks that are pinned at once. Further pins become priority 100.
        tenants: The limits of tenants, at most 200. Other tenants have no limits.

    Raises:
        InvalidArgumentError: A number is negative. The pool checks whether pins and floors fit.

    >>> retention = kvpool.RetentionConfig(pin_budget=8, tenants=[kvpool.TenantLimits(1, ceiling=32)])
    >>> kvpool.BlockPool(num_blocks=64, retention=retention).retention.stats()
    RetentionStats(demoted=0, below_normal=0, above_normal=0, pinned=0, with_ttl=0, expired=0)
    """

    def __new__(cls, *, pin_budget: int = 0, tenants: Sequence[TenantLimits] = ()) -> Self: ...
    @property
    def pin_budget(self) -> int:
        """The largest number of blocks that are pinned at once."""
    @property
    def tenants(self) -> list[TenantLimits]:
        """The limits of tenants."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class TenantLimits:
    """The limits of a tenant.

    The floor protects this number of the tenant's blocks from eviction by other tenants. If the tenant has
    more blocks than the ceiling, its blocks are evicted before those of other tenants.

    Args:
        tenant: The tenant, a number of 32 bits that the caller chooses.
        floor: The number of blocks that other tenants do not evict while they can evict other blocks.
        ceiling: The number of blocks above which the tenant's own blocks are evicted first. None sets
            no ceiling.

    Raises:
        InvalidArgumentError: A number is out of range.

    >>> kvpool.TenantLimits(7, floor=100, ceiling=400)
    TenantLimits(7, floor=100, ceiling=400)
    """

    def __new__(cls, tenant: int, *, floor: int = 0, ceiling: int | None = None) -> Self: ...
    @property
    def tenant(self) -> int:
        """The number of the tenant."""
    @property
    def floor(self) -> int:
        """The number of blocks that other tenants do not evict while they can evict other blocks."""
    @property
    def ceiling(self) -> int | None:
        """The number of blocks above which the tenant's own blocks are evicted first, or None."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class HintReport:
    """The numbers of blocks for each outcome of a hint."""

    @property
    def accepted(self) -> int:
        """Number of blocks to which the hint was applied completely."""
    @property
    def clipped(self) -> int:
        """Number of blocks to which the hint was applied in part: pins that became priority 100."""
    @property
    def ignored(self) -> int:
        """Number of blocks to which the hint was not applied.

        Either the block is not cached, or the hint was an end of life and the block had other references.
        """
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class RetentionStats:
    """The numbers of blocks that have a hint, by kind of hint."""

    @property
    def demoted(self) -> int:
        """Number of demoted blocks, including blocks in use."""
    @property
    def below_normal(self) -> int:
        """Number of blocks with a priority below the normal one, which is 35."""
    @property
    def above_normal(self) -> int:
        """Number of blocks with a priority above the normal one, which is 35."""
    @property
    def pinned(self) -> int:
        """Number of pinned blocks."""
    @property
    def with_ttl(self) -> int:
        """Number of blocks with a running time to live.

        With ``idle``, the time does not run while a block is in use.
        """
    @property
    def expired(self) -> int:
        """Number of hints whose time to live has expired so far."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
