"""Tests shapes that are read from a ``config.json``: the sizes that follow from each family's fields,
and the configurations that are refused. The tests write the files.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.errors import KvpoolError, ModelConfigError
from kvpool.models import KvShape, kv_shape, parse_config, read_config
from kvpool.models.defaults import VALUES_IF_ABSENT
from kvpool.models.fields import Fields
from kvpool.models.parts import text_part
from kvpool.models.table import FAMILIES, family_of
from tests.model_configs import EXAMPLES, Example, kinds, total
from tools import models_page

if TYPE_CHECKING:
    from pathlib import Path

HEADS = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
BASE = {"model_type": "mistral", "num_hidden_layers": 4, **HEADS, "sliding_window": None}
BY_MODEL = {one.model: one for one in EXAMPLES}
QWEN_NEXT = BY_MODEL["Qwen3-Next-80B-A3B"].config
NEMOTRON = BY_MODEL["Nemotron-H-8B"].config
KIMI_LINEAR = BY_MODEL["Kimi-Linear-48B-A3B"].config
LLAMA4 = BY_MODEL["Llama-4-Scout"].config["text_config"]


def read(config: dict[str, Any], dtype: str | None = None, quantization: Any = None) -> KvShape:
    return parse_config(json.dumps(config), dtype, None if quantization is None else json.dumps(quantization))


def sizes(shape: KvShape) -> tuple[int, dict[int, int], int]:
    """Returns three sizes of a shape: bytes per token in full attention, bytes per token in windows and
    chunks (by span), and bytes of recurrent states.
    """
    full, windows = 0, dict[int, int]()
    for kind, one in zip(shape.layers, shape.token_bytes(), strict=True):
        if kind.span:
            windows[kind.span] = windows.get(kind.span, 0) + kind.count * one
        else:
            full += kind.count * one
    return full, windows, shape.bytes_per_state


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.model)
def test_families_have_the_sizes_of_their_fields(example: Example) -> None:
    windows = {span: total(products) for span, products in example.windows.items()}
    assert sizes(read(example.config)) == (total(example.full), windows, total(example.state))


def test_every_family_of_the_table_has_an_example() -> None:
    found = {family_of(text_part(Fields(one.config))[0])[0].name for one in EXAMPLES}
    assert found == {family.name for family in FAMILIES}
    types = [kind for family in FAMILIES for kind in family.types]
    assert len(types) == len(set(types))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.model)
def test_a_field_that_suggests_another_layout_is_refused_by_name(example: Example) -> None:
    for name in (
        "kv_sharing_map",
        "num_memory_heads",
        "skip_layers",
        "latent_dim_per_group",
        "total_ut_steps",
    ):
        config = json.loads(json.dumps(example.config))
        part, path = config, ""
        while inner := next(
            (one for one in ("text_config", "llm_config", "thinker_config") if one in part), None
        ):
            part, path = part[inner], f"{path}{inner}."
        part[name] = 2
        with pytest.raises(
            ModelConfigError, match=rf"{name} is 2: must be absent: the name suggests a layout"
        ) as refused:
            read(config)
        assert refused.value.field == path + name
        # A field that is null is treated as absent.
        part[name] = None
        assert read(config) == read(example.config)


#: Models for which the catalogue has a shape, too.
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Llama-3.1-8B", "Llama-3.1-8B"),
        ("Llama-2-7B", "Llama-2-7B"),
        ("Llama-3.3-70B", "Llama-3.3-70B"),
        ("Llama-4-Scout", "Llama-4-Scout"),
        ("GPT-2", "GPT-2"),
        ("Mistral-7B-v0.1", "Mistral-7B-v0.1"),
        ("Mistral-Small-3.2-24B", "Mistral-Small-3.2-24B"),
        ("Mixtral-8x7B", "Mixtral-8x7B"),
        ("Qwen2.5-7B", "Qwen2.5-7B"),
        ("Qwen3-8B", "Qwen3-8B"),
        ("Qwen3-30B-A3B", "Qwen3-30B-A3B"),
        ("Qwen3-Next-80B-A3B", "Qwen3-Next-80B-A3B"),
        ("Qwen3.5-27B", "Qwen3.5-27B"),
        ("gpt-oss-20b", "gpt-oss-20b"),
        ("Gemma-2-9B", "Gemma-2-9B"),
        ("Gemma-3-27B", "Gemma-3-27B"),
        ("Gemma-4-31B", "Gemma-4-31B"),
        ("DeepSeek-V2-Lite", "DeepSeek-V2-Lite"),
        ("DeepSeek-V3", "DeepSeek-V3, DeepSeek-R1, DeepSeek-V3.1"),
        ("DeepSeek-V3.2", "DeepSeek-V3.2"),
        ("Kimi-K2", "Kimi-K2"),
        ("Kimi-K2.5", "Kimi-K2.5"),
        ("Kimi-Linear-48B-A3B", "Kimi-Linear-48B-A3B"),
        ("GLM-4.5", "GLM-4.5, GLM-4.6"),
        ("GLM-4.7-Flash", "GLM-4.7-Flash"),
        ("GLM-5", "GLM-5"),
        ("MiniMax-M2", "MiniMax-M2"),
        ("Nemotron-H-8B", "Nemotron-H-8B"),
        ("Granite-4.0-H-Small", "Granite-4.0-H-Small"),
    ],
)
def test_the_catalogue_has_the_sizes_of_the_configuration(name: str, model: str) -> None:
    shape, known = read(BY_MODEL[model].config), kv_shape(name)
    assert sorted(shape.layers, key=lambda kind: kind.kind) == sorted(
        known.layers, key=lambda kind: kind.kind
    )
    assert shape.dtype == known.dtype


@pytest.mark.parametrize(
    ("model", "change"),
    [
        # Each row spells the configuration of a model in another way: as transformers 4 or 5 do, with
        # lists instead of numbers, or with nulls.
        ("Qwen3-Next-80B-A3B", {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12}),
        ("Llama-3.1-8B", {"head_dim": 128, "quantization_config": None, "sliding_window": None}),
        (
            "Kimi-Linear-48B-A3B",
            {"linear_attn_config": {**KIMI_LINEAR["linear_attn_config"], "kda_layers": None}},
        ),
        (
            "Kimi-Linear-48B-A3B",
            {
                "linear_attn_config": None,
                "layer_types": kinds(24, 4, others="linear_attention")
                + ["linear_attention"] * 2
                + ["full_attention"],
                "linear_num_heads": 32,
                "linear_head_dim": 128,
                "linear_conv_kernel_dim": 4,
            },
        ),
        (
            "Nemotron-H-8B",
            {
                "hybrid_override_pattern": None,
                "layers_block_type": [
                    {"M": "mamba", "-": "mlp", "*": "attention"}[letter]
                    for letter in NEMOTRON["hybrid_override_pattern"]
                ],
                "mamba_ssm_cache_dtype": "float32",
            },
        ),
        (
            "LFM2-350M",
            {
                "full_attn_idxs": None,
                "layer_types": [
                    "full_attention" if at in {2, 5, 8, 10, 12, 14} else "conv" for at in range(16)
                ],
            },
        ),
        ("GLM-5.2", {"indexer_types": None, "index_topk_freq": 4, "index_skip_topk_offset": 3}),
        ("GLM-5.2", {"indexer_types": None, "index_topk_pattern": "FF" + "FSSS" * 19}),
        ("GLM-5", {"layer_types": ["deepseek_sparse_attention"] * 78}),
        ("GLM-5", {"layer_types": ["indexed_attention"] * 78}),
        ("Gemma-2-9B", {"layer_types": kinds(42, 2)}),
        (
            "DeepSeek-V3, DeepSeek-R1, DeepSeek-V3.1",
            {"model_type": None, "architectures": ["DeepseekV3ForCausalLM"]},
        ),
        ("Qwen3-30B-A3B", {"model_type": "a_fork", "architectures": ["Qwen3MoeForCausalLM"]}),
        ("MiniMax-M1, MiniMax-Text-01", {"model_type": "x", "architectures": ["MiniMaxText01ForCausalLM"]}),
    ],
)
def test_other_spellings_of_a_model_have_its_sizes(model: str, change: dict[str, Any]) -> None:
    config = BY_MODEL[model].config
    assert read({**config, **change}).layers == read(config).layers


#: Fields whose names suggest another layout, but which change nothing. They occur in published
#: configurations.
HARMLESS: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B": {
        "_attn_implementation_autoset": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
        "num_beam_groups": 1,
        "cross_attention_hidden_size": None,
        "chunk_size_feed_forward": 0,
        "encoder_no_repeat_ngram_size": 0,
    },
    "Hunyuan-A13B": {
        "add_classification_head": False,
        "attention_head_dim": 128,
        "cla_share_factor": 2,
        "group_limited_greedy": False,
        "skip_cls_token": False,
        "moe_layer_num_skipped": 0,
        "num_shared_expert": [1] * 32,
        "qk_nope_head_dim": None,
        "use_mla": False,
    },
    "Command-R7B": {
        "use_parallel_block": True,
        "use_embedding_sharing": True,
        "order_of_interleaved_layers": "local_attn_first",
        "cache_implementation": "hybrid",
    },
    "Jamba-v0.1, Jamba-1.5-Mini": {
        "mamba_inner_layernorms": True,
        "expert_layer_period": 2,
        "mamba_dt_rank": 256,
        "use_mamba_kernels": True,
    },
    "RecurrentGemma-2B": {"final_w_init_variance_scale": 0.07, "logits_soft_cap": 30.0},
    "OpenELM (made-up numbers)": {
        "normalization_layer_name": "rms_norm",
        "num_gqa_groups": 4,
        "share_input_output_layers": True,
    },
    "MiniMax-M2": {"mtp_transformer_layers": 1, "shared_moe_mode": "sigmoid", "qk_norm_type": "per_layer"},
    "MiniMax-M1, MiniMax-Text-01": {"layernorm_linear_attention_alpha": 3.5, "shared_intermediate_size": 0},
    "Nemotron-H-8B": {"chunk_size": 256, "expand": 2, "mamba_hidden_act": "silu", "use_conv_bias": True},
    "Falcon-H1-0.5B": {"key_multiplier": 0.1, "ssm_multipliers": [1.0] * 5, "attn_layer_indices": None},
    "Kimi-Linear-48B-A3B": {"mla_use_nope": True, "num_expert_group": 1, "moe_layer_freq": 1, "head_dim": 72},
    "Phi-3-mini-4k": {"embd_layer": {"embedding_cls": "image"}, "attention_bias": False},
    "Qwen3-Next-80B-A3B": {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "shared_expert_intermediate_size": 512,
    },
    "GPT-2": {"scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False, "attn_pdrop": 0.1},
    "Laguna (made-up numbers)": {"num_attention_heads_per_layer": [16] * 8, "gating": True},
}


@pytest.mark.parametrize("model", HARMLESS)
def test_fields_of_published_configurations_that_change_nothing_are_accepted(model: str) -> None:
    config = BY_MODEL[model].config
    assert read({**config, **HARMLESS[model]}).layers == read(config).layers


@pytest.mark.parametrize(
    ("config", "layers", "token_bytes", "state_bytes"),
    [
        # In this model, only the layers from the fifth one on have windows.
        (
            {
                **BASE,
                "model_type": "qwen2",
                "num_hidden_layers": 8,
                "sliding_window": 64,
                "use_sliding_window": True,
                "max_window_layers": 4,
            },
            "4 full, 4 sliding 64",
            8 * 2 * 8 * 128 * 2,
            0,
        ),
        # A DeepSeek model without kv_lora_rank has ordinary heads. v_head_dim 0 means that values are
        # as long as keys.
        (
            {
                "model_type": "deepseek_v2",
                "num_hidden_layers": 12,
                "hidden_size": 1280,
                "num_attention_heads": 10,
                "num_key_value_heads": 10,
                "kv_lora_rank": None,
                "qk_nope_head_dim": 0,
                "qk_rope_head_dim": 0,
                "v_head_dim": 0,
                "use_mla": False,
            },
            "12 full",
            12 * 2 * 10 * 128 * 2,
            0,
        ),
        # This configuration has Mistral's own format. Three of four layers have a window.
        (
            {
                "dim": 64,
                "n_layers": 8,
                "n_heads": 2,
                "n_kv_heads": 1,
                "head_dim": 32,
                "sliding_window": [None, 8, 8, 8],
            },
            "2 full, 6 sliding 8",
            8 * 2 * 32 * 2,
            0,
        ),
        # In this Gemma 4, keys and values differ, and full attention has as many heads as the windows.
        (
            {
                "model_type": "gemma4_text",
                **HEADS,
                "num_hidden_layers": 6,
                "num_global_key_value_heads": 2,
                "global_head_dim": 256,
                "sliding_window": 64,
                "num_kv_shared_layers": 0,
            },
            "1 full, 5 sliding 64",
            (2 * 8 * 256 + 5 * 2 * 8 * 128) * 2,
            0,
        ),
        # The next two configurations are variants of MPT, with one KV head and with several.
        (
            {
                "model_type": "mpt",
                "n_layers": 2,
                "n_heads": 8,
                "d_model": 512,
                "attn_config": {"attn_type": "multiquery_attention"},
            },
            "2 full",
            2 * 2 * 64 * 2,
            0,
        ),
        (
            {
                "model_type": "mpt",
                "n_layers": 2,
                "n_heads": 8,
                "d_model": 512,
                "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 4},
            },
            "2 full",
            2 * 2 * 4 * 64 * 2,
            0,
        ),
    ],
)
def test_other_ways_to_say_it(
    config: dict[str, Any], layers: str, token_bytes: int, state_bytes: int
) -> None:
    shape = read(config)
    assert (shape.in_words(), shape.bytes_per_token, shape.bytes_per_state) == (
        layers,
        token_bytes,
        state_bytes,
    )


def test_defaults_of_a_class_count_inside_another_configuration_alone() -> None:
    inner = {"model_type": "gemma3_text", "num_hidden_layers": 34, "sliding_window": 1024}
    # Gemma 3's published configurations leave out the number of KV heads (4) and their size (256),
    # which are defaults.
    assert read({"model_type": "gemma3", "text_config": inner}).layers == kv_shape("Gemma-3-4B").layers
    with pytest.raises(ModelConfigError, match="num_key_value_heads is missing"):
        read(inner)
    # If a field is null, the reader does not use the family's default.
    window = {"model_type": "mistral", **HEADS, "num_hidden_layers": 2}
    assert read({"model_type": "llava_next", "text_config": window}).in_words() == "2 sliding 4,096"
    assert (
        read({"model_type": "llava_next", "text_config": {**window, "sliding_window": None}}).in_words()
        == "2 full"
    )
    # A field may be missing only if kvpool knows the family's defaults.
    with pytest.raises(ModelConfigError, match=r"text_config\.layer_types is null"):
        read({"model_type": "lfm2_vl", "text_config": {}})


def test_a_nested_configuration_has_as_many_kv_heads_as_attention_heads_where_its_class_says_so() -> None:
    inner = {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4}
    assert sizes(read({"model_type": "pixtral", "text_config": {"model_type": "llama", **inner}})) == (
        4 * 512,
        {},
        0,
    )
    aya = read({"model_type": "aya_vision", "text_config": {"model_type": "cohere2", **inner}})
    assert sizes(aya) == (512, {4096: 3 * 512}, 0)


def test_a_model_is_known_by_its_architecture_too() -> None:
    known = {**LLAMA, "architectures": ["Custom", "LlamaForSequenceClassification"]}
    assert read(known) == read(LLAMA)
    assert read({**known, "model_type": None}).layers == read(LLAMA).layers
    with pytest.raises(ModelConfigError, match="architectures has 'OranginaForCausalLM'") as refused:
        read({**LLAMA, "architectures": ["OranginaForCausalLM"]})
    assert refused.value.field == "architectures"
    # A model with several parts loads each part by the model_type of that part.
    text = {**LLAMA, "architectures": ["VLlama3ForCausalLM"]}
    assert read({"model_type": "idefics3", "text_config": text}).layers == read(LLAMA).layers


def test_windows_that_are_switched_off_are_no_layout() -> None:
    windows = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
    assert read({**QWEN_NEXT, **windows}) == read(QWEN_NEXT)
    with pytest.raises(ModelConfigError, match="use_sliding_window is True"):
        read({**QWEN_NEXT, **windows, "use_sliding_window": True})


@pytest.mark.parametrize(
    ("kind", "field"), [(kind, field) for kind, some in VALUES_IF_ABSENT.items() for field in some]
)
def test_a_field_with_a_number_as_default_has_to_be_there(kind: str, field: str) -> None:
    # If the field is absent, the family's class has a default for it. If the field is null, no default
    # is used.
    with pytest.raises(
        ModelConfigError, match=rf"{field} is missing: must be there, or null \(absent means "
    ):
        read({"model_type": kind, **dict.fromkeys(set(VALUES_IF_ABSENT[kind]) - {field})})


def test_from_a_file_or_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN_NEXT))
    assert read_config(path) == read_config(tmp_path) == read_config(str(path))
    assert read_config(path).name == "qwen3_next"
    path.write_text(json.dumps({**QWEN_NEXT, "_name_or_path": "some/where/Qwen3-Next"}))
    assert read_config(path).name == "Qwen3-Next"
    with pytest.raises(FileNotFoundError):
        read_config(tmp_path / "other.json")


def deep(levels: int, more: str = "") -> bytes:
    return ("{" + more + '"text_config":' + '{"text_config":' * (levels - 1) + "{}" + "}" * levels).encode()


@pytest.mark.parametrize(
    ("data", "field", "message"),
    [
        (b"", None, "no JSON"),
        (b"\xff\xfe{", None, "no JSON"),
        (b"[1, 2]", None, "the file is a list of 2 entries: must be an object"),
        (b"null", None, "the file is null"),
        (b"{}", "model_type", "model_type is missing: it names the family of the model"),
        (b'{"model_type": "llama"}', "num_hidden_layers", "num_hidden_layers is missing"),
        (deep(100_000), None, "nested too deeply"),
        (deep(100), "model_type", "model_type is null: must be a model with a text_config that kvpool knows"),
        (
            deep(100, '"model_type": "gemma3", '),
            "text_config.model_type",
            "is 'gemma3_text': must be a model with a",
        ),
        (
            b'{"model_type": "llama", "num_hidden_layers": ' + b"9" * 5000 + b"}",
            None,
            "no JSON: Exceeds the limit",
        ),
        (
            b'{"model_type": "llama", "num_hidden_layers": ' + b"9" * 4000 + b"}",
            "num_hidden_layers",
            "a number of more than 60 digits",
        ),
        (
            b'{"model_type": "llama", "num_hidden_layers": 1e3}',
            "num_hidden_layers",
            "is 1000.0: must be a whole number, 1 to 10,000",
        ),
        (b'{"model_type": "llama", "num_hidden_layers": Infinity}', "num_hidden_layers", "is inf"),
    ],
)
def test_what_is_no_configuration(data: bytes, field: str | None, message: str) -> None:
    with pytest.raises(ModelConfigError) as refused:
        parse_config(data)
    assert refused.value.field == field
    assert message in str(refused.value)
    assert len(str(refused.value)) < 2000


LLAMA = {**BASE, "model_type": "llama"}
QWEN = {**BASE, "model_type": "qwen2"}
GEMMA = {**BASE, "model_type": "gemma3_text", "sliding_window": 64}
CHUNKS = {**BASE, "model_type": "llama4_text", "attention_chunk_size": 8}
LATENTS = {"model_type": "deepseek_v3", "num_hidden_layers": 4, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
INDEXED = {**LATENTS, "model_type": "glm_moe_dsa", "index_head_dim": 128}
DELTA = {"model_type": "kimi_linear", "num_hidden_layers": 4, "linear_attn_config": {"full_attn_layers": [4]}}


@pytest.mark.parametrize(
    ("base", "change", "field", "message"),
    [
        (
            LLAMA,
            {"num_hidden_layers": 10**9},
            "num_hidden_layers",
            "is 1000000000: must be a whole number, 1 to 10,000",
        ),
        (LLAMA, {"num_hidden_layers": 0}, "num_hidden_layers", "is 0"),
        (LLAMA, {"num_hidden_layers": True}, "num_hidden_layers", "is True"),
        (LLAMA, {"num_hidden_layers": [4]}, "num_hidden_layers", "is a list of 1 entries"),
        (LLAMA, {"head_dim": -128}, "head_dim", "is -128"),
        (LLAMA, {"head_dim": "x" * 10_000}, "head_dim", "'xxxx"),
        (LLAMA, {"head_dim": None}, "hidden_size", "is missing"),
        (
            LLAMA,
            {"head_dim": None, "hidden_size": 100},
            "hidden_size",
            "a multiple of the 32 attention heads",
        ),
        (LLAMA, {"num_key_value_heads": 2**60}, "num_key_value_heads", "1 to 16,777,216"),
        (
            LLAMA,
            {"text_config": 7},
            "model_type",
            "is 'llama': must be a model with a text_config that kvpool knows",
        ),
        (LLAMA, {"model_type": "llava", "text_config": 7}, "text_config", "is 7: must be an object"),
        (LLAMA, {"model_type": 7}, "model_type", "is 7: must be a text"),
        (LLAMA, {"model_type": None}, "model_type", "is missing: it names the family"),
        (LLAMA, {"model_type": "lama"}, "model_type", "is 'lama': must be a family that kvpool knows"),
        (
            LLAMA,
            {"model_type": None, "architectures": ["Lama"]},
            "architectures",
            "has 'Lama': must be a family that",
        ),
        (
            LLAMA,
            {"architectures": ["MambaForCausalLM"]},
            "architectures",
            "has 'MambaForCausalLM': must be of the family",
        ),
        (LLAMA, {"architectures": [7]}, "architectures", "has 7: must be of texts"),
        (LLAMA, {"model_type": "bert"}, "model_type", "an encoder keeps no KV"),
        (LLAMA, {"use_bidirectional_attention": True}, "use_bidirectional_attention", "keeps no KV"),
        (LLAMA, {"is_causal": False}, "is_causal", "keeps no KV"),
        (LLAMA, {"model_type": "t5"}, "model_type", "cross attention is not counted"),
        (LLAMA, {"model_type": "phi4flash"}, "model_type", "half of its layers read the cache of one layer"),
        (LLAMA, {"model_type": "deepseek_v4"}, "model_type", "one entry for several tokens"),
        (LLAMA, {"is_encoder_decoder": True}, "is_encoder_decoder", "cross attention is not counted"),
        (LLAMA, {"is_encoder_decoder": "yes"}, "is_encoder_decoder", "must be true or false"),
        (LLAMA, {"compress_ratios": [0, 4]}, "compress_ratios", "the name suggests a layout"),
        (
            LLAMA,
            {"sliding_window": 64},
            "sliding_window",
            "the name suggests a layout that kvpool does not know for Llama",
        ),
        (LLAMA, {"use_cla": False}, "use_cla", "the name suggests a layout"),
        (BASE, {"layer_types": "full"}, "layer_types", "must be a list with an entry per layer"),
        (
            BASE,
            {"layer_types": ["full_attention"] * 3},
            "layer_types",
            "4 entries, as there are layers; there are 3",
        ),
        (
            BASE,
            {"layer_types": ["ring_attention"] * 4},
            "layer_types",
            "has 'ring_attention': must be of full_attention",
        ),
        (BASE, {"layer_types": [None] * 4}, "layer_types", "has null"),
        (BASE, {"layer_types": [["full_attention"]] * 4}, "layer_types", "has a list of 1 entries"),
        (BASE, {"layer_types": ["sliding_attention"] * 4}, "sliding_window", "is missing"),
        (BASE, {"sliding_window": 0}, "sliding_window", "is 0"),
        (BASE, {"sliding_window": 2**50}, "sliding_window", "must be a whole number"),
        (QWEN, {"use_sliding_window": 1}, "use_sliding_window", "must be true or false"),
        (QWEN, {"use_sliding_window": True, "sliding_window": 8}, "max_window_layers", "is missing"),
        (GEMMA, {"sliding_window_pattern": "LLLG"}, "sliding_window_pattern", "is 'LLLG'"),
        (CHUNKS, {"attention_chunk_size": -1}, "attention_chunk_size", "is -1"),
        (CHUNKS, {"no_rope_layers": [1, 0]}, "no_rope_layers", "4 entries, as there are layers"),
        (CHUNKS, {"no_rope_layers": [1, 2, 0, 0]}, "no_rope_layers", "has 2: must be of 0 and 1"),
        (CHUNKS, {"no_rope_layers": [1, True, 0, 0]}, "no_rope_layers", "has True"),
        (LATENTS, {"qk_rope_head_dim": None}, "qk_rope_head_dim", "is missing"),
        (LATENTS, {"qk_rope_head_dim": "64"}, "qk_rope_head_dim", "is '64'"),
        (LATENTS, {"index_head_dim": 128}, "index_head_dim", "the name suggests a layout"),
        (LATENTS, {"kv_lora_rank": None}, "qk_rope_head_dim", "0 or absent in a model without kv_lora_rank"),
        (INDEXED, {"indexer_types": ["full"] * 3}, "indexer_types", "4 entries"),
        (INDEXED, {"index_topk_pattern": "FSX"}, "index_topk_pattern", "4 letters F or S"),
        (
            INDEXED,
            {"layer_types": ["full_attention"] * 3 + ["sliding_attention"]},
            "layer_types",
            "sparse attention",
        ),
        (DELTA, {"linear_attn_config": 3}, "linear_attn_config", "must be an object"),
        (
            DELTA,
            {"linear_attn_config": {}},
            "linear_attn_config.full_attn_layers",
            "must be a list of layers",
        ),
        (
            DELTA,
            {"linear_attn_config": {"full_attn_layers": [5]}},
            "linear_attn_config.full_attn_layers",
            "has 5",
        ),
        (DELTA, {}, "linear_attn_config.num_heads", "is missing"),
        (
            DELTA,
            {"linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2]}},
            "linear_attn_config.kda_layers",
            "all layers that full_attn_layers does not have",
        ),
        (
            BY_MODEL["Kimi-Linear-48B-A3B"].config,
            {"linear_attn_config": {**KIMI_LINEAR["linear_attn_config"], "group_size": 2}},
            "linear_attn_config.group_size",
            "the name suggests a layout",
        ),
        (QWEN_NEXT, {"linear_num_key_heads": None}, "linear_num_key_heads", "is missing"),
        (QWEN_NEXT, {"full_attention_interval": None}, "layer_types", "which layer is of which kind"),
        (
            NEMOTRON,
            {"hybrid_override_pattern": "MX*-"},
            "hybrid_override_pattern",
            "'X': must be of the letters M * - E",
        ),
        (NEMOTRON, {"hybrid_override_pattern": "M" * 20_000}, "hybrid_override_pattern", "1 to 10,000"),
        (
            NEMOTRON,
            {"hybrid_override_pattern": "M*"},
            "hybrid_override_pattern",
            "52 letters, as there are layers",
        ),
        (
            NEMOTRON,
            {"hybrid_override_pattern": "-" * 52},
            "model_type",
            "no layer keeps anything",
        ),
        (
            BY_MODEL["Gemma-3n-E4B"].config["text_config"],
            {"num_kv_shared_layers": 35},
            "num_kv_shared_layers",
            "0 to 34",
        ),
        (
            BY_MODEL["Jamba-v0.1, Jamba-1.5-Mini"].config,
            {"attn_layer_offset": 8},
            "attn_layer_offset",
            "0 to 7",
        ),
        (
            BY_MODEL["Ring-mini-linear-2.0"].config,
            {"layer_group_size": 6},
            "layer_group_size",
            "a divisor of the 20",
        ),
        (BY_MODEL["Falcon-7B"].config, {"multi_query": None}, "multi_query", "must be true or false"),
        (BY_MODEL["Hunyuan-Large"].config, {"use_mla": True}, "use_mla", "must be false"),
        (
            BY_MODEL["DBRX"].config,
            {"attn_config": {"kv_n_heads": 8, "kv_window": 4}},
            "attn_config.kv_window",
            "layout",
        ),
        (
            BY_MODEL["MPT-7B"].config,
            {"attn_config": {"attn_type": "ring"}},
            "attn_config.attn_type",
            "is 'ring'",
        ),
        (
            BY_MODEL["Nemotron-Super-49B (its first layers)"].config,
            {"block_configs": [{"attention": {"n_heads_in_group": 7}}] * 4},
            "block_configs[0].attention.n_heads_in_group",
            "a divisor of the 64 attention heads",
        ),
        (
            BY_MODEL["Nemotron-Super-49B (its first layers)"].config,
            {"block_configs": [{"attention": {"n_heads_in_group": 8, "window_length": 512}}] * 4},
            "block_configs[0].attention.window_length",
            "the name suggests a layout",
        ),
    ],
)
def test_errors_name_the_field(
    base: dict[str, Any], change: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(ModelConfigError) as refused:
        read({**base, **change})
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
    with pytest.raises(ModelConfigError, match=r"config\.json: model_type is missing") as refused:
        read_config(path)
    assert refused.value.field == "model_type"


def test_params_of_mistral_are_read_from_a_folder_without_config(tmp_path: Path) -> None:
    example = BY_MODEL["Pixtral-12B (params.json)"]
    (tmp_path / "params.json").write_text(json.dumps(example.config))
    assert read_config(tmp_path).bytes_per_token == total(example.full)
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    assert read_config(tmp_path).name == "mistral"


SCHEME = {"num_bits": 8, "type": "float", "dynamic": False, "symmetric": True}


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": SCHEME}, "fp8_e4m3"),
        (
            {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 4, "type": "float"}},
            "nvfp4",
        ),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, "bf16"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8_e4m3"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8_e4m3"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": None}, "bf16"),
        ({"quant_method": "gptq", "bits": 4}, "bf16"),
        (
            {
                "quant_method": "quark",
                "kv_cache_group": [],
                "kv_cache_quant_config": {},
                "kv_cache_post_rope": False,
            },
            "bf16",
        ),
    ],
)
def test_the_cache_has_the_format_that_the_checkpoint_asks_for(
    quantization: dict[str, Any], dtype: str
) -> None:
    shape = read({**BASE, "quantization_config": quantization})
    assert shape.dtype == dtype
    assert shape.layers == read(BASE).layers
    # The checkpoint's format may be stated in a part of the configuration, or beside that part.
    inner = {"model_type": "mistral3", "text_config": {**BASE, "sliding_window": None}}
    assert read({**inner, "quantization_config": quantization}).dtype == dtype
    assert read({**BASE, "compression_config": quantization}).dtype == dtype
    # If the caller passes a format, the format in the configuration is not used.
    assert read({**BASE, "quantization_config": quantization}, "fp16").dtype == "fp16"


@pytest.mark.parametrize(
    ("quantization", "field", "message"),
    [
        (
            {"kv_cache_scheme": {"num_bits": 3, "type": "float"}},
            "kv_cache_scheme.num_bits",
            "is 3: must be 8, or 4",
        ),
        (
            {"kv_cache_scheme": {"num_bits": 4, "type": "int"}},
            "kv_cache_scheme.num_bits",
            "the type is 'int'",
        ),
        ({"kv_cache_scheme": "static"}, "kv_cache_scheme", "is 'static'"),
        ({"kv_cache_quant_algo": "FP6"}, "kv_cache_quant_algo", "is 'FP6': must be one of fp8, nvfp4"),
        ({"kv_cache_group": ["*k_proj"]}, "kv_cache_group", "give the dtype of the cache yourself"),
    ],
)
def test_an_unknown_format_of_the_cache_is_refused(
    quantization: dict[str, Any], field: str, message: str
) -> None:
    config = {**BASE, "quantization_config": quantization}
    with pytest.raises(ModelConfigError) as refused:
        read(config)
    assert refused.value.field == f"quantization_config.{field}"
    assert message in str(refused.value)
    assert read(config, "fp8").dtype == "fp8"


def test_a_format_that_the_model_cannot_have_is_refused() -> None:
    latents = {**LATENTS, "quantization_config": {"kv_cache_quant_algo": "NVFP4"}}
    with pytest.raises(
        ModelConfigError, match=r"keys and values of equal length.*the model has MLA 512"
    ) as refused:
        read(latents)
    assert refused.value.field == "quantization_config"
    with pytest.raises(ValueError, match="dtype is 'fp8_ds_mla', a format of sparse MLA"):
        read(LATENTS, "fp8_ds_mla")


def test_the_quantization_beside_the_configuration_is_read(tmp_path: Path) -> None:
    beside = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    }
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    assert read_config(tmp_path).dtype == "fp8_e4m3"
    assert read_config(tmp_path, "bf16").dtype == "bf16"
    (tmp_path / "other.json").write_text(json.dumps(BASE))
    assert read_config(tmp_path / "other.json").dtype == "bf16"
    # The format in config.json has priority over the format in the other file.
    (tmp_path / "config.json").write_text(
        json.dumps({**BASE, "quantization_config": {"quant_method": "gptq"}})
    )
    assert read_config(tmp_path).dtype == "bf16"


def test_nothing_hostile_raises_anything_else() -> None:
    values: list[Any] = [None, True, -1, 0, 1, 10**30, 1.5, "", "x", [], [None], {}, {"a": 1}]
    for example in EXAMPLES:
        config = example.config
        for name in [
            *config,
            "layer_types",
            "text_config",
            "mamba_ssm_dtype",
            "architectures",
            "quantization_config",
        ]:
            for value in values:
                try:
                    shape = read({**config, name: value})
                except ModelConfigError:
                    continue
                assert shape.groups().block_bytes > 0


def test_the_page_of_models_is_made_of_these_examples() -> None:
    pages = {models_page.PAGE: models_page.page(), models_page.DETAILS: models_page.details()}
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, "run python tools/models_page.py"
