"""The examples of the help pages, by command. They are in ``data/examples.toml``."""

from __future__ import annotations

from typing import Final

from kvpool import _data

__all__ = ["EXAMPLES"]

EXAMPLES: Final[dict[str, str]] = _data.toml("examples.toml")
