"""Shapes from a ``config.json``: what each family's fields say, and what is refused. The files are written here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.errors import KvpoolError, ModelConfigError
from kvpool.models import kv_shape, parse_config, read_config

if TYPE_CHECKING:
    from pathlib import Path

HEADS = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
QWEN_NEXT = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
}
NEMOTRON = {
    "model_type": "nemotron_h",
    **HEADS,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
}
KIMI_LINEAR = {
    "model_type": "kimi_linear",
    "num_hidden_layers": 27,
    **HEADS,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
}
LLAMA4 = {
    "model_type": "llama4_text",
    "num_hidden_layers": 48,
    **HEADS,
    "attention_chunk_size": 8192,
    "no_rope_layers": [1, 1, 1, 0] * 12,
}


def like(config: dict[str, Any], name: str) -> None:
    """The file describes the model of this name in the catalogue."""
    read, known = parse_config(json.dumps(config)), kv_shape(name)
    assert sorted(read.layers, key=lambda kind: kind.kind) == sorted(known.layers, key=lambda kind: kind.kind)
    assert read.dtype_bytes == known.dtype_bytes


@pytest.mark.parametrize(
    ("name", "config"),
    [
        (
            "Llama-3.1-8B",
            {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, **HEADS, "head_dim": None},
        ),
        ("Llama-2-7B", {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}),
        ("GPT-2", {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768}),
        ("Mistral-7B-v0.1", {"model_type": "mistral", "num_hidden_layers": 32, **HEADS, "sliding_window": 4096}),
        ("Mistral-7B", {"model_type": "mistral", "num_hidden_layers": 32, **HEADS, "sliding_window": None}),
        (
            "Qwen2.5-7B",  # a window that is switched off
            {
                "num_hidden_layers": 28,
                "num_attention_heads": 28,
                "num_key_value_heads": 4,
                "hidden_size": 3584,
                "sliding_window": 131072,
                "use_sliding_window": False,
                "max_window_layers": 28,
            },
        ),
        (
            "gpt-oss-20b",
            {
                "model_type": "gpt_oss",
                "num_hidden_layers": 24,
                "num_key_value_heads": 8,
                "num_attention_heads": 64,
                "head_dim": 64,
                "sliding_window": 128,
                "layer_types": ["sliding_attention", "full_attention"] * 12,
            },
        ),
        (
            "Gemma-2-9B",
            {"model_type": "gemma2", "num_hidden_layers": 42, "num_key_value_heads": 8, "num_attention_heads": 16},
        ),
        # Checkpoints of Gemma 3 leave out what is the family's default: 4 KV heads of 256, one layer of six in full.
        (
            "Gemma-3-4B",
            {
                "model_type": "gemma3",
                "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 34, "sliding_window": 1024},
                "vision_config": {"num_hidden_layers": 27},
            },
        ),
        (
            "Gemma-3-27B",
            {
                "model_type": "gemma3",
                "text_config": {
                    "num_hidden_layers": 62,
                    "num_attention_heads": 32,
                    "num_key_value_heads": 16,
                    "head_dim": 128,
                    "sliding_window": 1024,
                    "sliding_window_pattern": 6,
                },
            },
        ),
        (
            "Gemma-4-31B",
            {
                "text_config": {
                    "num_hidden_layers": 60,
                    "num_attention_heads": 32,
                    "num_key_value_heads": 16,
                    "num_global_key_value_heads": 4,
                    "head_dim": 256,
                    "global_head_dim": 512,
                    "sliding_window": 1024,
                    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
                }
            },
        ),
        ("Llama-4-Scout", LLAMA4),
        ("Llama-4-Scout", {"model_type": "llama4", "text_config": {**LLAMA4, "no_rope_layers": []}}),
        ("DeepSeek-V3", {"num_hidden_layers": 61, **HEADS, "kv_lora_rank": 512, "qk_rope_head_dim": 64}),
        (
            "DeepSeek-V3.2",
            {
                "num_hidden_layers": 61,
                **HEADS,
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
                "index_topk": 2048,
                "index_head_dim": 128,
            },
        ),
        ("Qwen3-Next-80B-A3B", QWEN_NEXT),
        ("Qwen3-Next-80B-A3B", {**QWEN_NEXT, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12}),
        (
            "Qwen3.5-27B",
            {
                "model_type": "qwen3_5",
                "text_config": {
                    **QWEN_NEXT,
                    "num_hidden_layers": 64,
                    "num_key_value_heads": 4,
                    "linear_num_value_heads": 48,
                    "mamba_ssm_dtype": "float32",
                },
            },
        ),
        ("Kimi-Linear-48B-A3B", KIMI_LINEAR),
        ("Nemotron-H-8B", NEMOTRON),
        (
            "Nemotron-3-Nano-30B-A3B",
            {
                **NEMOTRON,
                "num_key_value_heads": 2,
                "mamba_num_heads": 64,
                "hybrid_override_pattern": None,
                "layers_block_type": [
                    {"M": "mamba", "E": "moe", "*": "attention"}[letter]
                    for letter in "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
                ],
                "mamba_ssm_cache_dtype": "float32",
            },
        ),
        (
            "Granite-4.0-H-Small",
            {
                "model_type": "granitemoehybrid",
                **HEADS,
                "layer_types": [("attention" if at in {5, 15, 25, 35} else "mamba") for at in range(40)],
                "mamba_n_heads": 128,
                "mamba_d_head": 64,
                "mamba_d_state": 128,
                "mamba_n_groups": 1,
                "mamba_d_conv": 4,
            },
        ),
    ],
)
def test_families(name: str, config: dict[str, Any]) -> None:
    like(config, name)


@pytest.mark.parametrize(
    ("config", "layers", "token_bytes", "state_bytes"),
    [
        # Jamba: one layer of eight has attention, from the fifth on; a state of 16 for each of 2 x 4,096 channels.
        (
            {
                "num_hidden_layers": 32,
                **HEADS,
                "hidden_size": 4096,
                "attn_layer_period": 8,
                "attn_layer_offset": 4,
                "mamba_d_state": 16,
                "mamba_d_conv": 4,
                "mamba_expand": 2,
            },
            "4 full, 28 state",
            4 * 2 * 8 * 128 * 2,
            28 * (3 * 8192 + 8192 * 16) * 2,
        ),
        # Windows from the fifth layer on.
        (
            {"num_hidden_layers": 8, **HEADS, "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 4},
            "4 full, 4 sliding 64",
            8 * 2 * 8 * 128 * 2,
            0,
        ),
        # MiMo: windows with more heads, and values that are shorter than keys.
        (
            {
                "num_hidden_layers": 3,
                "num_attention_heads": 64,
                "num_key_value_heads": 4,
                "head_dim": 192,
                "v_head_dim": 128,
                "swa_num_key_value_heads": 8,
                "swa_head_dim": 192,
                "swa_v_head_dim": 128,
                "sliding_window": 128,
                "hybrid_layer_pattern": [0, 1, 1],
            },
            "1 full, 2 sliding 128",
            4 * (192 + 128) * 2 + 2 * 8 * (192 + 128) * 2,
            0,
        ),
        # The last layers read what others keep.
        (
            {
                "num_hidden_layers": 6,
                **HEADS,
                "sliding_window": 512,
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
                "num_kv_shared_layers": 2,
            },
            "1 full, 3 sliding 512",
            4 * 2 * 8 * 128 * 2,
            0,
        ),
        # LFM2: convolutions of three tokens, of which two lie before.
        (
            {
                "num_hidden_layers": 2,
                **HEADS,
                "hidden_size": 1024,
                "conv_L_cache": 3,
                "layer_types": ["conv", "full_attention"],
            },
            "1 full, 1 state",
            2 * 8 * 128 * 2,
            2 * 1024 * 2,
        ),
        # Every layer has both, side by side.
        (
            {
                "model_type": "falcon_h1",
                "num_hidden_layers": 2,
                **HEADS,
                "mamba_n_heads": 4,
                "mamba_d_head": 8,
                "mamba_d_state": 16,
                "mamba_n_groups": 1,
                "mamba_d_conv": 4,
            },
            "2 full, 2 state",
            2 * 2 * 8 * 128 * 2,
            2 * (3 * (4 * 8 + 2 * 16) + 4 * 8 * 16) * 2,
        ),
        ({"n_layer": 2, "n_head": 8, "n_embd": 512, "multi_query": True}, "2 full", 2 * 2 * 64 * 2, 0),
    ],
)
def test_other_ways_to_say_it(config: dict[str, Any], layers: str, token_bytes: int, state_bytes: int) -> None:
    shape = parse_config(json.dumps(config))
    assert (shape.in_words(), shape.bytes_per_token, shape.bytes_per_state) == (layers, token_bytes, state_bytes)


def test_from_a_file_or_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN_NEXT))
    assert read_config(path) == read_config(tmp_path) == read_config(str(path))
    assert read_config(path).name == "qwen3_next"
    path.write_text(json.dumps({**QWEN_NEXT, "_name_or_path": "some/where/Qwen3-Next"}))
    assert read_config(path).name == "Qwen3-Next"
    with pytest.raises(FileNotFoundError):
        read_config(tmp_path / "other.json")


def deep(levels: int) -> bytes:
    return b'{"text_config":' * levels + b"{}" + b"}" * levels


@pytest.mark.parametrize(
    ("data", "field", "message"),
    [
        (b"", None, "no JSON"),
        (b"\xff\xfe{", None, "no JSON"),
        (b"[1, 2]", None, "the file is a list of 2 entries: must be an object"),
        (b"null", None, "the file is null"),
        (b"{}", "num_hidden_layers", "num_hidden_layers is missing"),
        (deep(100_000), None, "nested too deeply"),
        (deep(100), "text_config." * 100 + "num_hidden_layers", "is missing"),
        (b'{"num_hidden_layers": ' + b"9" * 5000 + b"}", None, "no JSON: Exceeds the limit"),
        (b'{"num_hidden_layers": ' + b"9" * 4000 + b"}", "num_hidden_layers", "a number of more than 60 digits"),
        (b'{"num_hidden_layers": 1e3}', "num_hidden_layers", "is 1000.0: must be a whole number, 1 to 10,000"),
        (b'{"num_hidden_layers": Infinity}', "num_hidden_layers", "is inf"),
    ],
)
def test_what_is_no_configuration(data: bytes, field: str | None, message: str) -> None:
    with pytest.raises(ModelConfigError) as refused:
        parse_config(data)
    assert refused.value.field == field
    assert message in str(refused.value)
    assert len(str(refused.value)) < 2000


BASE = {"num_hidden_layers": 4, **HEADS}


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers", "is 1000000000: must be a whole number, 1 to 10,000"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "is 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers", "is True"),
        ({"num_hidden_layers": [4]}, "num_hidden_layers", "is a list of 1 entries"),
        ({"head_dim": -128}, "head_dim", "is -128"),
        ({"head_dim": "x" * 10_000}, "head_dim", "'xxxx"),
        ({"head_dim": None}, "hidden_size", "is missing"),
        ({"head_dim": None, "hidden_size": 100}, "hidden_size", "a multiple of the 32 attention heads"),
        ({"num_key_value_heads": 2**60}, "num_key_value_heads", "1 to 16,777,216"),
        ({"text_config": 7}, "text_config", "is 7: must be an object"),
        ({"model_type": 7}, "model_type", "is 7: must be a text"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder", "cross attention is not counted"),
        ({"is_encoder_decoder": "yes"}, "is_encoder_decoder", "must be true or false"),
        ({"compress_ratios": [0, 4]}, "compress_ratios", "compressed attention is not known"),
        ({"layer_types": "full"}, "layer_types", "must be a list with an entry per layer"),
        ({"layer_types": []}, "layer_types", "must be a list with an entry per layer"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types", "4 entries, as there are layers; there are 3"),
        ({"layer_types": ["ring_attention"] * 4}, "layer_types", "has 'ring_attention': must be of full_attention"),
        ({"layer_types": [None] * 4}, "layer_types", "has null"),
        ({"layer_types": [["full_attention"]] * 4}, "layer_types", "has a list of 1 entries"),
        ({"layer_types": ["mlp"] * 4}, "layer_types", "at least one layer that keeps something"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window", "is missing"),
        ({"layer_types": ["linear_attention"] * 4}, "linear_num_key_heads", "is missing"),
        ({"sliding_window": 0}, "sliding_window", "is 0"),
        ({"sliding_window": 2**50}, "sliding_window", "must be a whole number"),
        ({"sliding_window": 64, "sliding_window_pattern": "LLLG"}, "sliding_window_pattern", "is 'LLLG'"),
        ({"sliding_window": 64, "use_sliding_window": 1}, "use_sliding_window", "must be true or false"),
        ({"attention_chunk_size": -1}, "attention_chunk_size", "is -1"),
        ({"attention_chunk_size": 8, "no_rope_layers": [1, 0]}, "no_rope_layers", "4 entries, as there are layers"),
        ({"attention_chunk_size": 8, "no_rope_layers": [1, 2, 0, 0]}, "no_rope_layers", "has 2: must be of 0 and 1"),
        ({"attention_chunk_size": 8, "no_rope_layers": [1, True, 0, 0]}, "no_rope_layers", "has True"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim", "is missing"),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": "64"}, "qk_rope_head_dim", "is '64'"),
        ({"linear_num_value_heads": 32}, "full_attention_interval", "layer_types"),
        ({"mamba_d_state": 16}, "layers_block_type", "which layers are Mamba's"),
        ({"attn_layer_period": 4, "attn_layer_offset": 4}, "attn_layer_offset", "0 to 3"),
        ({"hybrid_override_pattern": "MX*-"}, "hybrid_override_pattern", "has 'X': must be of the letters M * - E"),
        ({"hybrid_override_pattern": ""}, "hybrid_override_pattern", "a letter per layer"),
        ({"hybrid_override_pattern": "M" * 20_000}, "hybrid_override_pattern", "1 to 10,000"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers", "0 to 3"),
        ({"linear_attn_config": 3}, "linear_attn_config", "must be an object"),
        ({"linear_attn_config": {}}, "linear_attn_config.full_attn_layers", "must be a list of layers"),
        ({"linear_attn_config": {"full_attn_layers": [5]}}, "linear_attn_config.full_attn_layers", "has 5"),
        ({"linear_attn_config": {"full_attn_layers": [4]}}, "linear_attn_config.num_heads", "is missing"),
    ],
)
def test_errors_name_the_field(change: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ModelConfigError) as refused:
        parse_config(json.dumps({**BASE, **change}))
    assert refused.value.field == field
    assert message in str(refused.value)
    assert len(str(refused.value)) < 400
    assert isinstance(refused.value, KvpoolError)
    assert isinstance(refused.value, ValueError)


def test_a_file_that_is_too_large_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b" " * ((16 << 20) + 1))
    with pytest.raises(ModelConfigError, match="larger than 16 MiB"):
        read_config(path)
    path.write_text("{}")
    with pytest.raises(ModelConfigError, match=r"config\.json: num_hidden_layers is missing") as refused:
        read_config(path)
    assert refused.value.field == "num_hidden_layers"


def test_nothing_hostile_raises_anything_else() -> None:
    values: list[Any] = [None, True, -1, 0, 1, 10**30, 1.5, "", "x", [], [None], {}, {"a": 1}]
    for base in (BASE, QWEN_NEXT, NEMOTRON, KIMI_LINEAR, LLAMA4):
        for name in [
            *base,
            "layer_types",
            "layers_block_type",
            "text_config",
            "mamba_ssm_dtype",
            "no_rope_layer_interval",
        ]:
            for value in values:
                try:
                    shape = parse_config(json.dumps({**base, name: value}))
                except ModelConfigError:
                    continue
                assert shape.groups().block_bytes > 0
