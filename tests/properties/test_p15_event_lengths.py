"""Property 15: the lists of an event have equal lengths: hashes, pieces of the tokens, and extra keys.
Entries at the same index belong to the same block.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integrations.fake_vllm import BlockStored
from tests.integrations.pool_stand_ins import BLOCK, digest, make_pool, request_of


@pytest.mark.parametrize("salt", [None, "s"])
@pytest.mark.parametrize("group", [0, 1])
def test_property_15_vllms_events_have_lists_of_one_length(vllm: Any, group: int, salt: str | None) -> None:
    """Checks defect vllm#44451 in two groups. A mask leaves blocks out, and other requests have already
    cached some. The test runs for every combination.
    """
    size = BLOCK[group]
    tokens = list(range(5 * size))
    for number in range(1 << 8):
        mask, known = ([bool(number >> (at + shift) & 1) for at in range(4)] for shift in (0, 4))
        pool = make_pool(20)
        request = request_of(tokens, cache_salt=salt)
        (first,) = pool.get_new_blocks(1)
        pool.cache_full_blocks(request, [first], 0, 1, size, group)
        for at in range(1, 5):
            if known[at - 1]:
                pool.cache_full_blocks(request, [None] * at + pool.get_new_blocks(1), at, at + 1, size, group)
        pool.take_events()
        table = [first, *pool.get_new_blocks(4)]
        pool.cache_full_blocks(request, table, 1, 5, size, group, mask)
        told = []
        for event in pool.take_events():
            assert isinstance(event, BlockStored)
            assert len(event.block_hashes) * event.block_size == len(event.token_ids) > 0
            assert event.extra_keys is not None
            assert len(event.extra_keys) == len(event.block_hashes)
            assert event.group_idx == group
            for at, block_hash in enumerate(event.block_hashes):
                index = event.token_ids[at * size] // size
                assert (
                    list(event.token_ids[at * size : (at + 1) * size])
                    == tokens[index * size : (index + 1) * size]
                )
                assert block_hash == digest(tuple(tokens[: (index + 1) * size]))
                assert event.extra_keys[at] is None  # only the first block has the salt
                told.append(index)
        assert told == [at for at in range(1, 5) if mask[at - 1] and not known[at - 1]]
