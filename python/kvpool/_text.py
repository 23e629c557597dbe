"""Text that leaves the process: it needs a UTF-8 form."""

from __future__ import annotations

from kvpool.errors import InvalidArgumentError


def utf8(text: str, what: str) -> bytes:
    """Encodes a text.

    Raises:
        InvalidArgumentError: It contains half of a surrogate pair; the message calls it ``what``.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{what} is {text!r}: must be text with a UTF-8 form") from error
