"""Journals of vLLM's pools: the files in a folder, and the journal of the shadow's pool. See docs/journal.md.

A journal contains block ids, counts and hashes, but nothing of a prompt. No function here raises,
because an engine without a journal is better than one that does not start.

vLLM's engine is a separate process that ends without destroying its pool. It excludes its objects from
garbage collection, and a forked process ends with ``os._exit``. Therefore the operations that are still
in memory are written when the process exits normally. This includes SIGTERM, which vLLM's engine turns
into a normal exit. If the process is killed, the last frame of the journal is lost.
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

#: Size in bytes of the in-memory journal of the shadow's pool. It holds all operations of a run of a
#: few minutes.
RING_BYTES: Final = 16 << 20
#: Size of a frame in bytes: about a hundred operations. A kill loses one frame, and servers are often
#: stopped by a kill.
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
    """Writes a pool's journal when this process ends, if the pool still exists then.

    A forked copy of the process does not write the journal. A child process that ``multiprocessing``
    started may end without calling ``atexit``, but it does call ``Finalize``. Such a child has already
    imported ``multiprocessing.util``. Other processes do not need the module, so it is not imported
    here.
    """
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is None:
        atexit.register(_flush, weakref.ref(pool))
    else:
        multiprocessing.Finalize(pool, _flush, (weakref.ref(pool),), exitpriority=0)


def _flush(pool: weakref.ref[Any]) -> None:
    """Writes the operations in memory to a pool's journal. A destroyed pool has already done this itself."""
    core = getattr(pool(), "core", None)
    if core is not None:
        core.journal_image()


def to_memory() -> Journal:
    """Makes an in-memory journal of the last operations, for :func:`leave_behind`."""
    return Journal(ring_bytes=RING_BYTES, digest_every=0)


def leave_behind(pool: Any, folder: str | None) -> str:
    """Writes a pool's in-memory journal to a new file that only its owner can read.

    Returns a text for the log that contains the path. The text is empty if the pool has no such
    journal.
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
