"""Converts an engine's configuration to canonical text: equal settings give the same text in every process.

A text never contains a memory address. If a value has a type that this module does not know, it is
reported, and the caller can then start with an empty cache (cold start). This module depends on no
engine.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import os
from collections.abc import Mapping, Sequence, Set
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from kvpool.errors import InvalidArgumentError
from kvpool.integrations.weights import content_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Canonical", "digest_of", "fields_of", "short"]

#: The deepest nesting that is read. Deeper values count as unknown, because the setting may be
#: damaged.
_MAX_DEPTH: Final = 32
#: A folder with more entries counts as unknown and is not read, because a setting may name any folder.
_MOST_FILES: Final = 2_000
#: Longer texts are replaced by their digest, because the store keeps the texts in a file for people to
#: read.
_LONGEST: Final = 64
#: Types of torch for which ``str`` describes a value completely.
_NAMED_BY_STR: Final = frozenset({("torch", "dtype"), ("torch", "device"), ("torch", "layout")})


def short(text: str) -> str:
    """Returns a text of at most 64 characters unchanged, and the digest of a longer text."""
    return text if len(text) <= _LONGEST else digest_of(text)


def digest_of(text: str) -> str:
    """Returns ``sha256`` and the digest of a text."""
    return f"sha256 {hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()}"


def fields_of(record: Any) -> dict[str, Any] | None:
    """Returns the fields of a record; None for any other value.

    A record is a dataclass, a struct of msgspec, a model of pydantic or a named tuple.
    """
    kind = type(record)
    if isinstance(record, type):
        return None
    if dataclasses.is_dataclass(record):
        names: Iterable[str] = (field.name for field in dataclasses.fields(record))
    elif isinstance(getattr(kind, "model_fields", None), Mapping):
        names = kind.model_fields
    else:
        found = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None)
        if not isinstance(found, tuple):
            return None
        names = found
    return {name: getattr(record, name) for name in names if hasattr(record, name)}


class Canonical:
    """Converts values to text, and collects the names of the values that it cannot convert.

    Args:
        skips: A function that decides whether to leave out a field. It gets the object with the field,
            and the field's name. For a configuration of transformers, a field is a key of its
            ``to_dict()`` at any depth. By default, no field is left out.

    Attributes:
        unknown: The name and type of each value that has no canonical text.
    """

    def __init__(self, skips: Callable[[object, str], bool] | None = None) -> None:
        self.unknown: list[str] = []
        self._skips = skips or (lambda _owner, _name: False)
        self._within: list[int] = []

    def text(self, name: str, value: Any) -> str:
        """Returns the canonical text of a setting. O(size of the value).

        If a string contains JSON, the parsed content is converted. If a string names a file, the digest
        of the file is added, because such a setting (a file of scales, for example) has its effect
        through the file's content. If a string names a folder, the digest of the folder is added, but
        only if the string has a separator or the setting's name ends in ``_path``. A folder of more
        than 2,000 entries is unknown.

        Args:
            name: The name of the setting, used in ``unknown``.
            value: The value of the setting.
        """
        return json.dumps(self._plain(name, value), ensure_ascii=True, separators=(",", ":"))

    def _plain(self, name: str, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int):
            return value
        if kind is float:
            return ["float", repr(value)]
        if isinstance(value, enum.Enum):
            return ["enum", _named(kind), value.name]
        if isinstance(value, (str, PurePath)):
            return self._string(name, str(value))
        if isinstance(value, (bytes, bytearray)):
            return ["bytes", bytes(value).hex()]
        if isinstance(value, type):
            return self._unknown(name, value) if "<" in value.__qualname__ else ["class", _named(value)]
        if (kind.__module__, kind.__name__) in _NAMED_BY_STR:
            return [kind.__name__, str(value)]
        if id(value) in self._within or len(self._within) > _MAX_DEPTH:
            return self._unknown(name, value)
        self._within.append(id(value))
        try:
            return self._nested(name, value)
        finally:
            self._within.pop()

    def _nested(self, name: str, value: Any) -> Any:
        # A configuration of transformers may have more settings than its class has fields, so
        # ``to_dict`` is used.
        if hasattr(type(value), "model_type") and hasattr(value, "to_dict"):
            return self._described(name, value)
        if isinstance(value, Mapping):
            items = value.items()
            pairs = ([self._plain(name, key), self._plain(f"{name}.{key}", one)] for key, one in items)
            return ["dict", sorted(pairs, key=json.dumps)]
        record = fields_of(value)
        if record is not None:
            kept = sorted(key for key in record if not self._skips(value, key))
            plain = [[key, self._plain(f"{name}.{key}", record[key])] for key in kept]
            return ["record", _named(type(value)), plain]
        if isinstance(value, Sequence) and not isinstance(value, memoryview):
            return ["list", [self._plain(name, one) for one in value]]
        if isinstance(value, Set):
            return ["set", sorted((self._plain(name, one) for one in value), key=json.dumps)]
        return self._described(name, value)

    def _described(self, name: str, value: Any) -> Any:
        """Converts a value through its own ``to_dict``. Configurations of transformers have this method."""
        try:
            described = self._without(value, value.to_dict())
        except Exception:
            described = None
        if not isinstance(described, dict):
            return self._unknown(name, value)
        return ["described", _named(type(value)), self._plain(name, described)]

    def _without(self, owner: object, value: Any) -> Any:
        """Returns the result of an object's ``to_dict`` without the skipped fields."""
        if isinstance(value, dict):
            kept = {key: one for key, one in value.items() if not self._skips(owner, str(key))}
            return {key: self._without(owner, one) for key, one in kept.items()}
        if type(value) in (list, tuple):
            return [self._without(owner, one) for one in value]
        return value

    def _string(self, name: str, value: str) -> Any:
        if value[:1] in ("{", "["):
            try:
                inside = json.loads(value)
            except (ValueError, RecursionError):
                inside = None
            if isinstance(inside, (dict, list)):
                return ["json", self._plain(name, inside)]
        if not value or "\0" in value or "\n" in value or len(value) > os.pathconf("/", "PC_PATH_MAX"):
            return value
        is_path = os.sep in value or value.startswith("~") or name.endswith("_path")
        try:
            path = Path(value).expanduser()
            is_folder = is_path and path.is_dir()
            if not is_folder and not path.is_file():
                return value
        except (OSError, ValueError, RuntimeError):
            return value
        if is_folder and not _is_small(path):
            return self._unknown(name, value)
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


def _is_small(folder: Path) -> bool:
    count = 0
    for _, folders, files in os.walk(folder):
        count += len(folders) + len(files)
        if count > _MOST_FILES:
            return False
    return True
