"""Journals of vLLM's pools: written to a folder, kept in memory, left behind, and replayed."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from tests.integrations.fake_vllm import fake_vllm, part
from tests.integrations.pool_stand_ins import BLOCK, make_pool, request_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def vllm() -> Iterator[Any]:
    with fake_vllm() as package:
        yield package


def use(pool: Any) -> None:
    table = pool.get_new_blocks(2)
    pool.cache_full_blocks(request_of([1, 2]), table, 0, 1, BLOCK[0], 0)
    pool.touch(table[:1])
    pool.free_blocks([*table, table[0]])
    pool.free_block_queue.popleft()


def test_every_pool_writes_a_journal_of_its_own_that_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new" / "journals"
    monkeypatch.setattr(part("pool").BlockPool, "journal_folder", str(folder))
    pools = [make_pool(6), make_pool(6)]
    for pool in pools:
        use(pool)
        pool.core.journal_image()
    files = sorted(folder.iterdir())
    assert len(files) == 2
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert kvpool.read_journal(file).subject == "vllm-pool"
        report = kvpool.replay_journal(file)
        assert report.difference is None
        assert report.operations == pools[0].core.journal_stats().operations > 4


def test_a_folder_that_cannot_be_made_is_said_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(part("pool").BlockPool, "journal_folder", str(tmp_path / "file"))
    pool = make_pool(4)
    assert pool.core.journal_stats() is None
    assert "no journal" in caplog.text
    use(pool)


def test_what_a_ring_holds_is_left_behind(tmp_path: Path) -> None:
    journals = part("journals")
    pool = make_pool(6)
    pool.core = kvpool._core.VllmPool(6, True, "lru", journals.to_memory())
    pool.core.allocate(3)
    said = journals.leave_behind(pool, str(tmp_path / "left"))
    (path,) = (tmp_path / "left").iterdir()
    assert str(path) in said
    assert kvpool.replay_journal(path).operations == 1
    assert journals.leave_behind(make_pool(4), str(tmp_path)) == ""
    assert "could not be written" in journals.leave_behind(pool, str(path))


def test_the_setting_is_read_from_the_environment() -> None:
    settings = part("settings").Settings.from_environment({"KVPOOL_VLLM_JOURNAL_DIR": "somewhere"})
    assert settings.journal_folder == "somewhere"
    assert part("settings").Settings.from_environment({}).journal_folder is None
