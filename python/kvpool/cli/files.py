"""Checks and writes the output files of commands.

This module owns one rule: a command never overwrites the trace that it reads, even if the output is
another path to the same file.
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
    """Raise if the file of an option such as ``--png`` cannot be written. Called before the work starts.

    Raises:
        UsageError: The name has another ending, its directory does not exist, or it is the trace.
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
    """Raise if an output file is also the input, even under another name, by a link, or as standard input.

    Raises:
        UsageError: The output is the trace, or a file of the folder that is the trace.
    """
    written = _file(output, 1)
    if trace is None or written is None:
        return
    read = [_file(entry, 0) for entry in (trace.iterdir() if trace.is_dir() else [trace])]
    if written in read:
        name = "standard input" if str(trace) == "-" else str(trace)
        raise UsageError(f"{output} is what is read from {name}: nothing is overwritten", "give another name")


def _file(path: Path, standard: int) -> tuple[int, int] | None:
    """Return the device and inode of a file; ``None`` if it is not a regular file.

    ``-`` is a standard stream.
    """
    try:
        found = os.fstat(standard) if str(path) == "-" else path.stat()
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def write_trace(trace: kvpool.traces.Trace, output: Path, trace_format: TraceFormat = "mooncake") -> None:
    """Write a trace to a file or to stdout (``-``), in pieces. Files named ``.gz`` are compressed."""
    with writing(output) as file:
        trace.write_jsonl(file, trace_format)


@contextlib.contextmanager
def writing(output: Path, *, new: bool = False) -> Iterator[IO[bytes]]:
    """Open a file for writing bytes. A file named ``.gz`` is compressed, and ``-`` is stdout.

    Args:
        output: The path.
        new: Whether it is an error if the file exists. If so, only its owner can read the new file.

    """
    if str(output) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with output.open("xb" if new else "wb") as file:
        if new:
            output.chmod(0o600)
        if output.suffix == ".gz":
            # The gzip header contains no time and no name, so that equal content gives equal files.
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                yield cast("IO[bytes]", packed)
        else:
            yield file
