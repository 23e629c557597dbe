"""Families whose layers have attention, some of them with a window or a chunk.

Each entry describes how to read the configurations of one family, by the fields that this family
defines. ``source`` names the published files that define these fields.
"""

from __future__ import annotations

from typing import Final

from kvpool.models import families as read
from kvpool.models.defaults import DEFAULTS
from kvpool.models.families import Family, by_kind
from kvpool.models.fields import words
from kvpool.models.keeps import heads
from kvpool.models.kinds import (
    all_of,
    chosen,
    every,
    first_given,
    gemma_windows,
    listed,
    marked,
    qwen_windows,
    shared_tail,
)

__all__ = ["WINDOWS"]

_HF: Final = "transformers/models/{type}/configuration_{type}.py"
_VLLM: Final = "vllm/model_executor/models/"


def _types(names: str) -> tuple[str, ...]:
    return tuple(names.split())


_WINDOW: Final = heads(window="sliding_window")
_GIVEN: Final = heads(quotient=False)
_GIVEN_WINDOW: Final = heads(quotient=False, window="sliding_window")
_SAME: Final = heads(equal=True)
_SAME_WINDOW: Final = heads(equal=True, window="sliding_window")
_STEP_GROUPS: Final = ("num_attention_groups", "num_key_value_heads")
#: Fields that do not change the cache: query heads of windows, biases of attention sinks, and a chunk
#: size that no layer uses.
_MIMO: Final = words(
    "swa_num_attention_heads swa_rope_theta add_swa_attention_sink_bias "
    "add_full_attention_sink_bias attention_chunk_size attention_value_scale hybrid_block_size "
    "sliding_window sliding_window_size"
)

WINDOWS: Final[tuple[Family, ...]] = (
    Family(
        "Ling, Ring",
        _types("bailing_moe bailing_moe_v2 bailingmoev2"),
        by_kind(qwen_windows(), full=heads(), sliding=_WINDOW),
        _VLLM + "bailing_moe.py",
    ),
    Family(
        "Qwen 2, Qwen 3 MoE",
        _types(
            "qwen2 qwen2_moe qwen3_moe qwen3_omni_moe_text qwen2_vl qwen2_vl_text qwen2_5_vl "
            "qwen2_5_vl_text qwen2_5_omni_text minicpmv minicpmo mimo"
        ),
        by_kind(qwen_windows(), full=heads(), sliding=_WINDOW),
        _HF,
        frozenset({"query_num", "chunk_input"}),
        DEFAULTS,
    ),
    Family(
        "Qwen 3",
        _types("qwen3 qwen3_vl_text qwen3_vl_moe_text"),
        by_kind(qwen_windows(), full=_GIVEN, sliding=_GIVEN_WINDOW),
        _HF,
        defaults=DEFAULTS,
    ),
    Family(
        "Mistral, Mixtral, Phi-3",
        _types("mistral mixtral ministral ministral3 phi3 phi3_v phimoe phi4mm phi4_multimodal starcoder2"),
        by_kind(read.mistral_windows(), full=heads(), sliding=_WINDOW),
        _HF,
        frozenset({"embd_layer", "full_attn_mod"}),
        DEFAULTS,
    ),
    Family(
        "SmolLM3",
        ("smollm3",),
        by_kind(read.smollm_layers(), full=heads(), sliding=_WINDOW),
        _HF,
        frozenset({"no_rope_layers", "no_rope_layer_interval"}),
    ),
    Family(
        "dots",
        ("dots1",),
        by_kind(read.switched_windows("max_window_layers"), full=_SAME, sliding=_SAME_WINDOW),
        _HF,
    ),
    Family(
        "Gemma 2",
        _types("gemma2 vaultgemma"),
        by_kind(gemma_windows(2), full=_GIVEN, sliding=_GIVEN_WINDOW),
        _HF,
        defaults=DEFAULTS,
    ),
    Family(
        "Gemma 3",
        ("gemma3_text",),
        by_kind(
            gemma_windows(6, "sliding_window_pattern", "_sliding_window_pattern"),
            full=_GIVEN,
            sliding=_GIVEN_WINDOW,
        ),
        "transformers/models/gemma3/configuration_gemma3.py",
        defaults=DEFAULTS,
    ),
    Family(
        "Gemma 3n",
        ("gemma3n_text",),
        by_kind(
            shared_tail(gemma_windows(5)),
            full=_GIVEN,
            sliding=_GIVEN_WINDOW,
        ),
        "transformers/models/gemma3n/configuration_gemma3n.py",
        words(
            "hidden_size_per_layer_input vocab_size_per_layer_input activation_sparsity_pattern "
            "altup_active_idx"
        ),
        DEFAULTS,
    ),
    Family(
        "Gemma 4",
        _types("gemma4_text gemma4_unified_text"),
        by_kind(
            shared_tail(gemma_windows(6)),
            full=read.gemma4_full(),
            sliding=_GIVEN_WINDOW,
        ),
        "transformers/models/gemma4/configuration_gemma4.py",
        words("hidden_size_per_layer_input vocab_size_per_layer_input enable_moe_block"),
        DEFAULTS,
    ),
    Family(
        "Cohere 2",
        ("cohere2",),
        by_kind(
            gemma_windows(4, "sliding_window_pattern", "_sliding_window_pattern", "layer_switch"),
            full=_SAME,
            sliding=_SAME_WINDOW,
        ),
        _HF,
        frozenset({"order_of_interleaved_layers"}),
        DEFAULTS,
    ),
    Family(
        "Cohere 2 MoE",
        ("cohere2_moe",),
        by_kind(listed("layer_types"), full=_SAME, sliding=_SAME_WINDOW),
        _HF,
        frozenset({"sliding_window_pattern", "prefix_dense_sliding_window_pattern"}),
    ),
    Family(
        "OLMo 3",
        ("olmo3",),
        by_kind(gemma_windows(4), full=_SAME, sliding=_SAME_WINDOW),
        _HF,
    ),
    Family(
        "EXAONE 4",
        _types("exaone4 exaone_moe"),
        by_kind(
            first_given(
                ("layer_types", listed("layer_types")),
                ("sliding_window", every("sliding_window_pattern", "full", "sliding")),
                all_of("full"),
            ),
            full=_SAME,
            sliding=_SAME_WINDOW,
        ),
        _HF,
        defaults=DEFAULTS,
    ),
    Family(
        "AFMoE",
        ("afmoe",),
        by_kind(
            gemma_windows(4, "global_attn_every_n_layers"),
            full=_SAME,
            sliding=_SAME_WINDOW,
        ),
        _HF,
        frozenset({"num_dense_layers"}),
    ),
    Family(
        "Granite with windows, CWM",
        _types("granite_swa cwm"),
        by_kind(gemma_windows(4, first=True), full=_SAME, sliding=_SAME_WINDOW),
        _HF,
        frozenset({"layer_rope_theta"}),
    ),
    Family(
        "gpt-oss",
        ("gpt_oss",),
        by_kind(gemma_windows(2), full=_GIVEN, sliding=_GIVEN_WINDOW),
        _HF,
    ),
    Family(
        "Laguna",
        ("laguna",),
        by_kind(listed("layer_types"), full=heads(), sliding=_WINDOW),
        _HF,
        frozenset({"num_attention_heads_per_layer", "swa_attention_sink_enabled", "swa_rope_parameters"}),
    ),
    Family(
        "MiMo-V2",
        _types("mimo_v2_flash mimo_v2"),
        by_kind(
            first_given(
                ("hybrid_layer_pattern", marked("hybrid_layer_pattern", {0: "full", 1: "sliding"})),
                ("layer_types", listed("layer_types")),
            ),
            full=heads(quotient=False, value=("v_head_dim",)),
            sliding=heads(
                kv=("swa_num_key_value_heads",),
                dim=("swa_head_dim",),
                value=("swa_v_head_dim",),
                quotient=False,
                window="sliding_window",
            ),
        ),
        _VLLM + "mimo_v2.py",
        _MIMO,
    ),
    Family(
        "Llama 4",
        ("llama4_text",),
        by_kind(
            first_given(
                ("layer_types", listed("layer_types")),
                ("no_rope_layers", marked("no_rope_layers", {0: "full", 1: "chunked"})),
                every("no_rope_layer_interval", "full", "chunked", default=4),
            ),
            full=_GIVEN,
            chunked=heads(quotient=False, chunk="attention_chunk_size"),
        ),
        "transformers/models/llama4/configuration_llama4.py",
        defaults=DEFAULTS,
    ),
    Family(
        "Baichuan-M1",
        ("baichuan_m1",),
        by_kind(
            chosen("sliding_window_layers", "sliding", "full"),
            full=heads(),
            sliding=heads(
                kv=("num_swa_key_value_heads",), query=("num_swa_attention_heads",), window="sliding_window"
            ),
        ),
        "huggingface.co/baichuan-inc/Baichuan-M1-14B-Instruct configuration_baichuan.py",
        # The convolution over keys and values keeps one more token per layer. That token is not
        # counted.
        frozenset({"conv_window"}),
    ),
    Family(
        "Step 3.5",
        ("step3p5",),
        by_kind(
            listed("layer_types", longer=True),
            full=heads(kv=_STEP_GROUPS, quotient=False),
            sliding=read.other_setting(groups=_STEP_GROUPS, dim="head_dim"),
        ),
        _VLLM + "step3p5.py",
        words("use_rope_layers yarn_only_types swiglu_limits_shared num_sliding_attention_heads"),
    ),
)
