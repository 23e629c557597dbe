"""Tests ``KVPOOL_VLLM_EVICTION``: which names it accepts, when it refuses a name, and which
notifications a policy gets from a pool.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
import kvpool.integrations.vllm as plugin
from kvpool.integrations.vllm import gate
from kvpool.integrations.vllm.settings import EVICTIONS, LRU, Settings
from tests.integrations.fake_vllm import LooseBlock, fake_vllm, part
from tests.integrations.pool_stand_ins import BLOCK, UNIT, ids, make_pool, order, request_of

if TYPE_CHECKING:
    from collections.abc import Iterator

POLICIES = [name for name in EVICTIONS if name != LRU]
#: The group of full attention, and a group that lookups of full attention do not read.
FULL, WINDOW = 0, 5


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("KVPOOL_VLLM", "KVPOOL_VLLM_EVENTS", "KVPOOL_VLLM_EVICTION", "KVPOOL_VLLM_SHADOW_DIR"):
        monkeypatch.delenv(name, raising=False)
    with fake_vllm() as package:
        yield package


def test_every_policy_of_kvpools_is_a_setting_but_the_one_that_needs_times() -> None:
    assert set(kvpool.policies.eviction_policies()) - set(EVICTIONS) == {"last-accessed"}
    assert len(EVICTIONS) == len(set(EVICTIONS))
    assert EVICTIONS[0] == LRU
    assert {"s3-fifo", "arc", "hazard"} <= set(POLICIES)


@pytest.mark.parametrize("level", ["pool", "manager"])
@pytest.mark.parametrize("name", EVICTIONS)
def test_a_name_is_taken_at_any_level_that_decides(level: str, name: str) -> None:
    found = Settings.from_environment({"KVPOOL_VLLM": level, "KVPOOL_VLLM_EVICTION": f" {name.upper()} "})
    assert (found.level, found.eviction) == (level, name)


@pytest.mark.parametrize("name", ["last-accessed", "mru", "s3_fifo"])
def test_any_other_name_is_refused_with_all_there_are(name: str) -> None:
    with pytest.raises(
        ValueError, match=f"KVPOOL_VLLM_EVICTION is '{name}': must be one of lru, s3-fifo, "
    ) as refused:
        Settings.from_environment({"KVPOOL_VLLM_EVICTION": name})
    assert all(known in str(refused.value) for known in EVICTIONS)


@pytest.mark.parametrize(("name", "instead"), [("lfu", "s3-fifo"), (" FIFO", "lru"), ("2q", "s3-fifo")])
def test_a_removed_policy_is_refused_with_the_policy_to_use_instead(name: str, instead: str) -> None:
    with pytest.raises(
        ValueError, match=f"; kvpool no longer has {name.strip().lower()}, use {instead}$"
    ) as refused:
        Settings.from_environment({"KVPOOL_VLLM_EVICTION": name})
    assert all(known in str(refused.value) for known in EVICTIONS)


@pytest.mark.parametrize("name", POLICIES)
def test_the_shadow_takes_vllms_order_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, vllm: Any, name: str
) -> None:
    monkeypatch.setattr(plugin, "_registered", False)
    monkeypatch.setattr(gate, "check", lambda level: pytest.fail(f"{level} is not even looked at"))
    monkeypatch.setenv("KVPOOL_VLLM", "shadow")
    monkeypatch.setenv("KVPOOL_VLLM_EVICTION", name)
    before = vllm.v1.core.kv_cache_manager.KVCacheManager
    with caplog.at_level(logging.INFO, plugin.LOGGER_NAME):
        plugin.register()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert f"KVPOOL_VLLM_EVICTION is '{name}' with KVPOOL_VLLM=shadow: must be lru" in record.getMessage()
    assert vllm.v1.core.kv_cache_manager.KVCacheManager is before
    assert Settings.from_environment({"KVPOOL_VLLM": "shadow", "KVPOOL_VLLM_EVICTION": LRU}).level == "shadow"


def test_a_level_makes_its_pools_with_the_setting() -> None:
    install = part("install")
    with install.installed("pool", Settings(level="pool", eviction="arc")):
        pool = part("pool").BlockPool(4, True, UNIT)
        assert (pool.eviction, pool.core.keeps_history) == ("arc", True)
    with install.installed("pool"):
        assert not part("pool").BlockPool(4, True, UNIT).core.keeps_history


def cache(pool: Any, table: list[Any], tokens: list[int], group: int = FULL, first: int = 0) -> None:
    pool.cache_full_blocks(request_of(tokens), table, first, len(table), BLOCK[FULL], group)


def cached(pool: Any) -> list[int]:
    return [block for block in order(pool) if pool.blocks[block].block_hash is not None]


def one_by_one(pool: Any, blocks: list[Any]) -> None:
    """Frees a table one block at a time, the first block first. A policy that knows which block follows
    which still evicts the last block first.
    """
    for block in blocks:
        pool.free_blocks([block])


def look_up(pool: Any, groups: list[int], tokens: list[int]) -> Any:
    """Makes a lookup in groups of full attention, as vLLM's coordinators do."""
    spec = type("Spec", (), {"block_size": BLOCK[FULL]})()
    hashes = request_of(tokens).block_hashes
    return part("lookup").find_in_full_attention(
        None, hashes, len(tokens), groups, pool, spec, False, BLOCK[FULL]
    )


def test_uses_count_whether_a_block_is_free_or_held() -> None:
    pool = make_pool(eviction="s3-fifo")
    tables = [pool.get_new_blocks(1) for _ in range(3)]
    for nth, table in enumerate(tables):
        cache(pool, table, [nth, nth])
    pool.touch(tables[0])
    pool.touch([pool.null_block])
    one_by_one(pool, [*tables[0], *tables[0], *tables[1], *tables[2]])
    assert cached(pool) == [2, 3, 1]
    pool.touch(tables[1])
    pool.touch(tables[1])
    pool.free_blocks([*tables[1], *tables[1]])
    assert cached(pool) == [3, 1, 2]
    assert ids(pool.get_new_blocks(5)) == [4, 5, 6, 7, 3]


def test_a_lookup_of_full_attention_makes_chains_of_its_groups() -> None:
    pool = make_pool(eviction="s3-fifo")
    found, length = look_up(pool, [FULL], [1, 2, 3, 4])
    assert (found, length) == (([],), 0)
    full, window = pool.get_new_blocks(2), pool.get_new_blocks(2)
    cache(pool, full, [1, 2, 3, 4])
    cache(pool, window, [1, 2, 3, 4], WINDOW)
    one_by_one(pool, [*full, *window])
    # The pool evicts blocks in the order in which requests freed them, so it evicts a window's first block
    # first.
    assert cached(pool) == [2, 1, 3, 4]


def test_a_chain_continues_after_the_blocks_of_an_earlier_call() -> None:
    pool = make_pool(eviction="s3-fifo")
    pool.chain_groups([FULL])
    table = pool.get_new_blocks(3)
    cache(pool, table[:2], [1, 2, 3, 4])
    cache(pool, table, [1, 2, 3, 4, 5, 6], first=2)
    one_by_one(pool, table)
    assert cached(pool) == [3, 2, 1]


def test_a_chain_ends_at_a_null_block_and_at_a_foreign_block() -> None:
    pool = make_pool(eviction="s3-fifo")
    pool.chain_groups([FULL])
    (first, last), loose = pool.get_new_blocks(2), LooseBlock(1000, ref_cnt=1)
    cache(pool, [pool.null_block, first], [1, 2, 3, 4], first=1)
    cache(pool, [first, loose, last], [1, 2, 3, 4, 5, 6], first=2)
    one_by_one(pool, [first, last])
    assert cached(pool) == [1, 2]


def test_a_block_cached_beside_foreign_blocks_has_the_block_of_its_parents_key_as_parent() -> None:
    pool = make_pool(eviction="s3-fifo")
    pool.chain_groups([FULL])
    first, last = pool.get_new_blocks(2)
    loose = LooseBlock(1000, ref_cnt=1)
    cache(pool, [first], [1, 2])
    cache(pool, [first, last, loose], [1, 2, 3, 4, 5, 6], first=1)
    one_by_one(pool, [first, last])
    assert cached(pool) == [2, 1]


def test_a_partial_block_has_the_block_before_it_as_parent() -> None:
    pool = make_pool(eviction="s3-fifo")
    pool.chain_groups([1])
    first, part_of = pool.get_new_blocks(2)
    request = request_of([1, 2, 3, 4, 5, 6])
    pool.cache_full_blocks(request, [first], 0, 1, BLOCK[1], 1)
    pool.cache_partial_block(request, part_of, 6, 1, BLOCK[1])
    one_by_one(pool, [first, part_of])
    assert cached(pool) == [2, 1]


@pytest.mark.parametrize("events", ["exact", "stock"])
def test_a_free_block_that_is_evicted_by_id_is_reused_next(events: Any) -> None:
    pool = make_pool(eviction="arc", events=events)
    tables = [pool.get_new_blocks(1) for _ in range(3)]
    for nth, table in enumerate(tables):
        cache(pool, table, [nth, nth])
    one_by_one(pool, [block for table in tables for block in table])
    pool.evict_blocks({2})
    assert order(pool) == [2, 4, 5, 6, 7, 1, 3]
    pool.core.check_invariants()


@pytest.mark.parametrize("name", POLICIES)
def test_watchers_of_a_block_are_called_and_a_reset_leaves_every_block_free(name: str) -> None:
    pool = make_pool(5, eviction=name)
    table = pool.get_new_blocks(3)
    cache(pool, table[:2], [1, 2, 3, 4])
    seen: list[Any] = []
    pool.unpin_blocks(table, seen.append)
    shown = order(pool)
    assert sorted(shown) == [1, 2, 3, 4]
    taken = pool.get_new_blocks(3)
    assert ids(taken) == shown[:3]
    assert ids(seen) == [block for block in shown[:3] if block != 4]
    pool.free_blocks(taken)
    assert pool.reset_prefix_cache()
    pool.core.check_invariants()
    assert sorted(order(pool)) == [1, 2, 3, 4]
    assert cached(pool) == []
