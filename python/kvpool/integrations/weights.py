"""Which weights an engine serves: what says that KV was computed with others. Knows no engine."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path

from kvpool.errors import InvalidArgumentError

__all__ = ["weights_of"]


def weights_of(model: str) -> str:
    """The revision of a model's weights.

    Of a folder: names, sizes and times of its files. Of a name: the commit in the Hugging Face cache.

    Raises:
        InvalidArgumentError: It is neither.
    """
    folder = Path(model)
    if folder.is_dir():
        facts = sorted(
            (path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir() if path.is_file()
        )
        return f"files {hashlib.sha256(repr(facts).encode()).hexdigest()}"
    try:
        # The engines bring it.
        found = importlib.import_module("huggingface_hub").try_to_load_from_cache(model, "config.json")
    except (ImportError, ValueError):
        found = None
    if isinstance(found, str):
        return f"commit {Path(found).parent.name}"
    raise InvalidArgumentError(
        f"weights is not given, and cannot be found out for {model!r}: say which revision is served, and change it "
        'whenever they change: "weights": "2026-11-24"'
    )
