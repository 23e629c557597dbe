"""Runs the check: ``python cuda/gpu_check`` from anywhere, or ``python -m cuda.gpu_check`` in the repository."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def _main() -> int:
    if __package__:
        app = importlib.import_module(".app", __package__)
    else:
        # Run as a folder. Its parent is where the package is found: of the name "cuda", NVIDIA has a package, too.
        sys.path[0] = str(Path(__file__).resolve().parents[1])
        app = importlib.import_module("gpu_check.app")
    return int(app.main())


if __name__ == "__main__":
    sys.exit(_main())
