"""Loads a trace and runs a replay, with a progress bar that Ctrl-C can interrupt."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final, cast

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

import kvpool
from kvpool.cli.problems import bad_trace, bad_usage
from kvpool.cli.prompts import has_prompts
from kvpool.errors import InvalidArgumentError, TraceError, TraceFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kvpool._core import TraceFormat

__all__ = ["advance", "load"]

#: Number of requests of the trace that is generated if the user gives none.
_GENERATED_REQUESTS: Final = 2000

#: Number of tokens per block of the generated trace.
_GENERATED_BLOCK: Final = 512

#: Maximum number of requests that are replayed between two checks for Ctrl-C.
_SLICE: Final = 64


#: Number of bytes of a trace that are read between two checks for Ctrl-C.
_READ_SLICE: Final = 4 << 20


def load(
    path: Path | None,
    *,
    limit: int | None,
    block_tokens: int | None,
    check_prefixes: bool,
    trace_format: str = "auto",
    sort: bool = False,
    sessions_at_once: int | None = None,
    progress: bool = False,
) -> tuple[kvpool.traces.Trace, str]:
    """Load the trace. Also returns its source: a path, ``stdin`` or ``generated``."""
    if path is None:
        made = kvpool.traces.Trace.generate(
            limit or _GENERATED_REQUESTS, block_tokens=block_tokens or _GENERATED_BLOCK
        )
        return made, "generated"
    source = "stdin" if str(path) == "-" else str(path)
    if source == "example" and not path.exists():
        path = kvpool.traces.example_path()
    if source == "stdin" and sys.stdin is not None and sys.stdin.isatty():
        typer.echo("reading a trace from the terminal; Ctrl-D ends it", err=True)
    # A read of a file does not wait. A read of a pipe may wait forever, so Ctrl-C must end the process.
    waits = not (path.is_file() or path.is_dir())
    try:
        with _interruptible() if waits else contextlib.nullcontext():
            reader = kvpool.traces.TraceReader(
                path,
                format=cast("TraceFormat", trace_format),
                block_tokens=block_tokens,
                limit=limit,
                check_prefixes=check_prefixes,
                sort=sort,
                sessions_at_once=sessions_at_once,
            )
            _read(reader, progress=progress and not waits)
            trace = reader.finish()
    except InvalidArgumentError as error:
        raise bad_usage(error) from error
    except (TraceError, TraceFileError) as error:
        found = bad_trace(error, source)
        if "is missing" in str(error) and path.is_file() and has_prompts(path):
            found.hint = (  # type: ignore[attr-defined]
                f"these lines have prompts: kvpool trace make {path} trace.jsonl makes a trace of them"
            )
        raise found from error
    return trace, source


def _read(reader: kvpool.traces.TraceReader, *, progress: bool) -> None:
    """Read the trace to its end, in pieces. On a terminal, shows a progress bar after the first piece."""
    if reader.advance(_READ_SLICE):
        return
    console = Console(stderr=True)
    columns = (TextColumn("read"), BarColumn(bar_width=None), DownloadColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not (progress and console.is_terminal)
    ) as bar:
        task = bar.add_task("read", total=reader.total_bytes)
        while not reader.advance(_READ_SLICE):
            bar.update(task, completed=reader.bytes_read)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process at once.

    A read of a pipe is one call, and Python handles Ctrl-C only after the call.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def advance(
    replay: kvpool.traces.Replay,
    *,
    progress: bool,
    each_slice: Callable[[], None] | None = None,
    name: str = "replay",
) -> None:
    """Run the replay to its end, some requests at a time. Ctrl-C is checked in between.

    With ``progress``, a terminal shows a moving progress bar. If stderr is no terminal, only the last state
    of the bar is printed, as one line.
    """
    console = Console(stderr=True)
    total = replay.total
    requests = min(_SLICE, max(1, total // 200))
    columns = (
        TextColumn(name),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("requests"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not progress) as bar:
        task = bar.add_task(name, total=total)
        done = 0
        while done < total:
            done = replay.advance(requests)
            bar.update(task, completed=done)
            if each_slice is not None:
                each_slice()
