"""``VllmSlots``: lookups, allocations, caching and frees of requests, against a model of vLLM's calls in plain Python.

One group of full attention. After each step results, tables, cached counts, references and the order of reuse are
compared; a call that is refused has changed nothing.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvpool import _core, errors
from kvpool.integrations.vllm.settings import EVICTIONS
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
    """vLLM's ``KVCacheBlocks``."""

    def __init__(self, blocks: tuple[Any, ...]) -> None:
        self.blocks = blocks

    @property
    def ids(self) -> list[int]:
        return [block.block_id for block in self.blocks[0]]


class Calls:
    """A ``VllmSlots`` with everything that vLLM's manager would have."""

    def __init__(self, num_blocks: int = 8, *, caching: bool = True, eviction: str = "lru", **more: Any) -> None:
        self.pool = _core.vllm.VllmPool(num_blocks, caching, eviction)
        self.tables: dict[Any, Any] = {}
        self.num_cached: dict[Any, int] = {}
        self.empty = Result(((),))
        self.passed_on: list[tuple[Any, ...]] = []
        settings = {"max_model_len": 24, "drop_last": False, "recomputed": 0, "watermark": 0, **more}
        self.slots = _core.vllm.VllmSlots(
            self.pool,
            block_size=BLOCK,
            group=GROUP,
            caching=caching,
            waiting=WAITING,
            tables=self.tables,
            num_cached=self.num_cached,
            blocks_class=Result,
            empty=self.empty,
            fallback=self.fallback,
            **settings,
        )

    def fallback(self, *arguments: Any) -> str:
        self.passed_on.append(arguments)
        return "vLLM's"

    def ids(self, name: str) -> list[int] | None:
        return None if name not in self.tables else [block.block_id for block in self.tables[name]]

    def state(self) -> tuple[Any, ...]:
        blocks = [(block.ref_cnt, block.block_hash, block.block_hash_num_tokens) for block in self.pool.blocks]
        tables = {name: self.ids(name) for name in self.tables}
        return self.pool.order(), blocks, tables, dict(self.num_cached), set(self.pool.keys())


class Model:
    """vLLM's manager, coordinator and pool for one group of full attention."""

    def __init__(
        self, num_blocks: int, *, max_model_len: int, drop_last: bool, recomputed: int, watermark: int
    ) -> None:
        self.max_model_len, self.drop_last = max_model_len, drop_last
        self.recomputed, self.watermark = recomputed, watermark
        self.queue = list(range(1, num_blocks))
        self.refs = [0] * num_blocks
        self.hash: dict[int, bytes] = {}
        self.index: dict[bytes, list[int]] = {}
        self.tables: dict[str, list[int]] = {}
        self.num_cached: dict[str, int] = {}
        #: What each block holds, by number, and what that was cached behind: the block and the number of its content.
        self.contents: dict[int, int] = {}
        self.parents: dict[int, tuple[int, int]] = {}
        self.begun = 0

    def lookup(self, hashes: list[bytes], max_length: int) -> list[int]:
        found: list[int] = []
        for one in hashes[: max_length // BLOCK]:
            if one not in self.index:
                break
            found.append(self.index[one][0])
        return found[:-1] if self.drop_last and found else found

    def _to_allocate(self, name: str, num_tokens: int, hits: list[int]) -> int:
        required = -(-num_tokens // BLOCK)
        evictable = sum(self.refs[block] == 0 for block in hits)
        return max(required - len(self.tables.get(name, ())) - len(hits), 0) + evictable

    def allocate_slots(
        self,
        request: Request,
        new: int,
        hits: list[int] | None,
        lookahead: int,
        *,
        delay: bool,
        whole: bool,
        reserved: int,
        scheduled: bool,
    ) -> list[int] | None:
        name = request.request_id
        given = hits or []
        total = min(request.num_computed_tokens + len(given) * BLOCK, self.max_model_len)
        watermark = self.watermark if scheduled and request.status in WAITING else 0
        if whole:
            full = min(request.num_tokens, self.max_model_len)
            if self._to_allocate(name, full, given) + watermark > len(self.queue):
                return None
        slots = min(total + new + lookahead, self.max_model_len)
        if self._to_allocate(name, slots, given) + watermark > len(self.queue) - reserved:
            return None
        table = self.tables.setdefault(name, [])
        if hits is not None:
            for block in hits:
                if self.refs[block] == 0:
                    self.queue.remove(block)
                self.refs[block] += 1
            table += hits
            self.num_cached[name] = len(table)
        missing = max(-(-slots // BLOCK) - len(table), 0)
        taken, self.queue = self.queue[:missing], self.queue[missing:]
        for block in taken:
            self._evict(block)
            self.refs[block] = 1
        table += taken
        if not delay:
            self.cache(request, min(total + new, request.num_tokens))
        return taken

    def _evict(self, block: int) -> None:
        key = self.hash.pop(block, None)
        self.contents.pop(block, None)
        self.parents.pop(block, None)
        if key is not None:
            self.index[key].remove(block)
            if not self.index[key]:
                del self.index[key]

    def cache(self, request: Request, num_tokens: int) -> None:
        first = self.num_cached.get(request.request_id, 0)
        full = min(max(num_tokens - self.recomputed, 0) // BLOCK, len(request.block_hashes))
        if first >= full:
            return
        for at in range(first, full):
            block, key = self.tables[request.request_id][at], request.block_hashes[at]
            assert block not in self.hash
            self.hash[block] = key
            self.index.setdefault(key, []).append(block)
            self.begun += 1
            self.contents[block] = self.begun
            before = self.tables[request.request_id][at - 1] if at else 0
            if before in self.contents:
                self.parents[block] = before, self.contents[before]
        self.num_cached[request.request_id] = full

    def free(self, name: str) -> None:
        free = []
        for block in reversed(self.tables.pop(name, [])):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                free.append(block)
        first = [block for block in free if block not in self.hash]
        self.queue = first + self.queue + [block for block in free if block in self.hash]
        self.num_cached.pop(name, None)


class SlotsMachine(RuleBasedStateMachine):
    """A scheduler that does everything, in any order."""

    eviction = "lru"

    @initialize(
        num_blocks=st.integers(2, 10),
        max_model_len=st.integers(5, 20),
        drop_last=st.booleans(),
        recomputed=st.sampled_from([0, 0, 3]),
        watermark=st.integers(0, 2),
    )
    def begin(self, num_blocks: int, **more: Any) -> None:
        self.calls = Calls(num_blocks, eviction=self.eviction, **more)
        self.model = Model(num_blocks, **more)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.count = 0

    @rule(seeds=st.lists(st.integers(0, 1), min_size=1, max_size=3), length=st.integers(0, 14))
    def arrive(self, seeds: list[int], length: int) -> None:
        self.count += 1
        tokens = [*seeds, *[0] * length][: self.model.max_model_len]
        self.waiting.append(request_of(f"r{self.count}", tokens, status=RequestStatus.WAITING))

    def allocate(
        self, request: Request, new: int, hits: list[int] | None = None, blocks: Any = None, **how: Any
    ) -> bool:
        lookahead = how.pop("lookahead", 0)
        before = self.calls.state()
        got = self.calls.slots.allocate_slots(
            request,
            new,
            len(hits or []) * BLOCK,
            blocks,
            lookahead,
            delay_cache_blocks=how["delay"],
            full_sequence_must_fit=how["whole"],
            reserved_blocks=how["reserved"],
            has_scheduled_reqs=how["scheduled"],
        )
        if self.eviction != "lru" and got is not None:
            # The order is not vLLM's: what is taken must be free, and no part of the hit.
            taken = [] if got is self.calls.empty else got.ids
            assert set(taken) <= set(self.model.queue) - set(hits or [])
            self.model.queue = taken + [block for block in self.model.queue if block not in taken]
        expected = self.model.allocate_slots(request, new, hits, lookahead, **how)
        if expected is None:
            assert got is None
            assert self.calls.state() == before
            return False
        assert got is not None
        assert got is self.calls.empty if not expected else got.ids == expected
        return True

    @precondition(lambda self: self.waiting)
    @rule(
        nth=st.sampled_from([0, 0, 0, 1]),
        chunk=st.integers(1, 12),
        delay=st.booleans(),
        whole=st.booleans(),
        reserved=st.sampled_from([0, 0, 1, 3]),
        scheduled=st.booleans(),
        empty=st.booleans(),
        lookahead=st.integers(0, 2),
    )
    def admit(self, nth: int, chunk: int, empty: bool, **how: Any) -> None:
        """The next request, or the one behind it: its hit, and as much as a chunk has."""
        request = self.waiting[nth % len(self.waiting)]
        hits = self.model.lookup(request.block_hashes, request.num_tokens - 1)
        blocks, tokens = self.calls.slots.lookup(request.block_hashes, request.num_tokens - 1)
        assert tokens == len(hits) * BLOCK
        assert blocks is self.calls.empty if not hits else blocks.ids == hits
        # vLLM passes the empty result, or none at all.
        given = blocks if hits or empty else None
        new = min(chunk, request.num_tokens - tokens)
        if self.allocate(request, new, hits or None, given, **how):
            request.num_computed_tokens = tokens + new
            request.status = RequestStatus.RUNNING
            self.waiting.remove(request)
            self.running.append(request)

    @precondition(lambda self: self.running)
    @rule(
        nth=st.integers(0, 5),
        chunk=st.integers(1, 6),
        accepted=st.integers(0, 6),
        lookahead=st.integers(0, 3),
        reserved=st.sampled_from([0, 0, 2]),
        delay=st.sampled_from([False, False, True]),
    )
    def step(self, nth: int, chunk: int, accepted: int, lookahead: int, reserved: int, delay: bool) -> None:
        """A chunk of a prompt, or a token and drafts of which some are accepted."""
        request = self.running[nth % len(self.running)]
        left = request.num_tokens - request.num_computed_tokens
        if request.num_computed_tokens + chunk > self.model.max_model_len:
            return
        how: dict[str, Any] = {
            "delay": delay,
            "whole": False,
            "reserved": reserved,
            "scheduled": True,
            "lookahead": lookahead,
        }
        if not self.allocate(request, chunk, **how):
            return
        if left <= 0 or chunk > left:
            # The last token, and drafts behind it.
            accepted = min(accepted, chunk)
            request._all_token_ids += [0] * max(request.num_computed_tokens + accepted - request.num_tokens, 0)
            request.block_hashes = hashes_of(request._all_token_ids)
            request.num_computed_tokens = min(request.num_computed_tokens + accepted, request.num_tokens)
        else:
            request.num_computed_tokens += chunk

    @precondition(lambda self: self.running)
    @rule(nth=st.integers(0, 5))
    def commit(self, nth: int) -> None:
        request = self.running[nth % len(self.running)]
        self.calls.slots.cache_blocks(request, request.num_computed_tokens)
        self.model.cache(request, request.num_computed_tokens)

    @precondition(lambda self: self.running)
    @rule(nth=st.integers(0, 5), preempt=st.booleans())
    def end(self, nth: int, preempt: bool) -> None:
        request = self.running.pop(nth % len(self.running))
        most = [self.model.hash.get(block) for block in self.model.tables[request.request_id]]
        cached = max((at + 1 for at, key in enumerate(most) if key is not None), default=0)
        assert self.calls.slots.cached_tokens(request.request_id) == cached * BLOCK
        assert self.calls.slots.free(request.request_id)
        self.model.free(request.request_id)
        if preempt:
            request.num_computed_tokens, request.status = 0, RequestStatus.PREEMPTED
            self.waiting.insert(0, request)

    @invariant()
    def everything_agrees(self) -> None:
        calls, model = self.calls, self.model
        if self.eviction != "lru":
            shown = calls.pool.order()
            assert sorted(shown) == sorted(model.queue)
            for block, (parent, content) in model.parents.items():
                if block in shown and parent in shown and model.contents.get(parent) == content:
                    assert shown.index(block) < shown.index(parent)
            model.queue = shown
        assert calls.pool.order() == model.queue
        assert [block.ref_cnt for block in calls.pool.blocks] == model.refs
        assert {name: calls.ids(name) for name in calls.tables} == model.tables
        assert calls.num_cached == model.num_cached
        group = GROUP.to_bytes(4, "big")
        assert {key: calls.pool.copies(key) for key in calls.pool.keys()} == {  # noqa: SIM118
            key + group: copies for key, copies in model.index.items()
        }
        assert calls.passed_on == []
        calls.pool.check_invariants()


@pytest.mark.longer
def test_the_calls_do_what_vllms_do() -> None:
    run_state_machine_as_test(SlotsMachine, settings=settings(max_examples=settings().max_examples // 2))


@pytest.mark.longer
@pytest.mark.parametrize("eviction", [name for name in EVICTIONS if name != "lru"])
def test_with_any_policy_they_do_what_vllms_do_but_for_the_order(eviction: str) -> None:
    machine = type("Machine", (SlotsMachine,), {"eviction": eviction})
    run_state_machine_as_test(machine, settings=settings(max_examples=max(settings().max_examples // 10, 5)))


# Lookups that are kept.


def cached(calls: Calls, name: str, tokens: list[int]) -> None:
    """A request that came and went: its blocks are cached and free."""
    request = request_of(name, tokens)
    assert calls.slots.allocate_slots(request, len(tokens)) is not None
    assert calls.slots.free(name)


class Digests:
    """Digests of a request, which count how often one is read: not a list, which is read without asking."""

    def __init__(self, tokens: list[int]) -> None:
        self.hashes, self.reads = hashes_of(tokens), 0

    def __len__(self) -> int:
        return len(self.hashes)

    def __getitem__(self, at: int) -> bytes:
        self.reads += 1
        return self.hashes[at]


def look(calls: Calls, tokens: list[int]) -> tuple[list[int], int]:
    """The ids of a hit, and how many digests were read for it."""
    digests: Any = Digests(tokens)
    blocks, length = calls.slots.lookup(digests, len(tokens))
    ids = [] if blocks is calls.empty else blocks.ids
    assert length == len(ids) * BLOCK
    return ids, digests.reads


#: Digests that a lookup reads for what is kept, and for where it goes on.
FEW = 3


def test_a_lookup_that_is_repeated_reads_few_digests_while_nothing_is_removed() -> None:
    calls = Calls(16, max_model_len=40)
    cached(calls, "a", [0] * 20)
    ids, reads = look(calls, [0] * 20)
    assert ids == list(range(1, 11))
    assert reads >= 10
    again, reads = look(calls, [0] * 20)
    assert again == ids
    assert reads <= FEW
    # What is cached besides removes nothing.
    cached(calls, "b", [1] * 4)
    again, reads = look(calls, [0] * 20)
    assert again == ids
    assert reads <= FEW


def test_a_lookup_of_another_request_with_the_same_prefix_goes_on_from_there() -> None:
    calls = Calls(16, max_model_len=40)
    cached(calls, "a", [0] * 20)
    ids, _ = look(calls, [0] * 20)
    longer = [*[0] * 20, 1, 1]
    again, reads = look(calls, longer)
    assert again == ids
    assert reads <= FEW
    table = calls.slots.allocate_slots(request_of("b", longer), 2, 20, calls.slots.lookup(hashes_of(longer), 22)[0])
    assert calls.slots.free("b")
    again, reads = look(calls, longer)
    assert again == [*ids, *table.ids]
    assert reads <= FEW


def test_a_result_that_was_kept_is_not_the_table_of_whom_it_was_given() -> None:
    calls = Calls(8)
    cached(calls, "a", [0] * 4)
    request = request_of("b", [*[0] * 4, 1, 1])
    blocks, tokens = calls.slots.lookup(request.block_hashes, 5)
    calls.slots.allocate_slots(request, 2, tokens, blocks)
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
    # Shorter than what is kept: what is kept says nothing.
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
        calls.slots.allocate_slots(request, 4)
    assert look(calls, [0] * 4)[0] == [1, 2]
    calls.pool.evict(1, False)
    assert look(calls, [0] * 4)[0] == [3, 2]


def test_the_last_block_of_a_hit_is_dropped_where_speculation_needs_it() -> None:
    calls = Calls(8, drop_last=True)
    cached(calls, "a", [0] * 6)
    for _ in range(2):
        assert look(calls, [0] * 6)[0] == [1, 2]
    assert look(calls, [0] * 2)[0] == []


def test_a_hit_is_as_long_as_it_may_be() -> None:
    calls = Calls(8)
    cached(calls, "a", [0] * 6)
    hashes = hashes_of([0] * 6)
    for length in range(9):
        blocks, tokens = calls.slots.lookup(hashes, length)
        assert tokens == min(length // BLOCK, 3) * BLOCK
        assert tokens == 0 if blocks is calls.empty else blocks.ids == [1, 2, 3][: tokens // BLOCK]


# What is not ordinary.


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
def test_a_call_out_of_the_ordinary_is_vllms_with_its_arguments_and_nothing_changed(arguments: dict[str, Any]) -> None:
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
    assert calls.slots.allocate_slots(request, **given, **more) == "vLLM's"
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
    blocks, tokens = calls.slots.lookup(hashes_of([0] * 4), 4)
    request = request_of("b", [1] * 6)
    calls.slots.allocate_slots(request, 2)
    before = calls.state()
    assert calls.slots.allocate_slots(request, 2, tokens, blocks) == "vLLM's"
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
        got = calls.slots.allocate_slots(request, 8, has_scheduled_reqs=scheduled)
        assert (got is not None) is fits


def test_a_written_count_of_free_blocks_is_what_allocations_see() -> None:
    calls = Calls(8)
    calls.pool.set_num_free(1)
    request = request_of("a", [1, 2, 3])
    before = calls.state()
    assert calls.slots.allocate_slots(request, 3) is None
    assert calls.state() == before
    assert calls.slots.allocate_slots(request, 2).ids == [1]
    assert calls.pool.num_free == 0
    calls.pool.set_num_free(6)
    request.num_computed_tokens = 2
    assert calls.slots.allocate_slots(request, 1).ids == [2]


def test_events_are_left_to_the_pool_that_listens() -> None:
    removed: list[Any] = []
    stored: list[Any] = []
    calls = Calls(3, on_removed=removed.append, on_cached=lambda *arguments: stored.append(arguments))
    request = request_of("a", [0] * 4)
    calls.slots.allocate_slots(request, 4)
    assert stored == [(request, calls.tables["a"], 0, 2, BLOCK, GROUP)]
    assert calls.num_cached == {"a": 2}
    key = digest([0, 0]) + GROUP.to_bytes(4, "big")
    calls.pool.insert_hash(key, 2, 2)
    calls.slots.free("a")
    calls.slots.allocate_slots(request_of("b", [1]), 1)
    assert removed == []
    calls.slots.allocate_slots(request_of("c", [1]), 1)
    assert removed == [[(key, True)]]


def test_without_caching_nothing_is_cached_and_everything_is_reused_at_once() -> None:
    calls = Calls(6, caching=False)
    request = request_of("a", [0] * 4)
    result = calls.slots.allocate_slots(request, 4)
    calls.slots.cache_blocks(request, 4)
    assert (result.ids, calls.pool.keys(), calls.num_cached) == ([1, 2], [], {})
    calls.slots.free("a")
    assert calls.pool.order() == [2, 1, 3, 4, 5]


def test_a_request_that_never_ran_is_freed_and_one_with_others_blocks_is_not() -> None:
    calls, other = Calls(), Calls()
    assert calls.slots.free("unknown")
    calls.slots.allocate_slots(request_of("a", [0] * 4), 4)
    other.slots.allocate_slots(request_of("a", [0] * 4), 4)
    calls.tables["a"].append(other.tables["a"][0])
    before = calls.state()
    assert not calls.slots.free("a")
    assert calls.state() == before


def test_a_table_that_was_freed_already_is_refused_and_kept() -> None:
    calls = Calls()
    calls.slots.allocate_slots(request_of("a", [0] * 4), 4)
    calls.pool.free(calls.tables["a"])
    before = calls.state()
    with pytest.raises(errors.InvalidBlockError, match="has no references"):
        calls.slots.free("a")
    assert calls.state() == before


def test_blocks_that_are_not_hashed_yet_are_cached_by_a_later_call() -> None:
    calls = Calls()
    request = request_of("a", [0] * 6)
    request.block_hashes = request.block_hashes[:1]
    calls.slots.allocate_slots(request, 6)
    assert calls.num_cached == {"a": 1}
    request.block_hashes = hashes_of([0] * 6)
    calls.slots.cache_blocks(request, 6)
    assert calls.num_cached == {"a": 3}
    calls.slots.cache_blocks(request, -1)
    assert calls.num_cached == {"a": 3}


@pytest.mark.parametrize("given", [{"num_new_tokens": -1}, {"num_new_tokens": 1, "reserved_blocks": -1}])
def test_negative_numbers_are_refused(given: dict[str, Any]) -> None:
    calls = Calls()
    before = calls.state()
    with pytest.raises((OverflowError, errors.KvpoolError)):
        calls.slots.allocate_slots(request_of("a", [0] * 4), **given)
    assert calls.state() == before


def test_a_block_size_of_zero_is_refused() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="block_size is 0"):
        _core.vllm.VllmSlots(
            _core.vllm.VllmPool(2, True),
            block_size=0,
            max_model_len=1,
            group=0,
            caching=True,
            drop_last=False,
            recomputed=0,
            watermark=0,
            waiting=[],
            tables={},
            num_cached={},
            blocks_class=Result,
            empty=None,
            fallback=print,
        )


def test_ids_of_blocks_are_read_group_by_group() -> None:
    pool = _core.vllm.VllmPool(4, True)

    class Loose:
        block_id = 77

    groups: tuple[Any, ...] = (pool.blocks[1:3], (Loose(), pool.blocks[3]), ())
    assert _core.vllm.vllm_block_ids(groups) == ([1, 2], [77, 3], [])
    assert _core.vllm.vllm_block_ids(()) == ()
    with pytest.raises(AttributeError):
        _core.vllm.vllm_block_ids(([1],))
