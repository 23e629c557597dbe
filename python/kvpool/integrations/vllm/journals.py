"""Journals of vLLM's pools: where they go, and what a difference leaves behind. See docs/journal.md.

A journal has block ids, counts and hashes, and nothing of a prompt. Nothing here raises: a pool without
its journal is better than an engine that does not start.

vLLM's engine is a process of its own that ends without dropping its pool: objects are frozen out of the
collector, and a forked process ends in ``os._exit``. So what is collected is written when the process
ends in an orderly way, on SIGTERM, too, which vLLM's engine makes an ordinary end. What a kill loses is
one frame.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any, Final

from kvpool.journal import Journal

from . import LOGGER_NAME

logger = logging.getLogger(LOGGER_NAME)

#: What the shadow's pool keeps in memory: the last operations, all of them in a run of a few minutes.
RING_BYTES: Final = 16 << 20
#: What a kill loses: some hundred operations. A server that is stopped is often killed.
FRAME_BYTES: Final = 4096
_numbers = itertools.count()


def to_folder(folder: str | None, pool: Any) -> Journal | None:
    """A new file of this process in ``folder``, for ``pool``; ``None`` without one, and where it cannot
    be made.
    """
    if not folder:
        return None
    try:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        path = Path(folder) / f"kvpool-{os.getpid()}-{next(_numbers)}.kvj"
        journal = Journal(path, digest_every=0, frame_bytes=FRAME_BYTES)
        _flush_at_exit(pool)
        return journal
    except OSError as error:
        logger.error("kvpool: no journal: %s: %s", folder, error.strerror)
        return None


def _flush_at_exit(pool: Any) -> None:
    """Has a pool's journal written when this process ends, unless the pool is gone by then. Not in a
    fork of it.

    A child of multiprocessing may end without ``atexit``, but not without its ``Finalize``. That module
    is there in such a child; kvpool starts no process, so it does not import it.
    """
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is None:
        atexit.register(_flush, weakref.ref(pool))
    else:
        multiprocessing.Finalize(pool, _flush, (weakref.ref(pool),), exitpriority=0)


def _flush(pool: weakref.ref[Any]) -> None:
    """Writes what a pool's journal has collected. A pool that is gone has done so itself."""
    core = getattr(pool(), "core", None)
    if core is not None:
        core.journal_image()


def to_memory() -> Journal:
    """The last operations, to be left behind by :func:`leave_behind`."""
    return Journal(ring_bytes=RING_BYTES, digest_every=0)


def leave_behind(pool: Any, folder: str | None) -> str:
    """Writes what a pool's ring holds to a new file for its owner alone; says where, or nothing without
    a ring.
    """
    try:
        core = getattr(pool, "core", None)
        image = None if core is None else core.journal_image()
        if image is None:
            return ""
        target = Path(folder or tempfile.gettempdir())
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(prefix=f"kvpool-shadow-{os.getpid()}-", suffix=".kvj", dir=target)
        with os.fdopen(handle, "wb") as file:
            file.write(image)
    except Exception as error:
        return f", its journal could not be written ({type(error).__name__})"
    return f", its journal is in {path}"
