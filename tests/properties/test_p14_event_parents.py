"""Property 14: the parent of a stored block is the block before it. Its hash is either known from
earlier events, or the events show that the block was left out.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integrations.fake_vllm import BlockStored
from tests.integrations.pool_stand_ins import BLOCK, digest, make_pool, request_of


@pytest.mark.parametrize("number", range(64))
def test_property_14_a_run_in_vllms_events_has_the_parent_of_its_first_block(vllm: Any, number: int) -> None:
    """In vLLM (vllm#58119), if blocks were left out of an event, the next event had a wrong parent."""
    mask = [bool(number >> at & 1) for at in range(6)]
    tokens = list(range(12))
    pool = make_pool(20)
    table = pool.get_new_blocks(6)
    for first, end in ((0, 2), (2, 6)):
        pool.cache_full_blocks(request_of(tokens), table, first, end, BLOCK[0], 0, mask[first:end])
    stored: list[bytes] = []
    for event in pool.take_events():
        assert isinstance(event, BlockStored)
        first = len(event.token_ids) and event.token_ids[0] // BLOCK[0]
        assert event.parent_block_hash == (digest(tuple(tokens[: first * BLOCK[0]])) if first else None)
        # Either the events have stored the parent before, or the pool has left the previous block out of the
        # events. A replay of the events shows which.
        assert first == 0 or (event.parent_block_hash in stored) == mask[first - 1]
        stored += event.block_hashes
    assert stored == [digest(tuple(tokens[: (at + 1) * BLOCK[0]])) for at in range(6) if mask[at]]
