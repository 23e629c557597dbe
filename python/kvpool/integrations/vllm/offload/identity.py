"""Collects everything in vLLM's configuration that determines KV. Does not import vLLM.

Every field of the configuration is converted to canonical text, except the fields in ``excluded``. If a
value cannot be converted, for example a function, the name of the stored KV becomes unique to this
process. The result is then a cold start and never a wrong hit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import importlib.metadata
import os
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvpool.errors import InvalidArgumentError
from kvpool.integrations.canonical import Canonical, short
from kvpool.integrations.vllm.offload import excluded
from kvpool.integrations.weights import commit_of, weights_of

if TYPE_CHECKING:
    import types
    from collections.abc import Mapping

__all__ = ["Identity", "config_of", "identity_of", "served_weights", "why_excluded"]

#: Loaders that read the weights of the model in the configuration. Other loaders may read weights from
#: a server.
_LOADERS: Final = frozenset(
    [
        *(
            "auto",
            "hf",
            "dummy",
            "fastsafetensors",
            "instanttensor",
            "mistral",
            "npcache",
            "pt",
            "safetensors",
        ),
        *("sharded_state", "runai_streamer", "runai_streamer_sharded"),
    ]
)
#: The packages whose versions determine what a configuration means.
_VERSIONS: Final = ("vllm", "transformers")


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Everything that determines KV, except tokens and adapters.

    Args:
        weights: The name of the weights.
        facts: Everything else, by name.
        unknown: The settings that have no canonical text. If there are any, the facts are unique to
            this process.
    """

    weights: str
    facts: dict[str, str]
    unknown: list[str]


def config_of(spec: Any) -> Any:
    """Returns the ``VllmConfig`` of the engine that is making the manager of an offloading spec.

    Returns None if it is not found. vLLM passes only a part of its configuration to a spec. The whole
    configuration is an argument of a constructor that is still running, so this function reads it from
    the call stack.
    """
    engine = getattr(getattr(spec, "config", None), "engine_id", None)
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        found: Any = frame.f_locals.get("vllm_config")
        if (
            type(found).__name__ == "VllmConfig"
            and getattr(found.kv_transfer_config, "engine_id", None) == engine
        ):
            return found
        frame = frame.f_back
    return None


def identity_of(config: Any, weights: str | None) -> Identity:
    """Returns everything that determines the KV of an engine, except tokens and adapters.

    Args:
        config: vLLM's ``VllmConfig``; None if it is unknown, which causes a cold start.
        weights: The name of the weights, including those of draft models; None to determine it.

    Raises:
        InvalidArgumentError: The name of the weights is not given, and cannot be determined.
    """
    written = Canonical(_is_skipped)
    facts = {name: _version(name) for name in _VERSIONS}
    found = {} if weights is not None else _weights(config, written)
    if config is None:
        written.unknown.append("VllmConfig")
    else:
        for field in dataclasses.fields(config):
            if why_excluded(config, field.name) is None:
                text = written.text(f"VllmConfig.{field.name}", getattr(config, field.name))
                facts[f"config {field.name}"] = short(text)
    for name, value in sorted(os.environ.items()):
        if name.startswith("VLLM_") and why_excluded("environment", name) is None:
            facts[f"environment {name}"] = short(value)
    if written.unknown:
        facts["unknown"] = str(uuid.uuid4())
    if weights is None:
        weights, *drafts = found.values()
        facts |= {f"weights of draft {number}": draft for number, draft in enumerate(drafts)}
    return Identity(weights, facts, written.unknown)


def why_excluded(owner: object, name: str) -> str | None:
    """Returns the reason why a field is not part of the name of stored KV; None if it is part of the name.

    Args:
        owner: A configuration of vLLM, or ``"environment"``.
        name: A field, or an environment variable.
    """
    if owner == "environment":
        return _listed(excluded.ENVIRONMENT, name)
    tables = [
        excluded.FIELDS[kind.__name__] for kind in type(owner).__mro__ if kind.__name__ in excluded.FIELDS
    ]
    if any(kind.__name__ == "ModelConfig" for kind in type(owner).__mro__) and not _reads_media(owner):
        tables.append(excluded.TEXT_ONLY)
    return next((why for table in tables if (why := _listed(table, name)) is not None), None)


def _is_skipped(owner: object, name: str) -> bool:
    if hasattr(type(owner), "model_type"):  # a configuration of transformers
        return name in excluded.HF_CONFIG
    return why_excluded(owner, name) is not None


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


def _weights(config: Any, written: Canonical) -> dict[str, str]:
    """Returns the names of the weights of the model and of its draft model, in this order."""
    if config is None:
        raise InvalidArgumentError(
            'weights is not given, and vLLM\'s configuration is unknown: name the weights, "weights": '
            '"2026-11-24"'
        )
    speculative = getattr(config, "speculative_config", None)
    loads = [getattr(config, "load_config", None), getattr(speculative, "draft_load_config", None)]
    for name in (str(load.load_format) for load in loads if load is not None):
        if name not in _LOADERS:
            raise InvalidArgumentError(
                f"weights is not given, and load_format {name!r} may read weights from elsewhere than the "
                "model: name "
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
        _add_code(model, source, written)
    return found


def served_weights(source: str, revision: str | None = None, folder: str | None = None) -> str:
    """Returns the name of the weights of a model or an adapter that vLLM serves.

    Raises:
        InvalidArgumentError: The name cannot be determined. This is always so for ModelScope, because
            kvpool cannot find out the commits of its models.
    """
    uses_modelscope = os.environ.get("VLLM_USE_MODELSCOPE", "").lower() in ("true", "1")
    if uses_modelscope and not Path(source).expanduser().exists():
        raise InvalidArgumentError(
            f"weights is not given, and is unknown for {source!r}, which vLLM downloads from ModelScope: "
            "name the "
            'weights, and change the name whenever they change: "weights": "2026-11-24"'
        )
    return weights_of(source, revision, cache_dir=folder)


def _add_code(model: Any, source: str, written: Canonical) -> None:
    """Records the code of a hub model as unknown, unless it is in the model's commit or pinned."""
    if not getattr(model, "trust_remote_code", False) or Path(source).expanduser().exists():
        return
    references = str(getattr(getattr(model, "hf_config", None), "auto_map", None) or "")
    revision = getattr(model, "code_revision", None)
    if revision is None and "--" not in references:
        return  # the code is in the model's own commit
    if revision is None or revision != commit_of(source, revision):
        written.unknown.append("ModelConfig.code_revision")


def _version(name: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return ""
