"""The name of stored pages contains SGLang's whole configuration, except settings that are listed as
unrelated.
"""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.errors import InvalidArgumentError
from kvpool.integrations.sglang import unrelated
from kvpool.integrations.sglang.engine import Engine
from kvpool.integrations.sglang.settings import Settings
from tests.integrations import hicache_stand_ins
from tests.integrations.hicache_stand_ins import Config, MhaPool, attach, content, fill, indices, key
from tools.sglang import settings as tool

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
COMMITS = "1" * 40, "2" * 40


@pytest.fixture
def serve(storage: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Makes SGLang's settings in this process those of a server with these settings."""
    import sglang.srt.runtime_context as context

    monkeypatch.setenv("KVPOOL_CONTENT_CACHE", str(tmp_path / "content.json"))

    def published(model_config: Any = None, **settings: Any) -> None:
        server = types.SimpleNamespace(resolved_dict=lambda: dict(settings))
        monkeypatch.setattr(context, "get_server_args", lambda: server)
        monkeypatch.setattr(context, "process_model_config", lambda: model_config, raising=False)

    return published


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"one")
    return folder


def found(weights: str | None = "1") -> Engine:
    return Engine.found(Settings(root_dir="x", capacity_bytes=1, weights=weights), Config())


def replace(path: Path, held: bytes) -> None:
    """Replaces a file by another one with the same size and times, as container images and rsync can
    do.
    """
    times = path.stat()
    path.write_bytes(held)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_every_setting_is_in_the_name_or_listed_with_a_reason(serve: Callable[..., None]) -> None:
    names = [*unrelated.SETTINGS, *tool.RELATED, "of_a_later_sglang"]
    plain = dict.fromkeys(names) | {"model_path": "m"}
    serve(**plain)
    before = found()
    assert found() == before
    for name in names:
        if name == "lora_paths":
            continue  # named by content
        serve(**plain | {name: "other"})
        assert (found().facts != before.facts) is (name not in unrelated.SETTINGS), name
    assert all(reason and reason == reason.strip() for reason in unrelated.SETTINGS.values())
    assert not unrelated.SETTINGS.keys() & tool.RELATED.keys()


def test_the_page_of_settings_is_what_the_tables_say() -> None:
    assert (ROOT / "design" / "sglang-settings.md").read_text(encoding="utf-8") == tool.page()


@pytest.mark.parametrize(
    "name",
    [
        *(
            "load_format",
            "modelopt_quant",
            "quantize_and_serve",
            "rl_quant_profile",
            "model_loader_extra_config",
        ),
        *("custom_weight_loader", "speculative_draft_model_path", "speculative_draft_model_revision"),
        *("weight_version", "json_model_override_args", "quantization", "kv_cache_dtype", "context_length"),
        *("revision", "trust_remote_code", "uno_lora_path", "forward_hooks", "tp_size", "attention_backend"),
    ],
)
def test_settings_that_change_kv_are_no_part_of_the_list(name: str) -> None:
    assert name in tool.RELATED
    assert name not in unrelated.SETTINGS


def test_a_value_of_an_unknown_type_is_a_cold_start_and_a_line_in_the_log(
    serve: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    value = object()
    serve(model_path="m", of_a_later_sglang=value)
    assert found().facts != found().facts
    assert "of_a_later_sglang (builtins.object)" in caplog.text
    assert not any("0x" in text for text in found().facts.values())
    serve(model_path="m", log_level=value)
    assert found() == found(), "a value that does not matter may be of any type"


def test_settings_that_cannot_be_copied_are_read_from_the_record(
    storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sglang.srt.runtime_context as context

    class Server:
        model_path, quantization = "m", "fp8"

        def resolved_dict(self) -> dict[str, Any]:
            raise TypeError("planted")

    monkeypatch.setattr(context, "get_server_args", Server)
    assert found().facts["server quantization"] == '"fp8"'


def test_an_sglang_whose_settings_are_elsewhere_is_refused(
    storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If kvpool cannot read SGLang's settings, all servers would use the same name. So the back end
    refuses to start.
    """
    import sglang.srt.runtime_context as context

    monkeypatch.delattr(context, "get_server_args")
    with pytest.raises(
        InvalidArgumentError, match=f"settings of SGLang {hicache_stand_ins.VERSION} are unknown"
    ):
        found()


def test_sglang_without_a_server_has_another_identity(serve: Callable[..., None]) -> None:
    serve()
    inside = found()
    import sglang.srt.runtime_context as context

    def none() -> Any:
        raise ValueError("Global server args is not set yet!")

    context.get_server_args = none
    assert (
        found().facts == {"engine": f"sglang {hicache_stand_ins.VERSION}", "server": "none"} != inside.facts
    )


def test_the_model_configuration_after_overrides_is_in_the_name(serve: Callable[..., None]) -> None:
    class Hugging:
        def __init__(self, **fields: Any) -> None:
            self.fields = fields

        def to_dict(self) -> dict[str, Any]:
            return self.fields

    def config(**changed: Any) -> Any:
        fields = {"rope_theta": 1e4, "_name_or_path": "a", **changed}
        return types.SimpleNamespace(hf_config=Hugging(**fields), model_path="a", context_len=8)

    digests = []
    for one in (config(), config(rope_theta=5e5), config(rope_scaling={"factor": 2.0}), None):
        serve(model_config=one, model_path="m")
        digests.append(found().facts["model config"])
    assert len(set(digests)) == len(digests)
    serve(model_config=config(_name_or_path="b"), model_path="m")
    assert found().facts["model config"] == digests[0]


def test_environment_variables_of_sglang_are_in_the_name(
    serve: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(model_path="m")
    before = found().facts
    for name in ("SGLANG_RUN_ID", "SGLANG_LOG_MS", "HOME_OF_SOMETHING"):
        monkeypatch.setenv(name, "7")
        assert found().facts == before
    for name in ("SGLANG_ROPE_CACHE_FP32", "SGLANG_OF_A_LATER_VERSION"):
        monkeypatch.setenv(name, "7")
        assert found().facts != before
        monkeypatch.delenv(name)


def test_weights_in_a_folder_differ_by_content(serve: Callable[..., None], model: Path) -> None:
    serve(model_path=str(model))
    before = found(weights=None)
    os.utime(model / "model.safetensors", (1, 1))
    assert found(weights=None) == before
    replace(model / "model.safetensors", b"two")
    assert found(weights=None).weights != before.weights
    assert found(weights=None).facts == before.facts
    assert found(weights="mine").weights == "mine"


def test_the_commit_of_the_served_revision_names_the_weights(
    serve: Callable[..., None], tmp_path: Path
) -> None:
    refs = tmp_path / "hub" / "models--org--tiny" / "refs"
    refs.mkdir(parents=True)
    for branch in ("main", "branch"):
        (refs / branch).write_text(COMMITS[0])
    hub = {"model_path": "org/tiny", "download_dir": str(tmp_path / "hub")}
    for revision in (None, "branch"):
        serve(**hub, revision=revision)
        assert found(weights=None).weights == f"commit {COMMITS[0]}"
        (refs / (revision or "main")).write_text(COMMITS[1])
        assert found(weights=None).weights == f"commit {COMMITS[1]}"
    serve(**hub, revision="3" * 40)
    assert found(weights=None).weights == f"commit {'3' * 40}"


def test_weights_of_a_draft_are_in_the_name(serve: Callable[..., None], model: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "model.safetensors").write_bytes(b"one")
    settings = {"model_path": str(model), "speculative_algorithm": "EAGLE"}
    serve(**settings, speculative_draft_model_path=str(model))
    itself = found(weights=None)
    serve(**settings, speculative_draft_model_path=str(draft))
    before = found(weights=None)
    assert before.has_draft
    assert before.weights != itself.weights
    replace(draft / "model.safetensors", b"two")
    assert found(weights=None).weights != before.weights


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("load_format", one) for one in ("remote", "remote_instance", "ipc_cache", "of_a_later_sglang")),
        ("speculative_draft_load_format", "remote"),
        ("checkpoint_engine_wait_weights_before_ready", True),
        ("weight_cache_mode", "client"),
    ],
)
def test_weights_that_come_from_no_files_have_to_be_named(
    serve: Callable[..., None], model: Path, setting: str, value: Any
) -> None:
    serve(model_path=str(model), **{setting: value})
    with pytest.raises(InvalidArgumentError, match=f"weights is not given, and {setting} is"):
        found(weights=None)
    assert found(weights="1").weights == "1"


def test_adapters_are_named_by_their_content(serve: Callable[..., None], tmp_path: Path) -> None:
    path = tmp_path / "adapter"
    path.mkdir()
    (path / "adapter_model.safetensors").write_bytes(b"one")
    adapter: dict[str, Any] = {"lora_id": "17", "lora_name": "a", "lora_path": str(path), "pinned": False}
    forms: list[Any] = [
        [adapter],
        [types.SimpleNamespace(**adapter)],
        [f"a={path}"],
        [str(path)],
        {"a": str(path)},
    ]
    forms[1] = [hicache_stand_ins.LoRARef(**adapter)]
    for form in forms:
        replace(path / "adapter_model.safetensors", b"one")
        serve(model_path="m", lora_paths=form)
        before = found().facts
        os.utime(path / "adapter_model.safetensors", (1, 1))
        assert found().facts == before
        replace(path / "adapter_model.safetensors", b"two")
        assert found().facts != before, form
    serve(model_path="m", lora_paths=[adapter | {"pinned": True}])
    pinned = found().facts
    serve(model_path="m", lora_paths=[adapter])
    assert found().facts == pinned
    serve(model_path="m", lora_paths=[])
    assert found().facts != pinned


def test_pages_of_a_replaced_adapter_are_not_loaded(
    storage: Any, serve: Callable[..., None], tmp_path: Path
) -> None:
    """SGLang's id of an adapter is a hash of its name and path. So the keys of its pages do not change
    when its content is replaced.
    """
    path = tmp_path / "adapter.safetensors"
    path.write_bytes(b"one")
    serve(model_path="m", lora_paths=[{"lora_id": "17", "lora_name": "a", "lora_path": str(path)}])
    pool = MhaPool()
    for held, there in ((b"one", False), (b"one", True), (b"two", False)):
        replace(path, held)
        backend = attach(storage, tmp_path / "store", pool)
        stored = fill(pool, 0, 1)
        assert backend.batch_exists([key(1)]) == there
        assert backend.batch_get_v1([key(1)], indices(pool, 1)) == [there]
        assert (content(pool, 1) == stored) is there
        fill(pool, 1, 2)
        backend.batch_set_v1([key(1)], indices(pool, 0))
        backend.close()


def test_an_adapter_without_files_is_a_cold_start(
    serve: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    serve(model_path="m", lora_paths=[{"lora_id": "17", "lora_name": "a", "lora_path": "org/unknown"}])
    assert found().facts != found().facts
    assert "the adapter 'org/unknown' is unknown" in caplog.text


def test_the_adapter_of_a_draft_is_named_by_its_content(serve: Callable[..., None], tmp_path: Path) -> None:
    path = tmp_path / "adapter"
    path.write_bytes(b"one")
    serve(model_path="m", uno_lora_path=str(path))
    before = found().facts["draft adapter"]
    replace(path, b"two")
    assert found().facts["draft adapter"] != before


def test_a_label_of_the_model_is_no_part_of_the_name(
    storage: Any, serve: Callable[..., None], tmp_path: Path
) -> None:
    serve(model_path="m", served_model_name="x")
    pool = MhaPool()
    for label, there in (("a", False), ("b", True)):
        backend = attach(storage, tmp_path, pool, model_name=label)
        assert backend.exists(key(1)) is there
        backend.batch_set_v1([key(1)], indices(pool, 0))
        backend.close()
    serve(model_path="other")
    backend = attach(storage, tmp_path, pool, model_name="b")
    assert not backend.exists(key(1))
    backend.close()
