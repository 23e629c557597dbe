"""Property 16: every index entry is the hash of the tokens that are really in its block."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import kvpool
from tests.properties.support import HASHER, B


@given(
    prompt=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    edits=st.lists(st.tuples(st.integers(0, 12), st.lists(st.integers(0, 2), max_size=5)), max_size=5),
)
def test_property_16_a_rejected_draft_leaves_the_chain_of_the_tokens_kept(
    prompt: list[int], edits: list[tuple[int, list[int]]]
) -> None:
    """vllm#49377: blocks were indexed under the hash of tokens that had been rejected."""
    cursor, tokens = HASHER.cursor(prompt), list(prompt)
    for keep, more in edits:
        kept = min(keep, len(tokens))
        cursor.truncate(kept)
        cursor.append(more)
        tokens = tokens[:kept] + more
        assert cursor.digests() == HASHER.hash_tokens(tokens)


@given(
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=9),
    rounds=st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=4), st.integers(0, 5)), max_size=6),
)
def test_property_16_what_is_indexed_is_what_was_committed(
    prompt: list[int], rounds: list[tuple[list[int], int]]
) -> None:
    """vllm#49377: for every indexed block, its hash is that of the tokens really committed to it."""
    manager = kvpool.CacheManager(30, B, event_capacity=1000)
    manager.admit("a", prompt)
    tokens, computed, stored = list(prompt), 0, dict[int, bytes]()
    for more, behind in rounds:
        manager.append_tokens("a", more)
        tokens += more
        computed = max(computed, len(tokens) - behind)
        manager.commit("a", computed)
        for event in manager.take_events()[0]:
            assert event["type"] == "stored"
            stored[event["block_id"]] = event["hash"]
        digests = HASHER.hash_tokens(tokens)
        table = manager.block_ids("a")
        # No block is matchable before every token of it is computed.
        assert stored == dict(zip(table[: computed // B], digests, strict=False))
        fork = manager.prepare([*tokens, 7])
        assert manager.probe(fork).cached_blocks == computed // B
        manager.check_invariants()
