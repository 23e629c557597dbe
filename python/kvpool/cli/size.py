"""``kvpool size``: finds how much cache a workload needs, and which policy.

This module owns the command's options and the steps from them to a report. :func:`kvpool.sizing.size`
computes the figures. :mod:`kvpool.cli.size_table` makes the table, and :mod:`kvpool.cli.sizing_html`
the page and the picture.
"""

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast

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

from kvpool.cli import options
from kvpool.cli.capacity import SizeOptions
from kvpool.cli.files import check_output
from kvpool.cli.gpus import Gpu, Gpus, GpuShare, WeightsGib, gpu_memory, warn_of_copies
from kvpool.cli.plot import need_matplotlib
from kvpool.cli.problems import SHAPE_HINT, UsageError, bad_usage
from kvpool.cli.rows import one_form, print_csv
from kvpool.cli.running import load
from kvpool.cli.size_table import print_sizing
from kvpool.cli.size_tiers import DiskRead, DiskTib, HostGib, HostRead, tiers_asked
from kvpool.cli.tables import figure
from kvpool.errors import InvalidArgumentError
from kvpool.sizing import (
    DEFAULT_CAPACITIES,
    DEFAULT_HINTS,
    DEFAULT_KEEP,
    DEFAULT_POLICIES,
    POLICIES,
    check_sizing,
    parse_keep,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvpool._core import EvictionPolicy
    from kvpool.sizing.report import SizingReport

__all__ = ["bar_of_cells", "parts", "size_command"]

_POLICIES: Final = ", ".join(DEFAULT_POLICIES)  # with spaces, where help may break the line
_CAPACITIES: Final = ",".join(DEFAULT_CAPACITIES)
_HINTS: Final = ",".join(map(str, DEFAULT_HINTS))

_PANEL = "Sizing"
Policies = Annotated[
    str,
    typer.Option(
        help=f"Eviction policies, by commas, or all: {', '.join(POLICIES)}.",
        metavar="NAMES",
        rich_help_panel=_PANEL,
    ),
]
Capacities = Annotated[
    str,
    typer.Option(
        help="Sizes, by commas: 5% of the trace's different blocks, 60GiB of a model's KV, or 9139 blocks.",
        metavar="SIZES",
        rich_help_panel=_PANEL,
    ),
]
Form = Annotated[
    Literal["pool", "stream"],
    typer.Option(
        help="pool: as the shipped pool evicts, whole requests at a time, no parent before its children. "
        "stream: each block for itself, as papers simulate.",
        metavar="FORM",
        rich_help_panel=_PANEL,
    ),
]
FullBlocks = Annotated[
    bool,
    typer.Option(
        "--full-blocks",
        help="Leave out partial last blocks, which an engine cannot find again.",
        rich_help_panel=_PANEL,
    ),
]
Hints = Annotated[
    str,
    typer.Option(
        help="Accuracies of end-of-life hints, 0 to 1, by commas; none is none.",
        metavar="SHARES",
        rich_help_panel=_PANEL,
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        help="Threads, 0: one per core. Results are the same.",
        metavar="N",
        min=0,
        max=1024,
        rich_help_panel="Run",
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        help="Write a page with plots, in one file.",
        metavar="FILE",
        rich_help_panel="Run",
        show_default=False,
    ),
]
Picture = Annotated[
    Path | None,
    typer.Option(
        "--png",
        help="Write the plots as a picture; needs matplotlib.",
        metavar="FILE",
        rich_help_panel="Run",
        show_default=False,
    ),
]
SampleBlocks = Annotated[
    int | None,
    typer.Option(
        help="For huge traces: estimate LRU from a sample of at most this many blocks, and nothing else.",
        metavar="N",
        min=1,
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
PrefillSpeed = Annotated[
    float | None,
    typer.Option(
        "--prefill-tokens-per-s",
        help="Speed of prefill: says what memory and tiers buy in seconds. Needs a KV shape.",
        metavar="N",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]


def size_command(
    trace: options.TracePath = None,
    trace_format: options.TraceFormat = "auto",
    limit: options.Limit = None,
    trace_block_size: options.TraceBlockSize = None,
    no_check_prefixes: options.NoCheckPrefixes = False,
    sort: options.Sort = False,
    sessions_at_once: options.SessionsAtOnce = None,
    policies: Policies = _POLICIES,
    capacities: Capacities = _CAPACITIES,
    form: Form = "pool",
    full_blocks: FullBlocks = False,
    hints: Hints = _HINTS,
    model: options.Model = None,
    config: options.Config = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    weights_gib: WeightsGib = None,
    gpu_share: GpuShare = None,
    dtype: options.Dtype = None,
    layers: options.Layers = None,
    kv_heads: options.KvHeads = None,
    head_dim: options.HeadDim = None,
    latent_dim: options.LatentDim = None,
    keep: options.Keep = DEFAULT_KEEP,
    prefill_tokens_per_s: PrefillSpeed = None,
    host_gib: HostGib = None,
    host_read: HostRead = None,
    disk_tib: DiskTib = None,
    disk_read: DiskRead = None,
    sample_blocks: SampleBlocks = None,
    jobs: Jobs = 0,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    html: Html = None,
    png: Picture = None,
    no_progress: options.NoProgress = False,
) -> None:
    """Size a cache for a workload: policies, capacities, the optimum, and what each GiB buys.

    Reads a request trace and prints hit rates of prefix caches: of LRU at every
    capacity, of each policy at chosen capacities, of the optimal policy, and of
    LRU with hints about blocks that are not used again.
    """
    one_form(as_json=as_json, as_csv=as_csv)
    memory = gpu_memory(gpu, gpus, weights_gib, gpu_share)
    shape = SizeOptions(None, None, model, dtype, layers, kv_heads, head_dim, latent_dim, config).shape()
    if memory is not None and shape is None:
        raise UsageError("--gpu needs the KV shape of a model", f"add {SHAPE_HINT}")
    warn_of_copies(memory, shape)
    if prefill_tokens_per_s is not None and shape is None:
        raise UsageError("--prefill-tokens-per-s needs the KV shape of a model", f"add {SHAPE_HINT}")
    if prefill_tokens_per_s is not None and not prefill_tokens_per_s > 0:
        raise UsageError(f"--prefill-tokens-per-s is {prefill_tokens_per_s}: must be above 0")
    tiers = tiers_asked(host_gib, host_read, disk_tib, disk_read, shape)
    check_output(html, ".html", trace)
    check_output(png, ".png", trace)
    if png is not None:
        need_matplotlib()
    accuracies = _accuracies(hints)
    given = list(POLICIES) if policies == "all" else parts("--policies", policies)
    names = cast("list[EvictionPolicy]", given)
    try:
        kept = parse_keep(keep)
        # The settings are checked before the trace is read, because reading may take long.
        asked = check_sizing(
            policies=names,
            capacities=[
                *parts("--capacities", capacities),
                *([] if memory is None else [f"{memory.kv_gib:.6g}GiB"]),
            ],
            hints=accuracies,
            shape=shape,
            sample_blocks=sample_blocks,
            tiers=tiers,
        )
    except InvalidArgumentError as error:
        raise bad_usage(error) from error
    # Scripts read JSON and CSV. With these, a progress bar is shown only if stderr is a terminal.
    shown = not no_progress and (not (as_json or as_csv) or sys.stderr.isatty())
    loaded, source = load(
        trace,
        limit=limit,
        block_tokens=trace_block_size,
        check_prefixes=not no_check_prefixes,
        trace_format=trace_format,
        sort=sort,
        sessions_at_once=sessions_at_once,
        progress=shown,
    )
    bars = shown and sample_blocks is None
    with (
        bar_of_cells("size", "simulations", shown=bars) as progress,
        bar_of_cells("groups", "requests", shown=bars) as group_progress,
    ):
        try:
            report = size(
                loaded,
                policies=names,
                capacities=asked,
                form=form,
                blocks="full" if full_blocks else "all",
                hints=accuracies,
                shape=shape,
                prefill_tokens_per_s=prefill_tokens_per_s,
                jobs=jobs,
                sample_blocks=sample_blocks,
                keep=kept,
                tiers=tiers,
                source=source,
                progress=progress,
                group_progress=group_progress,
            )
        except InvalidArgumentError as error:
            raise bad_usage(error) from error
    _write(report, html, png)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    elif as_csv:
        print_csv(_rows(report))
    else:
        console = Console(highlight=False)
        print_sizing(report, console)
        if memory is not None:
            console.print(f"{figure(memory.kv_gib)} GiB is what {memory.in_words()} leave for KV.")


def _rows(report: "SizingReport") -> "list[dict[str, object]]":
    """Return the CSV rows: one per policy and capacity, and one per point of the LRU curve."""
    named = [("policy", policy["name"], policy["hits"]) for policy in report["policies"]]
    named += [("hints", f"{hint['accuracy']:g}", hint["hits"]) for hint in report["hints"]]
    if (reasons := report["finish_reasons"]) is not None:
        named.append(("no finish reasons", reasons["policy"], reasons["without"]))
    if report["optimum"] is not None:
        named.append(("optimum", "", report["optimum"]["hits"]))
    rows: list[dict[str, object]] = [
        {"kind": kind, "name": name, **size, **one}
        for kind, name, hits in named
        for size, one in zip(report["capacities"], hits, strict=True)
    ]
    tokens = report["trace"]["block_size"]
    rows += [
        {"kind": "lru-curve", "name": "lru", **point, "tokens": point["blocks"] * tokens}
        for point in report["lru_curve"]
    ]
    return rows


def parts(option: str, text: str) -> list[str]:
    """Return the words of an option's text, which are separated by commas.

    Raises:
        UsageError: A word is empty.

    """
    found = [part.strip() for part in text.split(",")]
    if "" in found:
        raise UsageError(
            f"{option} is {text!r}: there is nothing between two commas, or at an end", "leave a comma out"
        )
    return found


def _accuracies(text: str) -> list[float]:
    """Return the shares in the text of ``--hints``, which are separated by commas.

    >>> _accuracies("0.5, 1")
    [0.5, 1.0]
    """
    if text.strip().lower() in {"", "none"}:
        return []
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--hints is {text!r}: must be shares of 0 to 1, by commas, or none") from None


def _write(report: "SizingReport", html: Path | None, png: Path | None) -> None:
    if html is not None:
        from kvpool.cli.sizing_html import render

        html.write_text(render(report), encoding="utf-8")
    if png is not None:
        from kvpool.cli.sizing_html import save_png

        save_png(report, png)


@contextlib.contextmanager
def bar_of_cells(name: str, of: str, *, shown: bool) -> "Iterator[Callable[[int, int], None]]":
    """Show a progress bar when the first progress is reported, so that an early error leaves no empty bar.

    The bar ends when all work is done.
    """
    columns = (
        TextColumn(name),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn(of),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), disable=not shown)
    task = bar.add_task(name, total=None)

    def show(done: int, total: int) -> None:
        if shown and not bar.live.is_started:
            bar.start()
        bar.update(task, completed=done, total=total)
        if done >= total:
            stop()

    def stop() -> None:
        # Stopping a bar that was never started would print an empty line.
        if bar.live.is_started:
            bar.stop()

    try:
        yield show
    finally:
        stop()
