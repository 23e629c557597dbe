"""Property 17: after the content of a block is replaced, a lookup of the old content misses, and no
event reports the old content again.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integrations.pool_stand_ins import cached_keys, digest, key_of, make_pool, replay, request_of


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("way", ["full", "longer part", "replaced", "moved"])
def test_property_17_a_superseded_part_is_neither_found_nor_published_again(
    vllm: Any, way: str, shared: bool
) -> None:
    """In vLLM (vllm#49125), the hash of a part of a block remained after the whole block was cached.
    Its removal was reported once more later.
    """
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    request = request_of(tokens)
    pool = make_pool(8)
    seen: set[bytes] = set()
    block, other = pool.get_new_blocks(2)
    pool.cache_partial_block(request, block, 2, 1, 8)
    if shared:
        pool.cache_partial_block(request, other, 2, 1, 8)
    part = key_of(tokens[:2], 1)
    replay(pool.take_events(), seen)
    assert seen == cached_keys(pool) == {part}
    if way == "moved":
        (fresh,) = pool.get_new_blocks(1)
        pool.move_block_hashes(block, fresh)
        assert pool.take_events() == []
        pool.free_blocks([block])
        block = fresh
    if way == "longer part":
        pool.cache_partial_block(request, block, 4, 1, 8)
        replay(pool.take_events(), seen)
        assert (part in seen) == shared
    if way == "replaced":
        pool.cache_partial_block(request, block, 6, 1, 8, replace_existing_hashes=True)
    pool.cache_full_blocks(request, [block], 0, 1, 8, 1)

    whole = key_of(tokens, 1)
    for _ in range(2):
        # The first check runs after the whole block is cached. The second one runs after the block was freed,
        # hit, and freed again.
        replay(pool.take_events(), seen)
        assert seen == cached_keys(pool) == ({part, whole} if shared else {whole})
        assert pool.get_cached_block(digest((1, 2)), [1]) == ([other] if shared else None)
        assert pool.get_cached_block(digest((1, 2, 3, 4)), [1]) is None
        assert pool.get_cached_block(digest(tuple(tokens)), [1]) == [block]
        pool.free_blocks([block])
        pool.touch([block])
    # When the block is allocated again, the only event reports the removal of its whole content.
    pool.free_blocks([block])
    pool.take_events()
    pool.get_new_blocks(pool.get_num_free_blocks())
    (removed,) = pool.take_events()
    assert removed.block_hashes == [digest(tuple(tokens))]
