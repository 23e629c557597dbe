"""Property 14: the parent of a stored block is the digest before it, and it is there, or seen to be absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvpool
from tests.integrations.fake_vllm import BlockStored, fake_vllm
from tests.integrations.pool_stand_ins import BLOCK, digest, make_pool, request_of
from tests.properties.support import HASHER, B

if TYPE_CHECKING:
    from collections.abc import Iterator


def links(tokens: list[int], epoch: int) -> dict[bytes, tuple[bytes | None, int]]:
    """The parent and the depth of every block of a prompt."""
    digests = HASHER.hash_tokens(tokens, epoch=epoch)
    return {one: (digests[at - 1] if at else None, at) for at, one in enumerate(digests)}


def replay(events: list[Any], live: set[bytes], known: dict[bytes, tuple[bytes | None, int]]) -> int:
    """Replays events; returns how many blocks were stored behind a parent that was absent."""
    absent = 0
    for event in events:
        if event["type"] == "stored":
            assert (event["parent"], event["depth"]) == known[event["hash"]]
            assert (event["parent"] is None) == (event["depth"] == 0)
            absent += event["parent"] is not None and event["parent"] not in live
            live.add(event["hash"])
        elif event["type"] == "removed":
            live.remove(event["hash"])
        else:
            live.clear()
    return absent


@given(
    num_blocks=st.integers(4, 10),
    script=st.lists(
        st.tuples(st.sampled_from("aaatccprxe"), st.integers(0, 3), st.lists(st.integers(0, 1), max_size=7)),
        max_size=60,
    ),
)
def test_property_14_requests_store_every_block_behind_a_parent_that_is_there(
    num_blocks: int, script: list[tuple[str, int, list[int]]]
) -> None:
    """trtllm#3543, ascend#12002: a block was announced as a root, or below a parent that nobody had heard of."""
    manager = kvpool.CacheManager(num_blocks, B, event_capacity=1000)
    tokens: dict[int, list[int]] = {}
    live: set[bytes] = set()
    known: dict[bytes, tuple[bytes | None, int]] = {}
    for what, name, more in script:
        try:
            if what == "a" and more:
                manager.admit(name, more)
                tokens[name] = list(more)
            elif what == "t" and more:
                manager.append_tokens(name, more)
                tokens[name] += more
            elif what == "c":
                info = manager.request(name)
                manager.commit(name, min(info.tokens, info.computed_tokens + len(more)))
            elif what == "p":
                manager.preempt(name)
            elif what == "r":
                manager.resume(name)
            elif what == "x":
                manager.release(name)
            elif what == "e" and not name:
                manager.bump_epoch()
        except kvpool.KvpoolError:
            continue
        for one in tokens.values():
            known |= links(one, manager.epoch)
        events, lost = manager.take_events()
        assert (replay(events, live, known), lost) == (0, 0)


def test_property_14_a_parent_that_is_gone_is_named_and_seen_to_be_absent() -> None:
    """vllm#58119: a swap leaves behind what is outside of the window; what follows is no root for that."""
    tokens = list(range(8))
    tiers = kvpool.TieredPool([5, 5], B, event_capacity=100)
    table = tiers.pools[0].allocate(4)
    tiers.pools[0].register_table(table, HASHER.cursor(tokens).chain())
    tiers.pools[0].release_table(table[:2])
    swap = tiers.begin_swap(table[2:], src=0, dst=1)
    tiers.take_plan()
    swap.complete()
    live: set[bytes] = set()
    assert replay(tiers.pools[1].take_events()[0], live, links(tokens, 0)) == 1
    assert live == set(HASHER.hash_tokens(tokens)[2:])


@pytest.fixture
def vllm() -> Iterator[Any]:
    with fake_vllm() as package:
        yield package


@pytest.mark.parametrize("number", range(64))
def test_property_14_a_run_in_vllms_events_has_the_parent_of_its_first_block(vllm: Any, number: int) -> None:
    """vllm#58119: with blocks left out, the event of those behind them named a parent that was not theirs."""
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
        # It is there, or the block before was left out: what is replayed shows which.
        assert first == 0 or (event.parent_block_hash in stored) == mask[first - 1]
        stored += event.block_hashes
    assert stored == [digest(tuple(tokens[: (at + 1) * BLOCK[0]])) for at in range(6) if mask[at]]
