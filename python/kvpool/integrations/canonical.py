"""Writes an engine's configuration as canonical text: equal settings have equal texts in every process.

A text never contains an address in memory. A value of a type that this module does not know is reported, so that
the caller can start cold. Depends on no engine.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from kvpool.errors import InvalidArgumentError
from kvpool.integrations.weights import content_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Canonical", "fields_of"]

#: Depth of nesting beyond which a value counts as unknown: a cycle, or a damaged setting.
_DEEPEST: Final = 32
#: Types of torch whose ``str`` names them completely.
_NAMED_BY_STR: Final = frozenset({("torch", "dtype"), ("torch", "device"), ("torch", "layout")})


def fields_of(record: Any) -> dict[str, Any] | None:
    """Returns the fields of a dataclass, of a struct of msgspec or of a named tuple; None for any other value."""
    if isinstance(record, type):
        return None
    if dataclasses.is_dataclass(record):
        names: Iterable[str] = (field.name for field in dataclasses.fields(record))
    else:
        found = getattr(type(record), "__struct_fields__", None) or getattr(type(record), "_fields", None)
        if not isinstance(found, tuple):
            return None
        names = found
    return {name: getattr(record, name) for name in names if hasattr(record, name)}


class Canonical:
    """Writes values as text, and collects the names of those that it cannot write.

    Attributes:
        unknown: Name and type of each value that has no canonical text.
    """

    def __init__(self) -> None:
        self.unknown: list[str] = []

    def text(self, name: str, value: Any) -> str:
        """Returns the canonical text of a setting. O(size of the value).

        A string that contains JSON is written as what it contains. To a string that names a file the digest of the
        file is added, because a setting such as a file of scales works by its content. A folder counts if the
        string has a separator or the name of the setting ends in ``_path``.

        Args:
            name: The name of the setting, for ``unknown``.
            value: Its value.
        """
        return json.dumps(self._plain(name, value, 0), ensure_ascii=True, separators=(",", ":"))

    def _plain(self, name: str, value: Any, depth: int) -> Any:
        if value is None or type(value) in (bool, int):
            return value
        if type(value) is float:
            return ["float", repr(value)]
        if depth > _DEEPEST:
            return self._unknown(name, value)
        if isinstance(value, enum.Enum):
            return ["enum", type(value).__name__, value.name]
        if isinstance(value, str):
            return self._string(name, str(value), depth)
        if isinstance(value, (bytes, bytearray)):
            return ["bytes", bytes(value).hex()]
        if isinstance(value, PurePath):
            return self._string(name, str(value), depth)
        if isinstance(value, dict):
            pairs = [(self._plain(name, key, depth + 1), one, key) for key, one in value.items()]
            plain = [[key, self._plain(f"{name}.{at}", one, depth + 1)] for key, one, at in pairs]
            return ["dict", sorted(plain, key=json.dumps)]
        record = fields_of(value)
        if record is not None:
            plain = [[key, self._plain(f"{name}.{key}", record[key], depth + 1)] for key in sorted(record)]
            return ["record", type(value).__name__, plain]
        if isinstance(value, (list, tuple)):
            return ["list", [self._plain(name, one, depth + 1) for one in value]]
        if isinstance(value, (set, frozenset)):
            return ["set", sorted((self._plain(name, one, depth + 1) for one in value), key=json.dumps)]
        kind = type(value)
        if (kind.__module__, kind.__name__) in _NAMED_BY_STR:
            return [kind.__name__, str(value)]
        return self._described(name, value, depth)

    def _described(self, name: str, value: Any, depth: int) -> Any:
        """Writes what a class itself makes of a value, such as a configuration of transformers."""
        if isinstance(value, type):
            return self._unknown(name, value) if "<" in value.__qualname__ else ["class", _named(value)]
        try:
            described = value.to_dict()
        except Exception:
            described = None
        return (
            ["described", type(value).__name__, self._plain(name, described, depth + 1)]
            if isinstance(described, dict)
            else self._unknown(name, value)
        )

    def _string(self, name: str, value: str, depth: int) -> Any:
        if value[:1] in ("{", "["):
            try:
                inside = json.loads(value)
            except (ValueError, RecursionError):
                inside = None
            if isinstance(inside, (dict, list)):
                return ["json", self._plain(name, inside, depth + 1)]
        if not value or "\0" in value or "\n" in value or len(value) > os.pathconf("/", "PC_PATH_MAX"):
            return value
        try:
            path = Path(value).expanduser()
            counts = path.is_file() or (path.is_dir() and (os.sep in value or name.endswith("_path")))
        except (OSError, ValueError, RuntimeError):
            counts = False
        if not counts:
            return value
        try:
            return ["file", value, content_of(path)]
        except InvalidArgumentError:
            return self._unknown(name, value)

    def _unknown(self, name: str, value: Any) -> Any:
        kind = value if isinstance(value, type) else type(value)
        self.unknown.append(f"{name} ({_named(kind)})")
        return ["unknown", _named(kind)]


def _named(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
