"""Settings of SGLang 0.5.23 that the bytes of KV do not depend on, each with the reason.

They are in ``data/sglang_unrelated.toml``. ``engine`` writes every other setting into the name of the
stored pages. A setting that a later SGLang adds is not in these tables, so it becomes part of the name.
The result is a cold start, and never KV of another setting.
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


#: Settings of the server: name and reason.
SETTINGS: Final = _table("SETTINGS")

#: Attributes of SGLang's model configuration.
MODEL_CONFIG: Final = _table("MODEL_CONFIG")

#: Environment variables that begin with ``SGLANG_``.
ENVIRONMENT: Final = _table("ENVIRONMENT")
