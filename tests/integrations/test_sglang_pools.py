"""Tests several host pools under one SGLang: their shares of the storage, the queries and transfers of
sidecars (additional pools), and which rank writes pages that are equal in several ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvpool.errors import InvalidArgumentError
from tests.integrations.hicache_stand_ins import (
    LogicalPool,
    MhaPool,
    MlaPool,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    StatePool,
    attach,
    content,
    fill,
    indices,
    key,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_the_room_is_shared_out_among_pools(storage: Any, tmp_path: Path) -> None:
    pool, states = MhaPool(), StatePool()
    backend = attach(storage, tmp_path, pool, {PoolName.MAMBA: states})
    rooms = {name: one.capacity_bytes for name, one in backend.stats().items()}
    assert sum(rooms.values()) <= 4 << 20
    assert rooms["kv"] == rooms["mamba"], "8 KiB of disk for a page of either"
    backend.close()
    backend = attach(storage, tmp_path, pool, {PoolName.MAMBA: states}, shares={"mamba": 0.25})
    rooms = {name: one.capacity_bytes for name, one in backend.stats().items()}
    assert rooms["kv"] == 3 * rooms["mamba"]
    backend.close()
    with pytest.raises(InvalidArgumentError, match="nothing for the host pool 'kv'"):
        attach(storage, tmp_path, pool, {PoolName.MAMBA: states}, shares={"mamba": 1})


def test_a_pool_that_comes_after_the_first_call_has_the_room_that_is_named(
    storage: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool, states, window = MhaPool(), StatePool(), MhaPool()
    backend = attach(storage, tmp_path, pool, shares={"mamba": 0.25})
    assert not backend.exists(key(1))
    backend.register_mem_host_pool_v2(states, PoolName.MAMBA)
    backend.register_mem_host_pool_v2(window, PoolName.SWA)
    odd = MhaPool()
    del odd.kv_buffer
    backend.register_mem_host_pool_v2(odd, PoolName.INDEXER)
    assert set(backend.stats()) == {"kv", "mamba"}
    assert "host pool swa came late" in caplog.text
    assert "the store of host pool indexer failed" in caplog.text
    for name, one, there in ((PoolName.MAMBA, states, True), (PoolName.SWA, window, False)):
        transfer = [PoolTransfer(name, indices(one, 0), [key(1)])]
        assert backend.batch_set_v2(transfer) == {name: [there]}
        assert backend.batch_get_v2(transfer) == {name: [there]}
    backend.close()


def test_sidecars_bring_the_prefix_down_to_what_all_pools_have(storage: Any, tmp_path: Path) -> None:
    pool, states, index = MhaPool(), StatePool(), MlaPool()
    backend = attach(storage, tmp_path, pool, {PoolName.MAMBA: states, PoolName.INDEXER: index})
    keys = [key(number) for number in range(6)]
    assert backend.batch_set_v1(keys[:5], indices(pool, *range(5))) == [True] * 5
    assert backend.batch_set_v2(
        [
            PoolTransfer(PoolName.INDEXER, indices(index, 0, 1, 2, 3), keys[:4]),
            PoolTransfer(PoolName.MAMBA, indices(states, 0, 1), [keys[1], keys[4]]),
        ]
    ) == {PoolName.INDEXER: [True] * 4, PoolName.MAMBA: [True] * 2}
    state = PoolTransfer(PoolName.MAMBA, keys=[keys[5]], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    every = PoolTransfer(PoolName.INDEXER)

    found = backend.batch_exists_v2(keys)
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (5, [1, 2, 3, 4, 5])
    found = backend.batch_exists_v2(keys, [state])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (5, [2, 5])
    found = backend.batch_exists_v2(keys, [state, every])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (2, [2])
    assert found.extra_pool_hit_pages == {PoolName.KV: 5, PoolName.MAMBA: 5, PoolName.INDEXER: 4}
    assert backend.batch_exists_v2(keys, [PoolTransfer(PoolName.SWA)]).kv_hit_pages == 0, (
        "a pool that is not there"
    )
    assert backend.batch_exists_v2([key(99)], [every]).restorable_prefix_pages == []

    fill(states, 5, 5)
    fill(index, 7, 5)
    loaded = backend.batch_get_v2(
        [
            PoolTransfer(PoolName.MAMBA, indices(states, 5), [keys[1]]),
            PoolTransfer(PoolName.INDEXER, indices(index, 7), [keys[3]]),
        ]
    )
    assert loaded == {PoolName.MAMBA: [True], PoolName.INDEXER: [True]}
    assert (content(states, 5), content(index, 7)) == (content(states, 0), content(index, 3))
    assert backend.batch_get_v2([PoolTransfer(PoolName.SWA, indices(pool, 0), [key(1)])]) == {
        PoolName.SWA: [False]
    }
    assert backend.batch_get_v2([PoolTransfer(PoolName.MAMBA)]) == {PoolName.MAMBA: []}
    backend.close()


def test_pools_have_the_same_keys_and_other_bytes(storage: Any, tmp_path: Path) -> None:
    """A page has the same key in every pool, but each pool stores other bytes under it, in a separate
    place.
    """
    pool, window = MhaPool(), MhaPool()
    backend = attach(storage, tmp_path, pool, {PoolName.SWA: window})
    stored = fill(pool, 0, 1), fill(window, 0, 2)
    backend.batch_set_v1([key(1)], indices(pool, 0))
    assert backend.batch_exists_v2([key(1)], [PoolTransfer(PoolName.SWA)]).kv_hit_pages == 0
    backend.batch_set_v2([PoolTransfer(PoolName.SWA, indices(window, 0), [key(1)])])
    both = [
        PoolTransfer(PoolName.KV, indices(pool, 3), [key(1)]),
        PoolTransfer(PoolName.SWA, indices(window, 3), [key(1)]),
    ]
    assert backend.batch_get_v2(both) == {PoolName.KV: [True], PoolName.SWA: [True]}
    assert (content(pool, 3), content(window, 3)) == stored
    backend.close()


def test_block_groups_say_how_far_they_go_and_do_not_decide(storage: Any, tmp_path: Path) -> None:
    pool, blocks = MhaPool(), MlaPool()
    backend = attach(storage, tmp_path, pool, {PoolName.INDEXER: blocks})
    keys = [key(number) for number in range(8)]
    backend.batch_set_v1(keys, indices(pool, *range(8)))
    ends = [keys[number] for number in (2, 3, 6)]  # the last two pages of each block of four
    backend.batch_set_v2([PoolTransfer(PoolName.INDEXER, indices(blocks, 0, 1, 2), ends)])
    asked = PoolTransfer(
        PoolName.INDEXER, keys=None, hit_policy=PoolHitPolicy.BLOCK_GROUPS, block_pages=4, group_pages=2
    )
    found = backend.batch_exists_v2(keys, [asked])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (8, list(range(1, 9)))
    assert found.extra_pool_hit_pages[PoolName.INDEXER] == 4
    asked.keys = [*ends[:2], ends[2], ends[0]]
    assert backend.batch_exists_v2(keys, [asked]).extra_pool_hit_pages[PoolName.INDEXER] == 8
    asked.block_pages = 0
    assert PoolName.INDEXER not in backend.batch_exists_v2(keys, [asked]).extra_pool_hit_pages
    backend.close()


def test_a_hit_policy_that_is_not_known_loads_nothing(storage: Any, tmp_path: Path) -> None:
    pool = MhaPool()
    backend = attach(storage, tmp_path, pool)
    backend.batch_set_v1([key(1)], indices(pool, 0))
    found = backend.batch_exists_v2([key(1)], [PoolTransfer(PoolName.KV, hit_policy="every_other_page")])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (0, [])
    backend.close()


def test_a_pool_that_only_counts_is_worth_what_its_sidecars_have(storage: Any, tmp_path: Path) -> None:
    pool, index = LogicalPool(), MlaPool()
    backend = attach(storage, tmp_path, pool, {PoolName.INDEXER: index})
    keys = [key(number) for number in range(4)]
    assert backend.batch_set_v1(keys, indices(pool, *range(4))) == [True] * 4
    assert backend.batch_exists(keys) == 0
    assert backend.batch_exists_v2(keys).kv_hit_pages == 0
    assert backend.batch_exists_v2(keys, [PoolTransfer(PoolName.INDEXER)]).kv_hit_pages == 0
    backend.batch_set_v2([PoolTransfer(PoolName.INDEXER, indices(index, 0, 1), keys[:2])])
    assert backend.batch_exists_v2(keys, [PoolTransfer(PoolName.INDEXER)]).kv_hit_pages == 2
    assert backend.batch_get_v1(keys[:2], indices(pool, 0, 1)) == [True] * 2
    assert backend.set(key(1), pool.get_dummy_flat_data_page())
    assert backend.get(key(1)) is not None
    assert set(backend.stats()) == {"indexer"}
    backend.close()


def test_only_the_writer_of_replicated_pages_writes(storage: Any, tmp_path: Path) -> None:
    """All ranks have the same latents but different recurrent states, and share one back end."""
    with pytest.raises(InvalidArgumentError, match="enable-dp-attention"):
        attach(storage, tmp_path, MlaPool(), is_mla_model=True, tp_size=2)

    pool, states = MlaPool(), StatePool()
    fill(pool, 0, 1)
    fill(states, 0, 1)

    def rank(number: int) -> Any:
        shared = {"root_dir": None, "url": f"folder://{tmp_path / 'shared'}"}
        pools = {PoolName.MAMBA: states}
        return attach(storage, tmp_path, pool, pools, is_mla_model=True, tp_size=2, tp_rank=number, **shared)

    both = [
        PoolTransfer(PoolName.KV, indices(pool, 0), [key(1)]),
        PoolTransfer(PoolName.MAMBA, indices(states, 0), [key(1)]),
    ]
    other = rank(1)
    assert other.batch_set_v1([key(1)], indices(pool, 0)) == [True], "the other one's affair"
    assert other.set(key(1), pool.get_dummy_flat_data_page())
    assert (other.stats()["kv"].writes, other.exists(key(1))) == (0, False)
    assert other.batch_set_v2(both) == {PoolName.KV: [True], PoolName.MAMBA: [True]}
    assert {name: one.writes for name, one in other.stats().items()} == {"kv": 0, "mamba": 1}
    other.close()
    writer = rank(0)
    assert writer.batch_get_v2(both)[PoolName.MAMBA] == [False], "another rank's state"
    assert writer.batch_set_v1([key(1)], indices(pool, 0)) == [True]
    writer.close()
    other = rank(1)
    assert other.batch_exists([key(1), key(2)]) == 1, "it asks"
    assert other.batch_get_v1([key(1)], indices(pool, 5)) == [True]
    assert content(pool, 5) == content(pool, 0)
    other.close()
