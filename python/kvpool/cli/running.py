"""Loading a trace and running a replay, with a progress bar and an ear for Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

import kvpool
from kvpool.cli.problems import bad_trace
from kvpool.errors import TraceError, TraceFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["advance", "load"]

#: Requests of the trace that is made up when none is given.
_GENERATED_REQUESTS: Final = 2000

#: Requests between two looks at Ctrl-C, at most.
_SLICE: Final = 64


def load(path: Path | None, *, limit: int | None, block_tokens: int, check_prefixes: bool) -> tuple[kvpool.Trace, str]:
    """Load the trace, and say where it is from: a path, ``stdin`` or ``generated``."""
    if path is None:
        return kvpool.Trace.generate(limit or _GENERATED_REQUESTS, block_tokens=block_tokens), "generated"
    source = "stdin" if str(path) == "-" else str(path)
    if source == "stdin" and sys.stdin is not None and sys.stdin.isatty():
        typer.echo("reading a trace from the terminal; Ctrl-D ends it", err=True)
    try:
        with _interruptible():
            trace = kvpool.Trace.read(path, block_tokens=block_tokens, limit=limit, check_prefixes=check_prefixes)
    except (TraceError, TraceFileError) as error:
        raise bad_trace(error, source) from error
    return trace, source


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process at once: reading is one call, which would not notice until it is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def advance(replay: kvpool.Replay, *, progress: bool, each_slice: Callable[[], None] | None = None) -> None:
    """Run the replay to its end, in slices: between them the bar moves and Ctrl-C is noticed.

    On a terminal the bar moves; elsewhere its last state is one line, and only if ``progress`` is true.
    """
    console = Console(stderr=True)
    total = replay.total
    requests = min(_SLICE, max(1, total // 200))
    columns = (
        TextColumn("replay"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("requests"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not progress) as bar:
        task = bar.add_task("replay", total=total)
        done = 0
        while done < total:
            done = replay.advance(requests)
            bar.update(task, completed=done)
            if each_slice is not None:
                each_slice()
