"""Reads the TOML tables that ship with the package, in the folder ``data``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).with_name("data")


def toml(name: str) -> dict[str, Any]:
    """Reads and parses a TOML file of the folder ``data``."""
    return tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))
