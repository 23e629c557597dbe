"""A page of objects, as what keeps them lists it; and what a name, a size and bytes say of one.

Whether an object is intact the core says (``check_object``).
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from kvpool._core.store import Namespace, check_object
from kvpool.errors import InvalidArgumentError
from kvpool.store.custom import HEADER_BYTES

__all__ = ["RECORD", "TEXT", "Page", "Seen", "checked", "named", "parsed"]

#: The name of a namespace's text.
TEXT: Final = re.compile(r"([0-9a-f]{64})\.json")

#: The name of the record of a namespace's generation, which is no object and nobody else's either.
RECORD: Final = re.compile(r"[0-9a-f]{64}(/0|\.generation)")

# : Name, digest of its namespace, group, bytes of its payload, what is wrong with it. Without a digest
# something is.
Seen = tuple[str, str | None, int, int, str | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """Some of what is there."""

    objects: list[Seen] = dataclasses.field(default_factory=list)
    #: Texts of namespaces; ``None`` of one that is damaged.
    namespaces: dict[str, Namespace | None] = dataclasses.field(default_factory=dict)
    #: What is somebody else's.
    others: int = 0

    @property
    def things(self) -> int:
        """How many things it is about."""
        return len(self.objects) + len(self.namespaces) + self.others


def named(name: str, length: int) -> Seen | None:
    """Say what an object is by its name and size alone; ``None`` if it is none.

    >>> named("notes.txt", 5)
    >>> named("ab" * 32 + "/" + "cd" * 32 + "-0", 4208)[2:]
    (0, 4096, None)
    """
    if check_object(name, b"", 0) is None:
        return None
    return name, name.partition("/")[0], int(name.rpartition("-")[2]), max(length - HEADER_BYTES, 0), None


def checked(name: str, value: bytes) -> Seen | None:
    """Say what an object is by all of its bytes; ``None`` if its name is not that of one."""
    return check_object(name, value[:HEADER_BYTES], len(value), value[HEADER_BYTES:])


def parsed(digest: str, text: bytes) -> Namespace | None:
    """Read the text of a namespace; ``None`` if it is damaged, or another's."""
    try:
        namespace = Namespace.from_json(text.decode())
    except (InvalidArgumentError, UnicodeDecodeError):
        return None
    return namespace if namespace.digest.hex() == digest else None
