"""Estimates for other pool sizes and policies, from a pool's own traffic."""

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
    """The estimated hit rate of another policy with the pool's size.

    ``references`` counts the references of the window since the policy's ghost cache was empty. A
    resize empties the ghost cache.
    """

    name: EvictionPolicy
    block_hit_rate: float
    references: int

@type_check_only
class TenantAdvice(TypedDict):
    """The part of one tenant in the traffic.

    ``block_hit_rate`` is measured. ``curve`` is the estimated hit rate of LRU caches of other sizes
    that the tenant shares with all others, as now. ``curve_alone`` is that of caches of its own, up to
    the pool's size.
    """

    tenant: int
    references: int
    sampled_references: int
    block_hit_rate: float
    curve: list[AdvicePoint]
    curve_alone: list[AdvicePoint]

@type_check_only
class Advice(TypedDict):
    """Estimates for pool sizes, policies and tenants. See docs/advisor.md. The dict is JSON.

    Rates are shares of block references, 0 to 1, and 0 without references. All counts and rates except
    ``references_ever`` belong to the window: after every ``window_references`` references they are
    halved. ``capacity_blocks`` is the number of usable blocks of the pool. ``sample_rate`` is the share
    of blocks that is sampled. ``block_hit_rate`` is the measured hit rate of the pool. ``curve`` is the
    estimated hit rate of LRU caches with an eighth to eight times as many blocks as the pool.
    ``untracked_references`` counts the references of tenants beyond ``max_tenants``.
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
        max_sampled_blocks: The largest number of sampled blocks, 64 to ``2**24``. An eighth of them
            represents the pool. The error of the estimates falls with the square root of this number.
        sample_every: Samples at most one block out of this number, 1 or more. A larger number means
            less work on a small pool.
        policies: Names of the policies to estimate, each once. Each has a ghost cache of the pool's
            size. ``"last-accessed"`` is not supported, because it needs access times. None is every
            other policy of ``eviction_policies()``.
        max_tenants: The largest number of tenants that are counted separately, 0 to 1024.
        window: The number of block references after which all counts are halved, 1 or more. None is 16
            times the contents of ``block_size`` tokens that the pool can hold, and at least 65,536.
        seed: Selects the sample. All values are equally good.

    Raises:
        InvalidArgumentError: A setting is out of range. Or a policy is unknown, is named twice, or
            needs access times.

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
        """The largest number of sampled blocks. An eighth of them represents the pool."""
    @property
    def sample_every(self) -> int:
        """Samples at most one block out of this number."""
    @property
    def policies(self) -> list[EvictionPolicy]:
        """The names of the estimated policies. Each has a ghost cache of the pool's size."""
    @property
    def max_tenants(self) -> int:
        """The largest number of tenants that are counted separately."""
    @property
    def window(self) -> int | None:
        """The number of block references after which all counts are halved. None leaves it to the pool."""
    @property
    def seed(self) -> int:
        """The seed that selects the sample."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
