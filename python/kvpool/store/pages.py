"""One page of a back end's listing, and functions that parse listed names, sizes and bytes.

The core decides whether an object is intact (``check_object``).
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from kvpool._core.store import Namespace, check_object
from kvpool.errors import InvalidArgumentError
from kvpool.store.custom import HEADER_BYTES

__all__ = ["RECORD", "TEXT", "Page", "Seen", "checked", "named", "parsed"]

#: Matches the file name of a namespace's text.
TEXT: Final = re.compile(r"([0-9a-f]{64})\.json")

#: Matches the name of the record of a namespace's generation. Such a record is neither an object nor a
#: foreign file.
RECORD: Final = re.compile(r"[0-9a-f]{64}(/0|\.generation)")

#: One listed object: its name, the digest of its namespace, its group, the bytes of its payload, and
#: the fault that was found, or ``None``. If the digest is ``None``, there is a fault.
Seen = tuple[str, str | None, int, int, str | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """One page of the list of a back end's objects."""

    objects: list[Seen] = dataclasses.field(default_factory=list)
    #: The namespaces whose texts are on this page, by digest; ``None`` if the text is damaged.
    namespaces: dict[str, Namespace | None] = dataclasses.field(default_factory=dict)
    #: Number of entries on this page that do not belong to kvpool.
    others: int = 0

    @property
    def things(self) -> int:
        """Number of entries on the page."""
        return len(self.objects) + len(self.namespaces) + self.others


def named(name: str, length: int) -> Seen | None:
    """Parses the name and the size of a listed object. Returns ``None`` if the name is not that of an object.

    >>> named("notes.txt", 5)
    >>> named("ab" * 32 + "/" + "cd" * 32 + "-0", 4208)[2:]
    (0, 4096, None)
    """
    if check_object(name, b"", 0) is None:
        return None
    return name, name.partition("/")[0], int(name.rpartition("-")[2]), max(length - HEADER_BYTES, 0), None


def checked(name: str, value: bytes) -> Seen | None:
    """Verifies all bytes of an object. Returns ``None`` if the name is not that of an object."""
    return check_object(name, value[:HEADER_BYTES], len(value), value[HEADER_BYTES:])


def parsed(digest: str, text: bytes) -> Namespace | None:
    """Parses the text of a namespace. Returns ``None`` if it is damaged, or belongs to another namespace."""
    try:
        namespace = Namespace.from_json(text.decode())
    except (InvalidArgumentError, UnicodeDecodeError):
        return None
    return namespace if namespace.digest.hex() == digest else None
