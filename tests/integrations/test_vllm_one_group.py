"""Tests ``VllmGroups`` with a single group of full attention: lookups that reuse the result of an
earlier lookup, and unusual calls.

``test_vllm_groups`` compares ordinary calls with vLLM's managers. A refused call must change nothing.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from kvpool import _core, errors
from tests.integrations.fake_vllm import Request, RequestStatus

BLOCK = 2
GROUP = 3
WAITING = [int(RequestStatus.WAITING), int(RequestStatus.PREEMPTED)]


def digest(tokens: list[int]) -> bytes:
    return hashlib.sha256(repr(tokens).encode()).digest()


def hashes_of(tokens: list[int]) -> list[bytes]:
    return [digest(tokens[:end]) for end in range(BLOCK, len(tokens) + 1, BLOCK)]


def request_of(name: str, tokens: list[int], **more: Any) -> Request:
    return Request(name, list(tokens), hashes_of(tokens), **more)


class Result:
    """Stands in for vLLM's ``KVCacheBlocks``."""

    def __init__(self, blocks: tuple[Any, ...]) -> None:
        self.blocks = blocks

    @property
    def ids(self) -> list[int]:
        return [block.block_id for block in self.blocks[0]]


class Calls:
    """A ``VllmGroups``, together with the state that vLLM's manager would have: pool, tables and
    counts.
    """

    #: An attribute that vLLM's manager has. kvpool does not read it for full attention.
    retention_interval = None

    def __init__(
        self,
        num_blocks: int = 8,
        *,
        caching: bool = True,
        drops: bool = False,
        max_len: int = 24,
        **more: Any,
    ) -> None:
        self.pool = _core.vllm.VllmPool(num_blocks, caching)
        self.tables: dict[Any, Any] = {}
        self.num_cached: dict[Any, int] = {}
        self.empty = Result(((),))
        self.passed_on: list[tuple[Any, ...]] = []
        group = {
            "kind": "full",
            "block_size": BLOCK,
            "reads": 0,
            "retained": 0,
            "more_slots": 0,
            "most": None,
            "group": GROUP,
            "scale": 1,
            "cached": caching,
            "counts": True,
            "tables": self.tables,
            "num_cached": self.num_cached,
            "zeroed": False,
            "manager": None,
            "ends": None,
            "alignment": BLOCK,
            "drops": drops,
            "prompt_tail": None,
            "this_step": None,
            "states": None,
        }
        self.calls = _core.vllm.VllmGroups(
            self.pool,
            [group],
            max_model_len=max_len,
            recomputed=0,
            waiting=WAITING,
            blocks_class=Result,
            empty=self.empty,
            fallback=self.fallback,
            coordinator=self,
            scheduler_block=BLOCK,
            lookup=(BLOCK, [([0], drops, 0)]),
            **{"watermark": 0, **more},
        )

    def lookup(self, hashes: Any, limit: int) -> tuple[Any, int]:
        """Makes a lookup. Returns the hit in the form in which vLLM's manager returns it, and its
        number of tokens.
        """
        blocks, tokens, more = self.calls.find_longest_cache_hit(hashes, limit)
        assert more == 0
        return Result(blocks) if tokens else self.empty, tokens

    def fallback(self, *arguments: Any) -> str:
        self.passed_on.append(arguments)
        return "vLLM's"

    def ids(self, name: str) -> list[int] | None:
        return None if name not in self.tables else [block.block_id for block in self.tables[name]]

    def state(self) -> tuple[Any, ...]:
        blocks = [
            (block.ref_cnt, block.block_hash, block.block_hash_num_tokens) for block in self.pool.blocks
        ]
        tables = {name: self.ids(name) for name in self.tables}
        return self.pool.order(), blocks, tables, dict(self.num_cached), set(self.pool.keys())


def cached(calls: Calls, name: str, tokens: list[int]) -> None:
    """Runs a request until it finishes. Afterwards its blocks are cached and free."""
    request = request_of(name, tokens)
    assert calls.calls.allocate_slots(request, len(tokens)) is not None
    assert calls.calls.free(name)


class Digests:
    """The hashes of a request. The object counts how many are read. It is not a list, because kvpool
    reads a list without calling a method.
    """

    def __init__(self, tokens: list[int]) -> None:
        self.hashes, self.reads = hashes_of(tokens), 0

    def __len__(self) -> int:
        return len(self.hashes)

    def __getitem__(self, at: int) -> bytes:
        self.reads += 1
        return self.hashes[at]


def look(calls: Calls, tokens: list[int]) -> tuple[list[int], int]:
    """Makes a lookup. Returns the ids of the hit, and how many hashes were read for it."""
    digests: Any = Digests(tokens)
    blocks, length = calls.lookup(digests, len(tokens))
    ids = [] if blocks is calls.empty else blocks.ids
    assert length == len(ids) * BLOCK
    return ids, digests.reads


#: Number of hashes that a lookup may read to check the result of an earlier lookup and to continue
#: after it.
FEW = 3


def test_a_lookup_with_the_same_prefix_continues_an_earlier_lookup() -> None:
    calls = Calls(16, max_len=40)
    cached(calls, "a", [0] * 20)
    ids, _ = look(calls, [0] * 20)
    longer = [*[0] * 20, 1, 1]
    again, reads = look(calls, longer)
    assert again == ids
    assert reads <= FEW
    table = calls.calls.allocate_slots(request_of("b", longer), 2, 20, calls.lookup(hashes_of(longer), 22)[0])
    assert calls.calls.free("b")
    again, reads = look(calls, longer)
    assert again == [*ids, *table.ids]
    assert reads <= FEW


def test_a_result_that_was_kept_is_not_the_table_of_whom_it_was_given() -> None:
    calls = Calls(8)
    cached(calls, "a", [0] * 4)
    request = request_of("b", [*[0] * 4, 1, 1])
    blocks, tokens = calls.lookup(request.block_hashes, 5)
    calls.calls.allocate_slots(request, 2, tokens, blocks)
    assert calls.ids("b") == [1, 2, 3]
    assert look(calls, [0] * 4)[0] == [1, 2]
    assert look(calls, [0] * 6)[0] == [1, 2]


def test_a_lookup_of_another_prefix_starts_over() -> None:
    calls = Calls(12)
    cached(calls, "a", [0] * 8)
    cached(calls, "b", [0, 0, 0, 0, 1, 1])
    other = look(calls, [0, 0, 0, 0, 1, 1])[0]
    assert look(calls, [0] * 8)[0] == [1, 2, 3, 4]
    assert look(calls, [0, 0, 0, 0, 1, 1])[0] == other
    # This lookup asks for fewer blocks than the stored result of the earlier lookup has, so it cannot use
    # that result.
    assert look(calls, [0] * 4)[0] == [1, 2]
    assert look(calls, [1] * 4)[0] == []
    assert look(calls, [])[0] == []


@pytest.mark.parametrize("evicted", [1, 2, 3, 4])
def test_a_kept_lookup_is_dropped_when_a_block_of_it_is_evicted(evicted: int) -> None:
    calls = Calls(12)
    cached(calls, "a", [0] * 8)
    look(calls, [0] * 8)
    calls.pool.evict(evicted, False)
    assert look(calls, [0] * 8)[0] == [1, 2, 3, 4][: evicted - 1]


def test_a_kept_lookup_is_dropped_by_allocations_resets_and_changes_by_hand() -> None:
    def forget(calls: Calls) -> None:
        calls.pool.allocate(calls.pool.num_free)

    def by_hand(calls: Calls) -> None:
        calls.pool.index_remove(digest([0, 0]) + GROUP.to_bytes(4, "big"), 1)

    for change in (forget, by_hand, lambda calls: calls.pool.index_clear(), lambda calls: calls.pool.reset()):
        calls = Calls(6)
        cached(calls, "a", [0] * 8)
        assert look(calls, [0] * 8)[0] == [1, 2, 3, 4]
        change(calls)
        assert look(calls, [0] * 8)[0] == []


def test_a_copy_that_outlives_the_first_is_found_again() -> None:
    calls = Calls(8)
    first, second = request_of("a", [0] * 4), request_of("b", [0] * 4)
    for request in (first, second):
        calls.calls.allocate_slots(request, 4)
    assert look(calls, [0] * 4)[0] == [1, 2]
    calls.pool.evict(1, False)
    assert look(calls, [0] * 4)[0] == [3, 2]


def test_the_last_block_of_a_hit_is_dropped_where_speculation_needs_it() -> None:
    calls = Calls(8, drops=True)
    cached(calls, "a", [0] * 6)
    for _ in range(2):
        assert look(calls, [0] * 6)[0] == [1, 2]
    assert look(calls, [0] * 2)[0] == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_new_tokens": 2, "num_external_computed_tokens": 2},
        {"num_new_tokens": 2, "num_encoder_tokens": 1},
        {"num_new_tokens": 0},
        {"num_new_tokens": 2, "num_external_computed_tokens": 4, "skip_zeroing_group_ids": (1,)},
    ],
    ids=["external tokens", "encoder tokens", "nothing to compute", "groups that are not zeroed"],
)
def test_a_call_out_of_the_ordinary_is_vllms_with_its_arguments_and_nothing_changed(
    arguments: dict[str, Any],
) -> None:
    calls = Calls()
    request = request_of("a", [0] * 4)
    given: dict[str, Any] = {
        "num_lookahead_tokens": 3,
        "delay_cache_blocks": True,
        "full_sequence_must_fit": True,
        **arguments,
    }
    before = calls.state()
    more: dict[str, Any] = {"reserved_blocks": 5, "has_scheduled_reqs": False}
    assert calls.calls.allocate_slots(request, **given, **more) == "vLLM's"
    (passed,) = calls.passed_on
    assert passed == (
        request,
        given["num_new_tokens"],
        0,
        None,
        3,
        given.get("num_external_computed_tokens", 0),
        True,
        given.get("num_encoder_tokens", 0),
        True,
        5,
        False,
        given.get("skip_zeroing_group_ids", ()),
    )
    assert passed[0] is request
    assert calls.state() == before


def test_hits_of_a_request_that_runs_are_vllms_to_judge() -> None:
    calls = Calls()
    cached(calls, "a", [0] * 4)
    blocks, tokens = calls.lookup(hashes_of([0] * 4), 4)
    request = request_of("b", [1] * 6)
    calls.calls.allocate_slots(request, 2)
    before = calls.state()
    assert calls.calls.allocate_slots(request, 2, tokens, blocks) == "vLLM's"
    assert calls.passed_on[0][:4] == (request, 2, 4, blocks)
    assert calls.passed_on[0][3] is blocks
    assert calls.state() == before


def test_what_an_unfit_request_is_refused_for_is_the_watermark_of_those_that_wait() -> None:
    for status, scheduled, fits in [
        (RequestStatus.WAITING, True, False),
        (RequestStatus.PREEMPTED, True, False),
        (RequestStatus.RUNNING, True, True),
        (RequestStatus.WAITING, False, True),
    ]:
        calls = Calls(5, watermark=1)
        request = request_of("a", [0] * 8, status=status)
        got = calls.calls.allocate_slots(request, 8, has_scheduled_reqs=scheduled)
        assert (got is not None) is fits


def test_a_written_count_of_free_blocks_is_what_allocations_see() -> None:
    calls = Calls(8)
    calls.pool.set_num_free(1)
    request = request_of("a", [1, 2, 3])
    before = calls.state()
    assert calls.calls.allocate_slots(request, 3) is None
    assert calls.state() == before
    assert calls.calls.allocate_slots(request, 2).ids == [1]
    assert calls.pool.num_free == 0
    calls.pool.set_num_free(6)
    request.num_computed_tokens = 2
    assert calls.calls.allocate_slots(request, 1).ids == [2]


def test_events_are_left_to_the_pool_that_listens() -> None:
    removed: list[Any] = []
    stored: list[Any] = []
    calls = Calls(3, on_removed=removed.append, on_cached=lambda *arguments: stored.append(arguments))
    request = request_of("a", [0] * 4)
    calls.calls.allocate_slots(request, 4)
    assert stored == [(request, calls.tables["a"], 0, 2, BLOCK, GROUP, None)]
    assert calls.num_cached == {"a": 2}
    key = digest([0, 0]) + GROUP.to_bytes(4, "big")
    calls.pool.insert_hash(key, 2, 2)
    calls.calls.free("a")
    calls.calls.allocate_slots(request_of("b", [1]), 1)
    assert removed == []
    calls.calls.allocate_slots(request_of("c", [1]), 1)
    assert removed == [[(key, True)]]


def test_without_caching_nothing_is_cached_and_everything_is_reused_at_once() -> None:
    calls = Calls(6, caching=False)
    request = request_of("a", [0] * 4)
    result = calls.calls.allocate_slots(request, 4)
    calls.calls.cache_blocks(request, 4)
    assert (result.ids, calls.pool.keys(), calls.num_cached) == ([1, 2], [], {})
    calls.calls.free("a")
    assert calls.pool.order() == [2, 1, 3, 4, 5]


def test_a_request_that_never_ran_is_freed_and_one_with_others_blocks_is_not() -> None:
    calls, other = Calls(), Calls()
    assert calls.calls.free("unknown")
    calls.calls.allocate_slots(request_of("a", [0] * 4), 4)
    other.calls.allocate_slots(request_of("a", [0] * 4), 4)
    calls.tables["a"].append(other.tables["a"][0])
    before = calls.state()
    assert not calls.calls.free("a")
    assert calls.state() == before


def test_a_table_that_was_freed_already_is_refused_and_kept() -> None:
    calls = Calls()
    calls.calls.allocate_slots(request_of("a", [0] * 4), 4)
    calls.pool.free(calls.tables["a"])
    before = calls.state()
    with pytest.raises(errors.InvalidBlockError, match="has no references"):
        calls.calls.free("a")
    assert calls.state() == before


def test_blocks_that_are_not_hashed_yet_are_cached_by_a_later_call() -> None:
    calls = Calls()
    request = request_of("a", [0] * 6)
    request.block_hashes = request.block_hashes[:1]
    calls.calls.allocate_slots(request, 6)
    assert calls.num_cached == {"a": 1}
    request.block_hashes = hashes_of([0] * 6)
    calls.calls.cache_blocks(request, 6)
    assert calls.num_cached == {"a": 3}
    calls.calls.cache_blocks(request, -1)
    assert calls.num_cached == {"a": 3}


@pytest.mark.parametrize("given", [{"num_new_tokens": -1}, {"num_new_tokens": 1, "reserved_blocks": -1}])
def test_negative_numbers_are_refused(given: dict[str, Any]) -> None:
    calls = Calls()
    before = calls.state()
    with pytest.raises((OverflowError, errors.KvpoolError)):
        calls.calls.allocate_slots(request_of("a", [0] * 4), **given)
    assert calls.state() == before


def test_ids_of_blocks_are_read_group_by_group() -> None:
    pool = _core.vllm.VllmPool(4, True)

    class Loose:
        block_id = 77

    groups: tuple[Any, ...] = (pool.blocks[1:3], (Loose(), pool.blocks[3]), ())
    assert _core.vllm.vllm_block_ids(groups) == ([1, 2], [77, 3], [])
    assert _core.vllm.vllm_block_ids(()) == ()
    with pytest.raises(AttributeError):
        _core.vllm.vllm_block_ids(([1],))
