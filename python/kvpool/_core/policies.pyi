"""The eviction policies that the core has."""

from kvpool._core import EvictionPolicy

__all__ = [
    "eviction_policies",
]

def eviction_policies() -> list[EvictionPolicy]:
    """Names of the eviction policies: ``eviction`` of a pool or a manager, ``policy`` of a sizing run.

    >>> "lru" in kvpool.policies.eviction_policies()
    True
    """
