"""Makes text safe for a terminal.

This module has four rules for every command. Text from a file, a path or an argument is printed without
control characters, which a terminal would execute: :func:`shown`. If a caller forgets that, the streams
of :func:`prepared` escape them. Characters that the output's encoding cannot represent are escaped, so
that printing never raises. A value of 0 of the variable ``COLUMNS`` is treated as unset.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["prepared", "shown", "shown_name"]

#: Maximum number of characters of a name that are printed. A name from a file may have megabytes.
_MOST_SHOWN: Final = 200


def shown(text: str, most: int | None = None) -> str:
    r"""Escape external text so that a terminal shows control characters and does not execute them.

    Control characters (ESC, the C1 controls, line ends), characters that change the direction of
    writing, and bytes that are not UTF-8 become escapes, as in Python's ``repr``. The rest stays, so an
    ordinary name is unchanged.

    Args:
        text: Text from a file, a path or an argument.
        most: The most characters to write; ``...`` replaces the rest.

    >>> shown("tidy, ångström")
    'tidy, ångström'
    >>> print(shown("a\x1b]0;title\x07 \x9b31m"))
    a\x1b]0;title\x07 \x9b31m
    >>> shown("long " * 100, most=9)
    'long long...'
    """
    if most is not None and len(text) > most:
        return f"{shown(text[:most])}..."
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def shown_name(text: str) -> str:
    """Escape a name from a file, like :func:`shown`. A name of more than 200 characters is cut off."""
    return shown(text, _MOST_SHOWN)


def _escape(letter: str) -> str:
    r"""Return the escape of a character, as ``repr`` writes it: ``\x1b``, ``\u202e``.

    Python represents a byte of a file name that is not UTF-8 by a surrogate. Its escape is that of the byte.
    """
    byte = ord(letter) - 0xDC00
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else ascii(letter)[1:-1]


#: The control sequences that Rich writes: colours, moves of the cursor, the alternate screen.
_DRAWING: Final = re.compile(r"(\x1b\[[0-9;?]*[A-Hfhlm-nJKsu])")

#: If any of these environment variables is set, Rich and Typer write colours to any output.
_COLOUR: Final = ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TTY_COMPATIBLE")


class _Guarded:
    """A text stream that writes control characters as escapes.

    Line ends, tabs and carriage returns are written as they are. On a terminal, the colours and cursor moves
    of Rich are also written as they are. Titles, links, bells and changes of the direction of writing are
    always escaped.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._draws = stream.isatty() or any(os.environ.get(name) for name in _COLOUR)

    def write(self, text: str) -> int:
        """Write a text. Returns the number of its characters."""
        if not isinstance(text, str) or text.isprintable():
            return self._stream.write(text)
        parts = _DRAWING.split(text) if self._draws else [text]
        # The odd entries of ``parts`` are control sequences of Rich, which are not escaped.
        self._stream.write("".join(part if at % 2 else _guarded(part) for at, part in enumerate(parts)))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)


def _guarded(text: str) -> str:
    return "".join(
        letter if letter.isprintable() or letter in "\n\t\r" else _escape(letter) for letter in text
    )


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Escape control characters on stdout and stderr during one command, and ignore a ``COLUMNS`` of 0."""
    with contextlib.ExitStack() as stack:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stack.callback(stream.reconfigure, errors=stream.errors)
                stream.reconfigure(errors="backslashreplace")
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None:
                stack.callback(setattr, sys, name, stream)
                setattr(sys, name, cast("TextIO", _Guarded(stream)))
        columns = os.environ.get("COLUMNS", "")
        if columns.isdecimal() and int(columns) == 0:
            # With a width of 0, Rich would print empty lines. shutil.get_terminal_size ignores it, too.
            stack.callback(os.environ.__setitem__, "COLUMNS", columns)
            del os.environ["COLUMNS"]
        yield
