"""Property 15: an event has as many hashes as token chunks and extra keys, each with its logical index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvpool
from tests.integrations.fake_vllm import BlockStored, fake_vllm
from tests.integrations.pool_stand_ins import BLOCK, digest, make_pool, request_of
from tests.properties.support import B

if TYPE_CHECKING:
    from collections.abc import Iterator


@given(length=st.integers(1, 13), known=st.integers(0, 6), parts=st.lists(st.integers(0, 13), max_size=4))
def test_property_15_each_stored_block_is_one_event_at_its_own_index(length: int, known: int, parts: list[int]) -> None:
    """vllm#44451: with one event per block, there is one for each that became matchable, in order, at its own depth."""
    tokens = list(range(length))
    blocks = length // B
    manager = kvpool.CacheManager(20, B, event_capacity=100)
    manager.admit("a", tokens)
    manager.admit("b", tokens)
    manager.commit("a", min(known * B, length))
    known = min(known, blocks)
    assert len(manager.take_events()[0]) == known
    told: list[Any] = []
    for computed in sorted({*(part for part in parts if part <= length), length}):
        manager.commit("b", computed)
        events, lost = manager.take_events()
        assert lost == 0
        told += events
    digests = manager.prepare(tokens).digests()
    table = manager.block_ids("b")
    assert told == [
        {
            "type": "stored",
            "hash": digests[at],
            "group": 0,
            "parent": digests[at - 1] if at else None,
            "depth": at,
            "block_id": table[at],
        }
        for at in range(known, blocks)
    ]


@pytest.fixture
def vllm() -> Iterator[Any]:
    with fake_vllm() as package:
        yield package


@pytest.mark.parametrize("salt", [None, "s"])
@pytest.mark.parametrize("group", [0, 1])
def test_property_15_vllms_events_have_lists_of_one_length(vllm: Any, group: int, salt: str | None) -> None:
    """vllm#44451: for every set of blocks that a mask leaves out or that others cached before, in two groups."""
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
                # Another request has cached this block's content already.
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
                assert list(event.token_ids[at * size : (at + 1) * size]) == tokens[index * size : (index + 1) * size]
                assert block_hash == digest(tuple(tokens[: (index + 1) * size]))
                assert event.extra_keys[at] is None  # a salt is the first block's alone
                told.append(index)
        assert told == [at for at in range(1, 5) if mask[at - 1] and not known[at - 1]]
