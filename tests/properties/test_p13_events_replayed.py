"""Property 13: events replayed into a set give the matchable hashes, after every call."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

import kvpool
from tests.properties.support import B, chain_of, fill, replayed


@given(st.lists(st.tuples(st.sampled_from("ccrraeb"), st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_property_13_events_tell_exactly_what_can_be_matched(script: list[tuple[str, int, int]]) -> None:
    """vllm#55092: a removal was reported while another copy was resident."""
    prompts = [[0, 0, 1, 1], [0, 0, 2, 2], [0, 0], [3, 3, 4, 4, 5, 5]]
    pool = kvpool.BlockPool(10, B, event_capacity=1000)
    held: list[list[int]] = []
    live: set[bytes] = set()
    for what, which, other in script:
        if what == "c" and pool.num_available >= len(prompts[which]) // B:
            held.append(fill(pool, prompts[which]))
        elif what == "r" and held:
            pool.release_table(held.pop(other % len(held)))
        elif what == "a" and other <= pool.num_available:
            pool.release(pool.allocate(other))
        elif what == "e":
            pool.drop_cached([which + 1, other + 5])
        elif what == "b":
            pool.bump_epoch()
        events, lost = pool.take_events()
        assert lost == 0
        replayed(live, events)
        blocks = range(1, pool.num_blocks)
        assert live == {pool.hash_of(block) for block in blocks if pool.is_computed(block)}
        for prompt in prompts:
            chain = chain_of(prompt, pool.epoch)
            matched = list(itertools.takewhile(live.__contains__, chain.digests()))
            assert pool.probe(chain).cached_blocks == len(matched)


def test_property_13_one_event_for_the_first_copy_and_one_for_the_last() -> None:
    """vllm#55092, step by step."""
    pool = kvpool.BlockPool(10, B, event_capacity=100)
    (digest,) = chain_of([1, 1]).digests()
    first, second, third = fill(pool, [1, 1]), fill(pool, [1, 1]), fill(pool, [1, 1])
    assert pool.take_events() == (
        [{"type": "stored", "hash": digest, "group": 0, "parent": None, "depth": 0, "block_id": first[0]}],
        0,
    )
    pool.drop_cached(first)
    pool.drop_cached(third)
    assert pool.take_events() == ([], 0)
    pool.drop_cached(second)
    assert pool.take_events() == ([{"type": "removed", "hash": digest, "group": 0, "block_id": second[0]}], 0)


def test_property_13_lost_events_are_counted() -> None:
    """A log that nobody drains says that it lost events, and never grows."""
    pool = kvpool.BlockPool(20, B, event_capacity=4)
    for one in range(10):
        fill(pool, [one, one])
    events, lost = pool.take_events()
    assert (len(events), lost) == (2, 8)
    assert pool.take_events() == ([], 0)
