"""The cases of tools/vllm_identity_check.py: the changes between two starts of an engine over one
store.

The files of all cases are in one folder, and are restored after each case:

- ``full``, ``window``, ``longrope``: folders with models. ``adapter``: a LoRA adapter of ``full``.
- ``media``: a model that reads audio, with weights that vLLM makes up. Its prompts in these cases are
  text.
- ``hub``: a cache of huggingface_hub with the model ``org/tiny``, which has two commits.

``{files}`` in an option is replaced by the path of that folder.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import shutil
from typing import TYPE_CHECKING, Any, Final

from tools.vllm.check_engine import HEADS, HIDDEN, LAYERS, MAX_LENGTH, VOCABULARY, write_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COMMITS: Final = ("1" * 40, "2" * 40)
RANK: Final = 4
SHORT: Final = 256


@dataclasses.dataclass(frozen=True)
class Start:
    """The settings of one start of an engine."""

    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    tier: dict[str, Any] = dataclasses.field(default_factory=dict)
    adapter: dict[str, Any] | None = None  # the adapter of every request
    actions: tuple[str, ...] = ("generate",)

    def with_(self, other: Start) -> Start:
        """Returns this start, with the settings of another start in addition."""
        return Start(
            {**self.options, **other.options},
            {**self.environment, **other.environment},
            {**self.tier, **other.tier},
            other.adapter or self.adapter,
            other.actions,
        )


@dataclasses.dataclass(frozen=True)
class Case:
    """A change between two starts of an engine over one store."""

    name: str
    base: str  # the first start, as a key of BASES
    hits: bool  # whether the second start may load what the first one wrote
    change: Start = dataclasses.field(default_factory=Start)
    files: Callable[[Path], None] | None = (
        None  # changes files before the second start, or as an action of `during`
    )
    during: Start | None = None  # a start between the two, over the same store
    restored: bool = True  # whether the files are restored after `during`


ADAPTER: Final = {"lora_name": "tune", "lora_int_id": 1, "lora_path": "{files}/adapter"}
LORA: Final = {"model": "{files}/full", "enable_lora": True, "max_lora_rank": 8}
BASES: Final = {
    "full": Start({"model": "{files}/full"}),
    "dummy": Start({"model": "{files}/full", "load_format": "dummy"}),
    "window": Start({"model": "{files}/window"}),
    "longrope": Start({"model": "{files}/longrope", "max_model_len": SHORT}),
    "lora": Start(LORA, adapter=ADAPTER),
    "fp8": Start({"model": "{files}/full", "kv_cache_dtype": "fp8"}),
    "half": Start({"model": "{files}/full", "dtype": "bfloat16"}),
    "media": Start(
        {
            "model": "{files}/media",
            "load_format": "dummy",
            "skip_tokenizer_init": False,
            "limit_mm_per_prompt": {"audio": 0},
        }
    ),
    "hub": Start({"model": "org/tiny"}),
    "branch": Start({"model": "org/tiny", "revision": "branch"}),
    "pinned": Start({"model": "org/tiny", "revision": COMMITS[0]}),
}


def write_files(folder: Path) -> None:
    for name, model in (("full", "full"), ("window", "hybrid"), ("longrope", "full")):
        (folder / name).mkdir(parents=True)
        write_model(folder / name, model)
    half = HIDDEN // HEADS // 2
    edit(
        folder / "longrope" / "config.json",
        max_position_embeddings=2 * MAX_LENGTH,
        original_max_position_embeddings=SHORT,
        rope_scaling={
            "rope_type": "longrope",
            "short_factor": [1.0] * half,
            "long_factor": [4.0] * half,
            "original_max_position_embeddings": SHORT,
        },
    )
    write_media(folder)
    write_adapter(folder, 1)
    shutil.copytree(folder / "full", folder / "other_config")
    edit(folder / "other_config" / "config.json", rope_theta=500.0)
    write_hub(folder)


def write_media(folder: Path) -> None:
    """Writes a model that reads audio. vLLM starts such a model only with a tokenizer and a processor."""
    shutil.copytree(folder / "full", folder / "media")
    text = json.loads((folder / "full" / "config.json").read_text())
    audio = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
    edit(
        folder / "media" / "config.json",
        architectures=["Qwen2AudioForConditionalGeneration"],
        model_type="qwen2_audio",
        audio_token_index=5,
        audio_config=audio,
        text_config={**text, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    )
    special = {"<|AUDIO|>": 5, "<|audio_bos|>": 6, "<|audio_eos|>": 7}
    words = {f"w{number}": number for number in range(VOCABULARY) if number not in special.values()} | special
    common = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    files = {
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [{"id": number, "content": word, **common} for word, number in special.items()],
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "model": {"type": "WordLevel", "vocab": words, "unk_token": "w3"},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": "w3",
            "eos_token": "w2",
            "pad_token": "w2",
        },
        "preprocessor_config.json": {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "processor_class": "Qwen2AudioProcessor",
            "feature_size": 128,
        },
    }
    for name, fields in files.items():
        (folder / "media" / name).write_text(json.dumps(fields))


def write_hub(folder: Path) -> None:
    """Writes the hub cache: a model with two commits that have different weights, and two branches that
    are both at the first commit.
    """
    repository = folder / "hub" / "models--org--tiny"
    (repository / "blobs").mkdir(parents=True)
    (repository / "refs").mkdir()
    for number, commit in enumerate(COMMITS):
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for name in ("config.json", "model.safetensors"):
            blob = repository / "blobs" / f"{number}-{name}"
            shutil.copy2(folder / "full" / name, blob)
            (snapshot / name).symlink_to(os.path.relpath(blob, snapshot))
    replace(repository / "blobs" / "1-model.safetensors")
    for ref in ("main", "branch"):
        (repository / "refs" / ref).write_text(COMMITS[0])


def write_adapter(folder: Path, seed: int) -> None:
    torch = importlib.import_module("torch")
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    modules = ("q_proj", "k_proj", "v_proj", "o_proj")
    for layer in range(LAYERS):
        for module in modules:
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, HIDDEN, generator=generator)
            weights[f"{name}.lora_B.weight"] = torch.randn(HIDDEN, RANK, generator=generator) * 0.1
    (folder / "adapter").mkdir(exist_ok=True)
    save = importlib.import_module("safetensors.torch").save_file
    save(weights, str(folder / "adapter" / "adapter_model.safetensors"))
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 8,
        "target_modules": list(modules),
        "bias": "none",
    }
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config))


def edit(config: Path, **fields: Any) -> None:
    config.write_text(json.dumps({**json.loads(config.read_text()), **fields}))


def replace(file: Path) -> None:
    """Replaces weights by others of the same size. The file keeps its modification time."""
    torch = importlib.import_module("torch")
    tensors = importlib.import_module("safetensors.torch")
    before, weights = file.stat(), tensors.load_file(str(file))
    generator = torch.Generator().manual_seed(99)
    for name, one in weights.items():
        if one.dim() > 1:
            scale = one.std()
            weights[name] = torch.randn(one.shape, generator=generator) * scale
    other = file.with_name("other")
    tensors.save_file(
        weights, str(other), metadata={"format": "pt"} if "layers.0.mlp" in str(weights) else None
    )
    data = other.read_bytes()
    other.unlink()
    file.write_bytes(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def weights_replaced(files: Path) -> None:
    replace(files / "full" / "model.safetensors")


def adapter_replaced(files: Path) -> None:
    replace(files / "adapter" / "adapter_model.safetensors")


def touched(files: Path) -> None:
    for file in files.rglob("*"):
        if file.is_file():
            os.utime(file)


def documented(files: Path) -> None:
    (files / "full" / "README.md").write_text("A model.\n")


def moved(*refs: str) -> Callable[[Path], None]:
    def move(files: Path) -> None:
        for ref in refs:
            (files / "hub" / "models--org--tiny" / "refs" / ref).write_text(COMMITS[1])

    return move


def main_removed(files: Path) -> None:
    (files / "hub" / "models--org--tiny" / "refs" / "main").unlink()


def options(**changed: Any) -> Start:
    return Start(changed)


def rope(**parameters: Any) -> Start:
    return options(
        hf_overrides={"rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default", **parameters}}
    )


INPLACE: Final = {**ADAPTER, "load_inplace": True}

CASES: Final = (
    # In these cases the KV changes, so the second start must miss.
    Case("weights, same size and mtime", "full", False, files=weights_replaced),
    Case("--revision, whose branch moved", "branch", False, files=moved("branch")),
    Case("--revision added", "hub", False, options(revision=COMMITS[1])),
    Case("main moved", "hub", False, files=moved("main")),
    Case("--hf-overrides: rope theta", "full", False, rope(rope_theta=500.0)),
    Case("--hf-overrides: rope scaling", "full", False, rope(rope_type="linear", factor=4.0)),
    Case("--hf-overrides: norm", "full", False, options(hf_overrides={"rms_norm_eps": 1.0})),
    Case("--hf-overrides: window", "window", False, options(hf_overrides={"sliding_window": 33})),
    Case("--hf-config-path", "full", False, options(hf_config_path="{files}/other_config")),
    Case(
        "config.json of the folder",
        "full",
        False,
        files=lambda f: edit(f / "full" / "config.json", rope_theta=9.0),
    ),
    Case("--max-model-len beyond longrope's", "longrope", False, options(max_model_len=MAX_LENGTH)),
    Case("--quantization", "half", False, options(quantization="int8_per_channel_weight_only")),
    Case("--load-format: dummy", "full", False, options(load_format="dummy")),
    Case("--load-format: no longer dummy", "dummy", False, options(load_format="auto")),
    Case("adapter replaced at its path", "lora", False, files=adapter_replaced),
    Case("--lora-target-modules", "lora", False, options(lora_target_modules=["q_proj"])),
    Case("--dtype with fp8 KV", "fp8", False, options(dtype="bfloat16")),
    Case("--mm-processor-kwargs", "media", False, options(mm_processor_kwargs={"sampling_rate": 8_000})),
    Case("--kv-cache-dtype", "full", False, options(kv_cache_dtype="fp8")),
    Case("an environment variable of vLLM", "full", False, Start(environment={"VLLM_NEW_KERNEL": "1"})),
    *(
        Case(
            f"weights updated: {', '.join(order)}",
            "full",
            False,
            files=weights_replaced,
            during=Start(actions=order),
        )
        for order in (
            ("generate", "files", "reload", "reset", "generate"),
            ("generate", "reset", "files", "reload", "generate"),
            ("generate", "files", "reload", "generate"),
        )
    ),
    Case(
        "adapter replaced while the engine runs",
        "lora",
        False,
        files=adapter_replaced,
        during=Start(actions=("generate", "files", "generate")),
        restored=False,
    ),
    Case(
        "adapter replaced with load_inplace",
        "lora",
        False,
        files=adapter_replaced,
        during=Start(adapter=INPLACE, actions=("generate", "files", "generate")),
        restored=False,
    ),
    # In these cases the KV does not change, so the second start must hit.
    Case("nothing", "full", True),
    Case("new mtime", "full", True, files=touched),
    Case("a README in the folder", "full", True, files=documented),
    Case("main moved, commit pinned", "pinned", True, files=moved("main")),
    Case("commit pinned, no main in the cache", "pinned", True, files=main_removed),
    Case("the branch's commit pinned", "branch", True, options(revision=COMMITS[0])),
    Case("--gpu-memory-utilization", "full", True, options(gpu_memory_utilization=0.5)),
    Case("--num-gpu-blocks-override", "full", True, options(num_gpu_blocks_override=96)),
    Case("--max-num-seqs", "full", True, options(max_num_seqs=3)),
    Case("--max-num-batched-tokens", "full", True, options(max_num_batched_tokens=512)),
    Case("--scheduling-policy", "full", True, options(scheduling_policy="priority")),
    Case("--long-prefill-token-threshold", "full", True, options(long_prefill_token_threshold=64)),
    Case("--seed", "full", True, options(seed=5)),
    Case("--served-model-name", "full", True, options(served_model_name="other")),
    Case("--generation-config", "full", True, options(generation_config="vllm")),
    Case("--tokenizer", "full", True, options(tokenizer="{files}/other_config")),
    Case("--max-logprobs", "full", True, options(max_logprobs=3)),
    Case("--disable-log-stats", "full", True, options(disable_log_stats=True)),
    Case(
        "log level, port",
        "full",
        True,
        Start(environment={"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_PORT": "5999"}),
    ),
    Case("settings of the tier", "full", True, Start(tier={"workers": 2, "queue": 64, "deadline": 99.0})),
    Case("the same adapter", "lora", True),
    Case("the same adapter, new mtime", "lora", True, files=touched),
    Case("--max-cpu-loras", "lora", True, options(max_cpu_loras=3)),
    Case("--mm-processor-cache-gb", "media", True, options(mm_processor_cache_gb=1)),
    Case("the same hub model", "hub", True),
    Case("the same dummy weights", "dummy", True),
    Case("the same window", "window", True),
    Case("the same rope for long contexts", "longrope", True),
    Case("the same fp8 KV", "fp8", True),
    Case("the same bfloat16", "half", True),
    Case(
        "reset, and weights never change",
        "full",
        True,
        during=Start(tier={"on_reset": "keep"}, actions=("reset",)),
    ),
)
