"""KV-cache groups of hybrid models, as Python calls them: what a caller gets, and what is refused."""

from __future__ import annotations

import array
import re
from pathlib import Path
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
    "spec", [*WINDOW, *STATES, GroupSpec("chunked", 8, chunk=64, margin=1), GroupSpec("full", partial_hits=True)]
)
def test_a_spec_is_what_it_prints(spec: GroupSpec) -> None:
    again = eval(repr(spec), {"GroupSpec": GroupSpec})
    assert (again, hash(again)) == (spec, hash(spec))


def test_changes_of_tables_name_their_group() -> None:
    m = manager(WINDOW)
    tables = m.admit("a", range(8)).tables
    assert tables == [m.block_ids("a"), m.block_ids("a", group=1)] == [[1, 2], [3, 4]]
    assert m.append(["a"], [7]) == [(0, 2, 5, 0), (0, 2, 6, 1)]
    assert m.append_tokens("a", [1, 2, 3, 4]) == [(3, 7, 0), (3, 8, 1)]
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


def test_a_hit_that_one_group_cannot_serve_is_told_as_such() -> None:
    m = manager(STATES)
    m.admit("a", range(24), allocate_tokens=8)
    m.commit("a", m.next_checkpoint("a") or 0)
    assert len(m.take_plan()) == 1  # the state that is kept
    m.extend("a", 24)
    m.commit("a", 24)
    assert len(m.take_plan()) == 1  # that of the whole prompt
    admission = m.admit("b", range(20))
    assert (admission.cached_tokens, admission.full_tokens) == (8, 16)
    assert [fit.reach_tokens for fit in m.fit_groups(range(20))] == [16, 8]
    assert m.stats().unserved_tokens == 8
    # The request has a state of its own, a copy of the one that it hit.
    assert (len(m.take_plan()), len(m.block_ids("b", group=1))) == (1, 1)


def test_a_first_chunk_ends_where_a_state_is_kept_whatever_was_hit() -> None:
    m = manager(STATES)
    for request, prompt, cached, ends in [("a", range(20), 0, [8, 16, 20]), ("b", [*range(17), 99, 98], 16, [19])]:
        admission = m.admit(request, prompt, allocate_tokens=0)
        # What is cached, and a state: no block to be computed.
        assert (admission.cached_tokens, [len(table) for table in admission.tables]) == (cached, [cached // 4, 1])
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
    before = m.state_digest_from_scratch()
    with pytest.raises(OutOfBlocksError):
        m.fork("a", "b")
    with pytest.raises(OutOfBlocksError):
        m.fork_batch(["a"], ["b"])
    assert ("b" in m, m.state_digest_from_scratch()) == (False, before)


def test_an_encoder_is_covered_or_nothing_changes() -> None:
    m = kvpool.CacheManager(num_blocks=8, block_size=4, groups=[GroupSpec("full", 4), GroupSpec("cross", 4)])
    m.admit("a", range(8))
    with pytest.raises(OutOfBlocksError):
        m.extend_encoder("a", 24)
    assert m.block_ids("a", group=1) == []
    assert m.extend_encoder("a", 9) == [(0, 3, 1), (1, 4, 1), (2, 5, 1)]
    m.release("a")
    assert m.num_available == 7


@settings(max_examples=settings().max_examples * 3 // 5, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 30), st.sampled_from(["admit", "step", "release", "fork"])),
        max_size=40,
    ),
    st.sampled_from(
        [
            WINDOW,
            STATES,
            [*WINDOW, GroupSpec("state", 8)],
            [GroupSpec("chunked", 4, chunk=12)],
            [GroupSpec("full", 8, partial_hits=True), GroupSpec("state", 4)],
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
        m.check_invariants()
        assert m.state_digest() == m.state_digest_from_scratch()
        assert m.scrub(64).blocks > 0
    image = m.journal_image()
    assert image is not None
    assert kvpool.journal.replay_journal(image).difference is None


def test_the_examples_of_the_docs_print_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "groups.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(snippets) == 2
    exec(compile("".join(snippets), "groups.md", "exec"), {})
    tables, changes, hit, reach, inside, copies = capsys.readouterr().out.splitlines()
    assert (inside, copies) == ("688 [1, 3]", "[((0, 2), (0, 3))]")
    assert (tables, changes) == ("[19, 19, 1]", "[]")
    assert (hit, reach) == ("128 192", "[192, 192, 128]")
