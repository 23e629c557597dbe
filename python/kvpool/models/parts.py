"""Configurations of several parts: where the part is that generates text, and which family it has by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvpool.models.fields import Fields

__all__ = ["WRAPPERS", "text_part"]

#: Where a model of several parts has the part that generates text.
_PARTS: Final = ("text_config", "llm_config", "language_config", "thinker_config")

#: Models with such a part, and the ``model_type`` of a part that has none; empty where the part must have
#: one.
WRAPPERS: Final[dict[str, str]] = {
    "aria": "aria_text",
    "audioflamingo3": "qwen2",
    "aya_vision": "cohere2",
    "blip-2": "opt",
    "cohere2_vision": "cohere2",
    "deepseek_ocr": "deepseek_v2",
    "deepseek_vl": "llama",
    "deepseek_vl_v2": "deepseek_v2",
    "dots_ocr": "qwen2",
    "ernie4_5_vl_moe": "ernie4_5_vl_moe_text",
    "exaone4_5": "exaone4",
    "fast_vlm": "qwen2",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm4v": "glm4v_text",
    "glm46v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "glm_ocr": "glm_ocr_text",
    "glmasr": "llama",
    "got_ocr2": "qwen2",
    "granite4_vision": "granitemoehybrid",
    "granite_speech": "granite",
    "h2ovl_chat": "",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "internvl_chat": "",
    "janus": "llama",
    "kimi_k25": "deepseek_v3",
    "kimi_k3": "kimi_linear",
    "kimi_vl": "deepseek_v3",
    "lfm2_vl": "lfm2",
    "lighton_ocr": "qwen3",
    "llama4": "llama4_text",
    "llama_nemotron_nano_vl": "",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "mllama": "mllama_text_model",
    "multi_modality": "llama",
    "nemotron_h_omni": "nemotron_h",
    "nemotronh_nano_vl_v2": "",
    "nvlm_d": "",
    "ovis": "",
    "ovis2": "qwen2",
    "ovis2_5": "qwen3",
    "paligemma": "gemma",
    "perception_lm": "llama",
    "pixtral": "mistral",
    "qianfan_ocr": "qwen3",
    "qwen2_5_omni": "qwen2_5_omni_thinker",
    "qwen2_5_omni_thinker": "qwen2_5_omni_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_asr": "qwen3",
    "qwen3_omni_moe": "qwen3_omni_moe_thinker",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "shieldgemma2": "gemma3_text",
    "skywork_chat": "",
    "smolvlm": "llama",
    "step3_vl": "step3_text",
    "step3p7": "step3p5",
    "ultravox": "",
    "vibevoice": "qwen2",
    "video_llama_3": "qwen2",
    "video_llava": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}


def text_part(config: Fields) -> tuple[Fields, bool]:
    """Return the part that generates text, and whether it is inside another.

    A part without ``model_type`` gets the one that the model around it has for its text.

    Raises:
        ModelConfigError: a model of several parts that kvpool does not know; the error names ``model_type``.
    """
    nested = False
    while (name := next((part for part in _PARTS if config.has(part)), None)) is not None:
        kind = config.text("model_type")
        key = kind.lower()
        if key not in WRAPPERS:
            raise config.refused("model_type", f"a model with a {name} that kvpool knows; docs/models.md lists them")
        inner = config.inner(name)
        if not inner.has("model_type") and WRAPPERS[key]:
            inner = inner.replaced("model_type", WRAPPERS[key])
        config, nested = inner, True
    return config, nested
