"""``kvpool journal``: show, replay, bisect, shrink and export journals of operations.

This module owns the commands, their output and exit codes. The library produces every finding. A
journal that cannot be read or replayed is bad usage, exit code 2. So exit code 1 has one meaning: an
operation in the journal went wrong.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

import kvpool
from kvpool.cli.examples import EXAMPLES
from kvpool.cli.problems import UsageError
from kvpool.cli.tables import figure, show
from kvpool.cli.terminal import shown
from kvpool.errors import JournalError, JournalFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvpool._core import ExportLanguage

__all__ = ["OBSERVES", "MaxGib", "journal_app", "readable"]

journal_app: Final = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    no_args_is_help=False,
    epilog=EXAMPLES["journal"],
    help="Replay journals of operations, and find in them what went wrong.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

_File = Annotated[Path, typer.Argument(metavar="FILE", help="Journal; - is stdin.", show_default=False)]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
_NoProgress = Annotated[
    bool, typer.Option("--no-progress", help="No progress bar. Without a terminal there is none.")
]
_Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="File to write; one that exists is kept, and refused.", metavar="FILE"
    ),
]

MaxGib = Annotated[
    float,
    typer.Option(
        help="The most memory to use, estimated from the size of the journal; if it needs more, nothing is "
        "done. Commands that only read a file take a few MiB.",
        metavar="GIB",
    ),
]

#: The memory that each command takes in addition to the journal and the pool, as a multiple of the journal's
#: size. It contains the contents that a replay has cached, and the decoded operations. Measured on journals
#: of replayed traces of 8,000 and 12,000 requests, and rounded up. A file is read one frame at a time. A
#: journal from standard input is kept in memory, which adds 1 to the multiple.
_NO_COPIES: Final = 0
_REPLAYS: Final = 12
OBSERVES: Final = 14
_EXPORTS: Final = 20
_SHRINKS: Final = 55

#: The type of a journal for the functions of kvpool.journal: the path of its file, or its bytes.
_Source = Path | bytes


@journal_app.callback(invoke_without_command=True, epilog=EXAMPLES["journal"])
def _group(context: typer.Context) -> None:
    """Replay journals of operations, and find the one that went wrong.

    A journal contains every call of a BlockPool or a CacheManager, a check of
    every answer, and digests of the state. Exit code 0: nothing is wrong. 1:
    something is wrong, and it is printed. 2: the journal cannot be read or
    replayed.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@journal_app.command("show", epilog=EXAMPLES["journal show"])
def show_command(
    file: _File,
    start: Annotated[
        int | None,
        typer.Option(
            "--from", help="First operation to list.", metavar="N", min=0, show_default="the last ones"
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="Operations to list.", metavar="N", min=0)] = 10,
    max_gib: MaxGib = 8.0,
    as_json: _AsJson = False,
) -> None:
    """Show the subject of a journal, and its operations in words.

    Nothing is run, so this also shows a ring that has dropped its beginning.
    Blocks are shown as the first eight bytes of their digests, and requests by
    the slot that the manager had given them.
    """
    with readable(file, max_gib, _NO_COPIES) as source:
        info = kvpool.journal.read_journal(source, start=start, count=count)
    if as_json:
        facts = {name: getattr(info, name) for name in _FACTS}
        lines = [{"operation": number, "call": call, "asked": words} for number, call, words in info.lines]
        typer.echo(json.dumps({"source": str(file), **facts, "lines": lines}, indent=2))
        return
    _print_info(file, info, Console(highlight=False))


@journal_app.command("replay", epilog=EXAMPLES["journal replay"])
def replay_command(
    file: _File,
    until: Annotated[
        int | None,
        typer.Option(help="Operation to stop before.", metavar="N", min=0, show_default="the end"),
    ] = None,
    check_every: Annotated[
        int,
        typer.Option(
            help="Operations between two recounts of all invariants; 0: at the end alone.", metavar="N", min=0
        ),
    ] = 0,
    max_gib: MaxGib = 8.0,
    as_json: _AsJson = False,
    no_progress: _NoProgress = False,
) -> None:
    """Run every operation again, and compare every answer and every digest.

    Exit code 0: all answers and digests are equal. 1: this build differs, or an
    invariant is broken, and the first such operation is printed. 2: the journal
    cannot be replayed.
    """
    with readable(file, max_gib, _REPLAYS) as source:
        total = kvpool.journal.read_journal(source).operations
        with _bar("replay", total, shown=not no_progress and not as_json) as progress:
            began = time.perf_counter()
            report = kvpool.journal.replay_journal(
                source, until=until, check_every=check_every, progress=progress
            )
            seconds = time.perf_counter() - began
    if as_json:
        typer.echo(json.dumps({"source": str(file), **_report_json(report), "seconds": seconds}, indent=2))
    else:
        _print_report(file, report, seconds)
    if report.difference is not None:
        raise typer.Exit(1)


@journal_app.command("bisect", epilog=EXAMPLES["journal bisect"])
def bisect_command(
    file: _File,
    other: Annotated[
        Path | None,
        typer.Argument(
            metavar="[OTHER]", help="Journal to compare with, of the same settings.", show_default=False
        ),
    ] = None,
    max_gib: MaxGib = 8.0,
    as_json: _AsJson = False,
    no_progress: _NoProgress = False,
) -> None:
    """Find the first operation that goes wrong.

    With one journal, this is the first operation whose answer differs on this
    build, or after which an invariant is broken. With two journals, it is the
    first record in which they differ, and nothing is run. Exit code 1: one was
    found. 0: none was found.
    """
    if other is not None:
        _compare(file, other, max_gib, as_json=as_json)
        return
    with readable(file, max_gib, _REPLAYS) as source:
        total = kvpool.journal.read_journal(source).operations
        with _bar("bisect", total, shown=not no_progress and not as_json) as progress:
            report = kvpool.journal.bisect_journal(source, progress=progress)
    if as_json:
        typer.echo(json.dumps({"source": str(file), **_report_json(report)}, indent=2))
    else:
        _print_report(file, report, None)
    if report.difference is not None:
        raise typer.Exit(1)


def _compare(file: Path, other: Path, max_gib: float, *, as_json: bool) -> None:
    with readable(file, max_gib, _NO_COPIES) as first, readable(other, max_gib, _NO_COPIES) as second:
        infos = [kvpool.journal.read_journal(source) for source in (first, second)]
        found = kvpool.journal.compare_journals(first, second)
    operations = [info.operations for info in infos]
    if as_json:
        facts: dict[str, Any] = {
            "sources": [str(file), str(other)],
            "operations": operations,
            "same": found is None,
        }
        if found is not None:
            facts |= {"operation": found[0], "records": [found[1], found[2]]}
        typer.echo(json.dumps(facts, indent=2))
    elif found is None:
        same = "the same" if operations[0] == operations[1] else "the same until the shorter one ends"
        _say(f"{operations[0]:,} and {operations[1]:,} operations: {same}")
    else:
        _say(f"operation {found[0]:,} is the first that differs")
        for path, record in zip((file, other), found[1:], strict=True):
            _say(f"  {path}: {record}")
    if found is not None:
        raise typer.Exit(1)


@journal_app.command("shrink", epilog=EXAMPLES["journal shrink"])
def shrink_command(
    file: _File,
    operation: Annotated[
        int | None,
        typer.Option(
            help="Keep what this build answers to this operation.",
            metavar="N",
            min=0,
            show_default="what goes wrong first",
        ),
    ] = None,
    output: _Output = None,
    max_gib: MaxGib = 8.0,
    as_json: _AsJson = False,
    no_progress: _NoProgress = False,
) -> None:
    """Remove the operations that are not needed to make a journal go wrong.

    The remaining steps are printed. With -o, they are also written as a
    journal. Exit code 0: the remaining steps still go wrong. 1: nothing goes
    wrong on this build.
    """
    _check_new(output)
    with readable(file, max_gib, _SHRINKS) as source:
        goal = operation
        if goal is None:
            difference = kvpool.journal.bisect_journal(source).difference
            if difference is not None and difference.kind == "digest":
                _fail(
                    f"{file}: only a digest differs, at operation {difference.operation:,}: there is no "
                    "answer to keep",
                    "record with a smaller digest_every to get closer, or give --operation",
                )
            goal = difference.operation if difference is not None and difference.kind == "answer" else None
            if difference is None:
                _fail(
                    f"{file}: nothing goes wrong on this build", "--operation N keeps what is answered there"
                )
        with _bar("shrink", None, shown=not no_progress and not as_json) as progress:
            shrunk = kvpool.journal.shrink_journal(source, operation=goal, progress=progress)
    if shrunk is None:
        _fail(f"{file}: nothing goes wrong on this build", "kvpool journal show lists its operations")
    if output is not None:
        _write_new(output, shrunk.journal)
    if as_json:
        facts = {"before": shrunk.before, "after": len(shrunk.operations), "runs": shrunk.runs}
        steps = {"failure": shrunk.failure, "operations": shrunk.operations}
        typer.echo(json.dumps({"source": str(file), **facts, **steps}, indent=2))
        return
    _say(f"{shrunk.before:,} operations, {len(shrunk.operations):,} of them needed ({shrunk.runs:,} runs):")
    for number, line in enumerate(shrunk.operations):
        _say(f"  {number:>3}  {line}")
    _say(f"what goes wrong: {shrunk.failure}")
    if output is not None:
        _say(f"next: kvpool journal export {output} --python", err=True)


@journal_app.command("export", epilog=EXAMPLES["journal export"])
def export_command(
    file: _File,
    rust: Annotated[bool, typer.Option("--rust", help="A test for cargo.")] = False,
    python: Annotated[bool, typer.Option("--python", help="A test for pytest.")] = False,
    limit: Annotated[
        int,
        typer.Option(help="Operations of the longest test; of more, nothing is written.", metavar="N", min=1),
    ] = 10_000,
    output: _Output = None,
    max_gib: MaxGib = 8.0,
    as_json: _AsJson = False,
) -> None:
    """Write a journal as a test that makes the same calls.

    The test expects the answers of this build, up to the first that differs
    from the journal. Prompts are made-up tokens, which are equal where the
    recorded tokens were. Shrink a long journal first. The size of a long test
    is printed before it is written.
    """
    if rust == python:
        raise UsageError("give one of --rust and --python")
    _check_new(output)
    language: ExportLanguage = "rust" if rust else "python"
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(readable(file, max_gib, _EXPORTS))
        _say_size(source, language, limit, output)
        writers: list[Callable[[str], object]] = []
        if output is not None:
            writers.append(stack.enter_context(_new_text(output)).write)
        if as_json:
            writers.append(
                stack.enter_context(_json_text({"source": str(file), "language": language}, "test"))
            )
        elif output is None:
            writers.append(sys.stdout.write)

        def write(piece: str) -> None:
            for one in writers:
                one(piece)

        kvpool.journal.export_journal(source, language, limit=limit, write=write)


#: If a journal has this number of operations or more, the size of the exported test is printed first.
_LONG: Final = 1000


def _say_size(source: _Source, language: ExportLanguage, limit: int, output: Path | None) -> None:
    """Print the size of a long test, before it is written. To measure it, generate the test once."""
    operations = kvpool.journal.read_journal(source).operations
    if not _LONG <= operations <= limit:
        return
    pieces = lines = 0

    def count(piece: str) -> None:
        nonlocal pieces, lines
        pieces += len(piece.encode())
        lines += piece.count("\n")

    kvpool.journal.export_journal(source, language, limit=limit, write=count)
    where = "the test" if output is None else str(output)
    _say(f"{where}: {operations:,} operations, {lines:,} lines, {pieces / 1e6:,.1f} MB", err=True)


@contextlib.contextmanager
def readable(file: Path, max_gib: float, times: int) -> Iterator[_Source]:
    """Yield a journal as the functions of kvpool.journal accept it: its path, or its bytes for stdin.

    Errors of these functions become a :class:`UsageError` that names the file.

    A journal that may take more than ``max_gib`` of memory is refused before it is read. The estimate is
    ``times`` the size of the journal, or one time more for standard input. From standard input, at most the
    allowed number of bytes is read.
    """
    if not 0 < max_gib < math.inf:
        raise UsageError(f"--max-gib is {max_gib}: must be above 0, and finite")
    is_stdin = str(file) == "-"
    times += is_stdin
    most = int(max_gib * 2**30 / times) if times else None
    if is_stdin:
        given = sys.stdin.buffer.read((most or 0) + 1)
        source: _Source = given
        found = len(given)
    else:
        source = file
        found = file.stat().st_size if file.is_file() else 0
    if most is not None and found > most:
        name, size = ("stdin", "more than ") if is_stdin else (str(file), "")
        needed = found * times / 2**30
        raise UsageError(
            f"{name}: {size}{found:,} bytes may take {figure(needed, 3)} GiB of memory here: --max-gib is "
            f"{max_gib:g}",
            None if size else f"--max-gib {math.ceil(needed)} allows it",
        )
    try:
        yield source
    except (JournalError, JournalFileError) as error:
        message = str(error)
        raise UsageError(message if str(file) in message else f"{file}: {message}", _hint(message)) from error


def _hint(message: str) -> str | None:
    if "No such file" in message or "Is a directory" in message:
        return "give the path of a journal; kvpool replay TRACE --journal run.kvj records one"
    if "not a journal" in message:
        made = 'CacheManager(..., journal=kvpool.journal.Journal("run.kvj"))'
        return f"{made} records one, and kvpool replay --journal run.kvj"
    if "a test has at most" in message:
        return "kvpool journal bisect and shrink find the operations that matter; --limit N allows more"
    if "operations are missing" in message or "operations are repeated" in message:
        return "head -c BYTES FILE > before.kvj keeps what is before that byte"
    if "can be shown, but not replayed" in message:
        return "kvpool journal show lists what it holds"
    return None


def _check_new(output: Path | None) -> None:
    if output is not None and output.exists():
        raise UsageError(f"{output} exists: nothing is overwritten", "remove it, or give another name")


@contextlib.contextmanager
def _new_text(output: Path) -> Iterator[IO[str]]:
    """Open a new file for writing. If writing fails, remove the file."""
    with output.open("x", encoding="utf-8") as file:
        try:
            yield file
        except BaseException:
            output.unlink()
            raise


@contextlib.contextmanager
def _json_text(facts: dict[str, str], name: str) -> Iterator[Callable[[str], object]]:
    """Yield a function that prints pieces of a text as the last value of a JSON object.

    Nothing is printed before the first piece.
    """
    head = json.dumps({**facts, name: ""}, indent=2).removesuffix('"\n}')
    begun = False

    def write(piece: str) -> None:
        nonlocal begun
        sys.stdout.write(("" if begun else head) + json.dumps(piece)[1:-1])
        begun = True

    yield write
    typer.echo(f'{"" if begun else head}"\n}}')


def _write_new(output: Path, data: bytes) -> None:
    """Write a journal to a new file. Only its owner can read it, because it contains request ids."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _say(text: str, *, err: bool = False) -> None:
    typer.echo("\n".join(shown(line) for line in text.split("\n")), err=err)


def _fail(message: str, hint: str) -> NoReturn:
    _say(f"error: {message}\nhint: {hint}", err=True)
    raise typer.Exit(1)


@contextlib.contextmanager
def _bar(name: str, total: int | None, *, shown: bool) -> Iterator[Callable[[int], None]]:
    console = Console(stderr=True)
    columns = (
        TextColumn(name),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("operations"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not (shown and console.is_terminal)
    ) as bar:
        task = bar.add_task(name, total=total)
        yield lambda done: bar.update(task, completed=done)


#: The attributes of a JournalInfo that ``show --json`` prints unchanged.
_FACTS: Final = (
    "subject",
    "version",
    "settings",
    "bytes",
    "first_operation",
    "operations",
    "digest_every",
    "digests",
    "calls",
    "cut_at",
    "cut_bytes",
)


def _print_info(file: Path, info: kvpool.journal.JournalInfo, console: Console) -> None:
    """Print the facts of a journal as tables that fit 80 columns, and then the requested operations."""
    facts = Table(box=box.SIMPLE, show_header=False, title=Text(f"kvpool journal: {shown(str(file))}"))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(justify="right", no_wrap=True)
    facts.add_column(style="dim", overflow="fold")
    for section in (_subject_rows(info), _size_rows(info)):
        for row in section:
            facts.add_row(*(Text(shown(cell)) for cell in row))
        facts.add_section()
    show(console, facts)
    calls = Table(box=box.SIMPLE_HEAD, title="Calls")
    calls.add_column("call", no_wrap=True)
    calls.add_column("operations", justify="right", no_wrap=True)
    for call, count in sorted(info.calls.items(), key=lambda item: (-item[1], item[0])):
        calls.add_row(shown(call), f"{count:,}")
    show(console, calls)
    # The operations are printed as plain lines and not as a table, because users search and cut them.
    for number, call, words in info.lines:
        console.print(Text(shown(f"{number:>10}  {call}  {words}".rstrip())), soft_wrap=True)


#: A row of a table: name, value, and remark.
_Row = tuple[str, str, str]


def _subject_rows(info: kvpool.journal.JournalInfo) -> Iterator[_Row]:
    settings = info.settings
    yield "recorded", info.subject, f"by kvpool {info.version}"
    yield "pool", f"{settings['num_blocks']:,}", f"blocks of {settings['block_size']:,} tokens"
    yield "eviction", settings["eviction"], "with retention" if settings["retention"] else ""
    if info.subject == "manager":
        yield (
            "hash",
            settings["algorithm"],
            "" if settings["verify"] == "none" else f"{settings['verify']} compared",
        )
        if settings["host_blocks"]:
            yield "host tier", f"{settings['host_blocks']:,}", "blocks"


def _size_rows(info: kvpool.journal.JournalInfo) -> Iterator[_Row]:
    held = info.operations - info.first_operation
    gone = f"from number {info.first_operation:,} on: what was before is gone" if info.first_operation else ""
    yield "operations", f"{held:,}", gone
    yield (
        "digests",
        f"{info.digests:,}",
        f"one in {info.digest_every:,} operations" if info.digest_every else "off",
    )
    yield "bytes", f"{info.bytes:,}", f"{info.bytes / held:,.1f} per operation" if held else ""
    if info.cut_at is None:
        yield "end", "complete", ""
    else:
        yield "end", "cut", f"behind byte {info.cut_at:,}; {info.cut_bytes:,} bytes are of no whole frame"


def _report_json(report: kvpool.journal.JournalReport) -> dict[str, Any]:
    difference = report.difference
    return {
        "exact": report.is_exact,
        "operations": report.operations,
        "digests": report.digests,
        "difference": None
        if difference is None
        else {name: getattr(difference, name) for name in ("kind", "operation", "since", "asked", "found")},
        "cut_at": report.cut_at,
        "cut_bytes": report.cut_bytes,
    }


def _print_report(file: Path, report: kvpool.journal.JournalReport, seconds: float | None) -> None:
    """Print the result of a replay, and a hint for the user's next step."""
    took = "" if seconds is None else f" in {seconds:,.2f} s"
    if report.cut_at is not None:
        _say(
            f"{file}: cut behind byte {report.cut_at:,}: {report.cut_bytes:,} bytes of no whole frame are "
            "left out",
            err=True,
        )
    difference = report.difference
    if difference is None:
        _say(f"{file}: bit-exact: {report.operations:,} operations, {report.digests:,} digests{took}")
        return
    number = difference.operation
    if difference.kind == "digest":
        since = difference.since or 0
        _say(f"{file}: the state differs at operation {number:,}, and was the same at operation {since:,}")
        _say("  every answer until there is the same")
        _say(f"next: kvpool journal show {file} --from {since} --count {number - since}", err=True)
        return
    if difference.kind == "invariant":
        _say(f"{file}: an invariant is broken after operation {number:,}")
        _say(f"  {difference.found}\n  asked: {difference.asked}")
    else:
        _say(f"{file}: operation {number:,} is answered otherwise")
        _say(f"  asked: {difference.asked}\n  this build answers: {difference.found}")
    _say(f"next: kvpool journal shrink {file} -o small.kvj", err=True)
