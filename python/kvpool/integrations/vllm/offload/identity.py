"""Reads everything that KV depends on from vLLM's whole configuration. Imports no vLLM.

Takes every field of the configuration but those in ``excluded``, and gives each part a canonical form. A
value that has none, such as a function, makes the name unique to this start: a cold start instead of a wrong
hit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import fnmatch
import hashlib
import importlib.metadata
import json
import os
import sys
import uuid
from collections.abc import Mapping, Sequence, Set
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from kvpool.errors import InvalidArgumentError
from kvpool.integrations.vllm.offload import excluded
from kvpool.integrations.weights import commit_of, content_of, weights_of

if TYPE_CHECKING:
    import types

__all__ = ["Identity", "config_of", "identity_of", "served_weights", "why_excluded"]

#: A folder with more entries than this is not read, only because some setting names it.
_MOST_FILES: Final = 2_000
_DEPTH: Final = 40
#: Loaders that read the weights of the model that the configuration names. Others can read them from a
#: server.
_LOADERS: Final = frozenset(
    [
        *("auto", "hf", "dummy", "fastsafetensors", "instanttensor", "mistral", "npcache", "pt", "safetensors"),
        *("sharded_state", "runai_streamer", "runai_streamer_sharded"),
    ]
)
#: Distributions whose code decides what a configuration means.
_VERSIONS: Final = ("vllm", "transformers")


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Everything that KV depends on, but tokens and adapters.

    Args:
        weights: The name of the weights.
        facts: Everything else, by name.
        unknown: Where values without a canonical form are. If there are any, no other start has these facts.
    """

    weights: str
    facts: dict[str, str]
    unknown: list[str]


def config_of(spec: Any) -> Any:
    """Returns the ``VllmConfig`` of the engine that makes an offloading spec's manager; None if it is not found.

    vLLM gives a spec a part of its configuration. The whole is an argument of a constructor that has not
    returned.
    """
    engine = getattr(getattr(spec, "config", None), "engine_id", None)
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        found: Any = frame.f_locals.get("vllm_config")
        if type(found).__name__ == "VllmConfig" and getattr(found.kv_transfer_config, "engine_id", None) == engine:
            return found
        frame = frame.f_back
    return None


def identity_of(config: Any, weights: str | None) -> Identity:
    """Returns everything that the KV of an engine depends on, but tokens and adapters.

    Args:
        config: vLLM's ``VllmConfig``; None if it is not known, which makes a cold start.
        weights: The name of the weights, draft models included; None to find it out.

    Raises:
        InvalidArgumentError: The name of the weights is not given, and cannot be found out.
    """
    walk = _Walk()
    facts = {name: _version(name) for name in _VERSIONS}
    found = {} if weights is not None else _weights(config, walk)
    if config is None:
        walk.unknown.append("VllmConfig")
    else:
        for field in dataclasses.fields(config):
            if why_excluded(config, field.name) is None:
                form = walk.form(getattr(config, field.name), f"VllmConfig.{field.name}")
                facts[f"config {field.name}"] = _digest(form)
    for name, value in sorted(os.environ.items()):
        if name.startswith("VLLM_") and why_excluded("environment", name) is None:
            facts[f"environment {name}"] = value
    if walk.unknown:
        facts["unknown"] = str(uuid.uuid4())
    if weights is None:
        weights, *drafts = found.values()
        facts |= {f"weights of draft {number}": draft for number, draft in enumerate(drafts)}
    return Identity(weights, facts, walk.unknown)


def why_excluded(owner: object, name: str) -> str | None:
    """Returns why a field of an object is not part of the name of stored KV; None if it is.

    Args:
        owner: A configuration of vLLM, or ``"environment"``.
        name: A field, or an environment variable.
    """
    if owner == "environment":
        return _listed(excluded.ENVIRONMENT, name)
    tables = [excluded.FIELDS[kind.__name__] for kind in type(owner).__mro__ if kind.__name__ in excluded.FIELDS]
    if any(kind.__name__ == "ModelConfig" for kind in type(owner).__mro__) and not _reads_media(owner):
        tables.append(excluded.TEXT_ONLY)
    return next((why for table in tables if (why := _listed(table, name)) is not None), None)


def _listed(table: Mapping[str, str], name: str) -> str | None:
    for patterns, why in table.items():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns.split()):
            return why
    return None


def _reads_media(model: object) -> bool:
    try:
        return getattr(model, "multimodal_config", None) is not None or bool(
            getattr(model, "is_multimodal_model", True)
        )
    except Exception:
        return True


def _weights(config: Any, walk: _Walk) -> dict[str, str]:
    """Names of the weights of the model and of its draft model, the model's first."""
    if config is None:
        raise InvalidArgumentError(
            'weights is not given, and vLLM\'s configuration is unknown: name the weights, "weights": "2026-11-24"'
        )
    speculative = getattr(config, "speculative_config", None)
    loads = [getattr(config, "load_config", None), getattr(speculative, "draft_load_config", None)]
    for name in (str(load.load_format) for load in loads if load is not None):
        if name not in _LOADERS:
            raise InvalidArgumentError(
                f"weights is not given, and load_format {name!r} may read weights from elsewhere than the model: name "
                'the weights, and change the name whenever they change: "weights": "2026-11-24"'
            )
    models = [config.model_config, getattr(speculative, "draft_model_config", None)]
    found: dict[str, str] = {}
    for model in models:
        if model is None:
            continue
        source = str(getattr(model, "model_weights", "") or model.model)
        revision = getattr(model, "revision", None)
        of = f"{source} {revision}"
        if of in found:
            continue  # a draft of the model itself, such as n-grams
        folder = getattr(getattr(config, "load_config", None), "download_dir", None)
        try:
            found[of] = served_weights(source, revision, folder)
        except InvalidArgumentError:
            if folder is None:
                raise
            found[of] = served_weights(source, revision)
        _add_code(model, source, walk)
    return found


def served_weights(source: str, revision: str | None = None, folder: str | None = None) -> str:
    """Returns the name of the weights of a model or an adapter that vLLM serves.

    Raises:
        InvalidArgumentError: It is unknown; vLLM downloads from ModelScope, whose commits are not known here.
    """
    uses_modelscope = os.environ.get("VLLM_USE_MODELSCOPE", "").lower() in ("true", "1")
    if uses_modelscope and not Path(source).expanduser().exists():
        raise InvalidArgumentError(
            f"weights is not given, and is unknown for {source!r}, which vLLM downloads from ModelScope: name the "
            'weights, and change the name whenever they change: "weights": "2026-11-24"'
        )
    return weights_of(source, revision, cache_dir=folder)


def _add_code(model: Any, source: str, walk: _Walk) -> None:
    """Marks code that a hub model imports from elsewhere as unknown, unless its commit is pinned."""
    if not getattr(model, "trust_remote_code", False) or Path(source).expanduser().exists():
        return
    references = str(getattr(getattr(model, "hf_config", None), "auto_map", None) or "")
    revision = getattr(model, "code_revision", None)
    if revision is None and "--" not in references:
        return  # the code is in the model's own commit
    if revision is None or revision != commit_of(source, revision):
        walk.unknown.append("ModelConfig.code_revision")


def _version(name: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return ""


def _digest(form: object) -> str:
    text = json.dumps(form, sort_keys=True)
    return text if len(text) <= 64 else hashlib.sha256(text.encode()).hexdigest()


class _Walk:
    """Makes canonical forms that JSON can hold, and lists the values that have none."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self._within: list[int] = []

    def form(self, value: Any, path: str) -> object:
        """Returns a form that is equal exactly for values that mean the same."""
        kind = type(value)
        if value is None or kind in (bool, int, float):
            return value if kind is not float else ["float", repr(value)]
        if isinstance(value, enum.Enum):
            return [_name(kind), value.name]
        if kind is str:
            return self._text(value, path)
        if isinstance(value, PurePath):
            return self._text(str(value), path)
        if kind is bytes:
            return ["bytes", value.hex()]
        if isinstance(value, type):
            return ["class", _name(value)]
        if kind.__module__.split(".")[0] == "torch" and kind.__name__ in ("dtype", "device", "Size"):
            return [kind.__name__, str(value)]
        if id(value) in self._within or len(self._within) > _DEPTH:
            return self._none(path)
        self._within.append(id(value))
        try:
            return self._nested(value, path)
        finally:
            self._within.pop()

    def _nested(self, value: Any, path: str) -> object:
        kind = type(value)
        if isinstance(value, Mapping):
            pairs = [[self.form(key, path), self.form(one, f"{path}.{key}")] for key, one in value.items()]
            return ["mapping", sorted(pairs, key=json.dumps)]
        if isinstance(value, Set):
            return ["set", sorted((self.form(one, path) for one in value), key=json.dumps)]
        if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
            return ["list", [self.form(one, f"{path}[{at}]") for at, one in enumerate(value)]]
        # A configuration of transformers, which has more attributes than the fields of its class.
        if hasattr(kind, "to_dict") and hasattr(kind, "model_type"):
            try:
                found = value.to_dict()
            except Exception:
                return self._none(path)
            return [_name(kind), self.form(_without(found), path)]
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            kept = [name for name in names if why_excluded(value, name) is None]
            return [_name(kind), {name: self.form(getattr(value, name, None), f"{path}.{name}") for name in kept}]
        fields = getattr(kind, "model_fields", None)  # of pydantic
        if isinstance(fields, Mapping):
            return [_name(kind), {name: self.form(getattr(value, name), f"{path}.{name}") for name in fields}]
        return self._none(path)

    def _text(self, value: str, path: str) -> object:
        """Returns text as it is, or the content of the file or folder that it names."""
        if "/" not in value and not value.startswith("~"):
            return value
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            at = Path(value).expanduser()
            if not at.exists():
                return value
            if at.is_file() or (at.is_dir() and _is_small(at)):
                with contextlib.suppress(InvalidArgumentError):
                    return ["content", value, content_of(at)]
            return self._none(path)
        return value

    def _none(self, path: str) -> object:
        self.unknown.append(path)
        return None


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _without(value: Any) -> Any:
    """Leaves out of a configuration of transformers what ``excluded`` lists, at any depth."""
    if isinstance(value, Mapping):
        return {key: _without(one) for key, one in value.items() if key not in excluded.HF_CONFIG}
    if isinstance(value, (list, tuple)):
        return [_without(one) for one in value]
    return value


def _is_small(folder: Path) -> bool:
    count = 0
    for _, folders, files in os.walk(folder):
        count += len(folders) + len(files)
        if count > _MOST_FILES:
            return False
    return True
