"""Property 9: trimming to a window leaves what settled tokens and those in flight read; a roll-back finds it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import kvpool

#: Tokens per block: enough that a window can end at any place of one.
SIZE = 3


def check_needed(table: list[int], settled: int, tokens: int, window: int) -> None:
    """Blocks that overlap the window before the settled end, or lie behind it, are there."""
    for at in range(max(settled - window + 1, 0), tokens):
        assert table[at // SIZE], f"token {at} is needed: {settled} settled, a window of {window}"


def check_window(table: list[int], settled: int, tokens: int, window: int) -> None:
    """Of a trimmed table: what is needed is there, and blocks wholly before the window are not."""
    check_needed(table, settled, tokens, window)
    for at, block in enumerate(table):
        if (at + 1) * SIZE + window <= settled:
            assert not block, f"block {at} is kept: {settled} settled, a window of {window}"


@given(
    settled=st.integers(1, 14),
    in_flight=st.integers(0, 6),
    rolled_back=st.integers(0, 6),
    lookahead=st.integers(0, 3),
    window=st.integers(1, 9),
)
def test_property_09_a_roll_back_of_what_is_in_flight_finds_its_window(
    settled: int, in_flight: int, rolled_back: int, lookahead: int, window: int
) -> None:
    """vllm#47728: the window was trimmed up to what was scheduled; running steps read blocks of others."""
    left = settled + in_flight - min(rolled_back, in_flight)
    manager = kvpool.CacheManager(16, SIZE)
    manager.admit("a", range(settled))
    manager.commit("a", settled)
    manager.append_tokens("a", [7] * in_flight, lookahead=lookahead)  # drafts: scheduled, not computed
    manager.trim_window("a", window)
    check_window(manager.block_ids("a"), settled, settled + in_flight, window)
    # Others take all that is free, and nothing that the running step reads.
    kept = [block for block in manager.block_ids("a") if block]
    if manager.num_available:
        assert not set(kept) & set(manager.admit("b", [9] * (SIZE * manager.num_available)).block_ids)
    manager.truncate("a", left)
    manager.commit("a", left)
    check_needed(manager.block_ids("a"), left, left, window)
    manager.trim_window("a", window)
    check_window(manager.block_ids("a"), left, left, window)
    manager.check_invariants()


@given(
    window=st.integers(1, 6),
    script=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.booleans()), min_size=1, max_size=12),
)
def test_property_09_steps_of_drafts_one_after_the_other(window: int, script: list[tuple[int, int, bool]]) -> None:
    """vllm#47728 over a life: drafts, the window trimmed before or after they settle, some of them rejected."""
    manager = kvpool.CacheManager(40, SIZE)
    manager.admit("a", range(5))
    manager.commit("a", 5)
    settled = 5
    for drafts, rejected, trim_early in script:
        manager.append_tokens("a", [7] * drafts)
        if trim_early:
            manager.trim_window("a", window)
            check_window(manager.block_ids("a"), settled, settled + drafts, window)
        settled += drafts - min(rejected, drafts - 1)
        manager.truncate("a", settled)
        manager.commit("a", settled)
        manager.trim_window("a", window)
        check_window(manager.block_ids("a"), settled, settled, window)
        manager.check_invariants()
