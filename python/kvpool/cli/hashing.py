"""``kvpool hash``: prints digests of blocks, to check another implementation against the specification."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Annotated, cast

import typer

import kvpool
from kvpool.cli.problems import UsageError, bad_usage
from kvpool.errors import KvpoolError

if TYPE_CHECKING:
    from kvpool._core import HashAlgorithm

__all__ = ["hash_command"]


def hash_command(
    tokens: Annotated[
        list[str] | None,
        typer.Argument(help="Token ids, apart or with commas. Without any: from stdin.", show_default=False),
    ] = None,
    algorithm: Annotated[
        str, typer.Option(help=f"One of {', '.join(kvpool.hashing.hash_algorithms())}.")
    ] = "sha256",
    block_size: Annotated[int, typer.Option(min=1, help="Tokens per block.")] = 16,
    salt: Annotated[
        str | None, typer.Option(help="Cache salt of the request, as text.", show_default=False)
    ] = None,
    seed: Annotated[
        str | None,
        typer.Option(help="Seed: needed by vllm-xxhash and vllm-xxhash-cbor.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Print the digests of the full blocks of a token sequence.

    One line each: number and digest. A digest stands for the whole prefix up
    to the end of its block. A partial last block has none.
    """
    words = tokens or _words_of_stdin()
    ids = [_token(position, word) for position, word in enumerate(_split(words))]
    try:
        hasher = kvpool.BlockHasher(cast("HashAlgorithm", algorithm), block_size, seed=seed)
        digests = [digest.hex() for digest in hasher.hash_tokens(ids, kvpool.ExtraKeys(salt=salt))]
    except KvpoolError as error:
        raise bad_usage(error, hash="--algorithm") from error
    rest = len(ids) - len(digests) * block_size
    if as_json:
        facts = {
            "algorithm": hasher.algorithm,
            "block_size": block_size,
            "tokens": len(ids),
            "tokens_in_partial_block": rest,
            "digests": digests,
        }
        typer.echo(json.dumps(facts, indent=2))
        return
    for number, digest in enumerate(digests):
        typer.echo(f"{number}  {digest}")
    if rest:
        typer.echo(f"{rest} of {len(ids)} tokens are in no full block: they have no hash", err=True)


def _words_of_stdin() -> list[str]:
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("no tokens", "give them as arguments, or on stdin")
    return [sys.stdin.read()]


def _split(words: list[str]) -> list[str]:
    return [word for text in words for word in re.split(r"[\s,]+", text) if word]


def _token(position: int, word: str) -> int:
    # A number with more digits is no token. Without this limit, int() would raise an error of its own for
    # very long numbers.
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", word):
        shown = word if len(word) <= 30 else f"{word[:30]}..."
        hint = "see kvpool hash --help for its options" if word.startswith("-") else None
        raise UsageError(
            f"token {shown!r} at position {position} is no whole number from 0 to {2**32 - 1}", hint
        )
    return int(word)
