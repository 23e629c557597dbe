"""Error messages in the terms of the command line.

Errors of the library contain the names of its arguments (``block_size is 7: ...``). This module replaces
them with the names of options (``--block-size``).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from kvpool.cli.usage import did_you_mean
from kvpool.errors import KvpoolError, TraceError, TraceFileError

__all__ = ["SHAPE_HINT", "UsageError", "bad_trace", "bad_usage", "next_step", "os_error_line", "plain"]

#: The options that give a KV shape.
SHAPE_HINT: Final = (
    "--model NAME (kvpool models lists them), --config FILE, or --layers, --kv-heads and --head-dim"
)

#: Maps arguments of library functions to their options, without ``--``, if the option has another name.
_OPTION_NAMES: Final = {"accuracy": "hints", "algorithm": "hash", "block_tokens": "trace-block-size"}


class UsageError(Exception):
    """The arguments of a command are wrong.

    Attributes:
        hint: The next step, or None.

    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


#: Matches the library's error for an unknown name. Groups: argument, given name, valid names.
_UNKNOWN: Final = re.compile(
    r"""(?P<what>unknown [a-z ]+?|[a-z_]+ is) ["'](?P<given>.*?)["'](?:,|;|:) """
    r"""(?:known:|allowed:|must be one of|must be of) (?P<known>[\w., -]+)(?:; (?P<removal>.+))?"""
)
#: Beginnings of error messages about an unknown name, and the option with that name.
_TAKES: Final = {
    "unknown hash algorithm": "--hash",
    "unknown verify mode": "--verify",
    "unknown format": "--format",
    "unknown dtype": "--dtype",
}


def bad_usage(error: KvpoolError | ValueError, **options: str) -> UsageError:
    """Convert an error of the library about an argument into one about its option.

    Args:
        error: The library's error.
        options: Options that have another name in this command.

    >>> str(bad_usage(ValueError("max_running is 0: must be at least 1")))
    '--max-running is 0: must be at least 1'
    >>> bad_usage(ValueError('unknown dtype "fp7"; allowed: fp8, int4')).hint
    'did you mean fp8?'
    """
    message = str(error)
    if found := _UNKNOWN.fullmatch(message):
        known = found["known"].split(", ")
        what = found["what"]
        option = _TAKES.get(what) or _option_of(what.removesuffix(" is"))
        option = options.get(option.removeprefix("--"), option)
        near = did_you_mean(found["given"], known)
        hint = found["removal"] or (f"did you mean {near[0]}?" if near else None)
        return UsageError(f"{option} is {found['given']!r}: must be one of {', '.join(known)}", hint)
    subject, is_, rest = message.partition(" is ")
    if is_ and re.fullmatch(r"[a-z_]+( \+ [a-z_]+)*", subject):
        message = f"{re.sub(r'[a-z_]+', _option, subject)} is {rest}"
    return UsageError(message, next_step(error))


def _option_of(argument: str) -> str:
    return f"--{_OPTION_NAMES.get(argument, argument).replace('_', '-')}"


def _option(argument: re.Match[str]) -> str:
    return _option_of(argument[0])


def bad_trace(error: KvpoolError, source: Path | str) -> KvpoolError:
    """Return the same error with the file's name before its message, unless the message contains it."""
    message = str(error)
    # Messages from Rust contain U+FFFD for each byte of a file name that is not UTF-8.
    names = {str(source), os.fsencode(source).decode(errors="replace")}
    return error if any(name in message for name in names) else type(error)(f"{source}: {message}")


#: Hints for error messages: a part of the message, and the hint. The first match is used.
_HINTS: Final[tuple[tuple[str, str], ...]] = (
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
    ("Connection refused", "check that the server runs, and that this is its address"),
    ("Name or service not known", "check the name of the host"),
    ("listing the bucket failed", "check its name, its region and the credentials"),
    ("config.json: no JSON", "copy the file again: it is cut, or another file"),
    ("Permission denied", "run it as a user who may, or change the permissions"),
    ("config.json: No such file", "give the model's config.json, or the folder that has it"),
    ("No such file", "check the path; a relative one begins in this directory"),
    ("Is a directory", "give a file in it"),
)
#: Hints in the form of ``_HINTS``. They are used only for errors in a trace.
_TRACE_HINTS: Final = (
    ("sort the trace by timestamp", "--sort puts its requests in order of arrival"),
    ("a trace has one format", "--format NAME reads every record as that format"),
    ("(read as ", "--format NAME reads it as another format; kvpool trace validate --help lists them"),
    (" it follows ", "--no-check-prefixes replays it all the same; its hit rates may then be too high"),
    ("gzip", "copy it again, or make it again: what is there is not the whole file"),
    ("a log has one", "kvpool trace make --help says what a line may have"),
    ("needs one of token_ids", "kvpool trace make --help says what a line may have"),
    ("which needs --tokenizer", "add --tokenizer, the model's folder"),
    ("no line has a request", "kvpool trace make --help says what a line may have"),
    ("must be a JSON object", "kvpool trace make --help says what a line may have"),
)
#: Patterns of texts in messages of Rust, Python or the operating system, and their replacements.
_PLAIN: Final = (
    (r" \(os error \d+\)", ""),
    (r"\[Errno -?\d+\] ", ""),
    (r"not valid JSON: .*", "no JSON here; a record is a JSON object on a line of its own"),
    (r"no JSON: [A-Z][^:]*: (line \d+ column \d+) \(char \d+\)", r"no JSON, from \1 on"),
    (r"(not a journal): it begins with \[.*", r"\1 of kvpool"),
    (r"nonnumeric port: '(.*?)'", r"the port is '\1': must be from 1 to 65535"),
)


def plain(message: str) -> str:
    """Return a message without phrases of Rust and Python, and without the numbers of system errors.

    >>> plain("cannot open a.jsonl: No such file or directory (os error 2)")
    'cannot open a.jsonl: No such file or directory'
    """
    for pattern, words in _PLAIN:
        message = re.sub(pattern, words, message)
    return message


def next_step(error: Exception) -> str | None:
    """Return a hint for the user's next step after an error.

    ``None`` if the message contains it, or if no hint matches.
    """
    message = str(error)
    if (own := getattr(error, "hint", None)) is not None:
        return str(own)
    if isinstance(error, TraceFileError) and "No such file" in message:
        return "give the path of a trace; example is the trace that ships with kvpool, - is standard input"
    hints = _HINTS
    if isinstance(error, TraceError):
        if "--" in message and "--tokenizer" not in message:
            return None
        hints += _TRACE_HINTS
    for words, hint in hints:
        if words in message:
            return hint
    if isinstance(error, TraceError) and any(
        word in message for word in ("JSON", "missing", "instead of an object")
    ):
        return "kvpool generate --requests 1 shows what a line of a trace looks like"
    return None


def os_error_line(error: OSError) -> str:
    """Return the message of a system error without its number.

    >>> os_error_line(FileNotFoundError(2, "No such file or directory", "a/b"))
    'a/b: there is no directory a'
    """
    reason = error.strerror or str(error)
    if error.filename is None:
        return reason
    folder = Path(os.fsdecode(error.filename)).parent
    if isinstance(error, FileNotFoundError) and not folder.is_dir():
        reason = f"there is no directory {folder}"
    return f"{os.fsdecode(error.filename)}: {reason}"
