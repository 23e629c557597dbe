"""Tests kvpool's store as a storage back end of SGLang, without SGLang: stored pages are found, and no
others.

tools/sglang/hicache.py tests the back end with SGLang's own classes.
"""

from __future__ import annotations

import math
import threading
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch

from kvpool.errors import InvalidArgumentError, StoreError
from kvpool.integrations.sglang import shelf
from kvpool.integrations.sglang.pages import Copied, Empty, Lent, pages_of
from kvpool.store import Arena, Store, StoreFolder
from tests.integrations.hicache_stand_ins import (
    ExtraInfo,
    LogicalPool,
    MhaPool,
    MlaPool,
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

LAYOUTS = ["page_first", "page_first_direct", "page_head", "layer_first"]
#: Layouts of latents. Latents have no heads, so "page_head" is not one of them.
FLAT = [one for one in LAYOUTS if one != "page_head"]


def damage(folder: Path, pool: str = "kv") -> int:
    """Flips a bit in the payload of every object. Returns the number of objects."""
    (slab,) = folder.rglob(f"{pool}/*.slab")
    seen = StoreFolder(slab.parent)
    places = [place for place, *_ in seen.objects(0, seen.places)]
    with slab.open("r+b") as file:
        for place in places:
            file.seek(place * seen.object_bytes + 4096 + 9)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 4]))
    return len(places)


@pytest.mark.parametrize("lend", [0, 1])
@pytest.mark.parametrize(
    ("kind", "layout"), [*((MhaPool, one) for one in LAYOUTS), *((MlaPool, one) for one in FLAT)]
)
def test_what_is_stored_is_loaded_after_a_restart(
    storage: Any, tmp_path: Path, kind: Any, layout: str, lend: int
) -> None:
    pool = kind(layout)
    backend = attach(storage, tmp_path, pool, interface_v1=lend)
    stored = [fill(pool, page, 10 + page) for page in (0, 5, 7)]
    keys = [key(1), key(2), key(3)]
    assert backend.batch_exists(keys) == 0
    assert backend.batch_set_v1(keys, indices(pool, 0, 5, 7), ExtraInfo([key(0)])) == [True] * 3
    assert backend.batch_exists([*keys, key(4)]) == 3
    assert backend.batch_exists([key(4), *keys]) == 0
    assert (backend.exists(key(1)), backend.exists(key(4))) == (True, False)
    # A second replica that runs at the same time has a separate folder. After both have ended, the next
    # engine gets the folder of the first.
    beside = attach(storage, tmp_path, kind(layout), interface_v1=lend)
    assert beside.batch_exists(keys) == 0
    backend.close()

    pool = kind(layout)
    again = attach(storage, tmp_path, pool, interface_v1=lend)
    assert again.batch_get_v1([key(3), key(9), key(1)], indices(pool, 1, 2, 6)) == [True, False, True]
    assert (content(pool, 1), content(pool, 6)) == (stored[2], stored[0])
    untouched = {0, 3, 4, 5, 7}
    assert not any(any(content(pool, page)) for page in untouched)
    again.close()
    beside.close()
    (rank,) = tmp_path.iterdir()
    assert sorted(one.name for one in rank.iterdir()) == ["kv", "replica-1"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_are_lent_where_they_are_one_or_two_pieces(layout: str) -> None:
    for kind, parts in ((MhaPool, 2), (MlaPool, 1)):
        if kind is MlaPool and layout not in FLAT:
            continue
        pool = kind(layout)
        pages = pages_of(pool, lend=True, staging_bytes=1 << 20)
        if layout == "layer_first":
            assert isinstance(pages, Copied)
            continue
        assert isinstance(pages, Lent)
        assert pages.parts == parts
        assert pages.part_bytes * parts == len(content(pool, 0))
        assert pages.arena.slots == 8 * parts
        assert isinstance(pages_of(pool, lend=False, staging_bytes=1 << 20), Copied)
    assert isinstance(pages_of(StatePool(), lend=True, staging_bytes=1 << 20), Copied)
    assert isinstance(pages_of(LogicalPool(), lend=True, staging_bytes=1 << 20), Empty)


def test_memory_with_a_wrong_description_is_not_lent() -> None:
    """Pages are copied, and their memory is not lent to the store, if their description is wrong:
    pieces in other memory, a page larger than its pieces, or pages that move.
    """
    elsewhere, partly, moving, odd = (MhaPool() for _ in range(4))
    other = torch.zeros_like(elsewhere.kv_buffer)
    shift = other.data_ptr() - elsewhere.kv_buffer.data_ptr()
    plain = elsewhere.get_page_buffer_meta
    for pool, meta in (
        (elsewhere, lambda at: ([one + shift for one in plain(at)[0]], plain(at)[1])),
        (partly, lambda at: (plain(at)[0][:1], plain(at)[1][:1])),
        (odd, lambda at: ([one + 2 for one in plain(at)[0]], plain(at)[1])),
    ):
        pool.get_page_buffer_meta = meta  # type: ignore[method-assign]
    moving.shared_allocation_domain = object()  # type: ignore[assignment]
    for pool in (elsewhere, partly, moving, odd):
        assert isinstance(pages_of(pool, lend=True, staging_bytes=1 << 20), Copied)


def test_a_pool_whose_pages_cannot_be_read_fails_the_attachment(storage: Any, tmp_path: Path) -> None:
    pool = MhaPool()
    pool.layout = "page_unified"

    def refuse(index: int, flat: bool = True) -> torch.Tensor:
        raise ValueError("Unsupported layout: page_unified")

    pool.get_data_page = refuse  # type: ignore[method-assign]
    with pytest.raises(InvalidArgumentError, match="page_unified"):
        attach(storage, tmp_path, pool)
    attach(storage, tmp_path, MhaPool()).close()  # and no store stays open


def test_tensors_are_stored_and_loaded(storage: Any, tmp_path: Path) -> None:
    """A version of SGLang without interface_v1 passes pages as flat tensors, and tensors to be filled."""
    pool = MhaPool()
    backend = attach(storage, tmp_path, pool)
    stored = [fill(pool, page, page) for page in range(3)]
    values = [pool.get_data_page(page * 4) for page in range(3)]
    assert backend.batch_set([key(0), key(1), key(2)], values)
    into = [pool.get_dummy_flat_data_page() for _ in range(3)]
    found = backend.batch_get([key(2), key(7), key(0)], into)
    assert [one is target for one, target in zip(found, into, strict=True)] == [True, False, True]
    assert found[1] is None
    assert [bytes(one.view(torch.uint8).numpy()) for one in (found[0], found[2])] == [stored[2], stored[0]]
    assert bytes(backend.get(key(1)).view(torch.uint8).numpy()) == stored[1]
    assert backend.get(key(8)) is None
    # Load the same pages by the indices of their tokens.
    assert backend.batch_get_v1([key(2)], indices(pool, 6)) == [True]
    assert content(pool, 6) == stored[2]
    backend.close()


def test_tensors_of_another_size_are_not_taken(storage: Any, tmp_path: Path) -> None:
    pool = MhaPool()
    backend = attach(storage, tmp_path, pool)
    page = pool.get_dummy_flat_data_page()
    assert not backend.set(key(1), page[:-1])
    assert not backend.batch_set([key(1), key(2)], [page])
    assert not backend.set(key(1))
    assert backend.set(key(1), page)
    assert backend.get(key(1), page[:-1].clone()) is None
    assert backend.get(key(1), object()) is None
    assert backend.batch_get([key(1), key(1)], [page]) == [None, None]
    assert backend.get(key(1)) is not None
    backend.close()


def test_tensors_are_misses_where_pages_are_lent(storage: Any, tmp_path: Path) -> None:
    pool = MhaPool()
    backend = attach(storage, tmp_path, pool, interface_v1=1)
    assert not backend.set(key(1), pool.get_dummy_flat_data_page())
    assert backend.get(key(1)) is None
    backend.close()


@pytest.mark.parametrize("lend", [0, 1])
def test_a_damaged_page_is_computed_and_not_served(storage: Any, tmp_path: Path, lend: int) -> None:
    pool = MhaPool()
    backend = attach(storage, tmp_path, pool, interface_v1=lend)
    before = fill(pool, 3, 3)
    fill(pool, 0, 1)
    backend.batch_set_v1([key(1)], indices(pool, 0))
    assert damage(tmp_path) == (2 if lend else 1)
    assert backend.batch_get_v1([key(1)], indices(pool, 3)) == [False]
    assert content(pool, 3) in (before, bytes(len(before))), "bytes that are not the page's"
    assert backend.batch_exists([key(1)]) == 0
    assert backend.stats()["kv"].damaged >= 1
    assert backend.batch_set_v1([key(1)], indices(pool, 0)) == [True]
    assert backend.batch_get_v1([key(1)], indices(pool, 4)) == [True]
    assert content(pool, 4) == content(pool, 0)
    backend.close()


@pytest.mark.parametrize("lend", [0, 1])
def test_a_set_leaves_a_damaged_page_to_the_load_that_reads_it(
    storage: Any, tmp_path: Path, lend: int
) -> None:
    pool = MhaPool()
    backend = attach(storage, tmp_path, pool, interface_v1=lend)
    fill(pool, 0, 1)
    page, other = indices(pool, 0), indices(pool, 1)
    assert backend.batch_set_v1([key(1)], page) == [True]
    damage(tmp_path)
    assert backend.batch_set_v1([key(1)], page) == [True], "held: not read, and not written again"
    assert backend.batch_get_v1([key(1)], other) == [False]
    assert backend.batch_set_v1([key(1)], page) == [True]
    assert backend.batch_get_v1([key(1)], other) == [True]
    assert content(pool, 1) == content(pool, 0)
    backend.close()


def test_a_page_with_one_part_left_is_not_there(storage: Any, tmp_path: Path) -> None:
    """If only the keys of a page are stored and its values are missing, the page is a miss, and is
    stored again.
    """
    pool = MhaPool()
    backend = attach(storage, tmp_path, pool, interface_v1=1)
    fill(pool, 0, 1)
    assert backend.batch_set_v1([key(1)], indices(pool, 0)) == [True]
    store = backend._pools["kv"].shelf._store
    assert store.remove([bytes.fromhex(key(1))], groups=1) == 1
    assert backend.batch_exists([key(1)]) == 0
    assert backend.batch_get_v1([key(1)], indices(pool, 2)) == [False]
    assert backend.batch_set_v1([key(1)], indices(pool, 0)) == [True]
    assert backend.batch_exists([key(1)]) == 1
    backend.close()


def test_keys_that_are_no_digests_are_not_mistaken_for_others(storage: Any, tmp_path: Path) -> None:
    """A shorter key would be padded, and capitals and blanks would make another key. A suffix is part
    of the key.
    """
    pool = MhaPool(pages=16)
    backend = attach(storage, tmp_path, pool)
    plain = "ab" * 32
    keys = [
        "ab",
        "ab00",
        "AB" * 32,
        plain,
        f"{plain}_ukv1-0_L0-3",
        "",
        " " + plain[1:],
        "schlüssel",
        "\ud800",
    ]
    stored = [fill(pool, page, page) for page in range(len(keys))]
    assert backend.batch_set_v1(keys, indices(pool, *range(len(keys)))) == [True] * len(keys)
    for number, one in enumerate(keys):
        assert backend.batch_get_v1([one], indices(pool, 15)) == [True]
        assert content(pool, 15) == stored[number]
    assert not backend.exists(plain + "00")
    backend.close()


def test_indices_that_are_none_of_the_pool_are_misses(storage: Any, tmp_path: Path) -> None:
    pool = MhaPool()
    backend = attach(storage, tmp_path, pool, interface_v1=1)
    whole = indices(pool, 0, 1)
    wrong = [whole[:-1], whole + 1, whole + pool.size, whole - pool.page_size, None]
    for one in wrong:
        assert backend.batch_set_v1([key(1), key(2)], one) == [False, False]
        assert backend.batch_get_v1([key(1), key(2)], one) == [False, False]
    assert backend.batch_exists([key(1)]) == 0
    assert backend.batch_get_v1([key(1), key(2)], indices(pool, 1, 1)) == [False, False], "a page twice"
    assert backend.batch_get_v1([], whole[:0]) == []
    backend.close()


def test_more_pages_than_slots_go_in_rounds(storage: Any, tmp_path: Path) -> None:
    pool = MhaPool("layer_first", pages=32)
    backend = attach(storage, tmp_path, pool, staging_bytes=1)
    pages = backend._pools["kv"].pages
    assert (type(pages), pages.arena.slots) == (Copied, 1)
    stored = [fill(pool, page, page) for page in range(16)]
    keys = [key(page) for page in range(16)]
    assert backend.batch_set_v1(keys, indices(pool, *range(16))) == [True] * 16
    assert backend.batch_get_v1(keys, indices(pool, *range(16, 32))) == [True] * 16
    assert [content(pool, page) for page in range(16, 32)] == stored
    backend.close()


def test_slots_that_a_back_end_still_has_are_not_used() -> None:
    """LMCache#4517: a slot was reused after a timeout, and the call that had timed out later wrote into
    it.
    """
    pages = pages_of(MhaPool("layer_first"), lend=False, staging_bytes=3 * 4096)
    assert isinstance(pages, Copied)
    slots = pages.take(8, 0.0)
    assert len(slots) == 3
    assert pages.take(1, 0.0) == []
    pages.give(slots)
    busy = {slots[1]}
    pages._is_free = lambda slot: slot not in busy  # type: ignore[method-assign]
    assert sorted(pages.take(8, 0.0)) == sorted(set(slots) - busy)
    busy.clear()
    assert pages.take(8, 0.0) == [slots[1]]


@pytest.mark.parametrize("lend", [0, 1])
def test_a_page_that_timed_out_is_not_written_later(storage: Any, tmp_path: Path, lend: int) -> None:
    """LMCache#4517: SGLang reuses a page as soon as the call returns. So a call that has timed out must
    not access the page.
    """
    pool = MhaPool(pages=16)
    backend = attach(storage, tmp_path, pool, interface_v1=lend)
    keys = [key(page) for page in range(8)]
    stored = [fill(pool, page, page) for page in range(8)]
    assert all(backend.batch_set_v1(keys, indices(pool, *range(8))))
    backend.close()
    hasty = attach(storage, tmp_path, pool, interface_v1=lend, deadline=1e-9)
    found = hasty.batch_get_v1(keys, indices(pool, *range(8, 16)))
    mine = [
        content(pool, page) if there else fill(pool, page + 8, 100 + page) for page, there in enumerate(found)
    ]
    hasty.close()  # waits until no transfer is running
    for page, there in enumerate(found):
        assert content(pool, page + 8) == (stored[page] if there else mine[page])


@pytest.mark.parametrize("lend", [0, 1])
def test_transfers_of_memory_that_sglang_reuses_are_staged(
    storage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lend: int
) -> None:
    """LMCache#4517: kvpool can keep its own slots from being reused, but not SGLang's pages. So the
    store first copies the bytes of a page, and writes the copy.
    """
    opened: list[dict[str, Any]] = []

    def store_of(*arguments: Any, **named: Any) -> Store:
        opened.append(named)
        return Store(*arguments, **named)

    monkeypatch.setattr(shelf, "Store", store_of)
    attach(storage, tmp_path, MhaPool(), interface_v1=lend).close()
    assert [(one["staged"], one["admission"]) for one in opened] == [(bool(lend), "always")]


def test_a_back_end_that_fails_is_one_that_misses(storage: Any, tmp_path: Path) -> None:
    pool = MhaPool()
    backend = attach(storage, tmp_path, pool, interface_v1=1)
    fill(pool, 0, 1)
    assert backend.batch_set_v1([key(1)], indices(pool, 0)) == [True]
    (slab,) = tmp_path.rglob("*.slab")
    with slab.open("r+b") as file:
        file.truncate(0)
    assert backend.batch_get_v1([key(1)], indices(pool, 1)) == [False]
    assert backend.batch_exists([key(1)]) in (0, 1)
    backend.close()


def test_what_fails_otherwise_is_a_miss_and_a_line_in_the_log(
    storage: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = MhaPool("layer_first")
    backend = attach(storage, tmp_path, pool)
    transfer = [PoolTransfer(PoolName.KV, indices(pool, 1), [key(1)])]

    def fail(*arguments: Any, **named: Any) -> Any:
        raise RuntimeError("planted")

    pool.get_data_page = fail  # type: ignore[method-assign]
    assert backend.batch_set_v1([key(1)], indices(pool, 0)) == [False]
    assert backend.batch_set_v2(transfer) == {PoolName.KV: [False]}
    del pool.get_data_page
    assert backend.batch_set_v1([key(1)], indices(pool, 0)) == [True], "its slot came back"
    pool.get_data_page = fail  # type: ignore[method-assign]
    assert backend.batch_get_v1([key(1)], indices(pool, 1)) == [False]
    assert "planted" in caplog.text
    assert len(backend._pools["kv"].pages._left) == backend._pools["kv"].pages.arena.slots
    backend.close()


def test_a_renewal_that_is_not_recorded_forgets_the_pages_of_every_pool(
    storage: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool, other = MhaPool(), MhaPool()
    backend = attach(storage, tmp_path, pool, {PoolName.MAMBA: other})
    backend.batch_set_v1([key(1)], indices(pool, 0))
    backend.batch_set_v2([PoolTransfer(PoolName.MAMBA, indices(other, 0), [key(1)])])
    (record,) = tmp_path.glob("*/kv/*.generation")
    record.unlink()
    record.mkdir()  # nothing can be renamed to this path
    assert not backend.clear()
    assert "did not record the renewal" in caplog.text
    assert backend.batch_exists([key(1)]) == 0
    found = backend.batch_get_v2([PoolTransfer(PoolName.MAMBA, indices(other, 1), [key(1)])])
    assert found == {PoolName.MAMBA: [False]}
    assert backend.batch_set_v1([key(2)], indices(pool, 0)) == [True]
    assert (backend.exists(key(1)), backend.exists(key(2))) == (False, True), "it goes on"
    backend.close()
    record.rmdir()
    again = attach(storage, tmp_path, pool)
    assert not again.exists(key(2)), "it may be of other weights"
    again.close()


def test_closed_is_empty(storage: Any, tmp_path: Path) -> None:
    pool = MhaPool()
    backend = attach(storage, tmp_path, pool)
    backend.batch_set_v1([key(1)], indices(pool, 0))
    backend.close()
    backend.close()
    assert backend.batch_exists([key(1)]) == 0
    assert backend.batch_get_v1([key(1)], indices(pool, 0)) == [False]
    assert backend.batch_set_v1([key(1)], indices(pool, 0)) == [False]
    assert backend.get(key(1)) is None
    assert backend.batch_exists_v2([key(1)]).kv_hit_pages == 0
    assert backend.stats() == {}
    assert backend.clear()


def test_it_opens_at_the_first_call_of_an_sglang_that_does_not_say_when(storage: Any, tmp_path: Path) -> None:
    pool = MhaPool()
    backend = attach(storage, tmp_path, pool)
    config = backend._config
    backend.close()
    older = storage(config, {})
    assert older.batch_exists([key(1)]) == 0
    older.close()
    older = storage(config, {})
    older.register_mem_pool_host(pool)
    assert older.batch_set_v1([key(1)], indices(pool, 0)) == [True]
    assert older.exists(key(1))
    older.close()


@pytest.mark.parametrize("lend", [0, 1])
def test_threads_wait_for_their_own_pages(
    storage: Any, tmp_path: Path, frequent_switches: None, lend: int
) -> None:
    """SGLang's threads for queries, prefetch and backup run at the same time."""
    pool = MhaPool(pages=64)
    backend = attach(storage, tmp_path, pool, interface_v1=lend, staging_bytes=16 * 4096)
    wrong: list[Any] = []

    def work(number: int) -> None:
        mine = range(number * 8, number * 8 + 4)
        into = range(number * 8 + 4, number * 8 + 8)
        for turn in range(6):
            seeds = [1000 * number + 10 * turn + at for at in range(4)]
            stored = [fill(pool, page, seed) for page, seed in zip(mine, seeds, strict=True)]
            keys = [key(seed) for seed in seeds]
            if (
                backend.batch_set_v1(keys, indices(pool, *mine)) != [True] * 4
                or backend.batch_exists(keys) != 4
            ):
                wrong.append((number, turn, "not stored"))
            if backend.batch_get_v1(keys, indices(pool, *into)) != [True] * 4:
                wrong.append((number, turn, "not loaded"))
            if [content(pool, page) for page in into] != stored:
                wrong.append((number, turn, "other bytes"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    backend.close()


def test_later_pages_are_evicted_first(storage: Any, tmp_path: Path) -> None:
    """If the storage is full, the first pages of a prompt stay stored, because every hit needs them."""
    pool = MhaPool()
    backend = attach(storage, tmp_path, pool, capacity_bytes=4 * 8192)
    keys = [key(number) for number in range(4)]
    assert backend.batch_set_v1(keys, indices(pool, *range(4)), ExtraInfo([])) == [True] * 4
    assert backend.batch_set_v1([key(9)], indices(pool, 4), ExtraInfo([])) == [True]
    assert [backend.exists(one) for one in keys] == [True, True, True, False]
    backend.close()


def test_metrics_are_pages_and_speed_since_the_last_call(storage: Any, tmp_path: Path) -> None:
    pool = MhaPool()
    backend = attach(storage, tmp_path, pool, enable_storage_metrics=True)
    backend.batch_set_v1([key(1), key(2)], indices(pool, 0, 1))
    backend.batch_get_v1([key(1), key(3)], indices(pool, 2, 3))
    metrics = backend.get_stats()
    assert (metrics.backup_pgs, metrics.prefetch_pgs) == ([2], [1])
    assert all(speed > 0 for speed in (*metrics.backup_bandwidth, *metrics.prefetch_bandwidth))
    assert backend.get_stats().backup_pgs == []
    backend.close()
    backend = attach(storage, tmp_path, pool)
    assert backend.get_stats() is None
    backend.close()


def test_settings_out_of_range_are_refused(
    storage: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong: dict[str, list[Any]] = {
        "capacity_bytes": ["2TB", 0, -1, True],
        "deadline": [None, 0, -1.0, math.inf, math.nan, "4"],
        "workers": [0, -1],
        "queue": [0],
        "eviction": ["maybe"],
        "staging_bytes": [0],
        "shares": [{"kv": 1.5}, {"kv": True}, {"kv": 0}, {"drafts": 0.3}, {"": 0.3}],
        "weights": [5, ""],
        "root_dir": ["", 5],
        "on_reset": ["", "never", True],
        "free_floor_bytes": [True, -1],
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(InvalidArgumentError, match=name):
                attach(storage, tmp_path, MhaPool(), **{name: value})
    with pytest.raises(InvalidArgumentError, match="url is empty"):
        attach(storage, tmp_path, MhaPool(), root_dir=None, url="")
    with pytest.raises(InvalidArgumentError, match="give one of draft, indexer, kv, mamba, swa"):
        attach(storage, tmp_path, MhaPool(), shares={"drafts": 0.3})
    with pytest.raises(InvalidArgumentError, match="capacity_bytes is missing"):
        storage(types.SimpleNamespace(extra_config=None), {})
    for places in ({"root_dir": None}, {"url": "redis://host"}):
        with pytest.raises(InvalidArgumentError, match="root_dir and url: give one of them"):
            attach(storage, tmp_path, MhaPool(), **places)
    with pytest.raises(InvalidArgumentError, match="url names a disk"):
        attach(storage, tmp_path, MhaPool(), root_dir=None, url="disk:///a")
    with pytest.raises(InvalidArgumentError, match="weights is not given"):
        attach(storage, tmp_path, MhaPool(), weights=None)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        attach(storage, tmp_path / "file", MhaPool())
    attach(storage, tmp_path, MhaPool(), capacity_byte=1, prefetch_threshold=1).close()
    assert "settings that mean nothing: capacity_byte\n" in caplog.text


def test_a_tilde_is_the_home_of_the_user(
    storage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for root_dir in ("~", "~/kv"):
        attach(storage, tmp_path, MhaPool(), root_dir=root_dir).close()
    assert not (tmp_path / "~").exists()
    assert {path.parent.parent.parent for path in tmp_path.rglob("*.slab")} == {tmp_path, tmp_path / "kv"}


def test_arenas_are_of_the_memory_that_was_lent() -> None:
    pool = MhaPool()
    pages = pages_of(pool, lend=True, staging_bytes=1)
    assert isinstance(pages, Lent)
    assert isinstance(pages.arena, Arena)
    assert pages.arena.address == pool.kv_buffer.data_ptr()
