"""Finds the part of a configuration that describes the text model, in models that have several parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvpool import _data

if TYPE_CHECKING:
    from kvpool.models.fields import Fields

__all__ = ["WRAPPERS", "text_part"]

#: In models of several parts, the part that generates text is in one of these fields.
_PARTS: Final = ("text_config", "llm_config", "language_config", "thinker_config")

#: Maps the ``model_type`` of a model of several parts to the type of its text part, which is used if
#: that part names none. An empty type means that the text part must name its own type.
WRAPPERS: Final[dict[str, str]] = _data.toml("model_parts.toml")


def text_part(config: Fields) -> tuple[Fields, bool]:
    """Return the part of a configuration that generates text, and whether it is nested.

    A text part without ``model_type`` gets the type from ``WRAPPERS``.

    Raises:
        ModelConfigError: kvpool does not know this model of several parts. The error names
            ``model_type``.
    """
    nested = False
    while (name := next((part for part in _PARTS if config.has(part)), None)) is not None:
        kind = config.text("model_type")
        key = kind.lower()
        if key not in WRAPPERS:
            raise config.refused(
                "model_type", f"a model with a {name} that kvpool knows; docs/models.md lists them"
            )
        inner = config.inner(name)
        if not inner.has("model_type") and WRAPPERS[key]:
            inner = inner.replaced("model_type", WRAPPERS[key])
        config, nested = inner, True
    return config, nested
