"""Journals of vLLM's pools: their files, and the journal of a difference. See docs/journal.md.

A journal contains block ids, counts and hashes, and nothing of a prompt. Nothing here raises: a pool
without its journal is better than an engine that does not start.

vLLM's engine is a separate process that ends without destroying its pool: objects are frozen out of the
garbage collector, and a forked process ends in ``os._exit``. Therefore the collected operations are
written when the process exits normally. This includes SIGTERM, which vLLM's engine turns into a normal
exit. A kill loses one frame.
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

#: Bytes of the journal that the shadow's pool keeps in memory: all operations of a run of a few
#: minutes.
RING_BYTES: Final = 16 << 20
#: Bytes that a kill loses: about a hundred operations. Servers are often stopped by a kill.
FRAME_BYTES: Final = 4096
_numbers = itertools.count()


def to_folder(folder: str | None, pool: Any) -> Journal | None:
    """Makes a journal for ``pool`` in a new file in ``folder``.

    Returns ``None`` if there is no folder, or if the file cannot be created.
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
    """Writes a pool's journal when this process ends, unless the pool is gone by then.

    It does not do so in a fork of the process. A child process of multiprocessing may end without
    ``atexit``, but not without ``Finalize``. The module is already imported in such a child. kvpool
    starts no processes, so it does not import the module itself.
    """
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is None:
        atexit.register(_flush, weakref.ref(pool))
    else:
        multiprocessing.Finalize(pool, _flush, (weakref.ref(pool),), exitpriority=0)


def _flush(pool: weakref.ref[Any]) -> None:
    """Writes the collected operations of a pool's journal. A destroyed pool has written them itself."""
    core = getattr(pool(), "core", None)
    if core is not None:
        core.journal_image()


def to_memory() -> Journal:
    """Makes a journal of the last operations in memory, for :func:`leave_behind`."""
    return Journal(ring_bytes=RING_BYTES, digest_every=0)


def leave_behind(pool: Any, folder: str | None) -> str:
    """Writes a pool's journal in memory to a new file that only its owner can read.

    Returns a text for the log with the path; empty if the pool has no such journal.
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
