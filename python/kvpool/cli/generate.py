"""``kvpool generate``: generates a request trace as JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import kvpool
from kvpool.cli.files import write_trace
from kvpool.cli.problems import bad_usage
from kvpool.errors import InvalidArgumentError

__all__ = ["generate_command"]


def generate_command(
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="File to write; .gz compresses it. - is stdout."),
    ] = Path("-"),
    requests: Annotated[int, typer.Option(min=1, help="How many requests.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Picks the trace: same seed, same trace.")] = 0,
    rate_per_s: Annotated[
        float | None,
        typer.Option(help="Requests per second, all kinds together.", show_default="4"),
    ] = None,
    chat_fraction: Annotated[
        float | None,
        typer.Option(help="Share of requests that are turns of chats.", show_default="0.5"),
    ] = None,
    agent_fraction: Annotated[
        float | None,
        typer.Option(help="Share of requests that are steps of agents.", show_default="0.3"),
    ] = None,
    trace_block_size: Annotated[
        int, typer.Option(min=1, help="Tokens that one hash id of the trace stands for.")
    ] = 512,
) -> None:
    """Make up a request trace: chats, agents and one-shot requests.

    The format is that of the public Mooncake traces. Each line is a JSON object
    with timestamp (ms), input_length and output_length (tokens), and hash_ids,
    one id per block of the prompt. Two blocks have equal ids if they and all
    blocks before them are equal.
    """
    try:
        trace = kvpool.traces.Trace.generate(
            requests,
            seed=seed,
            block_tokens=trace_block_size,
            rate_per_s=rate_per_s,
            chat_fraction=chat_fraction,
            agent_fraction=agent_fraction,
        )
    except InvalidArgumentError as error:
        raise bad_usage(error) from error
    write_trace(trace, output)
    facts = trace.summary()
    typer.echo(
        f"{facts['requests']:,} requests over {facts['span_ms'] / 1000:,.0f} s, "
        f"{facts['input_tokens']:,} prompt tokens, {facts['block_references']:,} blocks of "
        f"{facts['block_tokens']:,} tokens, {facts['unique_blocks']:,} different",
        err=True,
    )
