"""Texts and helpers that ``kvpool store`` uses for disks and servers."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import typer

from kvpool.cli.problems import UsageError
from kvpool.cli.tables import figure
from kvpool.cli.terminal import shown_name
from kvpool.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvpool.store import Namespace

__all__ = ["at", "described", "digests_kept", "print_cleared", "size_words"]


def digests_kept(known: set[str], keep: list[str] | None, what: str) -> set[str]:
    """Return the digests of the namespaces that ``--keep`` names. Without it, all are kept."""
    if not keep:
        return known
    kept = set()
    for beginning in keep:
        found = [digest for digest in known if digest.startswith(beginning.lower())]
        if len(found) != 1:
            count = "no namespace" if not found else f"{len(found)} namespaces"
            raise UsageError(
                f"--keep {shown_name(beginning)}: {count} of this {what} begin with that",
                "kvpool store show lists them",
            )
        kept.add(found[0])
    return kept


@contextlib.contextmanager
def at(place: str) -> Iterator[None]:
    """Add the folder or URL of a store to the messages of its errors."""
    try:
        yield
    except StoreError as error:
        if place in str(error):
            raise
        raise type(error)(f"{place}: {error}") from error


def described(namespace: Namespace | None) -> str:
    """Return the main fields of a namespace as one line of text."""
    if namespace is None:
        return "its text is lost: whose objects they are only their engine knows"
    fields = json.loads(namespace.to_json())
    layers, heads = (f"{fields[name]['first']}+{fields[name]['count']}" for name in ("layers", "heads"))
    model, weights, dtype, algorithm = (
        shown_name(fields[name]) or "-" for name in ("model", "weights", "kv_dtype", "hash_algorithm")
    )
    return (
        f"{model}, weights {weights}, {dtype}, blocks of {fields['block_size']} tokens by {algorithm}, "
        f"layers {layers}, heads {heads}"
    )


def print_cleared(facts: dict[str, Any], verb: str, more: str = "", *, as_json: bool) -> None:
    """Print how many objects ``gc`` has removed, or would remove in a dry run."""
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    verb = f"would be {verb}" if facts["dry_run"] else verb
    typer.echo(
        f"{facts['damaged']:,} damaged objects and {facts['of_other_namespaces']:,} of other namespaces "
        f"{verb}, {facts['kept']:,} kept{more}"
    )


def size_words(count: float) -> str:
    """Return a number of bytes as text, in a suitable unit.

    >>> size_words(65536), size_words(1 << 20), size_words(0)
    ('64 KiB', '1 MiB', '0 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{figure(count)} {unit}"
        count /= 1024
    return f"{figure(count)} TiB"
