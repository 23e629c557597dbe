"""Tests objects that own threads. In a forked child, their calls are refused and damage nothing. A
process that has such objects can end.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import select
import signal
import subprocess
import sys
import time
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest

from kvpool import errors, store
from tests import owners
from tests.owners import OWNERS, Owner

ROOT = Path(__file__).parents[1]
#: Two sources that start threads but have no owner here. The threads of one end with the call that
#: starts them. The threads of the other are started by a test of its crate.
BOUNDED = {"rust/kvpool-transfer/src/cpu.rs", "rust/kvpool-transfer/src/engine/flights.rs"}
STARTED = re.compile(
    r"threading\.Thread\(|thread::spawn\(|Builder::new\(\)\s*(\.name\([^)]*\)+\s*)?\.?(spawn|;)"
    r"|thread::Builder"
)


def test_the_table_has_every_owner_of_threads() -> None:
    sources = [*ROOT.glob("python/kvpool/**/*.py"), *ROOT.glob("rust/kvpool*/src/**/*.rs")]
    named = {str(path.relative_to(ROOT)) for path in sources if STARTED.search(path.read_text())}
    assert named - BOUNDED == {owner.source for owner in OWNERS.values()}


def in_a_child(work: Any) -> str:
    """Runs a function in a forked child. Returns its output."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        # Ignore the warning about a fork while there are threads, because the test does that on
        # purpose.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            os.write(write, str(work()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    assert os.waitpid(child, 0)[1] == 0, "the child did not end by itself"
    return text


def outcome(call: Any, made: Any) -> str:
    try:
        call(made)
    except errors.KvpoolError as error:
        return type(error).__name__
    except BaseException as error:
        return f"untyped: {error!r}"
    return "done"


@pytest.mark.parametrize("name", OWNERS)
def test_a_forked_child_refuses_every_call(name: str, tmp_path: Path) -> None:
    owner: Owner = OWNERS[name]
    made = owner.make(tmp_path)
    try:
        for call in owner.calls.values():
            answer = in_a_child(lambda call=call: outcome(call, made))
            assert answer in ("ClosedError", "JournalFileError"), answer
        for call in owner.calls.values():
            call(made)
    finally:
        close = owner.calls.get("close")
        if close is not None:
            close(made)


@pytest.mark.parametrize("name", OWNERS)
def test_a_forked_child_drops_it_without_harm(name: str, tmp_path: Path) -> None:
    owner: Owner = OWNERS[name]
    # Exclude pytest's objects from later garbage collections in the child, because a scan of them takes
    # half a second.
    gc.freeze()
    held = [owner.make(tmp_path)]

    def drop() -> str:
        held.clear()
        gc.collect()
        return "dropped"

    assert in_a_child(drop) == "dropped"
    gc.unfreeze()
    for call in owner.calls.values():
        call(held[0])


def test_a_forked_child_leaves_the_wake_up_to_its_parent() -> None:
    opened = owners.opened(store.Custom(owners.Memory(), 1 << 20))
    opened.put([b"a"], [1])
    assert select.select([opened.fileno()], [], [], 60)[0]
    assert in_a_child(lambda: [outcome(owners.STORE[name], opened) for name in ("poll", "wait", "close")])
    assert select.select([opened.fileno()], [], [], 0)[0], "the child has read the parent's file"
    assert opened.poll() == [(0, ["ok"])]
    opened.close()


def workers() -> list[str]:
    """Returns the names of the threads of stores in this process."""
    names = []
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            names.append((thread / "comm").read_text())
    return [name for name in names if name.startswith("kvpool-store")]


def test_a_store_whose_back_end_knows_it_is_collected_with_its_threads() -> None:
    before = len(workers())
    backend = owners.Memory()
    opened = owners.opened(store.Custom(backend, 1 << 20))
    opened.put([b"a"], [1])
    opened.wait(60)
    backend.store = opened  # type: ignore[attr-defined]
    alive = weakref.ref(backend)
    assert len(workers()) > before
    del backend, opened
    gc.collect()
    assert alive() is None
    end = time.monotonic() + 60
    while len(workers()) > before:
        assert time.monotonic() < end, "its threads go on"


@pytest.mark.parametrize("name", OWNERS)
def test_a_process_ends_that_does_not_close_it(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", owners.__file__, name, str(tmp_path)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert (done.returncode, done.stderr) == (0, "")
