"""``kvpool trace record``: records the KV events of a running server as a trace.

This module owns the command, the handling of Ctrl-C, and the remarks about requests without events.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import threading
import time
from pathlib import Path  # noqa: TC003 - Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

import kvpool
from kvpool.cli.files import writing
from kvpool.cli.problems import UsageError
from kvpool.cli.recording import Recorder, endpoint_of
from kvpool.cli.tables import percent
from kvpool.cli.terminal import shown
from kvpool.cli.top_reading import PageError, read_url
from kvpool.errors import KvpoolError, TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["record_command"]

#: Names of vLLM's counters: finished requests, prompt tokens that were looked up, cached prompt tokens.
_FINISHED: Final = "vllm:request_success_total"
_QUERIES: Final = "vllm:prefix_cache_queries_total"
_CACHED: Final = "vllm:prefix_cache_hits_total"
#: Seconds between two checks for Ctrl-C, and seconds without a connection to the publisher after which a note
#: is printed.
_SLICE: Final = 0.2
_ANSWERS: Final = 3.0


class RecordError(KvpoolError):
    """A recording has no requests, or the page of metrics cannot be read."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def record_command(
    endpoint: Annotated[
        str,
        typer.Argument(
            metavar="ENDPOINT", help="Where the engine publishes KV events: HOST:PORT or tcp://HOST:PORT."
        ),
    ],
    output: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="New file to write; .gz compresses it."),
    ],
    replay: Annotated[
        str | None,
        typer.Option(
            help="The engine's socket for replays: also records what it published before, and what got lost.",
            metavar="ENDPOINT",
            show_default=False,
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="The engine's page of metrics: says which share of the requests is in the trace.",
            metavar="URL",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="How long to record.", metavar="N", min=0.001, show_default="until Ctrl-C"),
    ] = None,
    batches: Annotated[
        int | None,
        typer.Option(help="End after this many batches of events.", metavar="N", min=1, show_default=False),
    ] = None,
    topic: Annotated[
        str, typer.Option(help="Record the batches of this topic only.", show_default="all")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Record a running server's KV events as a trace, until Ctrl-C.

    The trace has hashes, sizes and times of blocks, and no tokens. Events show
    which blocks a server stores. A request whose blocks were all cached leaves
    no event, so hit rates of the trace are lower bounds. vLLM reports hits,
    too, for requests with "vllm_xargs": {"kv_cache_report_mode": "full"}.
    docs/traces.md describes how requests are reconstructed from events.
    """
    if output.exists():
        raise UsageError(f"{output} exists: nothing is overwritten", "remove it, or give another name")
    if metrics is not None and not metrics.startswith(("http://", "https://")):
        raise UsageError(
            f"--metrics is {metrics!r}: must begin with http://", "http://HOST:8000/metrics for vLLM"
        )
    addresses = endpoint_of(endpoint), None if replay is None else endpoint_of(replay, "--replay")
    before = None if metrics is None else _counters(metrics)
    began = time.monotonic()
    with (
        writing(output, new=True) as file,
        contextlib.closing(Recorder(*addresses, topic, file)) as recorder,
        _stoppable() as stop,
    ):
        if not recorder.is_connected(_ANSWERS):
            typer.echo(f"{addresses[0]} does not answer yet; waiting, Ctrl-C ends it", err=True)
        else:
            typer.echo(f"recording {addresses[0]}; Ctrl-C ends it", err=True)
        counts = recorder.counts
        while not stop.is_set():
            left = _SLICE if seconds is None else began + seconds - time.monotonic()
            if left <= 0 or (batches is not None and counts.batches >= batches):
                break
            recorder.advance(min(left, _SLICE))
    took = time.monotonic() - began
    after = None if metrics is None else _counters(metrics)
    facts: dict[str, Any] = {"output": str(output), "seconds": took, **dataclasses.asdict(counts)}
    facts |= _found(output, addresses[0])
    server = None if before is None or after is None else _server(facts["requests"], before, after)
    facts["server"] = server
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    for line in _words(facts, server):
        typer.echo(line)


def _counters(url: str) -> dict[str, float]:
    names = (_FINISHED, _QUERIES, _CACHED)
    try:
        reading = read_url(url, 10.0, names)
    except PageError as error:
        raise RecordError(
            str(error), "--metrics takes a vLLM server's page, such as http://HOST:8000/metrics"
        ) from None
    return {
        name: sum(value for _, value in reading.values.get(name.removesuffix("_total"), [])) for name in names
    }


def _server(requests: int, before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    """Return the server's finished requests, the share of them in the trace, and its token hit rate."""
    finished, asked, cached = (after[name] - before[name] for name in (_FINISHED, _QUERIES, _CACHED))
    return {
        "finished_requests": int(finished),
        "reconstructed_share": min(requests / finished, 1.0) if finished > 0 else None,
        "token_hit_rate": cached / asked if asked > 0 else None,
    }


def _found(output: Path, endpoint: str) -> dict[str, Any]:
    """Read the recording as a trace, and return its number of requests, block size and ideal hit rate."""
    try:
        trace = kvpool.traces.Trace.read(output, format="kv-events")
    except TraceError as error:
        if output.stat().st_size and "no request" not in str(error):
            raise
        output.unlink()
        raise RecordError(
            f"no stored block came from {endpoint}: there is no trace",
            "check that requests came, and that the server runs with "
            """--kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq"}'""",
        ) from None
    stats = json.loads(trace.stats_json())
    return {
        "requests": len(trace),
        "block_tokens": trace.block_tokens,
        "ideal_token_hit_rate": stats["ideal_token_hit_rate"],
    }


def _words(facts: dict[str, Any], server: dict[str, Any] | None) -> Iterator[str]:
    yield (
        f"{shown(facts['output'])}: {facts['requests']:,} requests in blocks of {facts['block_tokens']:,} "
        f"tokens, from {facts['batches']:,} batches in {facts['seconds']:,.1f} s"
    )
    for name, words in (
        ("before", "batches came before the recording: --replay ENDPOINT gets those that the server keeps"),
        ("missed", "batches were lost on the way: --replay ENDPOINT gets them back"),
        ("unreadable", "messages were no KV events, and were left out"),
        ("restarts", "times the server began again, with an empty cache"),
    ):
        if facts[name]:
            yield f"  {facts[name]:,} {words}"
    if server is None:
        yield "  requests whose blocks were all cached are not in it: --metrics URL says how many"
        return
    share = server["reconstructed_share"]
    if share is None:
        yield "  the server finished no request meanwhile"
    else:
        finished = f"{server['finished_requests']:,} requests"
        yield f"  the server finished {finished} meanwhile: {percent(share, 1)} are in the trace"
    if server["token_hit_rate"] is not None:
        yield (
            f"  the server found {percent(server['token_hit_rate'], 1)} of prompt tokens cached; "
            f"an endless cache would find {percent(facts['ideal_token_hit_rate'], 1)} of the trace's"
        )


@contextlib.contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """Make Ctrl-C and SIGTERM end the recording, so that the recorded part is a valid trace."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {one: signal.signal(one, lambda *_: stop.set()) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
