"""Tests the events that a vLLM pool emits. The events of the setting "stock" have vLLM's defects, and
those of the setting "exact" do not.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integrations.fake_vllm import Lora
from tests.integrations.pool_stand_ins import (
    BLOCK,
    Events,
    Metrics,
    cached_keys,
    digest,
    make_pool,
    order,
    request_of,
)

pytestmark = pytest.mark.usefixtures("vllm")


def two_copies(pool: Any) -> tuple[list[Any], list[Any]]:
    """Two requests compute the same prompt at the same time and finish, so there are two copies of each
    block. Then one copy is allocated again.
    """
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


@pytest.mark.parametrize("events", ["exact", "stock"])
def test_metrics_count_a_block_that_is_evicted_while_in_use(events: Events) -> None:
    metrics = Metrics()
    pool = make_pool(4, events, metrics_collector=metrics)
    table = pool.get_new_blocks(2)
    pool.cache_full_blocks(request_of([1, 2, 3, 4]), table, 0, 2, BLOCK[0], 0)
    pool.free_blocks([table[1]])
    metrics.heard.clear()
    pool.evict_blocks({1, 2})
    assert metrics.heard == [("evicted", block) for block in (1, 2)]
    assert cached_keys(pool) == set()


@pytest.mark.parametrize("as_int", [True, False])
def test_hashes_are_published_in_the_form_of_vllms_setting(vllm: Any, as_int: bool) -> None:
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


def test_an_event_contains_the_extra_keys_of_its_blocks() -> None:
    pool = make_pool(medium="CPU")
    request = request_of(
        [1, 2, 3, 4], cache_salt="s", lora_request=Lora("name", "path"), session_id="session"
    )
    pool.cache_full_blocks(request, pool.get_new_blocks(2), 0, 2, BLOCK[0], 1)
    (event,) = pool.take_events()
    lora = ("lora", "name", "path")
    assert event.extra_keys == [(lora, ("cache_salt", "s")), (lora,)]
    assert (event.lora_id, event.lora_name, event.session_id) == (7, "name", "session")
    assert (event.group_idx, event.medium) == (1, "CPU")
    salted = request_of([1, 2, 3, 4, 5, 6], cache_salt="s")
    pool.cache_full_blocks(salted, pool.get_new_blocks(3), 0, 3, BLOCK[0], 0)
    assert pool.take_events()[0].extra_keys == [(("cache_salt", "s"),), None, None]


def test_reused_blocks_are_published_again_on_request() -> None:
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
    # If a caller replaces the pool's list of events, later events are appended to the new list.
    shared: list[Any] = []
    pool.kv_event_queue = shared
    pool.evict_blocks({table[0].block_id})
    assert len(shared) == 1
    quiet = make_pool(events=None)
    quiet.kv_event_queue.append(foreign)
    assert quiet.take_events() == []


# --- Hooks ---
