"""The table of vLLM's settings in design/vllm-settings.md matches kvpool's list of exclusions, as
tools/vllm_settings.py checks.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.integrations.vllm.offload import excluded
from kvpool.integrations.vllm.offload.identity import identity_of
from tests.integrations.config_stand_ins import VllmConfig
from tools import vllm_settings
from tools.vllm_settings import PAGE, listed, missing, settings_of, table

if TYPE_CHECKING:
    from pathlib import Path

LISTED = listed(PAGE.read_text(encoding="utf-8"))
CLASSES = {kind: settings for kind, settings in LISTED.items() if kind.isidentifier()}
ENVIRONMENT = LISTED["Environment variables that begin with `VLLM_`"]


@pytest.fixture(autouse=True)
def version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"1 of {name}")


def test_the_page_lists_every_kind_of_setting() -> None:
    assert {
        "VllmConfig",
        "ModelConfig",
        "CacheConfig",
        "ParallelConfig",
        "LoRAConfig",
        "MultiModalConfig",
    } <= set(CLASSES)
    assert sum(map(len, CLASSES.values())) > 400


def test_every_exclusion_is_listed_with_its_reason() -> None:
    """If an excluded name did not exist in any version of vLLM, a later setting with this name would be
    excluded unnoticed.
    """
    tables = [*excluded.FIELDS.items(), ("ModelConfig", excluded.TEXT_ONLY)]
    for kind, reasons in tables:
        for names, why in reasons.items():
            assert {name: CLASSES[kind].get(name) for name in names.split()} == dict.fromkeys(
                names.split(), why
            ), kind
    assert LISTED["Keys of the model's `config.json`, at any depth"] == excluded.HF_CONFIG
    assert {name: why for names, why in excluded.ENVIRONMENT.items() for name in names.split()} == ENVIRONMENT


def facts(kind: str, name: str, value: object) -> dict[str, str]:
    made = dataclasses.make_dataclass(kind, [(name, Any, None)], namespace={"is_multimodal_model": False})
    if kind == "VllmConfig":
        made = dataclasses.make_dataclass(kind, [(name, Any, None)], bases=(VllmConfig,))
        return identity_of(made(**{name: value}), "1").facts
    return identity_of(VllmConfig(additional_config=made(**{name: value})), "1").facts


@pytest.mark.parametrize("kind", sorted(CLASSES))
def test_a_setting_counts_exactly_where_the_page_says_so(kind: str) -> None:
    for name, why in CLASSES[kind].items():
        same = facts(kind, name, 1) == facts(kind, name, 2)
        assert same is (why is not None), f"{kind}.{name}"


@pytest.mark.parametrize("pattern", sorted(ENVIRONMENT))
def test_an_environment_variable_does_not_count_where_the_page_says_so(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = identity_of(VllmConfig(), "1").facts
    monkeypatch.setenv(pattern.replace("*", "ANY"), "1")
    assert identity_of(VllmConfig(), "1").facts == before


def write(folder: Path, cache: str) -> Path:
    (folder / "config").mkdir(parents=True)
    (folder / "config" / "vllm.py").write_text(
        "class VllmConfig:\n    cache_config: 'CacheConfig | None' = None\n    logging_config: Logs = None\n"
        "    KINDS: ClassVar[int] = 1\n    made: InitVar[int] = 1\n"
    )
    (folder / "config" / "cache.py").write_text(
        f"class CacheConfig:\n{cache}class Logs:\n    level: int = 1\n"
    )
    return folder


def test_a_setting_of_a_later_version_is_missing_until_it_is_listed(tmp_path: Path) -> None:
    old = write(tmp_path / "old", "    block_size: int = 1\n    num_gpu_blocks: int = 1\n")
    new = write(
        tmp_path / "new", "    block_size: int = 1\n    num_gpu_blocks: int = 1\n    kernel: int = 1\n"
    )
    settings = settings_of({"1": old, "2": new})
    assert list(settings) == ["CacheConfig", "VllmConfig"], "what an excluded field holds is not listed"
    assert settings["VllmConfig"] == {"cache_config": ["1", "2"], "logging_config": ["1", "2"]}
    assert settings["CacheConfig"]["kernel"] == ["2"]
    marks = vllm_settings.MARKS
    page = f"{marks[0]}\n{table(settings_of({'1': old}), ['1'])}\n{marks[1]}"
    assert missing(settings_of({"1": old}), page) == []
    assert missing(settings, page) == ["CacheConfig.kernel is not listed"]
    both = f"{marks[0]}\n{table(settings, ['1', '2'])}\n{marks[1]}"
    assert missing(settings, both) == []
    assert "`kernel` (2)" in both
    assert missing(settings, both.replace("how much memory", "how little")) == [
        "CacheConfig.num_gpu_blocks: the page gives another reason"
    ]
