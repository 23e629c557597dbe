"""The content of an engine's LoRA adapters, if it is known. This module does not import vLLM.

vLLM's key of a chunk (a group of blocks that is offloaded as a unit) contains the name and the path of
an adapter, but not its content. This module reads the content when the engine loads the adapter. If the
content is unknown, or has changed while the engine runs, the tier neither stores nor finds KV of the
adapter.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvpool.errors import InvalidArgumentError
from kvpool.integrations.vllm.offload.identity import served_weights
from kvpool.integrations.weights import stamp_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Adapters", "names_with"]


def names_with(content: str, keys: Iterable[bytes]) -> list[bytes]:
    """Converts vLLM's keys to names of the same lengths that depend on an adapter's content.

    The last four bytes of a name are those of the key. They contain the KV-cache group.
    """
    adapter = hashlib.sha256(content.encode()).digest()
    return [hashlib.shake_256(adapter + key[:-4]).digest(len(key) - 4) + key[-4:] for key in keys]


@dataclasses.dataclass(slots=True)
class _Adapter:
    place: tuple[str, str]  # its name and path, which are part of vLLM's names of chunks
    stamp: str
    content: str


class Adapters:
    """Reads the adapters of one engine. Only the scheduler's thread calls it."""

    def __init__(self) -> None:
        self._loaded: dict[int, _Adapter] = {}
        self._contents: dict[tuple[str, str], str] = {}
        #: Ids and paths of adapters that have had more than one content since the engine started.
        self._changed: set[object] = set()

    def content_of(self, request: Any) -> str | None:
        """Returns the content of the adapter of a ``LoRARequest``; None if it is unknown.

        Reads the files of the adapter when its id is seen for the first time, or when the files have
        changed. Otherwise, it costs one ``stat`` per file. A worker may drop an adapter and later read
        its files again. Therefore, once the files have changed, the content remains unknown until the
        engine is restarted.
        """
        known, place = int(request.lora_int_id), (str(request.lora_name), str(request.lora_path))
        try:
            stamp = _stamp(place[1])
            loaded = self._loaded.get(known)
            if loaded is None or loaded.stamp != stamp or loaded.place != place:
                content = f"{served_weights(place[1])} {bool(getattr(request, 'is_3d_lora_weight', False))}"
                if _stamp(place[1]) != stamp:
                    raise InvalidArgumentError(f"the adapter {place[1]!r} is being written")
                if loaded is not None and (loaded.content != content or loaded.place != place):
                    self._changed.add(known)
                if self._contents.setdefault(place, content) != content:
                    self._changed.add(place)
                loaded = self._loaded[known] = _Adapter(place, stamp, content)
        except InvalidArgumentError:
            if known in self._loaded:
                self._changed.add(known)
            return None
        return None if known in self._changed or place in self._changed else loaded.content


def _stamp(path: str) -> str:
    """Returns a value that changes when the files of an adapter change.

    For an adapter on the Hugging Face hub, it is the commit.
    """
    return stamp_of(path) if Path(path).expanduser().exists() else served_weights(path)
