"""Tests host pools of draft models. SGLang registers them after the other pools, and they get a share
of the storage.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.errors import InvalidArgumentError, StoreError
from tests.integrations.hicache_stand_ins import (
    LogicalPool,
    MhaPool,
    PoolName,
    PoolTransfer,
    attach,
    content,
    fill,
    indices,
    key,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEYS = [key(number) for number in range(4)]


@pytest.fixture
def serve(storage: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Makes SGLang's settings in this process those of a server with this speculative algorithm."""
    import sglang.srt.runtime_context as context

    def published(algorithm: str | None) -> None:
        settings = {"model_path": "m", "speculative_algorithm": algorithm}
        server = types.SimpleNamespace(resolved_dict=lambda: settings)
        monkeypatch.setattr(context, "get_server_args", lambda: server)

    return published


def stored_and_loaded(backend: Any, pool: Any, draft: Any) -> int:
    """Stores 4 pages of both pools, loads them and compares the bytes. Returns the number of pages that
    a query finds.
    """
    for page in range(4):
        fill(pool, page, page)
        fill(draft, page, 100 + page)
    both = [
        PoolTransfer(name, indices(one, 0, 1, 2, 3), KEYS)
        for name, one in ((PoolName.KV, pool), (PoolName.DRAFT, draft))
    ]
    backend.batch_set_v2(both)
    found = int(backend.batch_exists_v2(KEYS, [PoolTransfer(PoolName.DRAFT)]).kv_hit_pages)
    into = [
        PoolTransfer(one.name, indices(host, 4, 5, 6, 7), KEYS)
        for one, host in zip(both, (pool, draft), strict=True)
    ]
    loaded = backend.batch_get_v2(into)
    for one, host in zip(both, (pool, draft), strict=True):
        for page, there in enumerate(loaded[one.name]):
            assert not there or content(host, page + 4) == content(host, page)
    return min([found, *(int(sum(one)) for one in loaded.values())])


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "STANDALONE", "eagle", "OF_A_LATER_SGLANG"])
@pytest.mark.parametrize("lend", [0, 1])
def test_drafts_are_found(
    storage: Any, tmp_path: Path, serve: Callable[[str | None], None], algorithm: str, lend: int
) -> None:
    serve(algorithm)
    pool, draft = MhaPool(), MhaPool(heads=1)
    rooms: list[dict[str, int]] = []
    for _ in range(2):
        backend = attach(storage, tmp_path, pool, interface_v1=lend)
        assert backend.stats() == {}, "nothing takes the room before the draft's pool is known"
        backend.register_mem_host_pool_v2(draft, PoolName.DRAFT)
        rooms.append({name: one.capacity_bytes for name, one in backend.stats().items()})
        if len(rooms) == 2:
            assert backend.batch_exists_v2(KEYS, [PoolTransfer(PoolName.DRAFT)]).kv_hit_pages == 4, (
                "after a restart"
            )
        assert stored_and_loaded(backend, pool, draft) == 4
        backend.close()
    assert rooms[0] == rooms[1]
    assert sum(rooms[0].values()) <= 4 << 20
    assert set(rooms[0]) == {"kv", "draft"}


def test_a_draft_has_room_for_as_many_pages(
    storage: Any, tmp_path: Path, serve: Callable[[str | None], None]
) -> None:
    serve("EAGLE")
    backend = attach(storage, tmp_path, MhaPool(page_size=64, heads=8), interface_v1=1)
    backend.register_mem_host_pool_v2(MhaPool(page_size=64, heads=2), PoolName.DRAFT)
    rooms = {name: one.capacity_bytes for name, one in backend.stats().items()}
    # A page has two parts in each pool, of 96 KiB and of 24 KiB, and each part has a header.
    assert rooms["kv"] / rooms["draft"] == pytest.approx(100 / 28, rel=0.1)
    backend.close()


def test_a_share_of_a_draft_counts(storage: Any, tmp_path: Path, serve: Callable[[str | None], None]) -> None:
    serve("EAGLE")
    pool, draft = MhaPool(), MhaPool()
    backend = attach(storage, tmp_path, pool, shares={"draft": 0.25})
    backend.register_mem_host_pool_v2(draft, PoolName.DRAFT)
    rooms = {name: one.capacity_bytes for name, one in backend.stats().items()}
    assert rooms["kv"] == 3 * rooms["draft"]
    assert stored_and_loaded(backend, pool, draft) == 4
    backend.close()


def test_a_second_pool_of_a_draft_has_its_part_too(
    storage: Any, tmp_path: Path, serve: Callable[[str | None], None]
) -> None:
    serve("EAGLE")
    pool, draft, second = MhaPool(), MhaPool(), MhaPool()
    for restart in range(2):
        backend = attach(storage, tmp_path, pool)
        backend.register_mem_host_pool_v2(draft, PoolName.DRAFT)
        backend.register_mem_host_pool_v2(second, "draft_indexer")
        assert len({one.capacity_bytes for one in backend.stats().values()}) <= 2
        assert set(backend.stats()) == {"kv", "draft", "draft_indexer"}
        if restart:
            assert backend.batch_exists(KEYS) == 4
        assert stored_and_loaded(backend, pool, draft) == 4
        backend.close()


def test_a_draft_that_cannot_be_kept_ends_the_start(
    storage: Any, tmp_path: Path, serve: Callable[[str | None], None]
) -> None:
    serve("EAGLE")
    odd = MhaPool()
    del odd.kv_buffer
    backend = attach(storage, tmp_path, MhaPool())
    with pytest.raises(InvalidArgumentError, match="pages of MhaPool cannot be read"):
        backend.register_mem_host_pool_v2(odd, PoolName.DRAFT)
    backend.close()
    with pytest.raises(InvalidArgumentError, match="pages of MhaPool cannot be read"):
        attach(storage, tmp_path, odd)
    backend = attach(storage, tmp_path, MhaPool(), shares={"kv": 1})
    with pytest.raises(InvalidArgumentError, match="nothing for the host pool 'draft'"):
        backend.register_mem_host_pool_v2(MhaPool(), PoolName.DRAFT)
    backend.close()


def test_a_folder_that_cannot_be_used_ends_the_start_of_a_server_with_a_draft(
    storage: Any, tmp_path: Path, serve: Callable[[str | None], None]
) -> None:
    serve("EAGLE")
    (tmp_path / "file").touch()
    backend = attach(storage, tmp_path / "file", MhaPool())
    with pytest.raises(StoreError):
        backend.register_mem_host_pool_v2(MhaPool(), PoolName.DRAFT)
    backend.close()


def test_both_pools_of_a_replica_with_a_draft_are_in_its_folder(
    storage: Any, tmp_path: Path, serve: Callable[[str | None], None]
) -> None:
    """If a draft pool is registered late, the store is opened again together with the other stores.
    This releases and locks their folder again.
    """
    serve(None)
    first, second = (attach(storage, tmp_path, MhaPool()) for _ in range(2))
    first.close()
    second.register_mem_host_pool_v2(MhaPool(), PoolName.DRAFT)
    assert set(second.stats()) == {"kv", "draft"}
    (rank,) = tmp_path.iterdir()
    assert sorted(one.name for one in rank.iterdir()) == ["draft", "kv", "replica-1"], "now it is the first"
    third = attach(storage, tmp_path, MhaPool())
    third.register_mem_host_pool_v2(MhaPool(), PoolName.DRAFT)
    assert sorted(one.name for one in (rank / "replica-1").iterdir()) == ["draft", "kv"]
    second.close()
    third.close()


@pytest.mark.parametrize("algorithm", [None, "NGRAM"])
def test_stores_are_opened_at_once_without_a_draft(
    storage: Any, tmp_path: Path, serve: Callable[[str | None], None], algorithm: str | None
) -> None:
    serve(algorithm)
    backend = attach(storage, tmp_path, MhaPool())
    assert set(backend.stats()) == {"kv"}
    backend.close()


def test_stores_are_opened_at_once_if_the_draft_is_there(
    storage: Any, tmp_path: Path, serve: Callable[[str | None], None]
) -> None:
    """The draft model has a pool of its own, or its layers are in the KV pool, as with multi-token
    prediction.
    """
    serve("EAGLE")
    backend = attach(storage, tmp_path / "1", MhaPool(), {PoolName.DRAFT: MhaPool()})
    assert set(backend.stats()) == {"kv", "draft"}
    backend.close()
    packed = MhaPool()
    packed.target_layer_num = packed.layer_num - 1  # type: ignore[attr-defined]
    backend = attach(storage, tmp_path / "2", packed)
    assert set(backend.stats()) == {"kv"}
    backend.close()
    packed.target_layer_num = packed.layer_num  # type: ignore[attr-defined]
    backend = attach(storage, tmp_path / "3", packed)
    assert backend.stats() == {}
    assert not backend.exists(key(1))
    assert set(backend.stats()) == {"kv"}, "a draft without a host pool: at the first call"
    backend.close()


def test_a_pool_without_bytes_takes_no_room(
    storage: Any, tmp_path: Path, serve: Callable[[str | None], None]
) -> None:
    serve("EAGLE")
    backend = attach(storage, tmp_path, MhaPool())
    backend.register_mem_host_pool_v2(LogicalPool(), PoolName.DRAFT)
    (room,) = (one.capacity_bytes for one in backend.stats().values())
    assert room > 3 << 20
    backend.close()


def test_a_first_call_that_cannot_open_the_stores_is_one_line_in_the_log(
    storage: Any, tmp_path: Path, serve: Callable[[str | None], None], caplog: pytest.LogCaptureFixture
) -> None:
    serve("EAGLE")
    (tmp_path / "file").touch()
    backend = attach(storage, tmp_path / "file", MhaPool())
    for _ in range(3):
        assert backend.batch_exists(KEYS) == 0
    assert caplog.text.count("batch_exists failed: a miss") == 1
    backend.close()
