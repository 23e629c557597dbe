"""Collects everything in this process's SGLang that determines the bytes of stored pages, for all host pools.

This covers the whole configuration of the server and of the model, and SGLang's environment variables,
except the settings in ``unrelated``. Only this module and ``hicache`` read modules of SGLang.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import logging
import os
import uuid
from typing import TYPE_CHECKING, Any, Final

from kvpool.errors import InvalidArgumentError
from kvpool.integrations.canonical import Canonical, digest_of, fields_of, short
from kvpool.integrations.sglang import unrelated
from kvpool.integrations.weights import weights_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvpool.integrations.sglang.settings import Settings

__all__ = ["Engine", "weight_version"]

_LOG: Final = logging.getLogger("sglang.kvpool")
_CONTEXT: Final = "sglang.srt.runtime_context"
#: Settings that name a model. The name under which pages are stored also contains the content or the commit
#: of that model.
_MODELS: Final = ("model_path", "speculative_draft_model_path")
#: Load formats that read the model's own files, or that do not depend on weights.
_FROM_FILES: Final = frozenset(
    {
        *(
            "auto",
            "bitsandbytes",
            "dummy",
            "expert_pack",
            "fastsafetensors",
            "flash_rl",
            "gguf",
            "instanttensor",
        ),
        *(
            "layered",
            "mistral",
            "npcache",
            "presharded",
            "pt",
            "runai_streamer",
            "safetensors",
            "sharded_state",
        ),
    }
)
#: Speculative algorithms of SGLang 0.5.23 that have no draft model.
_WITHOUT_DRAFT: Final = frozenset({"", "NONE", "NGRAM"})


@dataclasses.dataclass(frozen=True, slots=True)
class Engine:
    """The SGLang of this process, and the model that it serves.

    Attributes:
        facts: Everything that determines the bytes of KV, except what differs between host pools and
            ranks.
        weights: The name of the weights.
        model: The path or name of the model; None outside a server.
        has_draft: Whether a draft model runs in addition to the model. Its host pool is registered
            after the others.
    """

    facts: Mapping[str, str]
    weights: str
    model: str | None = None
    has_draft: bool = False

    @classmethod
    def found(cls, settings: Settings, config: Any) -> Engine:
        """Returns a description of this process's engine. Reads the model's files if ``weights`` is not set.

        If the content of a setting or an adapter is unknown, the process starts cold: it finds only the
        pages that it stored itself. The log contains the name of the setting.

        Args:
            settings: The settings of the back end.
            config: SGLang's ``HiCacheStorageConfig``.

        Raises:
            InvalidArgumentError: ``weights`` is not set, and the weights are unknown.
        """
        facts = {"engine": f"sglang {importlib.metadata.version('sglang')}"}
        server = _server_settings()
        if server is None:  # SGLang's classes without a server, such as in a test
            name = weights_of(config.model_name or "") if settings.weights is None else settings.weights
            return cls(facts | {"server": "none"}, name)
        # ``_name_or_path`` is skipped, because the name under which pages are stored already contains the
        # digest or commit of the model.
        written = Canonical(lambda _, name: name == "_name_or_path")
        for name, value in server.items():
            if name not in unrelated.SETTINGS:
                # For a setting that names a model, only its text is used. The name under which pages are
                # stored already contains the content of the model, and the user can set it with ``weights``.
                facts[f"server {name}"] = str(value) if name in _MODELS else short(written.text(name, value))
        facts |= _model_config(written) | _environment()
        facts |= _adapters(server, written)
        if written.unknown:
            _LOG.warning(
                "kvpool: the content of %s is unknown: pages that another process stored are not loaded",
                ", ".join(sorted(written.unknown)),
            )
            facts["unknown"] = str(uuid.uuid4())
        algorithm = str(server.get("speculative_algorithm") or "").upper()
        model = str(server.get("model_path") or config.model_name or "")
        return cls(facts, _weights(settings, server, model), model, algorithm not in _WITHOUT_DRAFT)


def weight_version() -> object:
    """Returns the weight version that SGLang serves now, or None if it is unknown.

    Updates of the weights may change it.
    """
    try:
        return importlib.import_module(_CONTEXT).get_serving().weight_version
    except (ImportError, AttributeError, ValueError):
        return None


def _server_settings() -> dict[str, Any] | None:
    """Returns the server's settings, including those that SGLang chose itself; None outside a server.

    Raises:
        InvalidArgumentError: This SGLang has settings that kvpool cannot find.
    """
    try:
        server = importlib.import_module(_CONTEXT).get_server_args()
    except ValueError:
        return None
    except (ImportError, AttributeError) as error:
        raise InvalidArgumentError(
            f"the settings of SGLang {importlib.metadata.version('sglang')} are unknown ({error}): stored "
            "pages cannot be named. kvpool supports SGLang 0.5.23"
        ) from error
    try:
        resolved = server.resolved_dict()
    except Exception:  # a value that cannot be copied, or another class
        resolved = fields_of(server)
    if resolved is None:
        resolved = {name: getattr(server, name, None) for name in dir(server) if not name.startswith("__")}
        resolved = {name: value for name, value in resolved.items() if not callable(value)}
    return dict(resolved)


def _model_config(written: Canonical) -> dict[str, str]:
    """Returns the digest of the model's configuration after all overrides.

    This configuration is determined by the model's files and the settings, which are part of the name
    already. Therefore it is not an error if it cannot be read.
    """
    try:
        config = importlib.import_module(_CONTEXT).process_model_config()
        found = {name: value for name, value in vars(config).items() if name not in unrelated.MODEL_CONFIG}
    except Exception as error:
        return {"model config": f"not read: {type(error).__name__}"}
    return {"model config": digest_of(written.text("model config", found))}


def _environment() -> dict[str, str]:
    return {
        f"environment {name}": short(value)
        for name, value in os.environ.items()
        if name.startswith("SGLANG_") and name not in unrelated.ENVIRONMENT
    }


def _adapters(server: Mapping[str, Any], written: Canonical) -> dict[str, str]:
    """Returns the content of each adapter, by the id that SGLang uses in the keys of its pages.

    For adapters of ``--lora-paths``, SGLang derives the id from the name and the path. The id therefore
    does not change when the files change. An adapter that is loaded into a running server has a random
    id.
    """
    found = {}
    adapters = server.get("lora_paths") or ()
    if isinstance(adapters, dict):
        adapters = [f"{name}={path}" for name, path in adapters.items()]
    for adapter in adapters:
        fields = adapter if isinstance(adapter, dict) else fields_of(adapter)
        if fields is None:
            name, _, path = str(adapter).rpartition("=")
            fields = {"lora_id": name or path, "lora_path": path}
        found[f"adapter {fields.get('lora_id') or fields.get('lora_name')}"] = _adapter(
            str(fields.get("lora_path")), written
        )
    draft = server.get("uno_lora_path")
    return found | ({"draft adapter": _adapter(str(draft), written)} if draft else {})


def _adapter(path: str, written: Canonical) -> str:
    try:
        return weights_of(path)
    except InvalidArgumentError:
        written.unknown.append(f"the adapter {path!r}")
        return "unknown"


def _weights(settings: Settings, server: Mapping[str, Any], model: str) -> str:
    """Returns the name of the weights, which covers the model and its draft model.

    Raises:
        InvalidArgumentError: The name is not given, and the weights do not come from known files.
    """
    if settings.weights is not None:
        return settings.weights
    for name in ("load_format", "speculative_draft_load_format"):
        value = server.get(name)
        if value is not None and str(getattr(value, "value", value)) not in _FROM_FILES:
            raise _unnamed(name, value)
    for name in ("checkpoint_engine_wait_weights_before_ready", "weight_cache_mode"):
        if server.get(name) not in (None, False, "off"):
            raise _unnamed(name, server[name])
    folder = server.get("download_dir")
    found = weights_of(model, server.get("revision"), cache_dir=folder)
    draft = server.get("speculative_draft_model_path")
    if draft and (draft, server.get("speculative_draft_model_revision")) != (model, server.get("revision")):
        found += " draft " + weights_of(
            str(draft), server.get("speculative_draft_model_revision"), cache_dir=folder
        )
    return found


def _unnamed(setting: str, value: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"weights is not given, and {setting} is {value!r}: the weights do not come from the model's "
        "files. Name them, "
        'and change the name whenever they change: "weights": "2026-11-24"'
    )
