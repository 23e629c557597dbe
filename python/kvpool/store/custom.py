"""What a back end that is written in Python does, for :class:`kvpool.store.Custom`."""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["HEADER_BYTES", "CustomBackend"]

#: Bytes of the header of an object.
HEADER_BYTES: Final = 112


class CustomBackend(Protocol):
    """What a back end written in Python does.

    Workers call it, several at once, each on a thread of its own; every call may take its time. An
    exception is a failure, ``OSError`` with ``ENOSPC`` or ``EDQUOT`` a lack of room. Nothing has to be
    checked: the store does that. The thread that opens or renews a store reads and writes a record of
    32 bytes, ``NAMESPACE/0``. The back end has to keep it as long as objects: what was stored before a
    record was lost is not found any more. Names are text of the characters ``0-9a-f/-``. An address is
    that of the payload's bytes in this process, and valid until the call returns.
    """

    def write(self, name: str, header: bytes, address: int, length: int) -> None:
        """Keeps an object: a header, and ``length`` bytes at ``address``."""

    def read(self, name: str, address: int, length: int) -> bytes | None:
        """Writes at most ``length`` bytes of an object's payload to ``address``.

        Returns the header, or ``None`` if there is no such object.
        """

    def exist(self, names: list[str]) -> list[bool]:
        """Whether each object is there."""

    def remove(self, names: list[str]) -> None:
        """Removes objects, those that are there."""

    # Only if it has it: ``describe(digest: str, text: str)``, called once when a store is opened, with
    # the text of its namespace as JSON, which ``kvpool store show`` shows. Where it fails, the store
    # goes on.
