"""What the shadow writes down: results as plain data to compare, and the last operations before a difference.

A plain value has block ids where vLLM has blocks, and counts where it has a request. What goes into a
file or a log line has fewer: request ids, counts, block ids, and the first bytes of hashes. Token ids,
salts and other parts of prompts are users' data and never among them, nor are the texts of errors, but
for those of kvpool's about blocks.

Nothing of vLLM is imported here: its objects are told apart by what they have.
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

#: Errors whose text has block ids and counts alone.
_TOLD_ERRORS = (
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
    """What an operation could see of a request, in counts."""

    request: str
    tokens: int
    computed: int
    hashes: int


@dataclass(frozen=True, slots=True)
class Raised:
    """The result of a call that raised."""

    error: str

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        """The kind alone: its text may hold a user's data."""
        return cls(type(error).__name__)


@dataclass(frozen=True, slots=True)
class Other:
    """Something that is not compared."""

    kind: str


def plain(value: Any) -> Any:
    """A value as data that later changes don't reach: ids for blocks, counts for a request, events as
    they are.

    Lists and tuples are one, vLLM's and kvpool's classes too, so that equal results are equal.
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
    """Whether it is one of vLLM's KV events."""
    return hasattr(value, "__struct_fields__")


def same(theirs: Any, ours: Any) -> bool:
    """Whether two plain values are equal. Keys that are removed together are so in no order: vLLM has
    them in a set.
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
    """A plain value as JSON has it, without anything that is a user's."""
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


def told_briefly(theirs: Any, ours: Any) -> tuple[str, str]:
    """Two plain values that differ for a line in a log: whole, or, where they are long, what differs
    first.
    """
    texts = [json.dumps(told(one)) for one in (theirs, ours)]
    if max(map(len, texts)) > _SHORT:
        texts = [json.dumps(one) for one in told_difference(theirs, ours)]
    texts = [
        text if len(text) <= _SHORT else f"{text[:_SHORT]}... ({len(text)} characters)" for text in texts
    ]
    return texts[0], texts[1]


def told_difference(theirs: Any, ours: Any) -> tuple[Any, Any]:
    """The part of two plain values in which they differ first, with where it is, both as JSON.

    >>> told_difference((1, (2, 3)), (1, (2, 4)))
    ({'at': [1, 1], 'is': 3}, {'at': [1, 1], 'is': 4})
    >>> told_difference({"a": 1}, {})
    ({'at': ['a'], 'is': 1}, {'at': ['a'], 'is': '<nothing>'})
    """
    at: list[Any] = []
    while (step := _first_different(theirs, ours)) is not None:
        at.append(told(step))
        if is_event(theirs):  # its fields may be a user's
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
    """Where, inside of both, they differ first; ``None`` if they differ as a whole."""
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


def told_error(error: BaseException) -> str:
    """An error and the calls that led to it; its text only if it is kvpool's own, and of blocks."""
    frames = traceback.extract_tb(error.__traceback__)
    steps = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    text = f": {error}" if isinstance(error, _TOLD_ERRORS) else ""
    return f"{type(error).__name__}{text} ({' > '.join(steps[-6:])})"


@dataclass(frozen=True, slots=True)
class Operation:
    """One call: its number, name, and what went in and came out, plain."""

    number: int
    name: str
    arguments: Any
    result: Any

    def as_json(self) -> dict[str, Any]:
        """For a line of the trail."""
        shown = {"operation": self.number, "call": self.name}
        return {**shown, "arguments": told(self.arguments), "result": told(self.result)}


class Trail:
    """The last operations, to be written when something differs. Keeps plain values; what is told is
    decided then.
    """

    # : Where files go: ``KVPOOL_VLLM_SHADOW_DIR``, which ``install`` writes; ``None`` is the folder for
    # temporary files.
    folder: ClassVar[str | None] = None
    #: How many operations are kept.
    LENGTH: ClassVar[int] = 256

    def __init__(self) -> None:
        self._operations: deque[Operation] = deque(maxlen=self.LENGTH)
        self.add: Callable[[Operation], None] = self._operations.append

    def write(self, setting: Mapping[str, Any], difference: Mapping[str, Any]) -> str:
        """Writes a file of JSON lines: what it is about, the operations, the difference. Returns its path.

        Only its owner can read it. Raises ``OSError``.
        """
        folder = Path(self.folder or tempfile.gettempdir())
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(prefix=f"kvpool-shadow-{os.getpid()}-", suffix=".jsonl", dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            for line in (dict(setting), *(one.as_json() for one in list(self._operations)), dict(difference)):
                file.write(json.dumps(line) + "\n")
        return path

    def write_or_say_why(self, setting: Mapping[str, Any], difference: Mapping[str, Any]) -> str:
        """:meth:`write` for a log line: where the operations are, or why they are nowhere. Raises nothing."""
        try:
            return f"the last operations are in {self.write(setting, difference)}"
        except Exception as error:
            return f"the last operations could not be written ({type(error).__name__}: {self.folder or 'temp folder'})"
