"""The parts of each supported vLLM that the plug-in relies on.

This module only loads the table in ``data/vllm_signatures.json``, which tools/vllm_signatures.py
writes. The table maps a module and a name in it to a form:

- For a function or a method: its signature without annotations and values of defaults.
- For a class: how it is called.
- "is X": the module imports the name X from elsewhere.
- "attribute": the class has it, or its methods store it.
- For "X.*": the public methods of X.

A name has one form per version if the versions differ. A version that is not listed then lacks the
name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from kvpool import _data

Table: TypeAlias = Mapping[str, Mapping[str, str | Mapping[str, str]]]

FILE: Final = _data.FOLDER / "vllm_signatures.json"
_TABLES: Final[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))

VERSIONS: Final[tuple[str, ...]] = tuple(_TABLES["versions"])
POOL: Final[Table] = _TABLES["pool"]
MANAGER: Final[Table] = _TABLES["manager"]
