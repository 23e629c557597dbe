"""Enums whose members equal the members with the same names in the engine's own enums.

If only the manager beneath an engine is replaced, the engine keeps its own ``Device`` and
``AllocStatus``, and compares their members with ``==``. Members of two ordinary enums are never equal,
and Python would report no error.
"""

from __future__ import annotations

import enum
from typing import TypeVar

from kvpool.lineage.errors import ContractError

__all__ = ["Device", "NamedEnum", "member"]


class NamedEnum(enum.Enum):
    """An enum whose members equal the members of the same name in other enums of the same name."""

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, enum.Enum):
            return NotImplemented
        return type(other).__name__ == type(self).__name__ and other.name == self.name

    def __hash__(self) -> int:
        # This is the hash of any enum.Enum member with this name, so that equal members are the same
        # key of a dict.
        return hash(self._name_)


class Device(NamedEnum):
    """The device on which a block is."""

    GPU = enum.auto()
    CPU = enum.auto()


_Named = TypeVar("_Named", bound=NamedEnum)


def member(kind: type[_Named], value: object) -> _Named:
    """Returns the member of this enum that corresponds by name to a member of the engine's enum.

    Raises:
        ContractError: No member has this name.
    """
    if type(value) is kind:
        return value
    found = kind.__members__.get(value.name) if isinstance(value, enum.Enum) else None
    if found is None:
        raise ContractError(
            f"there is no {kind.__name__.lower()} {value!r}: {', '.join(kind.__members__)} are known"
        )
    return found
