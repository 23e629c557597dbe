"""What goes wrong, in the words of the command line.

The library names its arguments (``block_size is 7: ...``); here they become options (``--block-size``).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from kvpool.errors import KvpoolError, TraceError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SHAPE_HINT", "UsageError", "bad_trace", "bad_usage", "next_step", "os_error_line"]

#: What gives a KV shape.
SHAPE_HINT: Final = "--model NAME (kvpool models lists them), --config FILE, or --layers, --kv-heads and --head-dim"

#: Arguments of the library that have another name on the command line.
_OPTION_NAMES: Final = {"accuracy": "hints", "algorithm": "hash", "block_tokens": "trace-block-size"}


class UsageError(Exception):
    """Bad usage.

    Attributes:
        hint: what to do next, if there is something to say.

    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def bad_usage(error: KvpoolError | ValueError) -> UsageError:
    """Turn an error of the library about an argument into one about its option.

    >>> str(bad_usage(ValueError("max_running is 0: must be at least 1")))
    '--max-running is 0: must be at least 1'
    """
    message = str(error)
    subject, is_, rest = message.partition(" is ")
    if is_ and re.fullmatch(r"[a-z_]+( \+ [a-z_]+)*", subject):
        message = f"{re.sub(r'[a-z_]+', _option, subject)} is {rest}"
    return UsageError(message, next_step(error))


def _option(argument: re.Match[str]) -> str:
    """Name the option that sets an argument."""
    return f"--{_OPTION_NAMES.get(argument[0], argument[0]).replace('_', '-')}"


def bad_trace(error: KvpoolError, source: Path | str) -> KvpoolError:
    """Make the same error with the name of the file in front, unless the message has it."""
    message = str(error)
    # Rust writes a name that is no UTF-8 with marks of replacement.
    names = {str(source), os.fsencode(source).decode(errors="replace")}
    return error if any(name in message for name in names) else type(error)(f"{source}: {message}")


def next_step(error: Exception) -> str | None:
    """Say what to do about an error, where the message does not."""
    message = str(error)
    for words, hint in (
        ("is in GiB: that needs a KV shape", f"add {SHAPE_HINT}"),
        (
            "need a model whose layers all keep every token",
            "leave --host-gib and --disk-tib out; --capacities with their sizes runs the model at each",
        ),
        ("must verify hits", "add --verify fingerprint, or --verify tokens"),
        ("needs a seed", "add --seed with the engine's PYTHONHASHSEED"),
        (
            "unknown model",
            "kvpool models lists the catalogue; or give --config FILE, or --layers, --kv-heads and --head-dim",
        ),
    ):
        if words in message:
            return hint
    if isinstance(error, TraceError):
        if "--" in message:
            return None
        if "sort the trace by timestamp" in message:
            return "--sort puts its requests in order of arrival"
        if "a trace has one format" in message:
            return "--format NAME reads every record as that format"
        if "(read as " in message:
            return "--format NAME reads it as another format; kvpool trace validate --help lists them"
        if " it follows " in message:
            return "--no-check-prefixes replays it all the same; its hit rates may then be too high"
        if any(word in message for word in ("JSON", "missing", "instead of an object")):
            return "kvpool generate --requests 1 shows what a line of a trace looks like"
    return None


def os_error_line(error: OSError) -> str:
    """Word an operating system's error without its number.

    >>> os_error_line(FileNotFoundError(2, "No such file or directory", "a/b"))
    'a/b: No such file or directory'
    """
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason
