"""Files that commands write: what may be written over, and how a trace is written.

Owns one rule: a command never writes over the trace that it reads, whatever path leads there.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import stat
import sys
from typing import IO, TYPE_CHECKING, cast

from kvpool.cli.problems import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import kvpool
    from kvpool._core import TraceFormat

__all__ = ["check_output", "refuse_input", "write_trace", "writing"]


def check_output(path: Path | None, suffix: str, trace: Path | None) -> None:
    """Refuse at once, not after the work, what an option such as ``--png`` cannot write.

    Raises:
        UsageError: The name has another ending, its directory is not there, or it is the trace.
    """
    if path is None:
        return
    option = f"--{suffix[1:]}"
    if path.suffix.lower() != suffix:
        raise UsageError(f"{option} {path}: the name must end in {suffix}")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no directory {path.parent}")
    refuse_input(path, trace)


def refuse_input(output: Path, trace: Path | None) -> None:
    """Refuse to write over a file that is read: the same file by any name, a link or standard input included.

    Raises:
        UsageError: It is the trace, or a file of the folder that is.
    """
    written = _file(output, 1)
    if trace is None or written is None:
        return
    read = [_file(entry, 0) for entry in (trace.iterdir() if trace.is_dir() else [trace])]
    if written in read:
        name = "standard input" if str(trace) == "-" else str(trace)
        raise UsageError(f"{output} is what is read from {name}: nothing is overwritten", "give another name")


def _file(path: Path, standard: int) -> tuple[int, int] | None:
    """Which file it is, by device and inode, with ``-`` for a standard one; ``None`` if it is none that
    keeps bytes.
    """
    try:
        found = os.fstat(standard) if str(path) == "-" else path.stat()
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def write_trace(trace: kvpool.traces.Trace, output: Path, trace_format: TraceFormat = "mooncake") -> None:
    """Write a trace to a file, gzip if it is called so, or to stdout: in pieces, however long it is."""
    with writing(output) as file:
        trace.write_jsonl(file, trace_format)


@contextlib.contextmanager
def writing(output: Path, *, new: bool = False) -> Iterator[IO[bytes]]:
    """Open a file for bytes, gzip if it is called so; ``-`` is stdout.

    Args:
        output: Its path.
        new: Whether a file that exists is an error. A new file is its owner's alone.

    """
    if str(output) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with output.open("xb" if new else "wb") as file:
        if new:
            output.chmod(0o600)
        if output.suffix == ".gz":
            # No time and no name inside: the same content is the same file.
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                yield cast("IO[bytes]", packed)
        else:
            yield file
