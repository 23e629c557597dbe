"""The protocol of a back end that is written in Python, for :class:`kvpool.store.Custom`."""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["HEADER_BYTES", "CustomBackend"]

#: Bytes of the header of an object.
HEADER_BYTES: Final = 112


class CustomBackend(Protocol):
    """A back end that is written in Python.

    Workers call it, several at once, each on its own thread. Every call may take its time. An exception
    is a failure; ``OSError`` with ``ENOSPC`` or ``EDQUOT`` means a lack of room. The back end
    does not have to check anything, because the store does. The thread that opens or renews a store
    reads and writes a record of 32 bytes, ``NAMESPACE/0``. The back end has to keep this record as long
    as objects: objects that were stored before a record was lost are not found any more. Names are text
    of the characters ``0-9a-f/-``. An address is that of the payload's bytes in this process, and valid
    until the call returns.
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

    # Optional: ``describe(digest: str, text: str)``. It is called once when a store is opened, with the
    # text of its namespace as JSON, which ``kvpool store show`` shows. If it fails, the store
    # continues.
