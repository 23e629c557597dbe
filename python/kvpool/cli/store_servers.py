"""``kvpool store show | verify | gc`` for back ends that engines share: Redis, buckets, shared folders.

Objects are read in pages, while engines use them. ``gc`` lists the objects a second time before it removes
any, instead of keeping a list in memory.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvpool.cli.problems import UsageError
from kvpool.cli.store_words import described, digests_kept, print_cleared, size_words
from kvpool.cli.terminal import shown
from kvpool.errors import InvalidArgumentError, StoreError, StoreNotFoundError
from kvpool.store.inspect import inspector_from_url
from kvpool.store.urls import scheme_of, without_password

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvpool.store import Namespace
    from kvpool.store.inspect import Inspector
    from kvpool.store.pages import Page

__all__ = ["gc_server", "is_server", "show_server", "verify_server"]

#: Maximum number of damaged objects that are printed one by one.
_LISTED: Final = 20
#: Maximum number of damaged objects whose names are kept, for ``--json``.
_MAX_PROBLEMS: Final = 10_000


@dataclasses.dataclass(slots=True)
class _Found:
    """The results of reading all pages of a back end's list of objects."""

    objects: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    payload_bytes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    namespaces: dict[str, Namespace | None] = dataclasses.field(default_factory=dict)
    others: int = 0
    damaged: int = 0
    #: The first damaged objects, as pairs of name and description of the damage.
    problems: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def take(self, page: Page) -> None:
        for name, digest, _, length, problem in page.objects:
            if digest is None:
                self.damaged += 1
                if len(self.problems) < _MAX_PROBLEMS:
                    self.problems.append((name, problem or "damaged"))
            else:
                self.objects[digest] += 1
                self.payload_bytes[digest] += length
        self.namespaces |= page.namespaces
        self.others += page.others

    @property
    def known(self) -> list[str]:
        """Namespaces that have objects or a text, in descending order of their number of objects."""
        return sorted({*self.namespaces, *self.objects}, key=lambda digest: (-self.objects[digest], digest))


def is_server(target: str) -> bool:
    """Return whether the target is a shared back end, and not a folder of a disk."""
    return scheme_of(target) != "disk"


def show_server(url: str, *, timeout: float, as_json: bool, progress: bool) -> None:
    """Print the number of objects of each namespace on the server."""
    found = _Found()
    _walk(
        _open(url),
        "show",
        found.take,
        time.monotonic() + timeout,
        verify=False,
        progress=progress and not as_json,
    )
    place = without_password(url)
    if as_json:
        typer.echo(json.dumps(_facts(place, found), indent=2))
        return
    total, payload = sum(found.objects.values()), sum(found.payload_bytes.values())
    typer.echo(
        f"{shown(place)}: {total:,} objects, {size_words(payload)} of KV; {found.others:,} things of others"
    )
    if found.damaged:
        typer.echo(f"{found.damaged:,} objects are damaged: kvpool store verify lists them")
    for digest in found.known:
        kv = size_words(found.payload_bytes[digest])
        typer.echo(f"\nnamespace {digest[:12]}: {found.objects[digest]:,} objects, {kv} of KV")
        typer.echo(f"  {described(found.namespaces.get(digest))}")


def verify_server(url: str, *, timeout: float, as_json: bool, progress: bool) -> None:
    """Read every object on the server, and print which ones are damaged. If any is, exit with code 1."""
    found = _Found()
    _walk(
        _open(url),
        "verify",
        found.take,
        time.monotonic() + timeout,
        verify=True,
        progress=progress and not as_json,
    )
    place, objects = without_password(url), sum(found.objects.values())
    if as_json:
        listed = [{"name": name, "problem": problem} for name, problem in found.problems]
        facts = {"url": place, "intact": objects, "damaged_objects": found.damaged, "damaged": listed}
        typer.echo(json.dumps(facts, indent=2))
    else:
        typer.echo(f"{objects:,} objects are intact, {found.damaged:,} are not")
        for name, problem in found.problems[:_LISTED]:
            typer.echo(f"  {name}: {shown(problem)}")
        if found.damaged > _LISTED:
            typer.echo(f"  and {found.damaged - _LISTED:,} more; --json lists {_MAX_PROBLEMS:,}")
    if found.damaged:
        typer.echo(f"next: kvpool store gc --verify {shown(place)} removes them", err=True)
        raise typer.Exit(1)


def gc_server(
    url: str,
    *,
    keep: list[str] | None,
    verify: bool,
    dry_run: bool,
    timeout: float,
    as_json: bool,
    progress: bool,
) -> None:
    """Remove damaged objects, and the objects of all namespaces that are not kept."""
    inspector, found, until = _open(url), _Found(), time.monotonic() + timeout
    progress = progress and not as_json
    _walk(inspector, "list", found.take, until, verify=False, progress=progress)
    kept = digests_kept(set(found.known), keep, "server")
    counts = collections.Counter[str]()

    def clear(page: Page) -> None:
        damaged = [name for name, digest, *_ in page.objects if digest is None]
        other = [name for name, digest, *_ in page.objects if digest is not None and digest not in kept]
        counts["damaged"] += len(damaged)
        counts["other"] += len(other)
        counts["kept"] += len(page.objects) - len(damaged) - len(other)
        if not dry_run and (damaged or other):
            inspector.remove([*damaged, *other])

    _walk(inspector, "gc", clear, until, verify=verify, progress=progress)
    # If --keep is not given, all namespaces are kept. A namespace without objects may belong to an engine
    # that has just started.
    forgotten = sorted(set(found.known) - kept)
    if not dry_run:
        for digest in forgotten:
            inspector.forget(digest)
    facts = {
        "url": without_password(url),
        "damaged": counts["damaged"],
        "of_other_namespaces": counts["other"],
        "kept": counts["kept"],
        "namespaces_forgotten": forgotten,
        "dry_run": dry_run,
    }
    print_cleared(facts, "removed", f"; {found.others:,} things of others are not touched", as_json=as_json)


def _open(url: str) -> Inspector:
    try:
        return inspector_from_url(url)
    except StoreNotFoundError as error:
        raise UsageError(str(error), "give the URL that the engine's configuration names") from error
    except InvalidArgumentError as error:
        raise UsageError(
            str(error), "redis://host, rediss://host, redis+unix:///path, s3://bucket, folder:///path"
        ) from error


def _walk(
    inspector: Inspector,
    name: str,
    each: Callable[[Page], None],
    until: float,
    *,
    verify: bool,
    progress: bool,
) -> None:
    """Call the function ``each`` with every page of objects.

    The call ends at the time ``until``, a value of ``time.monotonic``, even if pages remain.
    """
    console = Console(stderr=True)
    columns = (TextColumn(name), BarColumn(bar_width=None), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not (progress and console.is_terminal)
    ) as bar:
        task = bar.add_task(name, total=inspector.total())
        for page in inspector.pages(verify=verify):
            if time.monotonic() > until:
                raise StoreError("the server did not list everything in time: --timeout SECONDS allows more")
            each(page)
            bar.advance(task, page.things)


def _facts(place: str, found: _Found) -> dict[str, Any]:
    namespaces = []
    for digest in found.known:
        text = found.namespaces.get(digest)
        namespaces.append(
            {
                "digest": digest,
                "objects": found.objects[digest],
                "payload_bytes": found.payload_bytes[digest],
                "namespace": None if text is None else json.loads(text.to_json()),
            }
        )
    return {
        "url": place,
        "objects": sum(found.objects.values()),
        "damaged": found.damaged,
        "others": found.others,
        "namespaces": namespaces,
    }
