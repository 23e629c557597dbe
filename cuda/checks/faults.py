"""What goes wrong: closed stores, memory given up too early, a process that ends, a device that is lost."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvpool.errors import ClosedError
from kvpool.transfer import BlockStore, TransferEngine

from .memory import DeviceMemory
from .session import KIB, METHODS, expect, expect_refused, rng

if TYPE_CHECKING:
    from .session import Session

_PIECE, _BLOCKS = 64 * KIB, 16
_SIZE = _PIECE * _BLOCKS


def child(name: str, ordinal: int, **environment: str) -> dict[str, Any]:
    """Runs one of ``children`` in a process of its own, and returns what it printed.

    Raises:
        subprocess.SubprocessError: It took too long.
        RuntimeError: It ended with an error, or complained.
    """
    command = [
        sys.executable,
        str(Path(__file__).parents[1] / "gpu_check.py"),
        "--child",
        name,
        "--device",
        str(ordinal),
    ]
    ended = subprocess.run(  # noqa: S603  # this program itself
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    if ended.returncode != 0 or "panicked" in ended.stderr:
        raise RuntimeError(f"it ended with {ended.returncode}: {ended.stderr.strip()[-500:]}")
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def _store(session: Session, memory: DeviceMemory) -> BlockStore:
    return BlockStore.from_regions(
        [(memory.address, _PIECE, _PIECE)], _BLOCKS, device=session.device, keep_alive=memory
    )


def _closed(session: Session) -> None:
    with session.check("closed stores and engines take no work"), session.stream() as stream:
        store = _store(session, DeviceMemory(session.driver, _SIZE))
        host = BlockStore.host(_BLOCKS, store)
        host.close()
        for src, dst in ((store, host), (host, store)):
            expect_refused(ClosedError, "submit", lambda: session.engine.submit(src, dst, [(0, 0)], after=None))  # noqa: B023
            expect_refused(ClosedError, "copy", lambda: session.engine.copy(src, dst, [(0, 0)], stream=stream))  # noqa: B023
        engine = TransferEngine(session.device)
        engine.close()
        expect_refused(ClosedError, "submit", lambda: engine.submit(store, store, [(0, 1)], after=None))
        expect_refused(ClosedError, "copy", lambda: engine.copy(store, store, [(0, 1)], stream=stream))


def _kept_alive(session: Session) -> None:
    with session.check("memory that is given up lives until the copy has ended"), session.stream() as stream:
        scratch = DeviceMemory(session.driver, 2 * session.effort.delay)
        data = rng("kept").randbytes(_SIZE)
        for method in METHODS if session.driver.has_batch else ("auto", "kernel", "staged", "memcpy"):
            memory = DeviceMemory(session.driver, _SIZE)
            memory.write(data)
            owner = weakref.ref(memory)
            store = _store(session, memory)
            host = BlockStore.host(_BLOCKS, store, pinned=True)
            for _ in range(32):
                session.driver.copy(
                    scratch.address + session.effort.delay, scratch.address, session.effort.delay, stream
                )
            same = [(block, block) for block in range(_BLOCKS)]
            transfer = session.engine.submit(store, host, same, after=stream, method=method)
            store.close()
            del memory, store
            gc.collect()
            expect(owner() is not None, f"by {method}: the memory is gone before the copy has ended")
            session.finish(transfer)
            found = b"".join(host.read_block(block) for block in range(_BLOCKS))
            expect(found == data, f"by {method}: bytes differ")
            del transfer
            session.engine.poll()
            gc.collect()
            expect(owner() is None, f"by {method}: the memory is kept although the copy has ended")


def _ends_cleanly(session: Session) -> None:
    with session.check("a process that just ends: pinned memory, copies under way"):
        answer = child("leave", session.ordinal)
        expect(answer["submitted"], "nothing was under way")


def _lost(session: Session) -> None:
    with session.check("a lost context is told, and takes no more work") as notes:
        answer = child("lose", session.ordinal)
        notes.append(f"{answer['transfer']}; then: {answer['later']}")
        expect("CudaError" in answer["transfer"], "the transfer has not failed")
        expect("CudaError" in answer["later"], "later work was not refused")


def check(session: Session) -> None:
    """Runs the section."""
    _closed(session)
    _kept_alive(session)
    _ends_cleanly(session)
    _lost(session)
