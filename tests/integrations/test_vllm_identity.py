"""A change of vLLM's configuration changes the name of stored KV if, and only if, it can change the KV."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.errors import InvalidArgumentError
from kvpool.integrations.vllm.offload.identity import config_of, identity_of, why_excluded
from kvpool.integrations.weights import REMEMBERED, content_of
from tests.integrations.config_stand_ins import (
    CacheConfig,
    HfConfig,
    LoadConfig,
    LoRAConfig,
    ModelConfig,
    MultiModalConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"1 of {name}")
    monkeypatch.setenv(REMEMBERED, str(tmp_path / "content.json"))
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        monkeypatch.delenv(name)


def facts(config: Any, weights: str = "1") -> dict[str, str]:
    found = identity_of(config, weights)
    assert found.unknown == []
    return found.facts


def of_model(**fields: Any) -> VllmConfig:
    return VllmConfig(model_config=ModelConfig(**fields))


def of_hf(**fields: Any) -> VllmConfig:
    return of_model(hf_config=HfConfig({"rope_theta": 1e4, "sliding_window": 128, **fields}))


CHANGES = {
    "dtype": of_model(dtype="float16"),
    "max model length, beyond longrope's": of_model(max_model_len=8192),
    "quantization": of_model(quantization="fp8"),
    "rope theta": of_hf(rope_theta=5e5),
    "rope scaling": of_hf(rope_parameters={"rope_type": "yarn", "factor": 4.0}),
    "norm": of_hf(rms_norm_eps=1e-6),
    "window": of_hf(sliding_window=256),
    "nested in the model's configuration": of_hf(text_config={"layers": [1, 2]}),
    "cache dtype": VllmConfig(cache_config=CacheConfig(cache_dtype="fp8")),
    "load format": VllmConfig(load_config=LoadConfig(load_format="dummy")),
    "loader": VllmConfig(load_config=LoadConfig(model_loader_extra_config={"a": 1})),
    "adapters": VllmConfig(lora_config=LoRAConfig()),
    "targets of adapters": VllmConfig(lora_config=LoRAConfig(target_modules=["q_proj"])),
    "draft": VllmConfig(speculative_config=SpeculativeConfig()),
    "draft tokens": VllmConfig(speculative_config=SpeculativeConfig(num_speculative_tokens=4)),
    "processor of media": of_model(multimodal_config=MultiModalConfig({"max_pixels": 99})),
    "other processor of media": of_model(multimodal_config=MultiModalConfig({"max_pixels": 98})),
    "additional": VllmConfig(additional_config={"kernel": 1}),
    "scheduler class": VllmConfig(scheduler_config=SchedulerConfig(scheduler_cls="mine")),
}


def test_every_change_of_kv_has_another_name() -> None:
    found = [facts(VllmConfig()), facts(of_hf()), *(facts(config) for config in CHANGES.values())]
    assert all(found.index(one) == at for at, one in enumerate(found))


@pytest.mark.parametrize(
    "config",
    [
        VllmConfig(instance_id="other"),
        of_model(seed=7),
        of_model(tokenizer="other"),
        VllmConfig(cache_config=CacheConfig(gpu_memory_utilization=0.5, num_gpu_blocks=77)),
        VllmConfig(load_config=LoadConfig(download_dir="/other")),
        VllmConfig(scheduler_config=SchedulerConfig(max_num_seqs=3)),
    ],
)
def test_what_kv_does_not_depend_on_has_the_same_name(config: VllmConfig) -> None:
    assert facts(config) == facts(VllmConfig())


def test_where_a_model_was_read_from_and_by_which_version_does_not_count() -> None:
    one = of_hf(
        _name_or_path="/a", transformers_version="4", text_config={"transformers_version": "4", "a": 1}
    )
    two = of_hf(
        _name_or_path="/b", transformers_version="5", text_config={"transformers_version": "5", "a": 1}
    )
    assert facts(one) == facts(two)


def test_a_field_that_only_a_later_version_has_is_part_of_the_name() -> None:
    later = dataclasses.make_dataclass("CacheConfig", [("new_kernel", int, 0)], bases=(CacheConfig,))
    found = [facts(VllmConfig(cache_config=later(new_kernel=number))) for number in (0, 1, 1)]
    assert found[0] != found[1] == found[2]
    wider = dataclasses.make_dataclass("VllmConfig", [("new_config", Any, None)], bases=(VllmConfig,))
    assert facts(wider(new_config=1)) != facts(wider(new_config=2))


def test_the_tokenizer_counts_for_models_that_read_media() -> None:
    assert facts(of_model(tokenizer="a", reads_media=True)) != facts(
        of_model(tokenizer="b", reads_media=True)
    )
    assert why_excluded(ModelConfig(), "tokenizer") is not None
    assert why_excluded(ModelConfig(multimodal_config=MultiModalConfig()), "tokenizer") is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, "1"),
        (1, 1.0),
        (0.0, -0.0),
        ([1], {1}),
        ("a", b"a"),
        ({"a": None}, {}),
        ([1, 2], [2, 1]),
    ],
)
def test_values_of_different_types_differ(one: object, other: object) -> None:
    assert facts(VllmConfig(additional_config=one)) != facts(VllmConfig(additional_config=other))


def test_the_order_of_mappings_and_sets_does_not_count() -> None:
    one, other = {"a": 1, "b": {3, 1, 2}}, {"b": {2, 3, 1}, "a": 1}
    assert facts(VllmConfig(additional_config=one)) == facts(VllmConfig(additional_config=other))


class Plain:
    """An object whose ``repr`` contains its memory address, which differs between runs."""


class Raising(HfConfig):
    def to_dict(self) -> dict[str, Any]:
        raise RuntimeError


def cycle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(5_000):
        found = [found]
    return found


@pytest.mark.parametrize(
    "make", [Plain, lambda: len, lambda: lambda: 1, cycle, deep, Raising, lambda: {Plain(): 1}]
)
def test_a_value_without_a_form_is_a_cold_start_and_is_reported(make: Callable[[], object]) -> None:
    value = make()
    found = [identity_of(VllmConfig(additional_config={"key": value}), "1") for _ in range(2)]
    assert found[0].facts != found[1].facts
    assert found[0].unknown
    assert all(path.startswith("VllmConfig.additional_config") for path in found[0].unknown)


def test_an_unknown_configuration_is_a_cold_start() -> None:
    found = [identity_of(None, "1") for _ in range(2)]
    assert found[0].facts != found[1].facts
    assert found[0].unknown == ["VllmConfig"]
    with pytest.raises(InvalidArgumentError, match="weights is not given"):
        identity_of(None, None)


def test_a_file_or_folder_that_a_setting_names_counts_by_content(tmp_path: Path) -> None:
    file, folder = tmp_path / "scales.json", tmp_path / "folder"
    folder.mkdir()
    file.write_text("1")
    (folder / "part").write_text("1")
    config = VllmConfig(additional_config={"scales": str(file), "folder": folder})
    found = [facts(config)]
    os.utime(file, ns=(1, 1))
    assert facts(config) == found[0]
    for path in (file, folder / "part"):
        path.write_text("2")
        found.append(facts(config))
    assert len({str(one) for one in found}) == 3


def test_a_huge_folder_that_a_setting_names_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvpool.integrations.canonical._MOST_FILES", 3)
    for number in range(4):
        (tmp_path / str(number)).write_text("")
    found = identity_of(VllmConfig(additional_config=str(tmp_path)), "1")
    assert found.unknown == ["VllmConfig.additional_config (builtins.str)"]


def test_environment_variables_of_vllm_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = facts(VllmConfig())
    for name in ("VLLM_LOGGING_LEVEL", "VLLM_PORT", "VLLM_HOST_IP", "VLLM_RPC_BASE_PATH", "OTHER"):
        monkeypatch.setenv(name, "1")
    assert facts(VllmConfig()) == before
    monkeypatch.setenv("VLLM_SOME_KERNEL", "1")
    assert facts(VllmConfig()) != before


def test_versions_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = facts(VllmConfig())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"2 of {name}")
    assert facts(VllmConfig()) != before


def folder_of(path: Path, content: str) -> str:
    path.mkdir()
    (path / "model.safetensors").write_text(content)
    return str(path)


def test_weights_of_the_model_and_of_its_draft_are_found_out(tmp_path: Path) -> None:
    model, draft = folder_of(tmp_path / "model", "1"), folder_of(tmp_path / "draft", "2")
    config = of_model(model=model)
    assert identity_of(config, None).weights == content_of(model)
    config.speculative_config = SpeculativeConfig(draft_model_config=config.model_config)
    assert not any(name.startswith("weights") for name in identity_of(config, None).facts), "the model itself"
    config.speculative_config = SpeculativeConfig(draft_model_config=ModelConfig(model=draft))
    before = identity_of(config, None)
    assert before.facts["weights of draft 0"] == content_of(draft)
    (tmp_path / "draft" / "model.safetensors").write_text("3")
    assert identity_of(config, None).facts != before.facts


def test_weights_that_are_loaded_from_elsewhere_must_be_named(tmp_path: Path) -> None:
    config = of_model(model=folder_of(tmp_path / "model", "1"), model_weights="s3://bucket/model")
    with pytest.raises(InvalidArgumentError, match="s3://bucket/model"):
        identity_of(config, None)
    assert identity_of(config, "mine").weights == "mine"


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("load_format", ["tensorizer", "modelexpress", "ipc_cache", "a plug-in's"])
def test_weights_of_a_loader_that_may_read_elsewhere_must_be_named(
    tmp_path: Path, load_format: str, draft: bool
) -> None:
    config = of_model(model=folder_of(tmp_path / "model", "1"))
    if draft:
        config.speculative_config = SpeculativeConfig(draft_load_config=LoadConfig(load_format))
    else:
        config.load_config.load_format = load_format
    with pytest.raises(
        InvalidArgumentError, match=f"load_format {load_format!r} may read weights from elsewhere"
    ):
        identity_of(config, None)
    assert identity_of(config, "mine").weights == "mine"


def test_weights_from_modelscope_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ModelScope repository can have the same name as a different model in the cache of
    huggingface_hub.
    """
    refs = tmp_path / "models--org--name" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("0" * 40)
    monkeypatch.setitem(
        sys.modules, "huggingface_hub.constants", types.SimpleNamespace(HF_HUB_CACHE=str(tmp_path))
    )
    config = of_model(model="org/name")
    assert identity_of(config, None).weights == f"commit {'0' * 40}"
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "True")
    with pytest.raises(InvalidArgumentError, match="downloads from ModelScope"):
        identity_of(config, None)
    config.model_config.model = folder_of(tmp_path / "model", "1")
    assert identity_of(config, None).weights.startswith("content ")


def test_a_draft_whose_weights_are_unknown_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        sys.modules, "huggingface_hub.constants", types.SimpleNamespace(HF_HUB_CACHE=str(tmp_path))
    )
    config = of_model(model=folder_of(tmp_path / "model", "1"))
    config.speculative_config = SpeculativeConfig(draft_model_config=ModelConfig(model="org/draft"))
    with pytest.raises(InvalidArgumentError, match="org/draft"):
        identity_of(config, None)


def test_the_commit_that_is_served_names_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caches = {name: tmp_path / name / "models--org--name" / "refs" for name in ("hub", "downloads")}
    for number, refs in enumerate(caches.values()):
        refs.mkdir(parents=True)
        (refs / "main").write_text(str(number) * 40)
    constants = types.SimpleNamespace(HF_HUB_CACHE=str(tmp_path / "hub"))
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", constants)
    config = of_model(model="org/name")
    assert identity_of(config, None).weights == f"commit {'0' * 40}"
    config.load_config.download_dir = str(tmp_path / "downloads")
    assert identity_of(config, None).weights == f"commit {'1' * 40}"
    config.load_config.download_dir = str(tmp_path / "empty")
    assert identity_of(config, None).weights == f"commit {'0' * 40}"
    config.model_config.revision = "f" * 40
    pinned = identity_of(config, None)
    assert pinned.weights == f"commit {'f' * 40}"
    (caches["hub"] / "main").write_text("9" * 40)
    assert identity_of(config, None) == pinned


@pytest.mark.parametrize(
    ("auto_map", "code_revision", "known"),
    [
        ({"AutoModel": "modeling.Model"}, None, True),
        ({"AutoModel": "org/code--modeling.Model"}, None, False),
        ({"AutoModel": "org/code--modeling.Model"}, "d" * 40, True),
        ({"AutoModel": "modeling.Model"}, "branch", False),
    ],
)
def test_code_of_another_repository_is_pinned_or_a_cold_start(
    auto_map: dict[str, str], code_revision: str | None, known: bool
) -> None:
    hf = HfConfig()
    vars(hf)["auto_map"] = auto_map
    config = of_model(
        model="org/name", revision="e" * 40, trust_remote_code=True, hf_config=hf, code_revision=code_revision
    )
    assert (identity_of(config, None).unknown == []) is known


def test_the_configuration_is_that_of_the_engine_that_makes_the_spec() -> None:
    spec = types.SimpleNamespace(config=types.SimpleNamespace(engine_id="engine"))
    assert config_of(spec) is None

    def made(vllm_config: object) -> object:
        return (lambda: config_of(spec))()

    config = VllmConfig()
    assert made(config) is config
    config.kv_transfer_config.engine_id = "another"
    assert made(config) is None
    assert made("text") is None
