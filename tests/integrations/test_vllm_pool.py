"""``BlockPool`` over a stand-in for vLLM: against a model that is one list and a few dictionaries, and point by point.

The order of reuse, references and lookups are compared after every step, and so is what is told outside: the sum of the
exact events is what is cached, and the stock events are, one by one, what vLLM says.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import itertools
import weakref
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from kvpool import errors
from tests.integrations.fake_vllm import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    LooseBlock,
    Lora,
    Request,
    fake_vllm,
    part,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

Events = Literal["exact", "stock"]
#: Tokens per hash, and per block of the two groups.
UNIT = 2
BLOCK = {0: 2, 1: 4}


@pytest.fixture(autouse=True)
def vllm() -> Iterator[Any]:
    with fake_vllm() as package:
        yield package


@functools.cache
def digest(tokens: tuple[int, ...]) -> bytes:
    return hashlib.sha256(repr(tokens).encode()).digest()


def request_of(tokens: list[int], **more: Any) -> Request:
    hashes = [digest(tuple(tokens[: end + UNIT])) for end in range(0, len(tokens) - UNIT + 1, UNIT)]
    return Request("r", list(tokens), hashes, **more)


def key_of(tokens: list[int], group: int = 0) -> bytes:
    return digest(tuple(tokens)) + group.to_bytes(4, "big")


def make_pool(num_blocks: int = 8, events: Events | None = "exact", *, caching: bool = True, **more: Any) -> Any:
    module = part("pool")
    pool_class = module.BlockPool
    kinds = part("events")
    pool_class.events_class = kinds.StockEvents if events == "stock" else kinds.ExactEvents
    return pool_class(num_blocks, caching, UNIT, events is not None, **more)


def ids(blocks: Any) -> list[int]:
    return [block.block_id for block in blocks]


def order(pool: Any) -> list[int]:
    return ids(pool.free_block_queue.get_all_free_blocks())


def cached_keys(pool: Any) -> set[bytes]:
    return set(pool.cached_block_hash_to_block._cache)


def replay(events: list[Any], cached: set[bytes]) -> None:
    """Adds events to what an outside view believes is cached."""
    for event in events:
        if isinstance(event, AllBlocksCleared):
            cached.clear()
            continue
        keys = [block_hash + event.group_idx.to_bytes(4, "big") for block_hash in event.block_hashes]
        if isinstance(event, BlockStored):
            assert not cached & set(keys), "stored twice"
            assert event.block_hashes, "an event about nothing"
            assert len(event.token_ids) == len(keys) * event.block_size
            assert event.extra_keys is not None
            assert len(event.extra_keys) == len(keys)
            cached.update(keys)
        else:
            assert isinstance(event, BlockRemoved)
            assert cached >= set(keys), "removed twice"
            cached.difference_update(keys)


def in_words(event: Any) -> tuple[Any, ...]:
    """An event as the model has it."""
    if isinstance(event, BlockStored):
        hashes, tokens = tuple(event.block_hashes), tuple(event.token_ids)
        return ("stored", event.group_idx, event.parent_block_hash, hashes, tokens, event.block_size)
    if isinstance(event, BlockRemoved):
        return ("removed", event.group_idx, tuple(event.block_hashes))
    return ("cleared",)


class Model:
    """vLLM's pool: one list for the queue, the blocks of each key in order, the keys of each block, its hash first."""

    def __init__(self, num_blocks: int, events: Events) -> None:
        self.queue = list(range(1, num_blocks))
        self.refs = [0] * num_blocks
        self.index: dict[bytes, list[int]] = {}
        self.keys: dict[int, list[bytes]] = {}
        self.tokens: dict[int, int] = {}
        self.exact = events == "exact"
        self.told: list[tuple[Any, ...]] = []

    def take_keys(self, block: int, *, tell: bool = True) -> list[bytes]:
        keys = self.keys.pop(block, [])
        self.tokens.pop(block, None)
        for key in keys:
            self.index[key].remove(block)
            if not self.index[key]:
                del self.index[key]
            if tell:
                self.told.append(("removed", int.from_bytes(key[-4:], "big"), (key[:-4],)))
        return keys

    def give_key(self, block: int, key: bytes, num_tokens: int) -> None:
        if key in self.keys.get(block, []):
            return
        self.tokens.setdefault(block, num_tokens)
        self.keys.setdefault(block, []).append(key)
        self.index.setdefault(key, []).append(block)

    def allocate(self, n: int) -> list[int]:
        taken, self.queue = self.queue[:n], self.queue[n:]
        for block in taken:
            self.take_keys(block)
            self.refs[block] = 1
        return taken

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            if self.refs[block] == 0:
                self.queue.remove(block)
            self.refs[block] += 1

    def drop(self, blocks: list[int]) -> list[int]:
        free = []
        for block in blocks:
            self.refs[block] -= 1
            if self.refs[block] == 0:
                free.append(block)
        return free

    def free(self, blocks: list[int]) -> None:
        free = self.drop(blocks)
        first = [block for block in free if block not in self.keys]
        self.queue = first + self.queue + [block for block in free if block in self.keys]

    def cache(self, table: list[int], request: Request, first: int, end: int, group: int, mask: list[bool]) -> None:
        size = BLOCK[group]
        tokens = request._all_token_ids
        hashes = []
        for at in range(first, end):
            if not mask[at - first]:
                continue
            if table[at] in self.keys:
                self.take_keys(table[at])
            hashes.append(digest(tuple(tokens[: (at + 1) * size])))
            self.give_key(table[at], hashes[-1] + group.to_bytes(4, "big"), (at + 1) * size)
        parent = digest(tuple(tokens[: first * size])) if first else None
        self.told.append(("stored", group, parent, tuple(hashes), tuple(tokens[first * size : end * size]), size))

    def cache_part(self, block: int, request: Request, num_tokens: int, group: int, *, replace: bool) -> None:
        tokens = request._all_token_ids
        found = digest(tuple(tokens[:num_tokens]))
        key = found + group.to_bytes(4, "big")
        known = key in self.keys.get(block, []) and not replace
        if replace or (not known and self.tokens.get(block, num_tokens) < num_tokens):
            self.take_keys(block)
        self.give_key(block, key, num_tokens)
        if not known:
            start = num_tokens - UNIT
            parent = digest(tuple(tokens[:start])) if start else None
            self.told.append(("stored", group, parent, (found,), tuple(tokens[start:num_tokens]), UNIT))

    def evict(self, block: int) -> None:
        keys = self.take_keys(block)
        if self.exact and keys and self.refs[block] == 0 and block:
            self.queue.remove(block)
            self.queue.insert(0, block)

    def reset(self) -> bool:
        if any(self.refs):
            return False
        self.index, self.keys, self.tokens = {}, {}, {}
        self.told.append(("cleared",))
        return True


class PoolMachine(RuleBasedStateMachine):
    """Requests with shared prefixes come and go, in two groups with blocks of two sizes."""

    events: Events = "exact"

    def __init__(self) -> None:
        super().__init__()
        self.pool = make_pool(8, self.events)
        self.model = Model(8, self.events)
        self.tables: list[tuple[list[int], Request, int, int]] = []  # blocks, request, group, blocks cached
        self.outside: set[bytes] = set()

    def blocks(self, block_ids: list[int]) -> list[Any]:
        return [self.pool.blocks[block] for block in block_ids]

    @rule(n=st.integers(0, 5), seeds=st.lists(st.integers(0, 1), max_size=2), group=st.sampled_from([0, 0, 1]))
    def begin(self, n: int, seeds: list[int], group: int) -> None:
        if n > len(self.model.queue):
            before = order(self.pool)
            with pytest.raises(ValueError, match=f"Cannot get {n} free blocks from the pool"):
                self.pool.get_new_blocks(n)
            assert order(self.pool) == before
            return
        taken = self.model.allocate(n)
        assert ids(self.pool.get_new_blocks(n)) == taken
        tokens = [*seeds, *[0] * (n * BLOCK[group])][: n * BLOCK[group]]
        self.tables.append((taken, request_of(tokens), group, 0))

    @precondition(lambda self: self.tables)
    @rule(nth=st.integers(0, 9), full=st.integers(0, 5), mask=st.lists(st.booleans(), min_size=5, max_size=5))
    def cache(self, nth: int, full: int, mask: list[bool]) -> None:
        nth %= len(self.tables)
        table, request, group, cached = self.tables[nth]
        full = min(full, len(table))
        chosen = mask[: max(full - cached, 0)]
        # A block may carry a part's hash, of fewer tokens than its end; one that is full already is left out.
        for at in range(cached, full):
            if self.model.tokens.get(table[at], 0) >= (at + 1) * BLOCK[group]:
                chosen[at - cached] = False
        given = None if all(chosen) else chosen
        self.pool.cache_full_blocks(request, self.blocks(table), cached, full, BLOCK[group], group, given)
        if full > cached:
            self.model.cache(table, request, cached, full, group, chosen)
            self.tables[nth] = (table, request, group, full)

    @precondition(lambda self: self.tables)
    @rule(nth=st.integers(0, 9), units=st.integers(1, 10), at=st.integers(0, 4), replace=st.booleans())
    def cache_part(self, nth: int, units: int, at: int, replace: bool) -> None:
        table, request, group, _ = self.tables[nth % len(self.tables)]
        if not table or units > len(request.block_hashes):
            return
        block = table[at % len(table)]
        handle = self.pool.blocks[block]
        key = self.pool.cache_partial_block(request, handle, units * UNIT, group, BLOCK[group], replace)
        assert key == request.block_hashes[units - 1] + group.to_bytes(4, "big")
        self.model.cache_part(block, request, units * UNIT, group, replace=replace)

    @precondition(lambda self: self.tables)
    @rule(nth=st.integers(0, 9))
    def end(self, nth: int) -> None:
        table = self.tables.pop(nth % len(self.tables))[0]
        self.pool.free_blocks(block for block in reversed(self.blocks(table)))
        self.model.free(table[::-1])

    @precondition(lambda self: self.tables)
    @rule(nth=st.integers(0, 9))
    def unpin(self, nth: int) -> None:
        table = self.tables.pop(nth % len(self.tables))[0]
        self.pool.unpin_blocks(self.blocks(table), lambda block: None)
        self.model.queue += self.model.drop(table)

    @rule(seeds=st.lists(st.integers(0, 1), max_size=2), n=st.integers(1, 4), group=st.sampled_from([0, 1]))
    def hit(self, seeds: list[int], n: int, group: int) -> None:
        tokens = [*seeds, *[0] * (n * BLOCK[group])][: n * BLOCK[group]]
        found: list[int] = []
        for end in range(BLOCK[group], len(tokens) + 1, BLOCK[group]):
            blocks = self.pool.get_cached_block(digest(tuple(tokens[:end])), [group])
            copies = self.model.index.get(key_of(tokens[:end], group), [])
            assert (None if blocks is None else ids(blocks)) == (copies[:1] or None)
            if blocks is None:
                break
            found += ids(blocks)
        self.pool.touch(self.blocks(found))
        self.model.touch(found)
        self.tables.append((found, request_of(tokens[: len(found) * BLOCK[group]]), group, len(found)))

    @rule(block_ids=st.sets(st.integers(0, 7), max_size=3))
    def evict(self, block_ids: set[int]) -> None:
        self.pool.evict_blocks(block_ids)
        for block in block_ids:
            self.model.evict(block)

    @precondition(lambda self: len(self.tables) > 1)
    @rule(src=st.integers(0, 7), dst=st.integers(0, 7))
    def move(self, src: int, dst: int) -> None:
        if dst in self.model.keys or not self.model.refs[dst]:
            return
        self.pool.move_block_hashes(self.pool.blocks[src], self.pool.blocks[dst])
        num_tokens = self.model.tokens.get(src, 0)
        for key in self.model.take_keys(src, tell=False):
            self.model.give_key(dst, key, num_tokens)

    @rule()
    def reset(self) -> None:
        assert self.pool.reset_prefix_cache() is self.model.reset()

    @invariant()
    def everything_agrees(self) -> None:
        pool, model = self.pool, self.model
        assert order(pool) == model.queue
        assert pool.get_num_free_blocks() == len(model.queue)
        assert pool.get_usage() == pytest.approx(1 - len(model.queue) / 7)
        assert [block.ref_cnt for block in pool.blocks] == model.refs
        for key, copies in model.index.items():
            assert pool.get_cached_block(key[:-4], [int.from_bytes(key[-4:], "big")]) == [pool.blocks[copies[0]]]
            assert ids(pool.blocks_of(key)) == copies
        for block in pool.blocks:
            keys = model.keys.get(block.block_id, [])
            assert block.block_hash == (keys[0] if keys else None)
            assert block.block_hash_num_tokens == model.tokens.get(block.block_id)
            assert pool.is_block_writable(block) == (model.refs[block.block_id] == 1 and not keys)
        further = {block: set(keys[1:]) for block, keys in model.keys.items() if len(keys) > 1}
        assert pool.cached_block_hashes_by_block == further
        pool.core.check_invariants()

    @invariant()
    def events_say_what_is_cached(self) -> None:
        events, told = self.pool.take_events(), self.model.told
        self.model.told = []
        if self.events == "exact":
            replay(events, self.outside)
            assert self.outside == set(self.model.index)
        else:
            assert list(map(in_words, events)) == told


@pytest.mark.parametrize("events", ["exact", "stock"])
def test_the_pool_does_what_the_model_does(events: Events) -> None:
    machine = type("Machine", (PoolMachine,), {"events": events})
    # Each of the two gets a share of the examples.
    run_state_machine_as_test(machine, settings=settings(max_examples=settings().max_examples // 3))


# What vLLM's events get wrong: said so by the stock ones, not by the exact ones.


def two_copies(pool: Any) -> tuple[list[Any], list[Any]]:
    """Two requests that computed one prompt at once, both gone; then the first copy's block is handed out."""
    request = request_of([1, 2])
    (first,), (second,) = pool.get_new_blocks(1), pool.get_new_blocks(1)
    for block in (first, second):
        pool.cache_full_blocks(request, [block], 0, 1, BLOCK[0], 0)
    pool.free_blocks([first])
    pool.free_blocks([second])
    stored = pool.take_events()
    pool.get_new_blocks(pool.get_num_free_blocks() - 1)
    assert pool.get_cached_block(digest((1, 2)), [0]) == [second]
    return stored, pool.take_events()


def test_stock_events_store_a_hash_twice_and_remove_it_while_a_copy_is_there() -> None:
    stored, removed = two_copies(make_pool(events="stock"))
    assert [event.block_hashes for event in stored] == [[digest((1, 2))]] * 2
    assert [event.block_hashes for event in removed] == [[digest((1, 2))]]


def test_exact_events_store_a_hash_once_and_remove_it_with_its_last_copy() -> None:
    pool = make_pool()
    stored, removed = two_copies(pool)
    assert [event.block_hashes for event in stored] == [[digest((1, 2))]]
    assert removed == []
    pool.get_new_blocks(1)
    assert [event.block_hashes for event in pool.take_events()] == [[digest((1, 2))]]


def masked(pool: Any, mask: list[bool]) -> list[Any]:
    table = pool.get_new_blocks(len(mask))
    pool.cache_full_blocks(request_of(list(range(8))), table, 0, len(mask), BLOCK[0], 0, mask)
    taken = pool.take_events()
    assert isinstance(taken, list)
    return taken


def test_stock_events_have_the_tokens_of_blocks_that_are_left_out() -> None:
    (event,) = masked(make_pool(events="stock"), [False, True, False, True])
    assert (len(event.block_hashes), len(event.token_ids), event.block_size) == (2, 8, 2)
    assert len(event.extra_keys) == 2
    (empty,) = masked(make_pool(events="stock"), [False, False])
    assert (empty.block_hashes, len(empty.token_ids), empty.extra_keys) == ([], 4, None)


def test_exact_events_are_one_per_run_of_stored_blocks_and_none_about_nothing() -> None:
    tokens = tuple(range(8))
    first, second = (
        masked(
            make_pool(),
            [
                False,
                True,
                True,
                False,
            ][:4],
        )[0],
        masked(make_pool(), [True, False, True]),
    )
    assert (first.block_hashes, first.token_ids) == ([digest(tokens[:4]), digest(tokens[:6])], tokens[2:6])
    assert first.parent_block_hash == digest(tokens[:2])
    assert [(event.token_ids, event.parent_block_hash) for event in second] == [
        (tokens[:2], None),
        (tokens[4:6], digest(tokens[:4])),
    ]
    assert masked(make_pool(), [False, False]) == []


@pytest.mark.parametrize(("events", "expected"), [("exact", [1, 3, 4, 2]), ("stock", [3, 4, 1, 2])])
def test_an_evicted_block_is_reused_next_with_exact_events_and_where_it_was_with_stock(
    events: Events, expected: list[int]
) -> None:
    pool = make_pool(5, events)
    table = pool.get_new_blocks(2)
    pool.cache_full_blocks(request_of([1, 2, 3, 4]), table, 0, 2, BLOCK[0], 0)
    pool.free_blocks(table)
    assert order(pool) == [3, 4, 1, 2]
    pool.evict_blocks({1})
    assert order(pool) == expected


@pytest.mark.parametrize(("events", "told"), [("exact", [2]), ("stock", [1, 2])])
def test_metrics_hear_of_an_evicted_block_in_use_with_stock_events_only(events: Events, told: list[int]) -> None:
    metrics = Metrics()
    pool = make_pool(4, events, metrics_collector=metrics)
    table = pool.get_new_blocks(2)
    pool.cache_full_blocks(request_of([1, 2, 3, 4]), table, 0, 2, BLOCK[0], 0)
    pool.free_blocks([table[1]])
    metrics.heard.clear()
    pool.evict_blocks({1, 2})
    assert metrics.heard == [("evicted", block) for block in told]
    assert cached_keys(pool) == set()


@pytest.mark.parametrize("as_int", [True, False])
def test_hashes_are_told_as_vllm_is_set_to_tell_them(vllm: Any, as_int: bool) -> None:
    vllm.envs.VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES = as_int
    pool = make_pool(3)
    table = pool.get_new_blocks(2)
    pool.cache_full_blocks(request_of([1, 2, 3, 4]), table, 0, 1, BLOCK[0], 0)
    pool.cache_full_blocks(request_of([1, 2, 3, 4]), table, 1, 2, BLOCK[0], 0)
    pool.evict_blocks({1})
    expected: list[Any] = [digest((1, 2)), digest((1, 2, 3, 4))]
    if as_int:
        expected = [int.from_bytes(one[-8:], "big") for one in expected]
    stored, following, removed = pool.take_events()
    assert (stored.block_hashes, stored.parent_block_hash) == (expected[:1], None)
    assert (following.block_hashes, following.parent_block_hash) == (expected[1:], expected[0])
    assert (removed.block_hashes, removed.group_idx) == (expected[:1], 0)


def test_an_event_says_what_its_blocks_were_hashed_with() -> None:
    pool = make_pool(medium="CPU")
    request = request_of([1, 2, 3, 4], cache_salt="s", lora_request=Lora("name", "path"), session_id="session")
    pool.cache_full_blocks(request, pool.get_new_blocks(2), 0, 2, BLOCK[0], 1)
    (event,) = pool.take_events()
    lora = ("lora", "name", "path")
    assert event.extra_keys == [(lora, ("cache_salt", "s")), (lora,)]
    assert (event.lora_id, event.lora_name, event.session_id) == (7, "name", "session")
    assert (event.group_idx, event.medium) == (1, "CPU")
    salted = request_of([1, 2, 3, 4, 5, 6], cache_salt="s")
    pool.cache_full_blocks(salted, pool.get_new_blocks(3), 0, 3, BLOCK[0], 0)
    assert pool.take_events()[0].extra_keys == [(("cache_salt", "s"),), None, None]


def test_reused_blocks_are_told_again_if_asked_for_and_change_nothing() -> None:
    pool = make_pool()
    request = request_of([1, 2, 3, 4])
    pool.cache_full_blocks(request, pool.get_new_blocks(2), 0, 2, BLOCK[0], 0)
    (first,) = pool.take_events()
    pool.emit_cached_block_events(request, 2, BLOCK[0], 0)
    pool.emit_cached_block_events(request, 0, BLOCK[0], 0)
    assert pool.take_events() == [first]
    quiet = make_pool(events=None)
    quiet.emit_cached_block_events(request, 2, BLOCK[0], 0)
    assert quiet.kv_event_queue == []


def test_the_list_of_events_is_live_until_it_is_taken() -> None:
    pool = make_pool(3)
    foreign = object()
    pool.kv_event_queue.append(foreign)
    table = pool.get_new_blocks(1)
    pool.cache_full_blocks(request_of([1, 2]), table, 0, 1, BLOCK[0], 0)
    queue = pool.kv_event_queue
    assert queue[0] is foreign
    assert pool.take_events() is queue
    assert pool.kv_event_queue == []
    # Whoever puts another list there gets what follows.
    shared: list[Any] = []
    pool.kv_event_queue = shared
    pool.evict_blocks({table[0].block_id})
    assert len(shared) == 1
    quiet = make_pool(events=None)
    quiet.kv_event_queue.append(foreign)
    assert quiet.take_events() == []


# Hooks.


class Metrics:
    """A collector that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def on_block_allocated(self, block: Any) -> None:
        self.heard.append(("allocated", block.block_id))

    def on_block_accessed(self, block: Any) -> None:
        self.heard.append(("accessed", block.block_id))

    def on_block_evicted(self, block: Any) -> None:
        self.heard.append(("evicted", block.block_id))

    def reset(self) -> None:
        self.heard.append(("reset",))


@pytest.mark.parametrize("caching", [True, False])
def test_metrics_hear_of_every_block_in_order(caching: bool) -> None:
    metrics = Metrics()
    pool = make_pool(4, None, caching=caching, metrics_collector=metrics)
    table = pool.get_new_blocks(2)
    heard = [("evicted", 1), ("allocated", 1), ("evicted", 2), ("allocated", 2)]
    assert metrics.heard == [one for one in heard if caching or one[0] == "allocated"]
    metrics.heard.clear()
    pool.touch([pool.null_block, *table])
    assert metrics.heard == [("accessed", 1), ("accessed", 2)]
    pool.free_blocks([*table, *table])
    metrics.heard.clear()
    assert pool.reset_prefix_cache()
    assert metrics.heard == [("reset",)]


def test_a_reuse_watcher_is_called_once_and_before_its_block_is_handed_out() -> None:
    pool = make_pool(4)
    seen: list[tuple[int, int, bytes | None]] = []

    def watch(block: Any) -> None:
        seen.append((block.block_id, block.ref_cnt, block.block_hash))

    table = pool.get_new_blocks(2)
    pool.cache_full_blocks(request_of([1, 2]), table, 0, 1, BLOCK[0], 0)
    pool.unpin_blocks(table, watch)
    assert order(pool) == [3, 1, 2]
    pool.get_new_blocks(1)
    assert seen == []
    # It can still be read: nobody holds it, its hash is there.
    pool.get_new_blocks(2)
    assert seen == [(1, 0, key_of([1, 2])), (2, 0, None)]
    pool.free_blocks(table)
    pool.get_new_blocks(2)
    assert len(seen) == 2


def test_a_reuse_watcher_is_not_called_by_an_allocation_that_is_refused() -> None:
    pool = make_pool(3)
    seen: list[Any] = []
    pool.unpin_blocks(pool.get_new_blocks(2), seen.append)
    with pytest.raises(ValueError, match="Cannot get 3"):
        pool.get_new_blocks(3)
    assert seen == []
    assert order(pool) == [1, 2]


def test_a_reuse_watcher_of_a_block_that_others_hold_waits_and_a_reset_calls_it_once() -> None:
    pool = make_pool(3)
    (block,) = pool.get_new_blocks(1)
    pool.touch([block])
    seen: list[Any] = []
    pool.unpin_blocks([block], seen.append)
    assert (block.ref_cnt, order(pool)) == (1, [2])
    assert not pool.reset_prefix_cache()
    pool.free_blocks([block])
    assert seen == []
    assert pool.reset_prefix_cache()
    assert pool.reset_prefix_cache()
    assert seen == [block]


# Blocks of others.


def test_blocks_of_another_pool_are_freed_there() -> None:
    pool, other = make_pool(3), make_pool(3)
    (own,), foreign = pool.get_new_blocks(1), other.get_new_blocks(2)
    assert (own.block_id, own == foreign[0], own.pool is pool, foreign[0].pool is other) == (1, False, True, True)
    pool.free_blocks(iter([foreign[1], own, foreign[0]]))
    assert (order(pool), order(other)) == ([1, 2], [2, 1])


def test_loose_blocks_keep_their_own_counts_and_are_found() -> None:
    pool = make_pool(4)
    (own,) = pool.get_new_blocks(1)
    loose = LooseBlock(1000, ref_cnt=1)
    request = request_of([1, 2, 3, 4])
    pool.cache_full_blocks(request, [own, loose], 0, 2, BLOCK[0], 0)
    (event,) = pool.take_events()
    assert event.block_hashes == request.block_hashes
    assert (loose.block_hash, loose.block_hash_num_tokens) == (key_of([1, 2, 3, 4]), 4)
    assert pool.get_cached_block(digest((1, 2, 3, 4)), [0]) == [loose]
    assert pool.get_cached_block(digest((1, 2)), [0]) == [own]
    assert pool.cached_block_hash_to_block.get_one_block(key_of([1, 2, 3, 4])) is loose
    assert len(pool.cached_block_hash_to_block) == 2
    pool.touch([own, loose])
    assert (own.ref_cnt, loose.ref_cnt) == (2, 2)
    pool.free_blocks([loose, own])
    assert (own.ref_cnt, loose.ref_cnt) == (1, 1)
    pool._maybe_evict_cached_block(loose)
    assert loose.block_hash is None
    assert pool.get_cached_block(digest((1, 2, 3, 4)), [0]) is None
    assert [event.block_hashes for event in pool.take_events()] == [[digest((1, 2, 3, 4))]]
    assert pool.loose == {}


def test_a_copy_in_a_loose_block_keeps_its_hash_from_being_removed() -> None:
    pool = make_pool(3)
    (own,) = pool.get_new_blocks(1)
    request = request_of([1, 2])
    for block in (own, LooseBlock(1000, ref_cnt=1)):
        pool.cache_full_blocks(request, [block], 0, 1, BLOCK[0], 0)
    assert len(pool.take_events()) == 1
    # The view of the index has both, the pool's own first.
    assert list(pool.cached_block_hash_to_block._cache[key_of([1, 2])]) == [1, 1000]
    pool.free_blocks([own])
    assert pool.reset_prefix_cache()
    assert pool.get_cached_block(digest((1, 2)), [0]) is None


# Parts of blocks.


def test_a_part_of_a_block_is_found_until_the_block_is_full() -> None:
    pool = make_pool(3)
    (block,) = pool.get_new_blocks(1)
    request = request_of([1, 2, 3, 4])
    assert pool.cache_partial_block(request, block, 2, 0, 4) == key_of([1, 2])
    assert (block.block_hash, block.block_hash_num_tokens) == (key_of([1, 2]), 2)
    pool.cache_partial_block(request, block, 2, 0, 4)
    (event,) = pool.take_events()
    assert (event.block_hashes, event.token_ids, event.block_size) == ([digest((1, 2))], (1, 2), 2)
    pool.cache_full_blocks(request, [block], 0, 1, 4, 0)
    assert [type(event) for event in pool.take_events()] == [BlockRemoved, BlockStored]
    assert pool.get_cached_block(digest((1, 2)), [0]) is None
    assert block.block_hash_num_tokens == 4
    # A shorter part of a full block is a further key; a part that replaces takes everything.
    pool.cache_partial_block(request, block, 2, 0, 4)
    assert pool.cached_block_hashes_by_block == {block.block_id: {key_of([1, 2])}}
    pool.cache_partial_block(request, block, 2, 0, 4, replace_existing_hashes=True)
    assert (cached_keys(pool), block.block_hash) == ({key_of([1, 2])}, key_of([1, 2]))
    assert pool.cache_partial_block(request, pool.null_block, 2, 0, 4) is None


# Bad input: refused, with nothing changed.


def snapshot(pool: Any) -> tuple[Any, ...]:
    return (
        order(pool),
        [(block.ref_cnt, block.block_hash) for block in pool.blocks],
        cached_keys(pool),
        list(pool.kv_event_queue),
        dict(pool._reuse_watchers),
    )


@pytest.fixture
def busy() -> Any:
    """Blocks 1 and 2 are held, 1 is cached; 3 is cached and free; 4 is free."""
    pool = make_pool(5)
    table = pool.get_new_blocks(3)
    pool.cache_full_blocks(request_of([1, 2]), table, 0, 1, BLOCK[0], 0)
    pool.cache_full_blocks(request_of([3, 4]), [table[2]], 0, 1, BLOCK[0], 0)
    pool.free_blocks([table[2]])
    assert order(pool) == [4, 3]
    return pool


@pytest.mark.parametrize(
    "freed", [[1, 2, 2], [3], [1, 4], [2, 1, 2]], ids=["twice", "free and cached", "free", "twice with another"]
)
def test_a_double_free_is_refused_and_frees_nothing(busy: Any, freed: list[int]) -> None:
    before = snapshot(busy)
    with pytest.raises(errors.InvalidBlockError, match="has no references"):
        busy.free_blocks([busy.blocks[block] for block in freed])
    assert snapshot(busy) == before
    busy.core.check_invariants()


@pytest.mark.parametrize("unpinned", [[1, 1], [2, 0], [1, 3]], ids=["twice", "the null block", "a free one"])
def test_an_unpin_without_a_reference_is_refused_and_watches_nothing(busy: Any, unpinned: list[int]) -> None:
    before = snapshot(busy)
    with pytest.raises(errors.InvalidBlockError, match="has no references"):
        busy.unpin_blocks([busy.blocks[block] for block in unpinned], print)
    assert snapshot(busy) == before


@pytest.mark.parametrize("unknown", [-1, 5, 2**40])
def test_an_eviction_of_an_unknown_block_is_refused_and_evicts_nothing(busy: Any, unknown: int) -> None:
    before = snapshot(busy)
    with pytest.raises(errors.InvalidBlockError, match="a connector may only report"):
        busy.evict_blocks({1, 3, unknown})
    assert snapshot(busy) == before


def test_what_is_cached_already_is_refused_before_anything_is_cached(busy: Any) -> None:
    before = snapshot(busy)
    request = request_of([5, 6, 7, 8])
    with pytest.raises(errors.InvalidBlockError, match="block 1 is cached already, for 2 tokens"):
        busy.cache_full_blocks(request_of([5, 6]), [busy.blocks[1]], 0, 1, BLOCK[0], 0)
    busy.cache_full_blocks(request, [busy.blocks[2]] * 2, 1, 1, BLOCK[0], 0)
    with pytest.raises(errors.InvalidArgumentError, match="block_mask has 2 entries for 1 blocks"):
        busy.cache_full_blocks(request, [busy.blocks[2]], 0, 1, BLOCK[0], 0, [True, True])
    with pytest.raises(errors.InvalidArgumentError, match="block_size is 3: must be a multiple of the 2 tokens"):
        busy.cache_full_blocks(request, [busy.blocks[2]], 0, 1, 3, 0)
    for num_tokens in (0, 1, 6):
        with pytest.raises(errors.InvalidArgumentError, match=f"num_tokens is {num_tokens}"):
            busy.cache_partial_block(request, busy.blocks[2], num_tokens, 0, 4)
    assert snapshot(busy) == before


@pytest.mark.parametrize("given", [-1, -(2**70)])
def test_a_negative_number_of_blocks_is_refused(busy: Any, given: int) -> None:
    before = snapshot(busy)
    with pytest.raises((OverflowError, ValueError)):
        busy.get_new_blocks(given)
    assert snapshot(busy) == before


def test_hashes_that_are_too_long_are_refused(busy: Any) -> None:
    before = snapshot(busy)
    request = Request("r", [1, 2, 3, 4], [b"x" * 32, b"x" * 36])
    with pytest.raises(errors.InvalidArgumentError, match="36 bytes are too many"):
        busy.cache_full_blocks(request, [busy.blocks[2], busy.blocks[2]], 0, 2, BLOCK[0], 0)
    with pytest.raises(errors.InvalidArgumentError):
        busy.get_cached_block(b"x" * 36, [0])
    assert snapshot(busy) == before


@pytest.mark.parametrize("value", [0, -3, 2.0, "8", 2**40])
def test_a_pool_of_no_number_of_blocks_is_refused(value: Any) -> None:
    with pytest.raises((errors.InvalidArgumentError, OverflowError, TypeError)):
        make_pool(value)


# The pool as an object, and the views that vLLM reaches through.


def test_a_pool_of_the_null_block_alone_has_nothing_to_give() -> None:
    pool = make_pool(1)
    assert (pool.get_num_free_blocks(), pool.get_usage(), order(pool)) == (0, 0, [])
    with pytest.raises(ValueError, match="Cannot get 1"):
        pool.get_new_blocks(1)
    assert pool.reset_prefix_cache()


def test_the_sixth_argument_is_the_medium_or_the_lookahead_as_the_version_has_it() -> None:
    pool_class = part("pool").BlockPool
    assert pool_class(2, True, 2, False, None, "CPU").medium == "CPU"
    newer = pool_class(2, True, 2, False, None, 3, "CPU")
    assert (newer.num_hash_lookahead_tokens, newer.medium) == (3, "CPU")
    assert pool_class(2, True, 2).medium == "GPU"


def test_a_pool_and_its_blocks_do_not_keep_each_other() -> None:
    pool = make_pool(3)
    block, gone = pool.blocks[1], weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None
    assert block.pool is None
    assert (block.block_id, block.ref_cnt) == (1, 0)


def test_a_block_is_one_object_that_cannot_be_hashed() -> None:
    pool = make_pool(3)
    (block,) = pool.get_new_blocks(1)
    assert block is pool.blocks[1]
    assert block == pool.blocks[1]
    assert block != pool.blocks[2]
    assert block != 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(block)
    with pytest.raises(AttributeError):
        block.anything = 1
    assert "block_id=1" in repr(block)


def test_the_queue_can_be_walked_by_its_links_and_moved_by_hand() -> None:
    pool = make_pool(5)
    queue = pool.free_block_queue
    walked, block = [], queue.fake_free_list_head.next_free_block
    while block is not queue.fake_free_list_tail:
        walked.append(block.block_id)
        assert block.prev_free_block.block_id == (walked[-2] if len(walked) > 1 else -1)
        block = block.next_free_block
    assert walked == order(pool) == [1, 2, 3, 4]
    assert queue.fake_free_list_tail.prev_free_block is pool.blocks[4]
    queue.remove(pool.blocks[2])
    assert pool.blocks[2].next_free_block is None
    with pytest.raises(RuntimeError, match=r"remove\(\)"):
        queue.remove(pool.blocks[2])
    queue.append(pool.blocks[2])
    assert ids(queue.iter_blocks_after(pool.blocks[3])) == [4, 2]
    assert ids(queue.iter_blocks_after(None)) == [1, 3, 4, 2]
    first = queue.popleft()
    queue.prepend_n([pool.blocks[block.block_id] for block in [*queue.popleft_n(1), first]])
    assert (order(pool), queue.num_free_blocks) == ([3, 1, 4, 2], 4)
    with pytest.raises(ValueError, match="Cannot get 5"):
        queue.popleft_n(5)
    queue.popleft_n(4)
    with pytest.raises(ValueError, match="No free blocks"):
        queue.popleft()


def test_the_map_of_hashes_reads_and_writes_like_vllms() -> None:
    pool = make_pool(4)
    table = pool.get_new_blocks(3)
    view, cache = pool.cached_block_hash_to_block, pool.cached_block_hash_to_block._cache
    one, other = key_of([1, 2]), key_of([3, 4])
    view.insert(one, table[0])
    assert (view.get_one_block(one), cache[one], len(view)) == (table[0], table[0], 1)
    view.insert(one, table[1])
    view.insert(other, table[2])
    assert cache == {one: {1: table[0], 2: table[1]}, other: table[2]}
    assert (view.contain(one, 2), view.contain(one, 3), view.pop(one, 3)) == (True, False, None)
    assert view.pop(one, 1) is table[0]
    # It was several: vLLM keeps the dictionary until it is empty.
    assert cache[one] == {2: table[1]}
    assert set(cache) == {one, other}
    del cache[other]
    with pytest.raises(KeyError):
        cache[other]
    cache.clear()
    assert (len(view), view.get_one_block(one)) == (0, None)
    assert all(block.block_hash is None for block in table)


def test_lookups_want_every_group() -> None:
    pool = make_pool(4)
    table = pool.get_new_blocks(2)
    request = request_of([1, 2])
    for group, block in enumerate(table):
        assert pool.get_cached_block(digest((1, 2)), [0, 1]) is None
        pool.cache_full_blocks(request, [block], 0, 1, BLOCK[0], group)
    assert pool.get_cached_block(digest((1, 2)), [1, 0]) == [table[1], table[0]]


def test_null_blocks_have_no_references_and_are_not_cached() -> None:
    pool = make_pool(3)
    null = pool.null_block
    pool.touch([null, null])
    pool.free_blocks([null])
    pool.cache_full_blocks(request_of([1, 2]), [null], 0, 1, BLOCK[0], 0)
    assert (null.is_null, null.ref_cnt, null.block_hash, pool.is_block_writable(null)) == (True, 0, None, False)
    assert pool.take_events() == []
    assert order(pool) == [1, 2]


def test_every_order_of_freeing_copies_leaves_the_last_findable() -> None:
    for released in itertools.permutations(range(3)):
        pool = make_pool(4)
        blocks = pool.get_new_blocks(3)
        for block in blocks:
            pool.cache_full_blocks(request_of([1, 2]), [block], 0, 1, BLOCK[0], 0)
        for at in released:
            pool.free_blocks([blocks[at]])
        for left in (2, 1):
            pool.get_new_blocks(1)
            assert len(pool.blocks_of(key_of([1, 2]))) == left
            pool.core.check_invariants()
        pool.get_new_blocks(1)
        assert cached_keys(pool) == set()
