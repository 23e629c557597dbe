"""Tests the KV-cache groups of hybrid models in Python: what calls return, and which calls are refused."""

from __future__ import annotations

import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvpool
from kvpool import GroupSpec
from kvpool.errors import InvalidArgumentError, OutOfBlocksError

WINDOW = [GroupSpec("full", 4), GroupSpec("sliding", 4, window=8)]
STATES = [GroupSpec("full", 4), GroupSpec("state", 4, keep=8)]


def manager(groups: list[GroupSpec], **settings: Any) -> kvpool.CacheManager:
    return kvpool.CacheManager(num_blocks=64, block_size=4, groups=groups, **settings)


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        (("window", 4), {}, "must be 'full', 'sliding', 'chunked', 'state' or 'cross'"),
        (("sliding", 4), {}, "needs window"),
        (("chunked", 4), {}, "needs chunk"),
        (("full", 4), {"window": 8}, "window is not for the kind"),
        (("full", 0), {}, "block_tokens"),
        (("sliding", 4), {"window": 0}, "window"),
        (("state", 4), {"keep": "some"}, "must be 'all', 'junctions', 'none', or a number of tokens"),
        (("full", 4), {"sink": 4}, "sink"),
        (("sliding", 4), {"window": 8, "sink": -1}, "sink is -1"),
        (("state", 4), {"keep": 0}, "keep"),
        (("full", 4), {"margin": -1}, "margin"),
        (("state", 4), {"partial_hits": True}, "partial_hits"),
        (("full", 4), {"partial_hits": True, "margin": 1}, "partial_hits"),
    ],
)
def test_a_group_that_cannot_be_is_refused_by_name(arguments: Any, named: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        GroupSpec(*arguments, **named)


def test_groups_that_do_not_go_with_the_manager_are_refused() -> None:
    for groups, named in [
        ([], {}),
        ([GroupSpec("full", 6)], {}),
        (WINDOW, {"verify": "tokens"}),
    ]:
        with pytest.raises(InvalidArgumentError):
            manager(groups, **named)
    with pytest.raises(TypeError):
        manager(["full"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "spec",
    [
        *WINDOW,
        *STATES,
        GroupSpec("chunked", 8, chunk=64, margin=1),
        GroupSpec("full", partial_hits=True),
        GroupSpec("sliding", 4, window=8, sink=3, keep="none"),
    ],
)
def test_a_spec_is_what_it_prints(spec: GroupSpec) -> None:
    again = eval(repr(spec), {"GroupSpec": GroupSpec})
    assert (again, hash(again)) == (spec, hash(spec))


def test_changes_of_tables_name_their_group() -> None:
    m = manager(WINDOW)
    tables = m.admit("a", range(8)).tables
    assert tables == [m.block_ids("a"), m.block_ids("a", group=1)] == [[1, 2], [3, 4]]
    assert m.append(["a"], [7]) == [(0, 2, 5, 0), (0, 2, 6, 1)]
    assert m.append("a", [1, 2, 3, 4]) == [(3, 7, 0), (3, 8, 1)]
    assert m.extend("a", 17) == [(4, 9, 0), (4, 10, 1)]
    out = array.array("i", bytes(4 * 4 * 2))
    assert m.append_ragged(["a"], range(8), [0, 8], out=out) == 2
    assert out.tolist() == [0, 0, 5, 5, 11, 12, 0, 1]
    with pytest.raises(kvpool.KvpoolError, match="shape \\(4, n\\)"):
        m.append_ragged(["a"], [1], out=array.array("i", bytes(12)))
    with pytest.raises(InvalidArgumentError, match="group"):
        m.block_ids("a", group=2)


def test_a_window_keeps_what_the_next_token_reads_and_a_hit_needs_no_more() -> None:
    m = manager(WINDOW)
    m.admit("a", range(24))
    m.commit("a", 24)
    assert m.block_ids("a", group=1)[:4] == [0, 0, 0, 0]
    m.release("a")
    again = m.admit("b", range(24))
    assert (again.cached_tokens, again.full_tokens) == (20, 20)
    assert [block == 0 for block in again.tables[1]] == [True, True, True, False, False, False]


def test_an_admission_reports_a_hit_that_one_group_limits() -> None:
    m = manager(STATES)
    m.admit("a", range(24), allocate_tokens=8)
    m.commit("a", m.next_checkpoint("a") or 0)
    assert len(m.take_plan()) == 1  # the state that is kept
    m.extend("a", 24)
    m.commit("a", 24)
    assert len(m.take_plan()) == 1  # the state of the whole prompt
    admission = m.admit("b", range(20))
    assert (admission.cached_tokens, admission.full_tokens) == (8, 16)
    assert [fit.reach_tokens for fit in m.fit(range(20), by_group=True)] == [16, 8]
    assert m.stats().unserved_tokens == 8
    # The request has a state of its own: a copy of the state that it hit.
    assert (len(m.take_plan()), len(m.block_ids("b", group=1))) == (1, 1)


def test_a_first_chunk_ends_where_a_state_is_kept_whatever_was_hit() -> None:
    m = manager(STATES)
    for request, prompt, cached, ends in [
        ("a", range(20), 0, [8, 16, 20]),
        ("b", [*range(17), 99, 98], 16, [19]),
    ]:
        admission = m.admit(request, prompt, allocate_tokens=0)
        # The admission allocates the cached blocks and a block for the state. It allocates no block for
        # the tokens to compute.
        assert (admission.cached_tokens, [len(table) for table in admission.tables]) == (
            cached,
            [cached // 4, 1],
        )
        chunks = []
        while m.request(request).computed_tokens < len(prompt):
            m.take_plan()
            chunks.append(min(m.next_checkpoint(request) or len(prompt), len(prompt)))
            m.extend(request, chunks[-1])
            m.commit(request, chunks[-1])
        assert chunks == ends


def test_the_block_of_a_kept_state_is_out_of_reach_until_its_plan_is_taken() -> None:
    m = kvpool.CacheManager(num_blocks=5, block_size=4, groups=STATES)
    m.admit("a", range(12), allocate_tokens=8)
    m.commit("a", 8)
    assert m.stats().checkpoints == 1
    with pytest.raises(OutOfBlocksError, match="1 needed, 0 available, 1 missing; 1 more are fenced"):
        m.extend("a", 12)
    assert len(m.take_plan()) == 1
    assert m.extend("a", 12) == [(2, 4, 0)]


def test_a_fork_that_finds_no_block_for_its_state_changes_nothing() -> None:
    m = kvpool.CacheManager(num_blocks=5, block_size=4, groups=STATES)
    m.admit("a", range(12))
    before = m.diagnose.state_digest_from_scratch()
    with pytest.raises(OutOfBlocksError):
        m.fork("a", "b")
    with pytest.raises(OutOfBlocksError):
        m.fork(["a"], ["b"])
    assert ("b" in m, m.diagnose.state_digest_from_scratch()) == (False, before)


def test_an_encoder_is_covered_or_nothing_changes() -> None:
    m = kvpool.CacheManager(num_blocks=8, block_size=4, groups=[GroupSpec("full", 4), GroupSpec("cross", 4)])
    m.admit("a", range(8))
    with pytest.raises(OutOfBlocksError):
        m.extend("a", 24, encoder=True)
    assert m.block_ids("a", group=1) == []
    assert m.extend("a", 9, encoder=True) == [(0, 3, 1), (1, 4, 1), (2, 5, 1)]
    m.release("a")
    assert m.num_available == 7


@settings(max_examples=settings().max_examples * 3 // 5, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.integers(1, 30), st.sampled_from(["admit", "step", "release", "fork"])
        ),
        max_size=40,
    ),
    st.sampled_from(
        [
            WINDOW,
            STATES,
            [*WINDOW, GroupSpec("state", 8)],
            [GroupSpec("chunked", 4, chunk=12)],
            [GroupSpec("full", 8, partial_hits=True), GroupSpec("state", 4)],
            [
                GroupSpec("full", 4),
                GroupSpec("sliding", 4, window=6, sink=5),
                GroupSpec("full", 2, keep="none"),
            ],
        ]
    ),
)
def test_random_calls_hold_the_invariants_and_the_journal_replays(
    calls: list[tuple[str, int, str]], groups: list[GroupSpec]
) -> None:
    m = manager(groups, host_blocks=16, journal=kvpool.journal.Journal(ring_bytes=1 << 20), digest=True)
    for request, n, call in calls:
        try:
            match call:
                case "admit":
                    m.admit(request, range(n))
                case "step":
                    m.commit(request, m.request(request).tokens)
                    m.append([request], [n])
                case "fork":
                    m.fork(request, request + request)
                case _:
                    m.release(request)
        except kvpool.KvpoolError:
            pass
        m.take_plan()
        m.diagnose.check_invariants()
        assert m.diagnose.state_digest() == m.diagnose.state_digest_from_scratch()
        assert m.diagnose.scrub(64).blocks > 0
    image = m.journal.image()
    assert image is not None
    assert kvpool.journal.replay_journal(image).difference is None


def computed(m: kvpool.CacheManager, request: str, tokens: int) -> None:
    m.extend(request, tokens)
    m.commit(request, tokens)
    m.take_plan()


def test_a_request_without_reuse_hits_nothing_and_brings_hits() -> None:
    for groups in (None, WINDOW, STATES):
        m = kvpool.CacheManager(num_blocks=64, block_size=4, groups=groups)
        m.admit("a", range(20))
        computed(m, "a", 20)
        with m.plan_step() as step:
            assert step.admit("b", range(24), reuse=False) == 0
        assert m.admit("b", range(24), reuse=False).cached_tokens == 0
        assert m.fit(range(24), reuse=False).cached_tokens == 0
        assert m.fit(range(24)).cached_tokens == 20
        each = m.fit(range(24), reuse=False, by_group=True)
        assert sum(fit.new_blocks for fit in each) == m.fit(range(24), reuse=False).new_blocks
        m.preempt("b")
        with m.plan_step() as step:
            assert step.resume("b", reuse=False) == 0
        assert m.resume("b", reuse=False).cached_tokens == 0
        m.release("b")
        # With reuse=False, this request computes all its tokens itself. Other requests can hit its blocks.
        m.admit("c", range(50, 70), reuse=False)
        computed(m, "c", 20)
        assert m.admit("d", range(50, 74)).cached_tokens == 20


def test_sinks_stay_in_the_table_and_a_hit_needs_them() -> None:
    m = manager([GroupSpec("full", 4), GroupSpec("sliding", 4, window=6, sink=5)])
    first = m.admit("a", range(24)).tables[1]
    m.commit("a", 24)
    assert m.block_ids("a", group=1) == [*first[:2], 0, 0, *first[4:]]
    m.release("a")
    hit = m.admit("b", range(24))
    assert (hit.cached_tokens, hit.tables[1][:2]) == (20, first[:2])
    m.release("b")
    m.drop_cached([first[1]])
    # For a hit of 4 tokens, the window needs only the first block.
    assert m.admit("c", range(24)).cached_tokens == 4
    m.release("c")
    m.drop_cached([first[0]])
    assert m.admit("d", range(24)).cached_tokens == 0


def test_a_group_that_keeps_nothing_limits_no_hit_and_brings_nothing() -> None:
    for draft in (GroupSpec("full", 6, keep="none"), GroupSpec("state", 6, keep="none")):
        m = manager([GroupSpec("full", 4), draft])
        m.admit("a", range(23))
        m.commit("a", 23)
        assert m.fit(range(23), by_group=True)[0].reach_tokens == 20
        hit = m.admit("b", range(23))
        assert (hit.cached_tokens, hit.full_tokens) == (20, 20)
        new = hit.tables[1][-1]
        assert new not in {0, *m.block_ids("a", group=1)}
        assert hit.tables[1][:-1] == [0] * (3 if draft.kind == "full" else 0)
        m.release("a")
        m.release("b")
        # The five cached blocks are those of the first group. No block of the other group is cached.
        assert m.stats().pool.cached_free == 5


def test_a_fit_answers_for_the_chunk_size() -> None:
    m = kvpool.CacheManager(
        num_blocks=10, block_size=4, groups=[GroupSpec("full", 4), GroupSpec("sliding", 4, window=4)]
    )
    fits = [m.fit(range(24), allocate_tokens=chunk) for chunk in (None, 24, 16, 4, 1, 0)]
    assert [(fit.fit, fit.can_ever_fit) for fit in fits] == [
        ("in_chunks", False),
        ("in_chunks", False),
        ("ok", True),
        ("ok", True),
        ("ok", True),
        ("ok", True),
    ]
    assert (m.fit(range(40)).fit, m.fit(range(40), allocate_tokens=4).can_ever_fit) == ("never", False)
    with pytest.raises(OutOfBlocksError, match="in smaller chunks") as refused:
        m.admit("a", range(24))
    assert (refused.value.can_ever_fit, refused.value.fits_in_chunks) == (False, True)
    m.admit("b", range(100, 112), allocate_tokens=12)
    assert (m.fit(range(24), allocate_tokens=8).fit, m.fit(range(24)).fit) == ("later", "in_chunks")


def test_external_tokens_get_blocks_where_a_later_token_reads_them() -> None:
    m = manager([GroupSpec("full", 4), GroupSpec("sliding", 4, window=6), GroupSpec("state", 4)])
    admission = m.admit("a", range(30), external_tokens=24)
    full, window, state = admission.tables
    assert (admission.external_tokens, 0 in full, len(state)) == (24, False, 1)
    assert [block == 0 for block in window] == [True] * 4 + [False] * 4
    assert m.external_done("a") == 6 + 2
    assert (m.request("a").state, m.request("a").computed_tokens) == ("running", 24)
    m.admit("b", range(50, 80), external_tokens=24)
    m.external_done("b", failed=[(20, 24)])
    # Neither the window nor the state was loaded. So the request is preempted, and is computed from the
    # start.
    assert (m.request("b").state, m.block_ids("b")) == ("preempted", [])
    assert m.resume("b").cached_tokens == 0
    computed(m, "b", 30)
    m.diagnose.check_invariants()


def test_a_state_has_an_entry_for_each_draft() -> None:
    m = manager(STATES)
    m.admit("a", range(6))
    assert len(m.block_ids("a", group=1)) == 1
    m.append_ragged(["a"], [7], commit=True, lookahead=3)
    entries = m.block_ids("a", group=1)
    assert len(set(entries)) == 4
    # Two drafts are accepted. So the recurrent state after the second draft becomes the request's state.
    changes = m.append_ragged(["a"], [8, 9, 10], [0, 3], commit=True, lookahead=3)
    assert m.request("a").computed_tokens == 9
    assert m.block_ids("a", group=1)[0] == entries[2]
    assert sorted(m.block_ids("a", group=1)) == sorted(entries)
    moved = [(position, block) for _, position, block, group in zip(*changes, strict=True) if group == 1]
    assert dict(moved) == {
        at: block for at, block in enumerate(m.block_ids("a", group=1)) if block != entries[at]
    }
    with pytest.raises(InvalidArgumentError, match="computed"):
        m.append_ragged(["a"], range(6), [0, 6], commit=True)
    m.fork("a", "b")
    assert len(m.block_ids("b", group=1)) == 1
