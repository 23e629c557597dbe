"""``kvpool store``: show, verify, clean and measure the stores beneath an engine's memory.

This module owns the commands, their output and exit codes. The library defines objects, and checks
whether they are intact.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from kvpool.cli.examples import EXAMPLES
from kvpool.cli.problems import UsageError
from kvpool.cli.store_bench import Measured, measure
from kvpool.cli.store_servers import gc_server, is_server, show_server, verify_server
from kvpool.cli.store_words import at, described, digests_kept, print_cleared, size_words
from kvpool.cli.tables import show
from kvpool.cli.terminal import shown
from kvpool.errors import InvalidArgumentError, StoreInUseError, StoreNotFoundError
from kvpool.store import StoreFolder
from kvpool.store.urls import path_of, without_password

if TYPE_CHECKING:
    from kvpool.store import Namespace

__all__ = ["store_app"]

#: Number of slots of a store's file that are read between two checks for Ctrl-C.
_SLICE: Final = 256
#: Maximum number of damaged slots that are printed one by one.
_LISTED: Final = 20

store_app: Final = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    no_args_is_help=False,
    epilog=EXAMPLES["store"],
    help="Look at, verify, tidy and time stores beneath an engine's memory.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

_Target = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER-OR-URL",
        help="Folder of a store, or URL of a shared back end: redis://host, rediss://host, s3://bucket, "
        "folder:///path.",
        show_default=False,
    ),
]
#: The default time limit for reading a server, in seconds.
_SECONDS: Final = 3600.0
_Timeout = Annotated[
    float,
    typer.Option(
        help="Seconds that looking at a server may take; a disk has no limit.", metavar="SECONDS", min=0.1
    ),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
_NoProgress = Annotated[
    bool, typer.Option("--no-progress", help="No progress bar. Without a terminal there is none.")
]


@dataclasses.dataclass(slots=True)
class _Found:
    """The results of reading all objects in a folder."""

    objects: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    payload_bytes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    places: dict[str, list[int]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    damaged: list[tuple[int, str]] = dataclasses.field(default_factory=list)


@store_app.callback(invoke_without_command=True, epilog=EXAMPLES["store"])
def _group(context: typer.Context) -> None:
    """Look at, verify, clean and measure stores beneath an engine's memory.

    A store keeps the KV of blocks on a disk, in one file. Each object has a
    header that names its namespace, and checksums. Exit code 0: all is well. 1:
    something is damaged, or the disk fails. 2: bad usage.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@store_app.command("show", epilog=EXAMPLES["store show"])
def show_command(
    target: _Target, timeout: _Timeout = _SECONDS, as_json: _AsJson = False, no_progress: _NoProgress = False
) -> None:
    """Show the content of a store: room, objects, and their namespaces.

    Reads only the headers, 4 KiB per place, also while an engine uses the
    store. Objects that are being written may then look damaged. For a bucket,
    reads only names and sizes. Other files and keys are counted.
    """
    if is_server(target):
        with at(without_password(target)):
            show_server(target, timeout=timeout, as_json=as_json, progress=not no_progress)
        return
    folder = _folder(target)
    opened = _open(folder, exclusive=False)
    found = _walk(opened, "show", verify=False, progress=not no_progress and not as_json)
    texts = opened.namespaces()
    if as_json:
        typer.echo(json.dumps(_facts(folder, opened, found, texts), indent=2))
        return
    total = sum(found.objects.values())
    room = opened.places * opened.object_bytes
    typer.echo(
        f"{shown(str(folder))}: {total:,} of {opened.places:,} places taken, {size_words(room)} in all"
    )
    typer.echo(f"this machine moves its bytes by {opened.io}")
    if found.damaged:
        typer.echo(
            f"{len(found.damaged):,} places are damaged, or being written: kvpool store verify reads them all"
        )
    for digest in sorted({*texts, *found.objects}, key=lambda digest: -found.objects[digest]):
        kv = size_words(found.payload_bytes[digest])
        typer.echo(f"\nnamespace {digest[:12]}: {found.objects[digest]:,} objects, {kv} of KV")
        typer.echo(f"  {described(texts.get(digest))}")


@store_app.command("verify", epilog=EXAMPLES["store verify"])
def verify_command(
    target: _Target, timeout: _Timeout = _SECONDS, as_json: _AsJson = False, no_progress: _NoProgress = False
) -> None:
    """Read every object, and compare its checksums.

    A disk must not be in use; servers may be. Exit code 1 if anything is
    damaged. An engine would also notice it, and compute the block instead.
    """
    if is_server(target):
        with at(without_password(target)):
            verify_server(target, timeout=timeout, as_json=as_json, progress=not no_progress)
        return
    folder = _folder(target)
    opened = _open(folder, exclusive=True)
    found = _walk(opened, "verify", verify=True, progress=not no_progress and not as_json)
    objects = sum(found.objects.values())
    if as_json:
        damaged = [{"place": place, "problem": problem} for place, problem in found.damaged]
        typer.echo(json.dumps({"folder": str(folder), "intact": objects, "damaged": damaged}, indent=2))
    else:
        typer.echo(f"{objects:,} objects are intact, {len(found.damaged):,} are not")
        for place, problem in found.damaged[:_LISTED]:
            typer.echo(f"  place {place:,}: {shown(problem)}")
        if len(found.damaged) > _LISTED:
            typer.echo(f"  and {len(found.damaged) - _LISTED:,} more; --json lists them all")
    if found.damaged:
        typer.echo(f"next: kvpool store gc --verify {shown(str(folder))} makes their room free", err=True)
        raise typer.Exit(1)


@store_app.command("gc", epilog=EXAMPLES["store gc"])
def gc_command(
    target: _Target,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="Clear all namespaces except this one; the beginning of its digest is enough. May be given "
            "several times.",
            metavar="DIGEST",
            show_default="keep all",
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read payloads, too, and clear what is damaged.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be cleared, and change nothing.")
    ] = False,
    timeout: _Timeout = _SECONDS,
    as_json: _AsJson = False,
    no_progress: _NoProgress = False,
) -> None:
    """Clear objects that no engine will read: damaged ones, and other namespaces.

    A disk must not be in use by a store. A store clears the space that it needs
    by itself, and this command clears all of it now. On servers, objects of
    earlier weights stay until they expire or are cleared. Engines that still
    use a cleared namespace find nothing any more.
    """
    if is_server(target):
        with at(without_password(target)):
            gc_server(
                target,
                keep=keep,
                verify=verify,
                dry_run=dry_run,
                timeout=timeout,
                as_json=as_json,
                progress=not no_progress,
            )
        return
    folder = _folder(target)
    opened = _open(folder, exclusive=True)
    found = _walk(opened, "gc", verify=verify, progress=not no_progress and not as_json)
    texts = opened.namespaces()
    kept = digests_kept({*texts, *found.objects}, keep, "folder")
    other = sorted(set(found.objects) - kept)
    unused = sorted(digest for digest in texts if digest not in kept or not found.objects[digest])
    places = [place for place, _ in found.damaged] + [
        place for digest in other for place in found.places[digest]
    ]
    if not dry_run:
        opened.clear(places)
        for digest in unused:
            opened.forget(digest)
    facts = {
        "folder": str(folder),
        "damaged": len(found.damaged),
        "of_other_namespaces": len(places) - len(found.damaged),
        "kept": sum(found.objects[digest] for digest in kept),
        "namespaces_forgotten": unused,
        "dry_run": dry_run,
    }
    print_cleared(facts, "cleared", as_json=as_json)


@store_app.command("bench", epilog=EXAMPLES["store bench"])
def bench_command(
    place: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER-OR-URL",
            help="Where to write: a folder of a disk, in which one is made and removed; or a server, by "
            "its URL.",
            show_default=False,
        ),
    ],
    object_kib: Annotated[
        list[int] | None,
        typer.Option(
            "--object-kib",
            help="KiB of an object; may be given several times.",
            metavar="N",
            min=4,
            max=1 << 16,
            show_default="64, 256, 1024, 4096",
        ),
    ] = None,
    gib: Annotated[
        float, typer.Option(help="GiB to write and to read, of each size.", metavar="N", min=0.001)
    ] = 1.0,
    workers: Annotated[int, typer.Option(help="Threads of the store.", metavar="N", min=1, max=256)] = 4,
    depth: Annotated[
        int, typer.Option(help="Objects on their way at once.", metavar="N", min=1, max=4096)
    ] = 16,
    as_json: _AsJson = False,
    no_progress: _NoProgress = False,
) -> None:
    """Measure the speed of a store on a disk or a server. Every byte is checked.

    Writes objects of each size, opens the store again as after a restart, reads
    all of them in another order, and removes them. On a disk, it bypasses the
    page cache if the file system can. If it cannot, the table mentions it, and
    reads come from memory.
    """
    if not is_server(place):
        place = str(_folder(place))
        if not Path(place).is_dir():
            raise UsageError(
                f"{shown(place)}: no such folder", "give a folder on the disk that is to be measured"
            )
    sizes = object_kib or [64, 256, 1024, 4096]
    total = int(gib * 2**30)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    console = Console(stderr=True)
    shows = console.is_terminal and not no_progress and not as_json
    measured: list[Measured] = []
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not shows) as bar:
        task = bar.add_task("bench", total=2 * total * len(sizes))
        for size in sizes:
            bar.update(task, description=f"{size} KiB")
            try:
                with at(without_password(place)):
                    one = measure(
                        place, size << 10, total, workers, depth, lambda done: bar.advance(task, done)
                    )
            except InvalidArgumentError as error:
                raise UsageError(str(error)) from error
            measured.append(one)
    if as_json:
        typer.echo(json.dumps({"sizes": [dataclasses.asdict(one) for one in measured]}, indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    way = ("GB/s", "p50\nms", "p99\nms")
    heads = (
        "object",
        "objects",
        f"write\n{way[0]}",
        *way[1:],
        f"read\n{way[0]}",
        *way[1:],
        "open\nms",
        "lookup\nus",
    )
    for name in heads:
        table.add_column(name, justify="right")
    for one in measured:
        table.add_row(
            size_words(one.object_bytes),
            f"{one.objects:,}",
            *(
                text
                for way in (one.write, one.read)
                for text in (f"{way.gb_per_s:,.2f}", f"{way.p50_ms:,.2f}", f"{way.p99_ms:,.2f}")
            ),
            "-" if one.open_s is None else f"{one.open_s * 1e3:,.1f}",
            f"{one.lookup_us:.2f}",
        )
    out = Console(highlight=False)
    show(out, table)
    if any(one.is_direct is False for one in measured):
        out.print("this file system has no direct I/O: reads are of the page cache, not of the disk")
    out.print("p50, p99: from the call to its end, behind what was on its way before it")
    out.print(
        "open: the full store again, the page cache empty; lookup: per key, of calls with up to 1,024 keys"
    )
    out.print(f"{workers} workers, {', '.join(sorted({one.io for one in measured}))}")


def _folder(target: str) -> Path:
    try:
        return Path(path_of(target))
    except InvalidArgumentError as error:
        raise UsageError(str(error)) from error


def _open(folder: Path, *, exclusive: bool) -> StoreFolder:
    try:
        return StoreFolder(folder, exclusive=exclusive)
    except StoreNotFoundError as error:
        raise UsageError(str(error), "give the folder that the engine's configuration names") from error
    except StoreInUseError as error:
        raise UsageError(
            str(error), "stop the engine first; kvpool store show reads headers meanwhile"
        ) from error


def _walk(opened: StoreFolder, name: str, *, verify: bool, progress: bool) -> _Found:
    """Read every object of a folder, with a progress bar on a terminal."""
    found = _Found()
    console = Console(stderr=True)
    columns = (TextColumn(name), BarColumn(bar_width=None), DownloadColumn(), TimeRemainingColumn())
    each = opened.object_bytes if verify else 4096
    with Progress(
        *columns, console=console, transient=True, disable=not (progress and console.is_terminal)
    ) as bar:
        task = bar.add_task(name, total=opened.places * each)
        for first in range(0, opened.places, _SLICE):
            for place, digest, _, length, problem in opened.objects(first, _SLICE, verify=verify):
                if digest is None:
                    found.damaged.append((place, problem or "damaged"))
                else:
                    found.objects[digest] += 1
                    found.payload_bytes[digest] += length
                    found.places[digest].append(place)
            bar.update(task, completed=min(first + _SLICE, opened.places) * each)
    return found


def _facts(
    folder: Path, opened: StoreFolder, found: _Found, texts: dict[str, Namespace | None]
) -> dict[str, Any]:
    namespaces = []
    for digest in sorted({*texts, *found.objects}):
        text = texts.get(digest)
        namespaces.append(
            {
                "digest": digest,
                "objects": found.objects[digest],
                "payload_bytes": found.payload_bytes[digest],
                "namespace": None if text is None else json.loads(text.to_json()),
            }
        )
    return {
        "folder": str(folder),
        "places": opened.places,
        "object_bytes": opened.object_bytes,
        "io": opened.io,
        "objects": sum(found.objects.values()),
        "damaged": len(found.damaged),
        "namespaces": namespaces,
    }
