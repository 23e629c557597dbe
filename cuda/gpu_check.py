"""Checks and measures ``kvpool.transfer`` on a GPU: ``python cuda/gpu_check.py --help``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def _main() -> int:
    # Remove this file's parent folder from the import path. Otherwise ``import cuda`` would find this
    # folder instead of NVIDIA's package of that name.
    sys.path[0] = str(Path(__file__).resolve().parent)
    app = importlib.import_module("checks.app")
    return int(app.main())


if __name__ == "__main__":
    sys.exit(_main())
