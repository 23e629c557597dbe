"""``kvpool compare``: two runs, two traces or two policies, side by side.

This module owns the command, the types of A and B, and the table. :mod:`kvpool.cli.comparison` owns the
compared figures and their differences, and :mod:`kvpool.cli.compare_page` the page.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvpool.cli import options  # noqa: TC001 - Typer reads the annotations
from kvpool.cli.capacity import SizeOptions
from kvpool.cli.comparison import (
    Comparison,
    RowError,
    cells,
    kind_of,
    of_policies,
    of_replays,
    of_sizes,
    of_traces,
)
from kvpool.cli.files import check_output
from kvpool.cli.problems import UsageError, bad_usage
from kvpool.cli.rows import one_form, print_csv
from kvpool.cli.running import load
from kvpool.cli.size import Capacities, Form, FullBlocks, Jobs, Policies, bar_of_cells, parts
from kvpool.cli.tables import show
from kvpool.cli.terminal import shown
from kvpool.errors import InvalidArgumentError
from kvpool.sizing import DEFAULT_CAPACITIES, POLICIES, check_sizing, size

if TYPE_CHECKING:
    import kvpool
    from kvpool._core import EvictionPolicy
    from kvpool.models import KvShape
    from kvpool.sizing import Size
    from kvpool.sizing.report import SizingReport

__all__ = ["compare_command"]

_CAPACITIES: Final = ",".join(DEFAULT_CAPACITIES)

#: Maximum number of bytes of a report. A larger file is read as a trace.
_LARGEST_REPORT: Final = 64 << 20

_Side = typer.Argument(show_default=False, metavar="A", help="A report, a trace, or with --trace a policy.")
_Other = typer.Argument(show_default=False, metavar="B", help="What to compare it with: of the same kind.")
_Trace = Annotated[
    Path | None,
    typer.Option("--trace", metavar="TRACE", help="Compare two policies on this trace.", show_default=False),
]
_Html = Annotated[
    Path | None,
    typer.Option(help="Write a page with a plot, in one file.", metavar="FILE", show_default=False),
]


def compare_command(
    a: Annotated[str, _Side],
    b: Annotated[str, _Other],
    trace: _Trace = None,
    trace_format: options.TraceFormat = "auto",
    limit: options.Limit = None,
    trace_block_size: options.TraceBlockSize = None,
    no_check_prefixes: options.NoCheckPrefixes = False,
    sort: options.Sort = False,
    sessions_at_once: options.SessionsAtOnce = None,
    policies: Policies = "lru",
    capacities: Capacities = _CAPACITIES,
    form: Form = "pool",
    full_blocks: FullBlocks = False,
    model: options.Model = None,
    config: options.Config = None,
    dtype: options.Dtype = None,
    jobs: Jobs = 0,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    html: _Html = None,
    no_progress: options.NoProgress = False,
) -> None:
    """Compare two runs, two traces or two policies.

    Runs are reports that kvpool replay --json or kvpool size --json printed.
    Rates differ in points, everything else in its unit, as B minus A. Figures
    that only one of the two has are left out.
    """
    one_form(as_json=as_json, as_csv=as_csv)
    check_output(html, ".html", trace)
    shape = SizeOptions(model=model, config=config, dtype=dtype).shape()
    # Scripts read JSON and CSV. With these, a progress bar is shown only if stderr is a terminal.
    shown_bars = not no_progress and (not (as_json or as_csv) or sys.stderr.isatty())

    def loaded(path: str) -> kvpool.traces.Trace:
        return load(
            Path(path),
            limit=limit,
            block_tokens=trace_block_size,
            check_prefixes=not no_check_prefixes,
            trace_format=trace_format,
            sort=sort,
            sessions_at_once=sessions_at_once,
            progress=shown_bars,
        )[0]

    def sized(one: kvpool.traces.Trace, source: str, names: list[str]) -> SizingReport:
        with (
            bar_of_cells("size", "simulations", shown=shown_bars) as progress,
            bar_of_cells("groups", "requests", shown=shown_bars) as group_progress,
        ):
            return size(
                one,
                policies=cast("list[EvictionPolicy]", names),
                capacities=asked,
                form=form,
                blocks="full" if full_blocks else "all",
                hints=(),
                shape=shape,
                jobs=jobs,
                source=source,
                progress=progress,
                group_progress=group_progress,
            )

    reports = None if trace is not None else _reports(a, b)
    if reports is not None:
        if (
            _any_given(limit, trace_block_size, sessions_at_once, model, config, dtype)
            or capacities != _CAPACITIES
        ):
            raise UsageError("reports are compared as they are: options of traces and sizes go with traces")
        found = _of_reports(reports, (a, b))
    elif trace is not None:
        asked = _sizes_wanted([a, b], capacities, shape)
        found = of_policies(sized(loaded(str(trace)), str(trace), [a, b]), (a, b))
    else:
        names: list[str] = parts("--policies", policies) if policies != "all" else [*POLICIES]
        asked = _sizes_wanted(names, capacities, shape)
        for path in (a, b):
            check_output(html, ".html", Path(path))
        traces = loaded(a), loaded(b)
        stats = json.loads(traces[0].stats_json()), json.loads(traces[1].stats_json())
        pair = sized(traces[0], a, names), sized(traces[1], b, names)
        found = of_traces(pair, stats, (a, b), (_labels(pair[0], asked), _labels(pair[1], asked)))
    _print(found, html, as_json=as_json, as_csv=as_csv)


def _any_given(*values: object) -> bool:
    return any(value is not None for value in values)


def _labels(report: SizingReport, asked: list[Size]) -> dict[int, str]:
    """Return a dict of each size in blocks and the text that the user gave for it.

    With two traces, a text such as ``5 %`` is two different numbers of blocks.
    """
    trace, model = report["trace"], report["model"]
    weight = None if model is None else model["bytes_per_token"] * trace["block_size"]
    return {
        one.blocks(unique_blocks=trace["unique_blocks"], bytes_per_block=weight): f"{one.amount:g} {one.unit}"
        for one in asked
    }


def _sizes_wanted(names: list[str], capacities: str, shape: KvShape | None) -> list[Size]:
    try:
        return check_sizing(
            policies=cast("list[EvictionPolicy]", names),
            capacities=parts("--capacities", capacities),
            hints=(),
            shape=shape,
        )
    except InvalidArgumentError as error:
        raise bad_usage(error) from error


def _reports(a: str, b: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return both files as reports, or ``None`` if neither file is a report.

    Raises:
        UsageError: Only one of the two files is a report.

    """
    if a == b == "-":
        raise UsageError("A and B are both stdin: it is read once")
    found = [_report(a), _report(b)]
    if found[0] is None and found[1] is None:
        known = [name for name in (a, b) if name in POLICIES and not Path(name).exists()]
        if known:
            raise UsageError(f"{known[0]} is an eviction policy: on which trace?", "add --trace TRACE")
        return None
    if found[0] is None or found[1] is None:
        odd, other = (a, b) if found[0] is None else (b, a)
        raise UsageError(f"{other} is a report and {odd} is none: two of one kind can be compared")
    if kind_of(found[0]) != kind_of(found[1]):
        raise UsageError(f"{a} is of kvpool {kind_of(found[0])} and {b} of kvpool {kind_of(found[1])}")
    return found[0], found[1]


def _report(name: str) -> dict[str, Any] | None:
    """Return the report in a file; ``None`` if it is a trace or does not exist."""
    path = Path(name)
    if not path.is_file() or path.stat().st_size > _LARGEST_REPORT:
        return None
    with path.open("rb") as file:
        if not file.read(256).lstrip().startswith(b"{"):
            return None
        file.seek(0)
        try:
            value = json.load(file)
        except (ValueError, RecursionError):
            return None
    return value if kind_of(value) else None


def _of_reports(reports: tuple[dict[str, Any], dict[str, Any]], names: tuple[str, str]) -> Comparison:
    try:
        return (of_replays if kind_of(reports[0]) == "replay" else of_sizes)(reports, names)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        # Only the message of RowError is written for users, so only this message is shown.
        what = f": {error}" if isinstance(error, RowError) else ""
        raise UsageError(
            f"{names[0]} and {names[1]}: a report has another form than this version prints{what}",
            f"make both again with kvpool {kind_of(reports[0])} --json",
        ) from None


def _print(found: Comparison, html: Path | None, *, as_json: bool, as_csv: bool) -> None:
    if html is not None:
        from kvpool.cli.compare_page import render

        html.write_text(render(found), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
    elif as_csv:
        print_csv(found.as_rows())
    else:
        print_comparison(found, Console(highlight=False, file=sys.stdout))


def print_comparison(found: Comparison, console: Console) -> None:
    """Print a table for each section. The tables fit a terminal of 80 columns."""
    console.print(Text(f"kvpool compare: two {found.of}"))
    console.print(Text(f"  A  {shown(found.a)}\n  B  {shown(found.b)}"), soft_wrap=True)
    for section in found.sections:
        table = Table(box=box.SIMPLE_HEAD, title=Text(shown(section.title)), pad_edge=False)
        table.add_column("", overflow="fold")
        for head in ("A", "B", "difference"):
            table.add_column(head, justify="right", overflow="fold")
        for row in section.rows:
            table.add_row(*(Text(shown(cell)) for cell in cells(row)))
        show(console, table)
