"""KV events of a block pool: what changed in the cache, for routers and other caches outside of the engine.

vLLM's own events have defects that make an outside view of the cache wrong, and that :class:`ExactEvents` has not:

- A hash that two blocks hold is stored twice and removed once, while the other block is still there. Here a hash is
  stored when its first block is cached, and removed when its last one is not any more.
- Blocks that a sliding window leaves out are in the token ids of the event around them, which then has more tokens than
  its hashes stand for; if it leaves out all of them, the event has no hashes at all. Here an event is one run of
  consecutive stored blocks, with their tokens and the right parent, and there is none about nothing.

:class:`StockEvents` says exactly what vLLM says. Both are asked by :class:`.pool.BlockPool` only if somebody listens.

Costs: an event object per run of stored blocks and per removed hash, as in vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.v1.core import kv_cache_utils

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .pool import BlockPool


class StockEvents:
    """vLLM's events."""

    #: Whether a block that can't be hit any more is reused first.
    reuses_evicted_first = False

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool

    def _emit(self, event: Any) -> None:
        # The list is vLLM's to replace and to append to.
        self.pool.kv_event_queue.append(event)

    def extra_keys(self, request: Any, start: int, end: int, item: int) -> tuple[Any, int]:
        """The extra keys of a block, and the multi-modal item to go on from."""
        lookahead = self.pool.num_hash_lookahead_tokens
        if lookahead:
            generate = kv_cache_utils.generate_lookahead_block_hash_extra_keys
            return generate(request, start, end, end + lookahead, item)
        return kv_cache_utils.generate_block_hash_extra_keys(request, start, end, item)

    def stored_run(
        self,
        request: Any,
        hashes: Sequence[bytes],
        parent: bytes | None,
        tokens: tuple[int, int],
        block_size: int,
        group: int,
        blocks: Iterable[tuple[int, int]],
        item: int = 0,
    ) -> int:
        """One event for blocks whose token ranges are ``blocks``. Returns the multi-modal item to go on from."""
        keys = []
        lookahead = self.pool.num_hash_lookahead_tokens
        following: list[list[int]] | None = [] if lookahead else None
        for start, end in blocks:
            extra, item = self.extra_keys(request, start, end, item)
            keys.append(extra)
            if following is not None:
                following.append(request.all_token_ids[end : end + lookahead])
        lora = request.lora_request
        convert = kv_cache_utils.maybe_convert_block_hash
        more = {} if following is None else {"lookahead_token_ids": following}
        self._emit(
            BlockStored(
                block_hashes=[convert(block_hash) for block_hash in hashes],
                parent_block_hash=None if parent is None else convert(parent),
                token_ids=request.all_token_ids[tokens[0] : tokens[1]],
                block_size=block_size,
                lora_id=lora.adapter_id if lora else None,
                medium=self.pool.medium,
                lora_name=lora.name if lora else None,
                extra_keys=kv_cache_utils.to_event_extra_keys(keys),
                group_idx=group,
                session_id=request.session_id,
                **more,
            )
        )
        return item

    def stored(
        self, request: Any, hashes: Any, first: int, end: int, block_size: int, group: int, new: list[bool | None]
    ) -> None:
        """Blocks ``first..end`` of a request were cached: for each, whether its hash is new, or ``None``: left out."""
        cached = [block for block, is_new in zip(range(first, end), new, strict=True) if is_new is not None]
        self.stored_run(
            request,
            [hashes[block] for block in cached],
            hashes[first - 1] if first else None,
            (first * block_size, end * block_size),
            block_size,
            group,
            [(block * block_size, (block + 1) * block_size) for block in cached],
        )

    def removed(self, keys: list[tuple[bytes, bool]]) -> None:
        """Keys were taken from a block: for each, whether no other block has it."""
        for key, _ in keys:
            self._emit_removed(key)

    def stored_part(self, is_new: bool | None) -> bool:
        """Whether to tell of a prefix that ends inside a block: its key is new, known, or this block's own already."""
        return is_new is not None

    def _emit_removed(self, key: bytes) -> None:
        block_hash = kv_cache_utils.maybe_convert_block_hash(kv_cache_utils.get_block_hash(key))
        group = kv_cache_utils.get_group_id(key)
        self._emit(BlockRemoved(block_hashes=[block_hash], medium=self.pool.medium, group_idx=group))

    def cleared(self) -> None:
        """Nothing is cached any more."""
        self._emit(AllBlocksCleared())


class ExactEvents(StockEvents):
    """Events whose sum is what the cache holds."""

    reuses_evicted_first = True

    def stored(
        self, request: Any, hashes: Any, first: int, end: int, block_size: int, group: int, new: list[bool | None]
    ) -> None:
        """As :meth:`StockEvents.stored`, one event for each run of blocks whose hashes are new."""
        at, item = first, 0
        while at < end:
            if not new[at - first]:
                at += 1
                continue
            start = at
            while at < end and new[at - first]:
                at += 1
            item = self.stored_run(
                request,
                [hashes[block] for block in range(start, at)],
                hashes[start - 1] if start else None,
                (start * block_size, at * block_size),
                block_size,
                group,
                [(block * block_size, (block + 1) * block_size) for block in range(start, at)],
                item,
            )

    def removed(self, keys: list[tuple[bytes, bool]]) -> None:
        """As :meth:`StockEvents.removed`, for keys that lead nowhere now."""
        for key, is_last in keys:
            if is_last:
                self._emit_removed(key)

    def stored_part(self, is_new: bool | None) -> bool:
        """As :meth:`StockEvents.stored_part`: only a new key."""
        return is_new is True
