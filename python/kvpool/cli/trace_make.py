"""``kvpool trace make``: makes a trace from prompts or chat logs.

This module owns the command, the arrival times of requests whose log has none, and the lines that it
writes. :mod:`kvpool.cli.prompts` owns the fields of a log.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import sys
import zlib
from pathlib import Path  # noqa: TC003 - Typer reads the annotations
from typing import IO, TYPE_CHECKING, Annotated, Final, cast

import typer

import kvpool
from kvpool.cli.files import refuse_input, writing
from kvpool.cli.problems import UsageError, bad_trace
from kvpool.cli.prompts import Asked, Texts, requests_in
from kvpool.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["make_command"]

#: The first two bytes of gzip data.
_GZIP: Final = b"\x1f\x8b"


def make_command(
    log: Annotated[
        Path,
        typer.Argument(metavar="LOG", help="JSON lines, plain or gzip; - is stdin.", show_default=False),
    ],
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="File to write; .gz compresses it. - is stdout.", show_default=False
        ),
    ],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="tokenizer.json of the model, or its folder. Without one, lines have token ids.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(
            help="Template of chats, in Jinja.",
            metavar="FILE",
            show_default="the tokenizer's, else ChatML",
        ),
    ] = None,
    block_size: Annotated[int, typer.Option(help="Tokens per block.", metavar="N", min=1)] = 16,
    rate_per_s: Annotated[
        float,
        typer.Option(help="Arrivals per second, of a log without times.", metavar="N", min=1e-6, max=1e6),
    ] = 1.0,
    turn_s: Annotated[
        float,
        typer.Option(help="Seconds between two turns of a conversation.", metavar="N", min=0.0, max=1e6),
    ] = 30.0,
) -> None:
    """Make a trace from prompts or chat logs.

    Each line of the log is a JSON object with one of these fields: token_ids
    (or prompt_token_ids), prompt, text, messages (or ShareGPT's conversations).
    A line may also be a request of an OpenAI batch file. Optional fields are
    timestamp (ms, or ISO 8601) or created (s), output_length or output,
    cache_salt (or salt), and lora_name (or adapter). Messages that end with an
    answer are a finished conversation, which becomes one request for each
    answer. Two blocks are equal only if their prompts up to there, salts and
    adapters are equal. The trace contains no text.
    """
    refuse_input(output, log)
    if chat_template is not None and tokenizer is None:
        raise UsageError("--chat-template needs --tokenizer", "add --tokenizer, the model's folder")
    texts = None if tokenizer is None else Texts(tokenizer, chat_template)
    try:
        with _lines(log) as lines:
            rows = list(_rows(requests_in(lines, texts), block_size, rate_per_s, turn_s))
    except TraceError as error:
        raise bad_trace(error, "stdin" if str(log) == "-" else log) from None
    if not rows:
        raise TraceError(f"{log}: no line has a request")
    rows.sort(key=lambda row: row[0])
    with writing(output) as file:
        file.writelines(row[-1] for row in rows)
    tokens = sum(row[1] for row in rows)
    typer.echo(
        f"{len(rows):,} requests over {(rows[-1][0] - rows[0][0]) / 1000:,.0f} s, {tokens:,} prompt tokens, "
        f"in blocks of {block_size:,} tokens",
        err=True,
    )
    if texts is not None and texts.is_made_up:
        typer.echo("note: the tokenizer has no chat template: chats are written as ChatML", err=True)


def _rows(
    requests: Iterator[Asked], block_size: int, rate_per_s: float, turn_s: float
) -> Iterator[tuple[float, int, bytes]]:
    """Yield the arrival in ms, the number of prompt tokens and the line of the trace of each request."""
    hasher = kvpool.BlockHasher("sha256", block_size)
    numbers: dict[bytes, int] = {}
    timed: bool | None = None
    begun = -1
    for request in requests:
        if timed is not None and timed != (request.time_ms is not None):
            raise TraceError("some lines have a time and others have none: give all of them one, or none")
        timed = request.time_ms is not None
        begun += request.turn == 0
        start = 1000 * begun / rate_per_s if request.time_ms is None else request.time_ms
        digests = hasher.hash_tokens(request.tokens, request.extra) if request.tokens else []
        time_ms = start + 1000 * turn_s * request.turn
        row = {
            "timestamp": time_ms,
            "input_length": len(request.tokens),
            "output_length": request.output_tokens,
            "block_size": block_size,
            "hash_ids": [numbers.setdefault(digest, len(numbers)) for digest in digests],
        }
        yield time_ms, len(request.tokens), json.dumps(row).encode() + b"\n"


@contextlib.contextmanager
def _lines(log: Path) -> Iterator[IO[bytes]]:
    """Yield a log file from which lines can be read. A gzip file is decompressed."""
    if str(log) == "-":
        yield sys.stdin.buffer
        return
    if log.is_dir():
        raise UsageError(f"{log} is a directory: give one file of JSON lines")
    with log.open("rb") as file:
        if not file.peek(2).startswith(_GZIP):
            yield file
            return
        try:
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast("IO[bytes]", unpacked)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise TraceError("the gzip file is damaged, or cut") from None
