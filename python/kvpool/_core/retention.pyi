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
    """How long blocks are worth keeping.

    Blocks are evicted in this order: demoted blocks, blocks of tenants above their ceilings, other
    blocks by priority (lowest first), blocks of tenants at or under their floors, and pinned blocks.
    The pool's policy orders the blocks with priority 35. Within each of these classes, a block is
    evicted after the cached blocks that continue it. See docs/retention.md.

    Args:
        priority: From 0, evicted first, to 100. Blocks without a hint have 35.
        ttl: Seconds after which the hint ends, on the clock of ``clock.advance``. None lasts as long as
            the content is cached. An end beyond the largest float is the largest float.
        idle: Whether the seconds count from the last release of the block, and start again after each
            use.
        then: The state after the ``ttl``. ``"normal"`` is no hint, and ``"demote"`` evicts the block
            first.
        pinned: The block is evicted last. A pin beyond the budget of ``RetentionConfig`` has priority
            100.
        demoted: The block is evicted first, because the content will not be used again. A hit ends
            this.

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
        """The priority, 0 (evicted first) to 100. The policy orders 35. None if pinned or demoted."""
    @property
    def ttl(self) -> float | None:
        """Seconds after which the hint ends, or None."""
    @property
    def idle(self) -> bool:
        """Whether the seconds count from the last use instead of from the hint."""
    @property
    def then(self) -> ExpiredAs:
        """The state after the ttl: normal or demote."""
    @property
    def pinned(self) -> bool:
        """Whether the blocks are evicted last, within the budget."""
    @property
    def demoted(self) -> bool:
        """Whether the blocks are evicted first."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class RetentionConfig:
    """Settings of retention.

    Args:
        pin_budget: The largest number of blocks that are pinned at once. More pins have priority 100.
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

    The floor is the number of its blocks that others do not evict. The ceiling is the number of blocks
    that it may have while others need blocks.

    Args:
        tenant: The tenant, a number of 32 bits that the caller chooses.
        floor: The number of blocks that others do not evict while they can evict something else.
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
        """The number of blocks that others do not evict while they can evict something else."""
    @property
    def ceiling(self) -> int | None:
        """The number of blocks above which the tenant's own blocks are evicted first, or None."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class HintReport:
    """The outcome of a hint, in blocks."""

    @property
    def accepted(self) -> int:
        """Blocks on which the hint took effect completely."""
    @property
    def clipped(self) -> int:
        """Blocks on which the hint took effect in part. Pins beyond the budget have the highest priority."""
    @property
    def ignored(self) -> int:
        """Blocks on which the hint had no effect.

        They are not cached. Or the hint was an end of life, and the block had other references.
        """
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class RetentionStats:
    """The numbers of retained blocks by kind of hint."""

    @property
    def demoted(self) -> int:
        """Demoted blocks, including blocks in use."""
    @property
    def below_normal(self) -> int:
        """Blocks below the normal priority."""
    @property
    def above_normal(self) -> int:
        """Blocks above the normal priority."""
    @property
    def pinned(self) -> int:
        """Pinned blocks."""
    @property
    def with_ttl(self) -> int:
        """Running times to live. The idle ones of blocks in use do not run."""
    @property
    def expired(self) -> int:
        """Times to live that have ended so far."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
