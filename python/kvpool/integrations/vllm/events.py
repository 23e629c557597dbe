"""KV events of a block pool: changes of the cache, for routers and for caches outside the engine.

vLLM's own events have two defects, because of which a reader gets a wrong picture of the cache.
:class:`ExactEvents` avoids both:

- If two blocks have the same hash, vLLM reports the hash as stored twice. It reports it as removed when
  the first of the two is removed, although the other is still cached. Here a hash is reported as stored
  when its first block is cached, and as removed when its last block is no longer cached.
- In vLLM, the token ids of an event include blocks that a sliding window skips, so the event has more
  tokens than its hashes cover. If all blocks are skipped, the event has no hashes at all. Here an event
  covers one run of consecutive stored blocks, with their tokens and the right parent. There are no
  empty events.

:class:`StockEvents` emits exactly the events of vLLM. :class:`.pool.BlockPool` calls these classes only
if events are enabled.

Costs: one event object for each run of stored blocks and for each removed hash, as in vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm import envs
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.v1.core import kv_cache_utils

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .pool import BlockPool


class StockEvents:
    """Emits the same events as vLLM."""

    #: Whether the pool allocates a block next after a caller has dropped the block's cached content.
    reuses_evicted_first = False

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool

    def _emit(self, event: Any) -> None:
        # The list is read from the pool each time, because vLLM may replace it.
        self.pool.kv_event_queue.append(event)

    def _extra_keys(
        self, request: Any, blocks: Sequence[tuple[int, int]], item: int
    ) -> tuple[list[Any], int]:
        """Returns the blocks' extra keys, and the index of the first multi-modal item of later blocks."""
        lookahead = self.pool.num_hash_lookahead_tokens
        if not (
            request.mm_features or request.lora_request or request.prompt_embeds is not None or lookahead
        ):
            # Without images, adapters, embeddings and lookahead, the only extra key is the salt. It
            # belongs to the first block.
            keys: list[Any] = [None] * len(blocks)
            if request.cache_salt and blocks and blocks[0][0] == 0:
                keys[0], item = kv_cache_utils.generate_block_hash_extra_keys(request, *blocks[0], item)
            return keys, item
        keys = []
        for start, end in blocks:
            if lookahead:
                generate = kv_cache_utils.generate_lookahead_block_hash_extra_keys
                extra, item = generate(request, start, end, end + lookahead, item)
            else:
                extra, item = kv_cache_utils.generate_block_hash_extra_keys(request, start, end, item)
            keys.append(extra)
        return keys, item

    def stored_run(
        self,
        request: Any,
        hashes: list[bytes],
        parent: bytes | None,
        tokens: tuple[int, int],
        block_size: int,
        group: int,
        blocks: Sequence[tuple[int, int]],
        item: int = 0,
    ) -> int:
        """Emits one event for consecutive blocks. ``blocks`` contains their token ranges.

        Returns the index of the first multi-modal item that may concern the next block.
        """
        keys, item = self._extra_keys(request, blocks, item)
        more: dict[str, Any] = {}
        lookahead = self.pool.num_hash_lookahead_tokens
        if lookahead:
            more["lookahead_token_ids"] = [request.all_token_ids[end : end + lookahead] for _, end in blocks]
        # vLLM's variable is read only once per call, because each read accesses the environment, and takes as
        # long as the rest of this method.
        if envs.VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES:
            external: list[Any] = [int.from_bytes(block_hash[-8:], "big") for block_hash in hashes]
            external_parent: Any = None if parent is None else int.from_bytes(parent[-8:], "big")
        else:
            external, external_parent = hashes, parent
        lora = request.lora_request
        self._emit(
            BlockStored(
                block_hashes=external,
                parent_block_hash=external_parent,
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
        self,
        request: Any,
        hashes: Any,
        first: int,
        end: int,
        block_size: int,
        group: int,
        new: list[bool | None],
    ) -> None:
        """Emits the event for the blocks ``first..end`` of a request, which have just been cached.

        ``new`` has one entry per block: whether its hash is new, or ``None`` if the block was skipped.
        """
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

    def removed(self, keys: Sequence[tuple[bytes, bool]]) -> None:
        """Emits events for keys that a block lost. The flag of a key is true if no other block has it."""
        self._removed([key for key, _ in keys])

    def _removed(self, keys: list[bytes]) -> None:
        medium, emit = self.pool.medium, self.pool.kv_event_queue.append
        if envs.VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES:
            # A key is a digest, followed by four bytes of group. The key's number in events is the last
            # eight bytes of the digest.
            for key in keys:
                number = int.from_bytes(key[-12:-4], "big")
                emit(BlockRemoved([number], medium, int.from_bytes(key[-4:], "big")))
        else:
            for key in keys:
                emit(BlockRemoved([key[:-4]], medium, int.from_bytes(key[-4:], "big")))

    def stored_part(self, is_new: bool | None) -> bool:
        """Returns whether to emit an event for a cached prefix that ends inside a block.

        ``is_new`` is whether the key is new. It is ``None`` if this block already had the key.
        """
        return is_new is not None

    def cleared(self) -> None:
        """Emits the event for a reset of the cache, after which no block is cached."""
        self._emit(AllBlocksCleared())


class ExactEvents(StockEvents):
    """Emits events from which a reader can compute exactly what is cached."""

    reuses_evicted_first = True

    def stored(
        self,
        request: Any,
        hashes: Any,
        first: int,
        end: int,
        block_size: int,
        group: int,
        new: list[bool | None],
    ) -> None:
        """Like :meth:`StockEvents.stored`, with one event for each run of blocks whose hashes are new."""
        if all(new):
            super().stored(request, hashes, first, end, block_size, group, new)
            return
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

    def removed(self, keys: Sequence[tuple[bytes, bool]]) -> None:
        """Like :meth:`StockEvents.removed`, but emits events only for keys that no block has any more."""
        self._removed([key for key, is_last in keys if is_last])

    def stored_part(self, is_new: bool | None) -> bool:
        """Like :meth:`StockEvents.stored_part`, but returns True only for a new key."""
        return is_new is True
