"""The eviction policies that the core has."""

from kvpool._core import EvictionPolicy

__all__ = [
    "eviction_policies",
    "policy_removal",
]

def eviction_policies() -> list[EvictionPolicy]:
    """Names of the eviction policies: ``eviction`` of a pool or a manager, ``policy`` of a sizing run.

    >>> "lru" in kvpool.policies.eviction_policies()
    True
    """

def policy_removal(name: str) -> str | None:
    """A note about a policy that earlier versions had, which names the policy to use instead; None for
    any other name.

    >>> kvpool._core.policies.policy_removal("fifo")
    'kvpool no longer has fifo, use lru'
    """
