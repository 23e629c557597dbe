"""What callers know of the future: priorities, times to live, pins, tenants' limits."""

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
    """How much blocks are worth keeping, and until when.

    Blocks are evicted in this order: demoted ones; those of tenants above their ceilings; by priority,
    lowest first, where the pool's policy orders those at 35; those of tenants at or under their floors;
    pinned ones. Within each of them, a block goes after the cached blocks that hang on it. See
    docs/retention.md.

    Args:
        priority: From 0, evicted first, to 100. Blocks without a hint have 35.
        ttl: Seconds after which this ends, on the clock of ``clock.advance``; None lasts as long as the
            content is cached. An end beyond the largest float is the largest float.
        idle: Whether the seconds count from the block's last release, anew after each use.
        then: What comes after: ``"normal"``, as without a hint, or ``"demote"``, evicted first.
        pinned: Evicted last. A pin beyond the budget of ``RetentionConfig`` is priority 100.
        demoted: Evicted first: the content will not be used again. A hit takes that back.

    Raises:
        InvalidArgumentError: A priority above 100, a ``ttl`` that is negative or not a number, ``idle``
            without one, or more than one of priority, pinned and demoted.

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
        """From 0, evicted first, to 100; 35 is left to the pool's policy. None if pinned or demoted."""
    @property
    def ttl(self) -> float | None:
        """Seconds after which it ends, or None."""
    @property
    def idle(self) -> bool:
        """Whether the seconds count from the last use, not from the hint."""
    @property
    def then(self) -> ExpiredAs:
        """What comes after the ttl: normal or demote."""
    @property
    def pinned(self) -> bool:
        """Whether the blocks go last, within the budget."""
    @property
    def demoted(self) -> bool:
        """Whether the blocks go first."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class RetentionConfig:
    """Settings of retention.

    Args:
        pin_budget: The most blocks that are pinned at once; pins beyond it are kept at priority 100.
        tenants: Limits by tenant, at most 200. Tenants that are not named have none.

    Raises:
        InvalidArgumentError: A number is negative. The pool checks whether pins and floors fit.

    >>> retention = kvpool.RetentionConfig(pin_budget=8, tenants=[kvpool.TenantLimits(1, ceiling=32)])
    >>> kvpool.BlockPool(num_blocks=64, retention=retention).retention_stats()
    RetentionStats(demoted=0, below_normal=0, above_normal=0, pinned=0, with_ttl=0, expired=0)
    """

    def __new__(cls, *, pin_budget: int = 0, tenants: Sequence[TenantLimits] = ()) -> Self: ...
    @property
    def pin_budget(self) -> int:
        """The most blocks that are pinned at once."""
    @property
    def tenants(self) -> list[TenantLimits]:
        """Limits by tenant."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class TenantLimits:
    """What a tenant may count on, and what it may take while others need blocks.

    Args:
        tenant: The tenant, a number of 32 bits of the caller's.
        floor: Blocks that others do not evict while anything else is evictable.
        ceiling: Blocks above which its own are evicted first; None is no ceiling.

    Raises:
        InvalidArgumentError: A number is out of range.

    >>> kvpool.TenantLimits(7, floor=100, ceiling=400)
    TenantLimits(7, floor=100, ceiling=400)
    """

    def __new__(cls, tenant: int, *, floor: int = 0, ceiling: int | None = None) -> Self: ...
    @property
    def tenant(self) -> int:
        """The tenant."""
    @property
    def floor(self) -> int:
        """Blocks that others do not evict while anything else is evictable."""
    @property
    def ceiling(self) -> int | None:
        """Blocks above which its own are evicted first, or None."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class HintReport:
    """What became of a hint, by blocks."""

    @property
    def accepted(self) -> int:
        """Blocks on which it took effect as asked."""
    @property
    def clipped(self) -> int:
        """Blocks on which it took effect in part: pins beyond the budget are kept at the highest priority."""
    @property
    def ignored(self) -> int:
        """Blocks on which it had no effect: not cached, or held by others when their end of life was said."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class RetentionStats:
    """How many blocks are retained how, now."""

    @property
    def demoted(self) -> int:
        """Blocks demoted, held ones included."""
    @property
    def below_normal(self) -> int:
        """Blocks below the normal priority."""
    @property
    def above_normal(self) -> int:
        """Blocks above the normal priority."""
    @property
    def pinned(self) -> int:
        """Blocks pinned."""
    @property
    def with_ttl(self) -> int:
        """Times to live that are running: idle ones of blocks in use are not."""
    @property
    def expired(self) -> int:
        """Times to live that have run out so far."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
