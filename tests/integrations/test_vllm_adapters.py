"""The name of an engine's adapter depends on its content. An adapter whose content is unknown has no
name.
"""

from __future__ import annotations

import os
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.integrations import weights
from kvpool.integrations.vllm.offload.adapters import Adapters, names_with
from kvpool.integrations.weights import REMEMBERED
from tests.integrations.offload_stand_ins import LoRARequest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REMEMBERED, str(tmp_path / "content.json"))


def write(folder: Path, content: str = "1") -> str:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_text(content)
    return str(folder)


def test_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapters, request = Adapters(), LoRARequest("tune", 1, write(tmp_path / "one"))
    content = adapters.content_of(request)
    assert content
    monkeypatch.setattr(weights, "content_of", lambda path: pytest.fail("read again"))
    assert adapters.content_of(request) == content


def test_new_times_of_the_same_content_change_nothing(tmp_path: Path) -> None:
    adapters, request = Adapters(), LoRARequest("tune", 1, write(tmp_path / "one"))
    content = adapters.content_of(request)
    os.utime(tmp_path / "one" / "adapter_model.safetensors", ns=(1, 1))
    assert adapters.content_of(request) == content


def test_the_format_of_weights_counts(tmp_path: Path) -> None:
    flat: Any = LoRARequest("tune", 1, write(tmp_path / "one"))
    deep: Any = LoRARequest("tune", 1, flat.lora_path)
    flat.is_3d_lora_weight, deep.is_3d_lora_weight = False, True
    assert Adapters().content_of(flat) != Adapters().content_of(deep)


def test_an_id_that_is_used_for_two_adapters_is_unknown(tmp_path: Path) -> None:
    """The workers identify adapters by id, and continue to use the first adapter with that id."""
    adapters = Adapters()
    one, other = write(tmp_path / "one"), write(tmp_path / "other", "2")
    assert adapters.content_of(LoRARequest("a", 1, one))
    assert adapters.content_of(LoRARequest("b", 1, other)) is None
    assert adapters.content_of(LoRARequest("a", 1, one)) is None
    assert adapters.content_of(LoRARequest("b", 2, other))


def test_a_place_with_two_contents_is_unknown_under_any_id(tmp_path: Path) -> None:
    """If two adapters have the same name and path, vLLM's keys are equal. vLLM's own caches then still
    contain the KV of the earlier adapter.
    """
    adapters, path = Adapters(), write(tmp_path / "one")
    assert adapters.content_of(LoRARequest("a", 1, path))
    write(tmp_path / "one", "2")
    assert adapters.content_of(LoRARequest("a", 2, path)) is None
    write(tmp_path / "one", "1")
    assert [adapters.content_of(LoRARequest("a", number, path)) for number in (1, 2, 3)] == [None] * 3
    assert adapters.content_of(LoRARequest("b", 4, path))


def test_an_adapter_whose_files_go_is_unknown_from_then_on(tmp_path: Path) -> None:
    adapters, request = Adapters(), LoRARequest("tune", 1, write(tmp_path / "one"))
    assert adapters.content_of(request)
    file = tmp_path / "one" / "adapter_model.safetensors"
    file.unlink()
    (tmp_path / "one").rmdir()
    assert adapters.content_of(request) is None
    write(tmp_path / "one")
    assert adapters.content_of(request) is None


def test_an_adapter_that_comes_later_is_known_then(tmp_path: Path) -> None:
    adapters, request = Adapters(), LoRARequest("tune", 1, str(tmp_path / "one"))
    assert adapters.content_of(request) is None
    write(tmp_path / "one")
    assert adapters.content_of(request)


def test_an_adapter_of_the_hub_is_named_by_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = tmp_path / "models--org--tune" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("a" * 40)
    monkeypatch.setitem(
        sys.modules, "huggingface_hub.constants", types.SimpleNamespace(HF_HUB_CACHE=str(tmp_path))
    )
    adapters, request = Adapters(), LoRARequest("tune", 1, "org/tune")
    assert adapters.content_of(request) == f"commit {'a' * 40} False"
    (refs / "main").write_text("b" * 40)
    assert adapters.content_of(request) is None
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "1")
    assert Adapters().content_of(request) is None, "of another hub"


def test_names_keep_their_lengths_and_groups() -> None:
    keys = [bytes([number]) * length + (3).to_bytes(4, "big") for number in (1, 2) for length in (8, 16, 32)]
    names = names_with("content", keys)
    assert [len(name) for name in names] == [len(key) for key in keys]
    assert {name[-4:] for name in names} == {(3).to_bytes(4, "big")}
    assert len({*names, *keys, *names_with("other", keys)}) == 3 * len(keys)
