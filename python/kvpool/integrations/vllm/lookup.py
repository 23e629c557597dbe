"""Looks up whole prompts in one call, for kvpool's pools. For other pools, vLLM's own lookups are used.

The results are those of vLLM's ``find_longest_cache_hit`` for full attention and for sliding windows,
also in hybrid models. They contain the blocks of the longest reusable prefix, as one list per group,
and the length of the prefix in tokens.

Costs: about 50 ns per block and group. If there is no hit, a lookup in a sliding window reads one block
per window instead of all blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core import single_type_kv_cache_manager as managers
from vllm.v1.core.kv_cache_utils import resolve_block_hashes

from .pool import BlockPool

if TYPE_CHECKING:
    from collections.abc import Sequence

stock_full = managers.FullAttentionManager.__dict__["find_longest_cache_hit"].__func__
stock_window = managers.SlidingWindowManager.__dict__["find_longest_cache_hit"].__func__
stock_evictable = managers.SingleTypeKVCacheManager.__dict__["_get_num_evictable_blocks"].__func__

Found = tuple[tuple[list[Any], ...], int]


def find_in_full_attention(
    cls: Any,
    block_hashes: Any,
    max_length: int,
    kv_cache_group_ids: list[int],
    block_pool: Any,
    kv_cache_spec: Any,
    drop_eagle_block: bool,
    alignment_tokens: int,
    dcp_world_size: int = 1,
    pcp_world_size: int = 1,
) -> Found:
    """Replaces ``FullAttentionManager.find_longest_cache_hit`` of vLLM."""
    # The blocks of these groups form chains: a block cannot be used without the block before it.
    if type(block_pool) is BlockPool:
        block_pool.chain_groups(kv_cache_group_ids)
    block_size = kv_cache_spec.block_size * dcp_world_size
    inside_blocks = alignment_tokens < block_size and block_size % alignment_tokens == 0
    if type(block_pool) is not BlockPool or block_pool.loose or inside_blocks:
        return stock_full(  # type: ignore[no-any-return]
            cls,
            block_hashes,
            max_length,
            kv_cache_group_ids,
            block_pool,
            kv_cache_spec,
            drop_eagle_block,
            alignment_tokens,
            dcp_world_size,
            pcp_world_size,
        )
    hashes = resolve_block_hashes(block_hashes, block_pool.hash_block_size, block_size)
    tables = block_pool.core.find_run(hashes, max_length // block_size, kv_cache_group_ids)
    length = len(tables[0]) * block_size
    if drop_eagle_block and length > 0:
        length -= min(alignment_tokens, block_size)
    length -= length % alignment_tokens
    num_blocks = -(-length // block_size)
    if num_blocks < len(tables[0]):
        for table in tables:
            del table[num_blocks:]
    return tables, length


def find_in_sliding_window(
    cls: Any,
    block_hashes: Any,
    max_length: int,
    kv_cache_group_ids: list[int],
    block_pool: Any,
    kv_cache_spec: Any,
    drop_eagle_block: bool,
    alignment_tokens: int,
    dcp_world_size: int = 1,
    pcp_world_size: int = 1,
) -> Found:
    """Replaces ``SlidingWindowManager.find_longest_cache_hit`` of vLLM."""
    if type(block_pool) is not BlockPool or block_pool.loose or dcp_world_size != 1 or pcp_world_size != 1:
        return stock_window(  # type: ignore[no-any-return]
            cls,
            block_hashes,
            max_length,
            kv_cache_group_ids,
            block_pool,
            kv_cache_spec,
            drop_eagle_block,
            alignment_tokens,
            dcp_world_size,
            pcp_world_size,
        )
    block_size = kv_cache_spec.block_size
    hashes = resolve_block_hashes(
        block_hashes,
        block_pool.hash_block_size,
        block_size,
        supports_fine_grained_hash_lookup=cls.supports_fine_grained_hash_lookup,
        alignment_tokens=alignment_tokens,
    )
    need = cls._contiguous_blocks_for_hit(kv_cache_spec.sliding_window, block_size, drop_eagle_block)
    tables, complete = block_pool.core.find_window(
        hashes,
        max_length // block_size,
        kv_cache_group_ids,
        max(need, 1),
        block_size,
        alignment_tokens,
        int(drop_eagle_block),
    )
    length = len(tables[0])
    if not complete:
        length = _aligned(length, block_size, alignment_tokens)
    if drop_eagle_block and length:
        length = _aligned(length - 1, block_size, alignment_tokens)
    for table in tables:
        del table[length:]
    return tables, length * block_size


def _aligned(num_blocks: int, block_size: int, alignment: int) -> int:
    """Returns the largest number of blocks, at most ``num_blocks``, that satisfies the alignment.

    The number of tokens in these blocks is a multiple of ``alignment``.
    """
    while block_size != alignment and num_blocks * block_size % alignment:
        num_blocks -= 1
    return num_blocks


def count_evictable(cls: Any, blocks: Sequence[Any]) -> int:
    """Replaces ``_get_num_evictable_blocks`` of vLLM: counts the blocks without references."""
    if not blocks:
        return 0
    pool = blocks[-1].pool
    if type(pool) is BlockPool:
        try:
            return pool.core.num_evictable(blocks)
        except TypeError:  # blocks of several pools
            pass
    return stock_evictable(cls, blocks)  # type: ignore[no-any-return]
