"""Families whose layers all have attention, with heads or latents, and without windows.

Each entry describes how to read the configurations of one family, by the fields that this family
defines. ``source`` names the published files that define these fields.
"""

from __future__ import annotations

from typing import Final

from kvpool.models import families as read
from kvpool.models.defaults import DEFAULTS
from kvpool.models.families import Family, by_kind
from kvpool.models.keeps import heads, mla, mla_or_heads
from kvpool.models.kinds import (
    all_of,
    chosen,
    first_given,
    marked,
    twice,
)

__all__ = ["ATTENTION"]

_HF: Final = "transformers/models/{type}/configuration_{type}.py"
_VLLM: Final = "vllm/model_executor/models/"


def _types(names: str) -> tuple[str, ...]:
    return tuple(names.split())


_GIVEN: Final = heads(quotient=False)
_SAME: Final = heads(equal=True)

ATTENTION: Final[tuple[Family, ...]] = (
    Family(
        "Llama",
        _types(
            "llama yi aquila xverse arcee apertus olmo olmo2 olmoe flex_olmo granite granitemoe "
            "granitemoeshared stablelm stablelm_epoch cohere phi internlm internlm2 internlm3 orion "
            "minicpm bitnet jais2 deepseek hyperclovax persimmon nemotron gpt_neox baichuan opt exaone "
            "solar_open"
        ),
        by_kind(all_of("full"), full=_SAME),
        _HF + " or, of internlm2, orion, minicpm, exaone, " + _VLLM,
        defaults=DEFAULTS,
    ),
    Family(
        "Models with grouped heads",
        _types(
            "ernie4_5 ernie4_5_moe ernie4_5_moe_vl ernie4_5_vl_moe_text seed_oss glm glm4 glm4_moe "
            "glm4v_text glm4v_moe_text helium hy_v3"
        ),
        by_kind(all_of("full"), full=heads()),
        _HF,
        frozenset({"spatial_conv_size", "temporal_conv_size", "use_temporal_conv"}),
        DEFAULTS,
    ),
    Family(
        "MiniMax-M2",
        ("minimax_m2",),
        by_kind(
            first_given(("attn_type_list", marked("attn_type_list", {1: "full"})), all_of("full")),
            full=_GIVEN,
        ),
        _HF,
    ),
    Family(
        "TeleChat",
        _types("telechat telechat2"),
        by_kind(all_of("full"), full=heads(equal=True, query=("num_attention_heads", "n_head"))),
        _VLLM + "telechat2.py",
    ),
    Family(
        "GPT-2, GPT-J",
        _types("gpt2 gptj codegen"),
        by_kind(all_of("full"), full=heads(kv=(), equal=True, query=("n_head",), hidden=("n_embd",), dim=())),
        _HF,
    ),
    Family(
        "GPT BigCode",
        ("gpt_bigcode",),
        by_kind(all_of("full"), full=read.single_head("multi_query", query=("n_head",), hidden=("n_embd",))),
        _HF,
        frozenset({"pre_allocate_kv_cache", "pad_key_length", "num_key_value_heads"}),
    ),
    Family(
        "BLOOM",
        ("bloom",),
        by_kind(
            all_of("full"),
            full=heads(
                kv=(),
                equal=True,
                query=("n_head", "num_attention_heads"),
                hidden=("hidden_size", "n_embed"),
                dim=(),
            ),
        ),
        _HF,
    ),
    Family(
        "MPT",
        ("mpt",),
        by_kind(all_of("full"), full=read.mpt_heads()),
        _HF,
        frozenset({"expansion_ratio"}),
    ),
    Family(
        "DBRX",
        ("dbrx",),
        by_kind(
            all_of("full"),
            full=heads(
                kv=("kv_n_heads",), query=("n_heads",), hidden=("d_model",), dim=(), inside="attn_config"
            ),
        ),
        _HF,
        # transformers 5 also writes ``num_key_value_heads``, with the number that ``attn_config``
        # contains.
        frozenset({"num_key_value_heads"}),
    ),
    Family(
        "Falcon",
        _types("falcon refinedwebmodel rw"),
        by_kind(all_of("full"), full=read.falcon_heads()),
        _HF,
    ),
    Family(
        "Qwen 1",
        ("qwen",),
        by_kind(all_of("full"), full=heads(kv=(), equal=True, dim=("kv_channels",), quotient=False)),
        "huggingface.co/Qwen/Qwen-7B configuration_qwen.py",
        frozenset({"use_cache_kernel", "use_logn_attn"}),
    ),
    Family(
        "ChatGLM 2 and 3, GLM-4 9B",
        ("chatglm",),
        by_kind(
            all_of("full"),
            full=read.single_head(
                "multi_query_attention", number="multi_query_group_num", dim=("kv_channels",), quotient=False
            ),
        ),
        "vllm/transformers_utils/configs/chatglm.py",
        frozenset({"rope_ratio"}),
    ),
    Family(
        "JetMoE",
        ("jetmoe",),
        by_kind(all_of("full"), full=heads(dim=("kv_channels",), quotient=False)),
        _HF,
    ),
    Family(
        "Hunyuan",
        _types("hunyuan hunyuan_v1_moe hunyuan_v1_dense hunyuanmoev1 hunyuandensev1"),
        by_kind(read.cross_layer(), full=heads(equal=True, dim=("head_dim", "attention_head_dim"))),
        "huggingface.co/tencent/Tencent-Hunyuan-Large configuration_hunyuan.py",
        frozenset({"group_limited_greedy", "skip_cls_token"}),
    ),
    Family(
        "Mistral's params.json",
        (),
        read.mistral_params(),
        "vllm/transformers_utils/configs/mistral.py",
    ),
    Family(
        "Gemma 1",
        ("gemma",),
        by_kind(all_of("full"), full=_GIVEN),
        _HF,
        defaults=DEFAULTS,
    ),
    Family(
        "Arctic",
        ("arctic",),
        by_kind(all_of("full"), full=_SAME),
        "huggingface.co/Snowflake/snowflake-arctic-instruct configuration_arctic.py",
        frozenset({"parallel_attn_mlp_res"}),
    ),
    Family(
        "Llama 3.2 Vision",
        ("mllama_text_model",),
        by_kind(chosen("cross_attention_layers", "cross", "full"), full=heads(), cross=()),
        "transformers/models/mllama/configuration_mllama.py",
        defaults=DEFAULTS,
    ),
    Family(
        "Step 3",
        ("step3_text",),
        by_kind(all_of("full"), full=heads(kv=("num_attention_groups",), quotient=False)),
        "vllm/transformers_utils/configs/step3_vl.py",
        frozenset({"share_q_dim"}),
    ),
    Family(
        "DeciLM",
        _types("deci decilm"),
        read.per_layer_heads("num_key_value_heads_per_layer"),
        _VLLM + "nemotron_nas.py",
    ),
    Family(
        "OpenELM",
        ("openelm",),
        read.per_layer_heads("num_kv_heads", layers_name="num_transformer_layers"),
        "huggingface.co/apple/OpenELM-3B configuration_openelm.py",
        frozenset({"num_gqa_groups", "num_query_heads", "share_input_output_layers"}),
    ),
    Family(
        "Nemotron NAS",
        _types("nemotron-nas nemotron_nas"),
        read.nas_blocks(),
        _VLLM + "nemotron_nas.py",
    ),
    Family(
        "DeepSeek V2 and V3",
        _types("deepseek_v2 deepseek_v3 kimi_k2 deepseek_mtp"),
        by_kind(all_of("full"), full=mla_or_heads()),
        _HF,
        defaults=DEFAULTS,
    ),
    Family(
        "Models with MLA",
        _types("minicpm3 mistral4 glm4_moe_lite youtu axk1"),
        by_kind(all_of("full"), full=mla()),
        _HF,
        defaults=DEFAULTS,
    ),
    Family(
        "LongCat",
        ("longcat_flash",),
        by_kind(twice(all_of("full")), full=mla()),
        _HF,
        frozenset({"attention_method"}),
    ),
    Family(
        "DeepSeek V3.2, GLM-5",
        _types("deepseek_v32 glm_moe_dsa axk2"),
        by_kind(read.indexed(), full=mla(index=True), shared=mla()),
        _HF,
    ),
)
