"""The level ``shadow``: vLLM makes all decisions, and kvpool makes the same calls until the first difference.

The engine gets the results of vLLM's own manager, pool, lookups and hasher. In parallel, the *mirror*
(kvpool's manager with kvpool's pool) and kvpool's hasher get the same calls.
:class:`.comparison.Comparison` makes every call on both managers. kvpool differs from vLLM on purpose
in some points. The mirror leaves them out: it emits vLLM's events, and therefore also has vLLM's order
of reuse after a connector has evicted blocks. If vLLM frees a block more often than it was acquired,
kvpool refuses this, and the comparison ends without a difference.

Costs: a second pool in memory, about twice the time for each call, and hashing each prompt twice. After
a difference, only two checks remain: one when a request is hashed, and one when it is looked up.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import inspect
import logging
from typing import TYPE_CHECKING, Any

from vllm.v1.core import kv_cache_coordinator
from vllm.v1.core import kv_cache_manager as stock

from . import LOGGER_NAME, hashing, journals
from .comparison import Comparison
from .events import StockEvents
from .manager import KVCacheManager
from .pool import BlockPool
from .trail import Operation, Raised, Trail, error_summary, plain, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(LOGGER_NAME)


class ShadowKVCacheManager(stock.KVCacheManager):  # type: ignore[misc]
    """vLLM's ``KVCacheManager``. Its calls are compared with those of kvpool's manager."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: The comparison with kvpool's manager. ``None`` if there is no comparison, because the
        #: configuration does not allow one, or because kvpool's manager cannot be made. The reason is
        #: logged once.
        self.comparison: Comparison | None = None
        try:
            why = _not_compared(self)
            if why:
                logger.warning("kvpool shadow: off: %s", why)
                return
            self.comparison = Comparison(self, make_mirror(args, kwargs), _setting(self))
        except Exception as error:
            logger.error("kvpool shadow: off: kvpool's manager cannot be made: %s", error_summary(error))


def make_mirror(args: tuple[Any, ...], kwargs: dict[str, Any]) -> KVCacheManager:
    """Makes kvpool's manager with the given arguments, with vLLM's events and without statistics."""
    bound = inspect.signature(_StockManager).bind(*args, **kwargs)
    listens = bound.arguments.get("metrics_collector") is not None
    bound.arguments.update({"metrics_collector": NullCollector() if listens else None, "log_stats": False})
    with _coordinator_over_kvpool():
        mirror = KVCacheManager(*bound.args, **bound.kwargs)
    pools = {type(group.block_pool) for group in mirror.coordinator.single_type_managers}
    if pools != {BlockPool} or type(mirror.block_pool) is not BlockPool:
        raise TypeError("this vLLM takes its pool from elsewhere")
    return mirror


class NullCollector:
    """A metrics collector for the mirror, used if vLLM has one. It ignores all calls."""

    def on_block_allocated(self, _block: Any) -> None:
        """Does nothing."""

    def on_block_accessed(self, _block: Any) -> None:
        """Does nothing."""

    def on_block_evicted(self, _block: Any) -> None:
        """Does nothing."""

    def reset(self) -> None:
        """Does nothing."""


# The class is looked up only once, because a level may later replace the name in the module.
_StockManager: Any = ShadowKVCacheManager.__base__


@contextlib.contextmanager
def _coordinator_over_kvpool() -> Iterator[None]:
    """Makes vLLM's coordinators use kvpool's pools inside the ``with`` block."""
    before = kv_cache_coordinator.BlockPool
    kv_cache_coordinator.BlockPool = _make_pool
    try:
        yield
    finally:
        kv_cache_coordinator.BlockPool = before


def _make_pool(*args: Any, **kwargs: Any) -> BlockPool:
    """Makes a pool that emits vLLM's events and has an in-memory journal.

    The journal is written to a file at the first difference.
    """
    return BlockPool(*args, **kwargs, events_class=StockEvents, journal=journals.to_memory())


def _not_compared(manager: Any) -> str:
    """Returns the reason why a configuration cannot be compared; an empty text if it can."""
    groups = manager.coordinator.single_type_managers
    if any("HiSparse" in type(group).__name__ for group in groups):
        return "vLLM's coordinator of HiSparse changes the tables of the managers, past their calls"
    if any(group.block_pool is not manager.block_pool for group in groups):
        return "its groups have several pools"
    return ""


def _setting(manager: Any) -> dict[str, Any]:
    """Returns the description of the engine for the first line of a trail."""
    groups = manager.coordinator.single_type_managers
    return {
        "kvpool": _version("kvpool"),
        "vllm": _version("vllm"),
        "blocks": manager.block_pool.num_gpu_blocks,
        "caching": manager.enable_caching,
        "max_model_len": manager.max_model_len,
        "groups": [{"manager": type(group).__name__, "block_size": group.block_size} for group in groups],
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class ShadowHasher:
    """vLLM's hasher, whose hashes are compared with kvpool's, byte for byte, until the first difference."""

    def __init__(self, theirs: Callable[[Any], list[bytes]], ours: Callable[[Any], list[bytes]]) -> None:
        self._theirs = theirs
        self._ours: Callable[[Any], list[bytes]] | None = ours
        self._calls = 0
        self._trail = Trail()

    def __call__(self, request: Any) -> list[bytes]:
        """Returns the request's missing hashes, computed by vLLM's hasher."""
        theirs = self._theirs(request)
        if self._ours is not None:
            self._compare(request, theirs, self._ours)
        return theirs

    def _compare(self, request: Any, theirs: list[bytes], hasher: Callable[[Any], list[bytes]]) -> None:
        try:
            ours = hasher(request)
            self._calls += 1
            self._trail.add(Operation(self._calls, "hash", plain(request), tuple(theirs)))
            if list(ours) != list(theirs):
                self._report(request, tuple(theirs), tuple(ours), "")
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # a panic in Rust is not an Exception
            self._report(request, tuple(theirs), Raised.of(error), error_summary(error))

    def _report(self, request: Any, theirs: tuple[bytes, ...], ours: Any, detail: str) -> None:
        self._ours = None
        try:
            both: tuple[Any, Any] = theirs, ours
            at = 0
            if isinstance(ours, tuple):
                ends = min(len(theirs), len(ours))
                at = next((one for one in range(ends) if theirs[one] != ours[one]), ends)
                both = (theirs[at : at + 1], ours[at : at + 1])
            shown = {"vllm": told(both[0]), "kvpool": told(both[1]), "hash": at, "detail": detail}
            where = self._trail.write_or_explain(
                {"kvpool": _version("kvpool"), "vllm": _version("vllm")},
                {"difference": "hashes", "operation": self._calls, "call": "hash", **shown},
            )
            logger.error(
                "kvpool shadow: hash %d of the new ones of request %s differs: vLLM %s, kvpool %s%s; %s. "
                "Hashes are not compared any more, vLLM goes on alone.",
                at,
                request.request_id,
                shown["vllm"],
                shown["kvpool"],
                f" ({detail})" if detail else "",
                where,
            )
        except Exception as error:
            logger.error(
                "kvpool shadow: off: a difference in hashes could not be told (%s)", type(error).__name__
            )


def get_request_block_hasher(
    hash_block_size: int, caching_hash_fn: Callable[[Any], bytes], *more: Any, **named: Any
) -> Callable[[Any], list[bytes]]:
    """Returns vLLM's hasher. If kvpool has a hasher for this function, the two are compared."""
    theirs: Callable[[Any], list[bytes]] = hashing.stock_get_request_block_hasher(
        hash_block_size, caching_hash_fn, *more, **named
    )
    try:
        ours = hashing.get_request_block_hasher(hash_block_size, caching_hash_fn, *more, **named)
    except Exception as error:
        logger.error("kvpool shadow: hashes are not compared: %s", error_summary(error))
        return theirs
    return theirs if type(ours) is type(theirs) else ShadowHasher(theirs, ours)
