"""Encodes text that leaves the process, which must have a UTF-8 form."""

from __future__ import annotations

from kvpool.errors import InvalidArgumentError


def utf8(text: str, what: str) -> bytes:
    """Encodes a text.

    Raises:
        InvalidArgumentError: The text contains half of a surrogate pair. The message names it ``what``.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{what} is {text!r}: must be text with a UTF-8 form") from error
