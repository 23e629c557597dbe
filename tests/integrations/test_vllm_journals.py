"""Tests the journals of vLLM's pools: in a folder, in memory, at the end of a process, and when they
are replayed.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from tests.integrations.fake_vllm import fake_vllm, part
from tests.integrations.pool_stand_ins import BLOCK, make_pool, request_of

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.usefixtures("vllm")


def use(pool: Any) -> None:
    table = pool.get_new_blocks(2)
    pool.cache_full_blocks(request_of([1, 2]), table, 0, 1, BLOCK[0], 0)
    pool.touch(table[:1])
    pool.free_blocks([*table, table[0]])
    pool.free_block_queue.popleft()


def test_every_pool_writes_a_journal_of_its_own_that_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        assert kvpool.journal.read_journal(file).subject == "vllm-pool"
        report = kvpool.journal.replay_journal(file)
        assert report.difference is None
        assert report.operations == pools[0].core.journal_stats().operations > 4


def test_a_pool_whose_journal_cannot_be_created_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / f"kvpool-{os.getpid()}-0.kvj").mkdir()
    monkeypatch.setattr(part("journals"), "_numbers", itertools.count())
    monkeypatch.setattr(part("pool").BlockPool, "journal_folder", str(tmp_path))
    pool = make_pool(6)
    use(pool)
    assert pool.core.journal_stats() is None
    assert "no journal" in caplog.text


def _engine(folder: str, said: Connection, ends_by: str) -> None:
    """Runs the process of an engine. Its pool is in a reference cycle and frozen, so the garbage
    collector never frees it.
    """
    with contextlib.ExitStack() as stack:
        if ends_by == "signal":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # blocked until the test waits for it
        stack.enter_context(fake_vllm())
        part("pool").BlockPool.journal_folder = folder
        pool: Any = make_pool(6)
        pool.itself = pool
        use(pool)
        gc.freeze()
        said.send(pool.core.journal_stats().operations)
        if ends_by == "signal":
            signal.sigwait({signal.SIGTERM})
            raise SystemExit  # as vLLM's engine does
        if ends_by == "kill":
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize("ends_by", ["return", "signal"])
def test_an_engine_in_a_process_of_its_own_leaves_a_whole_journal(
    tmp_path: Path, method: str, ends_by: str
) -> None:
    context: Any = multiprocessing.get_context(method)
    said, says = context.Pipe(duplex=False)
    process = context.Process(target=_engine, args=(str(tmp_path), says, ends_by))
    process.start()
    says.close()
    operations = said.recv()
    if ends_by == "signal":
        process.terminate()
    process.join()
    assert process.exitcode == 0
    (file,) = tmp_path.iterdir()
    report = kvpool.journal.replay_journal(file)
    assert report.is_exact
    assert report.cut_at is None
    assert report.operations == operations > 4


def test_an_engine_without_multiprocessing_leaves_a_whole_journal(tmp_path: Path) -> None:
    """The engine runs in the main process, and no code has imported multiprocessing."""
    code = (
        "import sys; from tests.integrations.test_vllm_journals import _engine\n"
        "import types\n"
        "for name in [name for name in sys.modules if name.partition('.')[0] == 'multiprocessing']:\n"
        "    del sys.modules[name]\n"
        "_engine(sys.argv[1], types.SimpleNamespace(send=print), 'return')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.iterdir()
    report = kvpool.journal.replay_journal(file)
    assert report.is_exact
    assert report.operations == int(done.stdout) > 4


def test_what_a_kill_loses_is_a_small_frame(tmp_path: Path) -> None:
    context: Any = multiprocessing.get_context("spawn")
    said, says = context.Pipe(duplex=False)
    process = context.Process(target=_engine, args=(str(tmp_path), says, "kill"))
    process.start()
    says.close()
    operations = said.recv()
    process.join()
    (file,) = tmp_path.iterdir()
    report = kvpool.journal.replay_journal(file)
    assert report.is_exact
    assert report.operations == 0 < operations
    assert part("journals").FRAME_BYTES <= 4096


def test_a_fork_of_the_engine_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part("pool").BlockPool, "journal_folder", str(tmp_path))
    pool = make_pool(6)
    use(pool)
    context: Any = multiprocessing.get_context("fork")
    process = context.Process(target=use, args=(pool,))
    process.start()
    process.join()
    assert process.exitcode == 0
    (file,) = tmp_path.iterdir()
    assert kvpool.journal.read_journal(file).operations == 0
    pool.core.journal_image()
    report = kvpool.journal.replay_journal(file)
    assert report.is_exact
    assert report.operations == pool.core.journal_stats().operations


def test_a_folder_that_cannot_be_created_is_reported_and_stops_nothing(
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
    pool.core = kvpool._core.vllm.VllmPool(6, True, "lru", journals.to_memory())
    pool.core.allocate(3)
    said = journals.leave_behind(pool, str(tmp_path / "left"))
    (path,) = (tmp_path / "left").iterdir()
    assert str(path) in said
    assert kvpool.journal.replay_journal(path).operations == 1
    assert journals.leave_behind(make_pool(4), str(tmp_path)) == ""
    assert "could not be written" in journals.leave_behind(pool, str(path))


def test_the_setting_is_read_from_the_environment() -> None:
    settings = part("settings").Settings.from_environment({"KVPOOL_VLLM_JOURNAL_DIR": "somewhere"})
    assert settings.journal_folder == "somewhere"
    assert part("settings").Settings.from_environment({}).journal_folder is None
