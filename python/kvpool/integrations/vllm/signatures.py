"""What the plug-in relies on in each supported vLLM.

Owns the table, nothing else. It is in ``data/vllm_signatures.json``, which tools/vllm_signatures.py
writes. Module, then name in it, then the form: of a function or a method its signature without
annotations and values of defaults; of a class how it is called; "is X" for what is imported from
elsewhere; "attribute" for what is on the class or is stored by its methods; of "X.*" the public methods
of X. A form per version where they differ; a version that is not listed then lacks the name.
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
