"""Default values of fields that nested configurations leave out.

transformers writes a configuration inside another one (``text_config``) without the fields that equal
the defaults of the family's class. The numbers here are these defaults, from
``transformers/models/<family>/configuration_<family>.py``. A configuration that is not nested contains
all of its fields, so a missing field is an error there. If a default is a text, it is the name of
another field, and the value of that field is used.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["DEFAULTS", "VALUES_IF_ABSENT"]


def _class(layers: int, hidden: int, heads: int, kv_heads: int | str, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        **more,
    }


#: A default that names another field: the number of KV heads is the number of attention heads, from the
#: configuration or from the class's defaults.
_SAME: Final = "num_attention_heads"
_MLA: Final = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}

DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "llama": _class(32, 4096, 32, _SAME),
    "mistral": _class(32, 4096, 32, 8, sliding_window=4096),
    "mixtral": _class(32, 4096, 32, 8),
    "qwen2": _class(32, 4096, 32, 32, max_window_layers=28),
    "qwen2_vl_text": _class(80, 8192, 64, 8, max_window_layers=80),
    "qwen2_5_vl_text": _class(80, 8192, 64, 8, max_window_layers=80),
    "qwen3": _class(32, 4096, 32, 32, head_dim=128, max_window_layers=28),
    "gemma": _class(28, 3072, 16, 16, head_dim=256),
    "gemma2": _class(26, 2304, 8, 4, head_dim=256, sliding_window=4096),
    "gemma3_text": _class(26, 2304, 8, 4, head_dim=256, sliding_window=4096),
    "gemma3n_text": _class(35, 2048, 8, 2, head_dim=256, sliding_window=512, num_kv_shared_layers=15),
    "gemma4_text": _class(30, 2304, 8, 4, head_dim=256, global_head_dim=512, sliding_window=512),
    "gemma4_unified_text": _class(30, 2304, 8, 4, head_dim=256, global_head_dim=512, sliding_window=1024),
    "llama4_text": _class(48, 5120, 40, 8, head_dim=128, attention_chunk_size=8192),
    "mllama_text_model": _class(40, 4096, 32, 8, cross_attention_layers=[3, 8, 13, 18, 23, 28, 33, 38]),
    "phi3": _class(32, 3072, 32, _SAME),
    "granite": _class(32, 4096, 32, _SAME),
    "cohere2": _class(40, 8192, 64, _SAME, sliding_window=4096),
    "exaone4": _class(32, 4096, 32, 32, sliding_window=4096, sliding_window_pattern=4),
    "opt": {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12},
    "deepseek_v2": _class(32, 4096, 32, _SAME, **_MLA),
    "deepseek_v3": _class(61, 7168, 128, 128, **_MLA),
}

#: Maps a ``model_type`` to the fields that a file must contain, even if only as ``null``, and to the
#: defaults of the family's class. An absent field selects this default, but ``null`` does not.
VALUES_IF_ABSENT: Final[dict[str, dict[str, int]]] = {
    "mistral": {"sliding_window": 4096},
    "ministral": {"sliding_window": 4096},
    "exaone4": {"sliding_window": 4096},
    "exaone_moe": {"sliding_window": 4096},
    "gemma3n_text": {"num_kv_shared_layers": 15},
    "bitnet": {"num_key_value_heads": 5},
    "cwm": {"num_key_value_heads": 8},
    "granite_swa": {"num_key_value_heads": 4},
    "jamba": {"num_key_value_heads": 8},
    "solar_open": {"num_key_value_heads": 8, "head_dim": 128},
    "ernie4_5": {"head_dim": 128},
    "hy_v3": {"head_dim": 128},
}
