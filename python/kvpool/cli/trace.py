"""``kvpool trace``: show the content of a trace, validate it, and convert it to another format.

This module owns the three commands and their tables. The library defines the formats, and computes
every figure.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvpool.cli import options  # noqa: TC001 - typer reads the annotations
from kvpool.cli.examples import EXAMPLES
from kvpool.cli.files import refuse_input, write_trace
from kvpool.cli.problems import UsageError
from kvpool.cli.rows import flat, one_form, print_csv
from kvpool.cli.running import load
from kvpool.cli.tables import figure, percent, show
from kvpool.cli.terminal import shown, shown_name
from kvpool.cli.trace_make import make_command
from kvpool.cli.trace_record import record_command
from kvpool.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import kvpool

__all__ = ["trace_app"]

trace_app: Final = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    no_args_is_help=False,
    epilog=EXAMPLES["trace"],
    help="Make, record, check and convert traces, and show what is in them.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

_File = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help="Trace file, plain or gzip, or a folder of them; - is stdin, example the trace that ships "
        "with kvpool.",
        show_default=False,
    ),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")]
_AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of the table, one line of figures.")]


@trace_app.callback(invoke_without_command=True, epilog=EXAMPLES["trace"])
def _group(context: typer.Context) -> None:
    """Make, record, check and convert traces, and show what is in them."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@trace_app.command("stats", epilog=EXAMPLES["trace stats"])
def stats_command(
    trace: _File,
    trace_format: options.TraceFormat = "auto",
    limit: options.Limit = None,
    trace_block_size: options.TraceBlockSize = None,
    sort: options.Sort = False,
    sessions_at_once: options.SessionsAtOnce = None,
    as_json: _AsJson = False,
    as_csv: _AsCsv = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Show the content of a trace, and the most that any cache could hit.

    Prints four ideal hit rates, because "the" hit rate of a trace depends on
    what is counted. Prefixes are not checked, but broken ones are counted.
    """
    one_form(as_json=as_json, as_csv=as_csv)
    loaded, source = load(
        trace,
        limit=limit,
        block_tokens=trace_block_size,
        check_prefixes=False,
        trace_format=trace_format,
        sort=sort,
        sessions_at_once=sessions_at_once,
        progress=not no_progress,
    )
    stats: dict[str, Any] = json.loads(loaded.stats_json())
    if as_json:
        typer.echo(
            json.dumps(
                {"source": source, "format": loaded.format, **stats, "notes": loaded.notes()}, indent=2
            )
        )
        return
    if as_csv:
        print_csv([flat({"source": source, "format": loaded.format, **stats, "notes": loaded.notes()})])
        return
    _print_stats(source, loaded, stats, Console(highlight=False))


@trace_app.command("validate", epilog=EXAMPLES["trace validate"])
def validate_command(
    trace: _File,
    trace_format: options.TraceFormat = "auto",
    limit: options.Limit = None,
    trace_block_size: options.TraceBlockSize = None,
    sort: options.Sort = False,
    as_json: _AsJson = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Check that a file is a trace, to the last record.

    Exit code 0: it is a trace, and remarks about it are printed. 1: it is not,
    and its first error is printed, with line and field.
    """
    loaded, source = load(
        trace,
        limit=limit,
        block_tokens=trace_block_size,
        check_prefixes=True,
        trace_format=trace_format,
        sort=sort,
        progress=not no_progress,
    )
    notes = loaded.notes()
    if as_json:
        facts = {"source": source, "valid": True, "format": loaded.format, **loaded.summary(), "notes": notes}
        typer.echo(json.dumps(facts, indent=2))
        return
    typer.echo(
        f"{shown(source)}: valid, {loaded.format}, {len(loaded):,} requests in blocks of "
        f"{loaded.block_tokens:,} tokens"
    )
    for remark in _remarks(notes):
        typer.echo(f"  {remark}")


@trace_app.command("convert", epilog=EXAMPLES["trace convert"])
def convert_command(
    trace: _File,
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="File to write; .gz compresses it. - is stdout.", show_default=False
        ),
    ],
    to: Annotated[
        Literal["mooncake", "mooncake-sessions", "bailian"],
        typer.Option("--to", help="Format to write.", metavar="NAME", show_default=False),
    ],
    block_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Tokens per block to write: a multiple or a divisor of the trace's.",
            show_default="the trace's; 16 for bailian",
        ),
    ] = None,
    trace_format: options.TraceFormat = "auto",
    limit: options.Limit = None,
    trace_block_size: options.TraceBlockSize = None,
    no_check_prefixes: options.NoCheckPrefixes = False,
    sort: options.Sort = False,
    sessions_at_once: options.SessionsAtOnce = None,
    no_progress: options.NoProgress = False,
) -> None:
    """Write a trace in another format, or in blocks of another size.

    Facts that the format cannot store are lost, and listed on stderr. An
    existing file is overwritten, but not the file that is read.
    """
    refuse_input(output, trace)
    loaded, _ = load(
        trace,
        limit=limit,
        block_tokens=trace_block_size,
        check_prefixes=not no_check_prefixes,
        trace_format=trace_format,
        sort=sort,
        sessions_at_once=sessions_at_once,
        progress=not no_progress,
    )
    wanted = block_size or (_BAILIAN_BLOCK if to == "bailian" else loaded.block_tokens)
    try:
        written = loaded.with_block_tokens(wanted)
    except InvalidArgumentError as error:
        own = loaded.block_tokens
        raise UsageError(
            f"--block-size is {wanted}: {error}", f"--block-size {own} keeps the trace's size"
        ) from error
    write_trace(written, output, to)
    facts = written.summary()
    typer.echo(
        f"{facts['requests']:,} requests, {facts['block_references']:,} blocks of {wanted:,} tokens, "
        f"{facts['unique_blocks']:,} different",
        err=True,
    )
    for line in _losses(json.loads(loaded.stats_json()), to):
        typer.echo(line, err=True)
    usual = _BAILIAN_BLOCK if to == "bailian" else _MOONCAKE_BLOCK
    if wanted != usual:
        typer.echo(f"{to} does not say the block size: read it with --trace-block-size {wanted}", err=True)


trace_app.command("record", epilog=EXAMPLES["trace record"])(record_command)
trace_app.command("make", epilog=EXAMPLES["trace make"])(make_command)

_BAILIAN_BLOCK: Final = 16
_MOONCAKE_BLOCK: Final = 512


def _losses(stats: dict[str, Any], to: str) -> Iterator[str]:
    """Yield a sentence for each property of the trace that the target format cannot store."""
    if to == "mooncake" and stats["sessions"]:
        yield (
            f"lost: which of {stats['sessions']:,} sessions a request belongs to (mooncake-sessions keeps it)"
        )
    if to != "bailian" and stats["kinds"]:
        names = ", ".join(shown_name(name) for name, _ in stats["kinds"][:4])
        yield f"lost: the kind of a request ({names}; bailian keeps it)"


def _remarks(notes: kvpool._core.traces.ReadNotes) -> Iterator[str]:
    """Yield a sentence for each kind of irregularity that the reader found in the trace."""
    for name, words in (
        ("reordered", "requests came after a later one, and were sorted"),
        (
            "unchained",
            "prefixes have an id that has another prefix elsewhere: ids of contents, made into ids of "
            "prefixes",
        ),
        ("regrouped", "requests had blocks of another size, and were regrouped"),
        ("untimed", "records have no time of their own"),
        ("skipped_events", "events are not stored blocks of the first tier, and were skipped"),
        ("unknown_parents", "stored runs follow a block that was not recorded"),
    ):
        count: int = notes[name]  # type: ignore[literal-required]
        if count:
            yield f"{count:,} {words}"


def _print_stats(source: str, trace: kvpool.traces.Trace, stats: dict[str, Any], console: Console) -> None:
    """Print the statistics of a trace as tables that fit a terminal of 80 columns."""
    title = f"kvpool trace stats: {shown(source)}"
    facts = Table(box=box.SIMPLE, show_header=False, title=Text(title))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(justify="right", no_wrap=True)
    facts.add_column(style="dim", overflow="fold")
    for section in (_request_rows(trace, stats), _block_rows(stats), _ideal_rows(stats)):
        for row in section:
            facts.add_row(*(Text(cell) for cell in row))
        facts.add_section()
    show(console, facts)
    spread = Table(box=box.SIMPLE_HEAD, title="Per request and reuse")
    spread.add_column("", style="bold", no_wrap=True)
    for name in ("mean", "p50", "p90", "p99", "max"):
        spread.add_column(name, justify="right", no_wrap=True)
    for label, name, scale, decimals in (
        ("prompt tokens", "input_length", 1, 0),
        ("output tokens", "output_length", 1, 0),
        ("ideal hit, % of the prompt", "request_hit_rate", 100, 1),
        ("time to the next use, s", "reuse_time_s", 1, 1),
    ):
        values = stats[name].values()
        spread.add_row(
            label, *("-" if value is None else f"{scale * value:,.{decimals}f}" for value in values)
        )
    show(console, spread)
    if stats["kinds"]:
        kinds = Table(box=box.SIMPLE_HEAD, title="Kinds")
        kinds.add_column("kind", overflow="fold")
        kinds.add_column("requests", justify="right", no_wrap=True)
        for name, count in stats["kinds"][:10]:
            kinds.add_row(Text(shown_name(name)), f"{count:,}")
        show(console, kinds)
    for remark in _remarks(trace.notes()):
        console.print(Text(remark), style="dim")


#: A row of a table: name, value, and remark.
_Row = tuple[str, str, str]


def _request_rows(trace: kvpool.traces.Trace, stats: dict[str, Any]) -> Iterator[_Row]:
    yield "format", trace.format or "", ""
    sessions = stats["sessions"]
    yield "requests", f"{stats['requests']:,}", "" if sessions is None else f"in {sessions:,} sessions"
    rate = stats["arrivals_per_s"]
    arriving = (
        "all at once"
        if rate is None
        else f"{figure(rate, 3)} requests/s, at most {stats['most_arrivals_in_1_s']:,}"
    )
    yield "span", f"{stats['span_s']:,.1f} s", arriving
    yield "prompt tokens", f"{stats['input_tokens']:,}", ""
    yield "output tokens", f"{stats['output_tokens']:,}", ""


def _block_rows(stats: dict[str, Any]) -> Iterator[_Row]:
    references, unique = stats["block_references"], stats["unique_blocks"]
    yield f"{stats['block_tokens']:,}-token blocks", f"{references:,}", f"{stats['partial_blocks']:,} partial"
    ratio = stats["reuse_ratio"]
    yield "different", f"{unique:,}", "" if ratio is None else f"each referenced {ratio:,.2f} times"
    once = stats["blocks_used_once"]
    yield "used once", f"{once:,}", f"{percent(once / unique, 1)} of the different ones" if unique else ""
    broken = stats["prefix_violations"]
    yield "broken prefixes", f"{broken:,}", "ids behind another id than before" if broken else ""


def _ideal_rows(stats: dict[str, Any]) -> Iterator[_Row]:
    for label, name, remark in (
        ("ideal hits, tokens", "token", "of the prompt tokens, in an endless cache"),
        ("of the last half", "last_half_token", "of the requests, when the cache is warm"),
        ("ideal hits, blocks", "block", "partial last blocks included"),
        ("full blocks only", "full_block", "as an engine can find them"),
    ):
        yield label, percent(stats[f"ideal_{name}_hit_rate"]), remark
    few = stats["requests_with_at_most_1_hit"]
    yield "almost no hit", f"{few:,}", "requests that hit at most one block"
