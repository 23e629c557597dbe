"""What may go to a terminal, and in which form.

Owns four rules, for every command. Text that comes from a file, a path or an argument is printed without
control characters, which a terminal would obey: :func:`shown`. Where a caller forgets that, the streams of
:func:`prepared` write the characters as escapes. Whatever the output's encoding, nothing that is printed
raises: what it cannot hold is written as an escape. And a ``COLUMNS`` that is no width counts as unset.
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

#: Characters of a name out of a file that are printed: it may be megabytes long.
_MOST_SHOWN: Final = 200


def shown(text: str, most: int | None = None) -> str:
    r"""Write text from outside so that a terminal shows it and does not obey it.

    Control characters (ESC, the C1 controls, line ends), what turns the direction of writing, and bytes that
    are no UTF-8 become escapes, as in Python's ``repr``. The rest stays, so a good name is printed as it is.

    Args:
        text: from a file, a path or an argument.
        most: characters of it to write; ``...`` stands for the rest.

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
    """As :func:`shown`, for a name out of a file: of a long one, its beginning."""
    return shown(text, _MOST_SHOWN)


def _escape(letter: str) -> str:
    r"""As ``repr`` writes it: ``\x1b``, ``\u202e``; a byte of a file name that is no UTF-8 as that byte."""
    byte = ord(letter) - 0xDC00
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else ascii(letter)[1:-1]


#: Rich writes this beside text: colours, the cursor, the other screen.
_DRAWING: Final = re.compile(r"(\x1b\[[0-9;?]*[A-Hfhlm-nJKsu])")

#: With one of them Rich and Typer draw in colour, whatever the output is.
_COLOUR: Final = ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TTY_COMPATIBLE")


class _Guarded:
    """A text stream that writes control characters as escapes.

    Line ends, tabs and carriage returns stay. A terminal also gets what Rich draws with: colours and moves of
    the cursor, but no titles, no links, no bells, and nothing that turns the direction of writing.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._draws = stream.isatty() or any(os.environ.get(name) for name in _COLOUR)

    def write(self, text: str) -> int:
        """Write a text; the result is the number of its characters."""
        if not isinstance(text, str) or text.isprintable():
            return self._stream.write(text)
        parts = _DRAWING.split(text) if self._draws else [text]
        # Every second part is a drawing.
        self._stream.write("".join(part if at % 2 else _guarded(part) for at, part in enumerate(parts)))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write some texts."""
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
    """Make standard output and error take what is printed as text, and COLUMNS what it should be, for
    one command.
    """
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
            # As shutil.get_terminal_size takes it. Rich would print lines of no characters.
            stack.callback(os.environ.__setitem__, "COLUMNS", columns)
            del os.environ["COLUMNS"]
        yield
