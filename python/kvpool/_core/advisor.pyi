"""Estimates for other pool sizes and policies, from a pool's own traffic."""

from collections.abc import Iterable
from typing import ClassVar, Self, TypedDict, final, type_check_only

from kvpool._core import EvictionPolicy

__all__ = [
    "AdvisorConfig",
]

@type_check_only
class AdvicePoint(TypedDict):
    """A point of a hit-rate curve: the estimated hit rate, 0 to 1, of a cache of one size."""

    blocks: int
    block_hit_rate: float

@type_check_only
class PolicyAdvice(TypedDict):
    """The estimated hit rate of another eviction policy, for a pool of the same size.

    The advisor simulates each policy in a ghost cache, which has block hashes and no KV. ``references`` is
    the number of block references in the current window, without those before the last time that this ghost
    cache was empty. A resize of the pool empties it.
    """

    name: EvictionPolicy
    block_hit_rate: float
    references: int

@type_check_only
class TenantAdvice(TypedDict):
    """The traffic of one tenant, and estimates for it.

    ``block_hit_rate`` is the tenant's measured hit rate. ``curve`` is its estimated hit rate in LRU caches of
    other sizes that all tenants share, as they share the pool. ``curve_alone`` is its estimated hit rate in
    caches that no other tenant uses, with at most the pool's size.
    """

    tenant: int
    references: int
    sampled_references: int
    block_hit_rate: float
    curve: list[AdvicePoint]
    curve_alone: list[AdvicePoint]

@type_check_only
class Advice(TypedDict):
    """Estimates for pool sizes, policies and tenants. See docs/advisor.md. The dict can be written as JSON.

    Rates are shares of block references, 0 to 1, and 0 without references. All counts and rates except
    ``references_ever`` favour recent traffic: all counts are halved after every ``window_references``
    references, which form a window. ``capacity_blocks`` is the number of usable blocks of the pool.
    ``sample_rate`` is the share of blocks in the sample. ``block_hit_rate`` is the measured hit rate of the
    pool. ``curve`` is the estimated hit rate of LRU caches with an eighth to eight times as many blocks as
    the pool. ``untracked_references`` is the number of references of tenants that are not counted separately
    because of ``max_tenants``.
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
            represents the pool, because the estimates cover caches up to eight times its size. The error of
            the estimates is inversely proportional to the square root of this number.
        sample_every: The advisor samples at most one block out of this number of blocks. 1 or more. A larger
            number reduces the work for a small pool.
        policies: Names of the policies to estimate, each at most once. Each has a ghost cache (hashes without
            KV) that represents a pool of the same size. ``"last-accessed"`` is not supported, because it
            needs access times. None estimates every other policy of ``eviction_policies()``.
        max_tenants: The largest number of tenants that are counted separately, 0 to 1024.
        window: The number of block references after which all counts are halved, 1 or more. None is 16 times
            the number of blocks of ``block_size`` tokens that the pool can hold, but at least 65,536.
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
        """The advisor samples at most one block out of this number of blocks."""
    @property
    def policies(self) -> list[EvictionPolicy]:
        """The names of the estimated policies."""
    @property
    def max_tenants(self) -> int:
        """The largest number of tenants that are counted separately."""
    @property
    def window(self) -> int | None:
        """The number of block references after which all counts are halved. None if the pool chooses it."""
    @property
    def seed(self) -> int:
        """The seed that selects which blocks are sampled."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
