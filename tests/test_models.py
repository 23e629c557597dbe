"""The catalogue of KV shapes: published figures, look-up by name, and errors that help."""

from __future__ import annotations

import dataclasses
import doctest

import pytest

from kvpool import models
from kvpool.models import KvShape, kv_shape, model_names


@pytest.mark.parametrize(
    ("name", "kib_per_token"),
    [
        ("Llama-3.1-8B", 128),
        ("Llama-3.1-70B", 320),
        ("Llama-3.1-405B", 504),
        ("Llama-2-7B", 512),
        ("Mistral-7B", 128),
        ("Mixtral-8x7B", 128),
        ("Qwen2.5-7B", 56),
        ("Qwen2.5-72B", 320),
        ("Qwen3-0.6B", 112),
        ("Qwen3-8B", 144),
        ("Qwen3-32B", 256),
        ("Qwen3-30B-A3B", 96),
        ("Qwen3-235B-A22B", 188),
        ("DeepSeek-V3", 68.625),
        ("DeepSeek-R1", 68.625),
        ("GPT-2", 36),
        ("OPT-125m", 36),
        ("Gemma-2-9B", 336),
    ],
)
def test_published_sizes(name: str, kib_per_token: float) -> None:
    assert kv_shape(name).bytes_per_token == kib_per_token * 1024


def test_blocks_scale_with_tokens_and_memory() -> None:
    llama = kv_shape("Llama-3.1-8B")
    assert llama.bytes_per_block(16) == 2 * 2**20
    assert llama.bytes_per_block(512) == 64 * 2**20
    assert llama.blocks_in(60, 16) == 30 * 1024
    assert llama.blocks_in(60, 512) == 960
    # Whole blocks only.
    assert llama.blocks_in(2 / 1024, 16) == 1
    assert llama.blocks_in(1.999 / 1024, 16) == 0
    assert llama.blocks_in(0, 16) == 0


@pytest.mark.parametrize(
    ("dtype", "dtype_bytes"),
    [("bf16", 2), ("fp16", 2), ("fp8", 1), ("fp32", 4), ("int8", 1), ("BF16", 2), ("fp8_e4m3", 1), (None, 2)],
)
def test_dtypes(dtype: str | None, dtype_bytes: int) -> None:
    assert kv_shape("Qwen3-8B", dtype).bytes_per_token == 72 * 1024 * dtype_bytes


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("LLAMA-3.1-8b", "Llama-3.1-8B"),
        (" llama_3.1_8b ", "Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("meta-llama/Llama-2-7b-chat-hf", "Llama-2-7B"),
        ("google/gemma-2-9b-it", "Gemma-2-9B"),
        ("openai-community/gpt2", "GPT-2"),
        ("facebook/opt-125m", "OPT-125m"),
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-R1"),
    ],
)
def test_names_are_found_as_people_write_them(written: str, name: str) -> None:
    assert kv_shape(written).name == name


def test_every_listed_name_is_found_and_unique() -> None:
    names = model_names()
    assert len(names) == len(set(names)) >= 16
    for name in names:
        assert kv_shape(name).name == name
        assert kv_shape(name.upper()) == kv_shape(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Qwen3-30B", "unknown model 'Qwen3-30B'; did you mean .*Qwen3-30B-A3B"),
        ("deepseek-v4", "did you mean .*DeepSeek-V3"),
        ("", "unknown model ''; see kvpool.models.model_names"),
        ("zzzzzzzzzz", "see kvpool.models.model_names"),
    ],
)
def test_unknown_models_get_suggestions(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kv_shape(name)


def test_bad_arguments_are_value_errors() -> None:
    with pytest.raises(ValueError, match=r"unknown dtype 'int4'; allowed: fp32, .*int8"):
        kv_shape("Qwen3-8B", "int4")
    with pytest.raises(ValueError, match="unknown model None"):
        kv_shape(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown dtype 2"):
        kv_shape("Qwen3-8B", 2)  # type: ignore[arg-type]
    shape = kv_shape("Qwen3-8B")
    for block_size in (0, -16, True, 16.0):
        with pytest.raises(ValueError, match=r"block_size is .*; allowed: a whole number, 1 or more"):
            shape.bytes_per_block(block_size)  # type: ignore[arg-type]
    for gib in (-1, float("nan"), float("inf"), True, "60"):
        with pytest.raises(ValueError, match=r"gib is .*; allowed: a number, 0 or more"):
            shape.blocks_in(gib, 16)  # type: ignore[arg-type]
    for field in ("layers", "kv_heads", "head_dim", "dtype_bytes", "latent_dim"):
        with pytest.raises(ValueError, match=f"{field} is 0"):
            dataclasses.replace(shape, **{field: 0})  # type: ignore[arg-type]


def test_shapes_are_frozen_and_hashable() -> None:
    shape = KvShape("mine", 2, 4, 64, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        shape.layers = 3  # type: ignore[misc]
    assert len({shape, KvShape("mine", 2, 4, 64, 2)}) == 1
    assert dataclasses.replace(shape, latent_dim=576).bytes_per_token == 2 * 576 * 2


def test_examples_in_the_documentation() -> None:
    results = doctest.testmod(models)
    assert results.attempted >= 10
    assert results.failed == 0
