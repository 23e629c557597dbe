"""``KVCacheManager``: vLLM's KV-cache manager, with one call into Rust for each request and step.

The base class is vLLM's manager, which keeps all state in its own attributes: block tables in
``req_to_blocks``, and numbers of cached blocks in ``num_cached_block``. The methods that a scheduler
calls for every request read and write this state from Rust (:class:`kvpool._core.vllm.VllmGroups`).
They support any KV-cache groups: full attention, windows, chunks and states. One lookup covers all
groups. If a call has unusual arguments, such as tokens from a connector, vLLM's own method does the
work on the same state. In the few configurations that :func:`_calls_of` excludes, this applies to every
call.

A request at the head of the waiting queue is looked up again in every step. The last hit is therefore
kept. It remains valid as long as no key is removed from the index.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from vllm.v1.core import kv_cache_coordinator as coordinators
from vllm.v1.core import kv_cache_manager as stock
from vllm.v1.core import single_type_kv_cache_manager as single_type
from vllm.v1.request import RequestStatus

from kvpool import _core

from . import LOGGER_NAME, hints
from .pool import BlockPool

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(LOGGER_NAME)

#: The states of a request in which the watermark applies to its allocation.
WAITING = [int(RequestStatus.WAITING), int(RequestStatus.PREEMPTED)]


class KVCacheBlocks(stock.KVCacheBlocks):  # type: ignore[misc]
    """vLLM's ``KVCacheBlocks``, with a faster method that reads all ids in one call."""

    def get_block_ids(
        self, allow_none: bool = False, *, group_ids: Sequence[int] | None = None
    ) -> tuple[list[int], ...] | None:
        """Returns the ids of the blocks, one list per group.

        If there are no blocks and ``allow_none`` is set, returns ``None``.
        """
        groups = self.blocks if group_ids is None else tuple(self.blocks[group] for group in group_ids)
        if allow_none and not any(groups):
            return None
        return _core.vllm.vllm_block_ids(groups)

    def __add__(self, other: Any) -> Any:
        """Concatenates the blocks of both objects, group by group."""
        return KVCacheBlocks(
            tuple([*ours, *theirs] for ours, theirs in zip(self.blocks, other.blocks, strict=False))
        )


class KVCacheManager(stock.KVCacheManager):  # type: ignore[misc]
    """vLLM's ``KVCacheManager`` over kvpool's pool."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.empty_kv_cache_blocks = KVCacheBlocks(tuple(() for _ in range(self.num_kv_cache_groups)))
        pool = self.block_pool
        self._hinted = getattr(pool, "hints", None) is not None or getattr(pool, "wants_signals", False)
        #: The object with the methods that are implemented in Rust; ``None`` if vLLM's own methods are
        #: used.
        self.groups = calls = _calls_of(self)
        self._find: Any = None
        if calls is None:
            return
        # Schedulers call these methods for every request and step. As attributes of this object, the
        # methods in Rust are called directly, without a Python frame in between.
        self.allocate_slots = calls.allocate_slots
        self.cache_blocks = calls.cache_blocks
        if _lookup_of(self.coordinator) is not None:
            self._find = calls.find_longest_cache_hit
            # Other code calls the coordinator's methods directly. These calls are also replaced by one
            # call into Rust.
            self.coordinator.find_longest_cache_hit = calls.find_longest_cache_hit
            self.coordinator.find_longest_cache_hit_per_group = calls.find_longest_cache_hit_per_group

    def create_kv_cache_blocks(self, blocks: tuple[list[Any], ...]) -> Any:
        """Wraps blocks in the class of blocks that vLLM passes between its parts."""
        return KVCacheBlocks(blocks) if any(blocks) else self.empty_kv_cache_blocks

    def get_computed_blocks(self, request: Any, *max_cache_hit_length: int | None) -> tuple[Any, int, int]:
        """Returns a request's cached blocks, their number of tokens, and the length of a partial hit.

        The third value is the length in tokens of a longer hit that only some groups have, or 0. A hit
        never includes the last token of the request, because that token has to be computed. vLLM 0.33
        may pass another limit.
        """
        if self._find is None or request.skip_reading_prefix_cache:
            return cast("tuple[Any, int, int]", super().get_computed_blocks(request, *max_cache_hit_length))
        limit = max_cache_hit_length[0] if max_cache_hit_length else None
        found, tokens, more = self._find(
            request.block_hashes, request.num_tokens - 1 if limit is None else limit
        )
        if tokens and self.enable_kv_cache_events and _reports_hits(request):
            self.coordinator.emit_cached_block_events(request, found)
        return self.create_kv_cache_blocks(found), tokens, tokens + more if more else 0

    def free(self, request: Any) -> None:
        """Frees the blocks of a request, starting with the last block."""
        if self._hinted:
            hints.before_free(self, request)
        if self.groups is None or not self.groups.free(request.request_id):
            super().free(request)

    def pop_blocks_for_free(self, request: Any) -> list[Any]:
        """Removes a request's blocks from its tables. The caller frees them later."""
        if self._hinted:
            hints.before_free(self, request)
        return cast("list[Any]", super().pop_blocks_for_free(request))

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """Returns the ids of the blocks of a request, one list per group."""
        return _core.vllm.vllm_block_ids(self.coordinator.get_blocks(request_id))

    def estimate_cached_tokens(self, request: Any) -> int:
        """Returns the number of cached tokens of a request."""
        if self.groups is None:
            return cast("int", super().estimate_cached_tokens(request))
        return self.groups.cached_tokens(request.request_id)


def _reports_hits(request: Any) -> bool:
    return getattr(request, "kv_cache_report_mode", "incremental") == "full"


def _why_not(manager: KVCacheManager) -> str | None:
    """Returns the reason why vLLM's own methods are used in this configuration; ``None`` if they are not."""
    groups = manager.coordinator.single_type_managers
    pool = manager.block_pool
    if type(pool) is not BlockPool:
        return f"its block pool is {type(pool).__module__}.{type(pool).__name__}"
    if not groups:
        return "it has no KV-cache group"
    if manager.retained_hit_group_ids:
        return "it keeps longer hits than it reports"
    return None


def _calls_of(manager: KVCacheManager) -> _core.vllm.VllmGroups | None:
    """Returns the methods in Rust for this configuration; ``None`` if vLLM's own methods are used."""
    reason = _why_not(manager)
    if reason is None:
        groups = [_group_of(manager, group) for group in manager.coordinator.single_type_managers]
        known = [group for group in groups if group is not None]
        if len(known) == len(groups):
            return _groups_of(manager, known)
        unknown = manager.coordinator.single_type_managers[groups.index(None)]
        reason = f"a group of it is managed by {type(unknown).__name__}"
    logger.info("kvpool: this model's managers stay vLLM's, over kvpool's pool: %s", reason)
    return None


def _group_of(manager: KVCacheManager, group: Any) -> dict[str, Any] | None:
    """Returns the description of a group for :class:`kvpool._core.vllm.VllmGroups`.

    Returns ``None`` for a group of an unknown kind.
    """
    coordinator, spec, of = manager.coordinator, group.kv_cache_spec, type(group)
    kind, reads, retained, more_slots, states = "full", 0, 0, 0, None
    if of is single_type.SlidingWindowManager:
        kind, reads, retained = "sliding", group.sliding_window, group.extra_retained_tokens
    elif of is single_type.ChunkedLocalAttentionManager:
        kind, reads = "chunked", group.attention_chunk_size
    elif of is single_type.MambaManager:
        kind = "state"
        if group.mamba_cache_mode == "align" and not group.has_prefill_checkpoint_blocks:
            states = {
                "speculative": group.num_speculative_blocks,
                "allocated": group._allocated_block_reqs,
                "retired": group._num_retired_blocks,
                "last": group.last_state_block_idx,
                "partial": group._partial_hit_reqs,
                "checkpoints": group._checkpoints,
                "tails": group._producer_partial_tail_reqs,
                "junctions": group.shared_prefix_checkpoint,
                "drops": group.drop_eagle_checkpoint_block,
                "lookahead": getattr(group.block_pool, "num_hash_lookahead_tokens", 0),
            }
        elif group.mamba_cache_mode == "none":
            more_slots = spec.block_size * group.num_speculative_blocks
        else:
            return None
    elif of is not single_type.FullAttentionManager:
        return None
    hash_block_size = group.block_pool.hash_block_size
    cached = group.enable_caching and spec.prefix_cacheable
    if cached and group.block_size % hash_block_size:
        return None
    scale = group.block_size // hash_block_size if cached else 1
    ends = None
    if isinstance(coordinator, coordinators.HybridKVCacheCoordinator):
        ends = 1 if coordinator.enable_partial_hash_hits else coordinator.scheduler_block_size
    return {
        "kind": kind,
        "block_size": group.block_size,
        "reads": reads,
        "retained": retained,
        "more_slots": more_slots,
        "most": group.max_admission_blocks_per_request,
        "group": group.kv_cache_group_id,
        "scale": scale,
        "cached": cached,
        "counts": spec.prefix_cacheable,
        "tables": group.req_to_blocks,
        "num_cached": group.num_cached_block,
        "manager": group,
        "zeroed": group.records_new_block_ids,
        "ends": ends,
        "alignment": group.cache_hit_alignment_tokens,
        "drops": group.use_eagle,
        # A block has keys for parts of it only if it is larger than a hash block.
        "prompt_tail": int(not group.use_eagle) if scale > 1 and kind == "full" else None,
        "this_step": group.cached_blocks_this_step if kind == "state" else None,
        "states": states,
    }


def _lookup_of(coordinator: Any) -> tuple[int, list[tuple[list[int], bool, int]]] | None:
    """Returns the alignment of hits in tokens, and the groups that are looked up together.

    The result is the argument ``lookup`` of ``VllmGroups``. It is ``None`` if vLLM's coordinator makes
    no lookups, or if ``VllmGroups`` would refuse the groups.
    """
    groups = coordinator.single_type_managers
    if type(coordinator) is coordinators.UnitaryKVCacheCoordinator:
        alignment, families = coordinator.block_size, [([0], groups[0].use_eagle, 0)]
    elif type(coordinator) is coordinators.HybridKVCacheCoordinator:
        fine = coordinator.enable_partial_hash_hits
        alignment = coordinator.hash_block_size if fine else coordinator.scheduler_block_size
        families = []
        for _, group_ids, manager, drops in coordinator.attention_groups:
            size = groups[group_ids[0]].block_size
            inside = fine and manager.supports_fine_grained_hash_lookup and size > coordinator.hash_block_size
            families.append((list(group_ids), drops, coordinator.hash_block_size if inside else size))
    else:
        return None
    for group_ids, drops, _ in families:
        group = groups[group_ids[0]]
        if isinstance(group, single_type.ChunkedLocalAttentionManager) and (
            drops or group.block_size != alignment
        ):
            return None
    return alignment, families


def _groups_of(manager: KVCacheManager, groups: list[dict[str, Any]]) -> _core.vllm.VllmGroups:
    """Makes the object with the methods in Rust, for these groups and kvpool's pool."""
    coordinator, pool = manager.coordinator, manager.block_pool
    listening = pool.enable_kv_cache_events
    # vLLM 0.33 drops the last block of a hit only for the kinds of speculation that need this.
    dropping = getattr(coordinator, "drop_eagle_group_ids", None)
    return _core.vllm.VllmGroups(
        pool.core,
        groups,
        max_model_len=manager.max_model_len,
        recomputed=coordinator.num_reprefillable_tokens,
        watermark=manager.watermark_blocks,
        waiting=WAITING,
        blocks_class=KVCacheBlocks,
        empty=manager.empty_kv_cache_blocks,
        fallback=super(KVCacheManager, manager).allocate_slots,
        coordinator=coordinator,
        scheduler_block=coordinator.scheduler_block_size,
        drops=bool(coordinator.eagle_group_ids if dropping is None else dropping),
        by_series_33=dropping is not None,
        lookup=_lookup_of(coordinator),
        on_removed=(pool.feed or pool._notify_removed) if listening else None,
        on_cached=(pool.feed or pool.cache_full_blocks) if listening else None,
        # vLLM's metrics collector has to be notified of every block that the pool allocates or reuses, in
        # order.
        metered=pool if manager.metrics_collector is not None else None,
    )
