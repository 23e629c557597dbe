"""``Comparison``: makes every call on two managers, and compares the results until the first difference.

This module owns the list of compared calls, their arguments, and the definition of a difference. The
caller's manager is called first. The caller gets its result or exception. The other manager, the
*mirror*, then gets the same call with its own blocks in place of the caller's. After each call, the
results, the numbers of free blocks, and the KV events are compared. At intervals, the whole state is
compared.

Nothing of the mirror reaches the caller. At the first difference, or if the mirror raises, one line is
logged, the last operations are written to a file (see :mod:`.trail`), and the mirror is dropped. The
caller's manager then works as it did before the comparison.

Costs while the comparison runs: every call is made twice, and two lists of ids are made per block
table. The whole state is compared every :data:`STATE_EVERY` operations, or every quarter of the number
of blocks, whichever is more.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from kvpool import errors

from . import LOGGER_NAME, journals
from .trail import Operation, Raised, Trail, brief_values, error_summary, first_difference, plain, same, told

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(LOGGER_NAME)

#: The public methods of vLLM's manager, without those for statistics and those that only convert their
#: arguments.
MANAGER: Final = (
    "allocate_slots",
    "cache_blocks",
    "estimate_cached_tokens",
    "evict_blocks",
    "finalize_partial_tail_offloads",
    "free",
    "get_block_ids",
    "get_block_ids_for_computed_tokens",
    "get_blocks",
    "get_computed_blocks",
    "get_computed_blocks_for_connector",
    "get_num_common_prefix_blocks",
    "new_step_starts",
    "pop_blocks_for_free",
    "record_blocks_for_zeroing",
    "remove_skipped_blocks",
    "reset_prefix_cache",
    "take_boundary_state_offloads",
    "take_events",
    "take_kv_cache_block_copies",
    "take_new_block_ids",
    "truncate_computed_blocks",
)
NOT_COMPARED: Final = (
    "create_kv_cache_blocks",
    "make_prefix_cache_stats",
    "prefix_cache_lookup_enabled",
    "record_prefix_cache_stats",
)
#: The methods of the manager's pool and coordinator that schedulers, connectors and managers call.
POOL: Final = (
    "_emit_block_removed_events",
    "_insert_block_hash",
    "_maybe_evict_cached_block",
    "_remove_cached_block_hashes",
    "cache_full_blocks",
    "cache_partial_block",
    "emit_cached_block_events",
    "evict_blocks",
    "free_blocks",
    "get_cached_block",
    "get_new_blocks",
    "get_num_free_blocks",
    "get_usage",
    "is_block_writable",
    "move_block_hashes",
    "reset_prefix_cache",
    "take_events",
    "touch",
    "unpin_blocks",
)
COORDINATOR: Final = (
    "find_longest_cache_hit",
    "find_longest_cache_hit_per_group",
    "get_num_blocks_to_allocate",
)
#: The whole state is compared after at least ``STATE_EVERY`` operations. After ``LOG_EVERY`` operations
#: without a difference, one log line reports this.
STATE_EVERY: Final = 64
LOG_EVERY: Final = 100_000


class _Foreign(Exception):  # noqa: N818 (never leaves the module)
    """Raised if an argument of a call is a block of another pool."""


class Comparison:
    """Compares a manager of vLLM with its mirror, by wrapping the methods of the manager.

    The mirror is the manager that gets the same calls. Both have ``block_pool`` and ``coordinator``. At
    the start, neither may have requests or cached blocks.
    """

    def __init__(self, manager: Any, mirror: Any, setting: dict[str, Any]) -> None:
        self.manager = manager
        self.mirror = mirror
        #: A description of the engine: the first line of the file that is written at a difference.
        self.setting = setting
        self.operations = 0
        self.trail = Trail()
        self.running = True
        self._inside = False
        self._state_every = max(STATE_EVERY, len(manager.block_pool.blocks) // 4)
        #: The blocks that the last lookup found, in the caller's manager and in the mirror. The caller
        #: passes its blocks to the allocation, where the mirror's blocks replace them.
        self._found: tuple[Any, Any] = (None, None)
        self._watched: list[tuple[Any, str]] = []
        self._watch(manager, lambda: self.mirror, "", MANAGER)
        self._watch(manager.block_pool, lambda: self.mirror.block_pool, "block_pool.", POOL)
        self._watch(manager.coordinator, lambda: self.mirror.coordinator, "coordinator.", COORDINATOR)

    def _watch(self, owner: Any, mirror: Callable[[], Any], prefix: str, names: tuple[str, ...]) -> None:
        for name in names:
            theirs = getattr(owner, name, None)
            if theirs is not None and hasattr(mirror(), name):
                call = functools.partial(
                    self.call, prefix + name, theirs, functools.partial(_call, mirror, name)
                )
                setattr(owner, name, call)
                self._watched.append((owner, name))

    def stop(self) -> None:
        """Drops the mirror, and restores the methods of the manager."""
        self.running = False
        for owner, name in self._watched:
            vars(owner).pop(name, None)
        self._watched.clear()
        self.mirror = None
        self._found = (None, None)

    def call(
        self, name: str, theirs: Callable[..., Any], ours: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Makes a call on both managers. A call inside another call is not compared separately."""
        if self._inside or not self.running:
            return theirs(*args, **kwargs)
        # An iterator is turned into a list, because both managers read it.
        args = tuple([list(one) if isinstance(one, Iterator) else one for one in args])
        if kwargs:
            kwargs = {key: list(one) if isinstance(one, Iterator) else one for key, one in kwargs.items()}
        self._inside = True
        try:
            prepared = self._prepare(name, args, kwargs)
            try:
                result = theirs(*args, **kwargs)
            except BaseException as error:
                if prepared is not None:
                    self._finish(name, ours, prepared, error, raised=True)
                raise
            if prepared is not None:
                self._finish(name, ours, prepared, result, raised=False)
            return result
        finally:
            self._inside = False

    def _prepare(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        """Records the arguments of a call before the call can change them.

        Returns ``None`` if there is nothing to compare.
        """
        try:
            return _Call(
                {"": plain(args), **{key: plain(one) for key, one in kwargs.items()}}
                if kwargs
                else plain(args),
                tuple([self._mirrored(one) for one in args]),
                {key: self._mirrored(one) for key, one in kwargs.items()},
                _Events(self.manager.block_pool),
                _Events(self.mirror.block_pool),
            )
        except _Foreign:
            return None
        except Exception as error:
            self._report(name, "before the call", None, Raised.of(error), error_summary(error))
            return None

    def _mirrored(self, value: Any) -> Any:
        """Returns an argument in which the mirror's blocks replace the caller's.

        Blocks of other pools are left out.
        """
        if isinstance(value, (list, tuple)):
            if not value:
                return value
            pool = self.manager.block_pool
            if hasattr(value[0], "block_id"):
                blocks = self.mirror.block_pool.blocks
                own = [blocks[one.block_id] for one in value if one.pool is pool]
                return tuple(own) if isinstance(value, tuple) else own
            if isinstance(value[0], (list, tuple)):
                return type(value)([self._mirrored(one) for one in value])
            return value
        if hasattr(value, "block_id"):
            if value.pool is not self.manager.block_pool:
                raise _Foreign
            return self.mirror.block_pool.blocks[value.block_id]
        if hasattr(value, "get_block_ids"):
            if value is self._found[0]:
                return self._found[1]
            if value is self.manager.empty_kv_cache_blocks:
                return self.mirror.empty_kv_cache_blocks
            return type(self.mirror.empty_kv_cache_blocks)(self._mirrored(value.blocks))
        # A callback for reused blocks belongs to the caller. The mirror gets a function that does
        # nothing.
        return _nothing if callable(value) else value

    def _finish(
        self, name: str, ours: Callable[..., Any], prepared: _Call, theirs: Any, *, raised: bool
    ) -> None:
        """Makes the call on the mirror, and compares the results. Raises nothing but interrupts."""
        try:
            if raised and not isinstance(theirs, Exception):  # its effect is unknown
                self.stop()
                return
            their_result = Raised.of(theirs) if raised else plain(theirs)
            self.operations += 1
            try:
                found = ours(*prepared.args, **prepared.kwargs)
                our_result = plain(found)
            except Exception as error:
                self._mirror_raised(name, prepared, error, their_result, raised=raised)
                return
            if not raised and "computed_blocks" in name and isinstance(theirs, tuple):
                self._found = (theirs[0], found[0])
            self._compare(name, prepared, their_result, our_result)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            self.stop()
            raise
        except BaseException as error:  # a panic in Rust is not an Exception
            self._report(name, "kvpool raised", None, Raised.of(error), error_summary(error))

    def _compare(self, name: str, prepared: _Call, theirs: Any, ours: Any) -> None:
        self.trail.add(Operation(self.operations, name, prepared.shown, theirs))
        if not same(theirs, ours):
            self._report(name, "results", theirs, ours)
            return
        pool, mirror = self.manager.block_pool, self.mirror.block_pool
        free = pool.free_block_queue.num_free_blocks, mirror.free_block_queue.num_free_blocks
        if free[0] != free[1]:
            self._report(name, "free blocks", *free)
            return
        events = prepared.events.new(), prepared.mirror_events.new()
        if not same(*events):
            self._report(name, "events", *events)
            return
        if self.operations % self._state_every == 0:
            self.compare_state(name)
        if self.operations % LOG_EVERY == 0 and self.running:
            logger.info("kvpool shadow: %d operations, no difference", self.operations)

    def _mirror_raised(
        self, name: str, prepared: _Call, error: Exception, theirs: Any, *, raised: bool
    ) -> None:
        """Handles an exception of the mirror, whether or not the caller's manager raised, too."""
        self.trail.add(Operation(self.operations, name, prepared.shown, theirs))
        if raised:
            # When kvpool raises, it has changed nothing. When vLLM raises, it may have completed a part
            # of the call, which cannot be undone.
            if self._different_state() is not None:
                self._stop_comparing(name, f"vLLM raised {theirs.error} and has done a part of it")
        elif isinstance(error, errors.InvalidBlockError) and self._freed_too_often():
            self._stop_comparing(
                name, "vLLM has freed a block more often than it was taken, which kvpool refuses"
            )
        else:
            self._report(name, "kvpool raised", theirs, Raised.of(error), error_summary(error))

    def _freed_too_often(self) -> bool:
        return any(block.ref_cnt < 0 and not block.is_null for block in self.manager.block_pool.blocks)

    def compare_state(self, name: str = "state") -> None:
        """Compares the state on which later results depend.

        This state consists of the cached content, the order of reuse, the references, and the block
        tables.
        """
        found = self._different_state()
        if found is not None:
            self._report(name, *found)

    def _different_state(self) -> tuple[str, Any, Any] | None:
        for what, read in STATE.items():
            theirs, ours = plain(read(self.manager)), plain(read(self.mirror))
            if not same(theirs, ours):
                return what, theirs, ours
        return None

    def _stop_comparing(self, name: str, why: str) -> None:
        """Ends the comparison without a difference, because the two managers can no longer be compared."""
        logger.warning("kvpool shadow: off after operation %d, %s: %s", self.operations, name, why)
        self.stop()

    def _report(self, name: str, what: str, theirs: Any, ours: Any, detail: str = "") -> None:
        """Reports a difference and ends the comparison. Raises nothing."""
        try:
            first = first_difference(theirs, ours)
            told_both = {
                "vllm": told(theirs),
                "kvpool": told(ours),
                "first": {"vllm": first[0], "kvpool": first[1]},
            }
            difference = {"difference": what, "operation": self.operations, "call": name, "detail": detail}
            where = self.trail.write_or_explain(self.setting, {**difference, **told_both})
            where += journals.leave_behind(self.mirror.block_pool, self.trail.folder)
            brief = brief_values(theirs, ours)
            logger.error(
                "kvpool shadow: operation %d, %s, first difference, %s: vLLM %s, kvpool %s%s; %s. "
                "The shadow is off, vLLM goes on alone.",
                self.operations,
                name,
                what,
                *brief,
                f" ({detail})" if detail else "",
                where,
            )
        except Exception as error:
            logger.error(
                "kvpool shadow: off: a difference in %s could not be told (%s)", name, type(error).__name__
            )
        finally:
            self.stop()


class _Call:
    """A call on the caller's manager that is about to be made, and its arguments."""

    __slots__ = ("args", "events", "kwargs", "mirror_events", "shown")

    def __init__(
        self,
        shown: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        events: _Events,
        mirror_events: _Events,
    ) -> None:
        self.shown, self.args, self.kwargs = shown, args, kwargs
        self.events, self.mirror_events = events, mirror_events


class _Events:
    """Reads the KV events that a pool adds after this object was made."""

    __slots__ = ("_pool", "_queue", "_start")

    def __init__(self, pool: Any) -> None:
        self._pool, self._queue = pool, pool.kv_event_queue
        self._start = len(self._queue)

    def new(self) -> tuple[Any, ...]:
        """Returns the events that were not taken yet. Taken events are compared as results of that call."""
        queue = self._pool.kv_event_queue
        return tuple(queue[self._start :] if queue is self._queue else queue)


def _call(owner: Callable[[], Any], name: str, /, *args: Any, **kwargs: Any) -> Any:
    return getattr(owner(), name)(*args, **kwargs)


def _nothing(*_: Any) -> None:
    pass


def _keys(manager: Any) -> dict[bytes, Any]:
    # In kvpool's pool, this attribute is a view. In vLLM's pool, it is a dict from a key to a block, or
    # to a dict of blocks by id.
    found = manager.block_pool.cached_block_hash_to_block._cache
    return {key: list(one) if isinstance(one, dict) else [one.block_id] for key, one in found.items()}


def _tables(manager: Any) -> list[Any]:
    groups = manager.coordinator.single_type_managers
    return [{key: blocks for key, blocks in one.req_to_blocks.items() if blocks} for one in groups]


#: Attributes with the state of requests in vLLM's managers of recurrent states. They are separate from
#: the block tables.
STATES: Final = (
    "last_state_block_idx",
    "_num_retired_blocks",
    "_allocated_block_reqs",
    "cached_blocks_this_step",
)


def _states(manager: Any) -> list[Any]:
    groups = manager.coordinator.single_type_managers
    kept = [[getattr(one, name) for name in STATES if hasattr(one, name)] for one in groups]
    return [[sorted(one) if isinstance(one, set) else dict(one) for one in group] for group in kept]


#: The parts of a manager's state that are compared, each with the function that reads it.
STATE: Final[dict[str, Callable[[Any], Any]]] = {
    "free blocks in order": lambda manager: manager.block_pool.free_block_queue.get_all_free_blocks(),
    "references": lambda manager: [block.ref_cnt for block in manager.block_pool.blocks if not block.is_null],
    "blocks by key": _keys,
    "cached tokens": lambda manager: [block.block_hash_num_tokens for block in manager.block_pool.blocks],
    "blocks by request": _tables,
    "cached blocks by request": lambda manager: [
        dict(one.num_cached_block) for one in manager.coordinator.single_type_managers
    ],
    "recurrent states by request": _states,
}
