"""For tests of engines that use kvpool: a reference model, and a snapshot of all that a caller can see.

Pure Python, no other package. Not imported by ``import kvpool``.

>>> import kvpool.testing
>>> model = kvpool.testing.ReferencePool(num_blocks=5, block_size=2)
>>> table = model.allocate(2)
>>> model.register(table, None, [7, 8, 9, 9])
2
>>> model.mark_computed(table)
>>> model.release(table[::-1])
>>> model.match_and_acquire(None, [7, 8, 5, 5]), model.free, model.evictable
([1], [3, 4], [2])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvpool.testing.manager import ReferenceManager
from kvpool.testing.reference import Content, ReferenceBlock, ReferencePool
from kvpool.testing.tables import ReferenceRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvpool import BlockPool, CacheManager, ManagerStats, PoolStats

__all__ = [
    "Content",
    "ReferenceBlock",
    "ReferenceManager",
    "ReferencePool",
    "ReferenceRequest",
    "observe_manager",
    "observe_pool",
    "stats_dict",
]


def stats_dict(stats: ManagerStats | PoolStats) -> dict[str, Any]:
    """Every figure of a statistics object by name; those of a manager without its pool's.

    Args:
        stats: What ``stats()`` returned.
    """
    names = [name for name in dir(stats) if not name.startswith("_") and name != "pool"]
    return {name: value for name in names if not callable(value := getattr(stats, name))}


def observe_pool(pool: BlockPool) -> tuple[object, ...]:
    """All that a caller can see of a pool, but for its events. A call that fails leaves it equal. O(blocks).

    Args:
        pool: The pool.
    """
    blocks = range(pool.num_blocks)
    each = [(pool.state(b), pool.ref_count(b), pool.is_computed(b), pool.hash_of(b)) for b in blocks]
    return (stats_dict(pool.stats()), pool.free_order(), pool.eviction_order(), each)


def observe_manager(manager: CacheManager, request_ids: Iterable[str | int] = ()) -> tuple[object, ...]:
    """All that a caller can see of a manager, but for its events and its count of refusals.

    A call that fails leaves it equal. O(blocks).

    Args:
        manager: The manager.
        request_ids: The requests to look at; those that it does not know are passed over.
    """
    stats = stats_dict(manager.stats())
    del stats["refusals"]
    known = [one for one in request_ids if one in manager]
    requests = [(one, manager.request(one), manager.block_ids(one)) for one in known]
    orders = (manager.free_order(), manager.eviction_order())
    return (stats, stats_dict(manager.stats().pool), orders, requests, len(manager))
