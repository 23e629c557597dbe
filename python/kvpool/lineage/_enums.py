"""Enums that equal the engine's own enums of the same name.

This module owns equality by name. Code written for an ancestor keeps its own ``Device`` and
``AllocStatus`` when only the manager beneath it is replaced, and compares them with ``==``. Members of
two ordinary enums are never equal, and Python reports no error.
"""

from __future__ import annotations

import enum
from typing import TypeVar

from kvpool.lineage.errors import ContractError

__all__ = ["Device", "NamedEnum", "member"]


class NamedEnum(enum.Enum):
    """An enum whose members equal those of the same name in any enum of the same name."""

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, enum.Enum):
            return NotImplemented
        return type(other).__name__ == type(self).__name__ and other.name == self.name

    def __hash__(self) -> int:
        # The hash of any enum.Enum member with this name, so that both work as keys of one dict.
        return hash(self._name_)


class Device(NamedEnum):
    """The device of a block."""

    GPU = enum.auto()
    CPU = enum.auto()


_Named = TypeVar("_Named", bound=NamedEnum)


def member(kind: type[_Named], value: object) -> _Named:
    """Returns the member for a value: a member of this enum, or of an engine's own enum, by name.

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
