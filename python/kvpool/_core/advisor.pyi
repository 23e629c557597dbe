"""What a pool's own traffic says of other sizes and policies."""

from collections.abc import Iterable
from typing import ClassVar, Self, TypedDict, final, type_check_only

from kvpool._core import EvictionPolicy

__all__ = [
    "AdvisorConfig",
]

@type_check_only
class AdvicePoint(TypedDict):
    """A hit rate, 0 to 1, at a size."""

    blocks: int
    block_hit_rate: float

@type_check_only
class PolicyAdvice(TypedDict):
    """What a policy would hit in the pool's place, at the pool's size.

    ``references`` are those of the window since its ghost cache was empty: after a resize it is filled anew.
    """

    name: EvictionPolicy
    block_hit_rate: float
    references: int

@type_check_only
class TenantAdvice(TypedDict):
    """One tenant's part of the traffic.

    ``block_hit_rate`` is measured; ``curve`` is what it would hit in LRU caches of other sizes that it
    shares with everybody, as now; ``curve_alone`` in one of its own, up to the pool's size.
    """

    tenant: int
    references: int
    sampled_references: int
    block_hit_rate: float
    curve: list[AdvicePoint]
    curve_alone: list[AdvicePoint]

@type_check_only
class Advice(TypedDict):
    """What a pool's own traffic says of sizes, policies and tenants: see docs/advisor.md. It is JSON.

    Rates are shares of block references, 0 to 1, and 0 where there were none. All counts and rates but
    ``references_ever`` are of the window: every ``window_references`` they are halved.
    ``capacity_blocks`` are the usable blocks of the pool, ``sample_rate`` is the share of the blocks
    that is sampled, ``block_hit_rate`` is what the pool itself hit, measured; ``curve`` what LRU caches
    of an eighth to eight times its size would hit. ``untracked_references`` are those of tenants beyond
    ``max_tenants``.
    """

    capacity_blocks: int
    sample_rate: float
    window_references: int
    references_ever: int
    references: int
    sampled_references: int
    block_hit_rate: float
    curve: list[AdvicePoint]
    policies: list[PolicyAdvice]
    tenants: list[TenantAdvice]
    untracked_references: int
    memory_bytes: int

@final
class AdvisorConfig:
    """Settings of the advisor of a pool.

    Args:
        max_sampled_blocks: Blocks that are followed at most, 64 to ``2**24``. An eighth of them
            represents the pool: the error of the estimates falls with their square root.
        sample_every: Samples at most one block in so many, 1 or more: less work on a small pool.
        policies: Names of the policies to estimate, each once, with a ghost cache of the pool's size;
            not ``"last-accessed"``, which needs access times. None is every other policy of
            ``eviction_policies()``.
        max_tenants: Tenants that are counted apart at once, 0 to 1024.
        window: Block references after which all counts are halved, 1 or more; None is 16 times the
            contents of ``block_size`` tokens that the pool holds, and at least 65,536.
        seed: Picks the sample; all values are equally good.

    Raises:
        InvalidArgumentError: A setting is out of range; a policy is unknown, named twice or needs
            access times.

    >>> pool = kvpool.BlockPool(num_blocks=4097, advisor=kvpool.AdvisorConfig(policies=["lru", "arc"]))
    >>> advice = pool.diagnose.advice()
    >>> advice["capacity_blocks"], advice["sample_rate"], [policy["name"] for policy in advice["policies"]]
    (4096, 0.5, ['lru', 'arc'])
    """

    def __new__(
        cls,
        *,
        max_sampled_blocks: int = 16384,
        sample_every: int = 1,
        policies: Iterable[EvictionPolicy] | None = None,
        max_tenants: int = 8,
        window: int | None = None,
        seed: int = 0,
    ) -> Self: ...
    @property
    def max_sampled_blocks(self) -> int:
        """Blocks that are followed at most; an eighth of them represents the pool."""
    @property
    def sample_every(self) -> int:
        """Samples at most one block in so many."""
    @property
    def policies(self) -> list[EvictionPolicy]:
        """Names of the policies that a ghost cache of the pool's size is kept of."""
    @property
    def max_tenants(self) -> int:
        """Tenants that are counted apart at once."""
    @property
    def window(self) -> int | None:
        """Block references after which all that was counted is halved; None leaves it to the pool."""
    @property
    def seed(self) -> int:
        """Picks the sample."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
