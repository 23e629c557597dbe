"""Fields of a configuration from outside: each is checked when it is read, and an error names it.

Owns the limits of numbers and the words of refusals. A field that is ``null`` counts as absent, as in the checkpoints.
"""

from __future__ import annotations

from typing import Any, Final

from kvpool.errors import ModelConfigError
from kvpool.models.shape import DTYPE_BYTES

__all__ = ["MOST_LAYERS", "Fields"]

MOST_LAYERS: Final = 10_000

#: The most that a dimension can be: products of four of them, and of layers, stay printable.
_MOST: Final = 1 << 24

#: The most of a value that a message shows.
_SHOWN: Final = 60


class Fields:
    """An object of JSON, and where it is."""

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise ModelConfigError(f"{path or 'the file'} is {_brief(value)}: must be an object", path or None)
        self._values: dict[str, Any] = value
        self._path = path

    def with_defaults(self, defaults: dict[str, Any]) -> Fields:
        """The same with fields that are absent."""
        given = {name: value for name, value in self._values.items() if value is not None}
        return Fields({**defaults, **given}, self._path)

    def has(self, name: str) -> bool:
        """Whether a field is there, and not ``null``."""
        return self._values.get(name) is not None

    def inner(self, name: str) -> Fields:
        """The object in a field."""
        return Fields(self._values.get(name), self._where(name))

    def count(self, *names: str, least: int = 1, most: int = _MOST) -> int:
        """A whole number, under the first of these names that is there."""
        name = next((name for name in names if self.has(name)), None)
        if name is None:
            raise ModelConfigError(f"{self._where(names[0])} is missing", self._where(names[0]))
        value = self._values[name]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.refused(name, f"a whole number, {least:,} to {most:,}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        if not self.has(name):
            return default
        if not isinstance(self._values[name], bool):
            raise self.refused(name, "true or false")
        return bool(self._values[name])

    def text(self, name: str) -> str:
        """A text, empty if it is absent."""
        if not self.has(name):
            return ""
        if not isinstance(self._values[name], str):
            raise self.refused(name, "a text")
        return str(self._values[name])

    def has_entries(self, name: str) -> bool:
        """Whether a field is there, and not an empty list."""
        return self.has(name) and self._values[name] != []

    def items(self, name: str) -> list[Any]:
        """A list of at most as many entries as a model has layers."""
        value = self._values[name]
        if not isinstance(value, list) or not 1 <= len(value) <= MOST_LAYERS:
            raise self.refused(name, f"a list with an entry per layer, 1 to {MOST_LAYERS:,}")
        return value

    def dtype_bytes(self, *names: str, default: int) -> int:
        """Bytes of the dtype that one of these fields names."""
        for name in names:
            if self.has(name):
                text = self.text(name).removeprefix("torch.").lower()
                if text in {"", "auto"}:
                    return default
                if text not in DTYPE_BYTES:
                    raise self.refused(name, f"one of {', '.join(DTYPE_BYTES)}")
                return DTYPE_BYTES[text]
        return default

    def refused(self, name: str, expected: str, *entry: object) -> ModelConfigError:
        """What to raise about a field, or about one entry of it."""
        value, verb = (entry[0], "has") if entry else (self._values.get(name), "is")
        return ModelConfigError(f"{self._where(name)} {verb} {_brief(value)}: must be {expected}", self._where(name))

    def _where(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def _brief(value: object) -> str:
    """A value in a few characters, however large it is."""
    if isinstance(value, dict):
        return f"an object of {len(value):,} fields"
    if isinstance(value, list):
        return f"a list of {len(value):,} entries"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**_SHOWN:
        return f"a number of more than {_SHOWN} digits"
    text = "null" if value is None else repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
