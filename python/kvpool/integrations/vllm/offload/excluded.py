"""The settings of vLLM that do not change the bytes of KV, each with the reason.

They are in ``data/vllm_excluded.toml``. Every other setting is part of the name of stored KV. This
includes settings that only a later vLLM has. If such a setting changes, the earlier KV is not found
(cold start). ``identity`` reads these tables. design/vllm-settings.md lists all settings of vLLM 0.32
and 0.33.
"""

from __future__ import annotations

from typing import Final

from kvpool import _data

__all__ = ["ENVIRONMENT", "FIELDS", "HF_CONFIG", "TEXT_ONLY"]

_TABLES: Final = _data.toml("vllm_excluded.toml")


def _explained(table: dict[str, str]) -> dict[str, str]:
    """Replaces the abbreviated reasons in a table of excluded settings by their full texts."""
    return {names: _TABLES["reasons"].get(reason, reason) for names, reason in table.items()}


#: Maps a class of vLLM's configuration to its excluded fields: names separated by spaces, with the
#: reason.
FIELDS: Final[dict[str, dict[str, str]]] = {
    kind: _explained(table) for kind, table in _TABLES["FIELDS"].items()
}

#: Fields of ``ModelConfig`` that have no influence on KV in text-only models. The code of other models
#: reads them.
TEXT_ONLY: Final[dict[str, str]] = _explained(_TABLES["TEXT_ONLY"])

#: Excluded keys in a configuration of transformers, at any depth.
HF_CONFIG: Final[dict[str, str]] = _explained(_TABLES["HF_CONFIG"])

#: Patterns for the names of excluded environment variables. The names begin with ``VLLM_``.
ENVIRONMENT: Final[dict[str, str]] = _explained(_TABLES["ENVIRONMENT"])
