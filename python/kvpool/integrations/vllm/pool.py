"""``BlockPool``: a block pool with the interface of vLLM's, whose state and loops are in Rust.

This module owns the attributes and methods of a pool that vLLM uses, and the order in which hooks and
events are notified of a change. :class:`kvpool._core.vllm.VllmPool` decides which block is allocated
next, which blocks have a hash, and what is evicted. Each block is one Python object for the life of the
pool, with the attributes of vLLM's ``KVCacheBlock``.

Some blocks are of vLLM's own class, and belong to no pool or to another pool. They are accepted
wherever vLLM's pool accepts them. They keep their own counts and hashes, and :attr:`BlockPool.loose`
maps keys to them.

Costs: one call into Rust for each call, and about 5 to 100 ns per block in it. Events and metrics cost
extra.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.v1.core import kv_cache_utils

from kvpool import _core, errors

from . import LOGGER_NAME, journals
from .events import ExactEvents, StockEvents
from .hints import HintReader
from .views import FreeBlockQueue, HashToBlockMap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvpool import RetentionConfig
    from kvpool.journal import Journal

    from .hints import VllmHints

logger = logging.getLogger(LOGGER_NAME)

_GPU = "GPU"


class PoolUsageError(errors.InvalidArgumentError, AssertionError):
    """Arguments do not fit together. vLLM's pool has an assertion instead. Nothing has changed."""


class BlockPool:
    """The block pool of a vLLM engine, with the interface of ``vllm.v1.core.block_pool.BlockPool``.

    It differs from vLLM's pool in four ways:

    - If a block is freed more often than it was acquired, :class:`InvalidBlockError` is raised, and
      nothing changes. vLLM would later allocate the block twice.
    - The null block has no references.
    - Events are exact unless ``KVPOOL_VLLM_EVENTS=stock`` is set (see :mod:`.events`).
    - Cached blocks are evicted in the order that ``KVPOOL_VLLM_EVICTION`` names. ``lru`` is the order
      of vLLM.
    """

    #: Defaults from the plug-in's settings, which ``install`` sets. A pool keeps the eviction policy
    #: with which it was made.
    events_class: ClassVar[type[StockEvents]] = ExactEvents
    eviction: ClassVar[str] = "lru"
    #: The hints of requests that are followed. ``None`` means no hints; the pool then has no
    #: retention.
    hinting: ClassVar[VllmHints | None] = None
    #: The folder in which journals are written; ``None`` for no journals.
    journal_folder: ClassVar[str | None] = None

    def __init__(
        self,
        num_gpu_blocks: int,
        enable_caching: bool,
        hash_block_size: int,
        enable_kv_cache_events: bool = False,
        metrics_collector: Any | None = None,
        *version_dependent: Any,
        num_hash_lookahead_tokens: int = 0,
        medium: str = _GPU,
        events_class: type[StockEvents] | None = None,
        journal: Journal | None = None,
    ) -> None:
        # ``events_class`` and ``journal`` are not parameters of vLLM's pool. They override the settings
        # for this pool. A subclass cannot do this, because the fast paths apply only to pools of
        # exactly this class. In vLLM 0.32, the sixth argument is the medium. In 0.33, it is the
        # lookahead, and the medium follows.
        for value in version_dependent:
            if isinstance(value, str):
                medium = value
            else:
                num_hash_lookahead_tokens = value
        self.num_gpu_blocks = num_gpu_blocks
        self.medium = medium
        self.enable_caching = enable_caching
        self.hash_block_size = hash_block_size
        self.num_hash_lookahead_tokens = num_hash_lookahead_tokens
        # A pool for other memory, which a connector makes, has no requests of its own and therefore no
        # hints.
        hinting = self.hinting if enable_caching and medium == _GPU else None
        retention = hinting.retention if hinting is not None else None
        self.core = self._make_core(journal or journals.to_folder(self.journal_folder, self), retention)
        self.core.bind(self)
        #: Applies the hints of requests that free their blocks; ``None`` if the setting follows no hints.
        self.hints = HintReader(self.core, hinting.rules) if hinting is not None else None
        #: Whether the eviction policy must be notified of the ways in which requests end.
        self.wants_signals = enable_caching and medium == _GPU and self.core.wants_signals
        self.blocks: list[Any] = self.core.blocks
        self.null_block = self.blocks[0]
        self.free_block_queue = FreeBlockQueue(self)
        self.cached_block_hash_to_block = HashToBlockMap(self)
        #: Cached blocks that do not belong to this pool, by key and block id.
        self.loose: dict[bytes, dict[int, Any]] = {}
        self.enable_kv_cache_events = enable_kv_cache_events
        #: The KV events that were not fetched yet. vLLM appends to this list, and may replace it.
        self.kv_event_queue: list[Any] = []
        self.events = self._make_events(events_class)
        #: The feed through which kvpool's publisher gets the changes; ``None`` without a publisher.
        self.feed: _core.vllm.VllmFeed | None = getattr(self.events, "feed", None)
        self.metrics_collector = metrics_collector
        self._reuse_watchers: dict[int, Callable[[Any], None]] = {}
        #: Whether the core has to know the parent of each block. With ``lru``, it does not.
        self._keeps_history = self.core.keeps_history
        logger.info(
            "kvpool: %d blocks, eviction %s, %s", num_gpu_blocks, self.eviction, type(self.events).__name__
        )

    def _make_events(self, events_class: type[StockEvents] | None) -> StockEvents:
        if (
            self.enable_kv_cache_events
            and events_class is None
            and issubclass(self.events_class, ExactEvents)
        ):
            # The import is here because the publisher's sockets need a package that the rest of the
            # plug-in does not need.
            from . import publisher

            fed = publisher.claim(self)
            if fed is not None:
                return fed
        return (events_class or self.events_class)(self)

    def _make_core(self, journal: Journal | None, retention: RetentionConfig | None) -> _core.vllm.VllmPool:
        made_of = (self.num_gpu_blocks, self.enable_caching, self.eviction)
        try:
            return _core.vllm.VllmPool(*made_of, journal, retention)
        except errors.JournalFileError as error:
            # The core creates the journal's file only here. An engine without a journal is better than
            # one that does not start.
            logger.error("kvpool: no journal: %s", error)
            return _core.vllm.VllmPool(*made_of, None, retention)

    # Lookups.

    @property
    def cached_block_hashes_by_block(self) -> dict[int, set[bytes]]:
        """Returns, by block id, the keys that each block has besides its hash. The dict is a copy."""
        return {block: set(self.core.further_keys(block)) for block in self.core.blocks_with_further_keys()}

    def chain_groups(self, kv_cache_group_ids: Iterable[int]) -> None:
        """Marks groups of full attention, in which a block cannot be used without the block before it."""
        if self._keeps_history:
            for group in kv_cache_group_ids:
                self.core.chain_group(group)

    def get_num_free_blocks(self) -> int:
        """Returns the number of blocks that can be allocated, including cached blocks without references."""
        return self.core.num_free

    def get_usage(self) -> float:
        """Returns the share of the blocks that are in use, from 0.0 to 1.0."""
        usable = self.num_gpu_blocks - 1
        return 1.0 - self.core.num_free / usable if usable else 0

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: list[int]) -> list[Any] | None:
        """Returns for each group the block that was cached first for this hash.

        Returns ``None`` if a group has no such block.
        """
        found = self.core.find(block_hash, kv_cache_group_ids)
        if found is not None or not self.loose:
            return found
        make_key = kv_cache_utils.make_block_hash_with_group_id
        copies = [self.blocks_of(make_key(block_hash, group)) for group in kv_cache_group_ids]
        return [blocks[0] for blocks in copies] if all(copies) else None

    def blocks_of(self, key: bytes) -> list[Any]:
        """Returns the blocks with ``key``, the oldest first. Blocks of other pools come last."""
        own = [self.blocks[block] for block in self.core.copies(key)]
        return [*own, *self.loose.get(key, {}).values()] if self.loose else own

    def index_insert(self, key: bytes, block: Any) -> None:
        """Adds ``block`` under ``key`` to the index. Does not change the block itself."""
        if self.core.owns(block):
            self.core.index_insert(key, block.block_id)
        else:
            self.loose.setdefault(key, {})[block.block_id] = block

    def index_pop(self, key: bytes, block_id: int) -> Any | None:
        """Removes a block under ``key`` from the index. Does not change the block itself."""
        if 0 <= block_id < self.num_gpu_blocks and self.core.index_remove(key, block_id):
            return self.blocks[block_id]
        block = self.loose.get(key, {}).pop(block_id, None)
        if not self.loose.get(key, True):
            del self.loose[key]
        return block

    # Caching.

    def cache_full_blocks(
        self,
        request: Any,
        blocks: Sequence[Any],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: list[bool] | None = None,
    ) -> None:
        """Caches the blocks ``num_cached_blocks..num_full_blocks`` of a request.

        They must be full and hashed. Null blocks are skipped, and so are blocks whose entry in
        ``block_mask`` (one entry per block) is ``False``. If a block is already cached for fewer
        tokens, it loses its old keys. If it is cached for as many tokens or more,
        :class:`InvalidBlockError` is raised.
        """
        if num_cached_blocks >= num_full_blocks:
            return
        num_new_blocks = num_full_blocks - num_cached_blocks
        if block_mask is not None and len(block_mask) != num_new_blocks:
            raise PoolUsageError(f"block_mask has {len(block_mask)} entries for {num_new_blocks} blocks")
        block_hashes = request.block_hashes
        scale = 1
        if isinstance(block_hashes, list):
            scale = self._hashes_per_block(block_size)
        if self.feed is not None:
            run = (num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id, block_mask, scale)
            if self.core.cache_full(blocks, block_hashes, *run, feed=self.feed, request=request) is not None:
                return
        result = self.core.cache_full(
            blocks,
            block_hashes,
            num_cached_blocks,
            num_full_blocks,
            block_size,
            kv_cache_group_id,
            block_mask,
            scale,
            self.enable_kv_cache_events,
        )
        if result is None or self.enable_kv_cache_events:
            if scale != 1:
                block_hashes = kv_cache_utils.resolve_block_hashes(
                    block_hashes, self.hash_block_size, block_size
                )
            arguments = (
                request,
                block_hashes,
                num_cached_blocks,
                num_full_blocks,
                block_size,
                kv_cache_group_id,
            )
            if result is None:
                result = self._cache_loose(blocks, *arguments[1:], block_mask)
            removed, new = result
            self._notify_removed(removed)
            if self.enable_kv_cache_events:
                self.events.stored(*arguments, new)

    def _hashes_per_block(self, block_size: int) -> int:
        scale, rest = divmod(block_size, self.hash_block_size)
        if rest or not scale:
            raise PoolUsageError(
                f"block_size is {block_size}: must be a multiple of the {self.hash_block_size} tokens of a "
                "hash"
            )
        return scale

    def _cache_loose(
        self,
        blocks: Sequence[Any],
        block_hashes: Any,
        first: int,
        end: int,
        block_size: int,
        group: int,
        mask: list[bool] | None,
    ) -> tuple[list[tuple[bytes, bool]], list[bool | None]]:
        """Does the work of :meth:`cache_full_blocks` if some blocks do not belong to the pool."""
        removed: list[tuple[bytes, bool]] = []
        new: list[bool | None] = []
        for at in range(first, end):
            block = blocks[at]
            if block.is_null or (mask is not None and not mask[at - first]):
                new.append(None)
                continue
            num_tokens = (at + 1) * block_size
            if block.block_hash is not None:
                cached = block.block_hash_num_tokens
                if cached is None or cached >= num_tokens:
                    raise errors.InvalidBlockError(
                        f"block {block.block_id} is cached already, for {cached} tokens"
                    )
                removed += self._take_keys(block)
            key = kv_cache_utils.make_block_hash_with_group_id(block_hashes[at], group)
            parent = kv_cache_utils.make_block_hash_with_group_id(block_hashes[at - 1], group) if at else None
            new.append(bool(self._give_key(key, block, num_tokens, at, parent)))
        return removed, new

    def _give_key(
        self, key: bytes, block: Any, num_tokens: int | None, depth: int = 0, parent: bytes | None = None
    ) -> bool | None:
        """Caches ``block`` under ``key``.

        Returns whether the key is new, or ``None`` if the block had it already.

        ``depth`` is the position of the block in its table, and ``parent`` is the key of the block
        before it.
        """
        if block.block_hash == key or self.cached_block_hash_to_block.contain(key, block.block_id):
            return None
        if self.core.owns(block):
            return (
                self.core.insert_hash(key, block.block_id, num_tokens, depth, parent)
                and key not in self.loose
            )
        is_new = not self.blocks_of(key)
        if block.block_hash is None:
            block.set_block_hash(key, num_tokens=num_tokens)
        self.index_insert(key, block)
        return is_new

    def _take_keys(self, block: Any) -> list[tuple[bytes, bool]]:
        """Removes all keys of ``block``. Returns each key, and whether no other block has it."""
        if self.core.owns(block):
            return self.core.remove_hashes(block.block_id)
        keys = [key for key, copies in self.loose.items() if block.block_id in copies]
        removed = []
        for key in keys:
            self.index_pop(key, block.block_id)
            removed.append((key, not self.blocks_of(key)))
        block.reset_hash()
        return removed

    def emit_cached_block_events(
        self, request: Any, num_cached_blocks: int, block_size: int, kv_cache_group_id: int
    ) -> None:
        """Emits events for the cached blocks that a request reuses. Does not change the cache."""
        if not self.enable_kv_cache_events or num_cached_blocks == 0:
            return
        hashes = kv_cache_utils.resolve_block_hashes(request.block_hashes, self.hash_block_size, block_size)
        self.events.stored_run(
            request,
            [hashes[block] for block in range(num_cached_blocks)],
            None,
            (0, num_cached_blocks * block_size),
            block_size,
            kv_cache_group_id,
            [(block * block_size, (block + 1) * block_size) for block in range(num_cached_blocks)],
        )

    def cache_partial_block(
        self,
        request: Any,
        block: Any,
        num_tokens: int,
        kv_cache_group_id: int,
        block_size: int,
        replace_existing_hashes: bool = False,
    ) -> bytes | None:
        """Caches ``block`` for the first ``num_tokens`` tokens of a request, which end inside the block.

        ``num_tokens`` must be a positive multiple of the hash block size, and these tokens must be
        hashed. If the block is cached for fewer tokens, it loses its old keys. With
        ``replace_existing_hashes``, it loses all other keys. Returns the key, or ``None`` for the null
        block.
        """
        if block.is_null:
            return None
        unit = self.hash_block_size
        self._hashes_per_block(block_size)
        num_hashes, rest = divmod(num_tokens, unit)
        if rest or not 0 < num_hashes <= len(request.block_hashes):
            raise PoolUsageError(
                f"num_tokens is {num_tokens}: must be a multiple of {unit}, from {unit} to "
                f"{unit * len(request.block_hashes)}, what is hashed"
            )
        block_hash = request.block_hashes[num_hashes - 1]
        key: bytes = kv_cache_utils.make_block_hash_with_group_id(block_hash, kv_cache_group_id)
        known = block.block_hash == key or self.cached_block_hash_to_block.contain(key, block.block_id)
        tokens_before = block.block_hash_num_tokens
        is_shorter = block.block_hash is not None and tokens_before is not None and tokens_before < num_tokens
        if replace_existing_hashes or (not known and is_shorter):
            self._notify_removed(self._take_keys(block))
        depth = (num_tokens - 1) // block_size
        before = None
        if depth and self._keeps_history:
            digest = request.block_hashes[depth * (block_size // unit) - 1]
            before = kv_cache_utils.make_block_hash_with_group_id(digest, kv_cache_group_id)
        is_new = self._give_key(key, block, num_tokens, depth, before)
        if self.enable_kv_cache_events and self.events.stored_part(is_new):
            start = num_tokens - unit
            parent = request.block_hashes[num_hashes - 2] if num_hashes > 1 else None
            self.events.stored_run(
                request,
                [block_hash],
                parent,
                (start, num_tokens),
                unit,
                kv_cache_group_id,
                [(start, num_tokens)],
            )
        return key

    def move_block_hashes(self, src_block: Any, dst_block: Any) -> None:
        """Moves the keys of one block to another block that has no key.

        Emits no event, because the same content remains cached.
        """
        self.core.move_hashes(src_block.block_id, dst_block.block_id)

    # The following methods are private in vLLM's pool, but other parts of vLLM call them.

    def _insert_block_hash(self, block_hash_with_group_id: bytes, block: Any, num_tokens: int | None) -> None:
        self._give_key(block_hash_with_group_id, block, num_tokens)

    def _remove_cached_block_hashes(self, block: Any) -> list[bytes]:
        return [key for key, _ in self._take_keys(block)]

    def _emit_block_removed_events(self, block_hashes: list[bytes]) -> None:
        self._notify_removed([(key, not self.blocks_of(key)) for key in block_hashes])

    def _maybe_evict_cached_block(self, block: Any) -> bool:
        if self.metrics_collector:
            self.metrics_collector.on_block_evicted(block)
        removed = self._take_keys(block)
        self._notify_removed(removed)
        return bool(removed)

    def _notify_removed(self, removed: list[tuple[bytes, bool]]) -> None:
        if removed and self.enable_kv_cache_events:
            self.events.removed(removed)

    # References.

    def get_new_blocks(self, num_blocks: int) -> list[Any]:
        """Allocates the next ``num_blocks`` free blocks, with one reference each.

        Their cached content is evicted.

        Raises ``ValueError`` if fewer blocks are free. In this case, nothing has changed.
        """
        if not (self._reuse_watchers or self.metrics_collector or self.enable_kv_cache_events):
            return self.core.allocate(num_blocks)[0]
        if self.feed is not None and not (self._reuse_watchers or self.metrics_collector):
            return self.core.allocate(num_blocks, feed=self.feed)[0]
        if self._reuse_watchers and 0 <= num_blocks <= self.core.num_free:
            # The watchers are called after the blocks are taken and before their content is evicted.
            blocks = self.core.queue_pop(num_blocks)
            self._notify_reuse(blocks)
            removed = self.core.claim(blocks)
        else:
            blocks, observed = self.core.allocate(num_blocks, True)
            removed = observed or []
        if self.metrics_collector:
            for block in blocks:
                if self.enable_caching:
                    self.metrics_collector.on_block_evicted(block)
                self.metrics_collector.on_block_allocated(block)
        self._notify_removed(removed)
        return blocks

    def touch(self, blocks: Sequence[Any]) -> None:
        """Adds a reference to each block. Blocks that were free leave the free queue.

        Null blocks are skipped, because they have no references.
        """
        try:
            self.core.touch(blocks)
        except TypeError:
            self.core.touch([block for block in blocks if self.core.owns(block)])
            for block in blocks:
                if self.core.owns(block) or block.is_null:
                    continue
                if block.pool is None:
                    block.ref_cnt += 1
                else:
                    block.pool.touch([block])
        if self.metrics_collector:
            for block in blocks:
                if not block.is_null:
                    self.metrics_collector.on_block_accessed(block)

    def is_block_writable(self, block: Any) -> bool:
        """Returns whether the request that holds a block may write to it.

        It may if the block has exactly one reference and is not cached.
        """
        return not block.is_null and block.ref_cnt == 1 and block.block_hash is None

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """Drops one reference to each block, in the order in which the blocks are to be evicted.

        Among the blocks that have no references left, those that are not cached are reused next, and
        cached blocks are reused last. Blocks of another pool are freed in that pool. If a block has no
        references, :class:`InvalidBlockError` is raised, and no block has been freed.
        """
        others = self.core.free(ordered_blocks)
        if others is None:
            return
        by_pool: dict[Any, list[Any]] = {}
        for block in others:
            if block.pool is not None:
                by_pool.setdefault(block.pool, []).append(block)
            else:
                block.ref_cnt -= 1
        for pool, blocks in by_pool.items():
            pool.free_blocks(blocks)

    def unpin_blocks(self, blocks: Iterable[Any], on_reuse: Callable[[Any], None]) -> None:
        """Drops one reference to each block. Blocks that have none left are reused last, cached or not.

        ``on_reuse`` is called with a block when the block is allocated again, or when the cache is
        reset.
        """
        blocks = list(blocks)
        self.core.unpin(blocks)
        for block in blocks:
            self._reuse_watchers[block.block_id] = on_reuse

    def _notify_reuse(self, blocks: Iterable[Any]) -> None:
        for block in blocks:
            watcher = self._reuse_watchers.pop(block.block_id, None)
            if watcher is not None:
                watcher(block)

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Drops the cached content of blocks, whether in use or not.

        With exact events, a free one is reused next.
        """
        unknown = [block for block in block_ids if not 0 <= block < self.num_gpu_blocks]
        if unknown:
            raise errors.InvalidBlockError(
                f"block {unknown[0]} is not of this pool: it has blocks 0 to {self.num_gpu_blocks - 1}; "
                "a connector may only report blocks that the scheduler gave it"
            )
        exact = self.events.reuses_evicted_first
        for block_id in block_ids:
            if self.metrics_collector:
                self.metrics_collector.on_block_evicted(self.blocks[block_id])
            self._notify_removed(self.core.evict(block_id, exact))

    def reset_prefix_cache(self) -> bool:
        """Drops all cached content. If a block is in use, returns ``False`` and changes nothing."""
        if not self.core.reset():
            in_use = self.num_gpu_blocks - 1 - self.core.num_free
            logger.warning("Failed to reset prefix cache because some blocks (%d) are not freed yet", in_use)
            return False
        self.loose.clear()
        if self._reuse_watchers:
            self._notify_reuse([self.blocks[block] for block in list(self._reuse_watchers)])
        if self.metrics_collector:
            self.metrics_collector.reset()
        logger.info("Successfully reset prefix cache")
        if self.enable_kv_cache_events:
            self.events.cleared()
        return True

    def take_events(self) -> list[Any]:
        """Returns the events since the last call; an empty list if events are off."""
        if not self.enable_kv_cache_events:
            return []
        events, self.kv_event_queue = self.kv_event_queue, []
        return events
