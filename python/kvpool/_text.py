"""Encodes text as UTF-8 before it leaves the process."""

from __future__ import annotations

from kvpool.errors import InvalidArgumentError


def utf8(text: str, what: str) -> bytes:
    """Encodes a text as UTF-8.

    Raises:
        InvalidArgumentError: The text has no UTF-8 form, because it contains half of a surrogate pair.
            The message calls the text ``what``.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{what} is {text!r}: must be text with a UTF-8 form") from error
