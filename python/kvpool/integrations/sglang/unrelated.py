"""The settings of SGLang 0.5.23 that do not influence the bytes of KV, each with the reason.

The settings are in ``data/sglang_unrelated.toml``. ``engine`` includes every other setting in the name
of the stored pages. If a later SGLang adds a setting, that setting is not in these tables, so it
becomes part of the name. At worst this causes a cold start. It never returns KV that was computed with
another setting.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from kvpool import _data

__all__ = ["ENVIRONMENT", "MODEL_CONFIG", "SETTINGS"]

_TABLES: Final[dict[str, dict[str, str]]] = _data.toml("sglang_unrelated.toml")


def _table(name: str) -> MappingProxyType[str, str]:
    return MappingProxyType(
        {setting: reason for reason, names in _TABLES[name].items() for setting in names.split()}
    )


#: Settings of SGLang's server that do not influence the bytes of KV, each with the reason.
SETTINGS: Final = _table("SETTINGS")

#: Attributes of SGLang's model configuration that do not influence the bytes of KV, each with the
#: reason.
MODEL_CONFIG: Final = _table("MODEL_CONFIG")

#: Environment variables that do not influence the bytes of KV, each with the reason. All begin with
#: ``SGLANG_``.
ENVIRONMENT: Final = _table("ENVIRONMENT")
