"""The built-in eviction policies of the core."""

from kvpool._core import EvictionPolicy

__all__ = [
    "eviction_policies",
    "policy_removal",
]

def eviction_policies() -> list[EvictionPolicy]:
    """Returns the names of the eviction policies, for pools, managers and sizing runs.

    >>> "lru" in kvpool.policies.eviction_policies()
    True
    """

def policy_removal(name: str) -> str | None:
    """Returns a note about a policy of an earlier version, or None for any other name.

    The note names the policy to use instead.

    >>> kvpool._core.policies.policy_removal("fifo")
    'kvpool no longer has fifo, use lru'
    """
