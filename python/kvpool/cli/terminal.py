"""What may go to a terminal, and in which form.

Owns three rules, for every command. Text that comes from a file, a path or an argument is printed without control
characters, which a terminal would obey: :func:`shown`. Whatever the output's encoding, nothing that is printed raises:
what it cannot hold is written as an escape. And a ``COLUMNS`` that is no width counts as unset.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["prepared", "shown", "shown_name"]

#: Characters of a name out of a file that are printed: it may be megabytes long.
_MOST_SHOWN: Final = 200


def shown(text: str, most: int | None = None) -> str:
    r"""Write text from outside so that a terminal shows it and does not obey it.

    Control characters (ESC, the C1 controls, line ends), what turns the direction of writing, and bytes that are no
    UTF-8 become escapes, as in Python's ``repr``. The rest stays, so a good name is printed as it is.

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


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Make standard output and error take whatever is printed, and COLUMNS what it should be, for one command."""
    with contextlib.ExitStack() as stack:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stack.callback(stream.reconfigure, errors=stream.errors)
                stream.reconfigure(errors="backslashreplace")
        columns = os.environ.get("COLUMNS", "")
        if columns.isdecimal() and int(columns) == 0:
            # As shutil.get_terminal_size takes it. Rich would print lines of no characters.
            stack.callback(os.environ.__setitem__, "COLUMNS", columns)
            del os.environ["COLUMNS"]
        yield
