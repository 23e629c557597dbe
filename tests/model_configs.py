"""Configurations of models, one or more for each family, with their sizes as products of published numbers.

The files are written here: names of fields and numbers are what the published ``config.json`` has. The page
``docs/models.md`` is made of this table, and ``test_model_config.py`` reads each of them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

#: A sum of products: ``((32, 2, 8, 128, 2),)`` is 32 layers, key and value, 8 heads, 128 elements, 2 bytes.
Sum = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Example:
    """A model, the fields of its configuration that matter, and what its layers keep."""

    model: str
    config: dict[str, Any]
    #: Bytes of a token in layers of full attention.
    full: Sum = ()
    #: By span, bytes of a token in layers with a window or a chunk.
    windows: dict[int, Sum] = dataclasses.field(default_factory=dict)
    #: Bytes of the states of a request.
    state: Sum = ()


def total(products: Sum) -> int:
    """The bytes."""
    return sum(math.prod(one) for one in products)


def heads(
    kind: str, layers: int, hidden: int, query: int, kv: int | None, dim: int | None = None, **more: Any
) -> dict[str, Any]:
    """A configuration with the usual names."""
    config = {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": query,
        "num_key_value_heads": kv,
        "head_dim": dim,
        **more,
    }
    return {name: value for name, value in config.items() if value is not None}


def latent(kind: str, layers: int, rank: int = 512, rope: int = 64, **more: Any) -> dict[str, Any]:
    """A configuration with MLA."""
    sizes = {"num_attention_heads": 64, "kv_lora_rank": rank, "qk_rope_head_dim": rope}
    return {"model_type": kind, "num_hidden_layers": layers, **sizes, **more}


def inside(kind: str, text: dict[str, Any], name: str = "text_config") -> dict[str, Any]:
    """A configuration of several parts."""
    return {
        "model_type": kind,
        name: text,
        "vision_config": {"num_hidden_layers": 27, "num_attention_heads": 16},
    }


def kinds(layers: int, every: int, last: str = "full_attention", others: str = "sliding_attention") -> list[str]:
    """``layer_types`` where each ``every``-th layer differs."""
    return [others if (at + 1) % every else last for at in range(layers)]


def of(layers: int, kv: int, dim: int) -> Sum:
    """Layers times key and value, heads, elements and two bytes."""
    return ((layers, 2, kv, dim, 2),)


def mla(layers: int, rank: int = 512, rope: int = 64) -> Sum:
    """Layers times the latent in two bytes."""
    return ((layers, rank + rope, 2),)


def mamba2(layers: int, number: int, dim: int, groups: int, state: int, size: int = 2) -> Sum:
    """A convolution over 3 tokens in two bytes, and a matrix per head in ``size`` bytes."""
    return (layers, 3, number * dim + 2 * groups * state, 2), (layers, number, dim, state, size)


NEXT = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
}
GRANITE_MAMBA = {"mamba_d_state": 128, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_groups": 1}
NEMOTRON = {
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
}
GEMMA_4 = heads(
    "gemma4_text",
    60,
    5376,
    32,
    16,
    256,
    num_global_key_value_heads=4,
    global_head_dim=512,
    attention_k_eq_v=True,
    sliding_window=1024,
    layer_types=kinds(60, 6),
)
INDEX = {"index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048}
MIMO_PATTERN = [0, 1, 1, 1, 1, 0, *[1, 1, 1, 1, 1, 0] * 7]
K3_FULL = [*range(4, 93, 4), 93]
SALA = ["minicpm4", *["lightning-attn"] * 8, "minicpm4", *["lightning-attn"] * 6, *["minicpm4"] * 2]
SALA += [*["lightning-attn"] * 10, *["minicpm4"] * 4]
NAS = [{"n_heads_in_group": 8}, {"no_op": True}, {"n_heads_in_group": 16}, {"replace_with_linear": True}]

EXAMPLES = [
    Example("Llama-3.1-8B", heads("llama", 32, 4096, 32, 8), of(32, 8, 128)),
    Example("Llama-2-7B", heads("llama", 32, 4096, 32, None), of(32, 32, 128)),
    Example("Llama-3.3-70B", heads("llama", 80, 8192, 64, 8), of(80, 8, 128)),
    Example("Solar-10.7B", heads("llama", 48, 4096, 32, 8), of(48, 8, 128)),
    Example(
        "Llama-3.2-11B-Vision",
        inside(
            "mllama",
            heads("mllama_text_model", 40, 4096, 32, 8, cross_attention_layers=[3, 8, 13, 18, 23, 28, 33, 38]),
        ),
        of(32, 8, 128),
    ),
    Example(
        "Llama-4-Scout",
        inside("llama4", heads("llama4_text", 48, 5120, 40, 8, 128, attention_chunk_size=8192, no_rope_layers=[])),
        of(12, 8, 128),
        {8192: of(36, 8, 128)},
    ),
    Example("Yi-34B", heads("Yi", 60, 7168, 56, 8), of(60, 8, 128)),
    Example("OLMo-2-7B", heads("olmo2", 32, 4096, 32, 32), of(32, 32, 128)),
    Example("Granite-3.3-8B", heads("granite", 40, 4096, 32, 8), of(40, 8, 128)),
    Example("InternLM2.5-7B", heads("internlm2", 32, 4096, 32, 8), of(32, 8, 128)),
    Example("InternLM3-8B", heads("internlm3", 48, 4096, 32, 2, 128), of(48, 2, 128)),
    Example("Command-R", heads("cohere", 40, 8192, 64, 64), of(40, 64, 128)),
    Example("Phi-2", heads("phi", 32, 2560, 32, 32), of(32, 32, 80)),
    Example("StableLM-2-12B", heads("stablelm", 40, 5120, 32, 8), of(40, 8, 160)),
    Example("MiniCPM-2B", heads("minicpm", 40, 2304, 36, 36), of(40, 36, 64)),
    Example("Baichuan2-7B", heads("baichuan", 32, 4096, 32, None), of(32, 32, 128)),
    Example("GPT-NeoX-20B", heads("gpt_neox", 44, 6144, 64, None), of(44, 64, 96)),
    Example("OPT-6.7B", heads("opt", 32, 4096, 32, None), of(32, 32, 128)),
    Example(
        "EXAONE-3.5-7.8B",
        {
            "model_type": "exaone",
            "num_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        },
        of(32, 8, 128),
    ),
    Example("InternVL3-8B", inside("internvl_chat", heads("qwen2", 28, 3584, 28, 4), "llm_config"), of(28, 4, 128)),
    Example("LLaVA-1.5-7B", inside("llava", {"model_type": "llama", "vocab_size": 32064}), of(32, 32, 128)),
    Example("ERNIE-4.5-21B-A3B", heads("ernie4_5_moe", 28, 2560, 20, 4), of(28, 4, 128)),
    Example("Seed-OSS-36B", heads("seed_oss", 64, 5120, 80, 8, 128), of(64, 8, 128)),
    Example("GLM-4-32B", heads("glm4", 61, 6144, 48, 2, 128), of(61, 2, 128)),
    Example("GLM-4.5, GLM-4.6", heads("glm4_moe", 92, 5120, 96, 8, 128), of(92, 8, 128)),
    Example("MiniMax-M2", heads("minimax_m2", 62, 3072, 48, 8, 128, attn_type_list=[1] * 62), of(62, 8, 128)),
    Example("Ling-mini-2.0", heads("bailing_moe_v2", 20, 2048, 16, 4, 128), of(20, 4, 128)),
    Example(
        "TeleChat2 (made-up numbers)",
        {"model_type": "telechat", "n_layer": 30, "n_head": 32, "hidden_size": 4096},
        of(30, 32, 128),
    ),
    Example("GPT-2", {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768}, of(12, 12, 64)),
    Example("GPT-J-6B", {"model_type": "gptj", "n_layer": 28, "n_head": 16, "n_embd": 4096}, of(28, 16, 256)),
    Example(
        "StarCoder",
        {"model_type": "gpt_bigcode", "n_layer": 40, "n_head": 48, "n_embd": 6144, "multi_query": True},
        of(40, 1, 128),
    ),
    Example(
        "BLOOM-7B1",
        {"model_type": "bloom", "n_layer": 30, "n_head": 32, "hidden_size": 4096},
        of(30, 32, 128),
    ),
    Example(
        "MPT-7B",
        {"model_type": "mpt", "n_layers": 32, "n_heads": 32, "d_model": 4096, "attn_config": {"alibi": True}},
        of(32, 32, 128),
    ),
    Example(
        "DBRX",
        {
            "model_type": "dbrx",
            "d_model": 6144,
            "n_heads": 48,
            "n_layers": 40,
            "attn_config": {"kv_n_heads": 8},
        },
        of(40, 8, 128),
    ),
    Example("Arctic", heads("arctic", 35, 7168, 56, 8, parallel_attn_mlp_res=True), of(35, 8, 128)),
    Example(
        "Falcon-7B",
        heads("falcon", 32, 4544, 71, None, num_kv_heads=71, multi_query=True, new_decoder_architecture=False),
        of(32, 1, 64),
    ),
    Example(
        "Falcon-40B",
        heads("falcon", 60, 8192, 128, None, num_kv_heads=8, multi_query=True, new_decoder_architecture=True),
        of(60, 8, 64),
    ),
    Example("Qwen-7B", heads("qwen", 32, 4096, 32, None, kv_channels=128), of(32, 32, 128)),
    Example(
        "ChatGLM3-6B",
        {
            "model_type": "chatglm",
            "num_layers": 28,
            "num_attention_heads": 32,
            "kv_channels": 128,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
        },
        of(28, 2, 128),
    ),
    Example("JetMoE-8B", heads("jetmoe", 24, 2048, 32, 16, kv_channels=128), of(24, 16, 128)),
    Example(
        "Hunyuan-Large",
        heads("hunyuan", 64, 6400, 80, 8, use_cla=True, cla_share_factor=2, use_mla=False),
        of(32, 8, 80),
    ),
    Example("Hunyuan-A13B", heads("hunyuan_v1_moe", 32, 4096, 32, 8, 128, use_cla=False), of(32, 8, 128)),
    Example(
        "Qwen2.5-7B",
        heads("qwen2", 28, 3584, 28, 4, use_sliding_window=False, sliding_window=131072, max_window_layers=28),
        of(28, 4, 128),
    ),
    Example("Qwen2.5-VL-7B", heads("qwen2_5_vl", 28, 3584, 28, 4, use_sliding_window=False), of(28, 4, 128)),
    Example("MiniCPM-V-2.6", heads("minicpmv", 28, 3584, 28, 4, query_num=64), of(28, 4, 128)),
    Example("Qwen3-8B", heads("qwen3", 36, 4096, 32, 8, 128, use_sliding_window=False), of(36, 8, 128)),
    Example("Qwen3-30B-A3B", heads("qwen3_moe", 48, 2048, 32, 4, 128, use_sliding_window=False), of(48, 4, 128)),
    Example("Qwen3-VL-8B", inside("qwen3_vl", heads("qwen3_vl_text", 36, 4096, 32, 8, 128)), of(36, 8, 128)),
    Example(
        "Qwen3-Omni-30B-A3B",
        inside(
            "qwen3_omni_moe",
            inside("qwen3_omni_moe_thinker", heads("qwen3_omni_moe_text", 48, 2048, 32, 4, 128)),
            "thinker_config",
        ),
        of(48, 4, 128),
    ),
    Example(
        "Mistral-7B-v0.1",
        heads("mistral", 32, 4096, 32, 8, sliding_window=4096),
        windows={4096: of(32, 8, 128)},
    ),
    Example("Mixtral-8x7B", heads("mixtral", 32, 4096, 32, 8), of(32, 8, 128)),
    Example(
        "Devstral-Small, Magistral-Small",
        heads("mistral", 40, 5120, 32, 8, 128) | {"sliding_window": None},
        of(40, 8, 128),
    ),
    Example(
        "Mistral-Small-3.2-24B",
        inside("mistral3", heads("mistral", 40, 5120, 32, 8, 128) | {"sliding_window": None}),
        of(40, 8, 128),
    ),
    Example(
        "Ministral-8B",
        heads("mistral", 36, 4096, 32, 8, 128, sliding_window=32768),
        windows={32768: of(36, 8, 128)},
    ),
    Example("Phi-3-mini-4k", heads("phi3", 32, 3072, 32, 32, sliding_window=2047), windows={2047: of(32, 32, 96)}),
    Example("Phi-4", heads("phi3", 40, 5120, 40, 10), of(40, 10, 128)),
    Example(
        "StarCoder2-15B",
        heads("starcoder2", 40, 6144, 48, 4, sliding_window=4096),
        windows={4096: of(40, 4, 128)},
    ),
    Example(
        "Pixtral-12B (params.json)",
        {
            "dim": 5120,
            "n_layers": 40,
            "head_dim": 128,
            "n_heads": 32,
            "n_kv_heads": 8,
            "vision_encoder": {"n_layers": 24},
        },
        of(40, 8, 128),
    ),
    Example(
        "Mistral-Large-3 (params.json)",
        {
            "dim": 7168,
            "n_layers": 61,
            "n_heads": 128,
            "n_kv_heads": 128,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
        },
        mla(61),
    ),
    Example(
        "SmolLM3-3B",
        heads("smollm3", 36, 2048, 16, 4, no_rope_layers=[1, 1, 1, 0] * 9, use_sliding_window=False),
        of(36, 4, 128),
    ),
    Example("dots.llm1", heads("dots1", 62, 4096, 32, 32, 128, max_window_layers=62), of(62, 32, 128)),
    Example("Gemma-2B", heads("gemma", 18, 2048, 8, 1, 256), of(18, 1, 256)),
    Example(
        "Gemma-2-9B",
        heads("gemma2", 42, 3584, 16, 8, 256, sliding_window=4096),
        of(21, 8, 256),
        {4096: of(21, 8, 256)},
    ),
    Example(
        "Gemma-3-27B",
        inside("gemma3", heads("gemma3_text", 62, 5376, 32, 16, 128, sliding_window=1024)),
        of(10, 16, 128),
        {1024: of(52, 16, 128)},
    ),
    Example(
        "Gemma-3n-E4B",
        inside(
            "gemma3n",
            heads(
                "gemma3n_text",
                35,
                2048,
                8,
                2,
                256,
                sliding_window=512,
                num_kv_shared_layers=15,
                layer_types=kinds(35, 5),
            ),
        ),
        of(4, 2, 256),
        {512: of(16, 2, 256)},
    ),
    Example("Gemma-4-31B", inside("gemma4", GEMMA_4), of(10, 4, 512), {1024: of(50, 16, 256)}),
    Example(
        "Command-R7B",
        heads("cohere2", 32, 4096, 32, 8, 128, sliding_window=4096, layer_switch=4),
        of(8, 8, 128),
        {4096: of(24, 8, 128)},
    ),
    Example(
        "Command-A",
        heads("cohere2", 64, 12288, 96, 8, 128, sliding_window=4096, sliding_window_pattern=4),
        of(16, 8, 128),
        {4096: of(48, 8, 128)},
    ),
    Example(
        "Cohere 2 MoE (defaults of its class)",
        heads("cohere2_moe", 40, 8192, 64, 64, 128, sliding_window=4096, layer_types=kinds(40, 4)),
        of(10, 64, 128),
        {4096: of(30, 64, 128)},
    ),
    Example(
        "OLMo-3-7B",
        heads("olmo3", 32, 4096, 32, 32, sliding_window=4096, layer_types=kinds(32, 4)),
        of(8, 32, 128),
        {4096: of(24, 32, 128)},
    ),
    Example(
        "EXAONE-4.0-32B",
        heads(
            "exaone4",
            64,
            5120,
            40,
            8,
            128,
            sliding_window=4096,
            layer_types=kinds(64, 4),
            sliding_window_pattern="LLLG",
        ),
        of(16, 8, 128),
        {4096: of(48, 8, 128)},
    ),
    Example(
        "AFMoE (defaults of its class)",
        heads(
            "afmoe",
            32,
            2048,
            16,
            16,
            128,
            sliding_window=1024,
            global_attn_every_n_layers=4,
            num_dense_layers=1,
        ),
        of(8, 16, 128),
        {1024: of(24, 16, 128)},
    ),
    Example(
        "CWM-32B",
        heads("cwm", 64, 6144, 48, 8, 128, sliding_window=8192),
        of(16, 8, 128),
        {8192: of(48, 8, 128)},
    ),
    Example(
        "gpt-oss-20b",
        heads("gpt_oss", 24, 2880, 64, 8, 64, sliding_window=128, layer_types=kinds(24, 2)),
        of(12, 8, 64),
        {128: of(12, 8, 64)},
    ),
    Example(
        "Laguna (made-up numbers)",
        heads("laguna", 8, 2048, 16, 8, 128, sliding_window=512, layer_types=kinds(8, 4)),
        of(2, 8, 128),
        {512: of(6, 8, 128)},
    ),
    Example(
        "MiMo-V2-Flash",
        heads(
            "mimo_v2_flash",
            48,
            4096,
            64,
            4,
            192,
            v_head_dim=128,
            swa_num_key_value_heads=8,
            swa_head_dim=192,
            swa_v_head_dim=128,
            sliding_window=128,
            hybrid_layer_pattern=MIMO_PATTERN,
        ),
        ((9, 4, 192 + 128, 2),),
        {128: ((39, 8, 192 + 128, 2),)},
    ),
    Example(
        "Baichuan-M1-14B",
        heads(
            "baichuan_m1",
            40,
            5120,
            20,
            2,
            num_swa_attention_heads=40,
            num_swa_key_value_heads=8,
            sliding_window=8192,
            sliding_window_layers=[*range(1, 40, 2)],
            conv_window=2,
        ),
        of(20, 2, 256),
        {8192: of(20, 8, 128)},
    ),
    Example(
        "Step-3",
        inside("step3_vl", heads("step3_text", 61, 7168, 64, None, 256, num_attention_groups=1, share_q_dim=2048)),
        of(61, 1, 256),
    ),
    Example(
        "Step-3.5-Flash",
        heads(
            "step3p5",
            45,
            4096,
            64,
            None,
            128,
            num_attention_groups=8,
            sliding_window=512,
            layer_types=["full_attention", *kinds(47, 4)],
            attention_other_setting={
                "attention_type": "sliding_attention",
                "num_attention_heads": 96,
                "num_attention_groups": 8,
                "head_dim": 128,
            },
        ),
        of(12, 8, 128),
        {512: of(33, 8, 128)},
    ),
    Example(
        "Step-3.7-Flash",
        inside(
            "step3p7",
            heads(
                "step3p5",
                45,
                4096,
                64,
                None,
                128,
                num_attention_groups=8,
                sliding_window=512,
                layer_types=["full_attention", *kinds(47, 4)],
                attention_other_setting={"num_attention_heads": 96},
            ),
        ),
        of(12, 8, 128),
        {512: of(33, 8, 128)},
    ),
    Example(
        "DeciLM (made-up numbers)",
        heads("deci", 4, 4096, 32, None, num_key_value_heads_per_layer=[4, 4, 2, 1]),
        ((4 + 4 + 2 + 1, 2, 128, 2),),
    ),
    Example(
        "OpenELM (made-up numbers)",
        {"model_type": "openelm", "num_transformer_layers": 3, "head_dim": 64, "num_kv_heads": [3, 3, 4]},
        ((3 + 3 + 4, 2, 64, 2),),
    ),
    Example(
        "Nemotron-Super-49B (its first layers)",
        heads("nemotron-nas", 4, 8192, 64, None, block_configs=[{"attention": one} for one in NAS]),
        ((8 + 4, 2, 128, 2),),
    ),
    Example("DeepSeek-V2-Lite", latent("deepseek_v2", 27), mla(27)),
    Example("DeepSeek-V3, DeepSeek-R1, DeepSeek-V3.1", latent("deepseek_v3", 61), mla(61)),
    Example("Kimi-K2", latent("kimi_k2", 61, architectures=["DeepseekV3ForCausalLM"]), mla(61)),
    Example("Kimi-K2.5", inside("kimi_k25", latent("kimi_k2", 61)), mla(61)),
    Example("Kimi-VL-A3B", inside("kimi_vl", latent("deepseek_v3", 27)), mla(27)),
    Example("GLM-4.7-Flash", latent("glm4_moe_lite", 47), mla(47)),
    Example("MiniCPM3-4B", latent("minicpm3", 62, 256, 32), mla(62, 256, 32)),
    Example(
        "LongCat-Flash",
        {**latent("longcat_flash", 0), "num_hidden_layers": None, "num_layers": 28},
        mla(2 * 28),
    ),
    Example("DeepSeek-V3.2", latent("deepseek_v32", 61, **INDEX), ((61, 576 * 2 + 128 + 4),)),
    Example("GLM-5", latent("glm_moe_dsa", 78, **INDEX), ((78, 576 * 2 + 128 + 4),)),
    Example(
        "GLM-5.2",
        latent(
            "glm_moe_dsa",
            78,
            **INDEX,
            indexer_types=["full", "full", *["full", "shared", "shared", "shared"] * 19],
        ),
        ((78, 576, 2), (21, 128 + 4)),
    ),
    Example(
        "Qwen3-Next-80B-A3B",
        heads("qwen3_next", 48, 2048, 16, 2, 256, full_attention_interval=4, **NEXT),
        of(12, 2, 256),
        state=((36, 3, 64 * 128, 2), (36, 32, 128, 128, 2)),
    ),
    Example(
        "Qwen3.5-27B",
        inside(
            "qwen3_5",
            heads(
                "qwen3_5_text",
                64,
                5120,
                24,
                4,
                256,
                layer_types=kinds(64, 4, others="linear_attention"),
                **{**NEXT, "linear_num_value_heads": 48, "mamba_ssm_dtype": "float32"},
            ),
        ),
        of(16, 4, 256),
        state=((48, 3, 80 * 128, 2), (48, 48, 128, 128, 4)),
    ),
    Example(
        "OLMo Hybrid (defaults of its class)",
        heads(
            "olmo_hybrid",
            32,
            3840,
            30,
            30,
            linear_num_key_heads=30,
            linear_num_value_heads=30,
            linear_key_head_dim=96,
            linear_value_head_dim=192,
            linear_conv_kernel_dim=4,
            layer_types=kinds(32, 4, others="linear_attention"),
        ),
        of(8, 30, 128),
        state=((24, 3, 30 * (2 * 96 + 192), 2), (24, 30, 96, 192, 2)),
    ),
    Example(
        "Kimi-Linear-48B-A3B",
        latent(
            "kimi_linear",
            27,
            linear_attn_config={
                "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
                "kda_layers": [at for at in range(1, 27) if at % 4],
                "head_dim": 128,
                "num_heads": 32,
                "short_conv_kernel_size": 4,
            },
        ),
        mla(7),
        state=((20, 3, 3 * 32 * 128, 2), (20, 32, 128, 128, 4)),
    ),
    Example(
        "Kimi-K3",
        inside(
            "kimi_k3",
            latent(
                "kimi_linear",
                93,
                linear_attn_config={
                    "full_attn_layers": K3_FULL,
                    "kda_layers": [at for at in range(1, 94) if at not in K3_FULL],
                    "head_dim": 128,
                    "num_heads": 64,
                    "short_conv_kernel_size": 4,
                },
            ),
        ),
        mla(24),
        state=((69, 3, 3 * 64 * 128, 2), (69, 64, 128, 128, 4)),
    ),
    Example(
        "Nemotron-H-8B",
        heads(
            "nemotron_h",
            52,
            4096,
            32,
            8,
            128,
            hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
            **NEMOTRON,
        ),
        of(4, 8, 128),
        state=mamba2(24, 128, 64, 8, 128, 4),
    ),
    Example(
        "Granite-4.0-H-Small",
        heads(
            "granitemoehybrid",
            40,
            4096,
            32,
            8,
            layer_types=["attention" if at in {5, 15, 25, 35} else "mamba" for at in range(40)],
            mamba_n_heads=128,
            mamba_d_head=64,
            **GRANITE_MAMBA,
        ),
        of(4, 8, 128),
        state=mamba2(36, 128, 64, 1, 128),
    ),
    Example(
        "Bamba-9B",
        heads(
            "bamba",
            32,
            4096,
            32,
            8,
            attn_layer_indices=[9, 18, 27],
            mamba_n_heads=128,
            mamba_d_head="auto",
            **GRANITE_MAMBA,
        ),
        of(3, 8, 128),
        state=mamba2(29, 128, 64, 1, 128),
    ),
    Example(
        "Falcon-H1-0.5B",
        heads("falcon_h1", 36, 1024, 8, 2, 64, mamba_n_heads=24, mamba_d_head=64, **GRANITE_MAMBA),
        of(36, 2, 64),
        state=mamba2(36, 24, 64, 1, 128),
    ),
    Example(
        "Jamba-v0.1, Jamba-1.5-Mini",
        heads(
            "jamba",
            32,
            4096,
            32,
            8,
            attn_layer_period=8,
            attn_layer_offset=4,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
        ),
        of(4, 8, 128),
        state=((28, 3, 8192, 2), (28, 8192, 16, 2)),
    ),
    Example(
        "Zamba2-2.7B",
        heads(
            "zamba2",
            54,
            2560,
            32,
            32,
            attention_head_dim=160,
            mamba_d_state=64,
            mamba_d_conv=4,
            mamba_headdim=64,
            mamba_ngroups=1,
            n_mamba_heads=80,
            layers_block_type=kinds(54, 6, "hybrid", "mamba"),
        ),
        of(9, 32, 160),
        state=mamba2(54, 80, 64, 1, 64),
    ),
    Example(
        "Falcon-Mamba-7B",
        {
            "model_type": "falcon_mamba",
            "num_hidden_layers": 64,
            "hidden_size": 4096,
            "intermediate_size": 8192,
            "state_size": 16,
            "conv_kernel": 4,
        },
        state=((64, 3, 8192, 2), (64, 8192, 16, 2)),
    ),
    Example(
        "Mamba-Codestral-7B",
        {
            "model_type": "mamba2",
            "num_hidden_layers": 64,
            "hidden_size": 4096,
            "num_heads": 128,
            "head_dim": 64,
            "n_groups": 8,
            "state_size": 128,
            "conv_kernel": 4,
        },
        state=mamba2(64, 128, 64, 8, 128),
    ),
    Example(
        "PLaMo 2 (made-up numbers)",
        heads(
            "plamo2",
            32,
            4096,
            32,
            4,
            hidden_size_per_head=128,
            mamba_step=2,
            mamba_num_heads=64,
            mamba_d_state=64,
            mamba_d_conv=4,
            attention_window_size=2048,
        ),
        of(16, 4, 128),
        state=((16, 3, 64 * 128, 2), (16, 64, 128, 64, 2)),
    ),
    Example(
        "LFM2-350M",
        heads("lfm2", 16, 1024, 16, 8, conv_L_cache=3, full_attn_idxs=[2, 5, 8, 10, 12, 14]),
        of(6, 8, 64),
        state=((10, 2, 1024, 2),),
    ),
    Example(
        "MiniMax-M1, MiniMax-Text-01",
        heads("minimax_m1", 80, 6144, 64, 8, 128, attn_type_list=[0, 0, 0, 0, 0, 0, 0, 1] * 10),
        of(10, 8, 128),
        state=((70, 64, 128, 128, 4),),
    ),
    Example(
        "Ring-mini-linear-2.0",
        heads("bailing_moe_linear", 20, 2048, 16, 4, 128, layer_group_size=5, group_norm_size=4),
        of(4, 4, 128),
        state=((16, 16, 128, 128, 4),),
    ),
    Example(
        "Ling-2.5",
        latent("bailing_hybrid", 80, hidden_size=8192, head_dim=128, layer_group_size=8),
        mla(10),
        state=((70, 64, 128, 128, 4),),
    ),
    Example(
        "MiniCPM-SALA",
        heads("minicpm_sala", 32, 4096, 32, 2, 128, lightning_nh=32, lightning_head_dim=128, mixer_types=SALA),
        of(8, 2, 128),
        state=((24, 32, 128, 128, 4),),
    ),
    Example(
        "RecurrentGemma-2B",
        heads(
            "recurrent_gemma",
            26,
            2560,
            10,
            1,
            256,
            attention_window_size=2048,
            lru_width=2560,
            conv1d_width=4,
            block_types=["recurrent", "recurrent", "attention"],
        ),
        windows={2048: of(8, 1, 256)},
        state=((18, 3, 2560, 2), (18, 2560, 4)),
    ),
    Example(
        "StripedHyena-Nous-7B",
        {
            "model_type": "stripedhyena",
            "num_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "proj_groups": 1,
            "attn_layer_idxs": [*range(1, 32, 2)],
            "hyena_layer_idxs": [*range(0, 32, 2)],
        },
        of(16, 32, 128),
    ),
]
