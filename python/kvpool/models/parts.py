"""Configurations of several parts: where the part is that generates text, and which family it has by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvpool import _data

if TYPE_CHECKING:
    from kvpool.models.fields import Fields

__all__ = ["WRAPPERS", "text_part"]

#: Where a model of several parts has the part that generates text.
_PARTS: Final = ("text_config", "llm_config", "language_config", "thinker_config")

#: Models with such a part, and the ``model_type`` of a part that has none; empty where the part must have
#: one.
WRAPPERS: Final[dict[str, str]] = _data.toml("model_parts.toml")


def text_part(config: Fields) -> tuple[Fields, bool]:
    """Return the part that generates text, and whether it is inside another.

    A part without ``model_type`` gets the one that the model around it has for its text.

    Raises:
        ModelConfigError: a model of several parts that kvpool does not know; the error names ``model_type``.
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
