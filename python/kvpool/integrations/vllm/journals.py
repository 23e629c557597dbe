"""Journals of vLLM's pools: where they go, and what a difference leaves behind. See docs/journal.md.

A journal has block ids, counts and hashes, and nothing of a prompt. Nothing here raises: a pool without its journal is
better than an engine that does not start.
"""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
from pathlib import Path
from typing import Any, Final

from kvpool import Journal

from . import LOGGER_NAME

logger = logging.getLogger(LOGGER_NAME)

#: What the shadow's pool keeps in memory: the last operations, all of them in a run of a few minutes.
RING_BYTES: Final = 16 << 20
_numbers = itertools.count()


def to_folder(folder: str | None) -> Journal | None:
    """A new file of this process in ``folder``; ``None`` without one, and where it cannot be made."""
    if not folder:
        return None
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return Journal(Path(folder) / f"kvpool-{os.getpid()}-{next(_numbers)}.kvj", digest_every=0)
    except OSError as error:
        logger.error("kvpool: no journal: %s: %s", folder, error.strerror)
        return None


def to_memory() -> Journal:
    """The last operations, to be left behind by :func:`leave_behind`."""
    return Journal(ring_bytes=RING_BYTES, digest_every=0)


def leave_behind(pool: Any, folder: str | None) -> str:
    """Writes what a pool's ring holds to a new file for its owner alone; says where, or nothing without a ring."""
    try:
        core = getattr(pool, "core", None)
        image = None if core is None else core.journal_image()
        if image is None:
            return ""
        target = Path(folder or tempfile.gettempdir())
        target.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(prefix=f"kvpool-shadow-{os.getpid()}-", suffix=".kvj", dir=target)
        with os.fdopen(handle, "wb") as file:
            file.write(image)
    except Exception as error:
        return f", its journal could not be written ({type(error).__name__})"
    return f", its journal is in {path}"
