"""``kvpool top``: shows a running pool in the terminal.

This module owns the source of readings, their interval, and the exit codes. 0: the readings were shown.
1: there is no page, the page has no metrics of kvpool, or the replay of a journal differs. 2: the
arguments are wrong, or a journal cannot be replayed. 130: Ctrl-C ended the command.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.live import Live

import kvpool
from kvpool.cli.journal import OBSERVES, MaxGib, readable
from kvpool.cli.problems import UsageError
from kvpool.cli.top_reading import PageError, Reading, of_view, read_url, summary
from kvpool.cli.top_view import screen
from kvpool.errors import KvpoolError
from kvpool.store.urls import without_password

if TYPE_CHECKING:
    from kvpool.journal import JournalReport

__all__ = ["top_command"]

#: The time limit for reading a page is at least this number of seconds.
_LEAST_SECONDS: Final = 10.0


class TopError(KvpoolError):
    """An error that ends the command with exit code 1, and a hint for the user."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def top_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="HOST:PORT or URL of a page of metrics, or a journal; - is one on stdin."
        ),
    ],
    once: Annotated[
        bool, typer.Option("--once", help="Show it once and end; of a journal, its end.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option(help="Seconds from one reading to the next.", metavar="SECONDS", min=0.05, max=3600.0),
    ] = 2.0,
    frames: Annotated[
        int,
        typer.Option(
            help="Readings of a journal, spread over its operations.", metavar="N", min=1, max=10_000
        ),
    ] = 60,
    max_gib: MaxGib = 8.0,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object a reading, a line each, instead of the screen."),
    ] = False,
) -> None:
    """Show a running pool: blocks, hits, misses, evictions, advice, tenants.

    Reads the page of metrics that an engine serves, again and again until
    Ctrl-C. Or reads a journal and replays it on this build, with an advisor and
    all metrics, whatever settings it was recorded with. Figures after + and
    "now" are for the time since the previous reading.
    """
    if (url := _url_of(source)) is not None:
        _follow(url, interval, once=once, as_json=as_json)
    else:
        if source != "-" and not Path(source).exists():
            raise UsageError(
                f"{source}: no such journal", "give HOST:PORT of a page of metrics, or a journal's path"
            )
        _play(Path(source), interval, 1 if once else frames, max_gib, as_json=as_json)


def _url_of(source: str) -> str | None:
    """Return the URL of a page of metrics, or ``None`` if the source is the file of a journal.

    HOST:PORT becomes the URL of the page that kvpool.metrics serves there.

    >>> _url_of("localhost:9400"), _url_of("run.kvj")
    ('http://localhost:9400/metrics', None)
    """
    if "://" in source:
        return source
    found = re.fullmatch(r"([\w.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})(/.*)?", source)
    if found is None or Path(source).exists():
        return None
    return f"http://{found[1]}:{found[2]}{found[3] or '/metrics'}"


def _follow(url: str, interval: float, *, once: bool, as_json: bool) -> None:
    """Show a page of metrics again and again, until Ctrl-C.

    After the first success, later reads may fail for a while, because an engine may restart.
    """
    seconds = min(max(interval, _LEAST_SECONDS), 30.0)
    before: Reading | None = None
    then = 0.0
    with _Screen(without_password(url), live=not once, as_json=as_json) as out:
        while True:
            note = ""
            try:
                now = time.monotonic()
                reading = read_url(url, seconds)
                out.show(summary(reading, before, now - then), f"every {interval:g} s")
                before, then = reading, now
            except PageError as error:
                if before is None or once:
                    raise TopError(
                        str(error), "an engine serves it with kvpool.metrics.start_http(PORT)"
                    ) from error
                note = str(error)
            if once:
                return
            if note:
                out.note(note)
            time.sleep(interval)


def _play(file: Path, interval: float, frames: int, max_gib: float, *, as_json: bool) -> None:
    views, report = _views(file, frames, max_gib)
    before: Reading | None = None
    with _Screen(str(file), live=frames > 1, as_json=as_json) as out:
        for at, view in enumerate(views):
            if at > 0 and not as_json:
                time.sleep(interval)
            reading = of_view(view)
            # No time is passed, because a journal has no clock from which rates per second could be computed.
            out.show(
                summary(reading, before),
                f"operation {view.operations:,} of {report.operations:,}",
                operations=view.operations,
            )
            before = reading
    if report.difference is not None:
        raise TopError(
            f"{file}: this build differs from operation {report.difference.operation:,} on: what is shown "
            "ends there",
            "kvpool journal replay says how it differs",
        )


def _views(file: Path, frames: int, max_gib: float) -> tuple[list[Any], JournalReport]:
    with readable(file, max_gib, OBSERVES) as source:
        total = kvpool.journal.read_journal(source).operations
        if total == 0:
            raise UsageError(f"{file}: the journal has no operations")
        every = 0 if frames == 1 else max(1, -(-total // frames))
        return kvpool.journal.observe_journal(source, every=every, advisor=True, explain=True)


class _Screen:
    """Shows readings: on a live screen, as one page of text, or as lines of JSON."""

    def __init__(self, source: str, *, live: bool, as_json: bool) -> None:
        self._source, self._as_json = source, as_json
        self._console = Console(highlight=False)
        # Only a terminal is redrawn. A file or a pipe would get one screen after the other.
        self._live = (
            Live(console=self._console, auto_refresh=False) if live and self._console.is_terminal else None
        )
        self._last: Any = None

    def __enter__(self) -> _Screen:
        if self._live is not None and not self._as_json:
            self._live.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._live is not None and not self._as_json:
            self._live.stop()

    def show(self, told: dict[str, Any], note: str, **more: int) -> None:
        """Show a reading."""
        if self._as_json:
            typer.echo(json.dumps({"source": self._source, **more, **told}))
            return
        self._last = told
        self._put(told, note)

    def note(self, note: str) -> None:
        """Show the previous reading again, with a note about the problem that prevented a new one."""
        if self._as_json:
            typer.echo(f"warning: {note}", err=True)
        elif self._last is not None:
            self._put(self._last, note)

    def _put(self, told: dict[str, Any], note: str) -> None:
        page = screen(told, self._source, note, self._console.width)
        if self._live is not None:
            self._live.update(page, refresh=True)
        else:
            self._console.print(page)
