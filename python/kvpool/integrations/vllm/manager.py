"""``KVCacheManager``: vLLM's KV-cache manager, whose calls per request and step are one call into Rust each.

vLLM's manager is the base class, and all of its state is where it was: tables in ``req_to_blocks``, cached counts in
``num_cached_block``. For models with one group of full attention the calls that a scheduler makes for every request
work on that state from Rust (:class:`kvpool._core.vllm.VllmSlots`); a call with anything out of the ordinary, such as
tokens from a connector, is vLLM's own method on the same state. For every other configuration all calls are vLLM's,
over kvpool's pool and lookups.

A request that waits at the head of the queue asks for its hit at every step: the last hit is kept, and stands while no
key has been removed from the index.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from vllm.v1.core import kv_cache_manager as stock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import RequestStatus

from kvpool import _core

from . import LOGGER_NAME
from .pool import BlockPool

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(LOGGER_NAME)


class KVCacheBlocks(stock.KVCacheBlocks):  # type: ignore[misc]
    """vLLM's ``KVCacheBlocks``, whose ids are read in one call."""

    def get_block_ids(
        self, allow_none: bool = False, *, group_ids: Sequence[int] | None = None
    ) -> tuple[list[int], ...] | None:
        """The ids of the blocks of each group; ``None`` with ``allow_none`` if there are none."""
        groups = self.blocks if group_ids is None else tuple(self.blocks[group] for group in group_ids)
        if allow_none and not any(groups):
            return None
        return _core.vllm.vllm_block_ids(groups)

    def __add__(self, other: Any) -> Any:
        """Both, group by group."""
        return KVCacheBlocks(tuple([*ours, *theirs] for ours, theirs in zip(self.blocks, other.blocks, strict=False)))


class KVCacheManager(stock.KVCacheManager):  # type: ignore[misc]
    """vLLM's ``KVCacheManager`` over kvpool's pool."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.empty_kv_cache_blocks = KVCacheBlocks(tuple(() for _ in range(self.num_kv_cache_groups)))
        #: What the calls of the group go to, or ``None`` where they are vLLM's.
        self.slots: _core.vllm.VllmSlots | None = _slots_of(self)
        if self.slots is not None:
            # What is called for every request at every step goes to Rust without a frame of Python's.
            self.allocate_slots = self.slots.allocate_slots
            self.cache_blocks = self.slots.cache_blocks

    def create_kv_cache_blocks(self, blocks: tuple[list[Any], ...]) -> Any:
        """These blocks as vLLM passes them on."""
        return KVCacheBlocks(blocks) if any(blocks) else self.empty_kv_cache_blocks

    def get_computed_blocks(self, request: Any, *max_cache_hit_length: int | None) -> tuple[Any, int, int]:
        """The cached blocks of a request, the tokens they hold, and 0: no group lags behind another.

        All blocks of a request hit but for the last token, which has to be computed; vLLM 0.33 may pass another limit.
        """
        if self.slots is None:
            return cast("tuple[Any, int, int]", super().get_computed_blocks(request, *max_cache_hit_length))
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return self.empty_kv_cache_blocks, 0, 0
        limit = max_cache_hit_length[0] if max_cache_hit_length else None
        blocks, tokens = self.slots.lookup(request.block_hashes, request.num_tokens - 1 if limit is None else limit)
        if tokens and self.enable_kv_cache_events and _reports_hits(request):
            self.coordinator.emit_cached_block_events(request, blocks.blocks)
        return blocks, tokens, 0

    def free(self, request: Any) -> None:
        """Gives a request's blocks back, the last first."""
        if self.slots is None or not self.slots.free(request.request_id):
            super().free(request)

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The ids of the blocks of a request, one list per group."""
        return _core.vllm.vllm_block_ids(self.coordinator.get_blocks(request_id))

    def estimate_cached_tokens(self, request: Any) -> int:
        """Tokens of a request that are cached."""
        if self.slots is None:
            return cast("int", super().estimate_cached_tokens(request))
        return self.slots.cached_tokens(request.request_id)


def _reports_hits(request: Any) -> bool:
    return getattr(request, "kv_cache_report_mode", "incremental") == "full"


def _why_not(manager: KVCacheManager) -> str | None:
    """What about this configuration leaves its calls with vLLM's managers; ``None`` if nothing does."""
    groups = manager.coordinator.single_type_managers
    pool = manager.block_pool
    if type(pool) is not BlockPool:
        return f"its block pool is {type(pool).__module__}.{type(pool).__name__}"
    if len(groups) != 1:
        return f"it has {len(groups)} KV-cache groups"
    (group,) = groups
    if type(group) is not FullAttentionManager:
        return f"its group is managed by {type(group).__name__}"
    reasons = {
        "its blocks are shared by several ranks": group.dcp_world_size != 1 or group.pcp_world_size != 1,
        "its blocks are zeroed before use": group.records_new_block_ids,
        "its blocks are not cached": not group.kv_cache_spec.prefix_cacheable,
        "it keeps longer hits than it reports": bool(manager.retained_hit_group_ids),
        "its hashes are finer than its blocks": manager.enable_caching and pool.hash_block_size != group.block_size,
        # A collector wants to be told of every block, in order.
        "metrics of its blocks are collected": manager.metrics_collector is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _slots_of(manager: KVCacheManager) -> _core.vllm.VllmSlots | None:
    """The Rust calls for this configuration, if it is one group of full attention over kvpool's pool."""
    reason = _why_not(manager)
    if reason is not None:
        logger.info("kvpool: this model's managers stay vLLM's, over kvpool's pool: %s", reason)
        return None
    coordinator, pool = manager.coordinator, manager.block_pool
    group = coordinator.single_type_managers[0]
    # vLLM 0.33 drops a block only for those speculations that still need it.
    dropping = getattr(coordinator, "drop_eagle_group_ids", coordinator.eagle_group_ids)
    listening = pool.enable_kv_cache_events
    return _core.vllm.VllmSlots(
        pool.core,
        block_size=group.block_size,
        max_model_len=manager.max_model_len,
        group=group.kv_cache_group_id,
        caching=manager.enable_caching,
        drop_last=group.kv_cache_group_id in dropping,
        recomputed=coordinator.num_reprefillable_tokens,
        watermark=manager.watermark_blocks,
        waiting=[int(RequestStatus.WAITING), int(RequestStatus.PREEMPTED)],
        tables=group.req_to_blocks,
        num_cached=group.num_cached_block,
        blocks_class=KVCacheBlocks,
        empty=manager.empty_kv_cache_blocks,
        fallback=super(KVCacheManager, manager).allocate_slots,
        on_removed=pool.events.removed if listening else None,
        on_cached=pool.cache_full_blocks if listening else None,
    )
