"""Helpers for tests of engines that use kvpool: snapshots of the visible state of a pool or a manager.

The module is written in pure Python and needs no other packages. ``import kvpool`` does not import it.

>>> import kvpool
>>> from kvpool.testing import observe_pool
>>> pool = kvpool.BlockPool(num_blocks=5, block_size=2)
>>> before = observe_pool(pool)
>>> pool.probe(kvpool.BlockHasher(block_size=2).cursor([1, 2, 3, 4])).cached_blocks
0
>>> observe_pool(pool) == before
True
>>> pool.allocate(2)
[1, 2]
>>> observe_pool(pool) == before
False
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvpool._removed import missing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvpool import BlockPool, CacheManager, ManagerStats, PoolStats

__all__ = ["observe_manager", "observe_pool"]


def _figures(stats: ManagerStats | PoolStats) -> dict[str, Any]:
    """Returns every figure of a statistics object by name.

    The nested statistics of a manager's pool are left out.
    """
    names = [name for name in dir(stats) if not name.startswith("_") and name != "pool"]
    return {name: value for name in names if not callable(value := getattr(stats, name))}


def observe_pool(pool: BlockPool) -> tuple[object, ...]:
    """Returns the visible state of a pool, without its events. A failed call does not change it. O(blocks).

    Args:
        pool: The pool.
    """
    blocks = range(pool.num_blocks)
    each = [
        (pool.state(b), pool.ref_count(b), pool.diagnose.is_computed(b), pool.diagnose.hash_of(b))
        for b in blocks
    ]
    return (_figures(pool.stats()), pool.diagnose.free_order(), pool.diagnose.eviction_order(), each)


def observe_manager(manager: CacheManager, request_ids: Iterable[str | int] = ()) -> tuple[object, ...]:
    """Returns the visible state of a manager, without its events and its count of refusals.

    A failed call does not change this state. O(blocks).

    Args:
        manager: The manager.
        request_ids: The requests to include. Unknown ones are skipped.
    """
    stats = _figures(manager.stats())
    del stats["refusals"]
    known = [one for one in request_ids if one in manager]
    requests = [(one, manager.request(one), manager.block_ids(one)) for one in known]
    orders = (manager.diagnose.free_order(), manager.diagnose.eviction_order())
    return (stats, _figures(manager.stats().pool), orders, requests, len(manager))


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Raises for a name that this module does not have."""
        raise missing(__name__, name)


def __dir__() -> list[str]:
    return [*__all__]
