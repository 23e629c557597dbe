"""Makes the KV-cache groups of models from vLLM's own classes, for the benchmarks of vLLM."""

from __future__ import annotations

import importlib
from typing import Any, Final

#: KV-cache groups of each model: a number is the width of a sliding window in tokens, 0 is full
#: attention, and None is a state space.
MODELS: Final[dict[str, tuple[int | None, ...]]] = {
    "full": (0,),
    "gpt-oss": (0, 128),
    "gemma-3": (0, *[1024] * 5),
    "qwen3-next": (0, None, None, None),
}


def make_groups(model: str, block_size: int) -> list[Any]:
    interface = importlib.import_module("vllm.v1.kv_cache_interface")
    torch = importlib.import_module("torch")
    attention = {"block_size": block_size, "num_kv_heads": 8, "head_size": 128, "dtype": torch.bfloat16}
    groups = []
    for number, window in enumerate(MODELS[model]):
        if window is None:
            shapes = {"shapes": ((1, 1),), "dtypes": (torch.float32,), "mamba_cache_mode": "align"}
            spec = interface.MambaSpec(block_size=block_size, **shapes)
        elif window:
            spec = interface.SlidingWindowSpec(**attention, sliding_window=window)
        else:
            spec = interface.FullAttentionSpec(**attention)
        groups.append(interface.KVCacheGroupSpec([f"layer.{number}"], spec))
    return groups
