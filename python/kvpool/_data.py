"""Reads the tables that the package contains, in ``data``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).with_name("data")


def toml(name: str) -> dict[str, Any]:
    """Returns a table of the package."""
    return tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))
