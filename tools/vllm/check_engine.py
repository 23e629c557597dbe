"""Runs one engine of tools/vllm_check.py in its own process: a real vLLM on the CPU with a made-up
model.

    python -m tools.vllm.check_engine --prompts 200 --blocks 96 --result record.json

The environment variable KVPOOL_VLLM selects the level. This program makes the model's random weights.
They are so large that the tokens that attention reads determine the next token. With vLLM's own dummy
weights every token depends only on the previous one, so the outputs would not show that a wrong block
was used.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

LAYERS: Final = 2
HIDDEN: Final = 64
HEADS: Final = 2
FEED_FORWARD: Final = 128
VOCABULARY: Final = 512
MAX_LENGTH: Final = 384
BLOCK_SIZE: Final = 32  # the CPU's attention needs multiples of 32
RUNNING: Final = 32
OUTPUTS: Final = 96
PREFIXES: Final = 8
SCENARIOS: Final = ("n=1", "n=4")
#: For each model, the tokens that each of its layers reads.
MODELS: Final = {
    "full": ["full_attention"] * LAYERS,
    "hybrid": ["full_attention", "sliding_attention"],
    "states": ["conv", "full_attention"],
}
WINDOW: Final = 48  # neither a block nor a multiple of a block
STATE: Final = 3  # tokens that a short convolution reads; vLLM treats its state like that of a Mamba layer


def engine_settings(folder: str, blocks: int) -> dict[str, Any]:
    """Returns the arguments of a small `vllm.LLM` that logs its statistics."""
    return {
        "model": folder,
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "seed": 0,
        "enforce_eager": True,
        "block_size": BLOCK_SIZE,
        "num_gpu_blocks_override": blocks,
        "max_model_len": MAX_LENGTH,
        "max_num_seqs": RUNNING,
        "max_num_batched_tokens": 256,
        "enable_prefix_caching": True,
        "disable_log_stats": False,
    }


def config(model: str) -> dict[str, Any]:
    """Returns the config.json of the model, which is a Llama or an LFM2. The convolutions of an LFM2
    keep a recurrent state.
    """
    common = {
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2 * MAX_LENGTH,
        "rope_theta": 10_000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    if model == "states":
        return {
            **common,
            "architectures": ["Lfm2ForCausalLM"],
            "model_type": "lfm2",
            "layer_types": MODELS[model],
            "conv_dim": HIDDEN,
            "conv_L_cache": STATE,
            "conv_bias": False,
            "block_dim": HIDDEN,
            "block_ff_dim": FEED_FORWARD,
            "block_auto_adjust_ff_dim": False,
            "norm_eps": 1e-5,
            "tie_word_embeddings": True,
        }
    windows = {"layer_types": MODELS[model], "sliding_window": WINDOW} if model != "full" else {}
    return {
        **common,
        **windows,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }


def shapes(model: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    if model == "states":
        found["model.embedding_norm.weight"] = (HIDDEN,)
        for layer, kind in enumerate(MODELS[model]):
            prefix = f"model.layers.{layer}."
            found[prefix + "operator_norm.weight"] = found[prefix + "ffn_norm.weight"] = (HIDDEN,)
            found[prefix + "feed_forward.w1.weight"] = found[prefix + "feed_forward.w3.weight"] = (
                FEED_FORWARD,
                HIDDEN,
            )
            found[prefix + "feed_forward.w2.weight"] = (HIDDEN, FEED_FORWARD)
            if kind == "conv":
                found[prefix + "conv.conv.weight"] = (HIDDEN, 1, STATE)
                found[prefix + "conv.in_proj.weight"] = (3 * HIDDEN, HIDDEN)
                found[prefix + "conv.out_proj.weight"] = (HIDDEN, HIDDEN)
                continue
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                found[f"{prefix}self_attn.{name}.weight"] = (HIDDEN, HIDDEN)
            for name in ("q", "k"):
                found[f"{prefix}self_attn.{name}_layernorm.weight"] = (HIDDEN // HEADS,)
        return found
    found |= {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name in ("q", "k", "v", "o"):
            found[f"{prefix}self_attn.{name}_proj.weight"] = (HIDDEN, HIDDEN)
        found[prefix + "mlp.gate_proj.weight"] = found[prefix + "mlp.up_proj.weight"] = (FEED_FORWARD, HIDDEN)
        found[prefix + "mlp.down_proj.weight"] = (HIDDEN, FEED_FORWARD)
        found[prefix + "input_layernorm.weight"] = found[prefix + "post_attention_layernorm.weight"] = (
            HIDDEN,
        )
    return found


def write_model(folder: Path, model: str) -> None:
    """Writes the config and random weights of the model. Every call writes the same weights."""
    torch = importlib.import_module("torch")
    generator = torch.Generator().manual_seed(20)
    weights = {}
    for name, shape in shapes(model).items():
        if len(shape) == 1:
            weights[name] = torch.ones(shape)
            continue
        scale = 1.0 if "embed" in name else 2.0 / shape[-1] ** 0.5
        weights[name] = torch.randn(shape, generator=generator) * scale
    importlib.import_module("safetensors.torch").save_file(
        weights, str(folder / "model.safetensors"), metadata={"format": "pt"}
    )
    (folder / "config.json").write_text(json.dumps(config(model), indent=1) + "\n", encoding="utf-8")


def make_prompts(count: int) -> list[list[int]]:
    """Makes prompts. Some share whole blocks, some share a part of a block, and some are equal."""
    source = random.Random(7)
    prefixes = [
        [source.randrange(3, VOCABULARY) for _ in range(24 + 20 * number)] for number in range(PREFIXES)
    ]
    prompts: list[list[int]] = []
    for number in range(count):
        if number % 20 == 19:
            prompts.append(list(prompts[-3]))
            continue
        tail = [source.randrange(3, VOCABULARY) for _ in range(source.randrange(4, 70))]
        prompts.append(prefixes[source.randrange(PREFIXES)] + tail)
    return prompts


def sampling(scenario: str, count: int) -> list[dict[str, Any]]:
    common = {"ignore_eos": True, "detokenize": False}
    lengths = [OUTPUTS - (number * 5) % 64 for number in range(count)]
    if scenario == "n=1":
        return [{**common, "temperature": 0.0, "max_tokens": length} for length in lengths]
    # Do not give requests a seed of their own. On the CPU, vLLM 0.32 does not accept one for a prompt
    # that is prefilled in chunks. So all samples come from one generator, and a different schedule
    # leads to different tokens.
    return [{**common, "n": 4, "temperature": 0.8, "max_tokens": length} for length in lengths]


class Recorder:
    """Replaces the engine's publisher of KV events, and stores the events instead of sending them."""

    def __init__(self) -> None:
        self.batches: list[list[dict[str, Any]]] = []

    def publish(self, batch: Any) -> None:
        """Stores the fields of the events, without the time of the batch."""
        self.batches.append(
            [
                {
                    "type": type(event).__name__,
                    **{field: getattr(event, field) for field in event.__struct_fields__},
                }
                for event in batch.events
            ]
        )

    def shutdown(self) -> None:
        """Does nothing. The engine calls this method at its end."""


def preemptions(llm: Any) -> int:
    """Returns the number of preemptions since the engine started."""
    return int(sum(one.value for one in llm.get_metrics() if one.name == "vllm:num_preemptions"))


def run_scenario(llm: Any, scenario: str, prompts: list[list[int]], recorder: Recorder) -> dict[str, Any]:
    """Generates the answers to all prompts, starting with an empty cache."""
    parameters = importlib.import_module("vllm").SamplingParams
    if not llm.reset_prefix_cache():
        raise RuntimeError("the prefix cache cannot be reset: blocks are in use although no request runs")
    importlib.import_module("torch").manual_seed(0)
    recorder.batches = []
    before = preemptions(llm)
    begun = time.monotonic()
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        [parameters(**one) for one in sampling(scenario, len(prompts))],
        use_tqdm=False,
    )
    return {
        "tokens": [[list(one.token_ids) for one in output.outputs] for output in outputs],
        "cached": [output.num_cached_tokens for output in outputs],
        "preemptions": preemptions(llm) - before,
        "batches": recorder.batches,
        "seconds": time.monotonic() - begun,
    }


def replaced(core: Any) -> list[str]:
    """Returns the names of the parts of the engine that kvpool has replaced."""
    manager = core.scheduler.kv_cache_manager
    places = {
        "KVCacheManager": type(manager),
        "BlockPool": type(manager.block_pool),
        "request hasher": core.request_block_hasher,
    }
    return [name for name, one in places.items() if str(getattr(one, "__module__", "")).startswith("kvpool")]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", choices=list(MODELS), default="full")
    parser.add_argument("--prompts", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args(argv)
    vllm = importlib.import_module("vllm")
    with tempfile.TemporaryDirectory(prefix="kvpool-check-") as folder:
        write_model(Path(folder), options.model)
        events = {"enable_kv_cache_events": True, "publisher": "null"}
        llm = vllm.LLM(**engine_settings(folder, options.blocks), kv_events_config=events)
    core = llm.llm_engine.engine_core.engine_core
    core.scheduler.kv_event_publisher = recorder = Recorder()
    prompts = make_prompts(options.prompts)
    found = {
        "vllm": vllm.__version__,
        "replaced": replaced(core),
        "groups": core.scheduler.kv_cache_manager.num_kv_cache_groups,
        "scenarios": {scenario: run_scenario(llm, scenario, prompts, recorder) for scenario in SCENARIOS},
    }
    if found["groups"] != len(set(MODELS[options.model])):
        raise RuntimeError(f"vLLM made {found['groups']} KV-cache groups of {MODELS[options.model]}")
    options.result.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
