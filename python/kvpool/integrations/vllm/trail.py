"""The shadow's records: results as plain data to compare, and the last operations before a difference.

A plain value contains block ids instead of vLLM's blocks, and counts instead of a request. Files and
log lines contain even less: request ids, counts, block ids, and the first bytes of hashes. Token ids,
salts and other parts of prompts are users' data, and are never written. Texts of errors are not written
either, except those of kvpool's own errors about blocks.

This module does not import vLLM. It recognizes vLLM's objects by their attributes.
"""

from __future__ import annotations

import json
import os
import tempfile
import traceback
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kvpool import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Errors whose texts contain only block ids and counts, so that logs may contain these texts.
_ERRORS_WITH_TEXT = (
    errors.InvalidBlockError,
    errors.OutOfBlocksError,
    errors.BlocksInUseError,
    errors.InvariantError,
)
_ATOMS = (bool, int, float, str, bytes)
_HASH_BYTES = 8
_SHORT = 400


@dataclass(frozen=True, slots=True)
class RequestState:
    """The state of a request when an operation was made, expressed in counts."""

    request: str
    tokens: int
    computed: int
    hashes: int


@dataclass(frozen=True, slots=True)
class Raised:
    """The result of a call that raised an exception."""

    error: str

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        """Records the type of an error. The text is left out, because it may contain users' data."""
        return cls(type(error).__name__)


@dataclass(frozen=True, slots=True)
class Other:
    """Takes the place of a value that is not compared. Only the name of the value's type is kept."""

    kind: str


def plain(value: Any) -> Any:
    """Copies a value as plain data. Blocks become ids, a request becomes counts, and events stay as they are.

    Later changes do not affect the copy. Lists and tuples become tuples. Classes of vLLM and of kvpool
    become the same plain data, so that equal results compare equal.
    """
    if value is None or isinstance(value, _ATOMS):
        return value
    if isinstance(value, (list, tuple)):
        try:
            return tuple([one.block_id for one in value])
        except AttributeError:
            return tuple([plain(one) for one in value])
    if isinstance(value, (set, frozenset)):
        return frozenset(value)
    if isinstance(value, dict):
        return {plain(key): plain(one) for key, one in value.items()}
    if hasattr(value, "block_id"):
        return value.block_id
    if hasattr(value, "get_block_ids"):
        return tuple([plain(group) for group in value.blocks])
    if hasattr(value, "block_hashes") and hasattr(value, "request_id"):
        return RequestState(
            str(value.request_id),
            getattr(value, "num_tokens", 0),
            getattr(value, "num_computed_tokens", 0),
            len(value.block_hashes),
        )
    return value if is_event(value) else Other(type(value).__name__)


def is_event(value: Any) -> bool:
    """Returns whether a value is one of vLLM's KV events."""
    return hasattr(value, "__struct_fields__")


def same(theirs: Any, ours: Any) -> bool:
    """Returns whether two plain values are equal.

    The order of keys that are removed together is ignored, because vLLM keeps them in a set.
    """
    if theirs == ours:
        return True
    both = (theirs, ours)
    if not all(isinstance(one, tuple) and one and all(map(is_event, one)) for one in both):
        return False
    return len(theirs) == len(ours) and _sorted_removals(theirs) == _sorted_removals(ours)


def _sorted_removals(events: tuple[Any, ...]) -> list[Any]:
    found: list[Any] = []
    run: list[Any] = []
    for event in (*events, None):
        if type(event).__name__ == "BlockRemoved":
            run.append(event)
            continue
        found += sorted(run, key=lambda one: (repr(one.group_idx), repr(one.block_hashes)))
        run = []
        found.append(event)
    return found


def told(value: Any) -> Any:
    """Converts a plain value to a JSON value without users' data."""
    if isinstance(value, bytes):
        return value[:_HASH_BYTES].hex()
    if value is None or isinstance(value, _ATOMS):
        return value
    if isinstance(value, RequestState):
        return asdict(value)
    if isinstance(value, Raised):
        return {"raised": value.error}
    if isinstance(value, tuple):
        if len(value) > 1 and all(isinstance(one, bytes) for one in value):
            return {"hashes": len(value), "last": told(value[-1])}
        return [told(one) for one in value]
    if isinstance(value, frozenset):
        return sorted(map(told, value), key=repr)
    if isinstance(value, dict):
        return {str(told(key)): told(one) for key, one in value.items()}
    if is_event(value):
        return {"event": type(value).__name__, "hashes": len(getattr(value, "block_hashes", ()))}
    return f"<{value.kind if isinstance(value, Other) else type(value).__name__}>"


def brief_values(theirs: Any, ours: Any) -> tuple[str, str]:
    """Formats two different plain values for a log line.

    If the values are long, only the first part in which they differ is shown.
    """
    texts = [json.dumps(told(one)) for one in (theirs, ours)]
    if max(map(len, texts)) > _SHORT:
        texts = [json.dumps(one) for one in first_difference(theirs, ours)]
    texts = [
        text if len(text) <= _SHORT else f"{text[:_SHORT]}... ({len(text)} characters)" for text in texts
    ]
    return texts[0], texts[1]


def first_difference(theirs: Any, ours: Any) -> tuple[Any, Any]:
    """Returns the first part in which two plain values differ, with its position, both as JSON values.

    >>> first_difference((1, (2, 3)), (1, (2, 4)))
    ({'at': [1, 1], 'is': 3}, {'at': [1, 1], 'is': 4})
    >>> first_difference({"a": 1}, {})
    ({'at': ['a'], 'is': 1}, {'at': ['a'], 'is': '<nothing>'})
    """
    at: list[Any] = []
    while (step := _first_different(theirs, ours)) is not None:
        at.append(told(step))
        if is_event(theirs):  # its fields may contain a user's data
            theirs = ours = Other("different")
        else:
            theirs, ours = _part(theirs, step), _part(ours, step)
    if not at:
        return told(theirs), told(ours)
    return {"at": at, "is": told(theirs)}, {"at": at, "is": told(ours)}


def _part(value: Any, step: Any) -> Any:
    there = step in value if isinstance(value, dict) else step < len(value)
    return value[step] if there else Other("nothing")


def _first_different(theirs: Any, ours: Any) -> Any:
    """Returns the first position at which two values differ; ``None`` if they differ as a whole."""
    if isinstance(theirs, tuple) and isinstance(ours, tuple):
        places = range(max(len(theirs), len(ours)))
        return next((at for at in places if not same(_part(theirs, at), _part(ours, at))), None)
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = [*theirs, *(key for key in ours if key not in theirs)]
        return next((key for key in keys if not same(_part(theirs, key), _part(ours, key))), None)
    if is_event(theirs) and type(theirs) is type(ours):
        return next(
            (one for one in theirs.__struct_fields__ if getattr(theirs, one) != getattr(ours, one)), None
        )
    return None


def error_summary(error: BaseException) -> str:
    """Formats an error with its call stack. Only kvpool's errors about blocks include their text."""
    frames = traceback.extract_tb(error.__traceback__)
    steps = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    text = f": {error}" if isinstance(error, _ERRORS_WITH_TEXT) else ""
    return f"{type(error).__name__}{text} ({' > '.join(steps[-6:])})"


@dataclass(frozen=True, slots=True)
class Operation:
    """One call: its number, its name, and its arguments and result as plain data."""

    number: int
    name: str
    arguments: Any
    result: Any

    def as_json(self) -> dict[str, Any]:
        """Returns the operation as an object for one line of the trail's file."""
        shown = {"operation": self.number, "call": self.name}
        return {**shown, "arguments": told(self.arguments), "result": told(self.result)}


class Trail:
    """The last operations. They are written to a file when a difference is found.

    The trail keeps plain values. Users' data is removed when they are written.
    """

    #: The folder for the files: ``KVPOOL_VLLM_SHADOW_DIR``, which ``install`` sets. ``None`` means the
    #: folder for temporary files.
    folder: ClassVar[str | None] = None
    #: The largest number of operations that are kept.
    LENGTH: ClassVar[int] = 256

    def __init__(self) -> None:
        self._operations: deque[Operation] = deque(maxlen=self.LENGTH)
        self.add: Callable[[Operation], None] = self._operations.append

    def write(self, setting: Mapping[str, Any], difference: Mapping[str, Any]) -> str:
        """Writes a file of JSON lines: the setting, the operations, the difference. Returns its path.

        Only its owner can read the file. Raises ``OSError``.
        """
        folder = Path(self.folder or tempfile.gettempdir())
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(prefix=f"kvpool-shadow-{os.getpid()}-", suffix=".jsonl", dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            for line in (dict(setting), *(one.as_json() for one in list(self._operations)), dict(difference)):
                file.write(json.dumps(line) + "\n")
        return path

    def write_or_explain(self, setting: Mapping[str, Any], difference: Mapping[str, Any]) -> str:
        """Calls :meth:`write`, and returns a text for the log. Never raises.

        The text contains the path of the file, or the reason why writing failed.
        """
        try:
            return f"the last operations are in {self.write(setting, difference)}"
        except Exception as error:
            return (
                f"the last operations could not be written ({type(error).__name__}: "
                f"{self.folder or 'temp folder'})"
            )
