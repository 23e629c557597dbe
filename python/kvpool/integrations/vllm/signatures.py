"""The parts of each supported vLLM version on which the plug-in relies.

This module only loads the table in ``data/vllm_signatures.json``. The script tools/vllm_signatures.py
writes that file. The table maps a module, and a name in the module, to a form:

- For a function or a method: its signature, without annotations and values of defaults.
- For a class: the signature of its constructor.
- "is X": the module imports the name, and the name refers to X.
- "attribute": the class defines the attribute, or its methods assign it.
- For "X.*": the public methods of X.

If the versions differ, a name has one form per version. A version that is missing there does not have
the name.
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
