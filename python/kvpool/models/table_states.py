"""Families with recurrent states: Mamba, linear attention, convolutions.

Some layers of these families may have attention instead.
"""

from __future__ import annotations

from typing import Final

from kvpool.models import families as read
from kvpool.models.families import Family, by_kind
from kvpool.models.fields import words
from kvpool.models.keeps import (
    convolution,
    delta_net,
    heads,
    kimi_delta,
    lightning,
    mamba_1,
    mamba_2,
    mla,
    recurrence,
)
from kvpool.models.kinds import (
    Reader,
    all_of,
    chosen,
    every,
    first_given,
    letters,
    listed,
    marked,
    period,
    repeated,
)

__all__ = ["STATES"]

_HF: Final = "transformers/models/{type}/configuration_{type}.py"


def _types(names: str) -> tuple[str, ...]:
    return tuple(names.split())


def _blocks(name: str) -> Reader[list[str]]:
    return repeated(name, {"recurrent": "recurrent", "attention": "sliding"})


_MAMBA: Final = {"mamba": "mamba", "mamba2": "mamba", "linear_attention": "mamba"}
_LINEAR: Final = {"linear_attention": "linear"}
_LETTERS: Final = {"M": "mamba", "*": "full", "-": "none", "E": "none"}
_NEMOTRON: Final = {**_MAMBA, "mlp": "none", "moe": "none"}
#: The reader of Mamba-2 layers with the field names of Granite, Bamba and Falcon-H1.
_GRANITE_MAMBA: Final = mamba_2(
    number=("mamba_n_heads",),
    dim=("mamba_d_head",),
    groups=("mamba_n_groups",),
    state=("mamba_d_state",),
    kernel=("mamba_d_conv",),
)
_MAMBA_1: Final = mamba_1(
    inner=("intermediate_size",), state=("state_size",), kernel=("conv_kernel",), expand=("expand",)
)
_LFM2: Final = frozenset({"block_dim", "block_multiple_of", "block_use_swiglu", "num_heads"})
_MINIMAX: Final = words(
    "full_attn_alpha_factor full_attn_beta_factor linear_attn_alpha_factor linear_attn_beta_factor block_size"
)

STATES: Final[tuple[Family, ...]] = (
    Family(
        "Qwen 3 Next, Qwen 3.5",
        _types("qwen3_next qwen3_5_text qwen3_5_moe_text"),
        by_kind(
            first_given(
                ("layer_types", listed("layer_types", _LINEAR)),
                ("full_attention_interval", every("full_attention_interval", "full", "linear")),
            ),
            full=heads(quotient=False),
            linear=delta_net(),
        ),
        "transformers/models/qwen3_next/configuration_qwen3_next.py",
    ),
    Family(
        "OLMo Hybrid",
        ("olmo_hybrid",),
        by_kind(listed("layer_types", _LINEAR), full=heads(equal=True), linear=delta_net()),
        _HF,
        words(
            "linear_a_log_min linear_a_log_max linear_dt_min linear_dt_max linear_dt_init_floor "
            "linear_allow_neg_eigval"
        ),
    ),
    Family(
        "Kimi Linear, Kimi K3",
        ("kimi_linear",),
        by_kind(read.kimi_layers(), full=mla(), linear=kimi_delta()),
        "vllm/transformers_utils/configs/kimi_linear.py",
        frozenset({"attn_res_block_size", "activation_situ_linear_beta", "mla_use_nope"}),
    ),
    Family(
        "Nemotron-H, Nemotron Nano",
        ("nemotron_h",),
        by_kind(
            first_given(
                (
                    "hybrid_override_pattern",
                    letters("hybrid_override_pattern", _LETTERS),
                ),
                ("layers_block_type", listed("layers_block_type", _NEMOTRON)),
                ("layer_types", listed("layer_types", _NEMOTRON)),
            ),
            full=heads(dim=("head_dim", "attention_head_dim"), quotient=False),
            # vLLM keeps the states of this family in fp32 if the configuration names no dtype.
            mamba=mamba_2(
                number=("mamba_num_heads",),
                dim=("mamba_head_dim",),
                groups=("n_groups", "mamba_n_groups"),
                state=("ssm_state_size",),
                kernel=("conv_kernel", "mamba_d_conv"),
                state_bytes=4,
            ),
            none=(),
        ),
        _HF,
    ),
    Family(
        "Granite 4 hybrid",
        ("granitemoehybrid",),
        by_kind(
            first_given(
                ("layer_types", listed("layer_types", _MAMBA)),
                ("layers_block_type", listed("layers_block_type", _MAMBA)),
            ),
            full=heads(equal=True),
            mamba=_GRANITE_MAMBA,
        ),
        _HF,
    ),
    Family(
        "Bamba",
        ("bamba",),
        by_kind(
            first_given(
                ("layer_types", listed("layer_types", _MAMBA)),
                ("attn_layer_indices", chosen("attn_layer_indices", "full", "mamba")),
            ),
            full=heads(equal=True),
            mamba=_GRANITE_MAMBA,
        ),
        _HF,
        frozenset({"attn_rotary_emb"}),
    ),
    Family(
        "Falcon-H1",
        ("falcon_h1",),
        by_kind(all_of("both"), both=(heads(), _GRANITE_MAMBA)),
        _HF,
    ),
    Family(
        "Jamba",
        ("jamba",),
        by_kind(
            first_given(
                ("layer_types", listed("layer_types", _MAMBA)),
                ("attn_layer_period", period("attn_layer_period", "attn_layer_offset", "full", "mamba")),
            ),
            full=heads(equal=True),
            mamba=mamba_1(state=("mamba_d_state",), kernel=("mamba_d_conv",), expand=("mamba_expand",)),
        ),
        _HF,
    ),
    Family(
        "Zamba2",
        ("zamba2",),
        by_kind(
            first_given(("layers_block_type", listed("layers_block_type", {**_MAMBA, "hybrid": "both"}))),
            both=(
                heads(equal=True, dim=("attention_head_dim",), times=2),
                mamba_2(
                    number=("n_mamba_heads",),
                    dim=("mamba_headdim",),
                    groups=("mamba_ngroups",),
                    state=("mamba_d_state",),
                    kernel=("mamba_d_conv",),
                ),
            ),
            mamba=mamba_2(
                number=("n_mamba_heads",),
                dim=("mamba_headdim",),
                groups=("mamba_ngroups",),
                state=("mamba_d_state",),
                kernel=("mamba_d_conv",),
            ),
        ),
        _HF,
        words(
            "attention_hidden_size kv_channels num_query_groups num_mem_blocks hybrid_layer_ids "
            "use_mem_rope use_shared_attention_adapter use_mem_eff_path gated_linear_unit"
        ),
    ),
    Family(
        "Mamba, Falcon-Mamba",
        _types("mamba falcon_mamba"),
        by_kind(all_of("mamba"), mamba=_MAMBA_1),
        _HF,
        frozenset({"ssm_cfg"}),
    ),
    Family(
        "Mamba-2",
        ("mamba2",),
        by_kind(
            all_of("mamba"),
            mamba=mamba_2(
                number=("num_heads",),
                dim=("head_dim",),
                groups=("n_groups",),
                state=("state_size",),
                kernel=("conv_kernel",),
            ),
        ),
        _HF,
    ),
    Family(
        "PLaMo 2",
        ("plamo2",),
        by_kind(
            read.plamo_steps(),
            full=heads(dim=("hidden_size_per_head",), quotient=False),
            # This is Mamba-2 with a convolution over the inputs only, so it has no groups.
            mamba=mamba_2(
                number=("mamba_num_heads",),
                dim=("hidden_size_per_head",),
                groups=(),
                state=("mamba_d_state",),
                kernel=("mamba_d_conv",),
            ),
        ),
        "vllm/model_executor/models/plamo2.py",
        # Engines keep all tokens of the attention layers, although these layers only read a window.
        frozenset({"attention_window_size", "full_attention_idx", "linear_type", "eval_attention_n_bit"}),
    ),
    Family(
        "LFM2",
        _types("lfm2 lfm2_moe"),
        by_kind(
            first_given(
                ("layer_types", listed("layer_types", {"conv": "conv"})),
                ("full_attn_idxs", chosen("full_attn_idxs", "full", "conv")),
            ),
            full=heads(),
            conv=convolution(),
        ),
        _HF,
        _LFM2 | {"num_dense_layers"},
    ),
    Family(
        "MiniMax-Text-01, MiniMax-M1",
        _types("minimax minimax_m1 minimax_text_01 minimaxtext01 minimaxm1"),
        by_kind(
            first_given(
                ("attn_type_list", marked("attn_type_list", {0: "linear", 1: "full"})),
                ("layer_types", listed("layer_types", _LINEAR)),
            ),
            full=heads(),
            linear=lightning(),
        ),
        "transformers/models/minimax/configuration_minimax.py",
        _MINIMAX,
    ),
    Family(
        "Ling and Ring with linear attention",
        ("bailing_moe_linear",),
        by_kind(every("layer_group_size", "full", "linear", whole=True), full=heads(), linear=lightning()),
        "vllm/model_executor/models/bailing_moe_linear.py",
    ),
    Family(
        "Ling 2.5",
        ("bailing_hybrid",),
        by_kind(every("layer_group_size", "full", "linear", whole=True), full=mla(), linear=lightning()),
        "vllm/model_executor/models/bailing_moe_linear.py",
    ),
    Family(
        "MiniCPM-SALA",
        ("minicpm_sala",),
        by_kind(
            listed(
                "mixer_types", {"minicpm4": "full", "lightning-attn": "linear", "lightning_attn": "linear"}
            ),
            full=heads(),
            linear=lightning(query=("lightning_nh",), dim=("lightning_head_dim",)),
        ),
        "huggingface.co/openbmb/MiniCPM-SALA configuration_minicpm_sala.py",
        frozenset({"lightning_nkv", "lightning_use_rope", "attn_use_rope"}),
    ),
    Family(
        "RecurrentGemma",
        ("recurrent_gemma",),
        by_kind(
            first_given(("block_types", _blocks("block_types")), ("_block_types", _blocks("_block_types"))),
            sliding=heads(quotient=False, window="attention_window_size"),
            recurrent=recurrence(),
        ),
        _HF,
    ),
    Family(
        "StripedHyena",
        ("stripedhyena",),
        by_kind(chosen("attn_layer_idxs", "full", "none"), full=read.projection_groups(), none=()),
        "huggingface.co/togethercomputer/StripedHyena-Nous-7B configuration_hyena.py",
        # The filters of the other layers keep a few elements per channel. These are not counted.
        words("hyena_layer_idxs hyena_filter_groups column_split_hyena state_size smeared_gqa"),
    ),
)
