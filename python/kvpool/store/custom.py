"""The protocol of a back end that is written in Python, for :class:`kvpool.store.Custom`."""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["HEADER_BYTES", "CustomBackend"]

#: Size of the header of each object.
HEADER_BYTES: Final = 112


class CustomBackend(Protocol):
    """A back end that is written in Python.

    Several worker threads call it at the same time. The duration of a call is not limited. If a call
    raises, the operation has failed; ``OSError`` with ``ENOSPC`` or ``EDQUOT`` reports a full back end.
    The back end does not have to verify content, because the store does.

    Names consist of the characters ``0-9a-f/-``. An address points to the payload's bytes in this
    process, and is valid until the call returns.

    The thread that opens or renews a store also reads and writes a record of 32 bytes with the name
    ``NAMESPACE/0``. The back end has to keep this record as long as the objects. If the record is lost,
    the objects that were stored earlier are no longer found.
    """

    def write(self, name: str, header: bytes, address: int, length: int) -> None:
        """Stores an object: a header, and ``length`` bytes at ``address``."""

    def read(self, name: str, address: int, length: int) -> bytes | None:
        """Writes at most ``length`` bytes of an object's payload to ``address``.

        Returns the header, or ``None`` if there is no such object.
        """

    def exist(self, names: list[str]) -> list[bool]:
        """Returns for each name whether the object exists."""

    def remove(self, names: list[str]) -> None:
        """Removes objects. Missing ones are ignored."""

    # There is an optional method ``describe(digest: str, text: str)``. It is called once when a store
    # is opened, with the text of its namespace as JSON, which ``kvpool store show`` displays. If it
    # fails, the store continues.
